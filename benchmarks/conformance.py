"""All engines that can be installed, held against the conformance cases: `python -m benchmarks.conformance [--out DIR]`.

Each engine gets a virtual environment of its own, or the one that `--python NAME=FILE` says; one that cannot be
installed or started here is left out, and told.  Prints the table of README, and writes scores and scoreboard.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from benchmarks.table import Table
from gradcheck_cli.errors import UsageError
from gradcheck_cli.reference.engines import ENGINES
from gradcheck_cli.reference.scores import STATUSES, Score, cases_in, publish, run, write

# What pip installs for an engine: adapters say what they need, these are the versions that the scores are of.
PACKAGES: dict[str, tuple[str, ...]] = {
    "onnx-ad": ("onnx-ad==0.3.0", "onnxruntime"),
    "onnxruntime-training": ("onnxruntime-training-cpu==1.19.2", "numpy<2", "onnx<1.17", "torch"),
    "onnx2torch": ("onnx2torch==1.5.15", "torch", "torchvision"),
    "onnx2pytorch": ("onnx2pytorch==0.6.0", "torch", "torchvision"),
    "tinygrad": ("tinygrad==0.14.0", "onnx"),
    "jaxonnxruntime": ("jaxonnxruntime==0.3.0", "jax", "absl-py", "chex", "onnx"),
}
COMPILING = {"tinygrad": 15}  # engines that compile for each shape: one case in so many


def main() -> int:
    """0, or 1 if one of our own gradients is wrong."""
    given = _parsed()
    given.out.mkdir(parents=True, exist_ok=True)
    pythons = dict(pair.split("=", 1) for pair in given.python)
    scores, seconds = [], {}
    with tempfile.TemporaryDirectory() as scratch:
        cases = given.cases or _written(Path(scratch) / "cases")
        for engine in ENGINES:
            python = sys.executable if engine == "gradcheck" else pythons.get(engine) or _installed(engine, scratch)
            if not python:
                continue
            start = time.perf_counter()
            try:
                score = run(engine, cases_in(cases)[:: COMPILING.get(engine, 1)], python)
            except UsageError as error:  # it does not start there
                if engine == "gradcheck":  # whose score comes first: the badge and the exit code are of it
                    raise
                print(f"{engine} is left out: {error}", file=sys.stderr)
                continue
            scores.append(score)
            seconds[engine] = time.perf_counter() - start
            scores[-1].write(given.out / f"{engine}.json")
            print(f"{engine}: {seconds[engine]:.0f} s", file=sys.stderr, flush=True)
    publish(scores, given.out / "scoreboard.html")
    publish(scores[:1], given.out / "badge.svg")
    print(_table(scores, seconds).markdown())
    return int(scores[0].count("wrong") > 0)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.conformance", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("conformance"), help="a folder for scores and scoreboard")
    parser.add_argument("--cases", type=Path, help="cases that were written before")
    parser.add_argument("--python", action="append", default=[], metavar="NAME=FILE", help="an engine's interpreter")
    return parser.parse_args()


def _written(folder: Path) -> Path:
    write(folder, lambda name, dropped: None)
    return folder


def _installed(engine: str, scratch: str) -> str:
    """The interpreter of a new environment that holds an engine; "" if it cannot be installed."""
    folder = Path(scratch) / engine
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    done = subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES[engine]], capture_output=True, text=True)
    if done.returncode:
        print(f"{engine} cannot be installed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
    return "" if done.returncode else python


def _table(scores: list[Score], seconds: dict[str, float]) -> Table:
    """A row for each engine."""
    made = Table("Gradients of ONNX engines", ("engine", "cases", *STATUSES, "seconds"))
    for score in scores:
        made.add(score.engine, len(score.answers), *(score.count(s) for s in STATUSES), round(seconds[score.engine]))
    return made


if __name__ == "__main__":
    sys.exit(main())
