"""Options as `Settings` of one model: names told from values with the model at hand, layers put together.

A layer is what one place says: a configuration file, a spec's check, or environment and command line.  Of an
option by tensor name, a stronger layer replaces the weaker if it speaks of every tensor, else adds to it.  Values are
typed, or lie in files: numbers, nested lists, .npy, .npz, .pb and .json.  A typed option must bear on the check: one
that could only be ignored is an error.  Files speak of several checks, and are not held to this.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import rich_click as click
from click.core import ParameterSource

from gradcheck_cli.autodiff.custom import ops_for
from gradcheck_cli.cli.options import as_fraction
from gradcheck_cli.errors import GradcheckError, UsageError, did_you_mean, named, shown
from gradcheck_cli.formats.source import Source
from gradcheck_cli.formats.untrusted import content
from gradcheck_cli.graph import Array, Graph, TensorType
from gradcheck_cli.graph.containers import typed
from gradcheck_cli.op import Ops
from gradcheck_cli.ops import OPS
from gradcheck_cli.ops.straight import rounds
from gradcheck_cli.points.targets import choose_x, choose_y, expanded, is_float
from gradcheck_cli.settings import ANY, NOTHING, Numbers, Settings, setting_of

_NAME_AND_SIZE = re.compile(r"[^=]+=\d+\s*")
_WORDS = {"nan": "NaN", "inf": "Infinity", "infinity": "Infinity"}
_FILES = (".npy", ".npz", ".pb", ".json")
_LARGEST = 256 << 20  # bytes of a .json
_SPECIAL = re.compile(r"(?<![\w.\"'])(nan|inf|infinity)(?![\w.\"'])", re.IGNORECASE)


def array_of(text: str) -> Array:
    """The array that VALUE or @FILE[:KEY] means: a number or nested lists of numbers, nan, inf and complex ones too."""
    if text.startswith("@"):
        return _from_file(text[1:])
    return _numbers(_loaded(text), f"{text!r} is no number and no list of numbers", _meant(text))


def _meant(text: str) -> str:
    """The sentence that says how a list without brackets, or a file without @, is written."""
    if os.path.splitext(text)[1].lower() in _FILES:
        return f". Write @{text} for the numbers in a file"
    listed = _loaded(f"[{text}]") if "," in text else None
    return f". Write [{text}]" if isinstance(listed, list) and all(isinstance(n, (int, float)) for n in listed) else ""


def value_of(text: str, declared: TensorType) -> Any:
    """The meaning of VALUE or @FILE[:KEY] for strings, a sequence, an optional or a map: lists, null, mappings."""
    return _from_file(text[1:], declared) if text.startswith("@") else _typed(_loaded(text), declared, repr(text))


def _loaded(text: str) -> Any:
    """A text as JSON with nan and inf, or as it is."""
    try:
        return json.loads(_SPECIAL.sub(lambda m: _WORDS[m[0].lower()], text))
    except (ValueError, RecursionError):
        return text


def _typed(value: Any, declared: TensorType, what: str) -> Any:
    try:
        return typed(value, declared, what)
    except (ValueError, OverflowError, RecursionError) as error:
        raise UsageError(str(error)) from None


def _numbers(value: Any, reason: str, meant: str = "") -> Array:
    try:
        array = np.array(_complex_where_needed(value))
    except (ValueError, OverflowError, RecursionError):
        array = np.array(None)
    if array.dtype.kind not in "biufc":
        raise UsageError(f"{reason}{meant or '; write 0.5, [1, 2], [[1, nan], [3, inf]], 1+2j or @file.npy'}")
    return array


def _complex_where_needed(value: Any) -> Any:
    if isinstance(value, list):
        return [_complex_where_needed(each) for each in value]
    return complex(value.replace(" ", "")) if isinstance(value, str) else value


def _from_file(given: str, declared: TensorType | None = None) -> Any:
    """The content of FILE or FILE:KEY, a path that may have colons of its own; without a declared type numbers."""
    path, colon, key = given.rpartition(":")
    named = os.path.exists(path) or os.path.splitext(path)[1].lower() in _FILES
    whole = not colon or os.path.exists(given) or not named
    path, chosen = (given, None) if whole else (path, key)
    try:
        value = _content(path, chosen, declared)
        return value if declared is None else _typed(value, declared, path)
    except (GradcheckError, MemoryError):
        raise
    except OSError as error:
        raise UsageError(f"{shown(path)} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # whatever NumPy's, zip's and Python's readers say of bytes that make no sense
        raise UsageError(f"{shown(path)} cannot be read as an array: {error}") from None


def _content(path: str, key: str | None, declared: TensorType | None) -> Any:
    """The value in a file; the arrays of a .npz are a sequence in their order, where one is declared."""
    from gradcheck_cli.formats.arrays import Npz, read_npy  # few options name files

    suffix = os.path.splitext(path)[1].lower()
    if suffix not in _FILES:
        known = "neither .npy, .npz, .pb nor .json" if os.path.exists(path) else "no file"
        raise UsageError(f"{path} is {known}")
    if suffix == ".npz":
        arrays = Npz(path)
        every = declared is not None and declared.kind == "sequence" and key is None
        return [*arrays.values()] if every else arrays[_chosen(path, list(arrays), key)]
    if suffix == ".json":
        value = json.loads(content(path, _LARGEST))
        if declared is not None and key is None:
            return value
        if isinstance(value, dict):
            return _numbers(value[_chosen(path, list(value), key)], f"{path} holds no numbers")
    if suffix == ".pb" and declared is not None:
        from gradcheck_cli.formats.onnx.read import read_value

        return read_value(path, declared)
    if key is not None:
        raise UsageError(f"{path} holds a single array; leave out the key {key!r}")
    if suffix == ".json":
        return _numbers(value, f"{path} holds no numbers")
    if suffix == ".npy":
        return read_npy(path)
    from gradcheck_cli.formats.onnx.read import read_tensor

    return read_tensor(path)


def _chosen(path: str, names: list[str], key: str | None) -> str:
    if key is None and len(names) == 1:
        return names[0]
    if key not in names:
        known = named(names, 10) or "none"
        wrong = f"has no array {key!r}" if key else "has several arrays; choose one as @FILE:KEY"
        raise UsageError(f"{path} {wrong}.{did_you_mean(key or '', names)} It has: {known}.")
    return key


def refuse_idle(typed: Mapping[str, Any], settings: Settings, graph: Graph, ops: Ops) -> None:
    """Raises UsageError for an option by tensor that speaks of none to which it applies, and for --second-order of none.

    `typed` holds what was typed, option -> tensor -> value.  Names that the model does not have are left to others.
    """
    xs, ys = _targets(settings, graph, ops)
    drawn = [n for n in graph.free_inputs if n not in settings.x_init_value and n not in settings.extra_feed_dict]
    for option, known, what in (
        ("rtol", [*xs, *ys], "is neither x nor y of this check"),
        ("atol", [*xs, *ys], "is neither x nor y of this check"),
        ("y_shape", ys, "is no y of this check"),
        ("x_shape", [*graph.free_inputs, *xs], "is no input and no x of this check"),
        ("val_range", drawn, "is not drawn at random, as others are"),
    ):
        for name in typed.get(option, {}):
            if name != ANY and name in graph.tensors and name not in known:
                given = f"--{option.replace('_', '-')} {name}"
                raise UsageError(f"{given} has no effect: {name!r} {what} ({listed(known)}).")
    claimed = {name for name in settings.grad if name not in (ANY, *ys)}
    if typed.get("second_order") and (settings.grad_model or (claimed and claimed.issuperset(settings.x or ()))):
        why = "a gradient from elsewhere is not differentiated again"
        raise UsageError(f"--second-order has no effect beside --grad: {why}. --x names what else to check.")


def refuse_idle_rounding(ctx: click.Context, settings: Settings, *sources: Source) -> None:
    """Raises UsageError where --straight-through was typed, and nothing in these models rounds that it could go through."""
    typed = ctx.get_parameter_source("straight_through") is ParameterSource.COMMANDLINE
    if typed and settings.straight_through and not any(rounds(source, settings, OPS) for source in sources):
        names = " and ".join(source.uri for source in sources)
        raise UsageError(
            f"--straight-through has no effect: nothing in {names} is rounded and then computed with; what ends as a "
            "shape, an index or a condition is rounded as before."
        )


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names one after another, the first of many and the number of the others."""
    several = list(dict.fromkeys(names))
    more = f", ... {len(several) - most} more" if len(several) > most else ""
    return ", ".join(several[:most]) + more or "nothing"


