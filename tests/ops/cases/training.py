"""Operators of onnxruntime's training graphs: derivatives of others, losses, accumulation, steps along gradients."""

from typing import Any

import numpy as np

from tests.ops.case import Case, Chain, arr, case, chain, ints, node

MS = "com.microsoft"
X, DY, BIAS = arr(2, 3, 4), arr(2, 3, 4, seed=1), arr(4)
POSITIVE = arr(2, 3, 4, low=0.1, high=0.9)
MASK = arr(2, 3, 4, seed=2) > -0.5
IMAGE, FILTER = arr(2, 4, 5, 6), arr(6, 2, 3, 2)
SCORES, LABELS, CLASS_WEIGHTS = arr(3, 4), ints(3, high=3), arr(4, low=0.5, high=1.5)
PIXELS, PIXEL_LABELS = arr(2, 4, 3), ints(2, 3, high=3)
IGNORED = np.array([[0, 3, 1], [3, 2, 0]])
ONE_HOT = np.eye(4)[LABELS]
SAMPLE_WEIGHTS = arr(3, low=0.5, high=1.5)
REDUCTIONS = {"mean": (), "sum": (), "none": (3,)}


def ms(op: str, *inputs: Any, **more: Any) -> Case:
    return case(op, *inputs, domain=MS, **more)


def dims(*shape: int) -> np.ndarray:
    return np.array(shape, np.int64)


def log_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    return x - np.log(np.sum(np.exp(x), axis=axis, keepdims=True))


def of_sequences(op: str, inputs: str, outputs: tuple[int, ...], *values: Any, label: str = "", **attrs: Any) -> Chain:
    """An operator of sequences of two tensors each, "s"; other inputs are tensors, "t"; it gives `outputs` of both.

    A sequence of outputs counts 2, a tensor 1.
    """
    before, names, after, given, at, y = [], [], [], [], 0, 0
    for i, kind in enumerate(inputs.split()):
        pair = kind == "s"
        names.append(f"s{i}" if pair else f"x{at}")
        before += [node("SequenceConstruct", f"x{at} x{at + 1}", f"s{i}")] * pair
        at += 1 + pair
    for i, count in enumerate(outputs):
        given.append(f"made{i}" if count == 2 else f"y{y}")
        after += [node("SequenceAt", f"made{i} at{k}", f"y{y + k}") for k in range(count) if count == 2]
        y += count
    middle = node(op, " ".join(names), " ".join(given), MS, **attrs)
    return chain(op, [*before, middle, *after], *values, n_outputs=y, domain=MS, label=label, at0=0, at1=1)


PAIR = (arr(2, 3), arr(4))
GRADIENTS = (arr(2, 3, seed=1), arr(4, seed=1))
MEANS = (arr(2, 3, seed=2), arr(4, seed=2))
SQUARES = (arr(2, 3, low=0.5, high=2.0), arr(4, low=0.5, high=2.0))

ELEMENTWISE = [
    case("SinGrad", DY, X),
    ms("ReluGrad", DY, X),
    ms("LeakyReluGrad", DY, X),
    ms("LeakyReluGrad", DY, X, alpha=0.3),
    ms("SigmoidGrad", DY, POSITIVE),
    ms("TanhGrad", DY, POSITIVE),
    ms("GeluGrad", DY, X),
    ms("FastGeluGrad", DY, X),
    ms("BiasGeluGrad_dX", DY, X, BIAS),
    ms("BiasFastGeluGrad_dX", DY, X, BIAS),
    ms("QuickGeluGrad", DY, X),
    ms("QuickGeluGrad", DY, X, alpha=0.7),
    ms("DivGrad", DY, X, arr(3, 1, low=0.5, high=2.0), n_outputs=2),
    ms("DivGrad", arr(2, 3), arr(1, 3), arr(2, 3, low=0.5, high=2.0), n_outputs=2),
]

