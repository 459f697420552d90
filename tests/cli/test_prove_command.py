"""`gradcheck prove`: what it prints of proven, tested, wrong and composed operators, and its exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from textwrap import dedent

import pytest

from tests.cli.conftest import Command

WRONG = """\
    gradcheck: 1
    ops:
      acme.Softplus:
        inputs: [x]
        outputs: [y]
        attrs: {beta: 1.0}
        forward: |
          e = Exp (x)
          one = Constant <value_float = 1.0> ()
          s = Add (e, one)
          y = Log (s)
        gradient: |
          s = Sigmoid (x)
          slight = Constant <value = double {1.000000000001}> ()
          t = Mul (s, slight)
          dx = Mul (dy, t)
      acme.Square:
        inputs: [x]
        outputs: [y]
        forward: y = Mul (x, x)
"""
UNDECIDED = """\
    gradcheck: 1
    ops:
      acme.Largest:
        inputs: [x]
        outputs: [y]
        forward: |
          k = Constant <value_ints = [1]> ()
          v, i = TopK (x, k)
          y = Exp (v)
        gradient: dx = Identity (x)
"""


def timeless(text: str) -> str:
    return re.sub(r"\d+\.\d+s", "TIME", text)


def spec(folder: Path, text: str, name: str = "own.gradcheck.yaml") -> str:
    (folder / name).write_text(dedent(text))
    return name


def test_operators_are_proven_in_a_table(gradcheck: Command) -> None:
    ran = gradcheck("prove", "relu", "Tanh", "Floor", "gradcheck.Angle")
    assert (ran.code, ran.err) == (0, "")
    assert timeless(ran.out) == dedent("""\
        operator         rule       cases    odds   time  method
        Relu             proven        11   2^-60  TIME  integers
        Tanh             proven        11  2^-101  TIME  residues
        Floor            by nature                 TIME
        gradcheck.Angle  tested                    TIME

        Floor: no derivative, by nature: it rounds

        4 operators: 2 proven, 1 by nature, 1 tested in TIME
    """)


def test_of_one_operator_all_is_said(gradcheck: Command) -> None:
    ran = gradcheck("prove", "Elu")
    assert "Elu is proven on 33 cases over shape (11 values), alpha (3); a wrong rule" in ran.out
    composed = gradcheck("prove", "Mish")
    assert composed.code == 0
    assert "its definition names Mul, Softplus, Tanh: all proven" in composed.out


def test_a_wrong_rule_of_a_spec_fails_with_the_smallest_case(gradcheck: Command, folder: Path) -> None:
    ran = gradcheck("prove", spec(folder, WRONG))
    assert ran.code == 1
    assert "acme.Softplus  WRONG" in ran.out
    assert "WRONG acme.Softplus: inputs []\n  the rule gives  1.000000000001 times the derivative\n" in ran.out
    assert "acme.Square: composed of other operators, it needs no rule" in ran.out


def test_a_rule_that_no_exact_number_decides_is_neither(gradcheck: Command, folder: Path) -> None:
    ran = gradcheck("prove", spec(folder, UNDECIDED))
    assert ran.code == 3
    assert "TopK has no exact meaning here" in ran.out


INDEXED = """\
    gradcheck: 1
    ops:
      acme.Pick:
        inputs: [x, i]
        outputs: [y]
        cuts: [i]
        forward: y = GatherElements (x, i)
        gradient: |
          z = Sub (x, x)
          dx = ScatterElements <reduction = "add"> (z, i, dy)
      acme.Divides:
        inputs: [x]
        outputs: [y]
        forward: |
          z = Sub (x, x)
          y = Div (x, z)
        gradient: dx = Identity (dy)
      acme.Wide:
        inputs: [x]
        outputs: [y]
        forward: |
          n = Constant <value_ints = [3000000]> ()
          f = Constant <value_ints = [-1]> ()
          r = Reshape (x, f)
          e = Exp (r)
          t = Tile (e, n)
          y = ReduceSum <keepdims = 0> (t)
        gradient: dx = Mul (x, dy)
"""


def test_operators_of_indices_are_proven_and_those_beyond_exact_numbers_end_soon(
    gradcheck: Command, folder: Path
) -> None:
    ran = gradcheck("prove", spec(folder, INDEXED), "--output-format", "json")
    proofs = json.loads(ran.out)["proofs"]
    assert (ran.code, [proof["status"] for proof in proofs]) == (3, ["proven", "neither", "neither"])
    assert [proof["says"] for proof in proofs[1:]] == [
        "roots, or a division by 0, that no draw fits", "Tile has more entries here than are decided exactly",
    ]  # fmt: skip


GELU = """\
    gradcheck: 1
    ops:
      acme.Gelu:
        inputs: [x]
        outputs: [y]
        forward: y = Gelu (x)
        gradient: |
          r = Constant <value = double {0.7071067811865476}> ()
          c = Constant <value = double {PDF}> ()
          half = Constant <value = double {0.5}> ()
          xr = Mul (x, r)
          e = Erf (xr)
          eh = Mul (e, half)
          cdf = Add (eh, half)
          square = Mul (xr, xr)
          minus = Neg (square)
          density = Exp (minus)
          pdf = Mul (density, c)
          xp = Mul (x, pdf)
          s = Add (cdf, xp)
          dx = Mul (dy, s)
