"""The health of gradients: norms by layer, dead and saturated units, what vanishes, explodes or is not finite."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.backward import gradients, units_between
from gradcheck_cli.checks.health.checkup import Checkup, Dependents, Descent, random_cotangent
from gradcheck_cli.graph import Graph, Node
from gradcheck_cli.report.health import findings
from gradcheck_cli.results.measures import KEPT, SAMPLES, Health, Layer
from gradcheck_cli.settings import Settings
from tests.checking.small import MUTANTS, Mutant, between, check, model, names, with_rule
from tests.checking.test_bodies import loop

RNG = np.random.default_rng(11)
DEPTH, WIDTH = 12, 8
MIXING = [np.linalg.qr(RNG.normal(size=(WIDTH, WIDTH)))[0] for _ in range(DEPTH)]


def deep(
    op: str, gain: float = 1.0, bias: Any = 0.0, *, skip: bool = False, last: str = "", depth: int = DEPTH
) -> gc.Model:
    """Layers of an orthogonal matrix times a gain, a bias and an activation, with or without a way past each."""
    nodes: list[tuple[Any, ...]] = []
    constants: dict[str, Any] = {}
    here = "x"
    for i, w in enumerate(MIXING[:depth]):
        constants |= {f"w{i}": gain * w, f"b{i}": np.broadcast_to(bias, WIDTH).astype(float)}
        nodes += [("MatMul", f"{here} w{i}", f"m{i}"), ("Add", f"m{i} b{i}", f"h{i}"), (op, f"h{i}", f"a{i}")]
        nodes += [("Add", f"{here} a{i}", f"r{i}")] if skip else []
        here = f"r{i}" if skip else f"a{i}"
    nodes += [(last, here, "y")] if last else []
    return model(*nodes, x=(32, WIDTH), constants=constants)


def recurrent(gain: float, *bends: str, fed: bool = False) -> gc.Model:
    """The same by a loop that takes its steps with one matrix; where it is fed, every step reads x too."""
    names = ["h", "m", *"rst"[: len(bends)]]
    nodes = [("Identity", "go", "went"), ("MatMul", "h w", "m"), *zip(bends, names[1:], names[2:], strict=False)]
    nodes += [("Add", f"{names[-1]} x", "out")] if fed else []
    body = Graph(("i", "go", "h"), ("went", "out" if fed else names[-1]),
                 tuple(Node(op, tuple(reads.split()), (made,)) for op, reads, made in nodes))  # fmt: skip
    constants = {"w": gain * MIXING[0], "steps": np.int64(DEPTH), "yes": np.True_}
    return model(("Loop", "steps yes x", "y", {"body": body}), x=(32, WIDTH), constants=constants)


def health(tested: gc.Model, value: Any = None, **more: Any) -> Health:
    found = check(tested, value, **more).gradient["health"]
    assert isinstance(found, Health)
    return found


def layer(found: Health, name: str) -> Layer:
    return next(each for each in found.layers if each.spot.name == name)


# Norms


def test_norms_are_those_of_the_gradient_at_every_layer():
    """Of a scalar y: by hand."""
    a, b = RNG.normal(size=(4, 5)), RNG.normal(size=(5, 3))
    nodes = ("MatMul", "x a", "h"), ("Tanh", "h", "t"), ("MatMul", "t b", "o"), ("Exp", "o", "e")
    tested = model(*nodes, ("ReduceSum", "e", "y", {"keepdims": 0}), x=(2, 4), constants={"a": a, "b": b})
    x = RNG.normal(size=(2, 4))
    t = np.tanh(x @ a)
    at_o = np.exp(t @ b)
    at_t = at_o @ b.T
    at_h = at_t * (1 - t * t)
    found = health(tested, x)
    norms = {each.spot.name: each.norm for each in found.layers}
    wanted = {"h": at_h, "t": at_t, "o": at_o, "e": np.ones((2, 3))}
    assert norms == pytest.approx({name: float(np.linalg.norm(ct)) for name, ct in wanted.items()})
    weights = {each.spot.name: each.weights for each in found.layers if each.weights is not None}
    assert weights == pytest.approx({"h": np.linalg.norm(x.T @ at_h), "o": np.linalg.norm(t.T @ at_o)})
    assert found.ratio == pytest.approx(np.linalg.norm(at_h) / np.linalg.norm(at_o))
    assert layer(found, "t").rms == pytest.approx(np.sqrt(np.mean(at_t**2)))


def test_the_squared_norm_is_that_of_the_jacobian_on_average():
    """Orthogonal layers keep the length sqrt(y_size) of the cotangent, whatever it is."""
    found = health(deep("Identity"))
    assert [each.norm for each in found.layers] == pytest.approx([np.sqrt(32 * WIDTH)] * DEPTH)
    assert found.ratio == pytest.approx(1)


@pytest.mark.parametrize("shape", [(), (1,), (2,), (2, 3)])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_a_cotangent_has_its_length_and_is_never_all_ones(shape: tuple[int, ...], dtype: Any):
    for seed in range(20):
        ct = random_cotangent(np.zeros(shape, dtype), [seed])
        assert np.linalg.norm(ct) == pytest.approx(np.sqrt(ct.size))
        assert ct.size == 1 or np.ptp(ct.real) > 0


@pytest.mark.parametrize("mode", ["directional", "sampled", "nodes"])
def test_where_not_all_entries_are_compared_the_norm_is_that_of_the_gradient_all_the_same(mode: str):
    record = check(deep("Identity"), mode=mode)
    assert record.gradient["norm"] == pytest.approx(np.sqrt(32 * WIDTH))
    assert record.gradient["zero_fraction"] == 0


def test_several_points_are_taken_together():
    tested = model(("Mul", "x x", "h"), ("ReduceSum", "h", "y", {"keepdims": 0}))
    norms = [health(tested, seed=3, point=i).layers[0].norm for i in range(3)]
    points = [check(tested, seed=3, point=i, mode="directional").gradient["norm"] for i in range(3)]
    together = check(tested, seed=3, points=3, mode="directional")
    assert together.gradient["health"].layers[0].norm == pytest.approx(np.sqrt(np.mean(np.square(norms))))
    assert together.gradient["norm"] == pytest.approx(np.sqrt(np.mean(np.square(points))))


# The pass itself


def traced(tested: gc.Model) -> Any:
    return tested.tape([*tested.graph.outputs], Settings())


@pytest.mark.parametrize("tested", [m.model for m in MUTANTS] + [deep("Tanh", skip=True)])
def test_a_pass_gives_the_cotangents_of_all_tensors_and_leaves_the_tape_as_it_is(tested: gc.Model):
    tape = traced(tested)
    y, x = tape.named[tested.graph.outputs[0]], tape.named["x"]
    ct = random_cotangent(y.value, [0])
    steps, held = len(tape.steps), set(tape.values)
    found = dict(Descent(tape, y.name, [x.name]).cotangents(ct))
    assert (len(tape.steps), set(tape.values)) == (steps, held)
    inner = [n for unit in units_between(tape, [x.name], [y.name]) for n in unit.outputs if n in found]
    wanted = gradients(tape, {y.name: tape.hold("seed", ct)}, [x.name, *inner])
    assert x.name in found
    for name, var in zip([x.name, *inner], wanted, strict=True):
        assert var is not None
        np.testing.assert_allclose(found[name], var.value, rtol=1e-12, atol=1e-300)


def test_one_pass_serves_all_xs_and_all_layers():
    calls: list[int] = []
    right = gc.OPS["", "Tanh"].vjp
    assert right is not None

    def counted(ct: Any, y: Any, x: Any) -> Any:
        calls.append(1)
        return right(ct, y, x)

    ops = with_rule("Tanh", counted)
    tape = gc.Model(deep("Tanh").source, ops).tape(["a11"], Settings())
    checkup = Checkup("a11", 0, lambda: None, Dependents())
    checkup.at(tape, ["x", *(f"w{i}" for i in range(DEPTH))], ["x"], 0)
    assert len(calls) == DEPTH
    assert all(checkup.health(name) is not None for name in ("x", "w0", "w11"))


# What is wrong, and what is not

ILLNESSES: dict[str, tuple[gc.Model, tuple[str, ...]]] = {
    "twelve sigmoids": (deep("Sigmoid"), ("vanishing",)),
    "small weights": (deep("Tanh", 0.2), ("vanishing",)),
    "large weights": (deep("Identity", 4.0), ("exploding",)),
    "large weights, a bend": (deep("LeakyRelu", 8.0), ("exploding",)),
    "most units off": (deep("Relu", 1.0, [-50] * 5 + [1] * 3), ("dead",)),
    "all units off": (deep("Relu", 1.0, -50), ("dead", "vanishing")),
    "small weights, step by step": (recurrent(0.2), ("vanishing",)),
    "small weights and a bend, step by step": (recurrent(0.2, "Tanh"), ("vanishing",)),
    "large weights, step by step": (recurrent(4.0), ("exploding",)),
    "large weights and bends, step by step": (recurrent(8.0, "LeakyRelu", "Elu"), ("exploding",)),
}  # fmt: skip
HEALTHY: dict[str, gc.Model] = {
    "tanh": deep("Tanh", 1.5),
    "relu": deep("Relu", 1.4, 0.1, depth=3),
    "leaky": deep("LeakyRelu", 1.4),
    "gelu, past which a way leads": deep("Gelu", skip=True),
    "sigmoids, past which a way leads": deep("Sigmoid", skip=True),
    "a softmax that is sure of itself": deep("Tanh", 1.5, last="Softmax"),
    "a sigmoid at the end": deep("LeakyRelu", 1.5, last="Sigmoid"),
    "step by step": recurrent(1.0),
    "small weights, step by step, that are fed": recurrent(0.2, "Tanh", fed=True),
    "some units off": model(
        ("Add", "x b", "h"), ("Relu", "h", "y"), x=(32, WIDTH), constants={"b": np.array([-50.0] * 3 + [0.0] * 5)}
    ),
    "a gate that hardly moves": model(
        ("MatMul", "x w0", "h"),
        ("MatMul", "h w1", "g"),
        ("Mul", "g tiny", "t"),
        ("Add", "t one", "s"),
        ("Mul", "h s", "y"),
        x=(32, WIDTH),
        constants={"w0": MIXING[0], "w1": MIXING[1], "tiny": 1e-9, "one": 1.0},
    ),
    "squares": model(("Mul", "x x", "h"), ("Mul", "h h", "y")),
    "one node": model(("Exp", "x", "y")),
}


@pytest.mark.parametrize("name", ILLNESSES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_each_illness_is_named_and_no_other(name: str, seed: int):
    tested, shows = ILLNESSES[name]
    record = check(tested, seed=seed)
    assert (record.status, record.gradient["health"].shows) == ("pass", shows)


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_healthy_show_nothing(name: str, seed: int):
    assert health(HEALTHY[name], seed=seed).shows == ()


@pytest.mark.parametrize("mutant", **names(MUTANTS))
def test_models_that_are_right_show_nothing(mutant: Mutant):
    assert health(mutant.model).shows == ()


def test_the_ratio_is_what_the_layers_do_to_the_flow():
    for gain in (0.5, 2.0):
        found = health(deep("Identity", gain))
        assert found.ratio == pytest.approx(gain ** (DEPTH - 1))
        assert found.steepest is not None
        assert found.steepest.factor == pytest.approx(gain)


def test_the_steepest_step_is_named():
    """A sigmoid far from 0 lets next to nothing through."""
    nodes = ("MatMul", "x w", "a"), ("Tanh", "a", "b"), ("MatMul", "b w", "c"), ("Add", "c far", "s")
    constants = {"w": MIXING[0], "far": 12.0}
    tested = model(*nodes, ("Sigmoid", "s", "d"), ("MatMul", "d w", "y"), x=(4, WIDTH), constants=constants)
    found = health(tested).steepest
    assert found is not None
    assert (found.spot.node, found.spot.op, found.factor < 1e-4) == (4, "Sigmoid", True)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("outer", [-100, 0, 100])
@pytest.mark.parametrize("inner", [-100, 0, 100])
def test_units_of_x_and_y_do_not_matter(outer: int, inner: int):
    """y -> 2^outer y, x -> 2^-inner x."""

    def rescaled(tested: gc.Model) -> gc.Model:
        graph = tested.graph
        nodes = [("Mul", "x unit", "u"), *((n.op, " ".join("u" if i == "x" else i for i in n.inputs), n.outputs[0],
                  n.attrs)
                 for n in graph.nodes), ("Mul", f"{graph.outputs[0]} scale", "scaled")]  # fmt: skip
        return model(*nodes, x=(32, WIDTH), constants={**graph.constants, "unit": 2.0**-inner, "scale": 2.0**outer})

    value = 2.0**inner * RNG.normal(size=(32, WIDTH))
    for tested, _ in ILLNESSES.values():
        plain, other = health(tested, value * 2.0**-inner), health(rescaled(tested), value)
        assert other.shows == plain.shows
        assert other.ratio == pytest.approx(plain.ratio)


@pytest.mark.parametrize(("tested", "told"), [(recurrent(1.0), "step 1 (1 layer)"), (deep("Exp", depth=2), "layer ")])
def test_the_flow_of_one_layer_is_that_of_its_steps(tested: gc.Model, told: str):
    [sentence] = [said for said in findings(health(tested)) if said.startswith("gradient norm")]
    assert sentence.startswith(f"gradient norm first/last {told}")


def test_a_branch_that_carries_little_does_not_stand_for_the_trunk():
    nodes = ("MatMul", "x w", "a"), ("MatMul", "a tiny", "b"), ("Add", "a b", "c"), ("MatMul", "c w", "y")
    tested = model(*nodes, x=(4, WIDTH), constants={"w": MIXING[0], "tiny": 1e-9 * MIXING[1]})
    found = health(tested)
    assert (found.shows, found.ratio) == ((), pytest.approx(1, abs=0.01))


def test_a_softmax_of_single_numbers_is_zero_everywhere_and_not_dead():
    """Attention over a sequence of one: its queries get no gradient, because of the sizes alone."""
    nodes = (
        ("MatMul", "x q", "a"), ("MatMul", "a q", "b"), ("ReduceSum", "b", "s", {"axes": [-1]}),
        ("Softmax", "s", "p"), ("MatMul", "p v", "o"), ("MatMul", "o q", "y"),
    )  # fmt: skip
    tested = model(*nodes, x=(2, WIDTH), constants={"q": MIXING[0], "v": MIXING[1][:1]})
    record = check(tested)
    found = record.gradient["health"]
    assert (record.gradient["norm"], found.shows, found.ratio) == (0, ("vanishing",), None)


def test_a_bounded_function_at_y_is_no_layer_where_few_have_weights():
    """A loss may undo it, as that of a logit does with its sigmoid, whatever the slope is there."""
    nodes = ("Tanh", "x", "a"), ("Tanh", "a", "b"), ("Add", "b far", "c"), ("Sigmoid", "c", "y")
    near, far = (health(model(*nodes, constants={"far": bias})) for bias in (0.0, 12.0))
    assert (near.shows, far.shows) == ((), ())
    assert far.ratio == pytest.approx(near.ratio, rel=0.1)


def test_the_node_at_which_a_gradient_becomes_zero_is_named():
    """The rule of one operand gives zeros, that of the other nothing at all."""
    tested = model(("Tanh", "x", "a"), ("Exp", "x", "b"), ("Mul", "a b", "c"), ("Sin", "c", "y"))
    found = health(tested, ops=with_rule("Mul", lambda ct, y, a, b: (ct * 0.0, None)))
    assert found.lost is not None
    assert (found.lost.op, found.shows) == ("Mul", ("vanishing",))


def test_a_layer_of_one_entry_is_zero_or_it_is_not():
    nodes = ("ReduceSum", "x", "s", {"keepdims": 0}), ("Exp", "s", "e"), ("Sub", "e far", "f"), ("Relu", "f", "y")
    found = health(model(*nodes, constants={"far": 1e9}))
    assert {each.spot.op: (each.size, each.zero_fraction) for each in found.layers} == {"Exp": (1, 1), "Relu": (1, 0)}


def test_a_product_of_parameters_alone_is_no_layer():
    nodes = ("MatMul", "u v", "w"), ("MatMul", "x w", "y")
    tested = model(*nodes, x=(4, WIDTH), constants={"u": MIXING[0], "v": MIXING[1]})
    [record] = gc.check(tested, "u", "y", mode="directional").checks
    assert [each.spot.name for each in record.gradient["health"].layers] == ["y"]


# Units


def units_of(found: Health) -> dict[str, tuple[int, int | None, int | None]]:
    return {each.spot.op: (each.units, each.dead, each.saturated) for each in found.layers if each.units}


BIASES = np.array([-99.0, 0.0, 99.0, -99.0])
KERNEL = np.ones((4, 1, 1, 1))
EYE = np.eye(4)
UNITS: dict[str, tuple[gc.Model, tuple[int, int, int]]] = {
    "Relu of features": (
        model(("Add", "x b", "h"), ("Relu", "h", "y"), x=(32, 4), constants={"b": BIASES}), (4, 2, 0)),
    "Relu of channels": (
        model(("Conv", "x k b", "h"), ("Relu", "h", "y"), x=(2, 1, 5, 5), constants={"k": KERNEL, "b": BIASES}), (4, 2, 0)),
    "Relu of features of a sequence": (
        model(("MatMul", "x w", "m"), ("Add", "m b", "h"), ("Relu", "h", "y"), x=(2, 9, 4),
              constants={"b": BIASES, "w": EYE}), (4, 2, 0)),
    "Relu of channels that were moved to the end": (
        model(("Conv", "x k b", "c"), ("Transpose", "c", "h", {"perm": (0, 2, 3, 1)}), ("Relu", "h", "y"),
              x=(2, 1, 5, 5), constants={"k": KERNEL, "b": BIASES}), (4, 2, 0)),
    "Relu of a vector": (
        model(("Add", "x b", "h"), ("Relu", "h", "y"), constants={"b": BIASES}), (4, 2, 0)),
    "the larger of x and 0": (
        model(("Add", "x b", "h"), ("Max", "h zero", "y"), x=(32, 4), constants={"b": BIASES, "zero": 0.0}), (4, 2, 0)),
    "the larger of x and 1": (
        model(("Add", "x b", "h"), ("Max", "h one", "y"), x=(32, 4), constants={"b": BIASES, "one": 1.0}), (0, 0, 0)),
    "Clip at 0 and 6": (
        model(("Add", "x b", "h"), ("Clip", "h low high", "y"), x=(32, 4),
              constants={"b": BIASES, "low": 0.0, "high": 6.0}), (4, 2, 1)),
    "Clip on either side of 0": (
        model(("Add", "x b", "h"), ("Clip", "h low high", "y"), x=(32, 4),
              constants={"b": BIASES, "low": -1.0, "high": 1.0}), (4, 0, 3)),
    "ThresholdedRelu": (
        model(("Add", "x b", "h"), ("ThresholdedRelu", "h", "y", {"alpha": 0.5}), x=(32, 4), constants={"b": BIASES}),
        (4, 2, 0)),
    "HardSigmoid": (
        model(("Add", "x b", "h"), ("HardSigmoid", "h", "y"), x=(32, 4), constants={"b": BIASES}), (4, 2, 1)),
    "HardSwish": (
        model(("Add", "x b", "h"), ("HardSwish", "h", "y"), x=(32, 4), constants={"b": BIASES}), (4, 2, 0)),
    "Sigmoid": (
        model(("Add", "x b", "h"), ("Sigmoid", "h", "y"), x=(32, 4), constants={"b": BIASES}), (4, 0, 3)),
    "Tanh": (
        model(("Add", "x b", "h"), ("Tanh", "h", "y"), x=(32, 4), constants={"b": BIASES}), (4, 0, 3)),
    "Softmax": (
        model(("Add", "x b", "h"), ("Softmax", "h", "y"), x=(32, 4), constants={"b": np.array([999.0, 0, 0, 0])}),
        (1, 0, 1)),
    "Softmax by heads": (
        model(("Add", "x b", "h"), ("Softmax", "h", "y"), x=(5, 3, 4, 4),
              constants={"b": np.array([[0.0] * 4, [999.0, 0, 0, 0], [0.0] * 4])[:, None]}), (3, 0, 1)),
    "LeakyRelu": (
        model(("Add", "x b", "h"), ("LeakyRelu", "h", "y"), x=(32, 4), constants={"b": BIASES}), (0, 0, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", UNITS)
def test_units_that_do_not_learn_are_counted(name: str):
    tested, wanted = UNITS[name]
    found = health(tested)
    assert (found.units, found.dead, found.saturated) == wanted


def test_a_unit_is_dead_only_if_it_is_off_wherever_it_was_seen():
    tested = model(("Relu", "x", "y"), x=(32, 2))
    value = -np.ones((32, 2))
    assert health(tested, value).dead == 2
    value[17, 1] = 1
    assert health(tested, value).dead == 1


def test_too_few_values_say_nothing_of_a_unit():
    """Two given values of each, and no way to see more."""
    tested = model(("Relu", "x", "y"), x=(2, 4))
    [only] = health(tested, -np.ones((2, 4))).layers
    assert (only.units, only.dead, only.saturated) == (4, None, None)


def test_further_points_show_more_of_units_that_a_small_batch_hardly_shows():
    tested = model(("Relu", "x", "y"), x=(2, 4))
    [only] = health(tested).layers
    assert (only.units, only.dead) == (4, 0)
    assert SAMPLES > 2


# What is not finite


def test_values_that_come_again_are_no_further_ones():
    """Of eight values each, all of which the user gave, no unit is known to be dead."""
    tested = model(("Add", "x b", "h"), ("Relu", "h", "y"), x=(8, 2), constants={"b": np.array([-50.0, 0.0])})
    assert layer(health(tested, RNG.normal(size=(8, 2))), "y").dead is None
    assert layer(health(tested), "y").dead == 1


def test_the_first_rule_that_makes_something_not_finite_is_named():
    """The slope of the root of x^2 at 0."""
    tested = model(("Mul", "x x", "s"), ("Sqrt", "s", "r"), ("Sin", "r", "y"))
    found = health(tested, [0.0, 1.0, 2.0, 3.0])
    assert (found.shows, found.nonfinite.entries, found.nonfinite.forward) == (("nonfinite",), 1, None)
    assert found.nonfinite.backward is not None
    assert (found.nonfinite.backward.node, found.nonfinite.backward.op) == (1, "Sqrt")


def test_the_first_node_whose_result_is_not_finite_is_named():
    tested = model(("Sub", "x one", "d"), ("Log", "d", "l"), ("Exp", "l", "y"), constants={"one": 1.0})
    found = health(tested, [1.0, 0.5, 2.0, 3.0])
    assert found.shows == ("nonfinite",)
    assert found.nonfinite.forward is not None
    assert (found.nonfinite.forward.node, found.nonfinite.forward.op) == (1, "Log")


def test_infinity_on_the_way_that_does_no_harm_is_no_illness():
    nodes = ("Exp", "x", "e"), ("Add", "e one", "s"), ("Reciprocal", "s", "y")
    record = check(model(*nodes, constants={"one": 1.0}), [-1.0, 0.0, 1.0, 2.0])
    assert record.gradient["health"].shows == ()
    masked = model(("Add", "x mask", "h"), ("Softmax", "h", "y"), constants={"mask": [0.0, 0.0, -np.inf, 0.0]})
    assert health(masked).shows == ()


def test_a_wrong_rule_that_gives_nan_is_the_culprit():
    tested = between("Exp")
    wrong = with_rule("Exp", lambda ct, y, x: (sym.where(y > 0, np.nan, ct),))
    found = health(tested, ops=wrong)
    assert found.nonfinite.backward is not None
    assert (found.shows, found.nonfinite.backward.op) == (("nonfinite",), "Exp")


# Odd ends


def test_where_a_rule_is_missing_the_others_have_their_health():
    ops = {**gc.OPS, ("", "Erf"): dataclasses.replace(gc.OPS["", "Erf"], vjp=None)}
    tested = model(("Erf", "x", "h"), ("Mul", "h z", "y"), inputs={"z": (4,)})
    records = {r.x: r for r in gc.check(gc.Model(tested.source, ops), ops=ops).checks}
    assert records["x"].status == "unsupported"
    assert "health" not in records["x"].gradient
    assert records["z"].gradient["health"].shows == ()


def test_very_many_layers_are_cut_to_the_most_telling():
    nodes = [("Sin", f"h{i}" if i else "x", f"h{i + 1}") for i in range(KEPT + 50)]
    found = health(model(*nodes, ("Relu", f"h{KEPT + 50}", "y")), mode="directional")
    assert (len(found.layers), found.depth) == (KEPT, KEPT + 51)


def test_layers_with_units_that_do_not_learn_and_layers_with_weights_are_the_most_telling():
    nodes = [("Sin", f"h{i}" if i else "x", f"h{i + 1}") for i in range(KEPT + 50)]
    ends = ("MatMul", f"h{KEPT + 50} w", "m"), ("Add", "m b", "n"), ("Relu", "n", "y")
    constants = {"w": EYE, "b": BIASES}
    found = health(model(*nodes, *ends, x=(32, 4), constants=constants), mode="directional")
    assert [each.spot.op for each in found.layers] == ["Sin"] * (KEPT - 2) + ["MatMul", "Relu"]


def test_nodes_of_a_loop_are_one_layer_each_however_often_they_run():
    tested = loop(Node("Exp", ("h",), ("e",)), Node("Tanh", ("e",), ("out",)))
    found = health(tested)
    assert [(each.spot.op, each.spot.node, each.spot.inside) for each in found.layers] == [
        ("Exp", 1, "body of node 0 Loop 'y'"), ("Tanh", 2, "body of node 0 Loop 'y'"),
    ]  # fmt: skip
    tape = traced(tested)
    ct = random_cotangent(tape.named["y"].value, [0, 0, 2])
    steps = [step for step in tape.steps if step.op.name == "Exp"]
    cts = gradients(tape, {tape.named["y"].name: tape.hold("seed", ct)}, [step.node.outputs[0] for step in steps])
    assert found.layers[0].norm == pytest.approx(np.sqrt(sum(np.sum(c.value**2) for c in cts if c is not None)))


def test_what_is_lost_at_a_node_vanishes_not_along_the_layers():
    """The weight behind units that are all off has no gradient, whatever the flow is from its layer on."""
    nodes = (
        ("MatMul", "x w0", "h"),
        ("Add", "h low", "l"),
        ("Relu", "l", "r"),
        ("MatMul", "r w1", "m"),
        ("Tanh", "m", "t"),
    )
    constants = {"w0": MIXING[0], "w1": MIXING[1], "w2": MIXING[2], "low": np.full(WIDTH, -50.0)}
    tested = model(*nodes, ("MatMul", "t w2", "y"), x=(32, WIDTH), constants=constants)
    [record] = gc.check(tested, "w1", "y").checks
    found = record.gradient["health"]
    assert found is not None
    assert "vanishing" in found.shows
    [told] = [sentence for sentence in findings(found) if sentence.startswith("gradient norm first/last layer")]
    assert told == "gradient norm first/last layer 1 (3 layers)"
