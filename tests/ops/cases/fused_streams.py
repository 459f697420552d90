"""Residual streams of com.microsoft: grouped and side by side, every form of scale and gate."""

from tests.ops.case import arr
from tests.ops.cases.fused import ms

X, FLAT, BLOCK = arr(2, 3, 4), arr(2, 12), arr(2, 4)
KEY, QUERY, VALUE = arr(1, 2, 3, 4), arr(1, 2, 3, 4, seed=1), arr(1, 2, 4)

CASES = [
    ms("BranchwiseRMSNorm", X),
    ms("BranchwiseRMSNorm", X, arr(4), epsilon=0.1),
    ms("BranchwiseRMSNorm", X, arr(3, 4)),
    ms("BranchwiseRMSNorm", FLAT, arr(12), num_branches=3),
    ms("BranchwiseRMSNorm", FLAT, arr(4), num_branches=3),
    ms("HyperConnectionPreMix", X, arr(2, 3)),
    ms("HyperConnectionPreMix", X, arr(2, 3, 1), reduction_scale=0.5),
    ms("HyperConnectionPreMix", X, arr(2, 3, 4, seed=1)),
    ms("HyperConnectionPreMix", FLAT, arr(2, 12, seed=1), num_branches=3),
    ms("HyperConnectionPostMix", X, BLOCK, arr(2, 3)),
    ms("HyperConnectionPostMix", X, BLOCK, arr(2, 3, 1), arr(2, 3, 3)),
    ms("HyperConnectionPostMix", FLAT, BLOCK, arr(2, 3, 4, seed=1), arr(2, 3, 3), num_branches=3),
    ms("GatedAdd", X, arr(2, 3, 4, seed=1), arr(2, 3, 1)),
    ms("GatedAdd", X, arr(2, 3, 4, seed=1), arr(2, 3, 5), arr(5, 1), label="projected"),
    ms("EngramGate", KEY, QUERY, VALUE, arr(3, 4), arr(3, 4, seed=1)),
    ms("EngramGate", KEY, QUERY, VALUE, arr(3, 4), arr(3, 4, seed=1), arr(3, 4, seed=2), n_outputs=2, epsilon=0.1),
]
