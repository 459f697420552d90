"""A simplified graph computes what the graph computed, by as few nodes as the table says, under the same names."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcheck_cli.autodiff.trace import result, trace
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.export.simplify import RULES, simplified
from gradcheck_cli.export.simplify.draft import Draft, Found, Rule
from gradcheck_cli.formats.onnx.read import read_proto
from gradcheck_cli.formats.onnx.write import to_proto
from gradcheck_cli.graph import Array, Graph, Node, TensorType
from gradcheck_cli.ops import OPS
from tests.rounding import gamma

N = 4  # the size of the open dimension
DRAWING = {"RandomNormalLike", "Dropout"}
PLACES = {name: gamma(name, 64) for name in ("float32", "float64")} | {"float16": gamma("float16", 8)}


@dataclass(frozen=True, slots=True)
class Case:
    """A graph in ONNX's text syntax, what of it is kept, and the operators that are left."""

    name: str
    kept: tuple[str, ...]
    text: str
    left: str

    @property
    def graph(self) -> Graph:
        return graph_of(self.text)


def graph_of(text: str) -> Graph:
    """The graph that a text stands for."""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> g {text}')
    return read_proto(model).graph


def cases() -> Iterator[Case]:
    """The cases of `simplifications.txt`."""
    text = Path(__file__).with_name("simplifications.txt").read_text("utf-8")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    for title, graph, left in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        name, _, kept = title.rstrip("]").partition(" [")
        yield Case(name, tuple(kept.split(", ")) if kept else (), graph, left)


CASES = list(cases())


def drawn(graph: Graph, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Array]:
    """Values for the inputs of a graph."""

    def one(declared: TensorType) -> Array:
        shape = [d if isinstance(d, int) else sizes[str(d)] for d in declared.shape or ()]
        values = rng.normal(size=shape)
        return values > 0 if declared.dtype == bool else values.astype(declared.dtype)

    return {name: one(graph.types[name]) for name in graph.free_inputs}


def values(graph: Graph, feeds: Mapping[str, Array]) -> list[Array]:
    """Outputs of a graph, in its own dtypes."""
    tape = trace(graph, feeds, ops=OPS, dtype="model")
    return [result(tape, name) for name in graph.outputs]


def assert_same(before: Graph, after: Graph, feeds: Mapping[str, Array]) -> None:
    """Both give the same, up to a few roundings; NaN and infinities where the other one has them."""
    for a, b in zip(values(before, feeds), values(after, feeds), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=PLACES.get(a.dtype.name, 0), atol=PLACES.get(a.dtype.name, 0))


def ops(graph: Graph) -> str:
    """The operators of a graph, in order."""
    return " ".join(node.op for node in graph.nodes)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_these_nodes_are_left(case: Case):
    assert ops(simplified(case.graph, kept=case.kept)) == case.left


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_values_names_and_types_stay(case: Case):
    graph = case.graph
    small = simplified(graph, kept=case.kept)
    assert (small.inputs, small.outputs, small.types) == (graph.inputs, graph.outputs, graph.types)
    onnx.checker.check_model(to_proto(small), full_check=True)
    for n in (1, N):
        if DRAWING.isdisjoint(node.op for node in graph.nodes):
            assert_same(graph, small, drawn(graph, np.random.default_rng(0), {"N": n, "M": n + 1}))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_simplified_is_simple(case: Case):
    small = simplified(case.graph, kept=case.kept)
    assert simplified(small, kept=case.kept) is small


# Subgraphs, names, work


IF = """(bool c, float[2,3] x) => (float[2,3] y) {
    a = Exp(x)
    b = Exp(x)
    y = If(c) <then_branch = t () => (p) { q = Identity(b) r = Identity(q) s = Add(r, b) p = Cast<to = 1>(s) },
               else_branch = e () => (n) { m = Neg(b) n = Sub(a, m) }>
}"""


def test_graphs_inside_nodes_are_simplified_with_what_they_capture():
    graph = graph_of(IF)
    small = simplified(graph)
    assert ops(small) == "Exp If"
    assert [ops(inside) for inside in small.nodes[1].subgraphs] == ["Add", "Add"]
    assert small.nodes[1].reads == ("c", "a")
    onnx.checker.check_model(to_proto(small), full_check=True)
    for c in (True, False):
        assert_same(graph, small, {"c": np.array(c), "x": np.ones((2, 3), np.float32)})


