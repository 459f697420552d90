"""What fails a run, by its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradcheck_cli.results.record import OUTCOMES


def gates_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """What `--fail-on` says, or its default; nothing with `--exit-zero`."""
    return () if options.get("exit_zero") else tuple(options.get("fail_on", OUTCOMES))
