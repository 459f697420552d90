"""Gradient files of small models against differences of the models themselves in onnxruntime.

Each model has open dimensions, or shapes that follow from values, or control flow; each file is run at sizes, values and
trip counts that it was not made from: none, one, many, duplicates, all masked, equal and broadcast.  What cannot be in a
file is refused for a reason that is true.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import gradcheck_cli as gc
from gradcheck_cli.errors import UnsupportedError

runtime = pytest.importorskip("onnxruntime")

Feeds = dict[str, Any]
CASES: dict[str, tuple[str, list[Feeds]]] = {}
RNG = np.random.default_rng(0)
CUBIC = "q = Mul(y, y) z = Mul(q, y) zz = Add(q, z) loss = ReduceSum<keepdims=0>(zz)"
SAME = r"node 0 \w+ '\w': what an operator does follows from values that were the same in all runs"
BY_VALUES = "shapes follow from values, in a way that a file does not hold for every value"
REFUSED = {
    "axis by input": SAME,
    "axes by input": SAME,
    "mode by input": SAME,
    "expand open": rf"{BY_VALUES}. Fix it: --feed s=VALUE,",
    "pad input": "node 0 Pad 'y': its gradient has a Pad with a constant that depends on values of p",
    "squeeze by input": rf"{BY_VALUES}. Fix it: --feed a=VALUE,",
    "loop grows": "needs states that keep theirs",
    "avgpool ceil": "a constant that depends on the size of N, H, W",
}
SINGLE = {
    "nonzero gather",
    "nonzero mean",
    "onehot",
    "avgpool",
    "avgpool ceil",
    "gmean",
    "resize",
}  # no kernels for float64


def r(*shape: int) -> Any:
    return RNG.normal(size=shape)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def flags(*values: int) -> Any:
    return np.array(values, bool)


def add(name: str, inputs: str, body: str, *feeds: Feeds, init: str = "") -> None:
    """One model: its inputs and nodes in ONNX's text syntax, up to y, and feeds for it."""
    CASES[name] = f"{inputs} => (double loss) {init} {{ {body} {CUBIC} }}", list(feeds)


