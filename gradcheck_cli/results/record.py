"""The results of a run as plain data: a `Report` of `Check` records, ready for tables and for JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import is_
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, overload

from gradcheck_cli.errors import UsageError, counted, did_you_mean
from gradcheck_cli.results.measures import WORDS, Drawn, Health, Precision, Severed
from gradcheck_cli.results.typed import Count, Displayed, Indices, Keys, Only, Read, field_names, is_record

if TYPE_CHECKING:
    from pandas import DataFrame

    from gradcheck_cli.results.picture import Picture
else:

    def _picture(value: Any) -> Any:
        from gradcheck_cli.results.picture import Picture  # brings NumPy, which few records need

        return Picture.from_json(value)

    Picture = Annotated[Drawn, Read(_picture)]  # as JSON holds it

SCHEMA, RUN_SCHEMA = "gradcheck.result/1", "gradcheck.run/1"
SEVERITY = (130, 70, 2, 1, 4, 5, 6, 3, 7, 0)  # of exit codes, the worst first
FORWARD = "forward"  # the gate of a forward run that differs
COMPARISON = "comparison"  # the method of records that hold one model against another
_AS_IT_IS = {str, int, bool, type(None)}  # in JSON
STATUSES = ("pass", "fail", "severed", "inconclusive", "error", "unsupported", "limit", "waived")
ENTRY_REASONS = ("noise", "curvature", "domain", "jump", "underflow", "nonderivative")  # why an entry stayed open
EXIT_CODES = {"pass": 0, "waived": 0, "fail": 1, "severed": 1, "inconclusive": 3, "unsupported": 5, "limit": 6}
OUTCOMES = ("fail", "inconclusive", "unsupported", "severed", "forward")  # what fails a run unless it is told otherwise
ALWAYS_FAIL = ("GC201", "GC202", "GC7", "GC9")  # codes of runs that could not do what they were asked for
GATES = (*OUTCOMES, *WORDS)  # what may fail a run: outcomes, and of the gradient's health what it is asked for
_BESIDE = ("severed", "forward")  # outcomes that stand in a record's `gates`: its status alone does not decide them


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model that was checked."""

    uri: Annotated[str, "The file or address that it was read from."]
    sha256: Annotated[str, Only(pattern="^([0-9a-f]{64})?$"), "Of the file."] = ""
    opset: Annotated[Mapping[str, int], "By domain."] = field(default_factory=dict)
    nodes: Annotated[Count, "Nodes of the file."] = 0
    dtypes: Annotated[tuple[str, ...], "Of its floating-point inputs and parameters."] = ()
    operators: Annotated[
        Mapping[str, Count], "How often each occurs, inner graphs included, the most frequent first."
    ] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the Jacobian that did not pass."""

    x: Annotated[Indices, "Index into x."]
    y: Annotated[Indices, "Index into y."]
    point: Count
    theoretical: Annotated[float, "By the rules; nan beside a given one where a rule is missing."]
    numerical: float
    noise: Annotated[float, "Error bound of the numerical side."]
    pattern: Annotated[str, "The kind of mistake that it looks like: missing, sign, x 0.5 ..."]
    status: Annotated[str, Only(("fail", "inconclusive", "kink-ok")), "The verdict."] = "fail"
    part: Annotated[str, "Of complex numbers: re or im of x where x is complex, then of y: im x, re y."] = ""
    reason: Annotated[str, Only(("", *ENTRY_REASONS)), "Why it is inconclusive."] = ""
    unseen: Annotated[float | None, "Any larger error would have been seen, where it is inconclusive."] = None
    slopes: Annotated[tuple[float, float] | None, "Of y from both sides, where x lies at a tie."] = None
    given: Annotated[float | None, "Somebody else's, where that was judged instead of the theoretical one."] = None

    @property
    def judged(self) -> float:
        """The value that the numerical one was held against."""
        return self.theoretical if self.given is None else self.given


@dataclass(frozen=True, slots=True)
class Suspect:
    """The node whose own gradient is wrong."""

    node: Annotated[Count, "Index of the node."]
    op: str
    name: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    rel_err: Annotated[float, "Of its own gradient, at the worst element."] = math.nan
    at: Annotated[str, "The operand whose cotangent is worst."] = ""
    passed: Annotated[Count, "Nodes on the way that are right on their own."] = 0
    tried: Annotated[Count, "Nodes on the way that were checked on their own."] = 0
    inside: Annotated[str, "The graph that it is a node of, as: body of node 3 Loop; empty for the model's own."] = ""
    index: Annotated[Indices | None, "The worst element of that operand."] = None
    diagnosis: Annotated[str, "The mistake in words: the gradient is 2 times what it should be."] = ""
    part_of: Annotated[str, "The operator of the node, where a part of what it is composed of is at fault."] = ""
    before: Annotated[Count, "Nodes on the way from x to y before it."] = 0
    after: Annotated[Count, "Nodes on the way behind it."] = 0
    unchecked: Annotated[Count, "Nodes on the way that could not be checked on their own."] = 0
    others: Annotated[tuple[str, ...], "More nodes that fail on their own."] = ()


class ClaimFacts(TypedDict, total=False):
    """Somebody else's gradient, where that was judged; empty for the rules' own."""

    by: Annotated[str, "The source of the gradient: a tensor, FILE:KEY, or MODEL:TENSOR."]
    kind: Annotated[str, Only(("tensor", "file", "model")), "The kind of that source."]
    of: Annotated[tuple[str, ...], "The tensors of which the sum is differentiated, weighed by the seed."]
    found: Annotated[bool, "By its name, without anybody having asked."]
    layout: Annotated[str, "The order of its axes: as x, or that of a whole Jacobian."]
    seed: Annotated[str, "ones, drawn, or what it is called; empty for a whole Jacobian."]
    theoretical: Annotated[str, Only(("none", "pass", "inconclusive", "fail")), "The verdict on the rules' own."]


class FirstNode(TypedDict):
    """The first node that differs from the same operands."""

    node: int
    op: str
    name: str
    outputs: tuple[str, ...]


class Forward(TypedDict, total=False):
    """Another forward run that this one was held against; empty where nothing was to be compared."""

    compared_with: Annotated[str | None, "Name and version, or the folder of outputs; null if it was not compared."]
    agrees: Annotated[bool | None, "The same but for rounding; null where it was not compared."]
    code: Annotated[Annotated[str, Only(("GC404",))] | None, "Given where it differs."]
    reason: Annotated[str, "The difference; why it was not compared; a remark where it agrees."]
    max_abs_err: Annotated[float | None, "Largest difference of y."]
    max_rel_err: Annotated[float | None, "The same relative to an entry, or to a tenth of the largest one."]
    bound: Annotated[float | None, "As much of that as rounding in y as a whole explains."]
    first_node: FirstNode | None
    refused: Annotated[bool, "onnxruntime does not run this model."]


class Power(TypedDict, total=False):
    """The size of error that would have been missed."""

    missed_below: Annotated[float, "Smaller errors may have been missed."]
    of: Annotated[str, "The size that this is relative to, if not an entry."]
    negligible: Annotated[float, "Errors below this share of the largest |J| times the size of x are forgiven."]
    probability: Annotated[float, "Of missing an error of that size, at most."]
    bad_fraction: Annotated[float, "The share of entries that may be wrong although none that was drawn is."]
    bad_fraction_of_lines: Annotated[float, "The same where errors fill whole rows or columns."]
    confidence: Annotated[float, "With which that share is not larger."]


class Gradient(TypedDict, total=False):
    """The theoretical gradient."""

    norm: float
    max: float
    zero_fraction: float
    finite: bool
    health: Health | None
    precision: Precision | None
    severed: Severed | None


class BranchCounts(TypedDict, total=False):
    """Branches of piecewise nodes between x and y."""

    total: Count
    covered: Annotated[Count, "Those that a point has taken."]
    missed: Annotated[tuple[str, ...], "The first of the others."]
    ranges: Annotated[tuple[str, ...], "Of what the first 20 of such nodes read."]


class Waiver(TypedDict, total=False):
    """The reason why an outcome is expected: the `expect` of a spec, or a baseline."""

    status: Annotated[str, "The outcome that is expected, or came out in the baseline."]
    forward: Annotated[str, Only(("differs",)), "So is a forward run that differs."]
    gates: Annotated[tuple[str, ...], "So is its health: the words of --fail-on at which it stopped in the baseline."]
    reason: Annotated[str, "Why; of a baseline, its file."]
    until: Annotated[str | None, "Its last day, as 2027-03-31."]
    baseline: Annotated[bool, "It stands in a baseline, not in a spec."]
    ended: Annotated[bool, "It is over, and counts no more."]
    ignored: Annotated[bool, "It is that of --ignore or --select: such a finding fails no run, whatever it says."]


class SpecPlace(TypedDict, total=False):
    """The place of a check in a spec, or of what is wrong there; empty for a model without one."""

    file: Annotated[str, "The spec."]
    line: Annotated[Count, "Counted from 1."]


def only_size(dim: str) -> str:
    """The note that an open dimension has size 1 because the model was seen to run at no other."""
    return f"{dim}=1: no other size runs"


def sizes_said(dims: Mapping[str, int], notes: Collection[str]) -> str:
    """Sizes in one line, with the notes on those that are 1: N=2 S=1: no other size runs."""
    told = [f"{k}={v}" if only_size(k) not in notes else f"{only_size(k)}," for k, v in dims.items()]
    return " ".join(told).removesuffix(",")


_COUNTS = Keys(("total", "checked"), ("failed", "inconclusive", "kink_ok", *ENTRY_REASONS, "left_out"))


@dataclass(frozen=True, slots=True, repr=False)
class Check(Displayed):
    """The record of one pair (x, y) of a check, `gradcheck.result/1`."""

    id: Annotated[str, "Check, y and x: the same in every run."]
    check: Annotated[str, "Name of the check: the model's, or that of an entry of a spec."]
    status: Annotated[str, Only(STATUSES, said=f"one of {', '.join(STATUSES)}"), "The outcome."]
    code: Annotated[str, Only(pattern="^(GC[1-9][0-9]{2})?$", said="a code such as GC101"), "Why; empty for a pass."]
    model: ModelInfo
    x: Annotated[str, "Differentiated by this tensor."]
    y: Annotated[str, "This tensor is differentiated."]
    gradient_of: Annotated[str, "In a check of second order y is the gradient of this tensor by x."] = ""
    claim: Annotated[ClaimFacts, Keys(("by", "kind", "of"))] = field(default_factory=ClaimFacts)
    x_shape: Annotated[Indices, "Shape of x at the point."] = ()
    y_shape: Annotated[Indices, "Shape of y at the point."] = ()
    mode: Annotated[
        str,
        Only(("full", "nodes", "directional", "sampled")),
        "The entries that were compared: all, by node, projections, or drawn ones.",
    ] = "full"
    chosen: Annotated[str, "Why `auto` took this mode; empty where it compares everything."] = ""
    method: Annotated[str, "The way to the numerical side; comparison: it is model B of a diff."] = "complex-step"
    source: Annotated[str, "The evaluator of the numerical side: internal or onnxruntime."] = "internal"
    forward: Annotated[Forward, Keys(("compared_with",))] = field(default_factory=Forward)
    power: Power = field(default_factory=Power)
    dtype: Annotated[str, "float64, or model where the gradient in the model's own dtype was looked at as well."] = (
        "float64"
    )
    rtol: Annotated[float, "Relative tolerance."] = 0.0
    atol: Annotated[float, "Absolute tolerance."] = 0.0
    seed: Annotated[int, "Of everything that was drawn."] = 0
    points: Annotated[Count, "Points that were tried."] = 1
    dims: Annotated[Mapping[str, Count], "Sizes of symbolic dimensions."] = field(default_factory=dict)
    ranges: Annotated[
        Mapping[str, tuple[float, float]],
        "Of inputs that had to be drawn elsewhere, since the model is not finite where they are drawn by default.",
    ] = field(default_factory=dict)
    entries: Annotated[
        Mapping[str, Count], _COUNTS, "Entries of the Jacobian; checked are projections of them in directional mode."
    ] = field(default_factory=dict)
    evaluations: Annotated[
        Mapping[str, Count], Keys((), ("real", "complex")), "Forward runs of the numerical side, by kind of number."
    ] = field(default_factory=dict)
    coloring: Annotated[
        Mapping[str, Count],
        Keys(("rows", "colors")),
        "Rows of the Jacobian, and groups they were probed in; empty where each was probed alone.",
    ] = field(default_factory=dict)
    nodes: Annotated[
        Mapping[str, Count],
        Keys(("total", "checked"), ("failed",)),
        "Nodes between x and y that were checked on their own.",
    ] = field(default_factory=dict)
    max_abs_err: Annotated[float, "Largest |theoretical - numerical|."] = 0.0
    max_rel_err: Annotated[float, "Largest difference relative to the larger of the two."] = 0.0
    noise: Annotated[float, "Largest error bound of the numerical side."] = 0.0
    needed: Annotated[Mapping[str, float], Keys((), ("rtol", "atol")), "Tolerances with which it would pass."] = field(
        default_factory=dict
    )
    gradient: Gradient = field(default_factory=Gradient)
    worst: Annotated[tuple[Entry, ...], "The worst entries, worst first."] = ()
    suspect: Suspect | None = None
    branches: Annotated[BranchCounts, Keys(("total", "covered"))] = field(default_factory=BranchCounts)
    notes: Annotated[tuple[str, ...], "Remarks for the reader."] = ()
    message: Annotated[
        str, "Why nothing could be compared, why the gradient is not finite, or that a waiver is over."
    ] = ""
    blocked_by: Annotated[tuple[str, ...], "Operators without a gradient or a kernel, where they are why."] = ()
    gates: Annotated[
        tuple[Annotated[str, Only((*_BESIDE, *WORDS))], ...],
        "severed: x has a gradient from no y; forward: the forward run differs; of its health what --fail-on asks.",
    ] = ()
    bundle: Annotated[str | None, "The folder that the failure was saved in for `gradcheck reproduce`."] = None
    waiver: Waiver | None = None
    reproduce: Annotated[str, "The command that shows it again."] = ""
    duration_s: Annotated[float, Only(least=0), "Seconds."] = 0.0
    peak_rss_mb: Annotated[float, Only(least=0), "Memory of the process."] = 0.0
    versions: Annotated[
        Mapping[str, str], "Of gradcheck, onnx, numpy and python, and the kernels' instruction set."
    ] = field(default_factory=dict)
    place: Annotated[SpecPlace, Keys(("file", "line"))] = field(default_factory=SpecPlace)
    structure: Annotated[str, "Digest of what ran, without the values of weights; empty unless asked for."] = ""
    copy_of: Annotated[
        str,
        "The model of the same structure whose gradients were compared; here the forward run was, no entry of them.",
    ] = ""
    picture: Picture | None = field(default=None, compare=False)  # in the JSON record if asked for

    @property
    def sizes(self) -> str:
        """Sizes of open dimensions in one line, N=2 S=5, with a remark on those that run at no other size than 1."""
        return sizes_said(self.dims, self.notes)

    @property
    def remarks(self) -> tuple[str, ...]:
        """The notes that are not said with the sizes."""
        said = {only_size(k) for k in self.dims}
        return tuple(note for note in self.notes if note not in said)

    @property
    def missed(self) -> tuple[str, ...]:
        """Remarks on branches that no point has taken: the first by name, the others by number."""
        named = tuple(self.branches.get("missed", ()))
        more = self.branches.get("total", 0) - self.branches.get("covered", 0) - len(named)
        return (*named, *([f"and {counted(more, 'more branch')} not covered"] if more else []))

    @property
    def of_two_models(self) -> bool:
        """True if one model was compared with another: entries are `theoretical` in A, `numerical` in B."""
        return self.method == COMPARISON

    @property
    def derivative(self) -> tuple[str, ...]:
        """The derivative, above and below the line; an output alone where two models were compared."""
        if self.of_two_models and not self.x:
            return (f"output {self.y}",)
        return derivative(self.x, self.y, self.gradient_of)

    @property
    def outcome(self) -> Check:
        """The record reduced to its name and its outcome."""
        return outcome_record(
            id=self.id, check=self.check, status=self.status, code=self.code, uri=self.model.uri, gates=self.gates,
            gradient={"severed": self.gradient["severed"]} if "severed" in self.gradient else None, waiver=self.waiver,
            duration_s=self.duration_s, copy_of=self.copy_of,
        )  # fmt: skip

    @property
    def passes(self) -> bool:
        """True if it stops at no gate, and passed, is waived, or is severed from one y of several."""
        return self.gradient_passes and not self.forward_differs

    @property
    def gradient_passes(self) -> bool:
        """True if the gradient passes, whether or not the forward run does."""
        return not {*self.gates} - {FORWARD} and self.status in ("pass", "waived", "severed")

    @property
    def forward_differs(self) -> bool:
        """True if the forward run differs from onnxruntime's, or from the outputs that ship with the model."""
        return FORWARD in self.gates

    @property
    def severed(self) -> Severed | None:
        """The ways from x to y without a derivative, by the graph, where there are any."""
        return self.gradient.get("severed")

    @property
    def zero_everywhere(self) -> bool:
        """True if the gradient exists and every entry of it was zero at every point."""
        gradient = self.gradient
        whole = bool(gradient.get("finite")) and gradient.get("zero_fraction") == 1.0
        return whole and self.status == "pass" and not self.of_two_models and self.entries.get("checked", 0) > 0

    @property
    def at_health(self) -> tuple[str, ...]:
        """The gates of its gradient's health that it stops at."""
        return tuple(word for word in self.gates if word in WORDS)

    @property
    def ignored(self) -> str:
        """The words of --ignore or --select by which a finding of it fails no run; "" where all of them count."""
        waiver = self.waiver or {}
        return waiver.get("reason", "") if waiver.get("ignored") else ""

    def waived(self, waiver: Waiver) -> Check:
        """The record waived: of its gates only the forward run's is left, which has a waiver of its own."""
        return replace(self, status="waived", waiver=waiver, gates=tuple(g for g in self.gates if g == FORWARD))

    def forward_waived(self, waiver: Waiver) -> Check:
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
        record = {"schema": SCHEMA, **{name: strict(getattr(self, name)) for name in RECORDED}}
        if pictured and self.picture is not None:
            record["picture"] = strict(self.picture.small.as_json())
        return record


