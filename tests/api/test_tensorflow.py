"""The two functions against the two of TensorFlow that they descend from, on equal graphs.

TensorFlow builds each graph beside ours and is called with the same arguments.  Where it is not installed nothing
here runs; `pip install -e '.[oracles]'` brings it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
pytestmark = [pytest.mark.filterwarnings("ignore")]  # of TensorFlow's own imports
tensorflow = pytest.importorskip("tensorflow")
tf = tensorflow.compat.v1
tf.logging.set_verbosity(tf.logging.ERROR)

Make = Callable[..., gc.Model]
Tensors = dict[str, Any]


@dataclass(frozen=True)
class Twin:
    """One function, once in ONNX's text syntax and once as TensorFlow builds it; `at` are the values of its inputs."""

    nodes: str
    build: Callable[..., Tensors]
    at: Mapping[str, Any]
    constants: Mapping[str, Any] = field(default_factory=dict)

    def ours(self, make: Make) -> gc.Model:
        """The model; every tensor that TensorFlow knows is an output."""
        inputs = {n: {"shape": list(np.shape(v)), "dtype": np.asarray(v).dtype.name} for n, v in self.at.items()}
        outputs = [line.split("=")[0].strip() for line in self.nodes.split("\n")]
        names = [name.strip() for output in outputs for name in output.split(",")]
        return make(
            self.nodes, inputs, outputs=names, constants={n: np.asarray(v).tolist() for n, v in self.constants.items()}
        )

    def theirs(self) -> Tensors:
        """TensorFlow's tensors by name, in its default graph."""
        given = {n: tf.placeholder(np.asarray(v).dtype, np.shape(v), n) for n, v in self.at.items()}
        return {**given, **self.build(**given)}


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Reproducible numbers."""
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def wave(*shape: int, seed: int = 0) -> np.ndarray:
    """Reproducible complex numbers."""
    return normal(*shape, seed=seed) + 1j * normal(*shape, seed=seed + 1)


def chain(x: Any, w: Any, other: Any) -> Tensors:
    """A layer, its activation, and two losses of it."""
    h = tf.matmul(x, w)
    a = tf.tanh(h)
    return {"h": h, "a": a, "loss": tf.reduce_sum(a), "squares": a * a, "away": tf.exp(other)}


CHAIN = Twin(
    "h = MatMul(x, w)\na = Tanh(h)\nloss = ReduceSum<keepdims=0>(a)\nsquares = Mul(a, a)\naway = Exp(other)",
    chain,
    {"x": normal(4, 3), "w": normal(3, 2), "other": normal(3)},
)


def fan(x: Any) -> Tensors:
    """x read in five places, one of them twice removed."""
    parts = [tf.sin(x), tf.cos(x), tf.tanh(x), tf.exp(x), -x]
    u = tf.add_n(parts)
    return {"u": u, "y": u * x}


FAN = Twin(
    "a = Sin(x)\nb = Cos(x)\nc = Tanh(x)\nd = Exp(x)\ne = Neg(x)\nu = Sum(a, b, c, d, e)\ny = Mul(u, x)",
    fan,
    {"x": normal(5)},
)


def linked(a: Any) -> Tensors:
    """TensorFlow's own example of partial derivatives."""
    b = 2 * a
    return {"b": b, "y": a + b}


LINKED = Twin("b = Mul(a, two)\ny = Add(a, b)", linked, {"a": np.array(0.5)}, {"two": np.array(2.0)})


def gathered(x: Any, i: Any) -> Tensors:
    """Rows by number, one of them twice."""
    y = tf.gather(x, i)
    return {"y": y, "n": tf.cast(y, tf.int64), "back": tf.cast(tf.cast(x, tf.int64), tf.float64)}


GATHERED = Twin(
    "y = Gather(x, i)\nn = Cast<to=7>(y)\nk = Cast<to=7>(x)\nback = Cast<to=11>(k)",
    gathered,
    {"x": normal(3, 2), "i": np.array([2, 0, 2])},
)


def cube(x: Any) -> Tensors:
    """Its square on the way."""
    s = x * x
    return {"s": s, "y": s * x}


