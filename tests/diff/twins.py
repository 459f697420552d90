"""Pairs of models that compute the same, or do not: what tools make of a model, and what they get wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import ModelProto, helper, numpy_helper

from gradcheck_cli.checks.diff.two_models import compare
from gradcheck_cli.formats.onnx.read import read_proto
from gradcheck_cli.results.record import Check
from gradcheck_cli.settings import Settings

RNG = np.random.default_rng(3)
W, V = RNG.normal(size=(4, 5)), RNG.normal(size=(5, 3))
SQUARE, K = RNG.normal(size=(4, 4)), RNG.normal(size=(3, 2, 3, 3))
BIAS = RNG.normal(size=5)


class Twins(NamedTuple):
    """A model and what became of it."""

    name: str
    a: ModelProto
    b: ModelProto
    settings: Mapping[str, Any] = {}
    given: Mapping[str, str] = {}


def net(text: str, opset: int = 18, dtype: Any = np.float32, **constants: Any) -> ModelProto:
    """A model in ONNX's text syntax; its floating-point constants get a dtype."""
    graph = onnx.parser.parse_graph(text)
    for name, value in constants.items():
        array = np.asarray(value)
        graph.initializer.append(numpy_helper.from_array(array.astype(dtype) if array.dtype == float else array, name))
    sets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=9)


def diff(twins: Twins, **more: Any) -> dict[str, Check]:
    """The records by what they are of: "y", or "y/x"."""
    a, b = (read_proto(proto, f"{name}.onnx") for proto, name in ((twins.a, "a"), (twins.b, "b")))
    tables = {name: more.pop(name) for name in ("ops", "ops_of_b") if name in more}
    found = compare(a, b, Settings(**{**twins.settings, **more}), twins.given, name=twins.name, **tables)
    return {f"{c.y}/{c.x}" if c.x else c.y: c for c in found}


def statuses(twins: Twins, **more: Any) -> dict[str, str]:
    """Status of each."""
    return {key: f"{c.status} {c.code}".strip() for key, c in diff(twins, **more).items()}


