"""Models as text are the models that they stand for; what is none is an error that says so, in bounded memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from gradcheck_cli.errors import LimitError, ModelError
from gradcheck_cli.formats.onnx.file import FORMATS
from gradcheck_cli.formats.onnx.read import read
from gradcheck_cli.graph.memory import held
from tests.cli.conftest import entered, typed

TEXT = """<ir_version: 8, opset_import: ["" : 18]> net (float[N, 3] x) => (float[N, 2] y)
  <float[3, 2] w = {1, 2, 3, 4, 5, 6}> { h = MatMul (x, w) y = Tanh (h) }"""


def saved(path: Path) -> Path:
    """The model in the format of a file's suffix, by onnx itself."""
    model = onnx.parser.parse_model(TEXT)
    if FORMATS.get(path.suffix) == "JSON" or "proto" in FORMATS.get(path.suffix, ""):
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.float32([[1, 2], [3, 4], [5, 6]]), "w"))
    if path.suffix.startswith(".onnxt"):
        path.write_text(TEXT)
    else:
        onnx.save(model, path)
    return path


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_model_as_text_is_the_model(suffix: str, tmp_path: Path) -> None:
    found, wanted = read(saved(tmp_path / f"m{suffix}")), read(saved(tmp_path / "m.onnx"))
    assert str(found.graph) == str(wanted.graph)
    assert found.graph.types == wanted.graph.types
    assert np.array_equal(found.graph.constants["w"], wanted.graph.constants["w"])


@pytest.mark.parametrize("suffix", [".json", ".textproto", ".onnxtxt"])
def test_commands_take_it(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entered(tmp_path, monkeypatch)
    saved(Path(f"m{suffix}"))
    for line in (f"m{suffix}", f"inspect m{suffix}", f"grad m{suffix} -o g.onnx", f"diff m{suffix} g.onnx"):
        ran = typed(capsys, *line.split())
        assert (ran.code, ran.err) == (0, ""), line


BROKEN = [
    (".json", b"{", "is no model in JSON: "),
    (".json", b"[1, 2]", "is no model in JSON: "),
    (".json", b'{"graph": {"node": [{"opTyp": 1}]}}', 'has no field named "opTyp"'),
    (".json", b"[" * 100_000, "is no model in JSON: "),
    (".json", b'{"a": ' * 5000, "is no model in JSON: "),
    (".json", b'{"irVersion": "8"}', "it has no graph"),
    (".json", b"", "is empty"),
    (".json", b"\xff\xfe\x00", "is no model in JSON: "),
    (".textproto", b"graph { nod { } }", 'has no field named "nod"'),
    (".textproto", b"graph { node {" + b"attribute { g { node {" * 3000, "nested too deeply"),
    (".textproto", b"ir_version: " + b"9" * 10_000, "is no model in protobuf's text format: "),
    (".onnxtxt", b"<ir_version: 8>", "is no model in ONNX's text syntax: "),
    (".onnxtxt", b"<" * 1_000_000, "nested too deeply"),
    (
        ".onnxtxt",
        b"agraph (float[1] x) => (float[1] y) { y = Foo <a = " + b"b () => () { y = Foo <a = " * 300,
        "nested too",
    ),
]


@pytest.mark.parametrize("suffix, data, message", BROKEN, ids=range(len(BROKEN)))
def test_what_is_no_model_is_an_error(suffix: str, data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / f"m{suffix}").write_bytes(data)
    with pytest.raises(ModelError) as raised:
        read(tmp_path / f"m{suffix}")
    assert str(raised.value).startswith(str(tmp_path / f"m{suffix}"))
    assert message in str(raised.value)
    assert len(str(raised.value)) < 500


def test_a_text_that_memory_cannot_hold_once_parsed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_bytes(b"[" + b"1," * 2_000_000)
    with pytest.raises(LimitError, match=r"its text takes|does not fit into memory"), held(100 << 20):
        read(tmp_path / "m.json")
