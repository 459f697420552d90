"""Sequences, optionals and maps beyond single cases: what is refused, what steers, maps against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TypeProto, ValueInfoProto, helper
from onnx import TensorProto as T

from gradcheck_cli.autodiff.tape import Tape, Var
from gradcheck_cli.autodiff.trace import result, trace
from gradcheck_cli.backend import prepare
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import LimitError, ModelError, UsageError
from gradcheck_cli.graph import Graph, Node, TensorType
from gradcheck_cli.graph.containers import Map, Optional, Sequence, elements, plain, typed
from gradcheck_cli.ops import OPS
from gradcheck_cli.ops.sequence import sequence_insert
from tests.ops.case import arr, chain, node
from tests.ops.cases.sequence import FLOAT, GROWING, PAIR, SEQUENCE, SQUARED

ML = "ai.onnx.ml"
X = np.asarray([[0.25, 0.75], [0.5, 0.125]], np.float32)
WORDS = np.asarray(["a", "z"], object)

ONE, TWO = arr(2), arr(2, seed=1)
EMPTY = node("SequenceEmpty", "", "s")
THROUGH = Graph(("i", "go"), ("go", "h"), (node("Identity", "s", "h"),))
FIRST_OF_TWO = Graph(("a", "b"), ("a",), ())
KEYED = node("MapConstruct", "x0", "m", "gradcheck", keys=(5, 1))


def test_a_loop_that_inserts_many_tensors_looks_at_each_once(monkeypatch: pytest.MonkeyPatch):
    reads, tape, made = list[str](), Tape(OPS), Sequence(())
    tensors = [tape.constant(np.float32(index)) for index in range(100)]
    monkeypatch.setattr(Var, "dtype", property(lambda var: reads.append(var.name) or var.like.dtype))
    for tensor in tensors:
        made = sequence_insert(made, tensor)
    assert made.items == tuple(tensors)
    assert len(reads) < 300


REFUSED = [  # what is said, nodes, values of x0, x1 ..., constants
    ("position 2 is out of range in a sequence of 2", [PAIR, node("SequenceAt", "s i", "y0")], [ONE, TWO], {"i": 2}),
    ("position -3 is out of range in a sequence of 2", [PAIR, node("SequenceAt", "s i", "y0")], [ONE, TWO], {"i": -3}),
    ("a position is one integer", [PAIR, node("SequenceAt", "s i", "y0")], [ONE, TWO], {"i": [0, 1]}),
    ("a position is one integer", [PAIR, node("SequenceAt", "s s", "y0")], [ONE, TWO], {}),
    ("position 3 is out of range", [PAIR, node("SequenceInsert", "s x0 i", "y0")], [ONE, TWO], {"i": 3}),
    ("there is nothing to erase", [EMPTY, node("SequenceErase", "s", "y0")], [], {}),
    ("of one dtype, not float64 and int64", [PAIR, node("SequenceLength", "s", "y0")], [ONE, [1]], {}),
    ("a sequence is needed, not a tensor", [node("SequenceLength", "x0", "y0")], [ONE], {}),
    ("not an optional of", [node("Optional", "x0", "o"), node("SequenceLength", "o", "y0")], [ONE], {}),
    ("takes tensors; its input 0 is a sequence of 2", [PAIR, node("Exp", "s", "y0")], [ONE, TWO], {}),
    ("takes tensors; its input 1 is a sequence of 2", [PAIR, node("Add", "x0 s", "y0")], [ONE, TWO], {}),
    ("lengths [2, 2] do not make 5", [node("SplitToSequence", "x0 k", "y0")], [arr(5)], {"k": [2, 2]}),
    ("pieces of length 0 are not possible", [node("SplitToSequence", "x0 k", "y0")], [arr(5)], {"k": 0}),
    ("axis 1 is out of range", [node("SplitToSequence", "x0", "y0", axis=1)], [arr(5)], {}),
    ("there is nothing to put together", [EMPTY, node("ConcatFromSequence", "s", "y0", axis=0)], [], {}),
    ("axis 2 is out of range", [PAIR, node("ConcatFromSequence", "s", "y0", axis=2, new_axis=1)], [ONE, TWO], {}),
    ("sequences of 2 and 1 do not go together",
     [PAIR, node("SequenceConstruct", "x0", "r"), node("SequenceMap", "s r", "y0", body=FIRST_OF_TWO)], [ONE, TWO], {}),
    ("the body takes 1 input, not 2", [PAIR, node("SequenceMap", "s x0", "y0", body=SQUARED)], [ONE, TWO], {}),
    ("needs the attribute 'type'", [node("Optional", "", "y0")], [], {}),
    ("the optional is empty",
     [node("Optional", "", "o", type=TensorType(FLOAT)), node("OptionalGetElement", "o", "y0")], [], {}),
    ("there is no element 2 in a sequence of 2", [PAIR, node("Element", "s", "y0", "gradcheck", index=2)], [ONE, TWO], {}),
    ("a condition is a sequence of 2; it must be a tensor",
     [PAIR, node("Loop", "- s x0", "y0", body=GROWING)], [ONE, TWO], {}),
    ("a trip count is a sequence of 2; it must be a tensor",
     [PAIR, node("Loop", "s - x0", "y0", body=GROWING)], [ONE, TWO], {}),
    ("scan output 'h' is a sequence of 2; it must be a tensor",
     [PAIR, node("Loop", "k", "y0", body=THROUGH)], [ONE, TWO], {"k": 1}),
    ("2 labels do not name the columns", [node("ZipMap", "x0", "y0", ML, classlabels_int64s=(1, 2))], [arr(2, 3)], {}),
    ("2 labels do not name the columns", [node("ZipMap", "x0", "y0", ML, classlabels_int64s=(1, 1))], [arr(2, 2)], {}),
    ("a map is needed, not a tensor", [node("CastMap", "x0", "y0", ML)], [ONE], {}),
    ("key 5 is not in the vocabulary", [KEYED, node("DictVectorizer", "m", "y0", ML, int64_vocabulary=(1,))], [ONE], {}),
    ("keys from 1 to 5 do not fit into 5 places",
     [KEYED, node("CastMap", "m", "y0", ML, map_form="SPARSE", max_map=5)], [ONE], {}),
]  # fmt: skip


@pytest.mark.parametrize("message, nodes, inputs, constants", REFUSED)
def test_what_does_not_fit_is_an_error_that_names_the_node(
    message: str, nodes: list[Node], inputs: list[Any], constants: dict[str, Any]
) -> None:
    with pytest.raises(ModelError, match=r"^node \d") as caught:
        chain("SequenceAt", nodes, *inputs, **constants).tape()
    assert message in str(caught.value)


def test_a_tensor_is_not_split_into_more_pieces_than_a_run_may_have_steps() -> None:
    case = chain("SplitToSequence", [node("SplitToSequence", "x0", "y0")], np.zeros(200_001))
    with pytest.raises(LimitError, match="a sequence of 200,001 tensors"):
        case.tape()


def test_a_probe_that_changes_a_position_crosses_a_branch() -> None:
    nodes = [PAIR, node("ReduceSum", "x0", "sum", keepdims=0), node("Greater", "sum limit", "more"),
             node("Cast", "more", "i", to=7), node("SequenceAt", "s i", "y0")]  # fmt: skip
    x = np.asarray([0.25, 0.25])
    tape = chain("SequenceAt", nodes, x, arr(2), limit=1.0).tape()
    outcome = Program(tape, ["x0"], [tape.named["y0"].name]).run({"x0": np.stack([x, x + 1])}, branches=True)
    assert outcome.any_crossed(2).tolist() == [False, True]


def test_sequences_are_fed_as_lists_and_records_alike_and_named_by_their_elements() -> None:
    graph = Graph(("s",), ("t",), (node("Identity", "s", "t"),), types={"s": SEQUENCE})
    for value in ([arr(2), arr(3)], (arr(2), arr(3)), Sequence((arr(2), arr(3)))):
        tape = trace(graph, {"s": value}, ops=OPS)
        assert [v.shape for v in plain(result(tape, "t"))] == [(2,), (3,)]
        assert {"s[0]", "s[1]"} <= set(tape.values)


def test_what_is_inside_is_named_by_places() -> None:
    value = Sequence((Optional(1), Optional(), Sequence((2, Map(("a",), 3)))))
    assert elements("s", value) == {"s[0][0]": 1, "s[2][0]": 2, "s[2][1][0]": 3}
    assert plain(Sequence((Map((1, 2), np.asarray([0.5, 1.5])), Optional()))) == [{1: 0.5, 2: 1.5}, None]


def test_values_are_checked_against_what_is_declared() -> None:
    assert typed(None, TensorType(kind="optional"), "o") == Optional()
    table = TensorType(FLOAT, (), "map", TensorType(FLOAT, ()), np.dtype(object))
    assert typed({"a": 1, "b": 2}, table, "m").keys == ("a", "b")
    for value, declared in ((3, SEQUENCE), ([1], table), (None, SEQUENCE)):
        with pytest.raises(UsageError, match=r"v: a (sequence|map)"):
            typed(value, declared, "v")


def tensor_type(elem: int, *shape: int) -> TypeProto:
    """The type of a tensor."""
    return helper.make_tensor_type_proto(elem, shape)


def map_type(key: int, elem: int) -> TypeProto:
    """The type of a map to single values."""
    return helper.make_map_type_proto(key, tensor_type(elem))


AGAINST_ONNXRUNTIME = [  # operator, type of x, x, attributes, version of the domain
    ("ZipMap", tensor_type(T.FLOAT, 2, 2), X, {"classlabels_strings": ["b", "a"]}, 1),
    ("ZipMap", tensor_type(T.FLOAT, 2), X[0], {"classlabels_int64s": [7, 3]}, 1),
    ("CastMap", map_type(T.INT64, T.FLOAT), {5: 1.5, 1: 2.75}, {}, 1),
    ("CastMap", map_type(T.INT64, T.FLOAT), {5: 1.5, 1: 2.75}, {"cast_to": "TO_INT64"}, 1),
    ("CastMap", map_type(T.INT64, T.FLOAT), {5: 1.5, 1: 2.75}, {"map_form": "SPARSE", "max_map": 7}, 1),
    ("LabelEncoder", tensor_type(T.STRING, 2), WORDS, {"classes_strings": ["b", "a"]}, 1),
    ("LabelEncoder", tensor_type(T.INT64, 2), np.asarray([1, 2]), {"classes_strings": ["b", "a"]}, 1),
    ("LabelEncoder", tensor_type(T.FLOAT, 2), np.asarray([np.nan, 0.1], np.float32),
     {"keys_floats": [float("nan"), 0.1], "values_strings": ["lost", "small"]}, 4),
]  # fmt: skip


@pytest.mark.parametrize("op, kind, x, attrs, version", AGAINST_ONNXRUNTIME)
def test_maps_and_tables_are_those_of_onnxruntime(op: str, kind: TypeProto, x: Any, attrs: Any, version: int) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = single(helper.make_node(op, ["x"], ["y"], domain=ML, **attrs), kind, version)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})
    (actual,) = prepare(model).run([x])
    if isinstance(expected, np.ndarray):
        assert (actual.dtype, actual.tolist()) == (expected.dtype, expected.tolist())
    else:
        assert actual == expected


def test_a_dict_becomes_the_vector_of_the_standard() -> None:
    keys = helper.make_node("DictVectorizer", ["x"], ["y"], domain=ML, string_vocabulary=["a", "c", "b", "z"])
    (y,) = prepare(single(keys, map_type(T.STRING, T.FLOAT), 1)).run([{"a": 4.0, "c": 8.0}])
    assert (y.dtype, y.tolist()) == (np.float32, [4, 8, 0, 0])
    keys = helper.make_node("DictVectorizer", ["x"], ["y"], domain=ML, int64_vocabulary=[3, 1])
    assert prepare(single(keys, map_type(T.INT64, T.STRING), 1)).run([{1: "a"}])[0].tolist() == ["", "a"]


def test_a_map_of_strings_is_cast() -> None:
    cast = helper.make_node("CastMap", ["x"], ["y"], domain=ML, cast_to="TO_FLOAT")
    (y,) = prepare(single(cast, map_type(T.INT64, T.STRING), 1)).run([{5: "1.5", 1: "-2"}])
    assert (y.dtype, y.tolist()) == (np.float32, [[-2.0, 1.5]])


def single(one: NodeProto, kind: TypeProto, version: int) -> Any:
    """A model of one node of the domain, from x to y."""
    graph = helper.make_graph([one], "g", [helper.make_value_info("x", kind)], [ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)
