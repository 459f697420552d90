"""Pictures on the command line: `--heatmap` in any terminal, `--plot` as PNG and SVG, and what can go wrong before."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from msgspec import structs
from PIL import Image

import gradcheck_cli as gc
from gradcheck_cli.report import heatmap, plot
from gradcheck_cli.report.heatmap import LEVELS, levels_of
from gradcheck_cli.report.text import Style, columns
from gradcheck_cli.results.measures import Curve
from gradcheck_cli.results.picture import Histogram, Picture, Standing, Tile, severity
from gradcheck_cli.results.record import Check
from tests.checking.small import between, check, scaled, with_rule
from tests.cli.conftest import Command
from tests.cli.test_reports import FAILED
from tests.hostile.names import NAMES

HOSTILE = {**NAMES, "mathematics": r"$\frac{1$ _x_ $$", "an underscore": "_hidden", "a comment": "<!-- --> ]]>"}
SIZES = {  # over what, sizes of the tile, shapes of x and y
    "one entry": ("both", (1, 1), (), ()),
    "small": ("both", (4, 3), (4,), (3,)),
    "wide": ("both", (3, 1000), (3,), (10, 100)),
    "tall": ("both", (1000, 2), (1, 10, 10, 10), (2,)),
    "complex": ("both", (6, 8), (3,), (2, 2)),
    "huge": ("both", (10**9, 10**6), (1000, 1000, 1000), (10**6,)),
    "a vector": ("x", (1, 1, 1000), (1000,), ()),
    "images": ("x", (3, 8, 8), (1, 3, 8, 8), ()),
    "complex images": ("x", (4, 5, 5), (2, 5, 5), ()),
    "many images": ("x", (512, 3, 3), (32, 16, 3, 3), ()),
    "large images": ("x", (3, 224, 224), (1, 3, 224, 224), ()),
    "an image of y": ("y", (1, 30, 30), (), (30, 30)),
    "projections": ("projections", (8, 8), (100,), (100,)),
}
CURVE = Curve(
    x=(0, 2, 7, 5), y=(), part="", point=0, severity=3000.0, theoretical=1.0, reference=0.5, doubt=1e-15, allowed=1e-7,
    steps=(1e-2, 1e-4, 1e-6, 1e-8), errors=(1e-4, 1e-8, 1e-10, 1e-8), crossed=(True, False, False, False),
    rounding=1e-17, truncation=(1.0, 2.0),
)  # fmt: skip


def bounded(sizes: tuple[int, ...]) -> tuple[int, ...]:
    most = (16, 64, 64) if len(sizes) == 3 and sizes[0] > 4 else (4, 128, 128) if len(sizes) == 3 else (256, 256)
    return tuple(map(min, sizes, most))


def pictured(case: str = "images", cells: np.ndarray | None = None, **more: object) -> Check:
    """A record with a picture in which one entry, the last, is wrong."""
    over, sizes, x_shape, y_shape = SIZES[case]
    if cells is None:
        cells = severity(np.zeros(bounded(sizes)), np.full(bounded(sizes), 1e-15))
        cells.reshape(-1)[-1] = severity(np.asarray(Standing.FAIL), np.asarray(2.0))
    counts = Histogram.of(np.asarray([0, 0, 3]), np.asarray([0.0, 1e-15, 2.0]))
    curve = structs.replace(CURVE, x=(0,) * len(x_shape), y=(0,) * len(y_shape))
    picture = Picture(Tile(over, sizes, cells), counts, counts, curve)
    return replace(FAILED, x_shape=x_shape, y_shape=y_shape, rtol=5e-7, picture=picture, **more)


WRONG = """\
heatmap  d loss / d x: relative error, by entry of x [3]
          0        1        2
    █ 5e-01  █ 5e-01  █ 5e-01
  █ fail, above 1e-1

