"""Sequences, optionals, maps and strings on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.checking.test_sequences import MAYBE, PARTS, TABLE, proto
from tests.cli.conftest import Command

WORDS = """g (string[2] t, float[2] x) => (float[2] y) {
    n = Cast <to = 1> (t)
    y = Mul (n, x)
}"""

LINES = [  # command line, exit code, part of what is printed
    ("parts.onnx --y loss --feed s=@s.npz", 0, "s[2] [2,3]  loss []"),
    ("parts.onnx --y loss --x s[0] --x-init-value s[0]=@s.npz:a", 0, "1 passed"),
    ("parts.onnx --y loss --feed s=@s.json", 0, "s[0] [2,3]  loss []"),
    ("parts.onnx --x s", 2, "Name a tensor in it: s[0]"),
    ("maybe.onnx --feed o=null", 0, "1 passed"),
    ("maybe.onnx --feed o=[1,2]", 0, "2 passed"),
    ('table.onnx --feed m={"a":1.5,"c":nan}', 3, "GC302"),
    ('table.onnx --feed m={"a":1.5,"c":-0.5}', 0, "1 passed"),
    ("table.onnx", 5, "GC503"),
    ("table.onnx --feed m=@m.pb", 0, "1 passed"),
    ("words.onnx", 5, "takes strings; give it: --feed t=..."),
    ('words.onnx --feed t=["0.5","2"]', 0, "1 passed"),
    ("words.onnx --feed t=[0.5,true]", 2, "'[0.5,true]' holds 0.5, which is no text; give strings, as in"),
    ("words.onnx --feed t=null", 2, "'null' holds None, which is no text"),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("line, code, printed", LINES, ids=[line for line, _, _ in LINES])
def test_values_that_are_no_tensors_of_numbers_are_fed_from_the_command_line(
    gradcheck: Command, folder: Path, line: str, code: int, printed: str
) -> None:
    for name, text in (("parts", PARTS), ("maybe", MAYBE), ("table", TABLE), ("words", WORDS)):
        onnx.save(proto(text), folder / f"{name}.onnx")
    np.savez(folder / "s.npz", a=np.ones((2, 3)), b=np.zeros((2, 3)), c=np.full((2, 3), 0.5))
    (folder / "s.json").write_text("[[[1, 2, 3], [4, 5, 6]]]")
    table = onnx.MapProto(key_type=8, string_keys=[b"b"], values=onnx.numpy_helper.from_list([np.float32(0.25)]))
    (folder / "m.pb").write_bytes(table.SerializeToString())
    ran = gradcheck(*line.split(" "))
    assert (ran.code, printed in ran.out + ran.err) == (code, True), ran.out + ran.err


def test_a_sequence_that_ships_with_the_model_is_the_point(gradcheck: Command, folder: Path) -> None:
    data = folder / "own" / "test_data_set_0"
    data.mkdir(parents=True)
    onnx.save(proto(PARTS), folder / "own" / "parts.onnx")
    shipped = onnx.numpy_helper.from_list([np.full((2, 3), i, np.float32) for i in range(3)])
    (data / "input_0.pb").write_bytes(shipped.SerializeToString())
    (data / "input_1.pb").write_bytes(onnx.numpy_helper.from_array(np.zeros(3, np.float32)).SerializeToString())
    ran = gradcheck("own/parts.onnx", "--y", "loss")
    assert (ran.code, ran.out.count("PASS"), "s[2]" in ran.out) == (0, 4, True)
