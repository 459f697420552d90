"""Notes of checks that passed which are shown without being asked for.

Most of what there is to say of a check that passed stands in its row, or in a line below the table.  What does not may
change what the reader makes of it, and is never left to `-v`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from gradcheck_cli.report.text import Style, count, name
from gradcheck_cli.results.record import Check

_SHOWN = 5  # of one table
_LABEL = "  note       "
_ELSEWHERE = re.compile(  # by the line on what was given, by the header, by the last lines, or by whoever asked for it
    r"by their names |differences instead of the complex step|as in TensorFlow: |values of .* for "
    r"|--straight-through has no effect",
    re.DOTALL,
)
_IN_ROW = re.compile(  # (4 at a kink; 2 of 16 not judged: jump)
    r"\d+ entr(y|ies) at a tie of |and ties of \d+ nodes more|\d+ entr(y|ies) open(, since| for) "
    r"|\d+ of \d+ entries of y (is|are) not finite and left out"
)
_TOLERATED = re.compile(r"\d+ rows? perturbed across a branch of ")  # the entries agree all the same


def remarks(check: Check) -> list[str]:
    """The notes of a check that passed, but for what is said elsewhere."""
    if check.status != "pass":
        return []
    quiet = (_ELSEWHERE, _TOLERATED, *(() if check.nodes else (_IN_ROW,)))  # a row of nodes counts no entries
    return [note for note in check.remarks if not any(each.match(note) for each in quiet)]


def remark_lines(checks: Sequence[Check], style: Style) -> Iterator[str]:
    """A sentence for each different note of some checks, with the derivative that it is about if there are several."""
    if style.verbosity > 0:  # each stands with its check
        return
    about: dict[str, list[Check]] = {}
    for check in checks:
        for note in remarks(check):
            about.setdefault(note, []).append(check)
    for note, some in [*about.items()][:_SHOWN]:
        pair = "" if len(some) == len(checks) else f"{' / '.join(map(name, some[0].derivative))}: "
        yield from textwrap.wrap(
            f"{pair}{name(note)}", style.width, initial_indent=_LABEL, subsequent_indent=" " * len(_LABEL),
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    if len(about) > _SHOWN:
        yield f"{_LABEL}{count(len(about) - _SHOWN, 'more note')}: see -v"
