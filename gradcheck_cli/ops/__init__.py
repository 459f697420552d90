"""The operators that gradcheck knows: `OPS`, a mapping by (domain, name) of one `Op` record each.

`FAMILIES` says in which file an operator stands; the file is imported where one of its operators is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from gradcheck_cli.op import Op, table

FAMILIES = (  # file in this folder, list in it, domain, names
    ("activation", "ACTIVATION", "",
     "Relu LeakyRelu PRelu Elu Selu Celu Shrink ThresholdedRelu Clip HardSigmoid HardSwish Sigmoid Softplus "
     "Softsign Softmax LogSoftmax Gelu Mish Swish SwiGLU"),
    ("attention", "ATTENTION", "", "Attention RotaryEmbedding"),
    ("attention", "ATTENTION", "ai.onnx.preview", "FlexAttention"),
    ("binary", "BINARY", "",
     "Add Sub Mul Div Pow Mod Sum Mean Max Min Where Equal Less LessOrEqual Greater GreaterOrEqual And Or Xor "
     "BitwiseAnd BitwiseOr BitwiseXor BitShift BitCast"),
    ("ml.classic", "CLASSIC", "ai.onnx.ml",
     "Scaler Normalizer LinearRegressor LinearClassifier ArrayFeatureExtractor Binarizer Imputer "
     "FeatureVectorizer SVMRegressor SVMClassifier"),
    ("deform", "COLUMNS", "", "DeformConv Col2Im"),
    ("subgraphs", "CONTROL_FLOW", "", "If Loop Scan"),
    ("conv", "CONV", "", "Conv ConvTranspose"),
    ("onnxruntime.fused", "FUSED", "com.microsoft",
     "GatherND Pad Trilu QuantizeLinear DequantizeLinear BiasAdd BiasDropout BiasGelu BiasSoftmax "
     "BiasSplitGelu CDist ComplexMul ComplexMulConj ExpandDims FastGelu FusedConv FusedGemm FusedMatMul "
     "FusedMatMulActivation Gelu GridSample GemmFastGelu QuickGelu Range SampleOp ScaledSiLU "
     "SparseToDenseMatMul TorchEmbedding TransposeMatMul UnfoldTensor ConvTransposeWithDynamicPads "
     "CropAndResize MaxpoolWithMask WordConvEmbedding"),
    ("onnxruntime.fused", "FUSED", "", "DynamicSlice MemcpyFromHost MemcpyToHost Scale"),
    ("onnxruntime.fused_attention", "FUSED_ATTENTION", "com.microsoft",
     "Attention DecoderMaskedMultiHeadAttention GroupQueryAttention MRotaryEmbedding MultiHeadAttention "
     "QAttention RotaryEmbedding SparseAttention"),
    ("onnxruntime.fused_experts", "FUSED_EXPERTS", "com.microsoft",
     "MoE MoEGroupRouter QMoE GatherBlockQuantized MatMulBnb4 MatMulFpQ4"),
    ("onnxruntime.fused_layers", "FUSED_LAYERS", "", "SimplifiedLayerNormalization"),
    ("onnxruntime.fused_layers", "FUSED_LAYERS", "com.microsoft",
     "EmbedLayerNormalization GatedRMSNorm GroupNorm QEmbedLayerNormalization SkipGroupNorm "
     "SkipLayerNormalization SkipSimplifiedLayerNormalization BranchwiseRMSNorm EngramGate GatedAdd "
     "HyperConnectionPostMix HyperConnectionPreMix CausalConvWithState LinearAttention LinearAttentionGate"),
    ("onnxruntime.fused_packed", "FUSED_PACKED", "com.microsoft", "GatedDeltaNet VarlenCausalConvWithState"),
    ("onnxruntime.fused_quantize", "FUSED_QUANTIZE", "com.microsoft",
     "DynamicQuantizeMatMul MatMulInteger16 MatMulIntegerToFloat MatMulNBits MulInteger NhwcMaxPool QGemm "
     "QLinearAdd QLinearAveragePool QLinearConv QLinearConcat QLinearGlobalAveragePool QLinearLeakyRelu "
     "QLinearMul QLinearSigmoid QLinearSoftmax QLinearWhere AttnLSTM DynamicQuantizeLSTM"),
    ("onnxruntime.fused_tokens", "FUSED_TOKENS", "com.microsoft",
     "BifurcationDetector DynamicTimeWarping MurmurHash3 NGramHashMapping NGramRepeatBlock Tokenizer "
     "VarlenNGramHashMapping Unique"),
    ("images", "IMAGES", "", "RoiAlign MaxRoiPool ImageDecoder"),
    ("index", "INDEX", "", "Gather GatherElements GatherND Compress OneHot NonZero ReverseSequence Range"),
    ("linalg", "LINALG", "", "Det"),
    ("linalg", "LINALG", "gradcheck", "Cofactors"),
    ("linalg", "LINALG", "com.microsoft", "Inverse"),
    ("loss", "LOSS", "", "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss"),
    ("matmul", "MATMUL", "", "MatMul Gemm Einsum"),
    ("normalization", "NORMALIZATION", "",
     "BatchNormalization InstanceNormalization GroupNormalization LayerNormalization RMSNormalization "
     "LpNormalization MeanVarianceNormalization"),
    ("onnxruntime.packed_formats", "PACKED_FORMATS", "com.microsoft", "GatherPacked"),
    ("pad", "PAD", "", "Slice Pad CenterCropPad Tile Trilu"),
    ("pool", "POOL", "", "MaxPool AveragePool LpPool GlobalAveragePool GlobalMaxPool GlobalLpPool LRN MaxUnpool"),
    ("quantize", "QUANTIZE", "gradcheck", "Rounded Counted"),
    ("quantize", "QUANTIZE", "",
     "QuantizeLinear DequantizeLinear DynamicQuantizeLinear MatMulInteger ConvInteger QLinearMatMul "
     "QLinearConv"),
    ("random", "RANDOM", "",
     "Dropout RandomNormal RandomUniform RandomNormalLike RandomUniformLike Bernoulli Multinomial"),
    ("recurrent", "RECURRENT", "", "RNN GRU LSTM"),
    ("recurrent_whole", "WHOLE", "gradcheck", "RNN RNNGrad GRU GRUGrad LSTM LSTMGrad"),
    ("reduce", "REDUCE", "",
     "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL2 ReduceLogSumExp ReduceL1 ReduceSumSquare "
     "ReduceLogSum ArgMax ArgMin CumSum CumProd"),
    ("resize", "RESIZE", "", "Resize"),
    ("sampling", "SAMPLING", "", "GridSample AffineGrid"),
    ("scatter", "SCATTER", "", "ScatterND ScatterElements TensorScatter"),
    ("sequence", "SEQUENCE", "",
     "SequenceEmpty SequenceConstruct SequenceInsert SequenceErase SequenceAt SequenceLength SequenceMap "
     "SplitToSequence ConcatFromSequence Optional OptionalHasElement OptionalGetElement"),
    ("sequence", "SEQUENCE", "gradcheck", "Element"),
    ("shape", "SHAPE", "",
     "Reshape Flatten Squeeze Unsqueeze Transpose Expand Split Concat Cast CastLike Shape Size ConstantOfShape "
     "EyeLike DepthToSpace SpaceToDepth"),
    ("sort", "SORT", "", "TopK Hardmax Unique NonMaxSuppression"),
    ("spectral", "SPECTRAL", "", "DFT STFT HannWindow HammingWindow BlackmanWindow MelWeightMatrix"),
    ("spectral", "SPECTRAL", "gradcheck", "Complex Real Imag Conj Angle FFT IFFT"),
    ("recurrent", "STATEFUL", "", "CausalConvWithState LinearAttention"),
    ("strings", "STRINGS", "", "StringConcat StringNormalizer StringSplit RegexFullMatch TfIdfVectorizer"),
    ("ml.tables", "TABLES", "ai.onnx.ml", "LabelEncoder CategoryMapper OneHotEncoder ZipMap DictVectorizer CastMap"),
    ("ml.tables", "TABLES", "gradcheck", "MapConstruct"),
    ("training", "TRAINING", "ai.onnx.preview.training", "Adagrad Adam Momentum Gradient"),
    ("onnxruntime.training_index", "TRAINING_INDEX", "com.microsoft",
     "BroadcastGradientArgs ConcatTraining FlattenAndUnpad GatherElementsGrad GatherGrad GatherNDGrad "
     "PadAndUnflatten ReduceSumTraining ShrunkenGather SliceGrad SplitTraining View ConvGrad ConvTransposeGrad "
     "ResizeGrad"),
    ("onnxruntime.training_index", "TRAINING_INDEX", "", "AveragePoolGrad ConvGrad MaxPoolGrad"),
    ("onnxruntime.training_layers", "TRAINING_LAYERS", "",
     "SinGrad SparseSoftmaxCrossEntropy SparseSoftmaxCrossEntropyGrad"),
    ("onnxruntime.training_layers", "TRAINING_LAYERS", "com.microsoft",
     "BiasFastGeluGrad_dX BiasGeluGrad_dX DivGrad FastGeluGrad GeluGrad LeakyReluGrad LogSoftmaxGrad "
     "LogSoftmaxGrad_13 QuickGeluGrad ReluGrad SigmoidGrad SoftmaxGrad SoftmaxGrad_13 TanhGrad "
     "BiasSoftmaxDropout BitmaskBiasDropout BitmaskDropout BitmaskDropoutGrad DropoutGrad FakeQuant "
     "FakeQuantGrad SoftmaxDropoutGrad NegativeLogLikelihoodLossInternal NegativeLogLikelihoodLossInternal2 "
     "SoftmaxCrossEntropy SoftmaxCrossEntropyGrad SoftmaxCrossEntropyLossGrad SoftmaxCrossEntropyLossInternal "
     "SoftmaxCrossEntropyLossInternalGrad BatchNormInternal BatchNormalizationGrad "
     "InvertibleLayerNormalizationGrad LayerNormalizationGrad SimplifiedLayerNormalizationGrad"),
    ("onnxruntime.training_recurrent", "TRAINING_RECURRENT", "com.microsoft",
     "GRUGrad GRUTraining LSTMGrad LSTMTraining"),
    ("onnxruntime.training_steps", "TRAINING_STEPS", "com.microsoft",
     "AdamWOptimizer InplaceClipGradNorm SGDOptimizerV2 AdamOptimizer All BatchScale Group InPlaceAccumulator "
     "InPlaceAccumulatorV2 IsAllFinite IsFinite MixedPrecisionScale PassThrough ReduceAllL2 SGDOptimizer Scale "
     "ScaledSum ZeroGradient"),
    ("ml.trees", "TREES", "ai.onnx.ml", "TreeEnsemble TreeEnsembleRegressor TreeEnsembleClassifier"),
    ("unary", "UNARY", "",
     "Abs Neg Reciprocal Sqrt Exp Log Erf Sin Cos Tan Asin Acos Atan Sinh Cosh Tanh Asinh Acosh Atanh Identity "
     "Floor Ceil Round Sign IsNaN IsInf Not BitwiseNot"),
)  # fmt: skip


class OperatorFamilies(Mapping[tuple[str, str], Op]):
    """The operators of some families by (domain, name), each imported with its family at first use."""

    def __init__(self) -> None:
        families = ((family, domain, names.split()) for *family, domain, names in FAMILIES)
        self._family = {(domain, name): family for family, domain, names in families for name in names}
        self._loaded: dict[tuple[str, str], Op] = {}

    def __getitem__(self, key: tuple[str, str]) -> Op:
        if key not in self._loaded:
            file, variable = self._family[key]
            self._loaded.update(table(getattr(import_module(f"{__name__}.{file}"), variable)))
        return self._loaded[key]

    def __contains__(self, key: object) -> bool:
        return key in self._family

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._family)

    def __len__(self) -> int:
        return len(self._family)

    def __repr__(self) -> str:
        """A word, since the signatures of functions that take operators show it."""
        return f"<OPS: {len(self)} operators>"


OPS = OperatorFamilies()
