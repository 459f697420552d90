"""One y at one point: the tape that both Jacobians come from, and the reasons why a pair (x, y) cannot be compared.

Messages here tell the user what to do instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from gradcheck_cli.autodiff.backward import inexact
from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.checks.diagnose.laws import Broken
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.complex_step import Pushforward
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import (
    GradcheckError,
    MisshapenError,
    NoGradientError,
    PointError,
    UnsupportedError,
    UsageError,
    quoted,
    shown,
)
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, Graph, Node
from gradcheck_cli.graph.containers import described
from gradcheck_cli.jacobian.coloring import Structure
from gradcheck_cli.jacobian.cost import (
    COLORED_STEP,
    COLORED_WORK,
    FULL_WORK,
    SOON,
    Cost,
    forward_work,
    full_cost,
    pattern_work,
)
from gradcheck_cli.jacobian.directions import reach, reals
from gradcheck_cli.op import Op, Ops
from gradcheck_cli.ops import OPS
from gradcheck_cli.points.more import a_number, ancestors, first_nonfinite, leading
from gradcheck_cli.points.point import Point
from gradcheck_cli.points.targets import first_float_after
from gradcheck_cli.results.record import derivative
from gradcheck_cli.settings import ANY, Settings

if TYPE_CHECKING:
    from gradcheck_cli.checks.assemble import Pair
    from gradcheck_cli.checks.diagnose.suspects import Surveyor


_DECLARED = ("forward", "batching", "linear", "analytic", "step", "sparsity", "boxes")
_BACKWARD = 3  # cost of a backward pass in forward runs
_PATTERN_WORK = 2.5e10  # operations that a pattern may take before a mode is chosen: a quarter of a full check
_PROBES = 8  # forward runs of a row where onnxruntime evaluates y: its own and ours, at the same points


class Problem:
    """One y of a model at one point: the float64 tape that the theoretical and the numerical Jacobians by all xs come from.

    `narrow` is the same run in the model's own dtype, where asked for; `fed` are the values both runs start from.
    Problems of one tape may share the `slopes` of its steps.
    """

    def __init__(
        self,
        source: Source,
        settings: Settings,
        tape: Tape,
        y: str,
        narrow: Tape | None = None,
        fed: Mapping[str, Any] | None = None,
        slopes: Pushforward | None = None,
    ) -> None:
        self.source, self.graph, self.settings = source, source.graph, settings
        self.tape, self.y, self.narrow, self.fed = tape, y, narrow, fed or {}
        self.budget = Budget.within(settings)
        self.half: Callable[[], Tape | None] = lambda: None  # the run in float16 or bfloat16, of a model that has it
        since = enumerate(tape.steps[tape.tried :], tape.tried)
        tape.tried = len(tape.steps)
        if foreign := [i for i, step in since if step.trial is None and not _is_own(step.op)]:
            from gradcheck_cli.compare.foreign import try_kernels  # few models have any

            try_kernels(tape, foreign)
        self._programs, self._slopes = dict[str, Program](), slopes or Pushforward(tape)
        self._structures: dict[str, Structure] = {}

    @classmethod
    def at(
        cls, point: Point, y: str, xs: Sequence[str], source: Source, settings: Settings, ops: Ops, slopes: Pushforward
    ) -> Problem:
        """The tape of a point for one y and all xs; a second one in float64 if the point runs in the model's dtype."""
        tape = point.tape
        if settings.run_in != "model":
            return cls(source, settings, tape, y, slopes=slopes)
        feeds = {name: tape.values[tape.named[name].name] if name in tape.named else point.feeds[name]
                 for name in point.feeds}  # fmt: skip
        wanted = [name for name in (y, *xs) if name in tape.named or name in tape.blocked]
        wide = trace(source.graph, feeds, ops=ops, seed=settings.seed, targets=wanted, lenient=True)
        return cls(source, settings, wide, y, tape, feeds)

    @cached_property
    def surveyor(self) -> Surveyor:
        """Surveyor that checks every node of the tape on its own, made at first use."""
        from gradcheck_cli.checks.diagnose.suspects import Surveyor

        return Surveyor(self.tape)

    @cached_property
    def weights(self) -> int:
        """Bytes of the model's constants."""
        return sum(value.nbytes for value in self.graph.constants.values())

    @cached_property
    def held(self) -> int:
        """Bytes of the values on the tape at first use."""
        return self.tape.values.owned()

    def program(self, x: str) -> Program:
        """The part of the tape that leads from x to y, to be run for stacks of probes."""
        if x not in self._programs:
            named = self.tape.named
            self._programs[x] = Program(self.tape, [named[x].name], [named[self.y].name], self._slopes)
        return self._programs[x]

    def structure(self, x: str) -> Structure:
        """Sparsity of the Jacobian by x, with a coloring of its rows where that saves time."""
        if x not in self._structures:
            program, settings = self.program(x), self.settings
            work = forward_work(program) * (reals(self.value(x)) + _BACKWARD * reals(self.value(self.y)))
            colors = settings.coloring and work >= COLORED_WORK + COLORED_STEP * len(program.steps)
            most = FULL_WORK / forward_work(program) if settings.mode == "auto" else math.inf
            self._structures[x] = Structure(program, self.budget, colors=colors, most=most)
        return self._structures[x]

    def cost(self, x: str, *, compressed: bool = True) -> Cost:
        """Predicted cost of comparing all entries; the coloring counts where it is cheap to find.

        `compressed` False is for a theoretical side that comes whole.
        """
        program, rows, columns = self.program(x), reals(self.value(x)), reals(self.value(self.y))
        live = Structure(program, Budget()).alone
        cost = full_cost(program, rows, columns, live)
        if self.settings.forward == "onnxruntime":  # which evaluates each row by itself
            return replace(cost, work=cost.work + _PROBES * rows * forward_work(program))
        if cost.work < SOON and cost.memory <= self.budget.memory:
            return cost
        coloring = self.structure(x).coloring if pattern_work(program, rows) <= _PATTERN_WORK else None
        if coloring is not None:
            cells = coloring.cells if compressed and self._compresses(x) else None
            return full_cost(program, rows, columns, coloring.count, cells=cells)
        return full_cost(program, rows, columns, live, reach(program).work)

    def _compresses(self, x: str) -> bool:
        """Entries that are zero by structure are not kept: the complex step goes through, and all of y is finite."""
        exact = self.settings.method in ("auto", "complex-step") and self.settings.compat is None
        return exact and self.program(x).obstacle is None and bool(np.isfinite(self.value(self.y)).all())

    def theory_name(self, name: str) -> str:
        """Name on the tape of a tensor of the model."""
        return self.tape.named[name].name

    def value(self, name: str) -> Array:
        """Value of a tensor of the model."""
        return self.tape.named[name].value


