"""What a run of gradcheck found, as plain data: a `Report` of `Check` records, ready for tables and for JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA, RUN_SCHEMA = "gradcheck.result/1", "gradcheck.run/1"
SEVERITY = (130, 70, 2, 1, 4, 5, 6, 3, 7, 0)  # of exit codes, the worst first
EXIT_CODES = {"pass": 0, "waived": 0, "fail": 1, "inconclusive": 3, "unsupported": 5, "limit": 6}


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Which model was checked."""

    uri: str
    sha256: str = ""
    opset: Mapping[str, int] = field(default_factory=dict)
    nodes: int = 0
    dtypes: tuple[str, ...] = ()  # of its floating-point inputs and parameters


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
    x_shape: tuple[int, ...] = ()
    y_shape: tuple[int, ...] = ()
    mode: str = "full"
    method: str = "complex-step"
    source: str = "internal"
    power: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float64"
    rtol: float = 0.0
    atol: float = 0.0
    seed: int = 0
    points: int = 1
    dims: Mapping[str, int] = field(default_factory=dict)
    entries: Mapping[str, int] = field(default_factory=dict)  # total, checked, failed, inconclusive
    max_abs_err: float = 0.0
    max_rel_err: float = 0.0
    noise: float = 0.0
    needed: Mapping[str, float] = field(default_factory=dict)
    gradient: Mapping[str, Any] = field(default_factory=dict)
    worst: tuple[Entry, ...] = ()
    suspect: Suspect | None = None
    notes: tuple[str, ...] = ()
    message: str = ""  # why nothing could be compared, in one sentence
    bundle: str | None = None
    waiver: Mapping[str, Any] | None = None
    reproduce: str = ""
    duration_s: float = 0.0
    peak_rss_mb: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """The exit code that this record alone would give."""
        if self.status == "error":
            return {"GC2": 2, "GC4": 4, "GC7": 7, "GC9": 70}.get(self.code[:3], 4)
        return EXIT_CODES[self.status]

    def as_json(self) -> dict[str, Any]:
        """The JSON record, strict: non-finite numbers are the strings "nan", "inf", "-inf"."""
        record = {"schema": SCHEMA, **asdict(self)}
        record["model"].pop("dtypes")
        return dict(strict(record))


@dataclass(frozen=True, slots=True)
class Report:
    """All records of a run, and what is worth saying about it as a whole."""

    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()
    duration_s: float = 0.0
    fail_on: tuple[str, ...] = ("fail", "inconclusive", "unsupported")

    @property
    def exit_code(self) -> int:
        """The worst exit code of all checks; 7 if there is none."""
        codes = {c.exit_code for c in self.checks if self._gates(c)}
        return worst_code(codes or {0 if self.checks else 7})

    def _gates(self, check: Check) -> bool:
        gated = check.status in ("fail", "inconclusive", "unsupported")
        return not gated or check.status in self.fail_on

    def as_json(self) -> dict[str, Any]:
        """The run as `--output-format json` prints it."""
        return {
            "schema": RUN_SCHEMA,
            "exit_code": self.exit_code,
            "checks": [c.as_json() for c in self.checks],
        }


def worst_code(codes: set[int]) -> int:
    """The exit code that stands for several."""
    return next((code for code in SEVERITY if code in codes), 70)


def strict(value: Any) -> Any:
    """A value that strict JSON can hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(k): strict(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [strict(v) for v in value]
    return value.item() if hasattr(value, "item") else value
