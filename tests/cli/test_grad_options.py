"""Options of `gradcheck grad`: weights as inputs, slices of outputs, rows by themselves, poles, limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.cli.conftest import Command
from tests.export.open_models import open_session

pytest.importorskip("onnxruntime")

NET = """<ir_version: 9, opset_import: ["" : 18]> net (float[N,3] x) => (float[N,4] y)
    <float[3,4] w = {1, 2, 0.5, -1, 3, -2, 0.1, 0.7, -0.3, 0.9, 2, 1}, float[4] b = {0, 1, -1, 0.5}>
    { m = MatMul(x, w) z = Add(m, b) y = Tanh(z) }"""
W = np.array([1, 2, 0.5, -1, 3, -2, 0.1, 0.7, -0.3, 0.9, 2, 1]).reshape(3, 4)
B = np.array([0, 1, -1, 0.5])
X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
BRANCHES = """<ir_version: 9, opset_import: ["" : 18]> g (bool c, float[N,2] x) => (float[N,2] y) {
    y = If(c) <then_branch = a () => (float[N,2] u) <float[2,2] w = {1, 2, 3, 4.5}> { u = MatMul(x, w) },
               else_branch = b () => (float[N,2] u) <float[2] v = {1, 2.5}> { u = Mul(x, v) }> }"""


def written(gradcheck: Command, *options: str, text: str = NET) -> Any:
    """A session of the file that `gradcheck grad` writes."""
    done = asked(gradcheck, *options, text=text)
    assert done.code == 0, done.err
    return open_session(Path("g.onnx"))


def asked(gradcheck: Command, *options: str, text: str = NET) -> Any:
    """The command, run on a model in the working folder."""
    onnx.save(onnx.parser.parse_model(text), "net.onnx")
    return gradcheck("grad", "net.onnx", "-o", "g.onnx", *options)


def slopes(x: Any, w: Any = W, b: Any = B) -> Any:
    """1 - y^2, the derivative of y by what goes into its Tanh."""
    return 1 - np.tanh(x @ w + b) ** 2


def given(session: Any, **feeds: Any) -> dict[str, Any]:
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


def test_weights_are_inputs_whose_values_are_defaults(gradcheck: Command) -> None:
    session = written(gradcheck, "--params-as-inputs")
    found = given(session, x=X)
    np.testing.assert_allclose(found["w_grad"], X.T @ slopes(X), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["b_grad"], slopes(X).sum(0), rtol=1e-5, atol=1e-6)
    other = (W / 2).astype(np.float32)
    found = given(session, x=X, w=other)
    np.testing.assert_allclose(found["w_grad"], X.T @ slopes(X, other), rtol=1e-5, atol=1e-6)
    assert "x_grad" not in found
    assert {t.name for t in onnx.load("g.onnx").graph.initializer} >= {"w", "b"}


def test_some_weights_beside_x(gradcheck: Command) -> None:
    session = written(gradcheck, "--params-as-inputs", "--param", "b", "--x", "x")
    assert {i.name for i in session.get_overridable_initializers()} == {"b"}
    found = given(session, x=X, b=np.zeros(4, np.float32))
    np.testing.assert_allclose(found["b_grad"], slopes(X, W, 0).sum(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["x_grad"], slopes(X, W, 0) @ W.T, rtol=1e-5, atol=1e-6)
    assert {*found} == {"y", "x_grad", "b_grad"}


@pytest.mark.parametrize("branch", [True, False])
def test_weights_inside_of_branches_are_inputs(branch: bool, gradcheck: Command) -> None:
    session = written(gradcheck, "--params-as-inputs", text=BRANCHES)
    x = X[:, :2]
    found = given(session, x=x, c=np.array(branch), w=np.eye(2, dtype=np.float32))
    np.testing.assert_allclose(
        found["w_grad"], x.T @ np.ones_like(x) if branch else np.zeros((2, 2)), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(found["v_grad"], np.zeros(2) if branch else x.sum(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("y[:,3]", (slice(None), 3)), ("y[0]", 0), ("y[0,1:3]", (0, slice(1, 3))), ("y[-1,::2]", (-1, slice(0, 4, 2))),
        ("y[...,1]", (slice(None), 1)), ("y[:]", slice(None)), ("y[::-1,2]", (slice(None), 2)),
        ("y[1:,:-1]", (slice(1, None), slice(None, -1))),
    ],
)  # fmt: skip
def test_a_slice_of_an_output_is_differentiated(text: str, at: Any, gradcheck: Command) -> None:
    session = written(gradcheck, "--y", text)
    found, chosen = given(session, x=X), np.zeros((5, 4))
    chosen[at] = 1
    np.testing.assert_allclose(
        found["x_grad"], (slopes(X) * chosen) @ W.T, rtol=1e-5, atol=2e-6
    )  # 1 - y^2 is rounded near 1


@pytest.mark.parametrize(
    ("text", "said"),
    [("y[0,1,2]", "has 2 dimensions"), ("y[,1]", "write an index or a slice"), ("y[::0]", "a step other than 0"),
     ("z2[0]", "no tensor 'z2[0]'"), ("y[a]", "no tensor 'y[a]'")],
)  # fmt: skip
def test_what_is_no_slice_is_said(text: str, said: str, gradcheck: Command) -> None:
    done = asked(gradcheck, "--y", text)
    assert done.code == 2
    assert said in done.err
    assert not Path("g.onnx").exists()


@pytest.mark.parametrize("rows", [1, 5])
def test_rows_by_themselves(rows: int, gradcheck: Command) -> None:
    session = written(gradcheck, "--per-sample", "--params", "--x", "x")
    x = X[:rows]
    found = given(session, x=x)
    np.testing.assert_allclose(found["y"], np.tanh(x @ W + B), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["x_grad"], slopes(x) @ W.T, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        found["w_grad"], np.einsum("ni,nj->nij", x, slopes(x)), rtol=1e-5, atol=2e-6
    )  # 1 - y^2 is rounded near 1
    np.testing.assert_allclose(found["b_grad"], slopes(x), rtol=1e-5, atol=1e-6)
    onnx.checker.check_model(onnx.load("g.onnx"), full_check=True)


def test_rows_of_weights_that_are_inputs(gradcheck: Command) -> None:
    found = given(written(gradcheck, "--per-sample", "--params-as-inputs"), x=X, b=np.zeros(4, np.float32))
    np.testing.assert_allclose(found["b_grad"], slopes(X, W, 0), rtol=1e-5, atol=1e-6)


ROUNDED = {  # a weight whose derivative is 0 for every row
    "everywhere": (NET.replace("Add(m, b)", "Add(m, r) r = Round(b)"), ["--unconnected", "zero"]),
    "in a branch": ("""<ir_version: 9, opset_import: ["" : 18]> net (float[N,3] x) => (float y)
        <float[3,4] w = {1, 2, 0.5, -1, 3, -2, 0.1, 0.7, -0.3, 0.9, 2, 1}, float[4] b = {0, 1, -1, 0.5}>
        { m = MatMul(x, w) s = ReduceSum<keepdims = 0>(m) z = Constant<value_float = 0.0>() c = Greater(s, z)
          h = If(c) <then_branch = t () => (float[N,4] u) { u = Tanh(m) },
                     else_branch = e () => (float[N,4] u) { a = Add(m, b) u = Sign(a) }>
          y = ReduceSum<keepdims = 0>(h) }""", []),
}  # fmt: skip


@pytest.mark.parametrize("name", ROUNDED)
def test_rows_have_zeros_for_a_weight_that_is_rounded(name: str, gradcheck: Command) -> None:
    text, options = ROUNDED[name]
    found = given(written(gradcheck, "--per-sample", "--params", *options, text=text), x=X)
    np.testing.assert_array_equal(found["b_grad"], np.zeros((5, 4)))
    assert found["w_grad"].shape == (5, 3, 4)
    assert found["w_grad"].any()


NO_ROWS = {
    "no open dimension": (NET.replace("N", "5"), "--per-sample needs a batch: an input whose first dimension is open"),
    "an open dimension without a name": (NET.replace("N", "?"), "is open and has a name; that of 'x' has none"),
    "a state with the batch behind its layers": (
        NET.replace("float[N,3] x)", "float[N,3] x, float[2,N,3] h)").replace(
            "m = MatMul(x, w)", "a = ReduceSum<keepdims = 0>(h) e = Mul(x, a) m = MatMul(e, w)"
        ),
        "'h' has it behind its first dimension",
    ),
    "a model that needs two rows": (
        NET.replace("m = MatMul(x, w)", "one = Constant<value_int=1>() o = Gather(x, one) a = Add(x, o) m = MatMul(a, w)"),
        "the model does not run at N=1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_ROWS)
def test_without_a_batch_of_rows_none_are_taken(name: str, gradcheck: Command) -> None:
    text, said = NO_ROWS[name]
    done = asked(gradcheck, "--per-sample", text=text)
    assert done.code in (2, 5)
    assert said in done.err
    assert not Path("g.onnx").exists()


OF_ROWS = {  # y of a batch, and True if it is made of y of its rows
    "y": ("y = Exp(h)", True),
    "the sum": ("y = ReduceSum<keepdims = 0>(h)", True),
    "the mean": ("y = ReduceMean<keepdims = 0>(h)", True),
    "distances of all pairs": (
        "t = Transpose(h) g = MatMul(h, t) s = Sigmoid(g) y = ReduceSum<keepdims = 0>(s)", False
    ),
    "shares of a row in the batch": ("y = Softmax<axis = 0>(h)", False),
    "a root of the mean": ("q = Mul(h, h) m = ReduceMean<keepdims = 0>(q) y = Sqrt(m)", False),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_ROWS)
def test_rows_that_are_coupled_are_told(name: str, gradcheck: Command) -> None:
    made, apart = OF_ROWS[name]
    shape = "float[N,3]" if name in ("y", "shares of a row in the batch") else "float"
    done = asked(gradcheck, "--per-sample", text=f"""<ir_version: 9, opset_import: ["" : 18]>
        p (float[N,3] x) => ({shape} y) {{ h = Tanh(x) {made} }}""")  # fmt: skip
    assert done.code == 0
    assert ("'y' of a batch is not made of 'y' of its rows" in done.out) is not apart


def test_rows_of_a_model_that_draws_numbers_are_not_held_against_other_draws(gradcheck: Command) -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]> p (float[N,3] x) => (float[N,3] y) {
        h = Tanh(x) r = RandomNormalLike(x) y = Mul(h, r) }"""
    x = X[:, :3]
    found = given(written(gradcheck, "--per-sample", text=text), x=x)
    np.testing.assert_allclose(found["x_grad"], found["y"] / np.tanh(x) * (1 - np.tanh(x) ** 2), rtol=1e-4)


