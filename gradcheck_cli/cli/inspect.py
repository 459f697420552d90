"""`gradcheck inspect`: a model's tensors, what is differentiable, what blocks it, what a check would cost."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import rich_click as click

from gradcheck_cli.cli.options import MODELS, SETTINGS, TEXT_OR_JSON, TypedCommand, options_of
from gradcheck_cli.settings import options_at

if TYPE_CHECKING:
    from gradcheck_cli.checks.inspection import Inspection
    from gradcheck_cli.formats.source import Source, Spec


PARAMS = [*options_of("inspect", panels=False), MODELS, TEXT_OR_JSON]


@click.command("inspect", cls=TypedCommand, context_settings=SETTINGS, params=PARAMS)
@click.pass_context
def command(ctx: click.Context, /, models: tuple[str, ...], **options: Any) -> int:
    """Show a model's tensors, what is differentiable, what blocks a gradient, and what a check would cost."""
    from gradcheck_cli.cli import say
    from gradcheck_cli.cli.limits import within
    from gradcheck_cli.cli.output import style_of
    from gradcheck_cli.cli.tasks import ModelList, expand
    from gradcheck_cli.errors import GradcheckError, harmless
    from gradcheck_cli.graph.memory import exhausted
    from gradcheck_cli.report.model_overview import text
    from gradcheck_cli.report.text import AS_JSON
    from gradcheck_cli.results.record import worst_code

    files, missing, _ = expand(models)
    errors = [error for _, error in missing]
    found: list[Inspection] = []
    lists: list[GradcheckError] = []  # of models, which say so where there is nothing else
    for file in files:
        try:
            found.extend(within(options, partial(_inspections, file, options, ctx), file))
        except ModelList as error:
            lists.append(error)
        except (GradcheckError, MemoryError) as error:  # of several models one that cannot be read hides no other
            errors.append(exhausted(error) if isinstance(error, MemoryError) else error)
    errors += [] if found else lists
    if options["output_format"] == "json" and found:
        parts = [each.as_json() for each in found]
        told = json.dumps(parts[0] if len(parts) == 1 else parts, indent=2, default=str)
        sys.stdout.write(harmless(told, *AS_JSON) + "\n")
    else:
        style = style_of({name: value for name, value in options.items() if value is not None})
        sys.stdout.write(harmless("\n".join(text(each, style) for each in found), color=style.color))
    for each in errors:
        say(each)
    return worst_code({each.exit_code for each in errors} or {0})


def _inspections(file: str, options: Mapping[str, Any], ctx: click.Context) -> list[Inspection]:
    from dataclasses import replace

    from gradcheck_cli.checks.inspection import inspect
    from gradcheck_cli.cli.config import settings_above
    from gradcheck_cli.cli.resolve import dims_of, resolve
    from gradcheck_cli.cli.tasks import ModelList, fitting, side_car, targets
    from gradcheck_cli.errors import NothingChecked
    from gradcheck_cli.formats import read

    allow = bool(options["allow_python"])
    spec = read(file, dims=dims_of(options["dim"]), allow_python=allow)
    beside = side_car(file)
    said = read(beside, allow_python=allow) if beside else spec
    defaults = {**said.defaults, "dim": said.defaults.get("dims")}
    layers = [settings_above(os.path.dirname(file) or ".", ctx), defaults, options]
    bearing = [option.name for option in options_at("inspect") if option.field]
    asked = [{name: layer[name] for name in bearing if layer.get(name)} for layer in layers]
    subjects = {name: said.operators(source) if beside else source for name, source in _subjects(file, spec)}
    if not subjects and spec.models:
        raise ModelList(f"nothing to inspect: {file} lists models")
    if not subjects:
        raise NothingChecked(f"nothing to inspect: {file} has no graphs, and its checks name no models")
    named = {name for layer in asked for option in ("x", "y") for name in layer.get(option, ())}
    return [
        replace(inspect(source, resolve(source, [targets(source), *asked])), uri=label)
        for label, source in fitting(subjects, named)
    ]


def _subjects(file: str, spec: Spec) -> Iterator[tuple[str, Source]]:
    """The graphs of a file, or the models that its checks are about, each under a name of its own."""
    from gradcheck_cli.formats import read

    for name, source in spec.sources.items():
        yield (file if source is spec.meant else f"{file}::{name}"), source
    for model in dict.fromkeys(request.model for request in spec.checks if request.model):
        yield from ((name, spec.operators(source)) for name, source in _subjects(model, read(model)))
