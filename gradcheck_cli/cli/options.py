"""The table of options as click has it, with types that click does not have: durations, sizes, lists of words.

No option has a default here: one that is not given comes from a side-car, a configuration file, or `Settings`.  The
environment gives options too (GRADCHECK_RTOL is --rtol).  A `TypedCommand` refuses what was typed and could only be
ignored, before anything runs; files and the environment speak of many runs, and are not held to this.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import rich_click as click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from gradcheck_cli.cli import Titles
from gradcheck_cli.errors import UsageError, did_you_mean
from gradcheck_cli.report import files_said, on_stdout, suffixes
from gradcheck_cli.results.record import GATES, gates_from, words_for
from gradcheck_cli.settings import MOST_SECONDS, OPTIONS, Idle, Option, options_at, parts
from gradcheck_cli.zoo import SCHEDULER, SCHEDULERS

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]  # generic only in newer releases of click
    Choice = click.Choice[str]
else:
    ParamType = click.ParamType
    Choice = click.Choice

Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]
PREFIX = "GRADCHECK"
TYPED = f"{__name__}.typed"  # the words of a command, in what its context knows
SETTINGS = {"auto_envvar_prefix": PREFIX}  # of a command that takes its options from the environment too
_GIVEN = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
_LOUDNESS = ("verbose", "quiet")
_OF_KERNELS = ("GRADCHECK_KERNELS", "GRADCHECK_ISA", "GRADCHECK_NUM_THREADS")
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_UNITLESS = 1 << 20  # bytes: a smaller limit without a unit is one whose unit was forgotten
_BYTES = {"": 1, "b": 1} | {f"{p}{i}b": k**n for n, p in enumerate("kmgt", 1) for i, k in (("", 1000), ("i", 1024))}


_INSTEAD = {  # names that options have elsewhere, and what to type here
    **dict.fromkeys(("input", "inputs", "wrt"), "--x NAME"),
    **dict.fromkeys(("output", "out", "o"), "--report PATH"),
    **dict.fromkeys(("outputs", "loss", "target"), "--y NAME"),
    **dict.fromkeys(("eps", "epsilon", "step", "h"), "--delta FLOAT"),
    **dict.fromkeys(("tol", "tolerance", "reltol", "rel-tol"), "--rtol FLOAT"),
    **dict.fromkeys(("abstol", "abs-tol"), "--atol FLOAT"),
    **dict.fromkeys(("batch", "batch-size", "dims"), "--dim NAME=SIZE"),
    **dict.fromkeys(("shape", "input-shape", "shapes"), "--x-shape NAME:1,3,32,32"),
    **dict.fromkeys(("range", "input-range"), "--val-range NAME:LOW,HIGH"),
    **dict.fromkeys(("weights", "parameters"), "--params"),
    **dict.fromkeys(("json", "sarif", "junit", "markdown", "html"), "--output-format, or --report FILE"),
    **dict.fromkeys(("format", "f"), "--output-format FORMAT"),
    **dict.fromkeys(("threads", "workers", "num-workers", "n"), "--jobs INT"),
    **dict.fromkeys(("memory", "max-memory"), "--memory-limit SIZE"),
    **dict.fromkeys(("max-time", "time-limit"), "--timeout TIME"),
    "version": "gradcheck --version",
    "dry-run": "gradcheck inspect MODEL",
}
_MEANT = {  # values that options have elsewhere, and what they are called here
    **dict.fromkeys(("float32", "float16", "bfloat16", "half", "native"), "model"),
    **dict.fromkeys(("double", "fp64"), "float64"),
    **dict.fromkeys(("ort", "onnx", "onnxrt"), "onnxruntime"),
    **dict.fromkeys(("tensorflow", "tf2", "keras"), "tf"),
    **dict.fromkeys(("all", "exact", "complete", "text", "plain"), "full"),
    **dict.fromkeys(("fast", "random", "projection", "projections"), "directional"),
    **dict.fromkeys(("finite-difference", "finite-differences", "numeric", "fd"), "central"),
    **dict.fromkeys(("yes", "true", "1", "on"), "always"),
    **dict.fromkeys(("no", "false", "0", "off", "none"), "never"),
}


def _is_variable(param: click.Parameter, ctx: click.Context) -> bool:
    """True of a parameter whose value stands in the environment."""
    return ctx.get_parameter_source(param.name or "") is ParameterSource.ENVIRONMENT


def said_better(error: click.ClickException) -> str:
    """The message of an error of the command line, with what to type instead."""
    ctx = getattr(error, "ctx", None)
    match error:
        case click.NoSuchOption() if ctx is not None:
            return f"No such option {error.option_name!r}.{_instead_of(error.option_name, ctx)}"
        case click.MissingParameter() if isinstance(error.param, click.Option):
            form = f"{error.param.opts[0]} {error.param.metavar or 'VALUE'}"
            return f"{error.format_message().rstrip('.')}. Write {form}: {error.param.help}"
        case click.MissingParameter() if ctx is not None:
            usage = " ".join(ctx.command.collect_usage_pieces(ctx))
            return (
                f"Missing argument {error.param.make_metavar(ctx)!r}. Write {ctx.command_path} {usage}"
                if error.param
                else ""
            )
        case click.BadOptionUsage() if ctx is not None and "requires an argument" in error.message:
            return f"{error.message} Write {error.option_name} {_form_of(error.option_name, ctx)}."
        case click.BadParameter() if ctx is not None and error.param is not None and _is_variable(error.param, ctx):
            error.param_hint = f"'{PREFIX}_{(error.param.name or '').upper()}'"
        case click.UsageError() if ctx is not None and error.message.startswith("Got unexpected extra argument"):
            return f"{error.message}. Write {ctx.command_path} {' '.join(ctx.command.collect_usage_pieces(ctx))}"
    return error.format_message()


_JOINED = {  # by kind of option: what stands between two words that are one value
    **dict.fromkeys(("ranges", "gates", "codes"), ","), **dict.fromkeys(("shapes", "tolerances"), ":"),
    **dict.fromkeys(("sizes", "values", "feeds", "claims"), "="), **dict.fromkeys(("seconds", "bytes"), ""),
}  # fmt: skip


def refuse_behind_option(ctx: click.Context, words: Sequence[str]) -> None:
    """Raises UsageError for a path that does not exist behind the value of an option, as if that took several values."""
    typed = ctx.meta.get(TYPED, [])
    for word in words:
        if word in typed and not os.path.lexists(word) and not word.lower().endswith((".onnx", ".yaml", ".yml")):
            _refuse_behind(ctx, typed, typed.index(word))


def _refuse_behind(ctx: click.Context, typed: Sequence[str], at: int) -> None:
    start = next((i for i in reversed(range(at)) if typed[i].startswith("-")), at)
    spelling = typed[start].replace("_", "-")
    option = next((param for param in ctx.command.params if spelling in param.opts), None)
    values = [*takewhile(lambda word: not word.startswith("-") and not os.path.lexists(word), typed[start + 1 :])]
    if not isinstance(option, click.Option) or not 0 < at - start <= len(values):
        return
    if option.is_flag or option.count:
        more = (
            f" Weights by name: {' '.join(f'--param {value}' for value in values)}." if option.name == "params" else ""
        )
        raise UsageError(f"{spelling} takes no value, and {values[0]!r} is no file.{more}")
    if len(values) > 1 and (meant := _as_meant(spelling, option, values)):
        behind = f"{values[1]!r} behind {spelling} {values[0]} is taken for a file, which does not exist"
        raise UsageError(f"{behind}. Write {meant}")


def _as_meant(spelling: str, option: click.Option, values: Sequence[str]) -> str:
    """An option with all the words that may have been meant as its values; "" where they cannot be."""
    mark = _JOINED.get(OPTIONS[option.name].kind) if option.name in OPTIONS else None
    if mark is None:
        return " ".join(f"{spelling} {value}" for value in values) if option.multiple else ""
    with suppress(click.BadParameter):
        option.type.convert(mark.join(values), option, None)
        return f"{spelling} {mark.join(values)}"
    return ""


def _paths(given: Any) -> Sequence[str]:
    return given if isinstance(given, tuple) else ()


def _form_of(name: str, ctx: click.Context) -> str:
    """The form of an option's value, as the help shows it."""
    found = next((param for param in ctx.command.params if name in param.opts), None)
    return "VALUE" if found is None else found.metavar or found.type.get_metavar(found, ctx) or "VALUE"


