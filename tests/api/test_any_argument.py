"""Whatever is passed for an argument, what is wrong with it is a ValueError or a LookupError of gradcheck's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.errors import GradcheckError, ModelError

SPEC = {"x": {"shape": [2]}, "v": {"shape": [2]}, "i": {"shape": [2], "dtype": "int64"}}
ODD: list[Any] = [
    None, True, 3, -1, 1.5, float("nan"), float("inf"), 1j, 10**30, "zz", "", b"x", [], [None], [[]], {}, {"zz": 1}, {3: 4},
    {"x": None}, {"x": [1, 2, 3]}, {"x": [[1], [2, 3]]}, {"x": {}}, np.ones(2), np.ones((2, 2)), np.array("a"),
    np.float32(2), np.array(None), object(), int, range(3), {1, 2}, ["x", "x"], gc.AggregationMethod.ADD_N,
    Path("nowhere/file"),
]  # fmt: skip
CALLS: dict[str, dict[str, Any]] = {
    "gradients": {
        "ys": "tensor y", "xs": "tensor x", "grad_ys": None, "name": "gradients", "colocate_gradients_with_ops": False,
        "gate_gradients": False, "aggregation_method": None, "stop_gradients": None, "unconnected_gradients": "none",
    },
    "compute_gradient": {
        "x": "tensor x", "x_shape": (2,), "y": "tensor y", "y_shape": (2,), "x_init_value": None, "delta": 0.001,
        "init_targets": None, "extra_feed_dict": None, "dtype": "float64",
    },
    "compute_gradient_error": {
        "x": ["tensor x", "tensor v"], "x_shape": [(2,), (2,)], "y": "tensor y", "y_shape": (2,), "x_init_value": None,
    },
    "run": {"tensors": "tensor y", "feeds": None, "dtype": "float64"},
    "load": {"path": "path", "dims": None, "graph": None, "allow_python": False},
    "save": {"model": "model", "path": "path to write", "outputs": ["y"], "feeds": None},
    "check": {
        "model": "model", "x": None, "y": None, "x_init_value": None, "extra_feed_dict": None, "rtol": None, "atol": None,
        "mode": "auto", "method": "auto", "dtype": "float64", "dims": None, "params": False, "x_shape": None,
        "y_shape": None, "val_range": None, "init_targets": None, "delta": None, "max_inconclusive": 0.5,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spec of a small model."""
    graph = {"inputs": SPEC, "nodes": "h = Mul(x, v)\ny = Exp(h)", "outputs": ["y"]}
    path = tmp_path_factory.mktemp("odd") / "m.gradcheck.yaml"
    path.write_text(json.dumps({"gradcheck": 1, "graphs": {"g": graph}}))
    return path


def filled(value: Any, model: gc.Model, path: Path) -> Any:
    """An argument with what a word stands for in its place."""
    if isinstance(value, list):
        return [filled(v, model, path) for v in value]
    if isinstance(value, str) and value.startswith("tensor "):
        return model[value.removeprefix("tensor ")]
    known = {"model": model, "path": path, "path to write": path.with_name("written.onnx")}
    return known.get(value, value) if isinstance(value, str) else value


def odd_calls() -> Iterator[Any]:
    """Every parameter of every function."""
    for function, arguments in CALLS.items():
        for argument in arguments:
            yield pytest.param(function, argument, id=f"{function}-{argument}")


def error_of(function: str, arguments: dict[str, Any]) -> GradcheckError | None:
    """The exception that a call raises, if it is one of ours."""
    try:
        getattr(gc, function)(**arguments)
    except GradcheckError as error:
        return error
    return None


@pytest.mark.parametrize(("function", "argument"), list(odd_calls()))
def test_odd_values_give_results_or_errors_that_say_what_is_wrong(
    function: str, argument: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)  # where a path that is odd and no mistake may lead
    for value in ODD:
        model = gc.load(path)
        arguments = {n: filled(v, model, path) for n, v in CALLS[function].items()}
        error = error_of(function, {**arguments, argument: value})
        kinds = (ValueError, LookupError, *([ModelError] if function == "load" else []), type(None))
        assert isinstance(error, kinds)
        assert error is None or len(str(error)) > 10
