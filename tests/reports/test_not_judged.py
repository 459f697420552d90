"""A row that passes says what was not judged, and what lies at a kink, in every format that has rows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from gradcheck_cli.report.full import section
from gradcheck_cli.report.text import Style
from tests.checking.small import check, model


def test_the_record_counts_what_was_not_judged_by_its_reason():
    entries = check(model(("Floor", "x", "y")), value=[1.0, 2.0, 0.3, 0.4], max_inconclusive=1.0).entries
    assert entries["inconclusive"] == entries["jump"] == 2
    assert "underflow" not in entries


def test_errors_are_those_of_judged_entries():
    """An entry that steps has no slope, whatever number stands there: it is no error of the others."""
    record = check(model(("Floor", "x", "f"), ("Sin", "x", "s"), ("Add", "f s", "y")), value=[1.0, 0.5, 0.3, 0.2],
                   method="richardson", max_inconclusive=1.0)  # fmt: skip
    assert record.entries["jump"] == 1
    assert record.max_rel_err < 1e-6


def saved(path: Path) -> Path:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [4])],
                              [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [4])])  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path / "relu.onnx")
    return path / "relu.onnx"


@pytest.mark.one_in(6)
@pytest.mark.parametrize("output", ["full", "concise", "markdown", "github", "html"])
def test_every_format_with_rows_says_how_many_entries_lie_at_a_kink(tmp_path: Path, output: str):
    command = [sys.executable, "-m", "gradcheck_cli", str(saved(tmp_path)), "--x-init-value", "x=[0,0,1,-1]"]
    wanted = ["--report", "report.html"] if output == "html" else ["--output-format", output]
    ran = subprocess.run([*command, *wanted], capture_output=True, text=True, timeout=600, cwd=tmp_path, check=True)
    text = (tmp_path / "report.html").read_text("utf-8") if output == "html" else ran.stdout
    assert "(2 at a kink)" in re.sub(r"\\(?=[()])", "", text)


def test_a_row_says_how_many_entries_were_not_judged_and_why():
    record = check(model(("Floor", "x", "f"), ("Sin", "x", "s"), ("Add", "f s", "y")), value=[1.0, 0.5, 0.3, 0.2],
                   max_inconclusive=1.0)  # fmt: skip
    row = next(line for line in section((record,), Style(width=120)).splitlines() if "PASS" in line)
    assert row.endswith("PASS  (1 of 16 not judged: jump)")
    assert row.replace("PASS  (", "PASS\n    (") in section((record,), Style(width=80))