add(
    "bias batch",
    "(double[N,3] x, double[M,3] b)",
    "y = Add(x,b)",
    *[{"x": r(n, 3), "b": r(m, 3)} for n, m in ((4, 4), (4, 1), (1, 4), (1, 1))],
)
add(
    "bcast mul",
    "(double[A,B] x, double[C,D] b)",
    "y = Mul(x,b)",
    *[{"x": r(*s), "b": r(*t)} for s, t in (((3, 4), (3, 4)), ((3, 1), (1, 4)), ((1, 4), (3, 4)), ((1, 1), (2, 5)))],
)
add(
    "bcast anon",
    "(double[P,3] x, double[Q,3] b)",
    "y = Sub(x,b)",
    *[{"x": r(n, 3), "b": r(m, 3)} for n, m in ((2, 2), (5, 1), (1, 5))],
)
add(
    "div bcast",
    "(double[N] x, double[M] b)",
    "e = Exp(b) y = Div(x,e)",
    *[{"x": r(n), "b": r(m)} for n, m in ((4, 4), (4, 1), (1, 4))],
)
add(
    "where bcast",
    "(bool[N] c, double[M] x, double[K] b)",
    "y = Where(c,x,b)",
    {"c": flags(1, 0, 1), "x": r(3), "b": r(3)},
    {"c": flags(1, 0, 1), "x": r(1), "b": r(3)},
    {"c": flags(1), "x": r(4), "b": r(1)},
)
add(
    "max bcast",
    "(double[N,2] x, double[M,2] b)",
    "y = Max(x,b)",
    *[{"x": r(n, 2), "b": r(m, 2)} for n, m in ((4, 4), (4, 1), (1, 4))],
)
add(
    "matmul stack",
    "(double[A,2,3] x, double[B,3,2] b)",
    "y = MatMul(x,b)",
    *[{"x": r(a, 2, 3), "b": r(b, 3, 2)} for a, b in ((3, 3), (3, 1), (1, 3))],
)
add(
    "sum three",
    "(double[A] x, double[B] b, double[D] c)",
    "y = Sum(x,b,c)",
    {"x": r(3), "b": r(3), "c": r(3)},
    {"x": r(1), "b": r(3), "c": r(1)},
    {"x": r(3), "b": r(1), "c": r(3)},
)
add(
    "pow bcast",
    "(double[N] x, double[M] b)",
    "e = Exp(x) y = Pow(e,b)",
    *[{"x": r(n), "b": r(m)} for n, m in ((3, 3), (3, 1), (1, 3))],
)
add(
    "broadcast one way",
    "(double[A,3] x, double[B,3] b, double[C,3] c)",
    "p = PRelu(x,b) y = Add(p,c)",
    *[
        {"x": r(n, 3), "b": r(m, 3), "c": r(k, 3)}
        for n, m, k in ((4, 4, 4), (4, 1, 4), (1, 1, 5), (4, 1, 1), (4, 4, 1))
    ],
)
add(
    "expand by input",
    "(double[1,3] x, int64[2] s)",
    "y = Expand(x,s)",
    *[{"x": r(1, 3), "s": ints(*s)} for s in ((1, 3), (4, 3), (5, 1))],
)
add(
    "expand open",
    "(double[A,B] x, int64[3] s)",
    "y = Expand(x,s)",
)
add(
    "fill by input",
    "(double x, int64[2] s)",
    "c = ConstantOfShape<value=double[1] {2.0}>(s) y = Mul(c, x)",
    *[{"x": np.array(0.7), "s": ints(*s)} for s in ((1, 1), (2, 4), (3, 0))],
)
add(
    "gemm bias",
    "(double[N,3] x, double[M,2] b)",
    "w = Constant<value=double[3,2] {1,2,3,4,5,6}>() y = Gemm(x,w,b)",
    *[{"x": r(n, 3), "b": r(m, 2)} for n, m in ((4, 4), (4, 1), (1, 1))],
)
add("topk", "(double[5] x, int64[1] k)", "y, i = TopK(x,k)", *[{"x": r(5), "k": ints(k)} for k in (0, 1, 3, 5)])
add(
    "topk open",
    "(double[N,5] x, int64[1] k)",
    "y, i = TopK(x,k)",
    *[{"x": r(n, 5), "k": ints(k)} for n, k in ((1, 1), (3, 2), (2, 5))],
)
add(
    "topk smallest",
    "(double[5] x, int64[1] k)",
    "y, i = TopK<largest=0>(x,k)",
    *[{"x": r(5), "k": ints(k)} for k in (1, 4)],
)
add(
    "compress",
    "(double[N] x, bool[N] c)",
    "y = Compress<axis=0>(x,c)",
    {"x": r(4), "c": flags(1, 0, 1, 1)},
    {"x": r(3), "c": flags(0, 0, 0)},
    {"x": r(2), "c": flags(1, 1)},
)
add(
    "compress axis",
    "(double[N,3] x, bool[3] c)",
    "y = Compress<axis=1>(x,c)",
    {"x": r(4, 3), "c": flags(1, 0, 1)},
    {"x": r(1, 3), "c": flags(0, 0, 0)},
)
add(
    "compress self",
    "(double[N] x)",
    "zero = Constant<value_float=0.0>() zd = CastLike(zero,x) c = Greater(x,zd) y = Compress<axis=0>(x,c)",
    {"x": np.array([1.0, -2, 3])},
    {"x": np.array([-1.0, -2])},
    {"x": np.array([1.0, 2, 3, 4])},
)
add(
    "nonzero gather",
    "(double[N] x, double[N] m)",
    "nz = NonZero(m) i = Transpose<perm=[1,0]>(nz) y = GatherND(x,i)",
    {"x": r(4), "m": np.array([1.0, 0, 2, 0])},
    {"x": r(3), "m": np.zeros(3)},
    {"x": r(2), "m": np.ones(2)},
)
INSIDE = (
    "low = GreaterOrEqual(at,zero) high = LessOrEqual(at,most) both = And(low,high) b = Cast<to=7>(both)"
    " all = ReduceMin<keepdims=0>(b,one) i = NonZero(all) rows = Squeeze(i,axis) kept = Gather(at,rows) v = Gather(u,rows)"
)
add(
    "rows written where they lie inside",  # as JAX's x.at[at].set(u) is exported
    "(double[5,2] x, int64[1,1] at, double[1,2] u)",
    f"{INSIDE} y = ScatterND(x,kept,v)",
    *[{"x": r(5, 2), "at": np.array([[at]]), "u": r(1, 2)} for at in (0, 2, 4, 5, -1)],
    init="<int64 zero = {0}, int64[1] most = {4}, int64[1] one = {1}, int64[1] axis = {0}>",
)
add(
    "windows written where they lie inside",
    "(double[4,5] x, int64[A,2] at, double[A,2,2] u)",
    f"{INSIDE} k = Unsqueeze(kept,one) places = Add(k,offsets) each = Reshape(places,pairs) w = Reshape(v,flat)"
    ' y = ScatterND<reduction="add">(x,each,w)',
    *[
        {"x": r(4, 5), "at": np.array(at), "u": r(len(at), 2, 2)}
        for at in ([[0, 0]], [[1, 3], [2, 3]], [[3, 0]], [[0, -1], [9, 9]], [[0, 0], [4, 0], [1, 1]])
    ],
    init="<int64 zero = {0}, int64[2] most = {2,3}, int64[1] one = {1}, int64[1] axis = {0}, int64[2] pairs = {-1,2},"
    " int64[1] flat = {-1}, int64[1,4,2] offsets = {0,0,0,1,1,0,1,1}>",
)
add(
    "a window written where it lies inside",
    "(double[4,5] x, int64[1,2] at, double[1,2,2] u)",
    f"{INSIDE} k = Unsqueeze(kept,one) places = Add(k,offsets) n = Shape<end=1>(v) m = Mul(n,four)"
    " p = Concat<axis=0>(m,two) each = Reshape(places,p) w = Reshape(v,m) y = ScatterND(x,each,w)",
    *[
        {"x": r(4, 5), "at": np.array([at]), "u": r(1, 2, 2)}
        for at in ([0, 0], [2, 3], [1, 2], [3, 0], [0, -1], [9, 9])
    ],
    init="<int64 zero = {0}, int64[2] most = {2,3}, int64[1] one = {1}, int64[1] axis = {0}, int64[1] four = {4},"
    " int64[1] two = {2}, int64[1,4,2] offsets = {0,0,0,1,1,0,1,1}>",
)
add(
    "nonzero mean",
    "(double[N,3] x, double[N] m)",
    "nz = NonZero(m) i = Transpose<perm=[1,0]>(nz) g = GatherND(x,i) y = ReduceMean<keepdims=0>(g)",
    {"x": r(4, 3), "m": np.array([1.0, 0, 2, 0])},
    {"x": r(2, 3), "m": np.ones(2)},
)
add(
    "range mul",
    "(double x, int64 n)",
    "a = Constant<value_int=0>() d = Constant<value_int=1>() t = Range(a,n,d) td = CastLike(t,x) y = Mul(td,x)",
    *[{"x": np.array(0.7), "n": np.array(n)} for n in (0, 1, 4)],
)
add(
    "range len",
    "(double[N] x)",
    "s = Shape(x) a = Constant<value_int=0>() d = Constant<value_int=1>() n = Squeeze(s) t = "
    "Range(a,n,d) td = CastLike(t,x) y = Mul(td,x)",
    *[{"x": r(n)} for n in (1, 3, 6)],
)
add(
    "slice ends",
    "(double[N] x, int64[1] b)",
    "a = Constant<value_ints=[0]>() y = Slice(x,a,b)",
    *[{"x": r(5), "b": ints(k)} for k in (0, 2, 5, 9)],
)
add(
    "axis by input",
    "(double[2,3] x, int64 a)",
    "y = CumSum(x,a)",
    *[{"x": r(2, 3), "a": np.int64(a)} for a in (0, 1, -1)],
)
add(
    "axes by input",
    "(double[2,2] x, int64[1] a)",
    "s = ReduceL2<keepdims=0>(x,a) y = Sin(s)",
    *[{"x": r(2, 2), "a": ints(a)} for a in (0, 1, -1)],
)
add(
    "mode by input",
    "(double[4] x, bool t)",
    "p = Constant<value_float=0.5>() y = Dropout(x,p,t)",
    *[{"x": r(4), "t": np.bool_(t)} for t in (False,)],
)
add(
    "slice starts",
    "(double[N] x, int64[1] a)",
    "b = Constant<value_ints=[9223372036854775807]>() y = Slice(x,a,b)",
    *[{"x": r(5), "a": ints(k)} for k in (0, 2, 5, -1)],
)
add(
    "slice both",
    "(double[N] x, int64[1] a, int64[1] b)",
    "y = Slice(x,a,b)",
    *[{"x": r(6), "a": ints(a), "b": ints(b)} for a, b in ((0, 6), (1, 3), (2, 2), (4, 9))],
)
add(
    "slice backwards",
    "(double[N,M] x, int64[1] a, int64[1] b, int64[1] c)",
    "y = Slice(x,a,b,axis,c)",
    *[{"x": r(3, 6), "a": ints(a), "b": ints(b), "c": ints(c)} for a, b, c in ((0, 6, 2), (-1, -9, -1), (4, 0, -3))],
    init="<int64[1] axis = {1}>",
)
add(
    "slice of all axes",
    "(double[N,4] x, int64[2] a, int64[2] c)",
    "y = Slice(x,a,b,,c)",
    *[{"x": r(3, 4), "a": ints(*a), "c": ints(*c)} for a, c in (((0, 1), (2, 1)), ((1, 0), (1, 3)), ((9, 0), (1, 1)))],
    init="<int64[2] b = {9,9}>",
)
add(
    "slice of a state",
    "(double[N,3] x, int64[1] a)",
    "one = Constant<value_ints=[1]>() b = Add(a,one) t = Tanh(x) s = Slice(t,a,b) y = Mul(s,t)",
    *[{"x": r(n, 3), "a": ints(k)} for n, k in ((4, 0), (4, 3), (1, 0), (5, 2))],
)
add(
    "slice half",
    "(double[N] x)",
    "s = Shape(x) two = Constant<value_ints=[2]>() h = Div(s,two) a = Constant<value_ints=[0]>() y = Slice(x,a,h)",
    *[{"x": r(n)} for n in (1, 2, 5)],
)
add(
    "reshape input",
    "(double[N] x, int64[2] s)",
    "m = Reshape(x,s) y = ReduceMax<keepdims=0>(m, ax)",
    {"x": r(6), "s": ints(2, 3)},
    {"x": r(6), "s": ints(3, 2)},
    {"x": r(6), "s": ints(1, 6)},
    {"x": r(4), "s": ints(-1, 1)},
    init="<int64[1] ax = {1}>",
)
add(
    "reshape to three",
    "(double[N] x, int64[3] s)",
    "m = Reshape(x,s) y = Softmax<axis=0>(m)",
    *[{"x": r(6), "s": ints(*s)} for s in ((2, 3, 1), (3, 1, 2), (1, 6, 1), (-1, 2, 1))],
)
add("squeeze by input", "(double[1,3,1] x, int64[1] a)", "m = Squeeze(x,a) y = Sin(m)")
add(
    "unsqueeze by input",
    "(double[N,3] x, int64[1] a)",
    "m = Unsqueeze(x,a) y = Softmax(m)",
    *[{"x": r(2, 3), "a": ints(a)} for a in (0, 1, 2)],
)
add(
    "tile by a vector",
    "(double[N,M] x, int64[2] n)",
    "t = Tile(x,n) y = Sin(t)",
    *[{"x": r(2, 3), "n": ints(*n)} for n in ((1, 2), (3, 1), (2, 2), (0, 2), (2, 0), (0, 0))],
    {"x": r(0, 3), "n": ints(2, 1)},
)
add("tile input", "(double[2] x, int64[1] n)", "y = Tile(x,n)", *[{"x": r(2), "n": ints(n)} for n in (0, 1, 3)])
add(
    "pad input",
    "(double[3] x, int64[2] p)",
    "y = Pad(x,p)",
    *[{"x": r(3), "p": ints(*p)} for p in ((0, 0), (1, 2), (-1, 0))],
)
add(
    "pad reflect",
    "(double[N] x)",
    'p = Constant<value_ints=[1,2]>() y = Pad<mode="reflect">(x,p)',
    *[{"x": r(n)} for n in (3, 5)],
)
add(
    "gather dup",
    "(double[N,2] x, int64[K] i)",
    "y = Gather(x,i)",
    {"x": r(3, 2), "i": ints(0, 0, 2)},
    {"x": r(2, 2), "i": ints()},
    {"x": r(4, 2), "i": ints(3, 3, 3, 1)},
)
add(
    "gather elements",
    "(double[N,3] x, int64[N,2] i)",
    "y = GatherElements<axis=1>(x,i)",
    {"x": r(2, 3), "i": np.array([[0, 0], [2, 1]])},
    {"x": r(1, 3), "i": np.array([[1, 1]])},
)
add(
    "scatter add",
    "(double[N] x, int64[K] i, double[K] u)",
    'y = ScatterElements<axis=0,reduction="add">(x,i,u)',
    {"x": r(4), "i": ints(1, 1, 2), "u": r(3)},
    {"x": r(2), "i": ints(0), "u": r(1)},
)
add(
    "scatter nd",
    "(double[N,2] x, int64[K,1] i, double[K,2] u)",
    "y = ScatterND(x,i,u)",
    {"x": r(4, 2), "i": np.array([[1], [3]]), "u": r(2, 2)},
    {"x": r(2, 2), "i": np.zeros((0, 1), np.int64), "u": r(0, 2)},
)
add(
    "onehot",
    "(double[2] v, int64[K] i, int64 d)",
    "o = OneHot(i,d,v) y = Identity(o)",
    *[{"v": r(2), "i": ints(0, 2, 1), "d": np.array(d)} for d in (3, 5)],
)
add("cumsum", "(double[N,3] x)", "a = Constant<value_int=0>() y = CumSum(x,a)", *[{"x": r(n, 3)} for n in (1, 4)])
add(
    "split sizes",
    "(double[N] x)",
    "s = Shape(x) one = Constant<value_ints=[1]>() rest = Sub(s,one) sz = Concat<axis=0>(one,rest) a, "
    "b = Split(x,sz) y = Mul(b,b)",
    *[{"x": r(n)} for n in (2, 5)],
)
add(
    "concat",
    "(double[N] x, double[M] w)",
    "y = Concat<axis=0>(x,w)",
    *[{"x": r(n), "w": r(m)} for n, m in ((1, 1), (3, 2), (0, 2))],
)
add(
    "if shapes",
    "(bool c, double[N] x)",
    "y = If(c) <then_branch = a () => (double[K] o) { o = Mul(x,x) }, else_branch = b () => "
    "(double[L] o) { o = Concat<axis=0>(x,x) }>",
    *[{"c": np.array(c), "x": r(n)} for c in (True, False) for n in (1, 3)],
)
add(
    "if reduce",
    "(bool c, double[N] x)",
    "y = If(c) <then_branch = a () => (double o) { o = ReduceSum<keepdims=0>(x) }, else_branch = b () "
    "=> (double o) { o = ReduceMax<keepdims=0>(x) }>",
    *[{"c": np.array(c), "x": r(n)} for c in (True, False) for n in (1, 3)],
)
add(
    "if of value",
    "(double[N] x)",
    "s = ReduceSum<keepdims=0>(x) zero = Constant<value_float=0.0>() zd = CastLike(zero,x) c = "
    "Greater(s,zd) y = If(c) <then_branch = a () => (double[K] o) { o = Mul(x,x) }, else_branch = b "
    "() => (double[L] o) { o = Sin(x) }>",
    {"x": np.array([1.0, 2])},
    {"x": np.array([-1.0, -2, -3])},
)
add(
    "loop trips",
    "(double[3] x, int64 n)",
    "y = Loop(n, t, x) <body = b (int64 i, bool c, double[3] h) => (bool co, double[3] o) { co = "
    "Identity(c) z = Sin(h) o = Mul(z, h) }>",
    *[{"x": r(3), "n": np.array(n)} for n in (0, 1, 4)],
    init="<bool t = {1}>",
)
add(
    "loop collect",
    "(double[3] x, int64 n)",
    "e, y = Loop(n, t, x) <body = b (int64 i, bool c, double[3] h) => (bool co, double[3] o, "
    "double[3] s) { co = Identity(c) o = Sin(h) s = Mul(o, h) }>",
    *[{"x": r(3), "n": np.array(n)} for n in (0, 1, 4)],
    init="<bool t = {1}>",
)
add(
    "loop while",
    "(double[3] x, int64 n)",
    "y = Loop(n, t, x) <body = b (int64 i, bool c, double[3] h) => (bool co, double[3] o) { o = "
    "Add(h, h) m = ReduceMax<keepdims=0>(o) co = Less(m, ten) }>",
    *[{"x": np.abs(r(3)), "n": np.array(n)} for n in (2, 9)],
    init="<bool t = {1}, double ten = {10}>",
)
add(
    "loop grows",
    "(double[1] x, int64 n)",
    "y = Loop(n, t, x) <body = b (int64 i, bool c, double[M] h) => (bool co, double[K] o) { co = "
    "Identity(c) o = Concat<axis=0>(h, x) }>",
    *[{"x": r(1), "n": np.array(n)} for n in (0, 2)],
    init="<bool t = {1}>",
)
add(
    "scan",
    "(double[T,3] x)",
    "e, y = Scan<num_scan_inputs=1, body = b (double[3] s, double[3] q1) => (double[3] o, double[3] "
    "p) { m = Mul(s,q1) o = Sin(m) p = Mul(o,s) }>(h, x)",
    *[{"x": r(t, 3)} for t in (1, 4)],
    init="<double[3] h = {0.3, 1, 2}>",
)
add(
    "scan reverse",
    "(double[T,3] x)",
    "e, y = Scan<num_scan_inputs=1, scan_input_directions=[1], scan_output_directions=[1], body = b "
    "(double[3] s, double[3] q1) => (double[3] o, double[3] p) { m = Mul(s,q1) o = Sin(m) p = "
    "Mul(o,s) }>(h, x)",
    *[{"x": r(t, 3)} for t in (1, 4)],
    init="<double[3] h = {0.3, 1, 2}>",
)
add(
    "loop in if",
    "(bool c, double[3] x, int64 n)",
    "y = If(c) <then_branch = a () => (double[3] w1) { w1 = Loop(n, t, x) <body = b (int64 i, bool "
    "cc, double[3] h) => (bool co, double[3] o) { co = Identity(cc) o = Sin(h) }> }, else_branch = d "
    "() => (double[3] w2) { w2 = Mul(x, x) }>",
    *[{"c": np.array(c), "x": r(3), "n": np.array(n)} for c, n in ((True, 0), (True, 3), (False, 2))],
    init="<bool t = {1}>",
)
add("softmax open", "(double[N,K] x)", "y = Softmax(x)", *[{"x": r(*s)} for s in ((1, 1), (2, 5))])
add(
    "layernorm",
    "(double[N,4] x)",
    "m = ReduceMean<keepdims=1>(x, ax) d = Sub(x,m) d2 = Mul(d,d) v = ReduceMean<keepdims=1>(d2, ax) "
    "e = Constant<value_float=0.1>() ed = CastLike(e,v) ve = Add(v,ed) sd = Sqrt(ve) y = Div(d, sd)",
    *[{"x": r(n, 4)} for n in (1, 3)],
    init="<int64[1] ax = {1}>",
)
add(
    "maxpool",
    "(double[N,1,H,H] x)",
    "y = MaxPool<kernel_shape=[2,2],strides=[2,2]>(x)",
    *[{"x": r(n, 1, h, h)} for n, h in ((1, 4), (2, 7))],
)
add(
    "avgpool",
    "(double[N,1,H,W] x)",
    "y = AveragePool<kernel_shape=[2,2],strides=[2,2],pads=[1,1,0,0]>(x)",
    *[{"x": r(n, 1, h, w)} for n, h, w in ((1, 4, 5), (2, 7, 3))],
)
add(
    "avgpool ceil",
    "(double[N,1,H,W] x)",
    "y = AveragePool<kernel_shape=[3,3],strides=[2,2],pads=[1,1,1,1],ceil_mode=1>(x)",
    *[{"x": r(n, 1, h, w)} for n, h, w in ((1, 4, 5), (2, 7, 3))],
)
add(
    "gmean",
    "(double[N,2,H,W] x)",
    "y = GlobalAveragePool(x)",
    *[{"x": r(n, 2, h, w)} for n, h, w in ((1, 4, 5), (2, 1, 3))],
)
add("mean all", "(double[N,M] x)", "y = ReduceMean<keepdims=0>(x)", *[{"x": r(*s)} for s in ((1, 1), (3, 5))])
add(
    "l2",
    "(double[N,M] x)",
    "y = ReduceL2<keepdims=0>(x, ax)",
    *[{"x": r(*s)} for s in ((1, 2), (3, 5))],
    init="<int64[1] ax = {1}>",
)
add(
    "logsumexp",
    "(double[N,M] x)",
    "y = ReduceLogSumExp<keepdims=0>(x, ax)",
    *[{"x": r(*s)} for s in ((1, 1), (3, 5))],
    init="<int64[1] ax = {1}>",
)
add(
    "attention mask",
    "(double[N,T,4] x)",
    "xt = Transpose<perm=[0,2,1]>(x) a = MatMul(x,xt) s = Softmax(a) y = MatMul(s,x)",
    *[{"x": r(n, t, 4)} for n, t in ((1, 1), (2, 3))],
)
add("trilu", "(double[N,N] x)", "y = Trilu(x)", *[{"x": r(n, n)} for n in (1, 4)])
add("flatten", "(double[N,2,3] x)", "f = Flatten(x) y = Sin(f)", *[{"x": r(n, 2, 3)} for n in (1, 3)])
add("unique", "(double[N] x)", "y = Unique(x)", {"x": np.array([3.0, 1, 2])}, {"x": np.array([1.0, 5, 2, 0])})
add(
    "resize",
    "(double[1,1,H,W] x)",
    'y = Resize<mode="linear">(x, , sc)',
    *[{"x": r(1, 1, h, w)} for h, w in ((2, 3), (4, 4))],
    init="<float[4] sc = {1,1,2,2}>",
)
add(
    "where self",
    "(double[N] x)",
    "zero = Constant<value_float=0.0>() zd = CastLike(zero,x) c = Greater(x,zd) s = Sin(x) y = Where(c,s,x)",
    {"x": np.array([1.0, -2, 3])},
    {"x": np.array([-1.0])},
)
add(
    "einsum",
    "(double[N,3] x, double[3,M] w)",
    'y = Einsum<equation="ij,jk->ik">(x,w)',
    *[{"x": r(n, 3), "w": r(3, m)} for n, m in ((1, 1), (4, 2))],
)
add(
    "sequence",
    "(double[N] x)",
    "s = SequenceConstruct(x,x) y = ConcatFromSequence<axis=0>(s)",
    *[{"x": r(n)} for n in (1, 3)],
)
add("min clip", "(double[N] x, double lo)", "y = Clip(x, lo)", *[{"x": r(n), "lo": np.array(-0.1)} for n in (1, 4)])


