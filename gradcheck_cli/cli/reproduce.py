"""`gradcheck reproduce` runs a saved check again; `command_for` gives the command line that repeats any other."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any

import rich_click as click

from gradcheck_cli.cli.options import TypedCommand, given_in, options_of
from gradcheck_cli.errors import quoted
from gradcheck_cli.settings import OPTIONS, Option

if TYPE_CHECKING:
    from gradcheck_cli.cli.tasks import Task
    from gradcheck_cli.results.record import Check


BUNDLE = click.RichArgument(["bundle"], metavar="BUNDLE", type=click.Path())


@click.command("reproduce", cls=TypedCommand, params=[BUNDLE, *options_of("reproduce")])
@click.pass_context
def command(ctx: click.Context, /, bundle: str, **options: Any) -> int:
    """Run a saved failure again, exactly: BUNDLE is a folder of .gradcheck/failures.

    Model, inputs and settings are those of the failure.  Options change single ones of them; files and the
    environment do not.
    """
    from gradcheck_cli.cli.again import run_again

    return run_again(bundle, given_in(ctx, options), ctx)


def command_for(check: Check, task: Task, given: Mapping[str, Any], known: Container[str] = ()) -> str:
    """The command: file and check, the pair, what was typed, the sizes that were chosen, the seed, the failed point.

    Open dimensions in `known` have the same sizes again without a word.
    """
    words = ["gradcheck", task.path, *(["--check", task.check] if task.check else [])]
    # all claims of a check tell more together, and gradients by several x are held against one another
    asked = bool(check.gradient_of or (check.claim and not check.claim.get("found")))
    y = tuple(check.claim.get("of", ())) or check.gradient_of or check.y
    words += [*typed(OPTIONS["x"], given.get("x") if asked else check.x), *typed(OPTIONS["y"], y)]
    words += [word for o in OPTIONS.values() if o.is_repeated for word in typed(o, given.get(o.name))]
    words += chosen_sizes(check, known)
    return " ".join(map(quoted, [*words, "--seed", str(check.seed), *_points(check, task, given)]))


def chosen_sizes(check: Check, known: Container[str]) -> list[str]:
    """Options for the sizes of open dimensions that nobody gave, so that any machine takes the same."""
    chosen = ((dim, size) for dim, size in check.dims.items() if dim not in known)
    return [word for dim, size in chosen for word in typed(OPTIONS["dim"], f"{dim}={size}")]


def _points(check: Check, task: Task, given: Mapping[str, Any]) -> list[str]:
    """The point that failed; all of them where no entry says which one it was."""
    if check.points > 1 and not check.worst:
        return ["--points", str(check.points)]
    only = given.get("point", task.said.get("point", 0))
    return ["--point", str(check.worst[0].point if check.worst else only)]


def typed(option: Option, value: Any) -> list[str]:
    """An option with its value, as words of a command."""
    if value is None or option.kind == "flag":
        return [option.spelling] if value is not None and value is not bool(option.default) else []
    texts = map(str, value if isinstance(value, tuple) else (value,))
    spelling = option.spelling
    return [w for text in texts for w in ((f"{spelling}={text}",) if text.startswith("-") else (spelling, text))]
