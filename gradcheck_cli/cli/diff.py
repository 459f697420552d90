"""`gradcheck diff A B`: do two models compute the same outputs, and the same gradients?"""

from __future__ import annotations

from typing import Any

import rich_click as click

from gradcheck_cli.cli import keeping
from gradcheck_cli.cli.environment import SETTINGS, given_in, refuse_unknown_variables
from gradcheck_cli.cli.options import OPTIONS, OneOf, Text
from gradcheck_cli.cli.typed_options import TypedCommand

_SHARED = (  # options that mean what they mean in a check, in the panels of its help
    "x_shape", "dim", "x_init_value", "extra_feed_dict", "test_data", "val_range", "point", "seed",
    "straight_through", "exit_zero", "timeout", "memory_limit", "jobs", "output_format", "report", "show", "verbose",
    "quiet", "color", "progress",
)  # fmt: skip
_TOLERANCE = "[default: 8 roundings of the less precise model: 5e-7 float32, 4e-3 float16, 3e-2 bfloat16 or 8 bits]"


def _option(panel: str, *names: str, **more: Any) -> click.RichOption:
    return click.RichOption(list(names), panel=panel, **more)


def _many(panel: str, *names: str, **more: Any) -> click.RichOption:
    return _option(panel, *names, multiple=True, type=Text(), **more)


OWN = [
    _many("What", "--y", metavar="NAME", help="Compare this output or inner tensor of A. Default: all outputs."),
    _many(
        "What", "--x", metavar="NAME", help="Differentiate by this tensor of A. Default: float inputs or parameters."
    ),
    _option("What", "--params", is_flag=True, default=None, help="Also by weights that both have."),
    _many("What", "--param", metavar="GLOB", help="Also by constants that both have, of any role; !GLOB leaves out."),
    _many(
        "What",
        "--map",
        "given",
        metavar="A_NAME=B_NAME",
        allow_from_autoenv=False,
        help="This tensor of A is that one of B. Default: those of the same name, else of the same place and type.",
    ),
    _option(
        "Inputs", "--points", type=click.IntRange(1), metavar="INT", help="How many points are tried. [default: 3]"
    ),
    _many("Method", "--rtol", metavar="[NAME:]FLOAT", help=f"Relative difference that does not matter. {_TOLERANCE}"),
    _many(
        "Method",
        "--atol",
        metavar="[NAME:]FLOAT",
        help="Absolute difference that does not matter. [default: 0; with --dtype model 8 roundings of 1]",
    ),
    _option(
        "Method",
        "--dtype",
        type=OneOf(("float64", "model")),
        metavar="DTYPE",
        help="model: run each model in its own dtype, where it may overflow. [default: float64, for both]",
    ),
]


@click.pass_context
def diff(ctx: click.Context, /, first: str, second: str, **options: Any) -> int:
    """Do two models compute the same outputs, and the same gradients?

    A and B get the same inputs, at random points. Compared are all outputs of A, and the derivatives of
    those that are floats by the float inputs (--params: by parameters that both have). What rounding of
    the weights explains is measured and is no difference. It exits with 0 if they are the same, with 1 if not.
    """
    refuse_unknown_variables(OPTIONS)
    with keeping():
        from gradcheck_cli.cli.diff_run import run

    return run(first, second, given_in(ctx, options), ctx)


def _options() -> list[click.Parameter]:
    """Those of a check that bear on this, and its own, panel by panel."""
    every = [*OWN, *(option for option in OPTIONS if option.name in _SHARED)]
    panels = [getattr(option, "panel", None) for option in OPTIONS]
    return sorted(every, key=lambda option: panels.index(getattr(option, "panel", None)))


command = TypedCommand(
    name="diff",
    callback=diff,
    params=[
        click.RichArgument(["first"], metavar="A", type=click.Path()),
        click.RichArgument(["second"], metavar="B", type=click.Path()),
        *_options(),
    ],
    help=diff.__doc__,
    context_settings=SETTINGS,
)
