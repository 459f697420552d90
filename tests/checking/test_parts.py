"""Checks in parts: the record is that of the whole, however many parts there are and whoever compares them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pytest
from msgspec import structs

import gradcheck_cli as gc
from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.checks.parts import Part, Points, Shares
from gradcheck_cli.checks.procedure import Procedure
from gradcheck_cli.errors import LimitError, UsageError
from gradcheck_cli.results.record import Check
from gradcheck_cli.settings import Settings
from tests.checking.small import RNG, model, scaled, with_rule

WIDE = RNG.normal(size=(30, 5))
KINKED = np.where(np.arange(30) % 7 == 0, 0.0, RNG.normal(size=30))
Case: TypeAlias = tuple[gc.Model, Mapping[Any, Any], dict[str, Any]]
CASES: dict[str, Case] = {
    "right": (model(("MatMul", "x w", "h"), ("Tanh", "h", "y"), x=(30,), constants={"w": WIDE}), gc.OPS, {}),
    "fewer rows than parts": (model(("Exp", "x", "y"), x=(2,)), gc.OPS, {}),
    "no entries": (model(("Exp", "x", "y"), x=(0,)), gc.OPS, {}),
    "kinks": (model(("Relu", "x", "h"), ("MatMul", "h w", "y"), x=(30,), constants={"w": WIDE}), gc.OPS,
              {"x_init_value": {"x": KINKED}}),
    "jumps": (model(("Floor", "x", "f"), ("Mul", "f x", "y"), x=(30,)), gc.OPS, {"x_init_value": {"x": KINKED}}),
    "wrong": (model(("MatMul", "x w", "h"), ("Tanh", "h", "y"), x=(30,), constants={"w": WIDE}),
              with_rule("Tanh", scaled("Tanh", 2.0)), {}),
    "wrong in one row": (model(("Slice", "x a b", "s"), ("Exp", "s", "e"), ("MatMul", "x w", "h"), ("Add", "h e", "y"),
                               x=(30,), constants={"w": WIDE, "a": np.array([3]), "b": np.array([4])}),
                         with_rule("Exp", scaled("Exp", 0.5)), {}),
    "not finite": (model(("Log", "x", "y"), x=(30,)), gc.OPS, {"x_init_value": {"x": np.arange(30.0) - 3}}),
    "differences": (model(("MatMul", "x w", "h"), ("Tanh", "h", "y"), x=(30,), constants={"w": WIDE}), gc.OPS,
                    {"method": "richardson"}),
    "two points": (model(("Sin", "x", "h"), ("MatMul", "h w", "y"), x=(30,), constants={"w": WIDE}), gc.OPS,
                   {"points": 2}),
    "two tensors": (model(("MatMul", "x w", "h"), ("Mul", "h v", "y"), x=(30,), constants={"w": WIDE},
                          inputs={"v": (5,)}), gc.OPS, {}),
}  # fmt: skip
_OF_TIME = {"duration_s": 0.0, "peak_rss_mb": 0.0, "picture": None}


def in_parts(case: str | Case, count: int = 0, *, backwards: bool = False, **more: Any) -> tuple[Check, ...]:
    """The records of a case whose parts are compared one by one; 0: as many parts as there should be."""
    tested, ops, given = CASES[case] if isinstance(case, str) else case
    settings = Settings(mode="full", jobs=1, forward="internal", **{**given, **more})

    def elsewhere(advised: int, points: Points) -> Iterator[tuple[int, Shares]]:
        number = count or advised
        source = structs.replace(tested.source, values_at=points)
        for index in reversed(range(number)) if backwards else range(number):
            yield index, Procedure(source, settings, ops, part=Part(index, number)).shares()

    return Procedure(tested.source, settings, ops, elsewhere=elsewhere).run("net")


def whole(case: str | Case) -> tuple[Check, ...]:
    tested, ops, given = CASES[case] if isinstance(case, str) else case
    settings = Settings(mode="full", jobs=1, forward="internal", coloring=False, **given)
    return Procedure(tested.source, settings, ops).run("net")


def lasting(checks: tuple[Check, ...]) -> list[Check]:
    """Records without what another run of the same check may have otherwise."""
    return [replace(record, **_OF_TIME) for record in checks]


def exact(record: Check) -> dict[str, Any]:
    """The fields of a record that no rounding touches."""
    names = ("id", "status", "code", "entries", "method", "suspect", "ranges", "notes", "message", "health", "forward")
    found = {name: getattr(record, name) for name in names if hasattr(record, name)}
    return {**found, "worst": [(e.x, e.y, e.point, e.status, e.pattern, e.reason) for e in record.worst]}


def figures(record: Check) -> list[float]:
    """Its numbers."""
    worst = [number for e in record.worst for number in (e.theoretical, e.numerical)]
    return [record.max_abs_err, record.gradient.get("norm", 0), record.gradient.get("max", 0),
            record.gradient.get("zero_fraction", 0), *record.needed.values(), *worst]  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [1, 2, 3, 7, 0])
def test_the_record_of_all_parts_is_that_of_the_whole(name: str, count: int) -> None:
    found, expected = in_parts(name, count), whole(name)
    assert [exact(record) for record in found] == [exact(record) for record in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(figures(one), figures(other), rtol=1e-9, atol=1e-15)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
def test_the_record_does_not_depend_on_who_compares_which_part_and_when(name: str) -> None:
    assert lasting(in_parts(name)) == lasting(in_parts(name, backwards=True))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("count", [1, 3, 30])
@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("shape", [(30,), (6, 5)])
def test_ties_that_lie_in_several_parts_are_judged_as_a_whole(shape: tuple[int, ...], share: float, count: int) -> None:
    """Five equal maxima, of which each gets some share: a fifth is right, all or nothing is not."""

    def rule(ct: Any, y: Any, v: Any, **metadata: Any) -> tuple[Any, ...]:
        return (sym.where(sym.equal(v, 2.0), ct * share, 0.0),)

    tested = model(("ReduceMax", "x", "m", {"keepdims": 0}), ("Sin", "m", "y"), x=shape)
    value = np.where(np.arange(30) % 6 == 1, 2.0, np.linspace(-1, 1, 30)).reshape(shape)
    case: Case = tested, with_rule("ReduceMax", rule), {"x_init_value": {"x": value}}
    [found], [expected] = in_parts(case, count), whole(case)
    assert (found.status, found.code) == (expected.status, expected.code)
    assert found.status == ("pass" if share == 0.2 else "fail")
    assert found.suspect == expected.suspect


def test_pictures_of_parts_are_that_of_the_whole() -> None:
    tested, ops, given = CASES["wrong in one row"]
    settings = Settings(mode="full", jobs=1, forward="internal", pictures="wrong", coloring=False, **given)
    [expected] = Procedure(tested.source, settings, ops).run("whole")
    [found] = in_parts("wrong in one row", 3, pictures="wrong")
    assert found.picture is not None
    assert expected.picture is not None
    np.testing.assert_allclose(found.picture.tile.cells, expected.picture.tile.cells, rtol=0, atol=0.5)
    assert (found.picture.errors.counts[3] == expected.picture.errors.counts[3]).all()  # of failures
    assert found.picture.curve is not None
    assert found.picture.curve.x == (3,)
    [right] = in_parts("right", 3, pictures="wrong")
    assert right.picture is None


@pytest.mark.parametrize("more", [{"mode": "sampled"}, {"second_order": True}, {"compat": "tf"}])
def test_what_cannot_be_done_in_parts_is_refused(more: dict[str, Any]) -> None:
    tested = CASES["right"][0]
    with pytest.raises(UsageError, match="--engine dask"):
        Procedure(tested.source, Settings(**more), elsewhere=lambda count, points: iter(())).run("m")


def dense(size: int) -> gc.Model:
    return model(("Softmax", "x", "s"), ("Mul", "s v", "y"), x=(size,), inputs={"v": (size,)})


DENSE, DENSER = dense(2000), dense(4000)
TIGHT = 100 << 20  # bytes: a theoretical Jacobian of the former takes 32 MB, all of a comparison 112 MB
IN_TURN: dict[str, Case] = {
    "right": (DENSE, gc.OPS, {"x": ("x",)}),
    "wrong": (DENSE, with_rule("Softmax", scaled("Softmax", 1.5)), {"x": ("x",)}),
    "two points": (DENSER, gc.OPS, {"x": ("x",), "points": 2, "memory_limit": 4 * TIGHT}),
    "two tensors": (DENSER, gc.OPS, {"memory_limit": 4 * TIGHT}),
    "differences": (DENSE, gc.OPS, {"x": ("x",), "method": "richardson"}),
}


def limited(case: Case, **more: Any) -> Procedure:
    tested, ops, given = case
    settings = Settings(**{"mode": "full", "jobs": 1, "forward": "internal", "memory_limit": TIGHT, **given, **more})
    return Procedure(tested.source, settings, ops)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", IN_TURN)
def test_what_does_not_fit_the_memory_at_once_is_compared_in_parts(name: str) -> None:
    tested, ops, given = IN_TURN[name]
    procedure, expected = limited(IN_TURN[name]), whole((tested, ops, {**given, "memory_limit": None}))
    found = procedure.run("net")
    assert procedure.elsewhere is not None
    assert [exact(record) for record in found] == [exact(record) for record in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(figures(one), figures(other), rtol=1e-9, atol=1e-15)


def test_no_more_memory_is_asked_for_than_a_comparison_takes() -> None:
    asked = limited(IN_TURN["right"], memory_limit=16 << 20)
    with pytest.raises(UsageError, match=r"4\.0e6 entries .* takes about [5-7]\d\.?\d* MiB"):
        asked.run("net")
    at_once = limited(IN_TURN["right"], second_order=True)  # which there is not in parts
    with pytest.raises(UsageError, match=r"takes about 1[34]\d\.?\d* MiB"):
        at_once.run("net")


def test_the_time_limit_is_that_of_all_parts() -> None:
    with pytest.raises(LimitError, match=r"more than 0\.01 s"):
        limited(IN_TURN["right"], timeout=0.01).run("net")
