"""Cases of ours that onnxruntime cannot judge: a pattern for a case's id (as in `fnmatch`) -> the reason."""

from __future__ import annotations

_NO_BATCHWISE = "recurrent operators only with layout 0"
_NO_STEPS = "the state of a sequence without steps is 0, not the initial one"
_NO_LRN = "LRN only of odd sizes and 4 dimensions"
_NO_INT4 = "takes and gives no arrays of 4-bit integers"
_ONE_ZERO_POINT = "one zero point for the left operand, or for all weights"
_NO_AXES = "linear and cubic Resize only along the last axes, of 2 or 4 dimensions"
_REVERSE = "ReverseSequence only along the first two axes"
_NO_HALF_FITTED = "a half spectrum that is cut, or padded to an even length, is taken for another"
_NO_TRAINING = "no operators of the training domain"
_NO_WIDTHS = "BitCast of numbers of 32 and 64 bits only"
_NO_IMAGES = "GridSample of floats in 4 dimensions, or in 5 without mode cubic"
_IN_OUTPUT = "counts indices in output_shape; ONNX's own case does not"
_NO_DEFORMED = "DeformConv in 4 dimensions only"
_NO_MAPS = "operators on sequences only of sequences of tensors"
_NO_STRINGS = "not of strings"
_NO_IMAGE = "no ImageDecoder"
_NO_LABELS = "no LabelEncoder for these types"
_ONE_FUSION = "experts on CPU without a third layer, and with the halves of swiglu entry by entry"
_NO_WINDOWS = "no windows of states on CPU"
_NOT_ON_CPU = "it has a schema for this, and no kernel that runs here"

