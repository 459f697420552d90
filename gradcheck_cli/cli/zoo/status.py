"""`gradcheck zoo status RUN` shows the state and results of a run; without RUN it lists all runs."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rich_click as click

from gradcheck_cli.cli.options import COLOR, TEXT_OR_JSON
from gradcheck_cli.cli.reproduce import quoted
from gradcheck_cli.cli.zoo.results import FinishedJobs, Results
from gradcheck_cli.cli.zoo.start import HOME, SHOW
from gradcheck_cli.errors import NothingChecked
from gradcheck_cli.report.text import cut, name, table
from gradcheck_cli.report.zoo_summary import passed
from gradcheck_cli.results.record import OUTCOMES
from gradcheck_cli.zoo.store import About, holder, is_run, read_about

RUN = click.RichArgument(["folder"], metavar="[RUN]", required=False, type=click.Path())


@click.command("status", params=[RUN, SHOW, TEXT_OR_JSON, COLOR])
def status(folder: str | None, **options: Any) -> int:
    """Show how far a run is and what it has found, now or after it; without RUN, the runs in .gradcheck/zoo.

    It exits with 0, whatever was found.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if folder is None:
        _show_runs(given)
    else:
        _show_run(folder, given)
    return 0


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of a run at this moment."""

    folder: Path
    about: About
    found: FinishedJobs
    holder: str  # the process that runs it now

    @classmethod
    def of(cls, folder: Path, results: Results) -> RunState:
        about = read_about(folder)
        return cls(folder, about, FinishedJobs(folder, about.jobs, results.baseline), holder(folder))

    @property
    def state(self) -> str:
        if self.holder:
            return "running"
        return "finished" if len(self.found.lines) >= len(self.about.jobs) else "interrupted"

    @property
    def progress(self) -> str:
        return f"{len(self.found.lines)}/{len(self.about.jobs)}"

    @property
    def failing(self) -> int:
        return sum(not passed(group.checks) for group in self.found.groups)

    def as_json(self) -> dict[str, Any]:
        """The state as JSON, for scripts."""
        report = self.found.report(OUTCOMES, 0.0)
        return {
            "run": str(self.folder), "state": self.state, "sources": list(self.about.sources), "shard": self.about.shard,
            "version": self.about.version, "created": self.about.created, "jobs": len(self.about.jobs),
            "done": len(self.found.lines), "failing": self.failing, "exit_code": report.exit_code,
            "statuses": dict(sorted(Counter(check.status for check in self.found.outcomes).items())),
        }  # fmt: skip


def _show_run(folder: str, options: Mapping[str, Any]) -> None:
    """Prints the state of a run, and its results."""
    results = Results(Path(folder), options)
    look = RunState.of(Path(folder), results)
    if options["output_format"] == "json":
        _write(json.dumps(look.as_json(), indent=2) + "\n")
        return
    state = f"{look.state} ({look.holder})" if look.holder else look.state
    _write(f"{name(folder)}  {state}, {look.progress} checks\n")
    about = look.about
    shard = f"shard {about.shard} of " if about.shard else ""
    _write(cut(f"  {shard}{name(' '.join(about.sources))}", results.output.style.width) + "\n")
    _write(f"  gradcheck {about.version}, {about.created}\n")
    if look.state == "interrupted":
        _write(f"  to go on: gradcheck zoo resume {quoted(folder)}\n")
    _write("\n")
    results.show(look.found)


def _show_runs(options: Mapping[str, Any]) -> None:
    """Prints a table of the runs in `.gradcheck/zoo`."""
    results = Results(Path(HOME), options)
    names = sorted(os.listdir(HOME)) if os.path.isdir(HOME) else []
    looks = [RunState.of(Path(HOME, each), results) for each in names if is_run(os.path.join(HOME, each))]
    if not looks:
        raise NothingChecked(f"there is no run in {HOME}; gradcheck zoo SRC begins one")
    if options["output_format"] == "json":
        _write(json.dumps([look.as_json() for look in looks], indent=2) + "\n")
        return
    rows = [("run", "done", "failing", "")]
    rows += [(name(str(look.folder)), look.progress, str(look.failing), look.state) for look in looks]
    _write("\n".join(table(rows, "<>><")) + "\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
