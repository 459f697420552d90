"""`gradcheck grad`: what is written, what is said of it, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.cli.conftest import Command
from tests.rounding import FUNCTION, assert_rounded

onnxruntime = pytest.importorskip("onnxruntime")

Feeds = dict[str, Any]
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
W = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
AUX = np.zeros(2, np.float32)


def run(path: Path, names: list[str] | None, feeds: Feeds) -> Any:
    """Outputs of a file in onnxruntime."""
    onnx.checker.check_model(path, full_check=True)
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(names, feeds)


def near(found: np.ndarray, exact: np.ndarray | float, factor: float) -> None:
    """A derivative of tanh(x W) is right up to rounding: of x W, of its tanh, and of sums over the entries of a row."""
    size = (1 + (np.abs(X) @ np.abs(W)).max()) * np.abs(W).sum(1).max()
    assert_rounded(found, np.asarray(exact), roundings=2 * (FUNCTION + X.size + W.size), of=factor * size)


def test_what_was_written_is_said_with_how_to_run_it(gradcheck: Command, folder: Path) -> None:
    ran = gradcheck("grad", "mlp.onnx", "--x", "input", "--y", "loss", "-o", "g.onnx")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0].startswith("g.onnx  ")
    assert lines[1:] == [
        "  output  input_grad [N,4] float32",
        "  open    N: any size at which the model runs",
        "  run     onnxruntime.InferenceSession('g.onnx').run(['input_grad'], {'input': ..., 'aux_in': ...})",
    ]
    model = onnx.load(folder / "g.onnx")
    assert [o.name for o in model.graph.output] == ["loss", "aux_out", "input_grad"]
    for rows in (1, 3):
        [found] = run(folder / "g.onnx", ["input_grad"], {"input": X[:rows], "aux_in": AUX})
        near(found, (1 - np.tanh(X[:rows] @ W) ** 2) @ W.T, 1)


def test_initial_gradients_are_ones_inputs_tensors_or_numbers(gradcheck: Command, folder: Path) -> None:
    np.save(folder / "two.npy", np.float32(2))
    slope = (1 - np.tanh(X @ W) ** 2) @ W.T
    given: list[tuple[list[str], Feeds, float]] = [
        (["ones"], {}, 1),
        (["inputs"], {"loss_grad": np.array(3, np.float32)}, 3),
        (["loss=@two.npy"], {}, 2),
        (["loss=loss"], {}, float(np.tanh(X @ W).sum())),
    ]
    for words, more, factor in given:
        options = [word for each in words for word in ("--grad-ys", each)]
        ran = gradcheck("grad", "mlp.onnx", "--x", "input", "--y", "loss", "-o", "g.onnx", *options)
        assert ran.code == 0, ran.err
        [found] = run(folder / "g.onnx", ["input_grad"], {"input": X, "aux_in": AUX, **more})
        near(found, factor * slope, factor if words != ["loss=loss"] else X.size)


def test_tangents_and_second_derivatives_have_inputs_of_their_own(gradcheck: Command, folder: Path) -> None:
    t = np.random.default_rng(0).normal(size=X.shape).astype(np.float32)
    assert "input_tangent [N,4]" in gradcheck("grad", "mlp.onnx", "--y", "loss", "-o", "j.onnx", "--jvp").out
    [found] = run(folder / "j.onnx", ["loss_tangent"], {"input": X, "aux_in": AUX, "input_tangent": t})
    h = X @ W
    near(found, ((1 - np.tanh(h) ** 2) * (t @ W)).sum(), np.abs(t).sum())
    assert gradcheck("grad", "mlp.onnx", "--y", "loss", "-o", "h.onnx", "--hvp").code == 0
    [found] = run(folder / "h.onnx", ["input_hvp"], {"input": X, "aux_in": AUX, "input_vector": t})
    y = np.tanh(h)
    near(found, (-2 * y * (1 - y**2) * (t @ W)) @ W.T, 2 * (np.abs(t) @ np.abs(W)).max())


def test_the_gradient_of_a_file_of_gradients_is_the_second_one(gradcheck: Command, folder: Path) -> None:
    gradcheck("grad", "mlp.onnx", "--x", "input", "--y", "loss", "-o", "g.onnx")
    ran = gradcheck("grad", "g.onnx", "--x", "input", "--y", "input_grad", "-o", "gg.onnx")
    assert "output  input_grad_1 [N,4] float32" in ran.out
    [found] = run(folder / "gg.onnx", ["input_grad_1"], {"input": X, "aux_in": AUX})
    y = np.tanh(X @ W)
    near(found, (-2 * y * (1 - y**2) * W.sum(0)) @ W.T, 2 * np.abs(W).sum(0).max())


def test_the_gradients_that_were_written_pass_a_check(gradcheck: Command) -> None:
    gradcheck("grad", "mlp.onnx", "--x", "input", "--y", "loss", "-o", "g.onnx")
    assert gradcheck("g.onnx", "--x", "input", "--y", "input_grad").code == 0


def test_a_dimension_that_is_given_is_fixed_in_the_file(gradcheck: Command, folder: Path) -> None:
    ran = gradcheck("grad", "mlp.onnx", "--x", "input", "--y", "loss", "-o", "g.onnx", "--dim", "N=3")
    assert "open" not in ran.out
    dims = onnx.load(folder / "g.onnx").graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_value for d in dims] == [3, 4]


def test_zeros_are_written_where_nothing_flows_if_asked_for(gradcheck: Command, folder: Path) -> None:
    asked = ("grad", "mlp.onnx", "--x", "aux_in", "--y", "loss", "-o", "g.onnx")
    ran = gradcheck(*asked)
    assert ran.code == 2
    assert "'loss' does not depend on 'aux_in'" in ran.err
    assert not (folder / "g.onnx").exists()
    assert gradcheck(*asked, "--unconnected", "zero").code == 0
    [found] = run(folder / "g.onnx", ["aux_in_grad"], {"input": X, "aux_in": AUX})
    assert found.tolist() == [0, 0]


REFUSED = [  # what is typed behind `gradcheck grad`, the exit code, what is said
    (["mlp.onnx"], 2, "Missing option '-o' / '--output'"),
    (["mlp.onnx", "-o", "g.onnx", "--x", "inptu"], 2, "mlp.onnx has no tensor 'inptu'. Did you mean 'input'?"),
    (["mlp.onnx", "-o", "mlp.onnx"], 2, "mlp.onnx is what the model was read from; write to another file."),
    (["mlp.onnx", "-o", "g.onnx", "--x", "loss", "--y", "input"], 2, "Are --x and --y swapped?"),
    (["embedding.onnx", "-o", "g.onnx", "--x", "input_ids"], 2, "is int64: only floating-point or complex tensors"),
    (["mlp.onnx", "-o", "g.onnx", "--grad-ys", "one"], 2, "'one' is no y. Did you mean 'ones'?"),
    (["mlp.onnx", "-o", "g.onnx", "--grad-ys", "ones", "--grad-ys", "inputs"], 2, "it stands alone"),
    (["mlp.onnx", "-o", "g.onnx", "--jvp", "--hvp"], 2, "--jvp and --hvp are two files"),
    (["mlp.onnx", "-o", "g.onnx", "--dim", "M=2"], 2, "no open dimension 'M'; it has N"),
    (["mlp.onnx", "-o", "no/g.onnx"], 2, "cannot be written: No such file or directory"),
    (["mlp.onnx", "-o", "g.onnx", "--name", "a b"], 2, "name='a b' is no name"),
    (["lfs.onnx", "-o", "g.onnx"], 4, "Git LFS pointer"),
    (["unknown.onnx", "-o", "g.onnx"], 5, "Magic"),
    (["mlp.onnx", "-o", "g.onnx", "--stop-gradients", "a", "--y", "loss"], 2, "nothing depends on input"),
]


@pytest.mark.parametrize(
    ("typed", "code", "message"), REFUSED, ids=lambda v: " ".join(v) if isinstance(v, list) else ""
)
def test_what_cannot_be_written_is_refused(
    gradcheck: Command, folder: Path, typed: list[str], code: int, message: str
) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}
    ran = gradcheck("grad", *typed)
    assert (ran.code, ran.out) == (code, "")
    assert message in ran.err
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
