"""The options of `gradcheck zoo`: those of `check` that make sense for many models, and its own."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import rich_click as click

from gradcheck_cli.cli.options import OPTIONS
from gradcheck_cli.cli.param_types import ByteSize, Duration, Gates, OneOf, ParamType, Scheduler, Words
from gradcheck_cli.errors import UsageError, shown
from gradcheck_cli.results.record import words_for

_LEFT_OUT = ("models", "plot", "heatmap", "health", "show", "engine", "dask")  # of one model, or said otherwise
_HELP = {  # of options that mean something else where models are many
    "jobs": "Models at once. [default: one a core]",
    "timeout": "For each model: 30s, 10m, 1h. [default: 10m]",
    "memory_limit": "For each model, all of its processes. [default: 8GiB]",
    "fail_fast": "Begin no model after the first that fails the run.",
    "expression": "Checks whose name matches, as in pytest: 'conv and not slow'.",
}
STORE = "Zoo"


class Shard(ParamType):
    """Which of how many shards, from 2/4."""

    name = "shard"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", str(value).strip())
        index, count = (int(match[1]), int(match[2])) if match else (0, 0)
        if not 1 <= index <= count:
            self.fail(f"{value!r} is no shard; write 1/4 ... 4/4.", param, ctx)
        return index, count


def own(*names: str, **more: Any) -> click.RichOption:
    """An option of the zoo alone, which is not set by the environment."""
    return click.RichOption(list(names), panel=STORE, allow_from_autoenv=False, **more)


def _for_many(option: click.Parameter) -> click.Parameter:
    """An option of `check` with what it means here."""
    option = copy.copy(option)
    if isinstance(option, click.Option):
        option.help = _HELP.get(option.name or "", option.help)
    return option


SHOW = own("--show", type=click.IntRange(min=0), metavar="INT", help="Failing models shown. [default: as many as fit]")
RERUN = own(
    "--rerun", type=OneOf(("failed", "all")), metavar="failed|all", help="Do again what failed, or all that was done."
)
ENGINE = own(
    "--engine", type=OneOf(("local", "dask")), metavar="local|dask",
    help="Where models are checked: on this machine, or on a Dask cluster. [default: local]",
)  # fmt: skip
DASK = own(
    "--dask", type=Scheduler(), metavar="WHERE",
    help="The cluster: tcp://HOST:8786, a scheduler file, or local:N workers. [default: as Dask is configured]",
)  # fmt: skip
RUN_OPTIONS: list[click.Parameter] = [
    own("--run", "folder", metavar="DIR", help="Where results are kept. [default: .gradcheck/zoo/NAME]"),
    RERUN,
    ENGINE,
    DASK,
    own("--shard", type=Shard(), metavar="I/N", help="Only this part of the models, the same at any time."),
    SHOW,
]
CHECK_OPTIONS: list[click.Parameter] = [_for_many(option) for option in OPTIONS if option.name not in _LEFT_OUT]


def as_given(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Options that were given for a run, read back from a file; UsageError for what nobody could have given."""
    options = {each.name: each for each in (*RUN_OPTIONS, *CHECK_OPTIONS) if isinstance(each, click.Option)}
    for name, value in given.items():
        if name not in options or not _could_be_given(value, options[name]):
            raise UsageError(f"{where}: {shown(name)} cannot be {shown(repr(value))[:60]}; run `gradcheck zoo` again")
    return {**given}


def _could_be_given(value: Any, option: click.Option) -> bool:
    """It is what comes of something that one can type."""
    if option.is_flag or option.count:
        return type(value) is (int if option.count else bool)
    several = isinstance(value, tuple) and option.multiple
    try:
        each = value if several else [value]
        return several == option.multiple and all(_comes_of_its_text(one, option) for one in each)
    except (click.BadParameter, TypeError, ValueError, ArithmeticError):
        return False


def _comes_of_its_text(value: Any, option: click.Option) -> bool:
    """Typed again, it is the same."""
    kind, text = option.type, value
    if isinstance(kind, Words | Shard):
        words = words_for(value) if isinstance(kind, Gates) else value
        text = ("," if isinstance(kind, Words) else "/").join(map(str, words))
    elif isinstance(kind, Duration):
        text = format(Decimal(value), "f")
    elif isinstance(kind, ByteSize) or not isinstance(value, str):
        text = str(value)
    made = kind.convert(text, option, None)
    return type(made) is type(value) and bool(made == value)
