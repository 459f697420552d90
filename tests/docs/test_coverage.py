"""The table of operators in README counts what the operator table holds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from gradcheck_cli.ops.facts import GRADIENT, OperatorFacts, all_facts
from tests.versions import is_later

README = Path(__file__).parents[2] / "README.md"


def known_facts() -> list[OperatorFacts]:
    """The facts of all operators but those that came with a newer onnx."""
    return [f for f in all_facts() if f.known or not is_later(f.name, f.domain)]


def coverage() -> list[str]:
    """The table: for each domain how many operators there are, run, and have a gradient of each kind."""
    facts = known_facts()
    counts = Counter(f.domain for f in facts)
    rows = [row(domain or "ai.onnx", [f for f in facts if f.domain == domain]) for domain in sorted(counts)]
    return ["| Domain | Operators | Forward | " + " | ".join(GRADIENT) + " |", "|---" * 7 + "|", *rows]


def row(domain: str, facts: list[OperatorFacts]) -> str:
    """One domain."""
    kinds = Counter(f.gradient for f in facts)
    numbers = [len(facts), sum(f.known for f in facts), *(kinds[kind] for kind in GRADIENT)]
    return f"| `{domain}` | " + " | ".join(map(str, numbers)) + " |"


def test_the_table_of_the_readme_is_what_the_operator_table_holds():
    assert "\n".join(coverage()) in README.read_text("utf-8")


def test_every_operator_of_onnx_runs_and_has_a_gradient_or_none_by_nature():
    own = [f for f in known_facts() if f.domain in ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")]
    assert [f.full_name for f in own if not f.known or f.gradient == "none"] == []
