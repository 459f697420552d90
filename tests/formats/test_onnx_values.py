"""Sequences, optionals and maps as test data holds them; types of them both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import MapProto, OptionalProto, SequenceProto, TensorProto, numpy_helper

from gradcheck_cli.errors import ModelError
from gradcheck_cli.formats.onnx.read import read_proto, read_test_data, read_value
from gradcheck_cli.formats.onnx.tensors import tensor_type, value_info
from gradcheck_cli.formats.onnx.write import to_proto
from gradcheck_cli.graph import Graph, Node, TensorType
from gradcheck_cli.graph.containers import Map, Optional, Sequence, elements

FLOAT = np.dtype(np.float32)
TENSOR = TensorType(FLOAT, (2,))
SEQUENCE = TensorType(FLOAT, (2,), "sequence", TENSOR)
OPTIONAL = TensorType(FLOAT, (2,), "optional", TENSOR)
NESTED = TensorType(FLOAT, (2,), "optional", SEQUENCE)
MAP = TensorType(FLOAT, (), "map", TensorType(FLOAT, ()), np.dtype(object))
MAPS = TensorType(FLOAT, (), "sequence", MAP)
A, B = np.asarray([1, 2], np.float32), np.asarray([3, 4], np.float32)


def sequence(*arrays: Any) -> SequenceProto:
    """A sequence of tensors."""
    return numpy_helper.from_list(list(arrays), "s")


def table(keys: Any, *values: Any) -> MapProto:
    """A map to single values."""
    proto = MapProto(name="m", values=sequence(*(np.asarray(v, np.float32) for v in values)))
    if all(isinstance(key, str) for key in keys):
        proto.key_type = onnx.TensorProto.STRING
        proto.string_keys.extend(key.encode() for key in keys)
    else:
        proto.key_type = onnx.TensorProto.INT64
        proto.keys.extend(keys)
    return proto


READ = [
    (sequence(A, B), SEQUENCE, Sequence((A, B))),
    (SequenceProto(), SEQUENCE, Sequence()),
    (numpy_helper.from_optional(A, "o"), OPTIONAL, Optional(A)),
    (OptionalProto(), OPTIONAL, Optional()),
    (OptionalProto(elem_type=OptionalProto.SEQUENCE, sequence_value=sequence(A)), NESTED, Optional(Sequence((A,)))),
    (table(["a", "b"], 1.5, 2.5), MAP, Map(("a", "b"), np.asarray([1.5, 2.5], np.float32))),
    (table([3, 1], 1.5, 2.5), MAP, Map((3, 1), np.asarray([1.5, 2.5], np.float32))),
    (SequenceProto(elem_type=SequenceProto.MAP, map_values=[table(["a"], 1.0)]), MAPS,
     Sequence((Map(("a",), np.asarray([1.0], np.float32)),))),
]  # fmt: skip


@pytest.mark.parametrize("message, declared, expected", READ, ids=[str(kind) for _, kind, _ in READ])
def test_a_value_is_read_as_it_is_declared(message: Any, declared: TensorType, expected: Any, tmp_path: Path) -> None:
    file = tmp_path / "input_0.pb"
    file.write_bytes(message.SerializeToString())
    found = read_value(file, declared)
    assert type(found) is type(expected)
    assert_same(found, expected)


def assert_same(found: Any, expected: Any) -> None:
    """Records of the same arrays."""
    a, b = elements("", found), elements("", expected)
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype
        assert a[name].tolist() == b[name].tolist()


def test_the_graph_says_which_files_of_test_data_hold_sequences(tmp_path: Path) -> None:
    (tmp_path / "input_0.pb").write_bytes(sequence(A, B).SerializeToString())
    (tmp_path / "output_0.pb").write_bytes(numpy_helper.from_array(A).SerializeToString())
    graph = Graph(("s",), ("y",), (), types={"s": SEQUENCE, "y": TENSOR})
    data = read_test_data(tmp_path, graph)
    assert_same(data["inputs"][0], Sequence((A, B)))
    assert data["outputs"][0].tolist() == [1, 2]


WRONG = [
    (b"\xff\xff\xff", SEQUENCE, "is no ONNX sequence"),
    (b"\xff\xff\xff", OPTIONAL, "is no ONNX optional"),
    (table(["a", "a"], 1.0, 2.0), MAP, "has 1 different keys and 2 values"),
    (table(["a"], 1.0, 2.0), MAP, "has 1 different keys and 2 values"),
    (MapProto(string_keys=[b"a"], values=sequence(A)), MAP, "no single numbers or strings"),
    (SequenceProto(elem_type=77), SEQUENCE, "of the unknown kind 77"),
    (SequenceProto(elem_type=1, tensor_values=[TensorProto(data_type=99)]), SEQUENCE, "unknown element type 99"),
    (b"version https://git-lfs.github.com/spec/v1", SEQUENCE, "is a Git LFS pointer"),
]  # fmt: skip


@pytest.mark.parametrize("message, declared, expected", WRONG)
def test_damaged_values_are_refused_with_the_name_of_the_file(
    message: Any, declared: TensorType, expected: str, tmp_path: Path
) -> None:
    file = tmp_path / "x.pb"
    file.write_bytes(message if isinstance(message, bytes) else message.SerializeToString())
    with pytest.raises(ModelError, match=expected) as caught:
        read_value(file, declared)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("declared", [TENSOR, SEQUENCE, OPTIONAL, NESTED, MAP, MAPS], ids=str)
def test_types_survive_being_written(declared: TensorType) -> None:
    assert tensor_type(value_info("x", declared).type) == declared


def test_a_graph_of_sequences_is_written_at_an_opset_that_has_them() -> None:
    nodes = (Node("Identity", ("s",), ("t",)), Node("Optional", ("t",), ("o",)))
    graph = Graph(("s",), ("o",), nodes, types={"s": SEQUENCE, "t": SEQUENCE, "o": NESTED})
    model = to_proto(graph)
    onnx.checker.check_model(model, full_check=True)
    assert read_proto(model).graph.types["o"] == NESTED
