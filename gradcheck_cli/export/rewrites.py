"""Other graphs of the same model, for files: weights as inputs, slices as outputs, rows apart, lists as tensors.

A file has to be right for any number of tensors in a list.  A list that a loop appends to, and whose tensors are joined
behind it, is what the loop stacks of its iterations; and an element of a list that a tensor is split into is what a
Gather takes of that tensor.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gradcheck_cli.errors import UsageError, counted, shown
from gradcheck_cli.export.inner import captures_renamed, relabeled
from gradcheck_cli.export.size_formulas import NUMBERS
from gradcheck_cli.graph import Array, Dim, FreshNames, Graph, Node, TensorType

_SLICED = re.compile(r"(?P<name>.+)\[(?P<parts>[-\d:,.\s]+)\]", re.DOTALL)
_PART = re.compile(r"\s*(-?\d*)\s*(?:(:)\s*(-?\d*)\s*(?::\s*(-?\d*)\s*)?)?")
_LARGE = 1024  # bytes
_END = np.iinfo(np.int64).max
_SPLIT, _INSERT, _LOOP = ("", "SplitToSequence"), ("", "SequenceInsert"), ("", "Loop")
_TAKING = ("SequenceAt", "SequenceLength")
_Instead: TypeAlias = Callable[[Node], Iterable[Node]]  # the nodes in the place of one that reads a list


def lifted(graph: Graph) -> Graph:
    """The graph with the float constants of graphs inside as constants of its own, which all graphs inside can read."""
    fresh = FreshNames(graph.tensors)
    return _outward(graph, lambda name, value: fresh.fresh(name) if value.dtype.kind in "fV" else "")


def held_once(graph: Graph) -> Graph:
    """The graph, with large constants that it or graphs inside hold twice once, where all of them can read it."""
    seen: dict[tuple[Any, ...], list[str]] = {}
    for each in _all_graphs(graph):
        for name, value in each.constants.items():
            if name not in _ends(each) and (key := _key(value)):
                seen.setdefault(key, []).append(name)
    twice = {key: names[0] for key, names in seen.items() if len(names) > 1}
    fresh, own = FreshNames(graph.tensors), {_key(v): n for n, v in graph.constants.items() if n not in graph.inputs}
    homes = {key: own.get(key) or fresh.fresh(name) for key, name in twice.items()}
    return _outward(graph, lambda name, value: homes.get(_key(value), "")) if homes else graph


def _outward(graph: Graph, home: Callable[[str, Array], str]) -> Graph:
    """The graph with constants of graphs inside as its own, under the name that `home` gives them; "" for those to stay."""
    found = dict(graph.constants)

    def inside(body: Graph) -> Graph:
        gone = {n: to for n, v in body.constants.items() if n not in _ends(body) and (to := home(n, v))}
        found.update((to, body.constants[n]) for n, to in gone.items())
        left = {n: v for n, v in body.constants.items() if n not in gone}
        outer = relabeled(replace(body, constants=left), gone)
        return replace(outer, nodes=tuple(node.with_graphs(inside) for node in outer.nodes))

    nodes = tuple(node.with_graphs(inside) for node in graph.nodes)
    return replace(graph, nodes=nodes, constants=found)


def _ends(body: Graph) -> set[str]:
    """Names that have to stay tensors of a graph: a constant among its inputs or outputs stays in it."""
    return {*body.inputs, *body.outputs}


def _key(value: Array) -> tuple[Any, ...]:
    small = value.nbytes <= _LARGE or value.dtype == object
    return () if small else (value.dtype, value.shape, value.tobytes())


def _all_graphs(graph: Graph) -> Iterator[Graph]:
    yield graph
    for node in graph.nodes:
        for inner in node.subgraphs:
            yield from _all_graphs(inner)


def opened(graph: Graph, values: Mapping[str, Array]) -> Graph:
    """The graph with some constants as inputs; those whose values are wider now are cast where they are read."""
    kept = {n: v for n, v in graph.constants.items() if n not in values}
    types = {n: TensorType(v.dtype, v.shape) for n, v in values.items()}
    narrow = {n: NUMBERS[graph.constants[n].dtype] for n, v in values.items() if v.dtype != graph.constants[n].dtype}
    fresh = FreshNames(graph.tensors)
    names = {n: fresh.fresh(f"{n}/narrow") for n in narrow}
    casts = [Node("Cast", (n,), (names[n],), {"to": to}, name=names[n]) for n, to in narrow.items()]
    inputs = (*graph.inputs, *(n for n in values if n not in graph.inputs))
    nodes = (*casts, *reading(graph.nodes, names))
    return replace(graph, inputs=inputs, nodes=nodes, constants=kept, types={**graph.types, **types})


def reading(nodes: Iterable[Node], names: Mapping[str, str]) -> Iterator[Node]:
    """The nodes, reading other tensors in place of some, in their subgraphs too."""
    for node in nodes:
        inputs = tuple(names.get(n, n) for n in node.inputs)
        yield replace(node.with_graphs(lambda graph: captures_renamed(graph, names)), inputs=inputs)


def with_slice(graph: Graph, text: str) -> Graph:
    """The graph with an entry or a slice of a tensor, called as `text` is: logits[:,3]; itself where it is none of one."""
    found = _SLICED.fullmatch(text)
    if text in graph.tensors or found is None or found["name"] not in graph.tensors:
        return graph
    declared = graph.types.get(found["name"], TensorType())
    fresh, made, here = FreshNames({*graph.tensors, text}), list(graph.nodes), found["name"]
    constants = dict(graph.constants)

    def held(value: int | list[int]) -> str:
        name = fresh.fresh(f"{text}/index")
        constants[name] = np.array(value, np.int64)
        return name

    slices, entries = _parts(found["parts"], text, declared)
    steps: list[tuple[str, tuple[str, ...], dict[str, int]]] = []
    for axis, (first, last, step) in slices:
        steps.append(("Slice", (held([first]), held([last]), held([axis]), held([step])), {}))
    steps += [("Gather", (held(at),), {"axis": axis}) for axis, at in reversed(entries)]
    steps = steps or [("Identity", (), {})]
    for i, (op, more, attrs) in enumerate(steps):
        name = text if i == len(steps) - 1 else fresh.fresh(f"{text}/part")
        made.append(Node(op, (here, *more), (name,), attrs, name=name))
        here = name
    return replace(graph, nodes=tuple(made), constants=constants)


def _index_within(index: int, axis: int, text: str, declared: TensorType) -> int:
    """An index; UsageError where the declared size of its axis is smaller."""
    shape = declared.shape or ()
    size = shape[axis] if -len(shape) <= axis < len(shape) else None
    if isinstance(size, int) and not -size <= index < size:
        raise UsageError(
            f"--y {shown(text)}: axis {axis % len(shape)} has {counted(size, 'entry')}; write 0 to {size - 1}."
        )
    return index


def _parts(
    parts: str, text: str, declared: TensorType
) -> tuple[list[tuple[int, tuple[int, int, int]]], list[tuple[int, int]]]:
    """Slices (start, stop, step) and single entries, each with its axis, counted from the end behind an ellipsis."""
    slices, entries, behind = [], [], False
    pieces = parts.split(",")
    for i, piece in enumerate(pieces):
        axis = i - len(pieces) if behind else i
        if piece.strip() == "..." and not behind:
            behind = True
            continue
        found = _PART.fullmatch(piece)
        if found is None or not (found[1] or found[2]):
            raise UsageError(f"{shown(text)}: write an index or a slice for each axis, such as [:,3] or [0,1:5].")
        if not found[2]:
            entries.append((axis, _index_within(int(found[1]), axis, text, declared)))
            continue
        step = int(found[4] or 1)
        if not step:
            raise UsageError(f"{shown(text)}: a slice needs a step other than 0.")
        first, last = (0, _END) if step > 0 else (_END, -_END)
        slices.append((axis, (int(found[1] or first), int(found[3] or last), step)))
    if declared.shape is not None and len(pieces) - behind > len(declared.shape):
        raise UsageError(f"{shown(text)}: the tensor has {counted(len(declared.shape), 'dimension')}.")
    return [each for each in slices if each[1] != (0, _END, 1)], entries


def rows_apart(graph: Graph) -> Graph:
    """The graph run for each row of a batch by itself: what it gives gets an axis of rows, in front of all others.

    The batch is the first open dimension with which an input begins; all inputs that begin with it are taken row by row.
    """
    batch = next((d for n in graph.inputs if isinstance(d := _first(graph, n), str)), None)
    rows = [n for n in graph.inputs if batch is not None and _first(graph, n) == batch]
    if batch is None:
        nameless = next((f"; that of {n!r} has none" for n in graph.inputs if _begins_open(graph, n)), "")
        raise UsageError(
            f"--per-sample needs a batch: an input whose first dimension is open and has a name{nameless}."
        )
    for name in graph.inputs:
        if name not in rows and batch in (graph.types.get(name, TensorType()).shape or ()):
            raise UsageError(
                f"--per-sample takes rows of the batch {batch!r}; {name!r} has it behind its first dimension."
            )
    fresh = FreshNames(graph.tensors)
    axes = fresh.fresh("rows/axis")
    single, row = ({n: fresh.fresh(f"{n}/{what}") for n in rows} for what in ("batch_of_one", "row"))
    each = {n: fresh.fresh(f"{n}/of_row") for n in graph.outputs}
    taken = [Node("Unsqueeze", (row[n], axes), (single[n],), name=single[n]) for n in rows]
    ends = [Node("Squeeze", (n, axes), (each[n],), name=each[n]) if _first(graph, n) == batch else
            Node("Identity", (n,), (each[n],), name=each[n]) for n in graph.outputs]  # fmt: skip
    inner = replace(relabeled(graph, single), inputs=tuple(row.values()), outputs=tuple(each.values()), types={})
    names = {n: fresh.fresh(f"{n}/inside") for n in graph.outputs if n not in single}
    nodes = relabeled(replace(inner, nodes=(*taken, *inner.nodes, *ends), constants={}), names).nodes
    types = {row[n]: replace(graph.types[n], shape=(graph.types[n].shape or ())[1:]) for n in rows}
    types |= {each[n]: TensorType(graph.types[n].dtype, _behind(graph, n, batch)) for n in graph.outputs}
    body = Graph(tuple(row.values()), tuple(each.values()), nodes, types=types, opset=graph.opset, name="row")
    scan = Node("Scan", tuple(rows), graph.outputs, {"body": body, "num_scan_inputs": len(rows)}, name="rows")
    outer = {n: TensorType(graph.types[n].dtype, None if (s := _behind(graph, n, batch)) is None else (batch, *s))
             for n in graph.outputs}  # fmt: skip
    constants = {names.get(n, n): value for n, value in graph.constants.items()}  # results that are zeros are constants
    constants[axes] = np.array([0], np.int64)
    return replace(graph, nodes=(scan,), constants=constants, types={**graph.types, **outer})


def _first(graph: Graph, name: str) -> Dim:
    shape = graph.types.get(name, TensorType()).shape
    return shape[0] if shape else None


def _begins_open(graph: Graph, name: str) -> bool:
    """True for an input whose first dimension is open and has no name."""
    return bool(graph.types.get(name, TensorType()).shape) and _first(graph, name) is None


def _behind(graph: Graph, name: str, batch: str) -> tuple[Dim, ...] | None:
    """The shape of a result for one row."""
    shape = graph.types[name].shape
    return shape if shape is None else shape[1:] if shape and shape[0] == batch else shape


def without_lists(graph: Graph, kept: Collection[str]) -> Graph:
    """The graph with tensors for the lists that can be; `kept` ones stay, and the same graph if all do."""
    if not any(node.key in (_SPLIT, _INSERT) for node in graph.all_nodes):
        return graph
    rewriting = _Rewriting(FreshNames(graph.all_tensors))
    made = rewriting.of(graph, kept)
    return replace(made, constants={**made.constants, **rewriting.constants})


class _Appended(NamedTuple):
    """A list that is number `state` of a loop's states: its name behind the loop, and what the body adds to it."""

    state: int
    name: str
    value: str
    in_front: bool
    rank: int | None  # of the value

    def is_read_by(self, node: Node) -> bool:
        """True for a node that reads the list as if it were a stack."""
        joins = node.op == "ConcatFromSequence" and (node.attrs["axis"] == 0 or self.rank is not None)
        return joins or node.op in _TAKING