def test_an_output_of_a_branch_that_comes_from_around_is_copied():
    graph = graph_of("(bool c, float[2] x) => (float[2] y) { a = Neg(x) y = If(c) <then_branch = t () => (p) "
                     "{ n = Neg(a) p = Neg(n) }, else_branch = e () => (q) { q = Exp(a) }> }")  # fmt: skip
    small = simplified(graph)
    assert [ops(inside) for inside in small.nodes[1].subgraphs] == ["Identity", "Exp"]
    assert_same(graph, small, {"c": np.array(True), "x": np.ones(2, np.float32)})


def test_nodes_of_the_model_stay_and_are_used_by_others():
    text = "(float[2] x) => (float[2] y, float[2] d) { h = Identity(x) y = Exp(h) e = Exp(x) f = Exp(h) d = Mul(e, f) }"
    graph = graph_of(text)
    named = replace(graph, nodes=tuple(replace(node, name=f"my {node.outputs[0]}") for node in graph.nodes))
    small = simplified(named, kept={"h", "y"})
    assert [(node.name, node.op) for node in small.nodes] == [
        ("my h", "Identity"), ("my y", "Exp"), ("my e", "Exp"), ("my d", "Mul"),
    ]  # fmt: skip
    assert small.nodes[3].inputs == ("e", "y")


def test_inputs_with_defaults_are_no_constants():
    graph = graph_of("(float[2] x, float w) => (float[2] y) <float one = {1}> { v = Mul(w, one) y = Mul(x, v) }")
    graph = replace(graph, constants={**graph.constants, "w": np.float32(1)})
    small = simplified(graph)
    assert (ops(small), small.inputs, set(small.constants)) == ("Mul", ("x", "w"), {"w"})


def test_equal_constants_are_one_and_those_that_nobody_reads_go():
    graph = graph_of("(float[2] x) => (float[2] y) <float a = {2}, float b = {2}, float n = {-0.0}, float z = {0}, "
                     "float u = {5}> { p = Pow(x, a) q = Pow(p, b) r = Pow(q, n) y = Pow(r, z) }")  # fmt: skip
    assert set(simplified(graph).constants) == {"a", "n", "z"}


@pytest.mark.slow
@pytest.mark.parametrize("op", ["Neg", "Exp", "Identity"])
def test_work_grows_with_the_graph_and_no_faster(op: str):
    """Rules are asked a bounded number of times for each node, however long the chain."""
    asked: Counter[str] = Counter()

    def counted(rule: Rule) -> Rule:
        def asking(node: Node, at: Draft) -> Found | None:
            asked[op] += 1
            return rule(node, at)

        return asking

    rules = {key: tuple(counted(rule) for rule in found) for key, found in RULES.items()}
    counts = []
    for length in (1_000, 100_000):
        names = ["x", *(f"t{i}" for i in range(length - 1)), "y"]
        nodes = tuple(Node(op, (a,), (b,)) for a, b in itertools.pairwise(names))
        graph = Graph(("x",), ("y",), nodes, types={"x": TensorType(np.dtype(np.float32), (2,))})
        asked.clear()
        small = simplified(graph, rules=rules)
        counts.append(asked[op] / length)
        assert len(small.nodes) == (length if op == "Exp" else 1)
    assert counts[1] <= counts[0] * 1.01
    assert counts[1] < 20


# Random graphs


F64, I64, BOOL = np.dtype(np.float64), np.dtype(np.int64), np.dtype(np.bool_)
INPUTS = {
    "x": TensorType(F64, ("N", 3)), "z": TensorType(F64, ("N", 3)), "w": TensorType(F64, (3, 3)),
    "v": TensorType(F64, (3,)), "u": TensorType(F64, (1, 3)), "s": TensorType(F64, ()), "c": TensorType(BOOL, ("N", 3)),
}  # fmt: skip
CONSTANTS: dict[str, Array] = {
    "zero": np.zeros(()), "one": np.ones(()), "minus": np.array(-1.0), "half": np.array([0.5]), "three": np.array(3.0),
    "ones": np.ones((1, 3)), "zeros": np.zeros(3), "eye": np.eye(3), "sizes": np.array([N, 3]),
    "first": np.array(0),
}  # fmt: skip
LEAVES = [*INPUTS, *CONSTANTS]  # what may be divided by: no zero of theirs is a sum, whose sign may change
EXTREMES = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0, 0.5, -3.0)
SCALES = ("one", "minus", "half", "three")
LARGEST = 2.0**20  # beyond it nothing is drawn: that no intermediate overflows is what two scales in one assume