"""


@pytest.mark.parametrize("constant, code, said", [
    ("0.3989422804014327", 3, "agrees with the derivative but for some roundings"),
    ("0.3989422804018", 1, "WRONG acme.Gelu: inputs []"),
])  # fmt: skip
def test_a_rounded_constant_is_not_taken_for_a_wrong_rule(
    gradcheck: Command, folder: Path, constant: str, code: int, said: str
) -> None:
    ran = gradcheck("prove", spec(folder, GELU.replace("PDF", constant)))
    assert (ran.code, said in " ".join(ran.out.split())) == (code, True)


def test_json_has_every_field(gradcheck: Command) -> None:
    ran = gradcheck("prove", "Exp", "LSTM", "--output-format", "json")
    made = json.loads(ran.out)
    exp, lstm, own = made["proofs"]
    assert (ran.code, made["schema"]) == (0, "gradcheck.proofs/1")
    assert (exp["operator"], exp["status"], exp["method"], exp["cases"]) == ("Exp", "proven", "residues", 11)
    assert exp["odds"] < -60 < 0 < exp["seconds"]
    assert (lstm["status"], own["operator"], own["status"]) == ("by parts", "gradcheck.LSTM", "tested")
    assert "gradcheck.LSTM" in lstm["parts"]


@pytest.mark.parametrize("args, message", [
    ((), "name operators or a spec, or give --all"),
    (("--all", "Relu"), "name operators or a spec, or give --all, not both"),
    (("Convv",), "no operator 'Convv' is known. Did you mean 'Conv'?"),
    (("mlp.onnx",), "mlp.onnx is a model; prove takes operators, such as Conv, and specs."),
    (("missing.yaml",), "missing.yaml: cannot be read"),
    (("wrong.gradcheck.yaml", "--timeout", "no"), "'no' is no duration"),
])  # fmt: skip
def test_what_cannot_be_proven_is_a_usage_error(gradcheck: Command, args: tuple[str, ...], message: str) -> None:
    ran = gradcheck("prove", *args)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


def test_a_spec_without_operators_is_told_so(gradcheck: Command, folder: Path) -> None:
    plain = "gradcheck: 1\ngraphs:\n  g: {inputs: {x: {shape: [2]}}, nodes: 'y = Exp (x)', outputs: [y]}\n"
    ran = gradcheck("prove", spec(folder, plain))
    assert (ran.code, "defines no operators under 'ops'" in ran.err) == (2, True)


def test_names_of_a_spec_cannot_move_the_cursor(gradcheck: Command, folder: Path) -> None:
    text = dedent(WRONG).replace("acme.Softplus", '"acme.Soft\\u001b[2Jplus"')
    (folder / "own.gradcheck.yaml").write_text(text)
    ran = gradcheck("prove", "own.gradcheck.yaml")
    assert "\x1b" not in ran.out + ran.err


def test_operators_of_another_name_are_all_proven(gradcheck: Command) -> None:
    ran = gradcheck("prove", "trilu")
    assert [line.split()[:2] for line in ran.out.splitlines()[1:3]] == [
        ["Trilu", "proven"],
        ["com.microsoft.Trilu", "proven"],
    ]


@pytest.mark.slow
def test_all_rules_are_proven_or_tested_in_less_than_two_minutes(gradcheck: Command) -> None:
    ran = gradcheck("prove", "--all", "--output-format", "json")
    proofs = json.loads(ran.out)["proofs"]
    assert ran.code == 0
    assert sum(proof["status"] == "proven" for proof in proofs) >= 0.8 * len(proofs)
    assert {proof["status"] for proof in proofs} == {"proven", "tested"}


RANKED = """\
    gradcheck: 1
    ops:
      acme.AddBias:
        inputs: [x, b]
        outputs: [y]
        forward: y = Add (x, b)
        gradient: |
          z = Constant <value_ints = [0]> ()
          dx = Identity (dy)
          db = RULE
    graphs:
      net: {inputs: {x: {shape: [4, 3]}, b: {shape: [3]}}, nodes: "y = acme.AddBias (x, b)", outputs: [y]}
