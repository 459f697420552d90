"""What `--fail-on` asks of the health of gradients."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from gradcheck_cli.cli.check_options import GATED
from gradcheck_cli.measures import WORDS, Health
from gradcheck_cli.record import Check


def gates_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """What fails the run: words of a gradient's health alone leave the outcomes that do as they are."""
    said = () if options.get("exit_zero") else options.get("fail_on", GATED)
    return (*GATED, *said) if said and set(said).isdisjoint(GATED) else tuple(said)


def with_gates(check: Check, asked: Collection[str]) -> Check:
    """The record with those gates that it stops at; what is waived stops at none."""
    hit = tuple(word for word in WORDS if word in asked and word in _shown(check))
    return replace(check, gates=hit) if hit and check.status != "waived" else check


def _shown(check: Check) -> tuple[str, ...]:
    health = check.gradient.get("health")
    return health.shows if isinstance(health, Health) else ()
