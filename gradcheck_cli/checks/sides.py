"""Both sides of a check at one point: the tape that rules are applied to and that probes run on.

Why a pair (x, y) cannot be compared, with what can be done about it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gradcheck_cli.autodiff.backward import inexact
from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.compare.foreign import try_kernels
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import GradcheckError, NoGradientError, PointError, UnsupportedError, UsageError, shown
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, Graph
from gradcheck_cli.graph.containers import described
from gradcheck_cli.graph.memory import owned, spell
from gradcheck_cli.jacobian.coloring import Structure
from gradcheck_cli.jacobian.cost import COLORED_STEP, COLORED_WORK, SOON, Cost, forward_work, full_cost, pattern_work
from gradcheck_cli.jacobian.directions import reals
from gradcheck_cli.jacobian.spread import probe_work
from gradcheck_cli.op import Ops
from gradcheck_cli.points.more import first_nonfinite, leading
from gradcheck_cli.points.point import Point
from gradcheck_cli.points.targets import first_float_after
from gradcheck_cli.results.record import derivative
from gradcheck_cli.settings import ANY, Settings

if TYPE_CHECKING:
    from gradcheck_cli.checks.diagnose.suspects import Surveyor


_BACKWARD = 3  # forward runs that a backward pass is worth
_PROBES = 8  # forward runs of a row where others evaluate y: theirs and ours at the same points


class Sides:
    """One tape for one y, in float64; `narrow` is the run in the model's own dtype, if that is to be looked at.

    Either Jacobian comes from `tape`; `fed` is what both runs start from.
    """

    def __init__(
        self, tape: Tape, y: str, settings: Settings, narrow: Tape | None = None, fed: Mapping[str, Any] | None = None
    ) -> None:
        self.tape, self.y, self.settings, self.narrow, self.fed = tape, y, settings, narrow, fed or {}
        self.half: Callable[[], Tape | None] = lambda: None  # the run of a model in half precision, if it has that
        try_kernels(tape)
        self._programs: dict[str, Program] = {}
        self._structures: dict[str, Structure] = {}

    @classmethod
    def at(cls, point: Point, graph: Graph, y: str, xs: Sequence[str], settings: Settings, ops: Ops) -> Sides:
        """The sides at a point, for all xs."""
        tape = point.tape
        if settings.run_in != "model":
            return cls(tape, y, settings)
        feeds = {name: tape.values[tape.named[name].name] if name in tape.named else point.feeds[name]
                 for name in point.feeds}  # fmt: skip
        wanted = [name for name in (y, *xs) if name in tape.named or name in tape.blocked]
        wide = trace(graph, feeds, ops=ops, seed=settings.seed, targets=wanted, lenient=True)
        return cls(wide, y, settings, tape, feeds)

    @cached_property
    def surveyor(self) -> Surveyor:
        """What looks at every node on its own."""
        from gradcheck_cli.checks.diagnose.suspects import (
            Surveyor,  # brings what a check in full needs after a failure only
        )

        return Surveyor(self.tape)

    @cached_property
    def held(self) -> int:
        """Bytes of the values on the tape when this is first asked for."""
        return owned(self.tape.values.values())

    def program(self, x: str) -> Program:
        """What leads from x to y on the numerical side."""
        if x not in self._programs:
            named = self.tape.named
            self._programs[x] = Program(self.tape, [named[x].name], [named[self.y].name])
        return self._programs[x]

    def structure(self, x: str) -> Structure:
        """The sparsity of the Jacobian by x, with colors of its rows where probing each alone would take its time."""
        if x not in self._structures:
            program, settings = self.program(x), self.settings
            work = forward_work(program) * (reals(self.value(x)) + _BACKWARD * reals(self.value(self.y)))
            colors = settings.coloring and work >= COLORED_WORK + COLORED_STEP * len(program.steps)
            self._structures[x] = Structure(program, Budget(settings.memory_limit, settings.jobs), colors=colors)
        return self._structures[x]

    def cost(self, x: str) -> Cost:
        """What comparing all entries would take; the colors of the rows count where they matter and are soon known."""
        program, rows, columns = self.program(x), reals(self.value(x)), reals(self.value(self.y))
        live = Structure(program, Budget()).alone
        cost = full_cost(program, rows, columns, live)
        if self.settings.forward == "onnxruntime":  # to which every row is a question of its own
            return replace(cost, work=cost.work + _PROBES * rows * forward_work(program))
        if cost.work < SOON or cost.memory > self.settings.memory_limit:
            return cost
        coloring = self.structure(x).coloring if pattern_work(program, rows) <= SOON else None
        if coloring is not None:
            return full_cost(program, rows, columns, coloring.count)
        return full_cost(program, rows, columns, live, probe_work(program))

    def theory_name(self, name: str) -> str:
        """A tensor's name on the theoretical side's tape."""
        return self.tape.named[name].name

    def value(self, name: str) -> Array:
        """The value of a tensor on the numerical side."""
        return self.tape.named[name].value


def obstacle(point: Point, sides: Sides, x: str, index: int, open_: float = 0.0) -> GradcheckError | None:
    """Why nothing can be compared at a point: something was not computed, or y is not what it should be.

    A share `open_` of the entries of y need not be finite.
    """
    tape, y = sides.tape, sides.y
    blocked = next((tape.blocked[name] for name in (y, x) if name in tape.blocked), None)
    if blocked is not None:
        return blocked
    lost = np.count_nonzero(~np.isfinite(tape.named[y].value))
    if lost and (lost > open_ * tape.named[y].size or lost == tape.named[y].size):
        return PointError(f"{y!r} is not finite at point {index}: {_cause(point, tape, y)}")
    return None


def _cause(point: Point, tape: Tape, y: str) -> str:
    """The first node whose result is not finite though its operands are, and what might help."""
    step = first_nonfinite(tape, [tape.named[y].name])
    if step is None:
        wrong = [name for name, var in tape.named.items() if _given(tape, name) and not np.isfinite(var.value).all()]
        return f"{wrong[0]!r} is not, which the model is given." if wrong else "an input or a parameter is not."
    made = [tape.values[n] for n in step.node.outputs if n and tape.values[n].dtype.kind in "fc"]
    given = [tape.values[n] for n in step.operands if n and tape.values[n].dtype.kind in "fc"]
    kind = "NaN" if any(np.isnan(v).any() for v in made) else "infinity"
    if not any(v.size for v in given):
        return f"first {kind} at {step.where}, of nothing."
    low = min(float(np.min(v.real)) for v in given if v.size)
    return f"first {kind} at {step.where} (input min {low:.3g}). {_advice(point, tape, y)}"


def _advice(point: Point, tape: Tape, y: str) -> str:
    """What to give other values: the drawn input that leads there, else one that was fed, else nothing but weights."""
    if point.advice:
        ranges = "  ".join(f"--val-range {shown(n)}:{low:g},{high:g}" for n, (low, high) in point.advice.items())
        return f"Narrow: {ranges}"
    causes = leading(tape, [y], point.feeds)
    drawn = [n for n in causes if n in point.random]
    if drawn:
        return f"Narrow: --val-range {shown(drawn[0])}:LOW,HIGH"
    if causes:
        return f"It follows from {', '.join(map(repr, causes[:3]))}. Give other values: --feed {shown(causes[0])}=..."
    return "It follows from the model's own constants alone, whatever the inputs are."


def _given(tape: Tape, name: str) -> bool:
    value = tape.named[name]
    made = {output for step in tape.steps for output in step.node.outputs}
    return value.dtype.kind in "fc" and value.name not in made


def require_shape(wanted: Mapping[str, Sequence[int]], tape: Tape, y: str) -> None:
    """UsageError where y has another shape than the user expects."""
    shape = wanted.get(y, wanted.get(ANY))
    if shape is not None and y in tape.named and tuple(shape) != tape.named[y].shape:
        made = _spelled(tape.named[y].shape)
        raise UsageError(f"--y-shape {shown(y)}: the model computes {made}, not {_spelled(shape)}.")


def is_floating(tape: Tape, name: str) -> bool:
    """It is a tensor of floats, or was not computed: what no file declares shows in the run."""
    return name not in tape.compounds and (name not in tape.named or inexact(tape.named[name]))


def require_floats(graph: Graph, tape: Tape, xs: Sequence[str], ys: Sequence[str]) -> None:
    """UsageError for an x or y asked for that holds integers."""
    dtypes = {name: var.dtype.name for name, var in tape.named.items()}
    for option, names in (("--x", xs), ("--y", ys)):
        for name in names:
            if name in tape.compounds:
                raise UsageError(f"{option} {shown(name)} is {described(tape.compounds[name])}, no tensor.")
            if name in tape.named and not inexact(tape.named[name]):
                after = first_float_after(graph, name, dtypes) if option == "--x" else None
                hint = f" First float tensor after it: {_described(graph, tape, after)}" if after else ""
                raise UsageError(f"{option} {shown(name)} is {dtypes[name]} and has no gradient.{hint}")


def without_gradient(
    error: NoGradientError, source: Source, tape: Tape, x: str, y: str, gradient_of: str = ""
) -> NoGradientError:
    """The error with what it stops, and the nearest tensor before it that can be checked."""
    stops = f"it stops {'/'.join(derivative(x, y, gradient_of))}."
    if not error.missing or not 0 <= error.missing[0][0] < len(source.graph.nodes):
        return NoGradientError(f"{error}; {stops}", error.missing)
    origin, op, domain, label = error.missing[0]
    node, version = source.graph.nodes[origin], source.opset.get(domain)
    full, opset = f"{domain}.{op}" if domain else op, f", opset {version}" if version else ""
    message = f"no gradient for '{full}' ({_place(tape, origin, op, label)}{opset}); {stops}"
    reached = source.graph.reached_from([x]) - {x}
    before = next((n for n in node.reads if n in reached and n in tape.named and inexact(tape.named[n])), None)
    given = "; or give one: ops: in a spec" if _of_ones_own(full) else ""
    ways = f"Check up to it: --y {shown(before)}{given}" if before else ""
    return NoGradientError(f"{message} {ways}" if before else message, error.missing)


def without_forward(error: GradcheckError, graph: Graph, tape: Tape, x: str, y: str) -> GradcheckError:
    """An error for an operator that is not known, with what it stops and the ways around it; any other as it is."""
    if not isinstance(error, UnsupportedError) or error.code != "GC502" or not error.operators:
        return error
    if str(error).endswith("?"):  # a slip of the pen, with what was meant
        return error
    node = next((n for n in graph.nodes if any(tape.blocked.get(name) is error for name in n.outputs)), None)
    if node is None:
        return error
    reached = graph.reached_from([x]) - {x}
    before = next((n for n in node.reads if n in reached and n in tape.named and inexact(tape.named[n])), None)
    upto = f"Check up to it: --y {shown(before)}; or give" if before else "Give"
    result = shown(next(name for name in node.outputs if name))
    by = "ops: in a spec, or an installed package" if _of_ones_own(error.operators[0]) else "an installed package"
    ways = f"{upto} one: {by}; or give what it computes: --feed {result}=@FILE.npy"
    message = f"{error}; it stops {'/'.join(derivative(x, y, ''))}. {ways}"
    return UnsupportedError(message, code=error.code, operators=error.operators)


def _of_ones_own(full: str) -> bool:
    """A spec may define an operator: its domain is none of those that others have defined."""
    from gradcheck_cli.formats.yaml.custom_ops import DOMAINS  # brings pydantic

    return full.rpartition(".")[0] not in DOMAINS


def too_large(cost: Cost, sides: Sides, x: str) -> UsageError:
    """The error for a full check that memory cannot hold."""
    number = f"{cost.entries:.1e}".replace("e+0", "e").replace("e+", "e") if cost.entries >= 1e6 else str(cost.entries)
    of, by = (f"{name!r} {_spelled(sides.value(name).shape)}" for name in (sides.y, x))
    return UsageError(
        f"the full Jacobian of {of} by {by} has {number} entries ({spell(8.0 * cost.entries)}, about {cost.duration} "
        "here). --mode directional checks it by random projections."
    )


def _place(tape: Tape, origin: int, op: str, label: str) -> str:
    """A node by index and name, with the graph it stands in if that is not the model's."""
    step = next((s for s in tape.steps if (s.origin, s.op.name, s.label) == (origin, op, label)), None)
    if step is None or not step.place.inside:
        return f"node {origin} {label!r}"
    return f"node {step.place.index} {step.place.label!r} in the {step.place.inside}"


def _described(graph: Graph, tape: Tape, name: str) -> str:
    index = graph.producer(name)
    node = f" (node {index} {graph.nodes[index].op})" if index is not None else ""
    return f"{name!r} {_spelled(tape.named[name].shape)}{node}"


def _spelled(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"
