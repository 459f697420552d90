"""Products."""

from tests.ops.case import arr, case

CASES = [
    case("MatMul", arr(2, 3), arr(3, 4)),
    case("MatMul", arr(3), arr(3)),
    case("MatMul", arr(3), arr(3, 4)),
    case("MatMul", arr(2, 3), arr(3)),
    case("MatMul", arr(3), arr(2, 3, 4)),
    case("MatMul", arr(2, 2, 3), arr(3)),
    case("MatMul", arr(5, 1, 2, 3), arr(4, 3, 2)),
    case("MatMul", arr(0, 3), arr(3, 4), label="empty"),
    case("Gemm", arr(2, 3), arr(3, 4), arr(4)),
    case("Gemm", arr(3, 2), arr(4, 3), arr(2, 1), alpha=0.5, beta=2.0, transA=1, transB=1),
    case("Gemm", arr(2, 3), arr(3, 4)),
    case("Gemm", arr(2, 3), arr(3, 4), arr()),
]
