"""Drafts of the table in `models.yaml`: all combinations of the attributes of operators that ONNX accepts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from itertools import product
from string import Template
from typing import Any

import onnx
import yaml

from gradcheck_cli.reference.suite import IR_VERSION, Draft


@cache
def rows() -> tuple[tuple[str, dict[str, Any]], ...]:
    """All rows of the table, each with the kind of its cases."""
    read = yaml.safe_load(files("gradcheck_cli.reference").joinpath("models.yaml").read_text(encoding="utf-8"))
    return tuple((kind, row) for kind, some in read.items() for row in some)


def operators() -> list[str]:
    """The operators and networks of the table."""
    return sorted({name for _, row in rows() for name in row["operators"]})


def drafts() -> Iterator[Draft]:
    """A draft for each combination that ONNX accepts, numbered within an operator and opset."""
    counts: dict[str, int] = {}
    for kind, row in rows():
        for operator, *values in product(row["operators"], *row.get("choices", {}).values()):
            stem = f"{operator.replace(' ', '_').lower()}_{row['opset']}"
            number = counts[stem] = counts.get(stem, -1) + 1
            chosen = {"op": operator, **dict(zip(row.get("choices", ()), values, strict=True))}
            inputs, nodes = (Template(row[part]).substitute(chosen) for part in ("inputs", "nodes"))
            if (model := _model(row["opset"], inputs, nodes)) is not None:
                yield Draft(f"{stem}_{number:03d}", operator, kind, model, {})


def _model(opset: int, inputs: str, nodes: str) -> onnx.ModelProto | None:
    """A model whose outputs are those of its last node; None if ONNX does not accept it."""
    text = f'<ir_version: {IR_VERSION}, opset_import: ["" : {opset}]> case ({inputs}) => (float y) {{ {nodes} }}'
    model = onnx.parser.parse_model(text)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in model.graph.node[-1].output)
    try:
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return None
    del inferred.graph.value_info[:]
    for value in inferred.graph.output:
        if not value.type.tensor_type.elem_type:  # ONNX does not infer it of every operator
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return inferred
