"""Cases of ours that onnxruntime cannot judge: the start of a case's id -> the reason."""

from __future__ import annotations

GAPS: dict[str, str] = {}

ARBITRARY: dict[str, str] = {}
