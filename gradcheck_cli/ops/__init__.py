"""The operators that gradcheck knows: `OPS`, a mapping by (domain, name) of one `Op` record each."""

from __future__ import annotations

from gradcheck_cli.op import table
from gradcheck_cli.ops.activation import ACTIVATION
from gradcheck_cli.ops.attention import ATTENTION
from gradcheck_cli.ops.binary import BINARY
from gradcheck_cli.ops.conv import CONV
from gradcheck_cli.ops.deform import COLUMNS
from gradcheck_cli.ops.images import IMAGES
from gradcheck_cli.ops.index import INDEX
from gradcheck_cli.ops.linalg import LINALG
from gradcheck_cli.ops.loss import LOSS
from gradcheck_cli.ops.matmul import MATMUL
from gradcheck_cli.ops.ml.classic import CLASSIC
from gradcheck_cli.ops.ml.svm import SVM
from gradcheck_cli.ops.ml.tables import TABLES
from gradcheck_cli.ops.ml.trees import TREES
from gradcheck_cli.ops.normalization import NORMALIZATION
from gradcheck_cli.ops.onnxruntime.fused import FUSED
from gradcheck_cli.ops.onnxruntime.fused_attention import FUSED_ATTENTION
from gradcheck_cli.ops.onnxruntime.fused_experts import FUSED_EXPERTS
from gradcheck_cli.ops.onnxruntime.fused_layers import FUSED_LAYERS, FUSED_STATEFUL, FUSED_STREAMS
from gradcheck_cli.ops.onnxruntime.fused_packed import FUSED_PACKED
from gradcheck_cli.ops.onnxruntime.fused_quantize import FUSED_QUANTIZE
from gradcheck_cli.ops.onnxruntime.fused_tokens import FUSED_TOKENS
from gradcheck_cli.ops.onnxruntime.packed_formats import PACKED_FORMATS
from gradcheck_cli.ops.onnxruntime.training_index import TRAINING_INDEX
from gradcheck_cli.ops.onnxruntime.training_layers import TRAINING_LAYERS
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
from gradcheck_cli.ops.spectral import SPECTRAL
from gradcheck_cli.ops.strings import STRINGS
from gradcheck_cli.ops.subgraphs import CONTROL_FLOW
from gradcheck_cli.ops.training import TRAINING
from gradcheck_cli.ops.unary import UNARY

OPS = table(
    ACTIVATION,
    ATTENTION,
    BINARY,
    CLASSIC,
    COLUMNS,
    CONTROL_FLOW,
    CONV,
    FUSED,
    FUSED_ATTENTION,
    FUSED_EXPERTS,
    FUSED_LAYERS,
    FUSED_PACKED,
    FUSED_QUANTIZE,
    FUSED_STATEFUL,
    FUSED_STREAMS,
    FUSED_TOKENS,
    IMAGES,
    INDEX,
    LINALG,
    LOSS,
    MATMUL,
    NORMALIZATION,
    PACKED_FORMATS,
    PAD,
    POOL,
    QUANTIZE,
    RANDOM,
    RECURRENT,
    REDUCE,
    RESIZE,
    SAMPLING,
    SCATTER,
    SEQUENCE,
    SHAPE,
    SORT,
    SPECTRAL,
    STATEFUL,
    STRINGS,
    SVM,
    TABLES,
    TRAINING,
    TRAINING_INDEX,
    TRAINING_LAYERS,
    TRAINING_RECURRENT,
    TRAINING_STEPS,
    TREES,
    UNARY,
)
