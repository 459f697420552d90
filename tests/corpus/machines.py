"""The corpus as on other machines: `python -m tests.corpus.machines --thin 4` checks it with one thread and with two, on
every instruction set that this processor has, and without the compiled kernels.

One thread and two give the same records to the bit.  Other kernels add up in another order: they give the same statuses,
codes, counts and suspects, and numbers within the bound of the rounding, which is itself the same within a factor of 2.
"""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gradcheck_cli.native import selection
from gradcheck_cli.ops import OPS
from tests.corpus.faults import all_operands, one_operand, scaled
from tests.corpus.hosts import Host, host, with_rules
from tests.corpus.networks import NETWORKS, network, rules_of
from tests.corpus.score import checked, jacobian
from tests.ops.cases import CASES

WAYS: tuple[dict[str, Any], ...] = ({}, {"mode": "nodes"}, {"mode": "full", "method": "richardson"})
VARYING = {"duration_s", "peak_rss_mb", "versions", "reproduce"}  # of a record: nothing that it says of the gradient
FLOOR = 2.0**-44  # of the largest entry: below it a bound is one of single roundings, whatever the kernels do
Records = dict[str, tuple[dict[str, Any], np.ndarray | None]]


def main() -> int:
    """Compares the machines one after the other with the first; 1 if any differs."""
    given = arguments()
    if given.into:
        Path(given.into).write_bytes(pickle.dumps(dict(records(given.thin, given.seed, given.jobs))))
        return 0
    sets = selection.kernels.available() if selection.kernels else []
    machines: dict[str, tuple[dict[str, str], int]] = {"2 threads": ({}, 2), "1 thread": ({}, 1)}
    machines |= {name: ({"GRADCHECK_ISA": name}, 2) for name in sets[1:]}
    machines["NumPy"] = ({"GRADCHECK_KERNELS": "numpy"}, 2)
    (_, first), *others = ((name, run(given, *machine)) for name, machine in machines.items())
    print(f"{len(first)} checks; kernels {', '.join(sets)}; against 2 threads:")
    found = [report(name, first, other, exact=name == "1 thread") for name, other in others]
    return int(any(found))


def arguments() -> Any:
    """Arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--thin", type=int, default=8, help="take each N-th case of an operator")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--into", default="", help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int, default=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def run(given: Any, variables: dict[str, str], jobs: int) -> Records:
    """The records of a process with these variables."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records"
        command = [sys.executable, "-m", "tests.corpus.machines", "--into", str(path), "--jobs", str(jobs)]
        command += ["--thin", str(given.thin), "--seed", str(given.seed)]
        subprocess.run(command, env={**os.environ, **variables}, check=True)
        return dict(pickle.loads(path.read_bytes()))


def records(thin: int, seed: int, jobs: int) -> Iterator[tuple[str, tuple[dict[str, Any], np.ndarray | None]]]:
    """Records by name, with the Jacobians of right rules: each model with right rules and with wrong ones."""
    for name in NETWORKS:
        made = network(name, seed)
        yield from _of_host(made, rules_of(made), jobs)
    for case in with_rules(CASES)[seed % thin :: thin]:
        if (made := host(case, seed)) is not None:
            yield from _of_host(made, [(case.domain, case.op)], jobs)


def _of_host(made: Host, keys: list[tuple[str, str]], jobs: int) -> Iterator[tuple[str, Any]]:
    theoretical = jacobian(made, OPS)
    for way in WAYS:
        record = checked(made, OPS, jobs=jobs, forward="internal", **way).as_json()
        yield f"{made.name} {way}", (_kept(record), None if way else theoretical)
    for key in keys:
        wrong = {
            "sign": one_operand(key, scaled(-1.0), made.seed),
            "1e-6": all_operands(key, scaled(1 + 1e-6), made.seed),
        }
        for fault, ops in wrong.items():
            record = checked(made, ops, jobs=jobs, forward="internal").as_json()
            yield f"{made.name} {key[1]} {fault}", (_kept(record), None)


def _kept(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in VARYING}


def report(name: str, first: Records, other: Records, *, exact: bool) -> bool:
    """Prints a line for a machine, and one for each check that differs; True if any does."""
    faults = {key: said for key in first if (said := differs(first[key], other[key], exact))}
    kinds = Counter(said.split(":")[0] for said in faults.values())
    print(f"{name}: {len(first) - len(faults)} the same, {dict(kinds) or 'none other'}")
    for key, said in faults.items():
        print(f"  {key}: {said}")
    return bool(faults)


def differs(first: tuple[Any, Any], other: tuple[Any, Any], exact: bool) -> str:
    """The way in which a check differs, or nothing."""
    (a, theirs), (b, ours) = first, other
    if exact:
        keys = [key for key in a if a[key] != b.get(key)]
        same = theirs is None or np.array_equal(theirs, ours, equal_nan=True)
        return f"bits: {', '.join(keys)}" if keys else "" if same else "bits: Jacobian"
    for key in ("status", "code", "entries"):
        if a.get(key) != b.get(key):
            return f"{key}: {a.get(key)} and {b.get(key)}"
    if _suspect(a) != _suspect(b):
        return f"suspect: {_suspect(a)} and {_suspect(b)}"
    floor = FLOOR * max(float(np.abs(theirs).max(initial=0)) if theirs is not None else 0.0, abs(_largest(a)))
    low, high = sorted(max(float(record["noise"]), floor) for record in (a, b))
    if high > 2 * low:
        return f"noise: {low:.2g} and {high:.2g}"
    if theirs is not None and (apart := float(np.nanmax(np.abs(theirs - ours), initial=0))) > low + high:
        return f"numbers: {apart:.2g} apart, noise {high:.2g}"
    return ""


def _suspect(record: dict[str, Any]) -> list[Any]:
    """The node, and its fault; of entries that are off by the same rounding tells which is the worst."""
    return [(record.get("suspect") or {}).get(key) for key in ("node", "op", "inside", "diagnosis")]


def _largest(record: dict[str, Any]) -> float:
    return float((record.get("gradient") or {}).get("max") or 0.0)


if __name__ == "__main__":
    sys.exit(main())
