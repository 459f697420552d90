"""Derivatives that training graphs have as operators give what this package's own rules give at the same inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from gradcheck_cli.autodiff.backward import gradients
from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.errors import ModelError, UnsupportedError
from gradcheck_cli.graph import Graph, Node
from gradcheck_cli.ops import OPS
from tests.ops.case import Case, arr, case, ints
from tests.ops.cases.training import CASES
from tests.rounding import FUNCTION, assert_rounded

MS = "com.microsoft"


@dataclass(frozen=True)
class Pair:
    """A derivative and its forward operator.

    `takes` names the derivative's inputs: those of the forward operator x0 ..., its outputs y0 ..., their cotangents
    ct0 ..., the shape of x0, "-" for none.  `gives` names the inputs that its outputs are derivatives by.
    """

    forward: Case
    op: str
    takes: str
    gives: str = "x0"
    attrs: dict[str, Any] = field(default_factory=dict)
    domain: str = MS

    @property
    def id(self) -> str:
        """The id that pytest shows."""
        return f"{self.op} {self.forward.id}"

    def tape(self) -> Tape:
        """Both, at the forward operator's inputs and random cotangents."""
        first = self.forward.tape()
        names = self.takes.split()
        cts = {n: arr(*first.named[f"y{n[2:]}"].shape, seed=9) for n in names if n.startswith("ct")}
        shape = {"shape": np.asarray(self.forward.inputs[0].shape, np.int64)} if "shape" in names else {}
        made = tuple(f"d{i}" for i in range(len(self.gives.split())))
        node = Node(self.op, tuple("" if n == "-" else n for n in names), made, self.attrs, self.domain)
        inner = self.forward.graph
        whole = Graph((*inner.inputs, *cts), (*inner.outputs, *made), (*inner.nodes, node), shape)
        return trace(whole, {**self.forward.feeds, **cts}, ops=OPS)


def ms(op: str, *inputs: Any, **more: Any) -> Case:
    return case(op, *inputs, domain=MS, **more)


X, IMAGE = arr(2, 3, 4), arr(2, 4, 5, 6)
SCORES, LABELS, WEIGHTS = arr(2, 4, 3), np.array([[0, 3, 1], [3, 2, 0]]), arr(4, low=0.5, high=1.5)
ROWS, ROW_LABELS = arr(3, 4), np.array([0, 3, 1])
TRAINING = (np.array(0.25), np.array(True))

ELEMENTWISE = [
    *(Pair(case(op, X), f"{op}Grad", takes) for op, takes in [
        ("Relu", "ct0 x0"), ("Relu", "ct0 y0"), ("Sigmoid", "ct0 y0"), ("Tanh", "ct0 y0"), ("LeakyRelu", "ct0 y0"),
        ("Gelu", "ct0 x0"),
    ]),
    Pair(case("LeakyRelu", X, alpha=0.3), "LeakyReluGrad", "ct0 y0", attrs={"alpha": 0.3}),
    Pair(case("Gelu", X, approximate="tanh"), "FastGeluGrad", "ct0 x0"),
    Pair(ms("BiasGelu", X, arr(4)), "BiasGeluGrad_dX", "ct0 x0 x1"),
    Pair(ms("FastGelu", X, arr(4)), "BiasFastGeluGrad_dX", "ct0 x0 x1"),
    Pair(ms("QuickGelu", X), "QuickGeluGrad", "ct0 x0"),
    Pair(ms("QuickGelu", X, alpha=0.7), "QuickGeluGrad", "ct0 x0", attrs={"alpha": 0.7}),
    Pair(case("Sin", X), "SinGrad", "ct0 x0", domain=""),
    Pair(case("Div", X, arr(3, 1, low=0.5, high=2.0)), "DivGrad", "ct0 x0 x1", "x0 x1"),
    Pair(case("Div", arr(4), arr(2, 3, 4, low=0.5, high=2.0)), "DivGrad", "ct0 x0 x1", "x0 x1"),
    *(Pair(case(op, X, axis=axis), f"{op}Grad_13", "ct0 y0", attrs={"axis": axis})
      for op in ("Softmax", "LogSoftmax") for axis in (-1, 1)),
    *(Pair(ms("BiasSoftmax", X, np.zeros((1, 3, 4)), axis=axis, is_inner_broadcast=0), "SoftmaxGrad", "ct0 y0",
           attrs={"axis": axis}) for axis in (1, 2)),
]  # fmt: skip

