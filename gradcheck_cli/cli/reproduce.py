"""A check done again: `gradcheck reproduce` for one that was saved, and the command line for any other."""

from __future__ import annotations

import shlex
from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any

import rich_click as click
from click.core import ParameterSource

from gradcheck_cli.cli.options import OPTIONS
from gradcheck_cli.cli.typed_options import TypedCommand
from gradcheck_cli.errors import shown

if TYPE_CHECKING:
    from gradcheck_cli.cli.tasks import Task
    from gradcheck_cli.results.record import Check

_NOT_AGAIN = ("models", "expression", "check", "baseline", "test_data", "save_failures", "fail_fast", "engine", "dask")
_REPEATED = (
    "mode", "max_entries", "x_shape", "y_shape", "dim", "x_init_value", "extra_feed_dict", "init_targets", "test_data",
    "val_range", "method", "delta", "dtype", "forward", "rtol", "atol", "max_inconclusive", "straight_through", "coloring",
    "second_order", "compat", "grad", "grad_model",
    "allow_python",
)  # fmt: skip


@click.pass_context
def reproduce(ctx: click.Context, /, bundle: str, **options: Any) -> int:
    """Run a saved failure again, exactly: BUNDLE is a folder of .gradcheck/failures.

    Model, inputs and settings are those of the failure.  Options change single ones of them; files and the
    environment do not.
    """
    from gradcheck_cli.cli.again import run_again

    typed = ParameterSource.COMMANDLINE
    return run_again(bundle, {n: v for n, v in options.items() if ctx.get_parameter_source(n) == typed}, ctx)


command = TypedCommand(
    name="reproduce",
    callback=reproduce,
    params=[
        click.RichArgument(["bundle"], metavar="BUNDLE", type=click.Path()),
        *(option for option in OPTIONS if option.name not in _NOT_AGAIN),
    ],
    help=reproduce.__doc__,
)


def command_for(check: Check, task: Task, given: Mapping[str, Any], known: Container[str] = ()) -> str:
    """The command: file and check, the pair, what was typed, the sizes that were chosen, the seed, the failed point.

    Open dimensions in `known` have the same sizes again without a word.
    """
    words = ["gradcheck", task.path, *(["--check", task.check] if task.check else [])]
    asked = bool(check.claim) and not check.claim.get("found")  # all claims of a check: they tell more together
    y = tuple(check.claim.get("of", ())) or check.gradient_of or check.y
    words += [*_words("x", given.get("x") if asked else check.x), *_words("y", y)]
    for name in _REPEATED:
        words += _words(name, given.get(name))
    words += chosen_sizes(check, known)
    return " ".join(map(quoted, [*words, "--seed", str(check.seed), *_points(check, task, given)]))


def chosen_sizes(check: Check, known: Container[str]) -> list[str]:
    """Options for the sizes of open dimensions that nobody gave, so that any machine takes the same."""
    chosen = ((dim, size) for dim, size in check.dims.items() if dim not in known)
    return [word for dim, size in chosen for word in _words("dim", f"{dim}={size}")]


def quoted(word: str) -> str:
    """A word as one types it in a shell; bash, zsh and ksh read escapes between $' and '."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{shown(escaped)}'"


def _points(check: Check, task: Task, given: Mapping[str, Any]) -> list[str]:
    """The point that failed; all of them where no entry says which one it was."""
    if check.points > 1 and not check.worst:
        return ["--points", str(check.points)]
    only = given.get("point", task.said.get("point", 0))
    return ["--point", str(check.worst[0].point if check.worst else only)]


def _words(name: str, value: Any) -> list[str]:
    option = f"--{name.replace('_', '-')}"
    if name == "coloring":
        return ["--no-coloring"] if value is False else []
    if value is None or value is False:
        return []
    if value is True:
        return [option]
    values = value if isinstance(value, tuple) else (value,)
    texts = [str(each) for each in values]
    return [word for text in texts for word in ((f"{option}={text}",) if text.startswith("-") else (option, text))]
