"""Commands that refuse what was typed and could only be ignored, before anything runs.

Only the command line is held to this: a configuration file and the environment speak of many runs, and what is typed
overrules them.  Options that have no effect on a certain model are told in `idle`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import rich_click as click
from click.core import ParameterSource

from gradcheck_cli.cli.options import OneOf
from gradcheck_cli.settings import OPTIONS, Idle


class TypedCommand(click.RichCommand):
    """A command each of whose options counts, as it was typed; `idle` is of options that are not in the table."""

    def __init__(self, *args: Any, idle: Mapping[str, Idle] | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self.idle = {**{o.name: o.idle for o in OPTIONS.values() if o.idle is not None}, **(idle or {})}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        typed = list(args)
        left = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:
            self._refuse_twice(ctx, typed)
            refuse_idle_beside(ctx, self.idle)
        return left

    def _refuse_twice(self, ctx: click.Context, typed: list[str]) -> None:
        """UsageError for an option that takes one value and is given two, of which the first would be lost."""
        order = self.make_parser(ctx).parse_args(args=typed)[2]
        for param, times in Counter(order).items():
            single = isinstance(param, click.Option) and not (param.multiple or param.count or param.is_flag)
            if single and times > 1:
                raise click.UsageError(
                    f"{max(param.opts, key=len)} is given {times} times, and only the last would count.", ctx
                )


def refuse_idle_beside(ctx: click.Context, idle: Mapping[str, Idle]) -> None:
    """UsageError for an option that was typed beside another one that leaves it without an effect."""
    for name, each in idle.items():
        if all(_is_typed(ctx, n) for n in (name, each.beside)) and ctx.params[each.beside] not in each.but:
            option, beside = (_spelt(ctx, n) for n in (name, each.beside))
            raise click.UsageError(f"{option} has no effect beside {beside}: {each.why}.", ctx)


def _is_typed(ctx: click.Context, name: str) -> bool:
    return name in ctx.params and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _spelt(ctx: click.Context, name: str) -> str:
    """An option as it is typed, with its value where that is one of a few."""
    [option] = [param for param in ctx.command.params if param.name == name]
    value = f" {ctx.params[name]}" if isinstance(option.type, OneOf) else ""
    return f"{max(option.opts, key=len)}{value}"
