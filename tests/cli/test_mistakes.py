"""Mistakes of people who are new to the command: every answer says what is wrong, and what to type."""

from __future__ import annotations

import gzip
import shlex
from pathlib import Path

import numpy as np
import pytest

import gradcheck_cli
from gradcheck_cli.errors import UsageError
from tests.cli import models
from tests.cli.conftest import Command

TWO = """two (float[2,3] input, float[2,3] other) => (float loss, float[2,5] scores) {
  h = Add (input, other)
  h1 = MatMul (h, W1)
  h2 = Add (h1, b1)
  scores = Tanh (h2)
  loss = ReduceSum <keepdims = 0> (scores)
}"""


@pytest.fixture
def desk(folder: Path) -> Path:
    """The folder with a model of two inputs, and with files that are none that can be checked."""
    models.save(folder / "two.onnx", TWO, W1=np.linspace(-1, 1, 15).reshape(3, 5), b1=np.linspace(0, 1, 5))
    text = "g (float[2,3] x) => (float[2,4] y) { y = MatMul (x, W) }"
    models.save(folder / "sizes.onnx", text, W=np.ones((5, 4)))
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    for inner, name in (("torch", "a.pt"), ("saved", "saved_model.pb"), ("bare", "notes.md")):
        (folder / inner).mkdir()
        (folder / inner / name).write_bytes(b"x")
    return folder