def _instead_of(name: str, ctx: click.Context) -> str:
    """The sentences that say what to type instead of an option that a command does not have."""
    bare = name.lstrip("-").replace("_", "-")
    own = [option for param in ctx.command.params for option in param.opts if option.startswith("-")]
    if meant := next((option for option in (f"--{bare}", f"-{bare.lower()}") if option in own), ""):
        return f" Did you mean {meant!r}?"
    instead = _INSTEAD.get(bare, "")
    told = f" Here it is {instead}." if instead and instead.split()[0].rstrip(",") in ("gradcheck", *own) else ""
    there = [f"`gradcheck {each}`" for each in _commands_with(f"--{bare}" if len(bare) > 1 else f"-{bare}", ctx)]
    if there:
        told += f" It is an option of {', '.join(there[:3])}, not of `{ctx.command_path}`."
    near = did_you_mean(bare, ["version", *(option[2:] for option in own if option.startswith("--"))])
    return told or near.replace("'", "'--", 1)


def _commands_with(option: str, ctx: click.Context) -> list[str]:
    """The other commands that have an option."""
    from gradcheck_cli.cli.group import gradcheck

    commands = ((name, gradcheck.get_command(ctx, name)) for name in gradcheck.list_commands(ctx))
    return [name for name, command in commands if command is not None and _has(command, option, ctx)]


