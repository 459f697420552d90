"""Normalizations."""

import numpy as np

from tests.ops.case import arr, case


def statistics(c: int) -> tuple[np.ndarray, ...]:
    """Scale, bias, mean and variance of c channels."""
    return arr(c), arr(c, seed=1), arr(c, seed=2), arr(c, low=0.5, high=2, seed=3)


CASES = [
    case("BatchNormalization", arr(2, 3, 4, 2), *statistics(3)),
    case("BatchNormalization", arr(2, 3), *statistics(3), epsilon=0.1),
    case("BatchNormalization", arr(2, 3, 4), *statistics(3)),
    case("BatchNormalization", arr(5), *statistics(1)),
    case("BatchNormalization", arr(2, 2, 2, 2, 2), *statistics(2)),
    case("BatchNormalization", arr(0, 2, 2), *statistics(2), label="empty"),
    case("BatchNormalization", arr(2, 3, 4, 2), *statistics(3), training_mode=1, n_outputs=3),
    case(
        "BatchNormalization",
        arr(4, 3),
        *statistics(3),
        training_mode=1,
        momentum=0.3,
        epsilon=0.1,
        n_outputs=3,
    ),
    case("BatchNormalization", arr(2, 3, 4), *statistics(3), training_mode=1),
    case("BatchNormalization", arr(5), *statistics(1), training_mode=1, n_outputs=3),
    case("InstanceNormalization", arr(2, 3, 4, 2), arr(3), arr(3, seed=1)),
    case("InstanceNormalization", arr(2, 3, 4), arr(3), arr(3, seed=1), epsilon=0.1),
    case("InstanceNormalization", arr(1, 2, 2, 2, 2), arr(2), arr(2, seed=1)),
    case("GroupNormalization", arr(2, 4, 3, 2), arr(4), arr(4, seed=1), num_groups=2),
    case("GroupNormalization", arr(2, 4, 3), arr(4), arr(4, seed=1), num_groups=1, epsilon=0.1),
    case("GroupNormalization", arr(2, 4), arr(4), arr(4, seed=1), num_groups=2),
    case("GroupNormalization", arr(1, 3, 2, 2), arr(3), arr(3, seed=1), num_groups=3),
    case("LayerNormalization", arr(2, 3, 4), arr(4), arr(4, seed=1)),
    case("LayerNormalization", arr(2, 3, 4), arr(4)),
    case("LayerNormalization", arr(2, 3, 4), arr(4), arr(4, seed=1), n_outputs=3),
    case("LayerNormalization", arr(2, 3, 4), arr(3, 4), arr(3, 4, seed=1), axis=1, epsilon=0.1, n_outputs=3),
    case("LayerNormalization", arr(2, 3, 4), arr(2, 3, 4), arr(3, 4, seed=1), axis=0, n_outputs=2),
    case("LayerNormalization", arr(2, 3, 4), arr(3, 4), axis=-2),
    case("LayerNormalization", arr(4), arr(4), arr(4, seed=1)),
    case("LayerNormalization", arr(2, 3, 4), arr(3, 1), arr(), axis=1),
    case("LayerNormalization", arr(0, 4), arr(4), arr(4, seed=1), label="empty"),
    case("LayerNormalization", arr(3, 1), arr(1), arr(1, seed=1), label="nothing to normalize"),
    case("RMSNormalization", arr(2, 3, 4), arr(4)),
    case("RMSNormalization", arr(2, 3, 4), arr(3, 4), axis=1, epsilon=0.1),
    case("RMSNormalization", arr(2, 3, 4), arr(4), axis=0),
    case("RMSNormalization", arr(2, 3, 4), arr(3, 1), axis=-2),
    case("LpNormalization", arr(2, 3, 4)),
    case("LpNormalization", arr(2, 3, 4), axis=1, p=1),
    case("LpNormalization", arr(3, 4), axis=0, p=2),
    case("LpNormalization", arr(4), axis=-1),
    case("MeanVarianceNormalization", arr(2, 3, 2, 3)),
    case("MeanVarianceNormalization", arr(2, 3, 4), axes=(0, 2)),
    case("MeanVarianceNormalization", arr(2, 3, 4), axes=(-1,)),
    case("MeanVarianceNormalization", arr(2, 1), axes=(1,), label="nothing to normalize"),
]
