"""The reference that gradients are measured by: `prove` holds rules to exact identities, over lattices of cases.

    from gradcheck_cli.reference import prove
    [proof] = prove({**gc.OPS, op.key: op}, [op.full_name])

A rule counts as proven on the cases of its lattice alone: shapes, attributes, operands present and absent.  Where
numbers are compared, it is proven in the branches that the points of a case are in, which are drawn at random.
"""

from __future__ import annotations

import dis
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from types import CodeType, FunctionType
from typing import Any, Literal, TypeAlias

import numpy as np
from msgspec import Struct, structs

from gradcheck_cli.autodiff import symbolic
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.errors import GradcheckError, LimitError, ModelError, UnsupportedError, UsageError, did_you_mean
from gradcheck_cli.op import Op, Ops, zero
from gradcheck_cli.ops import OPS
from gradcheck_cli.reference import exact, residues
from gradcheck_cli.reference.exact import Floats, Lattice, Mismatch, NotExact, RuleError, Use
from gradcheck_cli.reference.lattices import LATTICES

Shapes: TypeAlias = tuple[tuple[int, ...], ...]  # of all operands
Status: TypeAlias = Literal["proven", "tested", "neither", "wrong", "by nature", "by parts", "no rule"]
ODDS = -60  # log2 of the odds that a wrong rule passes a case, at most
BRANCHES = 2  # the number of points of a case where numbers are compared, with other outcomes each
METHODS = {"integers": exact.compare, "residues": residues.compare}
ROUNDINGS = 64 * np.finfo(np.float64).eps  # of constants and results, relative to the largest entry
ELSEWHERE = "the rule does not agree with the derivative at ranks at which the operator is not used: {}"
ROUNDED = "the rule agrees with the derivative but for some roundings, as of constants, which are no exact equality"
TESTED = "its derivative is held against numerical ones at sampled points by gradcheck's own tests"
BY_NATURE = {
    "rounds": "it rounds", "steps": "it has steps", "sizes": "its result depends on shapes alone",
    "decides": "its result is integers, truth values or choices", "": "its result is locally constant",
}  # fmt: skip


class Proof(Struct, frozen=True):
    """A finding about the rule of an operator.

    status   "proven" on all cases; "wrong" on one; "tested" at sampled points; "neither"; "by nature" without a
             derivative; "by parts", if it is composed of other operators; "no rule".
    method   "integers" in float64, or "residues" modulo a prime; both if both are used.
    lattice  the axes of the lattice, each with the number of its values.
    odds     log2 of the odds that a wrong rule passes a case, at most.
    outside  cases that are not counted, because exact numbers cannot decide them.
    case     the smallest case that is wrong, with what the rule `given` there, and what is `right`.
    says     a sentence for what is not in numbers.
    parts    the operators that it is composed of.
    """

    operator: str
    status: Status
    method: str = ""
    cases: int = 0
    lattice: str = ""
    odds: float = 0.0
    outside: int = 0
    case: str = ""
    given: str = ""
    right: str = ""
    says: str = ""
    parts: tuple[str, ...] = ()
    seconds: float = 0.0


def prove(ops: Ops, names: Iterable[str] | None = None, *, seed: int = 0) -> list[Proof]:
    """Proofs for the rules of operators of a table, by name with its domain or in any (default: all that have one).

    An operator that gradcheck does not know is tried at the shapes of `SHAPES`.  UsageError for an unknown name.
    """
    return [proof_of(op, ops, seed=seed) for op in named(ops, names)]


def named(ops: Ops, names: Iterable[str] | None) -> list[Op]:
    """Operators by name, with its domain or in any, in any case; those with a rule of their own if there are no names."""
    if names is None:
        return [op for op in ops.values() if op.vjp is not None and op.vjp is not zero]
    known = {op.full_name: op for op in ops.values()}
    return [op for name in names for op in _meant(name, known)]


def _meant(name: str, known: Mapping[str, Op]) -> list[Op]:
    low = name.lower()
    found = [op for full, op in known.items() if low in (full.lower(), op.name.lower())]
    if not found:
        raise UsageError(
            f"no operator {name!r} is known.{did_you_mean(name, known)} `gradcheck ops` lists all of them."
        )
    return sorted(found, key=lambda op: op.key)


