"""What was typed must bear on the check: an option that could only be ignored is an error.

Only what stands on the command line or in the environment is held to this; a file speaks of several checks, and so
does the environment where models differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import rich_click as click
from click.core import ParameterSource

from gradcheck_cli.errors import UsageError
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Graph
from gradcheck_cli.ops import OPS
from gradcheck_cli.ops.straight import rounds
from gradcheck_cli.points.targets import choose_x, choose_y
from gradcheck_cli.settings import ANY, Settings


def refuse_idle(typed: Mapping[str, Mapping[str, Any]], settings: Settings, graph: Graph) -> None:
    """UsageError for an option by tensor that speaks of none to which it applies.

    `typed` holds what was typed, option -> tensor -> value.  Names that the model does not have are left to others.
    """
    ys = settings.y or choose_y(graph)
    xs = choose_x(graph, ys, x=settings.x, params=settings.params, param=settings.param)
    drawn = [n for n in graph.free_inputs if n not in settings.x_init_value and n not in settings.extra_feed_dict]
    for option, known, what in (
        ("rtol", [*xs, *ys], "is neither x nor y of this check"),
        ("atol", [*xs, *ys], "is neither x nor y of this check"),
        ("y_shape", ys, "is no y of this check"),
        ("x_shape", [*graph.free_inputs, *xs], "is no input and no x of this check"),
        ("val_range", drawn, "is not drawn at random, as others are"),
    ):
        _refuse(option, typed.get(option, {}), known, what, graph)


def refuse_idle_rounding(ctx: click.Context, settings: Settings, *sources: Source) -> None:
    """UsageError where --straight-through was typed, and nothing in these models rounds that it could go through."""
    typed = ctx.get_parameter_source("straight_through") is ParameterSource.COMMANDLINE
    if typed and settings.straight_through and not any(rounds(source, settings, OPS) for source in sources):
        names = " and ".join(source.uri for source in sources)
        raise UsageError(
            f"--straight-through has no effect: nothing in {names} is rounded and then computed with; what ends as a "
            "shape, an index or a condition is rounded as before."
        )


def _refuse(option: str, given: Iterable[str], known: Sequence[str], what: str, graph: Graph) -> None:
    for name in given:
        if name != ANY and name in graph.tensors and name not in known:
            typed = f"--{option.replace('_', '-')} {name}"
            raise UsageError(f"{typed} has no effect: {name!r} {what} ({_listed(known)}).")


def _listed(names: Sequence[str], most: int = 8) -> str:
    several = list(dict.fromkeys(names))
    more = f", ... {len(several) - most} more" if len(several) > most else ""
    return ", ".join(several[:most]) + more or "nothing"