"""


def test_a_heatmap_stands_below_the_table_of_its_check(gradcheck: Command):
    code, out, err = gradcheck("wrong.gradcheck.yaml", "--check", "square/wrong", "--heatmap")
    assert code == 1
    assert out.endswith(WRONG + "1 check: 1 failed in TIME\n")
    assert "FAIL GC101" in out.removesuffix(WRONG)
    assert err == ""


IMAGES = """\
heatmap  d loss / d input: relative error, by entry of input [1,3,8,8]
    [0,0,:,:]          [0,1,:,:]          [0,2,:,:]
    0              7   0              7   0              7
  0 ················   ················   ················
  1 ················   ················   ················
  2 ················   ················   ················
  3 ················   ················   ················
  4 ················   ················   ················
  5 ················   ················   ················
  6 ················   ················   ················
  7 ················   ················   ··············██
  · pass, up to 1e-12   █ fail, above 1e-1

"""
MATRIX = """\
heatmap  d loss / d input: relative error, a row for each entry of input [4], a
         column for each of loss [3]
           [0]      [1]      [2]
  [0]  ? 1e+00  ? 1e+00  ? 1e+00
  [1]  : 1e-10  : 1e-10  : 1e-10
  [2]  1 1e-06  # 5e-01  # 7e+00
  [3]                    !
  : pass, up to 1e-9   ? inconclusive   1 fail, up to 1e-5   # fail, above 1e-1
  ! fail, not finite   blank: not compared

