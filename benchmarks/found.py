"""Wrong gradients of other engines at models of a few nodes, run again: `python -m benchmarks.found --python NAME=FILE`.

The models are those of `docs/pages/found/models.yaml`.  Prints what each engine gives now beside what is right.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml

from gradcheck_cli.formats.onnx.read import read_proto
from gradcheck_cli.graph import Array
from gradcheck_cli.model import Model
from gradcheck_cli.ops import OPS
from gradcheck_cli.reference.scores import PATIENCE, START, Runner
from gradcheck_cli.reference.suite import IR_VERSION, Case, Sample, floats, referenced

TABLE = Path(__file__).parents[1] / "docs" / "pages" / "found" / "models.yaml"


def rows() -> list[dict[str, Any]]:
    """The rows of the table."""
    return list(yaml.safe_load(TABLE.read_text(encoding="utf-8")))


def case_of(row: dict[str, Any], name: str = "found") -> Case:
    """The case of a row, with gradcheck's gradients; its cotangents are those of the row."""
    model = onnx.parser.parse_model(
        f'<ir_version: {IR_VERSION}, opset_import: ["" : {row["opset"]}]> found {row["model"]}'
    )
    inputs = {v.name: _array(v, row["inputs"][v.name]) for v in model.graph.input}
    cotangents = {v.name: _array(v, row["cotangents"][v.name]) for v in model.graph.output}
    sample, tested = Sample(name, row["case"], "found", model, inputs), Model(read_proto(model, name), OPS, {})
    return referenced(sample, tested, floats(model.graph.input), floats(model.graph.output), inputs, cotangents)


def _array(value: onnx.ValueInfoProto, numbers: list[float]) -> Array:
    return np.reshape(np.asarray(numbers, np.float32), [d.dim_value for d in value.type.tensor_type.shape.dim])


def given(engine: str, python: str, some: list[dict[str, Any]]) -> Iterator[Array | str]:
    """The gradients that an engine gives at the models of rows, or the words with which it gives none."""
    with tempfile.TemporaryDirectory() as folder, Runner(engine, python, Path(folder)) as runner:
        if runner.heard(10 * START) is None:
            raise SystemExit(f"{engine} does not start: {runner.complaint()}")
        for number, row in enumerate(some):
            said = runner.ask(case_of(row, f"{number}").write(Path(folder)), 10 * PATIENCE)
            if said.crashed or said.refused:
                yield said.crashed or said.refused
                continue
            with np.load(Path(folder, f"{number}.npz")) as made:
                yield made.get(f"x/{row['by']}", "none")


def written(numbers: Any) -> str:
    """Numbers in a row, to six digits and 0 without a sign; words as they are."""
    return numbers if isinstance(numbers, str) else " ".join(f"{float(n) + 0.0:.6g}" for n in np.ravel(numbers))


def main() -> int:
    """0, or 1 if a number of the table is not what an engine gives, or what is right."""
    parser = argparse.ArgumentParser("python -m benchmarks.found", description=__doc__.split("\n")[0])
    parser.add_argument("--python", action="append", required=True, metavar="NAME=FILE", help="an engine's interpreter")
    stale = 0
    for pair in parser.parse_args().python:
        engine, python = pair.split("=", 1)
        some = [row for row in rows() if row["engine"].partition(" ")[0] == engine]
        for row, made in zip(some, given(engine, python, some), strict=True):
            said, right = map(written, (made, case_of(row).gradients[row["by"]]))
            print(f"{row['case']}, by {row['by']}: {said} instead of {right}", flush=True)
            stale += [said, right] != [written(row[key]) for key in ("gives", "right")]
    return int(stale > 0)


if __name__ == "__main__":
    sys.exit(main())
