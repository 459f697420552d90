"""Each fact that a spec states of its operator under `ops:` has its effect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gradcheck_cli as gc
from gradcheck_cli.autodiff.custom import ops_for
from gradcheck_cli.checks.inspection import inspect
from gradcheck_cli.formats.source import Source
from gradcheck_cli.formats.yaml.reading import read_spec
from gradcheck_cli.ops import OPS
from gradcheck_cli.points.dims import roles
from gradcheck_cli.points.point import float_range, integer_range
from gradcheck_cli.points.targets import choose_x
from gradcheck_cli.settings import Settings


@pytest.fixture
def spec(tmp_path: Path) -> Any:
    """A function from an operator acme.F, its facts and a graph to the file that says so."""

    def spec(operator: str, facts: str, graph: str) -> Path:
        path = tmp_path / "f.gradcheck.yaml"
        stated = f", facts: {{{facts}}}" if facts else ""
        path.write_text(f"gradcheck: 1\nops:\n  acme.F: {{{operator}{stated}}}\ngraphs:\n  g: {{{graph}}}\n")
        return path

    return spec


@pytest.fixture
def source(spec: Any) -> Any:
    return lambda *parts: read_spec(spec(*parts)).sources["g"]


def drawn(source: Source) -> tuple[float, float]:
    return float_range(source.graph, "x", ops_for(source, OPS))


LOG = "inputs: [x], outputs: [y], forward: 'y = Log (x)'"
PLAIN = "inputs: {x: {shape: [3]}}, outputs: [y], nodes: 'y = acme.F (x)'"


@pytest.mark.parametrize(
    "facts, ends",
    [
        ("", (-1.0, 1.0)),
        ("domain: {x: [0, .inf]}", (0.1, 1.0)),
        ("domain: {x: [-.inf, -5]}", (-6.1, -5.1)),
        ("domain: {x: [-1, 1]}", (-0.9, 0.9)),
        ("domain: {x: [1, 3]}", (1.1, 2.1)),
        ("domain: {x: [-100, 255]}", (-1.0, 1.0)),
    ],
)
def test_operands_are_drawn_inside_of_their_domain(source: Any, facts: str, ends: tuple[float, float]) -> None:
    assert drawn(source(LOG, facts, PLAIN)) == pytest.approx(ends)


@pytest.mark.parametrize("facts, missed", [("", 0), ("domain: {x: [0, .inf]}", 1), ("domain: {x: [-.inf, 0]}", 1)])
def test_no_point_leaves_a_domain(spec: Any, facts: str, missed: int) -> None:
    path = spec("inputs: [x], outputs: [y], forward: 'y = Relu (x)'", facts, PLAIN.replace("[3]", "[16]"))
    [record] = gc.check(gc.load(path), "x", "y", points=3).checks
    assert (record.status, len(record.branches["missed"])) == ("pass", missed)


@pytest.mark.parametrize(
    "facts, ends",
    [
        ("", (0, 1)),
        ("integers: {i: [2, 5]}", (2, 5)),
        ("integers: {i: {along: t}}", (0, 3)),
        ("integers: {i: {along: t, axis: 1}}", (0, 6)),
        ("integers: {i: {along: t, axis: -1, lengths: true}}", (2, 7)),
    ],
)
def test_integers_are_those_that_are_stated(source: Any, facts: str, ends: tuple[int, int]) -> None:
    model = source(
        "inputs: [t, i], outputs: [y], forward: 'y = Gather (t, i)'",
        facts,
        "inputs: {t: {shape: [4, 7]}, i: {shape: [2], dtype: int64}}, outputs: [y], nodes: 'y = acme.F (t, i)'",
    )
    assert integer_range(model.graph, "i", ops_for(model, OPS), (2,)) == ends


@pytest.mark.parametrize("role", ["weight", "statistic", "quantization"])
def test_constants_have_the_role_of_their_operand(source: Any, role: str) -> None:
    model = source(
        "inputs: [x, w], outputs: [y], forward: 'y = Mul (x, w)'",
        f"roles: {{w: {role}}}",
        "inputs: {x: {shape: [2]}}, constants: {w: [1.0, 1.0]}, outputs: [y], nodes: 'y = acme.F (x, w)'",
    )
    [found] = (t for t in inspect(model, Settings()).tensors if t.name == "w")
    assert found.role == role
    chosen = choose_x(model.graph, ["y"], x=["x"], params=True, ops=ops_for(model, OPS))
    assert chosen == (("x", "w") if role == "weight" else ("x",))


@pytest.mark.parametrize("moves, passes", [("", False), ("all", True), ("within", True), ("selected", False)])
def test_ranges_go_through_what_keeps_them(source: Any, moves: str, passes: bool) -> None:
    model = source(
        "inputs: [x], outputs: [y], forward: 'y = Identity (x)'",
        f"moves: {moves}" if moves else "",
        "inputs: {x: {shape: [3]}}, outputs: [y], nodes: 'h = acme.F (x) y = Log (h)'",
    )
    assert drawn(model) == ((0.1, 1.0) if passes else (-1.0, 1.0))


@pytest.mark.parametrize("facts, images", [("", {"B", "C"}), ("same_axes: true", {"A", "B"})])
def test_axes_are_followed_through_what_keeps_them(source: Any, facts: str, images: set[str]) -> None:
    model = source(
        "inputs: [x], outputs: [y], forward: 'y = Tanh (x)'",
        facts,
        "inputs: {x: {shape: [N, A, B, C]}}, params: {w: {shape: [2, 3, 3, 3], init: ones}}, outputs: [y], "
        "nodes: 't = Transpose <perm = [0, 3, 1, 2]> (x) h = acme.F (t) y = Conv (h, w)'",
    )
    assert {*roles(model.graph, ops_for(model, OPS)).images} == images


@pytest.mark.parametrize("facts, images", [("", set()), ("space: windows", {"A", "B"}), ("space: resized", {"A", "B"})])
def test_what_reads_space_tells_the_extents_of_images(source: Any, facts: str, images: set[str]) -> None:
    model = source(
        "inputs: [x], outputs: [y], forward: 'y = AveragePool <kernel_shape = [2, 2]> (x)'",
        facts,
        "inputs: {x: {shape: [N, 3, A, B]}}, outputs: [y], nodes: 'y = acme.F (x)'",
    )
    assert {*roles(model.graph, ops_for(model, OPS)).images} == images


def health(path: Path) -> Any:
    [record] = gc.check(gc.load(path), "x", "y").checks
    assert record.status == "pass"
    return record.gradient["health"]


SCALED = (
    "inputs: [x, w], outputs: [y], forward: 'y = Mul (x, w)', gradient: 'dx = Mul (dy, w) p = Mul (dy, x) "
    "z = Constant <value_ints = [0]> () dw = ReduceSum <keepdims = 0> (p, z)'"
)
WEIGHTED = (
    "inputs: {x: {shape: [2, 3]}}, params: {v: {shape: [3, 3], init: orthogonal}, w: {shape: [3], init: normal}}, "
    "outputs: [y], nodes: 'h = MatMul (x, v) y = acme.F (h, w)'"
)


@pytest.mark.parametrize(
    "facts, layers",
    [
        ("layer: true, bends: [[x, w]]", ["MatMul", "F"]),
        ("layer: false, bends: [[x, w]]", ["MatMul"]),
        ("layer: false, bends: [[x]]", ["MatMul", "F"]),
    ],
)
def test_layers_are_what_has_weights_or_bends(spec: Any, facts: str, layers: list[str]) -> None:
    assert [each.spot.op for each in health(spec(SCALED, facts, WEIGHTED)).layers] == layers


@pytest.mark.parametrize("facts, told", [("", True), ("squashes: true", False)])
def test_what_squashes_at_the_end_is_no_layer_of_the_ratio(spec: Any, facts: str, told: bool) -> None:
    operator = (
        "inputs: [x], outputs: [y], forward: 'y = Sigmoid (x)', "
        "gradient: 'one = Constant <value_float = 1.0> () n = Sub (one, y) s = Mul (y, n) dx = Mul (dy, s)'"
    )
    graph = "inputs: {x: {shape: [3]}}, outputs: [y], nodes: 'h = Tanh (x) y = acme.F (h)'"
    assert (health(spec(operator, facts, graph)).ratio is not None) is told


ADDED = "inputs: [x, b], outputs: [y], forward: 'y = Add (x, b)', gradient: 'z = Constant <value_ints = [0]> () {}'"
ADDING = "inputs: {x: {shape: [4, 3]}, b: {shape: [3]}}, outputs: [y], nodes: 'y = acme.F (x, b)'"
MISSING = ": a sum over the axes along which 'b' is broadcast is missing"
SHAPES = {
    "dx = Identity (dy) db = ReduceSum <keepdims = 0> (dy, z)": "",
    "dx = Identity (dy) db = Identity (dy)": f"'b' a gradient of the shape [4,3], not [3]{MISSING}",
    "dx = Identity (dy) db = ReduceSum (dy, z)": f"'b' a gradient of the shape [1,3], not [3]{MISSING}",
    "dx = Identity (dy) db = ReduceSum <keepdims = 0> (dy)": "'b' a gradient of the shape [], not [3]",
    "dx = Transpose (dy) db = ReduceSum <keepdims = 0> (dy, z)": "'x' a gradient of the shape [3,4], not [4,3]",
    "dx = Flatten <axis = 0> (dy) db = ReduceSum <keepdims = 0> (dy, z)": "'x' a gradient of the shape [1,12], not [4,3]",
}


@pytest.mark.parametrize("gradient, said", SHAPES.items())
def test_a_gradient_of_another_shape_than_its_operand_fails_and_leaves_other_operands_alone(
    spec: Any, gradient: str, said: str
) -> None:
    found = gc.check(gc.load(spec(ADDED.format(gradient), "", ADDING)))
    wrong = [(check.code, check.message) for check in found.checks if check.status != "pass"]
    assert wrong == ([("GC102", f"the rule of acme.F gives {said}")] if said else [])
    assert found.exit_code == bool(said)


def _b(ct: gc.Var) -> gc.Var:
    return gc.symbolic.sum(ct, [0], keepdims=False)


OF_VARS: dict[str, tuple[Any, str]] = {
    "reduced": (lambda ct, y, x, b: (ct, _b(ct)), ""),
    "as Add's own": (lambda ct, y, x, b: (ct, ct), ""),
    "transposed": (
        lambda ct, y, x, b: (gc.symbolic.swap(ct), _b(ct)),
        "operand 0 a gradient of the shape [3,4], not [4,3]",
    ),
    "flat": (
        lambda ct, y, x, b: (gc.symbolic.reshape(ct, [-1]), _b(ct)),
        "operand 0 a gradient of the shape [12], not [4,3]",
    ),
    "a column": (
        lambda ct, y, x, b: (ct, gc.symbolic.sum(ct, [1])),
        "operand 1 a gradient of the shape [4,1], not [3]",
    ),
}


@pytest.mark.parametrize("rule, said", OF_VARS.values(), ids=OF_VARS)
def test_a_rule_in_python_may_leave_sums_over_broadcast_axes_to_us_but_no_other_shape(
    spec: Any, rule: Any, said: str
) -> None:
    plain = "inputs: {x: {shape: [4, 3]}, b: {shape: [3]}}, outputs: [y], nodes: 'y = Add (x, b)'"
    tested = gc.load(spec(LOG, "", plain))
    found = gc.check(tested, ops={**OPS, ("", "Add"): replace(OPS["", "Add"], vjp=rule)})
    wrong = [(check.code, check.message) for check in found.checks if check.status != "pass"]
    assert wrong == ([("GC102", f"the rule of Add gives {said}")] if said else [])
