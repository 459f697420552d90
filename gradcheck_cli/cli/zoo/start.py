"""`gradcheck zoo SRC...` checks many models, each alone in a process; `gradcheck zoo resume RUN` resumes a run.

The options of `gradcheck zoo` are those of `check` that make sense for many models, and some of its own.
"""

from __future__ import annotations

import os
import re
from typing import Any

import rich_click as click

from gradcheck_cli.cli.options import (
    SCHEDULER_ADDRESS,
    SETTINGS,
    OneOf,
    Parsed,
    TypedCommand,
    completing,
    given_in,
    options_of,
)
from gradcheck_cli.errors import UsageError

HOME = os.path.join(".gradcheck", "zoo")


def _shard(text: str) -> tuple[int, int]:
    """A shard such as 2/4, as its number and the number of shards."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text.strip())
    index, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= index <= count:
        raise UsageError(f"{text!r} is no shard; write 1/4 ... 4/4.")
    return index, count


SHARD = Parsed("shard", _shard, lambda shard: "/".join(map(str, shard)))


def own(*names: str, **more: Any) -> click.RichOption:
    """An option of `gradcheck zoo` only, which the environment cannot set."""
    return click.RichOption(list(names), panel="Zoo", allow_from_autoenv=False, **more)


SHOW = own(
    "--show",
    type=click.IntRange(min=0),
    metavar="INT",
    help="Number of failing models shown. [default: as many as fit]",
)
RERUN = own(
    "--rerun",
    type=OneOf(("failed", "all")),
    metavar="failed|all",
    help="Check again the models that failed, or all of them.",
)
ENGINE = own(
    "--engine", type=OneOf(("local", "dask")), metavar="local|dask",
    help="Where models are checked: on this machine, or on a Dask cluster. [default: local]",
)  # fmt: skip
DASK = own(
    "--dask", type=SCHEDULER_ADDRESS, metavar="WHERE",
    help="The cluster: tcp://HOST:8786, a scheduler file, or local:N workers. [default: as Dask is configured]",
)  # fmt: skip
ALLOW_LOCAL = own(
    "--allow-local", is_flag=True, default=None,
    help="Let sources be file: URLs, and servers of this machine or its network.",
)  # fmt: skip
RUN_OPTIONS: list[click.Parameter] = [
    own("--run", "folder", metavar="DIR", help="Where results are kept. [default: .gradcheck/zoo/NAME]"),
    RERUN,
    ENGINE,
    DASK,
    own(
        "--shard",
        type=SHARD,
        metavar="I/N",
        help="Check only part I of N of the models, the same ones in every run; parts take about the same time.",
    ),
    own(
        "--same-structure",
        type=OneOf(("once",)),
        metavar="once",
        help="Check the gradient of one of the models that differ in names and values of weights only; of the others the "
        "forward run, and that all is finite.  [default: each is checked]",
    ),
    ALLOW_LOCAL,
    SHOW,
]
SOURCES = click.RichArgument(["sources"], nargs=-1, required=True, metavar="SRC...", type=click.Path())
RUN = click.RichArgument(["folder"], metavar="RUN", type=click.Path(), shell_complete=completing("runs"))
OF_RESUME = [RUN, RERUN, ENGINE, DASK, ALLOW_LOCAL, SHOW, *options_of("resume")]


@click.command("run", cls=TypedCommand, context_settings=SETTINGS, params=[SOURCES, *RUN_OPTIONS, *options_of("zoo")])
@click.pass_context
def run(ctx: click.Context, /, sources: tuple[str, ...], **options: Any) -> int:
    """Check many models, each alone in a process, so that none can stop the others.

    SRC is a folder, a pattern, an ONNX file, a spec, a list of models (*.gradcheck.yaml with `models`, or
    ONNX_HUB_MANIFEST.json), or a URL (https, s3, gs, hf).  Results are stored as they come: the same command resumes a
    run that was interrupted, and repeats only checks of what has changed.
    """
    if options["engine"] != "dask" and not options["dask"]:
        from gradcheck_cli.zoo.processes import warm

        warm()  # the server starts while this process imports the rest
    from gradcheck_cli.cli.zoo.runner import begin

    return begin(sources, given_in(ctx, options), ctx)


@click.command("resume", context_settings=SETTINGS, params=OF_RESUME)
@click.pass_context
def resume(ctx: click.Context, /, folder: str, **options: Any) -> int:
    """Resume a run: finished checks stay, unfinished ones and those of changed models are run.

    Sources and settings are those of the run; its relative paths start from the folder where it was begun.
    """
    from gradcheck_cli.cli.zoo.runner import go_on

    return go_on(folder, given_in(ctx, options), ctx)