SOFTMAX = [
    *(ms(f"{op}_13", DY, y, **axis) for op, y in (("SoftmaxGrad", POSITIVE), ("LogSoftmaxGrad", -POSITIVE))
      for axis in ({}, {"axis": 1})),
    *(ms(op, DY, y, **axis) for op, y in (("SoftmaxGrad", POSITIVE), ("LogSoftmaxGrad", -POSITIVE))
      for axis in ({}, {"axis": 2}, {"axis": -2})),
]  # fmt: skip

LOSSES = [
    *(ms("SoftmaxCrossEntropy", SCORES, ONE_HOT, n_outputs=2, reduction=r) for r in REDUCTIONS),
    *(ms("SoftmaxCrossEntropyGrad", arr(*shape), log_softmax(SCORES, -1), ONE_HOT, reduction=r)
      for r, shape in REDUCTIONS.items()),
    *(case("SparseSoftmaxCrossEntropy", SCORES, LABELS, *weights, n_outputs=2, reduction=r)
      for r in REDUCTIONS for weights in ((), (SAMPLE_WEIGHTS,))),
    *(case("SparseSoftmaxCrossEntropyGrad", arr(*shape), log_softmax(SCORES, -1), LABELS, *weights, reduction=r)
      for r, shape in REDUCTIONS.items() for weights in ((), (SAMPLE_WEIGHTS,))),
    case("SparseSoftmaxCrossEntropyGrad", arr(), log_softmax(arr(2, 3, 4), -1), PIXEL_LABELS.astype(np.int32)),
    *(ms("SoftmaxCrossEntropyLossGrad", arr(*shape), log_softmax(SCORES, 1), LABELS, *weights, reduction=r)
      for r, shape in REDUCTIONS.items() for weights in ((), (CLASS_WEIGHTS,))),
    ms("SoftmaxCrossEntropyLossGrad", arr(), log_softmax(PIXELS, 1), IGNORED, CLASS_WEIGHTS, ignore_index=3),
    ms("SoftmaxCrossEntropyLossGrad", arr(2, 3), log_softmax(PIXELS, 1), IGNORED, ignore_index=3, reduction="none"),
    ms("SoftmaxCrossEntropyLossGrad", arr(), log_softmax(PIXELS, 1), IGNORED.astype(np.int32), ignore_index=3),
    ms("SoftmaxCrossEntropyLossInternal", SCORES, LABELS, n_outputs=2),
    ms("SoftmaxCrossEntropyLossInternal", PIXELS, IGNORED, CLASS_WEIGHTS, np.array(3), n_outputs=2),
    ms("SoftmaxCrossEntropyLossInternal", PIXELS, IGNORED, None, np.array(3), n_outputs=2, reduction="sum"),
    ms("SoftmaxCrossEntropyLossInternal", SCORES, LABELS, n_outputs=2, reduction="none", output_type=1),
    ms("SoftmaxCrossEntropyLossInternalGrad", arr(), log_softmax(SCORES, 1), LABELS),
    ms("SoftmaxCrossEntropyLossInternalGrad", arr(), log_softmax(PIXELS, 1), IGNORED, CLASS_WEIGHTS, np.array(3)),
    ms("SoftmaxCrossEntropyLossInternalGrad", arr(), log_softmax(PIXELS, 1), IGNORED, None, np.array(3), PIXELS,
       reduction="sum", output_type=1),
    *(ms(f"NegativeLogLikelihoodLossInternal{number}", log_softmax(PIXELS, 1), IGNORED, *more, reduction=r)
      for number, more, r in [("", (), "mean"), ("2", (CLASS_WEIGHTS, np.array(3)), "mean"),
                              ("2", (None, np.array(3)), "sum"), ("2", (), "none")]),
]  # fmt: skip

