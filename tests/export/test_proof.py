"""Messages about sizes at which a file does not compute the derivatives of its model."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

import gradcheck_cli as gc
from gradcheck_cli.export.derivatives import export

HEAD = '<ir_version: 8, opset_import: ["" : 18]>\n'
SHORT = """m (float[N] x) => (float[4] y) <int64[1] from = {0}, int64[1] to = {4}, float[4] w = {1, 2, 3, 4}> {
    s = Slice (x, from, to)
    y = Mul (s, w)
}"""  # runs with N = 1 too, where the slice broadcasts, and with 4 and more


OPEN = """m (float[N,3] x) => (float[N,3] y) {
    s = Softmax (x)
    y = Tanh (s)
}"""


@pytest.mark.parametrize("text, notes", [
    (SHORT, ["not right at N=1, where shapes follow otherwise than at larger sizes"]),
    (SHORT.replace("y = Mul (s, w)", "y = Tanh (s)").replace("float[4] y", "float[M] y"), []),
    (OPEN, []),
])  # fmt: skip
def test_sizes_at_which_the_file_is_another_are_told(tmp_path: Path, text: str, notes: list[str]) -> None:
    onnx.save(onnx.parser.parse_model(HEAD + text), tmp_path / "m.onnx")
    model = gc.load(tmp_path / "m.onnx")
    [dx] = gc.gradients(model["y"], model["x"])
    assert dx is not None
    made = export(model, tmp_path / "g.onnx", ["y", dx.name], {})
    assert (list(made.notes), made.open_dims) == (notes, ("N",))


@pytest.mark.parametrize("clip", ["", ", clip = 0.7"])
def test_operators_that_a_runtime_reads_otherwise_are_told(clip: str, tmp_path: Path) -> None:
    lstm = f"y, h, c = LSTM <hidden_size = 1{clip}> (x, w, r)"
    onnx.save(onnx.parser.parse_model(f"""{HEAD} m (float[2,1,1] x) => (float[2,1,1,1] y)
        <float[1,4,1] w = {{1, 2, 3, 4}}, float[1,4,1] r = {{1, 2, 3, 4}}> {{ {lstm} }}"""),
        tmp_path / "m.onnx")  # fmt: skip
    model = gc.load(tmp_path / "m.onnx")
    [dx] = gc.gradients(model["y"], model["x"])
    assert dx is not None
    notes = export(model, tmp_path / "g.onnx", ["y", dx.name], {}).notes
    assert [note.startswith("LSTM y: the gradient follows ONNX") for note in notes] == ([True] if clip else [])
