"""Large tensors stay in the file until they are read: what is read is the same, and never in memory twice."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from gradcheck_cli.errors import ModelError
from gradcheck_cli.formats.onnx.file import LARGE, Outline
from gradcheck_cli.formats.onnx.read import read

RNG = np.random.default_rng(3)
BIG = RNG.normal(size=(1 << 17, 3)).astype(np.float32)  # 1.5 MiB


def info(name: str, *shape: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def graph(nodes: list[onnx.NodeProto], tensors: list[TensorProto], inputs: tuple[str, ...] = ("x",)) -> GraphProto:
    return helper.make_graph(nodes, "g", [info(n, 3) for n in inputs], [info("y", 3)], tensors)


def model(made: GraphProto) -> ModelProto:
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def add(tensor: TensorProto) -> ModelProto:
    """y = x + the sum of an initializer."""
    nodes = [
        helper.make_node("Cast", ["w"], ["c"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["c"], ["s"], keepdims=0),
        helper.make_node("Add", ["x", "s"], ["y"]),
    ]
    tensor.name = "w"
    return model(graph(nodes, [tensor]))


def in_a_branch() -> ModelProto:
    """y = x + the sum of a constant that a branch of an If holds."""
    inner = [
        helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(BIG, "w")),
        helper.make_node("ReduceSum", ["w"], ["y"], keepdims=0),
    ]
    branch = helper.make_graph(inner, "branch", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, ())])
    yes = numpy_helper.from_array(np.array(True), "yes")
    chosen = helper.make_node("If", ["yes"], ["s"], then_branch=branch, else_branch=branch)
    return model(graph([chosen, helper.make_node("Add", ["x", "s"], ["y"])], [yes]))


def written(proto: ModelProto, folder: Path) -> Path:
    path = folder / "large.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def packed(kind: int, shape: tuple[int, ...]) -> TensorProto:
    bits = 4 if kind == TensorProto.INT4 else 16
    raw = RNG.integers(0, 60, int(np.prod(shape)) * bits // 8, np.uint8).tobytes()
    return TensorProto(data_type=kind, dims=shape, raw_data=raw)


@pytest.mark.parametrize(
    "tensor",
    [numpy_helper.from_array(BIG), packed(TensorProto.BFLOAT16, (1 << 20,)), packed(TensorProto.INT4, (1 << 22,))],
    ids=["float32", "bfloat16", "int4"],
)
def test_a_large_tensor_is_what_onnx_reads(tensor: TensorProto, tmp_path: Path) -> None:
    proto = add(tensor)
    found = read(written(proto, tmp_path)).graph.constants["w"]
    expected = numpy_helper.to_array(proto.graph.initializer[0])
    assert found.dtype == expected.dtype
    assert found.tobytes() == expected.tobytes()


def test_large_tensors_are_left_out_wherever_they_stand() -> None:
    for proto, count in ((add(numpy_helper.from_array(BIG)), 1), (in_a_branch(), 2)):
        whole = proto.SerializeToString()
        outline = Outline(io.BytesIO(whole))
        assert len(outline.data) < len(whole) - count * BIG.nbytes + 1000
        assert len(ModelProto.FromString(outline.data).graph.node) == len(proto.graph.node)


def test_a_branch_with_a_large_constant_reads_it(tmp_path: Path) -> None:
    source = read(written(in_a_branch(), tmp_path))
    then = next(part for node in source.graph.nodes for part in node.subgraphs)
    assert np.array_equal(then.constants["w"], BIG)


def test_bytes_that_look_like_a_mark_are_bytes() -> None:
    held = bytes(32)
    assert bytes(Outline(io.BytesIO(b"")).payload(held)) == held


def test_a_tensor_that_holds_too_little_is_refused(tmp_path: Path) -> None:
    tensor = numpy_helper.from_array(BIG)
    tensor.dims[0] += 1
    with pytest.raises(ModelError, match=r"holds 1572864 bytes where float32 \[131073, 3\] needs 1572876"):
        read(written(add(tensor), tmp_path))


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = written(add(numpy_helper.from_array(BIG)), tmp_path)
    whole = path.read_bytes()
    for size in (1, 5, 100, LARGE, len(whole) - 40, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"large\.onnx"):
            read(path)


def test_a_file_that_is_cut_off_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = written(add(numpy_helper.from_array(BIG)), tmp_path)
    with path.open("rb") as file:
        outline = Outline(file)
        os.truncate(path, LARGE)
        mark = ModelProto.FromString(outline.data).graph.initializer[0].raw_data
        with pytest.raises(ModelError, match="cut off while it was read"):
            outline.payload(mark)


def test_messages_inside_each_other_end() -> None:
    data = bytes(LARGE + 1)
    for _ in range(200):  # attribute.g.node.attribute.g ...: deeper than protobuf reads
        for field in (b"\x32", b"\x0a", b"\x2a"):  # g, node, attribute
            length, size = bytearray(), len(data)
            while size > 127:
                length.append(size & 127 | 128)
                size >>= 7
            data = field + bytes([*length, size]) + data
    data = b"\x3a" + data
    assert Outline(io.BytesIO(data)).data == data


READS = """
import resource, sys
import onnx, numpy
from gradcheck_cli.formats.onnx.read import read
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
source = read(sys.argv[1])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_weights_are_in_memory_once(tmp_path: Path) -> None:
    pytest.importorskip("resource", reason="only Unix says what a process has used")
    weights = np.ones((40 << 18,), np.float32)  # 40 MiB
    path = written(add(numpy_helper.from_array(weights)), tmp_path)
    run = subprocess.run([sys.executable, "-c", READS, path], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 1.5 * weights.nbytes
