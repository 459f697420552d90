"""The checks of one spec for a test runner: all found at first, each run when the runner asks for it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import rich_click as click
from click.exceptions import Exit

from gradcheck_cli.checks.progress import Progress
from gradcheck_cli.cli.baseline import Baseline, gates_of
from gradcheck_cli.cli.bundles import Bundles
from gradcheck_cli.cli.check import command
from gradcheck_cli.cli.checker import Checker
from gradcheck_cli.cli.config import settings_above
from gradcheck_cli.cli.options import given_in
from gradcheck_cli.cli.run import planned
from gradcheck_cli.cli.tasks import Found, Task, common_folder
from gradcheck_cli.errors import UsageError
from gradcheck_cli.native.selection import kernels
from gradcheck_cli.report import concise, full
from gradcheck_cli.report.text import Style
from gradcheck_cli.results.record import Check, Report
from gradcheck_cli.zoo import cores
from gradcheck_cli.zoo.shelf import FOLDER


class Collected:
    """The tasks of a spec and their checker; `args` are options of `gradcheck check` as one types them, and `workers`
    the processes that do the same at once."""

    def __init__(self, path: str, args: str = "", workers: int = 1) -> None:
        ctx = _context(path, shlex.split(args))
        given = given_in(ctx, {name: value for name, value in ctx.params.items() if name != "models"})
        options: Mapping[str, Any] = {**settings_above(common_folder([path]), ctx), **given}
        self.style = Style(show=options.get("show", 3), health=bool(options.get("health")))
        self.tasks: Sequence[Task] = planned(Found([path], []), options, given)
        self.checker = Checker(
            given=given,
            ctx=ctx,
            bundles=Bundles(options.get("save_failures", FOLDER)),
            progress=Progress("off", verbose=False),
            gates=gates_of(options),
            unsaid={"jobs": _threads_of_each(workers)} if workers > 1 else {},
            baseline=Baseline.of(options),
        )

    def report(self, task: Task) -> Report:
        """The report of one task."""
        return Report(self.checker.check(task), fail_on=tuple(self.checker.gates))

    def text(self, checks: Sequence[Check]) -> str:
        """The records of a task as text for people."""
        return full.section(tuple(checks), self.style).strip()

    def wrong(self, report: Report) -> str:
        """The text of a task that fails, with its worst check in the first line."""
        worst = next(check for check in report.checks if replace(report, checks=(check,)).exit_code)
        return f"{concise.line(worst, self.style)}\n\n{self.text(report.checks)}"


def _threads_of_each(workers: int) -> int:
    """The number of threads for one of several processes, which its kernels keep to as well."""
    threads = max(1, cores() // workers)
    if kernels is not None:
        kernels.set_threads(threads)
    return threads


def _context(path: str, args: Sequence[str]) -> click.Context:
    """The options as the command line reads them."""
    try:
        return command.make_context("gradcheck", [*args, "--", path])
    except click.ClickException as error:
        raise UsageError(error.format_message()) from None
    except Exit:
        raise UsageError(f"{shlex.join(args)!r} checks nothing") from None
