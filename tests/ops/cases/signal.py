"""Complex operators, seen through real and imaginary parts: those are the inputs and outputs of a case."""

from typing import Any

import numpy as np

from gradcheck_cli.graph import Graph, Node
from tests.ops.case import Case, arr

DOMAIN = "gradcheck"


class InParts(Case):
    """An operator between `Complex` on the parts x0 and x1 and the parts of its result.

    Without x1 the operand is x0 alone; with `gives_complex` the outputs are real and imaginary part.
    """

    gives_complex = True

    @property
    def graph(self) -> Graph:
        """Parts, the operator, parts."""
        joined = "z" if len(self.inputs) == 2 else "x0"
        nodes = [Node(self.op, (joined,), ("w",), self.attrs, DOMAIN)]
        if joined == "z":
            nodes.insert(0, Node("Complex", ("x0", "x1"), ("z",), {}, DOMAIN))
        parts = ("Real", "Imag") if self.gives_complex else ("Real",)
        nodes += [Node(part, ("w",), (y,), {}, DOMAIN) for part, y in zip(parts, self.outputs, strict=True)]
        return Graph(self.names, self.outputs, tuple(nodes))


class RealOutOfParts(InParts):
    """An operator whose result is real."""

    gives_complex = False


class Joined(Case):
    """`Complex` itself, and its square."""

    @property
    def graph(self) -> Graph:
        """(x0 + i x1)^2 in parts."""
        nodes = (
            Node("Complex", ("x0", "x1"), ("z",), {}, DOMAIN),
            Node("Mul", ("z", "z"), ("w",)),
            Node("Real", ("w",), ("y0",), {}, DOMAIN),
            Node("Imag", ("w",), ("y1",), {}, DOMAIN),
        )
        return Graph(self.names, self.outputs, nodes)


def in_parts(op: str, *inputs: np.ndarray, **attrs: Any) -> Case:
    """A case with a complex result."""
    return InParts(op, inputs, attrs, DOMAIN, 2)


def real_of_parts(op: str, *inputs: np.ndarray, **attrs: Any) -> Case:
    """A case with a real result."""
    return RealOutOfParts(op, inputs, attrs, DOMAIN, 1)


RE, IM = arr(2, 3), arr(2, 3, seed=1)

CASES = [
    Joined("Complex", (RE, IM), {}, DOMAIN, 2),
    Joined("Complex", (RE, arr(3)), {}, DOMAIN, 2),
    Joined("Complex", (arr(2, 1), arr(3)), {}, DOMAIN, 2),
    real_of_parts("Real", RE, IM),
    real_of_parts("Real", RE),
    real_of_parts("Imag", RE, IM),
    real_of_parts("Imag", RE),
    in_parts("Conj", RE, IM),
    in_parts("Conj", RE),
    real_of_parts("Angle", RE, IM),
    real_of_parts("Angle", RE),
    in_parts("FFT", RE, IM),
    in_parts("FFT", RE),
    in_parts("FFT", arr(4, 2), arr(4, 2, seed=1), axis=0),
    in_parts("FFT", RE, IM, n=5),
    in_parts("FFT", RE, n=2),
    in_parts("IFFT", RE, IM),
    in_parts("IFFT", arr(3, 2), axis=0, n=5),
    in_parts("IFFT", arr(2, 4), arr(2, 4, seed=1), n=3, axis=-1),
]