MEAN, INVERSE = arr(2, 3, 1), arr(2, 3, 1, low=0.5, high=1.5)
CHANNELS = [arr(4, low=0.5, high=1.5), arr(4), arr(4, low=0.5, high=1.5, seed=1)]
NORMALIZATION = [
    ms("LayerNormalizationGrad", DY, X, BIAS, MEAN, INVERSE, n_outputs=3),
    ms("LayerNormalizationGrad", DY, X, arr(3, 4), arr(2, 1, 1), arr(2, 1, 1, low=0.5), n_outputs=3, axis=1,
       epsilon=1e-3),
    ms("LayerNormalizationGrad", arr(4, seed=1), arr(4), arr(4, seed=2), arr(1), arr(1, low=0.5), n_outputs=3,
       label="one row"),
    ms("SimplifiedLayerNormalizationGrad", DY, X, BIAS, INVERSE, n_outputs=2),
    ms("InvertibleLayerNormalizationGrad", DY, X, arr(4, low=0.5), arr(4, seed=1), INVERSE, n_outputs=3),
    ms("BatchNormInternal", arr(2, 4, 3), *CHANNELS[:2], arr(4, seed=3), CHANNELS[2], n_outputs=5, epsilon=1e-2,
       momentum=0.7),
    ms("BatchNormInternal", arr(2, 4, 3), *CHANNELS[:2], arr(4, seed=3), CHANNELS[2], training_mode=0),
    ms("BatchNormalizationGrad", arr(2, 4, 3, seed=1), arr(2, 4, 3), *CHANNELS, n_outputs=3, epsilon=1e-2),
    ms("BatchNormalizationGrad", arr(3, 4, seed=1), arr(3, 4), *CHANNELS, n_outputs=3, epsilon=1e-2),
]  # fmt: skip

WINDOWS = [
    *(case("ConvGrad", arr(*out), x, w, n_outputs=3, domain=domain, **more)
      for domain, out, x, w, more in [
          (MS, (2, 6, 3, 5), IMAGE, FILTER, {"group": 2}),
          ("", (2, 6, 3, 5), IMAGE, FILTER, {"group": 2}),
          (MS, (2, 3, 3, 3), IMAGE, arr(3, 4, 3, 2), {"pads": [1, 0, 1, 1], "strides": [2, 2]}),
          (MS, (2, 3, 3, 4), IMAGE, arr(3, 4, 2, 2), {"dilations": [2, 2], "kernel_shape": [2, 2]}),
          (MS, (2, 3, 5), arr(2, 4, 5), arr(3, 4, 2), {"auto_pad": "SAME_UPPER"}),
          (MS, (2, 3, 3), arr(2, 4, 5), arr(3, 4, 2), {"auto_pad": "SAME_LOWER", "strides": [2]}),
          (MS, (1, 2, 2, 3, 2), arr(1, 2, 3, 3, 3), arr(2, 2, 2, 1, 2), {}),
      ]),
    ms("ConvTransposeGrad", arr(2, 4, 7), arr(2, 4, 3), arr(4, 2, 3), n_outputs=3, group=2, strides=[2]),
    ms("ConvTransposeGrad", arr(1, 3, 6, 4), arr(1, 2, 3, 3), arr(2, 3, 2, 3), n_outputs=3, strides=[2, 1],
       pads=[0, 1, 0, 0]),
    *(case("MaxPoolGrad", arr(1, 2, *out), indices, shape=(1, 2, *space), **more) for out, indices, space, more in [
        ((2,), [[[1, 3], [7, 7]]], (5,), {"kernel_shape": [2], "strides": [2]}),
        ((2, 2), [[[[5, 6], [9, 14]], [[16, 18], [24, 27]]]], (4, 4), {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ((1, 2), [[[[1, 4]], [[9, 6]]]], (2, 3), {"kernel_shape": [2, 2], "storage_order": 1}),
        ((2, 2), [[[[0, 2], [3, 5]], [[6, 8], [10, 11]]]], (2, 3),
         {"kernel_shape": [1, 2], "pads": [0, 1, 0, 0], "strides": [1, 2]}),
    ]),
    *(case("AveragePoolGrad", arr(1, 2, *out), shape=(1, 2, *space), **more) for out, space, more in [
        ((4,), (5,), {"kernel_shape": [2]}),
        ((3, 3), (5, 6), {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 0]}),
        ((3, 3), (5, 6), {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 0], "count_include_pad": 1}),
        ((2, 3, 2), (3, 3, 3), {"kernel_shape": [2, 1, 2]}),
        ((3, 2), (5, 4), {"kernel_shape": [2, 2], "dilations": [2, 2]}),
        ((3,), (5,), {"kernel_shape": [2], "auto_pad": "SAME_UPPER", "strides": [2]}),
        ((3,), (6,), {"kernel_shape": [3], "strides": [2], "ceil_mode": 1}),
    ]),
    *(ms("ResizeGrad", arr(1, 2, *out), arr(1, 2, 3, 4), *more, mode=mode, **attrs) for out, more, mode, attrs in [
        ((6, 8), (None, np.array([1.0, 1.0, 2.0, 2.0])), "linear", {}),
        ((6, 8), (None, np.array([1.0, 1.0, 2.0, 2.0])), "linear", {"coordinate_transformation_mode": "align_corners"}),
        ((2, 7), (), "linear", {}),
        ((3, 4), (), "nearest", {}),
    ]),
]  # fmt: skip

