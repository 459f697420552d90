"""A severed pair in a run: gates, waivers, baselines, other ys, default xs, two models, orders of outcomes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import gradcheck_cli as gc
from gradcheck_cli.checks.inspection import inspect
from gradcheck_cli.checks.procedure import Procedure
from gradcheck_cli.cli.zoo.changes import compared
from gradcheck_cli.errors import UnsupportedError
from gradcheck_cli.op import rounding
from gradcheck_cli.ops import OPS
from gradcheck_cli.points.targets import choose_x, choose_y
from gradcheck_cli.results.measures import Spot
from gradcheck_cli.results.record import Check, Report
from gradcheck_cli.settings import Settings
from tests.checking.small import model
from tests.diff.twins import Twins, diff, net, read_proto

W = np.linspace(-1, 1, 12).reshape(4, 3)
TWO = net(
    "a (float[2,4] x) => (float[2,3] logits, float[2,3] hard) "
    "{ logits = MatMul (x, W)  r = Round (logits)  hard = Tanh (r) }", W=W,
)  # fmt: skip


def records(proto: ModelProto, **settings: Any) -> dict[str, Check]:
    return {f"{c.y}/{c.x}": c for c in Procedure(read_proto(proto, "net.onnx"), Settings(**settings)).run("net")}


@pytest.mark.parametrize("nodes, status, said", [
    ("q = Round (x)  d = Sub (q, x)  y = Add (x, d)", "severed", "node 2 Add 'y' takes away what it adds: if this"),
    ("q = Round (x)  d = Sub (q, x)  t = Add (x, d)  e = Mul (d, d)  y = Add (t, e)", "pass", "node 2 Add 't' takes away"),
    ("q = Round (x)  y = Mul (q, half)", "severed", ""), ("q = Tanh (x)  d = Sub (q, half)  y = Add (x, d)", "pass", ""),
])  # fmt: skip
def test_sums_that_take_away_what_they_add_are_told(nodes: str, status: str, said: str) -> None:
    proto = net(f"a (float[2,4] x) => (float[2,4] y) {{ {nodes} }}", half=np.full((2, 4), 0.5, "f"))
    [record] = records(proto).values()
    found = [note for note in record.notes if "takes away" in note]
    assert (record.status, len(found), said in "".join(found)) == (status, int(bool(said)), True)
    [through] = records(proto, straight_through=True).values()
    assert (through.status, [note for note in through.notes if "takes away" in note]) == ("pass", [])


def test_the_gate_is_a_matter_of_x() -> None:
    found = records(TWO)
    assert {key: (c.status, c.gates) for key, c in found.items()} == {
        "logits/x": ("pass", ()),
        "hard/x": ("severed", ()),
    }
    assert found["hard/x"].severed is not None
    assert found["hard/x"].severed.others == ("logits",)
    assert found["hard/x"].passes
    alone = records(TWO, y=("hard",))
    assert alone["hard/x"].gates == ("severed",)
    assert Report(tuple(alone.values())).exit_code == 1


STEEP = net(
    "a (float[2,4] x) => (float[2,3] hard) "
    "{ a = MatMul (x, W)  r = Round (a)  c = MatMul (r, V)  d = Sigmoid (c)  e = MatMul (d, V)  hard = Tanh (e) }",
    W=W, V=1000 * np.eye(3),
)  # fmt: skip


@pytest.mark.parametrize("tested", [TWO, STEEP], ids=["flat", "a gradient that vanishes behind the cut"])
def test_a_severed_pair_has_no_words_of_health(tested: ModelProto) -> None:
    [record] = records(tested, y=("hard",)).values()
    health = record.gradient["health"]
    assert (record.status, health.shows, health.ratio, health.steepest, health.lost) == (
        "severed",
        (),
        None,
        None,
        None,
    )


SIZED = """s = Shape (x)  z = ConstantOfShape (s)  a = Add (x, z)  t = Shape (x)  o = ConstantOfShape (t)
           u = Shape (x)  v = Expand (one, u)  b = Add (o, v)"""
SIZES = {  # how it goes on, the operators that cut x off, and what is said of them
    "and a rounding": ("q = Round (a)  y = Add (q, b)", ["Round"], "its derivative is zero wherever it exists"),
    "and a quantizer": (
        "q = QuantizeLinear (a, one, zero)  d = DequantizeLinear (q, one, zero)  y = Add (d, b)", ["QuantizeLinear"],
        "quantized for inference"),
    "alone": ("y = Mul (b, b)", ["Shape", "Shape"], "its derivative is zero wherever it exists"),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_sizes_of_x_are_named_as_its_cut_where_there_is_no_other(name: str) -> None:
    """Files with open dimensions read the shape of x wherever they make a tensor like it."""
    nodes, ops, reason = SIZES[name]
    text = f"a (float[2,3] x) => (float[2,3] y) {{ {SIZED} {nodes} }}"
    proto = net(text, one=np.float32(1), zero=np.uint8(128))
    [record] = records(proto).values()
    assert (record.status, record.severed and [spot.op for spot in record.severed.cut]) == ("severed", ops)
    assert reason in record.message


def test_a_failure_comes_before_a_cut() -> None:
    """An operator that says of a smooth operand that it has no derivative is wrong, as ever."""
    lying = {**OPS, ("", "Tanh"): replace(OPS["", "Tanh"], vjp=OPS["", "Round"].vjp, cuts=rounding)}
    [record] = gc.check(model(("Mul", "x x", "h"), ("Tanh", "h", "y")), "x", "y", ops=lying).checks
    assert (record.status, record.code) == ("fail", "GC101")


def test_a_rule_that_gives_none_is_no_declaration() -> None:
    silent = {**OPS, ("", "Round"): replace(OPS["", "Round"], vjp=lambda ct, y, x: (None,), cuts=None)}
    [record] = gc.check(model(("Mul", "x x", "h"), ("Round", "h", "y")), "x", "y", ops=silent).checks
    assert (record.status, record.severed) == ("pass", None)


@pytest.mark.parametrize("gradient, cuts, status", [
    ("dx = Mul (dy, x)\n      dx = Sub (dx, dx)", "", "pass"), ("", "", "severed"), ("", "cuts: [x]", "severed"),
])  # fmt: skip
def test_operators_of_a_spec_are_gone_into_and_may_say_what_they_cut(
    gradient: str, cuts: str, status: str, tmp_path: Path
) -> None:
    body = "gradient: |\n      d0 = Mul (dy, x)\n      dx = Sub (d0, d0)" if gradient else ""
    (tmp_path / "a.gradcheck.yaml").write_text(f"""
