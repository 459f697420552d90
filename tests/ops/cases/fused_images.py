"""Windows and crops of com.microsoft: masks of every reach, boxes inside and outside, pads as an input, words."""

import numpy as np

from tests.ops.case import arr, ints
from tests.ops.cases.fused import ms

IMAGE, MASK = arr(2, 2, 4, 5), ints(2, 2, 4, 5, high=1).astype(np.int32)
BOXES = np.array([[0.05, 0.1, 0.9, 0.95], [0.1, 0.2, 0.7, 0.85], [-0.2, 0.03, 0.55, 1.4], [0.8, 0.4, 0.3, 0.7]])
PLACES = np.array([0, 1, 1, 0], np.int32)
WORDS = np.array([[1, 2, 3, 0], [2, 0, 0, 0], [3, 4, 5, 1], [1, 0, 2, 3]], np.int32)
EMPTY = np.array([[1, 2, 3, 0], [0, 0, 0, 0], [0, 1, 2, 3]], np.int32)
SMALL = np.array([3, 4], np.int32)


CASES = [
    ms("MaxpoolWithMask", IMAGE, MASK, kernel_shape=[2, 2]),
    ms("MaxpoolWithMask", IMAGE, MASK, kernel_shape=[3, 2], pads=[1, 0, 1, 1], strides=[1, 2]),
    ms("MaxpoolWithMask", IMAGE, MASK, kernel_shape=[2, 3], auto_pad="SAME_UPPER", storage_order=1),
    ms("MaxpoolWithMask", IMAGE, MASK[:1, :1], kernel_shape=[2, 2], label="one mask"),
    ms("MaxpoolWithMask", arr(2, 2, 7), MASK[:, :, 0, [0, 1, 2, 3, 4, 0, 1]], kernel_shape=[3]),
    ms("MaxpoolWithMask", arr(1, 3, 2, 3, 4), ints(1, 3, 2, 3, 4, high=1).astype(np.int32), kernel_shape=[2, 2, 2]),
    ms("CropAndResize", IMAGE, BOXES, PLACES, SMALL),
    ms("CropAndResize", IMAGE, BOXES, PLACES, SMALL, extrapolation_value=1.5),
    ms("CropAndResize", IMAGE, BOXES, PLACES, SMALL, mode="nearest", extrapolation_value=-1.0),
    ms("CropAndResize", IMAGE, BOXES, PLACES, np.array([1, 1], np.int32)),
    ms("ConvTransposeWithDynamicPads", arr(1, 2, 3, 4), arr(2, 3, 3, 2), np.array([1, 0, 0, 1]), kernel_shape=[3, 2],
       strides=[2, 2]),
    ms("ConvTransposeWithDynamicPads", arr(1, 2, 3, 4), arr(2, 2, 2, 2), np.array([0, 0, 1, 0]), arr(4), group=2,
       kernel_shape=[2, 2], strides=[1, 2], dilations=[2, 1]),
    ms("WordConvEmbedding", WORDS, arr(5, 1, 2, 3), arr(5), arr(6, 3)),
    ms("WordConvEmbedding", EMPTY, arr(5, 1, 2, 3), arr(5), arr(6, 3), label="words without characters"),
    ms("WordConvEmbedding", WORDS, arr(5, 1, 3, 3), arr(5), arr(6, 3), embedding_size=5, conv_window_size=3),
]  # fmt: skip
