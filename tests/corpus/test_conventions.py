"""Tied entries may share out a derivative as they like, but give all of it together: in every mode, for every selection."""

from __future__ import annotations

from typing import Any

import pytest

import gradcheck_cli as gc
from tests.corpus.conventions import RIGHT, SELECTIONS, WRONG, Selection, with_convention

MODES = ["full", "nodes"]
each = pytest.mark.parametrize("name", SELECTIONS)
in_every_mode = pytest.mark.parametrize("mode", MODES)


def statuses(chosen: Selection, mode: str, ops: Any = gc.OPS) -> set[str]:
    """What becomes of y by every x."""
    report = gc.check(chosen.model, [*chosen.values], "y", x_init_value=dict(chosen.values), mode=mode, ops=ops)
    return {check.status for check in report.checks}


@each
@in_every_mode
def test_our_own_rule_passes_at_a_tie(name: str, mode: str) -> None:
    assert statuses(SELECTIONS[name], mode) == {"pass"}


@each
@in_every_mode
@pytest.mark.parametrize("convention", RIGHT)
def test_every_way_to_share_a_derivative_out_passes(name: str, mode: str, convention: str) -> None:
    chosen = SELECTIONS[name]
    assert statuses(chosen, mode, with_convention(chosen, RIGHT[convention])) == {"pass"}


@each
@in_every_mode
@pytest.mark.parametrize("convention", WRONG)
def test_what_does_not_add_up_to_the_derivative_fails(name: str, mode: str, convention: str) -> None:
    chosen = SELECTIONS[name]
    assert "fail" in statuses(chosen, mode, with_convention(chosen, WRONG[convention]))
