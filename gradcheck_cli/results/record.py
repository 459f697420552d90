"""What a run of gradcheck found, as plain data: a `Report` of `Check` records, ready for tables and for JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, overload

from gradcheck_cli.errors import UsageError, did_you_mean
from gradcheck_cli.results.measures import WORDS, Severed

if TYPE_CHECKING:
    from gradcheck_cli.results.picture import Picture

SCHEMA, RUN_SCHEMA = "gradcheck.result/1", "gradcheck.run/1"
SEVERITY = (130, 70, 2, 1, 4, 5, 6, 3, 7, 0)  # of exit codes, the worst first
FORWARD = "forward"  # the gate of a forward run that differs
COMPARISON = "comparison"  # the method of records that hold one model against another
_AS_IT_IS = {str, int, bool, type(None)}  # in JSON
EXIT_CODES = {"pass": 0, "waived": 0, "fail": 1, "severed": 1, "inconclusive": 3, "unsupported": 5, "limit": 6}
OUTCOMES = ("fail", "inconclusive", "unsupported", "severed", "forward")  # what fails a run unless it is told otherwise
GATES = (*OUTCOMES, *WORDS)  # what may fail a run: outcomes, and of the gradient's health what it is asked for
_BESIDE = ("severed", "forward")  # outcomes that stand in a record's `gates`: its status alone does not decide them


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Which model was checked."""

    uri: str
    sha256: str = ""
    opset: Mapping[str, int] = field(default_factory=dict)
    nodes: int = 0
    dtypes: tuple[str, ...] = ()  # of its floating-point inputs and parameters
    operators: Mapping[str, int] = field(default_factory=dict)  # how often each occurs, the most frequent first


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the Jacobian that did not pass: indices into x and y, both values, the error bound, and why."""

    x: tuple[int, ...]
    y: tuple[int, ...]
    point: int
    theoretical: float
    numerical: float
    noise: float
    pattern: str
    status: str = "fail"
    part: str = ""  # "re", "im" of x where x is complex, then of y: "im x, re y"
    reason: str = ""  # why it stayed open: "noise", "curvature", "domain", "jump", "underflow", "nonderivative"
    unseen: float | None = None  # the size of error that would have been seen for certain, where it stayed open
    slopes: tuple[float, float] | None = None  # of y from the left and from the right, where x lies at a tie
    given: float | None = None  # what others claim, where that is judged; `theoretical` is NaN where a rule is missing

    @property
    def judged(self) -> float:
        """The value that the numerical one was held against."""
        return self.theoretical if self.given is None else self.given


@dataclass(frozen=True, slots=True)
class Suspect:
    """The node whose own gradient is wrong."""

    node: int
    op: str
    name: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    rel_err: float = math.nan
    at: str = ""  # the operand whose cotangent is worst
    passed: int = 0  # nodes that are right on their own
    tried: int = 0  # nodes that were checked on their own
    inside: str = ""  # of which graph it is a node, if not of the model's: "body of node 3 Loop 'y'"
    index: tuple[int, ...] | None = None  # the worst element of that operand
    diagnosis: str = ""  # "the gradient is 2 times what it should be"
    part_of: str = ""  # the operator of the node, where only a part of what it is composed of is at fault
    before: int = 0  # nodes before it, on the way from x to y
    after: int = 0
    unchecked: int = 0  # nodes on the way that could not be checked on their own
    others: tuple[str, ...] = ()  # more nodes that fail on their own


def only_size(dim: str) -> str:
    """The note that an open dimension has size 1 because the model was seen to run at no other."""
    return f"{dim}=1: no other size runs"


def sizes_said(dims: Mapping[str, int], notes: Collection[str]) -> str:
    """Sizes in one line, with the notes on those that are 1: N=2 S=1: no other size runs."""
    told = [f"{k}={v}" if only_size(k) not in notes else f"{only_size(k)}," for k, v in dims.items()]
    return " ".join(told).removesuffix(",")


@dataclass(frozen=True, slots=True)
class Check:
    """The record of one pair (x, y); the fields are those of `gradcheck.result/1`."""

    id: str
    check: str
    status: str
    code: str
    model: ModelInfo
    x: str
    y: str
    gradient_of: str = ""  # where y is the gradient of a tensor by x: that tensor
    claim: Mapping[str, Any] = field(default_factory=dict)  # what others give for it, where that was judged
    x_shape: tuple[int, ...] = ()
    y_shape: tuple[int, ...] = ()
    mode: str = "full"
    chosen: str = ""  # why `auto` took this mode, if not the full one
    method: str = "complex-step"
    source: str = "internal"
    forward: Mapping[str, Any] = field(default_factory=dict)  # what the forward run was held against, or why it was not
    power: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float64"
    rtol: float = 0.0
    atol: float = 0.0
    seed: int = 0
    points: int = 1
    dims: Mapping[str, int] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # of inputs that had to be drawn elsewhere
    entries: Mapping[str, int] = field(default_factory=dict)  # total, checked, failed, inconclusive, kink_ok
    evaluations: Mapping[str, int] = field(default_factory=dict)  # forward runs on "real" and on "complex" numbers
    coloring: Mapping[str, int] = field(default_factory=dict)  # rows, colors, where rows were probed in groups
    nodes: Mapping[str, int] = field(default_factory=dict)  # total, checked, failed, where each was checked on its own
    max_abs_err: float = 0.0
    max_rel_err: float = 0.0
    noise: float = 0.0
    needed: Mapping[str, float] = field(default_factory=dict)
    gradient: Mapping[str, Any] = field(default_factory=dict)
    worst: tuple[Entry, ...] = ()
    suspect: Suspect | None = None
    branches: Mapping[str, Any] = field(default_factory=dict)  # of piecewise nodes: total, covered, missed (the first)
    notes: tuple[str, ...] = ()
    message: str = ""  # why nothing could be compared, in one sentence
    blocked_by: tuple[str, ...] = ()  # operators without a gradient or a kernel, where they are why
    gates: tuple[str, ...] = ()  # "severed", "forward", and of its gradient's health what is wrong and was asked for
    bundle: str | None = None
    waiver: Mapping[str, Any] | None = None
    reproduce: str = ""
    duration_s: float = 0.0
    peak_rss_mb: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)
    picture: Picture | None = field(default=None, compare=False)  # in the JSON record if asked for

    @property
    def sizes(self) -> str:
        """Sizes of open dimensions in one line: N=2 S=5; of one that runs at no other size than 1 that this is so."""
        return sizes_said(self.dims, self.notes)

    @property
    def remarks(self) -> tuple[str, ...]:
        """The notes that are not said with the sizes."""
        said = {only_size(k) for k in self.dims}
        return tuple(note for note in self.notes if note not in said)

    @property
    def missed(self) -> tuple[str, ...]:
        """What is to be said of branches that no point has taken: the first by name, the others by number."""
        named = tuple(self.branches.get("missed", ()))
        more = self.branches.get("total", 0) - self.branches.get("covered", 0) - len(named)
        return (*named, *([f"and {more} more branch{'es'[: 2 * (more > 1)]} not covered"] if more else []))

    @property
    def of_two_models(self) -> bool:
        """One model was held against another: entries are `theoretical` in A, `numerical` in B."""
        return self.method == COMPARISON

    @property
    def derivative(self) -> tuple[str, ...]:
        """What was checked, above and below the line; an output alone where two models were compared."""
        if self.of_two_models and not self.x:
            return (f"output {self.y}",)
        return derivative(self.x, self.y, self.gradient_of)

    @property
    def outcome(self) -> Check:
        """No more of it than its name and what became of it."""
        return Check(
            self.id, self.check, self.status, self.code, ModelInfo(self.model.uri), "", "", gates=self.gates,
            gradient={k: v for k, v in self.gradient.items() if k == "severed"}, waiver=self.waiver,
            duration_s=self.duration_s,
        )  # fmt: skip

    @property
    def passes(self) -> bool:
        """It stops at no gate, and passed, is waived, or is severed from a y while x has a gradient from another."""
        return self.gradient_passes and not self.forward_differs

    @property
    def gradient_passes(self) -> bool:
        """The same, whatever the forward run was held against."""
        return not {*self.gates} - {FORWARD} and self.status in ("pass", "waived", "severed")

    @property
    def forward_differs(self) -> bool:
        """The forward run differs from onnxruntime's, or from the outputs that ship with the model."""
        return FORWARD in self.gates

    @property
    def severed(self) -> Severed | None:
        """What the graph says of ways from x to y without a derivative, where it says anything."""
        found = self.gradient.get("severed")
        return found if isinstance(found, Severed) else None

    @property
    def zero_everywhere(self) -> bool:
        """The gradient exists, and every entry of it was zero at every point."""
        gradient = self.gradient
        whole = bool(gradient.get("finite")) and gradient.get("zero_fraction") == 1.0
        return whole and self.status == "pass" and not self.of_two_models and self.entries.get("checked", 0) > 0

    @property
    def at_health(self) -> tuple[str, ...]:
        """The gates of its gradient's health that it stops at."""
        return tuple(word for word in self.gates if word in WORDS)

    def waived(self, waiver: Mapping[str, Any]) -> Check:
        """The record waived: of its gates only the forward run's is left, which has a waiver of its own."""
        return replace(self, status="waived", waiver=waiver, gates=tuple(g for g in self.gates if g == FORWARD))

    def forward_waived(self, waiver: Mapping[str, Any]) -> Check:
        """The record whose forward run may differ: the gradient's status stays."""
        return replace(self, waiver=waiver, gates=tuple(g for g in self.gates if g != FORWARD))

    @property
    def exit_code(self) -> int:
        """The exit code that this record alone would give."""
        return worst_code({self.status_code, 1}) if self.gates else self.status_code

    @property
    def status_code(self) -> int:
        """The exit code that its status would give."""
        if self.status == "error":
            return {"GC2": 2, "GC4": 4, "GC7": 7, "GC9": 70}.get(self.code[:3], 4)
        if self.status == "severed" and "severed" not in self.gates:
            return 0
        return EXIT_CODES[self.status]

    def as_json(self, *, pictured: bool = False) -> dict[str, Any]:
        """The JSON record, strict: non-finite numbers are the strings "nan", "inf", "-inf".

        It grows by what pictures are drawn from, if that was kept, only where `pictured`.
        """
        record = {"schema": SCHEMA, **{name: strict(getattr(self, name)) for name in _RECORDED}}
        if pictured and self.picture is not None:
            record["picture"] = strict(self.picture.small.as_json())
        return record