"""
MISSHAPEN = "gives 'b' a gradient of the shape"


@pytest.mark.parametrize("rule, code, said", [
    ("ReduceSum <keepdims = 0> (dy, z)", 0, "acme.AddBias is proven on"),
    ("Identity (dy)", 1, f"{MISSHAPEN} [2,2], not [2]: a sum over the axes along which 'b' is broadcast is missing"),
    ("ReduceSum (dy, z)", 1, f"{MISSHAPEN} [1,2], not [2]"),
    ("ReduceSum <keepdims = 0> (dy)", 1, f"{MISSHAPEN} [], not [2]"),
    ("Concat <axis = 7> (dy)", 1, "WRONG acme.AddBias: inputs [2, 2], [2] the rule gives ModelError: Concat 'db'"),
    ("Nonsense (dy)", 3, "unknown operator 'Nonsense'"),
])  # fmt: skip
def test_a_rule_is_wrong_where_it_has_no_gradient_of_the_operands_shape_at_ranks_of_the_graphs(
    gradcheck: Command, folder: Path, rule: str, code: int, said: str
) -> None:
    ran = gradcheck("prove", spec(folder, RANKED.replace("RULE", rule)))
    assert (ran.code, said in " ".join(ran.out.split())) == (code, True), ran.out


CIRCULAR = """\
    gradcheck: 1
    ops:
      acme.Scores:
        inputs: [x, k]
        outputs: [y]
        forward: |
          kx = Mul (x, k)
          ax = Constant <value_ints = [-1]> ()
          y = ReduceSum <keepdims = 0> (kx, ax)
        gradient: |
          ax = Constant <value_ints = [-1]> ()
          z = Constant <value_ints = [0]> ()
          d = Unsqueeze (dy, ax)
          dx = Mul (d, k)
          dkx = Mul (d, x)
          dk = ReduceSum <keepdims = KEEP> (dkx, z)
"""
USED = """\
    graphs:
      net: {inputs: {x: {shape: [B, 5]}, k: {shape: [5]}}, nodes: "y = acme.Scores (x, k)", outputs: [y]}
"""


FIRST_TWO = """\
    gradcheck: 1
    ops:
      acme.Scores:
        inputs: [x, k]
        outputs: [y]
        forward: |
          first = Constant <value_int = 0> ()
          second = Constant <value_int = 1> ()
          k0 = Gather (k, first)
          k1 = Gather (k, second)
          a = Mul (k0, x)
          y = Add (a, k1)
        gradient: |
          first = Constant <value_int = 0> ()
          k0 = Gather (k, first)
          dx = Mul (k0, dy)
          p = Mul (dy, x)
          z = Constant <value_ints = [0]> ()
          s0 = ReduceSum <keepdims = 0> (p)
          s1 = ReduceSum <keepdims = 0> (dy)
          u0 = Unsqueeze (s0, z)
          u1 = Unsqueeze (s1, z)
          dk = Concat <axis = 0> (u0, u1)
    graphs:
      net: {inputs: {x: {shape: [2, 7]}, k: {shape: [2]}}, nodes: "y = acme.Scores (x, k)", outputs: [y]}
"""


def test_small_sizes_of_a_graph_are_kept(gradcheck: Command, folder: Path) -> None:
    ran = gradcheck("prove", spec(folder, FIRST_TWO))
    assert ran.code == 0, ran.out


@pytest.mark.parametrize("graphs, keep, code", [(USED, 0, 0), (USED, 1, 1), ("", 0, 1)])
def test_a_rule_that_holds_at_the_ranks_that_a_spec_states_is_not_wrong_for_others(
    gradcheck: Command, folder: Path, graphs: str, keep: int, code: int
) -> None:
    ran = gradcheck("prove", spec(folder, (CIRCULAR + graphs).replace("KEEP", str(keep))))
    assert ran.code == code, ran.out


TEMPERED = """\
    gradcheck: 1
    ops:
      acme.Tempered:
        inputs: [x]
        outputs: [y]
        attrs: {t: 1.0}
        forward: |
          t = Constant <value_float = @t> ()
          tx = Mul (t, x)
          FUNCTION
        gradient: |
          t = Constant <value_float = @t> ()
          GRADIENT
"""


AT_HALF = "WRONG acme.Tempered[t=0.5]: inputs [] the rule gives 2.0 times the derivative"
POLE = "half = Constant <value_float = 0.5> () d = Sub (t, half) r = Reciprocal (d) y = Mul (x, r)"


@pytest.mark.parametrize("function, gradient, code, said", [
    ("y = Exp (tx)", "ty = Mul (t, y) dx = Mul (dy, ty)", 0, "2 operators: 2 proven"),
    ("y = Exp (tx)", "dx = Mul (dy, y)", 1, AT_HALF),
    (POLE, "two = Add (t, t) dx = Mul (dy, two)", 0, "Tempered: numbers among its attributes were only ever their"),
])  # fmt: skip
def test_numbers_of_attributes_are_not_their_defaults_alone(
    gradcheck: Command, folder: Path, function: str, gradient: str, code: int, said: str
) -> None:
    ran = gradcheck("prove", spec(folder, TEMPERED.replace("FUNCTION", function).replace("GRADIENT", gradient)))
    assert (ran.code, said in " ".join(ran.out.split())) == (code, True), ran.out
