"""`gradcheck zoo`: its commands, imported when they run; what names none of them is a source of models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import rich_click as click

from gradcheck_cli.cli.group import Commands


class ZooCommands(Commands):
    """`gradcheck zoo models/` checks; `gradcheck zoo status RUN` and its like tell of what was found."""

    homes: ClassVar[Mapping[str, str]] = {
        "run": "start:RUN", "status": "status:status", "resume": "start:RESUME", "report": "outputs:REPORT",
        "diff": "changes:diff", "merge": "outputs:merge",
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
    """Check many models, each in a process of its own; go on with a run, look at it, compare it.

    `gradcheck zoo models/ --report zoo.html` checks all models in a folder; the same command goes on if it was
    interrupted.  A source that is called like a command is written ./status.
    """
