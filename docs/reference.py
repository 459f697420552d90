"""Reference pages as Markdown, made from the code: options, codes, operators, formats, schemas, the Python API.

Nothing here is known twice: each table asks the one in the package that the program itself reads.
"""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import yaml

import gradcheck_cli as gc
from gradcheck_cli.cli.group import gradcheck
from gradcheck_cli.formats.yaml.fields import spec_schema
from gradcheck_cli.ops.facts import FORWARD, GRADIENT, OperatorFacts, all_facts
from gradcheck_cli.report import FORMATS
from gradcheck_cli.report.explanations import FAMILIES, PAGES, TOPICS, exit_code
from gradcheck_cli.report.json_records import result_schema
from gradcheck_cli.report.operators import classes
from gradcheck_cli.settings import SETTINGS, options_at, parts

Schema = Mapping[str, Any]
FOUND = Path(__file__).parent / "pages" / "found" / "models.yaml"
_LONG = 40  # characters of a default in a signature
_WIDE = 88  # of a signature on one line
_OWN_METHODS = {"Model": ("graph", "tensors", "free_dims"), "Tensor": ("shape", "dtype")}  # of others all


def text(sentence: str) -> str:
    """A sentence in which nothing but code between backticks is markup."""
    pieces = re.split(r"(`[^`]*`)", sentence)
    return "".join(piece if piece[:1] == "`" else _escaped(piece) for piece in pieces)


def _escaped(piece: str) -> str:
    return re.sub(r"([\\*_>\[\]#|])", r"\\\1", piece).replace("<", "&lt;")


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table whose cells are Markdown."""
    heads = [*heads]
    lines = [heads, ["---"] * len(heads), *rows]
    cells = ([" ".join(cell.split()) for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def code(words: str) -> str:
    """A word as code, or nothing."""
    return f"`{words}`" if words else ""


# Options


def commands(command: click.Command = gradcheck, parent: click.Context | None = None) -> Iterator[click.Context]:
    """The context of each command, in the order of the help; the program itself comes first."""
    context = click.Context(command, info_name=command.name, parent=parent)
    yield context
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, context)


def options() -> str:
    """All options of all commands, a section for each."""
    return "\n\n".join(_command(context) for context in commands() if context.parent is not None)


def commands_listed() -> str:
    """The commands, each with the first sentence of its help and a link to its options."""
    rows = (
        (f"[`{context.command_path}`](options.md#{_anchor(context)})", text(_help(context)[0]))
        for context in commands()
        if context.parent is not None
    )
    return table(("command", "what it does"), rows)


def _anchor(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")


def _help(context: click.Context) -> list[str]:
    """The paragraphs of a command's help."""
    return [" ".join(part.split()) for part in inspect.cleandoc(context.command.help or "").split("\n\n")]


def _command(context: click.Context) -> str:
    """A command: how it is typed, what it does, its options by panel."""
    usage = " ".join([context.command_path, *context.command.collect_usage_pieces(context)])
    parts = [f"## {context.command_path} {{ #{_anchor(context)} }}", f"```text\n{usage}\n```"]
    parts += [text(paragraph) for paragraph in _help(context)]
    given = [param for param in context.command.params if isinstance(param, click.Option)]
    for panel in dict.fromkeys(getattr(option, "panel", None) or "" for option in given):
        rows = [_option(option, context) for option in given if (getattr(option, "panel", None) or "") == panel]
        parts.append(f"**{panel or 'Options'}**\n\n" + table(("option", "meaning", "default"), rows))
    return "\n\n".join(parts)


def _option(option: click.Option, context: click.Context) -> tuple[str, str, str]:
    """The row of an option."""
    meaning, default = parts(option.help or "")
    value = "" if option.is_flag or option.count else option.make_metavar(context)
    long_last = sorted(option.opts, key=lambda word: (word.startswith("--"), len(word) > 2))
    return code(f"{', '.join(long_last)} {value}".strip()), text(meaning), text(default)


def keywords() -> str:
    """The settings as keywords of `gc.check`, and as keys of a spec's checks."""
    rows = (
        (code(key), ", ".join(code(word) for word in option.spellings), text(parts(option.text("settings"))[0]))
        for key, option in SETTINGS.items()
        if option.panel
    )
    return table(("keyword", "option", "meaning"), rows)


