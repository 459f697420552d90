"""Gradient files in onnxruntime beside PyTorch's forward and backward pass: layers, by x and all of their weights.

python -m benchmarks.gradient_files --training-python /env/ort/bin/python
python -m benchmarks.gradient_files --models FOLDER

With the Python of an environment that has onnxruntime-training, its graphs of the same gradients are timed beside them;
they are only told if they give the same.

With a folder: the files of all models in it, by inputs and by parameters, each held against differences of the model,
in float64 by our own kernels, where a file is right or wrong, and as onnxruntime rounds it.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper, parser

import gradcheck_cli
from benchmarks.alone import alone
from benchmarks.libraries import installed
from benchmarks.one_thread import VARIABLES
from benchmarks.table import Table, write
from benchmarks.timing import in_turns, ratio
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.points.targets import choose_y
from gradcheck_cli.settings import Settings

OF_MODELS = ("model", "by", "nodes", "of them added", "seconds", "peak, MB", "model, MB", "file, MB", "reference loads",
             "sizes", "error in float64", "in onnxruntime", "remarks")  # fmt: skip
NEAR = {"float64": 1e-4, "onnxruntime": 0.01}  # errors that need no remark
STEPS = (1e-5, 1e-6, 1e-7, 1e-8, 1e-9)  # of differences: kinks ask for small ones, rounding for large ones
SIZES = 3  # at which a file is held
LIMIT = 300  # seconds, for a file to be written
Feeds: TypeAlias = Mapping[str, NDArray[Any]]
HEAD = ("layer", "threads", "nodes", "torch, ms", "file, ms", "times torch's", "times its forward run")
OF_TRAINING = ("nodes of onnxruntime-training", "its ms", "times onnxruntime-training's")
TRAINING = Path(__file__).with_name("training_peer.py")
CLOSE = 1e-3  # of float32 sums in another order, relative to the largest entry


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer in float32: its nodes from x to y, and the same for PyTorch."""

    name: str
    x: tuple[int, ...]
    nodes: str
    shapes: Mapping[str, tuple[int, ...]]
    function: Callable[[Any, Any, Mapping[str, Any]], Any]  # (torch.nn.functional, x, weights)

    def model(self) -> onnx.ModelProto:
        """The layer and the sum of its squares."""
        ends = f"{self.nodes} square = Mul(y, y) loss = ReduceSum<keepdims=0>(square)"
        graph = parser.parse_graph(f"net (float[{','.join(map(str, self.x))}] x) => (float loss) {{ {ends} }}")
        graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in self.weights().items())
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Weights whose products keep the size of what they multiply."""
        rng = np.random.default_rng(0)
        return {
            n: (rng.normal(size=s) / math.sqrt(math.prod(s[1:]) or 1)).astype(np.float32)
            for n, s in self.shapes.items()
        }


def _lstm(F: Any, x: Any, w: Mapping[str, Any]) -> Any:
    import torch

    gates = [0, 2, 3, 1]  # of ONNX's i, o, f, c in PyTorch's order i, f, g, o
    given = [torch.cat([w[n][0].chunk(4)[k] for k in gates]) for n in ("w", "r")]
    zeros = x.new_zeros(1, x.shape[1], 64)
    return torch._VF.lstm(x, (zeros, zeros), given, False, 1, 0.0, True, False, False)[0]


def _attention(F: Any, x: Any, w: Mapping[str, Any]) -> Any:
    q, k, v = ((x @ w[n]).view(8, 64, 4, 32).transpose(1, 2) for n in ("wq", "wk", "wv"))
    return (F.softmax(q @ k.transpose(2, 3) / 32**0.5, -1) @ v).transpose(1, 2).reshape(8, 64, 128) @ w["wo"]


_HEADS = " ".join(f"m{n} = MatMul(x, w{n}) r{n} = Reshape(m{n}, split)" for n in "qkv")
LAYERS = (
    Layer("linear 512", (64, 512), "y = Gemm<transB=1>(x, w, b)", {"w": (512, 512), "b": (512,)},
          lambda F, x, w: F.linear(x, w["w"], w["b"])),
    Layer("MLP, GELU", (64, 256), 'h = Gemm<transB=1>(x, w, b) g = Gelu(h) y = Gemm<transB=1>(g, v)',
          {"w": (1024, 256), "b": (1024,), "v": (256, 1024)},
          lambda F, x, w: F.linear(F.gelu(F.linear(x, w["w"], w["b"])), w["v"])),
    Layer("MLP, Tanh", (64, 256), "h = Gemm<transB=1>(x, w, b) g = Tanh(h) y = Gemm<transB=1>(g, v)",
          {"w": (1024, 256), "b": (1024,), "v": (256, 1024)},
          lambda F, x, w: F.linear(F.linear(x, w["w"], w["b"]).tanh(), w["v"])),
    Layer("conv 3x3", (8, 32, 28, 28), "y = Conv<pads=[1,1,1,1]>(x, w, b)", {"w": (64, 32, 3, 3), "b": (64,)},
          lambda F, x, w: F.conv2d(x, w["w"], w["b"], padding=1)),
    Layer("conv 3x3, stride 2", (8, 32, 28, 28), "y = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w)", {"w": (64, 32, 3, 3)},
          lambda F, x, w: F.conv2d(x, w["w"], padding=1, stride=2)),
    Layer("conv 1x1, hardswish", (8, 64, 28, 28), "c = Conv(x, w) y = HardSwish(c)", {"w": (128, 64, 1, 1)},
          lambda F, x, w: F.hardswish(F.conv2d(x, w["w"]))),
    Layer("depthwise conv", (8, 64, 28, 28), "y = Conv<pads=[1,1,1,1], group=64>(x, w)", {"w": (64, 1, 3, 3)},
          lambda F, x, w: F.conv2d(x, w["w"], padding=1, groups=64)),
    Layer("batch norm, training", (16, 64, 14, 14), "y, m, v = BatchNormalization<training_mode=1>(x, s, b, s, s)",
          {"s": (64,), "b": (64,)}, lambda F, x, w: F.batch_norm(x, None, None, w["s"], w["b"], True)),
    Layer("layer norm", (64, 64, 128), "y = LayerNormalization(x, s, b)", {"s": (128,), "b": (128,)},
          lambda F, x, w: F.layer_norm(x, (128,), w["s"], w["b"])),
    Layer("attention", (8, 64, 128),
          "split = Constant<value_ints=[8,64,4,32]>() whole = Constant<value_ints=[8,64,128]>() " + _HEADS +
          " q = Transpose<perm=[0,2,1,3]>(rq) k = Transpose<perm=[0,2,3,1]>(rk) v = Transpose<perm=[0,2,1,3]>(rv) "
          "a = MatMul(q, k) e = Constant<value_float=0.17677669>() c = Mul(a, e) p = Softmax(c) o = MatMul(p, v) "
          "t = Transpose<perm=[0,2,1,3]>(o) u = Reshape(t, whole) y = MatMul(u, wo)",
          dict.fromkeys(("wq", "wk", "wv", "wo"), (128, 128)), _attention),
    Layer("LSTM", (20, 16, 64), "y = LSTM<hidden_size=64>(x, w, r)", {"w": (1, 256, 64), "r": (1, 256, 64)}, _lstm),
    Layer("max pool", (8, 64, 28, 28), "y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)", {},
          lambda F, x, w: F.max_pool2d(x, 2)),
    Layer("softmax", (256, 1000), "y = Softmax(x)", {}, lambda F, x, w: F.softmax(x, -1)),
    Layer("log softmax", (256, 1000), "y = LogSoftmax(x)", {}, lambda F, x, w: F.log_softmax(x, -1)),
)  # fmt: skip


def _lenet(F: Any, x: Any, w: Mapping[str, Any]) -> Any:
    h = F.max_pool2d(F.relu(F.conv2d(x, w["k"], w["b"])), 2)
    h = F.max_pool2d(F.relu(F.conv2d(h, w["l"], w["c"])), 2)
    return F.linear(F.relu(F.linear(h.flatten(1), w["u"])), w["v"])


def _residual(F: Any, x: Any, w: Mapping[str, Any]) -> Any:
    h = F.relu(F.batch_norm(F.conv2d(x, w["k"], padding=1), None, None, w["s"], w["b"], True))
    return F.relu(x + F.batch_norm(F.conv2d(h, w["l"], padding=1), None, None, w["t"], w["c"], True))


def _inverted(F: Any, x: Any, w: Mapping[str, Any]) -> Any:
    h = F.hardswish(F.conv2d(x, w["e"]))
    return x + F.conv2d(F.hardswish(F.conv2d(h, w["d"], padding=1, groups=128)), w["p"])


def _encoder(F: Any, x: Any, w: Mapping[str, Any]) -> Any:
    h = F.layer_norm(x + _attention(F, x, w), (128,), w["s"], w["t"])
    return F.layer_norm(h + F.gelu(h @ w["f"]) @ w["g"], (128,), w["s"], w["t"])


_ATTEND = LAYERS[9].nodes
MODELS = (
    Layer("model: MLP 784-256-10", (64, 784),
          "h = Gemm<transB=1>(x, w, b) r = Relu(h) z = Gemm<transB=1>(r, v, c) y = LogSoftmax(z)",
          {"w": (256, 784), "b": (256,), "v": (10, 256), "c": (10,)},
          lambda F, x, w: F.log_softmax(F.linear(F.relu(F.linear(x, w["w"], w["b"])), w["v"], w["c"]), -1)),
    Layer("model: LeNet", (32, 1, 28, 28),
          "h = Conv(x, k, b) r = Relu(h) m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r) g = Conv(m, l, c) a = Relu(g) "
          "o = MaxPool<kernel_shape=[2,2], strides=[2,2]>(a) f = Flatten(o) d = Gemm<transB=1>(f, u) e = Relu(d) "
          "y = Gemm<transB=1>(e, v)",
          {"k": (6, 1, 5, 5), "b": (6,), "l": (16, 6, 5, 5), "c": (16,), "u": (120, 256), "v": (10, 120)}, _lenet),
    Layer("model: residual block", (8, 64, 14, 14),
          "h = Conv<pads=[1,1,1,1]>(x, k) n, m1, v1 = BatchNormalization<training_mode=1>(h, s, b, s, s) r = Relu(n) "
          "g = Conv<pads=[1,1,1,1]>(r, l) o, m2, v2 = BatchNormalization<training_mode=1>(g, t, "
          "c, t, t) a = Add(x, o) y = Relu(a)",
          {"k": (64, 64, 3, 3), "s": (64,), "b": (64,), "l": (64, 64, 3, 3), "t": (64,), "c": (64,)}, _residual),
    Layer("model: inverted residual", (8, 32, 28, 28),
          "a = Conv(x, e) h = HardSwish(a) b = Conv<pads=[1,1,1,1], group=128>(h, "
          "d) g = HardSwish(b) c = Conv(g, p) y = Add(x, c)",
          {"e": (128, 32, 1, 1), "d": (128, 1, 3, 3), "p": (32, 128, 1, 1)}, _inverted),
    Layer("model: encoder layer", (8, 64, 128),
          _ATTEND.replace("y = MatMul", "att = MatMul") +
          " r1 = Add(x, att) n1 = LayerNormalization(r1, s, t2) h1 = MatMul(n1, f) "
          "g1 = Gelu(h1) h2 = MatMul(g1, g) r2 = Add(n1, h2) y = LayerNormalization(r2, s, t2)",
          {**dict.fromkeys(("wq", "wk", "wv", "wo"), (128, 128)), "s": (128,), "t2": (128,), "f": (128, 512),
           "g": (512, 128)},
          lambda F, x, w: _encoder(F, x, {**w, "t": w["t2"]})),
)  # fmt: skip


def tables(quick: bool = False, training: str = "") -> Iterator[Table]:
    """One table, with one thread and with two; `training` is a Python that has onnxruntime-training."""
    head = (*HEAD, *OF_TRAINING) if training else HEAD
    table = Table("Gradient files", head, note="x and all weights; onnxruntime runs the file as it is by default.")
    for threads in (1,) if quick else (1, 2):
        variables = {**VARIABLES, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        given = {"quick": quick, "threads": threads, "training": training}
        rows, _ = alone("benchmarks.gradient_files:rows", variables, **given)
        for row in rows:
            table.add(*row)
    yield table


def rows(quick: bool, threads: int, training: str = "") -> list[tuple[Any, ...]]:
    """A row for each layer."""
    return [row(layer, threads, training) for layer in (LAYERS[:2] if quick else (*LAYERS, *MODELS))]


def row(layer: Layer, threads: int, training: str = "") -> tuple[Any, ...]:
    """Times of one layer, side by side."""
    ways, said = {}, "absent"
    with tempfile.TemporaryDirectory() as folder, ExitStack() as processes:
        path = Path(folder) / "layer.onnx"
        onnx.save(layer.model(), path)
        model = gradcheck_cli.load(path)
        found = gradcheck_cli.gradients(model["loss"], [model[n] for n in ("x", *layer.shapes)])
        gradcheck_cli.save(model, path.with_suffix(".grad.onnx"), [model["loss"], *(g for g in found if g is not None)])
        x = np.random.default_rng(1).normal(size=layer.x).astype(np.float32)
        ways["forward"] = _session(path, x, threads)
        ways["file"] = _session(path.with_suffix(".grad.onnx"), x, threads)
        nodes = len(onnx.load(path.with_suffix(".grad.onnx")).graph.node)
        if (torch := installed("torch")) is not None:
            ways["torch"] = _torch(torch, layer, x)
        if training:
            command = [
                training,
                str(TRAINING),
                str(path),
                str(path.with_suffix(".npy")),
                str(threads),
                "x",
                *layer.shapes,
            ]
            np.save(path.with_suffix(".npy"), x)
            process = processes.enter_context(_process(command))
            said, run = _peer(process, path.with_suffix(".npy.npz"), ways["file"]())
            ways.update({"training": run} if run is not None else {})
        times = in_turns(ways, 5)
    median = {name: sorted(each)[len(each) // 2] * 1e3 for name, each in times.items()}
    beside = {n: 1 / ratio(times, n, "file") if n in times else "absent" for n in ("torch", "forward", "training")}
    own = (
        layer.name,
        threads,
        nodes,
        median.get("torch", "absent"),
        median["file"],
        beside["torch"],
        beside["forward"],
    )
    return (*own, said, median.get("training", "absent"), beside["training"]) if training else own


def _process(command: Sequence[str]) -> subprocess.Popen[str]:
    """A process that answers lines."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, text=True, **pipes)


