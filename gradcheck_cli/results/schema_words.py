"""JSON Schema (draft-07) in words: what fields may hold, and what is said of them."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
BOOL: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
INDICES: Schema = {"type": "array", "items": COUNT}
NUMBER: Schema = {"$ref": "#/definitions/number"}


def shaped(description: str, properties: Schema, required: list[str] | None = None) -> Schema:
    """An object with these fields."""
    found = {"type": "object", "description": description, "properties": properties}
    return {**found, "required": required} if required else found


def said(schema: Schema, description: str) -> Schema:
    """A value and what it is."""
    # Whatever stands beside a reference is ignored in draft-07.
    return {"description": description, **({"allOf": [schema]} if "$ref" in schema else schema)}


def or_null(schema: Schema) -> Schema:
    """A value, or none."""
    return {"oneOf": [schema, {"type": "null"}]}
