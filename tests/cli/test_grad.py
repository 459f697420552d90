"""`gradcheck grad`: what is written, what is said of it, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.cli.conftest import Command
from tests.rounding import FUNCTION, assert_rounded

onnxruntime = pytest.importorskip("onnxruntime")

Feeds = dict[str, Any]
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
W = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
AUX = np.zeros(2, np.float32)


def run(path: Path, names: list[str] | None, feeds: Feeds) -> Any:
    """Outputs of a file in onnxruntime."""
    onnx.checker.check_model(path, full_check=True)
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(names, feeds)


def near(found: np.ndarray, exact: np.ndarray | float, factor: float) -> None:
    """A derivative of tanh(x W) is right up to rounding: of x W, of its tanh, and of sums over the entries of a row."""
    size = (1 + (np.abs(X) @ np.abs(W)).max()) * np.abs(W).sum(1).max()
    assert_rounded(found, np.asarray(exact), roundings=2 * (FUNCTION + X.size + W.size), of=factor * size)


def test_what_was_written_is_said_with_how_to_run_it(gradcheck: Command, folder: Path) -> None:
    ran = gradcheck("grad", "mlp.onnx", "--x", "input", "--y", "loss", "-o", "g.onnx")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0].startswith("g.onnx  ")
    assert lines[1:] == [
        "  output  input_grad [N,4] float32",
        "  open    N: any size at which the model runs",
        "  run     onnxruntime.InferenceSession('g.onnx').run(['input_grad'], {'input': ..., 'aux_in': ...})",
    ]
    model = onnx.load(folder / "g.onnx")
    assert [o.name for o in model.graph.output] == ["loss", "aux_out", "input_grad"]
    for rows in (1, 3):
        [found] = run(folder / "g.onnx", ["input_grad"], {"input": X[:rows], "aux_in": AUX})
        near(found, (1 - np.tanh(X[:rows] @ W) ** 2) @ W.T, 1)


def test_initial_gradients_are_ones_inputs_tensors_or_numbers(gradcheck: Command, folder: Path) -> None:
    np.save(folder / "two.npy", np.float32(2))
    slope = (1 - np.tanh(X @ W) ** 2) @ W.T
    given: list[tuple[list[str], Feeds, float]] = [
        (["ones"], {}, 1),
        (["inputs"], {"loss_grad": np.array(3, np.float32)}, 3),
        (["loss=@two.npy"], {}, 2),
        (["loss=loss"], {}, float(np.tanh(X @ W).sum())),
    ]
    for words, more, factor in given:
        options = [word for each in words for word in ("--grad-ys", each)]
        ran = gradcheck("grad", "mlp.onnx", "--x", "input", "--y", "loss", "-o", "g.onnx", *options)
        assert ran.code == 0, ran.err
        [found] = run(folder / "g.onnx", ["input_grad"], {"input": X, "aux_in": AUX, **more})
        near(found, factor * slope, factor if words != ["loss=loss"] else X.size)


@pytest.mark.parametrize("number, factor", [("2.5", 2.5), ("@number.npy", 2.5), ("-1", -1), ("0", 0)])
def test_one_number_arrives_at_all_entries_of_y_at_any_size(
    number: str, factor: float, gradcheck: Command, folder: Path
) -> None:
    np.save(folder / "number.npy", np.float32(2.5))
    gradcheck("grad", "mlp.onnx", "--x", "input", "--y", "a", "-o", "g.onnx", "--grad-ys", f"a={number}")
    for rows in (1, 3):
        [found] = run(folder / "g.onnx", ["input_grad"], {"input": X[:rows], "aux_in": AUX})
        near(found, factor * (1 - np.tanh(X[:rows] @ W) ** 2) @ W.T, abs(factor))


def test_tangents_and_second_derivatives_have_inputs_of_their_own(gradcheck: Command, folder: Path) -> None:
    t = np.random.default_rng(0).normal(size=X.shape).astype(np.float32)
    assert "input_tangent [N,4]" in gradcheck("grad", "mlp.onnx", "--y", "loss", "-o", "j.onnx", "--jvp").out
    [found] = run(folder / "j.onnx", ["loss_tangent"], {"input": X, "aux_in": AUX, "input_tangent": t})
    h = X @ W
    near(found, ((1 - np.tanh(h) ** 2) * (t @ W)).sum(), np.abs(t).sum())
    assert gradcheck("grad", "mlp.onnx", "--y", "loss", "-o", "h.onnx", "--hvp").code == 0
    [found] = run(folder / "h.onnx", ["input_hvp"], {"input": X, "aux_in": AUX, "input_vector": t})
    y = np.tanh(h)
    near(found, (-2 * y * (1 - y**2) * (t @ W)) @ W.T, 2 * (np.abs(t) @ np.abs(W)).max())


def test_the_gradient_of_a_file_of_gradients_is_the_second_one(gradcheck: Command, folder: Path) -> None:
    gradcheck("grad", "mlp.onnx", "--x", "input", "--y", "loss", "-o", "g.onnx")
    ran = gradcheck("grad", "g.onnx", "--x", "input", "--y", "input_grad", "-o", "gg.onnx")
    assert "output  input_grad_1 [N,4] float32" in ran.out
    [found] = run(folder / "gg.onnx", ["input_grad_1"], {"input": X, "aux_in": AUX})
    y = np.tanh(X @ W)
    near(found, (-2 * y * (1 - y**2) * W.sum(0)) @ W.T, 2 * np.abs(W).sum(0).max())


def test_the_gradients_that_were_written_pass_a_check(gradcheck: Command) -> None:
    gradcheck("grad", "mlp.onnx", "--x", "input", "--y", "loss", "-o", "g.onnx")
    assert gradcheck("g.onnx", "--x", "input", "--y", "input_grad").code == 0


def test_a_dimension_that_is_given_is_fixed_in_the_file(gradcheck: Command, folder: Path) -> None:
    ran = gradcheck("grad", "mlp.onnx", "--x", "input", "--y", "loss", "-o", "g.onnx", "--dim", "N=3")
    assert "open" not in ran.out
    dims = onnx.load(folder / "g.onnx").graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_value for d in dims] == [3, 4]


def test_zeros_are_written_where_nothing_flows_if_asked_for(gradcheck: Command, folder: Path) -> None:
    asked = ("grad", "mlp.onnx", "--x", "aux_in", "--y", "loss", "-o", "g.onnx")
    ran = gradcheck(*asked)
    assert ran.code == 2
    assert "'loss' does not depend on 'aux_in'" in ran.err
    assert not (folder / "g.onnx").exists()
    assert gradcheck(*asked, "--unconnected", "zero").code == 0
    [found] = run(folder / "g.onnx", ["aux_in_grad"], {"input": X, "aux_in": AUX})
    assert found.tolist() == [0, 0]


def test_an_x_that_moves_nothing_has_no_tangent(gradcheck: Command, folder: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]> p (float[N] x, float[N] t) => (float[N] y)
        { c = Greater(x, t) f = Cast<to = 1>(c) s = Sin(x) y = Mul(s, f) }"""
    onnx.save(onnx.parser.parse_model(text), folder / "still.onnx")
    ran = gradcheck("grad", "still.onnx", "--x", "x", "--x", "t", "--jvp", "-o", "g.onnx")
    assert (ran.code, ran.err) == (0, "")
    assert "nothing depends on t here: it has no tangent" in ran.out
    x, t = np.float32([1, 2]), np.float32([0, 3])
    [found] = run(folder / "g.onnx", ["y_tangent"], {"x": x, "t": t, "x_tangent": np.ones(2, np.float32)})
    np.testing.assert_allclose(found, np.cos(x) * (x > t), rtol=1e-6)


