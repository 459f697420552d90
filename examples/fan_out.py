"""a reaches c = b + a in two ways, itself and as b = 5 a: their gradients are added, by a node called AddN.

$ python examples/fan_out.py
[<Tensor 'gradients/AddN' shape=(1, 2) dtype=float32>]
[[6. 6.]]
"""

from pathlib import Path

import gradcheck_cli as gc

model = gc.load(Path(__file__).with_suffix(".gradcheck.yaml"))
grad = gc.gradients([model["c"]], [model["a"]])
print(grad)
print(gc.run(grad)[0])
