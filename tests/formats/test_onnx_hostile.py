"""Files that are no models, and models that were made to harm: each is an error that says what is wrong."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper, parser

from gradcheck_cli.errors import GradcheckError, ModelError
from gradcheck_cli.formats.onnx.read import read, read_proto, read_tensor, read_test_data

MODELS = Path(__file__).parents[3] / "shared" / "models"
SMALL = sorted((p for p in MODELS.rglob("*.onnx") if p.stat().st_size < 40_000), key=lambda p: p.name)
GOOD = parser.parse_model(
    """<ir_version: 9, opset_import: ["": 9, "f": 1]> g (float[N, 3] x, bool c) => (y)
    <float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}> {
        h = MatMul(x, w)
        k = Slice <starts=[0], ends=[2], axes=[1]> (h)
        i = If <then_branch=a () => (o) { o = Softmax(k) }, else_branch=b () => (o) { o = f.twice(k) }> (c)
        y = Clip <min=0.1> (i)
    }
    <domain: "f", opset_import: ["": 18]> twice (a) => (b) { h = Add(a, a) b = Identity(h) }"""
).SerializeToString()

NOT_MODELS = [
    (b"", "is empty"),
    (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
        "is a Git LFS pointer (63 bytes)",
    ),
    (b"<!DOCTYPE html><html></html>", "is a web page (HTML)"),
    (b"\n <html>", "is a web page (HTML)"),
    (b'{"a": 1}', "is a JSON file"),
    (b"ir_version: 8\ngraph { }\n", "is a model as text (textproto)"),
    (b'<ir_version: 8, opset_import: ["": 18]> g () => () {}', "is a model in ONNX's text syntax"),
    (b"PK\x03\x04....", "is a zip archive"),
    (b"\x89HDF\r\n\x1a\n", "is an HDF5 file"),
    (b"\x80\x02}q\x00.", "is a Python pickle"),
    (b"\x1f\x8b\x08", "is compressed with gzip"),
    (b"\x93NUMPY\x01", "is a NumPy array"),
    (b"\x1c\x00\x00\x00TFL3", "is a TFLite model"),
    (b"\x1c\x00\x00\x00ORTM", "is in ONNX Runtime's own format"),
    (b"weights, and nothing else\n", "is a text file, not a model"),
    (GOOD[:-20], "is truncated or damaged"),
    (b"\xff\xfe\xfd\xfc", "is not an ONNX model"),
    (b"\x08\x08", "is truncated or damaged"),
]


@pytest.mark.parametrize("data, message", NOT_MODELS, ids=[m for _, m in NOT_MODELS])
def test_files_that_are_no_models_are_named_for_what_they_are(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path} {message}")
    assert caught.value.exit_code == 4
    assert caught.value.code == ("GC403" if "pointer" in message else "GC401")


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "resnet.onnx").write_bytes(GOOD)
    with pytest.raises(ModelError, match=r"resnt.onnx does not exist. Did you mean 'resnet.onnx'\?"):
        read(tmp_path / "resnt.onnx")
    with pytest.raises(ModelError, match="does not exist"):
        read(tmp_path / "nowhere" / "resnet.onnx")


def test_a_folder_names_the_models_in_it(tmp_path: Path) -> None:
    (tmp_path / "resnet.onnx").write_bytes(GOOD)
    with pytest.raises(ModelError, match=r"is a folder, not a model. It holds resnet.onnx."):
        read(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(ModelError, match="is no regular file"):
        read(tmp_path / "pipe.onnx")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(GOOD)
    (tmp_path / "net.onnx").chmod(0)
    with pytest.raises(ModelError, match="cannot be read: Permission denied"):
        read(tmp_path / "net.onnx")


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, ""])
def test_paths_that_cannot_be(name: str) -> None:
    with pytest.raises(ModelError):
        read(name)


def test_bad_test_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "input_0.pb").write_bytes(b"\xff\xff")
    with pytest.raises(ModelError, match="is no ONNX tensor"):
        read_test_data(tmp_path)
    with pytest.raises(ModelError, match="cannot be read"):
        read_test_data(tmp_path / "none")


# External data


def with_external(folder: Path, **entries: object) -> Path:
    """A model whose only constant, float32 [4], lies in another file."""
    model = onnx.ModelProto(ir_version=8)
    model.opset_import.add(version=18)
    model.graph.name = "g"
    model.graph.output.add(name="w")
    tensor = model.graph.initializer.add(name="w", dims=[4], data_type=TensorProto.FLOAT)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "model"
    (inside / "sub").mkdir(parents=True)
    data = np.arange(6, dtype=np.float32).tobytes()
    for path in (inside / "w.bin", inside / "sub" / "w.bin", tmp_path / "secret.bin"):
        path.write_bytes(data)
    (inside / "link.bin").symlink_to(inside / "w.bin")
    (inside / "escape.bin").symlink_to(tmp_path / "secret.bin")
    (inside / "out").symlink_to(tmp_path)
    (inside / "loop.bin").symlink_to(inside / "loop.bin")
    os.mkfifo(inside / "pipe.bin")
    return inside


@pytest.mark.parametrize(
    "entries, first",
    [
        ({"location": "w.bin", "length": 16}, 0),
        ({"location": "w.bin", "offset": 8, "length": 16}, 2),
        ({"location": "w.bin", "offset": 4}, 1),
        ({"location": "./sub/w.bin", "offset": 0}, 0),
        ({"location": "link.bin"}, 0),
    ],
)
def test_external_data_is_read_from_the_models_folder(entries: dict[str, object], first: int, folder: Path) -> None:
    held = read(with_external(folder, **entries)).graph.constants["w"]
    assert held.tolist() == [first, first + 1, first + 2, first + 3]


@pytest.mark.parametrize(
    "entries, message",
    [
        ({"location": "gone.bin"}, "keeps its weights in gone.bin, which is not beside it"),
        ({"location": "../secret.bin"}, "not in the model's folder"),
        ({"location": "sub/../../secret.bin"}, "not in the model's folder"),
        ({"location": "/etc/passwd"}, "not in the model's folder"),
        ({"location": "C:\\weights.bin"}, "not in the model's folder"),
        ({"location": "..\\secret.bin"}, "not in the model's folder"),
        ({"location": "w\0.bin"}, "not in the model's folder"),
        ({"location": ""}, "not in the model's folder"),
        ({}, "not in the model's folder"),
        ({"location": "escape.bin"}, "symbolic link that leaves the model's folder"),
        ({"location": "out/secret.bin"}, "symbolic link that leaves the model's folder"),
        ({"location": "loop.bin"}, "w"),
        ({"location": "sub"}, "no regular file"),
        ({"location": "pipe.bin"}, "no regular file"),
        ({"location": "x" * 5000}, "cannot be read"),
        ({"location": "w.bin", "offset": 12}, "needs bytes 12 to 28 of w.bin, which has 24"),
        ({"location": "w.bin", "offset": 10**17}, "which has 24"),
        ({"location": "w.bin", "offset": -4}, "the offset '-4'"),
        ({"location": "w.bin", "offset": "1e3"}, "the offset '1e3'"),
        ({"location": "w.bin", "offset": "9" * 50}, "the offset '999"),
        ({"location": "w.bin", "length": 12}, "takes 12 bytes of w.bin where its shape needs 16"),
        ({"location": "w.bin", "length": 1 << 60}, "which has 24"),
    ],
)
def test_external_data_that_is_not_there_is_refused(entries: dict[str, object], message: str, folder: Path) -> None:
    with pytest.raises(ModelError) as caught:
        read(with_external(folder, **entries))
    assert message in str(caught.value)
    assert caught.value.code == "GC402"


@pytest.mark.parametrize("offset", [0, 12, 10**6])
def test_a_pointer_is_no_external_data_even_where_its_text_is_long_enough(offset: int, folder: Path) -> None:
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 24\n"
    (folder / "w.bin").write_text(text)
    with pytest.raises(ModelError, match=r"'w' is in w.bin, a Git LFS pointer \(127 bytes\); `git lfs pull`") as caught:
        read(with_external(folder, location="w.bin", offset=offset))
    assert caught.value.code == "GC403"


def test_a_linked_model_finds_its_data_where_it_really_lies(tmp_path: Path, folder: Path) -> None:
    cache = tmp_path / "snapshot"
    cache.mkdir()
    (cache / "model.onnx").symlink_to(with_external(folder, location="w.bin"))
    (cache / "w.bin").symlink_to(folder / "w.bin")
    assert read(cache / "model.onnx").graph.constants["w"].tolist() == [0, 1, 2, 3]


def test_a_model_in_memory_has_no_folder(folder: Path) -> None:
    model = onnx.load(str(with_external(folder, location="w.bin")), load_external_data=False)
    with pytest.raises(ModelError, match="this model has no folder"):
        read_proto(model)
    assert read(folder / "model.onnx").graph.constants["w"].size == 4


# Sizes that lie


@pytest.mark.parametrize(
    "tensor, message",
    [
        (TensorProto(dims=[1 << 40], data_type=1, raw_data=b"1234"), "holds 4 bytes where float32"),
        (TensorProto(dims=[1 << 40], data_type=1), "holds 0 numbers where float32"),
        (TensorProto(dims=[1 << 31, 1 << 31], data_type=1), "impossible shape"),
        (TensorProto(dims=[1 << 31, 1 << 31, 0], data_type=1), "impossible shape"),
        (TensorProto(dims=[-1], data_type=1, raw_data=b"1234"), "negative dimension"),
        (TensorProto(dims=[1] * 65, data_type=1, float_data=[1]), "65 dimensions"),
        (TensorProto(dims=[2], data_type=1, float_data=[1]), "holds 1 numbers where float32 [2] needs 2"),
        (
            TensorProto(dims=[2], data_type=14, float_data=[1, 2]),
            "holds 2 numbers where complex64 [2] needs 4",
        ),
        (TensorProto(dims=[3], data_type=22, raw_data=b"1"), "holds 1 byte where int4 [3] needs 2"),
        (TensorProto(dims=[2], data_type=8, string_data=[b"a"]), "holds 1 strings"),
        (TensorProto(dims=[1], data_type=0, raw_data=b"1"), "unknown element type 0"),
        (TensorProto(dims=[1], data_type=99, raw_data=b"1"), "unknown element type 99"),
        (TensorProto(dims=[1], data_type=1, float_data=[1], segment={"begin": 0}), "segment"),
    ],
)
def test_tensors_whose_size_lies_are_refused(tensor: TensorProto, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.pb").write_bytes(tensor.SerializeToString())
    with pytest.raises(ModelError) as caught:
        read_tensor(tmp_path / "t.pb")
    assert message in str(caught.value)


def test_one_external_file_cannot_be_read_without_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradcheck_cli.formats.onnx.graph_proto.installed", lambda: 100)
    model = onnx.load(str(with_external(folder, location="w.bin")), load_external_data=False)
    for index in range(10):
        model.graph.initializer.add().CopyFrom(model.graph.initializer[0])
        model.graph.initializer[-1].name = f"w{index}"
    (folder / "many.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(GradcheckError, match="do not fit into memory"):
        read(folder / "many.onnx")


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    data = b""
    for _ in range(400):
        for field in (6, 5, 1):  # attribute.g, node.attribute, graph.node
            data = bytes([field << 3 | 2]) + varint(len(data)) + data
    path = tmp_path / "deep.onnx"
    path.write_bytes(b"\x08\x08" + bytes([7 << 3 | 2]) + varint(len(data)) + data)
    with pytest.raises(ModelError, match="is truncated or damaged"):
        read(path)


def varint(number: int) -> bytes:
    """A number as protobuf writes it."""
    low, high = number & 127, number >> 7
    return bytes([low | 128]) + varint(high) if high else bytes([low])


def test_names_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(GOOD.replace(b"MatMul", b"Mat\xfful"))
    with pytest.raises(ModelError, match="not valid UTF-8"):
        read(path)


# Any bytes at all


def survives(data: bytes) -> None:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception:
        return
    with suppress(GradcheckError):
        read_proto(model, "mutant")


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The bytes with a few changed, cut out, doubled or moved."""
    result = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at, length = rng.randrange(len(result)), rng.randint(1, 8)
        match rng.randrange(4):
            case 0:
                result[at] = rng.randrange(256)
            case 1:
                del result[at : at + length]
            case 2:
                result[at:at] = result[at : at + length]
            case _:
                result[at] ^= 1 << rng.randrange(8)
        if not result:
            return b""
    return bytes(result)


