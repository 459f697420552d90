"""Determinants and inverses."""

import numpy as np

from tests.ops.case import arr, case


def of_rank(rank: int, n: int) -> np.ndarray:
    """A singular matrix of small whole numbers."""
    rows = arr(rank, n, low=-4, high=4).round()
    weights = arr(n - rank, rank, low=-2, high=2, seed=1).round()
    return np.concatenate([rows, weights @ rows])[np.random.default_rng(0).permutation(n)]


CASES = [
    case("Det", arr(3, 3)),
    case("Det", arr(2, 4, 4)),
    case("Det", arr(2, 1, 2, 2)),
    case("Det", arr(3, 1, 1)),
    case("Det", arr(6, 6)),
    *(case("Det", of_rank(rank, 4), label=f"of rank {rank}") for rank in (3, 2, 1)),
    case("Det", np.zeros((3, 3)), label="zeros"),
    case("Det", np.stack([of_rank(2, 3), np.eye(3), of_rank(1, 3)]), label="some singular"),
    case("Det", np.diag([1e-3, 1e3, 1.0]) @ arr(3, 3), label="scaled"),
    case("Det", arr(0, 3, 3), label="empty"),
    case("Det", arr(2, 0, 0), label="of nothing"),
    case("Det", arr(2, 2) + 1j * arr(2, 2, seed=1), label="complex"),
    case("Cofactors", arr(2, 3, 3), domain="gradcheck"),
    *(case("Cofactors", of_rank(rank, 4) / 8, domain="gradcheck", label=f"of rank {rank}") for rank in (3, 2, 1)),
    case("Cofactors", arr(1, 1), domain="gradcheck"),
    case("Inverse", arr(3, 3), domain="com.microsoft"),
    case("Inverse", arr(2, 1, 2, 2), domain="com.microsoft"),
    case("Inverse", arr(3, 1, 1), domain="com.microsoft"),
    case("Inverse", arr(2, 2) + 1j * arr(2, 2, seed=1), domain="com.microsoft", label="complex"),
]