def _has(command: click.Command, option: str, ctx: click.Context) -> bool:
    if isinstance(command, click.Group):  # as zoo: the command that its sources go to
        return any(_has(each, option, ctx) for name in ("run",) if (each := command.get_command(ctx, name)))
    return any(option in param.opts for param in command.params)


class Text(ParamType):
    """A text; several in an environment variable are separated by spaces."""

    name = "text"

    def split_envvar_value(self, rv: str) -> list[str]:
        return words(rv)


class OneOf(Choice):
    """A word of a fixed set; a misspelt one is told the nearest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            meant = _MEANT.get(str(value).lower(), "")
            near = f" Did you mean {meant!r}?" if meant in self.choices else did_you_mean(str(value), self.choices)
            written = [s for s, form in suffixes().items() if form.name == value and "full" in self.choices]
            self.fail(
                f"{error.message}{f' It is written to a file: --report out{written[0]}' if written else near}",
                param,
                ctx,
            )


class Parsed(ParamType):
    """A value that `parse` makes of a text; its ValueError is the message for a text of which it makes none.

    `spell` is the inverse of `parse`, and `known` are the words that a shell completes.
    """

    def __init__(
        self, name: str, parse: Callable[[str], Any], spell: Callable[[Any], str] = str, known: Sequence[str] = ()
    ) -> None:
        self.name, self.parse, self.spell, self.known = name, parse, spell, known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self.parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")  # a list goes on behind its last comma
        sign = last[:1] if last[:1] in ("+", "-") else ""
        fitting = (f"{sign}{word}" for word in self.known if f"{sign}{word}".startswith(last))
        return [CompletionItem(f"{before}{comma}{word}") for word in fitting]


def _number_or_word(text: str, option: Option) -> Any:
    """A number, or one of the words that stand for a way to choose it."""
    if text in option.words:
        return text
    try:
        number = int(text) if option.kind == "whole" else float(text)
        allowed = math.isfinite(number) and option.allows(number)
    except ValueError:
        raise UsageError(f"{text!r} is neither a number nor {option.words[0]!r}.") from None
    except OverflowError:
        raise UsageError(f"{text[:20]!r}... is too large.") from None
    if not allowed:
        raise UsageError(f"{text!r} must be {'above' if option.above else 'at least'} {option.least:g}.")
    return number


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if not match or not float(match[1]):
        raise UsageError(f"{text!r} is no duration; write 30s, 10m or 1h.")
    seconds = float(match[1]) * _UNITS[match[2]]
    if seconds > MOST_SECONDS:
        raise UsageError(f"{text!r} is too long; at most {MOST_SECONDS / _UNITS['h']:.0f}h can be kept.")
    return seconds


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip(), re.IGNORECASE)
    size = float(match[1]) * _BYTES.get(match[2].lower(), 0) if match else 0.0
    if not match or not 0 < size < math.inf:
        raise UsageError(f"{text!r} is no size; write 2GiB or 512MB.")
    if not match[2] and float(match[1]) < _UNITLESS:
        raise UsageError(f"{text!r} is a number of bytes; write {match[1]}GiB or {match[1]}MB.")
    return int(size)


def _gates(text: str) -> tuple[str, ...]:
    return gates_from(word.strip() for word in text.split(","))


class Codes(Parsed):
    """A list of codes and their prefixes, which few commands have."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from gradcheck_cli.results.codes import CODES

        return [CompletionItem(code) for code in CODES if code.startswith(incomplete.upper())]