LOSSES = [
    *(Pair(case("SoftmaxCrossEntropyLoss", SCORES, LABELS, *weights, n_outputs=2, **attrs),
           "SoftmaxCrossEntropyLossGrad", f"ct0 y1 x1 {'x2' if weights else ''}", attrs=attrs)
      for weights in ((), (WEIGHTS,))
      for attrs in ({"reduction": "mean"}, {"reduction": "sum"}, {"reduction": "none"}, {"ignore_index": 3})),
    *(Pair(ms("SoftmaxCrossEntropyLossInternal", SCORES, LABELS, WEIGHTS, np.array(3), n_outputs=2, reduction=r),
           "SoftmaxCrossEntropyLossInternalGrad", "ct0 y1 x1 x2 x3", attrs={"reduction": r})
      for r in ("mean", "sum", "none")),
    *(Pair(ms("SoftmaxCrossEntropy", ROWS, np.eye(4)[ROW_LABELS], n_outputs=2, reduction=r),
           "SoftmaxCrossEntropyGrad", "ct0 y1 x1", attrs={"reduction": r}) for r in ("mean", "sum", "none")),
    *(Pair(case("SparseSoftmaxCrossEntropy", ROWS, ROW_LABELS, *weights, n_outputs=2, reduction=r),
           "SparseSoftmaxCrossEntropyGrad", f"ct0 y1 x1 {'x2' if weights else ''}", attrs={"reduction": r}, domain="")
      for weights in ((), (arr(3, low=0.5, high=1.5),)) for r in ("mean", "sum", "none")),
]  # fmt: skip

NORMALIZATION = [
    Pair(case("LayerNormalization", X, arr(4), arr(4), n_outputs=3), "LayerNormalizationGrad", "ct0 x0 x1 y1 y2",
         "x0 x1 x2"),
    Pair(case("LayerNormalization", X, arr(3, 4), arr(3, 4), n_outputs=3, axis=1, epsilon=0.1),
         "LayerNormalizationGrad", "ct0 x0 x1 y1 y2", "x0 x1 x2", {"axis": 1, "epsilon": 0.1}),
    Pair(case("LayerNormalization", X, arr(4), arr(4), n_outputs=3), "InvertibleLayerNormalizationGrad",
         "ct0 y0 x1 x2 y2", "x0 x1 x2"),
    Pair(case("SimplifiedLayerNormalization", X, arr(4), n_outputs=2), "SimplifiedLayerNormalizationGrad",
         "ct0 x0 x1 y1", "x0 x1"),
    Pair(ms("BatchNormInternal", IMAGE, WEIGHTS, arr(4), arr(4), WEIGHTS, n_outputs=5, epsilon=0.1),
         "BatchNormalizationGrad", "ct0 x0 x1 y3 y4", "x0 x1 x2", {"epsilon": 0.1}),
]  # fmt: skip


def conv(x: Any, w: Any, op: str = "Conv", **attrs: Any) -> Pair:
    """A convolution and its derivative, which has the same attributes."""
    return Pair(case(op, x, w, arr(w.shape[0 if op == "Conv" else 1] * (1 if op == "Conv" else attrs.get("group", 1))),
                     **attrs), f"{op}Grad", "ct0 x0 x1", "x0 x1 x2", attrs)  # fmt: skip


def pool(op: str, x: Any, **attrs: Any) -> Pair:
    """A pool and its derivative, which has the same attributes and the shape of x."""
    takes, count = ("ct0 y1", 2) if op == "MaxPool" else ("ct0", 1)
    return Pair(case(op, x, n_outputs=count, **attrs), f"{op}Grad", takes, attrs={**attrs, "shape": x.shape}, domain="")


