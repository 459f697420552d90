"""The errors that users meet most, word for word: where, what, and what to type instead."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import gradcheck_cli as gc
from gradcheck_cli.errors import counted
from tests.cli import models
from tests.cli.conftest import Command

MESSAGES = [  # exit code, command line, everything on stderr
    (2, "mlp.onnx --x inputs", [
        "error GC201: mlp.onnx has no tensor 'inputs'. Did you mean 'input'?",
        "Tensors to differentiate by: input [N,4] float32, aux_in [2] float32, W [4,3] float32",
    ]),
    (2, "mlp.onnx --y los", [
        "error GC201: mlp.onnx has no tensor 'los'. Did you mean 'loss'?",
        "Tensors to differentiate by: input [N,4] float32, aux_in [2] float32, W [4,3] float32",
    ]),
    (2, "mlp.onnx --x aux_in --y loss", [
        "error GC201: 'loss' does not depend on 'aux_in'. aux_in reaches only: aux_out.",
    ]),
    (2, "mlp.onnx --x loss --y input", [
        "error GC201: 'input' does not depend on 'loss', but 'loss' depends on 'input'. Are --x and --y swapped?",
    ]),
    (2, "embedding.onnx --x input_ids", [
        "error GC201: --x input_ids is int64 and has no gradient. First float tensor after it: 'e' [2,3,4] (node 0 Gather)",
    ]),
    (2, "sized.onnx", [
        "error GC201: no size of N, H, W in [N,3,H,W] makes 'image' run (tried 1 ... 224).  Give them: "
        "--dim N=1 --dim H=32 --dim W=32",
        "The last attempt said: node 0 Reshape 'y': cannot reshape ...",
    ]),
    (2, "conv.onnx --x-shape image:1,4,8,8", [
        "error GC201: --x-shape image:1,4,8,8 contradicts the model: dimension 1 is fixed to 3.",
    ]),
    (2, "conv.onnx --mode full --y c --dim N=64 --memory-limit 1MiB", [
        "error GC201: the full Jacobian of 'c' [64,2,6,6] by 'image' [64,3,8,8] has 5.7e7 entries (432 MiB, about "
        "1 s here) and takes about 578 MiB; --memory-limit is 1 MiB. --memory-limit 637MiB allows it. Less is taken by "
        "--mode nodes, which checks node by node, and by --mode directional, by random projections.",
    ]),
    (4, "lfs.onnx", [
        "error GC403: lfs.onnx is a Git LFS pointer (63 bytes), not a model. `git lfs pull` fetches the model.",
    ]),
    (4, "external.onnx", [
        "error GC402: external.onnx keeps its weights in model.onnx_data, which is not beside it.",
    ]),
    (4, "mpl.onnx", ["error GC401: mpl.onnx does not exist. Did you mean 'mlp.onnx'?"]),
    (2, "bad.gradcheck.yaml", [
        "error GC202: bad.gradcheck.yaml:3:23: unknown key 'detla' in checks[0]. Did you mean 'delta'?",
        "    - {model: mlp.onnx, detla: 1}",
        "                        ^",
    ]),
    (7, "models/**/*.onnx", ["error GC701: nothing to check: 'models/**/*.onnx' matches no file"]),
    (4, "-", [
        "error GC401: models are read from files, which is where their weights are looked for; not from stdin",
    ]),
    (4, "https://example.com/a.onnx", [
        "error GC401: https://example.com/a.onnx is a URL; download the file and give its path",
    ]),
]  # fmt: skip


@pytest.fixture
def place(folder: Path) -> Path:
    """The folder with what these messages are about."""
    sized = "sized (float[N,3,H,W] image) => (float[7,11,13,17] y) {\n  y = Reshape (image, shape)\n}"
    save_integers(folder / "sized.onnx", sized, shape=[7, 11, 13, 17])
    text = "g (float[4] x) => (float[4] y) { y = Mul (x, w) }"
    whole = onnx.load(models.save(folder / "external.onnx", text, w=np.ones(4)))
    parts = {"save_as_external_data": True, "location": "model.onnx_data", "size_threshold": 0}
    onnx.save(whole, folder / "external.onnx", **parts)
    (folder / "model.onnx_data").unlink()
    (folder / "bad.gradcheck.yaml").write_text("gradcheck: 1\nchecks:\n  - {model: mlp.onnx, detla: 1}\n")
    return folder


def save_integers(path: Path, text: str, **constants: list[int]) -> None:
    """A model with integer constants."""
    graph = onnx.parser.parse_graph(text)
    graph.initializer.extend(numpy_helper.from_array(np.array(v), k) for k, v in constants.items())
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


@pytest.mark.parametrize("code, line, lines", MESSAGES, ids=[line for _, line, _ in MESSAGES])
def test_a_message_word_for_word(gradcheck: Command, place: Path, code: int, line: str, lines: list[str]) -> None:
    ran = gradcheck(*line.split())
    told = [re.sub(r"(?<=cannot reshape ).*", "...", line) for line in ran.err.splitlines()]
    assert told == lines
    assert (ran.code, ran.out) == (code, "")


@pytest.mark.parametrize("line", ["--memory-limit 637MiB --mode full", "--mode nodes", "--mode directional"])
def test_a_full_check_beyond_the_limit_is_done_as_its_message_says(gradcheck: Command, place: Path, line: str) -> None:
    ran = gradcheck("conv.onnx", "--y", "c", "--dim", "N=64", "--memory-limit", "1MiB", "--mode", "full")
    assert (ran.code, all(part in ran.err for part in line.replace(" --mode full", "").split("  "))) == (2, True)
    limit = () if "limit" in line else ("--memory-limit", "300MiB")
    assert gradcheck("conv.onnx", "--y", "c", "--dim", "N=64", *limit, *line.split()).code == 0


def test_an_operator_without_a_gradient_says_what_it_stops_and_how_far_one_can_check(place: Path) -> None:
    text = "g (float[3] x) => (float[3] boxes) { scores = Exp (x)  boxes = Tanh (scores) }"
    model = gc.load(models.save(place / "stopped.onnx", text))
    ops = {**gc.OPS, ("", "Tanh"): replace(gc.OPS["", "Tanh"], vjp=None)}
    [record] = gc.check(model, ops=ops).checks
    assert (record.code, record.exit_code) == ("GC501", 5)
    assert record.message == (
        "no gradient for 'Tanh' (node 1 'boxes', opset 17); it stops d boxes/d x. Check up to it: --y scores"
    )


def test_a_forward_that_is_not_finite_says_where_it_began_and_what_to_narrow(gradcheck: Command, place: Path) -> None:
    models.save(
        place / "domain.onnx", "g (float[3] input) => (float loss) { log = Log (input)  loss = ReduceSum (log) }"
    )
    ran = gradcheck("domain.onnx", "--val-range", "input:-0.99,-0.99")
    assert ran.code == 3
    said = " ".join(ran.out.split())
    assert "INCONCLUSIVE GC302 d loss / d input: 'loss' is not finite at point 0: first NaN at node 0 Log 'log'" in said
    assert "(input min -0.99). Narrow: --val-range input:0.1,1" in said
    assert gradcheck("domain.onnx", "--val-range", "input:0.1,1").code == 0


def test_the_input_that_is_drawn_is_said_to_be_narrowed_and_no_tensor_inside(gradcheck: Command) -> None:
    assert "Narrow: --val-range x:LOW,HIGH" in " ".join(gradcheck("log.onnx", "--x", "s").out.split())


# One of a thing, and several

ONE_AND_TWO = [  # command line, its words about tensors of one entry, and of two
    ("check given.onnx --x x --y y --grad x=zero", "1 of 1 entry differs (100%)", "2 of 2 entries differ (100%)"),
    ("check given.onnx --x x --y y --grad x=zero --output-format concise", "1/1 entry differs", "2/2 entries differ"),
    ("check dead.onnx --health --val-range 0.5,1", "1 of 1 unit dead", "2 of 2 units dead"),
    ("diff given.onnx other.onnx --points 1", "output y: 1 of 1 entry differs", "output y: 2 of 2 entries differ"),
    ("step net.onnx -o made --loss loss --trainable w", "1 tensor of 1 entry: w", "1 tensor of 2 entries: w"),
]  # fmt: skip


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("line, one, two", ONE_AND_TWO, ids=[line for line, *_ in ONE_AND_TWO])
def test_words_agree_with_their_numbers(
    gradcheck: Command, folder: Path, line: str, one: str, two: str, number: int
) -> None:
    for path, factor in (("given.onnx", 1.5), ("other.onnx", 2.5)):
        body = "{ y = Mul (x, w)\n zero = Mul (x, no) }"
        head = f"given (float[{number}] x) => (float[{number}] y, float[{number}] zero)"
        models.save(folder / path, f"{head} {body}", w=np.full(number, factor), no=np.zeros(number))
    dead = "{ low = Sub (x, far)\n none = Relu (low)\n y = Add (none, x) }"
    models.save(
        folder / "dead.onnx", f"dead (float[1,{number}] x) => (float[1,{number}] y) {dead}", far=np.full(number, 9.0)
    )
    net = "net (float[4,1] x) => (float loss) { a = MatMul (x, w)\n loss = ReduceMean <keepdims = 0> (a) }"
    models.save(folder / "net.onnx", net, w=np.ones((1, number)))
    assert {1: one, 2: two}[number] in gradcheck(*line.split()).out


@pytest.mark.parametrize(
    "number, word, said", [(0, "entry", "0 entries"), (1, "branch", "1 branch"), (2, "branch", "2 branches"),
                           (2, "array", "2 arrays"), (3, "more note", "3 more notes")]
)  # fmt: skip
def test_counted_things_have_the_endings_of_english(number: int, word: str, said: str) -> None:
    assert counted(number, word) == said