def proof_of(
    op: Op, ops: Ops, *, inputs: int | None = None, outputs: int = 1, used: Sequence[Shapes] = (), seed: int = 0
) -> Proof:
    """The finding about the rule of an operator; of one that gradcheck does not know the numbers of inputs are given.

    `used` are shapes of its operands where it is used: at other ranks its rule is tried, but not called wrong.
    """
    start, name = time.perf_counter(), op.full_name
    ops = ops if ops.get(op.key) is op else {**ops, op.key: op}
    if op.vjp is None:
        made = _of_parts(op) if op.composed else Proof(name, "no rule", says="it has no rule")
    elif op.vjp is zero:
        made = Proof(name, "by nature", says=f"no derivative, by nature: {nature(op)}")
    elif name in LATTICES:
        made = _over(op, ops, LATTICES[name], seed)
    elif OPS.get(op.key) is not None and op.key in OPS:
        made = Proof(name, "tested", says=TESTED)
    else:
        made = _unknown(op, ops, count_of(op) if inputs is None else inputs, outputs, used, seed)
    return structs.replace(made, seconds=time.perf_counter() - start)


def claim(op: Op) -> str:
    """The finding of `prove` about an operator of gradcheck's own in words, as a claim: nothing runs."""
    if op.vjp is zero:
        return f"no derivative, by nature: {nature(op)}"
    if op.full_name not in LATTICES:
        return f"tested: {TESTED}"
    lattices = LATTICES[op.full_name]
    return f"proven by exact {methods(lattices)} over {'; '.join(map(str, lattices))}"


def known(op: Op) -> Status:
    """The status that `claim` claims."""
    if op.vjp is None:
        return "by parts" if op.composed else "no rule"
    return "by nature" if op.vjp is zero else "proven" if op.full_name in LATTICES else "tested"


def nature(op: Op) -> str:
    """The reason why an operator whose rule is `zero` has no derivative."""
    return BY_NATURE[op.cut({}, 0, 0)]


def methods(lattices: Sequence[Lattice]) -> str:
    """The methods of lattices in words."""
    return " and ".join(dict.fromkeys(lattice.by for lattice in lattices))


def _over(
    op: Op, ops: Ops, lattices: Sequence[Lattice], seed: int, strict: bool = True, used: Sequence[Shapes] = ()
) -> Proof:
    """The proof over all cases of lattices, which ends at the first case that is wrong."""
    found = Proof(op.full_name, "neither", methods(lattices), 0, "; ".join(map(str, lattices)), -np.inf)
    reasons: list[str] = []
    for lattice in lattices:
        for number, use in enumerate(lattice.uses):
            try:
                mismatch, odds = held(op, ops, use, lattice, seed + number)
            except LimitError:
                raise
            except (GradcheckError, NotExact, RuleError) as error:
                if isinstance(error, RuleError) and (strict or _refuted(error, use, used)):
                    return _wrong(found, use, Mismatch(str(error), "a cotangent for each operand, of its shape"))
                if strict or not isinstance(error, ModelError):  # one from elsewhere runs at some shapes alone
                    reasons.append(str(error))
                continue
            if mismatch is not None and op.composed and _agrees(op, ops, use, seed + number):
                reasons.append(ROUNDED)
                continue
            if mismatch is not None and not _at_ranks(use, used):
                reasons.append(ELSEWHERE.format(use))
                continue
            if mismatch is not None:
                return _wrong(found, *_narrowed(op, ops, use, lattice, seed + number, mismatch))
            found = structs.replace(found, cases=found.cases + 1, odds=max(found.odds, odds))
    says = reasons[0] if reasons else "" if found.cases else "its forward runs at no shape that is tried"
    status: Status = "proven" if found.cases else "neither"
    return structs.replace(
        found, status=status, outside=len(reasons), says=says, odds=found.odds if found.cases else 0.0
    )


def _refuted(error: RuleError, use: Use, used: Sequence[Shapes]) -> bool:
    """True if a rule that ends in an error is wrong: its forward ran, at ranks at which it is used."""
    return not isinstance(error.__cause__, UnsupportedError) and _at_ranks(use, used)


def _at_ranks(use: Use, used: Sequence[Shapes]) -> bool:
    """True if operands have the ranks that they have somewhere; nobody knows where an operator may be used otherwise."""
    ranks = [0 if x is None else len(x.shape) for x in use.inputs]
    return not used or ranks in [list(map(len, shapes)) for shapes in used]


