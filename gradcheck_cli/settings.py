"""All settings of a check, with the defaults of the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from gradcheck_cli.graph import Array
from gradcheck_cli.graph.memory import share

Mode: TypeAlias = Literal["auto", "full", "nodes", "directional", "sampled"]
Method: TypeAlias = Literal["auto", "complex-step", "richardson", "central", "forward"]
Forward: TypeAlias = Literal["internal", "onnxruntime"]
Pictures: TypeAlias = Literal["none", "wrong", "all"]
ANY = ""  # the key of a value that was given without a tensor's name
NOTHING = "none"  # of `grad` without a name: no gradients of others are looked for


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """An array, and its origin for messages."""

    values: Array
    origin: str = "numbers"

    def __str__(self) -> str:
        return self.origin


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the check of one model.

    Mappings by tensor name may hold a value under "" that counts for every tensor without one of its own.  If x or y is
    None, it is chosen.
    """

    x: tuple[str, ...] | None = None
    y: tuple[str, ...] | None = None
    params: bool = False
    param: tuple[str, ...] = ()  # constants by name or glob, of any role; !GLOB leaves out
    mode: Mode = "auto"
    max_entries: int = 4096  # of a sampled check
    x_shape: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    y_shape: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    x_init_value: Mapping[str, Array] = field(default_factory=dict)
    extra_feed_dict: Mapping[str, Array] = field(default_factory=dict)
    init_targets: tuple[str, ...] = ()
    test_data: Path | Literal["auto"] | None = None  # a folder with input_0.pb ..., or the one beside the model
    val_range: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    points: int = 1
    point: int | None = None  # only this one of them
    seed: int = 0
    delta: float | None = None
    method: Method = "auto"
    dtype: Literal["float64", "model"] = "float64"
    forward: Forward | None = None  # who evaluates y; None: internal, held against onnxruntime if it is there
    rtol: Mapping[str, float] = field(default_factory=dict)  # where nothing is given, that of the verdict
    atol: Mapping[str, float] = field(default_factory=dict)
    grad: Mapping[str, str | Numbers] = field(default_factory=dict)  # claimed gradients by x, and seeds by y
    grad_model: str | None = None  # the file of another model that has them
    max_inconclusive: float = 0.02
    straight_through: bool = False  # quantizers and what rounds by hand do not round
    coloring: bool = True  # probe reals of x together that no entry of y shares
    second_order: bool = False  # the gradient's own gradient too
    compat: Literal["tf"] | None = None  # compare as TensorFlow does
    pictures: Pictures = "none"  # keep what pictures need, of all pairs or of what is wrong
    memory_limit: int = field(default_factory=share)  # bytes that a check may take beside what it starts with
    jobs: int = os.cpu_count() or 1
    timeout: float | None = None  # seconds

    @property
    def run_in(self) -> Literal["float64", "model"]:
        """The dtype of the run at a point: the model's own if that is checked, or if onnxruntime runs it too."""
        return "model" if self.forward == "onnxruntime" else self.dtype
