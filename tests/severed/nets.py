"""Small nets by what stands in them, where, and in which control flow: cut off, cut off in part, zero, and none of it.

A piece maps a tensor `a` of shape [3,4] to `b` of the same shape, with names of its own that begin with `b`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from onnx import ModelProto

from tests.diff.twins import net

RNG = np.random.default_rng(11)
CONSTANTS: Mapping[str, Any] = {
    "W1": RNG.normal(size=(4, 4)), "W2": RNG.normal(size=(4, 4)), "E": RNG.normal(size=(4, 4)),
    "C": RNG.normal(size=(3, 4)), "D": RNG.normal(size=(3, 4)), "half": np.float64(0.1), "none": np.float64(0.0),
    "far": np.float64(-1e3), "far2": np.float64(-9e2), "k": np.array([4]), "depth": np.array(4),
    "hot": np.array([0.0, 1.0]), "s": np.float64(0.02), "z": np.int8(0), "top": np.float64(127.0), "eps": np.float64(1e-3),
    "two": np.array([2, 2]), "three": np.array(3), "yes": np.array(True), "no": np.array(False), "last": np.array([-1]),
    "from0": np.array([0]), "to2": np.array([2]), "from2": np.array([2]), "to4": np.array([4]), "axis1": np.array([1]),
    "one": np.array([1]), "even": np.float64(2.0), "row": np.array([0, 2]), "never": np.zeros((3, 4), bool),
    "points": np.array([1, 6, 1, 2]), "image": np.array([1, 2, 2, 3]), "table": np.array([3, 4]),
}  # fmt: skip


class Piece(NamedTuple):
    """A piece to put into a net, and the operator that is at fault there."""

    name: str
    text: str
    op: str = ""


def beside(piece: str) -> str:
    """A piece that ends in p, for another one to go on with."""
    return re.sub(r"\bb(\d*)\b", r"p\1", piece)


SAMPLED = ("b1 = Reshape (a, points)  b2 = Reshape (C, image)  b3 = GridSample {} (b2, b1)  "
           "b = Reshape (b3, table)")  # fmt: skip
CUTS = [
    Piece("round", "b = Round (a)", "Round"),
    Piece("floor", "b = Floor (a)", "Floor"),
    Piece("ceil", "b = Ceil (a)", "Ceil"),
    Piece("sign", "b = Sign (a)", "Sign"),
    Piece("hardmax", "b = Hardmax <axis = -1> (a)", "Hardmax"),
    Piece("int and back", "b1 = Cast <to = 7> (a)  b = Cast <to = 1> (b1)", "Cast"),
    Piece("bool and back", "b1 = Cast <to = 9> (a)  b = Cast <to = 1> (b1)", "Cast"),
    Piece("float8 and back", "b1 = Cast <to = 17> (a)  b = Cast <to = 1> (b1)", "Cast"),
    Piece("cast like", "b1 = CastLike (a, k)  b = Cast <to = 1> (b1)", "CastLike"),
    Piece("greater", "b1 = Greater (a, half)  b = Cast <to = 1> (b1)", "Greater"),
    Piece("where", "b1 = Less (a, half)  b = Where (b1, C, D)", "Less"),
    Piece("nearest code", "b1 = ArgMax <axis = -1, keepdims = 0> (a)  b = Gather (E, b1)", "ArgMax"),
    Piece("one hot", "b1 = ArgMin <axis = -1, keepdims = 0> (a)  b = OneHot (b1, depth, hot)", "ArgMin"),
    Piece("places", "b1, b2 = TopK (a, k)  b = Cast <to = 1> (b2)", "TopK"),
    Piece("quantized", "b1 = QuantizeLinear (a, s, z)  b = DequantizeLinear (b1, s, z)", "QuantizeLinear"),
    Piece("shape", "b1 = Shape (a)  b2 = ConstantOfShape (b1)  b = Add (b2, C)", "Shape"),
    Piece("eye", "b = EyeLike (a)", "EyeLike"),
    Piece("fake", "b1 = Div (a, s)  b2 = Round (b1)  b3 = Clip (b2, far, top)  b = Mul (b3, s)", "Round"),
    Piece("not a number", "b1 = IsNaN (a)  b2 = Not (b1)  b = Cast <to = 1> (b2)", "IsNaN"),
    Piece("nearest sample", SAMPLED.format('<mode = "nearest">'), "GridSample"),
    Piece("straight-through, not detached", "b1 = Round (a)  b2 = Sub (b1, a)  b = Add (a, b2)", "Round"),
    Piece(
        "hard, less and plus soft",
        "b1 = Hardmax <axis = -1> (a)  b2 = Sub (b1, a)  b3 = Identity (b2)  b = Add (b3, a)",
        "Hardmax",
    ),
    Piece("less what is less", "b1 = Sign (a)  b2 = Sub (a, b1)  b = Sub (a, b2)", "Sign"),
    Piece("of a sum", "b1 = Add (a, C)  b2 = Round (b1)  b3 = Neg (b1)  b4 = Add (b3, b2)  b = Add (b1, b4)", "Round"),
]
TWINS = [  # what is cut has another way, on which it is multiplied, or does not round at all
    *(Piece(f"{each.name} times", f"{beside(each.text)}  b = Mul (a, p)") for each in CUTS),
    Piece("float16 and back", "b1 = Cast <to = 10> (a)  b = Cast <to = 1> (b1)"),
    Piece("double", "b1 = Cast <to = 11> (a)  b = Cast <to = 1> (b1)"),
    Piece("sorted", "b, b2 = TopK (a, k)"),
    Piece("own relu", "b1 = Greater (a, half)  b2 = Cast <to = 1> (b1)  b = Mul (b2, a)"),
    Piece("sampled between", SAMPLED.format("")),
    Piece("smooth, less and plus", "b1 = Tanh (a)  b2 = Sub (b1, a)  b = Add (a, b2)"),
    Piece("twice, less once", "b1 = Add (a, a)  b = Sub (b1, a)"),
    Piece("where alive", "b1 = Less (a, half)  b = Where (b1, a, D)"),
]
PARTLY = [
    *(Piece(f"{each.name} beside", f"{beside(each.text)}  b = Add (a, p)", f"sum {each.op}")
      for each in CUTS if each.name in ("round", "floor", "ceil", "sign", "hardmax", "int and back", "quantized", "fake")),
    Piece("less the fraction", "b1 = Floor (a)  b = Sub (a, b1)", "sum Floor"),
    Piece("twice the difference", "b1 = Round (a)  b2 = Sub (b1, a)  b3 = Add (a, b2)  b = Add (b3, b2)", "sum Round"),
    Piece("half rounded", "b1, b2 = Split <axis = 1> (a, two)  b3 = Round (b1)  b = Concat <axis = 1> (b3, b2)",
          "units Round"),
    Piece("a slice to integers",
          "b1 = Slice (a, from0, to2, axis1)  b2 = Cast <to = 7> (b1)  b3 = Cast <to = 1> (b2)  "
          "b4 = Slice (a, from2, to4, axis1)  b = Concat <axis = 1> (b3, b4)", "units Cast"),
    Piece("by the largest",
          "b1 = Abs (a)  b2 = ReduceMax <keepdims = 0> (b1)  b3 = Div (b2, top)  b4 = Div (a, b3)  b5 = Round (b4)  "
          "b = Mul (b5, b3)", "scale Round"),
    Piece("by the largest, clipped",
          "b1 = Abs (a)  b2 = ReduceMax <keepdims = 1> (b1)  b3 = Div (b2, top)  b4 = Reciprocal (b3)  b5 = Mul (a, b4)  "
          "b6 = Round (b5)  b7 = Clip (b6, far, top)  b = Mul (b7, b3)", "scale Round"),
    Piece("dynamic", "b1, b2, b3 = DynamicQuantizeLinear (a)  b = DequantizeLinear (b1, b2, b3)",
          "scale DynamicQuantizeLinear"),
]  # fmt: skip
ZEROS = [
    Piece("dead relu", "b1 = Add (a, far)  b = Relu (b1)", "Relu"),
    Piece("saturated", "b1 = Clip (a, far, far2)  b = Add (b1, C)", "Clip"),
    Piece("taken away", "b1 = Sub (a, a)  b = Add (b1, C)", "Sub"),
    Piece("times 0", "b1 = Mul (a, none)  b = Add (b1, C)", "Mul"),
    Piece("one choice", "b1 = ReduceMean <axes = [-1], keepdims = 1> (a)  b2 = Softmax <axis = -1> (b1)  b = Add (b2, C)",
          "Softmax"),
    Piece("never taken", "b = Where (never, a, C)", "Where"),
    Piece("the smaller", "b1 = Min (a, far)  b = Add (b1, C)", "Min"),
    Piece("the larger", "b1 = Neg (far)  b = Max (a, b1)", "Max"),
    Piece("hard", "b1 = Add (a, far)  b = HardSigmoid (b1)", "HardSigmoid"),
    Piece("to the power 0", "b1 = Abs (a)  b2 = Add (b1, half)  b3 = Pow (b2, none)  b = Add (b3, C)", "Pow"),
    Piece("thresholded", "b1 = Add (a, far)  b = ThresholdedRelu (b1)", "ThresholdedRelu"),
]  # fmt: skip
PLACES = {"first": "{0}  h1 = MatMul (t, W1)  y = Mul (h1, even)", "last": "h1 = MatMul (x, W1)  {0}  y = Identity (t)",
          "between": "h1 = MatMul (x, W1)  h2 = Tanh (h1)  {0}  y = MatMul (t, W2)"}  # fmt: skip
READS = {"first": "x", "last": "h1", "between": "h2"}


def named(piece: str, a: str, b: str) -> str:
    """A piece from a to b: `b1` becomes a name of its own."""
    found = re.sub(r"\bb(\d*)\b", rf"{b}\1", re.sub(r"\bp(\d*)\b", rf"{b}p\1", piece))
    return re.sub(r"\ba\b", a, found)


def plain(piece: str, a: str) -> str:
    return named(piece, a, "t")


def within_if(piece: str, a: str) -> str:
    """In both branches, one of which is taken."""
    branches = (f"{key} = g{i} () => (float[3,4] u{i}) {{ {named(piece, a, f'v{i}')}  u{i} = Mul (v{i}, even) }}"
                for i, key in enumerate(("then_branch", "else_branch")))  # fmt: skip
    return f"t = If (yes) <{', '.join(branches)}>"


def within_loop(piece: str, a: str) -> str:
    """In what goes round a loop."""
    inside = f"c2 = Identity (c)  {named(piece, 'st', 'nx')}"
    body = f"body = g (int64 i, bool c, float[3,4] st) => (bool c2, float[3,4] nx) {{ {inside} }}"
    return f"t = Loop (three, yes, {a}) <{body}>"


def within_scan(piece: str, a: str) -> str:
    """In the body of a scan over rows of a constant, whose state it is."""
    body = f"body = g (float[3,4] st, float[4] r) => (float[3,4] nx) {{ w = Add (st, r)  {named(piece, 'w', 'nx')} }}"
    return f"t = Scan <num_scan_inputs = 1, {body}> ({a}, C)"


FLOWS = {"plain": plain, "if": within_if, "loop": within_loop, "scan": within_scan}


def one_branch(cut: str, a: str) -> str:
    """In the branch that is taken, while the other one lets a gradient through."""
    return (f"t = If (yes) <then_branch = g0 () => (float[3,4] u0) {{ {named(cut, a, 'u0')} }}, "
            f"else_branch = g1 () => (float[3,4] u1) {{ u1 = Mul ({a}, even) }}>")  # fmt: skip


class Drawn(NamedTuple):
    """A net, what it is made of, and the operator that is at fault."""

    name: str
    model: ModelProto
    op: str


def made(text: str) -> ModelProto:
    """The net of some nodes, with the constants that they read."""
    words = {*text.replace(",", " ").replace("(", " ").replace(")", " ").split()}
    used = {
        n: (np.asarray(v, np.float32) if np.asarray(v).dtype == float else v)
        for n, v in CONSTANTS.items()
        if n in words
    }
    return net(f"a (float[3,4] x) => (float[3,4] y) {{ {text} }}", opset=17, **used)


def drawn(pieces: list[Piece], flows: Mapping[str, Any] = FLOWS, places: Iterable[str] = PLACES) -> Iterator[Drawn]:
    """Each piece at each place in each control flow."""
    for piece in pieces:
        for place in places:
            for flow, put in flows.items():
                inside = put(piece.text, READS[place])
                yield Drawn(f"{piece.name}, {place}, {flow}", made(PLACES[place].format(inside)), piece.op)
