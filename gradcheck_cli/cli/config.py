"""The nearest `gradcheck.toml` or `[tool.gradcheck]`: options of `check` by name, as if they were typed.

`gradcheck config` shows every setting in force and where it comes from.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import rich_click as click
from click.core import ParameterSource

from gradcheck_cli.cli.options import PREFIX, SETTINGS, TypedCommand, given_in, options_of
from gradcheck_cli.errors import Diagnostic, SpecError, did_you_mean, shown
from gradcheck_cli.formats.untrusted import content, inside
from gradcheck_cli.results.record import words_for
from gradcheck_cli.settings import OPTIONS, Option, options_at, parts, setting_of

if TYPE_CHECKING:
    from gradcheck_cli.cli.tasks import Task

_LARGEST, _MOST = 4 << 20, 100  # bytes of a configuration file, and problems that are looked for in it
_BY_HAND = "code is run when --allow-python is typed: a file that comes with a model cannot allow it"
_BY_EQUALS = ("values", "feeds", "sizes", "claims")  # kinds of options that are typed NAME=VALUE
_BY_TENSOR = (*_BY_EQUALS, "shapes", "ranges", "tolerances")
_FEW = 9  # values that are shown
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


# --- `gradcheck config`


@dataclass(frozen=True, slots=True)
class InForce:
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
        files, missing = expand(models)
        if missing:
            raise missing[0][1]
        found = {name: rows for file in files for name, rows in _of_checks(file, given, ctx)}
    else:
        found = {".": _in_force([_typed_layer(given, ctx), *_file_layer(".", ctx)])}
    if given.get("output_format") in ("json", "jsonl"):
        parts = [{"check": name, "settings": list(map(asdict, rows))} for name, rows in found.items()]
        text = json.dumps({"schema": "gradcheck.config/1", "checks": parts}, indent=2) + "\n"
    else:
        text = "\n".join(_shown(name if models else "", rows) for name, rows in found.items())
    sys.stdout.write(text)
    return 0


def _shown(check: str, rows: Sequence[InForce]) -> str:
    """The settings of one check as a table."""
    from gradcheck_cli.report.text import table

    lines = [(each.setting, shown(each.value), shown(each.origin)) for each in rows]
    head = f"{shown(check)}\n\n" if check else ""
    return head + "\n".join(table([("setting", "value", "from"), *lines], "<<<")) + "\n"


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
            if option.kind not in _BY_TENSOR or any(not tensor for tensor, _ in values):
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
    lines = {name: _problem(file, text, key, "").line for name, key in keys.items()}
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
            whole = OPTIONS[name].kind in _BY_TENSOR and not isinstance(value, Mapping)
            found[name] = _values(name, {"": value} if whole else value, source, f"{spec}:{line}" if line else spec)
    return found


def _values(name: str, value: Any, source: Any, where: str = "") -> list[tuple[str, InForce]]:
    """The values of a setting, each with the name of the tensor that it is for."""
    option = OPTIONS[name]
    if isinstance(value, Mapping):
        pairs = [
            (each, f"{each}: {_spelt(option, one)}" if each else _spelt(option, one)) for each, one in value.items()
        ]
    elif option.kind in _BY_TENSOR:
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
        return str(value.tolist()) if value.size < _FEW else f"{value.size} values"
    if option.kind == "gates":
        return ",".join(words_for(value))
    if isinstance(value, tuple | list) and option.kind not in _BY_TENSOR:
        return ", ".join(map(str, value))
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return f"{value:g} s" if option.kind == "seconds" else f"{value} bytes" if option.kind == "bytes" else str(value)
