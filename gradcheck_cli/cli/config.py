"""The nearest `gradcheck.toml` or `[tool.gradcheck]`: options of `check` by name, as if they were typed.

`gradcheck config` shows every setting in force and where it comes from.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import rich_click as click
from click.core import ParameterSource
from msgspec import Struct
from msgspec.structs import asdict

from gradcheck_cli.cli import note
from gradcheck_cli.cli.options import PREFIX, SETTINGS, TypedCommand, given_in, options_of
from gradcheck_cli.errors import Diagnostic, SpecError, UsageError, counted, did_you_mean, respelled, shown
from gradcheck_cli.formats.untrusted import content, inside
from gradcheck_cli.results.record import words_for
from gradcheck_cli.settings import OPTIONS, Option, options_at, parts, setting_of

if TYPE_CHECKING:
    from gradcheck_cli.cli.tasks import Task

_LARGEST, _MOST = 4 << 20, 100  # bytes of a configuration file, and problems that are looked for in it
_BY_HAND = "code is run when --allow-python is typed: a file that comes with a model cannot allow it"
_BY_EQUALS = ("values", "feeds", "sizes", "claims")  # kinds of options that are typed NAME=VALUE
_BY_NAME = (*_BY_EQUALS, "shapes", "ranges", "tolerances")  # kinds that may be tables
_FEW = 9  # values that are shown
_DEEPEST, _DEEP = 32, 4  # parts of a key, of which tomllib keeps every beginning, and of one that a problem is about
_PATHS = ("path", "plot", "data")
_KEY = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|[\w-]+")
_HEADER = re.compile(r"\s*\[\[?([^\]\n]*)\]")
_ASSIGNED = re.compile(rf"\s*((?:{_KEY.pattern})(?:\s*\.\s*(?:{_KEY.pattern}))*)\s*=")
_ENDLESS = re.compile(rf"(?:^|[\[{{,])[ \t]*+((?:(?:{_KEY.pattern})[ \t]*+\.[ \t]*+){{{_DEEPEST}}})", re.MULTILINE)
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
    text = _text_in(file)
    try:
        parsed = _parsed(text)
    except (ValueError, RecursionError) as error:  # numbers too may have too many digits
        if keys and f"[{'.'.join(keys)}" not in text:  # somebody else's file: only its own tools need to read it
            return None
        raise _not_toml(file, text, "nested too deeply" if isinstance(error, RecursionError) else str(error)) from None
    table = parsed
    for key in keys:
        table = table.get(key) if isinstance(table, dict) else None
    for name in _misspelt(parsed.get("tool")) if keys and table is None else ():
        _tell_misspelt(file, name)
    if keys and table is not None and not isinstance(table, dict):
        raise _wrong(file, text, keys, f"{'.'.join(keys)} is {_shown(table)}; it must be a table, [{'.'.join(keys)}]")
    return (table, text) if isinstance(table, dict) else None


def _parsed(text: str) -> Any:
    """The table of a text; ValueError or RecursionError where there is none, or a key that would take all memory."""
    import tomllib

    if endless := _ENDLESS.search(text):
        at = endless.start(1)
        place = f"line {text.count(chr(10), 0, at) + 1}, column {at - text.rfind(chr(10), 0, at)}"
        raise ValueError(f"a key of more than {_DEEPEST} parts (at {place})")
    return tomllib.loads(text)


def _misspelt(tools: Any) -> list[str]:
    """The tables of tools that are called nearly as gradcheck's is."""
    return [n for n in tools if respelled(re.sub("[-_]", "", n), "gradcheck")] if isinstance(tools, dict) else []


@cache  # of a file above many folders
def _tell_misspelt(file: Path, name: str) -> None:
    note(f"{file} has [tool.{name}], which nothing reads; gradcheck reads [tool.gradcheck]")