def _is_own(op: Op) -> bool:
    """The kernel is gradcheck's own, whatever the rule is."""
    known = OPS.get(op.key)
    if known is None or op.composed or known is op:
        return op.composed or known is op
    ours = str(getattr(op.forward, "__module__", "") or "").startswith("gradcheck_cli.")
    return ours or all(getattr(op, name) == getattr(known, name) for name in _DECLARED)


def obstacle(point: Point, problem: Problem, x: str, index: int, open_: float = 0.0) -> GradcheckError | None:
    """The error that stops a pair at a point: x or y was not computed, or y is not finite.  None if there is none.

    A share `open_` of the entries of y may be NaN or infinite.
    """
    tape, y = problem.tape, problem.y
    blocked = next((tape.blocked[name] for name in (y, x) if name in tape.blocked), None)
    if blocked is not None:
        return blocked
    lost = np.count_nonzero(~np.isfinite(tape.named[y].value))
    if lost and (lost > open_ * tape.named[y].size or lost == tape.named[y].size):
        return PointError(f"{y!r} is not finite at point {index}: {_cause(point, tape, y)}")
    return None


def _cause(point: Point, tape: Tape, y: str) -> str:
    """Sentence that names the first node with a non-finite result of finite operands, and the advice for it.

    Of infinities that are given, as in a mask, the first node that makes NaN of them is named.
    """
    ends = [tape.named[y].name]
    step = first_nonfinite(tape, ends)
    if step is None:
        wrong = [name for name in _given(tape) if not np.isfinite(tape.named[name].value).all()]
        said = f"{wrong[0]!r} is not, which the model is given" if wrong else "an input or a parameter is not"
        spoils = first_nonfinite(tape, ends, a_number)
        said += "." if spoils is None else f"; first NaN at {spoils.where}."
        feeds = _drawn(point, tape, y)
        return f"{said} Give other integers than were drawn: {feeds}" if feeds else said
    made = [tape.values[n] for n in step.node.outputs if n and tape.values[n].dtype.kind in "fc"]
    given = [tape.values[n] for n in step.operands if n and tape.values[n].dtype.kind in "fc"]
    kind = "NaN" if any(np.isnan(v).any() for v in made) else "infinity"
    if not any(v.size for v in given):
        return f"first {kind} at {step.where}, of nothing."
    low = min(float(np.min(v.real)) for v in given if v.size)
    return f"first {kind} at {step.where} (input min {low:.3g}). {_advice(point, tape, y)}"


