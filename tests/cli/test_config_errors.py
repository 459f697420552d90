"""Errors of gradcheck.toml and of [tool.gradcheck] in pyproject.toml: the file, the line, and what would be right."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli import models
from tests.cli.conftest import Command

ERRORS = [  # the file's text, line and column, what is said of it
    ("# options\nrtoll = 1e-3\n", "2:1", "unknown key 'rtoll'. Did you mean 'rtol'?"),
    ("xyzzy = 1\n", "1:1", "unknown key 'xyzzy'. Known are x, y, params, "),
    (
        "[check]\nrtol = 1e-3\n",
        "1:2",
        "unknown section 'check'. Options stand at the top of the file without a section: rtol = 0.001",
    ),
    (
        "points = 2\n[gradcheck]\nrtol = 1e-3\n",
        "2:2",
        "unknown section 'gradcheck'. Options stand at the top of the file",
    ),
    (
        "[tool.gradcheck]\nmode = 'full'\n",
        "1:2",
        "unknown section 'tool'. Options stand at the top of the file without a section: mode = \"full\"",
    ),
    ("[mode]\nx = 1\n", "1:2", "unknown section 'mode'. Options stand at the top"),
    ("[mode]\na = 1\n", "1:2", "mode is a table; it must be a value"),
    ("rtol = 'small'\n", "1:1", "--rtol small: 'small' is no number; write 1e-5, or NAME:1e-5 for one tensor"),
    ("rtol = true\n", "1:1", "rtol is true; it must be a number or a text"),
    ("points = 'three'\n", "1:1", "points: 'three' is no whole number. The default is 1."),
    ("max_inconclusive = nan\n", "1:1", "max_inconclusive: 'nan' is no number. The default is 0.02."),
    ("\n\npoints = 0\n", "3:1", "points: 0 is not in the range x>=1."),
    ("params = 'yes'\n", "1:1", 'params is "yes"; it must be true or false'),
    ("mode = 'fast'\n", "1:1", "Did you mean 'directional'?"),
    ("x = 3\n", "1:1", "x is 3; it must be a name or a list of names"),
    ("x = ['input', 3]\n", "1:1", 'x is ["input", 3]; it must be a name or a list of names'),
    ("x = []\n", "1:1", "x is []; it must be a name or a list of names"),
    ("x = ['input', 'nosuch']\n", "1:1", "mlp.onnx has no tensor 'nosuch'."),
    ("x = 'input,W'\n", "1:1", "--x takes one name at a time, not 'input,W'. Write --x input --x W"),
    ("[rtol]\ninput = 1e-3\nlos = 1e-4\n", "3:1", "mlp.onnx has no tensor 'los'. Did you mean 'loss'?"),
    ("[rtol]\ninput = 'x'\n", "2:1", "--rtol input:x: 'x' is no number"),
    ("rtol.input = 'x'\n", "1:6", "--rtol input:x: 'x' is no number"),
    ("rtol = {loss = 1e-3, input = 'x'}\n", "1:1", "--rtol input:x: 'x' is no number"),
    ("'rtol' = 'x'\n", "1:1", "--rtol x: 'x' is no number"),
    ("[val-range]\ninput = [2, 1]\n", "2:1", "--val-range input:2,1: '2,1' is no range"),
    ("[dim]\nN = 'x'\n", "2:1", "--dim N=x: write NAME=SIZE"),
    ("report = 'x.pdf'\n", "1:1", "must end in .json"),
    ("report = '../x.json'\n", "1:1", "leads out of the folder of this file"),
    ("report = ['x.json', '/tmp/x.json']\n", "1:1", "the path '/tmp/x.json' is absolute"),
    ("points = 1\nsave_failures = '../x'\n", "2:1", "leads out of the folder of this file"),
    ("save-failures = '/tmp/x'\n", "1:1", "the path '/tmp/x' is absolute"),
    ("plot = 'a/../../x.svg'\n", "1:1", "leads out of the folder of this file"),
    ("fail_on = ['fail', 'warn']\n", "1:1", "fail_on: 'warn' is none of fail,"),
    ("select = ['GC777']\n", "1:1", "select: 'GC777' is no code"),
    ('y = """\npoints = 1"""\npoints = 0\n', "3:1", "points: 0 is not in the range"),
    ("allow_python = true\n", "1:1", "code is run when --allow-python is typed"),
    ("rtol = 1\nrtol = 2\n", "2:9", "a key or a table stands here a second time"),
    ("[rtol]\nx = 1\n[rtol]\ny = 1\n", "3:6", "a key or a table stands here a second time"),
    ("rtol = \n", "1:8", "not TOML: Invalid value"),
    ("points = 1\n" + "a." * 32 + "a = 1\n", "2:1", "a key of more than 32 parts"),
    ("x = {'a'." + "a." * 32 + "a = 1}\n", "1:6", "a key of more than 32 parts"),
    ("[" + "a." * 32 + "a]\n", "1:2", "a key of more than 32 parts"),
    ('"\\"".' + "a." * 31 + "a = 1\n", "1:1", "a key of more than 32 parts"),
    ("a." * 31 + "a = 1\n", "1:1", "unknown key 'a'."),
    ("x = ['" + "1.2." * 5 + "']\n" + "y = 1\n", "2:1", "y is 1; it must be a name or a list of names"),
    ("rtol 1e-3\n", "1:6", "not TOML: Expected '='"),
]


@pytest.mark.parametrize("text", ["report = 'out/x.json'", "report = 'x.json'", "save_failures = 'out'"])
def test_a_link_in_the_folder_of_the_file_is_no_way_out(gradcheck: Command, folder: Path, text: str) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    (folder / "here").mkdir()
    os.symlink(elsewhere, folder / "here/out")
    os.symlink(elsewhere / "x.json", folder / "here/x.json")
    (folder / "here/gradcheck.toml").write_text(f"{text}\n")
    models.mlp(folder / "here/mlp.onnx")
    ran = gradcheck("here/mlp.onnx")
    assert (ran.code, "gradcheck.toml:1:1: " in ran.err, "leads out of the folder" in ran.err) == (2, True, True), (
        ran.err
    )
    assert list(elsewhere.iterdir()) == []


ELSEWHERE = [  # of pyproject.toml
    ("[tool.gradcheck]\nrtoll = 1e-3\n", "2:1", "unknown key 'rtoll'"),
    ("[tool.black]\nrtol = 1\n[tool.gradcheck]\nrtol = 'x'\n", "4:1", "--rtol x: 'x' is no number"),
    (
        "[tool.gradcheck.check]\nrtol = 1\n",
        "1:17",
        "unknown section 'check'. Options stand under [tool.gradcheck] without",
    ),
    ("[tool.gradcheck\nrtol = 1\n", "1:16", "not TOML: Expected ']'"),
    ("[tool.gradcheck]\nrtol = 1\nrtol = 2\n", "3:9", "a key or a table stands here a second time"),
    ("[tool]\ngradcheck = 3\n", "2:1", "tool.gradcheck is 3; it must be a table, [tool.gradcheck]"),
    ("[tool.gradcheck.rtol]\ninput = 'x'\n", "2:1", "--rtol input:x: 'x' is no number"),
    ("[tool.gradcheck]\n[tool.black]\n" + "a." * 32 + "a = 1\n", "3:1", "a key of more than 32 parts"),
]


CASES = [*(("gradcheck.toml", *case) for case in ERRORS), *(("pyproject.toml", *case) for case in ELSEWHERE)]


@pytest.mark.parametrize("name, text, place, said", CASES, ids=[f"{case[0]}: {case[1]!r}" for case in CASES])
def test_an_error_of_a_file_has_its_line(
    gradcheck: Command, folder: Path, name: str, text: str, place: str, said: str
) -> None:
    file = folder / name
    file.write_text(text)
    ran = gradcheck("mlp.onnx")
    assert ran.err.startswith(f"error GC202: {file}:{place}: ")
    assert (ran.code, ran.out, said in ran.err) == (2, "", True), ran.err
    line, column = map(int, place.split(":"))
    [*_, excerpt, caret] = ran.err.splitlines()
    assert excerpt == f"  {text.splitlines()[line - 1].rstrip()}"
    assert caret == f"  {' ' * (column - 1)}^"


@pytest.mark.parametrize("line", ["# " + "-." * 40, "expression = '" + "a." * 40 + "onnx'"])
def test_many_parts_of_what_is_no_key_are_nothing(gradcheck: Command, folder: Path, line: str) -> None:
    (folder / "gradcheck.toml").write_text(f"{line}\nseed = 1\n")
    assert gradcheck("mlp.onnx", "-k", "mlp").code == 0


def test_a_file_that_is_not_utf_8_is_told_where(gradcheck: Command, folder: Path) -> None:
    (folder / "gradcheck.toml").write_bytes(b'points = 1\ny = "lo\xffss"\n')
    ran = gradcheck("mlp.onnx")
    assert f"{folder}/gradcheck.toml:2:8: byte 0xff is not UTF-8; TOML is UTF-8 text" in ran.err
    assert ran.code == 2


def test_a_byte_order_mark_and_other_tools_files_do_no_harm(gradcheck: Command, folder: Path) -> None:
    (folder / "gradcheck.toml").write_bytes(b"\xef\xbb\xbfpoints = 2\n")
    assert "2 points |" in " ".join(gradcheck("mlp.onnx", "--y", "loss").out.split())
    (folder / "gradcheck.toml").unlink()
    for others in ("[tool.black\nrtol = 1\n", "a." * 40 + "a = 1\n"):
        (folder / "pyproject.toml").write_text(others)
        assert gradcheck("mlp.onnx").code == 0


def test_what_is_typed_is_not_blamed_on_a_file(gradcheck: Command, folder: Path) -> None:
    (folder / "gradcheck.toml").write_text("rtol = 1e-3\n")
    ran = gradcheck("mlp.onnx", "--rtol", "small")
    assert ran.err.startswith("error GC201: --rtol small: 'small' is no number")