def _text_in(file: Path) -> str:
    """The text of a file in UTF-8."""
    try:
        data = content(file, _LARGEST)
    except OSError as error:
        raise SpecError(problems=[Diagnostic(f"cannot be read: {error.strerror or error}", str(file))]) from None
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace").split("\n")
        message = f"byte 0x{data[error.start]:02x} is not UTF-8; TOML is UTF-8 text"
        raise SpecError(problems=[Diagnostic(message, str(file), len(before), len(before[-1]) + 1)]) from None


def _not_toml(file: Path, text: str, reason: str) -> SpecError:
    place = re.search(r"\(at line (\d+), column (\d+)\)", reason)
    line, column = (int(place[1]), int(place[2])) if place else (0, 0)
    shown = (text.splitlines() + [""])[line - 1] if line else ""
    said = reason.split(" (at ")[0]
    twice = "a key or a table stands here a second time" if "Cannot overwrite" in said or "twice" in said else ""
    return SpecError(problems=[Diagnostic(twice or f"not TOML: {said}", str(file), line, column, shown)])


def _converted(file: Path, table: Mapping[str, Any], text: str, ctx: click.Context) -> dict[str, Any]:
    problems, found = list[Diagnostic](), dict[str, Any]()
    for key, value in table.items():
        if len(problems) == _MOST:
            break
        try:
            name = _name_of(key, value, file)
            found[name] = _KNOWN[name].type_cast_value(ctx, _typed(name, value, file.parent))
        except (click.BadParameter, ValueError, OSError, RuntimeError) as error:  # links may lead in circles
            reason = error.message if isinstance(error, click.BadParameter) else str(error)
            if not reason.startswith(("unknown", "code is run")):
                reason = f"{key} {reason}" if reason.startswith("is ") else f"{key}: {reason}"
            problems.append(_problem(file, text, (*_above(file), key), reason))
    if problems:
        raise SpecError(problems=problems)
    return found


def _name_of(key: str, value: Any, file: Path) -> str:
    """The option that a key stands for; ValueError for none, and for a section around options."""
    name = _KEYS.get(key.replace("-", "_"), key.replace("-", "_"))
    inside = value.get("gradcheck", value) if isinstance(value, dict) else {}
    options = [k for k in inside if _KEYS.get(k.replace("-", "_"))] if isinstance(inside, dict) else []
    if name not in _KNOWN or OPTIONS[name].kind not in _BY_NAME:
        if options:
            place = "under [tool.gradcheck]" if _above(file) else "at the top of the file"
            said = f"{options[0]} = {_shown(inside[options[0]])}"
            raise ValueError(f"unknown section {key!r}. Options stand {place} without a section: {said}")
        if name in _KNOWN and isinstance(value, dict):
            raise ValueError("is a table; it must be a value")
    if name not in _KNOWN:
        near = did_you_mean(name, _KNOWN) or f" Known are {', '.join(_KNOWN)}."
        raise ValueError(f"unknown key {key!r}.{near}")
    if name == "allow_python":
        raise ValueError(_BY_HAND)
    return name


def blamed(error: UsageError, folder: str, ctx: click.Context, given: Mapping[str, Any]) -> UsageError:
    """An error of a value or name that nobody typed: with its variable, or at its line of the nearest file, if there."""
    option = _KEYS.get(_option_of(str(error))[0], "")
    if option and ctx.get_parameter_source(option) is ParameterSource.ENVIRONMENT:
        return UsageError(f"{PREFIX}_{option.upper()} in the environment: {error}", code=error.code)
    found = None if isinstance(error, SpecError) else _nearest(folder, ctx)
    if found is None:
        return error
    file, table, text = found
    for key, value in table.items():
        name = _KEYS.get(key.replace("-", "_"), "")
        if name and name not in given and (inner := _blamed_for(str(error), name, value)) is not None:
            return _wrong(file, text, (*_above(file), key, *inner), str(error))
    return error