FILES = {
    "model.pt": b"PK\x03\x04" + b"x" * 100,
    "model.pth": b"\x80\x02}q\x00.",
    "model.h5": b"\x89HDF\r\n\x1a\n" + bytes(100),
    "model.tflite": b"\x1c\0\0\0TFL3" + bytes(50),
    "model.safetensors": b'\x10\0\0\0\0\0\0\0{"a":1}         ',
    "model.onnx.gz": gzip.compress(b"model"),
    "page.onnx": b"<!DOCTYPE html><html></html>",
    "notes.txt": b"hello",
    "numbers.npy": b"",
    "ci.yml": b"on: push\n",
}
TRY = "\nTry 'gradcheck check --help'.\n"
MISTAKES = [  # command line, exit code, words of the message
    # several values behind one option
    ("two.onnx --x input W1", 2, "'W1' behind --x input is taken for a file, which does not exist. Write --x input --x W1"),
    ("--x input nothere", 4, "GC401: nothere does not exist.\n"),
    ("--x input W1 b1 two.onnx", 2, "Write --x input --x W1 --x b1\n"),
    ("two.onnx --y loss scores", 2, "Write --y loss --y scores\n"),
    ("two.onnx --x_shape input 2,3", 2, "Write --x-shape input:2,3\n"),
    ("mlp.onnx --timeout 10 s", 2, "Write --timeout 10s\n"),
    ("mlp.onnx --fail-on fail inconclusive", 2, "Write --fail-on fail,inconclusive\n"),
    ("mlp.onnx --ignore GC3 GC5", 2, "Write --ignore GC3,GC5\n"),
    ("mlp.onnx --val-range 0 1", 2, "Write --val-range 0,1\n"),
    ("mlp.onnx --dim N 2", 2, "Write --dim N=2\n"),
    ("mlp.onnx --params W", 2, "--params takes no value, and 'W' is no file. Weights by name: --param W.\n"),
    ("mlp.onnx --verbose 2", 2, "--verbose takes no value, and '2' is no file.\n"),
    ("zoo . --timeout 10 m", 2, "Write --timeout 10m\n"),
    ("inspect two.onnx --x input W1", 2, "Write --x input --x W1\n"),
    ("grad two.onnx -o o.onnx --x input W1", 2, "Write --x input --x W1\n"),
    # names in other forms
    ("two.onnx --x input,other", 2, "--x takes one name at a time, not 'input,other'. Write --x input --x other\n"),
    ("two.onnx --x 'input other'", 2, "Write --x input --x other\n"),
    ("two.onnx --y 'loss; scores'", 2, "Write --y loss --y scores\n"),
    ("two.onnx --x w1", 2, "two.onnx has no tensor 'w1'. Did you mean 'W1'?"),
    ("two.onnx --x 'input[0]'", 2, "input[0]: input is a tensor, of which a check takes no part."),
    ("two.onnx --y W1", 2, "--y W1 is a constant of the model, which depends on nothing. To differentiate by it: "),
    ("grad two.onnx -o o.onnx --y W1", 2, "To differentiate by it: --x W1 --y loss\n"),
    ("grad two.onnx -o o.onnx --y scores[0,9]", 2, "--y scores[0,9]: axis 1 has 5 entries; write 0 to 4.\n"),
    ("two.onnx --y nope*", 2, "--y nope* fits no tensor that can be differentiated. The nearest are "),
    # options
    ("two.onnx -x input", 2, f"No such option '-x'. Did you mean '--x'?{TRY}"),
    ("two.onnx --k W1", 2, f"No such option '--k'. Did you mean '-k'?{TRY}"),
    ("two.onnx -K W1", 2, f"No such option '-K'. Did you mean '-k'?{TRY}"),
    ("two.onnx --ignore GC3 --ignore GC5", 2, f"only the last would count. Write its values with commas.{TRY}"),
    ("diff two.onnx two.onnx mlp.onnx", 2, "extra argument (mlp.onnx). Write gradcheck diff [OPTIONS] A B\n"),
    ("two.onnx --inputs input", 2, f"No such option '--inputs'. Here it is --x NAME.{TRY}"),
    ("two.onnx --batch-size 2", 2, f"Here it is --dim NAME=SIZE.{TRY}"),
    ("two.onnx --eps 1e-3", 2, f"Here it is --delta FLOAT.{TRY}"),
    ("two.onnx --tol 1e-3", 2, f"Here it is --rtol FLOAT.{TRY}"),
    ("two.onnx --json", 2, "Here it is --output-format, or --report FILE."),
    ("two.onnx -o out.json", 2, "Here it is --report PATH. It is an option of `gradcheck grad`, "),
    ("two.onnx --shard 1/2", 2, f"It is an option of `gradcheck zoo`, not of `gradcheck check`.{TRY}"),
    ("two.onnx --hvp", 2, f"It is an option of `gradcheck grad`, not of `gradcheck check`.{TRY}"),
    ("grad two.onnx -o o.onnx --rtol 1", 2, "It is an option of `gradcheck check`, `gradcheck zoo`, `gradcheck diff`, not"),
    ("two.onnx --version", 2, "Here it is gradcheck --version."),
    ("--versoin", 2, "Did you mean '--version'?"),
    ("mlp.onnx --rtol", 2, f"Option '--rtol' requires an argument. Write --rtol [NAME:]FLOAT.{TRY}"),
    ("grad two.onnx out.onnx", 2, "Missing option '-o' / '--output'. Write -o OUT: The ONNX file to write."),
    ("diff two.onnx", 2, "Missing argument 'B'. Write gradcheck diff [OPTIONS] A B\n"),
    ("schema", 2, "Missing argument '{spec|result}'. Write gradcheck schema [OPTIONS] {spec|result}\n"),
    # values
    ("two.onnx --x-shape input=2,3", 2, "--x-shape input=2,3: write --x-shape input:2,3\n"),
    ("two.onnx --x-shape 2,3", 2, "--x-shape needs a name, --x-shape NAME:..., since there are 2 x: input, other\n"),
    ("conv.onnx --x-shape N,3,8,8", 2, "write 1,3,32,32 or [1,3,32,32] or 1x3x32x32, numbers alone\n"),
    ("two.onnx --rtol loss=1e-3", 2, "write --rtol loss:1e-3\n"),
    ("two.onnx --rtol 1e-3%", 2, "'1e-3%' is no number; write 1e-05\n"),
    ("two.onnx --rtol small", 2, "'small' is no number; write 1e-5, or NAME:1e-5 for one tensor\n"),
    ("two.onnx --feed input:3", 2, "write --extra-feed-dict input=3\n"),
    ("conv.onnx --dim N=x", 2, "write NAME=SIZE, such as --dim N=2\n"),
    ("conv.onnx --dim N=2,M=3", 2, "--dim takes one size at a time, not N=2,M=3. Write --dim N=2 --dim M=3\n"),
    ("mlp.onnx --x input --x-init-value 1,2,3", 2, "is no number and no list of numbers. Write [1,2,3]\n"),
    ("mlp.onnx --x input --x-init-value v.npy", 2, "Write @v.npy for the numbers in a file\n"),
    ("mlp.onnx --points three", 2, f"'three' is no whole number. The default is 1.{TRY}"),
    ("mlp.onnx --jobs all", 2, f"'all' is no whole number. The default is all cores.{TRY}"),
    ("mlp.onnx --max-inconclusive 5%", 2, f"'5%' is no number; write 0.05. The default is 0.02.{TRY}"),
    ("mlp.onnx --max-inconclusive 5x", 2, f"'5x' is no number. The default is 0.02.{TRY}"),
    ("mlp.onnx --memory-limit 2", 2, f"'2' is a number of bytes; write 2GiB or 2MB.{TRY}"),
    (f"mlp.onnx --memory-limit {'9' * 400}GB", 2, f"99GB' is no size; write 2GiB or 512MB.{TRY}"),
    ("mlp.onnx --memory-limit 50%", 2, f"'50%' is no size; write 2GiB or 512MB.{TRY}"),
    ("mlp.onnx --mode Full", 2, "Did you mean 'full'?"),
    ("mlp.onnx --mode fast", 2, "Did you mean 'directional'?"),
    ("mlp.onnx --dtype float32", 2, "Did you mean 'model'?"),
    ("mlp.onnx --forward ort", 2, "Did you mean 'onnxruntime'?"),
    ("mlp.onnx --compat tensorflow", 2, "Did you mean 'tf'?"),
    ("mlp.onnx --output-format html", 2, "It is written to a file: --report out.html"),
    # checks
    ("wrong.gradcheck.yaml::square/wrong", 2, "is chosen by its name: wrong.gradcheck.yaml --check square/wrong\n"),
    ("wrong.gradcheck.yaml square/wrong", 2, "is the name of a check, and no file. Write --check square/wrong\n"),
    ("wrong.gradcheck.yaml --check square/wrong,sum/right", 2, "Write --check square/wrong --check sum/right. Checks: "),
    ("wrong.gradcheck.yaml -k nothing", 7, "-k 'nothing' matches none of 3 checks: square/wrong, square/known, "),
    # files
    ("torch", 7, "holds no *.onnx or *.gradcheck.yaml, but .pt files, of which torch.onnx.export in Python makes ONNX\n"),
    ("saved", 7, "but .pb files, of which `python -m tf2onnx.convert` makes ONNX\n"),
    ("bare", 7, "nothing to check: 'bare' holds no *.onnx or *.gradcheck.yaml\n"),
    ("model.pt", 4, "model.pt is a zip archive (a PyTorch or Keras checkpoint?); export it to ONNX first: torch."),
    ("model.pth", 4, "model.pth is a Python pickle (a PyTorch checkpoint?); export it to ONNX first: torch.onnx.export.\n"),
    ("model.h5", 4, "model.h5 is an HDF5 file (Keras weights?); export it to ONNX first: tf2onnx.convert.\n"),
    ("model.tflite", 4, "convert it: python -m tf2onnx.convert --tflite model.tflite --output model.onnx.\n"),
    ("model.safetensors", 4, "holds weights alone (safetensors); export the model that loads them: torch.onnx.export.\n"),
    ("model.onnx.gz", 4, "model.onnx.gz is compressed with gzip; unpack it first.\n"),
    ("page.onnx", 4, "page.onnx is a web page (HTML); the link that it was downloaded from is that of a page.\n"),
    ("notes.txt", 4, "is a text file, not a model; models are .onnx files, or specs that end in .gradcheck.yaml.\n"),
    ("numbers.npy", 4, "numbers.npy is empty.\n"),
    ("ci.yml", 2, "ci.yml:1:1: a spec starts with 'gradcheck: 1'; here the first key is 'on'\n  on: push\n  ^\n"),
    ("mlp.onnx,conv.onnx", 2, "mlp.onnx,conv.onnx: models are separated by spaces: mlp.onnx conv.onnx\n"),
    ("MLP.onnx", 4, "MLP.onnx does not exist. Did you mean 'mlp.onnx'?\n"),
    ("sizes.onnx", 4, "GC401: sizes.onnx: node 0 MatMul 'y' cannot be computed from [2, 3] float64, [5, 4] float64"),
    ("reproduce nothere", 2, "Failures are kept in .gradcheck/failures, each in a folder.\n"),
    # commands
    ("help", 2, "'help' is neither a command nor a file. Write gradcheck --help, or --help behind a command.\n"),
    ("version", 2, "Write gradcheck --version.\n"),
    ("zoo list", 2, "'list' is neither a command nor a file. Commands are run, status, resume, report, diff, merge"),
    ("explain severed", 2, "there is no code 'severed'. 'severed' stands in GC107."),
]  # fmt: skip


