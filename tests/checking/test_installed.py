"""Operators of other packages: found by their entry point, checked like built-in ones, refused with the package's name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import parser, save

import gradcheck_cli as gc
from gradcheck_cli.autodiff.custom import installed
from gradcheck_cli.cli import main
from gradcheck_cli.errors import UsageError
from gradcheck_cli.op import POSITIVE
from gradcheck_cli.op.batching import elementwise
from gradcheck_cli.points.point import float_range
from gradcheck_cli.results.record import Check

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
    assert check.notes == ("the rule for Tanh of an installed package is not used: gradcheck's own comes first",)


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


SCALED = """<ir_version: 10, opset_import: ["": 21, "acme": 1]>
g (float[4,3] x) => (float[4,3] y) <float[3] w = {0.5, 2, 3}> { h = acme.Scaled (x, w) y = Identity (h) }"""


def scaled(tmp_path: Path, **facts: object) -> tuple[gc.Model, gc.Op]:
    """A model of one operator of its own, x w, of which these facts are said."""
    path = tmp_path / "scaled.onnx"
    save(parser.parse_model(SCALED), path)
    rule = lambda ct, y, x, w: (ct * w, ct * x)  # noqa: E731
    op = gc.Op("Scaled", np.multiply, rule, elementwise, domain="acme", linear=((0, 1),), **facts)  # type: ignore[arg-type]
    return gc.load(path), op


def checked(tmp_path: Path, **facts: object) -> Check:
    model, op = scaled(tmp_path, **facts)
    [check] = gc.check(model, x="x", points=8, ops={**gc.OPS, op.key: op}).checks
    assert check.status == "pass", check.message
    return check


def test_an_operator_says_where_its_operands_lie(tmp_path) -> None:
    for facts, interval in (({}, (-1.0, 1.0)), ({"valid": {0: POSITIVE}}, (0.1, 1.0))):
        model, op = scaled(tmp_path, **facts)
        assert float_range(model.graph, "x", {op.key: op}) == interval


def test_an_operator_says_that_it_is_a_layer(tmp_path) -> None:
    layers = [checked(tmp_path, **facts).gradient["health"].layers for facts in ({}, {"layer": True})]
    assert [[each.spot.op for each in found] for found in layers] == [[], ["Scaled"]]


def test_an_operator_says_which_branches_it_has(tmp_path) -> None:
    assert checked(tmp_path).branches == {}
    branches = checked(tmp_path, sides="sign", branch=lambda x, w: np.broadcast_to(x < 0, np.shape(x * w))).branches
    assert (branches["total"], branches["covered"]) == (2, 2)


CUBE = """<ir_version: 10, opset_import: ["": 21, "acme": 1]>
g (float[3] x) => (float[3] y) { h = acme.Cube (x) y = Tanh (h) }
<domain: "acme", opset_import: ["": 21]>
Cube (x) => (y) { s = Mul (x, x) y = Mul (s, x) }"""
SIDE_CAR = """gradcheck: 1
ops:
  acme.Cube: {inputs: [x], outputs: [y], forward: "s = Mul (x, x) y = Mul (s, x)",
              gradient: "s = Mul (x, x) t = Constant <value_float = FACTOR> () u = Mul (s, t) dx = Mul (dy, u)"}
checks: [{model: f.onnx}]
"""


@pytest.fixture
def with_function(tmp_path: Path) -> Path:
    save(parser.parse_model(CUBE), tmp_path / "f.onnx")
    return tmp_path / "f.onnx"


@pytest.mark.parametrize("factor, code", [(3.0, 0), (1.0, 1)])
def test_a_rule_in_python_is_checked_though_the_model_has_a_function_of_the_name(
    with_function: Path, factor: float, code: int
) -> None:
    rule = gc.Op("Cube", lambda x: x * x * x, lambda ct, y, x: (ct * x * x * factor,), domain="acme")
    assert gc.check(gc.load(with_function), ops={**gc.OPS, rule.key: rule}).exit_code == code
    assert gc.check(gc.load(with_function)).exit_code == 0


@pytest.mark.parametrize("factor, code", [(3.0, 0), (1.0, 1)])
def test_a_rule_of_a_side_car_is_checked_though_the_model_has_a_function_of_the_name(
    with_function: Path, factor: float, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (with_function.parent / "f.gradcheck.yaml").write_text(SIDE_CAR.replace("FACTOR", str(factor)))
    assert main([str(with_function), "--save-failures", "none"]) == code
    assert "is used by no model" not in capsys.readouterr().out