def _blamed_for(message: str, name: str, value: Any) -> tuple[str, ...] | None:
    """The keys inside of an option's value that an error is about, none for the value itself; None for another option."""
    names = [str(each) for each in (value if isinstance(value, (dict, list)) else [value])]
    if tensor := re.search(r"has no tensor '(.*?)'", message):
        wrong = tensor[1] if tensor[1] in names else None
    else:
        option, rest = _option_of(message)
        its = _KEYS.get(option) == name
        wrong = next((n for n in names if rest.startswith((f"{n}:", f"{n}="))), "") if its else None
    return None if wrong is None else (wrong,) if wrong and isinstance(value, dict) else ()


def _option_of(message: str) -> tuple[str, str]:
    """The key of the option that a message begins with, and the rest of the message."""
    found = re.match(r"--([\w-]+) ?(.*)", message)
    return (found[1].replace("-", "_"), found[2]) if found else ("", "")


def _above(file: Path) -> tuple[str, ...]:
    """The tables of a file that hold those of gradcheck."""
    return ("tool", "gradcheck") if file.name == "pyproject.toml" else ()


def _wrong(file: Path, text: str, path: tuple[str, ...], message: str) -> SpecError:
    return SpecError(problems=[_problem(file, text, path, message)])


def _shown(value: Any) -> str:
    """A value as messages write it."""
    said = {"True": "true", "False": "false"}.get(str(value), json.dumps(value, default=str))
    return said if len(said) <= 40 else f"{said[:37]}..."


def _typed(name: str, value: Any, folder: Path) -> Any:
    """A value as it would be typed on the command line; paths are seen from the folder of the file, and stay there."""
    param, kind = _KNOWN[name], OPTIONS[name].kind
    if (kind == "flag") is not isinstance(value, bool):
        raise ValueError(
            f"is {_shown(value)}; it must be {'true or false' if kind == 'flag' else 'a number or a text'}"
        )
    if kind == "flag":
        return value
    names = value if isinstance(value, list) else [value]
    if kind in ("tensors", "globs", "names") and not (names and all(isinstance(each, str) and each for each in names)):
        raise ValueError(f"is {_shown(value)}; it must be a name or a list of names")
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


def _problem(file: Path, text: str, path: tuple[str, ...], message: str) -> Diagnostic:
    """The problem at the line where a key stands, given with the tables around it."""
    line, column = _place_of(path, text)
    return Diagnostic(message, str(file), line, column, (text.splitlines() + [""])[line - 1] if line else "")


def _place_of(path: tuple[str, ...], text: str) -> tuple[int, int]:
    """Line and column of a key, or of the innermost table around it that stands in a line of its own; zeros for none."""
    places = _places(text)
    return next((places[path[:n]] for n in range(len(path), 0, -1) if path[:n] in places), (0, 0))


@lru_cache(maxsize=1)  # of a file with many problems
def _places(text: str) -> Mapping[tuple[str, ...], tuple[int, int]]:
    """Line and column of each key, and of each table around it, where it is named first."""
    table, quotes, found = tuple[str, ...](), "", dict[tuple[str, ...], tuple[int, int]]()
    for number, line in enumerate(text.split("\n"), 1):
        if quotes:
            quotes = "" if quotes in line else quotes
            continue
        header = _HEADER.match(line)
        if (named := header or _ASSIGNED.match(line)) is None:
            continue
        own = _parts_of(named[1])
        table, keys = (own, own) if header else (table, (*table, *own))
        for place, (part, _) in enumerate(zip(_KEY.finditer(line), own, strict=False), len(keys) - len(own) + 1):
            if place <= _DEEP:
                found.setdefault(keys[:place], (number, part.start() + 1))
        quotes = next((mark for mark in ('"""', "'''") if line.count(mark) % 2), "")
    return found


def _parts_of(keys: str) -> tuple[str, ...]:
    """The parts of a dotted key."""
    return tuple(key.strip("\"'") for key in _KEY.findall(keys))


# --- `gradcheck config`