IN = "(float[N,4] x) => (float[N,3] y)"
MLP = f"a {IN} {{ h = MatMul (x, W)  g = Add (h, b)  r = Tanh (g)  y = MatMul (r, V) }}"
HEAD = f"a {IN} {{ h = MatMul (x, W)  r = Tanh (h)  y = MatMul (r, V) }}"
FOLDED = K * (np.array([1.5, -0.5, 2.0]) / np.sqrt(np.array([0.5, 1.0, 2.0]) + 1e-5)).reshape(3, 1, 1, 1)
FOLDED_BIAS = np.array([0.1, 0.2, 0.3]) - np.array([0.3, -0.2, 0.1]) * np.array([1.5, -0.5, 2.0]) / np.sqrt(
    np.array([0.5, 1.0, 2.0]) + 1e-5
)
NORMED = net(
    "a (float[N,2,5,5] x) => (float[N,3,3,3] y) { c = Conv (x, K)  n = BatchNormalization (c, s, b, m, v)  y = Relu (n) }",
    K=K, s=[1.5, -0.5, 2.0], b=[0.1, 0.2, 0.3], m=[0.3, -0.2, 0.1], v=[0.5, 1.0, 2.0],
)  # fmt: skip
GELU = net(
    "a (float[2,4] x) => (float[2,4] y) "
    "{ d = Div (x, r)  e = Erf (d)  p = Add (e, one)  m = Mul (x, p)  y = Mul (m, half) }",
    r=np.sqrt(2), one=1.0, half=0.5,
)  # fmt: skip
LAYER = "a (float[2,4] x) => (float[2,4] y) {{ y = LayerNormalization <epsilon = {}, axis = -1> (x, s, b) }}"
SCALE = {"s": [1.0, 0.5, 2.0, -1.0], "b": [0.0, 0.1, 0.2, 0.3]}
COMPOSED = net(
    """a (float[2,4] x) => (float[2,4] y) { m = ReduceMean (x, ax)  d = Sub (x, m)  q = Mul (d, d)  v = ReduceMean (q, ax)
    ve = Add (v, eps)  r = Sqrt (ve)  n = Div (d, r)  t = Mul (n, s)  y = Add (t, b) }""",
    ax=np.array([-1]), eps=1e-5, **SCALE,
)  # fmt: skip
TWO = "a (float[2,3] p, float[2,3] q) => (float[2,3] y) { e = Exp (p)  y = Mul (e, q) }"
PAIR_TEXT = "a (float[2,3] x) => (seq(float[2,3]) y) { n = Neg (x)  e = Exp (x)  y = SequenceConstruct (n, e) }"
PAIR = net(PAIR_TEXT)
SMALL = "a (float[2,4] x) => (float[2,4] y) { h = Mul (x, c)  s = Mul (h, h)  t = Add (s, e)  y = Div (h, t) }"
SAME = [
    Twins("identical", net(MLP, W=W, V=V, b=BIAS), net(MLP, W=W, V=V, b=BIAS)),
    Twins(
        "renamed inside", net(MLP, W=W, V=V, b=BIAS),
        net(
            f"a {IN} {{ t1 = MatMul (x, p1)  t2 = Add (t1, p3)  t3 = Tanh (t2)  y = MatMul (t3, p2) }}",
            p1=W, p2=V, p3=BIAS,
        ),
    ),
    Twins(
        "constants folded",
        net(f"a {IN} {{ U = Mul (W, c)  h = MatMul (x, U)  r = Tanh (h)  y = MatMul (r, V) }}", W=W, V=V, c=0.37),
        net(HEAD, W=W.astype(np.float32) * np.float32(0.37), V=V),
    ),
    Twins(
        "BatchNormalization in Conv", NORMED,
        net("a (float[N,2,5,5] x) => (float[N,3,3,3] y) { n = Conv (x, K, B)  y = Relu (n) }", K=FOLDED, B=FOLDED_BIAS),
    ),
    Twins(
        "MatMul and Add in Gemm", net(MLP, W=W, V=V, b=BIAS),
        net(f"a {IN} {{ g = Gemm <transB = 1> (x, T, b)  r = Tanh (g)  y = MatMul (r, V) }}", T=W.T, V=V, b=BIAS),
    ),
    Twins("Gelu fused", GELU, net("a (float[2,4] x) => (float[2,4] y) { y = com.microsoft.Gelu (x) }")),
    Twins("LayerNormalization fused", COMPOSED, net(LAYER.format(1e-5), **SCALE)),
    Twins("inputs in another order", net(TWO), net(TWO.replace("[2,3] p, float[2,3] q", "[2,3] q, float[2,3] p"))),
    Twins("a sequence", PAIR, net(PAIR_TEXT.replace("Neg (x)", "Mul (x, less)"), less=-1.0)),
    Twins(
        "inputs and outputs renamed", net(TWO),
        net("a (float[2,3] first, float[2,3] second) => (float[2,3] out) { e = Exp (first)  out = Mul (e, second) }"),
    ),
    Twins(
        "inputs renamed crosswise, with a map", net(TWO),
        net("a (float[2,3] s, float[2,3] t) => (float[2,3] y) { e = Exp (t)  y = Mul (e, s) }"),
        given={"p": "t", "q": "s"},
    ),
    Twins("a batch that is fixed", net(HEAD, W=W, V=V), net(HEAD.replace("N", "3"), W=W, V=V)),
    Twins(
        "an input that nothing depends on, dropped",
        net("a (float[2] x, float[2] unused) => (float[2] y) { y = Tanh (x) }"),
        net("a (float[2] x) => (float[2] y) { y = Tanh (x) }"),
    ),
    Twins(
        "integers and truth values", net(
            "a (float[2,4] x, int64[2] i) => (float[2,4] y, int64[2] k, bool[2,4] p) "
            "{ y = Gather (x, i)  k = ArgMax <axis = 1, keepdims = 0> (y)  p = Greater (y, x) }",
        ),
        net(
            "a (float[2,4] x, int32[2] i) => (float[2,4] y, int64[2] k, bool[2,4] p) "
            "{ y = Gather (x, i)  k = ArgMax <axis = 1, keepdims = 0> (y)  p = Less (x, y) }",
        ),
    ),
    Twins(
        "in float16", net(MLP, W=W, V=V, b=BIAS),
        net(
            f"a {IN} {{ c = Cast <to = 10> (x)  h = MatMul (c, W)  g = Add (h, b)  r = Tanh (g)  m = MatMul (r, V)  "
            "y = Cast <to = 1> (m) }", dtype=np.float16, W=W, V=V, b=BIAS,
        ),
    ),
    Twins("a small epsilon in float16", net(SMALL, c=1e-3, e=1e-6),
          net(SMALL.replace("float", "float16"), dtype=np.float16, c=1e-3, e=1e-6)),
    Twins("all of it in float16", net(HEAD, W=W, V=V), net(HEAD.replace("float", "float16"), dtype=np.float16, W=W, V=V)),
    Twins(
        "a tie that a rounding of a weight turns",
        net("a (float[4] x) => (float[4] y) { m = Mul (x, c)  h = Add (m, b)  y = Relu (h) }", c=0.1, b=-0.1),
        net(
            "a (float[4] x) => (float[4] y) { m = Mul (x, c)  h = Add (m, b)  y = Relu (h) }",
            c=np.nextafter(np.float32(0.1), np.float32(1)).astype(float), b=-0.1,
        ),
        {"x_init_value": {"x": np.array([1.0, 2.0, -1.0, 1.0])}},
    ),
    Twins(
        "a tie, where each has its own convention",
        net("a (float[4] x) => (float[4] y) { r = Relu (x)  y = Mul (r, r2) }", r2=3.0),
        net("a (float[4] x) => (float[4] y) { r = Max (x, z)  y = Mul (r, r2) }", r2=3.0, z=np.zeros(4)),
        {"x_init_value": {"x": np.array([0.0, 1.0, -1.0, 0.0])}},
    ),
]  # fmt: skip

