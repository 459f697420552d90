"""`gradcheck zoo status RUN`: how far a run is, and what it has found; without RUN, which runs there are."""

from __future__ import annotations

from typing import Any

import rich_click as click

from gradcheck_cli.cli.param_types import OneOf
from gradcheck_cli.cli.zoo.options import SHOW


@click.command("status")
@click.argument("folder", metavar="[RUN]", required=False, type=click.Path())
@click.option("--output-format", type=OneOf(("full", "json")), default="full", help="What goes to stdout.")
@click.option("--color", type=OneOf(("auto", "always", "never")), default="auto", help="Colors.")
@click.pass_context
def command(ctx: click.Context, /, folder: str | None, **options: Any) -> int:
    """Show how far a run is and what it has found, now or after it; without RUN, the runs in .gradcheck/zoo.

    It exits with 0, whatever was found.
    """
    from gradcheck_cli.cli.zoo.looks import show_run, show_runs

    given = {name: value for name, value in options.items() if value is not None}
    if folder is None:
        show_runs(given)
    else:
        show_run(folder, given)
    return 0


command.params.insert(1, SHOW)