def _advice(point: Point, tape: Tape, y: str) -> str:
    """Advice on which input to change: the drawn one that leads to the node, else one that was fed."""
    if point.advice:
        ranges = "  ".join(f"--val-range {quoted(n)}:{low:g},{high:g}" for n, (low, high) in point.advice.items())
        return f"Narrow: {ranges}"
    causes = leading(tape, [y], point.feeds)
    drawn = [n for n in causes if n in point.random]
    if drawn:
        feeds = _drawn(point, tape, y)
        other = f"  or give other integers than were drawn: {feeds}" if feeds else ""
        return f"Narrow: --val-range {quoted(drawn[0])}:LOW,HIGH{other}"
    if causes:
        return f"It follows from {', '.join(map(repr, causes[:3]))}. Give other values: --feed {quoted(causes[0])}=..."
    return "It follows from the model's own constants alone, whatever the inputs are."


def _drawn(point: Point, tape: Tape, y: str) -> str:
    """Options that give the integers that were drawn and lead to y, such as lengths; "" if there are none."""
    before = ancestors(tape, [tape.named[y].name])
    return "  ".join(
        f"--feed {quoted(n)}=..." for n in point.integers if n in tape.named and tape.named[n].name in before
    )


def _given(tape: Tape) -> list[str]:
    """Tensors of numbers that no step computes."""
    made = {output for step in tape.steps for output in step.node.outputs}
    return [name for name, var in tape.named.items() if var.dtype.kind in "fc" and var.name not in made]


def require_shape(wanted: Mapping[str, Sequence[int]], tape: Tape, y: str) -> None:
    """UsageError where y does not have the shape of --y-shape."""
    shape = wanted.get(y, wanted.get(ANY))
    if shape is not None and y in tape.named and tuple(shape) != tape.named[y].shape:
        made = _spelled(tape.named[y].shape)
        raise UsageError(f"--y-shape {shown(y)}: the model computes {made}, not {_spelled(shape)}.")


def is_floating(tape: Tape, name: str) -> bool:
    """True for a float tensor, and for a tensor that was not computed, whose type only the run could show."""
    return name not in tape.containers and (name not in tape.named or inexact(tape.named[name]))


