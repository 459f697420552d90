"""Mutants are what they are said to be."""

from __future__ import annotations

import ast

import pytest

from tests.mutation.mutants import exchanged, sites

REPLACED = {
    "a < b": {"a <= b", "None"},
    "not a": {"a", "None"},
    "a and b": {"a or b", "None"},
    "-a + b": {"-a - b", "a + b", "None"},
    "a if b == 1 else 2.5": {
        "a if b != 1 else 2.5", "a if b == 2 else 2.5", "a if b == 1 else 5.0", "a if True else 2.5", "a if False else 2.5",
        "None",
    },
    "f(a, b, key=True)": {"f(b, a, key=True)", "f(a, b, key=False)", "None"},
    "[a for a in b if a]": {"[a for a in b if True]", "[a for a in b if False]", "None"},
    "f'{a + 1}'": set(),
}  # fmt: skip


@pytest.mark.parametrize("expression", REPLACED)
def test_an_expression_has_these_mutants(expression: str):
    source = f'def f(a: int = 1, b=not 2):\n    """Gives 1."""\n    return {expression}'
    found = set()
    for i in range(len([*sites(ast.parse(source))])):
        tree = ast.parse(source)
        site = [*sites(tree)][i]
        site.put(site.new)
        found.add(ast.unparse(tree).partition("return ")[2])
    assert found == REPLACED[expression]


def test_only_the_function_that_changed_and_those_around_it_are_exchanged():
    source = "def f():\n    return lambda x: x + {}\ndef g():\n    return 1"
    one, other = (compile(source.format(n), "file", "exec") for n in (1, 2))
    pairs = [*exchanged(one, other)]
    assert [old.co_qualname for old, _ in pairs] == ["<module>", "f", "f.<locals>.<lambda>"]
    assert [new.co_consts for _, new in pairs[-1:]] == [(None, 2)]
    assert [*exchanged(one, one)] == []