def _agrees(op: Op, ops: Ops, use: Use, seed: int) -> bool:
    """True if the rule of a composed operator gives what those of its parts give, but for some roundings."""
    moved = [f"x{i}" for i in use.moved]

    def by(table: Ops) -> list[Any]:
        rng = np.random.default_rng(seed)
        tape = trace(use.graph(op), {**use.constants, **exact.numbers(op, use, rng)}, ops=table)
        weights = {y: exact.of_all_sizes(var.shape, rng) for y, var in exact.results(tape, use, rng).items()}
        made = zip(moved, exact.flows(tape, weights, moved)[1], strict=True)
        return [np.zeros_like(tape.named[x].value) if ct is None else ct.value for x, ct in made]

    try:
        pairs = zip(by(ops), by({**ops, op.key: replace(op, vjp=None)}), strict=True)
    except (ModelError, NotExact, RuleError):
        return False
    return all(np.abs(given - right).max() <= ROUNDINGS * np.abs(right).max() for given, right in pairs)


def _wrong(found: Proof, use: Use, mismatch: Mismatch) -> Proof:
    return structs.replace(found, status="wrong", case=str(use), given=mismatch.given, right=mismatch.right, odds=0.0)


def held(op: Op, ops: Ops, use: Use, lattice: Lattice, seed: int) -> tuple[Mismatch | None, float]:
    """The first mismatch of a case, and log2 of the odds; in each branch there are as many trials as these need."""
    rng, worst = np.random.default_rng([seed, use.entries]), -np.inf
    for branch in range(BRANCHES if lattice.compares else 1):
        odds = 0.0
        while odds > ODDS:
            mismatch, more = METHODS[lattice.by](op, ops, use, lattice, rng, (seed, branch))
            if mismatch is not None:
                return mismatch, 0.0
            odds += more
        worst = max(worst, odds)
    return None, worst


def _narrowed(op: Op, ops: Ops, use: Use, lattice: Lattice, seed: int, mismatch: Mismatch) -> tuple[Use, Mismatch]:
    """The same case by a single operand, if it is wrong there too."""
    for place in range(len(use.moved)) if len(use.moved) > 1 else ():
        alone = structs.replace(use, asked=place)
        try:
            found, _ = held(op, ops, alone, lattice, seed)
        except (ModelError, NotExact, RuleError):
            continue
        if found is not None:
            return alone, found
    return use, mismatch


# Operators from elsewhere

SHAPES = ((), (1,), (2,), (3,), (4,), (2, 2), (1, 3), (3, 1), (2, 1, 2), (1, 2, 2, 1))
PAIRED = ((2, 2), (2,)), ((3,), ()), ((), (3,)), ((2, 3), (3, 2)), ((1, 2), (2, 3)), ((2, 1, 2), (1, 2)), ((2,), (2, 2))
LARGEST = 4  # size that a shape of an operator's use keeps


def _unknown(op: Op, ops: Ops, inputs: int, outputs: int, used: Sequence[Shapes], seed: int) -> Proof:
    """The proof of an operator that has no lattice: by residues, else by integers if all its steps are exact."""
    shapes = [*SHAPES, *(PAIRED if inputs > 1 else ())]
    shapes += dict.fromkeys(small for small in map(_shrunk, used) if small not in PAIRED)
    asked = (None, *range(inputs)) if inputs > 1 else (None,)
    use = partial(_alike, op=op, inputs=inputs, outputs=outputs)
    axes = {"shapes": shapes, "asked": asked}
    first = _over(op, ops, [Lattice(axes, use, by="residues")], seed, strict=False, used=used)
    if first.status != "neither" or not _is_exact(op, ops, list(map(use, shapes)), seed):
        return first
    lattices = (Lattice(axes, use, degree=d, apart=True) for d in (1, 2, 3))
    tried = (_over(op, ops, [lattice], seed, strict=False, used=used) for lattice in lattices)
    return next((made for made in tried if made.status != "neither"), first)


def _shrunk(shapes: Shapes) -> Shapes:
    """The shapes with small sizes in the place of large ones: equal ones stay equal, and small ones may be meant so."""
    sizes = sorted({size for shape in shapes for size in shape})
    free = (size for size in count(2) if size not in sizes)
    small = {size: next(free) if size > LARGEST else size for size in sizes}
    return tuple(tuple(small[size] for size in shape) for shape in shapes)


def _is_exact(op: Op, ops: Ops, uses: Sequence[Use], seed: int) -> bool:
    """True if an operator is made of steps that are exact on integers: of others, results may be constant by rounding."""
    for use in uses:
        point = {**use.constants, **exact.numbers(op, use, np.random.default_rng(seed))}
        try:
            steps = trace(use.graph(op), point, ops=ops).steps
        except ModelError:
            continue
        return all(step.op.vjp is zero or step.op.linear or _by_integers(step.op) for step in steps)
    return False


