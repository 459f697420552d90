"""Sentences below a table: notes, gradients of others, branches, the forward run, and errors that would have been missed.

Most facts about a check that passed stand in its row.  The others may change what the reader makes of it, and are never
left to `-v`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gradcheck_cli.errors import clean, counted, listed, plural
from gradcheck_cli.report.concise import CODE, WORD, as_expected
from gradcheck_cli.report.health import health_lines
from gradcheck_cli.report.text import Style, cut, linked, name, opened, percent, short, wrapped
from gradcheck_cli.results.record import BranchCounts, Check

_SHOWN = 5  # of one table
_LABEL, _SPACE = "  note       ", " " * 13
_ELSEWHERE = re.compile(  # by the line on what was given, by the header, by the last lines, or by whoever asked for it
    r"by their names |differences instead of the complex step|as in TensorFlow: |values of .* for "
    r"|--straight-through has no effect",
    re.DOTALL,
)
_IN_ROW = re.compile(  # (4 at a kink; 2 of 16 not judged: jump)
    r"\d+ entr(y|ies) at a tie of |and ties of \d+ nodes more|\d+ entr(y|ies) not judged(, since| because of) "
    r"|\d+ of \d+ entries of y (is|are) not finite and left out"
)
_TOLERATED = re.compile(r"\d+ rows? perturbed across a branch of ")  # the entries agree all the same
_TRIED = 10  # points, suggested where one left a branch out
_GIVEN = 3  # of others' gradients that are named
_LONGEST = 240  # characters of what another runtime says of a model it does not take
_PREFIX = re.compile(
    r"^onnxruntime \S*: \w+: (\[ONNXRuntimeError\] : \d+ : \w+ : )?(Load model from .{1,200}? failed: ?)?"
)
_NAMES = {"nodes": "node by node", "directional": "random projections", "sampled": "drawn entries"}
_SAID = {
    **{mode: {"missed_below", "probability", "of"} for mode in ("nodes", "directional")},
    "sampled": {"confidence", "bad_fraction"},
}


def lines_below(checks: Sequence[Check], style: Style) -> Iterator[str]:
    """The lines right below a table."""
    yield from _claims(checks, style)
    yield from power_lines(checks, style)
    yield from health_lines(checks, style)
    yield from _uncovered(checks, style)
    yield from _ranges(checks, style)
    yield from remark_lines(checks, style)
    yield from _refusals(checks, style)


def remarks(check: Check) -> list[str]:
    """The notes of a check that passed, but for those that are said elsewhere."""
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
        yield from wrapped(f"{pair}{name(note)}", style.width, _LABEL, _SPACE)
    if len(about) > _SHOWN:
        yield f"{_LABEL}{counted(len(about) - _SHOWN, 'more note')}: see -v"


def _claims(checks: Sequence[Check], style: Style) -> Iterator[str]:
    """Gradients that are not gradcheck's own, and what they are derivatives of."""
    groups: dict[tuple[str, str], list[str]] = {}
    for claim in (c.claim for c in checks if c.claim):
        seed = claim.get("seed", "")
        how = f"gradient of y: {name(seed)}" if seed else f"whole Jacobians, {name(claim.get('layout', ''))}"
        groups.setdefault((claim["kind"], how), []).append(name(claim["by"]))
    for (kind, how), names in groups.items():
        text = f"by {plural(len(names), kind)} {listed(names, _GIVEN)}; {how}"
        yield from wrapped(text, style.width, "  given      ", _SPACE)


def _uncovered(checks: Sequence[Check], style: Style) -> Iterator[str]:
    """A line on branches of the model that were not taken, by the row that has most of them."""
    most = max((c.branches for c in checks if c.missed), key=lambda b: b["total"] - b["covered"], default=None)
    if most is not None:
        left = most["total"] - most["covered"]
        sides = plural(most["total"], "side")
        text = f"{left} of {most['total']}{_of_operator(most)} {sides} never taken: try --points {_TRIED}"
        yield from wrapped(text, style.width, "  branches   ", _SPACE)


def _of_operator(branches: BranchCounts) -> str:
    """The operator whose sides were missed, where all that are named are of one."""
    operators = {found[1] for each in branches["missed"] if (found := re.match(r"node \d+ (\S+)", each))}
    return f" {name(operators.pop())}" if len(operators) == 1 else ""


def _ranges(checks: Sequence[Check], style: Style) -> Iterator[str]:
    """The values that piecewise nodes between x and y read, each node once; with `-v` only."""
    for read in dict.fromkeys(read for c in checks for read in c.branches.get("ranges", ()) if style.verbosity > 0):
        yield from wrapped(name(read), style.width, "  values     ", _SPACE)


