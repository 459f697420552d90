"""If, Loop and Scan with bodies that capture, nest, stop early or never run."""

from typing import Any

import numpy as np

from gradcheck_cli.graph import Graph, Node, TensorType
from tests.ops.case import Case, arr, case


def graph(inputs: str, outputs: str, *nodes: Node, **more: Any) -> Graph:
    """A body; names in one string."""
    return Graph(tuple(inputs.split()), tuple(outputs.split()), nodes, **more)


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> Node:
    """A node; names in one string."""
    return Node(op, tuple(inputs.split()), tuple(outputs.split()), attrs)


def captured(op: str, names: str, *inputs: Any, label: str, n_outputs: int = 1, **attrs: Any) -> Case:
    """A case whose body reads inputs of the case by their names x0, x1 ...; the node itself reads `names`."""
    return Capturing(
        op, tuple(None if x is None else np.asarray(x) for x in inputs), attrs, "", n_outputs, label, names
    )


class Capturing(Case):
    """A case with inputs that only its subgraphs read."""

    def __init__(self, *fields: Any) -> None:
        *usual, names = fields
        super().__init__(*usual)
        object.__setattr__(self, "reads", tuple(names.split(" ")) if names else ())

    @property
    def graph(self) -> Graph:
        """The node alone, reading some of the inputs."""
        one = Node(self.op, self.reads, self.outputs, self.attrs, self.domain)  # type: ignore[attr-defined]
        return Graph(tuple(n for n in self.names if n), self.outputs, (one,))


SQUARED = graph("", "y", node("Mul", "x1 x1", "s"), node("Sin", "s", "y"))
DOUBLED = graph("", "y", node("Add", "x1 x1", "y"))
UNCHANGED = graph("", "x1")

# h' = tanh(h) * w, and h' is scanned; w is captured
STEP = graph(
    "i keep h",
    "keep_out next seen",
    node("Identity", "keep", "keep_out"),
    node("Tanh", "h", "t"),
    node("Mul", "t x3", "next"),
    node("Exp", "next", "seen"),
)
# h' = h * h while its sum is small
UNTIL = graph(
    "i keep h",
    "keep_out next h",
    node("Mul", "h x2", "next"),
    node("ReduceSum", "next", "total", keepdims=0),
    node("Less", "total limit", "keep_out"),
    constants={"limit": np.asarray(20.0)},
)
NEVER = graph(
    "i keep h",
    "keep h seen",
    node("Exp", "h", "seen"),
    types={"seen": TensorType(np.dtype(np.float64), (2, 3)), "h": TensorType(np.dtype(np.float64), (2, 3))},
)
INNER = graph("j go a", "go_out a2", node("Identity", "go", "go_out"), node("Mul", "a h", "a2"))
OUTER = graph(
    "i keep h",
    "keep_out next",
    node("Identity", "keep", "keep_out"),
    Node("Loop", ("inner_trips", "", "h"), ("p",), {"body": INNER}),
    node("Sin", "p", "next"),
    constants={"inner_trips": np.asarray(2)},
)

# running product, and the state before it
PRODUCT = graph("h x", "next before", node("Mul", "h x", "next"), node("Sin", "h", "before"))
TWO = graph(
    "h g x z",
    "h2 g2 seen other",
    node("Add", "h x", "h1"),
    node("Tanh", "h1", "h2"),
    node("Mul", "g h2", "g2"),
    node("Mul", "x z", "seen"),
    node("Identity", "g2", "other"),
)
STATELESS = graph("x", "y", node("Exp", "x", "y"))
WEIGHTED = graph("h x", "next seen", node("Mul", "h x2", "a"), node("Add", "a x", "next"), node("Sin", "next", "seen"))

