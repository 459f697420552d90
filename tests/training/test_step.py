"""The folder that `gradcheck step` writes: it trains, goes on from a checkpoint, and says what it holds."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import gradcheck_cli as gc
from gradcheck_cli.cli import main
from gradcheck_cli.errors import UsageError
from gradcheck_cli.training.optimizers import OPTIMIZERS as KNOWN
from tests.checking.test_roles import declared
from tests.docs.sessions import FENCE
from tests.training.nets import NETS

Array = np.ndarray[Any, Any]
MLP = NETS["mlp"]
FIXED = """<ir_version: 9, opset_import: ["" : 18]> g (float[N,2] x) => (float[N,2] y) <float[2] w = {1, 2}> {
    y = Mul (x, w) }"""


def folder(path: Path, name: str = "mlp", **options: Any) -> gc.TrainingStep:
    """The step of a net, written to a folder `step`."""
    net = NETS[name]
    onnx.save(net.model(), path / "net.onnx")
    made = gc.training_step(gc.load(path / "net.onnx"), **{"loss": net.loss, **net.options, **options})
    made.save(path / "step")
    return made


def loop(path: Path) -> Any:
    """The module `step.py` of a folder."""
    spec = spec_from_file_location("step", path / "step" / "step.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", NETS)
def test_the_loop_trains(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    folder(tmp_path, name, optimizer="adam", lr=1e-2)
    data = NETS[name].batch(1, np.float32, 64)
    losses = loop(tmp_path).train(data, 200, 32)
    assert np.mean(losses[-10:]) < 0.8 * np.mean(losses[:10])


@pytest.mark.parametrize("name, optimizer", [*((name, "adam") for name in NETS), *(("mlp", o) for o in KNOWN)])
def test_a_checkpoint_goes_on_bit_for_bit(name: str, optimizer: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    folder(tmp_path, name, optimizer=optimizer, lr=1e-2, accumulate=2 if optimizer == "sgd" else 1)
    module, data = loop(tmp_path), NETS[name].batch(1, np.float32, 64)
    whole = module.train(data, 30, 8, threads=1)
    ends = dict(np.load(module.CHECKPOINT))
    module.CHECKPOINT.unlink()
    assert module.train(data, 13, 8, threads=1) + module.train(data, 17, 8, threads=1) == whole
    again = dict(np.load(module.CHECKPOINT))
    assert all(again[n].tobytes() == ends[n].tobytes() for n in ends)


def test_the_loop_goes_on_after_a_batch_that_is_skipped(tmp_path: Path) -> None:
    """The step does not count, and the next batch is another one."""
    pytest.importorskip("onnxruntime")
    folder(tmp_path, optimizer="sgd", loss_scale=64.0)
    module, data = loop(tmp_path), MLP.batch(1, np.float32, 64)
    first = np.random.default_rng(0).choice(64, 8, replace=False)
    data["x"][first[0]] = np.inf
    whole = module.train(data, 20, 8, threads=1)
    ends = dict(np.load(module.CHECKPOINT))
    assert 0 < ends["step"] < 20
    module.CHECKPOINT.unlink()
    np.testing.assert_array_equal(module.train(data, 1, 8, threads=1) + module.train(data, 19, 8, threads=1), whole)
    again = dict(np.load(module.CHECKPOINT))
    assert all(again[n].tobytes() == ends[n].tobytes() for n in ends)


def test_a_checkpoint_of_another_optimizer_is_told(tmp_path: Path) -> None:
    """One that has more than is needed goes on with that."""
    pytest.importorskip("onnxruntime")
    data = MLP.batch(1, np.float32, 64)
    folder(tmp_path, optimizer="sgd")
    loop(tmp_path).train(data, 1, 8)
    folder(tmp_path, optimizer="adam")
    with pytest.raises(SystemExit, match=r"has no w1\.exp_avg, .*of another training step.*init\.npz"):
        loop(tmp_path).train(data, 1, 8)
    loop(tmp_path).CHECKPOINT.unlink()
    loop(tmp_path).train(data, 1, 8)
    folder(tmp_path, optimizer="sgd")
    assert len(loop(tmp_path).train(data, 2, 8)) == 2


def test_a_checkpoint_in_the_place_of_the_first_values_is_told(tmp_path: Path) -> None:
    """A checkpoint of another model, whose weights are called alike, would count instead of what is written."""
    pytest.importorskip("onnxruntime")
    step = folder(tmp_path, optimizer="sgd")
    assert step.save(tmp_path / "step") == []
    loop(tmp_path).train(MLP.batch(1, np.float32, 64), 1, 8)
    [said] = step.save(tmp_path / "step")
    assert said.startswith(f"{tmp_path / 'step' / 'checkpoint.npz'} is there: step.py goes on from its values")


@pytest.mark.parametrize("size", ["N", "8"])
@pytest.mark.parametrize("words", [[], ["3"], ["3", "8"]])
def test_the_loop_is_a_command(words: list[str], size: str, tmp_path: Path) -> None:
    """Batches are as large as the model takes them, or of 32, and of no more rows than there are."""
    pytest.importorskip("onnxruntime")
    made = onnx.parser.parse_model(FIXED.replace("N", size))
    onnx.save(made, tmp_path / "m.onnx")
    gc.training_step(gc.load(tmp_path / "m.onnx"), loss="l1:y,t").save(tmp_path / "step")
    np.savez(tmp_path / "data.npz", x=np.ones((64, 2), np.float32), t=np.zeros((64, 2), np.float32))
    line = [sys.executable, "step/step.py", "data.npz", *words]
    steps = 3 if words else 200
    for start in (0, steps):  # the second run goes on from the checkpoint of the first
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert [line.split()[0] for line in done.stdout.splitlines()] == [*map(str, range(start, start + steps))]
    assert (8 if size == "8" else 32) == loop(tmp_path).BATCH


def test_the_loop_tells_each_step_and_keeps_what_is_done_when_it_is_stopped(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    step = folder(tmp_path, metrics=["grad_norm", "accuracy:scores,labels"])
    module, data, told = loop(tmp_path), MLP.batch(1, np.float32, 64), list[tuple[Any, ...]]()
    assert module.METRICS == step.metrics == ("accuracy", "grad_norm")
    whole = module.train(data, 5, 8, threads=1, tell=lambda *said: told.append(said))
    assert [(number, loss) for number, loss, *_ in told] == [*enumerate(whole)]
    assert all(0 <= accuracy <= 1 and norm > 0 for *_, accuracy, norm in told)
    ends = module.CHECKPOINT.read_bytes()
    module.CHECKPOINT.unlink()

    def stop(number: int, *_: Any) -> None:
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        module.train(data, 5, 8, threads=1, tell=stop)
    assert module.train(data, 2, 8, threads=1) == whole[3:]
    assert module.CHECKPOINT.read_bytes() == ends


def stepped(step: gc.TrainingStep, /, **feeds: Any) -> dict[str, Array]:
    """The results of the training graph, in float64."""
    names = [*step.train.graph.outputs]
    state = {**step.init, "learning_rate": np.array(step.lr), **feeds}
    return dict(zip(names, gc.run([step.train[n] for n in names], state), strict=True))


def scores(x: Array) -> Array:
    w = {n: v.astype(np.float32).astype(float) for n, v in MLP.weights.items()}
    return np.asarray(np.maximum(x @ w["w1"].T + w["b1"], 0) @ w["w2"].T + w["b2"])


def log_softmax(x: Array) -> Array:
    return np.asarray(x - np.log(np.exp(x).sum(1, keepdims=True)))


T = np.random.default_rng(3).normal(size=(5, 3))
P = np.abs(T) / np.abs(T).sum(1, keepdims=True)
L = np.array([2, 0, -100, 1, 1])
LOSSES: dict[str, tuple[str, Array, Callable[[Array], float]]] = {
    "mse": ("mse:scores,t", T, lambda y: np.mean((y - T) ** 2)),
    "sum": ("mse:scores,t,reduction=sum", T, lambda y: np.sum((y - T) ** 2)),
    "l1": ("l1:scores,t", T, lambda y: np.mean(np.abs(y - T))),
    "huber": ("huber:scores,t,delta=0.75", T,
              lambda y: np.mean(np.where(abs(y - T) <= 0.75, (y - T) ** 2 / 2, 0.75 * (abs(y - T) - 0.375)))),
    "binary": ("bce-with-logits:scores,t", P,
               lambda y: -np.mean(P * np.log(1 / (1 + np.exp(-y))) + (1 - P) * np.log(1 / (1 + np.exp(y))))),
    "classes": ("cross-entropy:scores,t", L, lambda y: -np.mean([log_softmax(y)[i, L[i]] for i in (0, 1, 3, 4)])),
    "summed": ("cross-entropy:scores,t,reduction=sum", L,
               lambda y: -np.sum([log_softmax(y)[i, L[i]] for i in (0, 1, 3, 4)])),
    "ignoring": ("cross-entropy:scores,t,ignore=1", np.array([2, 0, 0, 1, 1]),
                 lambda y: -np.mean([log_softmax(y)[i, c] for i, c in ((0, 2), (1, 0), (2, 0))])),
    "weighted": ("bce-with-logits:scores,t,pos_weight=3", P,
                 lambda y: -np.mean(3 * P * np.log(1 / (1 + np.exp(-y))) + (1 - P) * np.log(1 / (1 + np.exp(y))))),
    "smoothed": ("cross-entropy:scores,t,label_smoothing=0.25", L, lambda y: -np.mean(
        [0.75 * log_softmax(y)[i, L[i]] + 0.25 * log_softmax(y)[i].mean() for i in (0, 1, 3, 4)])),
    "soft": ("cross-entropy:scores,t,probabilities", P, lambda y: -np.mean((P * log_softmax(y)).sum(1))),
}  # fmt: skip


def test_several_losses_add_up_and_each_is_given(tmp_path: Path) -> None:
    texts = ["2:mse:scores,t", "-0.25:l1:scores,t", "huber:scores,t,delta=0.75"]
    step = folder(tmp_path, loss=texts, optimizer="sgd", lr=0.1, metrics="mse")
    plain = [text.removeprefix("2:").removeprefix("-0.25:") for text in texts]
    alone = [folder(tmp_path, loss=text, optimizer="sgd", lr=0.1) for text in plain]
    feeds = {"x": np.random.default_rng(2).normal(size=(5, 8)), "t": T}
    found, parts = stepped(step, **feeds), [stepped(each, **feeds) for each in alone]
    assert (step.metrics, step.data) == (("mse", "l1", "huber"), ("x", "t"))
    for name, part in zip(step.metrics, parts, strict=True):
        assert found[name] == pytest.approx(part["loss"], rel=1e-12)
    for name, off in (("loss", 0.0), ("w1_next", step.init["w1"]), ("b2_next", step.init["b2"])):
        total = sum(factor * (part[name] - off) for factor, part in zip((2, -0.25, 1), parts, strict=True))
        np.testing.assert_allclose(found[name] - off, total, rtol=1e-9, atol=1e-12)
    assert {"loss", "mse", "l1", "huber"} <= {*step.evaluate.graph.outputs}


FACTORS: dict[str, tuple[str | list[str], str]] = {
    "none": ([], "^--loss: a training step needs one"),
    "zero": (["0:mse:scores,t"], "^--loss 0:mse:scores,t: its factor is 0; it is a finite number, and not 0"),
    "no number": ("nan:mse:scores,t", "its factor is nan"),
    "of nothing": ("2:", "^--loss : write a tensor of the model, or mse:PREDICTION,TARGET"),
    "of rows": (["mse:scores,t", "scores"], r"^--loss scores: it is \[.*,3\] float.*; a loss is one number"),
}  # fmt: skip


@pytest.mark.parametrize("name", FACTORS)
def test_a_loss_that_cannot_be_added_is_told(name: str, tmp_path: Path) -> None:
    texts, said = FACTORS[name]
    with pytest.raises(UsageError, match=said):
        folder(tmp_path, loss=texts)


@pytest.mark.parametrize("metrics", [(), "both"])
def test_a_loss_that_is_a_metric_too_is_one_output(metrics: Any, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(HEADS), tmp_path / "m.onnx")
    step = gc.training_step(gc.load(tmp_path / "m.onnx"), loss="both", metrics=metrics)
    assert [*step.train.graph.outputs].count("both") == 1
    assert step.metrics == ()


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_their_formulas(name: str, tmp_path: Path) -> None:
    text, target, formula = LOSSES[name]
    step = folder(tmp_path, loss=text, optimizer="sgd", lr=0.1)
    x = np.random.default_rng(2).normal(size=(5, 8))
    found = stepped(step, x=x, t=target)
    assert found["loss"] == pytest.approx(formula(scores(x)), rel=1e-9)
    for entry in (0, 2):  # the gradient, by a difference: sgd moves by lr times it
        moved = {n: dict(step.init)["b2"] + d * np.eye(3)[entry] for n, d in (("up", 1e-5), ("down", -1e-5))}
        up, down = (stepped(step, x=x, t=target, b2=b)["loss"] for b in moved.values())
        gradient = (step.init["b2"][entry] - found["b2_next"][entry]) / 0.1
        assert gradient == pytest.approx((up - down) / 2e-5, rel=1e-5, abs=1e-8)


def adam_like(
    x: Array, gs: Sequence[Array], lr: float, decay: float = 0.0, l2: float = 0.0, b2: float = 0.999, ams: bool = False
) -> Array:
    """Adam, its weights decayed beside it (AdamW) or in the gradient, written out from its paper, or AMSGrad."""
    m = v = most = np.zeros_like(x)
    for t, given in enumerate(gs, 1):
        g = given + l2 * x
        x = x * (1 - lr * decay)
        m, v = 0.9 * m + 0.1 * g, b2 * v + (1 - b2) * g * g
        most = np.maximum(most, v) if ams else v
        x = x - lr * (m / (1 - 0.9**t)) / (np.sqrt(most / (1 - b2**t)) + 1e-8)
    return x


def lion_like(x: Array, gs: Sequence[Array], lr: float, decay: float = 0.0) -> Array:
    m = np.zeros_like(x)
    for g in gs:
        x = x - lr * (np.sign(0.9 * m + 0.1 * g) + decay * x)
        m = 0.99 * m + 0.01 * g
    return x


def momentum_like(x: Array, gs: Sequence[Array], lr: float) -> Array:
    b = np.zeros_like(x)
    for g in gs:
        b = 0.8 * b + g
        x = x - lr * (g + 0.8 * b)
    return x


def rms_like(x: Array, gs: Sequence[Array], lr: float) -> Array:
    s = np.zeros_like(x)
    for g in gs:
        s = 0.5 * s + 0.5 * g * g
        x = x - lr * g / (np.sqrt(s) + 1e-8)
    return x


def adagrad_like(x: Array, gs: Sequence[Array], lr: float) -> Array:
    s = np.zeros_like(x)
    for t, g in enumerate(gs):
        s = s + g * g
        x = x - lr / (1 + 0.1 * t) * g / (np.sqrt(s) + 1e-10)
    return x


OPTIMIZERS: dict[str, Callable[[Array, Sequence[Array], float], Array]] = {
    "sgd": lambda x, gs, lr: x - lr * sum(gs),
    "adam": adam_like,
    "adamw": lambda x, gs, lr: adam_like(x, gs, lr, decay=0.01),
    "adam:beta2=0.5": lambda x, gs, lr: adam_like(x, gs, lr, b2=0.5),
    "adam:amsgrad=1,beta2=0.5": lambda x, gs, lr: adam_like(x, gs, lr, b2=0.5, ams=True),
    "adamw:amsgrad=true,beta2=0.5": lambda x, gs, lr: adam_like(x, gs, lr, decay=0.01, b2=0.5, ams=True),
    "lion": lion_like,
    "momentum:momentum=0.8,nesterov=1": momentum_like,
    "momentum:momentum=0.8,nesterov=true": momentum_like,
    "rmsprop:alpha=0.5": rms_like,
    "adagrad:lr_decay=0.1": adagrad_like,
    "adam decayed": lambda x, gs, lr: adam_like(x, gs, lr, l2=0.3),
    "lion decayed": lambda x, gs, lr: lion_like(x, gs, lr, decay=0.3),
}
LINEAR = """<ir_version: 9, opset_import: ["" : 18]> g (double[4] g) => (double loss)
    <double[4] w = {1.5, -2.0, 0.25, 3.0}> { p = Mul(w, g) loss = ReduceSum<keepdims=0>(p) }"""


def linear(path: Path, **options: Any) -> gc.TrainingStep:
    """A step of a loss whose gradient by w is the input g."""
    onnx.save(onnx.parser.parse_model(LINEAR), path / "linear.onnx")
    return gc.training_step(gc.load(path / "linear.onnx"), loss="loss", **options)


def run(step: gc.TrainingStep, gs: Sequence[Array]) -> list[dict[str, Array]]:
    """The results of each step."""
    state, made = dict(step.init), []
    for g in gs:
        made.append(stepped(step, g=g, **state))
        state = {n: made[-1][n + step.suffix] for n in state}
    return made


GS = [g / np.float64(i + 1) for i, g in enumerate(np.random.default_rng(5).normal(size=(6, 4)))]


def test_every_loss_and_optimizer_has_a_formula_here_and_is_named_where_one_looks_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError) as refused:
        folder(tmp_path, loss="none:scores,t")
    known = {*re.findall(r"([\w-]+):PREDICTION", str(refused.value)), *KNOWN}
    assert known == {re.split("[: ]", name)[0] for name in (*OPTIMIZERS, *(text for text, _, _ in LOSSES.values()))}
    monkeypatch.setenv("COLUMNS", "200")
    main(["step", "--help"])
    page = Path(__file__).parents[2] / "docs/pages/guides/training.md"
    for told in (capsys.readouterr().out, str(gc.training_step.__doc__), page.read_text("utf-8")):
        assert known - {*re.findall(r"[\w-]+", told)} == set()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_are_their_definitions(name: str, tmp_path: Path) -> None:
    text, decay = (name.removesuffix(" decayed"), 0.3 if name.endswith(" decayed") else None)
    step = linear(tmp_path, optimizer=text, lr=0.05, weight_decay=decay)
    ends = run(step, GS)[-1]["w_next"]
    np.testing.assert_allclose(ends, OPTIMIZERS[name](step.init["w"], GS, 0.05), rtol=1e-12)


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd", "lion"])
def test_weights_that_do_not_decay_move_as_without_a_decay(optimizer: str, tmp_path: Path) -> None:
    data = MLP.batch(1, np.float32, 8)
    options = {"all": {"weight_decay": 0.5}, "none": {"weight_decay": 0.0},
               "some": {"weight_decay": 0.5, "no_decay": ["b*", "w2"]}}  # fmt: skip
    found = {
        name: stepped(folder(tmp_path, optimizer=optimizer, lr=0.1, **how), **data) for name, how in options.items()
    }
    for name, like in {"w1": "all", "b1": "none", "w2": "none", "b2": "none"}.items():
        assert np.array_equal(found["some"][f"{name}_next"], found[like][f"{name}_next"]), name
    assert not np.array_equal(found["all"]["w1_next"], found["none"]["w1_next"])


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if not name.endswith(" decayed")])
def test_weights_have_learning_rates_of_their_own(optimizer: str, tmp_path: Path) -> None:
    """Of several scales the last that fits a weight counts: each weight moves as where its rate is that of all."""
    data = MLP.batch(1, np.float32, 8)
    scaled = folder(tmp_path, optimizer=optimizer, lr=0.1, weight_decay=0.5, lr_scale=["0.5:*", "0.25:b*", "1:w2"])
    found, rates = stepped(scaled, **data), {"w1": 0.05, "b1": 0.025, "w2": 0.1, "b2": 0.025}
    for name, rate in rates.items():
        alone = stepped(folder(tmp_path, optimizer=optimizer, lr=rate, weight_decay=0.5), **data)
        np.testing.assert_allclose(found[f"{name}_next"], alone[f"{name}_next"], rtol=1e-6, err_msg=name)


def test_gradients_are_clipped_by_their_norm(tmp_path: Path) -> None:
    step = linear(tmp_path, optimizer="sgd", lr=1.0, clip_norm=0.5, metrics="grad_norm")
    for g, made in zip(GS, run(step, GS), strict=True):
        assert made["grad_norm"] == pytest.approx(np.linalg.norm(g))
    used = [g * min(1, 0.5 / (np.linalg.norm(g) + 1e-6)) for g in GS]
    np.testing.assert_allclose(made["w_next"], step.init["w"] - sum(used), rtol=1e-12)


def test_batches_add_up_to_one_update(tmp_path: Path) -> None:
    step = linear(tmp_path, optimizer="adam", lr=0.05, accumulate=3)
    made = run(step, GS)
    same = [np.array_equal(one["w_next"], step.init["w"]) for one in made]
    assert same == [True, True, False, False, False, False]
    assert np.array_equal(made[2]["w_next"], made[4]["w_next"])
    assert not made[2]["w.grad_sum_next"].any()
    means = [sum(GS[:3]) / 3, sum(GS[3:]) / 3]
    np.testing.assert_allclose(made[-1]["w_next"], adam_like(step.init["w"], means, 0.05), rtol=1e-12)


def test_a_batch_that_overflows_changes_nothing(tmp_path: Path) -> None:
    step = linear(tmp_path, optimizer="adam", lr=0.05, loss_scale=1024.0)
    bad = np.array([1.0, np.inf, 0.0, 0.0])
    made = run(step, [GS[0], bad, GS[1]])
    assert [int(one["step_next"]) for one in made] == [1, 1, 2]
    np.testing.assert_allclose(made[-1]["w_next"], adam_like(step.init["w"], GS[:2], 0.05), rtol=1e-12)


def test_half_precision_trains_float32_parameters(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    onnx.save(MLP.model(np.float16), tmp_path / "half.onnx")
    step = gc.training_step(gc.load(tmp_path / "half.onnx"), loss=MLP.loss, lr=1e-2, loss_scale=256.0)
    assert {step.init[n].dtype for n in step.params} == {np.dtype(np.float32)}
    step.save(tmp_path / "step")
    session = runtime.InferenceSession(tmp_path / "step/train.onnx", None, ["CPUExecutionProvider"])
    state, losses = dict(step.init), []
    for number in range(100):
        data = MLP.batch(number, np.float16)
        names = [o.name for o in session.get_outputs()]
        made = dict(zip(names, session.run(None, {**state, **data, "learning_rate": np.array(1e-2)}), strict=True))
        state = {n: made[n + step.suffix] for n in state}
        losses.append(float(made["loss"]))
    assert np.mean(losses[-10:]) < 0.7 * np.mean(losses[:10])
    assert int(state["step"]) == 100


def test_a_scale_is_a_number_of_the_dtype_of_the_loss(tmp_path: Path) -> None:
    """65536, the first scale of torch.amp.GradScaler, is infinity in float16: autocast gives a loss in float32."""
    onnx.save(MLP.model(np.float16), tmp_path / "half.onnx")
    model = gc.load(tmp_path / "half.onnx")
    assert gc.training_step(model, loss=MLP.loss, loss_scale=32768.0).params
    with pytest.raises(
        UsageError, match=r"^loss_scale is 65536; the loss is float16, in which numbers end at 65504\.$"
    ):
        gc.training_step(model, loss=MLP.loss, loss_scale=65536.0)


def test_statistics_that_the_model_trains_are_state(tmp_path: Path) -> None:
    step = folder(tmp_path, "cnn")
    assert {"mean", "var"} <= {*step.init}.difference(step.params)
    data = NETS["cnn"].batch(0, np.float64)
    made = stepped(step, **data)
    w = {n: v.astype(np.float32) for n, v in NETS["cnn"].weights.items()}
    padded = np.pad(data["x"], ((0, 0), (0, 0), (1, 1), (1, 1)))
    taps = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    c = np.einsum("nchwij,mcij->nmhw", taps, w["k1"])
    np.testing.assert_allclose(made["mean_next"], 0.1 * c.mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(made["var_next"], 0.9 + 0.1 * c.var((0, 2, 3)), rtol=1e-6)


LENGTHS = """<ir_version: 9, opset_import: ["" : 18]>
    g (float[N,4] x, int64[1] count, float[4] shift) => (float[N,4] y) <float[4,4] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7},
        int64[1] one = {1}, int64[1] zero = {0}, int64[2] shape = {4, 4}> {
        h = MatMul (x, w)
        part = Slice (h, zero, count, zero, one)
        square = Reshape (part, shape)
        y = Add (square, shift)
    }"""  # which runs where as many rows are taken as the shape says


def test_values_that_are_fed_are_held_by_the_files_and_not_trained(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(LENGTHS), tmp_path / "m.onnx")
    words = ["--loss", "mse:y,t", "--optimizer", "sgd", "--lr", "0.1", "--feed", "count=4", "--feed", "shift=[1,2,3,4]"]
    assert main(["step", str(tmp_path / "m.onnx"), *words, "-o", str(tmp_path / "step")]) == 0
    train = onnx.load(tmp_path / "step" / "train.onnx")
    assert {i.name for i in train.graph.input} == {"x", "t", "w", "learning_rate", "step"}
    shift = np.arange(1.0, 5.0)
    given = {"count": 4, "shift": shift}
    step = gc.training_step(gc.load(tmp_path / "m.onnx"), loss="mse:y,t", optimizer="sgd", lr=0.1, feeds=given)
    assert {*step.train.graph.inputs} == {i.name for i in train.graph.input}
    x, t = np.random.default_rng(1).normal(size=(2, 4, 4))
    made, w = stepped(step, x=x, t=t), step.init["w"]
    np.testing.assert_allclose(made["w_next"], w - 0.1 * x.T @ (x @ w + shift - t) / 8, rtol=1e-9)


def test_an_inner_tensor_can_be_fed_too(tmp_path: Path) -> None:
    text = LENGTHS.replace("y = Add (square, shift)", "a = Add (square, shift) y = Mul (a, w)")
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    model, h, t = gc.load(tmp_path / "m.onnx"), *np.random.default_rng(2).normal(size=(2, 4, 4))
    with pytest.raises(UsageError, match="no weights to train"):
        gc.training_step(model, loss="mse:a,t", feeds={"square": h})
    step = gc.training_step(model, loss="mse:y,t", optimizer="sgd", lr=0.1, feeds={"square": h, "shift": 1.0})
    w = step.init["w"]
    np.testing.assert_allclose(stepped(step, t=t)["w_next"], w - 0.1 * (h + 1) * ((h + 1) * w - t) / 8, rtol=1e-6)


INTEGERS = """<ir_version: 8, opset_import: ["" : 17]> m (float[2,3] x) => (float[2,2] y)
<int8[3,2] w = {1, 2, 3, 4, 5, 6}, float s = {0.5}, int8 z = {0}> { v = DequantizeLinear (w, s, z) y = MatMul (x, v) }"""


def test_weights_that_a_quantizer_has_made_integers_are_told(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(INTEGERS), tmp_path / "m.onnx")
    with pytest.raises(
        UsageError, match=r"no weights to train: they are integers since it was quantized; take the model.*--straight"
    ):
        gc.training_step(gc.load(tmp_path / "m.onnx"), loss="mse:y,t")


def test_weights_of_floats_that_a_quantizer_rounds_are_trained_straight_through(tmp_path: Path) -> None:
    rounded = INTEGERS.replace("int8[3,2] w", "float[3,2] w").replace("v = Deq", "q = QuantizeLinear (w, s, z) v = Deq")
    onnx.save(
        onnx.parser.parse_model(rounded.replace("DequantizeLinear (w", "DequantizeLinear (q")), tmp_path / "m.onnx"
    )
    assert gc.training_step(gc.load(tmp_path / "m.onnx"), loss="mse:y,t", straight_through=True).params == ("w",)


@pytest.mark.parametrize(("rank", "noted"), [(2, False), (3, True)])
def test_a_rank_above_the_smaller_side_is_told(rank: int, noted: bool, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(BRANCHES), tmp_path / "m.onnx")
    step = gc.training_step(gc.load(tmp_path / "m.onnx"), loss="mse:y,t", lora=f"{rank}:w")
    assert ("w: the rank of --lora is above the smaller side" in "".join(step.notes)) == noted


def test_a_glob_that_fits_nothing_is_told_by_its_own_option(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(LENGTHS), tmp_path / "m.onnx")
    with pytest.raises(UsageError, match=r"^--trainable v fits no tensor"):
        gc.training_step(gc.load(tmp_path / "m.onnx"), loss="mse:y,t", trainable="v", feeds={"count": 4})


def test_frozen_statistics_are_said(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]> g (float[N,2] x) => (float[N,2] y)
        <float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {0, 3}, float[2] v = {1, 2}>
        { y = BatchNormalization(x, s, b, m, v) }""")
    onnx.save(model, tmp_path / "m.onnx")
    step = gc.training_step(gc.load(tmp_path / "m.onnx"), loss="mse:y,t")
    assert step.params == ("s", "b")
    assert any("1 of 1 BatchNormalization use the statistics in the file" in note for note in step.notes)


