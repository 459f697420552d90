"""The kernels that there are: for each instruction set of this machine, and in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from gradcheck_cli import native
from gradcheck_cli.native.selection import kernels

ISAS = kernels.available() if kernels else []
KINDS = ["native", "numpy"] if kernels else ["numpy"]
needs_native = pytest.mark.skipif(kernels is None, reason="the extension module is not built")


def both(compute):
    """The results of the kernels and of NumPy."""
    with np.errstate(all="ignore"):
        with native.use("native"):
            got = compute()
        with native.use("numpy"):
            return got, compute()


@pytest.fixture(params=ISAS)
def isa(request):
    """Every instruction set that this machine runs, in turn."""
    before = kernels.isa()
    assert kernels.select(request.param)
    with native.use("native"):
        yield request.param
    kernels.select(before)
