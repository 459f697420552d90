"""`gradcheck zoo SRC...` checks many models, each in a process of its own; `gradcheck zoo resume RUN` resumes a run."""

from __future__ import annotations

from typing import Any

import rich_click as click

from gradcheck_cli.cli.environment import SETTINGS, given_in, refuse_unknown_variables
from gradcheck_cli.cli.options import options_of
from gradcheck_cli.cli.typed_options import TypedCommand
from gradcheck_cli.cli.zoo.runner import DASK, ENGINE, RERUN, RUN_OPTIONS, SHOW


@click.pass_context
def run(ctx: click.Context, /, sources: tuple[str, ...], **options: Any) -> int:
    """Check many models, each in a process of its own, so that none can stop the others.

    SRC is a folder, a pattern, an ONNX file, a spec, a list of models (*.gradcheck.yaml with `models`, or
    ONNX_HUB_MANIFEST.json), or a URL (https, s3, gs, hf).  Results are stored as they come: the same command resumes a
    run that was interrupted, and repeats only checks of what has changed.
    """
    refuse_unknown_variables()
    if options["engine"] != "dask" and not options["dask"]:
        from gradcheck_cli.zoo.processes import warm

        warm()  # the server starts while this process imports the rest
    from gradcheck_cli.cli.zoo.runner import begin

    return begin(sources, given_in(ctx, options), ctx)


RUN = TypedCommand(
    name="run",
    callback=run,
    params=[
        click.RichArgument(["sources"], nargs=-1, required=True, metavar="SRC...", type=click.Path()),
        *RUN_OPTIONS,
        *options_of("zoo"),
    ],
    help=run.__doc__,
    context_settings=SETTINGS,
)


@click.pass_context
def resume(ctx: click.Context, /, folder: str, **options: Any) -> int:
    """Resume a run: finished checks stay, unfinished ones and those of changed models are run.

    Sources and settings are those of the run; relative paths start from the folder where it was begun.
    """
    from gradcheck_cli.cli.zoo.runner import go_on

    return go_on(folder, given_in(ctx, options), ctx)


RESUME = click.RichCommand(
    name="resume",
    callback=resume,
    params=[
        click.RichArgument(["folder"], metavar="RUN", type=click.Path()),
        RERUN,
        ENGINE,
        DASK,
        SHOW,
        *options_of("resume"),
    ],
    help=resume.__doc__,
    context_settings=SETTINGS,
)
