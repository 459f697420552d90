"""Elements of sequences, optionals and maps as tensors of the graph, called `s[0]` or `s[0][1]`.

An input that holds tensors becomes an input for each of them and the nodes that put them together; elements of any
other value are computed by nodes that take it apart.  A check then treats them like all other tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from msgspec import structs

from gradcheck_cli.autodiff.tape import MAX_STEPS
from gradcheck_cli.errors import LimitError, UnsupportedError, UsageError, quoted, shown
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Graph, Node, TensorType, is_inexact
from gradcheck_cli.graph.containers import Map, Optional, Sequence, described, elements, typed
from gradcheck_cli.op import Ops
from gradcheck_cli.points.point import find_point
from gradcheck_cli.points.targets import is_tensor
from gradcheck_cli.points.test_data import shipped_with
from gradcheck_cli.settings import Settings

LENGTH = 2  # of a sequence that nobody gave
_ELEMENT = re.compile(r"(.+)\[(\d{1,9})\]", re.DOTALL)


def opened(source: Source, settings: Settings, ops: Ops) -> tuple[Source, Settings]:
    """A model and settings in which everything that a check differentiates by, or of, is a tensor of the graph.

    A sequence that is fed has its own length, another one that of `settings.dims`, or 2.
    """
    graph, named = source.graph, (*(settings.x or ()), *(settings.y or ()))
    if all(is_tensor(graph, n) for n in (*graph.inputs, *graph.outputs, *named)) and not _asked(graph, named):
        return source, settings
    _refuse(graph, settings)
    _refuse_slices(graph, named)
    own = {name: graph.types[name] for name in graph.inputs if not is_tensor(graph, name)}
    asked = [name for name in _asked(graph, named) if _root(graph, name) not in own]
    if own:
        source, settings = _with_open_inputs(source, settings, own)
    ends = [] if settings.y else _inside_outputs(source, settings, ops)
    graph = with_elements(source.graph, (*asked, *ends))
    return structs.replace(source, graph=replace(graph, outputs=(*graph.outputs, *ends))), settings


def _refuse_slices(graph: Graph, names: Iterable[str]) -> None:
    """Raises UsageError for an entry of a tensor, which is no element of a sequence."""
    for name in _asked(graph, names):
        base = _root(graph, name) or name
        if _is_declared_tensor(graph, base):
            whole = f"give it whole, as {shown(base)}; `gradcheck grad --y` takes entries and slices"
            raise UsageError(
                f"{shown(name)}: {shown(base)} is a tensor, of which a check takes no part. Instead {whole}."
            )


def with_element(source: Source, name: str) -> Source:
    """The source with one more element as a tensor of its graph; the source itself where the name is none of that kind,
    as a part of a tensor is.

    An input that is a sequence gets 2 elements, or as many as the name asks for.
    """
    graph, base = source.graph, _root(source.graph, name)
    if base is None or _is_declared_tensor(graph, base):
        return source
    declared = graph.types.get(base, TensorType())
    if base in graph.inputs:
        place = name[len(base) + 1 :].partition("]")[0]
        held = _drawn(declared, base, max(LENGTH, int(place) + 1))
        return structs.replace(source, graph=_opened_input(graph, base, held, declared))
    return structs.replace(source, graph=with_elements(graph, [name]))


def ready_to_draw(source: Source, fed: Mapping[str, Any]) -> Source:
    """The source with inputs that are no tensors and that nobody feeds as the tensors inside of them."""
    graph = source.graph
    for name in source.graph.inputs:
        if not is_tensor(graph, name) and name not in fed:
            declared = graph.types[name]
            graph = _opened_input(graph, name, _drawn(declared, name, LENGTH), declared)
    return structs.replace(source, graph=graph)


def spread(graph: Graph, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Feeds in which what is fed for an opened input is fed to the tensors inside of it."""
    found: dict[str, Any] = {}
    for name, value in feeds.items():
        inside, opened = elements(name, value), [n for n in graph.inputs if n.startswith(f"{name}[")]
        if isinstance(value, np.ndarray) or not opened:
            found[name] = value
        elif set(opened) == set(inside):
            found.update(inside)
        else:
            raise UsageError(f"{name!r} is fed {described(value)}; its tensors here are {', '.join(opened)}.")
    return found


def with_elements(graph: Graph, names: Iterable[str]) -> Graph:
    """The graph with nodes that compute these elements of what it has."""
    nodes, types, known = list(graph.nodes), dict(graph.types), set(graph.tensors)
    for name in dict.fromkeys(_with_bases(names)):
        if name not in known:
            base, index = _split(name)
            nodes.append(Node("Element", (base,), (name,), {"index": index}, "gradcheck"))
            declared = types.get(base, TensorType())
            if declared.inner is not None:
                types[name] = replace(declared.inner, shape=(None,)) if declared.kind == "map" else declared.inner
    return replace(graph, nodes=tuple(nodes), types=types)


def _with_open_inputs(source: Source, settings: Settings, own: Mapping[str, TensorType]) -> tuple[Source, Settings]:
    """Inputs that are no tensors as those inside of them, and what is fed and shipped likewise."""
    graph, dims, fed = source.graph, dict(settings.dims), dict(settings.extra_feed_dict)
    given = {**shipped_with(source, settings, {}).inputs, **settings.x_init_value}
    for name, declared in own.items():
        value, length = fed.pop(name, given.pop(name, None)), dims.pop(name, LENGTH)
        held = _drawn(declared, name, length) if value is None else typed(value, declared, repr(name))
        graph = _opened_input(graph, name, held, declared)
        given.update((n, v) for n, v in elements(name, held).items() if not isinstance(v, TensorType))
    settings = replace(settings, x_init_value=given, extra_feed_dict=fed, dims=dims, test_data=None)
    return structs.replace(source, graph=graph), settings


