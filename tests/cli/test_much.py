"""Models that ask for much, from a few bytes to a gigabyte: a verdict or exit code 6, within the limits.

Peaks are those of the largest process, as the system counts them; what a command has before it does anything is in them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cli import models
from tests.cli.test_process import COMMAND

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux bounds and tells memory")
BESIDE = 300  # MiB that a command may take beside its limit
MUCH = {  # graphs by name, with the exit codes that they may have within 256 MiB
    "an input": ("m (float[268435456] x) => (float[268435456] y) { y = Exp (x) }", {6}),
    "Expand": ("m (float[2,1] x) => (float[A,B] y) <int64[2] s = {2, 67108864}> { y = Expand (x, s) }", {6}),
    "Tile": ("m (float[2] x) => (float[A] y) <int64[1] s = {100000000}> { y = Tile (x, s) }", {6}),
    "Pad": ("m (float[2] x) => (float[A] y) <int64[2] p = {0, 100000000}> { y = Pad (x, p) }", {6}),
    "an outer product": ("m (float[20000,1] x, float[1,20000] z) => (float[20000,20000] y) { y = MatMul (x, z) }", {6}),
    "all pairs": ("m (float[3000,1,8] x, float[1,3000,8] z) => (float[3000,3000,8] y) { y = Sub (x, z) }", {6}),
    "a large product": ("m (float[4000,4000] x) => (float[4000,4000] y) { y = MatMul (x, x) }", {6}),
    "a product": ("m (float[600,600] x) => (float[600,600] y) { y = MatMul (x, x) }", {0}),
    "random numbers": (
        "m (float x) => (float y) { r = RandomNormal <shape = [200000000]> ()  m = ReduceMean <keepdims = 0> (r)"
        "  y = Mul (x, m) }", {6}),
    "a constant": (
        "m (float x) => (float y) { s = Constant <value_ints = [300000000]> ()  c = ConstantOfShape (s)"
        "  r = ReduceSum <keepdims = 0> (c)  y = Mul (x, r) }", {6}),
    "a range": (
        "m (float x) => (float[A] y) <float a = {0}, float b = {100000000}, float c = {1}> { r = Range (a, b, c)"
        "  y = Mul (x, r) }", {6}),
    "a Jacobian of 290 MB": ("m (float[1,6000] x) => (float[1,6000] y) { y = Softmax (x) }", {0}),
    "a long sum": ("m (float[1000000] x) => (float y) { e = Exp (x)  y = ReduceSum <keepdims = 0> (e) }", {0}),
    "attention": (
        "m (float[1,2,700,16] x) => (float[1,2,700,16] y) { t = Transpose <perm = [0,1,3,2]> (x)  s = MatMul (x, t)"
        "  a = Softmax <axis = -1> (s)  y = MatMul (a, x) }", {0, 6}),
    "a resized image": (
        "m (float[1,1,4,4] x) => (float[A,B,C,D] y) { s = Constant <value_ints = [1,1,20000,20000]> ()"
        "  y = Resize (x, , , s) }", {6}),
}  # fmt: skip
FIRST = {"an input", "Expand", "a large product", "a product", "a Jacobian of 290 MB", "a constant"}


MEASURE = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=sys.stderr)
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def peak(command: list[str], folder: Path) -> tuple[int, float, str]:
    """Exit code of a command, MiB of its largest process, and what it says.

    It is started by a small process, since a process begins with the peak of the one that it is forked from.
    """
    done = subprocess.run([sys.executable, "-c", MEASURE, *command], cwd=folder, capture_output=True, text=True)
    code, size = done.stdout.split()
    return int(code), int(size) / 1024, done.stderr


@pytest.mark.parametrize("name", [n if n in FIRST else pytest.param(n, marks=pytest.mark.slow) for n in MUCH])
def test_memory_stays_within_the_limit(name: str, tmp_path: Path) -> None:
    graph, codes = MUCH[name]
    models.save(tmp_path / "m.onnx", graph)
    code, size, said = peak([*COMMAND, "m.onnx", "--memory-limit", "256MiB", "--save-failures", "none"], tmp_path)
    assert code in codes, said
    assert size < 256 + BESIDE, said
    if code == 6:
        assert "GC602" in said
        assert re.search(r"--memory-limit \d+[GM]iB|no room for it|need less", said)


def test_a_large_file_is_read_within_the_limit(tmp_path: Path) -> None:
    weights = np.zeros((1, 80_000_000), np.float32)
    models.save(tmp_path / "m.onnx", "m (float[1,1] x) => (float[1,N] y) { y = MatMul (x, W) }", W=weights)
    code, size, said = peak([*COMMAND, "m.onnx", "--memory-limit", "128MiB", "--save-failures", "none"], tmp_path)
    assert (code, "GC602" in said) == (6, True)
    assert size < 128 + BESIDE


ENDLESS = """m (float[2] x) => (float[2] y) <int64 n = {2000000000}> {
    c = Constant <value = bool {1}> ()
    y = Loop (n, c, x) <body = b (int64 i, bool go, float[2] v) => (bool on, float[2] w) {
        on = Identity (go)  w = Sin (v) }>
}"""


@pytest.mark.parametrize("more", [(), ("--memory-limit", "1GiB")])
def test_time_stays_within_the_limit(more: tuple[str, ...], tmp_path: Path) -> None:
    """Of a run that would take hours nobody waits for the end."""
    models.save(tmp_path / "m.onnx", ENDLESS)
    command = [*COMMAND, "m.onnx", "--timeout", "2s", "--save-failures", "none", *more]
    code, _, said = peak(command, tmp_path)
    assert (code, "GC601" in said or "GC602" in said) == (6, True), said


def test_sizes_at_which_the_forward_run_does_not_fit_give_way_to_smaller_ones(tmp_path: Path) -> None:
    text = (
        "m (float[N,1,H,W] x) => (float y) { s = Constant <value_floats = [1.0, 1.0, 150.0, 150.0]> ()"
        "  r = Resize (x, , s)  y = ReduceMean <keepdims = 0> (r) }"
    )
    models.save(tmp_path / "m.onnx", text)
    options = ["--save-failures", "none", "--output-format", "json", "--forward", "internal"]
    command = [*COMMAND, "m.onnx", "--memory-limit", "400MiB", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(done.stdout)["checks"][0]
    assert all(2 <= size < 32 for size in record["dims"].values())
    assert any("N=2, H=32, W=40 would take more than the memory limit" in note for note in record["notes"])


@pytest.mark.parametrize(
    ("option", "value", "code"), [("--timeout", "2s", "GC601"), ("--memory-limit", "256MiB", "GC602")]
)
def test_comparing_two_models_stays_within_the_limit(option: str, value: str, code: str, tmp_path: Path) -> None:
    models.save(tmp_path / "m.onnx", ENDLESS if option == "--timeout" else MUCH["an input"][0])
    ended, size, said = peak([*COMMAND, "diff", "m.onnx", "m.onnx", option, value], tmp_path)
    assert (ended, code in said) == (6, True), said
    assert option == "--timeout" or size < 256 + BESIDE
