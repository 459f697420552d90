"""Models whose dimensions are open, in the text form of ONNX, and one measure for what their files give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser

import gradcheck_cli as gc
from gradcheck_cli.autodiff.backward import add_n
from gradcheck_cli.autodiff.trace import result
from gradcheck_cli.export.derivatives import Derivatives, Kind, derivatives, export
from gradcheck_cli.export.gradient_graph import Written
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.settings import Settings

ROUNDINGS, SAFETY = 32, 16  # of float32, relative to the largest entry; of what rounding is seen to do
PLAIN: dict[str, Any] = {
    "scope": "gradients", "aggregate": add_n, "gate": False, "colocate": False, "zeros": False, "stop": (),
}  # fmt: skip


@dataclass(frozen=True)
class Open:
    """A model, and sizes of its dimensions at which its one file has to be right; those that are not named are fixed."""

    id: str
    text: str
    sizes: tuple[Mapping[str, int], ...]
    opset: int = 18

    def load(self, folder: Path) -> gc.Model:
        """The model as a user would load it."""
        head = f'<ir_version: 8, opset_import: ["" : {self.opset}, "com.microsoft" : 1]>\n'
        onnx.save(onnx.parser.parse_model(head + self.text), folder / "m.onnx")
        return gc.load(folder / "m.onnx")


def added(model: gc.Model, kind: Kind = "gradient") -> Derivatives:
    """Derivatives of all float outputs by all float inputs, with initial gradients that are inputs."""
    graph = model.graph
    xs = [n for n in graph.free_inputs if is_inexact(model[n].dtype)]
    ys = [n for n in graph.outputs if is_inexact(model[n].dtype)]
    return derivatives(model, kind, xs, ys, "inputs", PLAIN)


def written(model: gc.Model, path: Path, kind: Kind = "gradient") -> tuple[Written, list[str]]:
    """The file with those, valid by ONNX's own checks, and its outputs."""
    found = added(model, kind)
    outputs = [*model.graph.outputs, *found.results.values()]
    made = export(model, path, outputs, {})
    onnx.checker.check_model(path, full_check=True)
    return made, outputs


def open_session(path: Path) -> Any:
    """The file in onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def agree(model: gc.Model, outputs: Sequence[str], session: Any, settings: Settings) -> None:
    """A file gives at a point what derivatives are there, up to what rounding is seen to do."""
    narrow = model.tape(outputs, settings)
    feeds = {i.name: narrow.values[narrow.named[i.name].name] for i in session.get_inputs()}
    wide = Settings(dims=settings.dims, extra_feed_dict={n: v for n, v in feeds.items() if n in model.graph.inputs})
    exact = model.tape(outputs, wide)
    seeds = {seed.name for request in model.requests for seed in request.seeds if seed.open}
    for name in seeds:  # drawn by name, in the wider numbers
        np.testing.assert_allclose(exact.named[name].value, feeds[name], rtol=1e-2)
    for name, found in zip(outputs, session.run(None, feeds), strict=True):
        near(name, np.asarray(found), np.asarray(result(narrow, name)), np.asarray(result(exact, name)))


def near(name: str, found: Array, narrow: Array, exact: Array) -> None:
    """True if found numbers are as near to exact ones as others of the same precision, but for a factor."""
    assert found.shape == exact.shape, name
    if not is_inexact(found.dtype):
        assert np.array_equal(found, narrow), name
        return
    finite = np.isfinite(exact)
    assert np.array_equal(np.isfinite(found), finite), name
    scale = np.max(np.abs(exact[finite]), initial=0.0)
    noise = np.max(np.abs(narrow[finite].astype(np.float64) - exact[finite]), initial=0.0)
    allowed = SAFETY * noise + ROUNDINGS * float(np.finfo(found.dtype).eps) * scale + 1e-30
    assert np.max(np.abs(found[finite].astype(np.float64) - exact[finite]), initial=0.0) <= allowed, name


def each(**choices: Sequence[int]) -> tuple[Mapping[str, int], ...]:
    """Sizes for runs, one after the other, of dimensions by name."""
    return tuple(dict(zip(choices, values, strict=True)) for values in zip(*choices.values(), strict=True))


def points(sizes: Sequence[Mapping[str, int]]) -> Iterator[Settings]:
    """A point at each of the sizes, in the model's own precision."""
    yield from (Settings(dims=dict(each), dtype="model") for each in sizes)