class InForce(Struct, frozen=True):
    """A setting as it counts: its value, the kind of place that says so, and where that is."""

    setting: str
    value: str
    source: Literal["command line", "environment", "side-car", "spec", "file", "default"]
    where: str = ""

    @property
    def origin(self) -> str:
        return self.where or self.source


SETTING_OF = click.RichArgument(["models"], nargs=-1, metavar="[MODEL]...", type=click.Path())


@click.command("config", cls=TypedCommand, context_settings=SETTINGS, params=[SETTING_OF, *options_of("check")])
@click.pass_context
def command(ctx: click.Context, /, models: tuple[str, ...], **options: Any) -> int:
    """Show every setting in force and where it comes from: for each check of MODEL, or for the current folder.

    Takes the options of a check, to see what they change.  Stronger are, in this order: command line, environment,
    side-car or spec, gradcheck.toml, defaults.  `--output-format json` gives the same for scripts.
    """
    from gradcheck_cli.cli.tasks import expand

    given = given_in(ctx, options)
    if models:
        files, missing, _ = expand(models)
        if missing:
            raise missing[0][1]
        found = {name: rows for file in files for name, rows in _of_checks(file, given, ctx)}
    else:
        found = {".": _in_force([_typed_layer(given, ctx), *_file_layer(".", ctx)])}
    if given.get("output_format") in ("json", "jsonl"):
        parts = [{"check": name, "settings": list(map(asdict, rows))} for name, rows in found.items()]
        text = json.dumps({"schema": "gradcheck.config/1", "checks": parts}, indent=2) + "\n"
    else:
        text = "\n".join(_listed(name if models else "", rows) for name, rows in found.items())
    sys.stdout.write(text)
    return 0


def _listed(check: str, rows: Sequence[InForce]) -> str:
    """The settings of one check as a table; where it is too wide, origins follow the values in brackets."""
    from gradcheck_cli.cli.output import style_of
    from gradcheck_cli.report.text import columns, table, wrapped

    cells = [("setting", "value", "from"), *((each.setting, shown(each.value), shown(each.origin)) for each in rows)]
    lines, width = table(cells, "<<<"), style_of({}).width
    if max(map(columns, lines)) > width:
        labels = table([row[:1] for row in cells], "<")
        left = max(map(len, labels)) + 2
        lines = [
            part
            for label, (_, value, origin) in zip(labels, cells, strict=True)
            for part in wrapped(f"{value} [{origin}]", width, label.ljust(left), " " * left)
        ]
    head = f"{shown(check)}\n\n" if check else ""
    return head + "\n".join(lines) + "\n"


_Layer: TypeAlias = Mapping[
    str, Sequence[tuple[str, InForce]]
]  # setting -> its values, each with a tensor's name or ""


def _of_checks(file: str, given: Mapping[str, Any], ctx: click.Context) -> Iterator[tuple[str, list[InForce]]]:
    """The checks of a file, each with its settings."""
    from gradcheck_cli.cli.resolve import dims_of
    from gradcheck_cli.cli.tasks import Planner, side_car
    from gradcheck_cli.errors import ModelError
    from gradcheck_cli.formats import is_spec, read

    if not os.path.isfile(file):
        raise ModelError(f"{file} does not exist.")
    allow = bool(given.get("allow_python"))
    spec = file if is_spec(file) else side_car(file)
    if spec:
        read(spec, allow_python=allow)  # or says what is wrong with it
    for task in Planner(given, dims_of(given.get("dim", ())), allow, steps=False).tasks([file]):
        layers = [_typed_layer(given, ctx), *_file_layer(os.path.dirname(file) or ".", ctx)]
        if spec:
            layers.insert(1, _spec_layer(spec, task, "spec" if is_spec(file) else "side-car"))
        yield task.name, _in_force(layers)


