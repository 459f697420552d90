"""Models as text: JSON and text format of protobuf, and ONNX's own syntax, told apart by the suffixes that onnx gives them.

Files are untrusted: what a text may take in memory is asked for before it is parsed, and nesting is bounded, since
parsers recurse.
"""

from __future__ import annotations

import re
from pathlib import Path

import onnx

from gradcheck_cli.errors import ModelError, shown
from gradcheck_cli.graph.memory import require

JSON, TEXT, SYNTAX = "JSON", "protobuf's text format", "ONNX's text syntax"
FORMATS = {
    **dict.fromkeys((".json", ".onnxjson"), JSON),
    **dict.fromkeys((".textproto", ".txtpb", ".pbtxt", ".prototxt"), TEXT),
    **dict.fromkeys((".onnxtxt", ".onnxtext"), SYNTAX),
}
_PARSED = 60  # bytes that a parser takes at most, for each of the text
_DEEPEST = 64  # brackets in each other
_BRACKET = re.compile(r'"(?:\\.|[^"\\\n])*"|#[^\n]*|([(<\[{])|([)>\]}])')


def text_format_of(uri: str) -> str:
    """The format of a model as text, by the suffix of its file; "" for a binary one."""
    return FORMATS.get(Path(uri).suffix.lower(), "")


def parse_text(data: bytes, uri: str) -> onnx.ModelProto:
    """The model that a text stands for; a ModelError with what is wrong where it is none."""
    kind = text_format_of(uri)
    require(_PARSED * len(data), "its text")
    try:
        text = data.decode("utf-8-sig")
        if kind != JSON:
            _refuse_deep(text)
        model = _text_parsed(text, kind)
    except MemoryError:
        raise
    except Exception as error:  # parsers raise what they like
        reason = "it is nested too deeply." if isinstance(error, RecursionError) else _first_line(error)
        raise ModelError(f"{uri} is no model in {kind}: {reason}") from None
    if not model.HasField("graph"):
        raise ModelError(f"{uri} is no model in {kind}: it has no graph.")
    return model


def _text_parsed(text: str, kind: str) -> onnx.ModelProto:
    from google.protobuf import json_format, text_format  # type: ignore[import-untyped]

    model = onnx.ModelProto()
    if kind == SYNTAX:
        return onnx.parser.parse_model(text)
    if kind == JSON:
        json_format.Parse(text, model)
    else:
        text_format.Parse(text, model)
    return model


def _refuse_deep(text: str) -> None:
    """RecursionError for brackets in each other: of some parsers the end would be that of the process."""
    depth = 0
    for match in _BRACKET.finditer(text):
        depth += bool(match[1]) - bool(match[2] and depth)
        if depth > _DEEPEST:
            raise RecursionError


def _first_line(error: Exception) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return f"{shown(text[:200]).rstrip('.')}."
