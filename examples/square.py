"""The derivative of y = x**2 + x - 1 at x = 2.

$ python examples/square.py
[5.0]
"""

from pathlib import Path

import gradcheck_cli as gc

model = gc.load(Path(__file__).with_suffix(".gradcheck.yaml"))
grad = gc.gradients(model["y"], model["x"])
print([float(value) for value in gc.run(grad)])
