"""Derivatives through If, Loop, Scan and recurrent layers in files: right for every way that a run may take."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import gradcheck_cli as gc
from gradcheck_cli.autodiff.outlined import OutlinedTape
from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.errors import UnsupportedError
from gradcheck_cli.export.control_flow import for_files
from gradcheck_cli.export.derivatives import derivatives, export
from gradcheck_cli.export.rewrites import without_lists
from gradcheck_cli.formats.onnx.read import read_proto
from gradcheck_cli.graph import Graph, is_inexact
from gradcheck_cli.ops import OPS
from tests.export.open_models import PLAIN
from tests.ops.case import Case
from tests.ops.cases.control_flow import CASES as CONTROL_FLOW
from tests.ops.cases.recurrent import CASES as RECURRENT
from tests.rounding import FUNCTION, assert_rounded

onnxruntime = pytest.importorskip("onnxruntime")

Feeds = Mapping[str, Any]
OP_CASES = [case for case in (*CONTROL_FLOW, *RECURRENT) if case.label != "grows"]


@dataclass(frozen=True)
class Written:
    """A model in the text form of ONNX, and inputs for which its one file of derivatives has to be right."""

    id: str
    text: str
    feeds: tuple[Feeds, ...]
    rounding: float = 1e-9  # of results, relative to the largest; onnxruntime runs layers in float32 only


def numbers(seed: int, *shape: int) -> Any:
    """Numbers around which nothing has a kink, in float64."""
    return np.random.default_rng(seed).uniform(0.2, 1.2, size=shape)


def single(seed: int, *shape: int) -> Any:
    """The same in float32."""
    return np.float32(numbers(seed, *shape))


def each(**choices: Any) -> tuple[Feeds, ...]:
    """Feeds for every combination of what lists of choices hold; others are the same for all."""
    lists = {name: value if isinstance(value, list) else [value] for name, value in choices.items()}
    return tuple(dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values()))


X, W, ROWS = numbers(0, 2), numbers(1, 2), numbers(2, 3, 2)
COUNTS = [2, 0, 1, 4]
MODELS = [
    Written(
        "If on an input",
        """g (double[2] x, double[2] w, bool c) => (double[2] y) {
          y = If (c) <then_branch = t () => (double[2] p) { a = Mul(x, w) p = Sin(a) },
                      else_branch = e () => (double[2] q) { q = Mul(x, x) }>
        }""",
        each(x=X, w=W, c=[True, False]),
    ),
    Written(
        "If on values, in an If",
        """g (double[2] x, double[2] w) => (double[2] y) {
          zero = Constant <value = double {0.0}> ()
          s = ReduceSum <keepdims = 0> (x)
          c = Less (s, zero)
          y = If (c) <
            then_branch = t () => (double[2] p) {
              d = Mul(x, w)
              f = Less(w, x)
              all = Cast <to = 6> (f)
              least = ReduceMin <keepdims = 0> (all)
              b = Cast <to = 9> (least)
              e = If (b) <then_branch = t2 () => (double[2] p2) { p2 = Sin(d) },
                          else_branch = e2 () => (double[2] q2) { q2 = Cos(d) }>
              p = Mul(e, x) },
            else_branch = e () => (double[2] q) { q = Exp(x) }>
        }""",
        each(x=[np.array([1.0, 2.0]), np.array([-1.0, -2.0]), np.array([3.0, -4.0])], w=[W, W - 9]),
    ),
    Written(
        "branches that read and hand on other tensors",
        """g (double[2] x, double[3] w, bool c) => (double[2] y, double[3] z) {
          y, z = If (c) <then_branch = t () => (double[2] p, double[3] p2) { p = Identity(x) p2 = Exp(w) },
                         else_branch = e () => (double[2] q, double[3] q2) {
                           s = ReduceSum <keepdims = 0> (w) q = Mul(x, s) q2 = Identity(w) }>
        }""",
        each(x=X, w=numbers(3, 3), c=[True, False]),
    ),
    Written(
        "Loop of an input's count",
        """g (double[2] x, double[2] w, int64 n) => (double[2] y) {
          y = Loop (n, , x) <body = b (int64 i, bool c, double[2] h) => (bool go, double[2] next) {
            t = Mul(h, w) next = Sin(t) go = Identity(c) }>
        }""",
        each(x=X, w=W, n=[3, 0, 1, 9]),
    ),
    Written(
        "Loop until a condition",
        """g (double[2] x, double[2] w, double limit, int64 n) => (double[2] y) {
          yes = Constant <value = bool {1}> ()
          y = Loop (n, yes, x) <body = b (int64 i, bool c, double[2] h) => (bool go, double[2] next) {
            t = Mul(h, w) next = Add(t, x) s = ReduceSum <keepdims = 0> (next) go = Less(s, limit) }>
        }""",
        each(x=X, w=W, limit=[2.0, 100.0, -1.0], n=[4, 1, 9]),
    ),
    Written(
        "Loop that does not start",
        """g (double[2] x, double[2] w, bool c) => (double[2] y) {
          y = Loop (, c, x) <body = b (int64 i, bool d, double[2] h) => (bool go, double[2] next) {
            three = Constant <value = int64 {3}> () next = Mul(h, w) go = Less(i, three) }>
        }""",
        each(x=X, w=W, c=[True, False]),
    ),
    Written(
        "Loop that uses the number of the iteration",
        """g (double[2] x, double[5, 2] w, int64 n) => (double[2] y, int64 k) {
          one = Constant <value = int64 {1}> ()
          zero = Constant <value = int64 {0}> ()
          y, k = Loop (n, , x, zero) <
            body = b (int64 i, bool c, double[2] h, int64 e) => (bool go, double[2] next, int64 more) {
              v = Gather <axis = 0> (w, e) hv = Mul(h, v) f = Cast <to = 11> (i) a = Add(hv, f)
              next = Sin(a) more = Add(e, one) go = Identity(c) }>
        }""",
        each(x=X, w=numbers(4, 5, 2), n=COUNTS),
    ),
    Written(
        "Loop of states that swap, of which one only is used",
        """g (double[2] x, double[2] w, int64 n) => (double[2] y, double[2] unused) {
          y, z, unused = Loop (n, , x, w, x) <
            body = b (int64 i, bool c, double[2] h, double[2] s, double[2] u) =>
                     (bool go, double[2] h2, double[2] s2, double[2] u2) {
              h2 = Sin(s) s2 = Mul(h, x) u2 = Exp(h) go = Identity(c) }>
        }""",
        each(x=X, w=W, n=COUNTS),
    ),
    Written(
        "Loop of a sum",
        """g (double[2] x, int64 n) => (double[2] y) {
          y = Loop (n, , x) <body = b (int64 i, bool c, double[2] h) => (bool go, double[2] next) {
            e = Exp(x) next = Add(h, e) go = Identity(c) }>
        }""",
        each(x=X, n=COUNTS),
    ),
    Written(
        "If in a Loop",
        """g (double[2] x, double[2] w, int64 n) => (double[2] y) {
          two = Constant <value = int64 {2}> ()
          y = Loop (n, , x) <body = b (int64 i, bool c, double[2] h) => (bool go, double[2] next) {
            m = Mod(i, two) odd = Cast <to = 9> (m)
            next = If (odd) <then_branch = t () => (double[2] p) { p = Mul(h, w) },
                             else_branch = e () => (double[2] q) { a = Exp(h) q = Add(a, x) }>
            go = Identity(c) }>
        }""",
        each(x=-X, w=W, n=COUNTS),
    ),
    Written(
        "Loop in a Loop, as often as its iteration says",
        """g (double[2] x, double[2] w, int64 n, int64 m) => (double[2] y) {
          y = Loop (n, , x) <body = b (int64 i, bool c, double[2] h) => (bool go, double[2] next) {
            r = Add(i, m)
            p = Loop (r, , h) <body = b2 (int64 j, bool c2, double[2] k) => (bool go2, double[2] k2) {
              kw = Mul(k, w) s = Sin(kw) k2 = Add(s, h) go2 = Identity(c2) }>
            next = Mul(p, w) go = Identity(c) }>
        }""",
        each(x=X, w=W, n=[2, 0, 3], m=[1, 0]),
    ),
    Written(
        "Loop in an If",
        """g (double[2] x, double[2] w, bool c, int64 n) => (double[2] y) {
          y = If (c) <
            then_branch = t () => (double[2] p) {
              p = Loop (n, , x) <body = b (int64 j, bool c2, double[2] k) => (bool go, double[2] k2) {
                kw = Mul(k, w) s = Sin(kw) k2 = Add(s, x) go = Identity(c2) }> },
            else_branch = e () => (double[2] q) { q = Mul(x, x) }>
        }""",
        each(x=X, w=W, c=[True, False], n=COUNTS),
    ),
    Written(
        "Scan in a Loop",
        """g (double[2] x, double[T, 2] r, int64 n) => (double[2] y) {
          axis = Constant <value = int64[1] {0}> ()
          y = Loop (n, , x) <body = b (int64 i, bool c, double[2] h) => (bool go, double[2] next) {
            p, o = Scan (h, r) <num_scan_inputs = 1, scan_input_directions = [1],
              body = b2 (double[2] k, double[2] q) => (double[2] k2, double[2] seen) {
                kq = Mul(k, q) s = Sin(kq) k2 = Add(s, h) seen = Mul(k2, k2) }>
            os = ReduceSum <keepdims = 0> (o, axis) next = Mul(p, os) go = Identity(c) }>
        }""",
        each(x=X, r=[ROWS, numbers(5, 1, 2)], n=[2, 0, 1]),
    ),
    Written(
        "Loop of as many iterations as an input has rows",
        """g (double[2] x, double[T, 2] r) => (double y) {
          zero = Constant <value = int64 {0}> ()
          size = Shape (r)
          n = Gather <axis = 0> (size, zero)
          f, o = Loop (n, , x) <body = b (int64 i, bool c, double[2] h) => (bool go, double[2] next, double[2] seen) {
            row = Gather <axis = 0> (r, i) hr = Mul(h, row) next = Tanh(hr) seen = Mul(next, row) go = Identity(c) }>
          m = ReduceMean <keepdims = 0> (o)
          s = ReduceSum <keepdims = 0> (f)
          y = Mul (m, s)
        }""",
        each(x=X, r=[ROWS, numbers(6, 1, 2), numbers(7, 6, 2)]),
    ),
    Written(
        "Loop of an input's count, which collects what the rest works on",
        """g (double[3] x, double[3] w, int64 n) => (double y, double[K, 3] o) {
          axis = Constant <value = int64[1] {0}> ()
          f, o = Loop (n, , x) <body = b (int64 i, bool c, double[3] h) => (bool go, double[3] next, double[3] row) {
            k = Cast <to = 11> (i) t = Mul(h, w) u = Add(t, k) next = Tanh(u) row = Mul(next, w) go = Identity(c) }>
          s = ReduceSumSquare <keepdims = 0> (o, axis)
          m = Mul(s, f)
          y = ReduceSum <keepdims = 0> (m)
        }""",
        each(x=numbers(0, 3), w=numbers(1, 3), n=COUNTS),
    ),
    Written(
        "Loop in an If, with outputs that nobody reads, Dropout that is off, and names as in the other branch",
        """g (double[2] x, double[2] w, bool c, int64 n) => (double[2] y) {
          y = If (c) <
            then_branch = t () => (double[2] p) {
              p, s3, seen3, other3 = Loop (n, , x, w) <
                body = b (int64 i, bool d, double[2] h, double[2] s) =>
                         (bool go, double[2] next, double[2] s2, double[2] seen, double[2] other) {
                kept = Dropout (h) seen = Mul(kept, s) next = Sin(seen) s2 = Identity(s) other = Exp(seen)
                go = Identity(d) }> },
            else_branch = e () => (double[2] p) { kept = Mul(x, w) p = Exp(kept) }>
        }""",
        each(x=X, w=W, c=[True, False], n=[2, 0, 3]),
    ),
    Written(
        "Loop that counts its iterations by itself",
        """g (double[2] x, double[T, 2] r) => (double[2] y, double s) {
          zero = Constant <value = int64 {0}> ()
          yes = Constant <value = bool {1}> ()
          size = Shape (r)
          n = Gather <axis = 0> (size, zero)
          k, y, o = Loop (, yes, zero, x) <
            body = b (int64 i, bool c, int64 j, double[2] h) => (bool go, int64 j2, double[2] next, double[2] seen) {
              one = Constant <value = int64 {1}> ()
              row = Gather <axis = 0> (r, j) hr = Mul(h, row) next = Tanh(hr) seen = Mul(next, row)
              j2 = Add(j, one) go = Less(j2, n) }>
          s = ReduceMean <keepdims = 0> (o)
        }""",
        each(x=X, r=[ROWS, numbers(6, 1, 2), numbers(7, 6, 2)]),
    ),
    Written(
        "Scan over any rows of any batch",
        """g (double[N, 2] h, double[2, 2] w, double[N, T, 2] x, double[T, N] z) => (double[N, 2] y, double[N, 2, T] o) {
          y, o = Scan (h, x, z) <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [0, 1],
            scan_output_axes = [-1], scan_output_directions = [1],
            body = b (double[N, 2] k, double[N, 2] q, double[N] v) => (double[N, 2] k2, double[N, 2] seen) {
              one = Constant <value = int64[1] {1}> ()
              kw = MatMul(k, w) a = Add(kw, q) s = Softmax <axis = -1> (a)
              m = ReduceSum(s, one) c = Unsqueeze(v, one) b2 = Mul(s, c) k2 = Add(b2, m) seen = Mul(k2, q) }>
        }""",
        tuple(
            {"h": numbers(n, n, 2), "w": numbers(1, 2, 2), "x": numbers(t, n, t, 2), "z": numbers(2, t, n)}
            for n, t in ((3, 4), (1, 1), (2, 7))
        ),
    ),
    Written(
        "Loop over any batch",
        """g (double[N, 2] x, double[2] w, int64 n) => (double[N, 2] y) {
          y = Loop (n, , x) <body = b (int64 i, bool c, double[N, 2] h) => (bool go, double[N, 2] next) {
            zero = Constant <value = int64[1] {0}> ()
            t = Mul(h, w) m = ReduceMean(t, zero) a = Sub(t, m) next = Sin(a) go = Identity(c) }>
        }""",
        tuple({"x": numbers(rows, rows, 2), "w": W, "n": n} for rows in (2, 5, 1) for n in (2, 0, 3)),
    ),
]
LISTS = [
    Written(
        "list of what a Loop appends, as a stack",
        """g (double[T, 2] x, double[2] w) => (double[T, 2] y) {
          none = SequenceEmpty <dtype = 11> ()
          zero = Constant <value = int64 {0}> ()
          shape = Shape (x)
          n = Gather (shape, zero)
          last, list = Loop (n, , w, none) <
            body = b (int64 i, bool c, double[2] h, seq(double[2]) old) => (bool go, double[2] next, seq(double[2]) new) {
              row = Gather(x, i) t = Mul(h, row) next = Sin(t) new = SequenceInsert(old, next) go = Identity(c) }>
          y = ConcatFromSequence <axis = 0, new_axis = 1> (list)
        }""",
        tuple({"x": numbers(t, t, 2), "w": W} for t in (3, 1, 5)),
    ),
    Written(
        "two lists beside a state, joined along other axes",
        """g (double[N, 2] x, double[2] w, int64 n)
            => (double[N, S, 2] y, double[N, R] z, double[M, 2] v, double[N, 2] last) {
          none = SequenceEmpty <dtype = 11> ()
          one, last, other = Loop (n, , none, x, none) <
            body = b (int64 i, bool c, seq(double[A, 2]) p, double[N, 2] h, seq(double[A, 2]) q)
              => (bool go, seq(double[A, 2]) p2, double[N, 2] next, seq(double[A, 2]) q2) {
              t = Mul(h, w) next = Sin(t) e = Exp(t) go = Identity(c) p2 = SequenceInsert(p, e) q2 = SequenceInsert(q, t) }>
          y = ConcatFromSequence <axis = -2, new_axis = 1> (one)
          z = ConcatFromSequence <axis = 1> (other)
          v = ConcatFromSequence <axis = 0> (one)
        }""",
        tuple({"x": numbers(rows, rows, 2), "w": W, "n": n} for rows in (2, 1, 4) for n in (2, 1, 5)),
    ),
    Written(
        "list that a tensor is split into",
        """g (double[2, T] x, double[2] w) => (double[2] y) {
          list = SplitToSequence <axis = 1, keepdims = 0> (x)
          columns = SplitToSequence <axis = -1> (x)
          n = SequenceLength (list)
          y = Loop (n, , w) <body = b (int64 i, bool c, double[2] h) => (bool go, double[2] next) {
            column = SequenceAt(list, i) same = SequenceAt(columns, i) square = Mul(same, same)
            s = ReduceSum <keepdims = 0> (square) t = Mul(h, column) u = Mul(t, s) next = Sin(u) go = Identity(c) }>
        }""",
        tuple({"x": numbers(t, 2, t), "w": W} for t in (3, 1, 5)),
    ),
    Written(
        "list that keeps its axis, read from its end in a branch",
        """g (double[T, 2] x, double[2] w, bool c) => (double[K, 2] y) {
          one = Constant <value = int64 {1}> ()
          list = SplitToSequence <keepdims = 0> (x, one)
          last = Constant <value = int64 {-1}> ()
          y = If (c) <then_branch = t () => (double[K, 2] p) {
                        row = SequenceAt(list, last) a = Mul(row, w) p = Mul(a, x) },
                      else_branch = e () => (double[K, 2] q) { q = Sin(x) }>
        }""",
        tuple({"x": numbers(t, t, 2), "w": W, "c": c} for t in (3, 1, 4) for c in (True, False)),
    ),
    Written(
        "lists in a Loop in a branch",
        """g (double[T, 2] x, double[2] w, bool c) => (double[K, 2] y) {
          y = If (c) <then_branch = t () => (double[K, 2] p) {
                        none = SequenceEmpty <dtype = 11> ()
                        rows = SplitToSequence <keepdims = 0> (x)
                        n = SequenceLength (rows)
                        list = Loop (n, , none) <
                          body = b (int64 i, bool d, seq(double[2]) a) => (bool go, seq(double[2]) z) {
                          row = SequenceAt(rows, i) t = Mul(row, w) s = Sin(t) z = SequenceInsert(a, s) go = Identity(d) }>
                        p = ConcatFromSequence <axis = 0, new_axis = 1> (list) },
                      else_branch = e () => (double[K, 2] q) { q = Exp(x) }>
        }""",
        tuple({"x": numbers(t, t, 2), "w": W, "c": c} for t in (3, 1, 4) for c in (True, False)),
    ),
    Written(
        "list that another Loop reads, and one that grows in front",
        """g (double[T, 2] x, double[2] w) => (double[2] y, double[T, 2] z) {
          none = SequenceEmpty <dtype = 11> ()
          zero = Constant <value = int64 {0}> ()
          shape = Shape (x)
          n = Gather (shape, zero)
          list, turned = Loop (n, , none, none) <
            body = b (int64 i, bool c, seq(double[2]) a, seq(double[2]) d)
              => (bool go, seq(double[2]) z, seq(double[2]) e) {
              row = Gather(x, i) t = Mul(w, row) s = Sin(t) z = SequenceInsert(a, s) e = SequenceInsert(d, t, zero)
              go = Identity(c) }>
          m = SequenceLength (list)
          y = Loop (m, , w) <body = b2 (int64 k, bool g, double[2] h) => (bool go2, double[2] next) {
            each = SequenceAt(list, k) other = SequenceAt(turned, k) p = Mul(each, h) q = Add(p, other)
            next = Sin(q) go2 = Identity(g) }>
          z = ConcatFromSequence <axis = 0, new_axis = 1> (turned)
        }""",
        tuple({"x": numbers(t, t, 2), "w": W} for t in (3, 1, 5)),
    ),
]
LAYERS = [
    Written(
        f"{op} {direction}{extra} of {size}",
        f"""g (float[T, N, 2] x, float[{d}, {gates * size}, 2] w, float[{d}, {gates * size}, {size}] r,
              float[{d}, {gates * 2 * size}] b, int32[N] lengths) => (float[T, {d}, N, {size}] y) {{
          y = {op} <direction = "{direction}", hidden_size = {size}{extra}> (x, w, r, b, lengths)
        }}""",
        tuple(
            {
                "x": single(t, t, n, 2), "w": single(1, d, gates * size, 2),
                "r": (single(2, d, gates * size, size) - 0.7) / (size / 3),
                "b": single(3, d, gates * 2 * size), "lengths": np.array([t, max(t - 2, 0), 1, t][:n], np.int32),
            }
            for t, n in ((3, 2), (1, 1), (6, 4))
        ),
        rounding=3e-5,
    )
    for op, gates, extra in (("RNN", 1, ""), ("GRU", 3, ""), ("GRU", 3, ", linear_before_reset = 1"), ("LSTM", 4, ""))
    for direction, d in (("forward", 1), ("reverse", 1), ("bidirectional", 2))
    for size in (3, 24)  # a matrix of states beyond what is computed before it is read
]  # fmt: skip


def by_id(value: Any) -> str:
    """The id that pytest shows."""
    return str(value.id)


def load(text: str, path: Path) -> gc.Model:
    """A model in the text form of ONNX."""
    onnx.save(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]>\n{text}'), path)
    return gc.load(path)


def onnx_graph(text: str) -> Graph:
    """A graph in the text form of ONNX, as it is read."""
    return read_proto(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]>\n{text}'), "m.onnx").graph


def floats(model: gc.Model, names: Any) -> list[gc.Tensor]:
    """Names among some tensors that hold floating-point numbers."""
    return [model[name] for name in names if is_inexact(model[name].dtype)]


def gradients(model: gc.Model) -> dict[str, gc.Tensor]:
    """Gradients of all float outputs by each float input."""
    xs = floats(model, model.graph.inputs)
    found = gc.gradients(floats(model, model.graph.outputs), xs)
    return {x.name: g for x, g in zip(xs, found, strict=True) if g is not None}


def session(path: Path) -> Any:
    """A file in onnxruntime, after all that can be said of it has been checked."""
    onnx.checker.check_model(path, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run(opened: Any, feeds: Feeds) -> list[Any]:
    """Outputs of a file for those inputs that it has."""
    return list(opened.run(None, {i.name: np.asarray(feeds[i.name]) for i in opened.get_inputs()}))


def assert_right_everywhere(model: gc.Model, names: list[str], path: Path, written: Written) -> None:
    """The one file, in onnxruntime, gives what a check computes anew for each of the feeds."""
    opened = session(path)
    for given in written.feeds:
        wanted = gc.run([model[name] for name in names], {i: given[i] for i in model.graph.inputs})
        for name, ours, theirs in zip(names, wanted, run(opened, given), strict=True):
            assert theirs.shape == ours.shape, name
            atol = written.rounding * max(1.0, float(np.max(np.abs(ours), initial=0)))
            np.testing.assert_allclose(theirs, ours, rtol=0, atol=atol, err_msg=f"{name} at {given}")


@pytest.mark.parametrize("case", OP_CASES, ids=by_id)
def test_a_node_that_is_kept_gives_the_values_and_gradients_of_its_parts(case: Case):
    feeds = case.feeds
    parts, kept = (gradients_of(case.graph, feeds, ops) for ops in (OPS, for_files(OPS)))
    assert parts.keys() == kept.keys()
    for name, value in parts.items():
        np.testing.assert_allclose(kept[name], value, rtol=1e-11, atol=1e-13, err_msg=name)


@pytest.mark.parametrize("case", OP_CASES, ids=by_id)
def test_numbers_of_kept_nodes_that_are_left_for_later_are_those_that_are_computed_at_once(
    case: Case, monkeypatch: Any
):
    monkeypatch.setattr("gradcheck_cli.autodiff.outlined._SMALL", -1)
    (at_once, *_), (later, *_) = (
        differentiated(case.graph, case.feeds, for_files(OPS), on) for on in (Tape, OutlinedTape)
    )
    assert [str(step.node) for step in later.steps] == [str(step.node) for step in at_once.steps]
    for name, value in at_once.values.items():
        assert later.values.like(name).shape == value.shape, name
        np.testing.assert_array_equal(later.values[name], value, err_msg=name)


def gradients_of(graph: Graph, feeds: Feeds, ops: Any) -> dict[str, Any]:
    """Outputs, and gradients of their weighted sums by all float inputs, on a tape with some operators."""
    tape, xs, found = differentiated(graph, feeds, ops)
    zeros = {x: np.zeros_like(feeds[x]) for x in xs}
    given = {x: ct.value for x, ct in zip(xs, found, strict=True) if ct is not None}
    return {
        **{name: tape.named[name].value for name in graph.outputs},
        **{f"d{x}": v for x, v in {**zeros, **given}.items()},
    }


def differentiated(graph: Graph, feeds: Feeds, ops: Any, on: type[Tape] = Tape) -> tuple[Tape, list[str], Any]:
    """A tape with gradients of the outputs' weighted sums, all float inputs, and their gradients."""
    from gradcheck_cli.autodiff.backward import gradients as backward

    tape, rng = trace(graph, feeds, ops=ops, on=on), np.random.default_rng(0)
    xs = [name for name, value in feeds.items() if is_inexact(value.dtype)]
    cts = {
        y.name: tape.hold(f"ct of {y.name}", rng.normal(size=y.shape))
        for y in (tape.named[name] for name in graph.outputs)
        if is_inexact(y.dtype)
    }
    with tape.from_node(-1, {}):
        return tape, xs, backward(tape, cts, xs)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("written", [*MODELS, *LISTS, *LAYERS], ids=by_id)
