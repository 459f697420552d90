"""The nearest `gradcheck.toml` or `[tool.gradcheck]`: options of `check` by name, as if they were typed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import rich_click as click

from gradcheck_cli.cli.options import options_of
from gradcheck_cli.errors import Diagnostic, SpecError, did_you_mean
from gradcheck_cli.formats.untrusted import content, inside
from gradcheck_cli.settings import OPTIONS

_LARGEST, _MOST = 4 << 20, 100  # bytes of a configuration file, and problems that are looked for in it
_BY_HAND = "code is run when --allow-python is typed: a file that comes with a model cannot allow it"
_BY_EQUALS = ("values", "feeds", "sizes", "claims")  # kinds of options that are typed NAME=VALUE
_PATHS = ("path", "plot", "data")
_Found: TypeAlias = tuple[Path, Mapping[str, Any], str]
_KNOWN: dict[str, click.Parameter] = {param.name: param for param in options_of("file") if param.name}
_KEYS = {key: name for name in _KNOWN for key in OPTIONS[name].keys}


def settings_above(folder: str, ctx: click.Context) -> dict[str, Any]:
    """Settings of the nearest configuration file above a folder, converted as options are."""
    found = _nearest(folder, ctx)
    return {} if found is None else _converted(*found, ctx)


def file_above(folder: str, ctx: click.Context) -> str:
    """The nearest configuration file above a folder; "" for none."""
    found = _nearest(folder, ctx)
    return "" if found is None else str(found[0])


def _nearest(folder: str, ctx: click.Context) -> _Found | None:
    """The file, its table, and its text; each folder is searched once in a run."""
    known: dict[str, _Found | None] = ctx.meta.setdefault(f"{__name__}.files", {})
    if folder not in known:
        known[folder] = _search(Path(os.path.abspath(folder)))
    return known[folder]


def _search(folder: Path) -> _Found | None:
    for place in (folder, *folder.parents):
        for name, table in (("gradcheck.toml", ()), ("pyproject.toml", ("tool", "gradcheck"))):
            file = place / name
            if os.path.isfile(file) and (found := _table(file, table)) is not None:
                return file, *found
    return None


def _table(file: Path, keys: tuple[str, ...]) -> tuple[Mapping[str, Any], str] | None:
    import tomllib

    try:
        text = content(file, _LARGEST).decode("utf-8").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SpecError(problems=[Diagnostic(f"cannot be read: {reason}", str(file))]) from None
    try:
        table: Any = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # numbers too may have too many digits
        if keys:  # somebody else's file: only its own tools need to read it
            return None
        raise _not_toml(file, text, "nested too deeply" if isinstance(error, RecursionError) else str(error)) from None
    for key in keys:
        table = table.get(key) if isinstance(table, dict) else None
    return (table, text) if isinstance(table, dict) else None


def _not_toml(file: Path, text: str, reason: str) -> SpecError:
    place = re.search(r"\(at line (\d+), column (\d+)\)", reason)
    line, column = (int(place[1]), int(place[2])) if place else (0, 0)
    shown = (text.splitlines() + [""])[line - 1] if line else ""
    message = f"not TOML: {reason.split(' (at ')[0]}"
    return SpecError(problems=[Diagnostic(message, str(file), line, column, shown)])


def _converted(file: Path, table: Mapping[str, Any], text: str, ctx: click.Context) -> dict[str, Any]:
    problems, found = list[Diagnostic](), dict[str, Any]()
    for key, value in table.items():
        if len(problems) == _MOST:
            break
        name = key.replace("-", "_")
        name = _KEYS.get(name, name)
        if name not in _KNOWN:
            near = did_you_mean(name, _KNOWN) or f" Known are {', '.join(_KNOWN)}."
            problems.append(_problem(file, text, key, f"unknown key {key!r}.{near}"))
            continue
        if name == "allow_python":
            problems.append(_problem(file, text, key, _BY_HAND))
            continue
        try:
            found[name] = _KNOWN[name].type_cast_value(ctx, _typed(name, value, file.parent))
        except (click.BadParameter, ValueError, OSError, RuntimeError) as error:  # links may lead in circles
            reason = error.message if isinstance(error, click.BadParameter) else str(error)
            problems.append(_problem(file, text, key, f"{key}: {reason}"))
    if problems:
        raise SpecError(problems=problems)
    return found


def _typed(name: str, value: Any, folder: Path) -> Any:
    """A value as it would be typed on the command line; paths are seen from the folder of the file, and stay there."""
    param, kind = _KNOWN[name], OPTIONS[name].kind
    if isinstance(value, bool):
        if not (isinstance(param, click.Option) and param.is_flag):
            raise ValueError(f"{str(value).lower()} is not expected here.")
        return value
    if not getattr(param, "multiple", False):
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        return _in(folder, text) if kind in _PATHS and text not in ("auto", "none") else text
    if kind in _BY_EQUALS:
        return [_value_from(folder, text) for text in _several("=", value)]
    return [_in(folder, text) if kind == "reports" else text for text in _several(":", value)]


def _value_from(folder: Path, text: str) -> str:
    """@FILE or NAME=@FILE."""
    name, mark, path = ("", "@", text[1:]) if text.startswith("@") else text.partition("=@")
    return f"{name}{mark}{_in(folder, path)}" if mark else text


def _in(folder: Path, path: str) -> str:
    """The path; ValueError where it leads elsewhere: the file may come with a model, and say where to write."""
    inside(folder, path, "the folder of this file (as an option it may lie anywhere)")
    return os.path.join(folder, path)


def _several(mark: str, value: Any) -> list[str]:
    if isinstance(value, dict):
        return [f"{key}{mark}{_text(mark, each)}" for key, each in value.items()]
    if isinstance(value, list) and all(isinstance(each, str) for each in value) and value:
        return value
    return [_text(mark, value)]


def _text(mark: str, value: Any) -> str:
    if isinstance(value, list):
        return json.dumps(value) if mark == "=" else ",".join(map(str, value))
    return str(value)


def _problem(file: Path, text: str, key: str, message: str) -> Diagnostic:
    """The problem at the line where a key stands."""
    name = re.escape(key)
    match = re.search(rf"^([ \t]*){name}[ \t]*=|^([ \t]*\[[^\n\]]*\b){name}[ \t]*\]", text, re.MULTILINE)
    if match is None:
        return Diagnostic(message, str(file))
    line = text.count("\n", 0, match.start()) + 1
    column = len(match[1] if match[1] is not None else match[2]) + 1
    return Diagnostic(message, str(file), line, column, text.splitlines()[line - 1])