_T = TypeVar("_T")
_VALUES = ("x_init_value", "extra_feed_dict")  # options that fix what a tensor holds
_DIGITS = 18  # of a size: more are not addressed anyway
Layer = Mapping[str, Any]


def resolve(source: Source, layers: Sequence[Layer]) -> Settings:
    """The settings of one model; layers come from the weakest, a configuration file, to the strongest, what was typed."""
    graph = source.graph
    found: dict[str, Any] = {}
    typed: dict[str, Any] = {}
    spoke: dict[tuple[str, str], int] = {}  # the layer that gave a value last, by option and tensor
    for number, layer in enumerate(layers):
        typed = {}
        for name, value in layer.items():
            if (option := setting_of(name)) is None:
                continue
            read = _READERS.get(option.kind)
            typed[option.field] = read(value, graph, f"--{name.replace('_', '-')}") if read else value
            if option.kind == "ranges":
                ranges = source.ranges if layer is layers[0] else ()
                typed[option.field] = _by_input(typed[option.field], graph, ranges)
            found[option.field] = _merged(found.get(option.field), typed[option.field])
        spoke.update({(option, name): number for option in _VALUES for name in typed.get(option, {})})
    found.update(_method(found))
    found["test_data"] = _test_data(found.get("test_data", "auto"))
    found["dims"] = {k: v for k, v in found.get("dims", {}).items() if source.dims.get(k) != v}
    ops = ops_for(source, OPS)
    settings = _of_strongest(_with_names(Settings(**found), graph, ops), spoke)
    refuse_idle(typed, settings, graph, ops)
    return settings


