"""A check as a figure, PNG or SVG: where its errors are, whether differences can see them, how large, and which layers.

Drawn with matplotlib's objects alone: no window, no global figure, and none of the settings of whoever runs it.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

from gradcheck_cli.errors import UsageError
from gradcheck_cli.formats.whole_file import whole
from gradcheck_cli.report import heatmap
from gradcheck_cli.report.concise import headline, said_of
from gradcheck_cli.report.text import cut, name
from gradcheck_cli.results.record import Check

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORDS = {"pass": "#1a7f37", "fail": "#cf222e", "error": "#cf222e"}  # the HTML report's colors
_SIZE, _DPI = (13.0, 9.5), 100  # inches, dots an inch
WIDTH, HEIGHT = 896, 672  # pixels of a picture of a page
_SHARP = 160  # dots an inch of these: enough for screens with two dots a pixel
_LONGEST = 80  # columns of a line
_OWN: Any = {
    "font.size": 9.0, "axes.titlesize": 10.0, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.color": "#e4e4e4", "axes.axisbelow": True, "legend.fontsize": 8.0, "legend.frameon": False,
    "svg.fonttype": "none", "svg.hashsalt": "gradcheck", "axes.unicode_minus": False,
}  # fmt: skip


def require_matplotlib() -> None:
    """Raises UsageError where it is not installed."""
    if find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib: python -m pip install matplotlib")


def numbered(path: str, count: int) -> str:
    """The file of the count-th figure of a run: plot.png, plot-2.png, plot-3.png ..."""
    stem, suffix = os.path.splitext(path)
    return path if count == 1 else f"{stem}-{count}{suffix}"


def write(check: Check, path: str, *, follow: bool = True) -> None:
    """The figure of a check in a file, which is replaced as a whole or not at all; a link is one, or is followed."""
    kind = os.path.splitext(path)[1].removeprefix(".")
    metadata = {"Date": None, "Creator": "gradcheck"} if kind == "svg" else {"Software": "gradcheck"}
    try:
        with own_settings(), whole(path, follow=follow) as file:
            figure(check).savefig(file, format=kind, dpi=_DPI, metadata=metadata)
    except OSError as error:
        raise UsageError(f"--plot {path} cannot be written: {error.strerror or error}") from None


def figure(check: Check) -> Figure:
    """The figure of a check that has a picture."""
    from matplotlib.figure import Figure

    from gradcheck_cli.report.plot.panels import draw_curve, draw_heat, draw_histogram, draw_layers

    assert check.picture is not None
    drawn = Figure(figsize=_SIZE)
    drawn.set_layout_engine("constrained", w_pad=0.1, h_pad=0.08)
    drawn.supxlabel(_foot(check), color="#555555", fontsize=9, parse_math=False)
    drawn.suptitle(
        _title(check), color=WORDS.get(check.status, "#9a6700"), fontsize=13, fontweight="bold", parse_math=False
    )
    panels: Any = drawn.subfigures(2, 2, hspace=0.04, wspace=0.03)
    (top_left, top_right), (bottom_left, bottom_right) = panels
    draw_heat(top_left, check, check.picture)
    draw_curve(top_right.subplots(), check, check.picture.curve)
    draw_histogram(bottom_left.subplots(), check, check.picture)
    draw_layers(bottom_right, check)
    return drawn


class Drawing(NamedTuple):
    """One picture of a page: a word for its kind, a sentence that describes it, and its bytes."""

    kind: str
    says: str
    png: bytes


def drawings(check: Check) -> Iterator[Drawing]:
    """The pictures of a check that kept what they are drawn from; of what is not there, none."""
    picture = check.picture
    if picture is None:
        return
    with own_settings():
        from gradcheck_cli.report.plot.panels import draw_curve, draw_heat
    pair = heatmap.derivative(check, 60)
    yield Drawing("errors", f"Where the errors of {pair} are", _png(lambda panel: draw_heat(panel, check, picture)))
    if picture.curve is not None:
        says = f"Central differences of one entry of {pair} against their step"
        yield Drawing("steps", says, _png(lambda panel: draw_curve(panel.subplots(), check, picture.curve)))


def _png(draw: Callable[[Figure], None]) -> bytes:
    with own_settings():
        from matplotlib.figure import Figure

        figure, file = Figure(figsize=(WIDTH / _SHARP, HEIGHT / _SHARP)), BytesIO()
        figure.set_layout_engine("constrained")
        draw(figure)
        figure.savefig(file, format="png", dpi=_SHARP, metadata={"Software": "gradcheck"})
    return file.getvalue()


def _title(check: Check) -> str:
    """The title of a figure, FAIL GC101  d loss / d input: 6 of 192 entries differ (3.1%)."""
    verdict = f"{said_of(check)[0]} {check.code}".strip()
    what = ": ".join(filter(None, (heatmap.derivative(check), cut(name(headline(check)), _LONGEST))))
    return f"{verdict}  {what}"


def _foot(check: Check) -> str:
    """The check, its method, and the node that it suspects."""
    suspect = check.suspect
    at = f"suspect: node {suspect.node} {suspect.op} {suspect.name}".strip() if suspect else ""
    facts = (check.check, f"{check.mode}, {check.method}", f"seed {check.seed}", at)
    return " | ".join(cut(name(fact), _LONGEST) for fact in facts if fact)


@contextmanager
def own_settings() -> Iterator[None]:
    """matplotlib as it comes, whatever configuration there is, and silent about letters that its font lacks."""
    log, backend = logging.getLogger("matplotlib"), os.environ.get("MPLBACKEND")
    level = log.level
    log.setLevel(logging.ERROR)
    os.environ["MPLBACKEND"] = "agg"  # an unknown name there would be an error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import matplotlib

            with matplotlib.rc_context():
                matplotlib.rcdefaults()
                matplotlib.rcParams.update(_OWN)
                yield
    finally:
        log.setLevel(level)
        del os.environ["MPLBACKEND"]
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