gradcheck: 1
ops:
  acme.Step:
    inputs: [x]
    outputs: [y]
    {cuts}
    forward: |
      h = Round (x)
      y = Mul (h, h)
    {body}
graphs:
  a:
    inputs: {{x: {{shape: [3]}}}}
    nodes: |
      s = acme.Step (x)
      y = Tanh (s)
    outputs: [y]
""")
    [record] = gc.check(gc.load(tmp_path / "a.gradcheck.yaml")).checks
    assert record.status == status
    if status == "severed" and not cuts:
        assert record.severed is not None
        assert [spot.inside for spot in record.severed.cut] == ["forward of node 0 Step 's'"]


def test_a_pass_that_becomes_severed_is_newly_failing() -> None:
    [was, now] = records(TWO).values()
    for gates in ((), ("severed",)):
        changes = compared([replace(was, id="one")], [replace(now, id="one", gates=gates)])
        assert [change.kind for change in changes] == ["newly failing"]


ONLY_SELECTING = [  # what is made of the second input, whether it is no x by default
    ("m = Greater (w, half)  f = Cast <to = 1> (m)  y = Mul (x, f)", True),
    ("i = Cast <to = 7> (w)  y = Gather <axis = 0> (x, i)", True),
    ("l = Mul (w, two)  r = Round (l)  m = Less (r, x)  f = Cast <to = 1> (m)  y = Mul (x, f)", True),
    ("s = Shape (w)  y = Expand (x, s)", True),
    ("m = Less (w, half)  y = Where (m, x, half)", True),
    ("k = ArgMax <axis = 0> (x)  e = Gather (w, k)  m = Less (e, half)  f = Cast <to = 1> (m)  y = Mul (x, f)", True),
    ("l = Mul (w, x)  m = Less (l, half)  y = Where (m, x, half)", False),  # x takes part before it decides
    ("l = MatMul (w, V)  m = Less (l, half)  y = Where (m, x, half)", False),  # a weight does
    ("r = Round (w)  y = Mul (x, r)", False),  # it is rounded, and decides nothing
    ("y = Mul (x, w)", False),
    ("m = Greater (w, half)  f = Cast <to = 1> (m)  g = Mul (f, w)  y = Mul (x, g)", False),
]


@pytest.mark.parametrize("text, left_out", ONLY_SELECTING)
def test_an_input_that_only_selects_is_no_x_by_default(text: str, left_out: bool) -> None:
    given = {"half": 0.5, "two": 2.0, "V": np.eye(4)}
    constants = {name: value for name, value in given.items() if f"{name})" in text or f"{name}," in text}
    source = read_proto(net(f"a (float[4] x, float[4] w) => (float[4] y) {{ {text} }}", **constants), "net.onnx")
    graph = source.graph
    assert choose_x(graph, choose_y(graph)) == (("x",) if left_out else ("x", "w"))
    said = {t.name: t.gradient for t in inspect(source, Settings()).tensors}
    assert ("only selects" in said["w"]) == left_out


@pytest.mark.parametrize("text", ["i = ArgMax <axis = 0> (x)  y = Cast <to = 1> (i)",
                                  "m = Greater (x, half)  y = Cast <to = 1> (m)"])  # fmt: skip
def test_where_no_input_has_a_gradient_none_is_left_out(text: str) -> None:
    constants = {"half": 0.5} if "half" in text else {}
    [record] = records(net(f"a (float[4] x) => (float[?] y) {{ {text} }}", **constants)).values()
    assert (record.status, record.gates) == ("severed", ("severed",))


def test_an_inspection_says_it_before_a_check() -> None:
    [found] = inspect(read_proto(TWO, "net.onnx"), Settings()).severed
    assert (found.x, found.y, found.cut) == ("x", "hard", (Spot(1, "Round", "r"),))


def test_a_model_without_float_outputs_names_the_last_float_tensor() -> None:
    labels = net("a (float[2,4] x) => (int64[2] i) { h = MatMul (x, W)  i = ArgMax <axis = 1, keepdims = 0> (h) }", W=W)
    with pytest.raises(UnsupportedError, match="last float tensor: --y h"):
        records(labels)


MLP = "a (float[2,4] x) => (float[2,3] y) { h = MatMul (x, W)  y = Tanh (h) }"
CUT = "a (float[2,4] x) => (float[2,3] y) { h = MatMul (x, W)  n = Mul (h, far)  r = Round (n)  y = Tanh (r) }"
ZERO = "a (float[2,4] x) => (float[2,3] y) { h = MatMul (x, W)  n = Mul (h, far)  y = Tanh (n) }"


def test_one_of_two_models_that_is_severed_differs() -> None:
    cut, zero = net(CUT, W=W, far=0.0), net(ZERO, W=W, far=0.0)
    for twins in (Twins("", cut, zero), Twins("", zero, cut)):
        found = diff(twins)
        assert (found["y"].status, found["y/x"].status) == ("pass", "fail")
        assert "cut at node 2 Round 'r'" in found["y/x"].message
    assert {c.status for c in diff(Twins("", cut, cut)).values()} == {"pass"}


def test_claims_keep_their_own_verdict() -> None:
    claimed = net("a (float[3] x) => (float[3] y) { h = Round (x)  y = Tanh (h)  g = Mul (x, zero) }", zero=0.0)
    found = Procedure(read_proto(claimed, "net.onnx"), Settings(x=("x",), y=("y",), grad={"x": "g"})).run("net")
    assert {c.status for c in found if c.claim} == {"pass"}


def test_a_gradient_of_masks_alone_says_that_it_is_piecewise_constant() -> None:
    relu = net("a (float[2,4] x) => (float[2,3] y) { h = MatMul (x, W)  y = Relu (h) }", W=W)
    found = Procedure(read_proto(relu, "net.onnx"), Settings(second_order=True)).run("net")
    [second] = [c for c in found if c.gradient_of]
    assert (second.status, "the gradient is piecewise constant in x" in second.notes) == ("pass", True)
    bent = net("a (float[2,4] x) => (float[2,3] y) { h = MatMul (x, W)  r = Relu (h)  y = Mul (r, r) }", W=W)
    found = Procedure(read_proto(bent, "net.onnx"), Settings(second_order=True)).run("net")
    assert [c.notes for c in found if c.gradient_of] == [()]


def test_a_forward_run_that_differs_counts_beside_a_gradient_that_is_severed(tmp_path: Path) -> None:
    text = '<ir_version: 9, opset_import: ["" : 18]> g (float[3] x) => (float[3] y) { y = Round(x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    (tmp_path / "test_data_set_0").mkdir()
    for name, values in (("input_0", [0.3, 1.4, 2.6]), ("output_0", [0.0, 1.0, 7.0])):
        tensor = onnx.numpy_helper.from_array(np.array(values, np.float32), name[0].replace("i", "x").replace("o", "y"))
        (tmp_path / "test_data_set_0" / f"{name}.pb").write_bytes(tensor.SerializeToString())
    report = gc.check(gc.load(tmp_path / "m.onnx"), fail_on="forward", test_data="auto")
    assert (report.checks[0].status, report.checks[0].gates, report.exit_code) == ("severed", ("forward", "severed"), 1)