def _peer(
    process: subprocess.Popen[str], out: Path, own: Sequence[NDArray[Any]]
) -> tuple[str, Callable[[], Any] | None]:
    """The nodes of onnxruntime-training's graph and a call that runs it; "none" if it makes none, "wrong" if it is."""
    assert process.stdin is not None
    assert process.stdout is not None
    to, answers = process.stdin, process.stdout

    def run() -> None:
        to.write("\n")
        to.flush()
        answers.readline()

    if not (said := answers.readline()):
        return "none", None
    with np.load(out) as theirs:
        both = zip(own, (theirs[n] for n in theirs.files), strict=True)
        right = all(np.abs(a - b).max() <= CLOSE * max(np.abs(a).max(), 1e-30) for a, b in both)
    return (said.split()[0], run) if right else ("wrong", None)


def _session(path: Path, x: NDArray[Any], threads: int) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    held = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
    return lambda: held.run(None, {"x": x})


def _torch(torch: Any, layer: Layer, x: NDArray[Any]) -> Callable[[], Any]:
    weights = {n: torch.tensor(v, requires_grad=True) for n, v in layer.weights().items()}
    at = torch.tensor(x, requires_grad=True)

    def run() -> Any:
        y = layer.function(torch.nn.functional, at, weights)
        return torch.autograd.grad((y * y).sum(), [at, *weights.values()])

    return run


