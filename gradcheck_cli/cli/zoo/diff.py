"""`gradcheck zoo diff OLD NEW`: what has changed between two runs."""

from __future__ import annotations

from typing import Any

import rich_click as click

from gradcheck_cli.cli.param_types import OneOf


@click.command("diff")
@click.argument("old", metavar="OLD", type=click.Path())
@click.argument("new", metavar="NEW", type=click.Path())
@click.option("--slower", type=click.FloatRange(1), metavar="FACTOR", help="Times as long that matter. [default: 1.5]")
@click.option("--show", type=click.IntRange(min=0), metavar="INT", help="Checks shown of each kind. [default: 10]")
@click.option("--output-format", type=OneOf(("full", "json")), default="full", help="What goes to stdout.")
@click.option("--color", type=OneOf(("auto", "always", "never")), default="auto", help="Colors.")
def command(old: str, new: str, **options: Any) -> int:
    """Compare two runs, or results (.jsonl, .json): newly failing, fixed, changed, slower, gone, new.

    It exits with 1 if a check fails that did not fail before, or was not there; else with 0.
    """
    from gradcheck_cli.cli.zoo.changes import show

    return show(old, new, {name: value for name, value in options.items() if value is not None})
