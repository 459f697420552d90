"""Roles of constants: weights, which are trained, and what is none: statistics, quantization, constants of the algorithm.

Files keep all of them alike, as initializers or Constant nodes.  The first of five rules that holds decides; a role
carries it, so that one sees why.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from gradcheck_cli.autodiff.reach import LAYOUT, Flow, Selecting
from gradcheck_cli.graph import Array, Graph, Node, is_inexact
from gradcheck_cli.op import DTYPES
from gradcheck_cli.ops import OPS

WEIGHT, STATISTIC, QUANTIZATION, CONSTANT = "weight", "statistic", "quantization", "constant"
_STATISTICS = {"BatchNormalization": (3, 4)}
_QUANTIZERS = {
    "QuantizeLinear": (1, 2), "DequantizeLinear": (1, 2), "QLinearConv": (1, 2, 4, 5, 6, 7), "ConvInteger": (2, 3),
    "QLinearMatMul": (1, 2, 4, 5, 6, 7), "MatMulInteger": (2, 3), "QLinearAdd": (1, 2, 4, 5, 6, 7),
    "QLinearMul": (1, 2, 4, 5, 6, 7), "QLinearSigmoid": (1, 2, 3, 4), "QLinearLeakyRelu": (1, 2, 3, 4),
    "QLinearAveragePool": (1, 2, 3, 4), "QLinearGlobalAveragePool": (1, 2, 3, 4), "QLinearSoftmax": (1, 2, 3, 4),
    "QGemm": (1, 2, 4, 5, 7, 8), "MatMulIntegerToFloat": (2, 3, 4, 5), "DynamicQuantizeMatMul": (2, 3),
    "MatMulNBits": (2, 3), "MatMulBnb4": (2,), "QAttention": (3, 4, 6, 7), "DynamicQuantizeLSTM": (8, 9, 10, 11),
    "GatherBlockQuantized": (2, 3),
}  # fmt: skip
_TRAINED = {
    "Conv": (1, 2), "ConvTranspose": (1, 2), "DeformConv": (1, 3), "Gemm": (0, 1, 2), "BatchNormalization": (1, 2),
    "InstanceNormalization": (1, 2), "LayerNormalization": (1, 2), "GroupNormalization": (1, 2), "RMSNormalization": (1,),
    "PRelu": (1,), "LSTM": (1, 2, 3, 7), "GRU": (1, 2, 3), "RNN": (1, 2, 3), "FusedConv": (1, 2), "NhwcConv": (1, 2),
    "FusedGemm": (0, 1, 2), "GroupNorm": (1, 2), "SimplifiedLayerNormalization": (1,), "BiasGelu": (1,), "FastGelu": (1,),
    "SkipLayerNormalization": (2, 3, 4), "SkipSimplifiedLayerNormalization": (2, 3), "MultiHeadAttention": (3,),
    "EmbedLayerNormalization": (2, 3, 4, 5, 6), "CausalConvWithState": (1, 2), "VarlenCausalConvWithState": (1, 3),
    "GatedDeltaNet": (7, 8),
}  # fmt: skip
_FUSED_TRAINED = {"Attention": (1, 2), "QAttention": (2,)}  # of com.microsoft; ONNX's own Attention has no weights
_DECIDING = {
    "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "And", "Or", "Not", "Xor", "ArgMax", "ArgMin", "NonZero",
    "IsNaN", "IsInf", "Shape", "Size",
}  # fmt: skip
_EXPORTED = re.compile(r"constant|const(_|\d|$)|onnx::|val_", re.IGNORECASE)  # how exporters call what has no name
_LARGE_NEGATIVE = -1e3  # what an attention mask adds
_AT_ONCE = 1 << 16  # entries


@dataclass(frozen=True, slots=True)
class ConstantRole:
    """The role of a constant, the number of the rule that gave it, and that rule in words."""

    role: str
    rule: int
    why: str


def constant_roles(graph: Graph, ys: Collection[str], named: Collection[str] = ()) -> dict[str, ConstantRole]:
    """The roles of all constants of a floating-point type; `named` are those that a user calls by their names."""
    floats = [n for n, v in graph.constants.items() if is_inexact(v.dtype) and v.size]
    uses, needed = _uses(graph, floats), graph.needed_for(ys)
    several = [n for n in floats if graph.constants[n].size > 1]
    rule = Selecting(Flow(graph, OPS), graph.free_inputs, several, ys)
    return {n: _role(graph, n, uses.get(n, ()), needed, rule, named) for n in floats}


def weights(graph: Graph, ys: Collection[str], named: Collection[str] = ()) -> tuple[str, ...]:
    """The constants that are trained, wherever the file keeps them, as far as some y depends on them."""
    return tuple(n for n, found in constant_roles(graph, ys, named).items() if found.role == WEIGHT)


def _role(
    graph: Graph,
    name: str,
    uses: Sequence[tuple[Node, int]],
    needed: Collection[str],
    rule: Selecting,
    named: Collection[str],
) -> ConstantRole:
    if name in named or name in graph.trained:
        return ConstantRole(WEIGHT, 1, "it was named" if name in named else "the file declares it so")
    of_operand = _by_operand(uses)
    if of_operand is not None:
        return of_operand
    if name not in needed:
        return ConstantRole(CONSTANT, 3, "no y depends on it")
    if rule.only_selects(name):
        return ConstantRole(CONSTANT, 3, "it only selects")
    value = graph.constants[name]
    if value.size == 1:
        module = name not in graph.inline and _is_of_module(name)
        why = "one entry, called as a module's" if module else "one entry, not called as a module's"
        return ConstantRole(WEIGHT if module else CONSTANT, 4, why)
    if _varies(value):
        return ConstantRole(WEIGHT, 5, "several values, on a path to y")
    return ConstantRole(CONSTANT, 5, "all values are equal, or a mask's")


def _by_operand(uses: Iterable[tuple[Node, int]]) -> ConstantRole | None:
    """The role of an operand: the least of what it is used for that is no weight goes first."""
    found: dict[str, str] = {}
    for node, index in uses:
        if node.domain not in ("", "com.microsoft"):
            continue
        trained = _FUSED_TRAINED.get(node.op, ()) if node.domain else ()
        for role, table in ((STATISTIC, _STATISTICS), (QUANTIZATION, _QUANTIZERS), (WEIGHT, _TRAINED)):
            if index in table.get(node.op, ()) or (role == WEIGHT and index in trained):
                found.setdefault(role, f"operand {index} of {node.op}")
    first = next((r for r in (STATISTIC, QUANTIZATION, WEIGHT) if r in found), None)
    return None if first is None else ConstantRole(first, 2, found[first])


def _uses(graph: Graph, names: Iterable[str]) -> dict[str, list[tuple[Node, int]]]:
    """Nodes that read constants, and as which operand, through what only casts them and lays them out."""
    behind: dict[str, set[str]] = {n: {n} for n in names}
    found: dict[str, list[tuple[Node, int]]] = {}
    for node in _nodes(graph):
        for index, read in enumerate(node.inputs):
            for name in behind.get(read, ()):
                found.setdefault(name, []).append((node, index))
                if node.op in LAYOUT and (index == 0 or node.op == "Concat"):
                    for output in node.outputs:
                        behind.setdefault(output, set()).add(name)
    return found


def _nodes(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        yield node
        for body in node.subgraphs:
            yield from _nodes(body)


def to_integers(node: Node) -> bool:
    """It makes integers or truth values of numbers."""
    if node.op in _DECIDING:
        return True
    dtype = DTYPES.get(node.attrs.get("to", 0)) if node.op == "Cast" else None
    return dtype is not None and not is_inexact(dtype)


def _is_of_module(name: str) -> bool:
    """A name such as encoder.scale: parts, of which the last is none that an exporter makes up."""
    *parts, last = re.split(r"[./]", name)
    return bool(parts) and bool(last) and _EXPORTED.match(last) is None


def _varies(value: Array) -> bool:
    """It has two values or more, and others than 0, 1 and the large negative ones of a mask."""
    flat, first, differs, other = value.reshape(-1), value.reshape(-1)[0], False, False
    for start in range(0, flat.size, _AT_ONCE):
        part = flat[start : start + _AT_ONCE]
        differs = differs or bool((part != first).any())
        real = part.real
        other = other or bool((~((part == 0) | (part == 1) | (real <= _LARGE_NEGATIVE))).any())
        if differs and other:
            return True
    return False