IN_TRAINING = """<ir_version: 9, opset_import: ["" : 18]> g (double[N,2] x) => (double[N,2] y, double[2] mean)
    <double[2] s = {1, 2}, double[2] b = {0, 1}, double[2] m = {0.5, 3}, double[2] v = {1, 2},
     double half = {0.5}, bool yes = {1}> { KIND }"""
LAYERS = """n, mean, var = BatchNormalization<training_mode=1> (x, s, b, m, v) y, mask = Dropout (n, half, yes)"""
KINDS = {
    "outside": LAYERS,
    "inside of a branch": f"""y, mean = If (yes) <then_branch = a () => (double[N,2] y, double[2] mean) {{ {LAYERS} }},
        else_branch = e () => (double[N,2] u, double[2] w) {{ u = Identity (x) w = Identity (m) }}>""",
}


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_normalizes_by_running_statistics_and_drops_nothing(kind: str, tmp_path: Path) -> None:
    """As the eval() of PyTorch does for a model that was exported as it is trained."""
    onnx.save(onnx.parser.parse_model(IN_TRAINING.replace("KIND", KINDS[kind])), tmp_path / "m.onnx")
    step = gc.training_step(gc.load(tmp_path / "m.onnx"), loss="mse:y,t", optimizer="sgd", lr=0.1)
    x, mean, var = np.random.default_rng(1).normal(size=(1, 2)), np.array([0.5, -1.0]), np.array([4.0, 0.25])
    kept = {"m": mean, "v": var} if "m" in step.evaluate.graph.inputs else {}
    given = {"x": x, "t": x, **{n: step.init[n] for n in step.params}, **kept}
    y, now = gc.run([step.evaluate["y"], step.evaluate["mean"]], given)
    mean, var = (kept.get("m", np.array([0.5, 3])), kept.get("v", np.array([1.0, 2])))
    np.testing.assert_allclose(y, (x - mean) / np.sqrt(var + 1e-5) * [1, 2] + [0, 1], rtol=1e-7)
    np.testing.assert_allclose(now, mean)
    assert bool(kept) == (kind == "outside")


