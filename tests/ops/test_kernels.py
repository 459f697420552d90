"""Every operator case, forwards and backwards, is the same to rounding on the compiled kernels and on NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradcheck_cli import native
from gradcheck_cli.autodiff.backward import gradients, inexact
from gradcheck_cli.native.selection import Kind, kernels
from tests.ops.case import Case
from tests.ops.cases import CASES

pytestmark = pytest.mark.skipif(kernels is None, reason="the extension module is not built")


def computed(case: Case, kind: Kind) -> dict[str, Any]:
    """Everything on the tape of a case and of the gradients of its outputs, by name."""
    with native.use(kind):
        tape = case.tape()
        for y in [tape.named[y] for y in case.outputs if inexact(tape.named[y])]:
            ct = np.random.default_rng(0).normal(size=y.shape)
            gradients(tape, {y.name: tape.hold(tape.fresh("seed"), ct.astype(y.dtype))}, case.floats())
        return dict(tape.values)


@pytest.mark.one_in(20)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_an_operator_and_its_gradient_do_not_depend_on_the_kernels(case: Case) -> None:
    got, want = computed(case, "native"), computed(case, "numpy")
    assert got.keys() == want.keys()
    for name, value in want.items():
        if isinstance(value, np.ndarray) and value.dtype.kind in "fc" and value.dtype.itemsize > 1:
            rtol = max(1e-9, 64 * float(np.finfo(value.dtype).eps))
            scale = np.max(np.abs(value), initial=1.0, where=np.isfinite(value))
            np.testing.assert_allclose(got[name], value, rtol=rtol, atol=1e-3 * rtol * scale, err_msg=name)
