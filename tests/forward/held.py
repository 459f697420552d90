"""The forward run of a model held against onnxruntime, without its gradient."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradcheck_cli.autodiff.tape import quietly
from gradcheck_cli.checks.forward.comparison import RuntimeComparison
from gradcheck_cli.formats.onnx.read import read
from gradcheck_cli.op import Ops
from gradcheck_cli.ops import OPS
from gradcheck_cli.points.more import finite_point
from gradcheck_cli.points.targets import choose_y
from gradcheck_cli.results.record import Check, ModelInfo
from gradcheck_cli.settings import Settings


def forward(path: Path, ops: Ops = OPS, seed: int = 0) -> dict[str, Mapping[str, Any]]:
    """The field `forward` of a record, for each floating-point output."""
    with quietly():
        source, settings = read(path), Settings(seed=seed, jobs=1)
        ys = choose_y(source.graph)
        forward, point = RuntimeComparison(source, settings, ops, ys), finite_point(source, settings, ops, ys, 0, {})
        forward.ask(point)
        forward.hear()
        return {y: forward.record(Check("", "", "pass", "", ModelInfo(""), x="x", y=y)).forward for y in ys}
