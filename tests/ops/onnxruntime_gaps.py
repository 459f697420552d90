"""Cases of ours that onnxruntime cannot judge: a pattern for a case's id (as in `fnmatch`) -> the reason."""

from __future__ import annotations

_NO_BATCHWISE = "recurrent operators only with layout 0"
_NO_STEPS = "the state of a sequence without steps is 0, not the initial one"
_NO_LRN = "LRN only of odd sizes and 4 dimensions"
_NO_INT4 = "takes and gives no arrays of 4-bit integers"
_ONE_ZERO_POINT = "one zero point for the left operand, or for all weights"
_NO_AXES = "linear and cubic Resize only along the last axes, of 2 or 4 dimensions"
_REVERSE = "ReverseSequence only along the first two axes"

GAPS: dict[str, str] = {
    "Attention(* short mask": "a mask must cover every key",
    "Attention(* short bool mask": "a mask must cover every key",
    "Attention(*left_window_size=*": "the attribute is newer than its Attention",
    "Conv(*auto_pad=SAME_LOWER,*dilations=*": "no dilation with auto_pad SAME",
    "ConvTranspose(* zeros behind": "refuses an output_shape beyond what strides reach",
    "GRU(* no steps": _NO_STEPS,
    "GRU(*layout=1*": _NO_BATCHWISE,
    "ConvInteger(1x2x4x4,2x2x3x3,(),2)*": _ONE_ZERO_POINT,
    "DequantizeLinear(* int4": _NO_INT4,
    "If(* handed through": "refuses a branch that gives a tensor from outside",
    "LRN(1x3x2)*": _NO_LRN,
    "LRN(2x4)*": _NO_LRN,
    "LRN(*size=4*": _NO_LRN,
    "LSTM(* no steps": _NO_STEPS,
    "LSTM(*layout=1*": _NO_BATCHWISE,
    "MatMulInteger(2x3,3x4,2,4)": _ONE_ZERO_POINT,
    "MaxUnpool(1x1x2x2,1x1x2x2,4)*": "counts indices in output_shape; ONNX's own case does not",
    "MeanVarianceNormalization(* nothing to normalize": "does not add the 1e-9 of the function body",
    "NonZero(())*": "a scalar has one row of indices; by the standard it has none",
    "OneHot(()*": "no scalar indices",
    "OneHot(3,(),2) axis=-2": "no OneHot for this mix of types",
    "Pad(()*": "no scalar",
    "Resize(1x1x5x4,-,4) *align_corners": "rounds the resized length; ONNX's own case does not",
    "Resize(*axes=(-2, -1),keep_aspect_ratio_policy=*": "ignores the policy where axes are negative",
    "Resize(1x1x5x4,-,4) nearest_mode=floor": "coordinates in float32, where this one is a tie",
    "Resize(2x3x4x2,-,-,2) axes=(3, 1)*": _NO_AXES,
    "Resize(4,-,1) mode=cubic": _NO_AXES,
    "QLinearMatMul(2x3,2,2,*": _ONE_ZERO_POINT,
    "QuantizeLinear(* int4": _NO_INT4,
    "RandomUniform(*dtype=10*": "not in float16",
    "ReverseSequence(*batch_axis=2": _REVERSE,
    "ReverseSequence(*time_axis=2*": _REVERSE,
    "RNN(* no steps": _NO_STEPS,
    "RNN(*'softsign', 'SOFTPLUS'*": "names of activations in one spelling only",
    "RNN(*layout=1*": _NO_BATCHWISE,
    "SpaceToDepth(*mode=CRD": "the attribute came with opset 28",
    "SwiGLU(*": "came with opset 28",
    "TopK(*sorted=0": "the order is left open",
    "TreeEnsemble(*post_transform=1 softmax": "a softmax that does not add up to 1",
}

CRASHES: dict[str, str] = {
    "Conv(* gaps": "ends the process: SAME padding with a stride over the kernel",
}

ARBITRARY: dict[str, str] = {
    "Bernoulli(*": "drawn",
    "Dropout(2x3,(),())": "drawn",
    "Dropout(2x3,-,())": "drawn",
    "Dropout(4x5,(),())*": "drawn",
    "Multinomial(*": "drawn",
    "RandomNormal*": "drawn",
    "RandomUniform*": "drawn",
}
