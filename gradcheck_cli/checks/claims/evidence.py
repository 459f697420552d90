"""What can be told of somebody else's cotangents on the way from x to y: which they have right, and which not.

By what they are called; by whether the numbers occur anywhere in what computes the claim; by claims about other
tensors, which are right only if what they went through was; and by whether claimed numbers can have come through a
tensor at all, whatever its cotangent was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.checks.claims.layout import layouts
from gradcheck_cli.checks.claims.names import gradient_names
from gradcheck_cli.checks.claims.way import Way, jacobian_between
from gradcheck_cli.graph import Array

_NEAR = 1e-6  # of the largest entry: numbers that are the same but for rounding
_LEFT = 1e-4  # of claimed numbers: what remains of those that cannot have come through a tensor
_MOST_EVIDENCE = 1 << 22  # entries of a Jacobian that one looks through


@dataclass(slots=True)
class Evidence:
    """Tensors on a way of which they have, or do not have, the cotangent; `theirs` those that are known, as Jacobians."""

    way: Way
    right: set[str] = field(default_factory=set)
    wrong: set[str] = field(default_factory=set)
    theirs: dict[str, Array] = field(default_factory=dict)
    pool: dict[int, list[Array]] = field(default_factory=dict)  # sorted numbers of what computes the claim, by count

    def occurs(self, cotangent: Array) -> bool:
        """These numbers are those of some tensor that computes the claim, in whatever order."""
        wanted = np.sort(cotangent, axis=None)
        return bool(cotangent.any()) and any(near(wanted, each) for each in self.pool.get(wanted.size, ()))

    def resolved(self) -> set[str]:
        """Tensors with the right cotangent, and those that are passed over: nothing before them is wrong."""
        found = {*self.right}
        for block in self.way.blocks:
            if found.issuperset(block.operands):
                found.update(n for n in block.outputs if n not in self.wrong)
        return found


def gathered(way: Way, other: Tape | None, claims: Mapping[str, tuple[bool, Array | None]]) -> Evidence:
    """All of it: `other` is the tape that computes the claim, `claims` are outcomes and numbers of claims by x."""
    found = Evidence(way)
    if other is not None:
        found.pool = _pool(other)
        _by_name(found, other)
        found.right.update(n for n, ct in way.ours.items() if n not in found.theirs and found.occurs(ct))
    fine = [x for x, (right, _) in claims.items() if right]
    for x, (right, numbers) in claims.items():
        (found.right if right else found.wrong).add(x)
        if numbers is not None and x in way.ours and numbers.shape == way.ours[x].shape:
            found.theirs[x] = numbers
    found.right.update(n for n in way.ours for x in fine if n != x and way.all_through(x, n))
    found.right.update(way.ends)
    found.right -= found.wrong - way.ends
    if other is None:
        _by_range(found, claims)
    return found


def near(one: Array, other: Array) -> bool:
    """The same numbers but for rounding."""
    if one.shape != other.shape or not np.isfinite(other).all():
        return False
    return bool(np.max(np.abs(one - other), initial=0.0) <= _NEAR * np.max(np.abs(one), initial=0.0))


def _pool(tape: Tape) -> dict[int, list[Array]]:
    """The numbers of every tensor of the graph that computes the claim."""
    pool: dict[int, list[Array]] = {}
    for var in tape.named.values():
        if var.size and var.dtype.kind == "f":
            pool.setdefault(var.size, []).append(np.sort(var.value, axis=None))
    return pool


def _by_name(found: Evidence, other: Tape) -> None:
    """What stands under the name of a cotangent, right or wrong."""
    way, y = found.way, found.way.tape.named[found.way.y].shape
    for name, ours in way.ours.items():
        called = next((n for n in gradient_names(name) if n in other.named), None)
        if called is None:
            continue
        value = other.named[called].value
        fits = layouts(value.shape, way.shape(name), y)
        theirs = fits[0].read(value) if fits else None
        if theirs is not None and theirs.shape == ours.shape:
            found.theirs[name] = theirs
        (found.right if theirs is not None and near(ours, theirs) else found.wrong).add(name)


def _by_range(found: Evidence, claims: Mapping[str, tuple[bool, Array | None]]) -> None:
    """Where claimed numbers stop being ones that can have come through: what is at fault lies right before that."""
    last = None
    for name in _common(found, claims):
        here = {x: n for x, (_, n) in claims.items() if n is not None and found.way.all_through(x, name)}
        fits = None if name in found.right else _came_through(found.way, name, here)
        if fits is False or name in found.right:
            found.right.add(name)
            break
        last = name if fits else last
    if last is not None:
        found.wrong.add(last)


def _common(found: Evidence, claims: Mapping[str, tuple[bool, Array | None]]) -> Iterator[str]:
    """Tensors that all claims that are wrong go through, from x to y."""
    wrong = [x for x, (right, numbers) in claims.items() if not right and x in found.way.ours]
    names = dict.fromkeys(n for block in found.way.blocks for n in block.outputs)
    return (n for n in names if wrong and all(found.way.all_through(x, n) for x in wrong))


def _came_through(way: Way, name: str, claims: Mapping[str, Array]) -> bool | None:
    """Whether some cotangent of a tensor gives the claimed numbers; None where any numbers would do."""
    numbers = np.concatenate([*claims.values()]) if claims else np.zeros((0, 1))
    if not numbers.any() or not np.isfinite(numbers).all() or numbers.size * way.tape.named[name].size > _MOST_EVIDENCE:
        return None
    jacobian = jacobian_between(way.tape, [*claims], name)
    cotangent, _, rank, _ = np.linalg.lstsq(jacobian, numbers, rcond=1e-9)
    left = float(np.linalg.norm(jacobian @ cotangent - numbers)) / float(np.linalg.norm(numbers))
    return None if rank == len(numbers) else left <= _LEFT
