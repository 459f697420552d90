"""Rules with one error planted, each of which `prove` finds: factors, single combinations, dimensions of 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.op import Op, zero
from gradcheck_cli.ops import OPS
from gradcheck_cli.reference import proof_of
from gradcheck_cli.reference.lattices import LATTICES

Where = Callable[[tuple[Any, ...], Mapping[str, Any]], bool]
SLIGHT = 1 + 1e-12


class Planted(NamedTuple):
    """A rule whose cotangents are too large by a factor where a condition on operands and metadata holds."""

    operator: str
    label: str
    where: Where
    factor: float = 2.0

    def __str__(self) -> str:
        return f"{self.operator} {self.label}"

    @property
    def op(self) -> Op:
        """The operator with this rule."""
        right = operator(self.operator)
        assert right.vjp is not None

        def vjp(ct: Any, ans: Any, *primals: Any, **metadata: Any) -> tuple[Any, ...]:
            flows = right.vjp(ct, ans, *primals, **metadata)
            wrong = self.where(primals, metadata)
            return tuple(flow * self.factor if flow is not None and wrong else flow for flow in flows)

        return replace(right, vjp=vjp)


def operator(name: str) -> Op:
    domain, _, own = name.rpartition(".")
    return OPS[domain, own]


def anywhere(primals: tuple[Any, ...], metadata: Mapping[str, Any]) -> bool:
    return True


def at_one(primals: tuple[Any, ...], metadata: Mapping[str, Any]) -> bool:
    """Some dimension of the first operand of floating-point numbers is 1."""
    return 1 in next(x.shape for x in primals if x is not None and x.dtype.kind in "fc")


def having(**wanted: Any) -> Where:
    """Metadata has these values; along the first spatial axis, where it has one for each."""

    def where(primals: tuple[Any, ...], metadata: Mapping[str, Any]) -> bool:
        return all(_first(metadata[key], key) == value for key, value in wanted.items())

    return where


def _first(value: Any, key: str) -> Any:
    if not isinstance(value, tuple):
        return value
    return (value[0], value[len(value) // 2]) if key == "pads" else value[0]


def spared(place: int) -> Where:
    """An operand is not differentiated by."""
    return lambda primals, metadata: not sym.wanted(primals[place])


PROVEN = [name for name in LATTICES if operator(name).vjp is not zero]
NO_DIMENSIONS = ("Range", "MaxUnpool", "Cast", "OneHot")  # scalars; a first dimension that is always 1; one of 2
WINDOWS = ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool", "Col2Im")
COMBINATIONS = [
    {"pads": (1, 0), "dilations": 2, "strides": 3}, {"pads": (0, 2), "dilations": 1, "strides": 2},
    {"pads": (2, 1), "dilations": 3, "strides": 1}, {"pads": (1, 1), "dilations": 2, "strides": 1},
]  # fmt: skip
SLIGHTLY = [Planted(name, "by a factor of 1 + 1e-12", anywhere, SLIGHT) for name in PROVEN]
AT_ONE = [Planted(name, "where a dimension is 1", at_one) for name in PROVEN if name not in NO_DIMENSIONS]
COMBINED = [Planted(name, str(only), having(**only)) for name in WINDOWS for only in COMBINATIONS]
SINGLE = [
    Planted("Conv", "group 2 and dilation 2", having(group=2, dilations=2)),
    Planted("Conv", "group 3, slightly", having(group=3), SLIGHT),
    Planted("ConvTranspose", "group 2 and stride 3", having(group=2, strides=3)),
    Planted("AveragePool", "ceil_mode and count_include_pad", having(ceil_mode=1, count_include_pad=1)),
    Planted("MaxPool", "columns first", having(storage_order=1, n_outputs=2)),
    Planted("LpPool", "p of 3", having(p=3)),
    Planted("LpPool", "p of 4, slightly", having(p=4), SLIGHT),
    Planted("CumSum", "exclusive and reverse", having(exclusive=1, reverse=1)),
    Planted("Pad", "reflect", having(mode="reflect")),
    Planted("Pad", "wrap", having(mode="wrap")),
    Planted("Resize", "cubic", having(mode="cubic")),
    Planted("ScatterElements", "products", having(reduction="mul")),
    Planted("ScatterND", "minima", having(reduction="min")),
    Planted("ReduceMean", "without its axes", having(keepdims=0)),
    Planted("TopK", "the smallest", having(largest=0)),
    Planted("Mod", "with the sign of the dividend", having(fmod=1)),
    Planted("Einsum", "a diagonal", having(equation="ii->i")),
    Planted("Exp", "by a power of 2 that is 1 modulo many primes", anywhere, 2.0**127),
    Planted("Softmax", "by the inverse of one", anywhere, 2.0**-127),
    Planted("Elu", "one alpha", having(alpha=0.25)),
    Planted("Softmax", "the axis before the last", having(axis=-2)),
    Planted("LayerNormalization", "the last two axes", having(axis=-2)),
    Planted("Mul", "where b is spared", spared(1)),
    Planted("MatMul", "where a is spared", spared(0)),
    Planted("Conv", "where the kernel is spared", spared(1)),
    Planted("Div", "where a is spared, slightly", spared(0), SLIGHT),
]
LONG = [*COMBINED, *(each for each in SINGLE if each.operator in WINDOWS)]
QUICK = [each for each in (*AT_ONE, *SINGLE) if each not in LONG]


def found(planted: Planted) -> bool:
    proof = proof_of(planted.op, OPS)
    return proof.status == "wrong" and bool(proof.case and proof.given != proof.right)


def test_there_are_hundreds_of_planted_errors() -> None:
    assert len({str(each) for each in (*SLIGHTLY, *AT_ONE, *COMBINED, *SINGLE)}) >= 200


@pytest.mark.one_in(3)
@pytest.mark.parametrize("planted", SLIGHTLY, ids=str)
def test_a_factor_of_one_and_a_millionth_of_a_millionth_is_found(planted: Planted) -> None:
    assert found(planted)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("planted", QUICK, ids=str)
def test_a_rule_that_is_wrong_in_a_corner_is_found(planted: Planted) -> None:
    assert found(planted)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("planted", LONG, ids=str)
def test_a_rule_that_is_wrong_for_one_combination_of_a_window_is_found(planted: Planted) -> None:
    assert found(planted)