def model(name: str) -> onnx.ModelProto:
    text = CASES[name][0]
    text = text.replace("double", "float") if name in SINGLE else text
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> g {text}')


def slopes(session: Any, feed: Feeds, x: str, h: float) -> Any:
    """The gradient of the loss by x, by central differences of h."""
    found = np.zeros(feed[x].shape)
    for place in np.ndindex(found.shape):
        ends = []
        for step in (h, -h):
            moved = np.array(feed[x])
            moved[place] += step
            ends.append(session.run(None, {**feed, x: moved})[0])
        found[place] = (float(ends[0]) - float(ends[1])) / (2 * h)
    return found


def accepted(session: Any, feeds: list[Feeds], dtype: Any) -> Iterator[Feeds]:
    """The feeds, in a dtype, at which the model itself runs."""
    for feed in feeds:
        given = {n: v.astype(dtype) if v.dtype == np.float64 else v for n, v in feed.items()}
        try:
            session.run(None, given)
        except Exception as error:
            assert "onnxruntime" in type(error).__module__, error  # noqa: PT017 - whatever it raises
            continue
        yield given


@pytest.mark.parametrize("name", CASES)
def test_files_are_right_at_other_sizes_and_values_or_refused(name: str, tmp_path: Path) -> None:
    dtype = np.float32 if name in SINGLE else np.float64
    onnx.save(model(name), tmp_path / "m.onnx")
    loaded = gc.load(tmp_path / "m.onnx")
    xs = [n for n in loaded.graph.inputs if loaded.graph.types[n].dtype == dtype]
    found = gc.gradients(loaded["loss"], [loaded[x] for x in xs])
    outputs = {x: g for x, g in zip(xs, found, strict=True) if g is not None}
    if name in REFUSED:
        with pytest.raises(UnsupportedError, match=REFUSED[name]):
            gc.save(loaded, tmp_path / "g.onnx", [loaded["loss"], *outputs.values()])
        return
    gc.save(loaded, tmp_path / "g.onnx", [loaded["loss"], *outputs.values()])
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    own, file = (runtime.InferenceSession(tmp_path / each, options) for each in ("m.onnx", "g.onnx"))
    near = {"rtol": 0.03, "atol": 0.03} if dtype == np.float32 else {"rtol": 1e-4, "atol": 1e-6}
    tried = list(accepted(own, CASES[name][1], dtype))
    assert tried
    for feed in tried:
        gradients = file.run([g.name for g in outputs.values()], feed)
        for x, gradient in zip(outputs, gradients, strict=True):
            wanted = slopes(own, feed, x, 1e-2 if dtype == np.float32 else 1e-5)
            assert gradient.shape == feed[x].shape
            np.testing.assert_allclose(gradient, wanted, **near)