BLANK = Check("", "", "pass", "", ModelInfo(""), "", "")
_EMPTY = {name: getattr(BLANK, name) for name in field_names(Check)}


def outcome_record(*, uri: str, gradient: Gradient | None, **fields: Any) -> Check:
    """A record of an outcome alone; many of them share what is empty, so that each takes little memory."""
    model = ModelInfo(uri, opset=BLANK.model.opset, operators=BLANK.model.operators)
    return Check(**{**_EMPTY, **fields, "model": model, "gradient": gradient or BLANK.gradient})


@dataclass(frozen=True, slots=True)
class FirstCheck:
    """The model of a structure that is checked first: as far as copies need to know it, or not checked yet.

    `missed` are the branches that the check of each pair did not take.
    """

    job: str = ""
    structure: str = ""
    missed: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def of(cls, job: str, checks: Sequence[Check]) -> FirstCheck | None:
        """The first check by its records; None where copies of it would say more than it does.

        A copy passes by what this check has shown, so each pair has to pass by itself: not by a waiver, not severed at a
        gate, not copied, with a forward run that agrees.  Of more branches not taken than a record lists, nobody could
        tell that a copy takes none of them.
        """
        few = all(
            len(c.branches.get("missed", ())) == c.branches.get("total", 0) - c.branches.get("covered", 0)
            for c in checks
        )
        fit = all(c.structure and c.passes and c.status in ("pass", "severed") and not c.copy_of for c in checks)
        if not (checks and few and fit):
            return None
        return cls(job, checks[0].structure, tuple(tuple(c.branches.get("missed", ())) for c in checks))