HALVED = "y = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, k)"
SAME = "y = Conv <pads = [1, 1, 1, 1]> (x, k)"
EIGHTH = "p = Conv <strides = [4, 4]> (x, k) y = MaxPool <kernel_shape = [1, 1], strides = [2, 2]> (p)"
DOUBLED = 'p = Conv (x, k) y = Resize <mode = "nearest"> (p, , two)'
COLUMNS = f"""{SAME.replace("y", "p")} m = ReduceMean <keepdims = 0> (p, last)
    t = Transpose <perm = [0, 2, 1]> (m) y = Reshape (t, rows)"""
PIXELS = f"{SAME.replace('y', 'p')} t = Transpose <perm = [0, 2, 3, 1]> (p) y = Reshape (t, rows)"
FORMULAS = ["b", 4, "(h - 1)//2 + 1", "(w - 1)//2 + 1"]
# nodes, the dimensions of y as an exporter declares them, and those of a target of it
FOLLOWED = {
    "of names of their own": (SAME, ["b1", 4, "h1", "w1"], ["b", "h", "w"]),
    "undeclared": (SAME, None, ["b", "h", "w"]),
    "halved": (HALVED, ["b", 4, None, None], ["b", "(h + 1)//2", "(w + 1)//2"]),
    "halved by formulas": (HALVED, FORMULAS, ["b", "(h + 1)//2", "(w + 1)//2"]),
    "a border less": ("y = Conv (x, k)", ["b", 4, "h1", "w1"], ["b", "h - 2", "w - 2"]),
    "doubled": (DOUBLED, ["b", 4, "h1", "w1"], ["b", "2*h - 4", "2*w - 4"]),
    "an eighth": (EIGHTH, ["b", 4, "h1", "w1"], ["b", "(h + 5)//8", "(w + 5)//8"]),
    "in rows": (COLUMNS, ["n", 4], ["b*h"]),
    "in rows of all": (PIXELS, ["n", 4], ["b*h*w"]),
    "in rows, declared as one": (PIXELS, [1, 4], ["b*h*w"]),
    "in rows, declared as none": (PIXELS, [4], ["b*h*w"]),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_a_target_has_the_dimensions_that_the_prediction_follows(name: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    nodes, dims, expected = FOLLOWED[name]
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18]> g (float[b,3,h,w] x) => (float y)
        <float[4] two = {{1, 1, 2, 2}}, int64[2] rows = {{-1, 4}}, int64[1] last = {{3}}> {{ {nodes} }}""")
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, dims))
    rng = np.random.default_rng(0)
    model.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=(4, 3, 3, 3)).astype("f4"), "k"))
    onnx.save(model, tmp_path / "m.onnx")
    made = gc.training_step(gc.load(tmp_path / "m.onnx"), loss="cross-entropy:y,labels")
    made.save(tmp_path / "step")
    assert (list(made.train.shape("labels")), made.notes) == (expected, ())
    for shape in ((1, 3, 8, 6), (3, 3, 11, 21)):
        x = rng.normal(size=shape).astype("f4")
        [y] = runtime.InferenceSession(tmp_path / "m.onnx").run(None, {"x": x})
        labels = rng.integers(0, 4, np.delete(y.shape, 1))
        scores = np.exp(y) / np.exp(y).sum(1, keepdims=True)
        picked = np.take_along_axis(scores, labels[:, None], 1)
        weights = {n: v for n, v in np.load(tmp_path / "step" / "init.npz").items() if n == "k"}
        session = runtime.InferenceSession(tmp_path / "step" / "eval.onnx")
        [loss] = session.run(["loss"], {"x": x, "labels": labels, **weights})
        assert loss == pytest.approx(-np.log(picked).mean(), rel=1e-5)


# nodes, the loss, and a tensor that a note names as the scores before
BEHIND = {
    "softmax": ("y = Softmax (x)", "cross-entropy:y,labels", "h"),
    "softmax under another name": ("p = Softmax (x) y = Identity (p)", "cross-entropy:y,labels,axis=-1", "h"),
    "sigmoid": ("y = Sigmoid (x)", "bce-with-logits:y,t", "h"),
    "scores": ("y = Softmax (x)", "cross-entropy:h,labels", None),
    "log of softmax": ("y = LogSoftmax (x)", "cross-entropy:y,labels", None),
    "sigmoids of several classes": ("y = Sigmoid (x)", "cross-entropy:y,labels", None),
    "another loss": ("y = Softmax (x)", "mse:y,t", None),
    "a tensor of the model": ("y = Softmax (x) m = ReduceMean <keepdims = 0> (y)", "m", None),
}


@pytest.mark.parametrize("name", BEHIND)
def test_a_loss_of_scores_tells_of_a_prediction_that_is_behind_them_already(name: str, tmp_path: Path) -> None:
    """As the classifiers of Keras end, whose losses take probabilities."""
    nodes, loss, scores = BEHIND[name]
    text = f"""<ir_version: 9, opset_import: ["" : 18]> g (float[N,2] a) => (float[N,3] y)
        <float[2,3] w = {{1, 2, 3, 4.5, 5, 6}}> {{ h = MatMul (a, w) {nodes.replace("(x)", "(h)")} }}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    notes = gc.training_step(gc.load(tmp_path / "m.onnx"), loss=loss).notes
    kind, layer = loss.partition(":")[0], name.split()[0].capitalize()
    told = f"y is what {layer} gives, and {kind} takes the scores before it: {scores}"
    assert notes == (() if scores is None else (told,))


@pytest.mark.parametrize(
    ("dims", "loss", "told"),
    [("N,S,5", "labels", True), ("N,S,5", "labels,axis=1", True), ("N,S,5", "labels,axis=-1", False),
     ("N,4,5", "labels", False), ("N,5", "labels", False), ("N,S,T", "labels", False)],
)  # fmt: skip
def test_places_of_a_sequence_are_told_where_they_are_taken_for_classes(
    dims: str, loss: str, told: bool, tmp_path: Path
) -> None:
    """As language models give their scores."""
    text = f"""<ir_version: 9, opset_import: ["" : 18]> g (float[{dims}] x) => (float[{dims}] y)
        <float[1] w = {{2}}> {{ y = Mul (x, w) }}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    notes = gc.training_step(gc.load(tmp_path / "m.onnx"), loss=f"cross-entropy:y,{loss}", trainable="w").notes
    assert [note.endswith("where they are the last: cross-entropy:y,labels,axis=-1") for note in notes] == [True] * told


HEADS = """<ir_version: 9, opset_import: ["" : 18]> g (double[N,2] x) => (double[N,2] y, double[N,2] z, double most)
    <double[2,2] w = {1, 2, 3, 4.5}, double[2,2] "u.weight" = {1, -2, 3, 0.5}, double[2] "u.bias" = {1, 2}> {
    y = MatMul (x, w)  z = Gemm (x, "u.weight", "u.bias")  best = ArgMax <keepdims=0> (z)  index = Cast <to=11> (best)
    most = ReduceSum <keepdims=0> (index)  plain = ReduceMean <keepdims=0> (x)
    first = ReduceMean <keepdims=0> (y)  both = Add (first, most) }"""


@pytest.mark.parametrize("loss", ["mse:y,t,reduction=sum", "both"])
def test_weights_without_a_gradient_are_left_as_they_are(loss: str, tmp_path: Path) -> None:
    """PyTorch's optimizers leave out what has no gradient, also with a weight decay."""
    onnx.save(onnx.parser.parse_model(HEADS), tmp_path / "m.onnx")
    step = gc.training_step(gc.load(tmp_path / "m.onnx"), loss=loss, optimizer="adamw:weight_decay=0.1", lr=0.5)
    assert step.params == ("w",)
    assert "not trained: u.weight, u.bias; the loss does not depend on them by a gradient" in step.notes
    assert not {"u.weight", "u.bias"} & {*step.train.graph.inputs, *step.evaluate.graph.inputs}
    [z] = gc.run([step.evaluate["z"]], {"x": np.ones((1, 2))})
    np.testing.assert_allclose(z, [[1 + 3 + 1, -2 + 0.5 + 2]])


CODES = """<ir_version: 9, opset_import: ["" : 18]> g (float[N,2] x) => (float commit, float loss, float both)
    <float[2,2] w = {1, 2, 3, 4.5}, float[2,1] v = {1, 3}> {
    z = MatMul (x, w)  q = Round (z)  less = Sub (q, z)  t = Add (z, less)  y = MatMul (t, v)
    loss = ReduceMean <keepdims=0> (y)  far = Mul (less, less)  commit = ReduceMean <keepdims=0> (far)
    both = Add (loss, commit) }"""


@pytest.mark.parametrize("loss, trained, left, said", [
    ("loss", ("v",), ["w"], True), ("both", ("w", "v"), [], True), ("commit", ("w",), [], False),
])  # fmt: skip
def test_what_a_lost_detach_cuts_off_is_left_and_told(
    loss: str, trained: tuple[str, ...], left: list[str], said: bool, tmp_path: Path
) -> None:
    """`x + detach(q - x)` is q in a file: the weights before it have no gradient through it."""
    onnx.save(onnx.parser.parse_model(CODES), tmp_path / "m.onnx")
    step = gc.training_step(gc.load(tmp_path / "m.onnx"), loss=loss, trainable="*")
    told = [note for note in step.notes if note.startswith("node 3 Add 't' takes away what it adds: if this was meant")]
    assert (step.params, len(told)) == (trained, int(said))
    kept = [note for note in step.notes if note.startswith("not trained: ")]
    assert kept == [
        f"not trained: {n}; the loss does not depend on them by a gradient{instead}" for n in left
        for instead in [{"w": "; --straight-through takes rounding as the identity"}.get(n, "")]
    ]  # fmt: skip
    through = gc.training_step(gc.load(tmp_path / "m.onnx"), loss=loss, trainable="*", straight_through=True)
    assert "takes away" not in "".join(through.notes)


UNCONNECTED: dict[str, tuple[dict[str, Any], str]] = {
    "a loss of the data": ({"loss": "plain"}, "^--loss plain: it does not depend on u.weight, u.bias by a gradient"),
    "a loss of decisions": ({"loss": "most"}, "^--loss most: it does not depend on u.weight, u.bias by a gradient"),
    "another head": ({"loss": "mse:y,t", "trainable": "u.*"}, r"^--trainable u\.\*: the loss .* on u.weight, u.bias"),
    "one of decisions": ({"loss": "both", "trainable": "u.*"}, "^--loss both: it does not depend on u.weight, u.bias"),
    "factors of one": ({"loss": "both", "lora": "1:*"}, "^--loss both: it does not depend on .*lora_A"),
}


@pytest.mark.parametrize("name", UNCONNECTED)
def test_nothing_to_train_is_said(name: str, tmp_path: Path) -> None:
    options, said = UNCONNECTED[name]
    onnx.save(onnx.parser.parse_model(HEADS), tmp_path / "m.onnx")
    with pytest.raises(UsageError, match=said):
        gc.training_step(gc.load(tmp_path / "m.onnx"), **options)


APART = """s, b, m, v) h = Tanh (n) y, q, r = BatchNormalization TRAINED (h, t, d, m2, v2)"""
MERGED: dict[str, str] = {
    "directly": "one, zero, zero, one) h = Tanh (n) y, q, r = BatchNormalization TRAINED (h, t, d, zero, one)",
    "by copies": """one, copy, zero, again) h = Tanh (n)
        y, q, r = BatchNormalization TRAINED (h, t, d, copy, again)""",
}


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("buffers", [(), ("one", "zero")])
@pytest.mark.parametrize("kind", MERGED)
def test_statistics_that_an_exporter_has_merged_with_weights_are_their_layers_own(
    kind: str, buffers: Sequence[str], trained: bool, tmp_path: Path
) -> None:
    def step(layers: str, buffers: Sequence[str] = ()) -> tuple[list[Array], list[Array]]:
        """New weights and new statistics after a step."""
        text = f"""<ir_version: 9, opset_import: ["" : 18]> g (double[N,2] x) => (double[N,2] y)
            <double[2] s = {{1, 1}}, double[2] b = {{0, 0}}, double[2] m = {{0, 0}}, double[2] v = {{1, 1}},
             double[2] one = {{1, 1}}, double[2] zero = {{0, 0}}, double[2] m2 = {{0, 0}}, double[2] v2 = {{1, 1}},
             double[2] t = {{1, 2}}, double[2] d = {{0.5, 1.5}}>
            {{ copy = Identity (zero) again = Identity (one) n, j, k = BatchNormalization TRAINED (x, {layers} }}"""
        if not trained:
            text = text.replace("n, j, k", "n").replace("y, q, r", "y")
        text = text.replace("TRAINED", "<training_mode = 1>" if trained else "")
        kinds = dict.fromkeys(buffers, "BUFFER")  # as PyTorch's exporter calls what is left of a buffer and a parameter
        proto = declared(onnx.parser.parse_model(text), kinds, onnx.TensorProto.DOUBLE)
        onnx.save(proto, tmp_path / "m.onnx")
        made = gc.training_step(gc.load(tmp_path / "m.onnx"), loss="mse:y,w", optimizer="sgd", lr=0.1)
        x, w = np.random.default_rng(1).normal(size=(2, 5, 2))
        out = stepped(made, x=x, w=w)
        kept = [n for n in made.init if n not in made.params and made.init[n].shape == (2,)]
        return [out[f"{n}_next"] for n in made.params], [out[f"{n}_next"] for n in kept]

    (weights, statistics), (expected, means) = step(MERGED[kind], buffers), step(APART)
    assert [len(weights), len(statistics)] == [len(expected), len(means)] == [4, 4 if trained else 0]
    found = [*sorted(weights, key=tuple), *sorted(statistics, key=tuple)]
    for one, other in zip(found, [*sorted(expected, key=tuple), *sorted(means, key=tuple)], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


BRANCHES = """<ir_version: 9, opset_import: ["" : 18]> g (bool c, float[N,2] x) => (float[N,2] y) {
    y = If(c) <then_branch = a () => (float[N,2] u) <float[2,2] w = {1, 2, 3, 4.5}> { u = MatMul(x, w) },
               else_branch = b () => (float[N,2] u) <float[2] v = {1, 2.5}> { u = Mul(x, v) }> }"""


@pytest.mark.parametrize("branch", [True, False])
def test_weights_inside_of_branches_are_trained(branch: bool, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(BRANCHES), tmp_path / "m.onnx")
    step = gc.training_step(gc.load(tmp_path / "m.onnx"), loss="mse:y,t,reduction=sum", optimizer="sgd", lr=0.5)
    assert {*step.params} == {"w", "v"}
    x, t = np.random.default_rng(1).normal(size=(2, 3, 2))
    made = stepped(step, x=x, t=t, c=np.array(branch))
    w, v = step.init["w"], step.init["v"]
    off = (x @ w if branch else x * v) - t
    np.testing.assert_allclose(made["w_next"], w - (x.T @ off if branch else 0), rtol=1e-9)
    np.testing.assert_allclose(made["v_next"], v - (0 if branch else (off * x).sum(0)), rtol=1e-9)


STUCK = {  # the nodes behind h = x w + b, and what is said of a step by random data
    "learns": ("y = Relu (h)", ""),
    "behind a dead Relu": (
        "s = Sub (h, large) y = Relu (s)",
        "nothing is learnt: gradients are 0 (as behind a dead Relu)",
    ),
    "NaN": ("z = Mul (h, zero) s = Abs (z) y = Sqrt (s)", "one step makes NaN or infinity of w, b"),
}


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(
    "more", [{}, {"accumulate": 3}, {"weight_decay": 0.1}], ids=["each batch", "three batches", "decays"]
)
@pytest.mark.parametrize("name", STUCK)
def test_a_step_that_learns_nothing_is_noted(name: str, more: dict[str, Any], optimizer: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    nodes, said = STUCK[name]
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[n, 3] x) => (float[n, 2] y)
        <float[3, 2] w = {{0.5, -0.3, 0.2, 0.9, -0.7, 0.1}}, float[2] b = {{0.1, 0.2}}, float large = {{1e6}},
         float zero = {{0}}> {{ p = MatMul (x, w) h = Add (p, b) {nodes} }}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    made = gc.training_step(gc.load(tmp_path / "m.onnx"), loss="mse:y,t", optimizer=optimizer, **more)
    notes = made.save(tmp_path / "step")
    if "accumulate" in more and name == "NaN":  # which the sum of gradients takes first
        said = "one step makes NaN or infinity of gradients"
    assert (len(notes), said in "".join(notes)) == (bool(said), True), notes


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]> g (float[N,2] x) => (float[N,2] y)
        <float[2,2] w = {1, 2, 3, 4.5}> { h = MatMul(x, w) y = MatMul(h, w) }""")
    onnx.save(model, tmp_path / "m.onnx")
    step = gc.training_step(gc.load(tmp_path / "m.onnx"), loss="mse:y,t,reduction=sum", optimizer="sgd", lr=0.5)
    x, t = np.random.default_rng(1).normal(size=(2, 3, 2))
    w = step.init["w"].astype(float)
    off = x @ w @ w - t
    made = stepped(step, x=x, t=t)
    np.testing.assert_allclose(made["w_next"], w - (x.T @ off @ w.T + (x @ w).T @ off), rtol=1e-9)


COPIES = """<ir_version: 9, opset_import: ["" : 18]> g (double[N,2] x) => (double[N,2] y)
    <double[2] "l1.bias" = VALUES> {
    "l2.bias" = Identity ("l1.bias")  "l3.bias" = Identity ("l2.bias")
    a = Add (x, "l1.bias")  b = Tanh (a)  c = Add (b, "l2.bias")  d = Tanh (c)  y = Mul (d, "l3.bias") }"""


@pytest.mark.parametrize("values", ["{0, 0}", "{1, 1}", "{1, 2}"])
def test_copies_of_equal_values_are_weights_of_their_own(values: str, tmp_path: Path) -> None:
    """An exporter keeps equal tensors once, and gives the others their names by Identity; it writes tied weights so too."""
    onnx.save(onnx.parser.parse_model(COPIES.replace("VALUES", values)), tmp_path / "m.onnx")
    step = gc.training_step(gc.load(tmp_path / "m.onnx"), loss="mse:y,t,reduction=sum", optimizer="sgd", lr=0.5)
    x, t = np.random.default_rng(1).normal(size=(2, 5, 2))
    bias = np.array(values.strip("{}").split(","), float)
    b = np.tanh(x + bias)
    d = np.tanh(b + bias)
    of_product = 2 * (d * bias - t)
    of_sum = of_product * bias * (1 - d * d)
    gradients = [(of_sum * (1 - b * b)).sum(0), of_sum.sum(0), (of_product * d).sum(0)]
    made = stepped(step, x=x, t=t)
    if bias[0] == bias[1]:
        assert {*step.params} == {"l1.bias", "l2.bias", "l3.bias"}
        for name, gradient in zip(("l1.bias", "l2.bias", "l3.bias"), gradients, strict=True):
            np.testing.assert_allclose(made[f"{name}_next"], bias - 0.5 * gradient, rtol=1e-9, err_msg=name)
        assert any("l2.bias and 1 more" in note for note in step.notes)
    else:
        assert {*step.params} == {"l1.bias"}
        np.testing.assert_allclose(made["l1.bias_next"], bias - 0.5 * sum(gradients), rtol=1e-9)


WRITTEN: dict[str, tuple[str, dict[str, str]]] = {
    **{f: (COPIES.replace("VALUES", "{0, 0}").replace("double", f), {}) for f in ("float16", "float", "double")},
    "low-rank factors": ("{ y = MatMul (x, w) }", {"lora": "1:w"}),
    "a node": ("{ k = Constant <value = float[2] {1, 2}> () y = Mul (x, k) }", {}),
    "a branch": ("""{ yes = Constant <value = bool {1}> () y = If (yes) <
        then_branch = a () => (float[N,2] u) <float[2,2] v = {1, 2, 3, 4.5}> { u = MatMul(x, v) },
        else_branch = b () => (float[N,2] u) { u = Mul(x, x) }> }""", {}),
    "a weight that is tied to its transpose": ("{ a = MatMul (x, w) b = Tanh (a) y = MatMul (b, val_1) }", {}),
    "a weight that was kept once for two layers": ("{ a = Add (x, net_bias) b = Tanh (a) y = Mul (b, net_bias) }", {}),
    "statistics": ("{ y, j, k = BatchNormalization <training_mode = 1> (x, one, net_bias, zero, one) }", {}),
}  # fmt: skip
HOLDS = """<float[2,2] w = {1, 2, 3, 4.5}, float[2,2] val_1 = {1, 3, 2, 4.5}, float[2] net_bias = {0, 0},
    float[2] zero = {0, 0}, float[2] one = {1, 1}>"""


@pytest.mark.parametrize("kind", WRITTEN)
def test_the_recipe_of_the_documentation_writes_the_trained_model(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the file kept a weight, and in the dtype of the model: it computes as eval.onnx does."""
    body, options = WRITTEN[kind]
    whole = f"""<ir_version: 10, opset_import: ["" : 18]> g (float[N,2] x) => (float[N,2] y) {HOLDS} {body}"""
    model = onnx.parser.parse_model(body if body.startswith("<") else whole.replace("net_bias", '"net.bias"'))
    for index, node in enumerate(model.graph.node):
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(["", f"layers.{index}", "linear"]))
    path = tmp_path / "examples" / "mlp.onnx"
    path.parent.mkdir()
    onnx.save(model, path)
    step = gc.training_step(gc.load(path), loss="mse:y,t", **options)
    step.save(tmp_path / "tuned")
    moved = {n: v + np.resize([0.5, 1.25], v.shape) * (i + 1) for i, (n, v) in enumerate(step.init.items()) if v.ndim}
    trained = {n: v.astype(step.init[n].dtype) for n, v in {**step.init, **moved}.items()}
    np.savez(tmp_path / "tuned" / "checkpoint.npz", **trained, batches_drawn=3)
    page = (Path(__file__).parents[2] / "docs/pages/examples/fine-tune.md").read_text()
    [recipe] = [text for _, _, name, text in FENCE.findall(page) if name == "write.py"]
    (tmp_path / "write.py").write_text(recipe.replace("logits", "y"))
    monkeypatch.chdir(tmp_path)
    runpy.run_path("write.py")
    written = onnx.load(tmp_path / "tuned.onnx")
    onnx.checker.check_model(written, full_check=True)
    assert [[each.name for each in side] for side in (written.graph.input, written.graph.output)] == [["x"], ["y"]]
    x = np.array([[0.5, 1.0]])
    [found] = gc.run([gc.load(tmp_path / "tuned.onnx")["y"]], {"x": x})
    held = {n: v for n, v in trained.items() if n in step.evaluate.graph.inputs}
    [wanted] = gc.run([step.evaluate["y"]], {"x": x, **held})
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_trained_weights_are_in_init_alone(tmp_path: Path) -> None:
    folder(tmp_path, "lora")
    held = onnx.load(tmp_path / "step" / "train.onnx")
    own = {t.name for t in held.graph.initializer}
    assert "f1" in own
    assert not any("lora" in name for name in own)
    folder(tmp_path)
    for name in ("train.onnx", "eval.onnx"):
        made = onnx.load(tmp_path / "step" / name)
        assert not {"w1", "w2"} & {t.name for t in made.graph.initializer}
        onnx.checker.check_model(made, full_check=True)


