"""gradcheck as a backend of ONNX (`onnx.backend.base`): runs models and nodes in their own dtypes.

Made for ONNX's backend tests, which hold the forward kernels to account.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from gradcheck_cli.autodiff.trace import result, trace
from gradcheck_cli.errors import GradcheckError, UsageError, counted
from gradcheck_cli.formats.onnx.opset import NEWEST
from gradcheck_cli.formats.onnx.read import read_proto
from gradcheck_cli.formats.onnx.tensors import value_info
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import TensorType
from gradcheck_cli.graph.containers import plain
from gradcheck_cli.ops import OPS


class Rep(BackendRep):
    """A model that was read, ready to run."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """All outputs in order: arrays, lists for sequences, dicts for maps, None for an empty optional.

        Args:
            inputs: values by name, or one for each input, those with a default value left out or not; None for an
                empty optional.
        """
        graph = self.source.graph
        tape = trace(graph, self._feeds(inputs), ops=OPS, dtype="model")
        values = [plain(result(tape, name)) for name in graph.outputs]
        made: tuple[Any, ...] = namedtupledict("Outputs", graph.outputs)(*values)
        return made

    def _feeds(self, inputs: Any) -> dict[str, Any]:
        graph = self.source.graph
        if isinstance(inputs, Mapping):
            pairs = list(inputs.items())
        else:
            values = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
            names = graph.free_inputs if len(values) <= len(graph.free_inputs) else graph.inputs
            if len(values) > len(names):
                raise UsageError(
                    f"{counted(len(values), 'input is', 'inputs are')} given; the model takes {len(names)}."
                )
            pairs = list(zip(names, values, strict=False))
        kinds = {name: graph.types.get(name, TensorType()).kind for name, _ in pairs}
        return {name: value for name, value in pairs if value is not None or kinds[name] == "optional"}


class GradcheckBackend(Backend):
    """Runs ONNX models with gradcheck's kernels, on the CPU."""

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """True if the model can be read and all of its operators are known."""
        try:
            graph = read_proto(model).graph
        except GradcheckError:
            return False
        return cls.supports_device(device) and all(node.key in OPS for node in graph.nodes)

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> Rep:
        """The model, ready to run."""
        return Rep(read_proto(model, model.graph.name or "model"))

    @classmethod
    def run_node(
        cls, node: NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """The outputs of one node, of the opset `opset_version` (default: the newest) or of version 1 of its domain."""
        values = inputs if isinstance(inputs, list | tuple) else [inputs]
        pairs = list(zip([name for name in node.input if name], values, strict=False))
        graph = helper.make_graph(
            [node],
            "node",
            [value_info(name, _type_of(value)) for name, value in pairs],
            [value_info(name, None) for name in node.output if name],
        )
        imports = [helper.make_opsetid("", kwargs.get("opset_version", NEWEST))]
        imports += [helper.make_opsetid(node.domain, 1)] if node.domain else []
        return cls.prepare(helper.make_model(graph, opset_imports=imports)).run(dict(pairs))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """True for the CPU."""
        return device.split(":")[0] == "CPU"


def _type_of(value: Any) -> TensorType:
    if isinstance(value, Sequence) and value and not isinstance(value, str):
        inner = _type_of(value[0])
        return TensorType(inner.dtype, None, "sequence", TensorType(inner.dtype))
    dtype = np.asarray(value).dtype
    return TensorType(np.dtype(object) if dtype.kind in "US" else dtype)


prepare, run_model, run_node = GradcheckBackend.prepare, GradcheckBackend.run_model, GradcheckBackend.run_node
supports_device = GradcheckBackend.supports_device