@pytest.mark.parametrize("line, code, words", MISTAKES, ids=[line for line, _, _ in MISTAKES])
def test_a_mistake_is_answered_by_what_to_type(
    gradcheck: Command, desk: Path, line: str, code: int, words: str
) -> None:
    ran = gradcheck(*shlex.split(line))
    assert words in ran.err
    assert ran.err.startswith("error GC")
    assert (ran.code, ran.out) == (code, "")


RIGHT = [  # what looks like a mistake and is none
    "two.onnx mlp.onnx --x input --y loss",
    "--x input two.onnx",
    "mlp.onnx --params conv.onnx",
    "mlp.onnx -v conv.onnx",
    "commas.onnx --x a,b",
    "commas.onnx --x 'c d'",
    "commas.onnx --x a",
    "stars.onnx --x w*",
    "stars.onnx --x [ab]",
    "stars.onnx --x a?",
]


@pytest.mark.parametrize("line", RIGHT)
def test_what_names_something_is_no_mistake(gradcheck: Command, desk: Path, line: str) -> None:
    models.named(desk / "stars.onnx", "w*", "y")
    _rename(desk / "stars.onnx", "w*", "[ab]", "a?")
    models.named(desk / "commas.onnx", "a", "y")
    _rename(desk / "commas.onnx", "a", "a,b", "c d")
    ran = gradcheck(*shlex.split(line))
    assert ran.code == 0, ran.err


