"""-k chooses as pytest does."""

from __future__ import annotations

import pytest

from gradcheck_cli.cli.run import matcher, select
from gradcheck_cli.errors import NothingChecked, UsageError

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
