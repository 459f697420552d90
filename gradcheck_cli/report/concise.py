"""One line a check: `net.onnx: d loss/d input: FAIL GC101 6/192 entries differ, max rel err 1.0e+00`.

The words that say on one line what became of a check, for every format, are here as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gradcheck_cli.errors import counted, listed, plural
from gradcheck_cli.report.health import gate_text
from gradcheck_cli.report.text import (
    Style,
    linked,
    name,
    paint,
    percent,
    place,
    rough,
    short,
    took,
    without_excerpt,
)
from gradcheck_cli.results.record import ENTRY_REASONS, OUTCOMES, Check, Report, Waiver

WORD, CODE = "FORWARD DIFFERS", "GC404"
_VERDICTS = {
    "pass": ("PASS", "green"), "waived": ("KNOWN FAILURE", "yellow"), "fail": ("FAIL", "red"),
    "severed": ("NO GRADIENT", "red"), "inconclusive": ("INCONCLUSIVE", "yellow"), "error": ("ERROR", "red"),
    "unsupported": ("UNSUPPORTED", "yellow"), "limit": ("LIMIT", "yellow"),
}  # fmt: skip
LEVELS = {  # of findings, where a service tells errors from warnings
    **dict.fromkeys(("fail", "severed", "error", "limit"), "error"),
    **dict.fromkeys(("inconclusive", "unsupported"), "warning"),
}
COUNTED = {
    "pass": "passed", "waived": "known failures", "fail": "failed", "severed": "severed", "inconclusive": "inconclusive",
    "unsupported": "unsupported", "limit": "over a limit", "error": "errors",
}  # fmt: skip
_WHY = {reason: reason for reason in ENTRY_REASONS} | {
    "noise": "noise (uncertainty too large)", "left_out": "y is not finite",
}  # fmt: skip


def section(checks: tuple[Check, ...], style: Style) -> str:
    """The lines of one check; passing ones are left out if `style` is quiet."""
    return "".join(f"{line(c, style)}\n" for c in checks if style.verbosity >= 0 or not c.passes)


def summary(report: Report, style: Style) -> str:
    """The last line: numbers of checks by outcome."""
    return f"{totals(report)} {took(report)}\n"


def line(check: Check, style: Style) -> str:
    """The line of one check."""
    word, color, rest = said_of(check)
    code = f" {check.code}" if check.code and (check.status != "waived" or check.ignored) else ""
    verdict = linked(paint(word + code, color, style.color), style.links)
    told = " ".join(filter(None, (verdict, rest.strip(), outcome(check))))
    return f"{_where(check)}{subject(check)}: {'; '.join(filter(None, (told, gate_text(check), forward_text(check))))}"


def _where(check: Check) -> str:
    """The place of a check in its spec, "net.gradcheck.yaml:12: ", unless its message begins with that anyway."""
    path, line = place(check)
    here = f"{name(path)}:{line}:" if check.place else ""
    return "" if not here or check.message.startswith(here) else f"{here} "


def subject(check: Check) -> str:
    """The check and its derivative, net.onnx: d loss/d input."""
    return ": ".join(filter(None, (name(check.check), pair_said(check))))


def several_files(checks: Iterable[Check]) -> set[str]:
    """Names of checks that stand in several files."""
    files: dict[str, set[str]] = {}
    for check in checks:
        files.setdefault(check.check, set()).add(check.model.uri)
    return {check for check, found in files.items() if len(found) > 1}


def pair_said(check: Check, mark: str = "/") -> str:
    """The derivative, d loss/d input, and who gave it; nothing for a model that could not be read."""
    return mark.join(map(name, check.derivative)) + given_by(check) if check.x or check.y else ""


def outcome(check: Check) -> str:
    """The outcome and its numbers, on one line."""
    return "; ".join(filter(None, (_found(check), ended(check))))


def _found(check: Check) -> str:
    if check.status == "waived":
        return expectation(check)
    if check.message:
        return name("  ".join(without_excerpt(check.message.removeprefix(f"{check.code}: "))))
    if check.copy_of:
        return "no entry compared, forward run and gradient finite"
    if check.nodes and check.status in ("fail", "pass"):
        return f"{headline(check) or share_compared(check)}, max rel err {short(check.max_rel_err)}"
    checked, failed = check.entries.get("checked", 0), check.entries.get("failed", 0)
    if check.status == "fail":
        differ = plural(failed, "differs", "differ")
        return f"{failed}/{checked} {compared(check, checked)} {differ}, max rel err {short(check.max_rel_err)}"
    if check.status == "inconclusive":
        return f"{check.entries.get('inconclusive', 0)}/{checked} {compared(check, checked)} cannot be judged"
    every = f"{checked} {compared(check, checked)}"
    return (
        every if check.zero_everywhere and not check.max_rel_err else f"{every}, max rel err {short(check.max_rel_err)}"
    )


def headline(check: Check) -> str:
    """The reason for a verdict in a few words."""
    if check.status == "waived":
        return expectation(check)
    if check.message:
        return check.message.removeprefix(f"{check.code}: ").strip()
    if check.status == "fail" and check.nodes.get("failed"):
        failed, every = check.nodes["failed"], counted(check.nodes["checked"], "node")
        return f"{failed} of {every} {plural(failed, 'fails on its', 'fail on their')} own"
    checked = check.entries.get("checked", 0)
    number = check.entries.get("failed" if check.status == "fail" else "inconclusive", 0)
    share = f" ({percent(number / checked)})" if checked else ""
    what = {"fail": plural(number, "differs", "differ"), "inconclusive": "cannot be judged"}.get(check.status)
    return f"{number} of {checked} {compared(check, checked)} {what}{share}" if what else ""


def compared(check: Check, number: int) -> str:
    """The word for what was compared: entries of the Jacobian, or random projections of it; in the singular for one."""
    return plural(number, "projection" if check.mode in ("directional", "nodes") else "entry")


def mode_said(check: Check) -> str:
    """The mode, explained where the word is not a usual one: directional (random projections)."""
    return f"{check.mode} (random projections)" if check.mode == "directional" else check.mode


def share_compared(check: Check) -> str:
    """The share that was compared: 192/192; of nodes on their own 59/61 nodes."""
    if check.nodes:
        return f"{check.nodes['checked']}/{check.nodes['total']} nodes"
    return f"{check.entries.get('checked', 0)}/{check.entries.get('total', 0)}"


def errors_said(check: Check) -> tuple[str, str, str]:
    """The largest errors, absolute and relative, and the noise, for the cells of a table."""
    errors = (short(check.max_abs_err), short(check.max_rel_err)) if has_error(check) else ("-", "-")
    return *errors, "-" if check.copy_of else rough(check.noise)


def has_error(check: Check) -> bool:
    """False for a gradient that is zero on both sides, which has no error to speak of, and where nothing was compared."""
    zero = check.gradient.get("zero_fraction") == 1.0 and not (check.max_abs_err or check.of_two_models)
    some = check.entries.get("checked") or check.entries.get("inconclusive") or check.nodes.get("checked")
    return bool(some) and not check.copy_of and not zero


def expectation(check: Check) -> str:
    """The terms of a waiver, fail, as expected: ACME-412 (until 2027-03-31)."""
    waiver = check.waiver or {}
    gates, status = waiver.get("gates", ()), waiver.get("status") or ""
    what = [*gates, "" if gates else name(status), "forward differs" if waiver.get("forward") else ""]
    return f"{' and '.join(filter(None, what))}, {as_expected(waiver)}"


def as_expected(waiver: Waiver) -> str:
    """The reason of a waiver and its last day: as expected: ACME-412 (until 2027-03-31)."""
    if waiver.get("ignored"):
        return name(waiver["reason"])
    until = f" (until {name(last)})" if (last := waiver.get("until")) else ""
    reason = f": {name(waiver['reason'])}" if waiver.get("reason") else ""
    return f"as expected{reason}{until}"


def ended(check: Check) -> str:
    """A remark on a waiver that is over, "was a known failure, ACME-412, until 2027-03-31", or nothing."""
    waiver = check.waiver or {}
    reason = f", {name(waiver['reason'])}," if waiver.get("reason") else ""
    return f"was a known failure{reason} until {name(waiver.get('until') or '')}" if waiver.get("ended") else ""


def said_of(check: Check) -> tuple[str, str, str]:
    """The verdict in a word, the color of the word, and a remark that stands beside it in a table."""
    word, color = _VERDICTS[check.status] if check.status != "waived" or not check.ignored else ("IGNORED", "yellow")
    if check.status != "severed":
        open_ = not_judged(check) if check.status == "pass" else ""
        copied = f"(copy of {name(check.copy_of)})" if check.copy_of else ""
        return word, color, " ".join(filter(None, (zero_said(check), open_, copied)))
    others = check.severed.others if check.severed is not None else ()
    beside = f"({name(check.x)} has one from: {listed(map(name, others), 3)})" if others else ""
    return word, color if check.gates else "yellow", beside


def zero_said(check: Check) -> str:
    """A remark on a gradient that is zero, or no larger than the errors that rounding explains."""
    if check.zero_everywhere:
        return "zero everywhere"
    judged = check.status == "pass" and check.mode == "full" and not (check.claim or check.of_two_models)
    if not judged or check.entries.get("kink_ok"):
        return ""
    largest = float(check.gradient.get("max", 0.0))
    rounded = 2 * check.max_abs_err >= largest > 0 and check.max_abs_err > check.atol + check.rtol * largest
    return "zero but for rounding" if rounded else ""


def not_judged(check: Check) -> str:
    """The entries that a check which passed did not judge: (2 at a kink; 516 of 262,144 not judged: underflow)."""
    if check.nodes or (check.of_two_models and check.mode != "full"):
        return ""
    if check.of_two_models:
        every = check.entries.get("total", 0)
        left = every - check.entries.get("checked", 0)
        return f" ({left:,} of {every:,} not judged: not finite in both)" if left else ""
    kinks, left = check.entries.get("kink_ok", 0), check.entries.get("left_out", 0)
    open_ = check.entries.get("inconclusive", 0) + left
    parts = [f"{kinks:,} at a kink"] if kinks else []
    if open_:
        reasons = sorted((r for r in _WHY if check.entries.get(r)), key=lambda r: -check.entries[r])
        told = ", ".join(_WHY[r] for r in reasons)
        every = check.entries.get("checked", 0) + left
        parts.append(f"{open_:,} of {every:,} not judged" + (f": {told}" if told else ""))
    return f" ({'; '.join(parts)})" if parts else ""


def given_by(check: Check) -> str:
    """The gradient that was judged, if it is not gradcheck's own."""
    return f" by {name(check.claim['by'])}" if check.claim else ""