def test_one_file_is_right_for_every_count_condition_and_size(written: Written, tmp_path: Path):
    model = load(written.text, tmp_path / "m.onnx")
    outputs = [*model.graph.outputs, *(g.name for g in gradients(model).values())]
    gc.save(model, tmp_path / "g.onnx", outputs)
    assert_right_everywhere(model, outputs, tmp_path / "g.onnx", written)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("written", [*MODELS, *LISTS, *LAYERS[::3]], ids=by_id)
def test_the_gradient_of_a_file_with_a_gradient_is_right_as_well(written: Written, tmp_path: Path):
    model = load(written.text, tmp_path / "m.onnx")
    gc.save(model, tmp_path / "g.onnx", list(gradients(model).values()))
    first = gc.load(tmp_path / "g.onnx")
    if second := gradients(first):
        gc.save(first, tmp_path / "h.onnx", list(second.values()))
        assert_right_everywhere(first, [g.name for g in second.values()], tmp_path / "h.onnx", written)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("written", [*MODELS, *LISTS], ids=by_id)
def test_gradients_are_differences_of_the_model_as_onnxruntime_runs_it(written: Written, tmp_path: Path):
    model = load(written.text, tmp_path / "m.onnx")
    found = gradients(model)
    gc.save(model, tmp_path / "g.onnx", list(found.values()))
    before, after, rng, h = session(tmp_path / "m.onnx"), session(tmp_path / "g.onnx"), np.random.default_rng(0), 1e-6

    def total(feeds: Feeds) -> float:
        named = zip(before.get_outputs(), run(before, feeds), strict=True)
        return sum(float(np.sum(y)) for output, y in named if output.type == "tensor(double)")

    for feeds in written.feeds:
        ways = {x: rng.normal(size=np.shape(feeds[x])) for x in found}
        ends = [total({**feeds, **{x: feeds[x] + sign * h * v for x, v in ways.items()}}) for sign in (1, -1)]
        slope = sum(float(np.sum(g * ways[x])) for x, g in zip(found, run(after, feeds), strict=True))
        assert slope == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-6, abs=1e-7), feeds