def test_nodes_of_rows_are_counted(gradcheck: Command) -> None:
    plain, rows = (asked(gradcheck, *option).out.split(" nodes, ")[0] for option in ((), ("--per-sample",)))
    assert int(rows.split()[-1]) > int(plain.split()[-1])


POLES = """<ir_version: 9, opset_import: ["" : 18]> p (float[N] x) => (float[N] y)
    {{ zero = Constant<value_float = 0.0>() on = Greater(x, zero) r = {op} y = Where(on, r, zero) }}"""


@pytest.mark.parametrize(
    ("op", "slope"),
    [("Sqrt(x)", lambda x: 0.5 / np.sqrt(x)), ("Log(x)", lambda x: 1 / x), ("Reciprocal(x)", lambda x: -1 / x**2)],
)
def test_nothing_flows_into_poles_when_asked(op: str, slope: Any, gradcheck: Command) -> None:
    x = np.array([4.0, 0.0, 0.25, -1.0], np.float32)
    plain = given(written(gradcheck, text=POLES.format(op=op)), x=x)["x_grad"]
    safe = given(written(gradcheck, "--safe", text=POLES.format(op=op)), x=x)["x_grad"]
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(safe, np.where(x > 0, slope(x), 0), rtol=1e-6)
    assert np.isnan(plain[1])
    assert np.array_equal(plain[[0, 2]], safe[[0, 2]])