class Growing:
    """A graph that grows by nodes that can be computed at a point."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self.draw = draw
        values = st.lists(st.sampled_from(EXTREMES), min_size=9, max_size=9)
        self.feeds = {n: self.value(t, draw(values)) for n, t in INPUTS.items()}
        self.at: dict[str, Array] = {**self.feeds, **CONSTANTS}
        self.constants = dict(CONSTANTS)
        self.nodes: list[Node] = []

    def value(self, declared: TensorType, values: list[float]) -> Array:
        shape = tuple(N if d == "N" else int(d or 0) for d in declared.shape or ())
        return np.resize(np.array(values), shape).astype(declared.dtype or F64)

    def some(self, kind: str = "f") -> str:
        """A tensor, most often one that was made just now."""
        fitting = [n for n, v in self.at.items() if v.dtype.kind == kind]
        made = [node.outputs[0] for node in self.nodes[-3:] if node.outputs[0] in fitting]
        given = [n for n in fitting if n not in self.constants]
        return str(self.draw(st.sampled_from(made * 6 + given * 2 + fitting)))

    def ints(self, *choices: tuple[int, ...]) -> str:
        value = np.array(self.draw(st.sampled_from(choices)), np.int64)
        name = f"i{value.tolist()}"
        self.constants[name] = self.at[name] = value
        return name

    def grow(self) -> None:
        """One node more, if it fits what there is."""
        follow = NEXT.get(self.nodes[-1].op, ()) if self.nodes and self.draw(st.booleans()) else ()
        op, inputs, attrs = VOCABULARY[self.draw(st.sampled_from(follow or list(VOCABULARY)))](self)
        node = Node(op, inputs, (f"t{len(self.nodes)}",), attrs)
        try:
            tape = trace(Graph((), node.outputs, (node,), {n: self.at[n] for n in inputs}), {}, ops=OPS, dtype="model")
        except GradcheckError:
            return
        value = result(tape, node.outputs[0])
        if value.dtype.kind != "f" or not (np.abs(value[np.isfinite(value)]) > LARGEST).any():
            self.nodes.append(node)
            self.at[node.outputs[0]] = value

    def graph(self) -> Graph:
        """The graph; what nobody reads is an output, and so may be one that is read."""
        made = [node.outputs[0] for node in self.nodes if self.at[node.outputs[0]].dtype.kind == "f"]
        read = {name for node in self.nodes for name in node.inputs}
        more = self.draw(st.lists(st.sampled_from(made), max_size=1))
        outputs = tuple(dict.fromkeys([*more, *(n for n in made if n not in read)]))
        return Graph(tuple(INPUTS), outputs, tuple(self.nodes), self.constants, INPUTS)


Drawn = tuple[str, tuple[str, ...], dict[str, Any]]


def unary(op: str) -> Callable[[Growing], Drawn]:
    return lambda g: (op, (g.some(),), {})


def binary(op: str) -> Callable[[Growing], Drawn]:
    return lambda g: (op, (g.some(), g.some()), {})


def reduction(op: str) -> Callable[[Growing], Drawn]:
    axes = ((0,), (1,), (0, 1), (-1,))
    return lambda g: (op, (g.some(), g.ints(*axes)), {"keepdims": int(g.draw(st.booleans()))})


def leaf(g: Growing) -> str:
    """Something to divide by."""
    divided = [n for n in LEAVES if g.at[n].dtype.kind == "f"]
    over = [node.outputs[0] for node in g.nodes if node.op == "Reciprocal"]
    return str(g.draw(st.sampled_from(divided + over)))


def flag(g: Growing) -> int:
    return int(g.draw(st.booleans()))


SHAPES = ((3,), (1, 3), (3, 1), (N, 3), (3, N), (-1,), (0, -1), (1, N, 3), (N * 3,))
VOCABULARY: dict[str, Callable[[Growing], Drawn]] = {
    **{op: binary(op) for op in ("Add", "Sub", "Mul", "MatMul")},
    **{op: unary(op) for op in ("Neg", "Identity", "Max", "Shape")},
    **{op: reduction(op) for op in ("ReduceSum", "ReduceMean", "ReduceMax")},
    "Sum": lambda g: ("Sum", (g.some(), g.some(), g.some())[flag(g) :], {}),
    "scale": lambda g: ("Mul", (g.some(), g.draw(st.sampled_from(SCALES))), {}),
    "share": lambda g: ("Div", (g.some(), g.draw(st.sampled_from(SCALES))), {}),
    "Div": lambda g: ("Div", (g.some(), leaf(g)), {}),
    "Reciprocal": lambda g: ("Reciprocal", (leaf(g),), {}),
    "Not": lambda g: ("Not", (g.some("b"),), {}),
    "Where": lambda g: ("Where", (g.some("b"), g.some(), g.some()), {}),
    "Cast": lambda g: ("Cast", (g.some(),), {"to": 11}),
    "Transpose": lambda g: ("Transpose", (g.some(),), {"perm": (1, 0)}),
    "back": lambda g: ("Transpose", (g.some(),), {}),
    "stack": lambda g: ("Transpose", (g.some(),), {"perm": (0, 2, 1)}),
    "Reshape": lambda g: ("Reshape", (g.some(), g.ints(*SHAPES)), {}),
    "Expand": lambda g: ("Expand", (g.some(), g.ints(*(s for s in SHAPES if min(s) > 0))), {}),
    "Unsqueeze": lambda g: ("Unsqueeze", (g.some(), g.ints((0,), (1,), (0, 1))), {}),
    "Squeeze": lambda g: ("Squeeze", (g.some(), g.ints((0,), (1,))), {}),
    "Slice": lambda g: (
        "Slice", (g.some(), g.ints((0,), (1,), (-1,)), g.ints((9,), (-9,)), g.ints((0,)), g.ints((1,), (-1,))), {}
    ),
    "Pad": lambda g: ("Pad", (g.some(), g.ints((0, 0, 0, 0), (1, 0, 0, 0))), {}),
    "Gather": lambda g: ("Gather", (g.some("i"), g.draw(st.sampled_from(("first", g.ints((0,), (1,)))))), {}),
    "Concat": lambda g: ("Concat", (g.some("i"), g.some("i")), {"axis": 0}),
    "count": lambda g: ("Mul", (g.some("i"), g.some("i")), {}),
    "number": lambda g: ("Cast", (g.some("i"),), {"to": 11}),
    "shape": lambda g: ("Reshape", (g.some(), g.some("i")), {}),
    "copies": lambda g: ("Expand", (g.some(), g.some("i")), {}),
    "Gemm": lambda g: (
        "Gemm", (g.some(), g.some(), g.some())[: 2 + flag(g)], {"transA": flag(g), "transB": flag(g), "alpha": 2.0}
    ),
}  # fmt: skip
NEXT = {  # what rules look for behind an operator
    "MatMul": ("Transpose", "Add", "Sub", "Neg", "scale", "ReduceSum"), "Gemm": ("Transpose", "Add", "Neg", "scale"),
    "Transpose": ("MatMul", "Transpose", "back"), "ReduceSum": ("Reshape", "ReduceSum", "Squeeze", "Unsqueeze"),
    "ReduceMax": ("ReduceMax", "Squeeze"), "Neg": ("Add", "Sub", "Mul", "Neg", "scale", "Div"), "Sub": ("Neg",),
    "Expand": ("Mul", "Neg", "Where", "Expand"), "Reciprocal": ("Mul", "Div"), "Mul": ("scale", "share", "Neg", "Add"),
    "Shape": ("Gather", "copies", "shape", "count"), "Gather": ("Concat", "count", "number", "copies"),
    "Concat": ("shape", "copies"), "Reshape": ("Squeeze", "Unsqueeze", "Reshape", "Add"), "Div": ("share", "Neg"),
}  # fmt: skip


@st.composite
def graphs(draw: Any) -> tuple[Graph, dict[str, Array]]:
    growing = Growing(draw)
    for _ in range(draw(st.integers(4, 14))):
        growing.grow()
    if not any(growing.at[node.outputs[0]].dtype.kind == "f" for node in growing.nodes):
        growing.nodes, growing.at["t0"] = [Node("Neg", ("x",), ("t0",))], -growing.at["x"]
    return growing.graph(), growing.feeds


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(graphs())
def test_a_random_graph_gives_the_same(drawn: tuple[Graph, dict[str, Array]]):
    graph, feeds = drawn
    small = simplified(graph)
    assert (small.inputs, small.outputs) == (graph.inputs, graph.outputs)
    assert len(small.nodes) <= len(graph.nodes)
    assert simplified(small) is small
    for before, after in zip(values(graph, feeds), values(small, feeds), strict=True):
        assert before.shape == after.shape
        scale = np.max(np.abs(before[np.isfinite(before)]), initial=1)
        np.testing.assert_allclose(after, before, rtol=1e-12, atol=1e-9 * scale)
