"""References of a conformance suite held against 50 digits and PyTorch: `python -m benchmarks.oracles CASES [SCORE ...]`.

ONNX's reference evaluator runs each model on arrays of numbers with 50 digits, and slopes along random directions are
held against the stored gradients.  What it does not run on such arrays is held against slopes in float64 by two steps,
which are exact up to rounding where the function is linear along a direction.  SCORE is a file of a PyTorch engine's
answers, as `python -m benchmarks.conformance` writes it: a case that it has right is confirmed by PyTorch, within its
bound.  Needs NumPy, onnx and mpmath alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import mpmath  # type: ignore[import-not-found,import-untyped,unused-ignore]
import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from benchmarks.digits import teach, wide

STEP = "1e-15"  # errors of central differences: its square, and 1e-50 by it
LINEAR = (2.0**-13, 2.0**-14)  # steps in float64: where both agree with a gradient, the function is linear
AGREES = 1e-9  # relative to the gradient along a direction
DIRECTIONS = 3
BY = ("50 digits", "linear", "PyTorch", "neither")  # the first that confirms a case
Arrays = dict[str, Any]


def main() -> int:
    """Prints a row for each kind of case, and each that nothing confirmed, with the reason."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", type=Path)
    parser.add_argument("scores", type=Path, nargs="*")
    given = parser.parse_args()
    teach()
    right = {
        a["case"] for file in given.scores for a in json.loads(file.read_text())["answers"] if a["status"] == "right"
    }
    table: dict[str, Counter[str]] = {}
    for folder in sorted(path.parent for path in given.cases.glob("*/case.json")):
        kind, (by, said) = json.loads((folder / "case.json").read_text())["kind"], confirmed(folder)
        by = by or ("PyTorch" if folder.name in right else "neither")
        table.setdefault(kind, Counter()).update([by, *["both"] * (by in BY[:2] and folder.name in right)])
        if by == "neither":
            print(f"{folder.name}: {said}")
    print("".join(f"{word:>14}" for word in ("", *BY, "PyTorch too")))
    for kind, counts in table.items():
        print(f"{kind:>14}" + "".join(f"{counts[word]:>14}" for word in (*BY, "both")))
    return 0


def confirmed(folder: Path) -> tuple[str, str]:
    """The slopes that confirm the gradients of a case; else "" and the reason for which those of 50 digits do not."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if (said := _tried(folder, wide, [mpmath.mpf(STEP)])) == "":
            return BY[0], ""
        return "" if _tried(folder, lambda value: np.asarray(value, np.float64), LINEAR) else BY[1], said


def _tried(folder: Path, kind: Callable[[Any], Any], steps: Iterable[Any]) -> str:
    """The reason for which slopes by numbers of a kind do not confirm the gradients of a case."""
    try:
        gap = max(_gap(folder, kind, step) for step in steps)
    except Exception as error:  # the evaluator does not run everything on arrays of objects
        return f"{type(error).__name__}: {' '.join(str(error).split())[:90]}"
    return "" if gap <= AGREES else f"slopes differ by {gap:.1e}: a step of the evaluator has lost digits"


def _gap(folder: Path, kind: Callable[[Any], Any], step: Any) -> float:
    """The largest relative gap between slopes by gradients and by differences, along random directions."""
    model = _read(folder)
    ins, outs = ([v.name for v in values] for values in (model.graph.input, model.graph.output))
    inputs, gradients = tensors(folder, "input", ins), tensors(folder, "gradient", ins)
    cotangents = tensors(folder, "cotangent", outs)
    session, rng, worst = ReferenceEvaluator(model), np.random.default_rng(1), 0.0
    start = {n: kind(v) if v.dtype.kind == "f" else v for n, v in inputs.items()}
    for _ in range(DIRECTIONS):
        along = {x: rng.normal(size=g.shape) for x, g in gradients.items()}
        ends = [
            _total(session, {**start, **{x: start[x] + h * kind(v) for x, v in along.items()}}, cotangents, kind)
            for h in (step, -step)
        ]
        parts = [np.ravel(g * along[x]) for x, g in gradients.items()]
        size = max(float(np.sqrt(sum(np.sum(p**2) for p in parts))), 1e-6)
        worst = max(worst, abs(float(sum(np.sum(p) for p in parts) - (ends[0] - ends[1]) / (2 * step))) / size)
    return worst


def _read(folder: Path) -> onnx.ModelProto:
    """The model of a case, without regions of interest where nothing reads them: the evaluator looks at their size."""
    model = onnx.load(folder / "model.onnx")
    for node in model.graph.node:
        modes = {a.name: a.s for a in node.attribute}
        reads = modes.get("coordinate_transformation_mode") == b"tf_crop_and_resize"
        if node.op_type == "Resize" and len(node.input) > 2 and not reads:
            node.input[1] = ""
    return model


def _total(session: Any, feeds: Arrays, cotangents: Arrays, kind: Callable[[Any], Any]) -> Any:
    """The sum of the outputs' products with their cotangents; TypeError if an output has lost its digits."""
    made = dict(zip(cotangents, session.run(list(cotangents), feeds), strict=True))
    of = np.asarray(kind(0.0)).dtype
    if lost := [y for y, value in made.items() if np.asarray(value).dtype != of]:
        raise TypeError(f"output {lost[0]} is {np.asarray(made[lost[0]]).dtype}")
    return sum((np.sum(np.asarray(v) * kind(cotangents[y])) for y, v in made.items()), kind(0.0))


def tensors(folder: Path, kind: str, names: Iterable[str]) -> Arrays:
    """The arrays `kind_0.pb`, `kind_1.pb` ... of a case that exist, by the names of inputs or outputs."""
    files = [(name, folder / "test_data_set_0" / f"{kind}_{i}.pb") for i, name in enumerate(names)]
    return {name: numpy_helper.to_array(onnx.load_tensor(file)) for name, file in files if file.exists()}


if __name__ == "__main__":
    sys.exit(main())
