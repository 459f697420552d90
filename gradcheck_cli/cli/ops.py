"""`gradcheck ops`: the operators that are known, and how each one is differentiated."""

from __future__ import annotations

import json
import sys

import rich_click as click

from gradcheck_cli.cli.options import TEXT_OR_JSON


@click.command("ops", params=[click.RichArgument(["operator"], required=False, metavar="[OP]"), TEXT_OR_JSON])
def command(operator: str | None, output_format: str) -> int:
    """Show the operators: forward, gradient, versions, dtypes, kinks. With OP, all about that one."""
    from gradcheck_cli.ops.facts import all_facts, facts_named
    from gradcheck_cli.report.operators import listing, page

    found = all_facts() if operator is None else facts_named(operator)
    if output_format == "json":
        text = json.dumps([each.as_json() for each in found], indent=2, default=str) + "\n"
    else:
        text = listing(found) if operator is None else "\n".join(map(page, found))
    sys.stdout.write(text)
    return 0
