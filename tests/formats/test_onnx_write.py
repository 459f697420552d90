"""Written models are read back as the same graph, run, and have the lowest opset that means the same."""

from __future__ import annotations

import errno
import os
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import checker, parser
from onnx.backend.test.case.node import collect_testcases

from gradcheck_cli.errors import UnsupportedError, UsageError
from gradcheck_cli.formats.onnx import write as onnx_write
from gradcheck_cli.formats.onnx.opset import NEWEST
from gradcheck_cli.formats.onnx.read import read, read_proto
from gradcheck_cli.formats.onnx.write import to_proto, write
from gradcheck_cli.graph import Graph, Node, TensorType
from tests.rounding import assert_rounded
from tests.versions import later, since

ort = pytest.importorskip("onnxruntime")

MODELS = Path(__file__).parents[3] / "shared" / "models"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
REAL = [*sorted(MODELS.rglob("*.onnx")), *sorted(LIGHT.glob("*.onnx"))]
SIZES = (2, 1, 4, 32, 64, 512)  # tried for unknown dimensions
F4 = np.dtype("f4")
DTYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}


def one(op: str, *inputs: str, dtype: object = "f4", constants: dict | None = None, **attrs: object) -> Graph:
    """A graph of one node between `inputs` and y; those among the constants are no inputs."""
    names = [name for name in inputs if name and name not in (constants or {})]
    types = {name: TensorType(np.dtype(dtype), None) for name in names}
    domain, _, op = op.rpartition(".")
    return Graph(tuple(names), ("y",), (Node(op, inputs, ("y",), attrs, domain),), constants or {}, types)


def session(model: onnx.ModelProto | bytes) -> object:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    data = model if isinstance(model, bytes) else model.SerializeToString()
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def feeds_of(runner: object, size: int) -> dict[str, np.ndarray]:
    rng, feeds = np.random.default_rng(0), {}
    for value in runner.get_inputs():
        shape = [dim if isinstance(dim, int) and dim > 0 else size for dim in value.shape]
        dtype = np.dtype(DTYPES[value.type])
        drawn = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
        feeds[value.name] = np.asarray(drawn).astype(dtype)
        if value.name == "sr":  # silero's sampling rate
            feeds[value.name] = np.array(16000)
    return feeds


def results_of(data: bytes) -> tuple[list, dict[str, np.ndarray]]:
    """Outputs of a model at the first size of unknown dimensions at which it runs, and the inputs fed."""
    try:
        runner = session(data)
    except Exception as error:
        if "is under development and support for this is limited" in str(error):
            pytest.skip("the model is newer than the installed onnxruntime")
        raise
    for size in SIZES:
        feeds = feeds_of(runner, size)
        try:
            return runner.run(None, feeds), feeds
        except Exception as error:
            last = error
    raise AssertionError(f"the model runs at no size: {last}")


def assert_same(before: object, after: object) -> None:
    if isinstance(before, (list, dict)) or before.dtype == object:
        assert str(before) == str(after)
        return
    assert before.dtype == after.dtype
    assert_rounded(after, before, roundings=256)  # of layers, one after the other


@pytest.mark.one_in(4)
@pytest.mark.parametrize("path", REAL or [pytest.param(None, marks=pytest.mark.skip("no shared models"))], ids=str)
def test_real_models_compute_the_same_once_read_and_written(path: Path) -> None:
    data = path.read_bytes()
    expected, feeds = results_of(data)  # first: what onnxruntime does not know, onnx may not
    written = to_proto(read(path).graph)
    for before, after in zip(expected, session(written).run(None, feeds), strict=True):
        assert_same(before, after)


@pytest.mark.parametrize("path", REAL[::7] or [pytest.param(None, marks=pytest.mark.skip("no models"))], ids=str)
def test_what_is_written_is_read_as_the_same_graph(path: Path) -> None:
    graph = read(path).graph
    again = read_proto(to_proto(graph, least=NEWEST)).graph
    assert str(again) == str(graph)
    assert again.constants.keys() == graph.constants.keys()
    assert all(again.constants[name].tobytes() == graph.constants[name].tobytes() for name in graph.constants
               if graph.constants[name].dtype != object)  # fmt: skip


