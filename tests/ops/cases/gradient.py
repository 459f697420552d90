"""ONNX's operator Gradient: a derivative inside of a model."""

from gradcheck_cli.formats.gradient_nodes import with_bodies
from tests.ops.case import arr, chain, node

TRAINING = "ai.onnx.preview.training"
LINEAR = (node("MatMul", "x0 x1", "h"), node("Tanh", "h", "t"), node("ReduceSum", "t", "o", keepdims=0))


def gradient(label, nodes, *inputs, n_outputs=1):
    """A case of nodes, those of the operator with the parts of the graph that they differentiate."""
    return chain("Gradient", with_bodies(nodes, {}), *inputs, n_outputs=n_outputs, domain=TRAINING, label=label)


CASES = [
    gradient("of a product", [node("Mul", "x0 x1", "c"), node("Gradient", "x0 x1", "y0 y1", TRAINING, xs=("x0", "x1"),
             y="c")], arr(2, 3), arr(3), n_outputs=2),
    gradient("at another point", [*LINEAR, node("Sin", "x0", "p"), node("Gradient", "p x1", "y0", TRAINING, xs=("x0",),
             zs=("x1",), y="o")], arr(2, 3), arr(3, 2)),
    gradient("of a tensor inside", [*LINEAR, node("Gradient", "h", "y0", TRAINING, xs=("h",), y="o")],
             arr(2, 3), arr(3, 2)),
    gradient("the second only", [*LINEAR, node("Gradient", "x0 x1", "- y0", TRAINING, xs=("x0", "x1"), y="o")],
             arr(2, 3), arr(3, 2)),
    gradient("of a gradient", [*LINEAR, node("Gradient", "x0 x1", "g k", TRAINING, xs=("x0", "x1"), y="o"),
             node("ReduceSum", "g", "r", keepdims=0),
             node("Gradient", "x0 x1", "y0 y1", TRAINING, xs=("x0", "x1"), y="r")],
             arr(2, 3), arr(3, 2), n_outputs=2),
    gradient("that reads what it does not name", [*LINEAR, node("Gradient", "x0", "y0", TRAINING, xs=("x0",), y="o")],
             arr(2, 3), arr(3, 2)),
    gradient("of what does not depend on it", [*LINEAR, node("Gradient", "x2 x0", "y0 y1", TRAINING, xs=("x2", "x0"),
             y="o")], arr(2, 3), arr(3, 2), arr(2), n_outputs=2),
]  # fmt: skip