def _codes(text: str) -> tuple[str, ...]:
    from gradcheck_cli.results.codes import codes_from

    return codes_from(text.split(","))


def _scheduler(text: str) -> str:
    if not re.fullmatch(SCHEDULER, text) and not os.path.isfile(text):
        raise UsageError(f"{text!r} is no Dask scheduler; {SCHEDULERS}")
    return text


class OutputPath(Text):
    """A file to write, whose suffix is one of some that say in which format; without these any file.

    Where `folders` are allowed, a path that ends in "/" is a folder of pages.
    """

    name = "path"

    def __init__(self, suffixes: Collection[str], *, folders: bool = True) -> None:
        self.suffixes, self.folders = suffixes, folders

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if reason := self._refusal(value):
            self.fail(f"{value!r}{reason}.", param, ctx)
        return str(value)

    def _refusal(self, path: str) -> str:
        """The rest of the sentence that says why a path cannot be written; empty if it can, as far as is known now."""
        if self.folders and (path.endswith(("/", os.sep)) or os.path.isdir(path)):
            from gradcheck_cli.report.html import refusal

            return f" cannot be written: {reason}" if (reason := refusal(path)) else ""
        folder = os.path.dirname(path) or "."
        if self.suffixes and os.path.splitext(path)[1] not in self.suffixes:
            return f" must end in {', '.join(self.suffixes)}"
        if not os.path.isdir(folder):
            return f": there is no folder {folder!r}"
        writable = not os.path.isdir(path) and os.access(path if os.path.exists(path) else folder, os.W_OK)
        return "" if writable else " cannot be written"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


SCHEDULER_ADDRESS = Parsed("scheduler", _scheduler)
_TYPES: Mapping[str, ParamType] = {  # of kinds of which an option has one value
    "text": click.STRING,
    **dict.fromkeys(("path", "data"), click.Path()),
    "seconds": Parsed("duration", _seconds, lambda value: format(Decimal(value), "f")),
    "bytes": Parsed("size", _bytes),
    "gates": Parsed("list", _gates, lambda gates: ",".join(words_for(gates)), GATES),
    "codes": Codes("list", _codes, ",".join),
    "plot": OutputPath((".png", ".svg"), folders=False),
    "scheduler": SCHEDULER_ADDRESS,
}

DURATION = _TYPES["seconds"]


_COMPLETED = {  # kinds of options whose words a shell completes from the models on the command line
    "tensors", "globs", "sizes", "shapes", "ranges", "tolerances", "values", "feeds", "claims",
}  # fmt: skip


def completing(kind: str) -> Completer:
    """A function that gives a shell the words of some kind."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from gradcheck_cli.cli.completion import words

        return words(kind, ctx, param, incomplete)

    return complete


MODELS = click.RichArgument(["models"], nargs=-1, required=True, metavar="MODEL...", type=click.Path())
TEXT_OR_JSON = click.RichOption(
    ["--output-format"], type=OneOf(("full", "json")), default="full", allow_from_autoenv=False,
    help="Tables for people, or JSON.",
)  # fmt: skip


def _coloring(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Lets titles of errors have the color that is asked for, those about other options too."""
    Titles.color = value or Titles.color
    return value