GAPS: dict[str, str] = {
    "Cast(2x3) * float6": "no float6",
    "com.microsoft.Attention(*,-,2x2x2x2x2,1x2x3x5)*": "no bias together with a past",
    "com.microsoft.BiasAdd(*": _NOT_ON_CPU,
    "com.microsoft.BiasDropout(*": _NOT_ON_CPU,
    "com.microsoft.BiasSoftmax(*": _NOT_ON_CPU,
    "com.microsoft.BiasSplitGelu(*": _NOT_ON_CPU,
    "com.microsoft.CausalConvWithState(*state_window=*": _NO_WINDOWS,
    "com.microsoft.LinearAttention(*state_window=*": _NO_WINDOWS,
    "com.microsoft.ComplexMul*": _NOT_ON_CPU,
    "com.microsoft.FusedGemm(3x4,4x6)": "no FusedGemm without an activation",
    "com.microsoft.FusedMatMulActivation(*": _NOT_ON_CPU,
    "com.microsoft.GatedAdd(* projected": _NOT_ON_CPU,
    "com.microsoft.GemmFastGelu(*": _NOT_ON_CPU,
    "com.microsoft.GroupNorm(*": _NOT_ON_CPU,
    "com.microsoft.GroupQueryAttention(* norms": _NOT_ON_CPU,
    "com.microsoft.Inverse(* complex": "no complex numbers",
    "com.microsoft.MatMulBnb4(*transB=0": "reads the weights as if transB were 1, beyond their end",
    "com.microsoft.MoE(*,5x6x4,5x6) k=2*": _ONE_FUSION,
    "com.microsoft.MoE(* gated": _ONE_FUSION,
    "com.microsoft.MoE(*swiglu_fusion=2*": _ONE_FUSION,
    "com.microsoft.MoE(*swiglu_limit_after_activation=1*": _NOT_ON_CPU,
    "com.microsoft.MulInteger(*": _NOT_ON_CPU,
    "com.microsoft.QLinearAdd(* no zero points": "no zero point is one of another type",
    "com.microsoft.QLinearAveragePool(1x2x5x6,*kernel_shape=[[]2, 3]": "a mean lies half way between two quanta",
    "com.microsoft.QLinearMul(* no zero points": "no zero point is one of another type",
    "com.microsoft.QMoE(*swiglu_fusion=2*": _ONE_FUSION,
    "com.microsoft.MultiHeadAttention(* packed*": _NOT_ON_CPU,
    "com.microsoft.SkipGroupNorm(*": _NOT_ON_CPU,
    "com.microsoft.SparseAttention(* caches of two lengths": "reads other keys where sequences differ in length",
    "com.microsoft.SparseToDenseMatMul(*": "of sparse tensors, which have a test of their own",
    "DynamicSlice(*": "gone since opset 10, with a test of its own",
    "Scale(*": "gone since opset 10, with a test of its own",
    "com.microsoft.TorchEmbedding(*": _NOT_ON_CPU,
    "Adagrad(*": _NO_TRAINING,
    "Adam(*": _NO_TRAINING,
    "AffineGrid(* align_corners=1 one *": "puts a single entry at -1; PyTorch's, which the standard names, at 0",
    "BitCast(2) to=2": _NO_WIDTHS,
    "BitCast(3) to=9": _NO_WIDTHS,
    "BitCast(3) to=3 of float8": _NO_WIDTHS,
    "BitCast(3) to=21 of int4": _NO_WIDTHS,
    "CastMap(*": _NO_MAPS,
    "CenterCropPad(* of strings": _NO_STRINGS,
    "DepthToSpace(* of strings": _NO_STRINGS,
    "Col2Im(* integers": "floats only",
    "Col2Im(* no channels": "refuses an empty input",
    "Conv(*auto_pad=SAME_LOWER,*dilations=*": "no dilation with auto_pad SAME",
    "ConvTranspose(* zeros behind": "refuses an output_shape beyond what strides reach",
    "GridSample(1x1x3x2x4,*mode=cubic*": _NO_IMAGES,
    "GridSample(1x2x6,*": _NO_IMAGES,
    "GridSample(1x1x2x3x2x3,*": _NO_IMAGES,
    "GridSample(* integers": _NO_IMAGES,
    "GridSample(* strings": _NO_IMAGES,
    "GridSample(* no entries": "refuses an empty image",
    "GRU(* no steps": _NO_STEPS,
    "GRU(*layout=1*": _NO_BATCHWISE,
    "ConvInteger(1x2x4x4,2x2x3x3,(),2)*": _ONE_ZERO_POINT,
    "DeformConv(2x2x5,*": _NO_DEFORMED,
    "DeformConv(1x2x6,*": _NO_DEFORMED,
    "DeformConv(1x2x3x2x3,*": _NO_DEFORMED,
    "DeformConv(* no filters": "refuses an empty W",
    "DequantizeLinear(* int4": _NO_INT4,
    "DictVectorizer(*": _NO_MAPS,
    "Det(4x4) of rank 3": "0 but for the rounding of float32",
    "DFT(2x5x2,()) onesided=1,inverse=1 to [35]": _NO_HALF_FITTED,
    "DFT(2x5x2,()) onesided=1,inverse=1 to 12": _NO_HALF_FITTED,
    "DFT(4x3x2,*onesided=1,inverse=1 *": _NO_HALF_FITTED,
    "Gradient(*": _NO_TRAINING,
    "Identity(* of maps": _NO_MAPS,
    "ImageDecoder(*": _NO_IMAGE,
    "LabelEncoder(* first version": "of opset 1, which is older than those that are tried",
    "LabelEncoder(*keys_floats=(1.0, nan, 0.0)*": "NaN finds no NaN before version 4",
    "LabelEncoder(* tensor of strings": _NO_LABELS,
    "LabelEncoder(* tensors": _NO_LABELS,
    "LabelEncoder(* a key twice": "of equal keys the first counts; by the standard the last",
    "If(* handed through": "refuses a branch that gives a tensor from outside",
    "LinearAttention(* no steps": "cannot reshape an empty tensor to a dimension of -1",
    "LinearClassifier(*scores of a half*": "its quantile cancels near a half: 0 at 0.500025, where it is 6e-5",
    "LRN(1x3x2)*": _NO_LRN,
    "LRN(2x4)*": _NO_LRN,
    "LRN(*size=4*": _NO_LRN,
    "LSTM(* cell clipped": "does not clip what h takes (onnxruntime issue 27224)",
    "LSTM(* no steps": _NO_STEPS,
    "LSTM(*layout=1*": _NO_BATCHWISE,
    "MatMulInteger(2x3,3x4,2,4)": _ONE_ZERO_POINT,
    "MaxUnpool(1x1x2x2,1x1x2x2,4)*": _IN_OUTPUT,
    "MaxUnpool(1x1x1x2x1,1x1x1x2x1,5)*": _IN_OUTPUT,
    "Momentum(*": _NO_TRAINING,
    "NonZero(())*": "a scalar has one row of indices; by the standard it has none",
    "OneHot(()*": "no scalar indices",
    "OneHot(3,(),2) axis=-2": "no OneHot for this mix of types",
    "Pad(()*": "no scalar",
    "Pad(* of strings": _NO_STRINGS,
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
    "RNN(*activations=('ThresholdedRelu',),hidden_size=2": "its threshold is 0 by default; that of the operator is 1",
    "RNN(*'softsign', 'SOFTPLUS'*": "names of activations in one spelling only",
    "RNN(*layout=1*": _NO_BATCHWISE,
    "SpaceToDepth(* of strings": _NO_STRINGS,
    "SplitToSequence(2x7) split [0-9]*": "heeds keepdims, which a split makes void",
    "StringSplit(4) delimiter=,*": "finds nothing in an empty string; by ONNX's reference one part",
    "StringSplit(3) white space": "splits at spaces only, not at other white space",
    "SoftmaxCrossEntropyLoss(4x3,4) wide": "sums in float32, where e^-31 is lost beside 1",
    "STFT(* one frame": "needs a window or the length of a frame",
    "SwiGLU(*": "came with opset 28",
    "TopK(*sorted=0": "the order is left open",
    "ZipMap(*": _NO_MAPS,
    "TreeEnsemble(*post_transform=1 softmax": "a softmax that does not add up to 1",
}

BY_BODY: dict[str, str] = {
    "Attention(* short mask": "its own needs a mask that covers every key",
    "Attention(* short bool mask": "its own needs a mask that covers every key",
    "Attention(*left_window_size=*": "the attribute is newer than its own",
    "CausalConvWithState(*": "came with opset 27",
    "FlexAttention(*": "of a preview",
    "LinearAttention(*": "came with opset 27",
    "MeanVarianceNormalization(*": "its own does not add the 1e-9 of the function body",
    "SpaceToDepth(*mode=CRD": "the attribute came with opset 28",
}

FILE_GAPS: dict[str, str] = {
    "DequantizeLinear(* int4": _NO_INT4,
    "MaxUnpool(*": "its gradient unpools indices, and MaxUnpool is there for floats only",
    "OneHot(()*": "no scalar indices",
    "OneHot(3,(),2) axis=-2": "adds the depth to an index before it is cut to an integer",
    "ReverseSequence(*batch_axis=2": _REVERSE,
    "ReverseSequence(*time_axis=2*": _REVERSE,
    "TopK(*sorted=0": "the order is left open",
}

CRASHES: dict[str, str] = {  # or passes by chance
    "StringNormalizer(*": "needs the locale that it names, which may not be installed",
    "com.microsoft.Attention(2x3x4,4x12) num_heads=1": "ends the process: no bias for the projections",
    "com.microsoft.WordConvEmbedding(* words without characters": "leaves their results unwritten",
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
