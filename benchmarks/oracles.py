"""References of a conformance suite held against 50 digits and PyTorch: `python benchmarks/oracles.py CASES [SCORE ...]`.

ONNX's reference evaluator runs each model on arrays of numbers with 50 digits, and slopes along random directions are
held against the stored gradients.  SCORE is a file of a PyTorch engine's answers, as `python -m benchmarks.conformance`
writes it: a case that it has right is confirmed by PyTorch, within its bound.  Needs NumPy, onnx and mpmath alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import mpmath  # type: ignore[import-not-found,import-untyped,unused-ignore]
import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

DIGITS = 50
STEP = "1e-15"  # errors of central differences: its square, and 1e-50 by it
AGREES = 1e-9  # relative to the gradient along a direction
DIRECTIONS = 3
NAMES = [
    "exp",
    "log",
    "sqrt",
    "sin",
    "cos",
    "tan",
    "sinh",
    "cosh",
    "tanh",
    "asin",
    "acos",
    "atan",
    "asinh",
    "acosh",
    "atanh",
    "floor",
    "ceil",
]
NUMPY = {
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
}
Arrays = dict[str, Any]


def main() -> int:
    """Prints a row for each kind of case, and each that nothing confirmed, with the reason."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", type=Path)
    parser.add_argument("scores", type=Path, nargs="*")
    given = parser.parse_args()
    mpmath.mp.dps = DIGITS
    for name in NAMES:  # NumPy asks numbers in arrays of objects for methods of these names
        setattr(mpmath.mpf, NUMPY.get(name, name), getattr(mpmath, name))
    right = {
        a["case"] for file in given.scores for a in json.loads(file.read_text())["answers"] if a["status"] == "right"
    }
    table: dict[str, Counter[str]] = {}
    for folder in sorted(path.parent for path in given.cases.glob("*/case.json")):
        kind, said = json.loads((folder / "case.json").read_text())["kind"], in_digits(folder)
        outcome = "50 digits" if said == "" else "PyTorch" if folder.name in right else "neither"
        table.setdefault(kind, Counter())[outcome] += 1
        table[kind]["both"] += said == "" and folder.name in right
        if outcome == "neither":
            print(f"{folder.name}: {said}")
    print(
        f"\n{'kind':12}{'50 digits':>12}{'of them':>9}{'PyTorch':>9}{'neither':>9}\n{'':24}{'PyTorch':>9}{'alone':>9}"
    )
    for kind, counts in table.items():
        print(f"{kind:12}{counts['50 digits']:>12}{counts['both']:>9}{counts['PyTorch']:>9}{counts['neither']:>9}")
    return 0


def in_digits(folder: Path) -> str:
    """The reason for which slopes in 50 digits do not confirm the gradients of a case; "" if they do."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            gap = _gap(folder)
        except Exception as error:  # the evaluator does not run everything on arrays of objects
            return f"{type(error).__name__}: {' '.join(str(error).split())[:90]}"
    return "" if gap <= AGREES else f"slopes differ by {gap:.1e}: a step of the evaluator is not in 50 digits"


def _gap(folder: Path) -> float:
    """The largest relative gap between slopes by gradients and by differences, along random directions."""
    model = onnx.load(folder / "model.onnx")
    ins, outs = ([v.name for v in values] for values in (model.graph.input, model.graph.output))
    inputs, gradients = tensors(folder, "input", ins), tensors(folder, "gradient", ins)
    cotangents = tensors(folder, "cotangent", outs)
    session, rng, worst = ReferenceEvaluator(model), np.random.default_rng(1), 0.0
    wide = {n: _wide(v) if v.dtype.kind == "f" else v for n, v in inputs.items()}
    for _ in range(DIRECTIONS):
        along = {x: rng.normal(size=g.shape) for x, g in gradients.items()}
        ends = [_total(session, {**wide, **_moved(wide, along, t)}, cotangents) for t in ("", "-")]
        slope = (ends[0] - ends[1]) / (2 * mpmath.mpf(STEP))
        parts = [np.ravel(g * along[x]) for x, g in gradients.items()]
        size = max(float(np.sqrt(sum(np.sum(p**2) for p in parts))), 1e-6)
        worst = max(worst, abs(float(sum(np.sum(p) for p in parts) - slope)) / size)
    return worst


def _wide(value: Any) -> Any:
    made = np.empty(value.shape, object)
    for place in np.ndindex(value.shape):
        made[place] = mpmath.mpf(float(value[place]))
    return made


def _moved(wide: Arrays, along: Arrays, sign: str) -> Arrays:
    return {x: np.asarray(wide[x] + mpmath.mpf(sign + STEP) * _wide(np.asarray(v)), object) for x, v in along.items()}


def _total(session: Any, feeds: Arrays, cotangents: Arrays) -> Any:
    """The sum of the outputs' products with their cotangents; TypeError if an output has lost its digits."""
    made = dict(zip(cotangents, session.run(list(cotangents), feeds), strict=True))
    if lost := [y for y, value in made.items() if np.asarray(value).dtype != object]:
        raise TypeError(f"output {lost[0]} is not in {DIGITS} digits")
    return sum(
        (np.sum(np.asarray(v, object) * _wide(np.asarray(cotangents[y]))) for y, v in made.items()), mpmath.mpf(0)
    )


def tensors(folder: Path, kind: str, names: Iterable[str]) -> Arrays:
    """The arrays `kind_0.pb`, `kind_1.pb` ... of a case that exist, by the names of inputs or outputs."""
    files = [(name, folder / "test_data_set_0" / f"{kind}_{i}.pb") for i, name in enumerate(names)]
    return {name: numpy_helper.to_array(onnx.load_tensor(file)) for name, file in files if file.exists()}


if __name__ == "__main__":
    sys.exit(main())
