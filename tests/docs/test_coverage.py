"""The operators that the documentation claims to be there are."""

from __future__ import annotations

from gradcheck_cli.ops.facts import all_facts
from tests.docs.site import reference
from tests.versions import is_later

OF_ONNX = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")


def test_every_operator_of_onnx_runs_and_has_a_gradient_or_none_by_nature():
    known = [f for f in all_facts() if f.known or not is_later(f.name, f.domain)]
    assert [f.full_name for f in known if f.domain in OF_ONNX and (not f.known or f.gradient == "none")] == []


def test_the_table_of_operators_counts_all_of_them():
    rows = [line.split("|")[2:-1] for line in reference().coverage().splitlines()[2:]]
    counts = [[int(cell) for cell in row] for row in rows]
    assert sum(row[0] for row in counts) == len(all_facts())
    assert all(every == sum(kinds) for every, _, *kinds in counts)
