"""ONNX's node cases that are left out, each with its reason.  Patterns are those of `fnmatch`."""

from __future__ import annotations

OPERATORS: dict[str, str] = {}

CASES: dict[str, str] = {}

FLOAT64: dict[str, str] = {}

ARBITRARY: dict[str, str] = {}