def test_low_rank_factors_begin_without_an_effect(tmp_path: Path) -> None:
    step = folder(tmp_path, "lora")
    data = NETS["lora"].batch(0, np.float32)
    plain = gc.training_step(gc.load(tmp_path / "net.onnx"), loss=NETS["lora"].loss)
    assert stepped(step, **data)["loss"] == stepped(plain, **data)["loss"]
    assert {n.split(".")[0] for n in step.params} == {"wq", "wk", "wv", "wo"}


def test_evaluation_gives_the_outputs_at_trained_parameters(tmp_path: Path) -> None:
    step = folder(tmp_path, metrics="accuracy:scores,labels")
    data = MLP.batch(0, np.float64)
    names = [*step.evaluate.graph.outputs]
    assert names == ["scores", "loss", "accuracy"]
    params = {n: step.init[n] * 2 for n in step.params}
    found, loss, accuracy = gc.run([step.evaluate[n] for n in names], {**data, **params})
    wanted = np.maximum(data["x"] @ params["w1"].T + params["b1"], 0) @ params["w2"].T + params["b2"]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    labels = data["labels"]
    assert accuracy == pytest.approx(np.mean(found.argmax(1) == labels))
    assert loss == pytest.approx(-np.mean(log_softmax(found)[np.arange(16), labels]), rel=1e-9)