INDEX = [
    ms("GatherGrad", dims(3, 4), ints(2, 2, high=2), arr(2, 2, 4)),
    ms("GatherGrad", dims(2, 3, 4), ints(2, high=2).astype(np.int32), arr(2, 2, 4), axis=1),
    ms("GatherGrad", dims(3, 4), np.array(-1), arr(3), axis=-1),
    ms("GatherElementsGrad", arr(2, 3), dims(3, 3), ints(2, 3, high=2)),
    ms("GatherElementsGrad", arr(3, 2), dims(3, 4), ints(3, 2, low=-2, high=3), axis=1),
    ms("GatherNDGrad", dims(2, 3, 4), ints(3, 2, high=1), arr(3, 4)),
    ms("GatherNDGrad", dims(2, 3, 4), ints(2, 3, 1, high=2), arr(2, 3, 4), batch_dims=1),
    ms("SliceGrad", arr(2, 2), dims(3, 4), dims(1, -3), dims(9, -1)),
    ms("SliceGrad", arr(3, 2), dims(3, 5), dims(4), dims(-9), dims(1), dims(-3)),
    ms("SliceGrad", arr(3, 5), dims(3, 5), dims(0), dims(3), label="all of it"),
    ms("PadAndUnflatten", arr(3, 2), np.array([4, 0, 3]), dims(2, 3)),
    ms("FlattenAndUnpad", arr(2, 3, 2), np.array([4, 0, 3]), n_outputs=2),
    ms("ShrunkenGather", arr(4, 3), np.array([2, 0])),
    ms("ShrunkenGather", arr(2, 4), np.array([3, 1, 1]), axis=1),
    ms("ConcatTraining", arr(2, 3), arr(2, 1), arr(2, 2), n_outputs=2, axis=1),
    ms("ConcatTraining", arr(2, 3), n_outputs=2, axis=-1),
    ms("SplitTraining", arr(5, 2), dims(2, 3), n_outputs=2),
    ms("SplitTraining", arr(2, 4), dims(1, 1, 2), n_outputs=3, axis=-1),
    ms("SplitTraining", arr(2, 4), dims(2), label="one piece"),
    ms("ReduceSumTraining", X, dims(0, 2)),
    ms("ReduceSumTraining", X, dims(-1), keepdims=0),
    ms("ReduceSumTraining", X, dims(), noop_with_empty_axes=1),
    ms("ReduceSumTraining", X, dims()),
    ms("BroadcastGradientArgs", dims(2, 1, 4), dims(3, 1), n_outputs=2),
    ms("BroadcastGradientArgs", dims(4), dims(2, 3, 4), n_outputs=2),
    ms("BroadcastGradientArgs", dims(), dims(2, 3), n_outputs=2),
    ms("BroadcastGradientArgs", dims(1, 3), dims(1, 3), n_outputs=2),
    ms("View", arr(10), dims(2, 3), dims(4), n_outputs=2),
    ms("View", arr(6), dims(6)),
]