RECORDED = tuple(name for name in field_names(Check) if name != "picture")


class Kept(Sequence[Check]):
    """Records that stay in a file, however many there are: each is read when it is asked for.

    `outcomes` are the same records reduced to names and outcomes; `read` gives the records at some places, in that order,
    and `texts`, if the file has them as JSON, the text of each field of these.
    """

    def __init__(
        self,
        outcomes: Sequence[Check],
        read: Callable[[Sequence[int]], Iterator[Check]],
        texts: Callable[[Sequence[int]], Iterator[Mapping[str, str]]] | None = None,
    ) -> None:
        self.outcomes, self.read, self.texts = outcomes, read, texts

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
        """The records of some places, which stay in their file too."""
        texts = self.texts
        return Kept(
            [self.outcomes[i] for i in places],
            lambda some: self.read([places[i] for i in some]),
            texts and (lambda some: texts([places[i] for i in some])),
        )

    def changed(self, change: Callable[[Check], Check], *, by_all: bool = False) -> Kept:
        """The records with a change applied to each; `by_all` if the change needs more than the outcome."""
        outcomes = [change(check).outcome for check in self] if by_all else [*map(change, self.outcomes)]
        same = not by_all and all(map(is_, outcomes, self.outcomes))
        return self if same else Kept(outcomes, lambda places: map(change, self.read(places)))


