"""`gradcheck check`, the default command: takes the options that were given and starts the run."""

from __future__ import annotations

import os
from typing import Any

import rich_click as click

from gradcheck_cli.cli import keeping
from gradcheck_cli.cli.options import MODELS, SETTINGS, TypedCommand, given_in, options_of


@click.command("check", cls=TypedCommand, context_settings=SETTINGS, params=[MODELS, *options_of("check")])
@click.pass_context
def command(ctx: click.Context, /, models: tuple[str, ...], **options: Any) -> int:
    """Check the gradients of models: ONNX files, *.gradcheck.yaml specs, folders of them, or patterns.

    Every option can also be set by an environment variable (GRADCHECK_RTOL; several values are
    separated by spaces), in a side-car model.gradcheck.yaml, or in gradcheck.toml.
    """
    unbounded = options.get("timeout") is None and options.get("memory_limit") is None  # else its process asks its own
    if unbounded and options.get("forward") is None and any(path.lower().endswith(".onnx") for path in models):
        from gradcheck_cli.checks.forward.runtime import WORKER

        WORKER.warm()  # it gets ready while what follows is imported
    if os.environ.get("GRADCHECK_KERNELS") != "numpy":
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # products are not NumPy's: its threads would only spin
    with keeping():
        from gradcheck_cli.cli.run import begun

    return begun(models, given_in(ctx, options), ctx).run()
