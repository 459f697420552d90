"""Notes of checks that passed: what may change the meaning of a pass is shown without being asked for, nothing twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from gradcheck_cli.report.full import section
from gradcheck_cli.report.remarks import remarks
from gradcheck_cli.report.text import Style, apart
from gradcheck_cli.results.record import Check
from tests.checking.small import check, model


def passing(*notes: str, **fields: object) -> Check:
    """A check that passed, with these notes."""
    return dataclasses.replace(check(model(("Sin", "x", "y"))), notes=notes, **fields)


def noted(*records: Check, **style: int) -> str:
    """All that a report says of its notes, in one line."""
    lines = section(records, Style(**style)).splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith("  note ")), len(lines))
    return " ".join(" ".join(lines[first:]).split())


SHOWN = [
    "test data beside the model is not used: input_0.pb is cut off",
    "one summand of y has no gradient: cut at node 2 Round 'q'",
    "the gradient is piecewise constant in x",
    "N=2: N=3 would take more than the memory limit",
    "by their shapes: W for that by V; --grad X=TENSOR says which",
    "held against gradcheck's own forward run, not onnxruntime's",
    "tensor g has numbers of 1e-07: errors as small as their rounding are not seen",
    "gradcheck has no gradient of its own here: a rule is missing",
    "tensor g is right, and gradcheck's own gradient is not: a bug of gradcheck's rules",
    "node 1 Kernel 'k' computes with fewer digits than float64: its result is accurate to 1e-07 of its size",
    "entries that were perturbed together do not add up, so each was perturbed alone: "
    "an operator reads more than its sparsity rule says",
    "2 entries right by what onnxruntime computes, and wrong by gradcheck's own forward run",
    "2 nodes could not be checked on their own",
    "how gradients add up from node to node was not seen: noise hides the dot test",
    "all that node 1 Relu 'a' reads is 0, its kink: neither side was seen",
    "what nobody has thought of",
]


@pytest.mark.parametrize("note", SHOWN)
def test_what_is_said_nowhere_else_is_shown_without_being_asked_for(note: str):
    assert noted(passing(note)) == f"note {note}"
    assert noted(passing(note), verbosity=1) == ""  # it stands with its check
    assert note in " ".join(section((passing(note),), Style(verbosity=1)).split())


JUMP = model(("Floor", "x", "f"), ("Sin", "x", "s"), ("Add", "f s", "y"))
SEVERED = ["one summand of y has no gradient: cut at node 0 Floor 'f'"]  # said nowhere else
SAID: dict[str, tuple[Callable[[], Check], str]] = {
    "a kink": (lambda: check(model(("Relu", "x", "y")), value=[0.0, 0.0, 1.0, 2.0]), "(2 at a kink)"),
    "a jump": (lambda: check(JUMP, value=[1.0, 0.5, 0.3, 0.2], max_inconclusive=1.0), "(1 of 16 not judged: jump)"),
    "what is not finite": (
        lambda: check(model(("Log", "x", "y")), value=[-1.0, 0.5, 0.3, 0.2], max_inconclusive=1.0), "y is not finite"),
    "a comparison as TensorFlow makes it": (lambda: check(model(("Sin", "x", "y")), compat="tf"), "full, central"),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_what_the_row_or_the_header_says_is_not_said_again(name: str):
    make, said = SAID[name]
    record = make()
    assert record.status == "pass"
    left = SEVERED if name == "a jump" else []
    assert remarks(record) == left
    assert len(record.notes) > len(left)
    assert said in section((record,), Style())
    assert noted(record) == " ".join(f"note {note}" for note in left)


@pytest.mark.parametrize(
    "note",
    ["by their names 'x_grad' is the gradient of 'y', and checked as such: --grad none leaves that out",
     "differences instead of the complex step, which node 0 Kernel 'k' does not support",
     "values of test_data_set_0 for x",
     "--straight-through has no effect: nothing here is rounded and then computed with",
     "2 rows perturbed across a branch of node 0 Relu 'y': a smaller --delta may stay on one side"],
)  # fmt: skip
def test_how_a_check_was_made_is_left_to_who_asks(note: str):
    assert noted(passing(note)) == ""
    assert note in " ".join(section((passing(note),), Style(verbosity=1)).split())


def test_a_row_of_nodes_says_nothing_of_entries_so_notes_do():
    note = "2 of 8 entries of y are not finite and left out"
    assert noted(passing(note, nodes={"total": 2, "checked": 2, "failed": 0})) == f"note {note}"


def test_a_note_of_some_derivatives_names_the_first_of_them():
    some, other = passing("alone"), passing(x="z")
    assert noted(some, other) == "note d y / d x: alone"
    assert noted(some, dataclasses.replace(other, notes=("alone",))) == "note alone"


def test_of_many_notes_the_others_are_counted():
    assert noted(passing(*(f"note {i}" for i in range(8)))).endswith("note note 4 note 3 more notes: see -v")


def test_notes_from_files_reach_no_terminal():
    assert "\x1b" not in section((passing("of \x1b[2Ja file"),), Style())


@pytest.mark.parametrize("status", ["fail", "inconclusive", "error"])
def test_what_did_not_pass_has_its_notes_where_it_is_told_of(status: str):
    record = passing("a reason", status=status, entries={"checked": 1, "total": 1, "failed": 1, "inconclusive": 1})
    assert remarks(record) == []
    assert section((record,), Style()).count("a reason") == 1


def test_zero_weights_are_told_of_where_a_table_is_printed():
    tested = model(("Mul", "x w", "h"), ("Relu", "h", "a"), ("Add", "a x", "y"), constants={"w": np.zeros(4)})
    assert noted(check(tested)) == "note all that node 1 Relu 'a' reads is 0, its kink: neither side was seen"


def test_names_keep_as_much_of_their_common_prefix_as_fits():
    names = ["specs/wrong.gradcheck.yaml::wrong/x", "specs/wrong.gradcheck.yaml::wrong/W"]
    assert apart(names, 20) == ["...eck.yaml::wrong/x", "...eck.yaml::wrong/W"]
    assert apart(names, 35) == names