_RECORDED = tuple(each.name for each in fields(Check) if each.name != "picture")


class Kept(Sequence[Check]):
    """Records that stay in a file, however many there are: each is read when it is asked for.

    `outcomes` are the same records with no more of them than their names and what became of them; `read` gives those of
    some places, in that order.
    """

    def __init__(self, outcomes: Sequence[Check], read: Callable[[Sequence[int]], Iterator[Check]]) -> None:
        self.outcomes, self.read = outcomes, read

    def __len__(self) -> int:
        return len(self.outcomes)

    def __iter__(self) -> Iterator[Check]:
        return self.read(range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Check: ...

    @overload
    def __getitem__(self, index: slice) -> Kept: ...

    def __getitem__(self, index: int | slice) -> Check | Kept:
        if isinstance(index, slice):
            return self.some(range(len(self))[index])
        return next(self.read((range(len(self))[index],)))

    def some(self, places: Sequence[int]) -> Kept:
        """Those of some places, which stay in their file too."""
        return Kept([self.outcomes[i] for i in places], lambda some: self.read([places[i] for i in some]))

    def changed(self, change: Callable[[Check], Check], *, by_all: bool = False) -> Kept:
        """The same, each changed: by what is in its outcome, or by all of it."""
        outcomes = (change(check).outcome for check in self) if by_all else map(change, self.outcomes)
        return Kept([*outcomes], lambda places: map(change, self.read(places)))


@dataclass(frozen=True, slots=True)
class Report:
    """All records of a run, and what is worth saying about it as a whole."""

    checks: Sequence[Check]
    notes: tuple[str, ...] = ()
    duration_s: float = 0.0
    fail_on: tuple[str, ...] = OUTCOMES

    @property
    def outcomes(self) -> Sequence[Check]:
        """The checks; of those that are read one at a time, no more than their outcomes."""
        return self.checks.outcomes if isinstance(self.checks, Kept) else self.checks

    def those(self, claim: Callable[[Check], object]) -> Sequence[Check]:
        """The checks whose outcomes fit a claim."""
        found = [place for place, outcome in enumerate(self.outcomes) if claim(outcome)]
        return self.checks.some(found) if isinstance(self.checks, Kept) else [self.checks[place] for place in found]

    @property
    def wrong(self) -> Sequence[Check]:
        """The checks that did not pass, or that are not let through."""
        return self.those(lambda check: not check.passes)

    @property
    def exit_code(self) -> int:
        """The worst exit code of all checks; 7 if there is none."""
        codes = {c.status_code for c in self.outcomes if self._gates(c)}
        codes |= {1 for c in self.outcomes if not {*self.fail_on}.isdisjoint(c.gates)}
        return worst_code(codes or {0 if self.outcomes else 7})

    def _gates(self, check: Check) -> bool:
        return check.status not in OUTCOMES or check.status in self.fail_on

    def as_json(self) -> dict[str, Any]:
        """The run as `--output-format json` prints it."""
        return {
            "schema": RUN_SCHEMA,
            "exit_code": self.exit_code,
            "checks": [c.as_json() for c in self.checks],
        }


def gates_from(words: Iterable[str]) -> tuple[str, ...]:
    """Everything that fails a run, by the words of `--fail-on`; UsageError for an unknown word, or if nothing is left.

    Words without a sign that name an outcome replace the default; those of the gradient's health alone are added to
    it, and so is +word, while -word is taken away.
    """
    signed = [(word[0] if word[0] in "+-" else "", word.lstrip("+-")) for word in words if word]
    for _, word in signed:
        if word not in GATES:
            raise UsageError(f"{word!r} is none of {', '.join(GATES)}.{did_you_mean(word, GATES)}")
    plain = {word for sign, word in signed if not sign}
    found = plain | (set() if plain.intersection(OUTCOMES) else {*OUTCOMES})
    for sign, word in signed:
        found = found - {word} if sign == "-" else found | {word}
    if not signed or not found:
        raise UsageError(f"it names nothing; known are {', '.join(GATES)}, and --exit-zero fails on none of them.")
    return tuple(word for word in GATES if word in found)


def words_for(gates: Iterable[str]) -> tuple[str, ...]:
    """Words of `--fail-on` that mean exactly these gates."""
    found = tuple(gates)
    return found if {*found}.intersection(OUTCOMES) else (*(f"-{word}" for word in OUTCOMES), *found)


def derivative(x: str, y: str, gradient_of: str = "") -> tuple[str, str]:
    """A derivative as one writes it, above and below the line: ("d loss", "d x"), or ("d2 loss", "d x^2")."""
    return (f"d2 {gradient_of}", f"d {x}^2") if gradient_of else (f"d {y}", f"d {x}")


def worst_code(codes: set[int]) -> int:
    """The exit code that stands for several."""
    return next((code for code in SEVERITY if code in codes), 70)


def strict(value: Any) -> Any:
    """A value that strict JSON can hold."""
    kind: type = type(value)
    if kind in _AS_IT_IS:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, tuple | list):
        return [strict(v) for v in value]
    if isinstance(value, dict | Mapping):  # dict first: abstract types are slow to ask
        return {str(k): strict(v) for k, v in value.items()}
    if is_dataclass(value):
        return {name: strict(getattr(value, name)) for name in _names(kind)}
    return value.item() if hasattr(value, "item") else value


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))
