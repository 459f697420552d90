"""`gradcheck diff A B`: do two models compute the same outputs, and the same gradients?"""

from __future__ import annotations

from typing import Any

import rich_click as click

from gradcheck_cli.cli import keeping
from gradcheck_cli.cli.options import SETTINGS, Text, TypedCommand, given_in, options_of

A, B = (click.RichArgument([name], metavar=mark, type=click.Path()) for name, mark in (("first", "A"), ("second", "B")))
MAP = click.RichOption(
    ["--map", "given"], panel="What", multiple=True, type=Text(), metavar="A_NAME=B_NAME", allow_from_autoenv=False,
    help="Compare this tensor of A with that one of B. Default: those of the same name, else of the same place and type.",
)  # fmt: skip


@click.command("diff", cls=TypedCommand, context_settings=SETTINGS, params=[A, B, *options_of("diff"), MAP])
@click.pass_context
def command(ctx: click.Context, /, first: str, second: str, **options: Any) -> int:
    """Do two models compute the same outputs, and the same gradients?

    A and B get the same inputs, at random points. Compared are all outputs of A, and the derivatives of
    those that are floats by the float inputs (--params: by parameters that both have). What rounding of
    the weights explains is measured and is no difference. It exits with 0 if they are the same, with 1 if not.
    """
    with keeping():
        from gradcheck_cli.cli.diff_run import run

    return run(first, second, given_in(ctx, options), ctx)
