"""The house: what may import what, and how large things may grow."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

import gradcheck_cli
from gradcheck_cli.ops import FAMILIES, OPS
from tests.conftest import differing

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gradcheck_cli"
FLOORS = """
cli
reference
api report training zoo
checks export
compare model
jacobian points
ops engine
autodiff verdict
op formats results
graph native
errors settings
"""
DOORS = {"__init__", "__main__", "pytest_plugin", "backend"}  # they open on api and cli; nothing inside imports them
FLOOR = {name: -i for i, line in enumerate(FLOORS.split("\n")) for name in line.split()}
LONGEST_FUNCTION, LONGEST_FILE, MOST_FILES = 50, 600, 300
QUESTIONS = {"How", "It", "That", "Those", "What", "When", "Where", "Whether", "Which", "Who", "Whose", "Why"}
MODULES_OF_A_CHECK, DEEPEST_KERNEL, NUMERICAL_KERNEL = 139, 22, 12  # of examples/mlp.onnx: own calls before a kernel
SHAPELESS = {"core", "utils", "helpers", "common", "base"}
SOURCES = sorted([*PACKAGE.rglob("*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("examples/*.py")])


class Facts(NamedTuple):
    """Rooms that a file imports, its classes, the first words of its docstrings, lines of functions without these."""

    imports: list[str]
    classes: list[str]
    docstrings: list[str]
    functions: dict[str, int]


@cache
def facts(path: Path) -> Facts:
    """All that the tests here ask of a file; its syntax tree, which is large, is not kept."""
    nodes = [*ast.walk(ast.parse(path.read_text("utf-8")))]
    documented = [n for n in nodes if isinstance(n, ast.Module | ast.FunctionDef | ast.ClassDef)]
    texts = [text for n in documented if (text := ast.get_docstring(n))]
    return Facts(
        [*imported(nodes)],
        [n.name for n in nodes if isinstance(n, ast.ClassDef)],
        [text.split()[0].strip("'`,.").capitalize() for text in texts],
        {f"{n.name} in line {n.lineno}": lines_of(n) for n in nodes if isinstance(n, ast.FunctionDef)},
    )


def unit(path: Path) -> str:
    """The module or package right under gradcheck_cli that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(nodes: list[ast.AST]) -> Iterator[str]:
    """Parts of gradcheck_cli that are imported anywhere, by the name right under it; the door is `__init__`."""
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == "gradcheck_cli":
                here = rest.partition(".")[0]
                yield here if here in FLOOR or here in DOORS else "__init__"


def upward(path: Path) -> list[str]:
    """Rooms on the same floor or above that a file imports from, and doors, which open from outside alone."""
    here = unit(path)
    return [n for n in facts(path).imports if n != here and (n in DOORS or FLOOR[n] >= FLOOR[here])]


def test_imports_point_down():
    rooms = [path for path in PACKAGE.rglob("*.py") if unit(path) not in DOORS]
    assert [f"{path.relative_to(PACKAGE)}: {up}" for path in rooms if (up := upward(path))] == []


def test_the_rooms_are_those_that_are_listed():
    assert {unit(p) for p in PACKAGE.rglob("*.py")} == {*FLOOR, *DOORS}


def test_contributing_shows_the_same_floors():
    shown = (ROOT / "CONTRIBUTING.md").read_text("utf-8").split("```")[1]
    rooms = [re.findall(r"^ *\d+  (.*?)(?:   .*)?$", line) for line in shown.splitlines()]
    assert [re.findall(r"[a-z]+", each[0]) for each in rooms if each] == [
        line.split() for line in FLOORS.split("\n") if line
    ]


def test_no_two_modules_have_one_name():
    names = Counter(path.stem for path in PACKAGE.rglob("*.py"))
    assert [name for name, count in names.items() if count > 1 and name != "__init__"] == []


