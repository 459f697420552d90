"""Claims on the command line: three columns in every format, files, specs, saved failures, and what is refused."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.errors import UsageError
from tests.claims.test_numbers import X, gradient
from tests.cli.conftest import Command

WRONG = """\
wrong.onnx  opset 18, ai.onnx.preview.training 1, 11 nodes | float32 model, checked in float64 | seed 0

x                  y        entries  max abs err  max rel err    noise (uncertainty)
x by x_grad [2,3]  loss []      6/6      2.3e+00      8.6e-01    2e-14  FAIL
  given      by tensor x_grad; gradient of y: ones

FAIL GC101  d loss / d x by x_grad: 6 of 6 entries differ (100%)
entry of x         given   theoretical     numerical  abs err  rel err    noise  pattern
[1,2]       -5.01999e+00  -2.73684e+00  -2.73684e+00  2.3e+00  4.5e-01    2e-14
... 5 more, --show 6
  gradcheck's own gradient agrees with the numerical one

  suspect    node 1  Tanh  h -> a
             the gradient by h is not what it should be; it is computed by node 5 Sub 'd', node 6 Mul 'h_grad'
  would pass only with --rtol 0.87
  reproduce  gradcheck wrong.onnx --y loss --grad x=x_grad --seed 0 --point 0

