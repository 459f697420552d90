"""RNN, GRU and LSTM: every direction, layout, optional input and activation."""

from dataclasses import replace
from typing import Any

import numpy as np

from tests.ops.case import Case, arr, case

T, N, SIZE, H = 3, 2, 2, 2
LENGTHS = np.array([2, 3], np.int32)
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def layer(
    op: str,
    *,
    d: int = 1,
    bias: bool = True,
    lengths: Any = None,
    h: bool = False,
    c: bool = False,
    peepholes: bool = False,
    layout: int = 0,
    label: str = "",
    **attrs: Any,
) -> Case:
    """A case of a layer with small weights, in `d` directions."""
    gates = GATES[op]
    x = arr(N, T, SIZE) if layout else arr(T, N, SIZE)
    state = (N, d, H) if layout else (d, N, H)
    inputs: list[Any] = [
        x,
        arr(d, gates * H, SIZE, low=-0.9, high=0.9),
        arr(d, gates * H, H, low=-0.9, high=0.9),
    ]
    inputs += [arr(d, 2 * gates * H, low=-0.5, high=0.5) if bias else None, lengths]
    inputs += [arr(*state, low=-0.9, high=0.9) if h else None]
    if op == "LSTM":
        inputs += [arr(*state, low=-0.8, high=0.8) if c else None]
        inputs += [arr(d, 3 * H, low=-0.9, high=0.9, seed=2) if peepholes else None]
    if layout:
        attrs["layout"] = layout
    if d == 2:
        attrs["direction"] = "bidirectional"
    if label != "bare":
        attrs["hidden_size"] = H
    return case(op, *inputs, n_outputs=3 if op == "LSTM" else 2, label=label, **attrs)


def everywhere(op: str) -> list[Case]:
    """Attributes that all three layers have in common."""
    return [
        layer(op, bias=False, label="bare"),
        layer(op, h=True, label="state"),
        layer(op, direction="reverse", lengths=LENGTHS, h=True, label="lengths"),
        layer(op, lengths=np.array([0, 2], np.int32), h=True, label="no steps"),
        layer(op, d=2, lengths=LENGTHS, label="lengths"),
        layer(op, d=2, layout=1, h=True, label="state"),
        layer(op, layout=1, lengths=LENGTHS, label="lengths"),
        layer(op, clip=0.4, label="clipped"),
    ]


def at_once(op: str, **more: Any) -> list[Case]:
    """The same layer as one step of gradcheck's own, and the cotangents of its operands."""
    whole = replace(layer(op, **more), domain="gradcheck")
    attrs = {key: value for key, value in whole.attrs.items() if key != "hidden_size"}
    whole, tape = replace(whole, attrs=attrs), replace(whole, attrs=attrs).tape()
    seeds = [arr(*tape.named[name].shape, seed=3) for name in whole.outputs]
    wanted = tuple(i for i, x in enumerate(whole.inputs) if x is not None and x.dtype.kind == "f")
    back = case(
        f"{op}Grad", *seeds, *whole.inputs, domain="gradcheck", n_outputs=len(whole.inputs), wanted=wanted, **attrs
    )
    return [whole, back]


TAKES: dict[str, dict[str, tuple[float, ...]]] = {
    "Relu": {},
    "Tanh": {},
    "Sigmoid": {},
    "Softsign": {},
    "Softplus": {},
    "Affine": {"activation_alpha": (0.5,), "activation_beta": (0.25,)},
    "LeakyRelu": {"activation_alpha": (0.3,)},
    "ThresholdedRelu": {"activation_alpha": (0.2,)},
    "ScaledTanh": {"activation_alpha": (1.5,), "activation_beta": (0.5,)},
    "HardSigmoid": {"activation_alpha": (0.3,), "activation_beta": (0.4,)},
    "Elu": {"activation_alpha": (0.5,)},
}

CASES = [
    *at_once("RNN", h=True),
    *at_once("RNN", d=2, lengths=LENGTHS, layout=1),
    *at_once("GRU", h=True, direction="reverse"),
    *at_once("GRU", d=2, lengths=LENGTHS, linear_before_reset=1),
    *at_once("LSTM", d=2, h=True, c=True, peepholes=True, layout=1, lengths=LENGTHS),
    *at_once("LSTM", input_forget=1, bias=False),
    *everywhere("RNN"),
    *[layer("RNN", activations=(name,), **values) for name, values in TAKES.items()],
    *[layer("RNN", activations=(name,), **TAKES[name], clip=0.6) for name in ("ScaledTanh", "HardSigmoid", "Elu")],
    *[layer("RNN", activations=(name,)) for name in ("LeakyRelu", "HardSigmoid", "Elu", "ThresholdedRelu")],
    layer("RNN", activations=("Elu", "LeakyRelu"), activation_alpha=(0.5, 0.25), d=2),
    layer("RNN", activations=("softsign", "SOFTPLUS"), d=2),
    *everywhere("GRU"),
    layer("GRU", linear_before_reset=1, h=True),
    layer("GRU", linear_before_reset=1, bias=False),
    layer("GRU", d=2, linear_before_reset=1, lengths=LENGTHS),
    layer("GRU", activations=("HardSigmoid", "Softsign"), activation_alpha=(0.3,), activation_beta=(0.4,)),
    layer("GRU", activations=("HardSigmoid", "LeakyRelu"), label="defaults"),
    layer(
        "GRU",
        d=2,
        h=True,
        linear_before_reset=1,
        activations=("HardSigmoid", "Elu", "Affine", "ScaledTanh"),
        activation_alpha=(0.3, 0.7, 0.8, 1.2),
        activation_beta=(0.4, 0.1, 0.9),
    ),
    *everywhere("LSTM"),
    layer("LSTM", h=True, c=True, peepholes=True, label="peepholes"),
    layer("LSTM", d=2, h=True, c=True, peepholes=True, layout=1, lengths=LENGTHS, label="everything"),
    layer("LSTM", input_forget=1, c=True),
    layer("LSTM", input_forget=1, peepholes=True),
    layer("LSTM", activations=("Sigmoid", "ThresholdedRelu", "Elu"), activation_alpha=(0.1, 0.7)),
    layer("LSTM", h=True, c=True, peepholes=True, clip=0.3, label="cell clipped"),
    layer("LSTM", input_forget=1, peepholes=True, clip=0.5, direction="reverse", label="all at once"),
    layer(
        "LSTM",
        d=2,
        h=True,
        c=True,
        peepholes=True,
        lengths=LENGTHS,
        activations=("HardSigmoid", "ScaledTanh", "Affine", "Affine", "LeakyRelu", "Softsign"),
        activation_alpha=(0.3, 1.2, 0.9, 0.5, 0.1),
        activation_beta=(0.4, 0.8, 0.1, 0.2),
    ),
]
