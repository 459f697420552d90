"""A matrix X, its sum s and y = s**2 + s - 1: the derivative is a matrix, and every entry of it is 2 s + 1.

$ python examples/matrix_sum.py
[array([[9.6220665, 9.6220665, 9.6220665],
       [9.6220665, 9.6220665, 9.6220665],
       [9.6220665, 9.6220665, 9.6220665]], dtype=float32)]
"""

from pathlib import Path

import numpy as np

import gradcheck_cli as gc

model = gc.load(Path(__file__).with_suffix(".gradcheck.yaml"))
grad = gc.gradients(model["y"], model["X"])

X = np.random.default_rng(0).normal(size=(3, 3))
X += (4.31103325 - X.sum()) / X.size  # a random matrix whose sum is s = 4.31103325
values = gc.run(grad, feeds={"X": X})
print([value.astype(np.float32) for value in values])
