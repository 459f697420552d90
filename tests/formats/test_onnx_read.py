"""`read` gives the graphs of ordinary models, and an error for files that are none."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from gradcheck_cli.errors import LimitError, ModelError, UnsupportedError
from gradcheck_cli.formats.onnx import graph_proto
from gradcheck_cli.formats.onnx.opset import NEWEST
from gradcheck_cli.formats.onnx.read import read, read_proto, read_tensor, read_test_data
from gradcheck_cli.graph import Graph, Node, TensorType
from gradcheck_cli.graph.memory import installed

MODELS = Path(__file__).parents[3] / "shared" / "models"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
REAL = [*sorted(MODELS.rglob("*.onnx")), *sorted(LIGHT.glob("*.onnx"))]


def model(text: str, opset: int = 18, functions: str = "", extra: str = "") -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}{extra}]> {text} {functions}')


def graph(text: str, opset: int = 18, functions: str = "", extra: str = "") -> Graph:
    return read_proto(model(text, opset, functions, extra), "m.onnx").graph


def initialized(tensor: TensorProto) -> onnx.ModelProto:
    """A model that gives out one constant."""
    proto = onnx.ModelProto(ir_version=8)
    proto.opset_import.add(version=18)
    proto.graph.name = "g"
    proto.graph.initializer.append(tensor)
    proto.graph.output.add(name=tensor.name)
    return proto


@pytest.mark.parametrize("path", REAL or [pytest.param(None, marks=pytest.mark.skip("no shared models"))], ids=str)
def test_real_models_are_read_in_newest_form(path: Path) -> None:
    declared = max(
        o.version for o in onnx.load(path, load_external_data=False).opset_import if o.domain in ("", "ai.onnx")
    )
    if declared > NEWEST:  # newer than the installed onnx
        with pytest.raises(UnsupportedError, match=f"its opset is {declared}; opsets up to {NEWEST} are known"):
            read(path)
        return
    source = read(path)
    assert source.uri == str(path)
    assert source.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert source.graph.opset[""] == NEWEST
    assert source.opset[""] <= NEWEST
    assert source.nodes > 0
    assert source.graph.captures == ()


@pytest.mark.skipif(not MODELS.is_dir(), reason="the shared models are not here")
def test_fifty_shared_models_are_there() -> None:
    assert len(list(MODELS.rglob("*.onnx"))) == 50


def test_nodes_are_counted_at_every_level() -> None:
    text = "g (float[2] x, bool c) => (y) { y = If <then_branch = a () => (o) { o = Exp(x) },"
    source = read_proto(model(f"{text} else_branch = b () => (o) {{ h = Exp(x) o = Exp(h) }}> (c) }}"))
    assert source.nodes == 4
    assert len(source.graph.nodes) == 1


def test_a_node_keeps_what_it_says() -> None:
    proto = model("g (float[N, 3] x) => (y) { [first] y = Gemm <alpha=0.5, transB=1> (x, x) }")
    proto.graph.node[0].metadata_props.add(key="namespace", value="net/fc")
    [node] = read_proto(proto).graph.nodes
    assert str(node) == "y = Gemm <alpha=0.5, transB=1> (x, x)"
    assert (node.name, dict(node.metadata)) == ("first", {"namespace": "net/fc"})


def test_device_configurations_are_kept_as_metadata() -> None:
    proto = model("g (float[2] x) => (y) { y = Exp(x) }")
    entry = proto.graph.node[0].device_configurations.add(configuration_id="pair")
    entry.sharding_spec.add(tensor_name="x", device=[0, 1])
    [held] = json.loads(read_proto(proto).graph.nodes[0].metadata["device_configurations"])
    assert held["configuration_id"] == "pair"


F4 = np.dtype("f4")
PAIR = TensorType(F4, (2,))


@pytest.mark.parametrize(
    "declared, expected",
    [
        ("float[N, 3] x", TensorType(np.dtype("f4"), ("N", 3))),
        ("float x", TensorType(np.dtype("f4"), ())),
        ("double[] x", TensorType(np.dtype("f8"), None)),
        ("bfloat16[?, 2] x", TensorType(np.dtype(ml_dtypes.bfloat16), (None, 2))),
        ("string[1] x", TensorType(np.dtype(object), (1,))),
        ("seq(float[2]) x", TensorType(F4, (2,), "sequence", PAIR)),
        ("map(int64, float[2]) x", TensorType(F4, (2,), "map", PAIR, np.dtype("i8"))),
        ("map(string, float[2]) x", TensorType(F4, (2,), "map", PAIR, np.dtype(object))),
        ("optional(float[2]) x", TensorType(F4, (2,), "optional", PAIR)),
        ("optional(seq(float[2])) x", TensorType(F4, (2,), "optional", TensorType(F4, (2,), "sequence", PAIR))),
        ("seq(map(string, float[2])) x",
         TensorType(F4, (2,), "sequence", TensorType(F4, (2,), "map", PAIR, np.dtype(object)))),
    ],
)  # fmt: skip
def test_declared_types(declared: str, expected: TensorType) -> None:
    assert graph(f"g ({declared}) => (y) {{ y = Identity(x) }}").types["x"] == expected


def test_a_dimension_of_minus_one_is_unknown() -> None:
    proto = model("g (float[7, 3] x) => (y) { y = Identity(x) }")
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert read_proto(proto).graph.types["x"].shape == (None, 3)


def test_types_of_inner_tensors_and_outputs_are_kept() -> None:
    text = "g (float[2] x) => (float[2] y) <float[2] h> { h = Exp(x) y = Exp(h) }"
    assert set(graph(text).types) == {"x", "h", "y"}


def test_an_initializer_that_is_an_input_stays_one() -> None:
    proto = model("g (float[2] x, float[2] w) => (y) { y = Add(x, w) }")
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    held = read_proto(proto).graph
    assert held.inputs == ("x", "w")
    assert held.free_inputs == ("x",)
    assert held.constants["w"].tolist() == [1, 1]


@pytest.mark.parametrize(
    "attribute, expected",
    [
        ("value = float[2] {1, 2}", np.array([1, 2], np.float32)),
        ("value_int = 3", np.array(3)),
        ("value_ints = [3, 4]", np.array([3, 4])),
        ("value_float = 0.5", np.float32(0.5)),
        ("value_floats = [0.5, 1.0]", np.array([0.5, 1], np.float32)),
        ('value_string = "a"', np.array("a", object)),
        ('value_strings = ["a", "b"]', np.array(["a", "b"], object)),
    ],
)
def test_constant_nodes_become_constants(attribute: str, expected: np.ndarray) -> None:
    held = graph(f"g () => (y) {{ y = Constant <{attribute}> () }}")
    assert held.nodes == ()
    assert held.constants["y"].dtype == expected.dtype
    np.testing.assert_array_equal(held.constants["y"], expected)


def test_constants_of_subgraphs_belong_to_them() -> None:
    branch = "() => (o) { two = Constant <value_float=2.0> () o = Mul(x, two) }"
    held = graph(f"g (float[2] x, bool c) => (y) {{ y = If <then_branch=a {branch}, else_branch=b {branch}> (c) }}")
    assert held.constants == {}
    assert all(float(sub.constants["two"]) == 2 for sub in held.nodes[0].subgraphs)
    assert held.nodes[0].reads == ("c", "x")


@pytest.mark.parametrize("linear", [True, False])
def test_sparse_constants_become_dense(linear: bool) -> None:
    indices = np.array([1, 5]) if linear else np.array([[0, 1], [1, 2]])
    values, where = (numpy_helper.from_array(a, n) for a, n in ((np.array([7.0, 9.0]), "w"), (indices, "")))
    proto = model("g () => (v) { }")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, where, [2, 3]))
    node = helper.make_node("Constant", [], ["v"], sparse_value=proto.graph.sparse_initializer[0])
    proto.graph.node.append(node)
    held = read_proto(proto).graph
    for name in ("w", "v"):
        np.testing.assert_array_equal(held.constants[name], [[0, 7, 0], [0, 0, 9]])


@pytest.mark.parametrize("indices, dims", [([7], [2, 3]), ([-1], [2, 3]), ([0, 1], [2, 3]), ([[0, 5]], [2, 3])])
def test_sparse_indices_outside_the_shape_are_refused(indices: list[int], dims: list[int]) -> None:
    values = numpy_helper.from_array(np.array([7.0]), "w")
    proto = initialized(values)
    del proto.graph.initializer[:]
    proto.graph.sparse_initializer.append(onnx.SparseTensorProto(values=values, dims=dims))
    proto.graph.sparse_initializer[0].indices.CopyFrom(numpy_helper.from_array(np.array(indices)))
    with pytest.raises(ModelError, match=r"'w': the indices do not fit the shape \[2, 3\]"):
        read_proto(proto)


def test_a_sparse_tensor_that_would_fill_memory_is_refused() -> None:
    values = numpy_helper.from_array(np.array([7.0]), "w")
    proto = initialized(values)
    del proto.graph.initializer[:]
    proto.graph.sparse_initializer.append(onnx.SparseTensorProto(values=values, dims=[1 << 20, 1 << 20]))
    proto.graph.sparse_initializer[0].indices.CopyFrom(numpy_helper.from_array(np.array([0])))
    with pytest.raises(LimitError, match="more than 1 GiB"):
        read_proto(proto)


def test_sparse_tensors_that_would_fill_memory_together_are_refused() -> None:
    values, where = numpy_helper.from_array(np.array([7.0], np.float32)), numpy_helper.from_array(np.array([0]))
    proto = parser.parse_model('<ir_version: 9, opset_import: ["": 21]> g (float[1] x) => (y) { y = Neg (x) }')
    for index in range(installed() // (1 << 30) + 1):  # each stays unread, so that none takes memory
        sparse = proto.graph.sparse_initializer.add(dims=[1 << 28])
        sparse.values.CopyFrom(values)
        sparse.values.name = f"w{index}"
        sparse.indices.CopyFrom(where)
    with pytest.raises(LimitError, match="do not fit into memory"):
        read_proto(proto)


DTYPES = [
    *(np.dtype(code) for code in "?bBhHiIqQefdFD"),
    *(np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz")),
    *(np.dtype(getattr(ml_dtypes, name)) for name in ("float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn")),
    *(np.dtype(getattr(ml_dtypes, name)) for name in ("int4", "uint4")),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("shape", [(3, 3), (), (0, 2)])
def test_every_dtype_is_read_from_bytes_and_from_fields(dtype: np.dtype, raw: bool, shape: tuple[int, ...]) -> None:
    values = np.asarray(np.arange(9).reshape(3, 3) % 2 if shape == (3, 3) else np.ones(shape)).astype(dtype)
    tensor = numpy_helper.from_array(values, "w")
    if not raw:
        kind = helper.np_dtype_to_tensor_dtype(dtype)
        tensor = helper.make_tensor("w", kind, shape, values.ravel())
    held = read_proto(initialized(tensor)).graph.constants["w"]
    assert held.dtype == dtype
    assert held.shape == shape
    np.testing.assert_array_equal(held.astype(complex), values.astype(complex))


def test_values_that_are_not_finite_are_kept() -> None:
    values = np.array([np.nan, np.inf, -np.inf, -0.0])
    held = read_proto(initialized(numpy_helper.from_array(values, "w"))).graph.constants["w"]
    assert held.tobytes() == values.tobytes()


def test_strings_are_text_and_bytes_where_they_are_not_utf8() -> None:
    tensor = TensorProto(name="w", dims=[2], data_type=TensorProto.STRING, string_data=["é".encode(), b"\xff"])
    assert read_proto(initialized(tensor)).graph.constants["w"].tolist() == ["é", b"\xff"]


def test_nodes_are_sorted() -> None:
    held = graph("g (float[2] x) => (y) { y = Exp(b) b = Exp(a) a = Exp(x) }")
    assert [node.outputs[0] for node in held.nodes] == ["a", "b", "y"]


def test_sorting_counts_what_subgraphs_capture() -> None:
    branch = "() => (o) { o = Exp(h) }"
    text = f"y = If <then_branch=a {branch}, else_branch=b {branch}> (c) h = Neg(x)"
    held = graph(f"g (float[2] x, bool c) => (y) {{ {text} }}")
    assert [node.op for node in held.nodes] == ["Neg", "If"]


def test_sorted_nodes_keep_their_order() -> None:
    held = graph("g (float[2] x) => (y) { b = Exp(x) a = Exp(x) y = Add(a, b) }")
    assert [node.outputs[0] for node in held.nodes] == ["b", "a", "y"]


def test_a_graph_whose_nodes_are_not_in_order_is_none() -> None:
    with pytest.raises(ModelError, match="node 0 Neg 'y' reads 'h' before it is computed"):
        Graph(("x",), ("y",), (Node("Neg", ("h",), ("y",)), Node("Exp", ("x",), ("h",))))


_CONSTANTS = "n = Constant<value_int = 3>() one = Constant<value_int = 1>() t = Cast<to = 9>(one)"
_LOOP = f"{_CONSTANTS} y = Loop<body = b ({{}}) => (bool d, float[2] e) {{{{ d = Identity(c) e = Exp(x) }}}}>(n, t, x)"
_IF = (
    f"{_CONSTANTS} y = If<then_branch = b ({{}}) => (float[2] {{}}{{}}) {{{{ e = Exp(x) f = Neg(x) }}}}, "
    "else_branch = c () => (float[2] g) {{ g = Neg(x) }}>(t)"
)


@pytest.mark.parametrize(
    "body, message",
    [
        ("y = Add(x, z) z = Exp(y)", "depends on its own output"),
        ("y = Exp(y)", "depends on its own output"),
        ("y = Add(x, q)", "node 0 Add 'y' needs 'q', which nothing computes"),
        ("h = Exp(x)", "an output needs 'y', which nothing computes"),
        ("y = Exp(x) y = Neg(x)", "computes 'y', which exists already"),
        ("x = Exp(x)  y = Neg(x)", "x"),
        ("y = Exp(x, x)", "node 0 Exp 'y' has 2 inputs; at most 1"),
        ("y = Add(x)", "node 0 Add 'y' has 1 inputs; at least 2"),
        ("y = Cast(x)", "attribute 'to' is missing"),
        ('y = Softmax <axis="a"> (x)', "attribute 'axis' is of type str; it must be of type INT"),
        ("y = Softmax <axes=1> (x)", "attribute 'axes' is unknown to opset 18. Did you mean 'axis'?"),
        ("y = Constant <value_int=1, value_float=1.0> ()", "one attribute"),
        ("y = Constant <consumed=1> ()", "attribute 'consumed' is unknown"),
        *(
            (_LOOP.format(inputs), f"its body 'b' takes {found}; Loop hands it 3")
            for inputs, found in [
                ("int64 k, bool c", "2 inputs"),
                ("int64 k, bool c, float[2] h, float[2] q", "4 inputs"),
            ]
        ),
        (_IF.format("float[2] q", "e", ""), "its then_branch 'b' takes 1 input; If hands it none"),
        (_IF.format("", "e", ", float[2] f"), "one branch has 1 output, the other 2; they must have as many"),
        (
            "y = Scan<num_scan_inputs=1, body = b (float h, float q) => (float e) { e = Exp(h) }>(x)",
            "its body 'b' takes 2 inputs; Scan hands it 1",
        ),
    ],
)
def test_graphs_that_are_none_are_refused(body: str, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        graph(f"g (float[2] x) => (y) {{ {body} }}")
    assert message in str(caught.value)
    assert str(caught.value).startswith("m.onnx: ")


@pytest.mark.parametrize("name", ["a b", "x\n\t", "ünïcode", "0", "a/b:0", "\U0001f600", "'\""])
def test_names_are_any_text(name: str) -> None:
    proto = initialized(numpy_helper.from_array(np.ones(2), name))
    assert name in read_proto(proto).graph.constants


def test_domains_have_one_name_and_of_two_imports_the_last_counts() -> None:
    proto = model("g (float[2] x) => (y) { y = Exp(x) }")
    proto.graph.node[0].domain = "ai.onnx"
    proto.opset_import.add(domain="ai.onnx", version=17)
    source = read_proto(proto)
    assert source.graph.nodes[0].domain == ""
    assert source.opset == {"": 17}


def test_a_missing_default_domain_is_the_newest() -> None:
    proto = model("g (float[2] x) => (y) { y = ReduceSum (x, x) }")
    del proto.opset_import[:]
    assert read_proto(proto).opset == {"": NEWEST}


def test_an_opset_of_the_future_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match=f"m.onnx: its opset is 99; opsets up to {NEWEST} are known"):
        graph("g (float[2] x) => (y) { y = Exp(x) }", opset=99)


def test_unknown_operators_are_kept_for_others_to_judge() -> None:
    held = graph('g (float[2] x) => (y) { h = Nonesuch <a=1> (x) y = my.Op <b="c"> (h) }', extra=', "my": 3')
    assert [node.key for node in held.nodes] == [("", "Nonesuch"), ("my", "Op")]
    assert held.opset["my"] == 3


TWICE = '<domain: "f", opset_import: ["": 18]> twice (a) => (b) { h = Add(a, a) b = Identity(h) }'


def test_functions_are_inlined_under_the_name_of_their_call() -> None:
    held = graph("g (float[2] x) => (y) { [c] y = f.twice(x) }", functions=TWICE, extra=', "f": 1')
    assert [str(node) for node in held.nodes] == ["c/h = Add (x, x)", "y = Identity (c/h)"]


def test_two_calls_share_no_names() -> None:
    text = "g (float[2] x) => (y) { [c] h = f.twice(x) [c] y = f.twice(h) }"
    held = graph(text, functions=TWICE, extra=', "f": 1')
    assert [node.outputs[0] for node in held.nodes] == ["c/h", "h", "c_1/h", "y"]


def test_functions_call_functions_and_read_their_own_opset() -> None:
    outer = '<domain: "f", opset_import: ["": 9, "f": 1]> outer (a) => (b) { h = f.twice(a) b = Softmax(h) }'
    held = graph("g (float[2, 2, 2] x) => (y) { y = f.outer(x) }", functions=f"{outer} {TWICE}", extra=', "f": 1')
    assert [node.op for node in held.nodes] == ["Add", "Identity", "Flatten", "Softmax", "Shape", "Reshape"]


def test_attributes_of_a_call_reach_the_functions_nodes() -> None:
    body = "b = Elu <alpha: float = @alpha> (a) c = Softmax <axis: int = @axis> (b)"
    function = f'<domain: "f", opset_import: ["": 18]> act <axis, alpha: float = 0.25> (a) => (c) {{ {body} }}'
    given = graph("g (float[2] x) => (y) { y = f.act <axis=0, alpha=2.0> (x) }", functions=function, extra=', "f": 1')
    assert [dict(node.attrs) for node in given.nodes] == [{"alpha": 2.0}, {"axis": 0}]
    default = graph("g (float[2] x) => (y) { y = f.act (x) }", functions=function, extra=', "f": 1')
    assert [dict(node.attrs) for node in default.nodes] == [{"alpha": 0.25}, {}]


def test_optional_inputs_and_outputs_of_functions_may_be_left_out() -> None:
    function = '<domain: "f", opset_import: ["": 18]> clip (a, lo, hi) => (b, c) { b = Clip(a, lo, hi) c = Neg(b) }'
    held = graph("g (float[2] x, float hi) => (y) { y = f.clip(x, , hi) }", functions=function, extra=', "f": 1')
    assert held.nodes[0].inputs == ("x", "", "hi")
    shorter = graph("g (float[2] x) => (y) { y = f.clip(x) }", functions=function, extra=', "f": 1')
    assert shorter.nodes[0].inputs == ("x", "", "")


def test_a_function_may_give_out_its_input() -> None:
    function = '<domain: "f", opset_import: ["": 18]> pass (a) => (a, b) { b = Exp(a) }'
    held = graph("g (float[2] x) => (y, z) { y, z = f.pass(x) }", functions=function, extra=', "f": 1')
    assert [str(node) for node in held.nodes] == ["y = Identity (x)", "z = Exp (x)"]


def test_subgraphs_in_functions_see_the_names_of_the_call() -> None:
    branch = "() => (o) { k = Constant <value_float=3.0> () o = Mul(a, k) }"
    function = f"""<domain: "f", opset_import: ["": 18]> pick (a, c) => (b)
        {{ b = If <then_branch=p {branch}, else_branch=q {branch}> (c) }}"""
    held = graph("g (float[2] x, bool c) => (y) { [p] y = f.pick(x, c) }", functions=function, extra=', "f": 1')
    [node] = held.nodes
    assert node.reads == ("c", "x")
    assert node.attrs["then_branch"].outputs == ("p/o",)


def test_functions_of_one_name_are_told_apart_by_overload() -> None:
    proto = model("g (float[2] x) => (y) { y = f.twice(x) }", functions=TWICE, extra=', "f": 1')
    other = proto.functions.add()
    other.CopyFrom(parser.parse_function(TWICE.replace("Add(a, a)", "Exp(a)")))
    other.overload = proto.graph.node[0].overload = "exp"
    assert read_proto(proto).graph.nodes[0].op == "Exp"


def test_a_function_that_calls_itself_is_refused() -> None:
    function = '<domain: "f", opset_import: ["": 18, "f": 1]> twice (a) => (b) { b = f.twice(a) }'
    with pytest.raises(ModelError, match="function 'twice' calls itself"):
        graph("g (float[2] x) => (y) { y = f.twice(x) }", functions=function, extra=', "f": 1')


def test_functions_that_multiply_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_proto, "MAX_CALLS", 1000)
    head = '<domain: "f", opset_import: ["": 18, "f": 1]>'
    functions = [f"{head} f{i} (a) => (b) {{ h = f.f{i + 1}(a) b = f.f{i + 1}(h) }}" for i in range(30)]
    last = f"{head} f30 (a) => (a) {{ }}"
    with pytest.raises(LimitError, match="call each other"):
        graph("g (float[2] x) => (y) { y = f.f0(x) }", functions=" ".join([*functions, last]), extra=', "f": 1')


def test_training_information_gives_initializations() -> None:
    proto = model("g (float[2] x, float[2] w) => (y) { y = Add(x, w) }")
    for value in (1.0, 2.0):
        info = proto.training_info.add()
        info.initialization.CopyFrom(
            parser.parse_graph(f"init () => (w0) {{ c = Constant <value_float={value}> () w0 = Exp(c) }}")
        )
        info.initialization_binding.add(key="w", value="w0")
    found = read_proto(proto).initializations
    assert list(found) == ["training_info", "training_info_1"]
    assert found["training_info_1"].bindings == {"w": "w0"}
    assert float(found["training_info_1"].graph.constants["c"]) == 2


def test_an_initialization_must_compute_what_it_binds() -> None:
    proto = model("g (float[2] x, float[2] w) => (y) { y = Add(x, w) }")
    info = proto.training_info.add()
    info.initialization.CopyFrom(parser.parse_graph("init () => (w0) { w0 = Constant <value_float=1.0> () }"))
    info.initialization_binding.add(key="w", value="w1")
    with pytest.raises(ModelError, match="training_info: initialization_binding gives 'w' the value of 'w1'"):
        read_proto(proto)


def test_attributes_without_a_type_are_read_by_what_they_hold() -> None:
    proto = model("g (float[2, 3] x) => (y) { y = Transpose <perm=[1, 0]> (x) }")
    proto.graph.node[0].attribute[0].ClearField("type")
    assert read_proto(proto).graph.nodes[0].attrs["perm"] == (1, 0)


def test_types_and_bytes_as_attributes() -> None:
    proto = model('g (float[2] x) => (y) { y = my.Op <b="c"> (x) }', extra=', "my": 1')
    proto.graph.node[0].attribute[0].s = b"\xff\xfe"
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    proto.graph.node[0].attribute.append(helper.make_attribute("t", tensor))
    assert read_proto(proto).graph.nodes[0].attrs == {"b": b"\xff\xfe", "t": TensorType(np.dtype("f4"), (2,))}


def test_test_data_is_read_by_position(tmp_path: Path) -> None:
    for name, value in (("input_0", 1.0), ("input_10", 2.0), ("output_0", 3.0)):
        (tmp_path / f"{name}.pb").write_bytes(numpy_helper.from_array(np.array([value])).SerializeToString())
    (tmp_path / "notes.txt").write_text("none of ours")
    found = read_test_data(tmp_path)
    assert {k: {i: a.item() for i, a in v.items()} for k, v in found.items()} == {
        "inputs": {0: 1.0, 10: 2.0},
        "outputs": {0: 3.0},
    }
    assert read_tensor(tmp_path / "input_0.pb").item() == 1.0


@pytest.mark.skipif(not LIGHT.is_dir(), reason="onnx ships its light models no more")
def test_expected_outputs_of_the_light_models_are_read() -> None:
    assert read_tensor(LIGHT / "light_resnet50_output_0.pb").size == 1000
