"""Ways in which any rule can be wrong: each turns the right cotangents of an operator's operands into wrong ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.backward import fit, gradients, inexact
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.op import Op, Ops
from gradcheck_cli.op.batching import elementwise
from gradcheck_cli.ops import OPS

Fault: TypeAlias = Callable[[Var, np.random.Generator], "Var | None"]  # of one cotangent
HALF = ("corpus", "Half")


def _half(x: np.ndarray) -> np.ndarray:
    if x.dtype.kind == "c":
        return _half(x.real) + 1j * _half(x.imag)
    return x.astype(np.float16).astype(x.dtype)


def half(ct: Var, rng: np.random.Generator) -> Var:
    """Rounded to half precision."""
    return ct.tape.emit(HALF[1], [ct], {}, domain=HALF[0])[0]


def one_entry(ct: Var, rng: np.random.Generator) -> Var:
    """One entry 10 % off."""
    if not ct.value.size:
        return ct
    factors = np.ones(ct.value.size)
    factors[rng.integers(ct.value.size)] = 1.1
    return ct * factors.reshape(ct.shape).astype(ct.dtype)


def swapped(ct: Var, rng: np.random.Generator) -> Var | None:
    """Two entries exchanged."""
    if ct.value.size < 2:
        return ct
    order = np.arange(ct.value.size)
    i, j = rng.choice(ct.value.size, 2, replace=False)
    order[[i, j]] = order[[j, i]]
    flat = sym.reshape(ct, (ct.value.size,))
    return sym.reshape(ct.tape.apply("Gather", flat, order, axis=0), ct.shape)


def overflowing(ct: Var, rng: np.random.Generator) -> Var:
    """Numbers on the way that overflow, and cancel to NaN."""
    huge = ct * 1e300 * 1e300
    return ct + (huge - huge)


def scaled(factor: float) -> Fault:
    """Off by a factor."""
    return lambda ct, rng: ct * factor


FAULTS: dict[str, Fault] = {
    "sign": scaled(-1.0),
    "factor 2": scaled(2.0),
    "one entry 10 % off": one_entry,
    "two entries swapped": swapped,
    "dropped": lambda ct, rng: None,
    "overflow to NaN": overflowing,
    "half precision": half,
}
RELATIVE: dict[str, Fault] = {f"relative {e:.0e}": scaled(1 + e) for e in (1e-3, 1e-4, 1e-5, 1e-6)}


def one_operand(key: tuple[str, str], fault: Fault, seed: int) -> Ops:
    """The operator table in which one operand of one operator gets a wrong cotangent."""

    def wrong(cts: Sequence[Var | None], rng: np.random.Generator) -> list[Var | None]:
        live = [i for i, ct in enumerate(cts) if ct is not None]
        if not live:
            return list(cts)
        chosen = live[int(rng.integers(len(live)))]
        return [fault(ct, rng) if i == chosen and ct is not None else ct for i, ct in enumerate(cts)]

    return table(key, wrong, seed)


def all_operands(key: tuple[str, str], fault: Fault, seed: int) -> Ops:
    """The operator table in which all operands of one operator get wrong cotangents."""
    return table(key, lambda cts, rng: [None if ct is None else fault(ct, rng) for ct in cts], seed)


def table(key: tuple[str, str], wrong: Callable[..., list[Var | None]], seed: int) -> Ops:
    """The operator table with what one rule gives put through `wrong`, the same way wherever the operator stands."""
    record, right = OPS[key], rule_of(key)

    def rule(ct: Any, ans: Any, *primals: Var | None, **metadata: Any) -> list[Var | None]:
        cts = right(ct, ans, *primals, **metadata)
        fitted = [None if c is None or x is None or not inexact(x) else fit(c, x)
                  for c, x in zip(cts, primals, strict=True)]  # fmt: skip
        return wrong(fitted, np.random.default_rng(seed))

    return with_half({**OPS, key: dataclasses.replace(record, vjp=rule)})


def with_half(ops: Ops) -> Ops:
    """A table that can also round to half precision, whatever is computed with."""
    return {**ops, HALF: Op(HALF[1], _half, lambda ct, *_: (ct,), elementwise, domain=HALF[0], analytic=False)}


def rule_of(key: tuple[str, str]) -> Callable[..., Sequence[Var | None]]:
    """The right rule of an operator; of a composed one, what its composition gives."""
    record = OPS[key]
    return record.vjp if record.vjp is not None else by_composition(record)


def by_composition(record: Op, **changed: Any) -> Callable[..., list[Var | None]]:
    """The rule that differentiates what an operator is composed of, perhaps at other settings."""

    def rule(ct: Any, ans: Any, *primals: Var | None, **metadata: Any) -> list[Var | None]:
        made = record.forward(*primals, **{**metadata, **changed})
        made, cts = (tuple(v) if isinstance(v, tuple | list) else (v,) for v in (made, ct))
        live = {y.name: c for y, c in zip(made, cts, strict=False) if c is not None}
        tape = made[0].tape
        wanted = [x for x in primals if x is not None]
        found = gradients(tape, live, [x.name for x in wanted])
        return [None if x is None else found.pop(0) for x in primals]

    return rule