"""


def test_a_tensor_by_which_a_scalar_is_differentiated_is_shown_as_images():
    assert heatmap.section(pictured("images"), Style()) == IMAGES


def test_a_jacobian_is_shown_as_a_matrix_legible_in_ascii():
    standing = np.asarray([[2, 2, 2], [0, 0, 0], [3, 3, 3], [-1, -1, 3]])
    error = np.asarray([[1, 1, 1], [1e-10, 1e-10, 1e-10], [1e-6, 0.5, 7], [0, 0, np.inf]])
    check = pictured("small", severity(standing, error))
    assert heatmap.section(check, Style(ascii=True)) == MATRIX


SMALL = {
    "a row": ("both", (1, 4), (1,), (4,)),
    "a column": ("both", (5, 1), (5,), (1,)),
    "two images": ("x", (2, 2, 3), (2, 2, 3), ()),
}


@pytest.mark.parametrize("case", ["one entry", "small", *SMALL])
def test_a_small_jacobian_names_every_entry_and_says_its_error(case: str):
    over, sizes, x_shape, y_shape = {**SIZES, **SMALL}[case]
    errors = 10.0 ** -np.arange(1.0, 1 + np.prod(sizes)).reshape(sizes)
    wrong = severity(np.full(sizes, int(Standing.FAIL)), errors)
    check = pictured("small", None)
    tile = Tile(over, sizes, wrong)
    assert check.picture is not None
    check = replace(check, x_shape=x_shape, y_shape=y_shape, picture=replace(check.picture, tile=tile))
    shown = heatmap.section(check, Style())
    assert all(f"{error:.0e}" in shown for error in errors.reshape(-1))
    rows, named = heatmap.labels(check, tile, 0), heatmap.labels(check, tile, 1)
    lines = [line.split() for line in shown.splitlines()]
    assert named in lines
    assert [label for label in rows if not any(line[:1] == [label] for line in lines)] in ([], [""])


@pytest.mark.parametrize("case", SIZES)
@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_heatmap_fits_the_terminal_and_shows_the_one_wrong_entry(case: str, width: int):
    text = heatmap.section(pictured(case), Style(width=width))
    lines = text.split("\n")
    assert max(map(columns, lines)) <= width
    assert len(lines) < 70
    assert text.count("█") > 1  # beside the legend's
    assert "fail, above 1e-1" in text


def test_colors_add_nothing_but_colors():
    plain, colored = (heatmap.section(pictured(), Style(color=on)) for on in (False, True))
    assert plain != colored
    assert re.sub("\x1b\\[\\d+m", "", colored) == plain


def test_ascii_is_all_that_an_ascii_terminal_gets():
    for case in SIZES:
        assert heatmap.section(pictured(case), Style(ascii=True)).isascii()


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_names_stand_in_a_heatmap_and_do_nothing_more(name: str):
    text = heatmap.section(pictured("small", x=name, y=name), Style())
    assert all(line.isprintable() for line in text.split("\n"))
    assert max(map(columns, text.split("\n"))) <= 80


def test_every_level_looks_different_without_color():
    for looks in (
        {level.glyph for level in LEVELS},
        {level.plain for level in LEVELS},
        {level.fill for level in LEVELS},
    ):
        assert len(looks) == len(LEVELS)
    assert levels_of(severity(np.asarray([0, 3, 3]), np.asarray([0.0, 1e-4, np.nan]))).tolist() == [0, 6, 8 + 1]


def test_a_heatmap_leaves_other_formats_alone(gradcheck: Command):
    code, out, err = gradcheck(
        "wrong.gradcheck.yaml", "--check", "square/wrong", "--heatmap", "--output-format", "json"
    )
    assert code == 1
    assert json.loads(out)["exit_code"] == 1
    assert err == WRONG


def test_quiet_leaves_out_the_heatmaps_of_what_passed(gradcheck: Command):
    assert "heatmap" not in gradcheck("conv.onnx", "--heatmap", "-q").out
    assert "heatmap" in gradcheck("conv.onnx", "--heatmap").out


def png(path: Path) -> Image.Image:
    with Image.open(path) as image:
        image.load()
        assert image.format == "PNG"
        return image.convert("RGB")


def texts(path: Path) -> str:
    """All text of an SVG."""
    return "\n".join(ElementTree.fromstring(path.read_bytes()).itertext())


def test_a_plot_is_a_png_with_colors(gradcheck: Command, folder: Path):
    code, _, err = gradcheck("wrong.gradcheck.yaml", "--check", "square/wrong", "--plot", "plot.png")
    assert (code, err) == (1, "note: plot.png: d loss / d x\n")
    image = png(folder / "plot.png")
    assert min(image.size) > 600
    assert len(image.getcolors(1 << 24) or ()) > 50
    assert {path.name for path in folder.glob("*plot*")} == {"plot.png"}


def test_a_plot_is_an_svg_that_says_what_it_shows(gradcheck: Command, folder: Path):
    gradcheck("wrong.gradcheck.yaml", "--check", "square/wrong", "--plot", "plot.svg")
    shown = texts(folder / "plot.svg")
    for text in ("FAIL GC101", "3 of 3 entries differ", "within tolerance", "rounding, at most",
                 "fail (3)", "square/wrong", "relative error, by entry of x [3]"):  # fmt: skip
        assert text in shown


def test_a_plot_of_a_small_jacobian_says_the_errors_and_names_the_entries(tmp_path: Path):
    plot.write(
        check(between("Tanh"), ops=with_rule("Tanh", scaled("Tanh", 2.0)), pictures=True), str(tmp_path / "p.svg")
    )
    shown = texts(tmp_path / "p.svg")
    assert shown.count("5e-01") == 4
    for text in ("[0]", "[1]", "[2]", "[3]", "verdict and relative error, a ratio without unit"):
        assert text in shown


def test_a_picture_of_what_fails_praises_nothing(tmp_path: Path):
    for ops, praised in ((with_rule("Tanh", scaled("Tanh", 2.0)), False), (gc.OPS, True)):
        plot.write(check(between("Tanh"), ops=ops, pictures=True), str(tmp_path / "p.svg"))
        drawn = (tmp_path / "p.svg").read_text("utf-8")
        assert ("healthy" in drawn) is praised
        assert ("#1a7f37" in drawn) is praised


@pytest.mark.slow
def test_a_plot_is_the_same_whenever_it_is_drawn(folder: Path):
    for suffix in (".svg", ".png"):
        files = [folder / f"{name}{suffix}" for name in "ab"]
        for file in files:
            plot.write(pictured(), str(file))
        assert files[0].read_bytes() == files[1].read_bytes()
    assert b"<dc:date>" not in (folder / "a.svg").read_bytes()


@pytest.mark.slow
def test_each_check_has_a_plot_of_its_own(gradcheck: Command, folder: Path):
    code, _, err = gradcheck("mlp.onnx", "conv.onnx", "--plot", "p.svg")
    assert code == 0
    assert err.splitlines() == [
        "note: p.svg: d loss / d input", "note: p-2.svg: d aux_out / d aux_in", "note: p-3.svg: d loss / d image",
    ]  # fmt: skip
    assert "conv.onnx" in texts(folder / "p-3.svg")
    assert gradcheck("mlp.onnx", "--plot", "p.svg", "-q").err == ""


def test_a_link_at_a_name_that_nobody_gave_is_not_followed(gradcheck: Command, folder: Path):
    (folder / "elsewhere").mkdir()
    for name in ("p.svg", "p-2.svg"):
        os.symlink(f"elsewhere/{name}", folder / name)
    gradcheck("mlp.onnx", "--x", "input", "--x", "aux_in", "--plot", "p.svg")
    assert os.listdir(folder / "elsewhere") == ["p.svg"]
    assert not (folder / "p-2.svg").is_symlink()
    assert texts(folder / "p-2.svg")


def test_a_link_to_a_device_at_such_a_name_is_replaced(gradcheck: Command, folder: Path):
    os.symlink("/dev/full", folder / "p-2.svg")
    assert gradcheck("mlp.onnx", "--x", "input", "--x", "aux_in", "--plot", "p.svg").code == 0
    assert not (folder / "p-2.svg").is_symlink()
    assert texts(folder / "p-2.svg")


def test_nothing_compared_is_nothing_drawn(gradcheck: Command, folder: Path):
    result = gradcheck("unknown.onnx", "mlp.onnx", "--x", "x", "--plot", "p.png", "--output-format", "json")
    assert result.code == 2
    assert "nothing was compared, so --plot p.png was not written" in result.err
    assert not (folder / "p.png").exists()


@pytest.mark.one_in(8)
@pytest.mark.parametrize("case", SIZES)
def test_every_kind_of_picture_can_be_drawn(case: str, tmp_path: Path):
    plot.write(pictured(case), str(tmp_path / "p.png"))
    assert png(tmp_path / "p.png").size[0] > 600


CURVES = {
    "none": None,
    "no steps": structs.replace(CURVE, steps=(), errors=(), crossed=(), truncation=None),
    "not finite": structs.replace(CURVE, errors=(np.nan, np.inf, 1.0, 0.0), theoretical=np.nan, truncation=None),
    "no error at all": structs.replace(
        CURVE, errors=(0.0,) * 4, theoretical=0.5, allowed=0.0, rounding=0.0, truncation=None
    ),
    "all across a branch": structs.replace(CURVE, crossed=(True,) * 4),
    "tiny": structs.replace(
        CURVE, errors=(1e-320,) * 4, theoretical=1e-310, reference=1e-320, allowed=1e-323, rounding=1e-323
    ),
    "huge": structs.replace(
        CURVE, errors=(1e300, 1e308, 1e-300, 1.0), theoretical=1e308, reference=-1e308, rounding=1e300
    ),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_every_curve_can_be_drawn(curve: Curve | None, tmp_path: Path):
    check = pictured("images")
    assert check.picture is not None
    plot.write(replace(check, picture=replace(check.picture, curve=curve)), str(tmp_path / "p.svg"))
    assert ElementTree.parse(tmp_path / "p.svg").getroot().tag.endswith("svg")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kinds", [list(HOSTILE)[i : i + 3] for i in range(0, len(HOSTILE), 3)], ids="+".join)
def test_names_stand_in_a_plot_and_do_nothing_more(kinds: list[str], tmp_path: Path):
    names = [HOSTILE[kind] for kind in kinds] + [""] * (3 - len(kinds))
    plot.write(pictured("small", **dict(zip(("x", "y", "check"), names, strict=True))), str(tmp_path / "p.svg"))
    shown = texts(tmp_path / "p.svg")
    for name in names:
        if len(name) < 20 and name.isascii() and name.isprintable() and name.strip():
            assert name in shown


def test_a_long_name_moves_nothing_out_of_a_plot(tmp_path: Path):
    name = "x" * 300
    plot.write(pictured("small", x=name, y=name, check=name), str(tmp_path / "p.png"))
    pixels = np.asarray(png(tmp_path / "p.png"))
    assert (pixels[:, :3] == 255).all()
    assert (pixels[:, -3:] == 255).all()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("p.pdf", "must end in .png, .svg"),
        ("p", "must end in .png, .svg"),
        ("nowhere/p.png", "there is no folder 'nowhere'"),
    ],
)
def test_a_plot_that_cannot_be_written_is_refused_before_anything_runs(gradcheck: Command, path: str, message: str):
    code, out, err = gradcheck("lfs.onnx", "--plot", path)  # a model that cannot be read would be exit 4
    assert (code, out) == (2, "")
    assert message in err


def python(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run([sys.executable, "-c", code], cwd=folder, env={**os.environ, **environment},
                          capture_output=True, text=True, timeout=600)  # fmt: skip


def test_without_matplotlib_a_plot_is_refused_before_anything_runs(folder: Path):
    code = """
