"""Every case of ours in float32 against onnxruntime, an implementation that shares nothing with ours.

An operator that it lacks, but that ONNX defines by a function, it runs by that function's body.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pytest
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    defs,
    helper,
    numpy_helper,
)

from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.formats.onnx.tensors import type_proto
from gradcheck_cli.formats.onnx.tensors import value_info as typed_info
from gradcheck_cli.graph import Graph, Node, TensorType
from gradcheck_cli.ops import OPS
from tests.ops.case import Case
from tests.ops.case import case as make
from tests.ops.cases import CASES, training
from tests.ops.comparison import assert_near
from tests.ops.onnxruntime_gaps import ARBITRARY, BY_BODY, CRASHES, GAPS
from tests.rounding import gamma
from tests.versions import require_none

onnxruntime = pytest.importorskip("onnxruntime")

OPSETS = {"": range(21, 27), "ai.onnx.ml": range(3, 6), "com.microsoft": range(1, 2)}  # onnxruntime reads no newer ones
IN_PLACE = {"SparseAttention": {"y1": "x3", "y2": "x4"}}  # outputs that are written into inputs
TRAINING = {(c.domain, c.op) for c in training.CASES}
LACKING = "not yet supported on this hardware platform"  # its products of packed weights need some instruction sets
# Both sides round in float32, in another order: once for each of the up to a hundred terms of a sum, relative to the
# largest output, since cancellation leaves small outputs with the error of large terms.
RELATIVE = gamma(np.float32, 100)


def applies(case: Case) -> bool:
    """The operator is one of this runtime, not of its training graphs, and the case holds nothing that float32 lacks."""
    known = case.domain != "gradcheck" and (case.domain, case.op) not in TRAINING
    return known and all(x is None or x.dtype.kind != "c" for x in case.inputs)


@pytest.mark.one_in(3, of="op")
@pytest.mark.parametrize("case", [c for c in CASES if applies(c)], ids=lambda c: c.id)
def test_the_outputs_are_those_of_onnxruntime(case: Case) -> None:
    if reason := gap(case):
        pytest.skip(reason)
    try:
        compare(case)
    except Exception as error:  # the runtime's own have no class in common
        if LACKING not in str(error):
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize("most", [100, 2000])
def test_boxes_of_many_classes_are_chosen_in_seconds(most: int) -> None:
    rng = np.random.default_rng(0)
    low, scores = rng.random((1, 2000, 2), np.float32), rng.random((1, 80, 2000), np.float32)
    boxes = np.concatenate([low, low + rng.random(low.shape, np.float32) / 20], -1)
    start = time.process_time()
    compare(make("NonMaxSuppression", boxes, scores, [most], np.float32([0.5])))
    assert time.process_time() - start < 10


def test_no_gap_is_stale() -> None:
    skipped = [c for c in CASES if applies(c) and gap(c)]
    print(f"\n{sum(map(applies, CASES))} cases, {len(skipped)} skipped:")
    print(*[f"  {count:4} {reason}" for reason, count in Counter(map(gap, skipped)).most_common()], sep="\n")
    require_none("onnxruntime", (c.id for c in skipped if gap(c) not in CRASHES.values() and passes(c)))


def test_every_gap_names_a_case() -> None:
    assert not [p for p in (*GAPS, *CRASHES, *ARBITRARY, *BY_BODY) if not any(fnmatchcase(c.id, p) for c in CASES)]


def gap(case: Case) -> str:
    """The reason for which onnxruntime cannot judge a case; "" if it can."""
    return next((reason for p, reason in {**GAPS, **CRASHES}.items() if fnmatchcase(case.id, p)), "")


def compare(case: Case) -> None:
    """Dtype, shape and values of all outputs agree."""
    feeds = {name: narrow(value) for name, value in case.feeds.items()}
    tape = trace(narrow_graph(case.graph), feeds, ops=OPS, dtype="model")
    for output, expected in zip(case.outputs, run(case, feeds), strict=True):
        actual = tape.named[output].value
        if any(fnmatchcase(case.id, p) for p in ARBITRARY):
            assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        else:
            assert_near(actual, expected, relative=RELATIVE, label=output)


def passes(case: Case) -> bool:
    """The case would pass if it were not skipped."""
    try:
        compare(case)
    except Exception:
        return False
    return True


def run(case: Case, feeds: dict[str, Any]) -> Sequence[np.ndarray[Any, Any]]:
    """The outputs of onnxruntime for a case."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = model(case, feeds).SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return in_place(session, feeds, IN_PLACE[case.op]) if case.op in IN_PLACE else list(session.run(None, feeds))