def of_models(folder: Path) -> Table:
    """The table of all models in a folder, by inputs and by parameters."""
    note = "Seconds and peak are those of `gradcheck grad`, start and proof included; errors those of one direction."
    table = Table("Gradient files of models", OF_MODELS, note=note)
    with tempfile.TemporaryDirectory() as made:
        for path in sorted(folder.rglob("*.onnx")):
            for by in ("inputs", "params"):
                table.add(*of_model(path, Path(made) / "file.onnx", by))
                print(table.rows[-1], file=sys.stderr, flush=True)
    return table


def of_model(path: Path, file: Path, by: str) -> tuple[Any, ...]:
    """The row of one model."""
    file.unlink(missing_ok=True)
    said, seconds, most = commanded(path, file, by)
    if not file.exists():
        return path.stem, by, *[""] * 2, seconds, most, *[""] * 6, " ".join(said.split())
    added = int(said.split("nodes, ")[1].split()[0])
    outputs = [line.split()[1] for line in said.splitlines() if line.startswith("  output ")]
    notes = " ".join(line.split("note", 1)[1].strip() for line in said.splitlines() if line.startswith("  note "))
    sizes = [each.stat().st_size / 1e6 for each in (path, file)]
    given = {"path": str(path), "file": str(file), "outputs": outputs}
    try:
        (nodes, reference, *found), _ = alone("benchmarks.gradient_files:held", VARIABLES, **given)
    except RuntimeError as error:
        return path.stem, by, "", added, seconds, most, *sizes, *[""] * 4, f"{error} {notes}"
    return path.stem, by, nodes, added, seconds, most, *sizes, reference, *found[:3], f"{found[3]} {notes}".strip()


