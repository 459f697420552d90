"""Can a model be trained through?  What a backward pass meets on its way from y to x, layer by layer, as plain data.

The pass starts from a random cotangent of y of length sqrt(y_size), so that its squared norm at any tensor is, on
average, that of the whole Jacobian of y by that tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

WORDS = ("nonfinite", "dead", "vanishing", "exploding", "precision")  # what may be wrong, as --fail-on names it
VANISHING = (
    1e-4  # of the flow at the last layer is left at the first: ten times less than AutoTrainer (ICSE 2021) takes
)
EXPLODING = 1e4  # the same, the other way round; trained models lie between 1e-2 and 1e2
DEAD_SHARE = 0.5  # of the units of one layer (the rule DeadRelu of Amazon SageMaker Debugger: 50 %)
SATURATED_SLOPE = 1e-3  # of a unit, which is at most 1/4 (Sigmoid, Softmax) or 1 (Tanh); cf. Glorot and Bengio, 2010
SAMPLES = 16  # values of a unit, over batch, positions and points, that it takes to call it dead or saturated
KEPT = 200  # layers of a record
DIGITS = 1.0  # decimal digits of an entry that matters, at least, which the model's dtype should keep: its size


@dataclass(frozen=True, slots=True)
class Spot:
    """A node of the model: its index in its own graph, operator and name, and which graph that is if not the model's."""

    node: int
    op: str
    name: str
    inside: str = ""

    def __str__(self) -> str:
        label = f" {self.name!r}" if self.name else ""
        return f"node {self.node} {self.op}{label}{f' in the {self.inside}' if self.inside else ''}"


@dataclass(frozen=True, slots=True)
class Partly:
    """A gradient of which a part is severed, while another is not.

    kind       "units": some entries of x have no way left; "sum": a summand has none; "scale": all ways that are left
               lead through the scale or the zero point of a quantizer
    cut        the nodes that cut
    entries    of x that have no way left, of `units`
    """

    kind: str
    cut: tuple[Spot, ...] = ()
    entries: int = 0


@dataclass(frozen=True, slots=True)
class Severed:
    """What the graph says of ways from x to y that have no derivative by nature.

    cut        the nodes that cut: the last on each way to which the gradient of x could flow from x
    reached    the nodes up to which the gradient of y goes back
    others     ys from which x has a gradient all the same
    partial    where only a part is severed
    """

    cut: tuple[Spot, ...] = ()
    reached: tuple[Spot, ...] = ()
    others: tuple[str, ...] = ()
    partial: Partly | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    """A node that has weights or bends, on the way from x to y, and what the backward pass finds at its output.

    norm           of the cotangent of its output: the root of the mean square over the points
    size           entries of its output
    zero_fraction  exact zeros among the entries of that cotangent
    weights        norm of the gradient of its own parameters; None if it has none
    units          channels, or features, of an output that may go flat: Relu, Sigmoid and their like; 0 for others
    dead           of them: on the flat part at 0 wherever they were seen; None if they were not seen often enough
    saturated      of them: with a local slope below SATURATED_SLOPE wherever they were seen; None likewise
    """

    spot: Spot
    norm: float
    size: int
    zero_fraction: float
    weights: float | None = None
    units: int = 0
    dead: int | None = None
    saturated: int | None = None

    @property
    def rms(self) -> float:
        """The root mean square of the cotangent's entries."""
        return float(self.norm / max(self.size, 1) ** 0.5)

    @property
    def ill(self) -> bool:
        """Its share of dead units is an illness."""
        return bool(self.dead) and (self.dead or 0) >= DEAD_SHARE * self.units


@dataclass(frozen=True, slots=True)
class Jump:
    """The steepest change of the flow from the output of a node to what it reads: by which factor, and which node."""

    factor: float
    spot: Spot


@dataclass(frozen=True, slots=True)
class Nonfinite:
    """What is not finite: entries of the gradient by x, and the first node that made such, forwards or backwards."""

    entries: int = 0
    forward: Spot | None = None
    backward: Spot | None = None


@dataclass(frozen=True, slots=True)
class Loss:
    """The first node at which the model's dtype overflows, underflows or makes NaN, and float64 does not."""

    what: str  # "overflow", "underflow", "nan"
    way: str  # "forward", "backward"
    spot: Spot


@dataclass(frozen=True, slots=True)
class Precision:
    """What is left of the gradient by one x in the model's own dtype, held against the same gradient in float64.

    An entry matters if it is at least a hundredth of the largest one of its y, whose gradient is no trifle.

    dtype      of x in the model, and `digits`, the decimal digits that it has
    median     digits that entries which matter keep, the median of all
    worst      the same for the worst of them, which stands at `x` and `y`: indices; its values are `wide` and `narrow`
    entries    that matter and were compared
    nonfinite  entries that are finite in float64 only; underflow: that are zero in the model's dtype only
    note       why nothing could be compared
    """

    dtype: str
    digits: float = 0.0
    median: float = 0.0
    worst: float = 0.0
    x: tuple[int, ...] = ()
    y: tuple[int, ...] = ()
    point: int = 0
    wide: float = 0.0
    narrow: float = 0.0
    entries: int = 0
    nonfinite: int = 0
    underflow: int = 0
    first: Loss | None = None
    note: str = ""

    @property
    def lost(self) -> bool:
        """Too few digits are left somewhere, or none."""
        return not self.note and (self.nonfinite > 0 or (self.entries > 0 and self.worst < DIGITS))


@dataclass(frozen=True, slots=True)
class Health:
    """The health of the gradient of y by one x.

    layers     in the order in which they run, at most KEPT of `depth`
    ratio      the flow at the first layers over that at the last ones; None where there are not two
    units      of all layers that were seen often enough; `dead` and `saturated` are some of them
    shows      what is wrong: some of WORDS
    lost       the node at which the gradient becomes zero, on its way from y, where it is zero everywhere
    """

    layers: tuple[Layer, ...] = ()
    depth: int = 0
    ratio: float | None = None
    steepest: Jump | None = None
    units: int = 0
    dead: int = 0
    saturated: int = 0
    nonfinite: Nonfinite = Nonfinite()
    shows: tuple[str, ...] = ()
    lost: Spot | None = None


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
    """Of very many layers those with something dead or saturated, or with weights, first."""
    order = sorted(
        range(len(layers)), key=lambda i: (not (layers[i].dead or layers[i].saturated), not layers[i].weights)
    )
    return tuple(layers[i] for i in sorted(order[:KEPT]))