CURVED = """<ir_version: 9, opset_import: ["" : 18]> p (double[N] x) => (double y)
    {{ zero = Constant<value = double {{0}}>() one = Constant<value = double {{1}}>() c = Constant<value = double {{{c}}}>()
       on = Greater(x, zero) r = {op} w = Where(on, r, c) d = Sub(w, c) s = Mul(d, d) y = ReduceSum<keepdims=0>(s) }}"""


@pytest.mark.parametrize(
    ("op", "value", "slope", "curve"),
    [
        ("Sqrt(x)", np.sqrt, lambda x: 0.5 / np.sqrt(x), lambda x: -0.25 * x**-1.5),
        ("Log(x)", np.log, lambda x: 1 / x, lambda x: -1 / x**2),
        ("Reciprocal(x)", lambda x: 1 / x, lambda x: -1 / x**2, lambda x: 2 / x**3),
        ("Div(one, x)", lambda x: 1 / x, lambda x: -1 / x**2, lambda x: 2 / x**3),
    ],
)
def test_curvature_stays_where_no_gradient_arrives(
    op: str, value: Any, slope: Any, curve: Any, gradcheck: Command
) -> None:
    """At a residual of exactly 0 no gradient arrives, and all of the curvature is that of Gauss and Newton."""
    x, v, c = np.array([4.0, 0.0, 0.25, -1.0]), np.array([1.0, 2.0, 3.0, 4.0]), value(np.array(4.0))
    text = CURVED.format(op=op, c=c)
    got = given(written(gradcheck, "--safe", "--hvp", text=text), x=x, x_vector=v)["x_hvp"]
    with np.errstate(all="ignore"):
        expected = 2 * v * (slope(x) ** 2 + (value(x) - c) * curve(x))
    np.testing.assert_allclose(got, np.where(x > 0, expected, 0), rtol=1e-12)