@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.integers(0, 2**32))
def test_a_mutated_model_is_read_or_refused(seed: int) -> None:
    survives(mutated(GOOD, random.Random(seed)))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    survives(data)


def field_mutant(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """The model with some fields of its nodes and tensors set to what they should not be."""
    nodes = [node for graph in _graphs(model.graph) for node in graph.node]
    names = [name for node in nodes for name in (*node.input, *node.output)]
    for _ in range(rng.randint(1, 4)):
        node = rng.choice(nodes)
        match rng.randrange(7):
            case 0 if node.input:
                node.input[rng.randrange(len(node.input))] = rng.choice([*names, "", "none"])
            case 1 if node.output:
                node.output[rng.randrange(len(node.output))] = rng.choice([*names, ""])
            case 2 if node.attribute:
                node.attribute[rng.randrange(len(node.attribute))].type = rng.randrange(0, 15)
            case 3:
                node.op_type = rng.choice([other.op_type for other in nodes])
            case 4 if node.attribute:
                del node.attribute[rng.randrange(len(node.attribute))]
            case 5 if node.input:
                del node.input[rng.randrange(len(node.input))]
            case _:
                model.opset_import[0].version = rng.randrange(0, 29)
    return model


def _graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    inner = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return [graph, *(found for sub in inner for found in _graphs(sub))]


@pytest.mark.slow
@settings(max_examples=1500, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_a_model_with_fields_set_wrong_is_read_or_refused(seed: int) -> None:
    survives(field_mutant(onnx.ModelProto.FromString(GOOD), random.Random(seed)).SerializeToString())


@pytest.mark.skipif(not SMALL, reason="the shared models are not here")
def test_mutants_of_real_models_are_read_or_refused() -> None:
    rng = random.Random(0)
    for path in SMALL:
        data = path.read_bytes()
        for _ in range(12):
            survives(mutated(data, rng))
            survives(field_mutant(onnx.ModelProto.FromString(data), rng).SerializeToString())


@pytest.mark.one_in(20)
@pytest.mark.skipif(not SMALL, reason="the shared models are not here")
@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.name)
def test_many_mutants_of_real_models_are_read_or_refused(path: Path) -> None:
    rng, data = random.Random(path.name), path.read_bytes()
    for _ in range(400):
        survives(mutated(data, rng))
        survives(field_mutant(onnx.ModelProto.FromString(data), rng).SerializeToString())


@pytest.mark.parametrize("cut", range(0, len(GOOD), 7))
def test_every_beginning_of_a_model_is_read_or_refused(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(GOOD[:cut])
    with pytest.raises(ModelError):
        read(path)
    survives(GOOD[cut:])


def test_the_good_model_is_good() -> None:
    read_proto(onnx.ModelProto.FromString(GOOD))
    assert numpy_helper.to_array(onnx.ModelProto.FromString(GOOD).graph.initializer[0]).size == 9
