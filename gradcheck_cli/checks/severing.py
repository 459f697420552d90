"""Pairs without a gradient by nature: found in the graph after the comparisons, and reported in their records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from gradcheck_cli.autodiff.reach import Flow, any_edge, live, straight
from gradcheck_cli.autodiff.severed import (
    Severance,
    in_part,
    is_detach,
    last_with_gradient,
    named_spots,
    said_of_cancelled,
    spots,
)
from gradcheck_cli.checks.claims.claim import Gradients
from gradcheck_cli.errors import quoted
from gradcheck_cli.graph import Graph
from gradcheck_cli.op import Ops
from gradcheck_cli.points.targets import differentiable_constants, is_float, not_chosen
from gradcheck_cli.results.measures import Severed
from gradcheck_cli.results.record import Check, Gradient
from gradcheck_cli.settings import Settings

CODE = "GC107"
_CONSTANT = "the gradient is piecewise constant in x"
_CHOOSING = ("ArgMax", "ArgMin", "Hardmax")
_OPEN = ("pass", "inconclusive")  # statuses that severed may replace; worse ones stay


def severance_of(graph: Graph, ops: Ops, settings: Settings, dtypes: Mapping[str, Any]) -> Severance:
    """The severed pairs of a graph under some settings; `dtypes` are those of a run."""
    return Severance(
        Flow(graph, ops, settings.extra_feed_dict, dtypes), straight if settings.straight_through else live
    )


def last_float(graph: Graph, ops: Ops) -> str | None:
    """The last computed tensor on the way to the outputs that still has a gradient."""
    made = [name for node in graph.nodes for name in node.outputs if name]
    starts = [*(n for n in graph.free_inputs if is_float(graph, n)), *differentiable_constants(graph, graph.outputs)]
    found = last_with_gradient(Flow(graph, ops), starts, graph.outputs, made)
    return found if found not in graph.outputs else None


def instead(graph: Graph, ys: Sequence[str], ops: Ops) -> str:
    """A sentence on what can be checked of a model that has ys and no x, or without them no y; empty for nothing."""
    if ys:
        return not_chosen(graph, ys, ops)
    last = last_float(graph, ops)
    return f"Check up to the last float tensor: --y {quoted(last)}" if last else ""


def severed(checks: Sequence[Check], severance: Severance, graph: Graph) -> tuple[Check, ...]:
    """The records of one check, with status `severed` for pairs without a gradient by nature.

    Claims keep their verdict.  Gradients of second order may well be piecewise constant, which becomes a note.
    """
    ys: dict[str, list[str]] = {}
    for check in checks:
        if not check.claim and not check.gradient_of:
            ys.setdefault(check.x, []).append(check.y)
    gradients = Gradients(graph)
    made = {x: gradients.by(x, of) for x, of in ys.items()}

    def judged(check: Check) -> Check:
        if check.claim:
            return check
        if check.gradient_of or made[check.x] == check.y:
            constant = _steps(check, severance) if check.gradient_of else severance.of(check.x, check.y)
            return replace(check, notes=(*check.notes, _CONSTANT)) if constant else check
        return _judged(check, ys[check.x], severance)

    return tuple(map(judged, checks))


def _steps(check: Check, severance: Severance) -> bool:
    """True for a gradient that is constant except for jumps: piecewise nodes lie between x and the y it is of."""
    if not check.zero_everywhere:
        return False
    flow, needed = severance.flow, severance.before(check.gradient_of, any_edge)
    between = flow.behind([("", check.x)], any_edge) & needed
    found = (flow.ops.get(e.node.key) for e in flow.edges if e.source in between and e.target in between)
    return any(op is not None and op.branch is not None for op in found)


def _judged(check: Check, ys: Iterable[str], severance: Severance) -> Check:
    """A record with status `severed` if its pair is; it gates only if x has no gradient from any other y."""
    if check.status not in _OPEN:
        return check
    found = severance.of(check.x, check.y) or in_part(severance, check.x, check.y)
    if found is None or not found.cut:
        return _alive(check, found, severance)
    others = tuple(y for y in ys if _has_gradient(severance, check.x, y))
    gradient: Gradient = {**check.gradient, "severed": structs.replace(found, others=others)}
    if (health := gradient.get("health")) is not None:
        gradient["health"] = structs.replace(health, ratio=None, steepest=None, shows=(), lost=None)
    return replace(
        check,
        status="severed",
        code=CODE,
        gates=(*(word for word in check.gates if word == "forward"), *(() if others else ("severed",))),
        gradient=gradient,
        message=sentence(found, check.x, check.y, severance),
        notes=(*advice(found, check.x, check.y, severance), *check.notes),
    )


def cut_off(x: str, y: str, severance: Severance) -> Severed | None:
    """The cut of d y / d x, apart from paths through the scale of a quantizer; None if there is none."""
    found = severance.of(x, y) or in_part(severance, x, y)
    return found if found is not None and found.cut else None


def _has_gradient(severance: Severance, x: str, y: str) -> bool:
    return severance.depends(x, y, severance.passes) and cut_off(x, y, severance) is None


def _alive(check: Check, found: Severed | None, severance: Severance) -> Check:
    """A record of a pair with a gradient: its verdict stays, and notes name what cuts off a part of it."""
    said = said_of_cancelled(severance, [check.x], check.y)
    through = severance.detached([check.x], check.y)
    for what, holds in ("detached", True), ("reads what was detached", False):
        if there := spots(edge for edge in through if is_detach(edge) is holds):
            said.append(
                f"{named_spots(there)}: {what} in PyTorch, so that no gradient goes through there as it does here"
            )
    if found is None or found.partial is None:
        return replace(check, notes=(*check.notes, *said)) if said else check
    what = "one summand of y has" if found.partial.kind == "sum" else "some entries of x have"
    note = f"{what} no gradient: cut at {named_spots(found.partial.cut)}"
    return replace(check, gradient={**check.gradient, "severed": found}, notes=(*check.notes, note, *said))


def sentence(found: Severed, x: str, y: str, severance: Severance) -> str:
    """The message on a severed pair: the nodes that cut it, why, and how far the gradient of y goes back."""
    reason = "its derivative is zero wherever it exists"
    if all(spot.op.startswith("TreeEnsemble") for spot in found.cut):
        reason = "a tree ensemble is piecewise constant"
    elif found.partial is not None:
        return f"cut at {named_spots(found.cut)}: all that is left of the gradient leads through the scale it rounds by"
    elif severance.quantized(x, y):
        reason = "quantized for inference; --straight-through checks it as training sees it"
    end = f"goes back as far as {named_spots(found.reached)}" if found.reached else "goes back no further than itself"
    return f"cut at {named_spots(found.cut)} ({reason}); the gradient of {y} {end}"


def advice(found: Severed, x: str, y: str, severance: Severance) -> tuple[str, ...]:
    """Notes on changes that would give the pair a gradient."""
    choosing = sorted({spot.op for spot in found.cut if spot.op in _CHOOSING})
    said = [f"a softmax in place of {' and '.join(choosing)} has a gradient"] if choosing else []
    if severance.mended(x, y) and not severance.quantized(x, y):
        said.append("--straight-through gives it a gradient: rounding is then differentiated as the identity")
    return (*said_of_cancelled(severance, [x], y), *said)
