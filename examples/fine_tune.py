"""Fine-tunes an exported model in onnxruntime: no framework, no change to the model.

`gradcheck step` adds a loss, gradients and an optimizer; `step.py` in its folder is a loop to start from.

    $ gradcheck step examples/mlp.onnx --loss cross-entropy:logits,classes --metric accuracy:logits,classes -o tuned
    tuned  train.onnx (100 nodes), eval.onnx, init.npz, step.py
      data    input [8,4] float32
      data    classes [8] int64
      trains  4 tensors of 131 entries: W1, b1, W2, b2
      gives   loss_1, accuracy
      run     python tuned/step.py DATA.npz
    $ python examples/fine_tune.py
    before  loss 1.48  accuracy 0.39
    after   loss 0.06  accuracy 0.98
"""

import importlib.util
from pathlib import Path

import numpy as np
import onnxruntime

FOLDER, LOSS = Path("tuned"), "loss_1"  # `loss` is a tensor of the model already


def drawn(count: int, seed: int) -> dict[str, np.ndarray]:
    """Points of three classes: which of the first three numbers is the largest."""
    x = np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)
    return {"input": x, "classes": x[:, :3].argmax(1)}


def evaluated(parameters: dict[str, np.ndarray]) -> str:
    """Loss and accuracy of eval.onnx at some parameters, over batches of 8."""
    session, data = onnxruntime.InferenceSession(FOLDER / "eval.onnx"), drawn(400, seed=1)
    inputs = {each.name for each in session.get_inputs()}
    known = {name: value for name, value in parameters.items() if name in inputs}
    parts = [{name: values[i : i + 8] for name, values in data.items()} for i in range(0, 400, 8)]
    loss, accuracy = np.mean([session.run([LOSS, "accuracy"], {**part, **known}) for part in parts], axis=0)
    return f"loss {loss:.2f}  accuracy {accuracy:.2f}"


if __name__ == "__main__":
    spec = importlib.util.spec_from_file_location("step", FOLDER / "step.py")
    step = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(step)
    print("before ", evaluated(dict(np.load(FOLDER / "init.npz"))))
    step.RATE = 0.02
    step.train(drawn(2000, seed=0), steps=600, batch=8)
    print("after  ", evaluated(dict(np.load(FOLDER / "checkpoint.npz"))))