RATIO = np.array(0.25)
QUANTIZED = np.array([[-7.1, -3.1, -0.3], [0.3, 1.2, 6.9]])  # some beyond either end, none at it or half way
DROPOUT = [
    ms("DropoutGrad", DY, MASK),
    ms("DropoutGrad", DY, MASK, RATIO, np.array(True), seed=3),
    ms("DropoutGrad", DY, np.ones_like(MASK), np.array(0.0), np.array(True), label="all kept"),
    ms("DropoutGrad", DY, np.ones_like(MASK), RATIO, np.array(False)),
    ms("BitmaskDropout", arr(5, 9), n_outputs=2),
    ms("BitmaskDropout", arr(5, 9), RATIO, np.array(True), n_outputs=2, seed=3),
    ms("BitmaskBiasDropout", X, BIAS, DY, RATIO, np.array(True), n_outputs=2, seed=3),
    ms("BitmaskDropoutGrad", arr(5, 9), np.array([0xDEADBEEF, 0x1234], np.uint32), RATIO, np.array(True)),
    ms("BiasSoftmaxDropout", arr(2, 3, 4, 5), arr(2, 1, 1, 5), RATIO, n_outputs=3, axis=3, is_inner_broadcast=1,
       seed=3),
    ms("SoftmaxDropoutGrad", DY, MASK, POSITIVE, RATIO, axis=2),
    ms("FakeQuant", QUANTIZED, np.array(0.5), np.array(10.0), n_outputs=2, quant_max=15),
    ms("FakeQuant", QUANTIZED, np.array(0.4), np.array(3.0), n_outputs=2),
    ms("FakeQuantGrad", DY, MASK),
]  # fmt: skip

STATES = [arr(1, 2, 3), arr(1, 2, 3, seed=1)]
LSTM = [arr(4, 2, 5), arr(1, 12, 5), arr(1, 12, 3)]
GRU = [arr(4, 2, 5), arr(1, 9, 5), arr(1, 9, 3)]
HIDDEN, CELLS, GATES = (arr(4, 1, 2, n, low=0.1, high=0.9, seed=i) for i, n in enumerate((3, 3, 12)))
FLOW = arr(4, 1, 2, 3, seed=5)
RECURRENT = [
    ms("LSTMTraining", *LSTM, n_outputs=5, hidden_size=3),
    ms("LSTMTraining", *LSTM, arr(1, 24), None, *STATES, arr(1, 9), n_outputs=5, hidden_size=3),
    ms("LSTMGrad", *LSTM, None, *STATES, HIDDEN, CELLS, GATES, FLOW, *STATES, n_outputs=7, hidden_size=3),
    ms("LSTMGrad", *LSTM, None, None, None, HIDDEN, CELLS, GATES, FLOW, n_outputs=7, hidden_size=3),
    ms("LSTMGrad", *LSTM, None, None, None, HIDDEN, CELLS, GATES, None, None, STATES[0], n_outputs=7, hidden_size=3),
    ms("GRUTraining", *GRU, n_outputs=3, hidden_size=3),
    *(ms("GRUTraining", *GRU, arr(1, 18), None, STATES[0], n_outputs=3, hidden_size=3, linear_before_reset=linear)
      for linear in (0, 1)),
    *(ms("GRUGrad", *GRU, arr(1, 18), None, STATES[0], HIDDEN, GATES[..., :9], FLOW, STATES[1], n_outputs=5,
         hidden_size=3, linear_before_reset=linear) for linear in (0, 1)),
    ms("GRUGrad", *GRU, None, None, None, HIDDEN, GATES[..., :9], None, STATES[1], n_outputs=5, hidden_size=3),
]  # fmt: skip

