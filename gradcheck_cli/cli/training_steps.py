"""The steps of a model's training algorithm, each checked as a model of its own: what its gradient nodes differentiate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gradcheck_cli.formats.onnx.protobuf_wire import fields_of
from gradcheck_cli.formats.untrusted import opened

if TYPE_CHECKING:
    from gradcheck_cli.cli.tasks import Task
    from gradcheck_cli.formats.source import Source

_FIELD = 20  # of a model in a file: its training information


def has_training(path: str) -> bool:
    """A file has training information; of its content no more is read than that."""
    try:
        with opened(path) as file:
            return _FIELD in fields_of(file)
    except (OSError, ValueError):  # as reading it will say
        return False


def with_steps(whole: Task, load: Callable[[], Source], typed: Mapping[str, Any]) -> list[Task]:
    """The task of a model and those of its steps; where tensors are named, the first of them that has all of these."""
    model = load()
    sources = {"": model, **{name: model.at_step(name) for name in model.steps}}
    named = {name for option in ("x", "y") for said in (whole.said, typed) for name in _names(said.get(option))}
    return [_task(whole, name, load) if name else whole for name, _ in fitting(sources, named)]


def fitting(sources: Mapping[str, Source], named: Collection[str]) -> list[tuple[str, Source]]:
    """A model and its steps, or of them the first that has all tensors that are named; other sources as they are."""
    if not named or not any(source.step for source in sources.values()):
        return [*sources.items()]
    return [each for each in sources.items() if {*named} <= {*each[1].graph.tensors}][:1] or [*sources.items()][-1:]


def _task(whole: Task, name: str, load: Callable[[], Source]) -> Task:
    said = {**targets(load().at_step(name)), **whole.said}
    return replace(whole, name=f"{whole.name}::{name}", load=lambda: load().at_step(name), said=said, graph=name)


def _names(said: Any) -> Iterator[str]:
    yield from [said] if isinstance(said, str) else said or ()


def targets(step: Source) -> dict[str, tuple[str, ...]]:
    """What a step differentiates, and by what: as its nodes `Gradient` say, else by what it updates.

    Of any other model there is nothing to say.
    """
    from gradcheck_cli.formats.gradient_nodes import KEY
    from gradcheck_cli.points.targets import is_float

    graph = step.graph
    if not step.step:
        return {}
    nodes = [node for node in graph.nodes if node.key == KEY]
    ys = dict.fromkeys(node.attrs["y"] for node in nodes)
    xs = dict.fromkeys(x for node in nodes for x in node.attrs["xs"])
    if not nodes:
        left = [name for name in graph.outputs if name not in step.updates.values()]
        ys = dict.fromkeys(name for name in left if is_float(graph, name, unknown=True))
        needed = graph.needed_for(ys)
        xs = dict.fromkeys(x for x in step.updates if x in needed and is_float(graph, x))
    return {"x": (*xs,), "y": (*ys,)} if xs and ys else {}
