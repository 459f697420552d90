"""Whole models and ONNX's own ones are checked as they are: their gradients pass, or a table says why they cannot."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.errors import UnsupportedError, UsageError
from gradcheck_cli.formats.onnx.read import read_proto
from gradcheck_cli.results.record import Check
from tests.models.model_table import CUT, OUTCOMES, SEVERED
from tests.models.test_forward import HERE, model_files, onnx_folders
from tests.ops.test_onnx_cases import feeds, onnx_cases

FULL = 3_000_000  # numbers that a full check may make here
LONG = dict.fromkeys(("ch_PP-OCRv4_det_infer", "test_operator_symbolic_override"), pytest.mark.slow)


@pytest.mark.one_in(10)
@pytest.mark.parametrize("name", [pytest.param(n, marks=LONG.get(n, ())) for n in sorted(model_files())])
def test_a_model_passes_with_no_option_but_its_file(name: str) -> None:
    report = gc.check(gc.load(model_files()[name]))
    cut = CUT.get(name)
    assert {what[0] for what in described(report.checks).values()} == (set() if cut is None else {"GC107"})
    assert report.exit_code == (0 if cut is None else 1)
    assert cut is None or cut in report.checks[0].message
    assert all(check.entries["checked"] for check in report.checks)


@pytest.mark.one_in(10)
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("path", sorted(HERE.glob("*.onnx")), ids=lambda p: p.stem)
def test_the_verdict_is_the_same_at_other_points(path: Path, seed: int) -> None:
    found = described(gc.check(gc.load(path), seed=seed).checks)
    assert {what[0] for what in found.values()} == ({"GC107"} if path.stem in CUT else set()), found


@pytest.mark.one_in(10)
@pytest.mark.parametrize("folder", [pytest.param(p, marks=LONG.get(p.name, ()), id=p.name) for p in onnx_folders()])
def test_a_model_of_onnx_passes_at_the_inputs_that_came_with_it(folder: Path) -> None:
    model = gc.load(folder / "model.onnx")
    outcome(folder.name, model, test_data=next(iter(sorted(folder.glob("test_data_set_*"))), None))


@pytest.mark.one_in(16)
@pytest.mark.parametrize("name", sorted(onnx_cases()))
def test_a_node_of_onnx_passes_at_the_inputs_that_came_with_it(name: str) -> None:
    model = gc.Model(read_proto(onnx_cases()[name].model, name), gc.OPS)
    values = {n: v for n, v in feeds(name).items() if isinstance(v, np.ndarray)}
    outcome(name, model, x_init_value=values, mode="full" if small(name) else "directional")


@pytest.mark.one_in(10)
@pytest.mark.parametrize("folder", onnx_folders(), ids=lambda p: p.name)
def test_at_random_inputs_a_model_of_onnx_passes_or_asks_for_what_it_cannot_guess(folder: Path) -> None:
    found = open_checks(gc.load(folder / "model.onnx"), "has no float", "--feed", seed=1)
    asked = {"GC503", "GC701"} | ({"GC107"} if any(fnmatch(folder.name, each) for each in SEVERED) else set())
    assert {check: what for check, what in found.items() if what[0] not in asked} == {}


def test_every_outcome_names_a_model_of_onnx() -> None:
    names = [*onnx_cases(), *(folder.name for folder in onnx_folders())]
    assert [pattern for pattern in OUTCOMES if not any(fnmatch(name, pattern) for name in names)] == []


def outcome(name: str, model: gc.Model, **settings: Any) -> None:
    """All gradients of a model pass, but those of which the table says why they cannot; or there are none."""
    allowed = {code for pattern, (code, _) in OUTCOMES.items() if fnmatch(name, pattern)}
    allowed |= {"GC107"} if any(fnmatch(name, pattern) for pattern in SEVERED) else set()
    found = open_checks(model, "has no float", **settings)
    assert {check: what for check, what in found.items() if what[0] not in allowed} == {}


def open_checks(model: gc.Model, *refusals: str, **settings: Any) -> Mapping[str, tuple[Any, ...]]:
    """The checks of a model that did not pass; none where it is refused in one of these words."""
    try:
        return described(gc.check(model, **settings).checks)
    except (UnsupportedError, UsageError) as error:
        if not any(words in str(error) for words in refusals):
            raise
        return {}


def described(checks: tuple[Check, ...]) -> Mapping[str, tuple[Any, ...]]:
    """The checks that did not pass, by name: code, counts, worst entries and message."""
    open_ = (check for check in checks if check.status != "pass")
    return {c.id: (c.code, dict(c.entries), c.worst[:3], c.message) for c in open_}


def small(name: str) -> bool:
    """A run of a case for each entry of its inputs makes few numbers."""
    inputs, outputs = onnx_cases()[name].data_sets[0]
    sizes = [sum(np.size(v) for v in values if isinstance(v, np.ndarray)) for values in (inputs, outputs)]
    return sizes[0] * sum(sizes) <= FULL
