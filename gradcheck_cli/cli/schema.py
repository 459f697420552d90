"""`gradcheck schema`: the JSON Schema of spec files or of results, for editors and for scripts."""

from __future__ import annotations

import json
import sys

import rich_click as click

from gradcheck_cli.cli.options import OneOf


@click.command("schema")
@click.argument("kind", type=OneOf(("spec", "result")))
def command(kind: str) -> int:
    """Print the JSON Schema (draft-07) of *.gradcheck.yaml files, or of the JSON that a check gives."""
    if kind == "spec":
        from gradcheck_cli.formats.yaml.fields import spec_schema as schema
    else:
        from gradcheck_cli.results.json_schema import result_schema as schema
    sys.stdout.write(json.dumps(schema(), indent=2) + "\n")
    return 0
