"""Reachability: the tensors that a derivative flows to, or that depend on a fed value, found without running probes.

On the nodes of a graph: `nodes_between`, for models that cannot be run yet.  On its edges from operand to result,
bodies of control flow included, each with the reason why it is cut, if it is: `Flow`.  There both branches of every If
count, and loops run any number of times.  `selecting` finds inputs that only index, size or decide.  On a tape, which
was run once: `steps_computing`, what some tensors follow from.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np
from msgspec import Struct, structs

from gradcheck_cli.autodiff.tape import Step, Tape, Unit
from gradcheck_cli.errors import ModelError
from gradcheck_cli.graph import Graph, Node, between, describe, is_inexact
from gradcheck_cli.op import Cut, Op, Ops, operator_of, zero
from gradcheck_cli.op.batching import elementwise, shape_only
from gradcheck_cli.results.measures import Spot

Tensor: TypeAlias = tuple[str, str]  # its graph inside of a node, "" for the model's own, and its name
Scope: TypeAlias = Mapping[str, Tensor]
Terms: TypeAlias = dict[Tensor, int]  # of a sum, each with its factor
_DECIDING = {"If": 1, "Loop": 2}  # number of leading inputs that control flow depends on and no derivative goes through
_SELECTS = ("decides", "sizes")


class Makers:
    """An index of the steps that made and read the tensors of a tape, and of the outermost composed operators there.

    It follows the tape as that grows: what leads to a few tensors is found without a look at all others.
    """

    __slots__ = ("last_parts", "last_steps", "outer", "readers", "regions", "step", "steps")

    def __init__(self) -> None:
        self.step: dict[str, int] = {}  # by tensor
        self.readers: dict[str, list[int]] = {}  # by tensor
        self.last_steps: tuple[frozenset[str], list[int]] = (frozenset(), [])  # tensors, and steps they are computed by
        self.last_parts: tuple[Any, dict[int, Step | Unit]] = (None, {})
        self.outer: list[Unit] = []
        self.steps = self.regions = 0  # that have been seen

    @staticmethod
    def of(tape: Tape) -> Makers:
        """The index of a tape as it is now."""
        if tape.makers is None:
            tape.makers = Makers()
        tape.makers._follow(tape)
        return tape.makers

    def kept(self, tape: Tape) -> Callable[[], Makers]:
        """A function that makes the index what it is now, to be called before later steps leave the tape."""
        self._follow(tape)
        return partial(self._cut, tape, self.steps, self.regions, self.last_steps, self.last_parts)

    def _cut(self, tape: Tape, steps: int, regions: int, *last: Any) -> Makers:
        """The index without steps and regions from some numbers on: what they read was noted after all else."""
        gone = tape.steps[steps : self.steps]
        for name in [n for step in gone for n in step.node.outputs]:
            self.step.pop(name, None)
        read = (n for step in gone for n in (*step.node.inputs, *step.operands))
        around = (n for region in tape.regions[regions : self.regions] for n in region.operands)
        for name in {*read, *around}:
            readers = self.readers[name]
            while readers and readers[-1] >= steps:
                readers.pop()
        while self.outer and self.outer[-1].steps.start >= steps:
            self.outer.pop()
        self.steps, self.regions, (self.last_steps, self.last_parts) = steps, regions, last
        return self

    def _follow(self, tape: Tape) -> None:
        for index in range(self.steps, len(tape.steps)):
            step = tape.steps[index]
            self.step.update((name, index) for name in step.node.outputs if name)
            for name in dict.fromkeys((*step.node.inputs, *step.operands)):  # a node that is kept captures operands
                self.readers.setdefault(name, []).append(index)
        for region in tape.regions[self.regions :]:
            while self.outer and self.outer[-1].steps.start >= region.steps.start:
                self.outer.pop()  # of nested ones the outermost comes last
            if region.steps:
                self.outer.append(region)
                for name in region.operands:  # which its steps may not read
                    self.readers.setdefault(name, []).append(region.steps.start)
        self.steps, self.regions = len(tape.steps), len(tape.regions)

    def reading(self, name: str, among: Collection[int]) -> Iterable[int]:
        """The steps that read a tensor; all of `among` where they are fewer: an input may have readers for many ys."""
        readers = self.readers.get(name, ())
        return readers if len(readers) <= len(among) else among

    def start(self, index: int) -> int:
        """The first step of the outermost composed operator that a step is of, or the step itself."""
        around = self.around(index)
        return index if around is None else around.steps.start

    def around(self, index: int) -> Unit | None:
        """The outermost composed operator that a step is of."""
        at = bisect_right(self.outer, index, key=lambda region: region.steps.start) - 1
        return self.outer[at] if at >= 0 and index in self.outer[at].steps else None


def steps_computing(tape: Tape, names: Iterable[str]) -> list[int]:
    """Indices of the steps of a tape that some tensors are computed by, in order."""
    makers, ends = Makers.of(tape), frozenset(names)
    known, numbers = makers.last_steps
    if known == ends:  # many xs of one y
        return numbers
    found, waiting = set[int](), list(ends)
    while waiting:
        index = makers.step.get(waiting.pop())
        if index is not None and index not in found:
            found.add(index)
            waiting.extend(tape.steps[index].node.inputs)
    numbers = sorted(found)
    makers.last_steps = ends, numbers
    return numbers


def steps_between(tape: Tape, xs: Iterable[str], ys: Iterable[str]) -> list[int]:
    """Indices of the steps through which some xs reach some ys, in order; what steps read of them may be their sizes.

    Steps that compute an x are none of them.
    """
    behind, makers, starts = steps_computing(tape, ys), Makers.of(tape), frozenset(xs)

    def leads(index: int, name: str) -> bool:
        step = tape.steps[index]
        reads = name in step.statics or (name in step.operands and step.op.batching is not shape_only)
        return reads and starts.isdisjoint(step.node.outputs)

    def through(name: str) -> Iterator[tuple[int, Sequence[str]]]:
        for index in makers.reading(name, behind):
            if _holds(behind, index) and leads(index, name):
                yield index, [n for n in tape.steps[index].node.outputs if n]

    return _needed(onward(starts, through), ys, lambda index: tape.steps[index].node.inputs)


def onward(
    names: Iterable[str], through: Callable[[str], Iterable[tuple[int, Sequence[str]]]]
) -> dict[int, Sequence[str]]:
    """The numbers of all that some tensors lead to, each with the tensors by which it leads on.

    `through(name)` gives what reads a tensor.
    """
    moved, waiting = dict[int, Sequence[str]](), list(names)
    while waiting:
        for number, made in through(waiting.pop()):
            if number not in moved:
                moved[number] = made
                waiting.extend(made)
    return moved


def _needed(moved: Mapping[int, Sequence[str]], ys: Iterable[str], reads: Callable[[int], Iterable[str]]) -> list[int]:
    """The ones of these that lead to some ys, in order; their numbers are in topological order."""
    needed, found = set(ys), list[int]()
    for number in sorted(moved, reverse=True):
        if not needed.isdisjoint(moved[number]):
            needed.update(reads(number))
            found.append(number)
    return found[::-1]


def _holds(numbers: Sequence[int], number: int) -> bool:
    """True if a number is among sorted ones."""
    at = bisect_left(numbers, number)
    return at < len(numbers) and numbers[at] == number


def parts_computing(tape: Tape, names: Iterable[str]) -> dict[int, Step | Unit]:
    """Steps and outermost composed operators that some tensors follow from, by the index of their first step."""
    makers, ends = Makers.of(tape), frozenset(names)
    known, found = makers.last_parts
    if known == (ends, makers.regions):
        return found
    found, waiting = dict[int, Step | Unit](), list(ends)
    while waiting:
        index = makers.step.get(waiting.pop())
        if index is None or index in found:
            continue
        part = makers.around(index) or tape.steps[index]
        index = part.steps.start if isinstance(part, Unit) else index
        if index not in found:
            found[index] = part
            waiting.extend(part.operands)
    makers.last_parts = (ends, makers.regions), found
    return found


def parts_between(
    tape: Tape, xs: Iterable[str], ys: Iterable[str], flows: Callable[[str], bool]
) -> list[tuple[int, Step | Unit]]:
    """The parts through which xs reach ys, in order, by way of outputs that a derivative `flows` through."""
    behind, makers = parts_computing(tape, ys), Makers.of(tape)

    def through(name: str) -> Iterator[tuple[int, Sequence[str]]]:
        for index in map(makers.start, makers.reading(name, behind)):
            if index in behind and name in behind[index].operands:
                yield index, [n for n in behind[index].outputs if flows(n)]

    found = _needed(onward(xs, through), ys, lambda index: behind[index].operands)
    return [(index, behind[index]) for index in found]


def nodes_between(
    nodes: Sequence[Node],
    xs: Iterable[str],
    ys: Iterable[str],
    ops: Ops,
    *,
    stop: Collection[str] = (),
    is_cut: Callable[[str], bool] = lambda name: False,
) -> list[int]:
    """Indices of the nodes through which a derivative of ys by xs may flow.

    `stop` are tensors that count as constants; `is_cut` is True for a tensor that holds no real numbers.
    """

    def through(node: Node, reached: Collection[str]) -> list[str]:
        return [n for n in _outputs_reached(node, reached, ops) if n not in stop and not is_cut(n)]

    return between(nodes, (x for x in xs if not is_cut(x)), ys, through, _carriers)


def without_rule(nodes: Iterable[tuple[int, Node]], ops: Ops) -> Iterator[tuple[int, str, str, str]]:
    """Nodes without a gradient rule, those of subgraphs too, as (index, operator, domain, name)."""
    for index, node in nodes:
        record = ops.get(node.key)
        if record is None or not record.differentiable:
            yield index, node.op, node.domain, node.name or next((n for n in node.outputs if n), node.op)
        for graph in node.subgraphs:
            inner = nodes_between(graph.nodes, {*graph.inputs, *graph.captures}, graph.outputs, ops)
            yield from without_rule(((index, graph.nodes[i]) for i in inner), ops)


def only_decides(node: Node, operand: int, ops: Ops) -> bool:
    """True if an operand only indexes, counts or decides, so that no result is computed with its numbers."""
    if any(node.subgraphs):
        return operand < _DECIDING.get(node.op, 0)
    op = ops.get(node.key)
    return op is not None and all(op.cut(node.attrs, operand, i) in _SELECTS for i in range(len(node.outputs)))


def _carriers(node: Node) -> tuple[str, ...]:
    """The tensors that a node reads, without those that only steer control flow."""
    deciding = set(node.inputs[: _DECIDING.get(node.op, 0)]) if any(node.subgraphs) else set()
    kept = {*node.inputs[len(deciding) :], *(name for graph in node.subgraphs for name in graph.captures)}
    return tuple(name for name in node.reads if name not in deciding or name in kept)


def _outputs_reached(node: Node, reached: Collection[str], ops: Ops) -> list[str]:
    """Outputs to which a derivative may flow from `reached`: for an If, those that one of its branches connects."""
    arriving = [name for name in _carriers(node) if name in reached]
    record = ops.get(node.key)
    if not arriving or (record is not None and record.vjp is zero):
        return []
    if node.op != "If":
        return [name for name in node.outputs if name]
    branches = [(graph.outputs, graph.reached_from(arriving)) for graph in node.subgraphs]
    connected = {i for ends, found in branches for i, name in enumerate(ends) if name in found}
    return [name for i, name in enumerate(node.outputs) if name and i in connected]


class Edge(Struct, frozen=True, eq=False):
    """One edge of a graph, from a tensor that a node reads to a tensor that it makes.

    `cut` is the reason why the derivative along it is zero by nature, "" if there is a derivative; `operand` is the
    index of the input, -1 for a tensor that a graph inside captures; `straight` is the operator's word for a rounding
    that training treats as the identity, so that `--straight-through` lets a gradient pass.
    """

    source: Tensor
    target: Tensor
    at: Spot
    node: Node
    cut: Cut = ""
    operand: int = -1
    straight: Literal["", "rounds", "quantizes"] = ""

    @property
    def quantizes(self) -> bool:
        """True if a quantizer cuts it."""
        return self.straight == "quantizes"


def any_edge(edge: Edge) -> bool:
    """Accepts all edges: along these, values depend on each other."""
    return True


def live(edge: Edge) -> bool:
    """Accepts the edges along which there is a derivative."""
    return not edge.cut


def straight(edge: Edge) -> bool:
    """Accepts the edges along which there is a derivative once quantizers and roundings are passed straight through."""
    return not edge.cut or edge.straight != ""


class Flow:
    """The edges of a graph; no edge leads to a tensor that is fed."""

    def __init__(
        self, graph: Graph, ops: Ops, fed: Collection[str] = (), dtypes: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """`dtypes` are those that a run has found, for tensors whose dtype the file does not declare."""
        self.ops, self.dtypes = ops, dtypes
        self.edges: list[Edge] = []
        self._behind: defaultdict[Tensor, list[Edge]] = defaultdict(list)
        self._before: defaultdict[Tensor, list[Edge]] = defaultdict(list)
        self._graph(graph, "", {})
        self.edges = _without_cancelled(self.edges)
        for edge in self.edges:
            if edge.target[0] or edge.target[1] not in fed:
                self._behind[edge.source].append(edge)
                self._before[edge.target].append(edge)

    def behind(self, names: Iterable[Tensor], through: Callable[[Edge], bool]) -> set[Tensor]:
        """Every tensor that `names` reach along edges that `through` accepts, `names` included."""
        names = [*names]
        return {*names, *(edge.target for edge in self.edges_behind(names, through))}

    def edges_behind(self, names: Iterable[Tensor], through: Callable[[Edge], bool]) -> Iterator[Edge]:
        """Yields every edge that `through` accepts and that `names` reach along such edges."""
        return _walk(names, self._behind, through, lambda edge: edge.target)

    def before(self, names: Iterable[Tensor], through: Callable[[Edge], bool]) -> set[Tensor]:
        """Every tensor that reaches `names` along edges that `through` accepts, `names` included."""
        names = [*names]
        return {*names, *(edge.source for edge in self.edges_before(names, through))}

    def edges_before(self, names: Iterable[Tensor], through: Callable[[Edge], bool]) -> Iterator[Edge]:
        """Yields every edge that `through` accepts and by which such edges lead to `names`."""
        return _walk(names, self._before, through, lambda edge: edge.source)

    def into(self, tensor: Tensor) -> list[Edge]:
        """The edges that end in a tensor."""
        return self._before[tensor]

    def out_of(self, tensor: Tensor) -> list[Edge]:
        """The edges that begin with a tensor."""
        return self._behind[tensor]

    def _graph(self, graph: Graph, scope: str, around: Scope, inside: str = "") -> Scope:
        """Adds the edges of one graph; gives its tensors by name."""
        known = {**around, **{name: (scope, name) for name in graph.tensors}}
        for index, node in enumerate(graph.nodes):
            label = node.name or next((name for name in node.outputs if name), node.op)
            self._node(graph, node, Spot(index, node.op, label, inside), scope, known)
        return known

    def _node(self, graph: Graph, node: Node, at: Spot, scope: str, known: Scope) -> None:
        op = operator_of(self.ops, node)
        if any(node.subgraphs) and node.op in _BODIES:
            _BODIES[node.op](self, graph, node, at, scope, known)
        elif op.inner is not None and op.cuts is None:
            self._composed(node, op.inner, at, scope, known)
        else:
            self._plain(graph, node, op, at, known)

    def _plain(self, graph: Graph, node: Node, op: Op, at: Spot, known: Scope) -> None:
        """Adds edges from each input to each output, and from captured tensors."""
        for operand, name in enumerate(node.inputs):
            for output, made in enumerate(node.outputs):
                if name and made:
                    cut = op.cut(node.attrs, operand, output) or self._cast_like(graph, node, operand)
                    passes = op.straight if cut == "rounds" else ""
                    self.edges.append(Edge(known[name], known[made], at, node, cut, operand, passes))
        for name in (n for inner in node.subgraphs for n in inner.captures):
            self._join([known[name]], [known[made] for made in node.outputs if made], at, node)

    def _cast_like(self, graph: Graph, node: Node, operand: int) -> Cut:
        """The cut of a cast to the dtype of another tensor: it rounds if that one holds integers."""
        if node.op != "CastLike" or operand != 0:
            return ""
        like = node.inputs[1]
        declared = graph.types[like].dtype if like in graph.types else self.dtypes.get(like)
        dtype = graph.constants[like].dtype if like in graph.constants else declared
        return "rounds" if dtype is not None and not is_inexact(dtype) else ""

    def _body(self, node: Node, attr: str, at: Spot, scope: str, known: Scope) -> tuple[Graph, Scope]:
        """Adds the edges of a graph inside of a node; gives it and its tensors by name."""
        if not isinstance(inner := node.attrs.get(attr), Graph):
            raise ModelError(f"{describe(at.node, node)} has no graph {attr!r}.")
        return inner, self._within(inner, node, attr, at, scope, known)

    def _within(self, inner: Graph, node: Node, attr: str, at: Spot, scope: str, around: Scope) -> Scope:
        outer = f" in the {at.inside}" if at.inside else ""
        return self._graph(inner, f"{scope}/{at.node}.{attr}", around, f"{attr} of {describe(at.node, node)}{outer}")

    def _join(self, sources: Iterable[Tensor], targets: Iterable[Tensor], at: Spot, node: Node, cut: Cut = "") -> None:
        ends = [*targets]
        self.edges.extend(Edge(source, target, at, node, cut) for source in sources for target in ends)

    def _each(self, sources: Iterable[str], of: Scope, targets: Iterable[str], to: Scope, at: Spot, node: Node) -> None:
        """Adds an edge from each source to the target in the same place; none where one of them has no name.

        A result of a body may have none, which is refused when the body runs.
        """
        pairs = zip(sources, targets, strict=False)
        self.edges.extend(Edge(of[one], to[other], at, node) for one, other in pairs if one in of and other in to)

    def _composed(self, node: Node, inner: Graph, at: Spot, scope: str, known: Scope) -> None:
        """Adds the edges of the graph that an operator is composed of."""
        made = self._within(inner, node, "forward", at, scope, {})
        self._each(filter(None, node.inputs), known, inner.inputs, made, at, node)
        self._each(inner.outputs, made, node.outputs, known, at, node)

    def _if(self, graph: Graph, node: Node, at: Spot, scope: str, known: Scope) -> None:
        self._join([known[node.inputs[0]]], [known[name] for name in node.outputs if name], at, node, "decides")
        for attr in ("then_branch", "else_branch"):
            branch, made = self._body(node, attr, at, scope, known)
            self._each(branch.outputs, made, node.outputs, known, at, node)

    def _loop(self, graph: Graph, node: Node, at: Spot, scope: str, known: Scope) -> None:
        body, made = self._body(node, "body", at, scope, known)
        deciding = [known[name] for name in node.inputs[:2] if name]
        deciding += [made[name] for name in body.outputs[:1] if name in made]
        self._join(deciding, [known[name] for name in node.outputs if name], at, node, "decides")
        self._join(deciding, [made[name] for name in body.inputs[:2]], at, node, "decides")
        if not _runs(graph, node):
            self._each(node.inputs[2:], known, node.outputs, known, at, node)
        self._each(node.inputs[2:], known, body.inputs[2:], made, at, node)
        self._each(body.outputs[1:], made, body.inputs[2:], made, at, node)  # from iteration to iteration
        self._each(body.outputs[1:], made, node.outputs, known, at, node)

    def _scan(self, graph: Graph, node: Node, at: Spot, scope: str, known: Scope) -> None:
        body, made = self._body(node, "body", at, scope, known)
        states = len(node.inputs) - int(node.attrs.get("num_scan_inputs", len(node.inputs)))
        self._each(node.inputs, known, body.inputs, made, at, node)
        self._each(body.outputs, made, body.inputs[:states], made, at, node)  # from iteration to iteration
        self._each(body.outputs, made, node.outputs, known, at, node)


_SIGNS = {"Add": (1, 1), "Sub": (1, -1), "Neg": (-1,), "Identity": (1,)}  # of each operand in a sum


def _without_cancelled(edges: Sequence[Edge]) -> list[Edge]:
    """The edges, with those cut that lead into a sum which takes away what it adds, and one from each term that is left.

    `x + (q - x)` is q: a detach, which made it straight-through, leaves nothing in a file.
    """
    sums, into = defaultdict[Tensor, Terms](dict), defaultdict[Tensor, list[Edge]](list)  # in topological order
    for edge in edges:
        if edge.node.op in _SIGNS and not edge.node.domain and edge.operand >= 0:
            into[edge.target].append(edge)
            sums[edge.target][edge.source] = sums[edge.target].get(edge.source, 0) + _SIGNS[edge.node.op][edge.operand]
    order, instead = {target: at for at, target in enumerate(sums)}, dict[Edge, list[Edge]]()
    for target in [*sums]:
        if (left := _left_of(target, sums, order)) == {}:
            del sums[target]  # `x - x`, a zero by values
        elif left is not None:
            sums[target] = left
            first, *rest = (structs.replace(edge, cut="cancels") for edge in into[target])
            live = [Edge(source, target, first.at, first.node) for source in left]
            instead.update(zip(into[target], ([first, *live], *([each] for each in rest)), strict=True))
    return [each for edge in edges for each in instead.get(edge, (edge,))]


def _left_of(target: Tensor, sums: Mapping[Tensor, Terms], order: Mapping[Tensor, int]) -> Terms | None:
    """The terms, with their factors, that are left of a sum of sums where others cancel; None where none do."""
    terms, left = dict(sums[target]), None
    for _ in range(4):  # sums inside of each other
        if not all(terms.values()):
            left = terms = {source: factor for source, factor in terms.items() if factor}
        latest = max((source for source in terms if source in sums), key=order.__getitem__, default=None)
        if latest is None:
            break
        terms, factor = {source: times for source, times in terms.items() if source != latest}, terms[latest]
        for source, times in sums[latest].items():
            terms[source] = terms.get(source, 0) + factor * times
    return left


_BODIES: Mapping[str, Callable[[Flow, Graph, Node, Spot, str, Scope], None]] = {
    "If": Flow._if, "Loop": Flow._loop, "Scan": Flow._scan, "SequenceMap": Flow._scan,
}  # fmt: skip


def _walk(
    names: Iterable[Tensor],
    edges: Mapping[Tensor, list[Edge]],
    through: Callable[[Edge], bool],
    end: Callable[[Edge], Tensor],
) -> Iterator[Edge]:
    found = set(names)
    waiting = [*found]
    while waiting:
        for edge in edges.get(waiting.pop(), ()):
            if through(edge):
                yield edge
                if (tensor := end(edge)) not in found:
                    found.add(tensor)
                    waiting.append(tensor)


def _runs(graph: Graph, node: Node) -> bool:
    """True if constants make a loop run at least once; otherwise it may pass its initial states on."""
    trips, going = (*node.inputs, "", "")[:2]
    return all(not name or (name in graph.constants and bool(np.all(graph.constants[name]))) for name in (trips, going))


def selecting(flow: Flow, inputs: Collection[str], every: Iterable[str], ys: Iterable[str]) -> set[str]:
    """The inputs that only index, size or decide; none unless another input has a gradient."""
    rule = Selecting(flow, (), {*inputs, *every}, ys)
    alive = flow.before(rule.ends, live)
    found = {x for x in inputs if rule.only_selects(x)}
    return found if any(("", x) in alive for x in inputs if x not in found) else set()


class Selecting:
    """Decides which of `others` only select, on the way to ys; `inputs` take part and are not asked about."""

    def __init__(self, flow: Flow, inputs: Iterable[str], others: Iterable[str], ys: Iterable[str]) -> None:
        self.flow, self.inputs, self.others = flow, {*inputs}, {*others}
        self.ends = {("", y) for y in ys}

    def only_selects(self, x: str) -> bool:
        """True if every path from x to the ends is cut by a decision or a size, prepared from x and constants alone.

        Up to there it is cast, rounded, laid out, picked from, or computed with entry by entry.
        """

        def goes_on(edge: Edge) -> bool:
            return edge.target in self._needed and edge.cut not in _SELECTS

        edges = self.flow.edges_behind([("", x)], goes_on)
        return all(edge.target not in self.ends and self._prepares(edge, x) for edge in edges)

    def _prepares(self, edge: Edge, x: str) -> bool:
        """True for elementwise computation, casts, rounding and layout whose result holds no numbers of other tensors."""
        op = self.flow.ops.get(edge.node.key)
        if op is None or not (op.batching is elementwise or op.lays_out(edge.operand)):
            return False
        if any(self._is_other(tensor, x) or tensor in self._fed for tensor in self._beside(edge)):
            return False  # at the first one: a sum may have thousands
        behind = self.flow.edges_before(self._beside(edge), lambda each: each.cut != "sizes")
        return not any(self._is_other(each.source, x) for each in behind)

    def _beside(self, edge: Edge) -> Iterator[Tensor]:
        """Yields the other tensors that the end of an edge is computed from."""
        into = (each.source for each in self.flow.into(edge.target) if each.cut not in _SELECTS)
        return (source for source in into if source != edge.source)

    @cached_property
    def _needed(self) -> set[Tensor]:
        return self.flow.before(self.ends, any_edge)

    @cached_property
    def _fed(self) -> set[Tensor]:
        """Tensors that hold numbers of inputs."""
        return self.flow.behind([("", name) for name in self.inputs], lambda edge: edge.cut != "sizes")

    def _is_other(self, tensor: Tensor, x: str) -> bool:
        scope, name = tensor
        return not scope and name != x and name in self.others