POLYNOMIAL = Twin("s = Mul(x, x)\ny = Mul(s, x)", cube, {"x": normal(3)})


def waves(z: Any, w: Any, r: Any) -> Tensors:
    """Functions of complex numbers, holomorphic and not."""
    return {
        "square": z * z, "product": z * w, "ratio": z / w, "conj": tf.conj(z), "size": tf.abs(z), "re": tf.real(z),
        "im": tf.imag(z), "angle": tf.angle(z), "energy": z * tf.conj(z), "made": tf.complex(r, r * r),
        "fft": tf.signal.fft(z), "matrix": tf.matmul(tf.reshape(z, [1, 4]), tf.reshape(w, [4, 1])),
    }  # fmt: skip


WAVES = Twin(
    "square = Mul(z, z)\nproduct = Mul(z, w)\nratio = Div(z, w)\nconj = Conj(z)\nsize = Abs(z)\nre = Real(z)\n"
    "im = Imag(z)\nangle = Angle(z)\nenergy = Mul(z, conj)\nrr = Mul(r, r)\nmade = Complex(r, rr)\nfft = FFT(z)\n"
    "row = Reshape(z, as_row)\ncolumn = Reshape(w, as_column)\nmatrix = MatMul(row, column)",
    waves,
    {"z": wave(4), "w": wave(4, seed=5), "r": normal(4)},
    {"as_row": np.array([1, 4]), "as_column": np.array([4, 1])},
)


# gradients


def evaluated(session: Any, found: list[Any], feeds: Tensors) -> list[Any]:
    """Values of TensorFlow's gradients, sparse ones made dense; None stays."""
    dense = [None if g is None else tf.convert_to_tensor(g) for g in found]
    return [None if g is None else session.run(g, feeds) for g in dense]


def replaced(value: Any, tensors: Callable[[str], Any]) -> Any:
    """Arguments with tensors in the place of their names."""
    if isinstance(value, str):
        return tensors(value)
    return [replaced(v, tensors) for v in value] if isinstance(value, list) else value