def _in_force(layers: Sequence[_Layer]) -> list[InForce]:
    """All settings, each as the strongest of the layers says, and of one by tensor also as weaker ones add to it."""
    found: list[InForce] = []
    for option in options_at("check"):
        own: dict[str, InForce] = {}
        for layer in reversed(layers):  # from the weakest
            values = layer.get(option.name, ())
            if option.kind not in _BY_NAME or any(not tensor for tensor, _ in values):
                own = {} if values else own
            own.update(values)
        found += own.values() or [InForce(option.name, _usual(option), "default")]
    return found


def _usual(option: Option) -> str:
    """The default of an option in words."""
    if option.kind in ("flag", "count"):
        return "yes" if option.default is True else "no"
    said = parts(option.text("check", ""))[1]
    return said.replace("{default}", str(option.default)) if said else "none"


def _typed_layer(given: Mapping[str, Any], ctx: click.Context) -> _Layer:
    """Settings of the command line and of the environment."""
    found: dict[str, Sequence[tuple[str, InForce]]] = {}
    for name, value in given.items():
        typed = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        variable = "" if typed else f"{PREFIX}_{name.upper()}"
        found[name] = _values(name, value, "command line" if typed else "environment", variable)
    return found


def _file_layer(folder: str, ctx: click.Context) -> list[_Layer]:
    """Settings of the nearest configuration file, each with its line."""
    if (nearest := _nearest(folder, ctx)) is None:
        return []
    file, table, text = nearest
    keys = {_KEYS.get(name, name): key for key in table if (name := key.replace("-", "_"))}
    lines = {name: _problem(file, text, (*_above(file), key), "").line for name, key in keys.items()}
    path = os.path.relpath(file)
    return [{n: _values(n, value, "file", f"{path}:{lines[n]}") for n, value in settings_above(folder, ctx).items()}]


def _spec_layer(spec: str, task: Task, source: Literal["side-car", "spec"]) -> _Layer:
    """Settings that a spec gives a check, each with its line."""
    from gradcheck_cli.cli.completion import checks_of
    from gradcheck_cli.formats.yaml.places import Document

    root = Document.read(spec).root.children
    checks = dict(zip(checks_of(spec), root["checks"].children.values(), strict=True)) if "checks" in root else {}
    places = [each.keys for each in (checks.get(task.check or ""), root.get("defaults")) if each is not None]
    found = {}
    for key, value in task.said.items():
        option = setting_of(key)
        name = key if option is None else option.name
        line = next((keys[key][0] for keys in places if key in keys), 0)
        if name in OPTIONS and (value is not None and value != () and value != {}):
            whole = OPTIONS[name].kind in _BY_NAME and not isinstance(value, Mapping)
            found[name] = _values(name, {"": value} if whole else value, source, f"{spec}:{line}" if line else spec)
    return found


def _values(name: str, value: Any, source: Any, where: str = "") -> list[tuple[str, InForce]]:
    """The values of a setting, each with the name of the tensor that it is for."""
    option = OPTIONS[name]
    if isinstance(value, Mapping):
        pairs = [
            (each, f"{each}: {_spelt(option, one)}" if each else _spelt(option, one)) for each, one in value.items()
        ]
    elif option.kind in _BY_NAME:
        mark = "=" if option.kind in _BY_EQUALS else ":"
        pairs = [(text.rpartition(mark)[0], text) for text in value]
    else:
        pairs = [("", _spelt(option, value))]
    return [(each, InForce(option.name, text, source, where)) for each, text in pairs]


def _spelt(option: Option, value: Any) -> str:
    """A value as one types it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if hasattr(value, "tolist"):
        return str(value.tolist()) if value.size < _FEW else counted(value.size, "value")
    if option.kind == "gates":
        return ",".join(words_for(value))
    if isinstance(value, tuple | list) and option.kind not in _BY_NAME:
        return ", ".join(map(str, value))
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return (
        f"{value:g} s" if option.kind == "seconds" else counted(value, "byte") if option.kind == "bytes" else str(value)
    )