def test_bounds_axes_and_steps_of_a_slice_may_be_any(tmp_path: Path) -> None:
    """Against the places that the model itself takes; many of the values by which a file is made select nothing."""
    text = """<ir_version: 9, opset_import: ["" : 18]>
        g (float[20,10,5] x, int64[1] a, int64[1] b, int64[1] c, int64[1] d) => (float[20,m,5] y)
        { y = Slice(x,a,b,c,d) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    loaded = gc.load(tmp_path / "m.onnx")
    (dx,) = gc.gradients(loaded["y"], loaded["x"])
    gc.save(loaded, tmp_path / "g.onnx", [loaded["y"], dx])
    own, file = (runtime.InferenceSession(tmp_path / each) for each in ("m.onnx", "g.onnx"))
    places = np.arange(1000, dtype=np.float32).reshape(20, 10, 5)
    for bounds in itertools.product((-30, -3, 0, 2, 9), (-30, -1, 0, 3, 40), (0, 1, -1), (1, 3, -2)):
        feed = {"x": places, **{name: ints(n) for name, n in zip("abcd", bounds, strict=True)}}
        taken = own.run(None, feed)[0].astype(int)
        wanted = np.isin(places, taken).astype(np.float32)
        np.testing.assert_array_equal(file.run([dx.name], feed)[0], wanted, err_msg=f"{bounds}")
