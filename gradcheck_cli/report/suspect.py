"""The suspect, as people read of it: the node, its worst element, what its gradient looks like, and the other nodes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from gradcheck_cli.report.text import Style, count, name, shape, short
from gradcheck_cli.results.record import Suspect

_INDENT = " " * 13


def suspect_lines(suspect: Suspect, style: Style) -> Iterator[str]:
    """The node whose own gradient is wrong, and how that is known."""
    label = f" {name(suspect.name)!r}" if suspect.name else ""
    flow = f"{', '.join(map(name, suspect.inputs))} -> {', '.join(map(name, suspect.outputs))}"
    yield f"  suspect    node {suspect.node}  {name(suspect.op)}{label}{f'  {flow}' if suspect.inputs else ''}"
    yield from (_INDENT + fact for fact in _own(suspect))
    for sentence in (suspect.diagnosis, *_others(suspect), _unchecked(suspect)):
        yield from textwrap.wrap(
            name(sentence), max(style.width, 40), initial_indent=_INDENT, subsequent_indent=_INDENT,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip


def evidence(suspect: Suspect) -> Iterator[str]:
    """How it is known that this node is at fault, a sentence each."""
    yield from _own(suspect)
    yield from _others(suspect)
    yield from filter(None, [_unchecked(suspect)])


def _own(suspect: Suspect) -> Iterator[str]:
    """Where the node stands, and how it fares on its own."""
    if suspect.inside:
        yield f"in the {name(suspect.inside)}"
    if suspect.part_of:
        yield f"which {name(suspect.part_of)} is composed of"
    if suspect.rel_err == suspect.rel_err and suspect.at:
        place = shape(suspect.index) if suspect.index else ""
        yield f"fails on its own: max rel err {short(suspect.rel_err)} at {name(suspect.at)}{place}"


def _others(suspect: Suspect) -> Iterator[str]:
    """How the other nodes fare."""
    failed = suspect.tried - suspect.passed
    if failed > 1:
        more = [*suspect.others, *([count(left, "more node")] if (left := failed - 1 - len(suspect.others)) else [])]
        yield f"{_listed(more)} {'fails' if failed == 2 else 'fail'} on {'its' if failed == 2 else 'their'} own as well"
        if suspect.passed:
            yield f"{count(suspect.passed, 'other node')} on the way {_pass(suspect.passed)}"
    elif suspect.unchecked and suspect.passed:
        yield f"{suspect.passed} of the {suspect.before + suspect.after} other nodes on the way {_pass(suspect.passed)}"
    elif suspect.before + suspect.after:
        yield f"{_around(suspect)} {_pass(suspect.before + suspect.after)}"


def _around(suspect: Suspect) -> str:
    """The 13 nodes before it and the 46 after it."""
    sides = [(number, side) for number, side in ((suspect.before, "before"), (suspect.after, "after")) if number]
    first, *second = [f"the {'node' if number == 1 else f'{number} nodes'} {side} it" for number, side in sides]
    return " and ".join([first, *(text.replace(" nodes", "") for text in second)])


def _pass(number: int) -> str:
    return "passes on its own" if number == 1 else "pass on their own"


def _unchecked(suspect: Suspect) -> str:
    whose = "its" if suspect.unchecked == 1 else "their"
    return f"{count(suspect.unchecked, 'node')} could not be checked on {whose} own" if suspect.unchecked else ""


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