WINDOWS = [
    conv(IMAGE, arr(6, 2, 3, 2), group=2),
    conv(IMAGE, arr(3, 4, 3, 2), pads=[1, 0, 1, 1], strides=[2, 2]),
    conv(IMAGE, arr(3, 4, 2, 2), dilations=[2, 2]),
    conv(IMAGE, arr(3, 4, 3, 2), "Conv", auto_pad="VALID"),
    conv(IMAGE, arr(4, 2, 3, 2), "ConvTranspose", group=2, strides=[2, 1], pads=[0, 1, 1, 0], output_padding=[1, 0]),
    conv(IMAGE, arr(4, 3, 3, 2), "ConvTranspose", auto_pad="SAME_LOWER", strides=[2, 2]),
    pool("MaxPool", IMAGE, kernel_shape=[2, 2], strides=[2, 2]),
    pool("MaxPool", IMAGE, kernel_shape=[3, 2], pads=[1, 0, 1, 1], dilations=[1, 2], ceil_mode=1, strides=[2, 1]),
    pool("MaxPool", arr(2, 3, 7), kernel_shape=[3]),
    pool("AveragePool", IMAGE, kernel_shape=[2, 2], strides=[2, 2]),
    pool("AveragePool", IMAGE, kernel_shape=[3, 2], pads=[1, 0, 1, 1], strides=[2, 1], ceil_mode=1),
    pool("AveragePool", IMAGE, kernel_shape=[3, 2], pads=[1, 0, 1, 1], count_include_pad=1),
    *(Pair(case("Resize", IMAGE, None, np.array([1.0, 1.0, 1.6, 0.7]), mode=mode), "ResizeGrad", "ct0 x0 - x2",
           attrs={"mode": mode}) for mode in ("nearest", "linear", "cubic")),
    Pair(case("Resize", IMAGE, None, None, np.array([7, 3]), axes=(2, 3), mode="linear"), "ResizeGrad", "ct0 x0",
         attrs={"axes": (2, 3), "mode": "linear"}),
]  # fmt: skip

INDEX = [
    *(Pair(case("Gather", X, indices, axis=axis), "GatherGrad", "shape x1 ct0", attrs={"axis": axis})
      for indices, axis in [(ints(2, 2, high=1), 0), (ints(3, low=-3, high=2), 1), (np.array(2), -1)]),
    Pair(case("GatherElements", X, ints(2, 3, 2, low=-4, high=3), axis=2), "GatherElementsGrad", "ct0 shape x1",
         attrs={"axis": 2}),
    Pair(case("GatherND", X, ints(3, 2, high=1)), "GatherNDGrad", "shape x1 ct0"),
    Pair(case("GatherND", X, ints(2, 3, 1, high=2), batch_dims=1), "GatherNDGrad", "shape x1 ct0",
         attrs={"batch_dims": 1}),
    *(Pair(case("Slice", X, *(np.array(v) for v in values)), "SliceGrad", "ct0 shape x1 x2 x3 x4")
      for values in [([0, 1], [9, -1], [1, 2], [2, 1]), ([-1], [-9], [2], [-2]), ([0], [9], [0], [1])]),
    Pair(ms("FlattenAndUnpad", X, np.array([4, 0, 3]), n_outputs=2), "PadAndUnflatten", "ct0 x1 y1"),
    Pair(ms("PadAndUnflatten", arr(3, 2), np.array([4, 0, 3]), np.array([2, 3])), "FlattenAndUnpad", "ct0 x1"),
    Pair(case("Split", X, np.array([1, 3]), n_outputs=2, axis=2), "ConcatTraining", "ct0 ct1", attrs={"axis": 2}),
    Pair(ms("ConcatTraining", X, arr(2, 1, 4), n_outputs=2, axis=1), "SplitTraining", "ct0 y1", "x0 x1", {"axis": 1}),
]  # fmt: skip

DROPOUT = [
    Pair(case("Dropout", X, *TRAINING, n_outputs=2, seed=3), "DropoutGrad", "ct0 y1 x1 x2"),
    Pair(case("Dropout", X, np.array(0.25), np.array(False), n_outputs=2), "DropoutGrad", "ct0 y1 x1 x2"),
    Pair(case("Dropout", X, n_outputs=2), "DropoutGrad", "ct0 y1"),
    Pair(ms("BitmaskDropout", IMAGE, *TRAINING, n_outputs=2, seed=3), "BitmaskDropoutGrad", "ct0 y1 x1 x2"),
    Pair(ms("BiasSoftmaxDropout", arr(2, 3, 4, 5), arr(2, 1, 1, 5), TRAINING[0], n_outputs=3, axis=3, seed=3),
         "SoftmaxDropoutGrad", "ct0 y1 y2 x2", attrs={"axis": 3}),
]  # fmt: skip