def _drawn(declared: TensorType, name: str, length: int) -> Any:
    """A placeholder for an input that nobody gave: a record of types, whose values are drawn later."""
    if "map" in (kinds := list(_kinds(declared))):
        text = f"input {name!r} takes a {declared}; give it: --feed {quoted(name)}=..."
        raise UnsupportedError(text, code="GC503")
    if length ** kinds.count("sequence") > MAX_STEPS:
        raise LimitError(f"input {name!r}: {length} tensors in each sequence are too many", code="GC602")
    return _record(declared, length)


def _kinds(declared: TensorType | None) -> Iterator[str]:
    while declared is not None:
        yield declared.kind
        declared = declared.inner


def _record(declared: TensorType, length: int) -> Any:
    inner = declared.inner or TensorType()
    if declared.kind == "sequence":
        return Sequence(tuple(_record(inner, length) for _ in range(length)))
    return Optional(_record(inner, length)) if declared.kind == "optional" else declared


def _opened_input(graph: Graph, name: str, held: Any, declared: TensorType) -> Graph:
    """The graph with an input for each tensor inside of one that holds them."""
    inside = elements(name, held)
    types = {
        n: v if isinstance(v, TensorType) else TensorType(declared.dtype or v.dtype, v.shape) for n, v in inside.items()
    }
    position = graph.inputs.index(name)
    return replace(
        graph,
        inputs=(*graph.inputs[:position], *inside, *graph.inputs[position + 1 :]),
        nodes=(*_putting(name, held, declared), *graph.nodes),
        types={**graph.types, **types},
    )


def _putting(name: str, held: Any, declared: TensorType) -> Iterator[Node]:
    """The nodes that put a value together from the tensors inside of it."""
    inner = declared.inner or TensorType()
    match held:
        case Sequence(items):
            names = tuple(f"{name}[{i}]" for i in range(len(items)))
            for child, item in zip(names, items, strict=True):
                yield from _putting(child, item, inner)
            yield Node("SequenceConstruct" if names else "SequenceEmpty", names, (name,))
        case Optional(None):
            yield Node("Optional", (), (name,), {"type": inner})
        case Optional(content):
            yield from _putting(f"{name}[0]", content, inner)
            yield Node("Optional", (f"{name}[0]",), (name,))
        case Map(keys, _):
            yield Node("MapConstruct", (f"{name}[0]",), (name,), {"keys": keys}, "gradcheck")


def outermost(graph: Graph, names: Iterable[str]) -> Iterator[str]:
    """For each name the model's own value that an element is part of; a tensor's own name."""
    made = {node.outputs[0]: node.inputs[0] for node in graph.nodes if node.key == ("gradcheck", "Element")}
    for name in names:
        while name in made:
            name = made[name]
        yield name


def _inside_outputs(source: Source, settings: Settings, ops: Ops) -> list[str]:
    """Floating-point tensors inside of outputs, as many as they hold at the first point."""
    graph = source.graph
    names = [n for n in graph.outputs if not is_tensor(graph, n) and _is_float(graph.types[n])]
    if not names:
        return []
    tape = find_point(source, settings, ops, names).tape
    held = {n: v for name in names if name in tape.containers for n, v in elements(name, tape.containers[name]).items()}
    return [name for name, var in held.items() if is_inexact(var.dtype)]


def _refuse(graph: Graph, settings: Settings) -> None:
    """UsageError for an x or y that is no tensor, or is part of a value that the model makes on its way."""
    for option, names in (("--x", settings.x or ()), ("--y", settings.y or ())):
        for name in names:
            declared = graph.types.get(name, TensorType())
            if declared.kind != "tensor" and name in graph.tensors:
                raise UsageError(
                    f"{option} {shown(name)} is a {declared}. Name a tensor in it: {_example(name, declared)}"
                )
    for name in settings.x or ():
        base = _root(graph, name)
        if base is not None and base not in graph.inputs:
            raise UsageError(
                f"--x {shown(name)} is part of {base!r}, which nodes make: name the tensor that goes into it."
            )


def _example(name: str, declared: TensorType) -> str:
    """The name of the first tensor inside."""
    inner = declared.inner or TensorType()
    return f"{name}[0]" if declared.kind == "map" or inner.kind == "tensor" else _example(f"{name}[0]", inner)


def _asked(graph: Graph, names: Iterable[str]) -> list[str]:
    """Names of elements among names: no tensors of the graph, but parts of one."""
    return [name for name in names if _root(graph, name) is not None]


def _root(graph: Graph, name: str) -> str | None:
    """The value of the graph that an element is part of; None for any other name."""
    tensors, found = set(graph.tensors), name
    while found not in tensors:
        match = _ELEMENT.fullmatch(found)
        if match is None:
            return None
        found = match[1]
    return None if found == name else found


def _with_bases(names: Iterable[str]) -> Iterator[str]:
    """Each name behind those of the elements that it is part of."""
    for name in names:
        match = _ELEMENT.fullmatch(name)
        if match is not None:
            yield from _with_bases([match[1]])
            yield name


def _split(name: str) -> tuple[str, int]:
    match = _ELEMENT.fullmatch(name)
    assert match is not None
    return match[1], int(match[2])


def _is_declared_tensor(graph: Graph, name: str) -> bool:
    return name in graph.constants or (name in graph.types and is_tensor(graph, name))


def _is_float(declared: TensorType) -> bool:
    return declared.dtype is not None and is_inexact(declared.dtype)
