"""The options of `gradcheck zoo`: those of `check` that make sense for many models, and its own."""

from __future__ import annotations

import copy
import re
from typing import Any

import rich_click as click

from gradcheck_cli.cli.check_options import OPTIONS
from gradcheck_cli.cli.param_types import OneOf, ParamType, Scheduler

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
