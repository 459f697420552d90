"""Networks for images as they are used: every entry of their Jacobian compared, and node by node.

python -m benchmarks.real_sizes
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradcheck_cli
from benchmarks.alone import alone, peak
from benchmarks.networks import Network, basic, mobilenet, resnet, two_convolutions, unet
from benchmarks.table import Table, write
from gradcheck_cli.errors import GradcheckError, LimitError

SIDES, MODES = (64, 128), ("full", "nodes")
TIMEOUT = 1800.0  # seconds, of one check
HEAD = (
    "network", "image", "mode", "entries", "seconds", "peak, MB", "of it by the check, MB", "status",
    "compared, or why not",
)  # fmt: skip


def networks(side: int) -> list[Network]:
    """The networks for one image so wide and high, the least work first."""
    x = (1, 3, side, side)
    return [
        Network("two convolutions of 3x3", x, x, two_convolutions),
        Network("MobileNetV3-small", x, (1, 10), mobilenet(classes=10)),
        Network("ResNet-18", x, (1, 10), resnet((2, 2, 2, 2), classes=10, block=basic)),
        Network("U-Net, 16 to 128 channels", x, (1, 1, side, side), unet()),
    ]


def tables(quick: bool = False) -> Iterator[Table]:
    """One table: a row for each network, size and mode."""
    table = Table("Full checks at real sizes", HEAD, note=f"All of `check()`, stopped after {TIMEOUT:g} s.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        for network in networks(SIDES[0])[:1] if quick else [each for side in SIDES for each in networks(side)]:
            network.write(path)
            image, entries = "x".join(map(str, network.x_shape[1:])), math.prod(network.x_shape + network.y_shape)
            for mode in MODES:
                table.add(network.name, image, mode, entries, *measured(path, mode))
    yield table


def measured(path: Path, mode: str) -> tuple[Any, ...]:
    """Seconds, the peak of memory and how far it grew, the status, what was compared; in a process of its own."""
    try:
        (seconds, before, *outcome), most = alone("benchmarks.real_sizes:check_file", path=str(path), mode=mode)
    except RuntimeError as error:  # the system stopped it, say
        return "", "", "", "error", str(error)
    return seconds, most, most - before, *outcome


def check_file(path: str, mode: str, timeout: float = TIMEOUT) -> tuple[float, float, str, str]:
    """Seconds of a check of a file, the peak of memory before, its status, what was compared or why it could not be."""
    model, before, start = gradcheck_cli.load(path), peak(), time.perf_counter()
    try:
        [found] = gradcheck_cli.check(model, "x", mode=mode, timeout=timeout).checks
    except GradcheckError as error:  # before it begins where the memory limit does not allow it
        return time.perf_counter() - start, before, "limit" if isinstance(error, LimitError) else "refused", str(error)
    what, counts = ("nodes", found.nodes) if mode == "nodes" else ("entries", found.entries)
    compared = f"{counts.get('checked', 0):,} of {counts.get('total', 0):,} {what}"
    return (
        time.perf_counter() - start,
        before,
        found.status,
        " ".join(filter(None, (compared, found.code, found.message))),
    )


if __name__ == "__main__":
    write(*tables())