def keys() -> str:
    """The keys of a configuration file."""
    rows = ((code(o.name), f"`{o.spelling}`", text(parts(o.text("file"))[0])) for o in options_at("file"))
    return table(("key", "option", "meaning"), rows)


# Codes


def codes() -> str:
    """All codes by family, each with a link to its page."""
    return "\n\n".join(_family(*each) for each in FAMILIES.items())


def _family(family: str, about: tuple[str, int]) -> str:
    title, usual = about
    rows = (
        (f"[{name}]({name}.md)", text(page.title), str(exit_code(name)))
        for name, page in PAGES.items()
        if name.startswith(family)
    )
    head = f"## {family}xx: {title} {{ #{family.lower()}xx }}\n\nExit code {usual}, where nothing else is said.\n\n"
    return head + table(("code", "meaning", "exit code"), rows)


def code_page(name: str) -> str:
    """The page of a code."""
    page, (family, _) = PAGES[name], FAMILIES[name[:3]]
    told = " ".join((page.meaning, page.causes, page.remedy, page.hint))
    others = [other for other in dict.fromkeys(re.findall(r"GC\d{3}", told)) if other != name]
    lines = [
        f"---\ntitle: '{name}'\ndescription: '{name}, {page.title.replace(chr(39), chr(39) * 2)}'\n---",
        f"# {name}: {text(page.title)}",
        f"Family: [{family}](index.md#{name[:3].lower()}xx). [Exit code](../exit-codes.md): {exit_code(name)}.",
        f"## What it means\n\n{text(page.meaning)}",
        f"## Why it happens\n\n{text(page.causes)}",
        f"## What to do\n\n{text(page.remedy)}",
        *([f"Try first: {text(page.hint)}"] if page.hint else []),
        *(["See also: " + ", ".join(f"[{other}]({other}.md)" for other in others)] if others else []),
        f"`gradcheck explain {name}` prints this page.",
    ]
    return "\n\n".join(lines) + "\n"


def topic_ops() -> str:
    """The page of `gradcheck explain ops`."""
    return f"```text\n{TOPICS['ops'].strip()}\n```"


# Operators and formats


def coverage() -> str:
    """For each domain how many operators there are, how many run, and how many have a gradient of each kind."""
    facts = all_facts()
    rows = ((code(domain or "ai.onnx"), *_counted([f for f in facts if f.domain == domain])) for domain in _domains())
    return table(("domain", "operators", "forward", *GRADIENT), rows)


def _domains() -> list[str]:
    return [*dict.fromkeys(f.domain for f in all_facts())]


def _counted(facts: list[OperatorFacts]) -> list[str]:
    kinds = Counter(f.gradient for f in facts)
    return [str(n) for n in (len(facts), sum(f.known for f in facts), *(kinds[kind] for kind in GRADIENT))]


def operators() -> str:
    """All operators, a table for each domain."""
    facts = all_facts()
    return "\n\n".join(_domain(domain or "ai.onnx", [f for f in facts if f.domain == domain]) for domain in _domains())


def _domain(title: str, facts: list[OperatorFacts]) -> str:
    heads = ("operator", "forward", "gradient", "versions", "dtypes", "kinks", "what it computes")
    return f"## {title} {{ #{title.replace('.', '-')} }}\n\n{table(heads, map(_operator, facts))}"


def _operator(facts: OperatorFacts) -> tuple[str, ...]:
    """The row of an operator."""
    span = "-".join(map(str, dict.fromkeys((*facts.versions[:1], *facts.versions[-1:]))))
    forward = f"as {facts.read_as}" if facts.read_as else facts.forward
    return (
        code(facts.name), forward, facts.gradient, span, classes(facts.dtypes.get(facts.data, ())),
        "" if facts.kinks == "no" else facts.kinks, text(facts.does),
    )  # fmt: skip


def kinds_of_operators() -> str:
    """The words of the columns `forward` and `gradient`."""
    rows = [("forward", code(word), meaning) for word, meaning in FORWARD.items()]
    return table(("column", "word", "meaning"), rows + [("gradient", code(w), m) for w, m in GRADIENT.items()])


def formats() -> str:
    """The output formats."""
    rows = (
        (code(form.name), ", ".join(map(code, form.suffixes)) or "-", "yes" if form.stdout else "no", form.good_for)
        for form in FORMATS.values()
    )
    return table(("format", "suffix", "on stdout", "good for"), rows)


