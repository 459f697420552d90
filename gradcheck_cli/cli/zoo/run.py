"""`gradcheck zoo SRC...`: checks many models, each in a process of its own."""

from __future__ import annotations

from typing import Any

import rich_click as click

from gradcheck_cli.cli.environment import SETTINGS, given_in, refuse_unknown_variables
from gradcheck_cli.cli.options import OPTIONS
from gradcheck_cli.cli.typed_options import TypedCommand
from gradcheck_cli.cli.zoo.runner import CHECK_OPTIONS, RUN_OPTIONS


@click.pass_context
def run(ctx: click.Context, /, sources: tuple[str, ...], **options: Any) -> int:
    """Check many models, each in a process of its own, so that none can stop the others.

    SRC is a folder, a pattern, an ONNX file, a spec, a list of models (*.gradcheck.yaml with `models`, or
    ONNX_HUB_MANIFEST.json), or a URL (https, s3, gs, hf).  Results are kept as they come: the same command goes on with a
    run that was interrupted, and does again only what has changed.
    """
    refuse_unknown_variables(OPTIONS)
    if options["engine"] != "dask" and not options["dask"]:
        from gradcheck_cli.zoo.processes import warm

        warm()  # it gets ready while what follows is imported
    from gradcheck_cli.cli.zoo.runner import begin

    return begin(sources, given_in(ctx, options), ctx)


command = TypedCommand(
    name="run",
    callback=run,
    params=[
        click.RichArgument(["sources"], nargs=-1, required=True, metavar="SRC...", type=click.Path()),
        *RUN_OPTIONS,
        *CHECK_OPTIONS,
    ],
    help=run.__doc__,
    context_settings=SETTINGS,
)
