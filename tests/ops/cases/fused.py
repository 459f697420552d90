"""Operators of com.microsoft: fusions with biases and activations, batch axes, older names."""

from typing import Any

import numpy as np

from tests.ops.case import Case, arr, case, ints

X, W, IMAGE = arr(2, 3, 4), arr(4, 6), arr(2, 4, 5, 6)


def ms(op: str, *inputs: Any, **more: Any) -> Case:
    return case(op, *inputs, domain="com.microsoft", **more)


CASES = [
    case("Scale", X, scale=1.5),
    case("DynamicSlice", X, np.array([0, 1]), np.array([2, 3]), np.array([2, 1])),
    case("MemcpyFromHost", X),
    case("MemcpyToHost", X),
    ms("SampleOp", X),
    ms("SparseToDenseMatMul", arr(3, 4), arr(4, 2)),
    ms("SparseToDenseMatMul", arr(4, 3), arr(2, 4), transA=1, transB=1, alpha=0.5),
    ms("Gelu", X),
    ms("BiasGelu", X, arr(4)),
    ms("FastGelu", X),
    ms("FastGelu", X, arr(4)),
    ms("QuickGelu", X),
    ms("QuickGelu", X, alpha=0.5),
    ms("BiasSplitGelu", X, arr(4)),
    ms("ScaledSiLU", X),
    ms("ScaledSiLU", X, alpha=0.5),
    ms("ScaledSiLU", X, np.array(1.5)),
    ms("BiasAdd", X, arr(4), arr(2, 3, 4, seed=1)),
    ms("BiasSoftmax", arr(2, 3, 4, 5), arr(2, 1, 1, 5), axis=3, is_inner_broadcast=1, label="kept ranks"),
    ms("BiasSoftmax", arr(2, 3, 4, 5), arr(2, 5), axis=3, is_inner_broadcast=1),
    ms("BiasSoftmax", arr(2, 3, 4, 5), arr(4, 5), axis=2, is_inner_broadcast=0),
    ms("BiasSoftmax", arr(2, 3, 4, 5), arr(1, 1, 4, 5), axis=-1, is_inner_broadcast=0),
    ms("BiasDropout", X, arr(4), n_outputs=2),
    ms("BiasDropout", X, arr(4), arr(2, 3, 4, seed=1), np.array(0.25), np.array(False), n_outputs=2),
    ms("FusedMatMul", X, W),
    ms("FusedMatMul", X, W, alpha=0.5),
    ms("FusedMatMul", arr(2, 4, 3), arr(2, 5, 4), transA=1, transB=1, alpha=-1.5),
    ms("FusedMatMul", arr(3, 2, 4), arr(2, 4, 5), transBatchA=1),
    ms("FusedMatMul", arr(3, 2, 6, 4), arr(5, 2, 6, 4), transBatchA=1, transB=1, transBatchB=1),
    ms("FusedMatMul", arr(4, 2, 3), arr(2, 4, 5), transBatchA=1, transA=1),
    ms("FusedMatMul", arr(4), W, transA=1, label="vector"),
    ms("TransposeMatMul", arr(2, 4, 3), arr(2, 5, 4), transA=1, transB=1),
    *(
        ms("FusedMatMulActivation", X, W, activation=name, **more)
        for name, more in [
            ("Relu", {}),
            ("LeakyRelu", {"activation_alpha": 0.3}),
            ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.4}),
            ("Softmax", {"activation_axis": 1}),
            ("Tanh", {"alpha": 0.5, "transBatchA": 0}),
        ]
    ),
    ms("GemmFastGelu", X, W, arr(6)),
    ms("FusedGemm", arr(3, 4), W),
    *(
        ms("FusedGemm", arr(3, 4), arr(6, 4), arr(6), transB=1, alpha=0.5, beta=2.0, activation=name, **more)
        for name, more in [
            ("Relu", {}),
            ("Sigmoid", {}),
            ("Elu", {"activation_alpha": 0.7}),
            ("Selu", {"activation_alpha": 0.7, "activation_gamma": 1.1}),
            ("ThresholdedRelu", {"activation_alpha": 0.2}),
            ("ScaledTanh", {"activation_alpha": 0.2, "activation_beta": 0.6}),
            ("ParametricSoftplus", {"activation_alpha": 0.2, "activation_beta": 0.6}),
            ("Softsign", {}),
        ]
    ),
    *(
        ms("FusedConv", IMAGE, arr(4, 2, 3, 3), arr(4), group=2, pads=[1, 0, 2, 1], strides=[2, 1], **more)
        for more in [
            {},
            {"activation": "Relu"},
            {"activation": "LeakyRelu", "activation_params": [0.3]},
            {"activation": "Clip", "activation_params": [-1.0, 1.5]},
            {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]},
            {"activation": "Tanh"},
        ]
    ),
    ms("FusedConv", IMAGE, arr(3, 4, 1, 1), arr(3), arr(2, 3, 5, 6), activation="Relu", label="with a sum"),
    ms("ExpandDims", X, np.array(1, np.int32)),
    ms("ExpandDims", X, np.array(-1, np.int32)),
    ms("ComplexMul", arr(3, 2), arr(3, 2, seed=1)),
    ms("ComplexMulConj", arr(2, 3, 2), arr(3, 2, seed=1)),
    ms("CDist", arr(3, 4), arr(5, 4)),
    ms("CDist", arr(3, 4), arr(5, 4), metric="euclidean"),
    ms("GridSample", IMAGE, arr(2, 3, 2, 2, low=-0.9, high=0.9), mode="bilinear"),
    ms("GridSample", IMAGE, arr(2, 3, 2, 2, low=-0.9, high=0.9), mode="bicubic", align_corners=1),
    ms("TorchEmbedding", W, ints(2, 3)),
    ms("UnfoldTensor", X, size=2),
    ms("UnfoldTensor", X, dim=1, size=2, step=1),
    ms("UnfoldTensor", arr(7, 2), dim=0, size=3, step=2),
    ms("Trilu", arr(4, 3), np.array(1), upper=0),
    ms("Pad", arr(2, 3), np.array([1, 0, 0, 2]), np.array(0.5)),
    ms("GatherND", arr(2, 3), ints(2, 2, high=1)),
    ms("Range", 0.2, 1.6, 1.0),
    ms("Range", 0.2, 3.6),
    ms("DequantizeLinear", ints(3, high=9).astype(np.uint8), np.array(0.5), np.array(3, np.uint8)),
    ms("QuantizeLinear", arr(3), np.array(0.25), np.array(3, np.uint8)),
]