def test_tangents_need_no_saving_from_poles(gradcheck: Command) -> None:
    done = asked(gradcheck, "--safe", "--jvp", text=POLES.format(op="Sqrt(x)"))
    assert done.code == 2
    assert "--safe has no effect beside --jvp" in done.err
    x, v = np.array([4.0, 0.0, 0.25, -1.0], np.float32), np.ones(4, np.float32)
    tangent = given(written(gradcheck, "--jvp", text=POLES.format(op="Sqrt(x)")), x=x, x_tangent=v)["y_tangent"]
    np.testing.assert_allclose(tangent, [0.25, 0, 1, 0], rtol=1e-6)


def test_limits_hold(gradcheck: Command) -> None:
    assert asked(gradcheck, "--timeout", "60s", "--memory-limit", "1GiB").code == 0
    Path("g.onnx").unlink()
    done = asked(gradcheck, "--timeout", "0.001s")
    assert done.code == 6
    assert "--timeout" in done.err
    assert not Path("g.onnx").exists()


def test_a_sum_that_is_always_one_brings_a_hint(gradcheck: Command) -> None:
    text = NET.replace("Tanh(z)", "Softmax(z)")
    hint = "y adds up to 1 whatever goes in, and its gradient to 0: --grad-ys inputs, or an entry, --y 'y[:,0]'"
    assert hint in asked(gradcheck, text=text).out
    assert "adds up" not in asked(gradcheck, "--grad-ys", "inputs", text=text).out
    assert "adds up" not in asked(gradcheck, "--y", "y[:,0]", text=text).out


def test_weights_inside_of_branches_are_written_once(gradcheck: Command) -> None:
    w, x = np.random.default_rng(0).normal(size=(40, 40)).astype(np.float32), np.ones((2, 40), np.float32)
    text = BRANCHES.replace("float[N,2]", "float[N,40]").replace("float[2] v = {1, 2.5}", "float[1] v = {2.5}")
    model = onnx.parser.parse_model(text.replace("float[2,2] w = {1, 2, 3, 4.5}", "float[1] unused = {1}"))
    model.graph.node[0].attribute[0].g.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    onnx.save(model, "net.onnx")
    assert gradcheck("grad", "net.onnx", "-o", "g.onnx").code == 0
    assert Path("g.onnx").stat().st_size < 1.5 * w.nbytes
    for branch in (True, False):
        found = given(open_session(Path("g.onnx")), x=x, c=np.array(branch))
        np.testing.assert_allclose(found["x_grad"], np.ones_like(x) @ w.T if branch else 2.5 * x, rtol=1e-4)
