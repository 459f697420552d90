"""The numerical Jacobian beside what this machine could do at best: one run for each row, nothing but its products.

python -m benchmarks.limit
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.cases import CASES, Case
from benchmarks.table import Table, write
from benchmarks.timing import in_turns
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.formats.onnx.read import read_proto
from gradcheck_cli.jacobian.directions import Directions
from gradcheck_cli.jacobian.jacobian import by_complex_step
from gradcheck_cli.native import matmul
from gradcheck_cli.ops import OPS

SIZE = 1024  # of the square product whose rate is the machine's limit


def tables(quick: bool = False) -> Iterator[Table]:
    """One table: times against products of one run a row at the machine's best rate."""
    head = ("case", "rows", "numerical Jacobian, s", "Gflop", "machine's limit, GF/s", "times the limit")
    table = Table("Numerical Jacobian and the machine's limit", head)
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, SIZE, SIZE))
    for case in CASES[:1] if quick else CASES:
        times = in_turns({"ours": numerical(case), "kernel": lambda: matmul(a, b), "numpy": lambda: a @ b})
        best = 2 * SIZE**3 / min(statistics.median(times["kernel"]), statistics.median(times["numpy"]))
        work, seconds = 2 * case.products * case.x.size, statistics.median(times["ours"])
        table.add(case.name, case.x.size, seconds, work / 1e9, best / 1e9, seconds * best / work)
    yield table


def numerical(case: Case, jobs: int | None = None) -> Callable[[], Any]:
    """The numerical Jacobian of a case by the complex step, every row on its own, and nothing else."""
    tape = trace(read_proto(case.model()).graph, {"x": case.x}, ops=OPS)
    budget = Budget() if jobs is None else Budget(jobs=jobs)

    def run() -> Any:
        program = Program(tape, [tape.named["x"].name], [tape.named["y"].name])
        return by_complex_step(program, Directions(case.x, range(case.x.size)), budget)

    return run


if __name__ == "__main__":
    write(*tables())
