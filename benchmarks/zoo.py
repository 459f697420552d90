"""Many small models, each in a process of its own: what that costs beside the same checks in one process.

The processor's time is read for the whole machine, since it is spread over processes that come and go: anything else that
runs meanwhile counts too.

python -m benchmarks.zoo
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

from benchmarks.alone import alone
from benchmarks.table import Table, write

TITLE = "Many models"
MODELS = {  # of four kinds in turns, each with weights of its own
    "dense": ("(float[4,16] x, float[16,12] w) => (float[4,12] y) { h = MatMul (x, w) \n y = Tanh (h) }", (16, 12)),
    "convolution": ("(float[2,3,9,9] x, float[4,3,3,3] w) => (float[2,4,7,7] y) { h = Conv (x, w) \n y = Relu (h) }",
                    (4, 3, 3, 3)),
    "softmax": ("(float[3,8] x, float[8,8] w) => (float[3,8] y) { h = MatMul (x, w) \n y = Softmax (h) }", (8, 8)),
    "norm": ("(float[4,10] x, float[10] w) => (float[4,10] y) { h = Mul (x, w) \n n = ReduceL2 <axes = [1]> (h) \n"
             " y = Div (h, n) }", (10,)),
}  # fmt: skip
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_IDLE = (3, 4)  # fields of a line of /proc/stat: idle, waiting for a disk


def tables(quick: bool = False) -> Iterator[Table]:
    """One table: the same models by the engine and in one process."""
    count = 12 if quick else 300
    head = (
        "models",
        "at once",
        "wall, s",
        "cores busy, %",
        "CPU a model, ms",
        "in one process, ms",
        "added, ms",
        "driver grew by, MB",
    )
    table = Table(TITLE, head, note="CPU time is that of the whole machine: run it where nothing else does.")
    with tempfile.TemporaryDirectory() as folder:
        paths = prepare(Path(folder), count)
        here, _ = alone("benchmarks.zoo:in_one_process", paths=paths)
        for jobs in (1, os.cpu_count() or 1):
            (wall, busy, cpu, grown), _ = alone("benchmarks.zoo:by_engine", paths=paths, jobs=jobs)
            table.add(
                count, jobs, wall, 1e2 * busy, 1e3 * cpu / count, 1e3 * here / count, 1e3 * (cpu - here) / count, grown
            )
    yield table


def prepare(folder: Path, count: int) -> list[str]:
    """So many models as files."""
    rng, paths = np.random.default_rng(0), []
    for index in range(count):
        name, (text, shape) = list(MODELS.items())[index % len(MODELS)]
        graph = parser.parse_graph(f"{name} {text}")
        graph.initializer.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), "w"))
        graph.input.pop()
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        paths.append(str(folder / f"{index}-{name}.onnx"))
        onnx.save(model, paths[-1])
    return paths


def in_one_process(paths: list[str]) -> float:
    """Seconds of CPU that the checks take, one after another, where everything is imported and was used once."""
    from gradcheck_cli.cli.zoo import child_check as check
    from gradcheck_cli.zoo.child import Desk, Errand

    with open(os.devnull, "wb") as nobody:

        def one(path: str) -> None:
            job = _job(path)
            found = list(check.records(job, Desk(Errand(job, "", None, 8 << 30, 8 << 30), nobody.fileno())))
            _require({record["status"] for record in found})

        for path in paths[: len(MODELS)]:
            one(path)
        before = cpu()[0]
        for path in paths:
            one(path)
        return cpu()[0] - before


def by_engine(paths: list[str], jobs: int) -> tuple[float, float, float, float]:
    """Wall time, the share of the cores that was busy, seconds of CPU, and megabytes that the driver grew by."""
    from gradcheck_cli.checks.isolation import resident
    from gradcheck_cli.zoo import Limits, engine

    def done(job: Any, records: list[dict[str, Any]]) -> None:
        _require({record["status"] for record in records})

    engine.run(map(_job, paths[: 2 * jobs]), Limits(jobs=jobs), done)  # its server has started
    held, start, (before, whole) = resident(os.getpid()), time.perf_counter(), cpu()
    engine.run(map(_job, paths), Limits(jobs=jobs), done)
    wall, (after, end) = time.perf_counter() - start, cpu()
    grown = (resident(os.getpid()) - held) / (1 << 20)
    return wall, (after - before) / max(end - whole, 1e-9), after - before, grown


def cpu() -> tuple[float, float]:
    """Seconds that all cores were busy since the machine started, and that they were there."""
    fields = [int(field) / _TICKS for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return sum(fields) - sum(fields[i] for i in _IDLE), sum(fields)


def _job(path: str) -> Any:
    from gradcheck_cli.zoo import Job

    return Job(path, path, options={"save_failures": "none"}, key=path)


def _require(statuses: set[str]) -> None:
    if statuses != {"pass"}:
        raise RuntimeError(f"a model of the benchmark did not pass: {', '.join(sorted(statuses))}")


if __name__ == "__main__":
    write(*tables())
