"""The health of gradients as plain data: what a backward pass meets on its way from y to x, layer by layer.

The pass starts from a random cotangent of y of length sqrt(y_size), so that its squared norm at any tensor is, on
average, that of the whole Jacobian of y by that tensor.
"""

from __future__ import annotations

from typing import Annotated, TypedDict

from msgspec import Struct

from gradcheck_cli.results.typed import Count, Indices, Only

WORDS = ("nonfinite", "dead", "vanishing", "exploding", "precision")  # what may be wrong, as --fail-on names it
VANISHING = 1e-4  # of the flow at the last layer is left at the first; AutoTrainer (ICSE 2021) takes ten times more
EXPLODING = 1e4  # the same, the other way round; trained models lie between 1e-2 and 1e2
DEAD_SHARE = 0.5  # of the units of one layer (the rule DeadRelu of Amazon SageMaker Debugger: 50 %)
SATURATED_SLOPE = 1e-3  # of a unit, which is at most 1/4 (Sigmoid, Softmax) or 1 (Tanh); cf. Glorot and Bengio, 2010
SAMPLES = 16  # values of a unit, over batch, positions and points, that it takes to call it dead or saturated
KEPT = 200  # layers of a record
DIGITS = 1.0  # decimal digits of an entry that matters, at least, which the model's dtype should keep: its size


class Spot(Struct, frozen=True):
    """A node of the model."""

    node: Annotated[int, "Its index in its own graph."]
    op: str
    name: str
    inside: Annotated[str, "The graph that it is a node of; empty for the model's own."] = ""

    def __str__(self) -> str:
        label = f" {self.name!r}" if self.name else ""
        return f"node {self.node} {self.op}{label}{f' in the {self.inside}' if self.inside else ''}"


class Partly(Struct, frozen=True):
    """A gradient of which a part is severed, while another is not.

    Of units, some entries of x have no way left; of a sum, a summand has none; of a scale, all ways that are left lead
    through the scale or the zero point of a quantizer.
    """

    kind: Annotated[str, Only(("units", "sum", "scale")), "The part."]
    cut: Annotated[tuple[Spot, ...], "Nodes that cut it off."] = ()
    entries: Annotated[Count, "Of x that have no way left, of units."] = 0


class Severed(Struct, frozen=True):
    """Ways from x to y that have no derivative by nature, by the graph alone."""

    cut: Annotated[tuple[Spot, ...], "The last node on each way to which the gradient of x could flow from x."] = ()
    reached: Annotated[tuple[Spot, ...], "Nodes up to which the gradient of y goes back."] = ()
    others: Annotated[tuple[str, ...], "Other ys, from which x has a gradient."] = ()
    partial: Annotated[Partly | None, "A part that is severed, where only a part is."] = None


class Layer(Struct, frozen=True):
    """A node that has weights or bends, on the way from x to y, and what the backward pass finds at its output."""

    spot: Spot
    norm: Annotated[float, "Of the cotangent of its output: the root of the mean square over the points."]
    size: Annotated[Count, "Entries of its output."]
    zero_fraction: Annotated[float, "Exact zeros among the entries of that cotangent."]
    weights: Annotated[float | None, "Norm of the gradient of its own parameters; null if it has none."] = None
    units: Annotated[Count, "Channels or features that may go flat: of Relu, Sigmoid and their like."] = 0
    dead: Annotated[Count | None, "Of them, on the flat part at 0 wherever seen; null if seen too seldom."] = None
    saturated: Annotated[Count | None, "Of them, with a slope of next to nothing wherever seen; null likewise."] = None

    @property
    def rms(self) -> float:
        """The root mean square of the cotangent's entries."""
        return float(self.norm / max(self.size, 1) ** 0.5)

    @property
    def ill(self) -> bool:
        """True if so many units are dead that the gradient counts as dead."""
        return bool(self.dead) and (self.dead or 0) >= DEAD_SHARE * self.units


class Jump(Struct, frozen=True):
    """The steepest change of the flow, from the output of a node to what it reads."""

    factor: float
    spot: Spot


class Nonfinite(Struct, frozen=True):
    """Entries of the gradient that are not finite, and the first node that made such, forwards or backwards."""

    entries: Count = 0
    forward: Spot | None = None
    backward: Spot | None = None


class Loss(Struct, frozen=True):
    """The first node at which the model's dtype loses something that float64 does not."""

    what: Annotated[str, Only(("overflow", "underflow", "nan"))]
    way: Annotated[str, Only(("forward", "backward"))]
    spot: Spot