REFUSED = [  # what is typed behind `gradcheck grad`, the exit code, what is said
    (["mlp.onnx"], 2, "Missing option '-o' / '--output'"),
    (["mlp.onnx", "-o", "g.onnx", "--x", "inptu"], 2, "mlp.onnx has no tensor 'inptu'. Did you mean 'input'?"),
    (["mlp.onnx", "-o", "mlp.onnx"], 2, "mlp.onnx is what the model was read from; write to another file."),
    (["mlp.onnx", "-o", "g.onnx", "--x", "loss", "--y", "input"], 2, "Are --x and --y swapped?"),
    (["embedding.onnx", "-o", "g.onnx", "--x", "input_ids"], 2, "is int64: only floating-point or complex tensors"),
    (["mlp.onnx", "-o", "g.onnx", "--grad-ys", "one"], 2, "'one' is no y. Did you mean 'ones'?"),
    (["mlp.onnx", "-o", "g.onnx", "--grad-ys", "ones", "--grad-ys", "inputs"], 2, "give it alone"),
    (["mlp.onnx", "-o", "g.onnx", "--y", "a", "--grad-ys", "a=[2.5]"], 2, "grad_ys[0] has shape [1]; 'a' has ["),
    (["mlp.onnx", "-o", "g.onnx", "--grad-ys", "loss=1+2j"], 2, "--grad-ys loss is complex128; 'loss' is float32"),
    (["mlp.onnx", "-o", "g.onnx", "--jvp", "--hvp"], 2, "--jvp and --hvp are two files"),
    (["mlp.onnx", "-o", "g.onnx", "--dim", "M=2"], 2, "no open dimension 'M'; it has N"),
    (["mlp.onnx", "-o", "no/g.onnx"], 2, "cannot be written: No such file or directory"),
    (["mlp.onnx", "-o", "g.onnx", "--name", "a b"], 2, "name='a b' is no name"),
    (["lfs.onnx", "-o", "g.onnx"], 4, "Git LFS pointer"),
    (["unknown.onnx", "-o", "g.onnx"], 5, "Magic"),
    (["mlp.onnx", "-o", "g.onnx", "--stop-gradients", "a", "--y", "loss"], 2, "nothing depends on input"),
    (["mlp.onnx", "-o", "g.onnx", "--stop-gradients", "a", "--y", "loss", "--jvp"], 2, "loss depends on no x here"),
    (["mlp.onnx", "-o", "g.onnx", "--stop-gradients", "a", "--y", "loss", "--hvp"], 2, "no gradient depends on input"),
]


