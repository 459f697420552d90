"""A report to look at: a folder of pages that needs neither script nor inline style, or one page that holds it all.

Pages are jinja2 templates; pictures are those of `--plot`, and only of what kept what they are drawn from.
"""

from __future__ import annotations

from importlib.util import find_spec

from gradcheck_cli.errors import UsageError
from gradcheck_cli.report.text import Style
from gradcheck_cli.results.record import Report


def require_jinja() -> None:
    """UsageError where what reports are made with is not installed."""
    if missing := [module for module in ("jinja2", "matplotlib") if find_spec(module) is None]:
        raise UsageError(
            f"a report in HTML needs {' and '.join(missing)}: python -m pip install 'gradcheck-cli[report]'"
        )


def document(report: Report, style: Style) -> str:
    """The report as one page, complete in itself."""
    require_jinja()
    from gradcheck_cli.report.html.site import single

    return single(report)


def write_folder(report: Report, path: str) -> None:
    """The report as a folder of pages, which takes the place of an earlier one; OSError where that cannot be."""
    require_jinja()
    from gradcheck_cli.report.html.folder import refusal, replace
    from gradcheck_cli.report.html.site import folder

    if reason := refusal(path):
        raise UsageError(f"--report {path} cannot be written: {reason}")
    replace(path, folder(report))
