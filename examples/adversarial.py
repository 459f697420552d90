"""An adversarial example: a small step along the sign of the loss's gradient (Goodfellow et al., 2015).

$ gradcheck grad examples/mlp.onnx --x input --y loss -o attack.onnx
attack.onnx  20 nodes, 16 of them added
  output  input_grad [8,4] float32
  run     onnxruntime.InferenceSession('attack.onnx').run(['input_grad'], {'input': ...})
$ python examples/adversarial.py
each number moved by 0.00: loss 1.66, right 3 of 8
each number moved by 0.10: loss 1.86, right 2 of 8
each number moved by 0.30: loss 2.25, right 1 of 8
"""

import numpy as np
import onnxruntime

LABELS = np.array([0, 1, 2, 0, 1, 2, 0, 1])  # those that mlp.onnx compares with

if __name__ == "__main__":
    session = onnxruntime.InferenceSession("attack.onnx")
    x = np.random.default_rng(4).normal(size=(8, 4)).astype(np.float32)
    (slope,) = session.run(["input_grad"], {"input": x})
    for size in (0.0, 0.1, 0.3):
        moved = (x + size * np.sign(slope)).astype(np.float32)
        loss, logits = session.run(["loss", "logits"], {"input": moved})
        right = int((logits.argmax(1) == LABELS).sum())
        print(f"each number moved by {size:.2f}: loss {loss:.2f}, right {right} of 8")
