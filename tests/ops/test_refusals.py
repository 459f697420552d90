"""Operands that do not fit are refused with an error, and a tensor that no memory holds is never allocated."""

from __future__ import annotations

import numpy as np
import pytest

from gradcheck_cli.errors import LimitError, ModelError, UnsupportedError
from gradcheck_cli.graph import Graph, Node
from tests.ops.case import Case, arr, case, ints
from tests.ops.cases.fused import ms

HUGE = 1 << 50
FLAT = arr(1, 3, 4), arr(1, 3, 4), arr(1, 3, 4)
HEADS = arr(1, 2, 2, 2), arr(1, 2, 3, 2), arr(1, 2, 3, 2)
CUT = Node("ReduceMax", ("s",), ("m",))
IMAGE = arr(1, 2, 4, 4)
NET = arr(4, 2, 2), arr(4, 2, 2, seed=1), arr(4, 2, 3)

UNFIT = [
    case("LabelEncoder", [1], domain="ai.onnx.ml", keys_int64s=(1,), keys_floats=(1.0,), values_int64s=(2,)),
    case("LabelEncoder", [1], domain="ai.onnx.ml", keys_int64s=(1,), values_tensor=np.ones((1, 1))),
    case("Gather", arr(3), [3]),
    case("Gather", arr(3), [-4]),
    case("Gather", arr(), [0]),
    case("Gather", arr(3), [0], axis=1),
    case("GatherElements", arr(3, 2), [[0, 0, 0]]),
    case("GatherElements", arr(3, 2), [[0, 5]]),
    case("GatherND", arr(3, 2), [[3]]),
    case("GatherND", arr(3, 2), [[0, 0, 0]]),
    case("GatherND", arr(3, 2), [[0]], batch_dims=1),
    case("ScatterND", arr(3), [[5]], arr(1)),
    case("ScatterND", arr(3), [[1]], arr(2)),
    case("ScatterND", arr(3), [[1]], arr(1), reduction="mean"),
    case("ScatterElements", arr(3), [4], arr(1)),
    case("ScatterElements", arr(3), [1], arr(2)),
    case("TensorScatter", arr(2, 4, 3), arr(2, 2, 3), [3, 0]),
    case("Compress", arr(2), [False, False, True], axis=0),
    case("OneHot", [1], -3, [0.0, 1.0]),
    case("OneHot", [1], 3, [0.0, 1.0, 2.0]),
    case("ReverseSequence", arr(2, 2), [3, 1]),
    case("Range", 0.0, 1.0, 0.0),
    case("Range", 0.0, np.nan, 1.0),
    case("Slice", arr(3), [0], [1], [4]),
    case("Slice", arr(3), [0], [1], [0], [0]),
    case("Slice", arr(3), [0, 0], [1, 1], [0, 0]),
    case("Pad", arr(3), [-2, -2]),
    case("Pad", arr(3), [-5, 9]),
    case("Pad", arr(0), [1, 1], mode="edge"),
    case("Pad", arr(3), [1, 1], mode="mirror"),
    case("Tile", arr(3), [1, 1]),
    case("Trilu", arr(3)),
    case("CenterCropPad", arr(2), [1, 2]),
    case("DepthToSpace", arr(1, 3, 2, 2), blocksize=2),
    case("SpaceToDepth", arr(1, 3, 3, 2), blocksize=0),
    case("Reshape", arr(4), [3]),
    case("ReduceSum", arr(2), [3]),
    case("ReduceProd", arr(2, 2), [0, -2]),
    case("ArgMax", arr(0)),
    case("CumSum", arr(2), [0, 1]),
    case("TopK", arr(3), [4], n_outputs=2),
    case("Einsum", arr(2), equation="i,j"),
    case("Einsum", arr(2), arr(3), equation="i,i"),
    case("Einsum", arr(2), equation="i->k"),
    case("Einsum", arr(2, 3), equation="ii"),
    case("Einsum", arr(2, 3), equation="...i...->i"),
    case("NonMaxSuppression", arr(1, 2, 3), arr(1, 1, 2)),
    case("DFT", arr(2, 4, 2), onesided=1),
    case("DFT", arr(2, 4, 1), inverse=1, onesided=1),
    case("DFT", arr(2, 4, 3)),
    case("DFT", arr(2)),
    case("DFT", arr(2, 4, 2), None, -1),
    case("DFT", arr(2, 4, 2), 0),
    case("DFT", arr(2, 1, 2), inverse=1, onesided=1),
    case("STFT", arr(1, 4, 1), 1, None, 5),
    case("STFT", arr(1, 4, 1), 0, arr(2)),
    case("STFT", arr(1, 4, 1), 1, arr(2), 3),
    case("STFT", arr(1, 4, 1), 1, arr(2, 2)),
    case("STFT", arr(4), 1, arr(2)),
    case("HannWindow", -1),
    case("HammingWindow", [2, 3]),
    case("MelWeightMatrix", 4, 16, 8192, 0.0, 9000.0),
    case("MelWeightMatrix", 4, 16, 8192, 4000.0, 300.0),
    case("MelWeightMatrix", 4, 16, 0, 0.0, 300.0),
    case("MelWeightMatrix", -4, 16, 8192, 0.0, 300.0),
    case("BitCast", ints(2).astype(np.int32), to=7),
    case("BitCast", ints(2).astype(np.int8), to=21),
    case("BitCast", ints(2), to=8),
    case("CausalConvWithState", arr(1, 2, 4), arr(2, 2, 3)),
    case("CausalConvWithState", arr(1, 2, 4), arr(2, 1, 3), None, arr(1, 2, 3)),
    case("CausalConvWithState", arr(1, 2, 4), arr(2, 1, 3), activation="relu"),
    case("LinearAttention", *FLAT, q_num_heads=2, kv_num_heads=2),
    case("LinearAttention", *FLAT, q_num_heads=2, kv_num_heads=2, update_rule="quadratic"),
    case("LinearAttention", *FLAT, q_num_heads=2, kv_num_heads=3, update_rule="linear"),
    case("LinearAttention", *FLAT, None, arr(1, 3, 2), q_num_heads=2, kv_num_heads=2, update_rule="linear"),
    case("LinearAttention", *FLAT, arr(1, 2, 3, 2), q_num_heads=2, kv_num_heads=2, update_rule="linear"),
    case("LinearAttention", *FLAT, None, arr(1, 3, 3), q_num_heads=2, kv_num_heads=2, update_rule="gated"),
    ms("VarlenCausalConvWithState", arr(3, 2), arr(2, 1, 2), [0, 2, 1, 3], None, arr(3, 2, 1), label="bounds go down"),
    ms("VarlenCausalConvWithState", arr(3, 2), arr(2, 1, 2), [0, 3], None, arr(2, 2, 1), label="states of two"),
    ms("VarlenCausalConvWithState", arr(3, 2), arr(2, 1, 2), [0, 3], None, arr(1, 2, 1), state_update_capacity=2),
    ms("VarlenCausalConvWithState", arr(3, 2), arr(2, 1, 2), [0, 3], None, arr(1, 2, 1), [1], state_update_capacity=9),
    ms("GatedDeltaNet", *NET, update_rule="linear", label="without a number of sequences"),
    ms("GatedDeltaNet", *NET, [0, 2, 4], update_rule="gated", label="without a decay"),
    ms("GatedDeltaNet", *NET, [0, 2], update_rule="linear", label="tokens behind the last sequence"),
    ms("GatedDeltaNet", *NET, [0, 4], arr(4, 3), update_rule="gated", label="a decay for other heads"),
    ms("GatedDeltaNet", *NET, [0, 4], arr(4, 2), update_rule="gated", gate_activation="softplus"),
    ms(
        "GatedDeltaNet", *NET, [0, 4], arr(4, 2), None, None, arr(2), arr(2), update_rule="gated", label="not activated"
    ),
    ms("GatedDeltaNet", *NET, [0, 4], update_rule="linear", gate_activation="relu"),
    ms("GatedDeltaNet", *NET, [0, 4], update_rule="linear", gate_lower_bound=1.0),
    ms("GatedDeltaNet", *NET, [0, 4], None, None, arr(1, 2, 2, 3), update_rule="linear", label="a state turned"),
    ms("GatedDeltaNet", NET[0], NET[1], arr(4, 3, 2), [0, 4], update_rule="linear", label="three heads share two"),
    ms("GatedDeltaNet", arr(4, 16), None, None, [0, 4], update_rule="linear", label="side by side without a state"),
    ms("GatedDeltaNet", *NET, [0, 4], None, None, None, None, None, [2], update_rule="linear"),
    ms("MoEGroupRouter", arr(2, 8), arr(8), top_k=9),
    ms("MoEGroupRouter", arr(2, 8), arr(8), top_k=2, n_group=3),
    ms("MoEGroupRouter", arr(2, 8), arr(8), top_k=2, n_group=2, topk_group=3),
    ms("MoEGroupRouter", arr(2, 8), arr(4), top_k=2),
    ms("MoEGroupRouter", arr(2, 8), arr(8), top_k=2, n_outputs=3, label="both kinds of output"),
    ms("MoEGroupRouter", arr(2, 256), arr(8), arr(8, 256), top_k=2, label="projected, not scored"),
    ms("GatherPacked", np.zeros((2, 18), np.uint8), [0], packed_type=2, K=33),
    ms("GatherPacked", np.zeros((2, 18), np.uint8), [0], packed_type=2, K=64),
    ms("GatherPacked", np.zeros((0, 18), np.uint8), [0], packed_type=2, K=32),
    case("FlexAttention", *HEADS, domain="ai.onnx.preview", score_mod=Graph(("s",), ("m",), (CUT,))),
    case("FlexAttention", *HEADS, domain="ai.onnx.preview", prob_mod=Graph(("s", "t"), ("s",), ())),
    case("FlexAttention", arr(1, 3, 2, 2), *HEADS[1:], domain="ai.onnx.preview"),
    case("FlexAttention", *FLAT, domain="ai.onnx.preview"),
    case("Adam", 0.1, 0, arr(2), arr(2), arr(2), domain="ai.onnx.preview.training"),
    case(
        "Momentum",
        0.1,
        0,
        arr(2),
        arr(2),
        arr(2),
        domain="ai.onnx.preview.training",
        alpha=0.9,
        beta=1.0,
        mode="heavy",
        norm_coefficient=0.0,
    ),
    case("GridSample", arr(1, 2), arr(1, 2)),
    case("GridSample", IMAGE, arr(2, 2, 2, 2)),
    case("GridSample", IMAGE, arr(1, 2, 2, 3)),
    case("GridSample", IMAGE, arr(1, 2, 2, 2), mode="bilinear"),
    case("GridSample", IMAGE, arr(1, 2, 2, 2), padding_mode="wrap"),
    case("GridSample", arr(1, 2, 0, 4), arr(1, 2, 2, 2), padding_mode="border"),
    case("AffineGrid", arr(1, 2, 3), [2, 1, 3, 3]),
    case("AffineGrid", arr(1, 2, 3), [1, 1, 3]),
    case("AffineGrid", arr(1, 2, 3), 3),
    case("DeformConv", IMAGE, arr(2, 2, 2, 2), arr(1, 8, 2, 2)),
    case("DeformConv", IMAGE, arr(2, 2, 2, 2), arr(1, 8, 3, 3), None, arr(1, 8, 3, 3)),
    case("DeformConv", IMAGE, arr(2, 2, 2, 2), arr(1, 8, 3, 3), arr(3)),
    case("DeformConv", IMAGE, arr(2, 2, 2, 2), arr(1, 8, 3, 3), offset_group=3),
    case("DeformConv", IMAGE, arr(2, 2, 2, 2), arr(1, 8, 3, 3), group=0),
    case("RoiAlign", IMAGE, arr(2, 5), [0, 0]),
    case("RoiAlign", IMAGE, arr(2, 4), [0]),
    case("RoiAlign", IMAGE, arr(2, 4), [0, 1]),
    case("RoiAlign", IMAGE, arr(2, 4), [0, -1]),
    case("RoiAlign", IMAGE, arr(2, 4), [0, 0], mode="sum"),
    case("RoiAlign", IMAGE, arr(2, 4), [0, 0], output_height=0),
    case("RoiAlign", IMAGE, arr(2, 4), [0, 0], coordinate_transformation_mode="pixel"),
    case("RoiAlign", arr(1, 2, 0, 4), arr(2, 4), [0, 0]),
    case("MaxRoiPool", IMAGE, arr(2, 4), pooled_shape=(1, 1)),
    case("MaxRoiPool", IMAGE, [[1, 0.0, 0, 2, 2]], pooled_shape=(1, 1)),
    case("MaxRoiPool", IMAGE, [[0, 0.0, 0, 2, 2]], pooled_shape=(0, 1)),
    case("Col2Im", arr(1, 4, 4), [3, 3], [2]),
    case("Col2Im", arr(1, 4, 5), [3, 3], [2, 2]),
    case("Col2Im", arr(1, 5, 4), [3, 3], [2, 2]),
    case("Col2Im", arr(1, 4, 4), [3, 3], [4, 2]),
    case("Col2Im", arr(1, 4, 4), [3, 3], [0, 2]),
    case("Col2Im", arr(1, 4, 4), [3, 3], [2, 2], strides=(0, 1)),
    case("Col2Im", arr(1, 4, 4), [3, 3], [2, 2], pads=(0, 1)),
    case("Det", arr(3)),
    case("Det", arr(2, 3)),
]
TOO_LARGE = [
    case("OneHot", [1], HUGE, [0.0, 1.0]),
    case("Pad", arr(3), [0, HUGE]),
    case("Range", 0, HUGE, 1),
    case("Tile", arr(3), [HUGE]),
    case("Expand", arr(2), [HUGE, 2]),
    case("ConstantOfShape", [HUGE, 1]),
    case("CenterCropPad", arr(2), [HUGE]),
    case("HannWindow", HUGE),
    case("DFT", arr(2, 3, 1), HUGE),
    case("DFT", arr(2, 3, 2), HUGE, inverse=1, onesided=1),
    case("MelWeightMatrix", HUGE, 16, 8192, 0.0, 4000.0),
    case("MelWeightMatrix", 4, HUGE, 8192, 0.0, 4000.0),
    case("AffineGrid", arr(1, 2, 3), [1, 1, HUGE, 2]),
    case("RoiAlign", IMAGE, [[0.0, 0, 1e15, 1e15]], [0]),
    case("RoiAlign", IMAGE, [[0.0, 0, 1, 1]], [0], output_height=HUGE),
    case("RoiAlign", IMAGE, [[0.0, 0, 1, 1]], [0], sampling_ratio=HUGE),
    case("MaxRoiPool", IMAGE, [[0.0, 0, 0, 1, 1]], pooled_shape=(HUGE, 1)),
    case("Col2Im", arr(1, 2, 1), [HUGE + 1], [2], dilations=(HUGE,)),
]


