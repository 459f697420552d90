"""The operators that gradcheck knows: `OPS`, a mapping by (domain, name) of one `Op` record each."""

from __future__ import annotations

from gradcheck_cli.op import table
from gradcheck_cli.ops.activation import ACTIVATION
from gradcheck_cli.ops.attention import ATTENTION
from gradcheck_cli.ops.binary import BINARY, BITS
from gradcheck_cli.ops.conv import CONV
from gradcheck_cli.ops.deform import COLUMNS
from gradcheck_cli.ops.images import IMAGE, ROI
from gradcheck_cli.ops.index import INDEX
from gradcheck_cli.ops.linalg import LINALG
from gradcheck_cli.ops.loss import LOSS
from gradcheck_cli.ops.matmul import EINSUM, MATMUL
from gradcheck_cli.ops.ml.classic import CLASSIC
from gradcheck_cli.ops.ml.svm import SVM
from gradcheck_cli.ops.ml.tables import MAPS, TABLES
from gradcheck_cli.ops.ml.trees import TREES
from gradcheck_cli.ops.normalization import NORMALIZATION
from gradcheck_cli.ops.onnxruntime.fused import FUSED, FUSED_IMAGES
from gradcheck_cli.ops.onnxruntime.fused_attention import FUSED_ATTENTION
from gradcheck_cli.ops.onnxruntime.fused_experts import FUSED_EXPERTS, FUSED_WEIGHTS
from gradcheck_cli.ops.onnxruntime.fused_layers import FUSED_LAYERS, FUSED_STATEFUL, FUSED_STREAMS
from gradcheck_cli.ops.onnxruntime.fused_packed import FUSED_PACKED
from gradcheck_cli.ops.onnxruntime.fused_quantize import FUSED_QUANTIZE, FUSED_RECURRENT
from gradcheck_cli.ops.onnxruntime.fused_tokens import FUSED_TOKENS
from gradcheck_cli.ops.onnxruntime.packed_formats import PACKED_FORMATS
from gradcheck_cli.ops.onnxruntime.training_index import TRAINING_INDEX, TRAINING_WINDOWS
from gradcheck_cli.ops.onnxruntime.training_layers import (
    TRAINING_ACTIVATION,
    TRAINING_DROPOUT,
    TRAINING_LOSS,
    TRAINING_NORMALIZATION,
)
from gradcheck_cli.ops.onnxruntime.training_recurrent import TRAINING_RECURRENT
from gradcheck_cli.ops.onnxruntime.training_steps import TRAINING_STEPS
from gradcheck_cli.ops.pad import PAD
from gradcheck_cli.ops.pool import POOL
from gradcheck_cli.ops.quantize import QUANTIZE
from gradcheck_cli.ops.random import RANDOM
from gradcheck_cli.ops.recurrent import RECURRENT, STATEFUL
from gradcheck_cli.ops.reduce import REDUCE
from gradcheck_cli.ops.resize import RESIZE
from gradcheck_cli.ops.sampling import SAMPLING
from gradcheck_cli.ops.scatter import SCATTER
from gradcheck_cli.ops.sequence import SEQUENCE
from gradcheck_cli.ops.shape import SHAPE
from gradcheck_cli.ops.sort import SORT
from gradcheck_cli.ops.spectral import SIGNAL, SPECTRAL
from gradcheck_cli.ops.strings import NGRAMS, STRINGS
from gradcheck_cli.ops.subgraphs import CONTROL_FLOW
from gradcheck_cli.ops.training import GRADIENT, OPTIMIZER
from gradcheck_cli.ops.unary import UNARY

OPS = table(
    ACTIVATION,
    ATTENTION,
    BINARY,
    BITS,
    CLASSIC,
    COLUMNS,
    CONTROL_FLOW,
    CONV,
    EINSUM,
    FUSED,
    FUSED_ATTENTION,
    FUSED_EXPERTS,
    FUSED_IMAGES,
    FUSED_LAYERS,
    FUSED_PACKED,
    FUSED_QUANTIZE,
    FUSED_RECURRENT,
    FUSED_STATEFUL,
    FUSED_STREAMS,
    FUSED_TOKENS,
    FUSED_WEIGHTS,
    GRADIENT,
    IMAGE,
    INDEX,
    LINALG,
    LOSS,
    MAPS,
    MATMUL,
    NGRAMS,
    NORMALIZATION,
    OPTIMIZER,
    PACKED_FORMATS,
    PAD,
    POOL,
    QUANTIZE,
    RANDOM,
    RECURRENT,
    REDUCE,
    RESIZE,
    ROI,
    SAMPLING,
    SCATTER,
    SEQUENCE,
    SHAPE,
    SIGNAL,
    SORT,
    SPECTRAL,
    STATEFUL,
    STRINGS,
    SVM,
    TABLES,
    TRAINING_ACTIVATION,
    TRAINING_DROPOUT,
    TRAINING_INDEX,
    TRAINING_LOSS,
    TRAINING_NORMALIZATION,
    TRAINING_RECURRENT,
    TRAINING_STEPS,
    TRAINING_WINDOWS,
    TREES,
    UNARY,
)
