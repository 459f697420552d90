"""Errors are one message on stderr with a fixed exit code, before anything runs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.cli import models
from tests.cli.conftest import Command

ERRORS = [  # command line, exit code, what the message begins with
    (
        "mlp.onnx --x inputs",
        2,
        "GC201: mlp.onnx has no tensor 'inputs'. Did you mean 'input'?\nTensors to differentiate by: ",
    ),
    ("mlp.onnx --y los", 2, "GC201: mlp.onnx has no tensor 'los'. Did you mean 'loss'?"),
    (
        "mlp.onnx --x aux_in --y loss",
        2,
        "GC201: 'loss' does not depend on 'aux_in'. aux_in reaches only: aux_out.",
    ),
    (
        "mlp.onnx --x loss --y input",
        2,
        "GC201: 'input' does not depend on 'loss', but 'loss' depends on 'input'. Are",
    ),
    (
        "embedding.onnx --x input_ids",
        2,
        "GC201: --x input_ids is int64 and has no gradient. First float tensor after",
    ),
    (
        "conv.onnx --x-shape image:1,4,8,8",
        2,
        "GC201: --x-shape image:1,4,8,8 contradicts the model: dimension 1 is",
    ),
    (
        "conv.onnx --x-shape image:1,3,8",
        2,
        "GC201: --x-shape image:1,3,8 contradicts the model: 'image' has 4",
    ),
    (
        "conv.onnx --x-shape image:1,3,a,8",
        2,
        "GC201: --x-shape image:1,3,a,8: '1,3,a,8' is no shape; write 1,3,32,32",
    ),
    ("conv.onnx --y-shape 3", 2, "GC201: --y-shape loss: the model computes [], not [3]."),
    ("conv.onnx --dim M=3", 2, "GC201: --dim M: the model's open dimensions are N."),
    ("conv.onnx --dim N", 2, "GC201: --dim N: write NAME=SIZE"),
    ("mlp.onnx --rtol nosuch:1", 2, "GC201: mlp.onnx has no tensor 'nosuch'."),
    ("mlp.onnx --rtol -1", 2, "GC201: --rtol -1: a tolerance must be a number from 0, not -1"),
    (
        "mlp.onnx --val-range 2,1",
        2,
        "GC201: --val-range 2,1: '2,1' is no range: both ends must be finite and in order",
    ),
    (
        "mlp.onnx --x-init-value 1",
        2,
        "GC201: --x-init-value needs a name, --x-init-value NAME=..., since there are 2 x",
    ),
    (
        "mlp.onnx --x input --x-init-value a",
        2,
        "GC201: --x-init-value a: 'a' is no number and no list of numbers",
    ),
    (
        "mlp.onnx --x input --x-init-value @a.npy",
        2,
        "GC201: --x-init-value @a.npy: a.npy cannot be read: No such file",
    ),
    ("mlp.onnx --feed 3", 2, "GC201: --extra-feed-dict: which tensor? Write --extra-feed-dict NAME=VALUE or"),
    (
        "mlp.onnx --seed soon",
        2,
        "GC201: Invalid value for '--seed': 'soon' is neither a number nor 'random'.",
    ),
    ("mlp.onnx --delta 0", 2, "GC201: Invalid value for '--delta': '0' must be above 0."),
    ("mlp.onnx --delta nan", 2, "GC201: Invalid value for '--delta': 'nan' must be above 0."),
    (
        "mlp.onnx --timeout soon",
        2,
        "GC201: Invalid value for '--timeout': 'soon' is no duration; write 30s, 10m or 1h.",
    ),
    (
        "mlp.onnx --memory-limit much",
        2,
        "GC201: Invalid value for '--memory-limit': 'much' is no size; write 2GiB",
    ),
    (
        "mlp.onnx --fail-on falls",
        2,
        "GC201: Invalid value for '--fail-on': 'falls' is none of fail, inconclusive",
    ),
    (
        "mlp.onnx --report no/x.json",
        2,
        "GC201: Invalid value for '--report': 'no/x.json': there is no folder 'no'.",
    ),
    (
        "mlp.onnx --report x.pdf",
        2,
        "GC201: Invalid value for '--report': 'x.pdf' must end in .json, .jsonl, .xml, .html, .md, .sarif.",
    ),
    (
        "mlp.onnx --mode fulll",
        2,
        "GC201: Invalid value for '--mode': 'fulll' is not one of 'auto', 'full', 'nodes', 'directional', 'sampled'. "
        "Did you mean 'full'?",
    ),
    ("mlp.onnx --shwo 3", 2, "GC201: No such option '--shwo'. Did you mean '--show'?"),
    ("mlp.onnx --compat torch", 2, "GC201: Invalid value for '--compat': 'torch' is not"),
    (
        "mlp.onnx --compat tf --method richardson",
        2,
        "GC201: --compat tf takes central differences of all entries in float64; --method is richardson.",
    ),
    (
        "mlp.onnx --compat tf --dtype model",
        2,
        "GC201: --compat tf takes central differences of all entries in float64; --dtype is model.",
    ),
    (
        "mlp.onnx --no-colouring",
        2,
        "GC201: No such option '--no-colouring'. Did you mean '--no-coloring'?",
    ),
    ("mlp.onnx --forward tvm", 2, "GC201: Invalid value for '--forward': 'tvm' is not one of 'internal', 'onnx"),
    ("mlp.onnx --max-entries 0", 2, "GC201: Invalid value for '--max-entries': 0 is not in the range x>=1."),
    ("mlp.onnx --max-inconclusive nan", 2, "GC201: Invalid value for '--max-inconclusive': 'nan' is no number."),
    ("zoo diff a b --slower nan", 2, "GC201: Invalid value for '--slower': 'nan' is no number."),
    ("mlp.onnx --grad x=y", 2, "GC201: --grad: mlp.onnx has no tensor 'x'"),
    ("mlp.onnx --plot a.gif", 2, "GC201: Invalid value for '--plot'"),
    ("mlp.onnx --report a.docx", 2, "GC201: Invalid value for '--report': 'a.docx' must end in .json,"),
    ("zoom mlp.onnx", 2, "GC201: 'zoom' is neither a command nor a file."),
    (
        "schema specs",
        2,
        "GC201: Invalid value for '{spec|result}': 'specs' is not one of 'spec', 'result'. Did you mean",
    ),
    ("inspect mlp.onnx --dim M=3", 2, "GC201: --dim M: the model's open dimensions are N."),
    ("mlp.onnx --test-data no", 2, "GC201: --test-data no: there is no such folder"),
    ("mlp.onnx -k a+and", 7, "GC701: nothing to check: -k 'a+and' matches none of 1 check: mlp.onnx"),
    ("mlp.onnx --timeout 30000h", 2, "GC201: Invalid value for '--timeout': '30000h' is too long; at most 27778h"),
    ("grad mlp.onnx -o g.onnx --timeout 99999999999999999999s", 2, "GC201: Invalid value for '--timeout': '9999"),
    ("mlp.onnx -k (", 2, "GC201: -k '(': a word is missing at the end"),
    (
        "wrong.gradcheck.yaml --check square/wron",
        2,
        "GC201: no check is called 'square/wron'. Did you mean 'square/wrong'?",
    ),
    ("chekc mlp.onnx", 2, "GC201: 'chekc' is neither a command nor a file. Did you mean 'check'?"),
    ("check", 2, "GC201: Missing argument 'MODEL...'"),
    ("missing.onnx", 4, "GC401: missing.onnx does not exist."),
    ("lfs.onnx", 4, "GC403: lfs.onnx is a Git LFS pointer (63 bytes), not a model."),
    ("models/**/*.onnx", 7, "GC701: nothing to check: 'models/**/*.onnx' matches no file"),
    ("empty", 7, "GC701: nothing to check: 'empty' holds no *.onnx or *.gradcheck.yaml"),
    ("explain GC999", 2, "GC201: there is no code 'GC999'."),
    ("ops Softmx", 2, "GC201: no operator 'Softmx' is known. Did you mean 'Softmax'?"),
    ("inspect mlp.onnx --x inputs", 2, "GC201: mlp.onnx has no tensor 'inputs'."),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("line, code, message", ERRORS, ids=[line for line, _, _ in ERRORS])
def test_an_error_says_what_is_wrong(gradcheck: Command, folder: Path, line: str, code: int, message: str) -> None:
    (folder / "empty").mkdir()
    ran = gradcheck(*line.split())
    assert ran.err.startswith(f"error {message}"), ran.err
    assert (ran.code, ran.out) == (code, "")


@pytest.mark.parametrize("choice", [("--check", "input"), ("-k", "input")])
@pytest.mark.parametrize(
    "command", [("bad.gradcheck.yaml",), ("zoo", "bad.gradcheck.yaml"), ("zoo", "mlp.onnx", "conv.onnx")]
)
def test_a_spec_that_cannot_be_read_says_so_before_a_check_of_it_is_missed(
    gradcheck: Command, folder: Path, command: tuple[str, ...], choice: tuple[str, str]
) -> None:
    for name in ("bad", "mlp"):
        text = "gradcheck: 1\nchecks:\n  - {name: input, model: mlp.onnx, detla: 1}\n"
        (folder / f"{name}.gradcheck.yaml").write_text(text)
    ran = gradcheck(*command, *choice)
    assert ran.code == 2
    assert re.match(r"error GC202: \w+\.gradcheck\.yaml:3:36: unknown key 'detla' in checks\[0\]", ran.err), ran.err


@pytest.mark.parametrize("args", [(), ("--timeout", "60s")])
@pytest.mark.parametrize(
    "command", [(), ("grad", "-o", "g.onnx"), ("step", "-o", "step", "--loss", "y", "--trainable", "W")]
)
def test_an_error_of_a_node_names_the_model(
    gradcheck: Command, folder: Path, command: tuple[str, ...], args: tuple[str, ...]
) -> None:
    text = "g (float[2, 3] x) => (float y) { h = MatMul (x, W) a = MatMul (h, h) y = ReduceSum <keepdims = 0> (a) }"
    models.save(folder / "odd.onnx", text, W=np.ones((3, 4)))
    ran = gradcheck(*command, "odd.onnx", *args)
    assert (ran.code, ran.err.startswith("error GC401: odd.onnx: node 1 MatMul")) == (4, True), ran.err


def test_an_unknown_key_of_a_spec_is_shown_in_its_line(gradcheck: Command, folder: Path) -> None:
    (folder / "bad.gradcheck.yaml").write_text("gradcheck: 1\nchecks:\n  - {model: mlp.onnx, detla: 1}\n")
    ran = gradcheck("bad.gradcheck.yaml")
    assert ran.code == 2
    assert ran.err.splitlines() == [
        "error GC202: bad.gradcheck.yaml:3:23: unknown key 'detla' in checks[0]. Did you mean 'delta'?",
        "    - {model: mlp.onnx, detla: 1}",
        "                        ^",
    ]


def test_an_operator_that_is_not_known_stops_its_pair_only(gradcheck: Command) -> None:
    ran = gradcheck("unknown.onnx")
    assert ran.code == 5
    assert "GC502  d y / d x: unknown operator 'acme.Magic'" in ran.out
    assert gradcheck("unknown.onnx", "--y", "a").code == 0


def test_a_forward_that_is_not_finite_names_the_node(gradcheck: Command) -> None:
    ran = gradcheck("log.onnx")
    assert ran.code == 3
    assert "INCONCLUSIVE GC302" in ran.out
    assert "node 1 Log 'y'" in " ".join(ran.out.split())
    assert gradcheck("log.onnx", "--val-range", "x:2.5,3").code == 0


def test_a_time_limit_ends_a_model(gradcheck: Command) -> None:
    ran = gradcheck("conv.onnx", "--timeout", "0.000001")
    assert (ran.code, ran.err[:12]) == (6, "error GC601:")


def test_the_worst_outcome_of_several_is_the_exit_code(gradcheck: Command) -> None:
    assert gradcheck("unknown.onnx", "log.onnx").code == 5
    assert gradcheck("unknown.onnx", "lfs.onnx").code == 4
    assert gradcheck("lfs.onnx", "wrong.gradcheck.yaml").code == 1


def test_what_does_not_gate_does_not_fail(gradcheck: Command) -> None:
    assert gradcheck("log.onnx", "--fail-on", "fail").code == 0
    assert gradcheck("wrong.gradcheck.yaml", "--exit-zero").code == 0
    assert gradcheck("lfs.onnx", "wrong.gradcheck.yaml", "--exit-zero").code == 4
