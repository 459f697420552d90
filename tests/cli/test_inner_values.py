"""Values of tensors inside the model, which no file declares: they fit what the model computes there, or are refused."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Command


@pytest.mark.parametrize("value, sizes", [
    ("[[1, 2, 3], [4, 5, 6]]", [2, 3]),  # whole numbers for floats
    ("2", [2, 3]),  # a number fills the tensor
    ("[[1, 2, 3]]", [1, 3]),  # as long as N is open
    ("[[0.5, 1, 2], [1, 2, 3], [1, 2, 3]]", [3, 3]),
])  # fmt: skip
@pytest.mark.parametrize("option", ["--x-init-value", "--feed"])
def test_a_value_takes_on_the_kind_of_numbers_that_the_model_has_there(
    gradcheck: Command, option: str, value: str, sizes: list[int]
) -> None:
    ran = gradcheck("mlp.onnx", "--x", "h", "--y", "loss", option, f"h={value}", "--output-format", "json")
    [record] = json.loads(ran.out)["checks"]
    assert (record["status"], record["x_shape"]) == ("pass", sizes)


@pytest.mark.parametrize("value, shape", [("[1, 2]", "[2]"), ("[[1, 2]]", "[1,2]"), ("[[[1]]]", "[1,1,1]")])
def test_a_value_of_another_shape_is_refused(gradcheck: Command, value: str, shape: str) -> None:
    ran = gradcheck("mlp.onnx", "--x", "h", "--y", "loss", "--feed", f"h={value}", "--dim", "N=2")
    assert ran.code == 2
    assert ran.err == f"error GC201: the value given for 'h' has shape {shape}, not [2,3].\n"


def test_a_value_behind_an_unknown_operator_is_taken_as_it_is(gradcheck: Command) -> None:
    assert gradcheck("unknown.onnx", "--x", "y", "--y", "y", "--feed", "y=[0.5, 1, 2]").code == 0