LAYER = """g (float[T, N, 3] x, float[D, K, 3] w, float[D, K, 5] r, float[D, B] b) => (float[T, D, N, 5] y) {{
  y = {op} <direction = "{direction}", hidden_size = 5{more}> (x, w, r, b)
}}"""


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_gradients_of_layers_are_those_of_pytorch_for_any_number_of_steps(op: str, direction: str, tmp_path: Path):
    torch = pytest.importorskip("torch")
    from tests.ops.torch_pairs.recurrent import GATES, recurrent

    sides, rows = 1 + (direction == "bidirectional"), 5 * len(GATES[op])
    more = ", linear_before_reset = 1" if op == "GRU" else ""
    text = LAYER.format(op=op, direction=direction, more=more).replace("[D, K", f"[{sides}, {rows}")
    model = load(text.replace("[D, B]", f"[{sides}, {2 * rows}]").replace("T, D", f"T, {sides}"), tmp_path / "m.onnx")
    gc.save(model, tmp_path / "g.onnx", list(gradients(model).values()))
    opened = session(tmp_path / "g.onnx")
    weights = [
        numbers(i, *shape) - 0.7 for i, shape in enumerate([(sides, rows, 3), (sides, rows, 5), (sides, 2 * rows)])
    ]
    for steps, batch in ((4, 2), (1, 3), (9, 1)):
        operands = [torch.tensor(v, requires_grad=True) for v in (numbers(steps, steps, batch, 3), *weights)]
        state = torch.zeros(sides, batch, 5, dtype=torch.float64)
        y, *_ = recurrent(op, direction, *operands, (state, state) if op == "LSTM" else state)
        y.sum().backward()
        feeds = {name: np.float32(x.detach().numpy()) for name, x in zip("xwrb", operands, strict=True)}
        for x, found in zip(operands, run(opened, feeds), strict=True):
            assert x.grad is not None
            np.testing.assert_allclose(found, x.grad.numpy(), rtol=0, atol=3e-5 * float(x.grad.abs().max()))


