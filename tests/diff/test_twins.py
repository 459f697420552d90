"""Models that compute the same are found the same; for others the first difference is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gradcheck_cli.checks.diff.model_runs import between, outputs_held
from gradcheck_cli.checks.diff.two_models import compare
from gradcheck_cli.errors import UsageError
from gradcheck_cli.formats.onnx.read import read_proto
from gradcheck_cli.settings import Settings
from gradcheck_cli.verdict.rule import Status
from tests.checking.small import scaled, with_rule
from tests.diff.twins import BIAS, BOTH, DIFFERENT, HEAD, IN, MLP, SAME, SQUARE, Twins, V, W, diff, net, statuses


def ids(twins: Sequence[Twins]) -> list[str]:
    return [t.name.replace(" ", "-") for t in twins]


@pytest.mark.parametrize("points", (1, 3))
@pytest.mark.parametrize("twins", SAME, ids=ids(SAME))
def test_the_same_function_passes_at_every_point(twins: Twins, points: int) -> None:
    found = statuses(twins, points=points)
    assert found
    assert set(found.values()) == {"pass"}


def test_a_listener_hears_of_each_point() -> None:
    heard: list[tuple[Any, ...]] = []

    class Listener:
        def expect(self, forecasts: object) -> None:
            heard.append(("expect",))

        def start(self, title: str, total: int) -> None:
            heard.append(("start", title, total))

        def advance(self, done: int, total: int) -> None:
            heard.append(("advance", done, total))

        def done(self) -> None:
            heard.append(("done",))

    mlp = read_proto(net(MLP, W=W, V=V, b=BIAS), "mlp.onnx")
    compare(mlp, mlp, Settings(points=2), {}, name="twins", listen=Listener())
    points = [("start", "point 0", 2), ("advance", 0, 2), ("start", "point 1", 2), ("advance", 1, 2)]
    assert [each for each in heard if each != ("done",)] == points


@pytest.mark.parametrize("twins", SAME, ids=ids(SAME))
def test_a_pair_is_the_same_both_ways_round(twins: Twins) -> None:
    known = diff(twins)
    turned = twins._replace(a=twins.b, b=twins.a, given={o: n for n, o in twins.given.items()})
    if "dropped" not in twins.name and "tie" not in twins.name:
        assert set(statuses(turned).values()) == {"pass"}
        assert len(diff(turned)) == len(known)


@pytest.mark.parametrize("twins, differing, node", DIFFERENT, ids=ids([t for t, *_ in DIFFERENT]))
def test_what_differs_is_said_and_where_it_begins(twins: Twins, differing: Sequence[str], node: int) -> None:
    found = diff(twins)
    assert [key for key, c in found.items() if c.status != "pass"] == list(differing)
    codes = {"GC111" if "/" in key else "GC110" for key in differing}
    assert {found[key].code for key in differing} == codes
    suspect = found[differing[0]].suspect
    assert suspect is not None
    assert suspect.node == node


@pytest.mark.parametrize("factor", (-1.0, 2.0, 1.0 + 1e-3, 1.0 + 1e-5))
def test_a_wrong_rule_in_one_of_them_shows_in_the_gradient_alone(factor: float) -> None:
    mlp = net(MLP, W=W, V=V, b=BIAS)
    found = diff(Twins("mlp", mlp, mlp), ops_of_b=with_rule("Tanh", scaled("Tanh", factor)))
    assert {key: (c.status, c.code) for key, c in found.items()} == {"y": ("pass", ""), "y/x": ("fail", "GC111")}
    assert found["y/x"].suspect is not None
    assert found["y/x"].suspect.op == "Tanh"


def test_parameters_belong_together_by_name_or_by_values() -> None:
    a, b = net(MLP, W=W, V=V, b=BIAS), net(HEAD.replace("Tanh (h)", "Tanh (g)").replace(
        "r =", "g = Add (h, b)  r =").replace("MatMul (x, W)", "MatMul (x, first)"), first=W, V=V, b=BIAS)  # fmt: skip
    assert set(statuses(Twins("", a, b), params=True)) == {"y", "y/x", "y/W", "y/V", "y/b"}
    assert set(statuses(Twins("", a, b), params=True).values()) == {"pass"}


def test_parameters_that_were_folded_are_not_compared_and_that_is_said() -> None:
    from tests.diff.twins import SAME as pairs

    folded = next(t for t in pairs if t.name == "BatchNormalization in Conv")
    found = diff(folded, params=True)
    assert "y/K" not in found
    assert {c.status for c in found.values()} == {"pass"}
    assert any("no single parameter of the same values" in note and "'K'" in note for note in found["y"].notes)


QUANTIZED = net(
    "a (float[N,4] x) => (float[N,4] y) { q, s, z = DynamicQuantizeLinear (x)  h = MatMulInteger (q, W, z, wz)  "
    "f = Cast <to = 1> (h)  t = Mul (s, ws)  y = Mul (f, t) }",
    W=np.rint(SQUARE / np.abs(SQUARE).max() * 127).astype(np.int8), wz=np.int8(0), ws=np.abs(SQUARE).max() / 127,
)  # fmt: skip
QDQ = net(
    "a (float[N,4] x) => (float[N,4] y) "
    "{ q = QuantizeLinear (x, s, z)  d = DequantizeLinear (q, s, z)  y = MatMul (d, W) }",
    W=SQUARE, s=1 / 127, z=np.int8(0),
)  # fmt: skip
PLAIN = net("a (float[N,4] x) => (float[N,4] y) { y = MatMul (x, W) }", W=SQUARE)


def test_a_quantized_model_has_the_same_outputs_and_no_gradient() -> None:
    for quantized in (QUANTIZED, QDQ):
        found = diff(Twins("", PLAIN, quantized))
        assert {key: (c.status, c.code) for key, c in found.items()} == {"y": ("pass", ""), "y/x": ("severed", "GC107")}
        assert found["y/x"].passes
        assert any("8 bits" in note for note in found["y"].notes)


def test_small_parameters_are_not_the_same_by_the_steps_of_a_quantizer() -> None:
    """A step is a share of the largest entry, however small that is."""
    plain, text = (
        "a (float[N,4] x) => (float[N,4] y) { y = MatMul (x, K) }",
        (
            "a (float[N,4] x) => (float[N,4] y) "
            "{ q = QuantizeLinear (x, s, z)  d = DequantizeLinear (q, s, z)  y = MatMul (d, W) }"
        ),
    )
    for other, same in ((SQUARE, True), (SQUARE.T, False)):
        quantized = net(text, W=1e-3 * SQUARE, s=1 / 127, z=np.int8(0))
        found = statuses(Twins("", net(plain, K=1e-3 * other), quantized), params=True)
        assert ("y/K" in found) == same


def test_straight_through_a_quantized_model_has_the_gradient_too() -> None:
    for quantized in (QUANTIZED, QDQ):
        assert statuses(Twins("", PLAIN, quantized), straight_through=True) == {"y": "pass", "y/x": "pass"}


def test_where_both_are_quantized_that_is_no_reason_for_another_gradient() -> None:
    text = """a (float[4] x) => (float[4] y) {{
        q = QuantizeLinear (x, s, z)  d = DequantizeLinear (q, s, z)  k = Mul (x, {})  y = Add (d, k) }}"""
    a, b = (net(text.format(slope), s=0.02, one=1.0, two=2.0, z=np.uint8(128)) for slope in ("one", "two"))
    found = diff(Twins("quantized", a, b))["y/x"]
    assert (found.status, found.notes) == ("fail", ())


@pytest.mark.parametrize(("times", "status"), [(1.0, "pass"), (1.5, "fail GC110")])
def test_small_numbers_of_a_float16_copy_differ_by_their_own_size_in_float64(times: float, status: str) -> None:
    """An absolute tolerance would let anything small pass, where float16 loses some of its size."""
    text = "a ({0}[4] x) => ({0}[4] y) {{ y = Mul (x, c) }}"
    a, b = net(text.format("float"), c=1e-3), net(text.format("float16"), dtype=np.float16, c=times * 1e-3)
    assert statuses(Twins("small", a, b))["y"] == status


def test_a_parameter_that_stands_for_several_elsewhere_is_not_compared() -> None:
    tied = net(f"a {IN} {{ i = Identity (W)  h = MatMul (x, W)  g = MatMul (x, i)  s = Mul (h, g)  y = MatMul (s, V) }}",
               W=W, V=V)  # fmt: skip
    apart = net(f"a {IN} {{ h = MatMul (x, W)  g = MatMul (x, i)  s = Mul (h, g)  y = MatMul (s, V) }}", W=W, i=W, V=V)
    for twins in (Twins("", tied, apart), Twins("", apart, tied)):
        found = statuses(twins, params=True)
        assert "y/W" not in found
        assert set(found.values()) == {"pass"}


def test_what_the_less_precise_model_explains_passes_no_more_where_both_are_precise() -> None:
    rounded = net(HEAD, W=W.astype(np.float16).astype(float), V=V)
    found = diff(Twins("", net(HEAD, W=W, V=V), rounded))
    assert {c.status for c in found.values()} == {"fail"}
    assert found["y"].suspect is not None
    assert "'W' has other values" in found["y"].suspect.diagnosis


def test_tolerances_are_those_of_the_user() -> None:
    twins = next(t for t, *_ in DIFFERENT if t.name == "another epsilon")
    assert set(statuses(twins, rtol={"": 0.1}).values()) == {"pass"}
    needed = max(c.needed["rtol"] for c in diff(twins).values())
    assert set(statuses(twins, rtol={"": needed * 1.01}).values()) == {"pass"}
    assert "pass" not in statuses(twins, rtol={"": needed * 0.1}).values()


def test_an_overflow_in_float16_shows_in_the_models_own_dtype() -> None:
    text = "a (float[4] x) => (float[4] y) { h = Mul (x, c)  y = Div (h, c) }"
    twins = Twins("", net(text, c=1e5), net(text.replace("float[", "float16["), dtype=np.float16, c=6e4))
    wide = Twins("", net(text, c=6e4), twins.b, {"x_init_value": {"x": np.array([1.0, 2.0, 3.0, 4.0])}})
    assert statuses(wide) == {"y": "pass", "y/x": "pass"}
    assert statuses(wide, dtype="model")["y"] == "fail GC110"


@pytest.mark.parametrize("least", [0.0, 1e-7])
def test_small_weights_are_the_same_in_float16(least: float) -> None:
    """Below 6e-5 halves are multiples of 6e-8, and converters make what would be 0 the least number they know."""
    small = np.linspace(-1e-6, 1e-6, W.size).reshape(W.shape)
    there = np.where((np.abs(small) < least) & (small != 0), np.copysign(least, small), small)
    here, half = net(HEAD, W=small, V=V), net(HEAD.replace("float", "float16"), dtype=np.float16, W=there, V=V)
    assert {"y/W", "y/V"} <= {*statuses(Twins("", here, half), params=True)}
    assert "y/W" not in statuses(Twins("", here, net(HEAD, W=small + 1e-7, V=V)), params=True)


def test_what_is_left_out_is_said_in_a_line_each() -> None:
    text = (
        "a (float[2,4] x) => (float[2,4] y, int64[2] k) "
        "{ h = Mul (x, W)  y = Add (h, b)  k = ArgMax <axis = 1, keepdims = 0> (y) }"
    )
    weights = {"W": [1.5, 0.5, 0.25, 3.0], "b": [0.1, 0.2, 0.3, 0.4]}
    a, b = net(text, **weights), net(text, **{**weights, "b": [0.1, 0.2, 0.3, 0.5]})
    assert diff(Twins("", a, a))["y"].notes == (
        "not compared without --params: gradients by 'W', 'b'",
        "no gradient, since they hold no floats: 'k'",
    )
    assert diff(Twins("", a, b), params=True)["y"].notes == (
        "not compared, since b.onnx has no single parameter of the same values: 'b'",
        "no gradient, since they hold no floats: 'k'",
    )
    assert diff(Twins("", a, a), x=("x",), y=("y",))["y"].notes == ()
    double = net(HEAD.replace("float", "double"), dtype=np.float64, W=W, V=V)
    assert "a.onnx has float32, b.onnx has float64" in diff(Twins("", net(HEAD, W=W, V=V), double))["y"].notes


BRANCHED = """a (float[4] x, bool c) => (float[4] y) {
    y = If (c) <then_branch = t () => (float[4] a) { a = Mul (x, x) }, else_branch = e () => (float[4] b) { b = %s (x) }>
}"""
LOOPED = "a (float[4] x, int64 n) => (float[4] y) { y = Loop (n, , x) <body = %s> }"
BODY = "b (int64 i, bool g, float[4] v) => (bool h, float[4] w) { h = Identity (g)  w = %s (v) }"


@pytest.mark.parametrize("text, feeds, unrun", [
    (BRANCHED, {"c": np.True_}, "the else branch of node 0 If 'y'"),
    (LOOPED % BODY, {"n": np.int64(0)}, "the body of node 0 Loop 'y'"),
], ids=["branch", "body"])  # fmt: skip
def test_what_no_point_ran_is_not_called_the_same_without_a_word(text: str, feeds: Any, unrun: str) -> None:
    one, two = net(text % "Sin"), net(text % "Cos")
    found = diff(Twins("", one, two), extra_feed_dict=feeds)
    said = tuple(f"{n}.onnx: {unrun} ran at no point, and was not compared" for n in "ab")
    assert {each.notes for each in found.values()} == {said}
    other = {name: np.asarray(1 - value).astype(value.dtype) for name, value in feeds.items()}
    found = diff(Twins("", one, two), extra_feed_dict=other)
    assert found["y"].status == "fail"
    assert not any(unrun in note for note in found["y"].notes)


def test_a_missing_output_and_another_shape_are_differences() -> None:
    two = net("a (float[3] x) => (float[3] y, float[3] z) { y = Tanh (x)  z = Exp (x) }")
    one = net("a (float[3] x) => (float[3] y) { y = Tanh (x) }")
    flat = net("a (float[3] x) => (float y) { t = Tanh (x)  y = ReduceSum <keepdims = 0> (t) }")
    found = diff(Twins("", two, one))
    assert {key: c.status for key, c in found.items()} == {"y": "pass", "y/x": "pass", "z": "fail"}
    assert found["z"].message == "b.onnx has no such output"
    assert "its shape is [3] in a.onnx and [] in b.onnx" in diff(Twins("", one, flat), y=("y",))["y"].message
    assert "another output: 'z'" in str(diff(Twins("", one, two))["y"].notes)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ("(float[2,4] x)", "(float[2,5] x)", "do not fit both inputs: 'x' [2,4] float32 and 'x' [2,5] float32"),
        ("(float[2,4] x)", "(int64[2,4] x)", "do not fit both inputs"),
        ("(float[2,4] x)", "(float[2,4] x, float[2,4] mask)", "an input 'mask' [2,4] float32 that a.onnx lacks"),
        ("(float[2,4] z, float[3] w)", "(float[2,4] x, float[9] mask)", "--map w=mask"),
    ],
)
def test_inputs_that_do_not_belong_together_are_refused(a: str, b: str, message: str) -> None:
    used = [text.split("] ")[1].split(",")[0].strip(")") for text in (a, b)]
    nets = [
        net(f"a {text} => (float[2,4] y) {{ y = Cast <to = 1> ({x}) }}") for text, x in zip((a, b), used, strict=True)
    ]
    with pytest.raises(UsageError) as raised:
        diff(Twins("", *nets))
    assert message in str(raised.value)


def test_names_that_no_model_has_are_refused() -> None:
    mlp = net(MLP, W=W, V=V, b=BIAS)
    for given, settings in (({"x": "xx"}, {}), ({"xx": "x"}, {}), ({}, {"y": ("yy",)}), ({}, {"x": ("xx",)})):
        with pytest.raises(UsageError, match="has no tensor '"):
            diff(Twins("", mlp, mlp, settings, given))


def test_without_a_rule_outputs_are_compared_all_the_same() -> None:
    mlp: Any = net(MLP, W=W, V=V, b=BIAS)
    found = diff(Twins("", mlp, mlp), ops_of_b=with_rule("Tanh", None))
    assert {key: (c.status, c.code) for key, c in found.items()} == {
        "y": ("pass", ""),
        "y/x": ("unsupported", "GC501"),
    }
    assert found["y/x"].message.startswith("b.onnx: no gradient for 'Tanh'")


def test_what_cannot_run_is_said_of_the_model_that_cannot() -> None:
    text = "a (float[N,4] x) => (float[N,4] y) { y = %s (x) }"
    found = diff(Twins("", net(text % "Tanh"), net(text % "com.microsoft.Nonsense")))
    assert (found["y"].status, found["y"].code) == ("unsupported", "GC502")
    assert found["y"].message.startswith("b.onnx: ")


def test_an_output_that_is_nowhere_finite_is_left_open_and_so_is_its_derivative() -> None:
    text = "a (float[3] x) => (float[3] y) { s = Sub (x, c)  y = Log (s) }"
    found = statuses(Twins("", net(text, c=1e9), net(text, c=1e9)))
    assert found == {"y": "inconclusive GC302", "y/x": "inconclusive GC302"}


PLUS = "a (float[4] x) => (float[4] y) { y = Add (x, c) }"
ODD = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "one": 1.0}


@pytest.mark.parametrize("one", ODD)
@pytest.mark.parametrize("other", ODD)
def test_entries_that_are_not_finite_are_the_same_or_count_as_different(one: str, other: str) -> None:
    a, b = (net(PLUS, c=[value, 1.0, 2.0, 0.0]) for value in (ODD[one], ODD[other]))
    found = diff(Twins("", a, b), points=1)["y"]
    left = one == other and not np.isfinite(ODD[one])
    assert found.status == ("pass" if one == other else "fail")
    assert found.entries == {"total": 4, "checked": 4 - left, "failed": int(one != other), "inconclusive": 0}
    assert found.max_abs_err == (0.0 if one == other else np.inf)
    assert [e.y for e in found.worst] == ([(0,)] if one != other else [])


def test_entries_that_differ_in_infinity_alone_are_entries_that_were_compared() -> None:
    found = diff(Twins("", net(PLUS, c=np.inf), net(PLUS, c=-np.inf)), points=3)["y"]
    assert (found.status, found.code, found.message) == ("fail", "GC110", "")
    assert found.entries == {"total": 12, "checked": 12, "failed": 12, "inconclusive": 0}


def test_derivatives_of_entries_that_are_not_finite_are_left_out() -> None:
    same = net(PLUS, c=[np.nan, np.inf, 2.0, 0.0])
    found = diff(Twins("", same, same), points=1)
    assert found["y/x"].status == "pass"
    assert found["y/x"].entries == {"total": 16, "checked": 8, "failed": 0, "inconclusive": 0}


@pytest.mark.parametrize(("other", "said"), [("d", ["it is zero in a.onnx"]), ("x", [])])
def test_a_gradient_that_is_not_a_number_is_not_zero(other: str, said: list[str]) -> None:
    """An exporter that drops a small number makes 0 * inf of a distance that a Relu does not take."""
    text = "net (float[2] x) => (float[2] y) {{ d = Sub (x, x)  q = {}  r = Sqrt (q)  n = Sub (r, five)  m = Relu (n) "
    a, b = (
        net(text.format(near) + f"y = Add (m, {other}) }}", five=np.float64(5), small=np.float64(1e-6))
        for near in ("Add (d, small)", "Mul (d, small)")
    )
    record = diff(Twins("", a, b))["y/x"]
    assert (record.status, record.code) == ("fail", "GC111")
    assert [note for note in record.notes if "zero" in note] == said


def test_models_without_entries_are_not_compared() -> None:
    text = "a (float[0,4] x) => (float[0,4] y) { y = Tanh (x) }"
    found = diff(Twins("", net(text), net(text)))
    assert {key: f"{c.status} {c.code} {c.exit_code}" for key, c in found.items()} == dict.fromkeys(
        BOTH, "error GC701 7"
    )
    assert found["y"].message == "it has no entries at these sizes: nothing was compared"


def test_a_parameter_that_is_infinite_in_one_model_alone_is_not_the_same() -> None:
    text = "a (float[4] x) => (float[4] y) {{ m = Add (x, {0})  y = Exp (m) }}"
    a, b = np.array([0.0, 0.1, 0.2, -np.inf]), np.array([0.0, 0.1, 0.2, -1e9])
    found = diff(Twins("", net(text.format("c"), c=a), net(text.format("d"), d=b)), params=True)
    assert "y/c" not in found
    assert "y/c" in diff(Twins("", net(text.format("c"), c=a), net(text.format("d"), d=a)), params=True)


def test_real_numbers_are_complex_numbers_without_imaginary_parts() -> None:
    a = np.array([1.0, 2.0])
    for imaginary, failed in ((0.0, 0), (1.0, 1)):
        b = a + np.array([0.0, imaginary * 1j])
        for one, other in ((a, b), (b, a)):
            assert outputs_held(one, other, between(1e-6, 0.0)).count(Status.FAIL) == failed


def test_projections_stand_for_outputs_that_are_large() -> None:
    wide = np.random.default_rng(0).normal(size=(4, 40))
    text = "a (float[1,4] x) => (float[1,40] y) { h = MatMul (x, W)  y = Tanh (h) }"
    found = diff(Twins("", net(text, W=wide), net(text, W=wide)))
    assert (found["y"].mode, found["y/x"].mode) == ("full", "directional")
    other = wide.copy()
    other[2, 17] *= 1.001
    assert {c.status for c in diff(Twins("", net(text, W=wide), net(text, W=other))).values()} == {"fail"}


def test_models_that_draw_random_numbers_are_left_open() -> None:
    text = "a (float[9] x) => (float[9] y) { d = Dropout (x, ratio, on)  y = %s (d) }"
    constants = {"ratio": np.float32(0.5), "on": np.bool_(True)}
    a, b = (net(text % op, **constants) for op in ("Identity", "Identity"))
    other = net("a (float[9] x) => (float[9] y) { z = Neg (x)  w = Neg (z)  d = Dropout (w, ratio, on)  y = Identity (d) }",
                **constants)  # fmt: skip
    assert set(statuses(Twins("", a, b)).values()) == {"pass"}
    found = diff(Twins("", a, other))
    assert {c.status for c in found.values()} == {"inconclusive"}
    assert "draws random numbers" in found["y"].message


def test_an_inner_tensor_is_compared_with_the_one_of_its_name_or_of_the_map() -> None:
    a, b = net(HEAD, W=W, V=V), net(HEAD.replace("h", "hidden").replace("Tanhidden", "Tanh"), W=W, V=V)
    assert set(statuses(Twins("", a, a), x=("h",), y=("r",))) == {"r", "r/h"}
    found = statuses(Twins("", a, b, given={"h": "hidden"}), x=("h",), y=("r", "h"))
    assert found == {"r": "pass", "r/h": "pass", "h": "pass", "h/h": "pass"}
    with pytest.raises(UsageError, match="--map h=NAME"):
        diff(Twins("", a, b), x=("h",))


ANY = net("a (float[N,S] x) => (float[N,S] y) { y = Tanh (x) }")
EIGHTS = net(
    "a (float[N,S] x) => (float[N,S] y) { r = Reshape (x, eights)  t = Tanh (r)  s = Shape (x)  y = Reshape (t, s) }",
    eights=np.array([0, -1, 8]),
)
PICTURE = net("a (float[N,3,H,W] x) => (float[N,3,H,W] y) { y = Tanh (x) }")
SIXTEENTHS = net(
    "a (float[N,3,H,W] x) => (float[N,3,H,W] y) { t = Tanh (x)  p = AveragePool <kernel_shape = [16,16], strides = [16,16]>"
    ' (x)  r = Resize <mode = "nearest"> (p, , back)  z = Mul (r, zero)  y = Add (t, z) }',
    back=np.array([1.0, 1, 16, 16]), zero=0.0,
)  # fmt: skip
TWO_NAMES = net(
    "a (float[N,T] x, float[N,U] z) => (float y) { s = Concat <axis = 1> (x, z)  y = ReduceSum <keepdims = 0> (s) }"
)
ONE_NAME = net("a (float[N,S] x, float[N,S] z) => (float y) { s = Add (x, z)  y = ReduceSum <keepdims = 0> (s) }")
SIZED = {
    "multiples of eight in B": (ANY, EIGHTS, {"N": 2, "S": 8}),
    "multiples of eight in A": (EIGHTS, ANY, {"N": 2, "S": 8}),
    "multiples of sixteen in B": (PICTURE, SIXTEENTHS, {"N": 2, "H": 16, "W": 32}),
    "multiples of sixteen in A, where it is seen to be an image": (SIXTEENTHS, PICTURE, {"N": 2, "H": 32, "W": 48}),
    "dimensions that are equal in B": (TWO_NAMES, ONE_NAME, {"N": 2, "T": 5, "U": 5}),
    "dimensions that are equal in A": (ONE_NAME, TWO_NAMES, {"N": 2, "S": 5}),
}


@pytest.mark.parametrize("name", SIZED)
def test_open_dimensions_get_sizes_at_which_both_run(name: str) -> None:
    a, b, dims = SIZED[name]
    found = diff(Twins(name, a, b))
    assert {c.status for c in found.values()} == {"pass"}
    assert [dict(c.dims) for c in found.values()] == [dims] * len(found)


def test_where_no_size_runs_in_both_it_is_said() -> None:
    stuck = net("a (float[N,S] x) => (float[N,S] y) { h = MatMul (x, W)  g = MatMul (h, W)  y = Tanh (g) }", W=W)
    for check in diff(Twins("", ANY, stuck)).values():
        assert check.status == "error"
        assert "no size of N, S was found at which b.onnx runs too (tried 1 ... 224)" in check.notes
    with pytest.raises(UsageError, match=r"no size of N, S in \[N,S\] makes 'x' run"):
        diff(Twins("", stuck, ANY))
