"""-k chooses as pytest does."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradcheck_cli.cli.run import matcher, select
from gradcheck_cli.errors import NothingChecked, UsageError
from tests.cli.conftest import Command

NAMES = ["conv/image", "conv/kernel", "mlp/input", "MLP/slow"]


@pytest.mark.parametrize("expression, expected", [
    ("conv", [0, 1]),
    ("mlp", [2, 3]),
    ("not conv", [2, 3]),
    ("conv and not kernel", [0]),
    ("image or input", [0, 2]),
    ("not (image or slow)", [1, 2]),
    ("conv/k", [1]),
    ("mlp and slow or kernel", [1, 3]),
])  # fmt: skip
def test_an_expression_chooses(expression: str, expected: list[int]) -> None:
    assert select(NAMES, (), expression) == expected


@pytest.mark.parametrize("expression", ["", "and", "a or", "(a", "a)", "not", "a b"])
def test_what_is_no_expression_is_an_error(expression: str) -> None:
    with pytest.raises(UsageError):
        matcher(expression)


def test_exact_names_and_expressions_choose_together() -> None:
    assert select(NAMES, ("conv/image", "mlp/input"), "mlp") == [2]
    with pytest.raises(NothingChecked):
        select(NAMES, ("conv/image",), "mlp")


def test_a_list_of_models_beside_others_is_left_out_and_alone_nothing_to_check(
    gradcheck: Command, folder: Path
) -> None:
    (folder / "zoo.gradcheck.yaml").write_text("gradcheck: 1\nmodels: [{path: mlp.onnx}]\n")
    alone = gradcheck("zoo.gradcheck.yaml")
    assert (alone.code, "lists models, which are checked by `gradcheck zoo zoo.gradcheck.yaml`" in alone.err) == (
        7,
        True,
    )
    beside = gradcheck("mlp.onnx", "zoo.gradcheck.yaml", "--x", "input", "--y", "loss")
    assert (beside.code, beside.out.count("1 check: 1 passed")) == (0, 1)
    assert "note: left out, as lists of models, which `gradcheck zoo` checks: zoo.gradcheck.yaml" in beside.err
    seen = gradcheck("inspect", "mlp.onnx", "zoo.gradcheck.yaml")
    assert (seen.code, seen.err) == (0, "")
    assert gradcheck("inspect", "zoo.gradcheck.yaml").code == 7
