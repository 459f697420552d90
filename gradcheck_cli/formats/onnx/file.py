"""ONNX files as protobuf messages: whole models, outlines without large tensors, and parts of models.

Files are untrusted.  Memory is asked for before anything is parsed, and nesting is bounded because parsers recurse.
A file that is no model raises a ModelError that says what it is instead: a Git LFS pointer, a checkpoint, a web page.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from gradcheck_cli.errors import GradcheckError, ModelError, UsageError, counted, did_you_mean, shown
from gradcheck_cli.formats.untrusted import closed_afterwards, sha256_of_text
from gradcheck_cli.graph import Array
from gradcheck_cli.graph.memory import require

JSON, TEXT, SYNTAX = "JSON", "protobuf's text format", "ONNX's text syntax"
FORMATS = {
    **dict.fromkeys((".json", ".onnxjson"), JSON),
    **dict.fromkeys((".textproto", ".txtpb", ".pbtxt", ".prototxt"), TEXT),
    **dict.fromkeys((".onnxtxt", ".onnxtext"), SYNTAX),
}
PROTOBUF_LIMIT = (1 << 31) - 1  # bytes in one message
LARGE = 1 << 20  # bytes from which on an outline leaves a field out
_MEMORY_OF_TEXT = 60  # bytes that a parser needs at most for each byte of text
_MEMORY_OF_BINARY = 100  # the same for binary files: an empty node takes two bytes
_MOST_BRACKETS = 64  # inside each other, in a text
_MOST_MESSAGES = 100  # inside each other: protobuf's own limit
_BRACKET = re.compile(r'"(?:\\.|[^"\\\n])*"|#[^\n]*|([(<\[{])|([)>\]}])')
_MOST_FIELDS = 10_000_000  # that are visited: some seconds' worth
_FIRST_FIELDS = 100_000  # more than a model has before its functions, which come last
_FIXED_SIZE = {1: 8, 5: 4}  # bytes of a number, by wire type
_FLOATS = frozenset((TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16,
                     TensorProto.COMPLEX64, TensorProto.COMPLEX128))  # fmt: skip
_NOTHING_DONE = frozenset(("Identity", "Dropout"))
_PRODUCTS = {"MatMul": "MatMul", "Gemm": "MatMul", "Conv": "Conv", "ConvTranspose": "ConvTranspose"}
_FUSED = {"Add": frozenset(_PRODUCTS.values()), "BatchNormalization": frozenset(("Conv", "ConvTranspose"))}
_RAW = TensorProto.DESCRIPTOR.fields_by_name["raw_data"]
_BY_START = (
    (
        b"PK\x03\x04",
        "a zip archive (a PyTorch or Keras checkpoint?); export it to ONNX first: torch.onnx.export, tf2onnx",
    ),
    (b"\x89HDF\r\n", "an HDF5 file (Keras weights?); export it to ONNX first: tf2onnx.convert"),
    (b"\x1f\x8b", "compressed with gzip; unpack it first"),
    (b"\x80\x02", "a Python pickle (a PyTorch checkpoint?); export it to ONNX first: torch.onnx.export"),
    (b"\x80\x04", "a Python pickle; export it to ONNX first"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"<!doctype html", "a web page (HTML); the link that it was downloaded from is that of a page"),
    (b"<html", "a web page (HTML); the link that it was downloaded from is that of a page"),
    (b"<?xml", "an XML file"),
    (b"{", "a JSON file; a model in JSON is named .json"),
    (b"[", "a JSON file"),
    (b"ir_version", "a model as text (textproto); name it .textproto, or save it in binary form"),
    (b"<", "a model in ONNX's text syntax; name it .onnxtxt, or save it in binary form"),
)


POINTER = b"version https://git-lfs"  # begins the text that Git LFS puts in the place of a file
_BY_MARK = {  # after four bytes
    b"ORTM": "is in ONNX Runtime's own format; give the .onnx file that it was made of",
    b"TFL3": "is a TFLite model; convert it: python -m tf2onnx.convert --tflite model.tflite --output model.onnx",
}


def read_bytes(path: Path) -> bytes:
    """The content of a file that could be a model."""
    with opened(path) as file:
        return file.read()


def outline_of(path: Path) -> ModelProto:
    """The model in a file, without the bytes of its large tensors."""
    with opened(path) as file:
        data = Outline(file).data
    require(_MEMORY_OF_BINARY * len(data), "its graph")
    return parse_model(data, str(path))


def text_format(uri: str) -> str:
    """The text format of a file, by its suffix; "" for a binary one."""
    return FORMATS.get(Path(uri).suffix.lower(), "")


def parse_model(data: bytes, uri: str) -> ModelProto:
    """The model in `data`; a ModelError says what the data is instead."""
    refuse_pointer(data, uri)
    kind = text_format(uri)
    if data and kind:
        return _parsed_text(data, uri, kind)
    model = ModelProto()
    with suppress(DecodeError):
        model.ParseFromString(data)
        if model.HasField("graph"):
            return model
    raise ModelError(f"{uri} {_diagnosis(data)}.")


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """An open file that could be a model; failures to read it are ModelErrors."""
    try:
        if path.is_dir():
            models = [name for name in _names_in(path) if name.endswith(".onnx")]
            held = f" It holds {', '.join(models[:5])}{' ...' if len(models) > 5 else ''}." if models else ""
            raise ModelError(f"{path} is a folder, not a model.{held}")
        if path.exists() and not path.is_file():  # opening a pipe could block for ever
            raise ModelError(f"{path} is no regular file.")
        size = path.stat().st_size
        if size > PROTOBUF_LIMIT:
            raise ModelError(f"{path} is larger than 2 GiB in one file; save it with its weights as external data.")
    except FileNotFoundError:
        if path.is_symlink():
            raise ModelError(f"{path} is a link to {path.readlink()}, which does not exist.") from None
        raise ModelError(f"{path} does not exist.{did_you_mean(path.name, _names_in(path.parent))}") from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    try:
        with closed_afterwards(lambda: path.open("rb")) as file:
            yield file
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> ModelError:
    return ModelError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.")


def _names_in(folder: Path) -> list[str]:
    """The names of files in a folder; none if it cannot be read."""
    with suppress(OSError):
        return sorted(os.listdir(folder))
    return []


def refuse_pointer(data: bytes, uri: str) -> None:
    """Raises a ModelError if the data is a pointer that Git LFS put in the place of a file."""
    if data.startswith(POINTER):
        text = (
            f"{uri} is a Git LFS pointer ({counted(len(data), 'byte')}), not a model. `git lfs pull` fetches the model."
        )
        raise ModelError(text, code="GC403")


def refuse_broken_text(message: Message, uri: str) -> None:
    """Raises a ModelError if a string field of a message is not UTF-8; protobuf returns such strings as bytes."""
    for each in messages_in(message):
        for field, value in each.ListFields():
            texts = () if field.type != field.TYPE_STRING else [value] if isinstance(value, (str, bytes)) else value
            if any(type(text) is not str for text in texts):
                raise ModelError(f"{uri} is damaged: its field {field.full_name!r} is not valid UTF-8.")


def messages_in(message: Message) -> Iterator[Message]:
    """A message and all messages inside of it, at every depth."""
    pending = [message]
    while pending:
        yield (found := pending.pop())
        for field, value in found.ListFields():
            if field.type == field.TYPE_MESSAGE:
                pending.extend([value] if isinstance(value, Message) else value)


def _diagnosis(data: bytes) -> str:
    """A predicate for data that is no model: "is a text file, not a model"."""
    if not data:
        return "is empty"
    start = data[:64].lstrip().lower()
    for mark, kind in _BY_START:
        if start.startswith(mark.lower()):
            return f"is {kind}"
    if data[4:8] in _BY_MARK:
        return _BY_MARK[data[4:8]]
    if not any(byte < 9 or 13 < byte < 32 or byte > 126 for byte in data[:4096]):
        return "is a text file, not a model; models are .onnx files, or specs that end in .gradcheck.yaml"
    if ModelProto.DESCRIPTOR.fields_by_name["ir_version"].number << 3 == data[0]:
        return f"is truncated or damaged: its {counted(len(data), 'byte is', 'bytes are')} not a whole ONNX model"
    if data[8:10] == b'{"':
        return "holds weights alone (safetensors); export the model that loads them: torch.onnx.export"
    return "is not an ONNX model"


def _parsed_text(data: bytes, uri: str, kind: str) -> ModelProto:
    """The model in a text file of a kind of `FORMATS`; a ModelError says what is wrong with the text."""
    from google.protobuf import json_format, text_format  # type: ignore[import-untyped]

    require(_MEMORY_OF_TEXT * len(data), "its text")
    try:
        text = data.decode("utf-8-sig")
        if kind != JSON:
            _refuse_deep(text)
        model = ModelProto()
        if kind == SYNTAX:
            model = onnx.parser.parse_model(text)
        elif kind == JSON:
            json_format.Parse(text, model)
        else:
            text_format.Parse(text, model)
    except MemoryError:
        raise
    except Exception as error:  # the three parsers raise exceptions of any kind
        reason = "it is nested too deeply." if isinstance(error, RecursionError) else _first_line(error)
        raise ModelError(f"{uri} is no model in {kind}: {reason}") from None
    if not model.HasField("graph"):
        raise ModelError(f"{uri} is no model in {kind}: it has no graph.")
    return model


def _refuse_deep(text: str) -> None:
    """Raises RecursionError for brackets nested too deeply, on which some parsers would crash the process."""
    depth = 0
    for match in _BRACKET.finditer(text):
        depth += bool(match[1]) - bool(match[2] and depth)
        if depth > _MOST_BRACKETS:
            raise RecursionError


def _first_line(error: Exception) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return f"{shown(text[:200]).rstrip('.')}."


class Outline:
    """A model in an open file without its large tensors: `data` has a mark for each, `payload` reads it from the file.

    A parsed message holds all of its bytes and copies each tensor when it is read, so that a model would be in memory
    three times.  Payloads are read by offset and not mapped into memory: a file that is cut off meanwhile is then an
    error, and does not kill the process.
    """

    def __init__(self, file: BufferedReader) -> None:
        self._file, self._wire = file, Wire(file)
        self._spans: dict[bytes, tuple[int, int]] = {}
        size = file.seek(0, 2)
        try:
            self.data = self._without(0, size, ModelProto.DESCRIPTOR, 0)
        except Malformed:  # the parser has a better message
            self._spans.clear()
            self.data = self._wire.read(0, size)

    def payload(self, raw_data: bytes) -> Array:
        """The bytes of a tensor: those in its `raw_data` field, or those that the mark in this field stands for."""
        if raw_data not in self._spans:
            return np.frombuffer(raw_data, np.uint8)
        start, stop = self._spans[raw_data]
        self._file.seek(start)
        data = np.fromfile(self._file, np.uint8, stop - start)
        if data.size < stop - start:
            raise ModelError("the file was cut off while it was read.")
        return data

    def _without(self, start: int, stop: int, kind: Any, depth: int) -> bytes:
        """The bytes of a message of this kind, with marks in place of large payloads."""
        if depth > _MOST_MESSAGES:
            raise Malformed
        made, copied = list[bytes](), start
        for tag, at, begin, end in self._wire.fields(start, stop):
            if end - begin > LARGE and (inner := self._replaced(kind, tag, begin, end, depth)) is not None:
                made += [self._wire.read(copied, at), _varint(len(inner)), inner]
                copied = end
        return b"".join([*made, self._wire.read(copied, stop)])

    def _replaced(self, kind: Any, tag: int, begin: int, end: int, depth: int) -> bytes | None:
        """The bytes to put in the place of a large field; None if the field stays."""
        field = kind.fields_by_number.get(tag >> 3) if tag & 7 == 2 else None
        if field is not None and field.message_type is not None:
            return self._without(begin, end, field.message_type, depth + 1)
        if field is None or field.full_name != _RAW.full_name:
            return None
        mark = secrets.token_bytes(32)  # random, so that no file can contain it on purpose
        self._spans[mark] = begin, end
        return mark


def structures_of(path: Path, *, named: bool) -> tuple[str, str]:
    """Digests of the model in a file that do not depend on values of weights; "" if it cannot be read.

    The first holds operators, attributes, wiring, declared types, and the values of integers; names of tensors are left
    out but for inputs and outputs, or kept if they are `named` by somebody.  The second is the same for models that
    differ by no more than identities, folded constants and fused biases.  Both are guesses from the file: equal digests
    are a reason to compare what runs.
    """
    try:
        model = outline_of(path)
    except (GradcheckError, OSError, ValueError, MemoryError):
        return "", ""
    ends = [each.SerializeToString(deterministic=True) for each in (*model.graph.input, *model.graph.output)]
    told = [*ends, *sorted(f"{each.domain} {each.version}" for each in model.opset_import)]
    functions = [each.SerializeToString(deterministic=True) for each in model.functions]
    naming = Naming({each.name for each in (*model.graph.input, *model.graph.output)}, named)
    exact = repr([told, functions, _graph_told(model.graph, naming)])
    return _digest(exact), _digest(repr([ends, functions, *_optimized(model.graph)]))


def _digest(text: str) -> str:
    return sha256_of_text(text)[:32]


class Naming:
    """Numbers in place of names of tensors, in the order in which they are met; some names are kept, or all."""

    def __init__(self, kept: set[str], every: bool) -> None:
        self.kept, self.every = kept, every
        self.numbers: dict[str, str] = {"": ""}

    def of(self, name: str) -> str:
        if self.every or name in self.kept:
            return f"'{name}"
        return self.numbers.setdefault(name, str(len(self.numbers)))


def _graph_told(graph: GraphProto, naming: Naming) -> list[Any]:
    """A graph without names of tensors; constants follow in the order in which nodes read them."""
    ends = [naming.of(each.name) for each in graph.input]
    nodes = [
        (node.domain, node.op_type, [*map(naming.of, node.input)], [*map(naming.of, node.output)],
         [_attribute_told(each, naming) for each in sorted(node.attribute, key=lambda each: each.name)])
        for node in graph.node
    ]  # fmt: skip
    held = sorted((naming.of(each.name), _tensor_told(each)) for each in graph.initializer)
    sparse = [each.SerializeToString(deterministic=True) for each in graph.sparse_initializer]
    return [ends, nodes, held, sparse, [naming.of(each.name) for each in graph.output]]


def _attribute_told(attribute: AttributeProto, naming: Naming) -> Any:
    if attribute.type == AttributeProto.TENSOR:
        return attribute.name, _tensor_told(attribute.t)
    if attribute.type == AttributeProto.GRAPH:
        return attribute.name, _graph_told(attribute.g, naming)
    return attribute.SerializeToString(deterministic=True)


def _tensor_told(tensor: TensorProto) -> tuple[Any, ...]:
    """Dtype and shape, with the values of what holds no numbers that a gradient flows through."""
    if tensor.data_type in _FLOATS:
        return tensor.data_type, [*tensor.dims], b""
    bare = TensorProto()
    bare.CopyFrom(tensor)
    for field in ("name", "doc_string", "metadata_props"):
        bare.ClearField(field)
    return tensor.data_type, [*tensor.dims], bare.SerializeToString(deterministic=True)


def _optimized(graph: GraphProto) -> tuple[list[Any], list[list[int]]]:
    """The nodes that an optimizer leaves as they are, and the sizes of matrices and larger weights, in any order."""
    constant = {each.name for each in graph.initializer}
    matrices = [each for each in graph.initializer if each.data_type in _FLOATS]
    alias: dict[str, str] = {}
    made: dict[str, str] = {}  # the operator that makes a tensor
    nodes, naming = [], Naming({each.name for each in graph.input}, False)
    for node in graph.node:
        matrices += [each.t for each in node.attribute if each.type == AttributeProto.TENSOR]
        read = [alias.get(name, name) for name in node.input]
        flowing = [name for name in read if name and name not in constant]
        if not flowing and not any(each.type == AttributeProto.GRAPH for each in node.attribute):
            constant.update(node.output)
        elif node.op_type in _NOTHING_DONE or (node.op_type in _FUSED and made.get(flowing[0], "") in _FUSED[node.op_type]
                                               and len(flowing) == 1):  # fmt: skip
            alias[node.output[0]] = flowing[0]
        else:
            kind = _PRODUCTS.get(node.op_type, node.op_type)
            made.update(dict.fromkeys(node.output, kind))
            fused = kind in _PRODUCTS.values()
            attributes = [] if kind == "MatMul" else [_attribute_told(each, naming) for each in node.attribute]
            slots = [naming.of(n) if n not in constant else "c" for n in (flowing if fused else read)]
            nodes.append((node.domain, kind, slots, [*map(naming.of, node.output)], sorted(map(repr, attributes))))
    ends = [naming.of(alias.get(each.name, each.name)) for each in graph.output]
    sizes = sorted(sorted(each.dims) for each in matrices if each.data_type in _FLOATS and len(each.dims) > 1)
    return [*nodes, ends], sizes


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


def fields_of(file: BufferedReader) -> set[int]:
    """Numbers of the top-level fields of the message in an open file, up to the first malformed one."""
    found, size = set[int](), file.seek(0, 2)
    with suppress(Malformed):
        found.update(tag >> 3 for tag, _, _, _ in islice(Wire(file).fields(0, size), _FIRST_FIELDS))
    return found


class Malformed(Exception):
    """The bytes are not a protobuf message."""


class Wire:
    """Protobuf's wire format in an open file: finds the fields of messages without reading their content."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        self._fields = 0  # visited so far

    def fields(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """The fields of a message, each as its tag and three offsets: end of the tag, begin and end of the content."""
        position = start
        while position < stop:
            self._fields += 1
            tag, at = self.number(position, stop)
            if tag < 8 or self._fields > _MOST_FIELDS:  # there is no field 0
                raise Malformed
            begin, position = self._extent(tag & 7, at, stop)
            yield tag, at, begin, position

    def number(self, at: int, stop: int) -> tuple[int, int]:
        """The varint at an offset, and the offset of its end."""
        value = 0
        for index, byte in enumerate(self.read(at, min(at + 10, stop))):
            value |= (byte & 127) << 7 * index
            if byte < 128:
                return value, at + index + 1
        raise Malformed

    def read(self, start: int, stop: int) -> bytes:
        """The bytes between two offsets."""
        self._file.seek(start)
        return self._file.read(stop - start)

    def _extent(self, wire: int, at: int, stop: int) -> tuple[int, int]:
        """Begin and end of a field's content."""
        if wire == 0:
            length = self.number(at, stop)[1] - at
        elif wire == 2:
            length, at = self.number(at, stop)
        else:
            length = _FIXED_SIZE.get(wire, stop + 1)
        if at + length > stop:
            raise Malformed
        return at, at + length


def part_of(path: str, outputs: Sequence[str], fed: Mapping[str, Array] | None = None) -> bytes:
    """The part of the model in a file that computes `outputs`, serialized; external data stays in its own files.

    Each tensor in `fed`, be it a parameter or a result of a node, becomes an input with the dtype and shape of its value.
    """
    model = parse_model(read_bytes(Path(path)), path)
    graph, needed = model.graph, set(outputs)
    for name, like in (fed or {}).items():
        _feed(graph, name, like, path)
    kept = []
    for node in reversed(graph.node):
        if not needed.isdisjoint(node.output):
            needed.update(_reads(node))
            kept.append(node)
    _keep(graph.node, kept[::-1])
    _keep(graph.input, [each for each in graph.input if each.name in needed])
    del graph.output[:]
    for name in outputs:
        graph.output.add().name = name
    try:
        return bytes(model.SerializeToString())
    except ValueError as error:
        raise ModelError(f"{path} is too large to be taken apart: {error}") from None


def computed_in(path: str) -> frozenset[str]:
    """Names of the tensors that the nodes of the model in a file compute."""
    graph = parse_model(read_bytes(Path(path)), path).graph
    return frozenset(name for node in graph.node for name in node.output if name)


def _feed(graph: GraphProto, name: str, like: Array, path: str) -> None:
    """Makes a tensor an input, be it an initializer or the output of a node."""
    dense = [each for each in graph.initializer if each.name != name]
    sparse = [each for each in graph.sparse_initializer if each.values.name != name]
    made = [node for node in graph.node if name in node.output]
    held = False
    for field, kept in ((graph.initializer, dense), (graph.sparse_initializer, sparse)):
        if len(kept) < len(field):
            held = True
            _keep(field, kept)
    if name in (each.name for each in graph.input):
        return
    if not made and not held:
        raise UsageError(f"{path} has no tensor {name!r} of its own: name one that goes into it, or comes from it.")
    for node in made:
        node.output[list(node.output).index(name)] = f"{name}/left"
    _keep(graph.value_info, [each for each in graph.value_info if each.name != name])
    graph.input.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(like.dtype), like.shape))


def _reads(node: NodeProto) -> Iterator[str]:
    """Names that a node reads, with those that its subgraphs may read from outside."""
    for message in messages_in(node):
        if isinstance(message, NodeProto):
            yield from message.input
        elif isinstance(message, GraphProto):
            yield from (output.name for output in message.output)


def _keep(field: Any, kept: Sequence[Any]) -> None:
    """Reduces a repeated field to some of its messages."""
    copies = [type(each).FromString(each.SerializeToString()) for each in kept]
    del field[:]
    field.extend(copies)