class _Rewriting:
    """One rewriting of a graph and of those inside; constants that it needs are those of the outermost graph."""

    def __init__(self, fresh: FreshNames) -> None:
        self.fresh = fresh
        self.constants: dict[str, Array] = {}

    def of(self, graph: Graph, kept: Collection[str]) -> Graph:
        """The graph without lists."""
        inside = partial(self.of, kept=())
        graph = replace(graph, nodes=tuple(node.with_graphs(inside) for node in graph.nodes))
        free = {n for node in graph.nodes if node.key in (_SPLIT, _LOOP) for n in node.outputs}
        free -= {*kept, *graph.outputs}
        readers, nodes, instead = _readers(graph, free), list[Node](), dict[str, _Instead]()
        for node in graph.nodes:
            if node.key == _SPLIT and node.outputs[0] in free and _is_split_singly(graph, node):
                nodes += self._gathered(node, readers, instead)
            elif node.key == _LOOP:
                lists = [each for name in node.outputs if name in free and (each := _appended(graph, node, name))]
                lists = [each for each in lists if all(map(each.is_read_by, readers.get(each.name, ())))]
                nodes += self._stacked(node, lists, instead) if lists else [node]
            else:
                nodes.append(node)
        return replace(graph, nodes=tuple(_read_instead(nodes, instead)))

    def _gathered(
        self, split: Node, readers: Mapping[str, Sequence[Node]], instead: dict[str, _Instead]
    ) -> Sequence[Node]:
        """Nothing, in the place of a node whose list has its elements and its length read alone; else the node."""
        [made] = split.outputs
        if any(node.op not in _TAKING for node in readers.get(made, ())):
            return [split]
        keeps = split.attrs.get("keepdims", 1) or any(split.inputs[1:])  # which overrule it
        instead[made] = partial(
            self._taking, source=split.inputs[0], axis=split.attrs.get("axis", 0), keeps=bool(keeps)
        )
        return []

    def _stacked(self, loop: Node, lists: Sequence[_Appended], instead: dict[str, _Instead]) -> Iterator[Node]:
        """A loop that stacks what it added to lists, and a Slice for each to which it added in front."""
        body, gone = loop.attrs["body"], [each.state for each in lists]
        copies = [Node("Identity", (each.value,), (self.fresh.fresh(f"{each.value}/appended"),)) for each in lists]
        inserts = {body.outputs[1 + i] for i in gone}
        inside = replace(
            body,
            inputs=_without(body.inputs, [2 + i for i in gone]),
            outputs=(*_without(body.outputs, [1 + i for i in gone]), *(node.outputs[0] for node in copies)),
            nodes=(*(node for node in body.nodes if inserts.isdisjoint(node.outputs)), *copies),
        )
        stacks = [self.fresh.fresh(f"{each.name}/stack") for each in lists]
        unread = [self.fresh.fresh(f"{lists[0].name}/unread") for _ in body.outputs[1 + len(loop.outputs) :]]
        outputs = (*_without((*loop.outputs, *unread), gone), *stacks)
        inputs = _without(loop.inputs, [2 + i for i in gone])
        yield replace(loop, inputs=inputs, outputs=outputs, attrs={**loop.attrs, "body": inside})
        for each, made in zip(lists, stacks, strict=True):
            stack = self.fresh.fresh(f"{each.name}/turned") if each.in_front else made
            if each.in_front:
                last, first = self._constant([-1]), self._constant([-_END])
                yield Node("Slice", (made, last, first, self._constant([0]), last), (stack,))
            instead[each.name] = partial(self._reading, stack=stack, rank=each.rank)

    def _reading(self, node: Node, stack: str, rank: int | None) -> Iterator[Node]:
        taken = node.op in _TAKING
        return self._taking(node, stack, 0, keeps=False) if taken else self._joined(node, stack, rank)

    def _taking(self, node: Node, source: str, axis: int, *, keeps: bool) -> Iterator[Node]:
        """Nodes in the place of one that reads an element of a list, or its length."""
        [made] = node.outputs
        if node.op == "SequenceLength":
            shape = self.fresh.fresh(f"{made}/shape")
            yield Node("Shape", (source,), (shape,))
            yield replace(node, op="Gather", inputs=(shape, self._constant(axis)))
            return
        index = self.fresh.fresh(f"{made}/index")  # an index may have an axis of one entry
        yield Node("Reshape", (node.inputs[1], self._constant([])), (index,))
        if not keeps:
            yield replace(node, op="Gather", inputs=(source, index), attrs={"axis": axis})
            return
        part = self.fresh.fresh(f"{made}/part")
        yield Node("Gather", (source, index), (part,), {"axis": axis})
        yield replace(node, op="Unsqueeze", inputs=(part, self._constant([axis])))

    def _joined(self, node: Node, stack: str, rank: int | None) -> Iterator[Node]:
        """Nodes that join the tensors of a stack as a ConcatFromSequence joins those of a list."""
        new, axis = bool(node.attrs.get("new_axis", 0)), node.attrs["axis"]
        if axis and rank is not None:
            axis %= rank + new
            moved = self.fresh.fresh(f"{stack}/moved")
            yield Node("Transpose", (stack,), (moved,), {"perm": (*range(1, axis + 1), 0, *range(axis + 1, rank + 1))})
            stack = moved
        if new:
            yield replace(node, op="Identity", inputs=(stack,), attrs={})
            return
        names = (self.fresh.fresh(f"{stack}/{part}") for part in ("before", "both", "behind", "length", "shape"))
        before, both, behind, length, shape = names
        yield Node("Shape", (stack,), (before,), {"end": axis})
        yield Node("Shape", (stack,), (both,), {"start": axis, "end": axis + 2})
        yield Node("Shape", (stack,), (behind,), {"start": axis + 2})
        yield Node("ReduceProd", (both,), (length,))
        yield Node("Concat", (before, length, behind), (shape,), {"axis": 0})
        yield replace(node, op="Reshape", inputs=(stack, shape), attrs={"allowzero": 1})

    def _constant(self, value: Any) -> str:
        name = self.fresh.fresh("index")
        self.constants[name] = np.array(value, np.int64)
        return name


