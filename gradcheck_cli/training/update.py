"""The second half of a training step: from gradients to new parameters, as one operator composed of ONNX's.

In order: gradients are divided by the loss scale, added up over the batches that make one update, clipped by their
norm together, and given to the optimizer.  A batch whose gradients are not finite changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from msgspec import Struct

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.export.gradient_graph import graph_of
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, Graph, Node, TensorType
from gradcheck_cli.model import Model
from gradcheck_cli.op import composite
from gradcheck_cli.ops import OPS
from gradcheck_cli.training.optimizers import Optimizer, Rates

RATE, STEP, NORM = "learning_rate", "step", "grad_norm"
_SCALARS: Mapping[str, Any] = {RATE: np.float64, STEP: np.int64}


class Update(Struct, frozen=True):
    """The way from gradients to parameters: the optimizer, and what is done before it."""

    optimizer: Optimizer
    clip_norm: float | None = None
    accumulate: int = 1
    loss_scale: float | None = None

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
        op = composite("Update", self._traced, domain="gradcheck", many=True)
        node = Node("Update", inputs, outputs, domain="gradcheck", name="update")
        graph = Graph(inputs, outputs, (node,), types={**scalars, **own, **given})
        return graph_of(Model(Source(graph, "update"), {**OPS, op.key: op}), outputs, {}).graph

    def _traced(self, rate: Var, step: Var, *rest: Var, n_outputs: int) -> list[Var]:
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
        rates = Rates(rate, sym.cast(number + 1, np.float64))
        after, kept = [], []
        due = self._due(step)
        for x, g, own, h in zip(xs, used, each, held, strict=True):
            made = self.optimizer.step(x, g, *own[: len(self.optimizer.state)], rates=rates, **self.optimizer.options)
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


def _share(norm: Var, most: float) -> Var:
    """The factor that brings a norm down to the most, as torch.nn.utils.clip_grad_norm_ has it."""
    return sym.minimum(norm.tape.constant(most, np.float64) / (norm + 1e-6), 1.0)