def _by_integers(op: Op) -> bool:
    return op.full_name in LATTICES and methods(LATTICES[op.full_name]) == "integers"


def _alike(shapes: tuple[Any, ...], *, op: Op, inputs: int, outputs: int) -> Use:
    """A use with operands of one shape, or of several in turn; integers where the operator says that it takes some."""
    pair = shapes if shapes and isinstance(shapes[0], tuple) else (shapes, shapes)
    return Use(tuple(_operand(op, i, pair[i % len(pair)]) for i in range(inputs)), count=outputs)


def _operand(op: Op, place: int, shape: tuple[int, ...]) -> Any:
    ends = op.integers.get(place)
    if isinstance(ends, tuple):
        return np.full(shape, ends[1], np.int64)
    return np.zeros(shape, np.int64) if op.cut({}, place, 0) else Floats(shape)


def count_of(op: Op) -> int:
    """The number of operands that a kernel requires; one, if it takes any number."""
    return max(len(op.signature.inputs(16)[1]), 1) if op.signature.inputs(0)[1] else 1


# Parts

WITH_SIGNS = ("BINARY_OP", "COMPARE_OP", "UNARY_NEGATIVE")
MANY = 40  # entries of a table that is no longer one of functions
_WRITTEN_IN = ("gradcheck_cli.ops.", "gradcheck_cli.autodiff.symbolic")
SIGNS = {
    "+": "Add", "-": "Sub", "*": "Mul", "/": "Div", "**": "Pow", "@": "MatMul", "<": "Less", ">": "Greater",
    "<=": "LessOrEqual", ">=": "GreaterOrEqual", "UNARY_NEGATIVE": "Neg",
}  # fmt: skip


def _of_parts(op: Op) -> Proof:
    parts = parts_of(op)
    open_ = [part for part in parts if not _is_known(part)]
    proven = f"all proven but for {', '.join(open_)}" if open_ else "all proven, or without a derivative by nature"
    names = f"; its definition names {', '.join(parts)}: {proven}" if parts else ""
    return Proof(op.full_name, "by parts", says=f"composed of other operators, it needs no rule{names}", parts=parts)


def _is_known(name: str) -> bool:
    domain, _, own = name.rpartition(".")
    op = OPS.get((domain, own))
    return op is not None and known(op) in ("proven", "by nature", "by parts")


def parts_of(op: Op) -> tuple[str, ...]:
    """The operators that the definition of a composed one names, itself and in the functions that it calls."""
    if op.inner is not None:
        return tuple(sorted({f"{node.domain}.{node.op}".lstrip(".") for node in op.inner.all_nodes} - {"Constant"}))
    return tuple(sorted(_named_in(op.forward) - {op.full_name})) if op.composed else ()


def _named_in(function: Any) -> set[str]:
    """Operators that a function and those it calls name."""
    found, ahead, seen = set[str](), [function], set[int]()
    while ahead:
        each = ahead.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, str):
            found.update(op.full_name for domain in ("", "gradcheck") if (op := OPS.get((domain, each))) is not None)
        elif isinstance(each, partial):
            ahead += [each.func, *each.args]
        elif isinstance(each, Mapping | tuple) and len(each) < MANY:
            ahead += each.values() if isinstance(each, Mapping) else each
        elif isinstance(each, type) and each.__module__.startswith(_WRITTEN_IN):
            ahead += [getattr(member, "fget", member) for member in vars(each).values()]
        elif isinstance(each, FunctionType) and each.__module__.startswith(_WRITTEN_IN):
            ahead += _mentioned(each, found)
    return found


def _mentioned(function: FunctionType, found: set[str]) -> Iterator[Any]:
    """All that a function mentions; operators of its signs are added to those that are found."""
    yield from (cell.cell_contents for cell in function.__closure__ or ())
    codes = [function.__code__]
    for code in codes:
        codes.extend(each for each in code.co_consts if isinstance(each, CodeType))
        yield from (each for each in code.co_consts if isinstance(each, str))
        before = ""
        for step in dis.get_instructions(code):
            sign = step.argrepr.removesuffix("=") if step.opname == "BINARY_OP" else str(step.argval or step.opname)
            found.update([SIGNS[sign]] if step.opname in WITH_SIGNS and sign in SIGNS else ())
            if step.opname == "LOAD_GLOBAL":
                yield function.__globals__.get(step.argval)
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and before == "sym":
                yield getattr(symbolic, str(step.argval), None)
            before = str(step.argval)