@pytest.mark.parametrize(
    ("typed", "code", "message"), REFUSED, ids=lambda v: " ".join(v) if isinstance(v, list) else ""
)
def test_what_cannot_be_written_is_refused(
    gradcheck: Command, folder: Path, typed: list[str], code: int, message: str
) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}
    ran = gradcheck("grad", *typed)
    assert (ran.code, ran.out) == (code, "")
    assert message in ran.err
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


# Straight through what rounds

FORMS = {  # nodes that make q of x by rounding; the slope of q, were nothing rounded
    "Round": ("q = Round (x)", lambda x: 1 + 0 * x),
    "Floor and Ceil": ("f = Floor (x) g = Mul (f, three) q = Ceil (g)", lambda x: 3 + 0 * x),
    "made by hand": (
        "a = Mul (x, two) r = Round (a) c = Clip (r, low, high) q = Mul (c, half)", lambda x: abs(np.rint(2 * x)) <= 4),
    "by an integer": ("i = Cast <to = 6> (x) q = Cast <to = 1> (i)", lambda x: 1 + 0 * x),
    "by bytes that are shifted and clipped": (
        "i = Cast <to = 6> (x) s = Add (i, one) c = Clip (s, least, most) q = Cast <to = 1> (c)",
        lambda x: (np.trunc(x) + 1 >= -1) & (np.trunc(x) + 1 <= 3),
    ),
    "by a small float": ("e = Cast <to = 17> (x) q = Cast <to = 1> (e)", lambda x: 1 + 0 * x),
    "QuantizeLinear": (
        "i = QuantizeLinear (x, half, zero) r = Reshape (i, shape) t = Reshape (r, whole)"
        " q = DequantizeLinear (t, half, zero)", lambda x: 1 + 0 * x,
    ),
    "QuantizeLinear out of range": (
        "h = Mul (x, hundred) i = QuantizeLinear (h, half, zero) q = DequantizeLinear (i, half, zero)",
        lambda x: 100.0 * ((200 * x >= -131) & (200 * x <= 124)),
    ),
    "a cast number that is dequantized": (
        "h = Mul (x, two) i = Cast <to = 3> (h) q = DequantizeLinear (i, half)", lambda x: 1 + 0 * x),
}  # fmt: skip
AT = np.float32([-3.4, -0.9, 0.3, 0.7, 1.6, 2.2])