STEPS = [
    ms("Scale", X, np.array(3.0)),
    ms("Scale", X, np.array([3]), scale_down=1),
    ms("ScaledSum", X, DY, scale_0=0.5, scale_1=-2.0),
    ms("ScaledSum", X, DY, POSITIVE, scale_0=0.5, scale_1=-2.0, scale_2=3.0),
    ms("BatchScale", X, n_outputs=2, scale_0=0.5, scale_1=-2.0),
    ms("BatchScale", X, n_outputs=3, scale_0=0.5, scale_1=-2.0, scale_2=3.0),
    ms("MixedPrecisionScale", np.array(0.5), *PAIR, n_outputs=2, to=1),
    ms("MixedPrecisionScale", np.array(0.5), *PAIR, to=1, fuse_outputs=1),
    ms("ReduceAllL2", *PAIR),
    ms("InPlaceAccumulator", X, DY),
    *(ms("InPlaceAccumulator", X, DY, np.array([signal]), label=str(signal)) for signal in (True, False)),
    ms("InPlaceAccumulatorV2", X, DY, n_outputs=2),
    *(ms("InPlaceAccumulatorV2", X, DY, np.array([signal]), n_outputs=2, label=str(signal)) for signal in (True, False)),
    ms("ZeroGradient", X, np.array(True)),
    ms("IsFinite", np.array([1.0, np.inf, -np.inf, np.nan])),
    *(ms("IsAllFinite", arr(3), np.array(values), label=f"of {values[1]}", **more) for values, more in [
        ([1.0, 2.0], {}), ([1.0, np.inf], {}), ([1.0, np.nan], {}),
        ([1.0, np.inf], {"isnan_only": 1}), ([1.0, np.nan], {"isinf_only": 1}),
    ]),
    *(ms("All", np.array([True, value]), label=f"with {value}") for value in (True, False)),
    ms("Group", X, LABELS),
    ms("PassThrough", X, LABELS, n_outputs=2),
    ms("SGDOptimizer", np.array(0.1), PAIR[0], GRADIENTS[0], n_outputs=2),
    ms("AdamOptimizer", np.array(0.1), np.array(3), PAIR[0], GRADIENTS[0], MEANS[0], SQUARES[0], n_outputs=5),
    Case("AdamOptimizer", (np.array(0.1), np.array(3), PAIR[0], GRADIENTS[0], MEANS[0], SQUARES[0]),
         {"alpha": 0.8, "beta": 0.7, "epsilon": 1e-2, "lambda": 0.2, "do_bias_correction": 0}, MS, 5),
    of_sequences("InplaceClipGradNorm", "s", (2,), *PAIR, max_norm=1.5),
    of_sequences("InplaceClipGradNorm", "s", (2,), *PAIR, max_norm=90.0, label="within"),
    of_sequences("SGDOptimizerV2", "t s s", (1, 2), [0.1], *PAIR, *GRADIENTS),
    *(of_sequences("SGDOptimizerV2", "t s s t", (1, 2), [0.1], *PAIR, *GRADIENTS, [signal], label=str(signal))
      for signal in (True, False)),
    of_sequences("AdamWOptimizer", "t t s s s s", (1, 2, 2, 2), [0.1], [1], *PAIR, *GRADIENTS, *MEANS, *SQUARES),
    *(of_sequences("AdamWOptimizer", "t t s s s s t", (1, 2, 2, 2), [0.1], [3], *PAIR, *GRADIENTS, *MEANS, *SQUARES,
                   [signal], label=f"{signal} {mode} {correct}", adam_mode=mode, alpha=0.8, beta=0.7, epsilon=1e-2,
                   weight_decay=0.2, correct_bias=correct)
      for signal, mode, correct in [(True, 0, 1), (True, 1, 1), (False, 0, 1), (True, 1, 0)]),
]  # fmt: skip

CASES = [*ELEMENTWISE, *SOFTMAX, *LOSSES, *NORMALIZATION, *WINDOWS, *INDEX, *DROPOUT, *RECURRENT, *STEPS]
