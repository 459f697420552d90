"""Random numbers: drawn once for a tape, so that every run of a check sees the same ones.

A kernel may run many times, so it draws from a copy of the generator that the tape supplies; a node's own seed takes
the generator's place.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Interval, Op, attributes_of, composite, counting, stepping, zero
from gradcheck_cli.op.batching import Kernel, shape_only
from gradcheck_cli.ops.shape import checked

Rng = np.random.Generator
FLOAT, INT = np.dtype(np.float32), np.dtype(np.int32)


def dropout(
    x: Var, *, ratio: float = 0.5, training_mode: bool = False, seed: int | None = None, rng: Rng
) -> tuple[Var, Var]:
    """x, and the mask of entries that are kept; in training some are dropped at random and the others scaled up.

    `rng` says that it draws, which RandomUniformLike does.
    """
    if not training_mode or ratio == 0:
        return sym.identity(x), sym.full(x.tape, x.shape, 1, np.bool_)
    if not 0 <= ratio < 1:
        raise ValueError(f"ratio is {ratio}; it must be at least 0 and less than 1")
    draw = {"dtype": 1} if seed is None else {"dtype": 1, "seed": seed}
    mask = x.tape.apply("RandomUniformLike", x, **draw) >= ratio
    return sym.where(mask, x / (1.0 - ratio), 0), mask


def random_normal(
    *, shape: Sequence[int], dtype: Any = FLOAT, mean: float = 0.0, scale: float = 1.0,
    seed: float | None = None, rng: Rng,
) -> Array:  # fmt: skip
    """Normally distributed numbers."""
    return _as(fresh(rng, seed).normal(mean, scale, checked(shape)), dtype)


def random_uniform(
    *, shape: Sequence[int], dtype: Any = FLOAT, low: float = 0.0, high: float = 1.0,
    seed: float | None = None, rng: Rng,
) -> Array:  # fmt: skip
    """Uniformly distributed numbers between two bounds."""
    return _as(fresh(rng, seed).uniform(low, high, checked(shape)), dtype)


def _like(draw: Kernel) -> Kernel:
    """A kernel that draws numbers in the shape of an operand."""

    @attributes_of(draw, "shape")
    def kernel(x: Array, *, dtype: Any = None, **how: Any) -> Array:
        return np.asarray(draw(shape=x.shape, dtype=dtype or x.real.dtype, **how))

    return kernel


def bernoulli(x: Array, *, dtype: Any = None, seed: float | None = None, rng: Rng) -> Array:
    """1 with probability x, else 0."""
    return _as(fresh(rng, seed).random(x.shape) < x.real, dtype or x.real.dtype)


def multinomial(x: Array, *, dtype: Any = INT, sample_size: int = 1, seed: float | None = None, rng: Rng) -> Array:
    """Classes drawn by their unnormalized log probabilities `(N, C)`."""
    if x.ndim != 2 or not x.shape[1]:
        raise ValueError(f"log probabilities are a matrix with a column for each class, not {list(x.shape)}")
    draws = fresh(rng, seed).random(checked((x.shape[0], sample_size)))
    shares = np.cumsum(np.exp(x - x.max(axis=1, keepdims=True)), axis=1, dtype=np.float64)
    below = draws[:, :, None] * shares[:, None, -1:] >= shares[:, None, :-1]
    return _as(below.sum(axis=-1), dtype)


def fresh(rng: Rng, seed: float | None) -> Rng:
    """A copy of the generator `rng`, or a generator from a node's seed."""
    if seed is None:
        return copy.deepcopy(rng)
    return np.random.default_rng(int(np.float64(seed).view(np.uint64)))


def _as(values: Array, dtype: Any) -> Array:
    return np.asarray(values).astype(dtype)


RANDOM: list[Op] = [
    composite("Dropout", dropout, static={"ratio": 1, "training_mode": 2}, cuts=counting(1),
              valid={1: Interval(0.1, 0.6)}, moves="within", same_axes=True),
    Op("RandomNormal", random_normal, zero),
    Op("RandomUniform", random_uniform, zero),
    Op("RandomNormalLike", _like(random_normal), zero, shape_only, does="Normally distributed numbers in the shape of x."),
    Op("RandomUniformLike", _like(random_uniform), zero, shape_only,
       does="Uniformly distributed numbers between two bounds, in the shape of x."),
    Op("Bernoulli", bernoulli, zero, step=lambda x, **m: bernoulli(x.real, **m) + 0 * x, branch=bernoulli, cuts=stepping),
    Op("Multinomial", multinomial, zero, ordered=True, cuts=stepping),
]  # fmt: skip