def in_place(session: Any, feeds: dict[str, Any], written: dict[str, str]) -> list[np.ndarray[Any, Any]]:
    """The outputs of a session, some of which are inputs that it writes to."""
    binding = session.io_binding()
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(value.copy()) for name, value in feeds.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for output in session.get_outputs():
        if output.name in written:
            binding.bind_ortvalue_output(output.name, values[written[output.name]])
        else:
            binding.bind_output(output.name)
    session.run_with_iobinding(binding)
    return [value.copy() for value in binding.copy_outputs_to_cpu()]


def model(case: Case, feeds: dict[str, Any]) -> ModelProto:
    """The case as a model, at the first opset that has its operators as they are used."""
    nodes = case.graph.nodes
    if len(nodes) == 1:
        nodes = (replace(nodes[0], attrs={**implied(nodes[0], feeds), **nodes[0].attrs}),)
    graph = narrow_graph(replace(case.graph, nodes=nodes))
    inputs = [value_info(name, feeds[name].dtype, feeds[name].shape) for name in graph.inputs]
    outputs = [ValueInfoProto(name=name) for name in graph.outputs]
    opsets = [helper.make_opsetid(domain, first_opset(graph, domain)) for domain in OPSETS]
    made = helper.make_model(graph_proto(graph, inputs, outputs), opset_imports=opsets, ir_version=10)
    if any(fnmatchcase(case.id, pattern) for pattern in BY_BODY):
        define(made, feeds)
    return made


def define(model: ModelProto, feeds: dict[str, Any]) -> None:
    """Makes the model's one node a call of the function that ONNX defines its operator by."""
    (node,) = model.graph.node
    schema = defs.get_schema(node.op_type, domain=node.domain)
    if schema.has_context_dependent_function:
        types = [type_of(feeds[name]) if name else TypeProto() for name in node.input]
        body = schema.get_context_dependent_function(node.SerializeToString(), [t.SerializeToString() for t in types])
        function = FunctionProto.FromString(body)
        del function.attribute[:], node.attribute[:]
    else:
        function = FunctionProto.FromString(schema.function_body.SerializeToString())
        given = {attribute.name for attribute in node.attribute}
        node.attribute.extend(a.default_value for name, a in schema.attributes.items() if name not in given)
    node.domain = function.domain = "bodies"
    for ends, names in ((function.input, node.input), (function.output, node.output)):
        keep(ends, [end for end, name in zip(ends, names, strict=False) if name])
        keep(names, [name for name in names if name])
    keep(function.opset_import, [helper.make_opsetid("", OPSETS[""][-1])])
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid(node.domain, 1))


def keep(field: Any, values: list[Any]) -> None:
    """A repeated field with other values."""
    del field[:]
    field.extend(values)


def type_of(value: np.ndarray[Any, Any]) -> TypeProto:
    """The type of a tensor."""
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def first_opset(graph: Graph, domain: str) -> int:
    """The first opset of a domain that has all of a graph's operators as they are used."""
    nodes = [node for node in nodes_of(graph) if node.domain == domain]
    return next((v for v in OPSETS[domain] if all(known(node, v) for node in nodes)), OPSETS[domain][-1])


def known(node: Node, opset: int) -> bool:
    """An opset has the operator with these attributes and inputs."""
    if not defs.has(node.op, node.domain):
        return True
    if not defs.has(node.op, opset, node.domain):
        return False
    schema = defs.get_schema(node.op, opset, node.domain)
    return not schema.deprecated and set(node.attrs) <= set(schema.attributes) and len(node.inputs) <= schema.max_input


def nodes_of(graph: Graph) -> Iterator[Node]:
    """Nodes of a graph and its subgraphs."""
    for node in graph.nodes:
        yield node
        for subgraph in node.subgraphs:
            yield from nodes_of(subgraph)


