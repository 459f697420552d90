"""Every case of ours in float32 against onnxruntime, an implementation that shares nothing with ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, defs, helper, numpy_helper

from gradcheck_cli.graph import Graph, Node
from gradcheck_cli.ops import OPS
from gradcheck_cli.trace import trace
from tests.ops.case import Case
from tests.ops.cases import CASES
from tests.ops.comparison import assert_near
from tests.ops.onnxruntime_gaps import ARBITRARY, GAPS

onnxruntime = pytest.importorskip("onnxruntime")

OPSETS = range(21, 27)  # onnxruntime reads up to 26
# Both sides round in float32 (unit 6e-8) and in another order: a few units for each of the up to a hundred terms
# of a sum, relative to the largest output; cancellation leaves small outputs with the error of large terms.
RELATIVE = 5e-6


def applies(case: Case) -> bool:
    """The operator belongs to ONNX and the case holds nothing that float32 lacks."""
    return case.domain != "gradcheck" and all(x is None or x.dtype.kind != "c" for x in case.inputs)


@pytest.mark.parametrize("case", [c for c in CASES if applies(c)], ids=lambda c: c.id)
def test_the_outputs_are_those_of_onnxruntime(case: Case) -> None:
    if reason := gap(case):
        pytest.skip(reason)
    compare(case)


def test_no_gap_is_stale() -> None:
    skipped = [c for c in CASES if applies(c) and gap(c)]
    print(f"\n{sum(map(applies, CASES))} cases, {len(skipped)} skipped")
    assert not [c.id for c in skipped if passes(c)]


def test_every_gap_names_a_case() -> None:
    assert not [prefix for prefix in (*GAPS, *ARBITRARY) if not any(c.id.startswith(prefix) for c in CASES)]


def gap(case: Case) -> str:
    """Why onnxruntime cannot judge a case; "" if it can."""
    return next((reason for prefix, reason in GAPS.items() if case.id.startswith(prefix)), "")


def compare(case: Case) -> None:
    """Dtype, shape and values of all outputs agree."""
    feeds = {name: narrow(value) for name, value in case.feeds.items()}
    tape = trace(narrow_graph(case.graph), feeds, ops=OPS, dtype="model")
    for output, expected in zip(case.outputs, run(case, feeds), strict=True):
        actual = tape.named[output].value
        if any(case.id.startswith(prefix) for prefix in ARBITRARY):
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
    return list(session.run(None, feeds))


def model(case: Case, feeds: dict[str, Any]) -> ModelProto:
    """The case as a model, at the first opset that has its operators as they are used."""
    graph = narrow_graph(case.graph)
    inputs = [value_info(name, feeds[name].dtype, feeds[name].shape) for name in graph.inputs]
    outputs = [ValueInfoProto(name=name) for name in graph.outputs]
    opset = next((v for v in OPSETS if all(known(node, v) for node in nodes_of(graph))), OPSETS[-1])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 5)]
    return helper.make_model(graph_proto(graph, inputs, outputs), opset_imports=opsets, ir_version=10)


def known(node: Node, opset: int) -> bool:
    """An opset has the operator with these attributes."""
    version = opset if node.domain == "" else 5
    if not defs.has(node.op, version, node.domain):
        return False
    schema = defs.get_schema(node.op, version, node.domain)
    return set(node.attrs) <= set(schema.attributes)


def nodes_of(graph: Graph) -> Iterator[Node]:
    """Nodes of a graph and its subgraphs."""
    for node in graph.nodes:
        yield node
        for subgraph in node.subgraphs:
            yield from nodes_of(subgraph)


def graph_proto(
    graph: Graph, inputs: Sequence[ValueInfoProto] = (), outputs: Sequence[ValueInfoProto] = ()
) -> GraphProto:
    """A graph as ONNX; a subgraph's inputs and outputs have no types, which onnxruntime infers."""
    return helper.make_graph(
        [node_proto(node) for node in graph.nodes],
        "case",
        list(inputs or [ValueInfoProto(name=name) for name in graph.inputs]),
        list(outputs or [ValueInfoProto(name=name) for name in graph.outputs]),
        [numpy_helper.from_array(value, name) for name, value in graph.constants.items()],
    )


def node_proto(node: Node) -> NodeProto:
    """A node as ONNX."""
    proto = helper.make_node(node.op, node.inputs, node.outputs, domain=node.domain)
    proto.attribute.extend(helper.make_attribute(key, attribute(value)) for key, value in node.attrs.items())
    return proto


def attribute(value: Any) -> Any:
    """An attribute's value as ONNX's helper takes it."""
    if isinstance(value, Graph):
        return graph_proto(value)
    return numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value


def value_info(name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> ValueInfoProto:
    """What a model declares of an input."""
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)


def narrow(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array in float32 if it is in float64."""
    return value.astype(np.float32) if value.dtype == np.float64 else value


def narrow_graph(graph: Graph) -> Graph:
    """A graph whose constants and attributes are in float32 where they were in float64."""
    constants = {name: narrow(value) for name, value in graph.constants.items()}
    nodes = tuple(narrow_node(node) for node in graph.nodes)
    return Graph(graph.inputs, graph.outputs, nodes, constants, graph.types, graph.opset, graph.name)


def narrow_node(node: Node) -> Node:
    """A node whose attributes are in float32 where they were in float64."""
    attrs = {key: narrow_attribute(key, value) for key, value in node.attrs.items()}
    return Node(node.op, node.inputs, node.outputs, attrs, node.domain, node.name, node.metadata)


def narrow_attribute(key: str, value: Any) -> Any:
    """An attribute in float32, graphs, arrays and dtypes alike."""
    if isinstance(value, Graph):
        return narrow_graph(value)
    if key in ("to", "dtype", "output_dtype") and value == TensorProto.DOUBLE:
        return int(TensorProto.FLOAT)
    return narrow(value) if isinstance(value, np.ndarray) else value
