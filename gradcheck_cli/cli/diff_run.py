"""One run of `gradcheck diff`: reads two models, compares them, and prints the records."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import rich_click as click

from gradcheck_cli.checks.assemble import failed_record
from gradcheck_cli.checks.diff.two_models import compare
from gradcheck_cli.checks.isolation import run as isolated
from gradcheck_cli.checks.progress import Progress
from gradcheck_cli.cli.baseline import gates_of
from gradcheck_cli.cli.config import settings_above
from gradcheck_cli.cli.limits import bounds_of, time_limit
from gradcheck_cli.cli.output import Output
from gradcheck_cli.cli.reproduce import chosen_sizes, typed
from gradcheck_cli.cli.resolve import dims_of, refuse_idle_rounding, resolve
from gradcheck_cli.cli.tasks import defined
from gradcheck_cli.errors import GradcheckError, UsageError, quoted, shown
from gradcheck_cli.formats import read
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph.memory import allowed, exhausted, held
from gradcheck_cli.points.dims import sizes_given
from gradcheck_cli.results.record import COMPARISON, Check, ModelInfo, Report
from gradcheck_cli.settings import options_at

_OF_FILES = ("x_shape", "dim", "test_data", "val_range", "points", "seed", "memory_limit", "jobs", "timeout")
_USUAL = {"points": 3}  # that a weight does not matter at one of them says little


def run(first: str, second: str, given: Mapping[str, Any], ctx: click.Context) -> int:
    """Compares two models and gives the exit code."""
    start, name = time.monotonic(), f"{second} against {first}"
    above = settings_above(os.path.dirname(second) or ".", ctx)
    of_files = {n: above[n] for n in _OF_FILES if n in above}  # tolerances and outputs there are those of checks
    layers = [_seeded(of_files), _seeded(given)]
    output = Output(given)
    call, bounds = partial(_checks, first, second, name, layers, ctx), bounds_of(layers)
    try:
        checks = call() if bounds is None else isolated(call, bounds)
    except (GradcheckError, MemoryError) as error:
        ours = exhausted(error) if isinstance(error, MemoryError) else error
        if output.for_people and not output.writes:
            raise ours from None
        plain = Check(name, name, "error", "", ModelInfo(second), "", "", method=COMPARISON)
        checks = (failed_record(plain, ours),)
    report = Report(checks, (), time.monotonic() - start, tuple(gates_of(given)))
    output.section(checks)
    try:
        output.write_reports(report)
    finally:  # a report that cannot be written is no reason to keep the results back
        output.end(report)
    return report.exit_code


def _checks(
    first: str, second: str, name: str, layers: Sequence[Mapping[str, Any]], ctx: click.Context
) -> tuple[Check, ...]:
    given = {key: value for layer in layers for key, value in layer.items()}
    progress = Progress(given.get("progress", "auto"))
    progress.begin(name)
    with ExitStack() as stack:
        stack.callback(progress.done)
        stack.enter_context(held(allowed(given.get("memory_limit"))))
        stack.enter_context(time_limit(given.get("timeout")))
        a, b = (_model(path, given) for path in (first, second))
        settings = resolve(a, [_USUAL, *({k: v for k, v in layer.items() if k != "given"} for layer in layers)])
        refuse_idle_rounding(ctx, settings, a, b)
        checks = compare(a, b, settings, _mapped(given.get("given", ()), a, b), name=name, listen=progress)
        known = {*a.dims, *settings.dims, *sizes_given(a.graph, settings)}
    return tuple(replace(c, reproduce=_command(c, first, second, given, known)) for c in checks)


def _seeded(layer: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**layer, "seed": secrets.randbelow(1 << 31)} if layer.get("seed") == "random" else layer


def _model(path: str, given: Mapping[str, Any]) -> Source:
    """The one model in a file."""
    spec = read(path, dims=dims_of(given.get("dim", ())))
    if spec.meant is None:
        raise UsageError(f"{path} holds {len(spec.sources)} models; give a file with one.")
    return defined(spec.meant, path)


def _mapped(texts: Iterable[str], a: Source, b: Source) -> dict[str, str]:
    """Tensors of A with their partners, from A_NAME=B_NAME; names may have equals signs of their own."""
    found: dict[str, str] = {}
    for text in texts:
        cuts = [(text[:i], text[i + 1 :]) for i, c in enumerate(text) if c == "="]
        known = [(mine, other) for mine, other in cuts if mine in a.graph.tensors and other in b.graph.tensors]
        if not cuts:
            raise UsageError(f"--map {shown(text)}: write A_NAME=B_NAME")
        mine, other = (known or cuts)[0]
        if found.get(mine, other) != other:
            raise UsageError(f"--map gives {shown(mine)!r} two partners: {shown(found[mine])!r} and {shown(other)!r}")
        found[mine] = other
    return found


def _command(check: Check, first: str, second: str, given: Mapping[str, Any], known: Container[str]) -> str:
    """The command that shows it again, at the point that failed and at the sizes that were chosen beside `known`."""
    words = ["gradcheck", "diff", first, second]
    words += [word for each in given.get("given", ()) for word in ("--map", each)]
    for option in options_at("diff"):
        if option.is_repeated or option.role == "target":
            words += typed(option, given.get(option.name))
    words += chosen_sizes(check, known)
    point = check.worst[0].point if check.worst else given.get("point")
    every = ["--points", str(check.points)] if check.points > 1 else []
    words += ["--seed", str(check.seed), *(every if point is None else ["--point", str(point)])]
    return " ".join(map(quoted, words))