def _of_strongest(settings: Settings, spoke: Mapping[tuple[str, str], int]) -> Settings:
    """The settings with one value for each tensor, from the strongest of the layers that speak of it."""
    for name in settings.x_init_value.keys() & settings.extra_feed_dict.keys():
        value = max(spoke.get(("x_init_value", each), -1) for each in (name, ANY))
        fed = spoke["extra_feed_dict", name]
        if value == fed:
            both = "--x-init-value and --extra-feed-dict"
            raise UsageError(f"{shown(name)} has two values, of {both}; leave out one of them.")
        weaker = _VALUES[0] if value < fed else _VALUES[1]
        others: dict[str, Any] = {weaker: {n: v for n, v in getattr(settings, weaker).items() if n != name}}
        settings = replace(settings, **others)
    return settings


def _method(found: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that follow from others: --delta means central differences, --point that it is the only point."""
    method = found.get("method", "auto")
    if found.get("delta") is not None and method not in ("auto", "central", "forward"):
        raise UsageError(f"--delta belongs to --method central or forward; {method} chooses its own steps")
    one = {"points": 1} if found.get("point") is not None else {}
    return {**one, **({"method": "central"} if found.get("delta") is not None and method == "auto" else {})}


def _by_input(ranges: Mapping[str, Any], graph: Graph, own: Iterable[str]) -> dict[str, Any]:
    """Ranges by input: one that counts for all goes to every float input but those in `own`, which have their own."""
    if ANY not in ranges:
        return dict(ranges)
    inputs = [n for n in graph.free_inputs if is_float(graph, n) and n not in own]
    return {**dict.fromkeys(inputs, ranges[ANY]), **{n: r for n, r in ranges.items() if n != ANY}}


def _merged(weaker: Any, stronger: Any) -> Any:
    if isinstance(weaker, Mapping) and isinstance(stronger, Mapping) and ANY not in stronger:
        return {**weaker, **stronger}
    return stronger


def _with_names(settings: Settings, graph: Graph, ops: Ops) -> Settings:
    """The settings with values that have no name given to the only x or y there is."""
    xs, ys = _targets(settings, graph, ops)
    return replace(
        settings,
        x_shape=_given_to(settings.x_shape, xs, "--x-shape", "x"),
        y_shape=_given_to(settings.y_shape, ys, "--y-shape", "y"),
        x_init_value=_given_to(settings.x_init_value, xs, "--x-init-value", "x"),
    )


def _targets(settings: Settings, graph: Graph, ops: Ops) -> tuple[Sequence[str], Sequence[str]]:
    ys = settings.y or choose_y(graph)
    return choose_x(graph, ys, x=settings.x, params=settings.params, param=settings.param, ops=ops), ys


def _given_to(values: Mapping[str, _T], names: Sequence[str], option: str, kind: str) -> dict[str, _T]:
    if ANY not in values:
        return dict(values)
    if len(names) != 1:
        mark = "=" if option == "--x-init-value" else ":"
        known = ", ".join(map(shown, names)) or "none"
        raise UsageError(f"{option} needs a name, {option} NAME{mark}..., since there are {len(names)} {kind}: {known}")
    return {names[0]: values[ANY], **{k: v for k, v in values.items() if k != ANY}}


def _by_name(parse: Callable[[Any], _T], mark: str) -> Callable[[Any, Graph, str], dict[str, _T]]:
    """A reader of an option that may be given by tensor: [NAME:]VALUE, or a mapping from a spec."""

    def read(value: Any, graph: Graph, option: str) -> dict[str, _T]:
        if isinstance(value, Mapping):
            return {name: _parsed(parse, each, option) for name, each in value.items()}
        if not (isinstance(value, (tuple, list)) and value and all(isinstance(each, str) for each in value)):
            return {ANY: _parsed(parse, value, option)}
        pairs = _pairs(value, graph.tensors, mark, option)
        for text, (name, _) in zip(value, pairs, strict=True):
            _refuse_other_mark(text, name, graph, mark, option)
        return {name: _parsed(parse, rest, f"{option} {text}") for text, (name, rest) in zip(value, pairs, strict=True)}

    return read


def _pairs(texts: Iterable[str], names: Iterable[str], mark: str, option: str) -> list[tuple[str, str]]:
    """Names and the texts behind them; UsageError for a name that comes twice."""
    pairs = [_split(text, names, mark) for text in texts]
    given = [name for name, _ in pairs]
    if again := [name for name in given if given.count(name) > 1]:
        what = option if again[0] == ANY else f"{option} {shown(again[0])}{mark}..."
        raise UsageError(f"{what} is given twice, and only the last would count.")
    return pairs


def _refuse_other_mark(text: str, name: str, graph: Graph, mark: str, option: str) -> None:
    """Raises UsageError for a tensor's name with the mark of other options behind it: input=2,3 for input:2,3."""
    other, rest = _split(text, graph.tensors, "=" if mark == ":" else ":")
    if name not in graph.tensors and other in graph.tensors:
        raise UsageError(f"{option} {shown(text)}: write {option} {shown(other)}{mark}{rest}")


def _split(text: str, names: Iterable[str], mark: str) -> tuple[str, str]:
    """A name and the text behind it: the longest name that the model knows, since names may have marks."""
    known = [name for name in names if name and text.startswith(name + mark)]
    if known:
        name = max(known, key=len)
        return name, text[len(name) + 1 :]
    if mark not in text or text.startswith("@"):
        return ANY, text
    name, _, rest = text.rpartition(mark) if mark == ":" else text.partition(mark)
    return name, rest


def _parsed(parse: Callable[[Any], _T], value: Any, where: str) -> _T:
    try:
        return parse(value)
    except UsageError as error:
        raise UsageError(f"{shown(where)}: {error}") from None


def _shape(value: Any) -> tuple[int, ...]:
    if not isinstance(value, str):
        return tuple(value)
    text = value.strip()
    inner = text[1:-1] if text[:1] + text[-1:] in ("[]", "()") else text
    sizes = [size.strip() for size in re.split("[,x]", inner.rstrip(","))] if inner.strip() else []
    if not text or not all(map(_is_size, sizes)):
        raise UsageError(f"{value!r} is no shape; write 1,3,32,32 or [1,3,32,32] or 1x3x32x32, numbers alone")
    return tuple(map(int, sizes))


def _is_size(text: str) -> bool:
    return text.isdecimal() and len(text) <= _DIGITS


def _range(value: Any) -> tuple[float, float]:
    parts = re.split("[,;]", value.strip("[]() ")) if isinstance(value, str) else list(value)
    try:
        low, high = map(float, parts)
    except ValueError:
        raise UsageError(f"{value!r} is no range; write LOW,HIGH such as -1,1") from None
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise UsageError(f"{value!r} is no range: both ends must be finite and in order")
    return low, high


def _tolerance(value: Any) -> float:
    try:
        number = float(value)
    except ValueError:
        meant = as_fraction(str(value)) or "; write 1e-5, or NAME:1e-5 for one tensor"
        raise UsageError(f"{value!r} is no number{meant}") from None
    if not (math.isfinite(number) and number >= 0):
        raise UsageError(f"a tolerance must be a number from 0, not {value}")
    return number


def _values(value: Any, graph: Graph, option: str) -> dict[str, Any]:
    """Values by tensor: numbers, and what else a tensor is declared to hold."""
    texts = [each for each in value if isinstance(each, str)] if isinstance(value, (tuple, list)) else []
    found = {}
    for text, (name, rest) in zip(texts, _pairs(texts, graph.tensors, "=", option), strict=True):
        declared = graph.types.get(name, TensorType())
        if declared.kind != "tensor" or (declared.dtype is not None and declared.dtype.kind == "O"):
            found[name] = _parsed(partial(value_of, declared=declared), rest, f"{option} {text}")
            value = [each for each in value if each != text]
    read = _by_name(lambda each: array_of(each) if isinstance(each, str) else np.asarray(each), "=")
    return found if texts and not value else {**found, **read(value, graph, option)}


def _feed(value: Any, graph: Graph, option: str) -> dict[str, Any]:
    values = _values(value, graph, option)
    if ANY in values:
        raise UsageError(f"{option}: which tensor? Write {option} NAME=VALUE or NAME=@FILE")
    return values


def _grad(value: Any, graph: Graph, option: str) -> dict[str, str | Numbers]:
    """Claimed gradients by x: a tensor's name, or numbers from a file; `none` alone asks for none to be looked for."""
    if isinstance(value, Mapping):
        return {name: _claimed(each, f"{option} {name}") for name, each in value.items()}
    found: dict[str, str | Numbers] = {}
    texts = [value] if isinstance(value, str) else value
    for text, (name, rest) in zip(texts, _pairs(texts, graph.tensors, "=", option), strict=True):
        if name == ANY and rest != NOTHING:
            raise UsageError(f"{option} {shown(text)}: by which tensor? Write {option} X=TENSOR or X=@FILE[:KEY]")
        found[name] = _claimed(rest, f"{option} {text}") if name != ANY else rest
    if ANY in found and len(found) > 1:
        raise UsageError(f"{option} {NOTHING} stands alone: it leaves out the gradients that are found by their names")
    return found


def _claimed(text: str, where: str) -> str | Numbers:
    if not text.startswith("@"):
        return text
    array = _parsed(array_of, text, where)
    if (numbers := Numbers.real(array, text[1:])) is None:
        kind = "complex numbers" if array.dtype.kind == "c" else f"{array.dtype.name}, no numbers"
        raise UsageError(f"{where}: {shown(text[1:])} holds {kind}; a gradient is real numbers")
    return numbers


def feeds_of(source: Source, texts: Sequence[str]) -> Mapping[str, Any]:
    """Values by name from --feed, of a model for which nothing else is to be resolved."""
    return resolve(source, [{"extra_feed_dict": texts}] if texts else []).extra_feed_dict


def dims_of(texts: Iterable[str], option: str = "--dim") -> dict[str, int]:
    """Sizes by name from NAME=INT."""
    found = {}
    for text in texts:
        name, mark, size = text.rpartition("=")
        if "=" in name and "," in name and all(map(_NAME_AND_SIZE.fullmatch, text.split(","))):
            each = " ".join(f"{option} {part.strip()}" for part in text.split(","))
            raise UsageError(f"{option} takes one size at a time, not {shown(text)}. Write {each}")
        if not mark or not name or not _is_size(size.strip()):
            raise UsageError(f"{option} {shown(text)}: write NAME=SIZE, such as {option} N=2")
        if name in found:
            raise UsageError(f"{option} {shown(name)}=... is given twice, and only the last would count.")
        found[name] = int(size)
    return found


def _names(value: Any, graph: Graph, option: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys([value] if isinstance(value, str) else value))


_READERS: dict[str, Callable[[Any, Graph, str], Any]] = {  # by kind of option; of other kinds a value is taken as it is
    "tensors": lambda value, graph, option: expanded(graph, _names(value, graph, option), option),
    "globs": _names,
    "names": _names,
    "shapes": _by_name(_shape, ":"),
    "sizes": lambda value, graph, option: dict(value) if isinstance(value, Mapping) else dims_of(value, option),
    "values": _values,
    "feeds": _feed,
    "claims": _grad,
    "ranges": _by_name(_range, ":"),
    "tolerances": _by_name(_tolerance, ":"),
    "whole": lambda value, *_: None if isinstance(value, str) else value,  # a word leaves it to be chosen
    "real": lambda value, *_: None if isinstance(value, str) else float(value),
}


def _test_data(given: str) -> Path | Literal["auto"] | None:
    """The folder of test data that was given; `auto` is the one beside the model."""
    if given == "none":
        return None
    if given == "auto":
        return "auto"
    if not os.path.isdir(given):
        raise UsageError(f"--test-data {shown(given)}: there is no such folder")
    return Path(given)
