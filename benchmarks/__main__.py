"""Everything side by side: `python -m benchmarks [SUITE ...] [--quick] [--out DIR]`.

Prints the tables, then what was aimed at and whether it is met, and keeps all of it as `benchmarks.md`,
`benchmarks.json` and plots.  Each suite runs in a process of its own; peers that are not installed are absent.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.suites import SUITES, run
from gradcheck_cli import native


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 if some suite did not come to its end."""
    given = _parsed(arguments)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # modules that are compiled anew each time are not what users start
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="", JAX_PLATFORMS="cpu")
    from benchmarks import goals, plots, table  # what the suites are measured with, after the environment is set

    start, tables = time.perf_counter(), []
    for made in run(given.suites or SUITES, given.quick):
        tables.append(made)
        print(f"{made.markdown()}\n", flush=True)
        judged = goals.table_of(tables)
        table.write_all([*tables, judged], time.perf_counter() - start, given.out)  # so far, should it be stopped
    print(f"{judged.markdown()}\n\n{table.machine()}", flush=True)
    plots.draw([*tables, judged], given.out)
    return int(any(made.title.endswith("not finished") for made in tables))


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__.split("\n")[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"{', '.join(SUITES)}; all of them if none is named")
    parser.add_argument("--quick", action="store_true", help="the smallest cases, to see that all of it runs")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="a folder for the files")
    given = parser.parse_args(arguments)
    if native.info()["kernels"] != (os.environ.get("GRADCHECK_KERNELS") or "native"):
        parser.error("the gradcheck_cli of this folder has no native kernels: python -m pip install -e .")
    if unknown := set(given.suites) - set(SUITES):
        parser.error(f"no suite {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    return given


if __name__ == "__main__":
    sys.exit(main())
