"""Models of a few nodes at which other engines give wrong gradients: what is called right is, and confirmed elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.found import case_of, rows, written
from gradcheck_cli.reference.suite import confirmed

pytest.importorskip("onnxruntime", reason="it runs what ONNX's reference evaluator does not")


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row['engine']}: {row['case']}")
def test_the_right_numbers_are_ours_and_those_of_differences_elsewhere(row: dict[str, Any]) -> None:
    case = case_of(row)
    assert written(case.gradients[row["by"]]) == written(row["right"])
    assert confirmed(case)[1] < 1e-4
    given = np.zeros(1) if row["gives"] == "none" else np.float64(row["gives"])
    bound = case.bounds[row["by"]]
    assert given.size != np.size(row["right"]) or not np.allclose(given, row["right"], rtol=0, atol=bound)
    assert len(row["why"]) > 20 or row["why"] == "Likewise."
