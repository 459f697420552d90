"""What `gradcheck ops` says of each operator, read off the operator table."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gradcheck_cli.errors import UsageError, did_you_mean
from gradcheck_cli.op import SUPPLIED, Op, zero
from gradcheck_cli.ops import OPS

REQUIRED = "required"
MEANINGS = {
    "rule": "by a rule of its own",
    "composed": "composed of operators that have rules",
    "zero": "zero wherever it exists",
    "none": "none: a check stops here",
}


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """An operator: how its gradient is known, whether it has kinks, and what its node may say."""

    name: str
    domain: str
    gradient: str  # a key of MEANINGS
    kinks: bool
    constants: Mapping[str, int]  # inputs that must be constants: what they are called -> position
    attributes: Mapping[str, Any]  # with defaults
    does: str

    @property
    def full_name(self) -> str:
        """domain.Name, or the name alone for ONNX's own."""
        return f"{self.domain}.{self.name}" if self.domain else self.name

    def as_json(self) -> dict[str, Any]:
        """The object that `--output-format json` prints."""
        return asdict(self)


def all_facts() -> list[OperatorFacts]:
    """Every operator, ONNX's own first, by name."""
    return sorted(map(facts, OPS.values()), key=lambda f: (f.domain, f.name))


def facts_named(name: str) -> list[OperatorFacts]:
    """The operators of a name, in any domain and any case; UsageError where there is none."""
    found = [f for f in all_facts() if name.lower() in (f.name.lower(), f.full_name.lower())]
    if not found:
        known = [each.full_name for each in all_facts()]
        raise UsageError(
            f"no operator {name!r} is known.{did_you_mean(name, known)} `gradcheck ops` lists all of them."
        )
    return found


def facts(op: Op) -> OperatorFacts:
    """What is known of one operator."""
    own = {k: v for k, v in op.schema.items() if k not in op.static and k not in SUPPLIED}
    return OperatorFacts(
        name=op.name,
        domain=op.domain,
        gradient="zero" if op.vjp is zero else "rule" if op.vjp is not None else "composed" if op.composed else "none",
        kinks=op.branch is not None,
        constants=dict(op.static),
        attributes={k: REQUIRED if v is inspect.Parameter.empty else v for k, v in own.items()},
        does=_first_line(op),
    )


def _first_line(op: Op) -> str:
    """The sentence that the kernel is documented with; nothing for kernels of others."""
    if not getattr(op.forward, "__module__", "").startswith("gradcheck_cli"):
        return ""
    text = inspect.getdoc(op.forward) or ""
    return text.split("\n\n")[0].replace("\n", " ")
