"""Rules that are wrong in the ways in which people get them wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.backward import gradients
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.ops import OPS

Rule = Callable[..., Sequence["Var | None"]]


def rule(op: str, domain: str = "") -> Any:
    """The right rule of an operator."""
    return OPS[domain, op].vjp


def as_if(function: Callable[..., Any]) -> Rule:
    """The gradient of another function of the same operands, made of other operators."""

    def vjp(ct: Any, ans: Any, *primals: Var | None, **metadata: Any) -> list[Var | None]:
        made = function(*primals, **metadata)
        made, cts = (v if isinstance(v, tuple) else (v,) for v in (made, ct))
        live = {y.name: c for y, c in zip(made, cts, strict=False) if c is not None}
        found = gradients(made[0].tape, live, [x.name for x in primals if x is not None])
        return [None if x is None else found.pop(0) for x in primals]

    return vjp


def instead(op: str, **changed: Any) -> Rule:
    """The gradient of the operator at other attributes."""
    record = OPS["", op]
    if record.composed:
        return as_if(lambda *xs, **m: record.forward(*xs, **{**m, **changed}))
    return lambda ct, y, *xs, **m: rule(op)(ct, y, *xs, **{**m, **changed})


def lost(right: Rule, *dropped: int) -> Rule:
    """A rule that gives some operands nothing."""

    def vjp(ct: Any, ans: Any, *primals: Var | None, **metadata: Any) -> list[Var | None]:
        cts = right(ct, ans, *primals, **metadata)
        return [None if i in dropped else c for i, c in enumerate(cts)]

    return vjp


def variance(x: Var, axes: Sequence[int]) -> tuple[Var, Var]:
    """x without its mean, and its variance."""
    centered = x - sym.mean(x, axes)
    return centered, sym.mean(centered * centered, axes)


# Sums over broadcast axes, products


def where_it_fits(op: str, wrong: Rule, *ranks: int) -> Rule:
    """A wrong rule for operands of given ranks, the right one for others: the layers around use the operator too."""

    def vjp(ct: Any, ans: Any, *primals: Any, **metadata: Any) -> Any:
        fits = tuple(x.ndim for x in primals) == ranks
        return (wrong if fits else rule(op))(ct, ans, *primals, **metadata)

    return vjp


def wrong_axis(ct: Var, y: Var, a: Var, b: Var) -> tuple[Var, Var]:
    return ct, sym.sum(ct, (-1,), keepdims=False)


def mean_for_sum(ct: Var, y: Var, a: Var, b: Var) -> tuple[Var, Var]:
    return ct, sym.mean(ct, (0,), keepdims=False)


def not_transposed(ct: Var, y: Var, a: Var, b: Var) -> tuple[Var, Var]:
    return sym.matmul(ct, b), sym.matmul(sym.swap(a), ct)


def power_without_log(ct: Var, y: Var, a: Var, b: Var) -> tuple[Var, Var]:
    return ct * b * y / a, ct * y


def quotient_without_second_term(ct: Var, y: Var, a: Var, b: Var) -> tuple[Var, None]:
    return ct / b, None


# Normalizations


def batch_norm(x: Var, scale: Var, b: Var, mean: Var, var: Var, *, unbiased: bool = False, inside: bool = True,
               epsilon: float = 1e-5, **_: Any) -> Var:  # fmt: skip
    """A BatchNormalization in training, with the variance over N - 1, or epsilon added to the deviation."""
    axes = [i for i in range(x.ndim) if i != 1]
    centered, spread = variance(x, axes)
    count = x.value.size / x.shape[1]
    spread = spread * (count / (count - 1)) if unbiased else spread
    root = sym.sqrt(spread + epsilon) if inside else sym.sqrt(spread) + epsilon
    rest = [(len(scale.value), *(1,) * (x.ndim - 2))] * 2
    scale, b = (sym.reshape(v, s) for v, s in zip((scale, b), rest, strict=True))
    return centered / root * scale + b


def layer_norm_eps_outside(x: Var, scale: Var, b: Var, *, axis: int, epsilon: float) -> Var:
    centered, spread = variance(x, range(axis, 0))
    return centered / (sym.sqrt(spread) + epsilon) * scale + b


def rms_norm_eps_outside(x: Var, scale: Var, *, axis: int, epsilon: float) -> Var:
    return x / (sym.sqrt(sym.mean(x * x, range(axis, 0))) + epsilon) * scale


def layer_norm_without_mean(cts: Any, ans: Any, x: Var, scale: Var, b: Var, *, axis: int, epsilon: float) -> Any:
    axes, (_, center, inverse) = range(axis, 0), ans
    normal, g = (x - center) * inverse, cts[0] * scale
    return (g - normal * sym.mean(g * normal, axes)) * inverse, cts[0] * normal, cts[0]


def layer_norm_stopped(cts: Any, ans: Any, x: Var, scale: Var, b: Var, *, axis: int, epsilon: float) -> Any:
    _, center, inverse = ans
    g = cts[0] * scale
    return (g - sym.mean(g, range(axis, 0))) * inverse, cts[0] * (x - center) * inverse, cts[0]


def rms_norm_stopped(ct: Var, y: Var, x: Var, scale: Var, *, axis: int, epsilon: float) -> Any:
    inverse = sym.reciprocal(sym.sqrt(sym.mean(x * x, range(axis, 0)) + epsilon))
    return ct * scale * inverse, ct * x * inverse


def norm_stopped(ct: Var, y: Var, x: Var, *, axis: int, p: int) -> tuple[Var]:
    return (ct / sym.sqrt(sym.sum(x * x, (axis,))),)


# Windows


def pads_swapped(ct: Var, y: Var, x: Var, *w: Var, pads: tuple[int, ...], **m: Any) -> Any:
    half = len(pads) // 2
    return rule("Conv")(ct, y, x, *w, pads=(*pads[half:], *pads[:half]), **m)


def ones_for(keyword: str) -> Rule:
    """A convolution's rule to its input with a stride or dilation of 1."""

    def vjp(ct: Var, y: Var, x: Var, *w: Var, **m: Any) -> Any:
        wrong = rule("Conv")(ct, y, x, *w, **{**m, keyword: (1,) * len(m[keyword])})
        return (wrong[0], *rule("Conv")(ct, y, x, *w, **m)[1:])

    return vjp


