"""Whole processes, from the command to the exit code: gradcheck on a file beside scripts that do the same in a peer.

python -m benchmarks.processes
"""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, parser

from benchmarks.cases import MLP
from benchmarks.table import Table, write
from benchmarks.timing import in_turns, ratio

_READ = """
import numpy as np
w = np.load("mlp.npz")
"""
_FUNCTION = """
def function(x):
    return tanh(x @ w["w1"] + w["b1"]) @ w["w2"] + w["b2"]
"""
PEERS = {  # a script for each, as one writes it: the MLP's weights from a file, its full Jacobian checked
    "torch": f"""{_READ}
import torch
from torch import tanh
w = {{name: torch.tensor(w[name]) for name in w}}
{_FUNCTION}
assert torch.autograd.gradcheck(function, (torch.tensor(w.pop("x"), requires_grad=True),))
""",
    "jax": f"""{_READ}
import jax
import jax.numpy as jnp
from jax.numpy import tanh
jax.config.update("jax_enable_x64", True)
w = {{name: jnp.asarray(w[name]) for name in w}}
x = w.pop("x")
{_FUNCTION}
def difference(h):
    return (function(x + h.reshape(x.shape)) - function(x - h.reshape(x.shape))).ravel() / 2e-6
numerical = jax.jit(jax.vmap(difference))(1e-6 * jnp.eye(x.size))
theoretical = jax.jit(jax.jacrev(function))(x).reshape(-1, x.size)
assert np.allclose(theoretical.T, numerical, atol=1e-6)
""",
    "tensorflow": f"""{_READ}
import tensorflow as tf
from tensorflow import tanh
w = {{name: tf.constant(w[name]) for name in w}}
x = w.pop("x")
{_FUNCTION}
[theoretical], [numerical] = tf.test.compute_gradient(function, [x])
assert np.allclose(theoretical, numerical, atol=1e-4)
""",
}
TINY = "tiny (double[2] x) => (double[2] y) { y = Tanh(x) }"


def tables(quick: bool = False) -> Iterator[Table]:
    """One table: seconds of each process."""
    table = Table("Whole processes", ("process", "seconds", "times gradcheck's"))
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        ways = {"gradcheck mlp.onnx": process(folder, "-m", "gradcheck_cli", "mlp.onnx", "--x", "x", "--y", "y")}
        for name, script in PEERS.items():
            if importlib.util.find_spec(name) is not None:
                ways[f"{name} script"] = process(folder, "-c", script)
        ways["gradcheck tiny.onnx"] = process(folder, "-m", "gradcheck_cli", "tiny.onnx")
        ways["import numpy, onnx"] = process(folder, "-c", "import numpy, onnx")
        ways["gradcheck --help"] = process(folder, "-m", "gradcheck_cli", "--help")
        ways["python"] = process(folder, "-c", "pass")
        times = in_turns(ways, rounds=1 if quick else 5)
    for name in times:
        ours = "gradcheck tiny.onnx" if name.startswith(("import", "gradcheck tiny")) else "gradcheck mlp.onnx"
        table.add(name, statistics.median(times[name]), ratio(times, name, ours))
    for name in PEERS:
        if f"{name} script" not in times:
            table.add(f"{name} script", "absent", "")
    yield table


def prepare(folder: Path) -> None:
    """The models as files, and the weights for those that read no ONNX."""
    onnx.save(MLP.model(), folder / "mlp.onnx")
    np.savez(folder / "mlp.npz", x=MLP.x, **MLP.weights)
    tiny = helper.make_model(parser.parse_graph(TINY), opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(tiny, folder / "tiny.onnx")


def process(folder: str, *arguments: str) -> Callable[[], None]:
    """A run of this Python with arguments, which must end well."""
    return partial(_ran, folder, [sys.executable, *arguments])


def _ran(folder: str, command: list[str]) -> None:
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if ran.returncode:
        raise RuntimeError(f"{' '.join(command[1:3])[:40]} ended with {ran.returncode}: {ran.stderr.strip()[-300:]}")


if __name__ == "__main__":
    write(*tables())