def commanded(path: Path, file: Path, by: str) -> tuple[str, float, float]:
    """Words of `gradcheck grad`, its seconds, and its peak of memory in MB."""
    more = ["--params"] if by == "params" else []
    options = ["-o", str(file), "--grad-ys", "inputs", "--timeout", str(LIMIT), *more]
    command = [sys.executable, "-m", "gradcheck_cli", "grad", str(path), *options]
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        said.seek(0)
        return said.read(), seconds, usage.ru_maxrss / 1024


def held(path: str, file: str, outputs: Sequence[str]) -> tuple[int, str, int, float, float, str]:
    """Nodes of a file, whether ONNX's reference loads it, sizes at which it was run, its largest errors, and remarks."""
    session = quiet_session(file)
    model, own = gradcheck_cli.load(path), gradcheck_cli.load(file)
    ways: dict[str, Callable[[Feeds], Sequence[Any]]] = {
        "float64": lambda feeds: gradcheck_cli.run([own[y] for y in outputs], {n: wide(x) for n, x in feeds.items()}),
        "onnxruntime": lambda feeds: session.run(list(outputs), feeds),
    }
    errors: dict[str, list[float]] = {way: [] for way in ways}
    remarks = []
    for settings in some_sizes(model):
        found, apart = errors_at(model, outputs, ways, settings)
        for way, error in found.items():
            errors[way].append(error)
            if not error <= NEAR[way]:
                remarks.append(f"off by {error:.1e} in {way} at {dict(settings.dims)}, seed {settings.seed}")
        if found["float64"] > NEAR["float64"] and apart > NEAR["float64"]:
            remarks.append(f"at a kink there: one-sided differences are {apart:.1e} apart")
        elif found["onnxruntime"] > NEAR["onnxruntime"]:
            remarks.append(f"whose own run of the model is off by {forward_error(model, path, settings):.1e} there")
    reference = "yes" if evaluated(file) else "no" if evaluated(path) else "neither"
    nodes, sizes = len(onnx.load(file).graph.node), len(errors["float64"])
    largest = [max(each, default=math.nan) for each in errors.values()]
    return nodes, reference, sizes, largest[0], largest[1], "; ".join(remarks)


