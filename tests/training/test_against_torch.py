"""Training steps against PyTorch: single steps from its own state, and whole runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import gradcheck_cli as gc
from tests.training.nets import NETS, Net

torch = pytest.importorskip("torch")
runtime = pytest.importorskip("onnxruntime")

Values = Mapping[str, Any]
F = torch.nn.functional
PEERS = {
    "sgd": torch.optim.SGD,
    "momentum": lambda p, **how: torch.optim.SGD(p, momentum=0.9, **how),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
}
RATES = {"sgd": 0.1, "momentum": 0.05, "adagrad": 0.05}
SLOTS = {"momentum": ("momentum_buffer",), "adagrad": ("sum",), "rmsprop": ("square_avg",)}
NEAR = {np.float32: 1e-5, np.float64: 1e-12}  # of the norm of an update


class Peer:
    """The same net in PyTorch, with its optimizer."""

    def __init__(self, net: Net, init: dict[str, Any], optimizer: str, lr: float, params: tuple[str, ...]) -> None:
        self.net = net
        kept = {n: v for n, v in init.items() if n in net.weights or n in params}
        self.weights = {n: torch.tensor(v, requires_grad=n in params) for n, v in kept.items()}
        self.params, self.slots = params, SLOTS.get(optimizer, ("exp_avg", "exp_avg_sq") if "adam" in optimizer else ())
        self.optimizer = PEERS[optimizer]([self.weights[n] for n in params], lr=lr)

    def values(self) -> dict[str, Any]:
        """Its parameters and state, as the file has them."""
        made = {n: self.weights[n].detach().numpy().copy() for n in self.params}
        for n in self.params:
            held = self.optimizer.state.get(self.weights[n], {})
            for slot in self.slots:
                value = held.get(slot)
                made[f"{n}.{slot}"] = np.zeros_like(made[n]) if value is None else value.numpy().copy()
        return made

    def step(self, data: dict[str, Any]) -> float:
        """One step; gives the loss before it."""
        self.optimizer.zero_grad()
        loss = self.net.function(torch, F, self.weights, {n: torch.tensor(v) for n, v in data.items()})
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())


def made(net: Net, dtype: Any, path: Path, **options: Any) -> gc.TrainingStep:
    onnx.save(net.model(dtype), path / "net.onnx")
    return gc.training_step(gc.load(path / "net.onnx"), loss=net.loss, **net.options, **options)


def session(step: gc.TrainingStep, folder: Path) -> Any:
    step.save(folder)
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    return runtime.InferenceSession(folder / "train.onnx", options, ["CPUExecutionProvider"])


def runner(step: gc.TrainingStep, dtype: Any, folder: Path) -> Any:
    """One step of the file: onnxruntime's in float32, ours in float64, for which onnxruntime has not all kernels."""
    if dtype == np.float32:
        held = session(step, folder)
        names = [o.name for o in held.get_outputs()]
        return lambda feeds: dict(zip(names, held.run(None, feeds), strict=True))
    names = list(step.train.graph.outputs)
    return lambda feeds: dict(zip(names, gc.run([step.train[n] for n in names], feeds), strict=True))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("optimizer", PEERS)
@pytest.mark.parametrize("name", NETS)
def test_steps_from_the_state_of_torch_are_its_steps(name: str, optimizer: str, dtype: Any, tmp_path: Path) -> None:
    if name == "quantized" and dtype == np.float64:
        pytest.skip("QuantizeLinear takes no float64")
    net, lr = NETS[name], RATES.get(optimizer, 1e-2)
    step = made(net, dtype, tmp_path, optimizer=optimizer, lr=lr)
    peer, run = Peer(net, all_values(net, step, dtype), optimizer, lr, step.params), runner(step, dtype, tmp_path / "s")
    losses, state = [], {n: v for n, v in step.init.items() if n not in step.params}
    for number in range(20):
        before, data = peer.values(), net.batch(number, dtype)
        found = run({**state, **before, **data, "step": np.array(number), "learning_rate": np.array(lr)})
        losses.append(peer.step(data))
        after = peer.values()
        assert found["loss"] == pytest.approx(losses[-1], rel=30 * NEAR[dtype])
        new = {n: found[f"{n}{step.suffix}"] for n in step.params}
        allowed = NEAR[dtype] * norm(after, before, step.params) + norm(*rounded(after, step.params), step.params)
        assert norm(new, after, step.params) <= allowed, number


def norm(one: Values, other: Values, names: Sequence[str]) -> float:
    """The norm of the difference of all tensors together."""
    return math.sqrt(sum(float(np.square(one[n].astype(float) - other[n]).sum()) for n in names))


def rounded(values: Values, names: Sequence[str]) -> tuple[Values, Values]:
    """Half a unit in the last place of each entry, and zeros."""
    return {n: np.spacing(np.abs(values[n])) / 2 for n in names}, {n: np.zeros_like(values[n]) for n in names}


def all_values(net: Net, step: gc.TrainingStep, dtype: Any) -> dict[str, Any]:
    """The weights that the net has, frozen ones too, and those that were added."""
    own = {n: v.astype(dtype) if v.dtype == np.float64 else v for n, v in net.weights.items()}
    return {**own, **{n: step.init[n] for n in step.params}}


@pytest.mark.parametrize("name", NETS)
def test_two_hundred_steps_end_where_those_of_torch_do(name: str, tmp_path: Path) -> None:
    """Losses of the file in onnxruntime within 1 % of torch's in float32."""
    net, lr = NETS[name], 1e-2
    step = made(net, np.float32, tmp_path, optimizer="adam")
    peer, run = Peer(net, all_values(net, step, np.float32), "adam", lr, step.params), session(step, tmp_path / "s")
    names, state, ours, theirs = [o.name for o in run.get_outputs()], dict(step.init), [], []
    for number in range(200):
        data = net.batch(number, np.float32)
        found = dict(zip(names, run.run(None, {**state, **data, "learning_rate": np.array(lr)}), strict=True))
        state = {n: found[f"{n}{step.suffix}"] for n in state}
        ours.append(float(found["loss"]))
        theirs.append(peer.step(data))
    assert np.mean(theirs[-20:]) < 0.9 * np.mean(theirs[:5])  # it learns
    np.testing.assert_allclose(ours, theirs, rtol=0.01, atol=0.01 * theirs[0])


@pytest.mark.parametrize("name", sorted(NETS.keys() - {"quantized"}))
def test_trajectories_in_float64_are_those_of_torch(name: str, tmp_path: Path) -> None:
    net, lr = NETS[name], 1e-2
    step = made(net, np.float64, tmp_path, optimizer="adamw")
    peer, run = (
        Peer(net, all_values(net, step, np.float64), "adamw", lr, step.params),
        runner(step, np.float64, tmp_path),
    )
    state = dict(step.init)
    for number in range(60):
        data = net.batch(number, np.float64)
        found = run({**state, **data, "learning_rate": np.array(lr)})
        state = {n: found[f"{n}{step.suffix}"] for n in state}
        peer.step(data)
    after = peer.values()
    assert norm(state, after, step.params) <= 1e-8 * norm(after, step.init, step.params)
