"""Names that a user gives are resolved here against the graph, and targets that nobody gave are chosen."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from gradcheck_cli.connections.flow import Flow
from gradcheck_cli.connections.selecting import selecting
from gradcheck_cli.errors import UsageError, did_you_mean, shown
from gradcheck_cli.graph import Graph, TensorType, is_inexact
from gradcheck_cli.ops import OPS


def require(graph: Graph, names: Iterable[str], uri: str) -> None:
    """UsageError for a name that is no tensor of the graph, with the nearest one and what there is."""
    for name in names:
        if name not in graph.tensors:
            hint = did_you_mean(name, graph.tensors)
            raise UsageError(f"{uri} has no tensor {name!r}.{hint}\nTensors to differentiate by: {_candidates(graph)}")


def choose_x(graph: Graph, ys: Sequence[str], *, params: bool = False) -> tuple[str, ...]:
    """The float inputs that some y depends on; with `params`, or if there are none, the float parameters too.

    An input that has a default value is a parameter.  One that only selects is left out where another has a gradient.
    """
    needed = graph.needed_for(ys)
    inputs = [n for n in graph.free_inputs if n in needed and is_float(graph, n)]
    left_out = selecting_inputs(graph, ys)
    inputs = [n for n in inputs if n not in left_out]
    if inputs and not params:  # parameters are not looked at, which would read all of a large file
        return tuple(inputs)
    return (*inputs, *(n for n in parameters(graph) if n in needed and n not in inputs))


def selecting_inputs(graph: Graph, ys: Sequence[str]) -> set[str]:
    """The float inputs that only select what is computed, where another float input has a gradient."""
    needed = graph.needed_for(ys)
    inputs = [n for n in graph.free_inputs if n in needed and is_float(graph, n)]
    if len(inputs) < 2:  # weights are looked at only where there is something to leave out
        return set()
    weights = (n for n in parameters(graph) if graph.constants[n].size > 1)
    return selecting(Flow(graph, OPS), inputs, [*graph.free_inputs, *weights], ys)


def choose_y(graph: Graph) -> tuple[str, ...]:
    """The outputs that are float tensors, or of a dtype that the file does not say."""
    return tuple(n for n in graph.outputs if is_tensor(graph, n) and is_float(graph, n, unknown=True))


def parameters(graph: Graph) -> tuple[str, ...]:
    """Float constants of rank 1 and more: the weights, wherever the file keeps them.

    What holds an infinity by design, such as an attention mask, is none.
    """
    floats = ((n, v) for n, v in graph.constants.items() if is_inexact(v.dtype) and v.ndim and v.size)
    return tuple(n for n, v in floats if not np.isinf(v).any())


def is_tensor(graph: Graph, name: str) -> bool:
    """It is declared to be a tensor, or not declared."""
    return graph.types.get(name, TensorType()).kind == "tensor"


def is_float(graph: Graph, name: str, *, unknown: bool = False) -> bool:
    """It holds floating-point or complex numbers; `unknown` where nothing is declared."""
    if name in graph.constants:
        return is_inexact(graph.constants[name].dtype)
    declared = graph.types.get(name)
    if declared is None or declared.dtype is None:
        return unknown or name in graph.inputs
    return declared.kind == "tensor" and is_inexact(declared.dtype)


def reached_past(graph: Graph, x: str, fed: Collection[str]) -> set[str]:
    """Every tensor that depends on x, itself included, while others are fed, which nothing computes then."""
    reached = {x}
    for node in graph.nodes:
        if not reached.isdisjoint(node.reads):
            reached.update(name for name in node.outputs if name and name not in fed)
    return reached


def check_paths(graph: Graph, xs: Sequence[str], ys: Sequence[str], fed: Collection[str] = ()) -> None:
    """UsageError where an x that was asked for does not reach any y, or what is fed lies between, or they are swapped."""
    for x in xs:
        reached = graph.reached_from([x])
        if reached_past(graph, x, fed).intersection(ys) or not ys:
            continue
        y = next((y for y in ys if y in reached), ys[0])
        if y in reached:
            between = [name for name in fed if name != x and name in reached and name in graph.needed_for([y])]
            cut = f"{', '.join(map(repr, between))} {'is' if len(between) == 1 else 'are'} fed"
            raise UsageError(f"{y!r} does not depend on {x!r} while {cut}.")
        if x in graph.reached_from([y]):
            swapped = f"{y!r} does not depend on {x!r}, but {x!r} depends on {y!r}."
            raise UsageError(f"{swapped} Are --x and --y swapped?")
        outputs = [n for n in graph.outputs if n in reached]
        ends = f"only: {', '.join(map(shown, outputs))}." if outputs else "no output."
        raise UsageError(f"{y!r} does not depend on {x!r}. {shown(x)} reaches {ends}")


def first_float_after(graph: Graph, name: str, dtypes: Mapping[str, str]) -> str | None:
    """The first float tensor computed from an integer one: what to differentiate by instead."""
    reached = graph.reached_from([name])
    for node in graph.nodes:
        for output in node.outputs:
            if output in reached and dtypes.get(output, "").startswith(("float", "bfloat", "complex")):
                return output
    return None


def _candidates(graph: Graph) -> str:
    names = [*graph.inputs, *(n for n in parameters(graph) if n not in graph.inputs)]
    floats = [n for n in names if is_float(graph, n)]
    first = ", ".join(f"{shown(n)} {_type(graph, n)}" for n in floats[:8])
    return first + (f", ... {len(floats) - 8} more" if len(floats) > 8 else "") or "none"


def _type(graph: Graph, name: str) -> TensorType:
    if name in graph.types:
        return graph.types[name]
    value = graph.constants[name]
    return TensorType(value.dtype, value.shape)
