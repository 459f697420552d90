"""What is known of the tensors of a graph: dtypes and shapes by ONNX's own inference, level by level.

Inputs count as declared.  What a file says of other tensors is left out: exporters write there what they like.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from onnx import GraphProto, TensorProto
from onnx.shape_inference import infer_shapes

from gradcheck_cli.formats.onnx.onnx_attribute_protos import elem_type, tensor_proto
from gradcheck_cli.formats.onnx.onnx_types import types_of
from gradcheck_cli.formats.onnx.write import to_proto
from gradcheck_cli.graph import Array, Graph, TensorType

_READ = 1024  # bytes of a constant that may be a shape or axes: the inference reads those


@dataclass(frozen=True, slots=True)
class Types:
    """Types by tensor name, and those of the graphs inside nodes by the node's first output and the attribute.

    A dimension is an int, a name that stands for one size wherever it appears, or None.
    """

    own: Mapping[str, TensorType] = field(default_factory=dict)
    inner: Mapping[tuple[str, str], Types] = field(default_factory=dict)


class _Outlines:
    """Constants for an inference: of large ones dtype and shape alone."""

    def tensor(self, name: str, array: Array) -> TensorProto:
        number = elem_type(array, f"constant {name!r}")
        if array.nbytes <= _READ or array.dtype == object:
            return tensor_proto(name, array)
        outline = TensorProto(name=name, dims=array.shape, data_type=number, data_location=TensorProto.EXTERNAL)
        outline.external_data.add(key="location", value="outline")
        return outline


def known_types(graph: Graph) -> Types:
    """The types of all tensors that follow from those of the inputs."""
    inputs = {name: graph.types[name] for name in graph.inputs if name in graph.types}
    model = to_proto(replace(graph, types=inputs), constants=_Outlines())
    return _types(graph, infer_shapes(model, data_prop=True).graph)


def _types(graph: Graph, proto: GraphProto) -> Types:
    own = {name: TensorType(value.dtype, value.shape) for name, value in graph.constants.items()}
    for infos in (proto.value_info, proto.output, proto.input):
        own.update(types_of(infos))
    inner = {
        (node.outputs[0], key): _types(value, next(a.g for a in written.attribute if a.name == key))
        for node, written in zip(graph.nodes, proto.node, strict=True)
        for key, value in node.attrs.items()
        if isinstance(value, Graph)
    }
    return Types(own, inner)
