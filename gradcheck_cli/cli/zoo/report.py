"""`gradcheck zoo report RUN -o PATH`: the results of a run in any format; it is `gradcheck report` under this name."""

from __future__ import annotations

from typing import Any

import rich_click as click

from gradcheck_cli.cli.report import command as report


@click.pass_context
def of_runs(ctx: click.Context, /, results: tuple[str, ...], **options: Any) -> int:
    """Show the results of runs, or turn them into other formats; several make one report.

    It exits with 0 whatever they say, unless --gate, --fail-on or --baseline asks for their verdict.
    """
    from gradcheck_cli.errors import UsageError
    from gradcheck_cli.zoo.folder import is_run, no_run

    for folder in results:
        if not is_run(folder):
            raise UsageError(no_run(folder))
    assert report.callback is not None
    return int(report.callback(results, **options))


command = click.RichCommand(
    name="report",
    callback=of_runs,
    help=of_runs.__doc__,
    params=[
        click.RichArgument(["results"], metavar="RUN...", nargs=-1, required=True, type=click.Path()),
        *report.params[1:],
    ],
)
