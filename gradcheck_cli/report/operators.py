"""What `gradcheck ops` prints: the list of operators, and a page for each."""

from __future__ import annotations

from collections.abc import Sequence

from gradcheck_cli.operator_facts import MEANINGS, OperatorFacts
from gradcheck_cli.report.text import count, table


def listing(found: Sequence[OperatorFacts]) -> str:
    """All operators, a line each."""
    rows = [("operator", "gradient", "kinks", "constant inputs")]
    rows += [(f.full_name, f.gradient, "yes" if f.kinks else "", ", ".join(f.constants)) for f in found]
    numbers = {kind: sum(f.gradient == kind for f in found) for kind in MEANINGS}
    summary = ", ".join(f"{number} {kind}" for kind, number in numbers.items() if number)
    legend = [f"  {kind:9} {meaning}" for kind, meaning in MEANINGS.items()]
    return "\n".join([*table(rows, "<<<<"), "", f"{count(len(found), 'operator')}: {summary}", *legend]) + "\n"


def page(facts: OperatorFacts) -> str:
    """All about one operator."""
    lines = [facts.full_name, *([f"  {facts.does}"] if facts.does else [])]
    lines += [
        f"  forward    yes\n  gradient   {MEANINGS[facts.gradient]}",
        f"  kinks      {'yes' if facts.kinks else 'no'}",
    ]
    lines += [f"  input {position}    {name}, a constant" for name, position in facts.constants.items()]
    lines += [f"  attribute  {name} = {_shown(value)}" for name, value in facts.attributes.items()]
    return "\n".join(lines) + "\n"


def _shown(value: object) -> str:
    """A default as the standard writes it: ONNX's floats are float32."""
    if isinstance(value, float):
        return f"{value:.7g}"
    return repr(value) if not isinstance(value, str) or value == "" else value
