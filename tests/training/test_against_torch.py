"""Training steps against PyTorch: single steps from its own state, and whole runs, for each optimizer, net and loss."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import gradcheck_cli as gc
from tests.training.nets import LOSSES, NETS, Net
from tests.training.test_step import loop

torch = pytest.importorskip("torch")
runtime = pytest.importorskip("onnxruntime")

Values = Mapping[str, Any]
Run = Callable[[Values], Mapping[str, Any]]
F = torch.nn.functional
STEPS = 200
ALL = {**NETS, **LOSSES}
# With Lion's at 2e-3 torch's losses of the transformer are 2.5 % from its own of weights that are moved by a rounding.
RATES = {"sgd": 0.1, "momentum": 0.01, "adam": 1e-2, "adamw": 1e-2, "adagrad": 0.02, "rmsprop": 2e-3, "lion": 1e-3}
SLOTS = {"sgd": (), "momentum": ("momentum_buffer",), "adagrad": ("sum",), "rmsprop": ("square_avg",),
         "lion": ("exp_avg",), "adam": ("exp_avg", "exp_avg_sq"), "adamw": ("exp_avg", "exp_avg_sq")}  # fmt: skip
NEAR = {np.float32: 1e-5, np.float64: 1e-12}  # of the norm of an update


class Lion:
    """Lion by its paper, which PyTorch has not: Chen et al., Symbolic Discovery of Optimization Algorithms."""

    def __init__(self, params: Sequence[Any], lr: float) -> None:
        self.params, self.lr = params, lr
        self.state: dict[Any, dict[str, Any]] = {p: {"exp_avg": torch.zeros_like(p)} for p in params}

    def zero_grad(self) -> None:
        for p in self.params:
            p.grad = None

    def step(self) -> None:
        for p in self.params:
            x, g, m = (each.detach().numpy() for each in (p, p.grad, self.state[p]["exp_avg"]))
            x -= np.sign(0.9 * m + (1 - 0.9) * g).astype(x.dtype) * x.dtype.type(self.lr)
            m[...] = 0.99 * m + (1 - 0.99) * g


PEERS: dict[str, Callable[..., Any]] = {
    "sgd": torch.optim.SGD,
    "momentum": lambda p, **how: torch.optim.SGD(p, momentum=0.9, **how),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "lion": Lion,
}
# quick is one optimizer of each net, and each optimizer with two nets
EACH = [
    pytest.param(name, optimizer, id=f"{name}, {optimizer}", marks=() if i % 7 == j else pytest.mark.slow)
    for i, name in enumerate(ALL)
    for j, optimizer in enumerate(PEERS)
]


class Peer:
    """The same net in PyTorch, with its optimizer."""

    def __init__(self, net: Net, step: gc.TrainingStep, optimizer: str, dtype: Any) -> None:
        init = {**net.weights, **{n: step.init[n] for n in step.params}}
        kept = {n: np.asarray(v, dtype) if v.dtype.kind == "f" else v for n, v in init.items()}
        self.net, self.params, self.slots = net, step.params, SLOTS[optimizer]
        self.weights = {n: torch.tensor(v, requires_grad=n in step.params) for n, v in kept.items()}
        self.optimizer = PEERS[optimizer]([self.weights[n] for n in step.params], lr=step.lr)

    def values(self) -> dict[str, Any]:
        """Its parameters and state, as the file has them."""
        made = {n: self.weights[n].detach().numpy().copy() for n in self.params}
        for n in self.params:
            held = self.optimizer.state.get(self.weights[n], {})
            for slot in self.slots:
                value = held.get(slot)
                made[f"{n}.{slot}"] = np.zeros_like(made[n]) if value is None else value.numpy().copy()
        return made

    def step(self, data: Values) -> float:
        """One step; gives the loss before it."""
        self.optimizer.zero_grad()
        loss = self.net.function(torch, F, self.weights, {n: torch.tensor(v) for n, v in data.items()})
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())


def made(net: Net, dtype: Any, path: Path, optimizer: str) -> gc.TrainingStep:
    """The step of a net, with a usual learning rate: at large ones rounding decides where a run goes."""
    onnx.save(net.model(dtype), path / "net.onnx")
    lr = RATES[optimizer] / (64 if "sum" in net.loss and optimizer in ("sgd", "momentum") else 1)
    return gc.training_step(gc.load(path / "net.onnx"), loss=net.loss, optimizer=optimizer, lr=lr, **net.options)


def runner(net: Net, step: gc.TrainingStep, dtype: Any, folder: Path) -> Run:
    """One step of the file: onnxruntime's, and ours in float64 for what onnxruntime has no kernels of."""
    step.save(folder)
    options = runtime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1  # its threads and torch's wait for one another
    try:
        held = runtime.InferenceSession(folder / "train.onnx", options, ["CPUExecutionProvider"])
    except runtime.capi.onnxruntime_pybind11_state.NotImplemented:
        assert dtype == np.float64
    else:
        # it runs no LSTM in float64, and quantizers round to float32 on their way
        if dtype == np.float32 or not {"LSTM", "QuantizeLinear"} & {*re.findall(r"\w+", net.text)}:
            names = [o.name for o in held.get_outputs()]
            return lambda feeds: dict(zip(names, held.run(None, feeds), strict=True))
    names = list(step.train.graph.outputs)
    return lambda feeds: dict(zip(names, gc.run([step.train[n] for n in names], feeds), strict=True))


