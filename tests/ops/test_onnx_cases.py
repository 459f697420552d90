"""ONNX's own node cases: each model read, traced and compared with the outputs that come with it."""

from __future__ import annotations

import contextlib
import io
import random
import warnings
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.autodiff.trace import result, trace
from gradcheck_cli.formats.onnx.read import read_proto
from gradcheck_cli.graph.containers import plain
from gradcheck_cli.ops import OPS
from tests.ops.comparison import assert_matches, inexact
from tests.ops.onnx_case_skips import ARBITRARY, CASES, FLOAT64, OPERATORS, PACKAGES
from tests.versions import later, operators, require_none

# Two units of rounding of a narrow type, for another order of operations or other types in between.
COARSE = {"float16": 2e-3, "bfloat16": 1.6e-2}


@cache
def onnx_cases() -> dict[str, Any]:
    """The cases by name; making them prints, warns and draws random numbers."""
    drawn, drawn_by_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = {case.name: case for case in collect_testcases(None)}
    random.setstate(drawn)
    np.random.set_state(drawn_by_numpy)  # noqa: NPY002
    return cases


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test of a case runs for all of them; in float64 for those that compute with floats."""
    if "name" in metafunc.fixturenames:
        names = sorted(onnx_cases())
        chosen = [n for n in names if "float64" not in metafunc.function.__name__ or has_floats(n)]
        metafunc.parametrize("name", chosen)


@pytest.mark.one_in(3)
def test_the_outputs_are_those_of_onnx(name: str) -> None:
    if reason := skip_reason(name):
        pytest.skip(reason)
    compare(name, run(name, "model"))


@pytest.mark.one_in(6)
def test_the_outputs_in_float64_are_those_of_onnx(name: str) -> None:
    if reason := skip_reason(name) or matching(name, FLOAT64):
        pytest.skip(reason)
    compare_in_float64(name, run(name, "float64"))


@pytest.mark.slow
def test_no_skip_is_stale() -> None:
    assert not [op for op in OPERATORS if exists(op)]
    skipped = {name: reason for name in onnx_cases() if (reason := skip_reason(name))}
    stale = [name for name in skipped if not later(onnx_cases()[name].model) and passes(name, "model")]
    only_float64 = [n for n in onnx_cases() if n not in skipped and has_floats(n) and matching(n, FLOAT64)]
    stale += [name for name in only_float64 if passes(name, "float64")]
    print(f"\n{len(onnx_cases())} cases, {len(skipped)} skipped:")
    print(*[f"  {count:4} {reason}" for reason, count in Counter(skipped.values()).most_common()], sep="\n")
    require_none("onnx", stale)


def test_every_skip_names_a_case() -> None:
    patterns = [*CASES, *FLOAT64, *ARBITRARY, *PACKAGES]
    used = {op for name in onnx_cases() for op in used_by(name)}
    require_none("onnx", (p for p in patterns if not any(fnmatch(name, p) for name in onnx_cases())))
    require_none("onnx", (op for op in OPERATORS if op not in used))


def run(name: str, dtype: str) -> Tape:
    """The tape of a case's model at its inputs."""
    source = read_proto(onnx_cases()[name].model, name)
    return trace(source.graph, feeds(name), ops=OPS, dtype=dtype)


def feeds(name: str) -> dict[str, Any]:
    """A case's inputs by name: arrays, lists for sequences, None for an empty optional; without those left out."""
    case = onnx_cases()[name]
    pairs = zip(case.model.graph.input, case.data_sets[0][0], strict=True)
    return {i.name: as_value(v) for i, v in pairs if v is not None or i.type.HasField("optional_type")}


def expected_outputs(name: str) -> Iterator[tuple[str, Any]]:
    """Names and values of a case's outputs."""
    case = onnx_cases()[name]
    for info, value in zip(case.model.graph.output, case.data_sets[0][1], strict=True):
        yield info.name, as_value(value)


def as_value(value: Any) -> Any:
    """A value as ONNX's case gives it: an array, a list of them, or None."""
    if value is None or isinstance(value, list):
        return value
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def arrays(value: Any) -> Iterator[np.ndarray[Any, Any]]:
    """The arrays in a value."""
    if isinstance(value, list):
        for item in value:
            yield from arrays(item)
    elif value is not None:
        yield np.asarray(value)


def outputs(name: str, tape: Tape) -> Iterator[tuple[str, np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Names of a case's outputs, actual and expected values, array by array."""
    for output, expected in expected_outputs(name):
        actual = plain(result(tape, output))
        assert shape_of(actual) == shape_of(expected)
        yield from ((output, a, e) for a, e in zip(arrays(actual), arrays(expected), strict=True))


def shape_of(value: Any) -> Any:
    """Nesting of a value: a list for a sequence, 0 for an array."""
    return [shape_of(item) for item in value] if isinstance(value, list) else value if value is None else 0


def compare(name: str, tape: Tape) -> None:
    """The outputs agree within the case's tolerances; only in dtype and shape where values are arbitrary."""
    case = onnx_cases()[name]
    for output, actual, expected in outputs(name, tape):
        if matching(name, ARBITRARY):
            assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        else:
            coarse = COARSE.get(expected.dtype.name, 0.0)
            rtol, atol = max(case.rtol, coarse), max(case.atol, coarse / 4)
            assert_matches(actual, expected, rtol=rtol, atol=atol, label=output)


def compare_in_float64(name: str, tape: Tape) -> None:
    """Outputs computed in float64 agree with the rounded ones of the case."""
    for output, actual, expected in outputs(name, tape):
        dtype = expected.dtype
        assert actual.dtype == tape.widen(dtype)
        if matching(name, ARBITRARY):
            assert actual.shape == expected.shape
            continue
        fed = [x.dtype for value in feeds(name).values() for x in arrays(value)]
        loose = max([COARSE.get(d.name, 1e-3) for d in (dtype, *fed)])
        assert_matches(actual, expected.astype(actual.dtype), rtol=loose, atol=loose / 100, label=output)


def has_floats(name: str) -> bool:
    """Some tensor of the case is computed in float64 though the model has it narrower."""
    inputs, outputs = onnx_cases()[name].data_sets[0]
    values = [x for v in (*inputs, *outputs) for x in arrays(as_value(v))]
    return any(inexact(x.dtype) and x.dtype != np.float64 for x in values)


def skip_reason(name: str) -> str:
    """The reason for which a case is left out; "" if it is not."""
    used = used_by(name)
    by_operator = next((f"{op}: {OPERATORS[op]}" for op in used if op in OPERATORS and not exists(op)), "")
    package = matching(name, PACKAGES)
    missing = f"{package} is not installed" if package and find_spec(package) is None else ""
    return matching(name, CASES) or by_operator or missing or later(onnx_cases()[name].model)


def exists(operator: str) -> bool:
    """The operator, named with its domain, is in our table."""
    domain, _, name = operator.rpartition(".")
    return (domain, name) in OPS


def matching(name: str, table: dict[str, str]) -> str:
    """The reason of the first pattern that matches a name."""
    return next((reason for pattern, reason in table.items() if fnmatch(name, pattern)), "")


def used_by(name: str) -> list[str]:
    """Operators of a case, with their domains."""
    return [f"{domain}.{op}" if domain else op for domain, op in operators(onnx_cases()[name].model.graph)]


def passes(name: str, dtype: str) -> bool:
    """The case would pass if it were not skipped."""
    try:
        (compare if dtype == "model" else compare_in_float64)(name, run(name, dtype))
    except Exception:
        return False
    return True