# every iteration scans x3 with the state of the loop as weight; x4 is captured by both
PAIR = TensorType(np.dtype(np.float64), (2,))
DEEP = graph(
    "g x",
    "g2 seen",
    node("Mul", "g h", "a"),
    node("Add", "a x", "g2"),
    node("Mul", "g2 x4", "seen"),
    types={"g2": PAIR, "seen": PAIR},
)
SCANNING = graph(
    "i keep h",
    "keep_out next seen",
    node("Identity", "keep", "keep_out"),
    Node("Scan", ("h", "x3"), ("last", "seen"), {"body": DEEP, "num_scan_inputs": 1}),
    node("Tanh", "last", "next"),
)
# odd iterations multiply by x2, even ones add it
ADDED, MULTIPLIED = graph("", "y", node("Add", "h x2", "y")), graph("", "y", node("Mul", "h x2", "y"))
ALTERNATING = graph(
    "i keep h",
    "keep_out next",
    node("Identity", "keep", "keep_out"),
    node("Mod", "i two", "odd"),
    node("Cast", "odd", "choice", to=9),
    Node("If", ("choice",), ("next",), {"then_branch": MULTIPLIED, "else_branch": ADDED}),
    constants={"two": np.asarray(2)},
)
GROWING = graph(
    "i keep h",
    "keep_out next",
    node("Identity", "keep", "keep_out"),
    node("Sin", "h", "s"),
    node("Concat", "h s", "next", axis=0),
)

CASES = [
    captured("If", "x0", True, arr(2, 3), then_branch=SQUARED, else_branch=DOUBLED, label="true"),
    captured("If", "x0", False, arr(2, 3), then_branch=SQUARED, else_branch=DOUBLED, label="false"),
    captured("If", "x0", [True], arr(2, 3), then_branch=UNCHANGED, else_branch=DOUBLED, label="handed through"),
    captured("Loop", "x0 x1 x2", 3, True, arr(2), arr(2, seed=1), body=STEP, n_outputs=2, label="captures"),
    captured("Loop", "x0  x2", 2, None, arr(2), arr(1), body=STEP, n_outputs=2, label="no condition"),
    captured(
        "Loop",
        "x0 x1 x2",
        3,
        False,
        arr(2),
        arr(2),
        body=graph("i keep h", "keep next", node("Mul", "h x3", "next")),
        label="false from the start",
    ),
    captured(
        "Loop",
        " x1 x2",
        None,
        True,
        arr(2, low=1.5, high=2.0),
        body=UNTIL,
        n_outputs=2,
        label="until a condition",
    ),
    captured("Loop", "x0  x2", 0, None, arr(2, 3), body=NEVER, n_outputs=2, label="never runs"),
    captured("Loop", "x0  x2", 2, None, arr(3), body=OUTER, label="nested"),
    case("Scan", arr(3), arr(4, 3, low=0.5), body=PRODUCT, num_scan_inputs=1, n_outputs=2),
    case(
        "Scan",
        arr(3),
        arr(4, 3, low=0.5),
        body=PRODUCT,
        num_scan_inputs=1,
        n_outputs=2,
        scan_input_directions=(1,),
        scan_output_directions=(1,),
    ),
    case(
        "Scan",
        arr(3),
        arr(3, 4, low=0.5),
        body=PRODUCT,
        num_scan_inputs=1,
        n_outputs=2,
        scan_input_axes=(-1,),
        scan_output_axes=(1,),
    ),
    case("Scan", arr(3), arr(1, 3), body=PRODUCT, num_scan_inputs=1, n_outputs=2, scan_output_axes=(-1,)),
    case(
        "Scan",
        arr(2),
        arr(2, seed=1),
        arr(3, 2),
        arr(2, 3),
        body=TWO,
        num_scan_inputs=2,
        n_outputs=4,
        scan_input_axes=(0, 1),
        scan_input_directions=(0, 1),
        scan_output_axes=(1, 0),
        scan_output_directions=(1, 0),
    ),
    case("Scan", arr(4, 2), body=STATELESS, num_scan_inputs=1),
    captured("Loop", "x0  x2", 2, None, arr(2), arr(3, 2), arr(2), body=SCANNING, n_outputs=2, label="scans"),
    captured("Loop", "x0  x1", 3, arr(2), arr(2, seed=1), body=ALTERNATING, label="branches"),
    captured("Loop", "x0  x1", 2, arr(2), body=GROWING, label="grows"),
    captured("Scan", "x0 x1", arr(2), arr(3, 2), arr(2, seed=1), body=WEIGHTED, num_scan_inputs=1, n_outputs=2,
             label="captures"),
    case("Scan", arr(3), arr(2, 3, 4), body=graph("h x", "h2 seen", node("Tanh", "h", "h2"), node("Sin", "x", "seen")),
         num_scan_inputs=1, n_outputs=2, scan_input_axes=(-2,), scan_output_axes=(-1,), scan_output_directions=(1,),
         scan_input_directions=(0,)),
]  # fmt: skip