def forward_text(check: Check) -> str:
    """The difference of the forward run, on one line; nothing where there is none, or where that is waived."""
    return f"{WORD} {CODE} {forward_reason(check)}" if check.forward_differs else ""


def forward_reason(check: Check) -> str:
    """The difference, and the node where it begins."""
    return name("  ".join(check.forward.get("reason", "").splitlines()))


def totals(report: Report) -> str:
    """The numbers of checks by outcome, 12 checks: 11 passed, 1 failed."""
    told = [c for c in report.outcomes if c.status != "waived" or not c.ignored]
    statuses = ["pass" if c.status == "severed" and c.passes else c.status for c in told]
    parts = [f"{counted(statuses.count(status), word.removesuffix('s'), word)}{_let_through(status, report)}"
             for status, word in COUNTED.items() if status in statuses]  # fmt: skip
    if apart := sum(c.status == "severed" and c.passes for c in report.outcomes):
        parts.insert(1, f"{apart} of them severed")
    if copies := sum(bool(c.copy_of) and c.status in ("pass", "severed") for c in report.outcomes):
        parts.insert(1, counted(copies, "of them a copy", "of them copies"))
    if differ := sum(c.forward_differs for c in report.outcomes):
        parts += [f"{counted(differ, 'forward run differs', 'forward runs differ')}{_let_through('forward', report)}"]
    if stopped := sum(bool(c.at_health) for c in report.outcomes):
        parts += [f"{stopped} stopped by the health of gradients"]
    why = [
        "ignored by --ignore" if "--ignore" in c.ignored else "not in --select" for c in report.outcomes if c.ignored
    ]
    parts += [f"{number} {words}" for words, number in Counter(why).items()]
    return f"{counted(len(report.outcomes), 'check')}: {', '.join(parts) or 'nothing to do'}"


def _let_through(outcome: str, report: Report) -> str:
    """A remark that a run does not fail for this outcome, although others fail it."""
    return ", not in --fail-on" if outcome in OUTCOMES and report.fail_on and outcome not in report.fail_on else ""