def both_gradients(make: Make, twin: Twin, arguments: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Values of `gradients` with the same arguments, ours and TensorFlow's."""
    model = twin.ours(make)
    named = {k: v for k, v in arguments.items() if k in ("aggregation_method", "unconnected_gradients")}
    ours = {k: replaced(v, model.__getitem__) for k, v in arguments.items() if k not in named}
    enums = {"aggregation_method": gc.AggregationMethod, "unconnected_gradients": gc.UnconnectedGradients}
    handles = gc.gradients(**ours, **{k: getattr(enums[k], v) for k, v in named.items()})
    values = [None if h is None else gc.run([h], dict(twin.at))[0] for h in handles]
    with tf.Graph().as_default(), tf.Session() as session:
        tensors = twin.theirs()
        given = {k: replaced(v, tensors.__getitem__) for k, v in arguments.items() if k not in named}
        enums = {"aggregation_method": tf.AggregationMethod, "unconnected_gradients": tf.UnconnectedGradients}
        found = tf.gradients(**given, **{k: getattr(enums[k], v) for k, v in named.items()})
        return values, evaluated(session, found, {tensors[n]: v for n, v in twin.at.items()})


COMPLEX = ("square", "product", "ratio", "conj", "energy", "made", "fft")
CALLS: list[tuple[Twin, dict[str, Any]]] = [
    (CHAIN, {"ys": "loss", "xs": "x"}),
    (CHAIN, {"ys": ["loss"], "xs": ["w", "x", "h"]}),
    (CHAIN, {"ys": ["loss", "squares"], "xs": ["x", "w"]}),
    (CHAIN, {"ys": ["squares", "squares"], "xs": ["x"]}),
    (CHAIN, {"ys": ["a", "squares"], "xs": ["a", "x"]}),
    (CHAIN, {"ys": "squares", "xs": "squares"}),
    (CHAIN, {"ys": "x", "xs": ["x", "w"]}),
    (CHAIN, {"ys": "loss", "xs": ["x", "x", "w", "x"]}),
    (CHAIN, {"ys": "h", "xs": "a"}),
    (CHAIN, {"ys": "loss", "xs": ["other", "x"]}),
    (CHAIN, {"ys": "loss", "xs": ["other", "x"], "unconnected_gradients": "ZERO"}),
    (CHAIN, {"ys": ["loss", "away"], "xs": ["other", "x"]}),
    (CHAIN, {"ys": "squares", "xs": ["x", "w"], "grad_ys": normal(4, 2)}),
    (CHAIN, {"ys": ["squares", "loss"], "xs": ["x"], "grad_ys": [normal(4, 2), None]}),
    (CHAIN, {"ys": ["squares", "a"], "xs": ["x"], "grad_ys": ["a", "squares"]}),
    (CHAIN, {"ys": "loss", "xs": ["x", "h", "a"], "stop_gradients": "a"}),
    (CHAIN, {"ys": "squares", "xs": ["x", "w", "a"], "stop_gradients": ["h", "w"]}),
    (CHAIN, {"ys": "a", "xs": ["a"], "stop_gradients": ["a"]}),
    (CHAIN, {"ys": "loss", "xs": ["x"], "stop_gradients": "a", "unconnected_gradients": "ZERO"}),
    (CHAIN, {"ys": "loss", "xs": ["x"], "gate_gradients": True, "colocate_gradients_with_ops": True}),
    *((FAN, {"ys": "y", "xs": ["x", "u"], "aggregation_method": m})
      for m in ("ADD_N", "DEFAULT", "EXPERIMENTAL_TREE", "EXPERIMENTAL_ACCUMULATE_N")),
    (FAN, {"ys": "y", "xs": "x", "stop_gradients": ["u"]}),
    (LINKED, {"ys": "y", "xs": ["a", "b"]}),
    (LINKED, {"ys": "y", "xs": ["a", "b"], "stop_gradients": ["a", "b"]}),
    (LINKED, {"ys": ["y", "b"], "xs": ["a", "b"]}),
    (GATHERED, {"ys": "y", "xs": ["x"]}),
    (GATHERED, {"ys": "back", "xs": ["x"]}),
    *((WAVES, {"ys": y, "xs": ["z", "w", "r"], "grad_ys": [wave(4, seed=9)]}) for y in COMPLEX),
    *((WAVES, {"ys": y, "xs": ["z", "w"]}) for y in ("size", "re", "im", "angle")),
    *((WAVES, {"ys": y, "xs": ["z"], "grad_ys": [normal(4, seed=7)]}) for y in ("size", "angle")),
    (WAVES, {"ys": "matrix", "xs": ["z", "w"], "grad_ys": [wave(1, 1)]}),
    (WAVES, {"ys": ["square", "size"], "xs": ["z"], "grad_ys": [wave(4), None]}),
    (WAVES, {"ys": "z", "xs": ["z", "w"], "grad_ys": ["square"]}),
    (WAVES, {"ys": "size", "xs": ["w"], "unconnected_gradients": "ZERO"}),
]  # fmt: skip


def shown(value: Any) -> str:
    """Arguments as they stand in an id."""
    if isinstance(value, dict):
        return " ".join(f"{k}={shown(v)}" for k, v in value.items())
    if isinstance(value, list):
        return "[" + ",".join(map(shown, value)) + "]"
    return "array" if isinstance(value, np.ndarray) else str(value)


@pytest.mark.parametrize(("twin", "arguments"), CALLS, ids=lambda v: shown(v) if isinstance(v, dict) else "")
def test_gradients_are_those_of_tensorflow(make: Make, twin: Twin, arguments: dict[str, Any]):
    ours, theirs = both_gradients(make, twin, arguments)
    assert [g is None for g in ours] == [g is None for g in theirs]
    for mine, wanted in zip(ours, theirs, strict=True):
        if wanted is not None:
            assert (mine.shape, mine.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_allclose(mine, wanted, rtol=1e-12, atol=1e-13)


def test_gradients_of_gradients_are_those_of_tensorflow(make: Make):
    model = POLYNOMIAL.ours(make)
    ours: list[Any] = [model["y"]]
    with tf.Graph().as_default(), tf.Session() as session:
        tensors = POLYNOMIAL.theirs()
        theirs: list[Any] = [tensors["y"]]
        for _ in range(3):
            ours += gc.gradients(ours[-1], model["x"])
            theirs += tf.gradients(theirs[-1], tensors["x"])
        values = session.run(theirs, {tensors["x"]: POLYNOMIAL.at["x"]})
    np.testing.assert_allclose(gc.run(ours, dict(POLYNOMIAL.at)), values, rtol=1e-13)


@pytest.mark.parametrize("y", ["square", "product", "conj", "energy", "fft"])
def test_gradients_of_gradients_of_complex_tensors_are_those_of_tensorflow(make: Make, y: str):
    model, weights = WAVES.ours(make), [wave(4, seed=3), wave(4, seed=4)]
    first = gc.gradients(model[y], model["z"], grad_ys=weights[:1])
    ours = gc.gradients(first, [model["z"], model["w"]], grad_ys=weights[1:])
    with tf.Graph().as_default(), tf.Session() as session:
        tensors = WAVES.theirs()
        inner = tf.gradients(tensors[y], tensors["z"], grad_ys=weights[:1])
        found = tf.gradients(inner, [tensors["z"], tensors["w"]], grad_ys=weights[1:])
        theirs = evaluated(session, found, {tensors[n]: v for n, v in WAVES.at.items()})
    assert [g is None for g in ours] == [g is None for g in theirs]
    for mine, wanted in zip(ours, theirs, strict=True):
        if mine is not None:
            np.testing.assert_allclose(gc.run([mine], dict(WAVES.at))[0], wanted, rtol=1e-12, atol=1e-13)


def test_names_of_added_tensors_follow_the_same_scheme(make: Make):
    """`gradients/AddN` and `gradients/<forward node>_grad/...`, and `gradients_1` in a second call."""
    model = FAN.ours(make)
    ours = [gc.gradients(model["y"], model["x"])[0].name for _ in range(2)]  # type: ignore[union-attr]
    with tf.Graph().as_default():
        tensors = FAN.theirs()
        theirs = [tf.gradients(tensors["y"], tensors["x"])[0].op.name for _ in range(2)]
    assert ours == theirs == ["gradients/AddN", "gradients_1/AddN"]


# compute_gradient and compute_gradient_error


def in_blocks(jacobian: np.ndarray, x: Any, y: Any) -> np.ndarray:
    """TensorFlow's Jacobian, in which real and imaginary parts alternate, in the blocks that it documents."""
    rows, columns = (np.arange(n) for n in jacobian.shape)
    rows = np.concatenate([rows[::2], rows[1::2]]) if np.iscomplexobj(x) else rows
    columns = np.concatenate([columns[::2], columns[1::2]]) if y.dtype.is_complex else columns
    return jacobian[np.ix_(rows, columns)]


JACOBIANS = [
    (CHAIN, "x", "loss", {}),
    (CHAIN, "w", "squares", {}),
    (CHAIN, "h", "a", {}),
    (CHAIN, "x", "squares", {"delta": 0.25}),
    (CHAIN, "x", "squares", {"extra_feed_dict": {"w": normal(3, 2, seed=8)}}),
    (LINKED, "a", "y", {}),
    (GATHERED, "x", "y", {}),
    (POLYNOMIAL, "x", "y", {"delta": 0.5}),
    *((WAVES, "z", y, {}) for y in ("square", "conj", "size", "re", "im", "angle", "energy", "fft", "matrix", "ratio")),
    (WAVES, "r", "made", {"delta": 0.125}),
]  # fmt: skip


@pytest.mark.parametrize(("twin", "x", "y", "more"), JACOBIANS, ids=lambda v: "" if isinstance(v, Twin) else shown(v))
def test_jacobians_are_those_of_tensorflow(make: Make, twin: Twin, x: str, y: str, more: dict[str, Any]):
    more = dict(more)
    fed = more.pop("extra_feed_dict", {})
    given = {n: v for n, v in {**twin.at, **fed}.items() if n != x}
    model = twin.ours(make)
    with tf.Graph().as_default(), tf.Session() as session:
        tensors = twin.theirs()
        here = session.run(tensors[x], {tensors[n]: v for n, v in twin.at.items()})
        shape = tuple(tensors[y].shape.as_list())
        theirs = [
            tf.test.compute_gradient(
                tensors[x], here.shape, tensors[y], shape, here,
                extra_feed_dict={tensors[n]: v for n, v in given.items()}, **more,
            ),
            tf.test.compute_gradient_error(
                tensors[x], here.shape, tensors[y], shape, here,
                extra_feed_dict={tensors[n]: v for n, v in given.items()}, **more,
            ),
        ]  # fmt: skip
        wanted = [in_blocks(j, here, tensors[y]) for j in theirs[0]]
    found = gc.compute_gradient(model[x], here.shape, model[y], shape, here, extra_feed_dict=given, **more)
    error = gc.compute_gradient_error(model[x], here.shape, model[y], shape, here, extra_feed_dict=given, **more)
    assert [j.shape for j in found] == [j.shape for j in wanted]
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-9, atol=1e-10)
    assert error == pytest.approx(theirs[1], rel=1e-6, abs=1e-10)


def test_a_tensor_fixed_inside_is_fixed_in_both_jacobians_not_in_the_numerical_one_alone(make: Make):
    """TensorFlow's derivative goes on behind a tensor that is fed; its difference quotient cannot."""
    model, (x, u) = FAN.ours(make), (FAN.at["x"], normal(5, seed=3))
    with tf.Graph().as_default(), tf.Session():
        t = FAN.theirs()
        leaking, wanted = tf.test.compute_gradient(t["x"], (5,), t["y"], (5,), x, extra_feed_dict={t["u"]: u})
    theoretical, numerical = gc.compute_gradient(model["x"], (5,), model["y"], (5,), x, extra_feed_dict={"u": u})
    np.testing.assert_allclose(wanted, np.diag(u), atol=1e-10)
    assert np.abs(leaking - wanted).max() > 0.1
    np.testing.assert_allclose(theoretical, wanted, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(numerical, wanted, rtol=1e-9, atol=1e-10)


def test_a_list_of_x_gives_the_pairs_of_tensorflow(make: Make):
    model, names = CHAIN.ours(make), ["x", "w"]
    values = [CHAIN.at[n] for n in names]
    shapes = [v.shape for v in values]
    with tf.Graph().as_default(), tf.Session():
        tensors = CHAIN.theirs()
        xs = [tensors[n] for n in names]
        fed = {tensors[n]: v for n, v in CHAIN.at.items()}
        theirs = tf.test.compute_gradient(xs, shapes, tensors["a"], (4, 2), values, extra_feed_dict=fed)
    ours = gc.compute_gradient([model[n] for n in names], shapes, model["a"], (4, 2), values)
    assert [len(pair) for pair in ours] == [len(pair) for pair in theirs]
    for mine, wanted in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine[0], wanted[0], rtol=1e-12)
        np.testing.assert_allclose(mine[1], wanted[1], rtol=1e-9, atol=1e-10)


# What TensorFlow does badly and we do not


@pytest.mark.parametrize(
    ("ys", "xs", "more"),
    [
        ("loss", np.ones((4, 3)), {}),  # AttributeError
        ("loss", [], {}),  # []
        ([], "x", {}),  # [None]
        ("loss", "x", {"grad_ys": np.ones((4, 2))}),  # a gradient of the wrong shape
        ("loss", "x", {"aggregation_method": 7}),
        ("loss", "x", {"unconnected_gradients": "nil"}),
        ("loss", "x", {"name": "a b"}),
    ],
    ids=shown,
)
def test_arguments_that_tensorflow_takes_wrongly_are_value_errors(make: Make, ys: Any, xs: Any, more: dict[str, Any]):
    model = CHAIN.ours(make)
    with pytest.raises(ValueError, match=r"ys|xs|name|aggregation_method|unconnected_gradients"):
        gc.gradients(replaced(ys, model.__getitem__), replaced(xs, model.__getitem__), **more)
