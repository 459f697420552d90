"""Operators of other packages: found by their entry point, checked like built-in ones, refused with the package's name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from onnx import parser, save

import gradcheck_cli as gc
from gradcheck_cli.autodiff.custom import installed
from gradcheck_cli.cli import main
from gradcheck_cli.errors import UsageError

MODEL = """<ir_version: 10, opset_import: ["": 21, "acme": 1]>
g (float[3] x) => (float[3] y) { h = acme.Cube (x) y = Tanh (h) }"""
PACKAGE = """
import numpy as np
from gradcheck_cli import Op
from gradcheck_cli.op.batching import elementwise

def cube(x):
    return x ** 3

def cube_vjp(ct, y, x):
    return (ct * x * x * FACTOR,)

def operators():
    yield Op("Cube", cube, cube_vjp, elementwise, domain="acme")

CUBE = Op("Cube", cube, cube_vjp, elementwise, domain="acme")
TANH = [Op("Tanh", np.sin, cube_vjp, elementwise), CUBE]
NOTHING = 3
"""


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    installed.cache_clear()
    yield
    installed.cache_clear()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    save(parser.parse_model(MODEL), path)
    return path


def install(folder: Path, patch: pytest.MonkeyPatch, name: str, *entries: str, factor: float = 3.0) -> None:
    """A package on the path with these objects under the entry point."""
    (folder / f"{name}.py").write_text(PACKAGE.replace("FACTOR", str(factor)))
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"e{i} = {name}:{entry}" for i, entry in enumerate(entries)]
    (about / "entry_points.txt").write_text("[gradcheck.operators]\n" + "\n".join(lines) + "\n")
    patch.syspath_prepend(str(folder))


@pytest.mark.parametrize("entry", ["CUBE", "TANH", "operators"])
@pytest.mark.parametrize("factor, status", [(3.0, "pass"), (3.001, "fail")])
def test_an_operator_of_a_package_is_checked(model, tmp_path, monkeypatch, entry, factor, status) -> None:
    install(tmp_path, monkeypatch, f"acme_{entry.lower()}_{status}", entry, factor=factor)
    [check] = gc.check(gc.load(model)).checks
    assert check.status == status
    assert (check.suspect.op if check.suspect else "Cube").endswith("Cube")


def test_gradcheck_s_own_operators_come_first(model, tmp_path, monkeypatch) -> None:
    install(tmp_path, monkeypatch, "acme_first", "TANH")
    [check] = gc.check(gc.load(model)).checks
    assert check.status == "pass"  # the package's Tanh is a sine


def test_the_command_lists_them(tmp_path, monkeypatch, capsys) -> None:
    install(tmp_path, monkeypatch, "acme_listed", "CUBE")
    assert main(["ops", "acme.Cube"]) == 0
    assert "acme.Cube" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name, entries, message",
    [
        ("acme_number", ["NOTHING"], "gives int 3, which is no gradcheck_cli.Op"),
        ("acme_absent", ["ABSENT"], "cannot be loaded: AttributeError"),
        ("acme_twice", ["CUBE", "operators"], "acme.Cube is defined by gradcheck.operators 'e0 = acme_twice:CUBE' of"),
    ],
)
def test_what_a_package_does_wrong_is_said_with_its_name(model, tmp_path, monkeypatch, name, entries, message) -> None:
    install(tmp_path, monkeypatch, name, *entries)
    with pytest.raises(UsageError, match=message) as caught:
        gc.check(gc.load(model))
    assert name in str(caught.value)


def test_without_a_package_the_operator_is_unknown(model) -> None:
    [check] = gc.check(gc.load(model)).checks
    assert check.status == "unsupported"