def test_writing_is_deterministic() -> None:
    graph = one("Add", "x", "w", constants={"w": np.ones(3, F4)})
    assert to_proto(graph).SerializeToString() == to_proto(graph).SerializeToString()


def int8(name: str) -> dict:
    return {name: np.zeros(2, np.int8)}


@pytest.mark.parametrize(
    "graph, opset",
    [
        (one("Exp", "x"), 18),
        (one("Softmax", "x", axis=-1), 18),
        (one("ReduceMax", "x"), 18),
        (one("ReduceMax", "x", dtype="?"), 20),
        (one("Gelu", "x"), 20),
        (one("GridSample", "x", "g", mode="linear"), 20),
        (one("GridSample", "x", "g"), 20),
        (one("DFT", "x", "", "a", constants={"a": np.array(1)}), 20),
        (one("DFT", "x"), 20),
        (one("GroupNormalization", "x", "s", "b", num_groups=2), 21),
        (one("GroupNormalization", "x", "s", "b", num_groups=2, stash_type=1), 21),
        (one("AveragePool", "x", kernel_shape=(2, 2)), 18),
        (one("AveragePool", "x", kernel_shape=(2, 2), dilations=(1, 2)), 19),
        (one("Cast", "x", to=1), 18),
        (one("Cast", "x", to=17), 19),
        (one("Cast", "x", to=22), 21),
        (one("Cast", "x", to=1, saturate=1, round_mode="up"), 18),
        since("onnx", "1.22", one("Range", "a", "b", "c", dtype="i8", stash_type=1), 18),
        (one("Resize", "x", "", "s", constants={"s": np.ones(4, F4)}), 18),
        (one("Resize", "x", "", "s", coordinate_transformation_mode="half_pixel_symmetric"), 19),
        (one("RMSNormalization", "x", "s"), 23),
        (one("SpaceToDepth", "x", blocksize=2), 18),
        since("onnx", "1.23", one("SpaceToDepth", "x", blocksize=2, mode="DCR"), 18),
        since("onnx", "1.23", one("SpaceToDepth", "x", blocksize=2, mode="CRD"), 28),
        (one("Add", "x", "x", dtype=ml_dtypes.bfloat16), 18),
        (one("Cos", "x", dtype=ml_dtypes.bfloat16), 22),
        (one("QuantizeLinear", "x", "s", "z", constants={"z": np.zeros(2, np.uint16)}), 21),
        (one("my.Op", "x", a=1), 18),
    ],
    ids=lambda value: str(value.nodes[0]) if isinstance(value, Graph) else str(value),
)  # fmt: skip
def test_the_opset_is_the_lowest_that_means_the_same(graph: Graph, opset: int) -> None:
    model = to_proto(graph)
    assert {entry.domain: entry.version for entry in model.opset_import}[""] == opset


@pytest.mark.slow
def test_onnx_accepts_what_is_written_of_its_own_cases() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases divide by zero on purpose
        cases = collect_testcases(None)
    for case in (c for c in cases if not later(c.model)):
        model = to_proto(read_proto(case.model, case.name).graph)
        checker.check_model(model)


def test_a_higher_opset_can_be_asked_for_and_a_lower_one_is_not_given() -> None:
    assert to_proto(one("Exp", "x"), least=21).opset_import[0].version == 21
    assert to_proto(one("Exp", "x"), least=9).opset_import[0].version == 18


def test_attributes_at_their_default_are_left_out_where_the_opset_lacks_them() -> None:
    [node] = to_proto(one("Cast", "x", to=1, saturate=1)).graph.node
    assert [attribute.name for attribute in node.attribute] == ["to"]


def test_what_no_opset_has_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="node 0 Softmax 'y' cannot be written"):
        to_proto(one("Softmax", "x", dtype="c16"))
    with pytest.raises(UnsupportedError, match="node 0 Exp 'y' cannot be written"):
        to_proto(one("Exp", "x", alpha=2.0))


@pytest.mark.parametrize("opset, ir", [(18, 8), (21, 10), (24, 12)])
def test_the_format_is_the_oldest_that_has_the_opset(opset: int, ir: int) -> None:
    assert to_proto(one("Exp", "x"), least=opset).ir_version == ir


def test_an_input_without_a_dtype_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"input 'x' has no dtype"):
        to_proto(Graph(("x",), ("y",), (Node("Exp", ("x",), ("y",)),)))