STATES = [arr(1, 2, 3), arr(1, 2, 3, seed=1)]
LSTM = [arr(4, 2, 5), arr(1, 12, 5), arr(1, 12, 3), arr(1, 24), None]
GRU = [arr(4, 2, 5), arr(1, 9, 5), arr(1, 9, 3), arr(1, 18), None]
RECURRENT = [
    Pair(ms("LSTMTraining", *LSTM, *STATES, n_outputs=5), "LSTMGrad", "x0 x1 x2 - x5 x6 y0 y3 y4 ct0 ct1 ct2",
         "x0 x1 x2 x3 x5 x6"),
    Pair(ms("LSTMTraining", *LSTM, n_outputs=5), "LSTMGrad", "x0 x1 x2 - - - y0 y3 y4 ct0", "x0 x1 x2 x3"),
    *(Pair(ms("GRUTraining", *GRU, STATES[0], n_outputs=3, linear_before_reset=linear), "GRUGrad",
           "x0 x1 x2 x3 - x5 y0 y2 ct0 ct1", "x0 x1 x2 x3 x5", {"linear_before_reset": linear}) for linear in (0, 1)),
    Pair(ms("GRUTraining", *GRU, n_outputs=3), "GRUGrad", "x0 x1 x2 x3 - - y0 y2 - ct1", "x0 x1 x2 x3"),
]  # fmt: skip

PAIRS = [*ELEMENTWISE, *LOSSES, *NORMALIZATION, *WINDOWS, *INDEX, *DROPOUT, *RECURRENT]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: p.id)
def test_the_derivative_of_a_training_graph_is_that_of_the_rules(pair: Pair) -> None:
    check(pair)


def check(pair: Pair) -> None:
    """Every output of the derivative equals the cotangent that the rules of the forward operator give."""
    tape, xs = pair.tape(), pair.gives.split()
    cts = {tape.named[f"y{n[2:]}"].name: tape.named[n] for n in pair.takes.split() if n.startswith("ct")}
    found = gradients(tape, cts, xs)
    for i, (x, ct) in enumerate(zip(xs, found, strict=True)):
        expected = np.zeros(tape.values[x].shape) if ct is None else ct.value
        np.testing.assert_allclose(tape.named[f"d{i}"].value, expected, rtol=1e-11, atol=1e-13, err_msg=f"by {x}")


@pytest.mark.parametrize("one", CASES, ids=lambda c: c.id)
def test_what_an_operator_gives_is_a_tensor_of_its_own(one: Case) -> None:
    tape = one.tape()  # else a derivative by it would be one by its operand
    given, made = ([tape.named[n].name for n in names if n in tape.named] for names in (one.names, one.outputs))
    assert len({*made, *given}) == len([*made, *given])


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_conv_grad_heeds_automatic_padding_which_a_runtime_ignores(auto_pad: str) -> None:
    check(conv(IMAGE, arr(3, 4, 2, 2), auto_pad=auto_pad))
    check(conv(IMAGE, arr(3, 4, 3, 2), auto_pad=auto_pad, strides=[2, 2]))


def test_average_pool_grad_heeds_dilations_which_a_runtime_ignores() -> None:
    check(pool("AveragePool", IMAGE, kernel_shape=[2, 2], dilations=[2, 3]))


def test_average_pool_grad_adds_up_in_three_dimensions_where_a_runtime_keeps_the_last() -> None:
    check(pool("AveragePool", arr(1, 2, 3, 3, 3), kernel_shape=[2, 1, 2]))


def test_max_pool_grad_reads_indices_that_count_columns_first() -> None:
    check(pool("MaxPool", IMAGE, kernel_shape=[2, 3], storage_order=1))
    check(pool("MaxPool", arr(2, 2, 3, 4, 3), kernel_shape=[2, 2, 2], storage_order=1))


@pytest.mark.parametrize("linear", [0, 1])
def test_gru_training_computes_what_gru_computes(linear: int) -> None:
    compare_forward("GRU", [*GRU, STATES[0]], {"linear_before_reset": linear}, 2)


def test_lstm_training_computes_what_lstm_computes() -> None:
    compare_forward("LSTM", [*LSTM, *STATES, arr(1, 9)], {}, 3)