COLOR = click.RichOption(
    ["--color"], type=OneOf(OPTIONS["color"].words), default="auto", help="Colors.", callback=_coloring, is_eager=True
)


def options_of(command: str, *, panels: bool = True) -> list[click.Parameter]:
    """The options of the table that a command takes; they have no defaults here, so that weaker places count."""
    return [_made(option, command, panels=panels) for option in options_at(command)]


def names_at(*panels: str) -> list[str]:
    """Names of the options in some panels of the help."""
    return [option.name for option in OPTIONS.values() if option.panel in panels]


def _made(option: Option, command: str, *, panels: bool) -> click.RichOption:
    kind: dict[str, Any] = {"metavar": option.form or None, **_as_click_has_it(option)}
    known = files_said() if option.kind == "reports" else either(on_stdout()) if option.kind == "formats" else ""
    panel = option.panel if panels else None
    if option.kind in _COMPLETED or option.kind == "names":
        kind["shell_complete"] = completing(option.name if option.kind == "names" else option.kind)
    if option.name == "color":
        kind |= {"callback": _coloring, "is_eager": True}
    return click.RichOption([*option.spellings, option.name], panel=panel, help=option.text(command, known), **kind)


def either(words: Iterable[str]) -> str:
    """Words as a help lists them: full, concise or json."""
    *others, last = words
    return f"{', '.join(others)} or {last}"


def _as_click_has_it(option: Option) -> dict[str, Any]:
    """The type of an option, and whether it is a flag or takes several values."""
    match option.kind:
        case "flag":
            return {"default": None, **({"flag_value": False} if option.default else {"is_flag": True})}
        case "count":
            return {"count": True, "metavar": ""}
        case "tensors":
            return {"multiple": True, "type": Text()}
        case "reports":
            return {"multiple": True, "type": OutputPath(suffixes())}
        case "word" | "formats":
            return {"type": OneOf(option.words or on_stdout())}
        case "whole" | "real":
            return {"type": _number(option)}
    kind = _TYPES.get(option.kind)
    return {"type": kind} if kind else {"multiple": True, "type": Text()}


def _number(option: Option) -> ParamType:
    if option.words:
        number = "int" if option.kind == "whole" else "float"
        return Parsed(f"{number}|{option.words[0]}", partial(_number_or_word, option=option), known=option.words)
    least, most = (None if math.isinf(bound) else bound for bound in (option.least, option.most))
    if option.kind == "whole":
        return Whole(least if least is None else int(least), most if most is None else int(most))
    return Real(least, most, min_open=option.above)


def _no_number(error: click.BadParameter, value: Any, kind: str, param: click.Parameter | None) -> str:
    """The message of a number that is none, or is too small or too large."""
    if "is not a valid" not in error.message:
        return error.message
    left_out = parts(getattr(param, "help", "") or "")[1]
    return f"{str(value)!r} is no {kind}{as_fraction(str(value))}." + (
        f" The default is {left_out}." if left_out else ""
    )


def as_fraction(text: str) -> str:
    """The words "; write 0.05" for a number of percent; nothing for any other text."""
    with suppress(ValueError):
        return f"; write {float(text[:-1]) / 100:g}" if text.endswith("%") else ""
    return ""


class Whole(click.IntRange):
    """A whole number within limits."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            self.fail(_no_number(error, value, "whole number", param), param, ctx)


class Real(click.FloatRange):
    """A number within limits."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            number = super().convert(value, param, ctx)
            if math.isnan(number):  # within every limit, as no comparison with it is true
                self.fail(f"{value!r} is not a valid number.", param, ctx)
            return number
        except click.BadParameter as error:
            self.fail(_no_number(error, value, "number", param), param, ctx)