@pytest.mark.parametrize("case", UNFIT, ids=lambda c: c.id)
def test_what_does_not_fit_is_an_error_that_names_the_node(case: Case) -> None:
    with pytest.raises(ModelError, match="node 0"):
        case.tape()


UNSUPPORTED = [
    ms("VarlenCausalConvWithState", arr(3, 2), arr(2, 1, 2), [0, 3], None, arr(1, 2, 1), None, arr(3, 2, 2), arr(3, 1)),
    ms("VarlenCausalConvWithState", arr(3, 2), arr(2, 1, 2), [0, 3], None, arr(1, 2, 1), group_size=2),
    ms("GatherPacked", np.zeros((2, 144), np.uint8), [0], packed_type=12, K=256),
    ms("CausalConvWithState", arr(1, 5, 4), arr(2, 1, 3), channels_last=1, input_channels=2),
    ms("CausalConvWithState", arr(1, 2, 4), arr(2, 1, 3), state_length=5),
    ms("CausalConvWithState", arr(1, 2, 4), arr(2, 1, 3), state_channels_last=1),
]


@pytest.mark.parametrize("case", UNSUPPORTED, ids=lambda c: c.id)
def test_what_the_runtime_has_for_gpus_alone_or_not_at_all_is_named_as_not_known(case: Case) -> None:
    with pytest.raises(UnsupportedError, match=r"not known|known are"):
        case.tape()


@pytest.mark.parametrize("case", TOO_LARGE, ids=lambda c: c.id)
def test_what_no_memory_holds_is_a_limit(case: Case) -> None:
    with pytest.raises(LimitError):
        case.tape()
