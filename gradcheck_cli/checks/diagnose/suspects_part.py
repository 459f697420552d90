"""What a survey of the nodes adds to a record: the suspect, and how many nodes there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradcheck_cli.autodiff.backward import Unit
from gradcheck_cli.checks.diagnose.laws import Broken
from gradcheck_cli.graph import Graph
from gradcheck_cli.results.record import Suspect

if TYPE_CHECKING:
    from gradcheck_cli.checks.diagnose.suspects import Survey
    from gradcheck_cli.checks.diagnose.traps import Trap

_UNTOLD = {"GC301": "a tie of the model", "GC303": "rounding"}  # what may leave a dot test open, by code


def lawless_suspect(broken: Sequence[Broken], graph: Graph) -> Suspect | None:
    """What broke a law, where that is known and no node fails otherwise."""
    unit = next((each.unit for each in broken if each.unit is not None), None)
    return None if unit is None else Suspect(**identity(unit, graph))


def identity(unit: Unit, graph: Graph) -> dict[str, Any]:
    """Which node a unit is, as a record says it."""
    place = unit.place
    node = graph.nodes[place.origin] if 0 <= place.origin < len(graph.nodes) and not place.inside else None
    return {
        "node": place.index,
        "op": unit.op.name,
        "name": node.name if node else place.label or unit.label,
        "outputs": node.outputs if node else unit.outputs,
        "inputs": node.inputs if node else unit.operands,
        "inside": place.inside,
        "part_of": place.op if place.op != unit.op.name else "",
    }


def suspect_record(survey: Survey, graph: Graph) -> Suspect | None:
    """The first node whose own rule is wrong, as the record names it; None if there is none."""
    if not survey.wrong:
        return None
    first, *others = survey.wrong
    found = first.symptom
    return Suspect(
        **identity(first.unit, graph),
        rel_err=found.error,
        at=found.operand,
        passed=survey.checked - survey.failed,
        tried=survey.checked,
        index=found.index,
        diagnosis=found.diagnosis,
        before=first.position,
        after=survey.total - first.position - 1,
        unchecked=survey.open,
        others=tuple(each.unit.place.of(each.unit.op.name, each.unit.place.label) for each in others),
    )


def trapped(trap: Trap, survey: Survey, graph: Graph) -> Suspect:
    """The node whose slope, or result, is not finite where nobody uses it."""
    return Suspect(
        **identity(trap.unit, graph),
        passed=survey.checked,
        tried=survey.checked,
        diagnosis=trap.diagnosis,
        before=trap.position,
        after=survey.total - trap.position - 1,
        unchecked=survey.open,
    )


def surveyed(
    surveys: Sequence[Survey], fields: Mapping[str, Any], max_inconclusive: float, doubted: bool = False
) -> dict[str, Any]:
    """The fields of a record that surveys at all points change: a wrong node fails a check, whatever the rest says.

    doubted  what the dot test leaves open speaks against the gradient
    """
    if not surveys:
        return {}
    worst = max(surveys, key=lambda survey: (survey.failed, survey.open))
    counts = {"total": worst.total, "checked": worst.checked, "failed": worst.failed}
    left = f"{worst.open} node{'s could not be checked on their' if worst.open > 1 else ' could not be checked on its'} own"
    notes = (left, *fields["notes"]) if worst.open else fields["notes"]
    errors = [max(survey.errors[i] for survey in surveys) for i in (0, 1)]
    own = {"nodes": counts, "notes": notes, "max_abs_err": errors[0], "max_rel_err": errors[1]}
    if not worst.failed and fields["status"] == "fail":
        return {"nodes": counts, "notes": notes}
    if not (worst.failed or doubted) and fields["code"] in _UNTOLD and worst.open <= max_inconclusive * worst.total:
        untold = f"how gradients add up from node to node was not seen: {_UNTOLD[fields['code']]} hides the dot test"
        return {**own, "status": "pass", "code": "", "notes": (*notes, untold)}
    if not worst.failed:
        return own
    error = max(each.symptom.error for each in worst.wrong)
    code = "GC101" if np.isfinite(error) else "GC103"
    failed = {"status": "fail", "code": fields["code"] if fields["status"] == "fail" else code}
    return {"nodes": counts, "notes": notes, "max_rel_err": max(error, fields["max_rel_err"]), "needed": {}, **failed}