class TypedCommand(click.RichCommand):
    """A command that refuses options without an effect, and where it takes any from the environment unknown ones there.

    `idle` are those of options that are not in the table.
    """

    def __init__(self, *args: Any, idle: Mapping[str, Idle] | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self.idle = {**{o.name: o.idle for o in OPTIONS.values() if o.idle is not None}, **(idle or {})}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[TYPED], typed = list(args), list(args)
        try:
            left = super().parse_args(ctx, args)
        except click.BadOptionUsage as error:
            error.ctx = error.ctx or ctx
            raise
        except click.UsageError as error:
            if extra := re.fullmatch(r"Got unexpected extra arguments? \((.*)\)", error.message):
                refuse_behind_option(ctx, extra[1].split())
            raise
        if not ctx.resilient_parsing:
            paths = [path for name in ("models", "sources") for path in _paths(ctx.params.get(name))]
            refuse_behind_option(ctx, paths if any(map(os.path.lexists, paths)) else ())
            self._refuse_twice(ctx, typed)
            refuse_idle_beside(ctx, self.idle)
            if ctx.auto_envvar_prefix and ctx.parent is not None:  # a test runner has variables for its own command
                refuse_unknown_variables()
        return left

    def _refuse_twice(self, ctx: click.Context, typed: list[str]) -> None:
        """Raises UsageError for an option that takes one value and is given two, of which the first would be lost."""
        order = self.make_parser(ctx).parse_args(args=typed)[2]
        for param, times in Counter(order).items():
            single = isinstance(param, click.Option) and not (param.multiple or param.count or param.is_flag)
            if single and times > 1:
                option = max(param.opts, key=len)
                commas = " Write its values with commas." if param.type.name == "list" else ""
                raise click.UsageError(f"{option} is given {times} times, and only the last would count.{commas}", ctx)


def refuse_idle_beside(ctx: click.Context, idle: Mapping[str, Idle]) -> None:
    """Raises UsageError for an option that was typed beside another one that leaves it without an effect."""
    typed = {name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    for name, each in idle.items():
        if {name, each.beside} <= typed and ctx.params[each.beside] not in each.but:
            option, beside = (_spelt(ctx, n) for n in (name, each.beside))
            raise click.UsageError(f"{option} has no effect beside {beside}: {each.why}.", ctx)


def _spelt(ctx: click.Context, name: str) -> str:
    """An option as it is typed, with its value where that is one of a few."""
    [option] = [param for param in ctx.command.params if param.name == name]
    value = f" {ctx.params[name]}" if isinstance(option.type, OneOf) else ""
    return f"{max(option.opts, key=len)}{value}"


def refuse_unknown_variables() -> None:
    """Raises UsageError for a variable GRADCHECK_... that would be ignored."""
    known = [*(f"{PREFIX}_{option.name.upper()}" for option in options_at("check")), *_OF_KERNELS]
    for name in os.environ:
        if name.startswith(f"{PREFIX}_") and name not in known:
            near = did_you_mean(name, known) or " Options are spelt like GRADCHECK_RTOL."
            raise UsageError(f"{name} is set in the environment, but there is no such option.{near}")


def given_in(ctx: click.Context, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were typed, or set in the environment."""
    typed, others = (
        {name: value for name, value in options.items() if ctx.get_parameter_source(name) is place} for place in _GIVEN
    )
    given = put_over(others, typed)
    return {name: given[name] for name in options if name in given}


def put_over(weaker: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a place with those of a stronger one over them, of which -v or -q stands for both."""
    loud = _LOUDNESS if any(given.get(name) for name in _LOUDNESS) else ()
    return {**{name: value for name, value in weaker.items() if name not in loud}, **given}


def words(text: str) -> list[str]:
    """Values of an option that may be repeated, separated by spaces; quotes and brackets keep theirs."""
    found, quote, depth = [""], "", 0
    for c in text:
        if quote:
            quote = "" if c == quote else quote
        elif c in "\"'":
            quote = c
        depth += (c in "[(") - (c in "])")
        if c.isspace() and not quote and depth <= 0:
            found.append("")
        else:
            found[-1] += c
    quoted = (len(word) > 1 and word[0] == word[-1] and word[0] in "\"'" for word in found)
    return [word[1:-1] if marks else word for word, marks in zip(found, quoted, strict=True) if word]
