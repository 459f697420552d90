"""The command line that does one pair of a check again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from gradcheck_cli.cli.tasks import Task
from gradcheck_cli.errors import shown
from gradcheck_cli.record import Check

_REPEATED = (
    "mode", "x_shape", "y_shape", "dim", "x_init_value", "extra_feed_dict", "init_targets", "test_data",
    "val_range", "method", "delta", "dtype", "rtol", "atol", "max_inconclusive", "straight_through",
    "allow_python",
)  # fmt: skip


def command_for(check: Check, task: Task, given: Mapping[str, Any]) -> str:
    """The command: file and check, the pair, what was typed, the seed, and the point that failed."""
    words = ["gradcheck", task.path, *(["--check", task.check] if task.check else [])]
    words += [*_words("x", check.x), *_words("y", check.y)]
    for name in _REPEATED:
        words += _words(name, given.get(name))
    return " ".join(map(quoted, [*words, "--seed", str(check.seed), *_points(check, task, given)]))


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
    if value is None or value is False:
        return []
    if value is True:
        return [option]
    values = value if isinstance(value, tuple) else (value,)
    texts = [str(each) for each in values]
    return [word for text in texts for word in ((f"{option}={text}",) if text.startswith("-") else (option, text))]
