"""`gradcheck zoo report RUN -o PATH`, `gradcheck report` for runs, and `gradcheck zoo merge RUN... -o RUN`."""

from __future__ import annotations

from typing import Any

import rich_click as click

from gradcheck_cli.cli.options import given_in
from gradcheck_cli.cli.report import PARAMS

RUNS = click.RichArgument(["results"], metavar="RUN...", nargs=-1, required=True, type=click.Path())


@click.command("report", params=[RUNS, *PARAMS])
@click.pass_context
def report(ctx: click.Context, /, results: tuple[str, ...], **options: Any) -> int:
    """Show the results of runs, or turn them into other formats; several make one report.

    It exits with 0 whatever they say, unless --gate, --fail-on or --baseline asks for their verdict.
    """
    from gradcheck_cli.cli.report import run
    from gradcheck_cli.errors import UsageError
    from gradcheck_cli.results import many
    from gradcheck_cli.zoo.store import is_run, no_run

    for folder in results:
        if not is_run(folder):
            raise UsageError(no_run(folder))
    with many():
        return run(results, given_in(ctx, options), ctx)


@click.command("merge")
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=click.Path())
@click.option("-o", "--output", "target", metavar="RUN", required=True, type=click.Path(), help="The new run.")
def merge(folders: tuple[str, ...], target: str) -> int:
    """Put runs together, such as the shards of one, in a new folder; each check once, the last RUN's if several have it."""
    import sys
    from pathlib import Path

    from gradcheck_cli.cli import note
    from gradcheck_cli.report.text import count
    from gradcheck_cli.zoo.store import differing, merged

    runs = [Path(folder) for folder in folders]
    if difference := differing(runs):
        note(difference)
    about = merged(runs, Path(target))
    sys.stdout.write(f"{target}: {count(len(about.jobs), 'check')} of {count(len(runs), 'run')}\n")
    return 0
