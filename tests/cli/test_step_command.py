"""`gradcheck step`: what it writes and says, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

from tests.cli.conftest import Command

LOSS = ("--loss", "mse:a,target")


def test_it_says_what_it_has_written(gradcheck: Command) -> None:
    done = gradcheck(
        "step", "mlp.onnx", *LOSS, "--optimizer", "momentum:nesterov=1", "--metric", "grad_norm", "-o", "out"
    )
    assert (done.code, done.err) == (0, "")
    first, *others = done.out.splitlines()
    assert first.startswith("out  train.onnx (")
    assert "  gives   loss_1, grad_norm" in others
    assert others[-1] == "  run     python out/step.py DATA.npz"
    assert {p.name for p in Path("out").iterdir()} == {"train.onnx", "eval.onnx", "init.npz", "step.py"}


def test_files_that_onnxruntime_does_not_run_are_told_once(gradcheck: Command) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    text = """<ir_version: 9, opset_import: ["" : 18]> m (bfloat16[N, 2] x) => (bfloat16[N, 2] y)
        <bfloat16[2, 2] w = {16256, 16320, 16384, 16448}> { y = MatMul (x, w) }"""
    onnx.save(onnx.parser.parse_model(text), "m.onnx")
    done = gradcheck("step", "m.onnx", "--loss", "mse:y,t", "-o", "out")
    assert done.code == 0, done.err
    try:
        onnxruntime.InferenceSession("m.onnx")
    except Exception:
        assert done.out.count("onnxruntime runs neither the model nor this file") == 1
        assert "step.py DATA.npz" not in done.out
    else:
        assert "onnxruntime runs neither" not in done.out


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--loss", "mse:aux_ot,target"), 2, "has no tensor 'aux_ot'. Did you mean 'aux_out'?"),
        (("--loss", "mae:logits,target"), 2, "write a tensor of the model, or mse:PREDICTION,TARGET"),
        ((*LOSS, "--optimizer", "adan"), 2, "--optimizer adan: there are sgd, momentum, adam,"),
        ((*LOSS, "--trainable", "encoder.*"), 2, "encoder.* fits no tensor"),
        ((*LOSS, "--lora", "x:W"), 2, "write RANK:GLOB"),
        ((*LOSS, "--accumulate", "0"), 2, "--accumulate"),
        ((*LOSS, "--dim", "B=2"), 2, "B"),
        ((*LOSS, "--timeout", "0.001s"), 6, "--timeout"),
        ((), 2, "--loss"),
    ],
)
def test_what_it_refuses(options: tuple[str, ...], code: int, said: str, gradcheck: Command) -> None:
    done = gradcheck("step", "mlp.onnx", *options, "-o", "out")
    assert done.code == code, done.err
    assert said in done.err
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("to", "said"), [("out", "'out' is a file"), ("out/deep", "out/deep cannot be written: Not a directory.")]
)
def test_a_folder_that_cannot_be_written_is_said(to: str, said: str, gradcheck: Command) -> None:
    Path("out").write_text("a file")
    done = gradcheck("step", "mlp.onnx", *LOSS, "-o", to)
    assert done.code == 2, done.err
    assert said in done.err
