"""`gradcheck diff A B`: do two models compute the same outputs, and the same gradients?"""

from __future__ import annotations

from typing import Any

import rich_click as click

from gradcheck_cli.cli import keeping
from gradcheck_cli.cli.environment import SETTINGS, given_in, refuse_unknown_variables
from gradcheck_cli.cli.options import Text, options_of
from gradcheck_cli.cli.typed_options import TypedCommand

MAP = click.RichOption(
    ["--map", "given"],
    panel="What",
    multiple=True,
    type=Text(),
    metavar="A_NAME=B_NAME",
    allow_from_autoenv=False,
    help="This tensor of A is that one of B. Default: those of the same name, else of the same place and type.",
)


@click.pass_context
def diff(ctx: click.Context, /, first: str, second: str, **options: Any) -> int:
    """Do two models compute the same outputs, and the same gradients?

    A and B get the same inputs, at random points. Compared are all outputs of A, and the derivatives of
    those that are floats by the float inputs (--params: by parameters that both have). What rounding of
    the weights explains is measured and is no difference. It exits with 0 if they are the same, with 1 if not.
    """
    refuse_unknown_variables()
    with keeping():
        from gradcheck_cli.cli.diff_run import run

    return run(first, second, given_in(ctx, options), ctx)


command = TypedCommand(
    name="diff",
    callback=diff,
    params=[
        click.RichArgument(["first"], metavar="A", type=click.Path()),
        click.RichArgument(["second"], metavar="B", type=click.Path()),
        *options_of("diff"),
        MAP,
    ],
    help=diff.__doc__,
    context_settings=SETTINGS,
)