def rounding(folder: Path, nodes: str) -> Path:
    """A model of the sum of q^2."""
    text = f"""<ir_version: 10, opset_import: ["" : 21]> g (float[6] x) => (float loss, float[6] q)
    <float two = {{2.0}}, float three = {{3.0}}, float half = {{0.5}}, float low = {{-4.0}}, float high = {{4.0}},
     float hundred = {{100.0}}, int32 one = {{1}}, int32 least = {{-1}}, int32 most = {{3}}, int8 zero = {{3}},
     int64[2] shape = {{2, 3}}, int64[1] whole = {{6}}, int64[1] single = {{1}}, int64[2] rows = {{3, 2}},
     bool yes = {{1}}, int64 once = {{1}}, int32[1] one1 = {{1}}, float[4] ones = {{1.0, 1.0, 1.0, 1.0}}>
    {{ {nodes} p = Mul (q, q) loss = ReduceSum <keepdims = 0> (p) }}"""
    onnx.save(onnx.parser.parse_model(text), folder / "q.onnx")
    return folder / "q.onnx"


@pytest.mark.parametrize("form", FORMS)
def test_a_gradient_goes_straight_through_what_still_rounds(gradcheck: Command, folder: Path, form: str) -> None:
    nodes, slope = FORMS[form]
    loss, q = run(rounding(folder, nodes), ["loss", "q"], {"x": AT})
    ran = gradcheck("grad", "q.onnx", "--y", "loss", "--straight-through", "-o", "g.onnx")
    assert ran.code == 0, ran.err
    again, same, found = run(folder / "g.onnx", ["loss", "q", "x_grad"], {"x": AT})
    assert (again, same.tolist()) == (loss, q.tolist())
    assert_rounded(found, 2 * q.astype(np.float64) * slope(AT.astype(np.float64)), roundings=2 * FUNCTION)
    assert np.any(found)


def test_the_scale_of_a_quantizer_has_the_gradient_of_what_it_rounds_away(gradcheck: Command, folder: Path) -> None:
    [q] = run(rounding(folder, FORMS["QuantizeLinear"][0]), ["q"], {"x": AT})
    ran = gradcheck("grad", "q.onnx", "--x", "half", "--y", "loss", "--straight-through", "-o", "g.onnx")
    assert ran.code == 0, ran.err
    [found] = run(folder / "g.onnx", ["half_grad"], {"x": AT})
    scaled = AT.astype(np.float64) / 0.5
    terms = 2 * q * (np.rint(scaled) - scaled)
    assert_rounded(found, terms.sum(), roundings=4 * FUNCTION, of=np.abs(q).sum() * np.abs(scaled).max())


def test_tangents_go_straight_through_as_gradients_do(gradcheck: Command, folder: Path) -> None:
    path = rounding(folder, FORMS["made by hand"][0])
    [q] = run(path, ["q"], {"x": AT})
    ran = gradcheck("grad", "q.onnx", "--y", "loss", "--straight-through", "--jvp", "-o", "g.onnx")
    assert ran.code == 0, ran.err
    t = np.linspace(-1, 2, 6, dtype=np.float32)
    [found] = run(folder / "g.onnx", ["loss_tangent"], {"x": AT, "x_tangent": t})
    terms = 2.0 * q * t * FORMS["made by hand"][1](AT)
    assert_rounded(found, np.sum(terms, dtype=np.float64), roundings=2 * FUNCTION + 6, of=np.abs(terms).sum())


BYTES = "a = QuantizeLinear (x, half, zero)", "q = DequantizeLinear (i, half, zero)"
WHOLES = "a = Cast <to = 6> (x)", "q = Cast <to = 1> (i)"
THROUGH = {  # how integers that stand for x come out of a node: nodes, the node that is named
    "an If": ("i = If (yes) <then_branch = t () => (CODES[6] a) {{ {0} }}, else_branch = e () => (CODES[6] b)"
              " {{ {0} b = Identity (a) }}> {1}", "node 0 If 'i' hands out 'i'"),
    "an If beside a way without it": (
        "i = If (yes) <then_branch = t () => (CODES[6] a) {{ {0} }}, else_branch = e () => (CODES[6] b)"
        " {{ {0} b = Identity (a) }}> {2} q = Add (x, d)", "node 0 If 'i' hands out 'i'"),
    "an If inside of an If": (
        "i = If (yes) <then_branch = t () => (CODES[6] c) {{ c = If (yes) <then_branch = u () => (CODES[6] a) {{ {0} }},"
        " else_branch = f () => (CODES[6] b) {{ {0} b = Identity (a) }}> }}, else_branch = e () => (CODES[6] b)"
        " {{ {0} b = Identity (a) }}> {1}", "node 0 If 'i' hands out 'i'"),
    "a result of a Loop": (
        "last, j = Loop (once, yes, x) <body = l (int64 n, bool go, float[6] p) => (bool on, float[6] r, CODES[6] a)"
        " {{ on = Identity (go) r = Identity (p) {0} }}> i = Reshape (j, whole) {1}", "node 0 Loop 'last' hands out 'j'"),
    "a state of a Loop": (
        "{0} i = Loop (once, yes, a) <body = l (int64 n, bool go, CODES[6] p) => (bool on, CODES[6] r)"
        " {{ on = Identity (go) r = Identity (p) }}> {1}", "node 1 Loop 'i' hands out 'i'"),
    "a Scan": ("z = Reshape (x, rows) i = Scan <num_scan_inputs = 1, body = l (float[2] p) => (CODES[2] r)"
               " {{ {3} }}> (z) k = Reshape (i, whole) {4}", "node 1 Scan 'i' hands out 'i'"),
}  # fmt: skip