1 check: 1 failed in TIME
"""


def records(gradcheck: Command, *args: str) -> list[dict[str, Any]]:
    """The records of a run, as JSON."""
    found: list[dict[str, Any]] = json.loads(gradcheck(*args, "--output-format", "json").out)["checks"]
    return found


def test_a_wrong_gradient_with_all_three_columns(gradcheck: Command) -> None:
    ran = gradcheck("wrong.onnx", "--grad", "x=x_grad", "--show", "1")
    assert (ran.code, ran.out) == (1, WRONG)


def test_the_command_that_is_printed_shows_it_again(gradcheck: Command) -> None:
    (first,) = records(gradcheck, "wrong.onnx", "--grad", "x=x_grad")
    (again,) = records(gradcheck, *first["reproduce"].split()[1:])
    assert (again["status"], again["max_abs_err"]) == (first["status"], first["max_abs_err"])


def test_json_has_all_three_values(gradcheck: Command) -> None:
    (record,) = records(gradcheck, "wrong.onnx", "--grad", "x=x_grad")
    entry = record["worst"][0]
    assert abs(entry["theoretical"] - entry["numerical"]) < 1e-9 < abs(entry["given"] - entry["numerical"])
    assert record["id"] == "wrong.onnx::d loss/d x by x_grad"
    assert record["claim"]["kind"] == "tensor"
    (other,) = records(gradcheck, "plain.onnx")
    assert other["claim"] == {}


@pytest.mark.parametrize("form", ["junit", "markdown", "full"])
def test_every_format_for_people_has_them(gradcheck: Command, form: str) -> None:
    out = gradcheck("wrong.onnx", "--grad", "x=x_grad", "--output-format", form).out
    text = "".join(ElementTree.fromstring(out).itertext()) if form == "junit" else out
    assert "entry of x         given   theoretical     numerical  abs err  rel err" in text
    assert "-5.01999e+00  -2.73684e+00  -2.73684e+00" in text


def test_a_page_has_them(gradcheck: Command, folder: Path) -> None:
    gradcheck("wrong.onnx", "--grad", "x=x_grad", "--report", "page.html")
    page = (folder / "page.html").read_text("utf-8")
    assert page.index(">given<") < page.index(">theoretical<") < page.index(">numerical<")
    assert "by x_grad" in page


def test_two_reports_of_one_pair_are_told_apart(gradcheck: Command) -> None:
    ids = [record["id"] for record in records(gradcheck, "right.onnx")]
    assert ids == ["right.onnx::d loss/d x", "right.onnx::d loss/d x by x_grad"]
    assert gradcheck("right.onnx", "--output-format", "concise").out.count(" by x_grad: PASS") == 1


def test_numbers_from_files(gradcheck: Command) -> None:
    feed = ("--x-init-value", "x=@dump.npz:x")
    assert gradcheck("plain.onnx", "--grad", "x=@dump.npz:g", *feed).code == 0
    ran = gradcheck("plain.onnx", "--grad", "x=@dump.npz:h", *feed)
    assert (ran.code, "by file dump.npz:h; gradient of y: ones" in ran.out) == (1, True)
    ran = gradcheck("plain.onnx", "--grad", "x=@dump.npz:g")
    assert (ran.code, "'x' would be drawn at random. Give it: --feed x=@FILE" in ran.err + ran.out) == (2, True)


def test_another_model(gradcheck: Command) -> None:
    assert gradcheck("plain.onnx", "--grad-model", "right.onnx").code == 0
    ran = gradcheck("plain.onnx", "--grad-model", "wrong.onnx")
    assert (ran.code, "by model wrong.onnx:x_grad" in ran.out) == (1, True)


REFUSED = [
    (("--grad", "x_grad"), 2, "by which tensor? Write --grad X=TENSOR or X=@FILE[:KEY]"),
    (("--grad", "none", "--grad", "x=x_grad"), 2, "--grad none stands alone"),
    (("--grad", "x=x_gard"), 2, "has no tensor 'x_gard'. Did you mean 'x_grad'?"),
    (("--grad", "z=x_grad"), 2, "right.onnx has no tensor 'z'"),
    (("--grad", "x=@none.npy"), 2, "none.npy cannot be read: No such file"),
    (("--grad", "x=@none.npz:g"), 2, "none.npz cannot be read: No such file"),
    (("--grad", "x=@none.npz"), 2, "none.npz cannot be read: No such file"),
    (("--grad", "x=@none"), 2, "none is no file"),
    (("--grad", "x=x_grad", "--feed", "x=@none.json:x"), 2, "none.json cannot be read: No such file"),
    (("--grad", "x=@right.onnx:g"), 2, "right.onnx is neither .npy, .npz, .pb nor .json"),
    (("--grad", "x=@right.onnx"), 2, "right.onnx is neither .npy, .npz, .pb nor .json"),
    (("--grad", "x=x_grad", "--grad", "x=x_grad"), 2, "--grad x=... is given twice, and only the last would count"),
    (("--grad", "x=x_grad", "--second-order"), 2, "--second-order has no effect beside --grad"),
    (("--grad", "x=x_grad", "--x", "x", "--second-order"), 2, "--second-order has no effect beside --grad"),
    (("--grad-model", "right.onnx", "--second-order"), 2, "--second-order has no effect beside --grad"),
    (("--grad", "x=@dump.npz"), 2, "has several arrays; choose one as @FILE:KEY"),
    (("--grad-model", "none.onnx"), 4, "none.onnx"),
    (("--grad", "W=x_grad", "--x", "x"), 2, "'W' is no x of this check (x)"),
    (("--grad", "x=x_grad", "--compat", "tf"), 2, "not what --grad gives"),
    (("--grad", "x=x_grad", "--forward", "onnxruntime"), 2, "leave out --forward onnxruntime"),
]


@pytest.mark.parametrize(("args", "code", "said"), REFUSED)
def test_what_makes_no_sense_is_refused(gradcheck: Command, args: tuple[str, ...], code: int, said: str) -> None:
    ran = gradcheck("right.onnx", *args)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err


ODD = {
    "complex": ("complex numbers", lambda g: g + 1000j),
    "imaginary": ("complex numbers", lambda g: g + 1j * np.nan),
    "words": ("str", lambda g: g.astype("U")),
}


@pytest.mark.parametrize("name", ODD)
def test_a_gradient_of_other_than_real_numbers_is_refused(gradcheck: Command, folder: Path, name: str) -> None:
    said, change = ODD[name]
    odd = change(gradient(np.float64))
    np.savez(folder / "odd.npz", g=odd)
    ran = gradcheck("plain.onnx", "--grad", "x=@odd.npz:g", "--feed", "x=@dump.npz:x")
    assert (ran.code, ran.out) == (2, "")
    assert f"odd.npz:g holds {said}" in ran.err
    with pytest.raises(UsageError, match="an array of real numbers"):
        gc.check(gc.load(folder / "plain.onnx"), grad={"x": odd}, x_init_value={"x": X})


def test_complex_numbers_without_imaginary_parts_are_real(gradcheck: Command, folder: Path) -> None:
    np.savez(folder / "odd.npz", g=gradient(np.float64) + 0j)
    assert gradcheck("plain.onnx", "--grad", "x=@odd.npz:g", "--feed", "x=@dump.npz:x").code == 0


def test_what_else_is_named_is_differentiated_again(gradcheck: Command) -> None:
    args = ("--y", "loss", "--grad", "x=x_grad", "--x", "x", "--x", "W", "--second-order")
    found = records(gradcheck, "right.onnx", *args)
    assert [(c["x"], bool(c["claim"]), bool(c["gradient_of"])) for c in found] == [
        ("W", False, False), ("W", False, True), ("x", True, False),
    ]  # fmt: skip


SPEC = """gradcheck: 1
checks:
  - {name: tensor, model: wrong.onnx, x: x, y: loss, grad: {x: x_grad}}
  - {name: numbers, model: plain.onnx, x: x, grad: {x: "@dump.npz:g"}, x_init_value: {kind: file, path: dump.npz, key: x}}
  - {name: model, model: plain.onnx, x: x, y: loss, grad_model: right.onnx}
