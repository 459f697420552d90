"""Mutants: one expression of the package's logic replaced by another, drawn over all rooms by a seed."""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "gradcheck_cli"
TURNED: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult, ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
UNTOUCHED = {  # annotations and defaults, which run once, and words for people
    ast.FunctionDef: {"decorator_list", "returns", "args"}, ast.Lambda: {"args"}, ast.AnnAssign: {"annotation"},
    ast.match_case: {"pattern"}, ast.Assert: {"msg"},
}  # fmt: skip
WORDS = (ast.Raise, ast.JoinedStr)


@dataclass(frozen=True)
class Site:
    """One expression that can be replaced: where it hangs in its tree, and by what it is replaced."""

    parent: ast.AST
    field: str
    at: int | None
    old: ast.expr
    new: ast.expr

    def put(self, expression: ast.expr) -> None:
        if self.at is None:
            setattr(self.parent, self.field, expression)
        else:
            getattr(self.parent, self.field)[self.at] = expression


@dataclass(frozen=True)
class Mutant:
    """The `index`-th site of a file, with its text before and after."""

    path: str
    index: int
    line: int
    before: str
    after: str


def sites(node: ast.AST, inside: bool = False) -> Iterator[Site]:
    """Every replacement in the functions of a tree, always in the same order."""
    inside = inside or isinstance(node, ast.FunctionDef | ast.Lambda)
    for field, value in ast.iter_fields(node):
        if field in UNTOUCHED.get(type(node), ()):
            continue
        for at, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or isinstance(child, WORDS):
                continue
            if inside and isinstance(child, ast.expr):
                news = [*replacements(child), *in_place(node, field, child)]
                yield from (Site(node, field, at, child, ast.copy_location(new, child)) for new in news)
            yield from sites(child, inside)


def replacements(node: ast.expr) -> Iterator[ast.expr]:
    """Other expressions that stand for an expression wherever it is."""
    match node:
        case ast.Compare(left, [op], right) if type(op) in TURNED:
            yield ast.Compare(left, [TURNED[type(op)]()], right)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(TURNED[type(op)](), values)
        case ast.BinOp(left, op, right) if type(op) in TURNED and not (textual(left) or textual(right)):
            yield ast.BinOp(left, TURNED[type(op)](), right)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield operand
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() as value):
            yield ast.Constant(value + 1)
        case ast.Constant(float() as value):
            yield ast.Constant(2 * value or 1.0)
        case ast.Call(func, [first, second, *others], keywords) if not isinstance(first, ast.Starred):
            if not isinstance(second, ast.Starred):
                yield ast.Call(func, [second, first, *others], keywords)


def in_place(parent: ast.AST, field: str, node: ast.expr) -> Iterator[ast.expr]:
    """Other expressions for one that is a condition, or what a function returns."""
    if field in ("test", "ifs") and not isinstance(parent, ast.Assert):
        yield from (ast.Constant(value) for value in ([False] if isinstance(parent, ast.While) else [False, True]))
    if field == "value" and isinstance(parent, ast.Return) and not isinstance(node, ast.Constant):
        yield ast.Constant(None)


def textual(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def drawn(seed: int, least: int, number: int) -> list[Mutant]:
    """`number` mutants on lines of their own: `least` of each room that has so many, the others wherever logic is."""
    rng, rooms = random.Random(seed), defaultdict[str, list[Mutant]](list)
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        lines = defaultdict[int, list[Mutant]](list)
        for i, site in enumerate(sites(ast.parse(path.read_text("utf-8")))):
            line = site.old.lineno
            lines[line].append(Mutant(name, i, line, ast.unparse(site.old), ast.unparse(site.new)))
        rooms[str(Path(name).parent)] += [
            rng.choices(mutants, [1 if crude(m) else 5 for m in mutants])[0] for mutants in lines.values()
        ]
    shuffled = {room: rng.sample(mutants, len(mutants)) for room, mutants in sorted(rooms.items())}
    chosen = [mutant for mutants in shuffled.values() for mutant in mutants[:least]]
    others = [mutant for mutants in shuffled.values() for mutant in mutants[least:]]
    return sorted(chosen + rng.sample(others, max(0, number - len(chosen))), key=lambda m: (m.path, m.index))


def crude(mutant: Mutant) -> bool:
    """No result, or operands the other way round: most often an error at once, which proves little of the tests."""
    return mutant.after == "None" or (mutant.before.endswith(")") and len(mutant.before) == len(mutant.after))


def code(path: str, marked: dict[int, int], mutated: int | None = None) -> CodeType:
    """A file compiled: sites, by index, set the byte of their mutant when they run, and one is replaced."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    for i, site in enumerate([*sites(tree)]):
        if i in marked:
            expression = site.new if i == mutated else site.old
            site.put(ast.copy_location(mark(marked[i], expression), site.old))
    after_future = next(n for n in count() if not isinstance(tree.body[n], ast.Expr) and not is_future(tree.body[n]))
    tree.body.insert(after_future, ast.parse("from sitecustomize import HITS as __hits__").body[0])
    return compile(ast.fix_missing_locations(tree), str(ROOT / path), "exec")


def mark(number: int, expression: ast.expr) -> ast.expr:
    """`(__hits__.__setitem__(number, 1), expression)[1]`."""
    call: Any = ast.parse(f"(__hits__.__setitem__({number}, 1), 0)[1]", mode="eval").body
    call.value.elts[1] = expression
    return call


def is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def exchanged(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Pairs of a file's functions that differ in two compilations of it."""
    if old == new:
        return
    yield old, new
    inner = [[c for c in each.co_consts if isinstance(c, CodeType)] for each in (old, new)]
    others = defaultdict[tuple[str, int], list[CodeType]](list)
    for each in inner[1]:
        others[each.co_qualname, each.co_firstlineno].append(each)
    for each in inner[0]:
        if same := others[each.co_qualname, each.co_firstlineno]:
            yield from exchanged(each, same.pop(0))
