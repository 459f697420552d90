"""Optimizers, as PyTorch defines those of the same names, with its defaults; lion is that of Chen et al., 2023.

A step takes a parameter, its gradient and its state, and gives the new parameter and state.  Rates are numbers in
float64 whatever the dtype of the parameter: 1 - 0.999^t is not to be rounded to float32 before it is divided by.

`Update` is all of the way from gradients to new parameters, as one operator composed of ONNX's: gradients are divided by
the loss scale, added up over the batches that make one update, clipped by their norm together, and given to the
optimizer.  A batch whose gradients are not finite changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec import field as made_by

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Tape, Var
from gradcheck_cli.errors import UsageError, did_you_mean
from gradcheck_cli.export.gradient_graph import graph_of
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, Graph, Node, TensorType
from gradcheck_cli.model import Model
from gradcheck_cli.op import composite
from gradcheck_cli.ops import OPS
from gradcheck_cli.points.targets import fitting

RATE, STEP, NORM = "learning_rate", "step", "grad_norm"
_SCALARS: Mapping[str, Any] = {RATE: np.float64, STEP: np.int64}
Stepped = tuple[Var, ...]  # the new parameter, then its state


class Rates:
    """Numbers that all parameters share: the learning rate and the number of the step, which begins with 1."""

    def __init__(self, rate: Var, count: Var) -> None:
        self.rate, self.count = rate, count
        self._made: dict[Any, Var] = {}

    def bias(self, beta: float) -> Var:
        """1 - beta^t, by which a running mean that began with zeros is too small."""
        tape: Tape = self.count.tape
        return self._once(("bias", beta), lambda: 1.0 - tape.apply("Pow", tape.constant(beta, np.float64), self.count))

    def cast(self, like: Var, key: Any, made: Callable[[], Var]) -> Var:
        """A number in the dtype of a parameter."""
        number = self._once(key, made)
        return self._once((key, like.dtype), lambda: sym.cast(number, like.dtype))

    def lr(self, like: Var) -> Var:
        return self.cast(like, "rate", lambda: self.rate)

    def _once(self, key: Any, made: Callable[[], Var]) -> Var:
        if key not in self._made:
            self._made[key] = made()
        return self._made[key]


def sgd(x: Var, g: Var, *, rates: Rates, weight_decay: float) -> Stepped:
    """x - lr g."""
    return (x - _decayed(x, g, weight_decay) * rates.lr(x),)


def momentum(x: Var, g: Var, b: Var, *, rates: Rates, momentum: float, nesterov: float, weight_decay: float) -> Stepped:
    """x - lr b with b = momentum b + g; of Nesterov's, g + momentum b takes the place of b."""
    g = _decayed(x, g, weight_decay)
    b = b * momentum + g
    return x - (g + b * momentum if nesterov else b) * rates.lr(x), b


def adam(
    x: Var, g: Var, m: Var, v: Var, *most: Var, rates: Rates, beta1: float, beta2: float, eps: float, amsgrad: float,
    weight_decay: float,
) -> Stepped:  # fmt: skip
    """A step by the running mean of gradients over the root of that of their squares; of AMSGrad's, the `most` so far."""
    g = _decayed(x, g, weight_decay)
    m, v = m * beta1 + g * (1 - beta1), v * beta2 + g * g * (1 - beta2)
    most = tuple(sym.maximum(each, v) for each in most)
    root = sym.sqrt((*most, v)[0]) / rates.cast(x, "root", lambda: sym.sqrt(rates.bias(beta2))) + eps
    return x - m / root * rates.cast(x, "step", lambda: rates.rate / rates.bias(beta1)), m, v, *most


def adamw(x: Var, g: Var, *state: Var, rates: Rates, weight_decay: float, **how: Any) -> Stepped:
    """Adam with weights that shrink by lr weight_decay beside it."""
    return adam(_shrunk(x, rates, weight_decay), g, *state, rates=rates, weight_decay=0, **how)


def adagrad(x: Var, g: Var, s: Var, *, rates: Rates, lr_decay: float, eps: float, weight_decay: float) -> Stepped:
    """A step by the gradient over the root of the sum of all squares so far."""
    g = _decayed(x, g, weight_decay)
    s = s + g * g
    rate = rates.cast(x, "step", lambda: rates.rate / ((rates.count - 1.0) * lr_decay + 1.0))
    return x - g / (sym.sqrt(s) + eps) * rate, s


def rmsprop(x: Var, g: Var, s: Var, *, rates: Rates, alpha: float, eps: float, weight_decay: float) -> Stepped:
    """A step by the gradient over the root of the running mean of squares."""
    g = _decayed(x, g, weight_decay)
    s = s * alpha + g * g * (1 - alpha)
    return x - g / (sym.sqrt(s) + eps) * rates.lr(x), s


def lion(x: Var, g: Var, m: Var, *, rates: Rates, beta1: float, beta2: float, weight_decay: float) -> Stepped:
    """A step by the sign of the running mean of gradients."""
    way = sym.sign(m * beta1 + g * (1 - beta1))
    return _shrunk(x, rates, weight_decay) - way * rates.lr(x), m * beta2 + g * (1 - beta2)


