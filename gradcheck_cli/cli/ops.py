"""`gradcheck ops`: which operators are known, and how the gradient of each one is."""

from __future__ import annotations

import json
import sys
from typing import Any

import rich_click as click

from gradcheck_cli.cli.options import OneOf


@click.command("ops")
@click.argument("operator", required=False, metavar="[OP]")
@click.option("--output-format", type=OneOf(("full", "json")), default="full", help="What goes to stdout.")
def command(operator: str | None, output_format: str) -> int:
    """Show the operators: forward, gradient, versions, dtypes, kinks. With OP, all about that one."""
    from gradcheck_cli.ops.facts import all_facts, facts_named
    from gradcheck_cli.report.operators import listing, page

    found = all_facts() if operator is None else facts_named(operator)
    if output_format == "json":
        text = json.dumps([each.as_json() for each in found], indent=2, default=_plain) + "\n"
    else:
        text = listing(found) if operator is None else "\n".join(map(page, found))
    sys.stdout.write(text)
    return 0


def _plain(value: Any) -> str:
    return str(value)