def test_types_of_inputs_and_outputs_are_declared_with_their_dimensions() -> None:
    types = {"x": TensorType(F4, ("N", 3, None)), "y": TensorType(F4, ()), "h": TensorType(F4, (1,))}
    nodes = (Node("Exp", ("x",), ("h",)), Node("ReduceSum", ("h",), ("y",), {"keepdims": 0}))
    again = read_proto(to_proto(Graph(("x",), ("y",), nodes, types=types))).graph
    assert again.types == {"x": types["x"], "y": types["y"]}


def test_an_input_with_a_default_is_written_as_both() -> None:
    graph = Graph(("w",), ("y",), (Node("Exp", ("w",), ("y",)),), {"w": np.ones(2, F4)})
    again = read_proto(to_proto(graph)).graph
    assert again.inputs == ("w",)
    assert again.constants["w"].tolist() == [1, 1]
    assert session(to_proto(graph)).run(None, {})[0].shape == (2,)


def test_attributes_of_every_kind_come_back() -> None:
    inner = Graph((), ("o",), (Node("Exp", ("x",), ("o",)),), name="inner")
    attrs = {
        "i": 3, "f": 0.5, "s": "text", "b": b"\xff", "is": (1, 2), "fs": (0.5, 1.0), "ss": ("a", "b"),
        "t": np.arange(3.0), "ts": (np.arange(2), np.ones(1)), "g": inner, "ty": TensorType(F4, (2,)),
    }  # fmt: skip
    again = dict(read_proto(to_proto(one("my.Op", "x", **attrs))).graph.nodes[0].attrs)
    for before, after in zip((attrs["t"], *attrs["ts"]), (again.pop("t"), *again.pop("ts")), strict=True):
        np.testing.assert_array_equal(after, before)
    assert str(again.pop("g").nodes[0]) == "o = Exp (x)"
    assert again == {name: value for name, value in attrs.items() if name not in ("t", "ts", "g")}


@pytest.mark.parametrize(
    "given, kind",
    [
        (np.int64(2), "INT"),
        (True, "INT"),
        (2, "FLOAT"),
        ([1, np.int32(2)], "INTS"),
        ((), "INTS"),
        ((1, 2), "FLOATS"),
    ],
)
def test_numbers_take_the_type_that_the_operator_declares(given: object, kind: str) -> None:
    op, name = {"INT": ("Flatten", "axis"), "FLOAT": ("Elu", "alpha"), "INTS": ("Transpose", "perm")}.get(
        kind, ("ai.onnx.ml.Scaler", "scale")
    )
    [attribute] = to_proto(one(op, "x", **{name: given})).graph.node[0].attribute
    assert onnx.AttributeProto.AttributeType.Name(attribute.type) in (kind, "INTS")


@pytest.mark.parametrize("value", ["a", (1,), 0.5])
def test_an_attribute_of_the_wrong_type_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match=r"attribute 'axis' is a .*; it must be of type INT"):
        to_proto(one("Softmax", "x", axis=value))


@pytest.mark.parametrize(
    "dtype",
    ["?", "i1", "u8", "f2", "f8", "c16", ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.float8_e4m3fn],
    ids=str,
)
def test_constants_of_every_dtype_come_back(dtype: object) -> None:
    value = np.array([[1, 0, 1]]).astype(dtype)
    again = read_proto(to_proto(Graph((), ("w",), (), {"w": value}))).graph.constants["w"]
    assert again.dtype == value.dtype
    np.testing.assert_array_equal(again.astype(complex), value.astype(complex))


def test_strings_come_back() -> None:
    value = np.array([["a", "é"], [b"\xff", ""]], object)
    again = read_proto(to_proto(Graph((), ("w",), (), {"w": value}))).graph.constants["w"]
    assert again.tolist() == value.tolist()


def test_a_dtype_that_onnx_lacks_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"constant 'w' has the dtype .*, which ONNX lacks"):
        to_proto(Graph((), ("w",), (), {"w": np.ones(2, np.longdouble)}))


