"""Two mistakes that are easily made, and what gradcheck says to them.

$ python examples/errors.py
ys is an array of shape [3, 3], not a tensor. An array is only a value: take a tensor of a model, model['name'], and feed the array to run().
tensors[0] is None: gradients() returned it for an x that y does not depend on. Leave it out, or ask for zeros with unconnected_gradients=UnconnectedGradients.ZERO.
"""  # noqa: E501

from pathlib import Path

import numpy as np

import gradcheck_cli as gc

X = np.random.default_rng(0).random((3, 3))
y = np.random.default_rng(1).random((2, 2))
try:
    gc.gradients(X, y)
except ValueError as error:
    print(error)

model = gc.load(Path(__file__).with_name("fan_out.gradcheck.yaml"))
grad = gc.gradients(model["a"], model["b"])  # b depends on a, a does not depend on b
try:
    gc.run(grad)
except ValueError as error:
    print(error)