def norm(one: Values, other: Values, names: Sequence[str]) -> float:
    """The norm of the difference of all tensors together."""
    return math.sqrt(sum(float(np.square(one[n].astype(float) - other[n]).sum()) for n in names))


def rounded(values: Values, names: Sequence[str]) -> tuple[Values, Values]:
    """Half a unit in the last place of each entry, and zeros."""
    return {n: np.spacing(np.abs(values[n])) / 2 for n in names}, {n: np.zeros_like(values[n]) for n in names}


def state_of(step: gc.TrainingStep, dtype: Any) -> dict[str, Any]:
    """Parameters and state before the first step, in a dtype."""
    return {n: np.asarray(v, dtype) if v.dtype.kind == "f" else v for n, v in step.init.items()}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name, optimizer", EACH)
def test_steps_from_the_state_of_torch_are_its_steps(name: str, optimizer: str, dtype: Any, tmp_path: Path) -> None:
    net = ALL[name]
    step = made(net, dtype, tmp_path, optimizer)
    peer, run = Peer(net, step, optimizer, dtype), runner(net, step, dtype, tmp_path / "s")
    state = {n: v for n, v in state_of(step, dtype).items() if n not in step.params}
    for number in range(STEPS):
        before, data = peer.values(), net.batch(number, dtype)
        found = run({**state, **before, **data, "step": np.array(number), "learning_rate": np.array(step.lr)})
        assert found[step.loss] == pytest.approx(peer.step(data), rel=30 * NEAR[dtype])
        after = peer.values()
        new = {n: found[f"{n}{step.suffix}"] for n in step.params}
        assert {v.dtype for v in new.values()} == {np.dtype(dtype)}
        allowed = NEAR[dtype] * norm(after, before, step.params) + norm(*rounded(after, step.params), step.params)
        assert norm(new, after, step.params) <= allowed, number


@pytest.mark.parametrize("name, optimizer", EACH)
def test_trajectories_in_float64_are_those_of_torch(name: str, optimizer: str, tmp_path: Path) -> None:
    net = ALL[name]
    step = made(net, np.float64, tmp_path, optimizer)
    peer, run = Peer(net, step, optimizer, np.float64), runner(net, step, np.float64, tmp_path / "s")
    state = first = state_of(step, np.float64)
    for number in range(STEPS):
        data = net.batch(number, np.float64)
        found = run({**state, **data, "learning_rate": np.array(step.lr)})
        state = {n: found[f"{n}{step.suffix}"] for n in state}
        peer.step(data)
    after = peer.values()
    assert norm(state, after, step.params) <= 1e-8 * norm(after, first, step.params)


@pytest.mark.parametrize("name, optimizer", EACH)
def test_the_loop_of_a_folder_has_the_losses_of_torch(name: str, optimizer: str, tmp_path: Path) -> None:
    """200 steps of step.py in onnxruntime, the second half from a checkpoint and with sequences of another length."""
    net = ALL[name]
    step = made(net, np.float32, tmp_path, optimizer)
    step.save(tmp_path / "step")
    peer, train = Peer(net, step, optimizer, np.float32), loop(tmp_path).train
    ours, theirs = [], []
    for half in range(2):
        data = net.batch(half, np.float32, 64)
        ours += train(data, STEPS // 2, 16, threads=1)
        for number in range(half * STEPS // 2, (half + 1) * STEPS // 2):
            rows = np.random.default_rng(number).choice(64, 16, replace=False)
            theirs.append(peer.step({n: v[rows] for n, v in data.items()}))
    assert np.mean(theirs[STEPS // 2 - 10 : STEPS // 2]) < 0.95 * np.mean(theirs[:5])  # it learns
    np.testing.assert_allclose(ours, theirs, rtol=0.01)


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_steps_of_amsgrad_are_those_of_torch(kind: str, tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]> g (double[4] g) => (double loss)
        <double[4] w = {1.5, -2.0, 0.25, 3.0}> { p = Mul (w, g) loss = ReduceSum <keepdims = 0> (p) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    how = f"{kind.lower()}:amsgrad=true,beta2=0.9"
    step = gc.training_step(gc.load(tmp_path / "m.onnx"), loss="loss", optimizer=how, lr=0.05, weight_decay=0.1)
    state, w = dict(step.init), torch.tensor(step.init["w"], requires_grad=True)
    peer = getattr(torch.optim, kind)([w], lr=0.05, betas=(0.9, 0.9), weight_decay=0.1, amsgrad=True)
    for number in range(20):
        g = np.random.default_rng(number).normal(size=4) / (1 + number)
        feeds = {**state, "g": g, "learning_rate": np.array(0.05)}
        names = [n + step.suffix for n in state]
        state = dict(zip(state, gc.run([step.train[n] for n in names], feeds), strict=True))
        w.grad = torch.tensor(g)
        peer.step()
        np.testing.assert_allclose(state["w"], w.detach().numpy(), rtol=1e-12)
        for slot in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"):
            np.testing.assert_allclose(state[f"w.{slot}"], peer.state[w][slot].numpy(), rtol=1e-12)