def require_floats(graph: Graph, tape: Tape, xs: Sequence[str], ys: Sequence[str]) -> None:
    """UsageError for a requested x or y that holds integers or is no tensor."""
    dtypes = {name: var.dtype.name for name, var in tape.named.items()}
    for option, names in (("--x", xs), ("--y", ys)):
        for name in names:
            if name in tape.containers:
                raise UsageError(f"{option} {shown(name)} is {described(tape.containers[name])}, no tensor.")
            if name in tape.named and not inexact(tape.named[name]):
                after = first_float_after(graph, name, dtypes) if option == "--x" else None
                hint = f" First float tensor after it: {_described(graph, tape, after)}" if after else ""
                raise UsageError(f"{option} {shown(name)} is {dtypes[name]} and has no gradient.{hint}")


def stop(pair: Pair, error: NoGradientError | MisshapenError, problem: Problem, y: str, gradient_of: str = "") -> None:
    """Ends a pair on whose way a rule is missing, or gives a gradient of another shape: the pair fails then."""
    if isinstance(error, MisshapenError):
        pair.broken.append(Broken(error.code, str(error)))
    else:
        pair.error = without_gradient(error, problem, pair.x, y, gradient_of)


def without_gradient(
    error: NoGradientError, problem: Problem, x: str, y: str, gradient_of: str = ""
) -> NoGradientError:
    """The error of a missing rule, with the pair it stops and the nearest earlier tensor that can be checked."""
    source, tape = problem.source, problem.tape
    stops = f"it stops {'/'.join(derivative(x, y, gradient_of))}."
    if not error.missing or not 0 <= error.missing[0][0] < len(source.graph.nodes):
        return NoGradientError(f"{error}; {stops}", error.missing)
    origin, op, domain, label = error.missing[0]
    node, version = source.graph.nodes[origin], source.opset.get(domain)
    full, opset = f"{domain}.{op}" if domain else op, f", opset {version}" if version else ""
    message = f"no gradient for '{full}' ({_place(tape, origin, op, label)}{opset}); {stops}"
    before = _on_the_way(source.graph, tape, x, node)
    given = "; or define one: ops: in a spec" if _of_ones_own(full) else ""
    ways = f"Check up to it: --y {quoted(before)}{given}" if before else ""
    return NoGradientError(f"{message} {ways}" if before else message, error.missing)


def without_forward(error: GradcheckError, graph: Graph, tape: Tape, x: str, y: str) -> GradcheckError:
    """The error of an unknown operator, with the pair it stops and ways around it; any other error as is."""
    if not isinstance(error, UnsupportedError) or error.code != "GC502" or not error.operators:
        return error
    if str(error).endswith("?"):  # a misspelled name, with a suggestion
        return error
    node = next((n for n in graph.nodes if any(tape.blocked.get(name) is error for name in n.outputs)), None)
    if node is None:
        return error
    before = _on_the_way(graph, tape, x, node)
    upto = f"Check up to it: --y {quoted(before)}; or define" if before else "Define"
    result = next(name for name in node.outputs if name)
    by = "ops: in a spec, or an installed package" if _of_ones_own(error.operators[0]) else "an installed package"
    ways = f"{upto} it: {by}; or give what it computes: --feed {quoted(result)}=@FILE.npy"
    message = f"{error}; it stops {'/'.join(derivative(x, y, ''))}. {ways}"
    return UnsupportedError(message, code=error.code, operators=error.operators)


def _on_the_way(graph: Graph, tape: Tape, x: str, node: Node) -> str | None:
    """The first tensor a node reads that lies behind x and can be a y; None if there is none."""
    reached = graph.reached_from([x]) - {x}
    return next((n for n in node.reads if n in reached and n in tape.named and inexact(tape.named[n])), None)


def _of_ones_own(full: str) -> bool:
    """True if a spec may define the operator: its domain is not one of those in use elsewhere."""
    from gradcheck_cli.formats.yaml.custom_ops import DOMAINS  # brings pydantic

    return full.rpartition(".")[0] not in DOMAINS


def _place(tape: Tape, origin: int, op: str, label: str) -> str:
    """A node by index and name, with the name of the subgraph it stands in."""
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