def _rename(path: Path, first: str, *more: str) -> None:
    """Adds inputs with further names, which are added up, to a model of one input."""
    import onnx
    from onnx import helper

    model = onnx.load(path)
    model.graph.input.extend(helper.make_tensor_value_info(name, models.FLOAT, [2]) for name in more)
    model.graph.node[0].input[0] = "all"
    model.graph.node.insert(0, helper.make_node("Sum", [first, *more], ["all"]))
    onnx.save(model, path)


def test_exact_names_win_over_globs(gradcheck: Command, desk: Path) -> None:
    models.named(desk / "stars.onnx", "w*", "y")
    _rename(desk / "stars.onnx", "w*", "w1", "w2")
    ran = gradcheck("stars.onnx", "--x", "w*", "--output-format", "concise")
    assert [line.split(": ")[1] for line in ran.out.splitlines()[:-1]] == ["d y/d w*"]
    ran = gradcheck("stars.onnx", "--x", "w?", "--output-format", "concise")
    assert [line.split(": ")[1] for line in ran.out.splitlines()[:-1]] == ["d y/d w*", "d y/d w1", "d y/d w2"]
    assert ran.err == "note: --x w? is w*, w1, w2\n"


def test_the_python_function_answers_alike(desk: Path) -> None:
    model = gradcheck_cli.load(desk / "two.onnx")
    with pytest.raises(UsageError, match="--x W1 --y loss"):
        gradcheck_cli.check(model, y="W1")
