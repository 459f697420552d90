"""Facts on a model before a check: its tensors, nodes that block a gradient, and the predicted cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gradcheck_cli.autodiff.backward import inexact
from gradcheck_cli.autodiff.custom import ops_for
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.checks.assemble import full_name
from gradcheck_cli.checks.modes import fitting
from gradcheck_cli.checks.problem import is_floating
from gradcheck_cli.checks.severing import cut_off, sentence, severance_of
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Graph, Node, TensorType, describe
from gradcheck_cli.jacobian.cost import full_cost
from gradcheck_cli.jacobian.directions import reals
from gradcheck_cli.op import Ops
from gradcheck_cli.ops import OPS
from gradcheck_cli.points.dims import check_sizes
from gradcheck_cli.points.elements import opened
from gradcheck_cli.points.point import Point, find_point
from gradcheck_cli.points.targets import choose_x, choose_y, constant_roles, is_float, require, selecting_inputs
from gradcheck_cli.results.measures import Spot
from gradcheck_cli.results.record import strict
from gradcheck_cli.settings import Settings

SCHEMA = "gradcheck.inspection/1"
_SELECTS = "no x by default: it only selects"


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """A tensor that a check could use as x or y; `gradient` describes its gradient in a few words."""

    name: str
    role: str  # input, output, inner; of a constant weight, statistic, quantization, constant
    shape: str
    dtype: str
    differentiable: bool
    gradient: str
    rule: int = 0  # number of the rule that gave a constant its role
    why: str = ""


@dataclass(frozen=True, slots=True)
class Blocked:
    """A node that cannot be computed ("forward") or has no rule ("gradient")."""

    node: int
    where: str
    domain: str
    op: str
    lacks: str
    stops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """A pair without a gradient by nature, and the nodes that cut it."""

    x: str
    y: str
    sentence: str
    cut: tuple[Spot, ...]


@dataclass(frozen=True, slots=True)
class PairCost:
    """Cost of a full check of one pair."""

    x: str
    y: str
    x_shape: tuple[int, ...]
    y_shape: tuple[int, ...]
    entries: int
    runs: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Inspection:
    """Everything that `gradcheck inspect` shows of one model."""

    uri: str
    opset: Mapping[str, int]
    nodes: int
    tensors: tuple[TensorFacts, ...]
    x: tuple[str, ...]
    y: tuple[str, ...]
    operators: Mapping[str, int]
    blocked: tuple[Blocked, ...]
    dims: Mapping[str, int] = field(default_factory=dict)
    costs: tuple[PairCost, ...] = ()
    notes: tuple[str, ...] = ()  # on the point of the run
    severed: tuple[Cut, ...] = ()
    obstacle: str = ""  # why the model could not be run
    init_targets: tuple[str, ...] = ()  # of a training model
    updates: Mapping[str, str] = field(default_factory=dict)  # of a training step: initializer -> its next value

    def as_json(self) -> dict[str, Any]:
        """The object that `--output-format json` prints."""
        return {"schema": SCHEMA, **strict(self)}


def inspect(source: Source, settings: Settings) -> Inspection:
    """The facts of one model; UsageError for a name that it does not have."""
    ops = ops_for(source, OPS)
    own = source.graph
    source, settings = opened(source, settings, ops)
    graph = source.graph
    require(graph, [*(settings.x or ()), *(settings.y or ())], source.uri)
    ys = settings.y or choose_y(graph)
    xs = choose_x(graph, ys, x=settings.x, params=settings.params, param=settings.param, ops=ops)
    check_sizes(graph, settings)
    point, obstacle = _point(source, settings, ops, xs, ys)
    if point is not None:
        ys = tuple(y for y in ys if is_floating(point.tape, y))
    blocked = tuple(_blocked(graph, ops, xs, ys))
    return Inspection(
        uri=source.uri,
        opset=source.opset,
        nodes=source.nodes or len(own.nodes),
        tensors=tuple(_tensors(graph, xs, ys, point, ops)),
        x=xs,
        y=ys,
        operators=_counted(own),
        blocked=blocked,
        dims={} if point is None else {**source.dims, **settings.dims, **point.dims},
        costs=() if point is None else tuple(_costs(graph, point, xs, ys)),
        notes=() if point is None else point.notes,
        severed=tuple(_severed(graph, ops, settings, point, [(x, y) for y in ys for x in xs])),
        obstacle=obstacle,
        init_targets=tuple(source.initializations),
        updates=source.updates,
    )


def _severed(
    graph: Graph, ops: Ops, settings: Settings, point: Point | None, pairs: Sequence[tuple[str, str]]
) -> Iterator[Cut]:
    """The pairs that have no gradient according to the graph."""
    dtypes = {} if point is None else {name: var.dtype for name, var in point.tape.named.items()}
    severance = severance_of(graph, ops, settings, dtypes)
    for x, y in pairs:
        if (found := cut_off(x, y, severance)) is not None:
            yield Cut(x, y, sentence(found, x, y, severance), found.cut)


def _tensors(
    graph: Graph, xs: tuple[str, ...], ys: tuple[str, ...], point: Point | None, ops: Ops
) -> Iterator[TensorFacts]:
    needed = graph.needed_for(choose_y(graph))
    found = {} if point is None else point.tape.named
    idle, roles = selecting_inputs(graph, ys, ops).difference(xs), constant_roles(graph, ys, ops=ops)
    constants = [name for name in roles if name not in graph.inputs]
    for name in (*graph.inputs, *constants):
        reason, of = "" if name in needed else "no float output depends on it", roles.get(name)
        role = "input" if of is None or name in graph.inputs else of.role
        mark = "x" if name in xs else _SELECTS if name in idle else ""
        facts = _facts(graph, name, role, reason, mark, found.get(name))
        yield facts if of is None else replace(facts, rule=of.rule, why=f"{of.role}: {of.why}")
    for name in graph.outputs:
        yield _facts(graph, name, "output", "", "y" if name in ys else "", found.get(name))
    for name in dict.fromkeys((*xs, *ys)):
        if name not in (*graph.inputs, *constants, *graph.outputs):
            yield _facts(graph, name, "inner", "", "x" if name in xs else "y", found.get(name))


def _facts(graph: Graph, name: str, role: str, reason: str, mark: str, made: Var | None) -> TensorFacts:
    """Facts on a tensor as declared, or else as it was when the model ran (`made`)."""
    declared = graph.types.get(name, TensorType())
    if name in graph.constants:
        declared = TensorType(graph.constants[name].dtype, graph.constants[name].shape)
    sizes = made.shape if declared.shape is None and made is not None else declared.shape
    shape = str(TensorType(None, sizes)).rsplit(" ", 1)[0]
    dtype = _dtype(declared.dtype, made)
    if declared.kind != "tensor":
        reason, dtype = f"a {declared.kind}, no tensor", declared.kind
    elif not is_float(graph, name, unknown=True) or (made is not None and not inexact(made)):
        reason = "not of a float type"
    usual = f"checked as {mark}" if mark in ("x", "y") else mark or "possible"
    said = f"none: {reason}" if reason else usual
    return TensorFacts(name, role, shape, dtype, not reason, said)


def _dtype(declared: Any, made: Var | None) -> str:
    """Name of a dtype; "float" for an undeclared float tensor, since the run was in float64."""
    if declared is not None:
        return "string" if declared.kind == "O" else str(declared)
    if made is None:
        return "?"
    return {"f": "float", "c": "complex"}.get(made.dtype.kind, made.dtype.name)


def _counted(graph: Graph) -> dict[str, int]:
    """Number of nodes of each operator, the most frequent first."""
    return dict(Counter(full_name(node) for _, node in _every_node(graph)).most_common())


def _blocked(graph: Graph, ops: Ops, xs: tuple[str, ...], ys: tuple[str, ...]) -> Iterator[Blocked]:
    reach = {x: graph.reached_from([x]) for x in xs}
    need = {y: graph.needed_for([y]) for y in ys}
    for index, node in _every_node(graph):
        op = ops.get(node.key)
        if op is not None and op.differentiable:
            continue
        outer = graph.nodes[index]
        stops = tuple(
            f"d {y}/d {x}"
            for y in ys
            for x in xs
            if not reach[x].isdisjoint(outer.reads) and not need[y].isdisjoint(outer.outputs)
        )
        if op is None or stops:
            lacks = "forward" if op is None else "gradient"
            yield Blocked(index, describe(index, node), node.domain, node.op, lacks, stops)


def _every_node(graph: Graph) -> Iterator[tuple[int, Node]]:
    """Nodes, subgraphs included, each with the index of the top-level node it belongs to."""
    for index, node in enumerate(graph.nodes):
        yield index, node
        for body in node.subgraphs:
            yield from ((index, inner) for inner in body.all_nodes)


def _point(
    source: Source, settings: Settings, ops: Ops, xs: tuple[str, ...], ys: tuple[str, ...]
) -> tuple[Point | None, str]:
    """The point at which a check would start, or the reason why there is none."""
    reached = {x: source.graph.reached_from([x]) for x in xs}
    pairs = [(x, y) for y in ys for x in xs if y in reached[x]]
    try:
        return fitting(source, settings, ops, pairs, partial(find_point, source, settings, ops, (*ys, *xs), 0))[0], ""
    except GradcheckError as error:
        return None, str(error)


def _costs(graph: Graph, point: Point, xs: tuple[str, ...], ys: tuple[str, ...]) -> Iterator[PairCost]:
    named = point.tape.named
    for y in ys:
        for x in xs:
            if x in named and y in named and y in graph.reached_from([x]):
                program = Program(point.tape, [named[x].name], [named[y].name])
                rows, columns = reals(named[x].value), reals(named[y].value)
                cost = full_cost(program, rows, columns)
                yield PairCost(x, y, named[x].shape, named[y].shape, cost.entries, rows + columns, cost.seconds)