RELU = "a (float[N,4] x) => (float[N,4] y) { h = MatMul (x, W)  r = Relu (h)  y = MatMul (r, W) }"
LEAKY = RELU.replace("Relu (h)", "LeakyRelu <alpha = 0.001> (h)")
DETACHED = (
    "a (float[4] x) => (float[4] y) { h = Mul (x, c)  i = Cast <to = 7> (h)  f = Cast <to = 1> (i)  y = Mul (h, f) }"
)
WHOLE = {"x_init_value": {"x": np.array([1.0, 2.0, -3.0, 4.0])}}
BOTH = ("y", "y/x")
DIFFERENT = [  # a pair, what of it differs, and at which node of B that begins
    (Twins("a weight transposed", net("a (float[N,4] x) => (float[N,4] y) { h = Tanh (x)  y = MatMul (h, W) }", W=SQUARE),
           net("a (float[N,4] x) => (float[N,4] y) { h = Tanh (x)  y = MatMul (h, W) }", W=SQUARE.T)), BOTH, 1),
    (Twins("another epsilon", net(LAYER.format(1e-5), **SCALE), net(LAYER.format(1e-3), **SCALE)), BOTH, 0),
    (Twins("an epsilon that is hardly another", net(LAYER.format(1e-5), **SCALE), net(LAYER.format(2e-5), **SCALE)),
     BOTH, 0),
    (Twins("a Relu with a leak", net(RELU, W=SQUARE), net(LEAKY, W=SQUARE)), BOTH, 1),
    (Twins("Gelu by its approximation", GELU, net("a (float[2,4] x) => (float[2,4] y) { y = com.microsoft.FastGelu (x) }")),
     BOTH, 0),
    (Twins("the last bias lost", net(MLP, W=W, V=V, b=BIAS), net(HEAD, W=W, V=V)), BOTH, 1),
    (Twins("a branch cut off", net("a (float[4] x) => (float[4] y) { h = Mul (x, c)  y = Mul (h, h) }", c=3.0),
           net(DETACHED, c=3.0), WHOLE), ("y/x",), 1),
    (Twins("labels that differ", net("a (float[2,4] x) => (int64[2] k) { k = ArgMax <axis = 1, keepdims = 0> (x) }"),
           net("a (float[2,4] x) => (int64[2] k) { k = ArgMin <axis = 1, keepdims = 0> (x) }")), ("k",), 0),
    (Twins("inputs swapped", net(TWO), net(TWO), given={"p": "q", "q": "p"}), ("y", "y/p", "y/q"), 0),
    (Twins("another node, and inputs renamed crosswise", net(TWO),
           net("a (float[2,3] p, float[2,3] q) => (float[2,3] y) { e = Tanh (q)  y = Mul (e, p) }"),
           given={"p": "q", "q": "p"}), ("y", "y/p", "y/q"), 0),
]  # fmt: skip
