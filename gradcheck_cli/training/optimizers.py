"""Optimizers, as PyTorch defines those of the same names, with its defaults; lion is that of Chen et al., 2023.

A step takes a parameter, its gradient and its state, and gives the new parameter and state.  Rates are numbers in
float64 whatever the dtype of the parameter: 1 - 0.999^t is not to be rounded to float32 before it is divided by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec import field as made_by

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Tape, Var
from gradcheck_cli.errors import UsageError, did_you_mean

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
    x: Var, g: Var, m: Var, v: Var, *, rates: Rates, beta1: float, beta2: float, eps: float, weight_decay: float
) -> Stepped:
    """A step by the running mean of gradients over the root of that of their squares."""
    g = _decayed(x, g, weight_decay)
    m, v = m * beta1 + g * (1 - beta1), v * beta2 + g * g * (1 - beta2)
    root = sym.sqrt(v) / rates.cast(x, "root", lambda: sym.sqrt(rates.bias(beta2))) + eps
    return x - m / root * rates.cast(x, "step", lambda: rates.rate / rates.bias(beta1)), m, v


def adamw(x: Var, g: Var, m: Var, v: Var, *, rates: Rates, weight_decay: float, **how: Any) -> Stepped:
    """Adam with weights that shrink by lr weight_decay beside it."""
    return adam(_shrunk(x, rates, weight_decay), g, m, v, rates=rates, weight_decay=0, **how)


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


_BETAS = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
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
        try:
            options[key] = float(value)
        except ValueError:
            raise UsageError(f"--optimizer {text}: {key} is a number.") from None
    if weight_decay is not None:
        options["weight_decay"] = weight_decay
    return Optimizer(known.step, known.lr, options, known.state)
