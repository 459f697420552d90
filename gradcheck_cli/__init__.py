"""gradcheck: checks the gradients of serialized models.

    import gradcheck_cli as gc
    model = gc.load("model.onnx")
    theoretical, numerical = gc.compute_gradient(model["input"], (8, 4), model["loss"], ())

Authors of operators and rules use `gc.Op`, `gc.Var`, `gc.symbolic` (functions of `Var`s, for rules) and `gc.batching`
(rules that run a kernel for many probes at once).  Names are imported when they are first used, so that the command
starts quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gradcheck_cli.errors import VERSION

if TYPE_CHECKING:
    from gradcheck_cli.api import check, load, run, save
    from gradcheck_cli.api.compute_gradient import compute_gradient, compute_gradient_error
    from gradcheck_cli.api.gradients import AggregationMethod, UnconnectedGradients, gradients
    from gradcheck_cli.autodiff import symbolic
    from gradcheck_cli.autodiff.tape import Var
    from gradcheck_cli.model import Model, Tensor
    from gradcheck_cli.op import Op, batching
    from gradcheck_cli.ops import OPS
    from gradcheck_cli.results.record import Check, Report
    from gradcheck_cli.training import TrainingStep, training_step

__version__ = VERSION
__all__ = [
    "OPS", "AggregationMethod", "Check", "Model", "Op", "Report", "Tensor", "TrainingStep", "UnconnectedGradients", "Var",
    "batching", "check", "compute_gradient", "compute_gradient_error", "gradients", "load", "run", "save", "symbolic",
    "training_step",
]  # fmt: skip
_HOMES = {
    "api": ("check", "load", "run", "save"),
    "api.gradients": ("AggregationMethod", "UnconnectedGradients", "gradients"),
    "api.compute_gradient": ("compute_gradient", "compute_gradient_error"),
    "autodiff.tape": ("Var",),
    "model": ("Model", "Tensor"),
    "op": ("Op",),
    "ops": ("OPS",),
    "results.record": ("Check", "Report"),
    "training": ("TrainingStep", "training_step"),
}
_MODULES = {"symbolic": "autodiff.symbolic", "batching": "op.batching"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{_MODULES[name]}")
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module(f"{__name__}.report.html")  # draws what is shown in notebooks
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
