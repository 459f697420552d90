"""Nodes of a file that computes a loss and its gradients by all weights: gradcheck's beside other tools'.

python -m benchmarks.node_counts --onnx-ad-python /env/ad/bin/python --training-python /env/ort/bin/python

A tool is looked for in the environment whose Python is given, and left out otherwise.  A file only counts if onnxruntime
computes the same gradients from it as from gradcheck's: another number, or an error, stands in its place.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import gradcheck_cli as gc
from benchmarks.node_count_models import COUNTED, Counted
from benchmarks.node_count_peers import run
from benchmarks.table import Table, write

WORKER = Path(__file__).with_name("node_count_peers.py")
PRIVATE = "*"  # marks files that need their own tool's runtime
CLOSE = 2e-4  # of float32 sums in another order, relative to the largest entry


def main() -> None:
    """Prints the table, and keeps it."""
    parser = argparse.ArgumentParser("python -m benchmarks.node_counts", description=__doc__.split("\n")[0])
    for peer in ("onnx-ad", "training"):
        parser.add_argument(f"--{peer}-python", metavar="PYTHON", help=f"of an environment that has {peer}")
    given = parser.parse_args()
    pythons = {"onnx-ad": given.onnx_ad_python, "onnxruntime-training-cpu": given.training_python}
    write(counted({peer: python for peer, python in pythons.items() if python}))


def counted(pythons: Mapping[str, str]) -> Table:
    """The table: a row for each model, a column for each tool."""
    table = Table("Nodes of gradient files", ("model", "forward alone", "gradcheck", *pythons))
    table.note = f"Nodes of the file, constants aside.  {PRIVATE}: with operators that only its own runtime has."
    with tempfile.TemporaryDirectory() as folder:
        for case in COUNTED:
            path = Path(folder) / "model.onnx"
            onnx.save(case.model(), path)
            np.savez(Path(folder) / "feeds.npz", **case.feeds())  # type: ignore[arg-type]
            ours, found = own(case, path)
            cells = [peers(case, Path(folder), peer, python, found, table) for peer, python in pythons.items()]
            table.add(case.name, len(case.model().graph.node), ours, *cells)
    return table


def own(case: Counted, path: Path) -> tuple[int, dict[str, Any]]:
    """gradcheck's count, and the gradients that onnxruntime computes from its file."""
    model, out = gc.load(path), path.with_name("gradcheck.onnx")
    names = list(case.weights())
    tensors = gc.gradients(model["loss"], [model[name] for name in names])
    gc.save(model, out, ["loss", *(tensor.name for tensor in tensors if tensor is not None)])
    found = run(str(out), case.feeds(), [tensor.name for tensor in tensors if tensor is not None])
    return nodes(onnx.load(out).graph), dict(zip(names, found.values(), strict=True))


def peers(case: Counted, folder: Path, peer: str, python: str, found: Mapping[str, Any], table: Table) -> str:
    """Another tool's count, if its gradients are these; else what is wrong."""
    out = folder / f"{peer}.onnx"
    command = [python, str(WORKER), peer, str(folder / "model.onnx"), str(folder / "feeds.npz"), str(out)]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        said = f"killed by signal {-ran.returncode}" if ran.returncode < 0 else ran.stderr.strip().splitlines()[-1]
        print(f"{peer}, {case.name}: {said}", file=sys.stderr)
        return "none"
    table.versions[peer] = ran.stdout.split()[-1]
    with np.load(f"{out}.npz") as theirs:
        wrong = [n for n, value in found.items() if n not in theirs or not close(theirs[n], value)]
    model = onnx.load(out)
    private = any(node.domain not in ("", "ai.onnx") for node in model.graph.node)
    count = f"{nodes(model.graph)}{PRIVATE if private else ''}"
    return f"{count}, wrong: {', '.join(wrong)}" if wrong else count


def close(a: Any, b: Any) -> bool:
    """Two arrays hold the same, up to rounding."""
    return a.shape == b.shape and bool(np.abs(a - b).max() <= CLOSE * np.abs(b).max())


def nodes(graph: onnx.GraphProto) -> int:
    """Nodes at every level, constants aside."""
    inner = (a.g for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH)
    return sum(node.op_type != "Constant" for node in graph.node) + sum(map(nodes, inner))


if __name__ == "__main__":
    main()
