"""One line a check: `net.onnx: d loss/d input: FAIL GC101 6/192 entries differ, max rel err 1.0e+00`."""

from __future__ import annotations

from gradcheck_cli.record import Check, Report
from gradcheck_cli.report.full import VERDICTS, compared, expectation, totals
from gradcheck_cli.report.text import Style, name, paint, seconds, short


def section(checks: tuple[Check, ...], style: Style) -> str:
    """The lines of one check; passing ones are left out if `style` is quiet."""
    shown = [c for c in checks if style.verbosity >= 0 or c.status not in ("pass", "waived")]
    return "".join(f"{line(c, style)}\n" for c in shown)


def summary(report: Report, style: Style) -> str:
    """How many checks ended how."""
    return f"{totals(report)} in {seconds(report.duration_s)}\n"


def line(check: Check, style: Style) -> str:
    """One check on one line."""
    word, color = VERDICTS[check.status]
    code = f" {check.code}" if check.code and check.status != "waived" else ""
    return f"{subject(check)}: {paint(word + code, color, style.color)} {outcome(check)}".rstrip()


def subject(check: Check) -> str:
    """net.onnx: d loss/d input."""
    pair = f": d {name(check.y)}/d {name(check.x)}" if check.x or check.y else ""
    return f"{name(check.check)}{pair}"


def outcome(check: Check) -> str:
    """What happened, on one line."""
    if check.status == "waived":
        return expectation(check)
    if check.message:
        return name(check.message.removeprefix(f"{check.code}: ").replace("\n", "  "))
    checked, failed = check.entries.get("checked", 0), check.entries.get("failed", 0)
    if check.status == "fail":
        return f"{failed}/{checked} {compared(check)} differ, max rel err {short(check.max_rel_err)}"
    if check.status == "inconclusive":
        return f"{check.entries.get('inconclusive', 0)}/{checked} {compared(check)} cannot be judged"
    return f"{checked} {compared(check)}, max rel err {short(check.max_rel_err)}"