@pytest.mark.parametrize("ignore", [-100, 0])
def test_accuracy_leaves_out_what_is_ignored(ignore: int, tmp_path: Path) -> None:
    step = folder(tmp_path, metrics="accuracy:scores,labels" + (f",ignore={ignore}" if ignore != -100 else ""))
    x = np.random.default_rng(2).normal(size=(8, 8))
    labels = scores(x).argmax(1)
    labels[:3] = (labels[:3] + 1) % 3
    labels[2:5] = ignore
    [found] = gc.run([step.evaluate["accuracy"]], {"x": x, "labels": labels, **{n: step.init[n] for n in step.params}})
    kept = labels != ignore
    assert found == pytest.approx(np.mean((scores(x).argmax(1) == labels)[kept]))


ONE = """<ir_version: 9, opset_import: ["" : 18]> g (double[2] x) => (double[3] y, int64[3] best)
    <double[3,2] w = {1, 2, 3, 4.5, -1, 0.5}> { y = MatMul (w, x) best = Cast <to = 7> (y) }"""


@pytest.mark.parametrize("axis", ["", ",axis=0"])
def test_the_only_axis_of_a_single_sample_is_that_of_its_classes(axis: str, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(ONE), tmp_path / "m.onnx")
    options = {"loss": f"cross-entropy:y,label{axis}", "metrics": f"accuracy:y,label{axis}"}
    step = gc.training_step(gc.load(tmp_path / "m.onnx"), optimizer="sgd", lr=1.0, **options)
    x, w = np.array([0.5, -0.25]), step.init["w"]
    made = stepped(step, x=x, label=np.array(2))
    chosen = np.exp(log_softmax((w @ x)[None]))[0] - np.eye(3)[2]
    np.testing.assert_allclose(made["w_next"], w - np.outer(chosen, x), rtol=1e-9)
    assert made["accuracy"] == float((w @ x).argmax() == 2)


