"""Runs of a zoo that were done: `gradcheck zoo status`, `gradcheck zoo report`, and `gradcheck zoo merge`."""

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

from gradcheck_cli.cli import note
from gradcheck_cli.cli.options import COLOR, TEXT_OR_JSON, completing, given_in
from gradcheck_cli.cli.output import fitted
from gradcheck_cli.cli.report import PARAMS
from gradcheck_cli.cli.report import run as show_results
from gradcheck_cli.cli.zoo.results import FinishedJobs, Results
from gradcheck_cli.cli.zoo.start import HOME, SHOW
from gradcheck_cli.errors import NothingChecked, UsageError, counted, harmless, quoted
from gradcheck_cli.report.text import AS_JSON, name, table, wrapped
from gradcheck_cli.report.zoo_summary import passed
from gradcheck_cli.results import many
from gradcheck_cli.results.record import OUTCOMES
from gradcheck_cli.zoo.store import About, differing, holder, is_run, merged, no_run, read_about

_RUNS = completing("runs")
RUN = click.RichArgument(["folder"], metavar="[RUN]", required=False, type=click.Path(), shell_complete=_RUNS)
RUNS = click.RichArgument(
    ["results"], metavar="RUN...", nargs=-1, required=True, type=click.Path(), shell_complete=_RUNS
)


@click.command("report", params=[RUNS, *PARAMS])
@click.pass_context
def report(ctx: click.Context, /, results: tuple[str, ...], **options: Any) -> int:
    """Show the results of runs, or turn them into other formats; several make one report, each check once.

    It exits with 0 whatever they say, unless --gate or another option of that panel asks for their verdict.
    """
    for folder in results:
        if not is_run(folder):
            raise UsageError(no_run(folder))
    with many():
        return show_results(results, given_in(ctx, options), ctx)


@click.command("merge")
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=click.Path(), shell_complete=_RUNS)
@click.option("-o", "--output", "target", metavar="RUN", required=True, type=click.Path(), help="The new run.")
def merge(folders: tuple[str, ...], target: str) -> int:
    """Put runs together, such as the shards of one, in a new folder; each model once, the last RUN's if several have it."""
    runs = [Path(folder) for folder in folders]
    if difference := differing(runs):
        note(difference)
    about = merged(runs, Path(target))
    FinishedJobs.of_run(Path(target)).tell_unfinished()
    sys.stdout.write(harmless(f"{name(target)}: {counted(len(about.jobs), 'model')} of {counted(len(runs), 'run')}\n"))
    return 0


@click.command("status", params=[RUN, SHOW, TEXT_OR_JSON, COLOR])
def status(folder: str | None, **options: Any) -> int:
    """Show how far a run is and what it has found, now or after it; without RUN, the runs in .gradcheck/zoo.

    Counts and times are those of `gradcheck zoo`: of the JSON, `models` (or `jobs`), `done` and `failing` count models,
    `checks` and `statuses` count checks, and `seconds` are those that the checks took.  It exits with 0, whatever was
    found.
    """
    given = {name: value for name, value in options.items() if value is not None}
    with many():
        if folder is None:
            _show_runs(given)
        else:
            _show_run(folder, given)
    return 0


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of a run at this moment; `holder` is the process that runs it now, if any."""

    folder: Path
    about: About
    found: FinishedJobs
    holder: str

    @classmethod
    def of(cls, folder: Path) -> RunState:
        return cls(folder, read_about(folder), FinishedJobs.of_run(folder), holder(folder))

    @property
    def state(self) -> str:
        if self.holder:
            return "running"
        return "interrupted" if self.found.unfinished else "finished"

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
            "models": len(self.about.jobs), "checks": len(self.found.outcomes), "seconds": round(self.found.seconds, 3),
            "statuses": dict(sorted(Counter(check.status for check in self.found.outcomes).items())),
        }  # fmt: skip


def _show_run(folder: str, options: Mapping[str, Any]) -> None:
    """Prints the state of a run, and its results."""
    results = Results(Path(folder), options)
    run = RunState.of(Path(folder))
    if options["output_format"] == "json":
        sys.stdout.write(harmless(json.dumps(run.as_json(), indent=2), *AS_JSON) + "\n")
        return
    state = f"{run.state} ({run.holder})" if run.holder else run.state
    shard = f"shard {run.about.shard} of " if run.about.shard else ""
    again = f"  {run.found.unfinished}\n  to go on: gradcheck zoo resume {quoted(folder)}\n"
    again = again if run.state == "interrupted" else ""
    results.output.put(
        fitted([f"{name(folder)}  {state}, {run.progress} models"])
        + "\n"
        + "\n".join(
            wrapped(f"{name(shard)}{name(' '.join(run.about.sources))}", results.output.style.width, "  ", "    ")
        )
        + f"\n  gradcheck {name(run.about.version)}, {name(run.about.created)}\n{again}\n"
    )
    results.show(run.found)


def _show_runs(options: Mapping[str, Any]) -> None:
    """Prints a table of the runs in `.gradcheck/zoo`."""
    results = Results(Path(HOME), options)
    folders = [Path(HOME, each) for each in (sorted(os.listdir(HOME)) if os.path.isdir(HOME) else [])]
    runs = [RunState.of(folder) for folder in folders if is_run(folder)]
    if not runs:
        raise NothingChecked(f"there is no run in {HOME}; gradcheck zoo SRC begins one")
    if options["output_format"] == "json":
        sys.stdout.write(harmless(json.dumps([run.as_json() for run in runs], indent=2), *AS_JSON) + "\n")
        return
    rows = [(name(str(run.folder)), run.progress, str(run.failing), run.state) for run in runs]
    width = results.output.style.width
    sys.stdout.write(harmless("\n".join(table([("run", "done", "failing", ""), *rows], "<>><", (), width)) + "\n"))