def forward_lines(checks: Sequence[Check], style: Style) -> Iterator[str]:
    """A paragraph for each y whose forward run differs."""
    for text, color in dict.fromkeys(_paragraph(check) for check in checks):
        yield from (linked(line, style.links) for line in opened(text, WORD, color, style))


def _refusals(checks: Sequence[Check], style: Style) -> Iterator[str]:
    """A line that onnxruntime does not take the model, and why."""
    for text in dict.fromkeys(_refusal(check) for check in checks if check.forward.get("refused")):
        yield from wrapped(text, style.width, "  forward    ", _SPACE)


def held_against(check: Check) -> str:
    """A sentence on what the forward run was compared with."""
    if other := check.forward.get("compared_with"):
        errors = (check.forward.get("max_abs_err"), check.forward.get("max_rel_err"))
        absolute, relative = (short(value) if isinstance(value, float) else "-" for value in errors)
        said = "" if check.forward.get("agrees") is False else name(check.forward.get("reason", ""))
        told = f"compared with {name(other)}: max abs err {absolute}, max rel err {relative}"
        return f"{told}; {said}" if said else told
    return f"not compared with onnxruntime: {name(check.forward.get('reason', ''))}"


def _paragraph(check: Check) -> tuple[str, str]:
    """The paragraph on the forward run of one record, and its color."""
    if check.forward.get("agrees") is not False:
        return "", ""
    if check.forward_differs:
        return f"{WORD} {CODE}  {clean(check.forward.get('reason', ''))}", "red"
    if check.waiver is None:  # another outcome of the pair fails the run
        return f"{WORD}  {clean(check.forward.get('reason', ''))}", "yellow"
    return f"{WORD}, {as_expected(check.waiver)}", "yellow"


def _refusal(check: Check) -> str:
    if check.forward.get("agrees") is False:  # from what ships with the model: then that is what there is to say
        return "onnxruntime does not run this model"
    said = cut(_PREFIX.sub("", name(check.forward.get("reason", ""))), _LONGEST)
    return f"onnxruntime does not run this model, nothing is compared with it: {said}"


def power_lines(checks: Sequence[Check], style: Style) -> Iterator[str]:
    """A sentence for each mode but the full one that some of the checks were done in."""
    for mode in _NAMES:
        some = [check for check in checks if check.mode == mode and (check.status != "fail" or check.chosen)]
        if some:
            yield from wrapped(_sentence(mode, some), style.width, "")
    hidden = [check for check in checks if check.mode == "full" and check.status == "pass" and "of" in check.power]
    if hidden:  # another evaluator of y rounds
        worst = max(hidden, key=_weakness)
        size, of = f"{worst.power['missed_below']:.0e}", name(worst.power["of"])
        text = f"in {name(worst.source)} hides errors up to {size} of {of}"
        yield from wrapped(text, style.width, "  rounding   ", _SPACE)


def _sentence(mode: str, checks: Sequence[Check]) -> str:
    reasons = [check.chosen for check in checks if check.chosen]
    more = f" (and {counted(len(reasons) - 1, 'more pair')} as large)" if len(reasons) > 1 else ""
    why = f", since {name(reasons[0])}{more}" if reasons else ""
    right = [c for c in checks if c.status != "fail" and c.power.keys() >= _SAID[mode]]  # what failed missed nothing
    return f"{_NAMES[mode]}{why}" + (f": {_missed(mode, max(right, key=_weakness))}" if right else "")


def _weakness(check: Check) -> float:
    """The size of error, or share of entries, that a check may have missed."""
    return float(check.power.get("bad_fraction", check.power.get("missed_below", 0.0)))


def _missed(mode: str, check: Check) -> str:
    power = check.power
    if mode == "sampled":
        lines = power.get("bad_fraction_of_lines")
        whole = f"; {percent(lines)} where errors fill whole rows or columns" if lines else ""
        sure, share = percent(power["confidence"]), percent(power["bad_fraction"])
        drawn = check.entries.get("checked", 0)
        return f"if none of {drawn} is wrong, at most {share} of all are ({sure} confidence{whole})"
    of = "the Jacobian's norm" if power.get("of") == "norm" else f"the {name(power['of'])}"
    return (
        f"an error of {power['missed_below']:.0e} of {of} is missed with a probability of at most "
        f"{percent(power['probability'])}"
    )