@pytest.mark.parametrize("said", ["", ",probabilities"])
def test_a_tensor_of_the_model_may_hold_the_probabilities_of_classes(said: str, tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]> g (double[b, 2] x, double[b, 3] p) => (double[b, 3] y)
        <double[2, 3] w = {1, 2, 3, 4.5, -1, 0.5}> { y = MatMul (x, w) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    step = gc.training_step(gc.load(tmp_path / "m.onnx"), loss=f"cross-entropy:y,p{said}", optimizer="sgd", lr=1.0)
    x, w = np.array([[0.5, -0.25], [1.0, 2.0]]), step.init["w"]
    p = np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    ct = (np.exp(log_softmax(x @ w)) - p) / 2
    np.testing.assert_allclose(stepped(step, x=x, p=p)["w_next"], w - x.T @ ct, rtol=1e-9)


def test_tensors_are_as_good_as_their_names(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[b, 2] x) => (float l) <float[2, 3] w = {1, 2, 3, 4, 5, 6}>
        { y = MatMul (x, w) l = ReduceMean <keepdims = 0> (y) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    model = gc.load(tmp_path / "m.onnx")
    step = gc.training_step(model, loss=model["l"], metrics=[model["y"], "grad_norm"])
    assert (step.loss, step.metrics) == ("l", ("y", "grad_norm"))
    with pytest.raises(UsageError, match="loss is 'l' of another model"):
        gc.training_step(gc.load(tmp_path / "m.onnx"), loss=model["l"])


def test_integers_are_no_prediction_of_a_loss(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(ONE), tmp_path / "m.onnx")
    with pytest.raises(UsageError, match=r"^--loss mse:best,t: 'best' is int64: only floating-point"):
        gc.training_step(gc.load(tmp_path / "m.onnx"), loss="mse:best,t")


@pytest.mark.parametrize("option", ["loss", "metrics"])
def test_a_target_may_be_called_as_what_is_added(option: str, tmp_path: Path) -> None:
    kind, name = {"loss": ("cross-entropy", "loss"), "metrics": ("accuracy", "accuracy")}[option]
    step = folder(tmp_path, **{option: f"{kind}:scores,{name}"})
    assert name in step.data
    assert f"{name}_1" in (step.loss, *step.metrics)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another loss": ({"loss": "mean:scores,t"}, "write a tensor of the model, or mse:PREDICTION,TARGET"),
    "a loss of one tensor": ({"loss": "mse:scores"}, "compares two tensors"),
    "an unknown tensor": ({"loss": "mse:score,t"}, "no tensor 'score'.*scores"),
    "a loss that is no number": ({"loss": "scores"}, "a loss is one number"),
    "a loss of one tensor and a comma": ({"loss": "mse:scores,"}, "^--loss mse:scores,: mse compares two tensors"),
    "a value of a word": ({"loss": "cross-entropy:scores,t,probabilities=true"}, "probabilities is written alone"),
    "another option": ({"loss": "mse:scores,t,delta=1"}, "'delta' is no option"),
    "a word for a number": ({"loss": "huber:scores,t,delta=much"}, "delta is a number"),
    "another optimizer": ({"optimizer": "adamm"}, "there are sgd, .*adam"),
    "an option of the optimizer": ({"optimizer": "sgd:beta1=1"}, "sgd has no option 'beta1'"),
    "nothing that fits": ({"trainable": "k*"}, "fits no tensor"),
    "no rank": ({"lora": "w1"}, "write RANK:GLOB"),
    "both": ({"lora": "2:w1", "trainable": "w*"}, "both name w1"),
    "no batches": ({"accumulate": 0}, "one batch or more"),
    "half a batch": ({"accumulate": 1.5}, "accumulate is 1.5; it is a whole number"),
    "no norm": ({"clip_norm": 0}, "clip_norm is 0; it is a finite number above 0"),
    "a scale of nothing": ({"loss_scale": 0.0}, "loss_scale is 0.0; it is a finite number above 0"),
    "a rate in letters": ({"lr": "fast"}, r"lr is 'fast' \(str\); it is a finite number of 0 or more"),
    "no loss": ({"loss": None}, "loss is None; it must be a text, a tensor, or a list of them"),
    "numbers for a metric": ({"metrics": [np.ones(2)]}, r"metrics is an array of shape \[2\]; it must be a text, a"),
    "a rate that is no number": ({"lr": float("nan")}, "lr is nan; it is a finite number"),
    "an infinite rate": ({"lr": float("inf")}, "lr is inf; it is a finite number"),
    "a scale that is no number": ({"loss_scale": float("nan")}, "loss_scale is nan"),
    "beta": ({"optimizer": "adam:beta1=1.5"}, "beta1 is 1.5; it is a number from 0 to below 1"),
    "eps": ({"optimizer": "adam:eps=-1"}, "eps is -1; it is a number of 0 or more"),
    "alpha": ({"optimizer": "rmsprop:alpha=2"}, "alpha is 2; it is a number from 0 to below 1"),
    "momentum": ({"optimizer": "momentum:momentum=-1"}, "momentum is -1"),
    "a decay": ({"optimizer": "sgd:weight_decay=-1"}, "weight_decay is -1"),
    "a decay that is no number": ({"optimizer": "sgd:weight_decay=nan"}, "weight_decay is nan"),
    "nesterov": ({"optimizer": "momentum:momentum=0,nesterov=true"}, "nesterov needs a momentum"),
    "two decays": ({"optimizer": "adamw:weight_decay=0.1", "weight_decay": 0.3}, "write one of them"),
    "a negative delta": ({"loss": "huber:scores,t,delta=-1"}, "delta is -1; it is a finite number above 0"),
    "a decay of nothing": ({"no_decay": "b*"}, "--no-decay: nothing decays; --weight-decay gives"),
    "a scale of none": ({"lr_scale": "2:k*"}, r"--lr-scale k\*.* fits no"),
    "a scale without a glob": ({"lr_scale": "0.1"}, "--lr-scale 0.1: write FACTOR:GLOB"),
    "a scale of zero": ({"lr_scale": "0:b*"}, "--lr-scale 0:b.*: '0' is no finite number above 0"),
    "a rate scale that is no number": ({"lr_scale": "ten:b*"}, "'ten' is no finite number above 0"),
    "no decay of none": ({"weight_decay": 0.1, "no_decay": "k*"}, r"--no-decay k\*.* fits no"),
    "a negative weight": ({"loss": "bce-with-logits:scores,t,pos_weight=-1"}, "pos_weight is -1; it is a finite"),
    "too smooth": ({"loss": "cross-entropy:scores,t,label_smoothing=2"}, "label_smoothing is 2; it is a number from 0"),
    "no delta": ({"loss": "huber:scores,t,delta=0"}, "delta is 0; it is a finite number above 0"),
    "a loss of one tensor twice": ({"loss": "mse:scores,scores"}, "compares 'scores' with itself"),
    "a target of another shape": (
        {"loss": "mse:scores,x"},
        r"'x' is a tensor of the model, \[.*\] float.*; the target of",
    ),
    "an option of targets": (
        {"loss": "cross-entropy:scores,t,probs"},
        "there are axis, ignore, label_smoothing, reduction, pr",
    ),
    "another metric": ({"metrics": "f1:scores,labels"}, "accuracy:PREDICTION,TARGET"),
    "the accuracy of probabilities": (
        {"loss": "cross-entropy:scores,p,probabilities", "metrics": "accuracy:scores,p"},
        r"^--metric accuracy:scores,p: 'p' is .*\[.*,3\] float.*; the target of 'scores' is \[[^,]*\] int64",
    ),
    "the accuracy of targets of each class": (
        {"loss": "bce-with-logits:scores,t", "metrics": "accuracy:scores,t"},
        r"^--metric accuracy:scores,t: 't' is .*; the target of 'scores' is \[[^,]*\] int64",
    ),
    "probabilities that no label is": (
        {"metrics": "accuracy:scores,p,probabilities"},
        r"'probabilities' is no option; there are axis, ignore\.$",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_said(name: str, tmp_path: Path) -> None:
    options, said = REFUSED[name]
    with pytest.raises(UsageError, match=said):
        folder(tmp_path, **options)
    assert not (tmp_path / "step").exists()


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad", "rmsprop"])  # the sign of lion has no derivative
def test_the_update_itself_passes_the_check(optimizer: str, tmp_path: Path) -> None:
    folder(tmp_path, optimizer=optimizer, clip_norm=10.0)
    report = gc.check(gc.load(tmp_path / "step" / "train.onnx"), mode="directional", forward="internal")
    assert {check.status for check in report.checks} == {"pass"}
    assert {check.y for check in report.checks} >= {"loss", "w1_next"}


def test_frozen_weights_are_written_once_for_both_graphs(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[N,200] x) => (float[N,200] y) {
        h = MatMul(x, frozen) y = Add(h, b) }"""
    model = onnx.parser.parse_model(text)
    frozen = np.random.default_rng(0).normal(size=(200, 200)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(frozen, "frozen"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(200, np.float32), "b"))
    onnx.save(model, tmp_path / "m.onnx")
    gc.training_step(gc.load(tmp_path / "m.onnx"), loss="mse:y,t", trainable="b").save(tmp_path / "step")
    assert sum(p.stat().st_size for p in (tmp_path / "step").iterdir()) < 1.3 * frozen.nbytes
    session = runtime.InferenceSession(tmp_path / "step" / "eval.onnx")
    x = np.ones((2, 200), np.float32)
    (found,) = session.run(["y"], {"x": x, "t": x, "b": np.zeros(200, np.float32)})
    np.testing.assert_allclose(found, x @ frozen, rtol=1e-4, atol=1e-4)


def test_names_of_a_model_are_no_code_of_the_loop(tmp_path: Path) -> None:
    name = 'x"""; open("harm", "w"); """'
    model = MLP.model()
    model.graph.input[0].name = name
    model.graph.node[0].input[0] = name
    onnx.save(model, tmp_path / "m.onnx")
    gc.training_step(gc.load(tmp_path / "m.onnx"), loss=MLP.loss).save(tmp_path / "step")
    made = loop(tmp_path)
    assert (name, "labels") == made.DATA
    assert not (tmp_path / "harm").exists()
    assert not Path("harm").exists()
