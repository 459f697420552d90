"""The command line that does one pair of a check again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from gradcheck_cli.cli.tasks import Task
from gradcheck_cli.record import Check

_REPEATED = (
    "mode", "x_shape", "y_shape", "dim", "x_init_value", "extra_feed_dict", "init_targets", "test_data",
    "val_range", "method", "delta", "dtype", "rtol", "atol", "max_inconclusive", "allow_python",
)  # fmt: skip


def command_for(check: Check, task: Task, given: Mapping[str, Any]) -> str:
    """The command: file and check, the pair, what was typed, the seed, and the point that failed."""
    words = ["gradcheck", task.path, *(["--check", task.check] if task.check else [])]
    words += ["--x", check.x, "--y", check.y]
    for name in _REPEATED:
        words += _words(name, given.get(name))
    point = check.worst[0].point if check.worst else 0
    return shlex.join([*words, "--seed", str(check.seed), "--point", str(point)])


def _words(name: str, value: Any) -> list[str]:
    option = f"--{name.replace('_', '-')}"
    if value is None or value is False:
        return []
    if value is True:
        return [option]
    values = value if isinstance(value, tuple) else (value,)
    return [word for each in values for word in (option, str(each))]
