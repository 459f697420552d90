"""`gradcheck init`: writes the side-car of a model, with the targets and sizes that a check would choose, to be edited.

Targets and sizes are written out.  Ranges and further settings stand there as comments: a check with the file as it is
gives what a check without it gives, at any number of points.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from gradcheck_cli.cli.options import MODELS, SETTINGS, options_of
from gradcheck_cli.errors import GradcheckError, NothingChecked, UsageError, counted, plural, shown

if TYPE_CHECKING:
    from gradcheck_cli.checks.inspection import Inspection
    from gradcheck_cli.formats.source import Source

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_NO_TEXTS = {"null", "true", "false", "yes", "no", "on", "off"}  # to YAML 1.2 or to 1.1
_UNPRINTABLE = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_SUFFIX = ".gradcheck.yaml"
_HEAD = """\
gradcheck: 1
# How {models} checked. The targets and sizes are those that a check chooses by itself: change what
# should be otherwise. `gradcheck config {example}` shows all settings in force, `gradcheck schema spec` all keys.
"""
_MORE = """\
    # points: 3            # random points to check; 1 by default
    # seed: 0              # of all that is drawn at random
    # rtol: 5.0e-7         # relative error that is accepted
    # expect: {status: fail, reason: "why this is known", until: 2999-12-31}
"""
OUTPUT = click.RichOption(
    ["-o", "--output"], metavar="FILE", type=click.Path(),
    help=f"The file to write, ending in {_SUFFIX}; it holds the checks of all models. [default: beside each model]",
)  # fmt: skip
FORCE = click.RichOption(["--force"], is_flag=True, help="Replace files that are there.")
PARAMS = [MODELS, OUTPUT, FORCE, *(each for each in options_of("inspect", panels=False) if each.name == "dim")]


@click.command("init", params=PARAMS, context_settings=SETTINGS)
@click.pass_context
def command(ctx: click.Context, /, models: tuple[str, ...], output: str | None, force: bool, **options: Any) -> int:
    """Write model.gradcheck.yaml beside each model: the targets and sizes that a check would choose, to be edited.

    `gradcheck MODEL` reads it from then on, and gives the same result until something is changed in it.
    """
    from gradcheck_cli.cli import say
    from gradcheck_cli.cli.tasks import expand
    from gradcheck_cli.results.record import worst_code

    files, missing, _ = expand(models)
    errors, written = [error for _, error in missing], set[str]()
    for target, own in _targets(files, models, output):
        try:
            _refuse_present(target, own, force=force and target not in written)
            text = _text([*_checks(own, target, options, ctx)], own)
            _write(Path(target), text, replace=force)
            written.add(target)
            sys.stdout.write(f"{shown(target)}: {shown(', '.join(own))}\n")
        except GradcheckError as error:  # of several models one that cannot be read hides no other
            errors.append(error)
    for each in errors:
        say(each)
    return worst_code({each.exit_code for each in errors} or {0})


def _targets(found: Sequence[str], named: Sequence[str], output: str | None) -> Iterator[tuple[str, list[str]]]:
    """The files to write, each with its models; specs in a folder or of a pattern are left alone."""
    from gradcheck_cli.formats import is_spec

    files = [path for path in found if not is_spec(path)]
    if specs := [path for path in named if is_spec(path)]:
        raise UsageError(f"{specs[0]} is a spec already; `gradcheck init` takes models.")
    if not files:
        raise NothingChecked("there is no model, only specs, for which no side-car is written.")
    if output is None:
        yield from ((os.path.splitext(path)[0] + _SUFFIX, [path]) for path in files)
    elif not output.endswith(_SUFFIX):
        raise UsageError(f"-o {output} must end in {_SUFFIX}.")
    else:
        yield output, [*files]


def _refuse_present(target: str, models: Sequence[str], *, force: bool) -> None:
    """Raises UsageError for a file that is there, or a side-car of another name, which would be read in its place."""
    from gradcheck_cli.cli.tasks import side_car

    beside = {path for model in models if (path := side_car(model)) and _is_beside(target, model)}
    if os.path.lexists(target) and not force:
        raise UsageError(f"{target} is there already; --force replaces it.")
    if other := next(iter(beside - {target}), None):
        raise UsageError(f"{other} says already how {models[0]} is checked; remove it first.")


def _is_beside(target: str, model: str) -> bool:
    return os.path.splitext(model)[0] + _SUFFIX == target


def _write(path: Path, text: str, *, replace: bool) -> None:
    """Writes a file whole or not at all."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        try:
            with part.open("x", encoding="utf-8") as file:
                file.write(text)
            if replace:
                part.replace(path)
            else:
                os.link(part, path)  # fails where there is a file by now
        finally:
            with suppress(FileNotFoundError):
                part.unlink()
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from None


def _checks(models: Iterable[str], target: str, options: Mapping[str, Any], ctx: click.Context) -> Iterator[str]:
    for path in models:
        for _, source in _subjects(path):
            found, claimed = _inspection(path, source, options, ctx)
            yield _check(path, found, source, target, claimed=claimed)