def _decayed(x: Var, g: Var, weight_decay: float) -> Var:
    """The gradient with that of weight_decay |x|^2 / 2."""
    return g + x * weight_decay if weight_decay else g


def _shrunk(x: Var, rates: Rates, weight_decay: float) -> Var:
    if not weight_decay:
        return x
    return x * rates.cast(x, ("kept", weight_decay), lambda: 1.0 - rates.rate * weight_decay)


class Optimizer(Struct, frozen=True):
    """An optimizer: its step, its learning rate where none is given, its options and the state of a parameter."""

    step: Callable[..., Stepped]
    lr: float
    options: Mapping[str, float] = made_by(default_factory=dict)
    state: tuple[str, ...] = ()  # names, each for a tensor of the parameter's shape that begins with zeros


_SHARES = ("beta1", "beta2", "alpha")  # of what a running mean was before
_BETAS = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "amsgrad": 0.0}
_MORE = {"amsgrad": ("max_exp_avg_sq",)}  # state that goes with an option
OPTIMIZERS: Mapping[str, Optimizer] = {
    "sgd": Optimizer(sgd, 1e-3, {"weight_decay": 0.0}),
    "momentum": Optimizer(
        momentum, 1e-3, {"momentum": 0.9, "nesterov": 0.0, "weight_decay": 0.0}, ("momentum_buffer",)
    ),
    "adam": Optimizer(adam, 1e-3, {**_BETAS, "weight_decay": 0.0}, ("exp_avg", "exp_avg_sq")),
    "adamw": Optimizer(adamw, 1e-3, {**_BETAS, "weight_decay": 0.01}, ("exp_avg", "exp_avg_sq")),
    "adagrad": Optimizer(adagrad, 1e-2, {"lr_decay": 0.0, "eps": 1e-10, "weight_decay": 0.0}, ("sum",)),
    "rmsprop": Optimizer(rmsprop, 1e-2, {"alpha": 0.99, "eps": 1e-8, "weight_decay": 0.0}, ("square_avg",)),
    "lion": Optimizer(lion, 1e-4, {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0}, ("exp_avg",)),
}


def optimizer_of(text: str, weight_decay: float | None = None) -> Optimizer:
    """The optimizer in NAME[:OPTION=VALUE,...]; UsageError for another."""
    name, _, rest = text.partition(":")
    if name not in OPTIMIZERS:
        raise UsageError(f"--optimizer {text}: there are {', '.join(OPTIMIZERS)}.{did_you_mean(name, OPTIMIZERS)}")
    known = OPTIMIZERS[name]
    options = dict(known.options)
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        if key not in options:
            there = ", ".join(f"{k}={v:g}" for k, v in options.items())
            raise UsageError(f"--optimizer {text}: {name} has no option {key!r}, but {there}.")
        if key == "weight_decay" and weight_decay is not None:
            raise UsageError(f"--optimizer {text}: --weight-decay gives the weight decay too; write one of them.")
        try:
            options[key] = float({"true": "1", "false": "0"}.get(value.lower(), value))
        except ValueError:
            raise UsageError(f"--optimizer {text}: {key} is a number.") from None
    if weight_decay is not None:
        options["weight_decay"] = weight_decay
    _require_valid(text, options)
    more = (slot for key, slots in _MORE.items() if options.get(key) for slot in slots)
    return Optimizer(known.step, known.lr, options, (*known.state, *more))


def _require_valid(text: str, options: Mapping[str, float]) -> None:
    """UsageError for an option out of its range."""
    for key, value in options.items():
        if not 0 <= value < (1 if key in _SHARES else np.inf):
            told = "from 0 to below 1" if key in _SHARES else "of 0 or more"
            raise UsageError(f"--optimizer {text}: {key} is {value:g}; it is a number {told}.")
    if options.get("nesterov") and not options["momentum"]:
        raise UsageError(f"--optimizer {text}: nesterov needs a momentum above 0.")


