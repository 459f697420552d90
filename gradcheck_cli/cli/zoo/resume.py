"""`gradcheck zoo resume RUN`: goes on with a run that was interrupted."""

from __future__ import annotations

from typing import Any

import rich_click as click

from gradcheck_cli.cli.environment import SETTINGS, given_in
from gradcheck_cli.cli.zoo.runner import CHECK_OPTIONS, DASK, ENGINE, RERUN, SHOW

_HERE = ("jobs", "timeout", "fail_fast", "fail_on", "exit_zero", "baseline", "output_format", "report", "color",
         "progress", "verbose", "quiet", "allow_python")  # fmt: skip


@click.pass_context
def resume(ctx: click.Context, /, folder: str, **options: Any) -> int:
    """Go on with a run: what is finished stays, what has changed or is not done is checked.

    Sources and settings are those of the run, from the folder where it was begun.
    """
    from gradcheck_cli.cli.zoo.runner import go_on

    return go_on(folder, given_in(ctx, options), ctx)


command = click.RichCommand(
    name="resume",
    callback=resume,
    params=[
        click.RichArgument(["folder"], metavar="RUN", type=click.Path()),
        RERUN,
        ENGINE,
        DASK,
        SHOW,
        *(option for option in CHECK_OPTIONS if option.name in _HERE),
    ],
    help=resume.__doc__,
    context_settings=SETTINGS,
)
