"""Verdicts do not change with units of x and y, order, repetition, names, or functions."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from gradcheck_cli.op import Ops
from gradcheck_cli.ops import OPS
from tests.corpus.faults import all_operands, scaled
from tests.corpus.hosts import Host
from tests.corpus.networks import network
from tests.corpus.score import checked
from tests.corpus.transformations import in_units, outlined, permuted, renamed, repeated, value_of
from tests.rounding import assert_rounded

POWERS = (-100, 37)
ALL_POWERS = (-100, -64, -30, -7, -1, 1, 7, 30, 64, 100)
SUSPECTS: dict[str, tuple[str, str]] = {  # a network -> an operator of it that none of the transformations uses
    "mlp": ("", "Tanh"),
    "convolutional": ("", "LeakyRelu"),
    "attention": ("", "Softmax"),
    "looped": ("", "Sin"),
    "residual": ("", "ReduceL2"),
}


def tables(name: str, seed: int) -> dict[str, Ops]:
    """The right operator table, and wrong ones."""
    key = SUSPECTS[name]
    return {
        "right": OPS,
        "sign": all_operands(key, scaled(-1.0), seed),
        "relative 1e-6": all_operands(key, scaled(1 + 1e-6), seed),
        "factor 2": all_operands(key, scaled(2.0), seed),
        "a millionth and a half": all_operands(key, scaled(1 - 1.5e-6), seed),
    }


def verdict(host: Host, ops: Ops) -> tuple[str, str, str]:
    """Status, code, and the operator of the suspect: all that must not change."""
    record = checked(host, ops)
    return record.status, record.code, record.suspect.op if record.suspect else ""


@cache
def expected(name: str, seed: int) -> dict[str, tuple[str, str, str]]:
    """The verdicts of the network as it is."""
    return {label: verdict(network(name, seed), ops) for label, ops in tables(name, seed).items()}


def require_same(other: Host, name: str, seed: int) -> None:
    for label, ops in tables(name, seed).items():
        assert verdict(other, ops) == expected(name, seed)[label], label


each = pytest.mark.parametrize("name", SUSPECTS)


@pytest.mark.one_in(6)
@each
def test_models_pass_with_the_right_table_and_fail_with_the_others(name: str, seed: int) -> None:
    found = dict(expected(name, seed))
    assert found.pop("right") == ("pass", "", "")
    assert set(found.values()) == {("fail", "GC101", SUSPECTS[name][1])}


@pytest.mark.one_in(3)
@each
@pytest.mark.parametrize("of_x", POWERS)
def test_units_of_x_and_y_change_no_verdict(name: str, of_x: int, seed: int) -> None:
    host = network(name, seed)
    require_same(in_units(host, of_x, -of_x), name, seed)
    require_same(in_units(host, 0, of_x), name, seed)


@pytest.mark.slow
@each
@pytest.mark.parametrize("of_y", ALL_POWERS)
@pytest.mark.parametrize("of_x", [0, *ALL_POWERS])
def test_no_units_change_a_verdict(name: str, of_x: int, of_y: int, seed: int) -> None:
    host = network(name, seed)
    require_same(in_units(host, of_x, of_y), name, seed)


@pytest.mark.one_in(6)
@each
def test_the_order_of_coordinates_changes_no_verdict(name: str, seed: int) -> None:
    host = network(name, seed)
    require_same(permuted(host, seed), name, seed)


@pytest.mark.one_in(3)
@each
def test_a_repeated_batch_changes_no_verdict(name: str, seed: int) -> None:
    host = network(name, seed)
    require_same(repeated(host), name, seed)


@pytest.mark.one_in(3)
@each
def test_names_change_no_verdict(name: str, seed: int) -> None:
    host = network(name, seed)
    require_same(renamed(host), name, seed)


@pytest.mark.one_in(6)
@each
def test_a_function_changes_no_verdict(name: str, seed: int) -> None:
    host = network(name, seed)
    count = len(host.model.graph.nodes)
    for first, last in ((0, count), (1, count // 2)):
        require_same(outlined(host, first, last), name, seed)


@each
def test_transformed_models_compute_the_same(name: str, seed: int) -> None:
    host = network(name, seed)
    y = value_of(host)
    np.testing.assert_array_equal(value_of(in_units(host, 30, 0)), y)
    np.testing.assert_array_equal(np.sort(value_of(permuted(host, seed))), np.sort(y.ravel()))
    np.testing.assert_array_equal(value_of(repeated(host)), np.concatenate([y.ravel(), y.ravel()]))
    np.testing.assert_array_equal(value_of(renamed(host)), y)
    assert_rounded(value_of(outlined(host, 0, 1)), np.float32(y), roundings=64)  # files hold attributes in float32
