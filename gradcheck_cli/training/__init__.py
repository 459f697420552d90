"""Training steps: a model with its loss, its gradients and an optimizer as ONNX graphs that any runtime runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import Any

import ml_dtypes
import numpy as np
from msgspec import Struct, structs

from gradcheck_cli.autodiff.backward import add_n
from gradcheck_cli.autodiff.reach import Flow, live, straight
from gradcheck_cli.autodiff.severed import Severance, is_detach, said_of_cancelled
from gradcheck_cli.errors import UsageError, named, shown
from gradcheck_cli.export.derivatives import Derivatives, derivatives
from gradcheck_cli.export.gradient_graph import Written, graph_of
from gradcheck_cli.export.inner import relabeled
from gradcheck_cli.export.proof import proven_graph
from gradcheck_cli.graph import Array, FreshNames, Graph, computing
from gradcheck_cli.model import Model, Tensor, arguments
from gradcheck_cli.model.call_options import described
from gradcheck_cli.ops.straight import estimated
from gradcheck_cli.settings import Settings
from gradcheck_cli.training.losses import METRICS, said_of_scores, with_losses, with_measure
from gradcheck_cli.training.optimizers import NORM, RATE, STEP, Update, optimizer_of
from gradcheck_cli.training.trainables import Trainables, evaluated, trained_inputs

# No array of a checkpoint can be called as keywords of numpy.savez are, or as the count that step.py adds.
_OF_FILES = ("file", "allow_pickle", "batches_drawn")


class TrainingStep(Struct, frozen=True):
    """The graphs of a training step.

    train    from data, parameters and state to the loss, the metrics, and parameters and state after the step
    evaluate from data and parameters to the outputs of the model, the loss and the metrics
    init     values of parameters, statistics and state before the first step, by input of `train`; a checkpoint has
             the same names.  The output with the new value of one is called as the input, with `suffix` behind it
    lr       the learning rate that is meant, an input of `train`
    params   the inputs that are trained, `grads` the tensors of `train` with their gradients; `data` inputs that take
             a batch
    """

    train: Model
    evaluate: Model
    init: Mapping[str, Array]
    suffix: str
    lr: float
    loss: str
    metrics: tuple[str, ...]
    params: tuple[str, ...]
    grads: tuple[str, ...]
    data: tuple[str, ...]
    open_dims: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def models(self) -> dict[str, Model]:
        """The models by the names of their files."""
        return {"train.onnx": self.train, "eval.onnx": self.evaluate}

    def save(self, folder: str | os.PathLike[str]) -> list[str]:
        """Writes `train.onnx`, `eval.onnx`, `init.npz` and `step.py`, a loop over batches, into a folder.

        Both graphs are run by onnxruntime first, where it is installed; gives notes on that, if there are any, and
        on a checkpoint in the folder: `step.py` goes on from it.
        """
        from gradcheck_cli.training.folder import write_folder

        return write_folder(self, folder)


def training_step(
    model: Model, *, loss: str | Tensor | Sequence[str | Tensor], optimizer: str = "adam", lr: float | None = None,
    weight_decay: float | None = None, trainable: str | Sequence[str] = (), lora: str | Sequence[str] = (),
    clip_norm: float | None = None, accumulate: int = 1, loss_scale: float | None = None,
    metrics: str | Tensor | Sequence[str | Tensor] = (), straight_through: bool = False, seed: int = 0,
    feeds: Mapping[Any, Any] | None = None, no_decay: str | Sequence[str] = (), lr_scale: str | Sequence[str] = (),
) -> TrainingStep:  # fmt: skip
    """The graphs of one step of training a model.

    Losses and optimizers are those of PyTorch, with its defaults.

    Args:
        model: a model from `load`.
        loss: a tensor of the model with one number, or KIND:PREDICTION,TARGET: mse, l1, huber, bce-with-logits or
            cross-entropy; a target that is no tensor of the model becomes an input.  Options follow: reduction=sum,
            delta of huber, pos_weight of bce-with-logits, axis, ignore and label_smoothing of cross-entropy, and
            `probabilities` for a target that holds these.  FACTOR: before it scales it; several add up, and each is a
            metric too.
        optimizer: sgd, momentum, adam, adamw, adagrad, rmsprop or lion; options follow, as in adam:beta1=0.8,eps=1e-6.
        lr: the learning rate; None: the optimizer's usual one.
        weight_decay: that of the optimizer; None: its usual one.
        trainable: constants by name or glob; none: the weights, or nothing beside `lora`.
        lora: RANK:GLOB, weights that stay as they are and get trained low-rank factors beside them.
        clip_norm: the largest norm of all gradients together; larger ones are scaled down.
        accumulate: the number of batches whose mean gradient makes one update.
        loss_scale: a factor of the loss while gradients are computed, for float16.
        metrics: further outputs: tensors of the model, grad_norm, or accuracy:PREDICTION,LABELS.
        straight_through: gradients go through what rounds.
        seed: of the first values of low-rank factors.
        feeds: values by tensor or name that the graphs hold as constants.
        no_decay: weights by name or glob that `weight_decay` leaves alone.
        lr_scale: FACTOR:GLOB, a factor of the learning rate of some weights; of several that fit a weight the last counts.

    Returns:
        A `TrainingStep`.

    Raises:
        ValueError: an argument is invalid, or nothing can be trained.
        UnsupportedError: a gradient that no file can hold.
    """
    _require_finite(lr=lr, weight_decay=weight_decay, clip_norm=clip_norm, loss_scale=loss_scale)
    chosen = optimizer_of(optimizer, weight_decay)
    each = partial(_each, model)
    how = Update(
        chosen, clip_norm, _whole(accumulate), loss_scale, each("no_decay", no_decay), each("lr_scale", lr_scale)
    )
    texts = (each("trainable", trainable), each("lora", lora), each("metrics", metrics))
    losses = each("loss", loss)
    if feeds:
        model = _with_constants(model, arguments.feeds(model, feeds, "feeds"))
    making = _Making(model, losses, how, *texts, straight_through, seed)
    return making.step(how.optimizer.lr if lr is None else float(lr))


def _with_constants(model: Model, feeds: Mapping[str, Any]) -> Model:
    """The model with constants in the place of some tensors; they are not trained."""
    graph, values = model.graph, model.tape([*feeds], Settings(extra_feed_dict=feeds, dtype="model")).values
    if other := next((n for n in feeds if n not in values), None):
        raise UsageError(f"feeds: {shown(other)} is no tensor; a training step holds values of tensors.")
    fresh = FreshNames(graph.tensors)
    made = {n: fresh.fresh(f"{n}/computed") for node in graph.nodes for n in node.outputs if n in feeds}
    nodes = [replace(node, outputs=tuple(made.get(n, n) for n in node.outputs)) for node in graph.nodes]
    nodes = [nodes[i] for i in computing(nodes, graph.outputs)[0]]
    read = {*graph.outputs, *(n for node in nodes for n in node.reads)}
    fixed = replace(
        graph,
        inputs=tuple(n for n in graph.inputs if n not in feeds and n in read),
        nodes=tuple(nodes),
        constants={**graph.constants, **{n: values[n] for n in feeds}},
        modules={**graph.modules, **dict.fromkeys(feeds, False)},
    )
    return model.with_graph(fixed)


def _each(model: Model, argument: str, given: Any) -> tuple[str, ...]:
    """Texts as they are, and tensors of the model by name."""
    items = [given] if isinstance(given, str | Tensor) or not isinstance(given, Iterable) else [*given]
    if other := [item for item in items if not isinstance(item, str | Tensor)]:
        raise UsageError(f"{argument} is {described(other[0])}; it must be a text, a tensor, or a list of them.")
    return tuple(arguments.name_of(model, item, argument) if isinstance(item, Tensor) else item for item in items)


def _require_finite(**numbers: float | None) -> None:
    """UsageError for what is negative, infinite or no number; a norm and a scale are above 0."""
    for name, value in numbers.items():
        if value is None:
            continue
        number, above = np.asarray(value), name in ("clip_norm", "loss_scale")
        if number.shape or number.dtype.kind not in "fiu" or not 0 <= number < np.inf or (above and not number):
            said = described(value) if isinstance(value, str) else value
            raise UsageError(f"{name} is {said}; it is a finite number {'above 0' if above else 'of 0 or more'}.")


def _require_held(scale: float | None, dtype: np.dtype[Any]) -> None:
    """UsageError for a scale beyond the dtype of the loss, in which the gradients begin with it."""
    most = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
    if scale is not None and scale > most:
        raise UsageError(f"loss_scale is {scale:g}; the loss is {dtype}, in which numbers end at {most:g}.")


def _whole(number: int) -> int:
    if not isinstance(number, Integral) or number < 1:
        raise UsageError(f"accumulate is {number}; it is a whole number: one batch or more make an update.")
    return int(number)


class _Making(Struct, frozen=True):
    """A training step while it is put together."""

    given: Model
    losses: tuple[str, ...]
    how: Update
    trainable: tuple[str, ...]
    lora: tuple[str, ...]
    metrics: tuple[str, ...]
    straight: bool
    seed: int

    def step(self, lr: float) -> TrainingStep:
        model, loss, parts = with_losses(self.given, self.losses)
        model, metrics = self._with_metrics(model, loss, parts)
        ops, graph = model.ops, model.graph
        source = model.source
        if self.straight:
            source, ops = estimated(source, ops, (), (loss, *metrics))
            graph = source.graph
        base = Model(structs.replace(source, graph=graph), ops, model.dims)
        found, opened, grads = self._connected(base, loss)
        forward = self._forward(opened, loss, metrics, found, grads)
        suffix = _suffix(forward.graph)
        train, state = self._train(forward, grads, loss, metrics, found, suffix)
        init = {**found.params, **found.statistics, **state, STEP: np.zeros((), np.int64)}
        data = tuple(n for n in found.graph.inputs if n not in init and n in {*train.inputs})
        return TrainingStep(
            Model(structs.replace(source, graph=train, uri="train.onnx"), opened.ops, model.dims),
            self._evaluate(opened, loss, metrics),
            init, suffix, lr, loss, (*metrics, *self._norm), tuple(found.params), tuple(grads), data,
            forward.open_dims,
            (*said_of_scores(model, parts or [loss]), *found.notes, *forward.notes),
        )  # fmt: skip

    @property
    def _norm(self) -> tuple[str, ...]:
        """The norm of the gradients, if it is asked for."""
        return (NORM,) if NORM in self.metrics else ()

    def _with_metrics(self, model: Model, loss: str, parts: Sequence[str]) -> tuple[Model, list[str]]:
        """The model with the metrics that are asked for, and the names of these and of the parts of the loss."""
        found = [*parts]
        for text in self.metrics:
            if text != NORM:
                model, made = with_measure(model, text, METRICS, "--metric", text.partition(":")[0])
                found.append(made)
        return model, [name for name in dict.fromkeys(found) if name != loss]

    @property
    def _said(self) -> str:
        """The losses as they were given."""
        return " ".join(f"--loss {text}" for text in self.losses)

    def _connected(self, model: Model, loss: str) -> tuple[Trainables, Model, list[str]]:
        """The tensors that are trained, the model with them as inputs, and the names of the gradients.

        Weights to which no gradient leads are left as they are, also by the decay, as PyTorch leaves them.
        """
        found, opened, added = self._differentiated(model, loss, ())
        severance = Severance(Flow(opened.graph, opened.ops), straight if self.straight else live)
        said = said_of_cancelled(severance, found.params, loss)
        if left := [name for name in found.params if name in added.missing or severance.of(name, loss)]:
            mended = any(severance.mended(name, loss) for name in left)
            instead = "; --straight-through takes rounding as the identity" if mended else ""
            if self.lora or len(left) == len(found.params):
                raise UsageError(f"{self._said}: it does not depend on {named(left)} by a gradient{instead}.")
            found, opened, added = self._differentiated(model, loss, left)
            said.insert(0, f"not trained: {named(left)}; the loss does not depend on them by a gradient{instead}")
        detached = severance.detached(found.params, loss)
        if through := dict.fromkeys((w.target if is_detach(w) else w.source)[1] for w in detached):
            said.append(f"{named(through)} (detached in PyTorch): gradients go through here, and train the weights before "
                        "it too; --trainable '!GLOB' leaves weights out")  # fmt: skip
        found = structs.replace(found, notes=(*found.notes, *said))
        return found, opened, list(added.results.values())

    def _differentiated(self, model: Model, loss: str, left: Sequence[str]) -> tuple[Trainables, Model, Derivatives]:
        found = trained_inputs(model.graph, [loss], self.trainable, self.lora, model.ops, self.seed, left)
        opened = model.with_graph(found.graph)
        shape, scale = opened.shape(loss), self.how.loss_scale
        _require_held(scale, opened.dtype(loss))
        seeds: Any = "ones" if scale is None else {loss: np.full([1] * len(shape), scale)}
        how = {"scope": "gradients", "aggregate": add_n, "gate": False, "colocate": False, "zeros": False, "stop": ()}
        return found, opened, derivatives(opened, "gradient", list(found.params), [loss], seeds, how)

    def _forward(
        self, model: Model, loss: str, metrics: Sequence[str], found: Trainables, grads: Sequence[str]
    ) -> Written:
        """The graph of loss, metrics, statistics and gradients."""
        outputs = tuple(dict.fromkeys([loss, *metrics, *found.updates.values(), *grads]))
        made, _ = proven_graph(model, outputs, {})
        return made

    def _train(
        self, forward: Written, grads: Sequence[str], loss: str, metrics: Sequence[str], found: Trainables, suffix: str
    ) -> tuple[Graph, dict[str, Array]]:
        """The graph of a whole step, and the state that the optimizer begins with."""
        graph, state = forward.graph, self.how.state(found.params)
        taken = {*graph.tensors} & {RATE, STEP, NORM, *_OF_FILES, *state}
        if taken:
            raise UsageError(f"the model has a tensor {min(taken)!r}, which a training step needs for its own.")
        update = self.how.graph(found.params, grads, suffix)
        own = {*update.inputs, *update.outputs}
        fresh = FreshNames({*graph.tensors, *own})
        update = relabeled(update, {n: fresh.fresh(n) for n in update.tensors if n not in own})
        after = {v: f"{n}{suffix}" for n, v in found.updates.items()}
        graph = relabeled(graph, after)
        nexts = (f"{n}{suffix}" for n in (*found.params, *found.statistics, *state, STEP))
        whole = _joined(graph, update)
        inputs = dict.fromkeys([*graph.inputs, *found.params, *state, RATE, STEP])
        outputs = (loss, *metrics, *self._norm, *nexts)
        needed, _ = computing(whole.nodes, outputs)  # the norm may be asked for by nobody
        nodes = tuple(whole.nodes[i] for i in needed)
        return replace(whole, nodes=nodes, inputs=tuple(inputs), outputs=outputs), state

    def _evaluate(self, model: Model, loss: str, metrics: Sequence[str]) -> Model:
        """The model as it is evaluated, with parameters and running statistics as inputs."""
        outputs = tuple(dict.fromkeys([*self.given.graph.outputs, loss, *metrics]))
        plain = model.with_graph(evaluated(model.graph))
        graph = graph_of(plain, outputs, {}).graph
        return Model(structs.replace(model.source, graph=graph, uri="eval.onnx"), model.ops, model.dims)


def _joined(first: Graph, second: Graph) -> Graph:
    """Two graphs, of which the second reads what the first computes."""
    return replace(
        first,
        nodes=(*first.nodes, *second.nodes),
        constants={**first.constants, **second.constants},
        types={**second.types, **first.types},
    )


def _suffix(graph: Graph) -> str:
    """An ending of names that no tensor has."""
    return next(s for s in ("_next", "_after", "/next") if not any(n.endswith(s) for n in graph.tensors))