def _appended(graph: Graph, loop: Node, name: str) -> _Appended | None:
    """A list that is empty before a loop, and that its body does nothing with but add to one of its ends."""
    body, state = loop.attrs["body"], loop.outputs.index(name)
    if state >= len(loop.inputs) - 2:
        return None
    before, after = body.inputs[2 + state], body.outputs[1 + state]
    start = next((node for node in graph.nodes if loop.inputs[2 + state] in node.outputs), None)
    insert = next((node for node in body.nodes if after in node.outputs), None)
    if start is None or start.op != "SequenceEmpty" or insert is None or insert.key != _INSERT:
        return None
    read = Counter((*body.outputs, *(n for node in body.nodes for n in node.reads)))
    if insert.inputs[0] != before or (read[before], read[after]) != (1, 1):
        return None
    places = [_fixed(body, n) if n not in body.captures else _fixed(graph, n) for n in insert.inputs[2:] if n]
    if any(place is None or place != 0 for place in places):
        return None
    types = (body.types.get(insert.inputs[1]), *(body.types.get(n) for n in (before, after)), graph.types.get(name))
    ranks = (len(known.shape) for known in types if known is not None and known.shape is not None)
    return _Appended(state, name, insert.inputs[1], bool(places), next(ranks, None))


def _is_split_singly(graph: Graph, split: Node) -> bool:
    """True for a tensor that is split into parts of one index each."""
    sizes = [_fixed(graph, name) for name in split.inputs[1:] if name]
    return all(each is not None and each.ndim == 0 and each == 1 for each in sizes)


def _fixed(graph: Graph, name: str) -> Array | None:
    """The value of a constant; None for an input that has one by default."""
    return None if name in graph.inputs else graph.constants.get(name)


def _readers(graph: Graph, names: Collection[str]) -> dict[str, list[Node]]:
    """Nodes that read each of some tensors, those of bodies too, and nodes whose bodies give one as a result."""
    found: dict[str, list[Node]] = {}
    for node in graph.all_nodes:
        read = (*node.inputs, *(n for body in node.subgraphs for n in body.outputs))
        for name in {*read}.intersection(names):
            found.setdefault(name, []).append(node)
    return found


def _read_instead(nodes: Iterable[Node], instead: Mapping[str, _Instead]) -> Iterator[Node]:
    """The nodes, with others in the place of those that read some tensors."""
    for node in nodes:
        name = next((n for n in node.inputs if n in instead), None)
        if name is not None:
            yield from instead[name](node)
        elif any(n in instead for n in node.reads):
            yield node.with_graphs(lambda body: replace(body, nodes=tuple(_read_instead(body.nodes, instead))))
        else:
            yield node


def _without(names: Sequence[str], positions: Collection[int]) -> tuple[str, ...]:
    return tuple(name for i, name in enumerate(names) if i not in positions)
