"""Every operator that onnxruntime can run on CPU is known here, or stands in a short table with the reason.

Besides, those whose models the cases cannot make: of domains and opsets that are gone, and on sparse tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from gradcheck_cli.errors import UnsupportedError
from gradcheck_cli.formats.onnx.adapt import CHANGES
from gradcheck_cli.op import no_forward
from gradcheck_cli.ops import OPS
from tests.ops.case import Case, arr, case
from tests.ops.cases.fused import ms
from tests.ops.test_onnxruntime import compare
from tests.versions import require_none

onnxruntime = pytest.importorskip("onnxruntime")

EXCEPTIONS: dict[str, str] = {  # why an operator with a kernel on CPU is not known
    "com.microsoft.BeamSearch": "generates text in a loop of the runtime",
    "com.microsoft.GreedySearch": "generates text in a loop of the runtime",
    "com.microsoft.Sampling": "generates text in a loop of the runtime, at random",
    "com.microsoft.WhisperBeamSearch": "generates text in a loop of the runtime",
    **{
        f"com.microsoft.nchwc.{name}": "a layout of the processor at hand, which no file says"
        for name in ("AveragePool", "Conv", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "ReorderInput",
                     "ReorderOutput", "Upsample")
    },
}  # fmt: skip


def full(domain: str, name: str) -> str:
    return f"{domain}.{name}" if domain else name


def on_cpu() -> set[str]:
    """Operators with a kernel on CPU."""
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def

    kernels = [each for each in get_all_opkernel_def() if each.provider == "CPUExecutionProvider"]
    return {full(each.domain, each.op_name) for each in kernels}


def known() -> set[str]:
    """Operators of the table, and those that are read as others."""
    return {full(*key) for key in OPS} | {op for change in CHANGES for op in change.operators}


def test_every_operator_with_a_kernel_on_cpu_is_known_or_has_a_reason():
    require_none("onnxruntime", on_cpu() - known() - EXCEPTIONS.keys())


def lacking() -> Iterator[str]:
    """Attributes and inputs of operators with a kernel on CPU, in their newest form, that ours have not."""
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

    own = [s for s in get_all_operator_schema() if (s.domain, s.name) in OPS and full(s.domain, s.name) in on_cpu()]
    newest = {(s.domain, s.name): s for s in sorted(own, key=lambda s: s.since_version) if s.domain}
    for key, schema in newest.items():
        signature = OPS[key].signature
        names = set(schema.attributes) - signature.given
        kinds = [p.kind for p in inspect.signature(signature.kernel).parameters.values()]
        count = sum(kind is not inspect.Parameter.KEYWORD_ONLY for kind in kinds) + len(OPS[key].static)
        if count and inspect.Parameter.VAR_POSITIONAL not in kinds:  # trees name none
            names.update(i.name for i in schema.inputs[count:])
        yield from (f"{full(*key)} {name}" for name in names)


def test_every_attribute_and_input_of_an_operator_of_its_own_is_known():
    require_none("onnxruntime", lacking())


def test_no_exception_is_stale():
    assert not known() & EXCEPTIONS.keys()


@pytest.mark.parametrize("name", [n for n in EXCEPTIONS if n.endswith("Search") or ".nchwc." in n])
def test_what_cannot_be_known_says_why(name: str):
    domain, _, op = name.rpartition(".")
    error = no_forward(op, domain, OPS, "node 0")
    assert isinstance(error, UnsupportedError)
    assert "can be fed" in str(error) or "level 'extended'" in str(error)


FORWARD = [  # without a derivative at these values: equal entries, infinite results
    ms("Unique", np.array([2.0, 1, 1, 3, 4, 3]), n_outputs=3),
    ms("NGramRepeatBlock", np.array([[1, 2, 3, 1, 2], [0, 0, 0, 0, 0]]), arr(2, 6), ngram_size=3),
    ms("NGramRepeatBlock", np.array([[1, 2, 1, 3, 1]]), arr(1, 6), ngram_size=2),
    ms("NGramRepeatBlock", np.array([[1, 2, 1]]), arr(1, 6), ngram_size=1),
]


@pytest.mark.parametrize("each", FORWARD, ids=lambda c: c.id)
def test_what_has_no_derivative_at_its_values_is_what_onnxruntime_runs(each: Case):
    compare(each)


def session(model: ModelProto) -> Any:
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


OLD = [
    case("Scale", arr(2, 3), scale=1.5),
    case("Scale", arr(2, 3)),
    case("DynamicSlice", arr(4, 5), np.array([1, 0]), np.array([3, 4])),
    case("DynamicSlice", arr(4, 5), np.array([-3]), np.array([1000]), np.array([1])),
]


@pytest.mark.parametrize("each", OLD, ids=lambda c: c.id)
def test_an_operator_that_was_tried_out_once_is_what_onnxruntime_runs(each: Case):
    feeds = {n: v.astype(np.float32) if v.dtype == np.float64 else v for n, v in each.feeds.items()}
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in feeds.items()
    ]
    output = helper.make_tensor_value_info("y0", TensorProto.FLOAT, None)
    node = helper.make_node(each.op, list(each.names), ["y0"], **each.attrs)
    graph = helper.make_graph([node], "old", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 7)], ir_version=5)
    (expected,) = session(model).run(None, feeds)
    np.testing.assert_allclose(each.tape().named["y0"].value, expected, rtol=1e-6)


def test_a_sparse_matrix_times_a_dense_one_is_what_onnxruntime_runs():
    a, b = np.zeros((3, 4), np.float32), arr(4, 2).astype(np.float32)
    a[0, 1], a[2, 3] = 2, -1.5
    typed = helper.make_value_info("x0", helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, a.shape))
    dense = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x1", b.shape), ("y0", (3, 2)))]
    node = helper.make_node("SparseToDenseMatMul", ["x0", "x1"], ["y0"], domain="com.microsoft", alpha=0.5)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "sparse", [typed, dense[0]], [dense[1]])
    places, device = np.argwhere(a).astype(np.int64).ravel(), onnxruntime.OrtDevice.make("cpu", 0)
    sparse = onnxruntime.SparseTensor.sparse_coo_from_numpy(np.array(a.shape), a[a != 0], places, device)
    given = onnxruntime.OrtValue.ort_value_from_sparse_tensor(sparse), onnxruntime.OrtValue.ortvalue_from_numpy(b)
    made = session(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    (expected,) = made.run_with_ort_values(["y0"], dict(zip(("x0", "x1"), given, strict=True)))
    ours = case("SparseToDenseMatMul", a, b, domain="com.microsoft", alpha=0.5).tape().named["y0"].value
    np.testing.assert_allclose(ours, expected.numpy(), rtol=1e-6)