"""


def test_a_spec_has_all_of_them(gradcheck: Command, folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    for name in ("wrong.onnx", "plain.onnx", "right.onnx", "dump.npz"):
        (folder / name).rename(inner / name)
    (inner / "all.gradcheck.yaml").write_text(SPEC)
    found = {record["check"]: (record["status"], record["claim"]["kind"])
             for record in records(gradcheck, "inner/all.gradcheck.yaml")}  # fmt: skip
    assert found == {"tensor": ("fail", "tensor"), "numbers": ("pass", "file"), "model": ("pass", "model")}
    (inner / "all.gradcheck.yaml").write_text(SPEC.replace("@dump", "@../dump"))
    ran = gradcheck("inner/all.gradcheck.yaml")
    assert (ran.code, "leads out of the folder of the spec" in ran.err) == (2, True)


@pytest.mark.parametrize("args", [
    ("wrong.onnx", "--grad", "x=x_grad"),
    ("plain.onnx", "--grad", "x=@dump.npz:h", "--feed", "x=@dump.npz:x"),
    ("plain.onnx", "--grad-model", "wrong.onnx"),
])  # fmt: skip
def test_a_saved_failure_keeps_its_claim(gradcheck: Command, folder: Path, args: tuple[str, ...]) -> None:
    assert gradcheck(*args, "--save-failures", "kept").code == 1
    for path in (*folder.glob("*.onnx"), *folder.glob("*.npz")):
        path.unlink()
    (bundle,) = [path for path in (folder / "kept").iterdir() if path.is_dir()]
    ran = gradcheck("reproduce", str(bundle))
    assert (ran.code, "the same as when it was saved, to the last bit" in ran.err) == (1, True)


def test_the_command_has_all_claims_since_they_tell_more_together(gradcheck: Command, folder: Path) -> None:
    args = ("plain.onnx", "--grad", "x=@dump.npz:h", "--grad", "W=@dump.npz:w", "--feed", "x=@dump.npz:x")
    np.savez(folder / "dump.npz", **{**np.load(folder / "dump.npz"), "w": np.zeros((3, 4))})
    first = records(gradcheck, *args)
    again = records(gradcheck, *shlex.split(first[1]["reproduce"])[1:])
    assert [r["suspect"] for r in again] == [r["suspect"] for r in first]
    assert [r["x"] for r in again] == ["x", "W"]