def compare_forward(op: str, inputs: list[Any], attrs: dict[str, Any], count: int) -> None:
    """The first outputs of an operator of training graphs are those of ONNX's own."""
    tapes = [
        case(op, *inputs, n_outputs=count, **attrs).tape(),
        ms(f"{op}Training", *inputs, n_outputs=count, **attrs).tape(),
    ]
    for y in range(count):
        found, exact = (tape.named[f"y{y}"].value for tape in tapes)
        assert_rounded(found, exact, roundings=16 * FUNCTION)


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (case("MaxPoolGrad", arr(1, 1, 2), ints(1, 1, 2), kernel_shape=[2]), "needs the shape of its output"),
        (case("AveragePoolGrad", arr(1, 1, 2), kernel_shape=[2], shape=(1, 1, -1)), "needs the shape of its output"),
        (case("AveragePoolGrad", arr(1, 1, 2), kernel_shape=[2], shape=(1, 1, 9)), "gives [1, 1, 8], not [1, 1, 2]"),
        (ms("ConvGrad", arr(1, 1, 9), arr(1, 1, 5), arr(1, 1, 2)), "gives [1, 1, 4], not [1, 1, 9]"),
        (ms("GatherGrad", np.array([3, 4]), np.array([0]), arr(2, 4)), "needs [1, 4]"),
        (ms("GatherGrad", np.array([3, 4]), np.array([7]), arr(1, 4)), "out of bounds"),
        (ms("SliceGrad", arr(3), np.array([5]), np.array([0]), np.array([2])), "needs [2]"),
        (ms("SoftmaxCrossEntropyLossGrad", arr(), SCORES, LABELS + 1), "labels are from 0 to 3$"),
        (ms("DropoutGrad", X, X > 0, np.array(1.0)), "ratio is 1.0"),
        (ms("BitmaskDropoutGrad", X, np.zeros(3, np.uint32)), "do not mask 24 entries"),
        (ms("LSTMTraining", *LSTM, direction="reverse"), "known are direction forward"),
        (ms("GRUTraining", *GRU, clip=1.0), "without clip"),
        (ms("LSTMGrad", *LSTM[:3], None, None, None, arr(4, 1, 2, 3), arr(4, 1, 2, 3), arr(4, 1, 2, 12),
            activations=("Relu", "Tanh", "Tanh")), "activations are Relu"),
        (ms("View", arr(5), np.array([2, 2])), "do not make 5 entries"),
        (ms("ResizeGrad", arr(1, 1, 4), arr(1, 1, 3), keep_aspect_ratio_policy="not_larger"), "needs scales"),
    ],
    ids=lambda value: value.id if isinstance(value, Case) else "",
)  # fmt: skip
def test_what_does_not_fit_is_an_error_that_says_so(one: Case, message: str) -> None:
    with pytest.raises(ModelError, match=message.replace("[", r"\[").replace("]", r"\]")):
        one.tape()


@pytest.mark.parametrize(
    ("op", "reason"),
    [("YieldOp", "PyTorch runs it"), ("NcclAllReduce", "other processes"), ("GistPack8Encoder", "fewer bits"),
     ("SummaryScalar", "TensorBoard"), ("LambOptimizer", "GPUs")],
)  # fmt: skip
def test_an_operator_that_is_left_out_says_why(op: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=f"unknown operator 'com.microsoft.{op}' .*: .*{reason}"):
        ms(op, X).tape()


@pytest.mark.parametrize(
    ("op", "inputs", "message"),
    [
        ("AdamWOptimizer", "x s s s s s", "a tensor is needed, not a sequence of 1"),
        ("AdamWOptimizer", "s x s s s s", "a tensor is needed, not a sequence of 1"),
        ("AdamWOptimizer", "x x s s s t", "sequences of 1, 1, 1, 2 tensors do not go together"),
        ("SGDOptimizerV2", "x s x", "a sequence is needed, not a tensor"),
        ("SGDOptimizerV2", "x s s s", "a tensor is needed, not a sequence of 1"),
        ("SGDOptimizerV2", "x x x", "a sequence is needed, not a tensor"),
        ("SGDOptimizerV2", "x e e", "do not go together"),
        ("InplaceClipGradNorm", "e", "no gradients to clip"),
        ("SGDOptimizer", "s x x", "takes tensors"),
    ],
)
def test_a_step_takes_sequences_of_tensors_where_it_says_so(op: str, inputs: str, message: str) -> None:
    nodes = (Node("SequenceConstruct", ("x",), ("s",)), Node("SequenceConstruct", ("x", "x"), ("t",)),
             Node("SequenceEmpty", (), ("e",)), Node(op, tuple(inputs.split()), ("y", "z"), {}, MS))  # fmt: skip
    with pytest.raises(ModelError, match=message):
        trace(Graph(("x",), ("y",), nodes), {"x": np.ones(1)}, ops=OPS)


def test_behind_pytorch_a_training_graph_runs_on_what_is_fed() -> None:
    nodes = [Node("Exp", ("x",), ("y",)), Node("YieldOp", ("y",), ("y_grad",), {}, MS),
             Node("Mul", ("y_grad", "y"), ("x_grad",))]  # fmt: skip
    graph = Graph(("x",), ("x_grad",), tuple(nodes))
    tape = trace(graph, {"x": X, "y_grad": np.ones_like(X)}, ops=OPS)
    np.testing.assert_allclose(tape.named["x_grad"].value, np.exp(X))
