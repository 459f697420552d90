"""The table of `jacobians` once more with every library on one thread, so that cores, and who uses them, do not count.

python -m benchmarks.one_thread
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.alone import alone
from benchmarks.jacobians import HEAD
from benchmarks.table import Table, write

VARIABLES = {  # libraries read them while they are imported
    "GRADCHECK_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",  # NumPy
    "OMP_NUM_THREADS": "1",  # PyTorch
    "MKL_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",  # JAX, which still runs several operations at once
    "NPROC": "1",  # but for this
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
}


def tables(quick: bool = False) -> Iterator[Table]:
    """One table."""
    rows, _ = alone("benchmarks.jacobians:rows", VARIABLES, quick=quick, jobs=1)
    yield Table("Jacobians, one thread", HEAD, [tuple(row) for row in rows])


if __name__ == "__main__":
    write(*tables())