def test_no_two_classes_have_one_name():
    classes = Counter(name for path in PACKAGE.rglob("*.py") for name in facts(path).classes)
    assert {name for name, count in classes.items() if count > 1} == set()


def test_docstrings_are_sentences_with_a_subject():
    words = {path: facts(path).docstrings for path in [*SOURCES, *ROOT.glob("benchmarks/*.py")]}
    assert [f"{path}: {word}" for path, first in words.items() for word in first if word in QUESTIONS] == []


def test_there_are_no_more_files_than_one_can_find_a_way_through():
    assert len([*PACKAGE.rglob("*.py")]) <= MOST_FILES


def lines_of(function: ast.FunctionDef) -> int:
    """Lines of a function without its docstring."""
    first = function.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    doc = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
    return (function.end_lineno or 0) - function.lineno + 1 - doc


def test_no_function_is_longer_than_a_screen():
    functions = [(path.relative_to(ROOT), each) for path in SOURCES for each in facts(path).functions.items()]
    long = [f"{path}: {name}: {lines}" for path, (name, lines) in functions if lines > LONGEST_FUNCTION]
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


def test_every_family_has_the_operators_that_the_table_names():
    named: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for file, variable, domain, names in FAMILIES:
        named.setdefault((file, variable), set()).update((domain, name) for name in names.split())
    declared = {
        (file, variable): {op.key for op in getattr(import_module(f"gradcheck_cli.ops.{file}"), variable)}
        for file, variable in named
    }
    assert declared == named
    assert len(OPS) == sum(map(len, named.values()))


WALK = """
import contextlib, io, os, sys
import gradcheck_cli
from gradcheck_cli.cli import main

HOUSE, KERNELS = os.path.dirname(gradcheck_cli.__file__) + os.sep, (os.sep + "ops" + os.sep, os.sep + "native" + os.sep)
found = []

def seen(frame, event, arg):
    if event == "call" and any(room in frame.f_code.co_filename for room in KERNELS):
        stack = []
        while (frame := frame.f_back) is not None:
            if frame.f_code.co_filename.startswith(HOUSE):
                stack.append(frame.f_code)
        if not any(room in code.co_filename for code in stack for room in KERNELS):
            found.append([code.co_name for code in stack])

def check():
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["examples/mlp.onnx", "--x", "input", "--y", "loss"]) == 0

check()
print(len({name for name in sys.modules if name.startswith("gradcheck_cli")}))
sys.setprofile(seen)
check()
sys.setprofile(None)
print(max(map(len, found)))
print(max(len(names) for names in found if "complex_step" in names and "by_complex_step" in names))
"""


def test_a_check_walks_through_few_files_and_few_calls_to_a_kernel():
    ran = subprocess.run([sys.executable, "-c", WALK], cwd=ROOT, capture_output=True, text=True, check=True)
    modules, deepest, numerical = map(int, ran.stdout.split())
    assert modules <= MODULES_OF_A_CHECK
    assert deepest <= DEEPEST_KERNEL
    assert numerical <= NUMERICAL_KERNEL


@pytest.mark.skipif(os.environ.get("GRADCHECK_KERNELS") == "numpy", reason="asked to run without compiled kernels")
def test_the_tests_run_against_a_package_with_compiled_kernels():
    from gradcheck_cli.native.selection import kernels

    place = Path(gradcheck_cli.__file__).parent
    assert kernels is not None, f"{place} has no compiled kernels: python -m pip install '.[test]'"


def test_an_installed_package_that_is_not_this_checkout_is_found_out(tmp_path: Path):
    for folder in ("installed", "checkout"):
        for name in ("same.py", "changed.py", f"only_{folder}.py"):
            path = tmp_path / folder / "room" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(folder if name == "changed.py" else "")
    found = differing(tmp_path / "installed", tmp_path / "checkout")
    assert found == ["room/changed.py", "room/only_checkout.py", "room/only_installed.py"]
    assert differing(tmp_path / "checkout", tmp_path / "checkout") == []
