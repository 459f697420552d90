"""Models that go through the attributes of operators, in the combinations in which gradients are got wrong.

A line of the table is an operator, an opset, its inputs, its nodes in ONNX's text syntax, and the values that stand for
the names in braces: all of their combinations that ONNX accepts are models.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import onnx

from gradcheck_cli.reference.suite import IR_VERSION, Draft

Choices = dict[str, tuple[str, ...]]
Row = tuple[str, int, str, str, Choices]
_ONE = {"one": ("",)}
_UNARY = (
    "Abs Acosh Acos Asinh Asin Atanh Atan Cos Cosh Elu Erf Exp HardSigmoid Identity LeakyRelu Log Neg Reciprocal Relu "
    "Selu Sigmoid Sin Sinh Softplus Softsign Sqrt Tan Tanh Celu ThresholdedRelu"
).split()
_SINCE = {"Acosh": 9, "Asinh": 9, "Atanh": 9, "Cosh": 9, "Sinh": 9, "Erf": 9, "Celu": 12, "ThresholdedRelu": 10}
_BROADCAST = ("float[3,4] a, float[3,4] b", "float[3,4] a, float[4] b", "float[3,1] a, float[1,4] b",
              "float[2,3,4] a, float[3,1] b", "float[1] a, float[2,3] b", "float a, float[2] b",
              "float[2,1,3] a, float[4,1] b", "float[1,1] a, float[1] b")  # fmt: skip
_WINDOW_PADS = ("0,0,0,0", "1,1,1,1", "0,1,1,0", "1,0,1,1", "0,2,1,0")
_REDUCED = ("keepdims=0", "keepdims=1")


def _of_windows() -> Iterator[Row]:
    conv = {"p": _WINDOW_PADS, "s": ("1,1", "2,1", "2,2"), "d": ("1,1", "2,1")}
    yield ("Conv", 11, "float[2,4,6,5] x, float[4,{c},3,2] w", "y = Conv<pads=[{p}],strides=[{s}],dilations=[{d}],group={g}>(x,w)",
           {**conv, "g": ("1", "2"), "c": ("4", "2")})  # fmt: skip
    yield ("Conv", 11, "float[2,2,6,5] x, float[4,1,3,2] w, float[4] b",
           "y = Conv<pads=[{p}],strides=[{s}],dilations=[{d}],group=2>(x,w,b)", conv)  # fmt: skip
    yield ("Conv", 11, "float[1,2,7] x, float[3,2,3] w, float[3] b",
           "y = Conv<pads=[{p}],strides=[{s}],dilations=[{d}]>(x,w,b)",
           {"p": ("0,0", "1,1", "0,2", "2,1"), "s": ("1", "2", "3"), "d": ("1", "2")})  # fmt: skip
    yield ("Conv", 11, "float[1,2,{h},{v}] x, float[3,2,{k},3] w", 'y = Conv<auto_pad="{a}",strides=[{s}]>(x,w)',
           {"a": ("SAME_UPPER", "SAME_LOWER", "VALID"), "s": ("1,1", "2,2", "3,2"), "h": ("5", "6"), "v": ("7",),
            "k": ("2", "3")})  # fmt: skip
    yield ("Conv", 11, "float[1,1,3,4,3] x, float[2,1,2,2,2] w", "y = Conv<pads=[{p}],strides=[{s}]>(x,w)",
           {"p": ("0,0,0,0,0,0", "1,0,1,0,1,0"), "s": ("1,1,1", "2,1,2")})  # fmt: skip
    yield ("ConvTranspose", 11, "float[1,2,4,3] x, float[2,{m},3,2] w",
           "y = ConvTranspose<pads=[{p}],strides=[{s}],dilations=[{d}],group={g},output_padding=[{o}]>(x,w)",
           {"p": ("0,0,0,0", "1,1,1,1", "0,1,1,0"), "s": ("1,1", "2,1", "2,2"), "d": ("1,1", "2,1"), "g": ("1", "2"),
            "o": ("0,0", "1,0"), "m": ("2",)})  # fmt: skip
    yield ("ConvTranspose", 11, "float[1,2,4,3] x, float[2,2,3,2] w, float[2] b",
           'y = ConvTranspose<auto_pad="{a}",strides=[{s}]>(x,w,b)',
           {"a": ("SAME_UPPER", "SAME_LOWER", "VALID"), "s": ("1,1", "2,2")})  # fmt: skip
    pool = {"p": ("0,0,0,0", "1,1,1,1", "0,1,1,0"), "s": ("1,1", "2,1", "2,2"), "c": ("0", "1")}
    yield ("AveragePool", 19, "float[1,2,6,5] x",
           "y = AveragePool<kernel_shape=[3,2],pads=[{p}],strides=[{s}],ceil_mode={c},count_include_pad={i},dilations=[{d}]>(x)",
           {**pool, "i": ("0", "1"), "d": ("1,1", "2,1")})  # fmt: skip
    yield ("MaxPool", 12, "float[1,2,6,5] x",
           "y = MaxPool<kernel_shape=[3,2],pads=[{p}],strides=[{s}],ceil_mode={c},dilations=[{d}]>(x)",
           {**pool, "d": ("1,1", "2,1")})  # fmt: skip
    yield ("LpPool", 18, "float[1,2,6,5] x", "y = LpPool<kernel_shape=[3,2],pads=[{p}],strides=[{s}],p={q}>(x)",
           {"p": pool["p"], "s": pool["s"], "q": ("1", "2", "3")})  # fmt: skip
    for name in ("AveragePool", "MaxPool"):
        yield (name, 11, "float[1,1,{h},6] x", f'y = {name}<kernel_shape=[3,3],auto_pad="{{a}}",strides=[{{s}}]>(x)',
               {"a": ("SAME_UPPER", "SAME_LOWER", "VALID"), "s": ("1,1", "2,2"), "h": ("5", "6")})  # fmt: skip
    for name in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
        yield (name, 2 if name == "GlobalLpPool" else 1, "float[2,3,{s}] x", f"y = {name}(x)", {"s": ("4", "3,2", "2,1,2")})


def _of_entries() -> Iterator[Row]:
    for name in _UNARY:
        yield (name, max(_SINCE.get(name, 7), 7), "float[{s}] x", f"y = {name}(x)", {"s": ("3", "2,3")})
    for name in ("Add", "Sub", "Mul", "Div", "Pow"):
        yield (name, 7, "{i}", f"y = {name}(a,b)", {"i": _BROADCAST})
    for name in ("Max", "Min", "Mean", "Sum"):
        yield (name, 8, "{i}", f"y = {name}(a,b)", {"i": _BROADCAST})
    yield "PRelu", 9, "{i}", "y = PRelu(a,b)", {"i": _BROADCAST[:4]}
    yield ("Where", 9, "{i}", "z = Constant<value_float=0.3>() zf = Identity(z) c = Less(a,zf) y = Where(c,a,b)",
           {"i": _BROADCAST})  # fmt: skip
    yield "Where", 9, "bool[{c}] c, {i}", "y = Where(c,a,b)", {"i": _BROADCAST[:4], "c": ("3,4", "4", "1", "3,1")}
    yield "Clip", 12, "float[3,4] x, float lo, float hi", "y = Clip(x,lo,hi)", _ONE
    yield "Mod", 13, "{i}", "y = Mod<fmod=1>(a,b)", {"i": _BROADCAST[:3]}
    yield "Gelu", 20, "float[3,4] x", 'y = Gelu<approximate="{a}">(x)', {"a": ("none", "tanh")}
    for name in ("HardSwish", "Mish"):
        yield name, 14 if name == "HardSwish" else 18, "float[3,4] x", f"y = {name}(x)", _ONE
    yield "Elu", 7, "float[3,4] x", "y = Elu<alpha={a}>(x)", {"a": ("0.5", "2.0")}
    yield "LeakyRelu", 7, "float[3,4] x", "y = LeakyRelu<alpha={a}>(x)", {"a": ("0.3", "1.5")}
    yield "Selu", 7, "float[3,4] x", "y = Selu<alpha={a},gamma={g}>(x)", {"a": ("1.2",), "g": ("0.7", "2.0")}
    yield "Celu", 12, "float[3,4] x", "y = Celu<alpha={a}>(x)", {"a": ("0.5", "2.0")}
    yield "HardSigmoid", 7, "float[3,4] x", "y = HardSigmoid<alpha={a},beta={b}>(x)", {"a": ("0.2", "0.5"), "b": ("0.3", "0.6")}
    yield "Shrink", 9, "float[3,4] x", "y = Shrink<lambd={a},bias={b}>(x)", {"a": ("0.2", "0.5"), "b": ("0.0", "0.1")}
    for name, since in (("Softmax", 13), ("LogSoftmax", 13), ("Softmax", 11), ("LogSoftmax", 11)):
        yield name, since, "float[2,3,4] x", f"y = {name}<axis={{a}}>(x)", {"a": ("0", "1", "2", "-1", "-2")}


def _of_reductions() -> Iterator[Row]:
    for name in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
                 "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"):  # fmt: skip
        yield (name, 11, "float[2,3,4] x", f"y = {name}<{{k}},axes=[{{a}}]>(x)",
               {"k": _REDUCED, "a": ("0", "1,2", "-1", "0,2")})  # fmt: skip
        yield (name, 18, "float[2,3,4] x", f"a = Constant<value_ints=[{{a}}]>() y = {name}<{{k}}>(x,a)",
               {"k": _REDUCED, "a": ("1", "0,2")})  # fmt: skip
    yield ("ReduceProd", 11, "float[2,3] x", "z = Constant<value = float[2,3] {{1.0,0.0,1.0,1.0,1.0,0.0}}>() m = Mul(x,z) "
           "y = ReduceProd<axes=[{a}]>(m)", {"a": ("0", "1", "0,1")})  # fmt: skip
    yield ("CumSum", 14, "float[3,4] x", "a = Constant<value_int={a}>() y = CumSum<exclusive={e},reverse={r}>(x,a)",
           {"a": ("0", "1", "-1"), "e": ("0", "1"), "r": ("0", "1")})  # fmt: skip
    yield ("TopK", 12, "float[3,5] x", "k = Constant<value_ints=[{k}]>() y, i = TopK<axis={a},largest={l}>(x,k)",
           {"k": ("1", "3"), "a": ("0", "1"), "l": ("0", "1")})  # fmt: skip
    yield "LpNormalization", 1, "float[2,3] x", "y = LpNormalization<axis={a},p={p}>(x)", {"a": ("0", "1"), "p": ("1", "2")}
    yield "MeanVarianceNormalization", 13, "float[2,3,2,2] x", "y = MeanVarianceNormalization<axes=[{a}]>(x)", {"a": ("0,2,3", "1")}
    yield ("BatchNormalization", 15, "float[{s}] x, float[3] g, float[3] b, float[3] m, float[3] v",
           "e = Constant<value_float=0.5>() q = Mul(v,v) w = Add(q,e) y = BatchNormalization<epsilon={e}>(x,g,b,m,w)",
           {"s": ("4,3", "2,3,4", "2,3,2,2"), "e": ("1e-5", "0.1")})  # fmt: skip
    yield ("BatchNormalization", 15, "float[{s}] x, float[3] g, float[3] b, float[3] m, float[3] v",
           "y, r, t = BatchNormalization<training_mode=1,momentum={o}>(x,g,b,m,v)",
           {"s": ("4,3", "2,3,4", "2,3,2,2"), "o": ("0.9", "0.5")})  # fmt: skip
    yield ("LayerNormalization", 17, "float[2,3,4] x, float[{s}] g, float[{s}] b",
           "y = LayerNormalization<axis={a}>(x,g,b)", {"s": ("4", "3,4", "2,3,4"), "a": ("2", "1", "0", "-1")})  # fmt: skip
    yield "InstanceNormalization", 6, "float[2,3,{s}] x, float[3] g, float[3] b", "y = InstanceNormalization(x,g,b)", {"s": ("4", "2,3")}
    yield ("GroupNormalization", 21, "float[2,4,{s}] x, float[4] g, float[4] b", "y = GroupNormalization<num_groups={n}>(x,g,b)",
           {"s": ("3", "2,2"), "n": ("1", "2", "4")})  # fmt: skip
    yield "LRN", 13, "float[2,5,2,2] x", "y = LRN<size={n},alpha={a},beta={b}>(x)", {"n": ("1", "2", "3"), "a": ("0.1", "1.0"), "b": ("0.75",)}


def _of_products() -> Iterator[Row]:
    yield ("Gemm", 13, "float[{p}] a, float[{q}] b, float[{r}] c",
           "y = Gemm<transA={s},transB={t},alpha={f},beta={g}>(a,b,c)",
           {"p": ("2,3", "3,2"), "q": ("3,4", "4,3"), "r": ("2,4", "4", "2,1", "1"), "s": ("0", "1"), "t": ("0", "1"),
            "f": ("0.5",), "g": ("2.0",)})  # fmt: skip
    yield "Gemm", 13, "float[2,3] a, float[3,4] b", "y = Gemm<alpha={f}>(a,b)", {"f": ("1.0", "0.3")}
    yield ("MatMul", 13, "{i}", "y = MatMul(a,b)",
           {"i": ("float[2,3] a, float[3,4] b", "float[3] a, float[3] b", "float[3] a, float[3,2] b", "float[2,3] a, float[3] b",
                  "float[2,2,3] a, float[3,4] b", "float[2,1,2,3] a, float[3,3,4] b", "float[2,3] a, float[2,3,2] b",
                  "float[3] a, float[2,3,2] b", "float[1,3] a, float[3,1] b")})  # fmt: skip
    yield ("Einsum", 12, "float[{p}] a, float[{q}] b", 'y = Einsum<equation="{e}">(a,b)',
           {"p": ("2,3",), "q": ("3,4", "2,3", "4,3"), "e": ("ij,jk->ik", "ij,ij->", "ij,kj->ik", "ij,ij->ij", "ij,jk->", "ij,ij->j")})  # fmt: skip
    yield "Einsum", 12, "float[3,3] a", 'y = Einsum<equation="{e}">(a)', {"e": ("ii->i", "ii->", "ij->ji", "ij->j")}
    yield "Det", 11, "float[{s}] x", "y = Det(x)", {"s": ("1,1", "2,2", "3,3", "2,3,3")}


def _of_places() -> Iterator[Row]:
    yield ("Gather", 13, "float[3,4] x", "i = Constant<value_ints=[{i}]>() y = Gather<axis={a}>(x,i)",
           {"i": ("0", "2,0", "1,1,1", "-1,0"), "a": ("0", "1", "-1")})  # fmt: skip
    yield ("GatherElements", 13, "float[3,3] x", "i = Constant<value = int64[2,3] {{{i}}}>() y = GatherElements<axis={a}>(x,i)",
           {"i": ("0,1,2,1,0,2", "1,1,1,1,1,1", "-1,0,2,0,0,0"), "a": ("0", "1")})  # fmt: skip
    yield ("GatherND", 13, "float[2,3,2] x", "i = Constant<value = int64[{s}] {{{i}}}>() y = GatherND<batch_dims={b}>(x,i)",
           {"s": ("2,1", "2,2"), "i": ("0,1", "1,1", "1,0,1,0", "0,2,1,1"), "b": ("0", "1")})  # fmt: skip
    yield ("ScatterElements", 18, "float[3,3] x, float[2,3] u",
           'i = Constant<value = int64[2,3] {{{i}}}>() y = ScatterElements<axis={a},reduction="{r}">(x,i,u)',
           {"i": ("0,1,2,1,2,0", "0,1,2,0,1,2"), "a": ("0", "1"), "r": ("none", "add", "mul", "max", "min")})  # fmt: skip
    yield ("ScatterND", 18, "float[4,2] x, float[3,2] u",
           'i = Constant<value = int64[3,1] {{{i}}}>() y = ScatterND<reduction="{r}">(x,i,u)',
           {"i": ("0,2,3", "1,1,0"), "r": ("none", "add", "mul", "max", "min")})  # fmt: skip
    yield ("OneHot", 12, "int64[3] i, float[2] v", "d = Constant<value_ints=[4]>() y = OneHot<axis={a}>(i,d,v)", {"a": ("0", "-1")})
    yield ("Slice", 13, "float[4,5] x", "a = Constant<value_ints=[{a}]>() b = Constant<value_ints=[{b}]>() "
           "c = Constant<value_ints=[{c}]>() d = Constant<value_ints=[{d}]>() y = Slice(x,a,b,c,d)",
           {"a": ("0", "1", "-1"), "b": ("3", "-5", "9"), "c": ("0", "1", "-1"), "d": ("1", "2", "-1", "-2")})  # fmt: skip
    yield ("Pad", 18, "float[3,4] x", 'p = Constant<value_ints=[{p}]>() y = Pad<mode="{m}">(x,p)',
           {"p": ("0,1,1,0", "1,1,2,1", "-1,0,1,1", "0,-1,0,-2", "2,2,0,0"), "m": ("constant", "reflect", "edge")})  # fmt: skip
    yield "Pad", 19, "float[3,4] x", 'p = Constant<value_ints=[{p}]>() y = Pad<mode="wrap">(x,p)', {"p": ("0,1,1,0", "2,1,1,2")}
    yield "Concat", 13, "float[2,3] a, float[{s}] b", "y = Concat<axis={x}>(a,b,a)", {"s": ("2,3", "1,3", "2,1"), "x": ("0", "1", "-1")}
    yield ("Split", 13, "float[5,4] x", "s = Constant<value_ints=[{s}]>() y, z = Split<axis={a}>(x,s)",
           {"s": ("2,3", "1,4", "3,1", "2,2"), "a": ("0", "1")})  # fmt: skip
    yield "Expand", 13, "float[{s}] x", "t = Constant<value_ints=[{t}]>() y = Expand(x,t)", {"s": ("3", "3,1", "1,1"), "t": ("2,3", "3,2", "1", "2,1,3")}
    yield "Tile", 13, "float[2,3] x", "t = Constant<value_ints=[{t}]>() y = Tile(x,t)", {"t": ("1,2", "3,1", "2,2")}
    yield "Transpose", 13, "float[2,3,4] x", "y = Transpose<perm=[{p}]>(x)", {"p": ("0,2,1", "1,2,0", "2,0,1", "2,1,0")}
    yield "Trilu", 14, "float[{s}] x", "k = Constant<value_int={k}>() y = Trilu<upper={u}>(x,k)", {"s": ("3,4", "2,3,3"), "k": ("0", "1", "-1"), "u": ("0", "1")}
    yield "DepthToSpace", 13, "float[1,8,2,3] x", 'y = DepthToSpace<blocksize=2,mode="{m}">(x)', {"m": ("DCR", "CRD")}
    yield "SpaceToDepth", 13, "float[1,2,4,6] x", "y = SpaceToDepth<blocksize=2>(x)", _ONE
    yield ("ReverseSequence", 12, "float[3,3] x", "l = Constant<value_ints=[{l}]>() y = ReverseSequence<batch_axis={b},time_axis={t}>(x,l)",
           {"l": ("1,2,3", "3,1,2"), "b": ("0", "1"), "t": ("1", "0")})  # fmt: skip
    yield ("Compress", 11, "float[3,4] x", "c = Constant<value = bool[3] {{{c}}}>() y = Compress<axis={a}>(x,c)",
           {"c": ("1,0,1", "0,1,0"), "a": ("0", "1")})  # fmt: skip
    yield ("Resize", 13, "float[1,1,{s}] x", "e = Constant<value_floats=[1.0,1.0,{f}]>() r = Constant<value_floats=[0.0]>() "
           'y = Resize<mode="{m}",coordinate_transformation_mode="{c}"{n}>(x,r,e)',
           {"s": ("4,4", "3,5"), "f": ("2.0,2.0", "0.5,0.6", "1.5,0.8"), "m": ("linear", "cubic"),
            "c": ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"), "n": ("",)})  # fmt: skip


def _of_losses_and_cells() -> Iterator[Row]:
    reductions = {"r": ("none", "mean", "sum")}
    for name in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"):
        labels = "t = Constant<value = int64[3] {{0,2,1}}>()"
        yield name, 13, "float[3,4] x, float[4] w", f'{labels} y = {name}<reduction="{{r}}",ignore_index={{i}}>(x,t,w)', {**reductions, "i": ("-1", "2")}
        yield name, 13, "float[3,4] x", f'{labels} y = {name}<reduction="{{r}}">(x,t)', reductions
        yield (name, 13, "float[1,3,2] x, float[3] w",
               f'u = Constant<value = int64[1,2] {{{{1,2}}}}>() y = {name}<reduction="{{r}}">(x,u,w)', reductions)  # fmt: skip
    ways = {"forward": "1", "reverse": "1", "bidirectional": "2"}
    for (name, gates), (way, n) in product((("RNN", 1), ("GRU", 3), ("LSTM", 4)), ways.items()):
        w = f"float[{n},{gates * 2},3] w, float[{n},{gates * 2},2] r"
        extra = {"GRU": ("", ",linear_before_reset=1")}.get(name, ("",))
        states = "y, h, c" if name == "LSTM" else "y, h"
        begin, begun = f"float[{n},2,2] s", "s"
        if name == "LSTM":
            begin, begun = f"{begin}, float[{n},2,2] t", "s,t"
        yield (name, 14, f"float[3,2,3] x, {w}", f'{states} = {name}<hidden_size=2,direction="{way}"{{e}}>(x,w,r)', {"e": extra})
        bias = f"float[{n},{gates * 4}] b"
        yield (name, 14, f"float[3,2,3] x, {w}, {bias}", f'{states} = {name}<hidden_size=2,direction="{way}"{{e}}>(x,w,r,b)', {"e": extra})
        yield (name, 14, f"float[3,2,3] x, {w}, {bias}, {begin}",
               f'l = Constant<value = int32[2] {{{{{{l}}}}}}>() {states} = {name}<hidden_size=2,direction="{way}"{{e}}>(x,w,r,b,l,{begun})',
               {"e": extra, "l": ("3,3", "3,1")})  # fmt: skip
    yield ("LSTM", 14, "float[3,2,3] x, float[1,8,3] w, float[1,8,2] r, float[1,16] b, float[1,2,2] s, float[1,2,2] t, float[1,6] p",
           "l = Constant<value = int32[2] {{3,2}}>() y, h, c = LSTM<hidden_size=2>(x,w,r,b,l,s,t,p)", _ONE)  # fmt: skip


_NETWORKS: tuple[Row, ...] = (
    ("MLP", 13, "float[3,4] x, float[4,5] a, float[5] b, float[5,2] c",
     "h = MatMul(x,a) i = Add(h,b) j = {f}(i) y = MatMul(j,c)", {"f": ("Relu", "Tanh", "Sigmoid", "Softplus", "Elu")}),
    ("residual block", 13, "float[1,2,5,5] x, float[2,2,3,3] w, float[2,2,3,3] v",
     "a = Conv<pads=[1,1,1,1]>(x,w) b = {f}(a) c = Conv<pads=[1,1,1,1]>(b,v) d = Add(c,x) y = {f}(d)",
     {"f": ("Relu", "Tanh")}),
    ("attention", 13, "float[2,3,4] x, float[4,4] q, float[4,4] k, float[4,4] v",
     "a = MatMul(x,q) b = MatMul(x,k) c = MatMul(x,v) d = Transpose<perm=[0,2,1]>(b) e = MatMul(a,d) "
     "f = Softmax<axis=-1>(e) y = MatMul(f,c)", _ONE),
    ("pooled convolution", 13, "float[1,2,6,6] x, float[3,2,3,3] w, float[3] b",
     "a = Conv<pads=[0,1,1,0]>(x,w,b) c = Relu(a) d = {p}<kernel_shape=[2,2],strides=[2,2]>(c) "
     "e = GlobalAveragePool(d) y = Flatten(e)", {"p": ("MaxPool", "AveragePool")}),
    ("branch", 16, "float[3] x, bool c", "y = If(c) <then_branch = g () => (float[3] t) {{ t = Exp(x) }}, "
     "else_branch = h () => (float[3] e) {{ e = Mul(x,x) }}>", _ONE),
    ("loop", 16, "float[3] x, float[3] w", "n = Constant<value_int={n}>() c = Constant<value = bool {{1}}>() "
     "y = Loop(n,c,x) <body = g (int64 i, bool k, float[3] s) => (bool o, float[3] t) {{ o = Identity(k) "
     "m = Mul(s,w) t = Tanh(m) }}>", {"n": ("1", "3")}),
    ("scan", 16, "float[3] s, float[4,3] x", "t, y = Scan<num_scan_inputs=1, body = g (float[3] a, float[3] b) => "
     "(float[3] c, float[3] d) {{ m = Mul(a,b) c = Sin(m) d = Identity(c) }}>(s,x)", _ONE),
    ("embedding", 13, "float[5,3] w, float[3,2] v", "i = Constant<value = int64[2,2] {{0,4,4,1}}>() e = Gather(w,i) "
     "m = ReduceMean<axes=[1],keepdims=0>(e) y = MatMul(m,v)", _ONE),
)  # fmt: skip


def rows() -> Iterator[tuple[str, Row]]:
    """All lines of the table, each with the kind of its cases."""
    for family in (_of_windows, _of_entries, _of_reductions, _of_products, _of_places, _of_losses_and_cells):
        yield from (("attributes", row) for row in family())
    yield from (("network", row) for row in _NETWORKS)


def drafts() -> Iterator[Draft]:
    """A draft for each combination of the values of each line that ONNX accepts."""
    seen: dict[str, int] = {}
    for kind, (operator, opset, inputs, nodes, choices) in rows():
        stem = operator.replace(" ", "_").lower() + f"_{opset}"
        for values in product(*choices.values()):
            chosen = dict(zip(choices, values, strict=True))
            number = seen[stem] = seen.get(stem, -1) + 1
            model = _model(opset, inputs.format(**chosen), nodes.format(**chosen))
            if model is not None:
                yield Draft(f"{stem}_{number:03d}", operator, kind, model, {})


def _model(opset: int, inputs: str, nodes: str) -> onnx.ModelProto | None:
    """A model from ONNX's text syntax, whose outputs are the tensors of its last node; None if ONNX does not accept it."""
    text = f'<ir_version: {IR_VERSION}, opset_import: ["" : {opset}]> case ({inputs}) => (float y) {{ {nodes} }}'
    model = onnx.parser.parse_model(text)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in model.graph.node[-1].output)
    try:
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return None
    del inferred.graph.value_info[:]
    for value in inferred.graph.output:
        if not value.type.tensor_type.elem_type:  # ONNX does not infer it of every operator
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return inferred

