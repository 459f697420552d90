"""The house: what may import what, and how large things may grow."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import gradcheck_cli

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gradcheck_cli"
FLOORS = """
__main__ pytest_plugin
cli
report zoo
api differentiation equivalence gradient_checker inspection backend
arguments checks export
claims
faults health model peer
comparison points operator_facts
jacobians ops request
backward custom
dependence program symbolic trace
patched tangent_plan
tangents
jitter plan tape
bundles connections evaluation installed results step weights
formats op options record verdict
regions
compound isolation lift outcome picture reads settings stack stencil
exact memory
chain
graph native signature
errors explanations measures untrusted
"""
FLOOR = {name: -i for i, line in enumerate(FLOORS.split("\n")) for name in line.split()}
LONGEST_FUNCTION, LONGEST_FILE = 50, 600
SHAPELESS = {"core", "utils", "helpers", "common", "base"}
SOURCES = sorted([*PACKAGE.rglob("*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("examples/*.py")])


def unit(path: Path) -> str:
    """The module or package right under gradcheck_cli that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """What a file imports of gradcheck_cli, by the name right under it."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (n.split(".")[1] for n in names if n.startswith("gradcheck_cli."))


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path: Path):
    here = unit(path)
    if here == "__init__":  # the door: it names all floors and imports nothing before it is asked
        return
    assert here in FLOOR, f"give {here} a floor"
    up = [n for n in imported(path) if n in FLOOR and n != here and FLOOR[n] >= FLOOR[here]]
    assert not up, f"{here} imports {', '.join(up)}"


def test_floors_name_modules_that_exist():
    assert {name for name in FLOOR if name not in {unit(p) for p in PACKAGE.rglob("*.py")}} == set()


def lines_of(function: ast.FunctionDef) -> int:
    """Lines of a function without its docstring."""
    first = function.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    doc = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
    return (function.end_lineno or 0) - function.lineno + 1 - doc


def test_no_function_is_longer_than_a_screen():
    functions = [
        (path.relative_to(ROOT), node)
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef)
    ]
    long = [f"{p}:{f.lineno} {f.name}: {lines_of(f)}" for p, f in functions if lines_of(f) > LONGEST_FUNCTION]
    assert long == []


def test_no_file_is_longer_than_one_can_know():
    files = {p.relative_to(PACKAGE).as_posix(): p.read_text("utf-8") for p in PACKAGE.rglob("*.py")}
    sizes = {p: text.count("\n") for p, text in files.items()}
    assert [f"{p}: {n}" for p, n in sizes.items() if n > LONGEST_FILE] == []


def test_every_file_says_in_its_name_what_it_holds():
    assert [str(p.relative_to(ROOT)) for p in SOURCES if p.stem in SHAPELESS] == []


def test_nothing_is_left_to_do_or_tied_to_a_machine():
    marks = ("TO" + "DO", "FIX" + "ME", "/home" + "/", "/work" + "/", "/Users" + "/")
    documents = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", ".ci/run", ".ci/variant")]
    texts = {str(p.relative_to(ROOT)): p.read_text("utf-8") for p in [*SOURCES, *documents]}
    assert [(name, mark) for name, text in texts.items() for mark in marks if mark in text] == []


@pytest.mark.skipif(os.environ.get("GRADCHECK_KERNELS") == "numpy", reason="asked to run without compiled kernels")
def test_the_tests_run_against_a_package_with_compiled_kernels():
    from gradcheck_cli.native.selection import kernels

    place = Path(gradcheck_cli.__file__).parent
    assert kernels is not None, f"{place} has no compiled kernels: python -m pip install '.[test]'"