# Schemas


def schema_files() -> dict[str, str]:
    """The JSON Schemas, as files to point an editor at."""
    made = {"spec": spec_schema(), "result": result_schema()}
    return {f"reference/{name}.schema.json": json.dumps(schema, indent=2) + "\n" for name, schema in made.items()}


def record() -> str:
    """The fields of a record, inner ones by their path."""
    return _fields(result_schema()["definitions"]["result"])


def run_record() -> str:
    """The fields of a run."""
    return _fields(result_schema()["definitions"]["run"])


def spec_keys() -> str:
    """The keys of a spec, a section for each kind of mapping."""
    schema = spec_schema()
    parts = [f"## Top level\n\n{_fields(schema)}"]
    for name, made in schema["definitions"].items():
        if "properties" in made:
            said = text(made.get("description", ""))
            parts.append("\n\n".join(filter(None, (f"## {name} {{ #{name.lower()} }}", said, _fields(made)))))
    return "\n\n".join(parts)


def _fields(schema: Schema) -> str:
    rows = [(code(path), _kind(part), text(part.get("description", ""))) for path, part in _paths(schema)]
    return table(("key", "value", "meaning"), rows)


def _paths(schema: Schema, start: str = "") -> Iterator[tuple[str, Schema]]:
    """The fields of an object and of the objects in it."""
    for name, part in schema.get("properties", {}).items():
        yield f"{start}{name}", part
        items = part.get("items") if isinstance(part.get("items"), dict) else {}
        if "properties" in part:
            yield from _paths(part, f"{start}{name}.")
        elif "properties" in items:
            yield from _paths(items, f"{start}{name}[].")


def _kind(part: Schema) -> str:
    """The values that a field can have, in words."""
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        return name if name in ("number", "result") else f"[{name}](#{name.lower()})"
    if "const" in part:
        return code(json.dumps(part["const"]))
    if "enum" in part:
        return ", ".join(code(str(word)) for word in part["enum"])
    for key in ("anyOf", "oneOf"):
        if key in part and "properties" not in part:
            return " or ".join(dict.fromkeys(filter(None, map(_kind, part[key]))))
    kinds = part.get("type", ())
    return " or ".join(_typed(kind, part) for kind in ([kinds] if isinstance(kinds, str) else kinds))


def _typed(kind: str, part: Schema) -> str:
    inner = part.get("items") if kind == "array" else part.get("additionalProperties") if kind == "object" else None
    of = _kind(inner) if isinstance(inner, dict) else ""
    word = {"array": "list", "object": "mapping"}.get(kind, kind)
    return f"{word} {'to' if kind == 'object' else 'of'} {of}" if of else word


# The Python API


def api() -> str:
    """All public names, functions first, each as its docstring has it."""
    found = {name: getattr(gc, name) for name in gc.__all__}
    order = sorted(found, key=lambda name: (_rank(found[name]), name.lower()))
    return "\n\n".join(_documented(name, found[name]) for name in order)


def _rank(thing: Any) -> int:
    """The place of a public name: functions, classes, modules, then data."""
    return 0 if inspect.isfunction(thing) else 1 if inspect.isclass(thing) else 2 if inspect.ismodule(thing) else 3


def _documented(name: str, thing: Any) -> str:
    """A public name with its signature, its docstring and what belongs to it."""
    parts = [f"## gc.{name} {{ #{name} }}"]
    parts += [f"```python\n{_signature(name, thing)}\n```"] if inspect.isfunction(thing) else []
    parts += [docstring(inspect.getdoc(thing) or "")]
    if inspect.ismodule(thing):
        parts += [_functions(thing)]
    elif inspect.isclass(thing):
        parts += [_members(name, thing)]
    return "\n\n".join(filter(None, parts))