def evaluated(path: str) -> bool:
    """True if ONNX's reference evaluator knows all that is in a file."""
    from onnx.reference import ReferenceEvaluator

    try:
        ReferenceEvaluator(path)
    except Exception:  # whatever it raises
        return False
    return True


def some_sizes(model: gradcheck_cli.Model) -> Iterator[Settings]:
    """A few sizes at which a model runs; the same one at other values where there are no others."""
    ys, found = choose_y(model.graph), 0
    base = model.point(ys, Settings(dtype="model")).dims
    larger = [{**base, d: n} for by in (1, 3) for d in base for n in (base[d] + by,)]
    doubled = [{d: 2 * n for d, n in base.items()}, {d: n + 1 for d, n in base.items()}]
    for dims in (base, *(larger + doubled if base else ()), base, base):
        settings = Settings(dims=dims, dtype="model", seed=found)
        try:
            model.point(ys, settings)
        except GradcheckError:
            continue
        yield settings
        if (found := found + 1) == SIZES:
            return


def quiet_session(path: str) -> Any:
    """onnxruntime with a file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])


def forward_error(model: gradcheck_cli.Model, path: str, settings: Settings) -> float:
    """The largest error of the outputs of a model in onnxruntime, relative to the largest entry of each."""
    ys, session = choose_y(model.graph), quiet_session(path)
    known = {n: v.value for n, v in model.point(ys, settings).tape.named.items() if n in model.graph.inputs}
    exact = gradcheck_cli.run([model[y] for y in ys], {n: wide(x) for n, x in known.items()})
    found = session.run(list(ys), {i.name: known[i.name] for i in session.get_inputs()})
    both = zip(found, exact, strict=True)
    return max(float(np.abs(y - e).max(initial=0) / (np.abs(e).max(initial=0) or 1)) for y, e in both)


def wide(x: NDArray[Any]) -> NDArray[Any]:
    """Real numbers in float64."""
    return np.asarray(x, np.float64) if x.dtype.kind == "f" else x


def errors_at(
    model: gradcheck_cli.Model, outputs: Sequence[str], ways: Mapping[str, Callable[[Feeds], Sequence[Any]]],
    settings: Settings,
) -> tuple[dict[str, float], float]:  # fmt: skip
    """Errors of a derivative of ys, weighted at random, along one direction, for each way to run the file.

    With them comes the distance of the two one-sided differences.  All are
    relative to the norm of the terms that add up to the derivative, or to the rounding of the difference.
    """
    ys, rng = choose_y(model.graph), np.random.default_rng(settings.seed)
    tape = model.point(ys, settings).tape
    known = {n: tape.named[n].value for n in (*model.graph.inputs, *model.graph.constants) if n in tape.named}
    seeds = {y: rng.normal(size=tape.named[y].shape).astype(tape.named[y].dtype) for y in ys}
    known.update({f"{y}_grad": seed for y, seed in seeds.items()})
    xs = [n.removesuffix("_grad") for n in outputs]
    sizes = {x: np.abs(known[x]).max(initial=0) or 1.0 for x in xs}
    directions = {x: np.asarray(size * rng.normal(size=known[x].shape)) for x, size in sizes.items()}
    slope, rounding, apart = slope_along(model, known, directions, seeds)
    read = {*model.graph.free_inputs, *(f"{y}_grad" for y in ys)}
    feeds = {n: x for n, x in known.items() if n in read}
    terms = {}
    for way, run in ways.items():
        both = zip(run(feeds), directions.values(), strict=True)
        terms[way] = np.concatenate([(np.asarray(g, np.float64) * direction).ravel() for g, direction in both])
    size = max(rounding, 1e-300, *(float(np.linalg.norm(each)) for each in terms.values()))
    return {way: abs(each.sum() - slope) / size for way, each in terms.items()}, apart / size


def slope_along(
    model: gradcheck_cli.Model, known: Feeds, directions: Feeds, seeds: Feeds
) -> tuple[float, float, float]:
    """The slope of the weighted sum of ys by the step at which both of its sides agree best.

    With it come its rounding and the distance of the two sides.
    """
    names = [*model.graph.free_inputs, *(x for x in directions if x not in model.graph.free_inputs)]
    start = {n: wide(known[n]) if n in directions else known[n] for n in names}

    def total(step: float) -> tuple[float, float]:
        moved = {**start, **{x: start[x] + step * way for x, way in directions.items()}}
        found = gradcheck_cli.run([model[y] for y in seeds], moved)
        terms = [np.asarray(seed, np.float64) * y for seed, y in zip(seeds.values(), found, strict=True)]
        return sum(float(t.sum()) for t in terms), sum(float(np.abs(t).sum()) for t in terms)

    here, size = total(0.0)
    estimates = []
    for step in STEPS:
        above, below = total(step)[0], total(-step)[0]
        rounding, apart = np.finfo(np.float64).eps * size / step, abs(above - 2 * here + below) / step
        estimates.append((apart + rounding, (above - below) / (2 * step), rounding, apart))
    return min(estimates)[1:]


def main() -> None:
    """Prints a table, and keeps it."""
    parser = argparse.ArgumentParser("python -m benchmarks.gradient_files", description=__doc__.split("\n")[0])
    parser.add_argument("--models", type=Path, metavar="FOLDER", help="hold the files of all models in it")
    parser.add_argument("--training-python", default="", metavar="PYTHON", help="that has onnxruntime-training")
    parser.add_argument("--quick", action="store_true", help="two layers, one thread")
    given = parser.parse_args()
    write(*(tables(given.quick, given.training_python) if given.models is None else [of_models(given.models)]))


if __name__ == "__main__":
    main()