class Update(Struct, frozen=True):
    """The way from gradients to parameters: the optimizer, and what is done before it.

    Weights that fit a glob in `no_decay` do not decay, as recipes have it for biases and scales of normalizations.
    `lr_scale` holds FACTOR:GLOB, factors of the learning rate of some weights; the last that fits a weight is its own.
    """

    optimizer: Optimizer
    clip_norm: float | None = None
    accumulate: int = 1
    loss_scale: float | None = None
    no_decay: tuple[str, ...] = ()
    lr_scale: tuple[str, ...] = ()

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of a parameter's state."""
        return (*self.optimizer.state, *(("grad_sum",) if self.accumulate > 1 else ()))

    def state(self, params: Mapping[str, Array]) -> dict[str, Array]:
        """The state of all parameters before the first step."""
        return {f"{name}.{slot}": np.zeros_like(value) for name, value in params.items() for slot in self.slots}

    def graph(self, params: Mapping[str, Array], grads: Sequence[str], suffix: str) -> Graph:
        """The graph from rate, step, parameters, gradients and state to the norm and what they are after the step."""
        state = self.state(params)
        scalars = {name: TensorType(np.dtype(dtype), ()) for name, dtype in _SCALARS.items()}
        own = {n: TensorType(v.dtype, v.shape) for n, v in {**params, **state}.items()}
        given = {g: TensorType(v.dtype, v.shape) for g, v in zip(grads, params.values(), strict=True)}
        inputs = (*scalars, *params, *given, *state)
        outputs = (NORM, *(f"{name}{suffix}" for name in (STEP, *params, *state)))
        options = [*zip(self._options(params), self._scales(params), strict=True)]
        op = composite("Update", partial(self._traced, options), domain="gradcheck", many=True)
        node = Node("Update", inputs, outputs, domain="gradcheck", name="update")
        graph = Graph(inputs, outputs, (node,), types={**scalars, **own, **given})
        return graph_of(Model(Source(graph, "update"), {**OPS, op.key: op}), outputs, {}).graph

    def _options(self, names: Collection[str]) -> Iterator[Mapping[str, float]]:
        """The optimizer's options for each parameter."""
        usual = self.optimizer.options
        if self.no_decay and not usual["weight_decay"]:
            raise UsageError("--no-decay: nothing decays; --weight-decay gives by how much the other weights do.")
        kept = {name for glob in self.no_decay for name in fitting([*names], glob, "--no-decay ")}
        yield from ({**usual, "weight_decay": 0} if name in kept else usual for name in names)

    def _scales(self, names: Collection[str]) -> list[float]:
        """The factor of the learning rate for each parameter."""
        found = dict.fromkeys(names, 1.0)
        for text in self.lr_scale:
            factor, mark, glob = text.partition(":")
            if not mark or not glob:
                raise UsageError(f"--lr-scale {text}: write FACTOR:GLOB, such as 0.1:'encoder*'.")
            found.update(dict.fromkeys(fitting([*names], glob, "--lr-scale "), _factor(factor, text)))
        return [*found.values()]

    def _traced(
        self, options: Sequence[tuple[Mapping[str, float], float]], rate: Var, step: Var, *rest: Var, n_outputs: int
    ) -> list[Var]:
        """The norm of the gradients, then what comes after step, parameters and state."""
        count = len(rest) // (2 + len(self.slots))
        xs, grads, state = rest[:count], rest[count : 2 * count], rest[2 * count :]
        each = [state[i : i + len(self.slots)] for i in range(0, len(state), len(self.slots) or 1)] or [()] * count
        if self.loss_scale is not None:
            grads = tuple(g / self.loss_scale for g in grads)
        held = [sum_ + g / self.accumulate for g, (*_, sum_) in zip(grads, each, strict=True)] \
            if self.accumulate > 1 else list(grads)  # fmt: skip
        norm = sym.sqrt(reduce(add, (sym.cast(sym.sum(g * g, keepdims=False), np.float64) for g in held)))
        finite = norm < np.inf
        used = held if self.clip_norm is None else [g * sym.cast(_share(norm, self.clip_norm), g.dtype) for g in held]
        number = step.tape.apply("Div", step, self.accumulate) if self.accumulate > 1 else step
        turn = sym.cast(number + 1, np.float64)
        rates = {scale: Rates(rate if scale == 1 else rate * scale, turn) for _, scale in options}
        after, kept = [], []
        due = self._due(step)
        for x, g, own, h, (how, scale) in zip(xs, used, each, held, options, strict=True):
            made = self.optimizer.step(x, g, *own[: len(self.optimizer.state)], rates=rates[scale], **how)
            new = [n if due is None else sym.where(due, n, o) for n, o in zip(made, (x, *own), strict=False)]
            new += [] if due is None else [sym.where(due, sym.zeros_like(h), h)]
            new = [
                n if self.loss_scale is None else sym.where(finite, n, o) for n, o in zip(new, (x, *own), strict=True)
            ]
            after.append(new[0])
            kept.extend(new[1:])
        one = step.tape.constant(1, np.int64) if self.loss_scale is None else sym.cast(finite, np.int64)
        return [norm, step + one, *after, *kept]

    def _due(self, step: Var) -> Var | None:
        """True at the last of the batches that make one update; None if each does."""
        if self.accumulate == 1:
            return None
        return sym.equal(step.tape.apply("Mod", step, self.accumulate), self.accumulate - 1)


def _factor(text: str, said: str) -> float:
    """A factor of the learning rate; UsageError for another text."""
    try:
        found = float(text)
    except ValueError:
        found = np.nan
    if not 0 < found < np.inf:
        raise UsageError(
            f"--lr-scale {said}: {text!r} is no finite number above 0; --trainable leaves weights as they are."
        )
    return found


def _share(norm: Var, most: float) -> Var:
    """The factor that brings a norm down to the most, as torch.nn.utils.clip_grad_norm_ has it."""
    return sym.minimum(norm.tape.constant(most, np.float64) / (norm + 1e-6), 1.0)
