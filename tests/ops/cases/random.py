"""Dropout and random numbers."""

from tests.ops.case import arr, case

P = arr(2, 3, low=0.1, high=0.9)

CASES = [
    case("Dropout", arr(2, 3), label="inference"),
    case("Dropout", arr(2, 3), 0.3, False, n_outputs=2),
    case("Dropout", arr(2, 3), 0.5, True),
    case("Dropout", arr(4, 5), 0.3, True, n_outputs=2, seed=7),
    case("Dropout", arr(2, 3), 0.0, True, n_outputs=2),
    case("Dropout", arr(2, 3), None, True),
    case("RandomNormal", shape=(2, 3)),
    case("RandomNormal", shape=(4,), dtype=11, mean=2.0, scale=0.5, seed=3.5),
    case("RandomUniform", shape=(2, 3)),
    case("RandomUniform", shape=(), dtype=10, low=-1.0, high=2.0),
    case("RandomNormalLike", P),
    case("RandomNormalLike", P, dtype=1, mean=1.0, scale=2.0, seed=1.0),
    case("RandomUniformLike", P),
    case("RandomUniformLike", P, dtype=11, low=2.0, high=3.0),
    case("Bernoulli", P),
    case("Bernoulli", P, dtype=7, seed=1.0),
    case("Multinomial", arr(2, 4)),
    case("Multinomial", arr(2, 4), sample_size=5, dtype=7),
]