def _subjects(path: str) -> Iterator[tuple[str, Source]]:
    """The model in a file; UsageError for training information, whose steps are found by themselves."""
    from gradcheck_cli.cli.tasks import has_training
    from gradcheck_cli.formats import read

    if has_training(path):
        raise UsageError(f"{path} has training information, whose steps a side-car with checks would leave out.")
    yield from read(path).sources.items()


def _inspection(path: str, source: Source, options: Mapping[str, Any], ctx: click.Context) -> tuple[Inspection, bool]:
    """The facts of a model, with the settings of configuration files; and whether it brings gradients of its own."""
    from gradcheck_cli.checks.claims.claim import asked
    from gradcheck_cli.checks.inspection import inspect
    from gradcheck_cli.cli.config import settings_above
    from gradcheck_cli.cli.resolve import resolve
    from gradcheck_cli.graph.memory import exhausted, held

    try:
        with held():
            layers = [settings_above(os.path.dirname(path) or ".", ctx), {"dim": options["dim"]}]
            settings = resolve(source, layers)
            return inspect(source, settings), bool(asked(source, settings).claims)
    except MemoryError as error:
        raise exhausted(error) from None


def _check(path: str, found: Inspection, source: Source, target: str, *, claimed: bool) -> str:
    """The entry of one model under `checks`."""
    model = os.path.relpath(path, os.path.dirname(target) or ".")
    lines = [f"  - model: {_text_of(model)}"]
    named = _list("x", found.x, "differentiated by these") + _list("y", found.y, "these are differentiated")
    if claimed:  # they are looked for where nobody names targets
        lines += ["    # The model brings gradients of its own, which are checked too unless x or y is named:"]
        named = [f"    # {line.strip()}" for line in named]
    lines += named
    own = {name: size for name, size in found.dims.items() if name not in source.dims}
    if own:
        sizes = ", ".join(f"{_text_of(name)}: {size}" for name, size in own.items())
        lines += [f"    dims: {{{sizes}}}  # sizes of open dimensions"]
    if found.obstacle:
        lines += [f"    # it does not run as it is: {shown(found.obstacle.splitlines()[0])}"]
    return "\n".join([*lines, *_ranges(source, found)]) + "\n" + _MORE


def _list(key: str, names: Sequence[str], remark: str) -> list[str]:
    """A key with names, on one line as long as they are few."""
    if not names:
        return [f"    # {key}: []  # none was found"]
    short = f"    {key}: [{', '.join(map(_text_of, names))}]"
    if len(short) <= 80:
        return [f"{short}  # {remark}"]
    return [f"    {key}:  # {remark}", *(f"      - {_text_of(name)}" for name in names)]


def _ranges(source: Source, found: Inspection) -> list[str]:
    """Comments with the ranges from which inputs are drawn at the first point."""
    ranges = [*_drawn(source, found)]
    if not ranges:
        return []
    head = "    # val_range:           # inputs are drawn from these at the first point, from wider ones at others"
    return [head, *(f"    #   {_text_of(name)}: [{low:g}, {high:g}]" for name, (low, high) in ranges)]


def _drawn(source: Source, found: Inspection) -> Iterator[tuple[str, tuple[float, float]]]:
    """The inputs that are drawn, each with its range; none where the sizes of the model are not known."""
    from gradcheck_cli.autodiff.custom import ops_for
    from gradcheck_cli.graph import is_inexact
    from gradcheck_cli.ops import OPS
    from gradcheck_cli.points.dims import concrete
    from gradcheck_cli.points.point import float_range, integer_range
    from gradcheck_cli.settings import Settings

    graph, ops = source.graph, ops_for(source, OPS)
    needed = graph.needed_for(found.y)
    for name in () if found.obstacle else graph.free_inputs:
        declared = graph.types.get(name)
        if name not in needed or declared is None or declared.kind != "tensor" or declared.dtype in (None, object):
            continue
        if is_inexact(declared.dtype):
            yield name, float_range(graph, name, ops)
        elif declared.dtype.kind in "iub":
            yield name, integer_range(graph, name, ops, concrete(graph, name, Settings(), found.dims), found.dims)


def _text(checks: Sequence[str], models: Sequence[str]) -> str:
    """The content of a file."""
    from gradcheck_cli.errors import quoted

    names = shown(os.path.basename(models[0])) if len(models) == 1 else counted(len(models), "model")
    head = _HEAD.format(models=f"{names} {plural(len(models), 'is', 'are')}", example=quoted(models[0]))
    return head + "checks:\n" + "\n".join(checks)


def _text_of(name: str) -> str:
    """A text as YAML reads it, in any version."""
    if _PLAIN.fullmatch(name) and name.lower() not in _NO_TEXTS:
        return name
    return _UNPRINTABLE.sub(lambda c: f"\\u{ord(c[0]):04x}", json.dumps(name, ensure_ascii=False))