def coded(text: str, ways: tuple[str, str], kind: str) -> str:
    made, read = ways
    parts = (
        made,
        read,
        read.replace("q =", "d ="),
        made.replace("(x", "(p").replace("a =", "r ="),
        read.replace("(i", "(k"),
    )
    return text.format(*parts).replace("CODES", kind)


@pytest.mark.parametrize("ways, kind", [(BYTES, "int8"), (WHOLES, "int32")], ids=["bytes", "casts"])
@pytest.mark.parametrize("form", THROUGH)
def test_integers_that_leave_a_graph_inside_are_refused(
    gradcheck: Command, folder: Path, form: str, ways: tuple[str, str], kind: str
) -> None:
    text, named = THROUGH[form]
    onnx.checker.check_model(onnx.load(rounding(folder, coded(text, ways, kind))), full_check=True)
    ran = gradcheck("grad", "q.onnx", "--y", "loss", "--straight-through", "-o", "g.onnx")
    assert ran.code == 5
    assert f"{named} as integers that stand for real numbers: no straight-through gradient" in ran.err
    assert not (folder / "g.onnx").exists()


WITHIN = {  # rounding that a graph inside does as a whole, or whose integers it reads
    "both in a branch": "q = If (yes) <then_branch = t () => (float[6] r) { a = QuantizeLinear (x, half, zero)"
    " r = DequantizeLinear (a, half, zero) }, else_branch = e () => (float[6] b) { b = Neg (x) }>",
    "integers read by a branch": "a = QuantizeLinear (x, half, zero) q = If (yes) <then_branch = t () => (float[6] r)"
    " { r = DequantizeLinear (a, half, zero) }, else_branch = e () => (float[6] b) { b = Neg (x) }>",
    "both in a loop": "q = Loop (once, yes, x) <body = l (int64 n, bool go, float[6] p) => (bool on, float[6] r)"
    " { on = Identity (go) a = QuantizeLinear (p, half, zero) r = DequantizeLinear (a, half, zero) }>",
    "integers that a branch hands out as indices": "j = If (yes) <then_branch = t () => (int32[1] r)"
    " { a = ReduceMin (x) b = Abs (a) c = Reshape (b, single) r = Cast <to = 6> (c) },"
    " else_branch = e () => (int32[1] d) { d = Identity (one1) }> g = Gather (ones, j) r = Round (x) q = Mul (r, g)",
}


@pytest.mark.parametrize("form", WITHIN)
def test_a_gradient_goes_straight_through_graphs_inside(gradcheck: Command, folder: Path, form: str) -> None:
    loss, q = run(rounding(folder, WITHIN[form]), ["loss", "q"], {"x": AT})
    ran = gradcheck("grad", "q.onnx", "--y", "loss", "--straight-through", "-o", "g.onnx")
    assert ran.code == 0, ran.err
    again, same, found = run(folder / "g.onnx", ["loss", "q", "x_grad"], {"x": AT})
    assert (again, same.tolist()) == (loss, q.tolist())
    assert_rounded(found, 2 * q.astype(np.float64), roundings=2 * FUNCTION)
    assert np.any(found)


def test_straight_through_nothing_that_rounds_is_an_error(gradcheck: Command) -> None:
    ran = gradcheck("grad", "mlp.onnx", "--straight-through", "-o", "g.onnx")
    assert ran.code == 2
    assert "--straight-through has no effect: nothing in mlp.onnx is rounded" in ran.err