@dataclass(frozen=True, slots=True, repr=False)
class Report(Displayed):
    """All records of a run, and notes on the run as a whole."""

    checks: Sequence[Check]
    notes: tuple[str, ...] = ()
    duration_s: float = 0.0
    fail_on: tuple[str, ...] = OUTCOMES
    shard: bool = False  # a part of a run, which may have no checks
    unfinished: str = ""  # in words, the checks that were not done: "interrupted after 3 of 5 models"
    summed: bool = False  # its duration is the sum of those of its checks: nobody knows how long the run took

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
        """The worst exit code of all checks; 7 if there is none, other than in a shard."""
        codes = {c.status_code for c in self.outcomes if self._gates(c)}
        codes |= {1 for c in self.outcomes if not {*self.fail_on}.isdisjoint(c.gates)}
        codes |= {130} if self.unfinished else set()
        return worst_code(codes or {0 if self.outcomes or self.shard else 7})

    def _gates(self, check: Check) -> bool:
        return check.status not in OUTCOMES or check.status in self.fail_on

    def to_dataframe(self) -> DataFrame:
        """The checks as a pandas.DataFrame, a row for each pair (x, y), with columns named after the record's fields.

        Texts and numbers that a check has not are missing: <NA> in columns of type string and Int64, NaN in float64.
        `results/display.py` lists the columns.  UsageError where pandas is not installed.
        """
        from gradcheck_cli.results.display import frame

        return frame(self.checks)

    def as_json(self) -> dict[str, Any]:
        """The run as `--output-format json` prints it."""
        checks = [c.as_json() for c in self.checks]
        return {"schema": RUN_SCHEMA, "exit_code": self.exit_code, "fail_on": [*self.fail_on], "checks": checks}


def gates_from(words: Iterable[str]) -> tuple[str, ...]:
    """The gates of a run by the words of `--fail-on`; UsageError for an unknown word, or if nothing is left.

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
    if is_record(value):
        return {name: strict(getattr(value, name)) for name in field_names(kind)}
    return value.item() if hasattr(value, "item") else value