def test_subgraphs_and_what_they_capture_are_written() -> None:
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[2] x, bool c) => (float[2] y) {
        h = Exp(x)
        y = If <then_branch = a () => (o) { k = Constant <value_float=2.0> () o = Mul(h, k) },
                else_branch = b () => (o) { o = Neg(h) }> (c) }"""
    written = to_proto(read_proto(parser.parse_model(text)).graph)
    [y] = session(written).run(None, {"x": np.zeros(2, F4), "c": np.array(True)})
    assert y.tolist() == [2, 2]


def test_metadata_and_device_configurations_come_back() -> None:
    model = parser.parse_model('<ir_version: 11, opset_import: ["": 18]> g (float[2] x) => (y) { y = Exp(x) }')
    model.graph.node[0].metadata_props.add(key="namespace", value="net/act")
    entry = model.graph.node[0].device_configurations.add(configuration_id="pair")
    entry.sharding_spec.add(tensor_name="x", device=[0, 1])
    graph = read_proto(model).graph
    written = to_proto(graph)
    assert written.ir_version >= 11
    assert [(c.name, c.num_devices) for c in written.configuration] == [("pair", 2)]
    assert written.graph.node[0].device_configurations == model.graph.node[0].device_configurations
    assert read_proto(written).graph.nodes == graph.nodes


# Files


def test_a_written_file_is_read_back(tmp_path: Path) -> None:
    write(one("Add", "x", "w", constants={"w": np.ones(3, F4)}), tmp_path / "net.onnx")
    assert os.listdir(tmp_path) == ["net.onnx"]
    assert str(read(tmp_path / "net.onnx").graph.nodes[0]) == "y = Add (x, w)"


def test_large_constants_go_into_a_file_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_write, "EXTERNAL_ABOVE", 5000)
    constants = {
        "w": np.arange(3000, dtype=F4).reshape(3, 1000),
        "v": np.arange(2000).astype(ml_dtypes.int4),
        "s": np.array(["text"] * 900, object),
        "small": np.ones(3, F4),
    }
    write(one("my.Op", *constants, constants=constants), tmp_path / "net.onnx")
    assert sorted(os.listdir(tmp_path)) == ["net.onnx", "net.onnx.data"]
    held = read(tmp_path / "net.onnx").graph.constants
    assert all(np.array_equal(held[name], value) for name, value in constants.items())
    file = onnx.load(str(tmp_path / "net.onnx"), load_external_data=False)
    assert [t.name for t in file.graph.initializer if t.data_location] == ["w", "v"]


def test_onnxruntime_reads_the_file_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_write, "EXTERNAL_ABOVE", 5000)
    constants = {"w": np.arange(3000, dtype=F4), "v": np.arange(3000, dtype=F4)}
    write(one("Add", "w", "v", constants=constants), tmp_path / "net.onnx")
    [y] = ort.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"]).run(None, {})
    assert y[-1] == 2 * 2999


@pytest.mark.parametrize("path", ["nowhere/net.onnx", "folder", "file/net.onnx", "x" * 300, "a\0b"])
def test_a_path_that_cannot_be_written_is_said_and_left_alone(path: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("kept")
    with pytest.raises(UsageError, match="cannot be written"):
        write(one("Exp", "x"), tmp_path / path)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    target = tmp_path / "net.onnx"
    target.write_bytes(b"old")
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UsageError, match=r"net.onnx cannot be written: No space left on device"):
        write(one("Exp", "x"), target)
    assert (os.listdir(tmp_path), target.read_bytes()) == (["net.onnx"], b"old")


def test_a_graph_that_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError):
        write(one("Softmax", "x", dtype="c16"), tmp_path / "net.onnx")
    assert os.listdir(tmp_path) == []


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "link.onnx").symlink_to(tmp_path / "net.onnx")
    write(one("Exp", "x"), tmp_path / "link.onnx")
    assert (tmp_path / "link.onnx").is_symlink()
    assert read(tmp_path / "net.onnx").nodes == 1


@pytest.mark.slow
def test_more_than_two_gigabytes_are_written_and_read(tmp_path: Path) -> None:
    constants = {name: np.full(1 << 28, index, F4) for index, name in enumerate(("a", "b", "c"))}
    write(one("Sum", *constants, constants=constants), tmp_path / "net.onnx")
    held = read(tmp_path / "net.onnx").graph.constants
    assert [held[name][-1] for name in "abc"] == [0, 1, 2]
