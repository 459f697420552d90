"""-k chooses among the tensors to differentiate by, where a check's name leaves it open; globs of the Python function."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gradcheck_cli
from gradcheck_cli.cli.run import fits
from gradcheck_cli.errors import UsageError
from tests.cli import models
from tests.cli.conftest import Command

NET = """net (float[2,3] image) => (float loss) {
  a = MatMul (image, fc1.weight)
  b = Add (a, fc1.bias)
  c = Tanh (b)
  d = Mul (c, fc2.weight)
  e = Add (d, fc2.bias)
  loss = ReduceSum <keepdims = 0> (e)
}"""


@pytest.fixture
def net(folder: Path) -> Path:
    """A model of two layers, whose tensors are called as exporters do."""
    text = NET.replace("fc1.", "fc1_").replace("fc2.", "fc2_")
    weights = {"fc1_weight": np.linspace(-1, 1, 12).reshape(3, 4), "fc1_bias": np.linspace(0, 1, 4)}
    return models.save(folder / "net.onnx", text, **weights, fc2_weight=np.arange(4.0), fc2_bias=np.linspace(1, 2, 4))


CHOSEN = [  # expression, x of the checks, with --params
    ("fc1", ["fc1_weight", "fc1_bias"]),
    ("bias", ["fc1_bias", "fc2_bias"]),
    ("*_bias", ["fc1_bias", "fc2_bias"]),
    ("fc?_weight", ["fc1_weight", "fc2_weight"]),
    ("FC1 and weight", ["fc1_weight"]),
    ("not fc1 and not image", ["fc2_weight", "fc2_bias"]),
    ("not *bias", ["image", "fc1_weight", "fc2_weight"]),
    ("image or (fc2 and bias)", ["image", "fc2_bias"]),
    ("net", ["image", "fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias"]),
    ("net and fc2", ["fc2_weight", "fc2_bias"]),
    ("net.onnx and not fc2 and not weight", ["image", "fc1_bias"]),
    ("*.onnx", ["image", "fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias"]),
]


@pytest.mark.parametrize("expression, xs", CHOSEN)
def test_an_expression_chooses_among_the_parameters(
    gradcheck: Command, net: Path, expression: str, xs: list[str]
) -> None:
    ran = gradcheck("net.onnx", "--params", "-k", expression, "--output-format", "concise")
    assert [line.split(": ")[1].removeprefix("d loss/d ") for line in ran.out.splitlines()[:-1]] == xs
    whole = len(xs) == 5
    assert ran.err == ("" if whole else f"note: -k chooses {', '.join(xs)} of net.onnx\n")
    assert ran.code == 0


NOTHING = [  # command line, what is said
    (
        "net.onnx --params -k conv",
        "-k 'conv' matches none of 1 check: net.onnx; nor any x of these: image, fc1_weight,",
    ),
    ("net.onnx -k fc1", "nor any x of these: image. Weights are among the x with --params\n"),
    ("lfs.onnx -k fc1", "-k 'fc1' matches none of 1 check: lfs.onnx\n"),
]


@pytest.mark.parametrize("line, said", NOTHING)
def test_what_matches_nothing_is_told_what_there_is(gradcheck: Command, net: Path, line: str, said: str) -> None:
    ran = gradcheck(*line.split())
    assert (ran.code, ran.out, said in ran.err) == (7, "", True), ran.err


def test_a_model_that_cannot_be_read_is_chosen_by_its_name_alone(gradcheck: Command, net: Path) -> None:
    assert gradcheck("net.onnx", "lfs.onnx", "-k", "not fc1").code == 4
    assert gradcheck("net.onnx", "lfs.onnx", "-k", "image").code == 0


def test_checks_of_a_spec_are_chosen_by_name_and_by_x(gradcheck: Command) -> None:
    ran = gradcheck("wrong.gradcheck.yaml", "-k", "h or right", "--output-format", "concise")
    assert [line.split(": ")[1] for line in ran.out.splitlines()[:-1]] == ["sum/right"]
    within = gradcheck("wrong.gradcheck.yaml", "-k", "sum and h", "--timeout", "1m", "--output-format", "concise")
    assert within.out.splitlines()[-1] == "1 check: 1 passed in TIME"


def test_a_known_failure_of_another_x_is_still_expected(gradcheck: Command, folder: Path) -> None:
    spec = (
        (folder / "wrong.gradcheck.yaml")
        .read_text()
        .replace("known, graph: net, x: x,", "known, graph: net, x: [x, h],")
    )
    (folder / "both.gradcheck.yaml").write_text(spec)
    ran = gradcheck("both.gradcheck.yaml", "-k", "known and h")
    assert (ran.code, "1 passed" in ran.out) == (0, True), ran.out


@pytest.mark.parametrize("names, word, found", [
    (("net.onnx",), "net", True), (("net.onnx",), "n*x", True), (("net.onnx",), "n*", True), (("net.onnx",), "*et", False),
    (("a", "fc.w"), "fc?w", True), (("a[0]",), "a[0]", True), (("a0",), "a[0]*", False), (("A",), "?", True),
])  # fmt: skip
def test_a_word_fits_as_part_or_as_a_glob(names: tuple[str, ...], word: str, found: bool) -> None:
    assert fits(names, word) is found


def test_the_python_function_takes_globs(net: Path) -> None:
    model = gradcheck_cli.load(net)
    assert [check.x for check in gradcheck_cli.check(model, x="fc*_bias").checks] == ["fc1_bias", "fc2_bias"]
    assert [check.x for check in gradcheck_cli.check(model, x=["image", "fc?_w*"], y="lo*").checks] == [
        "image", "fc1_weight", "fc2_weight",
    ]  # fmt: skip
    for given in ({"x": "nope*"}, {"y": "nope*"}, {"x": "fc[12]*"}):
        with pytest.raises(UsageError, match="fits no tensor that can be differentiated"):
            gradcheck_cli.check(model, **given)


def test_an_exact_name_with_marks_wins_in_python_too(folder: Path) -> None:
    models.named(folder / "stars.onnx", "w*[?]", "y")
    [check] = gradcheck_cli.check(gradcheck_cli.load(folder / "stars.onnx"), x="w*[?]").checks
    assert (check.x, check.status) == ("w*[?]", "pass")


def test_a_spec_that_cannot_be_read_is_named_where_its_checks_are_not_chosen(gradcheck: Command, net: Path) -> None:
    (net.parent / "broken.gradcheck.yaml").write_text(
        "gradcheck: 1\nchecks:\n  - {name: a, model: net.onnx, detla: 3}\n"
    )
    ran = gradcheck("broken.gradcheck.yaml", "net.onnx", "-k", "net.onnx")
    assert ran.code == 0
    assert "note: -k leaves out a file that cannot be read: broken.gradcheck.yaml:3:" in ran.err
