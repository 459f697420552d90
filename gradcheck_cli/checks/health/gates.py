"""What fails a run: words that a call gives, and what of a gradient's health stands in a record for them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from gradcheck_cli.errors import UsageError
from gradcheck_cli.results.measures import WORDS, Health
from gradcheck_cli.results.record import OUTCOMES, Check, gates_from


def with_gates(check: Check, asked: Collection[str]) -> Check:
    """The record with the gates of its gradient's health that it stops at; what is waived stops at none of them.

    Gates that are no matter of health stay as they are: they are in a record whatever a run asks for.
    """
    if check.status == "waived":
        return check
    own = tuple(word for word in check.gates if word not in WORDS)
    return replace(check, gates=(*own, *(word for word in WORDS if word in asked and word in _shown(check))))


def gates_given(value: Any, dtype: str) -> tuple[str, ...]:
    """What fails a run, by the words of `--fail-on`: in one text, or a list of them; None: its default."""
    if value is None:
        return OUTCOMES
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise UsageError(f"fail_on={value!r} must be words, such as 'fail,severed'.")
    try:
        found = gates_from(word.strip() for word in words)
    except UsageError as error:
        raise UsageError(f"fail_on={value!r}: {error}") from None
    if "precision" in found and dtype != "model":
        raise UsageError("fail_on='precision' asks for the gradient in the model's own dtype: dtype='model'.")
    return found


def _shown(check: Check) -> tuple[str, ...]:
    health = check.gradient.get("health")
    return health.shows if isinstance(health, Health) else ()