def graph_proto(
    graph: Graph, inputs: Sequence[ValueInfoProto] = (), outputs: Sequence[ValueInfoProto] = ()
) -> GraphProto:
    """A graph as ONNX; what a subgraph reads and gives has no type unless given: onnxruntime infers it."""
    return helper.make_graph(
        [node_proto(node) for node in graph.nodes],
        "case",
        [*inputs, *(ValueInfoProto(name=name) for name in graph.inputs[len(inputs) :])],
        list(outputs or [declared(graph, name) for name in graph.outputs]),
        [numpy_helper.from_array(value, name) for name, value in graph.constants.items()],
    )


def declared(graph: Graph, name: str) -> ValueInfoProto:
    """Type and shape that a graph declares of a value."""
    known = graph.types.get(name)
    if known is None or known.dtype is None or (known.kind == "tensor" and known.shape is None):
        return ValueInfoProto(name=name)
    return typed_info(name, known)


def node_proto(node: Node) -> NodeProto:
    """A node as ONNX, with every output that its schema demands."""
    if not defs.has(node.op, node.domain):
        return helper.make_node(node.op, node.inputs, node.outputs, domain=node.domain, **node.attrs)
    schema = defs.get_schema(node.op, domain=node.domain)
    least = schema.min_output
    if node.op == "BatchNormalization" and node.attrs.get("training_mode"):
        least = 3
    unused = [f"unused_{i}" for i in range(len(node.outputs), least)]
    proto = helper.make_node(node.op, node.inputs, [*node.outputs, *unused], domain=node.domain)
    values = {key: attribute(node, value) for key, value in node.attrs.items()}
    types = {key: int(schema.attributes[key].type) for key in values}
    proto.attribute.extend(helper.make_attribute(k, v, attr_type=types[k]) for k, v in values.items())
    return proto


def attribute(node: Node, value: Any) -> Any:
    """An attribute's value as ONNX's helper takes it; a loop's body declares its counter and condition."""
    if isinstance(value, Graph):
        scalars = [np.dtype(np.int64), np.dtype(np.bool_)] if node.op == "Loop" else []
        counters = [value_info(n, t, ()) for n, t in zip(value.inputs, scalars, strict=False)]
        return graph_proto(value, [*counters, *(declared(value, n) for n in value.inputs[len(counters) :])])
    if isinstance(value, TensorType):
        return type_proto(value)
    return numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value


def implied(node: Node, feeds: dict[str, Any]) -> dict[str, Any]:
    """Attributes that follow from the inputs, which onnxruntime wants spelled out."""
    if node.op == "Split" and len(node.inputs) < 2:
        return {"num_outputs": len(node.outputs)}
    if node.op in ("RNN", "GRU", "LSTM"):
        return {"hidden_size": feeds[node.inputs[2]].shape[-1]}
    return {}


def value_info(name: str, dtype: np.dtype[Any], shape: Sequence[Any]) -> ValueInfoProto:
    """Type and shape that a model declares of an input."""
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)


def narrow(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array in float32 if it is in float64."""
    return value.astype(np.float32) if value.dtype == np.float64 else value


def narrow_graph(graph: Graph) -> Graph:
    """A graph whose constants and attributes are in float32 where they were in float64."""
    constants = {name: narrow(value) for name, value in graph.constants.items()}
    types = {name: narrow_type(declared) for name, declared in graph.types.items()}
    nodes = tuple(narrow_node(node) for node in graph.nodes)
    return replace(graph, nodes=nodes, constants=constants, types=types)


def narrow_type(declared: TensorType) -> TensorType:
    """A declared type in float32 if it is in float64."""
    if declared.dtype != np.float64:
        return declared
    inner = None if declared.inner is None else narrow_type(declared.inner)
    return replace(declared, dtype=np.dtype(np.float32), inner=inner)


def narrow_node(node: Node) -> Node:
    """A node whose attributes are in float32 where they were in float64."""
    return replace(node, attrs={key: narrow_attribute(key, value) for key, value in node.attrs.items()})


def narrow_attribute(key: str, value: Any) -> Any:
    """An attribute in float32, graphs, arrays and dtypes alike."""
    if isinstance(value, Graph):
        return narrow_graph(value)
    if key in ("to", "dtype", "output_dtype") and value == TensorProto.DOUBLE:
        return int(TensorProto.FLOAT)
    if isinstance(value, TensorType):
        return narrow_type(value)
    return narrow(value) if isinstance(value, np.ndarray) else value
