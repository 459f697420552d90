"""Names by which tools call the gradients that they put into a model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from gradcheck_cli.formats.gradient_nodes import KEY
from gradcheck_cli.graph import Graph
from gradcheck_cli.points.targets import choose_y, is_float

_OF_X = ("{x}_grad", "grad_{x}", "{x}.grad", "adj_{x}")
_OF_BOTH = ("d{y}_d{x}", "d{y}/d{x}", "d_{y}_d_{x}")


def gradient_names(x: str, ys: Iterable[str] = ()) -> Iterator[str]:
    """What the gradient by x may be called, that of a certain y first."""
    yield from (pattern.format(x=x, y=y) for y in ys for pattern in _OF_BOTH)
    yield from (pattern.format(x=x) for pattern in _OF_X)


class Gradients:
    """The tensors that the nodes of a graph compute, among them those that are gradients."""

    def __init__(self, graph: Graph) -> None:
        self.computed = computed(graph)
        self.nodes = [node for node in graph.nodes if node.key == KEY]

    def of(self, y: str, x: str) -> str | None:
        """The gradient of a certain y by x, as far as a name or one of ONNX's `Gradient` nodes says so."""
        names = (pattern.format(x=x, y=y) for pattern in _OF_BOTH)
        return next((name for name in names if name in self.computed), next(self._of_nodes(y, x), None))

    def by(self, x: str, ys: Sequence[str] = ()) -> str | None:
        """The gradient by x, of one of the ys if that is said."""
        certain = next((name for y in ys if (name := self.of(y, x)) is not None), None)
        return certain or next((name for name in gradient_names(x) if name in self.computed), None)

    def _of_nodes(self, y: str, x: str) -> Iterator[str]:
        for node in (node for node in self.nodes if node.attrs.get("y") == y):
            yield from (out for each, out in zip(node.attrs.get("xs", ()), node.outputs, strict=False) if each == x)


def computed(graph: Graph) -> set[str]:
    """The tensors that some node computes."""
    return {name for node in graph.nodes for name in node.outputs if name}


def likely_ys(graph: Graph, claimed: Collection[str]) -> tuple[str, ...]:
    """What gradients of a model are of, where nobody says so: float outputs that are none themselves.

    Of several it is the one that has a gradient of its own, which is a seed, or else the only scalar.
    """
    ys = tuple(y for y in choose_y(graph) if y not in claimed)
    tensors = {*graph.inputs, *graph.constants, *computed(graph)}
    seeded = [y for y in ys if not tensors.isdisjoint(gradient_names(y))]
    scalars = [y for y in ys if _is_scalar(graph, y)]
    return next((tuple(some) for some in (seeded, scalars) if len(some) == 1 < len(ys)), ys)


def seed_name(graph: Graph, y: str) -> str | None:
    """The tensor that is the seed of y, as its name says: y's own gradient, which does not follow from y's."""
    tensors = {*graph.inputs, *graph.constants, *computed(graph)}
    return next((n for n in gradient_names(y) if n in tensors and n != y and is_float(graph, n, unknown=True)), None)


def _is_scalar(graph: Graph, y: str) -> bool:
    declared = graph.types.get(y)
    return declared is not None and declared.shape is not None and all(d == 1 for d in declared.shape)