def _signature(name: str, function: Callable[..., Any]) -> str:
    """A signature as one would write it, a line for each parameter where it is long."""
    signature = inspect.signature(function)
    given = [_parameter(p) for p in signature.parameters.values()]
    kinds = [p.kind for p in signature.parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        given.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    result = "" if signature.return_annotation is signature.empty else f" -> {signature.return_annotation}"
    line = f"{name}({', '.join(given)}){result}"
    return line if len(line) <= _WIDE else f"{name}(\n    {f',{chr(10)}    '.join(given)},\n){result}".replace("'", "")


def _parameter(parameter: inspect.Parameter) -> str:
    """A parameter with its annotation, and its default where that is short."""
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    said = "" if parameter.annotation is parameter.empty else f": {parameter.annotation}"
    default = parameter.default
    if default is parameter.empty:
        return f"{stars}{parameter.name}{said}"
    shown = "OPS" if default is gc.OPS else str(default) if isinstance(default, Enum) else repr(default)
    return f"{parameter.name}{said} = {shown if len(shown) <= _LONG else '...'}"


def _members(name: str, kind: type) -> str:
    """The documented methods and properties of a class that belong to its users."""
    wanted = _OWN_METHODS.get(name)
    found = {
        member: value for member, value in vars(kind).items()
        if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
        and inspect.getdoc(value) and (wanted is None or member in wanted)
    }  # fmt: skip
    rows = (
        (code(f"{member}()" if inspect.isfunction(value) else member), text(_first(value)))
        for member, value in found.items()
    )
    return table(("member", "what it is"), rows) if found else ""


def _functions(module: ModuleType) -> str:
    """The public functions of a module."""
    found = {
        name: value for name, value in vars(module).items()
        if not name.startswith("_") and inspect.isfunction(value) and value.__module__ == module.__name__
    }  # fmt: skip
    return table(("function", "what it gives"), ((code(name), text(_first(f))) for name, f in sorted(found.items())))


def _first(thing: Any) -> str:
    """The first paragraph of a docstring."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def docstring(doc: str) -> str:
    """A docstring as Markdown: its sections become lists, aligned columns stay as they are."""
    return "\n\n".join(_paragraph(part) for part in re.split(r"\n\n+", doc.strip()) if part)


def _paragraph(part: str) -> str:
    head, _, rest = part.partition("\n")
    if head in ("Args:", "Returns:", "Raises:"):
        return f"**{head.rstrip(':')}**\n\n{_entries(inspect.cleandoc(rest))}"
    if re.search(r"^\S+ {2,}\S|^ {4}", part, re.MULTILINE):
        return f"```text\n{part}\n```"
    return text(" ".join(part.split()))


def _entries(body: str) -> str:
    """The entries of a section, `name: what it is`, each with the lines that go on."""
    entries = [" ".join(each.split()) for each in re.split(r"\n(?=\S)", body)]
    named = (re.match(r"(\w+): (.*)", each) for each in entries)
    return "\n".join(
        f"- `{found[1]}`: {text(found[2])}" if found else f"- {text(each)}"
        for found, each in zip(named, entries, strict=True)
    )


# Wrong gradients elsewhere


def found() -> str:
    """The models of a few nodes at which other engines give wrong gradients, each with both numbers and why."""
    rows = yaml.safe_load(FOUND.read_text(encoding="utf-8"))
    engines = dict.fromkeys(row["engine"] for row in rows)
    return "\n\n".join(
        f"## {engine}\n\n" + "\n\n".join(_found(row) for row in rows if row["engine"] == engine) for engine in engines
    )


def _found(row: Mapping[str, Any]) -> str:
    model = " ".join(row["model"].split())
    at = "; ".join(f"{name} = {_row(numbers)}" for name, numbers in row["inputs"].items())
    cts = "; ".join(f"{name}: {_row(numbers)}" for name, numbers in row["cotangents"].items())
    numbers = table(
        ("inputs", "cotangents", f"d/d{row['by']} as it is given", "right"),
        [
            (
                at,
                cts,
                "no gradient, as if it were 0" if row["gives"] == "none" else _row(row["gives"]),
                _row(row["right"]),
            )
        ],
    )
    return f"### {row['case']}\n\n```text\n<opset {row['opset']}> {model}\n```\n\n{numbers}\n\n{text(row['why'])}"


def _row(numbers: Iterable[float]) -> str:
    return text(f"[{', '.join(f'{n:.6g}' for n in numbers)}]")


TABLES: Mapping[str, Callable[[], str]] = {
    "api": api, "codes": codes, "commands": commands_listed, "coverage": coverage, "explain ops": topic_ops,
    "formats": formats, "found": found, "keys": keys, "keywords": keywords, "kinds of operators": kinds_of_operators,
    "operators": operators, "options": options, "record": record, "run": run_record, "spec": spec_keys,
}  # fmt: skip