class Precision(Struct, frozen=True):
    """The gradient by one x in the model's own dtype, held against the same gradient in float64.

    An entry matters if it is at least a hundredth of the largest one of its y, whose gradient is no trifle.
    """

    dtype: Annotated[str, "The one of fewest bits between x and y in the model."]
    digits: Annotated[float, "Decimal digits that it has."] = 0.0
    median: Annotated[float, "Digits that entries which matter keep, the median."] = 0.0
    worst: Annotated[float, "The same for the worst of them."] = 0.0
    x: Annotated[Indices, "Index of the worst into x."] = ()
    y: Annotated[Indices, "Index of the worst into y."] = ()
    point: Count = 0
    wide: Annotated[float, "Its value in float64."] = 0.0
    narrow: Annotated[float, "Its value in the model's dtype."] = 0.0
    entries: Annotated[Count, "Entries that matter and were compared."] = 0
    nonfinite: Annotated[Count, "Entries that are finite in float64 only."] = 0
    underflow: Annotated[Count, "Entries that are zero in the model's dtype only."] = 0
    first: Loss | None = None
    note: Annotated[str, "Why nothing could be compared."] = ""

    @property
    def lost(self) -> bool:
        """True if too few digits are left somewhere, or none."""
        return not self.note and (self.nonfinite > 0 or (self.entries > 0 and self.worst < DIGITS))

    @property
    def gone(self) -> bool:
        """True if some of it is not finite, or 0 is left of most that matters."""
        return not self.note and (self.nonfinite > 0 or (self.underflow >= self.entries > 0 and not self.median))


class Health(Struct, frozen=True):
    """The health of the gradient of y by one x, which says whether the model can be trained through."""

    layers: Annotated[tuple[Layer, ...], "In the order in which they run, the most telling ones of very many."] = ()
    depth: Annotated[Count, "Number of all layers."] = 0
    ratio: Annotated[float | None, "The flow at the first layers over that at the last ones; null without two."] = None
    steepest: Jump | None = None
    units: Annotated[Count, "Of all layers that were seen often enough."] = 0
    dead: Annotated[Count, "Some of these units."] = 0
    saturated: Annotated[Count, "Some of these units."] = 0
    nonfinite: Nonfinite = Nonfinite()
    shows: Annotated[tuple[Annotated[str, Only(WORDS)], ...], "Everything that is wrong."] = ()
    lost: Annotated[Spot | None, "The node at which the gradient becomes zero, if it is zero everywhere."] = None


class Curve(Struct, frozen=True):
    """Central differences of the worst entry at every step, held against its derivative."""

    x: Indices
    y: Indices
    part: Annotated[str, "Of complex numbers: re x, im x, re y, im y."]
    point: Count
    severity: Annotated[float, "Larger is worse: the size of the error beyond what is allowed."]
    theoretical: float
    reference: Annotated[float, "Its derivative, by a method that needs no step."]
    doubt: Annotated[float, "An error bound of that."]
    allowed: Annotated[float, "Distance of the theoretical entry from it that is allowed."]
    steps: Annotated[tuple[float, ...], "Large ones first."]
    errors: Annotated[tuple[float, ...], "|D(h) - reference| at each step, nan where y is not finite there."]
    crossed: Annotated[tuple[bool, ...], "True where the perturbation crosses a branch."]
    rounding: Annotated[float, "Of one value of y: no difference gets below rounding / h."]
    truncation: Annotated[
        tuple[float, float] | None, "(c, p): errors of large steps are about c h^p; null where rounding hides them."
    ]


class Cells(TypedDict):
    """The Jacobian's errors by place, the worst of each cell."""

    over: Annotated[str, "The axes: both, x, y, or projections."]
    sizes: Annotated[Indices, "Entries along each."]
    shape: Annotated[Indices, "Cells along each."]
    cells: Annotated[tuple[float | None, ...], "Decades above what is allowed; null where nothing was compared."]


class Drawn(TypedDict):
    """The data that pictures are drawn from, kept by a zoo of what is not right; `picture.Picture` as JSON holds it."""

    tile: Cells
    errors: Annotated[tuple[Indices, ...], "Entries with an error of each size, by verdict."]
    noise: Annotated[tuple[Indices, ...], "The same of the numerical side's own error bounds."]
    curve: Curve | None


def assessed(
    layers: tuple[Layer, ...],
    ratio: float | None,
    steepest: Jump | None,
    nonfinite: Nonfinite,
    *,
    finite: bool,
    lost: Spot | None = None,
) -> Health:
    """The health that follows from what was measured; `finite`: y and its gradient are."""
    seen = [layer for layer in layers if layer.dead is not None]
    wrong = {
        "nonfinite": not finite or nonfinite.entries > 0,
        "dead": any(layer.ill for layer in layers),
        "vanishing": lost is not None or (ratio is not None and ratio < VANISHING),
        "exploding": ratio is not None and ratio > EXPLODING,
    }
    return Health(
        layers=_most_telling(layers),
        depth=len(layers),
        ratio=ratio,
        steepest=steepest,
        units=sum(layer.units for layer in seen),
        dead=sum(layer.dead or 0 for layer in seen),
        saturated=sum(layer.saturated or 0 for layer in seen),
        nonfinite=nonfinite,
        shows=tuple(word for word in WORDS if wrong.get(word)),
        lost=lost,
    )


def _most_telling(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """At most `KEPT` layers: those with dead or saturated units first, then those with weights."""
    order = sorted(
        range(len(layers)), key=lambda i: (not (layers[i].dead or layers[i].saturated), not layers[i].weights)
    )
    return tuple(layers[i] for i in sorted(order[:KEPT]))
