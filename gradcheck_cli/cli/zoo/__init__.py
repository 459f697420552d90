"""`gradcheck zoo`: its subcommands, imported when they run; an argument that names none of them is a source of models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import rich_click as click

from gradcheck_cli.cli.group import Commands


class ZooCommands(Commands):
    """The group of zoo commands: `gradcheck zoo models/` checks models, `gradcheck zoo status RUN` shows a run."""

    homes: ClassVar[Mapping[str, str]] = {
        "run": "start:run", "status": "past_runs:status", "resume": "start:resume", "report": "past_runs:report",
        "diff": "changes:diff", "merge": "past_runs:merge",
    }  # fmt: skip
    unnamed, modules = "run", "gradcheck_cli.cli.zoo."


@click.group(
    "zoo",
    cls=ZooCommands,
    options_metavar="",
    subcommand_metavar="SRC... [OPTIONS] | COMMAND ...",
    epilog="`gradcheck zoo run --help` lists the options of a run.",
)
def command() -> None:
    """Check many models, each alone in a process; resume a run, show its results, compare it with another.

    `gradcheck zoo models/ --report zoo.html` checks all models in a folder; the same command resumes it after an
    interruption.  A source with the name of a command is written ./status.

    A model is one file, or one check of a spec or list; a check is one pair of it: the derivative of one y with respect
    to one x.  "in 12s" is the time of the command by the clock, "in 48s of checks" the sum of what the checks took, of
    which several may have run at once.  CPU time is not measured.
    """
