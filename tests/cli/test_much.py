"""Models that ask for much, from a few bytes to a gigabyte: a verdict or exit code 6, within the limits.

Peaks are those of all processes of a command together; what it has before it does anything is in them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent, indent

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

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
    "Where": (
        "m (float[20000,1] x, float[1,20000] z) => (float[20000,20000] y) { g = Greater (x, z)  y = Where (g, x, z) }",
        {6}),
    "Einsum": ('m (float[20000] x, float[20000] z) => (float[A,B] y) { y = Einsum <equation = "i,j->ij"> (x, z) }', {6}),
    "OneHot": (
        "m (float[2] x) => (float[A,B] y) <int64[1] n = {20000}, int64 d = {20000}> {"
        "  i = ConstantOfShape <value = int64[1] {1}> (n)  y = OneHot (i, d, x) }", {6}),
    "a doubled tensor": (
        "m (float[2] x) => (float[A] y) { t0 = Concat <axis = 0> (x, x) "
        + " ".join(f"t{i} = Concat <axis = 0> (t{i - 1}, t{i - 1})" for i in range(1, 30)) + " y = Sin (t29) }", {6}),
    "a tensor multiplied by itself": (
        "m (float[2] x) => (float y) <int64[1] s = {-1}> { t0 = Mul (x, x) "
        + " ".join(f"u{i} = Unsqueeze (t{i}, s) t{i + 1} = Mul (u{i}, x)" for i in range(29))
        + " y = ReduceSum <keepdims = 0> (t29) }", {6}),
    "a padded convolution": (
        "m (float[1,1,4,4] x) => (float[A,B,C,D] y) <float[1,1,3,3] k = {1,2,3,4,5,6,7,8,9}> {"
        "  y = Conv <pads = [15000,15000,15000,15000]> (x, k) }", {6}),
    "a strided transposed convolution": (
        "m (float[1,1,4,4] x) => (float[A,B,C,D] y) <float[1,1,3,3] k = {1,2,3,4,5,6,7,8,9}> {"
        "  y = ConvTranspose <strides = [8000,8000]> (x, k) }", {6}),
    "scales of Resize": (
        "m (float[1,1,4,4] x) => (float[A,B,C,D] y) { s = Constant <value_floats = [1.0,1.0,6000.0,6000.0]> ()"
        "  y = Resize (x, , s) }", {6}),
    "Gather by many indices": (
        "m (float[2,64] x) => (float[A,B] y) <int64[1] n = {5000000}> {"
        "  i = ConstantOfShape <value = int64[1] {1}> (n)  y = Gather (x, i) }", {6}),
    "EyeLike": (
        "m (float x) => (float y) <int64[2] n = {30000, 30000}> { c = ConstantOfShape (n)  e = EyeLike (c)"
        "  s = ReduceSum <keepdims = 0> (e)  y = Mul (x, s) }", {6}),
    "a window": (
        "m (float x) => (float y) <int64 n = {400000000}> { w = HannWindow (n)  s = ReduceSum <keepdims = 0> (w)"
        "  y = Mul (x, s) }", {6}),
    "a transform": (
        "m (float[1,8,1] x) => (float[A,B,C] y) <int64 n = {100000000}> { y = DFT <axis = 1> (x, n) }", {6}),
    "a grid": (
        "m (float[1,2,3] x) => (float[A,B,C,D] y) <int64[4] n = {1, 1, 15000, 15000}> { y = AffineGrid (x, n) }", {6}),
    "regions": (
        "m (float[1,1,4,4] x, float[1,4] r) => (float[A,B,C,D] y) <int64[1] b = {0}> {"
        "  y = RoiAlign <output_height = 15000, output_width = 15000, sampling_ratio = 1> (x, r, b) }", {6}),
    "an image of columns": (
        "m (float[1,4,4] x) => (float[A,B,C,D] y) <int64[2] n = {20000, 20000}, int64[2] k = {2, 2}> {"
        "  y = Col2Im <strides = [19998, 19998]> (x, n, k) }", {6}),
    "unpooled": (
        "m (float[1,1,2,2] x) => (float[A,B,C,D] y) <int64[1,1,2,2] i = {1, 2, 3, 4}, int64[4] n = {1, 1, 20000, 20000}>"
        " { y = MaxUnpool <kernel_shape = [2,2]> (x, i, n) }", {6}),
    "samples": (
        "m (float[1,4] x) => (float y) { i = Multinomial <sample_size = 400000000> (x)  c = Cast <to = 1> (i)"
        "  s = ReduceMean <keepdims = 0> (c)  r = ReduceSum <keepdims = 0> (x)  y = Mul (r, s) }", {6}),
    "strings": (
        'm (float x) => (float y) <int64[1] n = {50000000}> { t = Constant <value_strings = ["1.5"]> ()'
        "  e = Expand (t, n)  c = Cast <to = 1> (e)  s = ReduceMean <keepdims = 0> (c)  y = Mul (x, s) }", {6}),
    "boxes": (
        "m (float[1,30000,4] x, float[1,1,30000] s) => (float[A,B] y) <int64 n = {100}, int64[1] o = {1}> {"
        "  i = NonMaxSuppression (x, s, n)  c = Cast <to = 1> (i)  r = ReduceMean <keepdims = 0> (x)  y = Mul (c, r) }",
        {0, 1, 6}),
    "a branch": (
        "m (float[2] x, bool c) => (float y) { y = If (c) <then_branch = t () => (float a) {"
        "  n = Constant <value_ints = [300000000]> ()  b = ConstantOfShape (n)  s = ReduceSum <keepdims = 0> (b)"
        "  r = ReduceSum <keepdims = 0> (x)  a = Mul (r, s) }, else_branch = e () => (float d) {"
        "  m = Constant <value_ints = [400000000]> ()  f = ConstantOfShape (m)  g = ReduceSum <keepdims = 0> (f)"
        "  h = ReduceSum <keepdims = 0> (x)  d = Mul (h, g) }> }", {6}),
    "what a loop gives": (
        "m (float[10000] x) => (float[A,B] y) <int64 n = {100000}> { c = Constant <value = bool {1}> ()"
        "  v, y = Loop (n, c, x) <body = b (int64 i, bool go, float[10000] v) => (bool on, float[10000] w, float[10000] o)"
        " { on = Identity (go)  w = Sin (v)  o = Identity (w) }> }", {6}),
    "what a scan gives": (
        "m (float[10000] x) => (float[A,B] y) <int64[1] n = {100000}> { s = ConstantOfShape (n)"
        "  v, y = Scan <num_scan_inputs = 1, body = b (float[10000] v, float i) => (float[10000] w, float[10000] o)"
        " { w = Add (v, i)  o = Sin (w) }> (x, s) }", {6}),
    "a tensor that grows": (
        "m (float[2] x) => (float[A] y) <int64 n = {60}> { c = Constant <value = bool {1}> ()"
        "  y = Loop (n, c, x) <body = b (int64 i, bool go, float[N] v) => (bool on, float[M] w)"
        " { on = Identity (go)  w = Concat <axis = 0> (v, v) }> }", {6}),
    "many pieces": (
        "m (float[3000000] x) => (float y) <int64 o = {1}, int64 k = {0}> { q = SplitToSequence (x, o)"
        "  a = SequenceAt (q, k)  y = ReduceSum <keepdims = 0> (a) }", {6}),
    "a deep chain": (
        "m (float[2000] x) => (float[2000] y) { t0 = Sin (x) " + " ".join(f"t{i} = Sin (t{i - 1})" for i in range(1, 2000))
        + " y = Cos (t1999) }", {0}),
    "a wide graph": (
        "m (float[1000] x) => (float[1000] y) { " + " ".join(f"t{i} = Tanh (x)" for i in range(1000))
        + f" y = Sum ({', '.join(f't{i}' for i in range(1000))}) }}", {0}),
    "many outputs": (
        "m (float[300] x) => (" + ", ".join(f"float[1] y{i}" for i in range(300)) + ") { e = Exp (x) "
        + ", ".join(f"y{i}" for i in range(300)) + " = Split <num_outputs = 300> (e) }", {0}),
    "sorted": (
        "m (float[4000000] x) => (float[10] y) <int64[1] k = {10}> { y, i = TopK (x, k) }", {0, 6}),
    "a softmax of millions": ("m (float[4000000] x) => (float[4000000] y) { y = Softmax (x) }", {0, 6}),
    "a hundred million numbers": ("m (float[100000000] x) => (float y) { y = ReduceSum <keepdims = 0> (x) }", {6}),
    "inner sizes": (
        "m (float[8] x) => (float[1] y) <int64[2] a = {8, 1}, int64[2] b = {1, 1}, int64[2] n = {1, 30000000}> {"
        "  r = Reshape (x, a)  e = Expand (r, n)  s = ReduceSum <keepdims = 1> (e)  y = Reshape (s, b) }", {6}),
}  # fmt: skip
FIRST = {"a constant"}


def _external(folder: Path) -> str:
    """Weights of a gigabyte beside the model, in a file that takes no room on the disk."""
    size = 1 << 28
    weights = TensorProto(name="W", data_type=TensorProto.FLOAT, dims=[1, size], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "weights"), ("offset", "0"), ("length", str(4 * size))):
        weights.external_data.add(key=key, value=value)
    with open(folder / "weights", "wb") as file:
        file.truncate(4 * size)
    graph = onnx.parser.parse_graph("m (float[1,1] x) => (float[1,N] y) { y = MatMul (x, W) }")
    graph.initializer.append(weights)
    return _saved(folder / "m.onnx", graph)


def _saved(path: Path, graph: onnx.GraphProto) -> str:
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path.name


def _as_text(name: str) -> Callable[[Path], str]:
    return lambda folder: _saved(folder / name, onnx.parser.parse_graph(MUCH["an input"][0]))


def _spec(text: str) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        (folder / "m.gradcheck.yaml").write_text(f"gradcheck: 1\ngraphs:\n  g:\n{indent(dedent(text), '    ')}")
        return "m.gradcheck.yaml"

    return write


_NODE = "nodes: [{op: Mul, inputs: [x, w], outputs: [y]}]\noutputs: [y]\n"
ENDLESS = """m (float[2] x) => (float[2] y) <int64 n = {2000000000}> {
    c = Constant <value = bool {1}> ()
    y = Loop (n, c, x) <body = b (int64 i, bool go, float[2] v) => (bool on, float[2] w) {
        on = Identity (go)  w = Sin (v) }>
}"""
FILES = {  # the same of other files
    "weights of a gigabyte": (_external, {6}),
    "JSON": (_as_text("m.json"), {6}),
    "a text of protocol buffers": (_as_text("m.textproto"), {6}),
    "a text of ONNX": (_as_text("m.onnxtxt"), {6}),
    "an input of a spec": (_spec(f"inputs: {{x: {{shape: [300000000]}}, w: {{shape: []}}}}\n{_NODE}"), {6}),
    "a parameter of a spec": (
        _spec(f"inputs: {{x: {{shape: [1]}}}}\nparams: {{w: {{shape: [300000000], init: normal}}}}\n{_NODE}"), {6}),
    "an orthogonal parameter": (
        _spec(f"inputs: {{x: {{shape: [1]}}}}\nparams: {{w: {{shape: [7000, 7000], init: orthogonal}}}}\n{_NODE}"), {6}),
    "a value of a spec": (
        _spec(f"inputs: {{x: {{shape: [1]}}}}\nconstants: {{w: [{', '.join(['0.5'] * 3000)}]}}\n{_NODE}"), {0}),
}  # fmt: skip
TIME = {  # graphs that go on for long
    "a loop": ENDLESS,
    "a loop in a loop": """m (float[2] x) => (float[2] y) <int64 n = {100000}> {
        c = Constant <value = bool {1}> ()
        y = Loop (n, c, x) <body = b (int64 i, bool go, float[2] v) => (bool on, float[2] w) {
            on = Identity (go)  w = Loop (n, c, v) <body = d (int64 j, bool ok, float[2] p) => (bool to, float[2] q) {
                to = Identity (ok)  q = Sin (p) }> }>
    }""",
    "a sequence that grows": """m (float[10000] x) => (float[A] y) <int64 n = {100000}> {
        c = Constant <value = bool {1}> ()
        q = SequenceEmpty ()
        r = Loop (n, c, q) <body = b (int64 i, bool go, seq(float[10000]) v) => (bool on, seq(float[10000]) w) {
            on = Identity (go)  f = Cast <to = 1> (i)  t = Add (x, f)  w = SequenceInsert (v, t) }>
        y = ConcatFromSequence <axis = 0> (r)
    }""",
    "a long recurrence": """m (float[2000000,1,2] x) => (float[A,B,C,D] y)
        <float[1,2,2] w = {1.0,2.0,3.0,4.0}, float[1,2,2] r = {0.1,0.2,0.3,0.4}> { y = RNN <hidden_size = 2> (x, w, r) }""",
    "large products": """m (float[3000,3000] x) => (float[3000,3000] y) {
        a = MatMul (x, x)  b = MatMul (a, x)  c = MatMul (b, x)  d = MatMul (c, x)  y = MatMul (d, x) }""",
    "a singular value": "m (float[3000,3000] x) => (float y) { y = Det (x) }",
}  # fmt: skip
MEASURE = """
import subprocess, sys, time
from pathlib import Path

