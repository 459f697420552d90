"""The same model as in fan_out.py, with only b = 5 a differentiated: there is nothing to add.

$ python examples/fan_out_one_way.py
[<Tensor 'gradients/b_grad/Mul' shape=(1, 2) dtype=float32>]
[[5. 5.]]
"""

from pathlib import Path

import gradcheck_cli as gc

model = gc.load(Path(__file__).with_name("fan_out.gradcheck.yaml"))
grad = gc.gradients([model["b"]], [model["a"]])
print(grad)
print(gc.run(grad)[0])
