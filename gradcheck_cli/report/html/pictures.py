"""Pictures of a check as PNG: where in the Jacobian its errors are, and its V curve.

They are images, not drawings in the page, since the strictest policies let a picture have no style of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BytesIO
from typing import NamedTuple

from matplotlib.figure import Figure

from gradcheck_cli.report import axes, plot
from gradcheck_cli.report.plot.heat import draw_heat
from gradcheck_cli.report.plot.panels import draw_curve
from gradcheck_cli.results.record import Check

_SIZE, _DPI = (5.6, 4.2), 160  # inches, dots an inch: sharp on screens with two dots a pixel
WIDTH, HEIGHT = (round(inches * _DPI) for inches in _SIZE)


class Drawing(NamedTuple):
    """One picture: which kind, as a word for its file, what it shows, in words, and its bytes."""

    kind: str
    says: str
    png: bytes


def drawings(check: Check) -> Iterator[Drawing]:
    """The pictures of a check that kept what they are drawn from; of what is not there, none."""
    picture = check.picture
    if picture is None:
        return
    pair = axes.derivative(check, 60)
    yield Drawing("errors", f"Where the errors of {pair} are", _png(lambda panel: draw_heat(panel, check, picture)))
    if picture.curve is not None:
        says = f"Central differences of one entry of {pair} against their step"
        yield Drawing("steps", says, _png(lambda panel: draw_curve(panel.subplots(), check, picture.curve)))


def _png(draw: Callable[[Figure], None]) -> bytes:
    with plot.own_settings():
        figure, file = Figure(figsize=_SIZE), BytesIO()
        figure.set_layout_engine("constrained")
        draw(figure)
        figure.savefig(file, format="png", dpi=_DPI, metadata={"Software": "gradcheck"})
    return file.getvalue()
