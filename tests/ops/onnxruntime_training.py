"""Runs models with onnxruntime-training: `python onnxruntime_training.py FOLDER`, by a Python that has it.

Of every NAME.onnx in the folder, at the inputs in NAME.npz, the outputs go to NAME.out.npz, or an error to NAME.txt.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnxruntime


def run(path: Path) -> None:
    """One model."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        found = session.run(None, dict(np.load(path.with_suffix(".npz"))))
    except Exception as error:  # whatever that version says is for the test to judge
        path.with_suffix(".txt").write_text(str(error), "utf-8")
    else:
        names = [output.name for output in session.get_outputs()]
        np.savez(path.with_suffix(".out.npz"), **dict(zip(names, found, strict=True)))


if __name__ == "__main__":
    for model in sorted(Path(sys.argv[1]).glob("*.onnx")):
        run(model)
