"""A report to look at: a folder of pages that needs neither script nor inline style, or one page that holds it all.

In a notebook records and models are parts of its page: without script, and in the notebook's own ink, light or dark.

Pages are jinja2 templates; pictures are those of `--plot`, of checks that kept the data for them.  A folder is replaced
as a whole or not at all, and never one that holds anybody else's files.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from importlib.util import find_spec

from gradcheck_cli.errors import UsageError
from gradcheck_cli.report.text import Style
from gradcheck_cli.results.display import as_html
from gradcheck_cli.results.record import Report
from gradcheck_cli.results.typed import Displayed


def document(report: Report, style: Style) -> str:
    """The report as one page, complete in itself."""
    from gradcheck_cli.report.html.site import single

    return single(report)


def write_folder(report: Report, path: str) -> None:
    """The report as a folder of pages, which takes the place of an earlier one; OSError where that cannot be."""
    from gradcheck_cli.report.html.site import folder

    if reason := refusal(path):
        raise UsageError(f"--report {path} cannot be written: {reason}")
    replace(path, folder(report))


@as_html.register
def in_notebook(thing: Displayed) -> str | None:
    """A record or a model as a part of a notebook; None, and so its repr, where jinja2 is not installed."""
    if find_spec("jinja2") is None:
        return None
    from gradcheck_cli.report.html.site import fragment

    return fragment(thing)


_OURS = b'<meta name="generator" content="gradcheck '
_HEAD = 2000  # bytes of a page in which that stands


def refusal(path: str) -> str:
    """The reason why a report cannot go to a folder; empty if it can, so far as one can know before."""
    target = os.path.realpath(path)
    parent = os.path.dirname(target)
    if not os.path.isdir(parent):
        return f"there is no folder {parent!r}"
    if os.path.lexists(target) and not os.path.isdir(target):
        return "it is a file"
    if os.path.ismount(target):
        return f"it is mounted and cannot be replaced as a whole; give a folder in it: {os.path.join(target, 'report', '')}"
    if os.path.commonpath([target, os.getcwd()]) == target:
        return "it is the working folder, or around it; give a folder in it"
    if os.path.isdir(target) and not _is_ours(target):
        return "it holds other files, which a report would replace; give a new folder, or an empty one"
    return "" if os.access(parent, os.W_OK | os.X_OK) else f"{parent!r} cannot be written"


def replace(path: str, files: Iterable[tuple[str, bytes]]) -> None:
    """Makes a folder of files, by their names in it: written beside it, then put in its place."""
    target = os.path.realpath(path)
    written = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.{os.getpid()}")
    new, old = f"{written}.tmp", f"{written}.old"
    try:
        for name, data in files:
            place = os.path.join(new, name)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place, "wb") as file:
                file.write(data)
        _swap(new, target, old)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _swap(new: str, target: str, old: str) -> None:
    """Puts a folder in the place of another, which comes back if that fails."""
    if not os.path.isdir(target):
        return os.rename(new, target)
    os.rename(target, old)
    try:
        os.rename(new, target)
    except BaseException:  # Ctrl-C too
        os.rename(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)
    return None


def _is_ours(folder: str) -> bool:
    """True if a folder is empty, or an earlier report."""
    if not os.listdir(folder):
        return True
    try:
        with open(os.path.join(folder, "index.html"), "rb") as file:
            return _OURS in file.read(_HEAD)
    except OSError:
        return False
