"""Proofs of rules: what is proven, what the proof rests on, and operators from elsewhere."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.errors import UsageError
from gradcheck_cli.op import zero
from gradcheck_cli.ops import OPS
from gradcheck_cli.reference import Proof, claim, named, parts_of, proof_of, prove
from gradcheck_cli.reference.exact import (
    Dual,
    NotExact,
    P,
    bits_of,
    covering,
    each,
    fraction,
    rational,
    residue,
    residues,
    slope,
)
from gradcheck_cli.reference.lattices import LATTICES
from gradcheck_cli.reference.residues import Field
from tests.ops.case import Case
from tests.ops.cases import CASES

ROOT = Path(__file__).parents[2]
RULES = [op for op in OPS.values() if op.vjp is not None and op.vjp is not zero]
ONLY_TESTED = {
    "DFT", "gradcheck.FFT", "gradcheck.IFFT", "gradcheck.Angle", "gradcheck.RNN", "gradcheck.RNNGrad", "gradcheck.GRU",
    "gradcheck.GRUGrad", "gradcheck.LSTM", "gradcheck.LSTMGrad",
}  # fmt: skip
BY_ATTRIBUTES = {  # parts that an attribute, a graph or the shape of a method's object decides on are not named
    "If", "Loop", "Scan", "FlexAttention", "LinearClassifier", "FusedMatMulActivation", "FusedGemm", "FusedConv",
    "LpNormalization", "GlobalLpPool", "RNN", "GRU", "LSTM", "DivGrad", "LayerNormalizationGrad", "ResizeGrad",
    "SimplifiedLayerNormalizationGrad", "InvertibleLayerNormalizationGrad",
}  # fmt: skip
COMPOSED_CASES = [case for case in CASES if OPS[case.domain, case.op].composed and type(case) is Case]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("op", RULES, ids=lambda op: op.full_name)
def test_a_rule_is_proven_on_all_cases_of_its_lattice_or_said_to_be_only_tested(op: gc.Op) -> None:
    proof = proof_of(op, OPS)
    assert proof.status == ("tested" if op.full_name in ONLY_TESTED else "proven")
    assert claim(op).startswith(proof.status)
    if proof.status == "proven":
        cases = [use for lattice in LATTICES[op.full_name] for use in lattice.uses]
        assert (proof.cases, proof.outside) == (len(cases), 0)
        assert proof.odds <= -60


def test_four_of_five_rules_are_proven() -> None:
    known = [op for op in RULES if op.full_name in LATTICES]
    assert len(known) >= 0.8 * len(RULES)
    assert {op.full_name for op in RULES} - set(LATTICES) == ONLY_TESTED
    assert set(LATTICES) <= {op.full_name for op in RULES}


def test_a_rule_that_is_only_tested_has_cases_among_the_tests() -> None:
    assert {f"{case.domain}.{case.op}".lstrip(".") for case in CASES} >= ONLY_TESTED


def test_a_derivative_that_is_zero_by_nature_is_told_with_the_reason() -> None:
    proofs = {proof.operator: proof for proof in prove(OPS, [op.full_name for op in OPS.values() if op.vjp is zero])}
    assert {proof.status for proof in proofs.values()} == {"by nature"}
    assert proofs["Floor"].says == "no derivative, by nature: it rounds"
    assert proofs["Shape"].says == "no derivative, by nature: its result depends on shapes alone"


def test_every_size_from_one_to_four_and_a_larger_one_is_in_the_lattices() -> None:
    for name, lattices in LATTICES.items():
        shapes = [x.shape for lattice in lattices for use in lattice.uses for _, x in use.floats]
        sizes = {size for shape in shapes for size in shape}
        assert name in ("Range", "OneHot") or ({1, 2, 3, 4} <= sizes and max(sizes) > 4), name


def test_the_same_lattice_gives_the_same_cases() -> None:
    for lattice in LATTICES["Pad"]:
        again = [str(use) for use in replace_lattice(lattice).uses]
        assert again == [str(use) for use in lattice.uses]


def replace_lattice(lattice: Any) -> Any:
    return type(lattice)(lattice.axes, lattice.use, lattice.degree, lattice.apart, lattice.by, lattice.strength)


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_all_values_of_any_axes_occur_together_where_that_is_possible(strength: int) -> None:
    axes = {"a": (0, 1, 2), "b": (0, 1), "c": (0, 1, 2, 3), "d": (0, 1), "e": (0, 1, 2)}
    rows = [*covering(axes, strength, lambda row: row["a"] + row["c"] != 4)]
    assert all(row["a"] + row["c"] != 4 for row in rows)
    assert len(rows) < 72
    possible = [dict(zip(axes, row, strict=True)) for row in product(*axes.values()) if row[0] + row[2] != 4]
    for group in combinations(axes, strength):
        assert {tuple(row[n] for n in group) for row in rows} == {tuple(row[n] for n in group) for row in possible}


@pytest.mark.parametrize("polynomial, degree, derivative", [
    (lambda t: 5 + 0 * t, 0, 0), (lambda t: 3 - 7 * t, 1, -7), (lambda t: t * t - 4 * t, 2, -4),
    (lambda t: 2 * t**4 - t**3 + 11 * t, 4, 11), (lambda t: t**3 + t, 2, None), (lambda t: abs(t - 1), 1, None),
])  # fmt: skip
def test_a_slope_is_exact_for_a_polynomial_and_refused_for_another_function(
    polynomial: Any, degree: int, derivative: int | None
) -> None:
    assert slope([polynomial(t) for t in range(degree + 3)], degree) == derivative


@pytest.mark.parametrize("name", sorted(LATTICES))
def test_numbers_are_so_small_that_no_product_of_a_rule_is_rounded(name: str) -> None:
    for lattice in LATTICES[name]:
        for use in lattice.uses if lattice.by == "integers" and not lattice.apart else ():
            degree = max(lattice.degree_of(use), 1)
            largest = (degree + 3) * 2 ** bits_of(use, lattice, degree) * use.multiple
            assert largest**degree * max(use.entries, 1) < 2**53, str(use)


def field() -> Field:
    return Field(np.random.default_rng(0))


def test_the_exponential_turns_sums_into_products() -> None:
    f = field()
    a, b = f.random(), f.random()
    both = f.exp((a + b) % P)
    assert f.exp(a) * f.exp(b) % P == both
    c = f.random()
    assert f.exp((a + c) % P) * f.exp(-c % P) % P == f.exp(a)
    assert f.exp((a - b) % P) * f.exp(b) % P == f.exp(a)
    assert f.exp(a * pow(2, -1, P) % P) ** 2 % P == f.exp(a)
    assert f.exp(0) == 1
    assert f.exp(3 * a % P) == pow(f.exp(a), 3, P)


def test_the_logarithm_is_the_inverse_of_the_exponential() -> None:
    f = field()
    x = f.random()
    assert f.exp(f.log(x)) == x
    assert f.log(f.exp(x)) == x
    assert f.exp(2 * f.log(x) % P) == x * x % P


def test_cosine_and_sine_lie_on_the_circle_and_turn_by_multiples() -> None:
    f = field()
    x = f.random()
    (c, s), (c2, s2), (c_, s_) = f.cis(x), f.cis(2 * x % P), f.cis(-x % P)
    assert (c * c + s * s) % P == 1
    assert (c2, s2) == ((c * c - s * s) % P, 2 * c * s % P)
    assert (c_, s_) == (c, -s % P)


def test_square_roots_are_those_of_positive_numbers() -> None:
    f = field()
    a, b = (int(v) for v in f.like(np.array([2.0, 3.0])))
    assert f.sqrt(a) ** 2 % P == a
    assert f.sqrt(a * b % P) == f.sqrt(a) * f.sqrt(b) % P
    negative = int(f.like(np.array([-2.0]))[0])
    assert f.sqrt(negative * negative % P) == -negative % P


@pytest.mark.parametrize("factor", [2.0, -0.5, 1 + 1e-12, 1 - 2**-40, 0.1, 3.0])
def test_a_factor_is_recovered_from_two_residues(factor: float) -> None:
    right = 123456789**9 % P
    assert fraction(residue(factor) * right * pow(right, -1, P) % P) == factor


def test_a_residue_is_that_of_the_exact_number() -> None:
    assert residues(np.float64([0.1, -3.0, 0.0])).tolist() == [residue(0.1), P - 3, 0]
    assert residue(0.1) * 10 % P != 1
    assert residues(np.bool_([True, False])).tolist() == [1, 0]
    with pytest.raises(NotExact, match="not finite"):
        residues(np.float64([np.inf]))


def test_coefficients_are_the_fractions_that_were_rounded() -> None:
    assert rational(np.float64([1 / 3, 0.25]))[0] * 3 == 1
    with pytest.raises(NotExact, match="no fraction"):
        rational(np.float64([np.sqrt(0.5)]))


def test_a_product_and_a_quotient_have_the_derivative_of_products_and_quotients() -> None:
    x, y = (Dual(each(lambda n: n, np.array([v], object)), np.array([d], object)) for v, d in ((5, 2), (7, 3)))
    assert (x * y).rate.tolist() == [(5 * 3 + 7 * 2) % P]
    assert (x / y * y).rate.tolist() == x.rate.tolist()
    assert (x**-1 * x).rate.tolist() == [0]
    assert (1 - x).rate.tolist() == [P - 2]


@pytest.mark.one_in(8)
@pytest.mark.parametrize("case", [c for c in COMPOSED_CASES if c.op not in BY_ATTRIBUTES], ids=lambda case: case.id)
def test_a_composed_operator_names_all_of_its_parts(case: Case) -> None:
    op = OPS[case.domain, case.op]
    leaves, ahead = set[str](), [op]
    while ahead:
        for name in parts_of(ahead.pop()):
            domain, _, own = name.rpartition(".")
            if name not in leaves and (domain, own) in OPS:
                leaves.add(name)
                ahead.append(OPS[domain, own])
    assert {step.op.full_name for step in case.tape().steps} <= leaves


# Operators from elsewhere


def cube_vjp(ct: gc.Var, y: gc.Var, x: gc.Var) -> tuple[gc.Var]:
    return (ct * x * x * 3.0,)


def doubled(ct: gc.Var, y: gc.Var, x: gc.Var) -> tuple[gc.Var]:
    return (ct * 2.0,)


def failing(ct: gc.Var, y: gc.Var, x: gc.Var) -> tuple[gc.Var]:
    raise KeyError("beta")


def own(forward: Any, vjp: Any, **more: Any) -> gc.Op:
    return gc.Op("Own", forward, vjp, domain="acme", **more)


COMPOSED = own(lambda x: x * x * x, cube_vjp, composed=True)
FOREIGN: list[tuple[gc.Op, str]] = [
    (COMPOSED, "proven"),
    (replace(COMPOSED, vjp=doubled), "wrong"),
    (replace(COMPOSED, vjp=None), "by parts"),
    (own(lambda x: x * 2, doubled, linear="each"), "proven"),
    (own(lambda x: x * 3, doubled, linear="each"), "wrong"),
    (own(lambda x: x * 2, doubled), "neither"),  # nobody says that its kernel is exact on integers
    (own(np.tanh, lambda ct, y, x: (None,)), "neither"),  # constant on large integers, by rounding
    (own(np.tanh, None), "no rule"),
    (
        own(
            lambda x: x * x,
            lambda ct, y, x: (ct * gc.symbolic.cast(gc.symbolic.cast(x, np.int64), x.dtype) * 2.0,),
            composed=True,
        ),
        "wrong",
    ),  # what is cast to integers is constant
    (own(np.sign, zero), "by nature"),
]


@pytest.mark.parametrize("op, status", FOREIGN)
def test_an_operator_from_elsewhere_is_proven_by_its_steps(op: gc.Op, status: str) -> None:
    [proof] = prove({**OPS, op.key: op}, ["acme.own"])
    assert (proof.operator, proof.status) == ("acme.Own", status)


CLIPPING: dict[str, Any] = {  # what a rule makes of its cotangent first
    "entries at 1.5": lambda ct: gc.symbolic.clip(ct, -1.5, 1.5),
    "entries at 5": lambda ct: gc.symbolic.clip(ct, -5.0, 5.0),
    "entries at 100": lambda ct: gc.symbolic.clip(ct, -100.0, 100.0),
}


@pytest.mark.parametrize("name", CLIPPING)
@pytest.mark.parametrize("op", ["Tanh", "Exp", "Sqrt"])
def test_a_rule_that_clips_its_cotangent_is_not_proven(op: str, name: str) -> None:
    right = OPS["", op].vjp
    assert right is not None
    clips = replace(OPS["", op], vjp=lambda ct, y, x: right(CLIPPING[name](ct), y, x))
    assert proof_of(clips, OPS).status == "wrong"


def test_a_kernel_of_elsewhere_with_the_name_of_a_known_one_is_not_taken_for_it() -> None:
    op = gc.Op("Tanh", np.tanh, OPS["", "Tanh"].vjp, domain="acme")
    assert proof_of(op, {**OPS, op.key: op}).status == "neither"


def test_a_rule_that_ends_in_an_error_is_wrong() -> None:
    proof = proof_of(replace(OPS["", "Tanh"], vjp=failing), OPS)
    given = "ModelError: node 0 Tanh 'y0': the rule of Tanh raises KeyError: 'beta'"
    assert (proof.status, proof.given) == ("wrong", given)


def test_a_rule_that_forgets_an_operand_is_told_with_the_operand() -> None:
    forgetful = replace(OPS["", "Mul"], vjp=lambda ct, y, a, b: (ct * b, None))
    proof = proof_of(forgetful, OPS)
    assert proof.status == "wrong"
    assert proof.case.endswith("by input 1")
    assert proof.given == "0"


def test_a_smallest_case_is_shown_with_the_factor() -> None:
    wrong = replace(OPS["", "Exp"], vjp=lambda ct, y, x: (ct * y * (1 + 1e-12),))
    proof = proof_of(wrong, OPS)
    assert proof.case == "inputs []"
    assert (proof.given, proof.right) == ("1.000000000001 times the derivative", "the derivative")


def test_names_are_found_in_any_case_and_a_misspelt_one_gets_the_nearest() -> None:
    assert [op.full_name for op in named(OPS, ["conv", "COM.microsoft.pad"])] == ["Conv", "com.microsoft.Pad"]
    assert named(OPS, None) == RULES
    with pytest.raises(UsageError, match=r"no operator 'Convv' is known\. Did you mean 'Conv'"):
        named(OPS, ["Convv"])


def test_the_same_seed_gives_the_same_proof() -> None:
    def of(seed: int) -> Proof:
        return replace_seconds(proof_of(OPS["", "PRelu"], OPS, seed=seed))

    assert of(0) == of(0)
    assert of(7).status == "proven"


def replace_seconds(proof: Proof) -> Proof:
    return type(proof)(**{name: getattr(proof, name) for name in proof.__struct_fields__ if name != "seconds"})


def test_a_plain_check_imports_nothing_of_it() -> None:
    code = "import sys, gradcheck_cli.cli as c; c.main(['examples/mlp.onnx']); print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "gradcheck_cli.reference" not in ran.stdout.splitlines()[-1]
