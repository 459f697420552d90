"""`gradcheck inspect`: a model's tensors, what is differentiable, what blocks it, what a check would cost."""

from __future__ import annotations

import json
import sys
from typing import Any

import rich_click as click

from gradcheck_cli.cli.check_options import complete_tensor


@click.command("inspect")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...", type=click.Path())
@click.option("--x", multiple=True, metavar="NAME", shell_complete=complete_tensor, help="As in check.")
@click.option("--y", multiple=True, metavar="NAME", shell_complete=complete_tensor, help="As in check.")
@click.option("--params", is_flag=True, default=None, help="Every float parameter as x too.")
@click.option(
    "--x-shape", "--input-shapes", "x_shape", multiple=True, metavar="[NAME:]SHAPE", help="Shape of an input."
)
@click.option("--dim", multiple=True, metavar="NAME=INT", help="Size of an open dimension.")
@click.option("--allow-python", is_flag=True, default=None, help="Let a spec call Python functions.")
@click.option("--output-format", type=click.Choice(("full", "json")), default="full", help="What goes to stdout.")
@click.option("-v", "--verbose", count=True, help="All parameters and all pairs.")
@click.option("--color", type=click.Choice(("auto", "always", "never")), default="auto", help="Colors.")
def command(models: tuple[str, ...], **options: Any) -> int:
    """Show a model's tensors, what is differentiable, what blocks a gradient, and what a check would cost."""
    from gradcheck_cli.cli.output import style_of
    from gradcheck_cli.report.inspection import text

    found = [each for path in models for each in _inspections(path, options)]
    if options["output_format"] == "json":
        parts = [each.as_json() for each in found]
        sys.stdout.write(json.dumps(parts[0] if len(parts) == 1 else parts, indent=2, default=str) + "\n")
    else:
        sys.stdout.write("\n".join(text(each, style_of(options)) for each in found))
    return 0


def _inspections(path: str, options: dict[str, Any]) -> list[Any]:
    from dataclasses import replace

    from gradcheck_cli.cli.models import expand
    from gradcheck_cli.cli.resolve import dims_of, resolve
    from gradcheck_cli.formats import read
    from gradcheck_cli.inspection import inspect

    given = {k: v for k, v in options.items() if v and k in ("x", "y", "params", "x_shape", "dim")}
    found = []
    for file in expand([path]):
        spec = read(file, dims=dims_of(options["dim"]), allow_python=bool(options["allow_python"]))
        for name, source in spec.sources.items():
            label = file if len(spec.sources) == 1 else f"{file}::{name}"
            found.append(replace(inspect(source, resolve(source, file, [given])), uri=label))
    return found