STATES = """g (double[{T}, 3] x, double[3] start) => (double[3] y) {{
  yes = Constant <value = bool {{1}}> ()  {before}
  sizes = Shape (x)  zero = Constant <value = int64 {{0}}> ()  one = Constant <value = int64 {{1}}> ()
  rows = Gather (sizes, zero)  less = Sub (rows, one)
  y = Loop ({count}, yes, h) <body = b (int64 i, bool c, double[3] s) => (bool go, double[3] next) {{
    go = Identity (c)  j = Add (i, {first})  row = Gather (x, j)  a = Add (s, row)  next = Tanh (a) }}>
}}"""
CHAINS = {  # where the states begin, and the sizes of T, at the first of which there is no iteration
    "all rows": ({"before": "h = Identity (start)", "count": "rows", "first": "zero"}, (0, 1, 2, 6)),
    "all rows but the first": ({"before": "zero_ = Constant <value = int64 {0}> () r = Gather (x, zero_) "
                                          "h = Add (r, start)", "count": "less", "first": "one"}, (1, 2, 6)),
}  # fmt: skip


def chain(kind: str, x: Any, start: Any) -> tuple[Any, Any]:
    """Slopes of the sum of the last state of a chain by the rows and the first state, by hand."""
    rows, h = (x, start) if kind == "all rows" else (x[1:], x[0] + start)
    slopes = []
    for row in rows:
        h = np.tanh(h + row)
        slopes.append(1 - h * h)
    by = [np.prod(slopes[i:], axis=0) for i in range(len(slopes))]
    last = np.prod([np.ones_like(h), *slopes], axis=0)
    return np.array(by if kind == "all rows" else [last, *by]).reshape(x.shape), last


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("order", ["gradient", "jvp", "hvp"])
@pytest.mark.parametrize("kind", CHAINS)
def test_files_run_where_a_loop_has_no_iterations(kind: str, order: Any, fixed: bool, tmp_path: Path):
    """Slopes by hand; products with a vector are their derivatives by a complex step."""
    how, sizes = CHAINS[kind]
    model = load(STATES.format(T=sizes[0] if fixed else "T", **how), tmp_path / "m.onnx")
    added = derivatives(model, order, ["x", "start"], ["y"], "ones", {**PLAIN, "zeros": True})
    export(model, tmp_path / "g.onnx", [*added.results.values()], {})
    opened = session(tmp_path / "g.onnx")
    for steps in sizes[:1] if fixed else sizes:
        x, start, v, w = numbers(steps, steps, 3), numbers(8, 3), numbers(9, steps, 3), numbers(10, 3)
        by = chain(kind, x, start)
        turned = [each.imag / 1e-30 for each in chain(kind, x + 1e-30j * v, start + 1e-30j * w)]
        wanted = {"gradient": by, "jvp": [(by[0] * v).sum(0) + by[1] * w], "hvp": turned}[order]
        given = {"x": x, "start": start, "x_tangent": v, "x_vector": v, "start_tangent": w, "start_vector": w}
        for one, other in zip(run(opened, given), wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


# What a file cannot hold


GROWING = """g (double[2] x, int64 n) => (double[K] y) {
  y = Loop (n, , x) <body = b (int64 i, bool c, double[P] h) => (bool go, double[Q] next) {
    s = Sin(h) next = Concat <axis = 0> (h, s) go = Identity(c) }>
}"""
SLICED = """g (double[9] x, int64 n) => (double y) {
  zero = Constant <value = double {0.0}> ()
  y = Loop (n, , zero) <body = b (int64 i, bool c, double h) => (bool go, double next) {
    first = Constant <value = int64[1] {0}> () one = Constant <value = int64[1] {1}> ()
    last = Add(i, one) part = Slice(x, first, last) s = ReduceProd <keepdims = 0> (part)
    next = Add(h, s) go = Identity(c) }>
}"""
SPREAD = """g (double[2] x, int64 n) => (double[2] y) {
  y = Loop (n, , x) <body = b (int64 i, bool c, double[2] h) => (bool go, double[2] next) {
    f = ReduceSum <keepdims = 0> (h) o = Less(f, f)
    next = If (o) <then_branch = t () => (double[2] p) { s = Sin(h) r = RandomNormalLike(s) p = Mul(s, r) },
                   else_branch = e () => (double[2] q) { q = Identity(h) }> go = Identity(c) }>
}"""
UNFIT = """g (double[2] x, double[3] w, bool c) => (double[2] y) {
  no = Constant <value = bool {0}> ()
  d = And(c, no)
  y = If (d) <then_branch = t () => (double[2] p) { a = Slice(w, one, two) p = Mul(x, w) },
              else_branch = e () => (double[2] q) { q = Mul(x, x) }>
}""".replace("a = Slice(w, one, two) ", "")
SEQUENCE = """g (double[2] x, bool c) => (double[2] y) {
  zero = Constant <value = int64 {0}> ()
  s = SequenceConstruct(x, x)
  y = If (c) <then_branch = t () => (double[2] p) { p = SequenceAt(s, zero) },
              else_branch = e () => (double[2] q) { q = Mul(x, x) }>
}"""
REFUSED = [
    (GROWING, "node 0 Loop 'y': 'h' goes from shape .* in an iteration; .* needs states that keep theirs"),
    (SLICED, "the shape of .* follows from values"),
    (SPREAD, "RandomNormalLike r in a branch draws numbers of a shape that only the branch knows, inside of a body"),
    (UNFIT, r"(?s)Mul 'p' .*\[2\] float64, \[3\] float64.*both must run at this point"),
    (SEQUENCE, "the way through a branch or a loop follows from 'c'"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=["growing", "sliced", "spread", "unfit", "sequence"])
def test_what_is_so_at_these_values_only_is_refused(text: str, message: str, tmp_path: Path):
    model = load(text, tmp_path / "m.onnx")
    found = list(gradients(model).values())
    with pytest.raises(UnsupportedError, match=message):
        gc.save(model, tmp_path / "g.onnx", found)
    assert not (tmp_path / "g.onnx").exists()


def test_a_loop_that_goes_round_a_fixed_number_of_times_may_grow_its_states(tmp_path: Path):
    text = GROWING.replace(", int64 n)", ")").replace("y = Loop", "n = Constant <value = int64 {3}> () y = Loop")
    model = load(text, tmp_path / "m.onnx")
    gc.save(model, tmp_path / "g.onnx", list(gradients(model).values()))
    (found,) = run(session(tmp_path / "g.onnx"), {"x": X})
    s1, s2, s3 = np.cos(X), np.cos(np.sin(X)), np.cos(np.sin(np.sin(X)))
    assert_rounded(found, 1 + 3 * s1 + 3 * s1 * s2 + s1 * s2 * s3, roundings=8 * FUNCTION, of=8)


def test_a_branch_that_nothing_in_the_inputs_can_change_is_the_only_one(tmp_path: Path):
    text = UNFIT.replace("d = And(c, no)", "d = Identity(no)")
    model = load(text, tmp_path / "m.onnx")
    gc.save(model, tmp_path / "g.onnx", list(gradients(model).values()))
    assert run(session(tmp_path / "g.onnx"), {"x": X})[0].tolist() == (2 * X).tolist()
    assert "If" not in operators(onnx.load(tmp_path / "g.onnx").graph)


# What stands in the file


def operators(graph: onnx.GraphProto) -> list[str]:
    """The operators of a graph, those inside of nodes among them."""
    inner = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return [*(node.op_type for node in graph.node), *(op for g in inner for op in operators(g))]


def named(graph: onnx.GraphProto) -> list[str]:
    """Names that a graph and the graphs inside of it give."""
    own = [x.name for x in (*graph.input, *graph.initializer)] + [y for node in graph.node for y in node.output if y]
    inner = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return [*own, *(name for g in inner for name in named(g))]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("written", [*MODELS, *LISTS], ids=by_id)
def test_second_derivatives_are_right_as_well_and_no_name_is_given_again_at_any_level(written: Written, tmp_path: Path):
    model = load(written.text, tmp_path / "m.onnx")
    found = gradients(model)
    second = [g for g in gc.gradients(list(found.values()), floats(model, found)) if g is not None]
    outputs = [*model.graph.outputs, *(g.name for g in (*found.values(), *second))]
    gc.save(model, tmp_path / "h.onnx", outputs)
    assert_right_everywhere(model, outputs, tmp_path / "h.onnx", written)
    before, after = (Counter(named(onnx.load(tmp_path / f"{name}.onnx").graph)) for name in "mh")
    assert {name for name, count in after.items() if count > max(1, before[name])} == set()


def test_a_loop_keeps_no_states_that_its_derivative_does_not_read(tmp_path: Path):
    added, multiplied = (
        next(m for m in MODELS if m.id == name) for name in ("Loop of a sum", "Loop of an input's count")
    )
    shapes = []
    for written in (added, multiplied):
        model = load(written.text, tmp_path / "m.onnx")
        gc.save(model, tmp_path / "g.onnx", list(gradients(model).values()))
        loop = next(node for node in onnx.load(tmp_path / "g.onnx").graph.node if node.op_type == "Loop")
        body = loop.attribute[0].g
        shapes.append([len(o.type.tensor_type.shape.dim) for o in body.output[2:]])
    assert shapes == [[0], [1]]  # numbers of iterations; states


APPENDING = """g (double[2] x, int64 n%s) => (double[A, B] y%s) {
  none = SequenceEmpty <dtype = 11> ()
  zero = Constant <value = int64 {0}> ()
  list = Loop (n, , %s) <
    body = b (int64 i, bool c, seq(double[2]) before) => (bool go, seq(double[2]) after) {
      number = Cast <to = 11> (i)
      t = Mul(x, number)
      %s
      go = Identity(c) }>
  y = ConcatFromSequence <axis = 0, new_axis = 1> (list)
}"""
STAYING = {
    "inserted elsewhere": ("", "", "none", "one = Constant<value_int=-1>() after = SequenceInsert(before, t, one)"),
    "read in the body": ("", "", "none", "k = SequenceLength(before) m = Cast <to = 11> (k) v = Mul(t, m)"
                         " after = SequenceInsert(before, v)"),
    "appended to twice": ("", "", "none", "one = SequenceInsert(before, t) after = SequenceInsert(one, x)"),
    "begun before": (", seq(double[2]) given", "", "given", "after = SequenceInsert(before, t)"),
    "a result": ("", ", seq(double[2]) list", "none", "after = SequenceInsert(before, t)"),
}  # fmt: skip


@pytest.mark.parametrize("name", STAYING)
def test_a_list_of_which_more_is_asked_stays_one(name: str, tmp_path: Path):
    graph = load(APPENDING % STAYING[name], tmp_path / "m.onnx").graph
    assert without_lists(graph, ()) == graph
    plain = load(APPENDING % ("", "", "none", "after = SequenceInsert(before, t)"), tmp_path / "p.onnx").graph
    assert without_lists(plain, ["list"]) == plain
    kinds = {node.op for node in without_lists(plain, ()).all_nodes}
    assert not {"SequenceInsert", "ConcatFromSequence"} & kinds


UNEQUAL = """g (double[3, 2] x) => (double[6, 2] y) {
  none = SequenceEmpty <dtype = 11> ()
  n = Constant <value = int64 {3}> ()
  zero = Constant <value = int64[1] {0}> ()
  one = Constant <value = int64[1] {1}> ()
  list = Loop (n, , none) <body = b (int64 i, bool c, seq(double[A, 2]) before) => (bool go, seq(double[A, 2]) after) {
    at = Unsqueeze(i, zero) end = Add(at, one) part = Slice(x, zero, end) t = Sin(part)
    after = SequenceInsert(before, t) go = Identity(c) }>
  y = ConcatFromSequence <axis = 0> (list)
}"""


INDEXED = """g (double[T, 2] x, double[2] w) => (double[2] y) {
  list = SplitToSequence <keepdims = 0> (x)
  zero = Constant <value = int64[1] {0}> ()
  row = SequenceAt(list, zero)
  y = Mul(row, w)
}"""
SHADOWING = """g (double[3, 2] x) => (double[3, 2] y) {
  none = SequenceEmpty <dtype = 11> ()
  n = Constant <value = int64 {3}> ()
  k = Constant <value = int64 {0}> ()
  list = Loop (n, , none) <body = b (int64 k, bool c, seq(double[2]) old) => (bool go, seq(double[2]) new) {
    t = Gather(x, k) s = Sin(t) new = SequenceInsert(old, s, k) go = Identity(c) }>
  y = ConcatFromSequence <axis = 0, new_axis = 1> (list)
}"""
BY_DEFAULT = """g (double[T, 2] x, int64 size) => (double[U, 2] y) <int64 size = {1}> {
  list = SplitToSequence(x, size)
  first = Constant <value = int64 {0}> ()
  part = SequenceAt(list, first)
  y = Sin(part)
}"""
OMITTED = """g (double[T, 2] x, double[2] w) => (double[T, 2] y) {
  none = SequenceEmpty <dtype = 11> ()
  zero = Constant <value = int64 {0}> ()
  shape = Shape (x)
  n = Gather (shape, zero)
  list = Loop (n, , none, w) <
    body = b (int64 i, bool c, seq(double[2]) old, double[2] h)
      => (bool go, seq(double[2]) new, double[2] next, double[2] each) {
      row = Gather(x, i) t = Mul(h, row) next = Sin(t) each = Exp(t) new = SequenceInsert(old, next) go = Identity(c) }>
  y = ConcatFromSequence <axis = 0, new_axis = 1> (list)
}"""


@pytest.mark.parametrize("text", [INDEXED, OMITTED], ids=["an index with an axis", "results that nobody reads"])
def test_a_list_is_read_as_it_was(text: str, tmp_path: Path):
    model = load(text, tmp_path / "m.onnx")
    names = ["y", *(g.name for g in gradients(model).values())]
    gc.save(model, tmp_path / "g.onnx", names)
    made = gc.load(tmp_path / "g.onnx")
    for rows in (3, 1, 5):
        feeds = {"x": numbers(rows, rows, 2), "w": W}
        wanted, found = (gc.run([each[n] for n in names], feeds) for each in (model, made))
        for ours, theirs in zip(wanted, found, strict=True):
            np.testing.assert_allclose(theirs, ours, rtol=1e-12)


def test_a_place_in_a_list_is_that_of_its_own_body_and_a_default_is_no_constant(tmp_path: Path):
    shadowing = load(SHADOWING, tmp_path / "m.onnx")
    assert without_lists(shadowing.graph, ()) == shadowing.graph
    gc.save(shadowing, tmp_path / "g.onnx", [*gradients(shadowing).values()])
    x = numbers(3, 3, 2)
    np.testing.assert_allclose(run(session(tmp_path / "g.onnx"), {"x": x})[0], np.cos(x), rtol=1e-12)
    by_default = load(BY_DEFAULT, tmp_path / "d.onnx")
    assert without_lists(by_default.graph, ()) == by_default.graph


def test_many_lists_are_rewritten_in_one_pass(monkeypatch: Any):
    """The nodes of a graph are validated a number of times that its lists do not change."""

    def validated(count: int) -> int:
        lists = "".join(f"l{i} = SplitToSequence <keepdims = 0> (x) a{i} = SequenceAt(l{i}, k)" for i in range(count))
        ends = ", ".join(f"a{i}" for i in range(count))
        graph = onnx_graph(f"g (double[T, 2] x, int64 k) => (double[2] y) {{ {lists} y = Sum({ends}) }}")
        made = list[int]()
        check = Graph.__post_init__
        monkeypatch.setattr(Graph, "__post_init__", lambda self: (made.append(1), check(self))[1])
        assert "SequenceAt" not in {node.op for node in without_lists(graph, ()).nodes}
        monkeypatch.undo()
        return len(made)

    assert validated(20) == validated(3)


def test_tensors_of_a_list_may_differ_in_their_sizes(tmp_path: Path):
    model = load(UNEQUAL, tmp_path / "m.onnx")
    [gradient] = gc.gradients(model["y"], [model["x"]])
    gc.save(model, tmp_path / "g.onnx", [gradient])
    x = numbers(3, 3, 2)
    [found] = run(session(tmp_path / "g.onnx"), {"x": x})
    np.testing.assert_allclose(found, np.cos(x) * np.array([[3], [2], [1]]), rtol=1e-12)


OWN = """gradcheck: 1
ops:
  acme.Twice: {inputs: [x], outputs: [y], forward: "two = Constant <value_float = 2.0> () y = Mul (x, two)"}
  acme.Wave:
    inputs: [v, w]
    outputs: [u, bent]
    attrs: {k: 1.0}
    forward: |
      m = Mul (v, w)
      t = acme.Twice (m)
      u = Sin (t)
      zero = Constant <value_float = 0.0> ()
      total = ReduceSum <keepdims = 0> (m)
      c = Less (total, zero)
      bent = If (c) <then_branch = yes () => (m1) { m1 = Identity (m) }, else_branch = no () => (t1) { t1 = Exp (t) }>
    gradient: |
      two = Constant <value_float = 2.0> ()
      m = Mul (v, w)
      t = Mul (m, two)
      c = Cos (t)
      e = Mul (bent, dbent)
      g = Mul (c, du)
      s = Add (e, g)
      p = Mul (s, two)
      dv = Mul (p, w)
      dw = Mul (p, v)
graphs:
  loop:
    inputs: {x: {shape: [3], range: [0.2, 0.5]}}
    constants: {go: true, three: 3}
    nodes: |
      y = Loop <body = step (i, c, h) => (d, n) {
        a, b = acme.Wave (h, x) n = Mul (a, b) d = Identity (c) }> (three, go, x)
    outputs: [y]
  scan:
    inputs: {x: {shape: [3], range: [0.2, 0.5]}}
    nodes: |
      y, all = Scan <num_scan_inputs = 1, body = step (h, i) => (n, o) {
        a, b = acme.Wave (h, x) p, q = acme.Wave (x, a) n = Mul (b, p) o = Mul (q, i) }> (x, x)
    outputs: [y, all]
  branch:
    inputs: {x: {shape: [3], range: [0.2, 0.5]}}
    nodes: |
      s = ReduceSum <keepdims = 0> (x)
      least = Constant <value_float = 0.05> ()
      go = Less (least, s)
      y = If <then_branch = t () => (n) { a, b = acme.Wave (x, x) n = Mul (a, b) },
              else_branch = e () => (o) { o = acme.Twice (x) }> (go)
    outputs: [y]
"""


def wave(v: Any, w: Any) -> tuple[Any, Any]:
    """Both results of the operator above."""
    return np.sin(2 * v * w), np.exp(2 * v * w)


def sum_of_outputs(name: str, x: Any) -> Any:
    """The sum of all outputs of a graph above."""
    h, total = x, 0
    if name == "scan":
        for i in x:
            a, b = wave(h, x)
            p, q = wave(x, a)
            h, total = b * p, total + np.sum(q * i)
        return total + np.sum(h)
    for _ in range(3 if name == "loop" else 1):
        h = np.prod(wave(h, x), axis=0)
    return np.sum(h)


@pytest.mark.parametrize("name", ["loop", "scan", "branch"])
def test_operators_of_a_spec_are_written_out_in_bodies_too(name: str, tmp_path: Path):
    (tmp_path / "own.gradcheck.yaml").write_text(OWN)
    model = gc.load(tmp_path / "own.gradcheck.yaml", graph=name)
    assert gc.check(model).exit_code == 0
    outputs = [*model.graph.outputs, gradients(model)["x"].name]
    gc.save(model, tmp_path / "g.onnx", outputs)
    x = numbers(3, 3) / 3
    found = session(tmp_path / "g.onnx").run(outputs, {"x": np.float32(x)})
    right = [sum_of_outputs(name, x + 1e-30j * unit).imag * 1e30 for unit in np.eye(3)]
    np.testing.assert_allclose(sum(map(np.sum, found[:-1])), sum_of_outputs(name, x), rtol=1e-5)
    np.testing.assert_allclose(found[-1], right, rtol=1e-5)
    assert max(Counter(named(onnx.load(tmp_path / "g.onnx").graph)).values()) == 1