import sys
sys.modules["matplotlib"] = None
from gradcheck_cli.cli import main
raise SystemExit(main(["lfs.onnx", "--plot", "p.png"]))"""
    ran = python(code, folder)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == "error GC201: --plot needs matplotlib: python -m pip install matplotlib\n"


@pytest.mark.slow
def test_matplotlib_is_imported_by_nothing_but_a_plot(folder: Path):
    code = """
import sys
from gradcheck_cli.cli import main
for args in (["--help"], ["check", "--help"], ["conv.onnx", "--heatmap"]):
    assert main(args) == 0
    assert "matplotlib" not in sys.modules, args
assert main(["conv.onnx", "--plot", "p.png"]) == 0
assert "matplotlib.figure" in sys.modules
assert "matplotlib.pyplot" not in sys.modules"""
    ran = python(code, folder)
    assert (ran.returncode, ran.stderr) == (0, "note: p.png: d loss / d image\n")


@pytest.mark.slow
def test_a_plot_looks_the_same_whatever_its_user_has_configured(folder: Path):
    (folder / "matplotlibrc").write_text("text.usetex: True\nfont.size: 30\nbackend: tkagg\nnonsense: 3\n")
    code = "from gradcheck_cli.cli import main; raise SystemExit(main(['conv.onnx', '--plot', '{}.png']))"
    plain = python(code.format("a"), folder, MPLCONFIGDIR=str(folder / "none"))
    odd = python(code.format("b"), folder, MPLCONFIGDIR=str(folder), MPLBACKEND="garbage")
    assert (plain.returncode, plain.stderr) == (0, "note: a.png: d loss / d image\n")
    assert (odd.returncode, odd.stderr) == (0, "note: b.png: d loss / d image\n")
    assert (folder / "a.png").read_bytes() == (folder / "b.png").read_bytes()


def test_pictures_can_be_asked_for_in_a_file_and_in_the_environment(
    gradcheck: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    (folder / "gradcheck.toml").write_text('plot = "there/p.svg"\nheatmap = true\n')
    (folder / "there").mkdir()
    assert "heatmap  d loss / d image" in gradcheck("conv.onnx").out
    assert (folder / "there" / "p.svg").exists()
    (folder / "gradcheck.toml").unlink()
    monkeypatch.setenv("GRADCHECK_PLOT", "q.svg")
    assert gradcheck("conv.onnx").code == 0
    assert (folder / "q.svg").exists()


def test_a_file_that_is_replaced_is_replaced_as_a_whole(folder: Path):
    (folder / "real.svg").write_text("before")
    (folder / "p.svg").symlink_to(folder / "real.svg")
    plot.write(pictured(), str(folder / "p.svg"))
    assert (folder / "p.svg").is_symlink()
    assert "FAIL GC101" in texts(folder / "real.svg")


def test_drawing_leaves_matplotlib_as_it_was():
    import matplotlib

    before = dict(matplotlib.rcParams)
    with io.BytesIO():
        plot.figure(pictured())
    assert dict(matplotlib.rcParams) == before


def test_bars_stand_on_those_of_other_verdicts():
    figure = pytest.importorskip("matplotlib.figure").Figure()
    from gradcheck_cli.report.plot.panels import draw_histogram

    panel, rule = figure.subplots(), scaled("Tanh", 1 + np.array([1.4e-6, 1.6e-6, 1.8e-6, 1.3e-6]))
    record = check(between("Tanh"), pictures=True, rtol=1.5e-6, ops=with_rule("Tanh", rule))
    draw_histogram(panel, record, record.picture)
    bars = [patch for patch in panel.patches if hasattr(patch, "get_y") and patch.get_height()]
    tops = {
        x: max(bar.get_y() + bar.get_height() for bar in bars if bar.get_x() == x) for x in {b.get_x() for b in bars}
    }
    assert len(tops) < len(bars)
    assert sum(tops.values()) == record.entries["checked"]
