"""Wrong gradients that pass and right ones that fail: gradcheck beside the checkers of other libraries.

python -m benchmarks.verdicts --seeds 5 --torch-python /env/torch/bin/python --jax-python ... --tensorflow-python ...

Every checker gets the same functions, points and gradients, with its own settings as it ships (float32, for which
torch ships none, with eps 1e-3, atol 1e-3, rtol 1e-2; TensorFlow leaves the threshold to its user: two usual ones).
A library is looked for in this environment unless another one's Python is given.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

import gradcheck_cli
from benchmarks.table import Table, write
from benchmarks.verdict_cases import Case, cases
from benchmarks.verdict_peers import PEERS, packed, unpacked

WORKER = Path(__file__).with_name("verdict_peers.py")
LIBRARIES = {"torch": "torch", "TensorFlow": "tensorflow-cpu", "JAX": "jax"}
HEAD = ("checker", "misses", "false alarms", "of them hard", "inconclusive", "errors", "runs a row, right",
        "runs a row, wrong", "s")  # fmt: skip


@dataclass
class Tally:
    """Counts of a checker's verdicts so far."""

    name: str
    library: str = ""
    version: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    runs: tuple[Counter[str], Counter[str]] = field(default_factory=lambda: (Counter(), Counter()))  # right, wrong
    seconds: float = 0.0
    strange: list[str] = field(default_factory=list)

    def add(self, case: Case, verdict: str, evaluations: Mapping[str, int]) -> None:
        """One more verdict: pass, fail, inconclusive or an error."""
        right = case.kind != "wrong"
        word = verdict.split()[0]
        self.counts[case.kind] += 1
        self.counts[f"{case.kind} {word}"] += 1
        self.runs[not right].update({**evaluations, "rows": case.x.size})
        if word == "error" or (word == "fail") == right:
            self.strange.append(f"{case.kind} '{case.name}', seed {case.host.seed}: {verdict}")

    @property
    def row(self) -> tuple[Any, ...]:
        """The cells of the table."""
        c = self.counts
        if not c:
            return self.name, *("-" for _ in HEAD[1:])
        misses = f"{c['wrong pass']}/{c['wrong']}"
        alarms = f"{c['twin fail'] + c['hard fail']}/{c['twin'] + c['hard']}"
        hard = f"{c['hard fail']}/{c['hard']}"
        open_, errors = (
            sum(c[f"{kind} {word}"] for kind in ("wrong", "twin", "hard")) for word in ("inconclusive", "error")
        )
        runs = [self.runs_a_row(each) for each in self.runs]
        return self.name, misses, alarms, hard, open_, errors, *runs, f"{self.seconds:.1f}"

    def runs_a_row(self, runs: Counter[str]) -> str:
        """Evaluations of the function that a checker makes for a row of the Jacobian."""
        return ", ".join(f"{n / runs['rows']:.1f} {kind}" for kind, n in runs.items() if kind != "rows")


def main() -> None:
    """Scores everybody, prints the table and keeps it as JSON."""
    given = arguments()
    tested = [case for seed in range(given.start, given.start + given.seeds) for case in cases(seed)]
    tallies = [ours(tested)]
    for name in PEERS:
        python = getattr(given, f"{name.split()[0].lower()}_python")
        tallies.append(theirs(name, python, tested))
    peers = {t.library: t.version for t in tallies[1:] if t.version}
    table = Table("Verdicts", HEAD, versions=peers)
    for tally in tallies:
        table.add(*tally.row)
    write(table)
    for tally in tallies if given.show else ():
        print("\n".join(["", tally.name, *(f"  {line}" for line in tally.strange[: given.show])]))


def arguments() -> Any:
    """Arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--from", dest="start", type=int, default=0, help="the first seed")
    parser.add_argument("--show", type=int, default=0, help="how many wrong verdicts of each checker are named")
    for library in ("torch", "tensorflow", "jax"):
        parser.add_argument(f"--{library}-python", default=sys.executable, help=f"the Python that has {library}")
    return parser.parse_args()


def ours(tested: Sequence[Case]) -> Tally:
    """Verdict of gradcheck, without any setting."""
    tally, start = Tally(f"gradcheck {gradcheck_cli.__version__}"), time.perf_counter()
    for case in tested:
        model = case.host.model
        [record] = gradcheck_cli.check(
            model, "x", case.y, x_init_value={"x": case.x}, ops=case.ops, seed=case.host.seed
        ).checks
        tally.add(case, record.status, record.evaluations)
    tally.seconds = time.perf_counter() - start
    return tally


def theirs(name: str, python: str, tested: Sequence[Case]) -> Tally:
    """Verdicts of a peer; an empty row if it is not installed."""
    with connected(name, python) as line:
        version = line.recv()
        shown = name if version else f"{name} (absent)"
        tally, start = Tally(shown, LIBRARIES[name.split()[0]], version or ""), time.perf_counter()
        for case in tested if version is not None else ():
            tally.add(case, *asked(line, case, "float32" if "float32" in name else "float64"))
        if version is not None:
            line.send(None)
    tally.seconds = time.perf_counter() - start
    return tally


def asked(line: Any, case: Case, dtype: str) -> tuple[str, dict[str, int]]:
    """A peer's verdict on one case, and how often it evaluated the function."""
    function, evaluations = case.function(dtype), 0
    line.send({"x": packed(case.x), "jacobian": packed(case.jacobian), "y_shape": case.y_shape})
    while True:
        kind, content = line.recv()
        if kind == "verdict":
            return content, {"real": evaluations}
        evaluations += 1
        line.send(packed(function(unpacked(content))))


@contextmanager
def connected(name: str, python: str) -> Iterator[Any]:
    """A line to a peer in its own process."""
    key = secrets.token_hex(16)
    with Listener(family="AF_UNIX", authkey=bytes.fromhex(key)) as listener:
        environment = {**os.environ, "VERDICTS_KEY": key}
        command = [python, str(WORKER), name, str(listener.address)]
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
            with listener.accept() as line:
                yield line
            process.wait(timeout=60)


if __name__ == "__main__":
    main()