def held(session):
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int((folder / "stat").read_bytes().rpartition(b") ")[2].split()[3]) == session:
                rows = (line.split() for line in (folder / "status").read_text().splitlines())
                total += sum(int(row[1]) for row in rows if row[0] in ("RssAnon:", "RssShmem:"))
        except (OSError, ValueError, IndexError):
            pass
    return total

start, most = time.monotonic(), 0
done = subprocess.Popen(sys.argv[1:], stdout=sys.stderr, start_new_session=True)
while done.poll() is None:
    most = max(most, held(done.pid))
    time.sleep(0.02)
print(done.returncode, most, time.monotonic() - start)
"""
LATE = 60  # seconds beyond a limit of time on a machine that has much else to do


def peak(command: list[str], folder: Path) -> tuple[int, float, str]:
    """Exit code of a command, MiB that it holds at most with all processes that it starts, and what it says."""
    return measured(command, folder)[:3]


def measured(command: list[str], folder: Path) -> tuple[int, float, str, float]:
    """The same, and how many seconds it took."""
    done = subprocess.run([sys.executable, "-c", MEASURE, *command], cwd=folder, capture_output=True, text=True)
    code, size, seconds = done.stdout.split()
    return int(code), int(size) / 1024, done.stderr, float(seconds)


@pytest.mark.parametrize(
    "name", [n if n in FIRST else pytest.param(n, marks=pytest.mark.slow) for n in (*MUCH, *FILES)]
)
def test_memory_stays_within_the_limit(name: str, tmp_path: Path) -> None:
    if name in MUCH:
        graph, codes = MUCH[name]
        file = _saved(tmp_path / "m.onnx", onnx.parser.parse_graph(graph))
    else:
        write, codes = FILES[name]
        file = write(tmp_path)
    code, size, said = peak([*COMMAND, file, "--memory-limit", "256MiB", "--save-failures", "none"], tmp_path)
    assert code in codes, said
    assert size < 256 + BESIDE, said
    if code == 6:
        assert "GC60" in said
        assert re.search(r"--memory-limit \d+[GM]iB|no room for it|need less|at most", said)


@pytest.mark.slow
def test_a_large_file_is_read_within_the_limit(tmp_path: Path) -> None:
    weights = np.zeros((1, 80_000_000), np.float32)
    models.save(tmp_path / "m.onnx", "m (float[1,1] x) => (float[1,N] y) { y = MatMul (x, W) }", W=weights)
    code, size, said = peak([*COMMAND, "m.onnx", "--memory-limit", "128MiB", "--save-failures", "none"], tmp_path)
    assert (code, "GC602" in said) == (6, True)
    assert size < 128 + BESIDE


@pytest.mark.one_in(9)
@pytest.mark.parametrize("more", [(), ("--memory-limit", "1GiB")])
@pytest.mark.parametrize("name", ["a loop", *(pytest.param(n, marks=pytest.mark.slow) for n in TIME if n != "a loop")])
def test_time_stays_within_the_limit(name: str, more: tuple[str, ...], tmp_path: Path) -> None:
    """Of a run that would take hours nobody waits for the end."""
    _saved(tmp_path / "m.onnx", onnx.parser.parse_graph(TIME[name]))
    command = [*COMMAND, "m.onnx", "--timeout", "2s", "--save-failures", "none", *more]
    code, _, said, seconds = measured(command, tmp_path)
    assert (code, "GC601" in said or "GC602" in said) == (6, True), said
    assert seconds < 2 + LATE


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "value", "code"), [("--timeout", "2s", "GC601"), ("--memory-limit", "256MiB", "GC602")]
)
def test_comparing_two_models_stays_within_the_limit(option: str, value: str, code: str, tmp_path: Path) -> None:
    models.save(tmp_path / "m.onnx", ENDLESS if option == "--timeout" else MUCH["an input"][0])
    ended, size, said = peak([*COMMAND, "diff", "m.onnx", "m.onnx", option, value], tmp_path)
    assert (ended, code in said) == (6, True), said
    assert option == "--timeout" or size < 256 + BESIDE
