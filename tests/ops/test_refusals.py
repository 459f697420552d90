"""What does not fit is refused with an error, and a tensor that no memory holds is never allocated."""

from __future__ import annotations

import numpy as np
import pytest

from gradcheck_cli.errors import LimitError, ModelError
from tests.ops.case import Case, arr, case

HUGE = 1 << 50

UNFIT = [
    case("Gather", arr(3), [3]),
    case("Gather", arr(3), [-4]),
    case("Gather", arr(), [0]),
    case("Gather", arr(3), [0], axis=1),
    case("GatherElements", arr(3, 2), [[0, 0, 0]]),
    case("GatherElements", arr(3, 2), [[0, 5]]),
    case("GatherND", arr(3, 2), [[3]]),
    case("GatherND", arr(3, 2), [[0, 0, 0]]),
    case("GatherND", arr(3, 2), [[0]], batch_dims=1),
    case("ScatterND", arr(3), [[5]], arr(1)),
    case("ScatterND", arr(3), [[1]], arr(2)),
    case("ScatterND", arr(3), [[1]], arr(1), reduction="mean"),
    case("ScatterElements", arr(3), [4], arr(1)),
    case("ScatterElements", arr(3), [1], arr(2)),
    case("TensorScatter", arr(2, 4, 3), arr(2, 2, 3), [3, 0]),
    case("Compress", arr(2), [False, False, True], axis=0),
    case("OneHot", [1], -3, [0.0, 1.0]),
    case("OneHot", [1], 3, [0.0, 1.0, 2.0]),
    case("ReverseSequence", arr(2, 2), [3, 1]),
    case("Range", 0.0, 1.0, 0.0),
    case("Range", 0.0, np.nan, 1.0),
    case("Slice", arr(3), [0], [1], [4]),
    case("Slice", arr(3), [0], [1], [0], [0]),
    case("Slice", arr(3), [0, 0], [1, 1], [0, 0]),
    case("Pad", arr(3), [-2, -2]),
    case("Pad", arr(3), [-5, 9]),
    case("Pad", arr(0), [1, 1], mode="edge"),
    case("Pad", arr(3), [1, 1], mode="mirror"),
    case("Tile", arr(3), [1, 1]),
    case("Trilu", arr(3)),
    case("CenterCropPad", arr(2), [1, 2]),
    case("DepthToSpace", arr(1, 3, 2, 2), blocksize=2),
    case("SpaceToDepth", arr(1, 3, 3, 2), blocksize=0),
    case("Reshape", arr(4), [3]),
    case("ReduceSum", arr(2), [3]),
    case("ReduceProd", arr(2, 2), [0, -2]),
    case("ArgMax", arr(0)),
    case("CumSum", arr(2), [0, 1]),
    case("TopK", arr(3), [4], n_outputs=2),
    case("Einsum", arr(2), equation="i,j"),
    case("Einsum", arr(2), arr(3), equation="i,i"),
    case("Einsum", arr(2), equation="i->k"),
    case("Einsum", arr(2, 3), equation="ii"),
    case("Einsum", arr(2, 3), equation="...i...->i"),
    case("NonMaxSuppression", arr(1, 2, 3), arr(1, 1, 2)),
]
TOO_LARGE = [
    case("OneHot", [1], HUGE, [0.0, 1.0]),
    case("Pad", arr(3), [0, HUGE]),
    case("Range", 0, HUGE, 1),
    case("Tile", arr(3), [HUGE]),
    case("Expand", arr(2), [HUGE, 2]),
    case("ConstantOfShape", [HUGE, 1]),
    case("CenterCropPad", arr(2), [HUGE]),
]


@pytest.mark.parametrize("case", UNFIT, ids=lambda c: c.id)
def test_what_does_not_fit_is_an_error_that_names_the_node(case: Case) -> None:
    with pytest.raises(ModelError, match="node 0"):
        case.tape()


@pytest.mark.parametrize("case", TOO_LARGE, ids=lambda c: c.id)
def test_what_no_memory_holds_is_a_limit(case: Case) -> None:
    with pytest.raises(LimitError):
        case.tape()
