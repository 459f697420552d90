"""One line a check: `net.onnx: d loss/d input: FAIL GC101 6/192 entries differ, max rel err 1.0e+00`."""

from __future__ import annotations

from gradcheck_cli.report.findings import forward_text
from gradcheck_cli.report.full import (
    compared,
    ended,
    expectation,
    given_by,
    headline,
    said_of,
    share_compared,
    totals,
)
from gradcheck_cli.report.health import gate_text
from gradcheck_cli.report.text import Style, name, paint, seconds, short, without_excerpt
from gradcheck_cli.results.record import Check, Report


def section(checks: tuple[Check, ...], style: Style) -> str:
    """The lines of one check; passing ones are left out if `style` is quiet."""
    shown = [c for c in checks if style.verbosity >= 0 or not c.passes]
    return "".join(f"{line(c, style)}\n" for c in shown)


def summary(report: Report, style: Style) -> str:
    """How many checks ended how."""
    return f"{totals(report)} in {seconds(report.duration_s)}\n"


def line(check: Check, style: Style) -> str:
    """One check on one line."""
    word, color, rest = said_of(check)
    code = f" {check.code}" if check.code and check.status != "waived" else ""
    gate = f"; {gate_text(check)}" if check.at_health else ""
    told = " ".join(filter(None, (paint(word + code, color, style.color), rest.strip(), outcome(check))))
    return f"{subject(check)}: {'; '.join(filter(None, (told + gate, forward_text(check))))}"


def subject(check: Check) -> str:
    """net.onnx: d loss/d input."""
    pair = f": {'/'.join(map(name, check.derivative))}{given_by(check)}" if check.x or check.y else ""
    return f"{name(check.check)}{pair}"


def outcome(check: Check) -> str:
    """What happened, on one line."""
    return "; ".join(filter(None, (_found(check), ended(check))))


def _found(check: Check) -> str:
    if check.status == "waived":
        return expectation(check)
    if check.message:
        return name("  ".join(without_excerpt(check.message.removeprefix(f"{check.code}: "))))
    if check.nodes and check.status == "fail":
        return f"{headline(check)}, max rel err {short(check.max_rel_err)}"
    if check.nodes and check.status == "pass":
        return f"{share_compared(check)}, max rel err {short(check.max_rel_err)}"
    checked, failed = check.entries.get("checked", 0), check.entries.get("failed", 0)
    if check.status == "fail":
        return f"{failed}/{checked} {compared(check)} differ, max rel err {short(check.max_rel_err)}"
    if check.status == "inconclusive":
        return f"{check.entries.get('inconclusive', 0)}/{checked} {compared(check)} cannot be judged"
    return f"{checked} {compared(check, checked)}, max rel err {short(check.max_rel_err)}"