def not_flipped(ct: Var, y: Var, x: Var, w: Var, *b: Var, **m: Any) -> Any:
    turned = sym.slice(w, (-1, -1), (-100, -100), (-2, -1), (-1, -1))
    return (rule("Conv")(ct, y, x, turned, *b, **m)[0], *rule("Conv")(ct, y, x, w, *b, **m)[1:])


def groups_ignored(ct: Var, y: Var, x: Var, w: Var, *b: Var, group: int, **m: Any) -> Any:
    first = sym.slice(w, (0,), (w.shape[0] // group,), (0,))
    same = sym.concat([first] * group, 0)
    return (rule("Conv")(ct, y, x, same, *b, group=group, **m)[0], *rule("Conv")(ct, y, x, w, *b, group=group, **m)[1:])


def to_the_first(cts: Any, ans: Any, x: Var, **_: Any) -> tuple[Var]:
    """All of a window of 2 x 2 to its first element."""
    ct = cts[0] if isinstance(cts, tuple) else cts
    n, c, h, w = ct.shape
    spread = sym.pad(sym.reshape(ct, (n, c, h, 1, w, 1)), (0,) * 6 + (0, 0, 0, 1, 0, 1))
    return (sym.reshape(spread, x.shape),)


def pad_counted(ct: Var, y: Var, x: Var, *, count_include_pad: int, **m: Any) -> Any:
    return rule("AveragePool")(ct, y, x, count_include_pad=1 - count_include_pad, **m)


def other_pixels(attrs: dict[str, Any], **changed: Any) -> Rule:
    """A Resize's rule at another transformation of coordinates."""

    def vjp(ct: Var, y: Var, x: Var, **_: Any) -> Any:
        bind: Any = OPS["", "Resize"].bind
        return rule("Resize")(ct, y, x, **bind({**attrs, **changed}, x.value))

    return vjp


# Moving things about


def split_swapped(ct: Var, y: Var, *xs: Var, axis: int) -> Any:
    return rule("Concat")(ct, y, *xs, axis=axis)[::-1]


def not_inverted(ct: Var, y: Var, x: Var, *, perm: tuple[int, ...]) -> tuple[Var]:
    return (sym.transpose(ct, [p % x.ndim for p in perm]),)


def duplicates_overwritten(ct: Var, y: Var, x: Var, indices: Var, *, axis: int) -> tuple[Var, None]:
    zeros = sym.full(ct.tape, x.shape, 0, ct.dtype)
    return ct.tape.apply("ScatterND", zeros, sym.unsqueeze(indices, (-1,)), ct), None


def first_copy(ct: Var, y: Var, x: Var, *, repeats: tuple[int, ...]) -> tuple[Var]:
    return (sym.slice(ct, (0,) * x.ndim, x.shape, range(x.ndim)),)


def first_output_alone(cts: Any, ans: Any, x: Var, **m: Any) -> Any:
    return rule("Split")((cts[0], *(None for _ in cts[1:])), ans, x, **m)


def same_direction(ct: Var, y: Var, x: Var, *, axis: int, exclusive: int, reverse: int) -> Any:
    return (ct.tape.apply("CumSum", ct, np.asarray(axis, np.int64), exclusive=exclusive, reverse=reverse),)


def not_flipped_indices(ct: Var, y: Var, x: Var, **m: Any) -> Any:
    return (sym.slice(rule("Slice")(ct, y, x, **m)[0], (-1,), (-100,), (0,), (-1,)),)


# Elementwise


def other_leak(ct: Var, y: Var, x: Var, *, alpha: float) -> tuple[Var]:
    return (sym.where(x < 0, ct * (2 * alpha), ct),)


def no_leak(ct: Var, y: Var, x: Var, *, alpha: float) -> tuple[Var]:
    return (sym.where(x < 0, 0, ct),)


def straight_through(ct: Var, y: Var, x: Var, *bounds: Any, **_: Any) -> tuple[Any, ...]:
    return ct, *(None for _ in bounds)


def softmax_without_sum(ct: Var, y: Var, x: Var, *, axis: int = -1) -> tuple[Var]:
    return (ct * y,)


def other_axis(op: str) -> Rule:
    """The rule of an operator on matrices along the other of the two axes."""
    return lambda ct, y, x, *, axis: rule(op)(ct, y, x, axis=-3 - axis)


def condition_turned(ct: Var, z: Var, condition: Var, x: Var, y: Var) -> Any:
    none, to_x, to_y = rule("Where")(ct, z, condition, x, y)
    return none, to_y, to_x
