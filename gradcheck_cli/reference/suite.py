"""Cases of the conformance suite: models of a few nodes with inputs, outputs, cotangents and reference gradients.

A case is a folder in the layout of ONNX's backend tests: `model.onnx` and `test_data_set_0/` with `input_i.pb` and
`output_j.pb`; beside them `cotangent_j.pb`, and `gradient_i.pb` with sum over y of <cotangent of y, d y / d input i>.
Small cases have whole Jacobians besides, `jacobian_j_i.pb` of shape (*y.shape, *x.shape).  `case.json` holds what is
known: bounds within which a gradient is right, the oracle that confirmed it, and the operators whose rules are proven.

A case of second order is a model that computes the gradients of another: its own gradient is a second derivative.

References are computed in float64.  A model at a tie or kink, or of which any entry stays open, makes no case, and
neither does one that no independent implementation confirms.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import product
from math import erf
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import onnx
import yaml
from msgspec import Struct, structs
from onnx import TensorProto, defs, numpy_helper

from gradcheck_cli.api import run, save
from gradcheck_cli.api.gradients import gradients
from gradcheck_cli.checks.procedure import Procedure
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.export.inner import draws
from gradcheck_cli.formats.onnx.graph_proto import graphs_of
from gradcheck_cli.formats.onnx.read import read_proto
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.jacobian import Backward
from gradcheck_cli.model import Model
from gradcheck_cli.ops import OPS
from gradcheck_cli.reference import known
from gradcheck_cli.reference.engines import session_of
from gradcheck_cli.settings import Settings

Feeds = dict[str, Array]
SINGLE = np.float32
FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE)
IR_VERSION = 8  # of models that engines of some years ago read
_MOVES = 4  # runs at inputs moved by a rounding of float32
_ROUNDINGS, _SHARE = 64.0, 2e-4  # allowed: such moves times this, and this share of the largest entry
_AGREES = 1e-5  # relative, of a slope along a random direction and that of differences of another implementation
_AGREES_SINGLE = 2e-2  # where that computes in float32
_FLAT = 4.0  # roundings of what is read: 1 - tanh(x)^2 has an absolute error where tanh saturates
_STEPS = (1.0, 0.1)  # times the usual one: a smaller one stays on this side of a kink
_LARGEST = 4096  # entries of a tensor
_LONG = 600.0  # seconds of a check: load must not decide which models are cases
_SMALL = 256  # entries of all Jacobians of a case that has them whole
SECOND = "second order"


class Case(Struct, frozen=True):
    """A model with inputs, and what is known of its gradient there.

    kind       where the model is from: "onnx" (its backend tests), "attributes", "network", "second order"
    oracle     the implementation whose differences confirmed the gradients, and by how much they differed
    bounds     input -> the absolute error within which an entry of its gradient is right
    jacobians  (output, input) -> the whole Jacobian of a small case, (*y.shape, *x.shape)
    rules      operator -> how well its rule is known: "proven", "by parts", "by nature" or "tested"
    """

    name: str
    operator: str
    opset: int
    kind: str
    model: onnx.ModelProto
    inputs: Feeds
    outputs: Feeds
    cotangents: Feeds
    gradients: Feeds
    bounds: Mapping[str, float]
    oracle: str = ""
    gap: float = 0.0
    jacobians: Mapping[tuple[str, str], Array] = {}
    rules: Mapping[str, str] = {}

    def write(self, root: Path) -> Path:
        """The folder of the case."""
        folder = root / self.name
        data = folder / "test_data_set_0"
        data.mkdir(parents=True, exist_ok=True)
        (folder / "model.onnx").write_bytes(self.model.SerializeToString(deterministic=True))
        ins, outs = ([v.name for v in values] for values in (self.model.graph.input, self.model.graph.output))
        for kind, names, arrays in (
            ("input", ins, self.inputs), ("gradient", ins, self.gradients),
            ("output", outs, self.outputs), ("cotangent", outs, self.cotangents),
        ):  # fmt: skip
            for index, name in enumerate(names):
                if name in arrays:
                    _tensor(data / f"{kind}_{index}.pb", name, arrays[name])
        for (y, x), jacobian in self.jacobians.items():
            _tensor(data / f"jacobian_{outs.index(y)}_{ins.index(x)}.pb", f"d {y} / d {x}", jacobian)
        said = {
            "schema": "gradcheck.case/1", "operator": self.operator, "opset": self.opset, "kind": self.kind,
            "bounds": dict(self.bounds), "oracle": {"by": self.oracle, "gap": self.gap}, "rules": dict(self.rules),
        }  # fmt: skip
        (folder / "case.json").write_text(json.dumps(said, indent=1) + "\n")
        return folder


def _tensor(path: Path, name: str, value: Array) -> None:
    path.write_bytes(numpy_helper.from_array(np.asarray(value), name).SerializeToString(deterministic=True))


class Sample(Struct, frozen=True):
    """A model that may become a case, with inputs that have to be as they are; others are drawn."""

    name: str
    operator: str
    kind: str
    model: onnx.ModelProto
    inputs: Feeds


class Dropped(Exception):
    """Reason for which a draft is no case."""


@cache
def rows() -> tuple[tuple[str, dict[str, Any]], ...]:
    """All rows of the table, each with the kind of its cases."""
    read = yaml.safe_load(files("gradcheck_cli.reference").joinpath("models.yaml").read_text(encoding="utf-8"))
    return tuple((kind, row) for kind, some in read.items() for row in some)


def operators() -> list[str]:
    """The operators and networks of the table, and those whose second derivatives are taken."""
    return sorted({_subject(kind, name) for kind, row in rows() for name in row["operators"]})


def _subject(kind: str, operator: str) -> str:
    return f"{operator}, {SECOND}" if kind == SECOND else operator


def drafts() -> Iterator[Sample]:
    """A draft for each combination that ONNX accepts, numbered within an operator and opset."""
    counts: dict[str, int] = {}
    for kind, row in rows():
        for operator, *values in product(row["operators"], *row.get("choices", {}).values()):
            subject = _subject(kind, operator)
            stem = f"{subject.replace(',', '').replace(' ', '_').lower()}_{row['opset']}"
            number = counts[stem] = counts.get(stem, -1) + 1
            chosen = {"op": operator, **dict(zip(row.get("choices", ()), values, strict=True))}
            inputs, nodes = (Template(row[part]).substitute(chosen) for part in ("inputs", "nodes"))
            if (model := _model(row["opset"], inputs, nodes)) is not None:
                made = differentiated(model) if kind == SECOND else model
                yield Sample(f"{stem}_{number:03d}", subject, kind, made, {})


def _model(opset: int, inputs: str, nodes: str) -> onnx.ModelProto | None:
    """A model whose outputs are those of its last node; None if ONNX does not accept it."""
    text = f'<ir_version: {IR_VERSION}, opset_import: ["" : {opset}]> case ({inputs}) => (float y) {{ {nodes} }}'
    model = onnx.parser.parse_model(text)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in model.graph.node[-1].output)
    try:
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return None
    del inferred.graph.value_info[:]
    for value in inferred.graph.output:
        if not value.type.tensor_type.elem_type:  # ONNX does not infer it of every operator
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return inferred


def differentiated(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model of the gradients of the sum of a model's outputs by all of its float inputs, in their order."""
    tested = Model(read_proto(model, "first"), OPS, {})
    ys, xs = ([tested[name] for name in floats(values)] for values in (model.graph.output, model.graph.input))
    found = [g for g in gradients(ys, xs) if g is not None]
    with tempfile.TemporaryDirectory() as folder:
        save(tested, Path(folder) / "second.onnx", found)
        made = onnx.load(Path(folder) / "second.onnx")
    settle(made)
    return made


def in_branch(node: onnx.NodeProto, infos: Sequence[onnx.ValueInfoProto], condition: str) -> onnx.NodeProto:
    """An If with the results of a node, described by `infos`: the node in one branch, minus what it gives in the other."""
    branches = {}
    for word in ("then", "else"):
        outputs = [onnx.ValueInfoProto() for _ in infos]
        for output, info in zip(outputs, infos, strict=True):
            output.CopyFrom(info)
            output.name = f"{word}_{info.name}"
        own = onnx.NodeProto()
        own.CopyFrom(node)
        own.output[:] = [f"{word}_plus_{y}" for y in node.output]
        sign = "Identity" if word == "then" else "Neg"
        signs = [onnx.helper.make_node(sign, [f"{word}_plus_{y}"], [f"{word}_{y}"]) for y in node.output]
        branches[f"{word}_branch"] = onnx.helper.make_graph([own, *signs], word, [], outputs)
    return onnx.helper.make_node("If", [condition], list(node.output), **branches)


def in_loop(
    flow: str,
    node: onnx.NodeProto,
    infos: Sequence[onnx.ValueInfoProto],
    place: int,
    scales: tuple[str, str],
    turns: str,
) -> onnx.NodeProto:
    """A Loop or Scan with the stacked results of a node, described by `infos`, whose operand at `place` is scaled.

    The scale is carried, from `scales[0]` on; each turn multiplies it by an entry of `scales[1]`, which a Scan reads, and
    a Loop has of the number of the turn.
    """
    name, dtype = f"of_{node.output[0]}", infos[0].type.tensor_type.elem_type
    info, make, own = onnx.helper.make_tensor_value_info, onnx.helper.make_node, onnx.NodeProto()
    own.CopyFrom(node)
    own.input[place], own.output[:] = f"scaled_{name}", [f"turn_{y}" for y in node.output]
    nodes = [
        make("Mul", [node.input[place], f"scale_{name}"], [f"scaled_{name}"]), own,
        make("Mul", [f"scale_{name}", f"entry_{name}"], [f"next_{name}"]),
    ]  # fmt: skip
    ends, carried = [info(f"next_{name}", dtype, ())], info(f"scale_{name}", dtype, ())
    for each in infos:
        ends.append(onnx.ValueInfoProto())
        ends[-1].CopyFrom(each)
        ends[-1].name = f"turn_{each.name}"
    made = [f"last_{name}", *node.output]
    if flow == "Scan":
        body = onnx.helper.make_graph(nodes, flow, [carried, info(f"entry_{name}", dtype, ())], ends)
        return make(flow, list(scales), made, body=body, num_scan_inputs=1)
    nodes.insert(0, make("Gather", [scales[1], f"turn_{name}"], [f"entry_{name}"]))
    nodes.append(make("Identity", [f"on_{name}"], [f"go_{name}"]))
    starts = [info(f"turn_{name}", TensorProto.INT64, ()), info(f"on_{name}", TensorProto.BOOL, ()), carried]
    body = onnx.helper.make_graph(nodes, flow, starts, [info(f"go_{name}", TensorProto.BOOL, ()), *ends])
    return make(flow, [turns, "", scales[0]], made, body=body)


def onnx_drafts() -> Iterator[Sample]:
    """ONNX's own node cases, each at the first opset at which all of its operators have this meaning."""
    drawn, drawn_by_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    random.setstate(drawn)
    np.random.set_state(drawn_by_numpy)  # noqa: NPY002
    own = {case.name: case.model.graph.node[0].op_type for case in cases if case.model is not None}
    for case in cases:
        if case.model is None:
            continue
        values = [*case.model.graph.input, *case.model.graph.output]
        if not case.data_sets or not all(v.type.HasField("tensor_type") for v in values):
            continue
        if not all(isinstance(a, (np.ndarray, np.generic)) for a in case.data_sets[0][0]):
            continue
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        settle(model)
        inputs = {v.name: np.asarray(a) for v, a in zip(model.graph.input, case.data_sets[0][0], strict=False)}
        name, written_out, _ = case.name.partition("_expanded")  # the operator as the function that defines it
        yield Sample(
            case.name, own.get(name, name) + (" by its function" if written_out else ""), "onnx", model, inputs
        )


def settle(model: onnx.ModelProto) -> None:
    """Gives a model the lowest opset at which its operators mean what they mean at its own."""
    for entry in model.opset_import:
        versions = [since(node, entry.version) for node in nodes_in(model.graph) if node.domain == entry.domain]
        entry.version = max([*versions, 7 if not entry.domain else 1])
    model.ir_version = min(model.ir_version, IR_VERSION)


def since(node: onnx.NodeProto, version: int) -> int:
    """The version since which an operator means what it means at an opset; the opset's own if it is not known."""
    try:
        return int(defs.get_schema(node.op_type, version, node.domain).since_version)
    except defs.SchemaError:
        return version


def nodes_in(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and of those inside of it."""
    return (node for each in graphs_of(graph) for node in each.node)


def floats(values: Any) -> list[str]:
    """Names of inputs or outputs that are float32 or float64."""
    return [v.name for v in values if v.type.tensor_type.elem_type in FLOATS]


def case_of(draft: Sample, confirm: Callable[[Case], tuple[str, float]]) -> Case:
    """The case that a draft makes; Dropped with the reason if it makes none.

    confirm  the oracle that agrees with the gradients of a case, and its gap
    """
    graph = draft.model.graph
    xs, ys = floats(graph.input), floats(graph.output)
    if not xs or not ys:
        raise Dropped("nothing to differentiate")
    tested = Model(read_proto(draft.model, draft.name), OPS, {})
    if draws(tested.graph, OPS):
        raise Dropped("draws random numbers")
    for inputs in _inputs(tested, draft, xs, ys):
        answered, severed = passes(tested, xs, ys, inputs)
        if answered:
            break
    else:
        raise Dropped("at a kink, or open")
    xs = [x for x in xs if x not in severed]
    if not xs:
        raise Dropped("no gradient by nature")
    case = referenced(draft, tested, xs, ys, inputs)
    oracle, gap = confirm(case)
    return structs.replace(case, oracle=oracle, gap=gap, rules=_rules(draft.model.graph))


def _rules(graph: onnx.GraphProto) -> dict[str, str]:
    """The status of the rule of each operator of a graph: "proven", "tested" ..."""
    keys = sorted({(node.domain, node.op_type) for node in nodes_in(graph)} & {*OPS})
    return {OPS[key].full_name: known(OPS[key]) for key in keys}


def _inputs(tested: Model, draft: Sample, xs: list[str], ys: list[str]) -> Iterator[Feeds]:
    """The inputs as given, then some whose floats are drawn, in the dtypes of the model."""
    if all(x in draft.inputs for x in xs):
        yield draft.inputs
    fixed = {n: v for n, v in draft.inputs.items() if n not in xs}
    shapes = {x: draft.inputs[x].shape for x in xs if x in draft.inputs}
    for seed in range(3):
        seen: list[Mapping[str, Array]] = []
        settings = Settings(
            x=tuple(xs), y=tuple(ys), x_shape=shapes, extra_feed_dict=fixed, seed=seed, forward="internal",
            test_data=None, jobs=1,
        )  # fmt: skip
        with contextlib.suppress(GradcheckError):
            procedure = Procedure(tested.source, settings, see=lambda _, point: seen.append(point.feeds))  # noqa: B023
            next(iter(procedure.each_point(())))
        if seen:
            yield {n: np.asarray(v, _dtype(draft, n)) for n, v in {**draft.inputs, **seen[0]}.items()}


def _dtype(draft: Sample, name: str) -> Any:
    [value] = [v for v in draft.model.graph.input if v.name == name]
    return onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)


def passes(tested: Model, xs: list[str], ys: list[str], inputs: Feeds) -> tuple[bool, set[str]]:
    """True if all entries of all pairs pass, none at a kink; and the inputs that have no gradient by nature."""
    settings = Settings(
        x=tuple(xs), y=tuple(ys), x_init_value={x: inputs[x] for x in xs}, forward="internal", test_data=None,
        extra_feed_dict={n: v for n, v in inputs.items() if n not in xs}, mode="full", jobs=1, timeout=_LONG,
    )  # fmt: skip
    try:
        records = Procedure(tested.source, settings).run("case")
    except GradcheckError:
        return False, set()
    passed = {r.x for r in records if r.status == "pass"}
    plain = all(r.status in ("pass", "severed") for r in records)
    clean = all(not r.entries["inconclusive"] and not r.entries["kink_ok"] for r in records if r.status == "pass")
    return plain and clean, set(xs) - passed


def referenced(
    draft: Sample, tested: Model, xs: list[str], ys: list[str], inputs: Feeds, cotangents: Feeds | None = None
) -> Case:
    """The case with its reference gradients and their bounds, not confirmed yet; cotangents are drawn if there are none."""
    rng = np.random.default_rng(zlib.crc32(draft.name.encode()))
    graph = draft.model.graph
    names = [o.name for o in graph.output]
    values = dict(zip(names, run([tested[n] for n in names], inputs), strict=True))
    if max(v.size for v in (*inputs.values(), *values.values())) > _LARGEST:
        raise Dropped("too large")
    for output in graph.output:
        if not output.type.tensor_type.HasField("shape"):
            output.CopyFrom(onnx.helper.make_tensor_value_info(
                output.name, output.type.tensor_type.elem_type, values[output.name].shape))  # fmt: skip
    types = {o.name: onnx.helper.tensor_dtype_to_np_dtype(o.type.tensor_type.elem_type) for o in graph.output}
    if cotangents is None:
        cotangents = {y: np.asarray(rng.normal(size=values[y].shape), types[y]) for y in ys}
    cts = [np.asarray(cotangents[y], np.float64) for y in ys]
    found = [g for g in gradients([tested[y] for y in ys], [tested[x] for x in xs], cts) if g is not None]
    if len(found) < len(xs):
        raise Dropped("no gradient by nature")
    at = run(found, inputs)
    if not all(np.isfinite(g).all() for g in at):
        raise Dropped("not finite")
    bounds = _bounds(found, at, xs, inputs, cotangents, rng)
    outputs = {n: np.asarray(v, types[n]) for n, v in values.items()}
    opset = max((e.version for e in draft.model.opset_import if not e.domain), default=0)
    return Case(draft.name, draft.operator, opset, draft.kind, draft.model, inputs, outputs, cotangents,
                dict(zip(xs, at, strict=True)), bounds, jacobians=_jacobians(tested, xs, ys, inputs))  # fmt: skip


def _jacobians(tested: Model, xs: list[str], ys: list[str], inputs: Feeds) -> dict[tuple[str, str], Array]:
    """The whole Jacobians in float64; none where they have many entries."""
    tape = tested.tape([*ys, *xs], Settings(extra_feed_dict=inputs))
    held = {name: tape.named[name] for name in (*xs, *ys)}
    if not 0 < sum(held[x].size for x in xs) * sum(held[y].size for y in ys) <= _SMALL:
        return {}
    names, found = [held[x].name for x in xs], {}
    for y in ys:
        for x, rows in zip(xs, Backward(tape, held[y].name, names).jacobians(Budget(jobs=1)), strict=True):
            found[y, x] = rows.T.reshape((*held[y].shape, *held[x].shape))
    return found


def _bounds(
    found: Any, at: list[Array], xs: list[str], inputs: Feeds, cotangents: Feeds, rng: np.random.Generator
) -> dict[str, float]:
    """Errors that gradients may have: from roundings of float32, and a share of their size."""
    spread = [float(np.max(np.abs(g - here), initial=0.0)) for g, here in zip(_short(found, inputs), at, strict=True)]
    for _ in range(_MOVES):
        moved = {
            n: v * (1 + np.finfo(SINGLE).eps * rng.uniform(-1, 1, v.shape)) if n in xs else v for n, v in inputs.items()
        }
        for i, (far, here) in enumerate(zip(run(found, moved), at, strict=True)):
            spread[i] = max(spread[i], float(np.max(np.abs(far - here), initial=0.0)))
    largest = max((float(np.max(np.abs(g), initial=0.0)) for g in at), default=0.0)
    read = max((float(np.max(np.abs(inputs[x]), initial=1.0)) for x in xs), default=1.0)
    flat = _FLAT * float(np.finfo(SINGLE).eps) * read * sum(float(np.sum(np.abs(ct))) for ct in cotangents.values())
    return {x: _ROUNDINGS * s + _SHARE * max(largest, 1e-3) + flat for x, s in zip(xs, spread, strict=True)}


def _short(found: Any, inputs: Feeds) -> list[Array]:
    """The gradients computed in the model's own dtypes."""
    with np.errstate(all="ignore"):
        return run(found, inputs, dtype="model")


def confirmed(case: Case) -> tuple[str, float]:
    """The first independent implementation whose differences agree with the gradients, and by how much they differed.

    It runs the model with all floats in float64; onnxruntime has some operators in float32 alone.
    """
    gaps: dict[str, float] = {}
    wide = widened(case.model)
    for name, opened, model in (
        ("onnx.reference", evaluator, wide), ("onnxruntime", session_of, wide), ("onnxruntime", session_of, None),
    ):  # fmt: skip
        if model is None and gaps:  # what contradicts in float64 is not outvoted in float32
            break
        # an implementation that does not run the model is no oracle
        with contextlib.suppress(Exception), warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            session = opened(case.model if model is None else model)
            for step in _STEPS:
                gap, single = _gap(case, session, model is not None, step)
                if gap <= (_AGREES_SINGLE if single else _AGREES):
                    return f"differences of {name}" + (" in float32" if single else ""), gap
                if not single:
                    gaps[name] = gap
    raise Dropped(f"no oracle: {gaps}" if gaps else "no implementation runs it")


def evaluator(model: onnx.ModelProto) -> Any:
    """ONNX's reference evaluator, with an Erf that keeps float64: its own rounds to float32."""
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun

    class Erf(OpRun):  # type: ignore[misc,unused-ignore]
        def _run(self, x: Array) -> tuple[Array]:
            return (np.vectorize(erf, otypes=[np.float64])(x).astype(x.dtype),)

    return ReferenceEvaluator(model, new_ops=[Erf])


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with float64 wherever it has float32."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for graph in graphs_of(made.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type == TensorProto.FLOAT:
                value.type.tensor_type.elem_type = TensorProto.DOUBLE
        for tensor in graph.initializer:
            _widen_tensor(tensor)
        for node in graph.node:
            for attribute in node.attribute:
                _widen_attribute(node.op_type, attribute)
    return made


def _widen_attribute(operator: str, attribute: onnx.AttributeProto) -> None:
    """Widens the tensor of an attribute, a constant that is a number, and a dtype."""
    if attribute.HasField("t"):
        _widen_tensor(attribute.t)
    if attribute.name in ("to", "dtype", "stash_type") and attribute.i == TensorProto.FLOAT:
        attribute.i = TensorProto.DOUBLE
    if operator == "Constant" and attribute.name in ("value_float", "value_floats"):
        value = onnx.helper.get_attribute_value(attribute)
        attribute.CopyFrom(onnx.helper.make_attribute("value", numpy_helper.from_array(np.asarray(value, np.float64))))


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))


def _gap(case: Case, session: Any, wide: bool, step: float) -> tuple[float, bool]:
    """Relative gap between slopes by gradients and by differences of another implementation; if that has float32."""
    rng, ys, worst, single = np.random.default_rng(1), list(case.cotangents), 0.0, not wide
    for _ in range(3):
        along: Feeds = {x: np.asarray(rng.normal(size=g.shape)) for x, g in case.gradients.items()}

        def at(t: float) -> list[Array]:
            nonlocal single
            feeds = dict(case.inputs)
            for x, v in along.items():  # noqa: B023
                feeds[x] = np.asarray(case.inputs[x], np.float64) + t * v
            if wide:
                feeds = {n: v.astype(np.float64) if v.dtype == SINGLE else v for n, v in feeds.items()}
            else:
                feeds = {n: v.astype(case.inputs[n].dtype) for n, v in feeds.items()}
            made = session.run(ys, feeds)
            single |= any(np.asarray(m).dtype != np.float64 for m in made)
            return [np.asarray(m, np.float64) for m in made]

        at(0.0)
        h = step * (1e-2 if single else 1e-3)
        far, near = ([(a - b) / (2 * s) for a, b in zip(at(s), at(-s), strict=True)] for s in (h, h / 2))
        each: list[Array] = [(4 * n - f) / 3 for f, n in zip(far, near, strict=True)]
        slopes = dict(zip(ys, each, strict=True))
        worst = max(worst, _apart(case, along, slopes))
    return worst, single


def _apart(case: Case, along: Feeds, slopes: Feeds) -> float:
    """The relative gap between slopes of the outputs along a direction and those by gradients and whole Jacobians."""
    slope = float(sum(np.sum(slopes[y] * ct) for y, ct in case.cotangents.items()))
    parts = [g * along[x] for x, g in case.gradients.items()]
    size = max(float(np.sqrt(sum(np.sum(part**2) for part in parts))), 1e-6)
    worst = abs(float(sum(np.sum(part) for part in parts)) - slope) / size
    for y in sorted({y for y, _ in case.jacobians}):
        each = [np.tensordot(case.jacobians[y, x], v, v.ndim) for x, v in along.items()]
        size = max(*(float(np.max(np.abs(part), initial=0.0)) for part in each), 1e-6)
        worst = max(worst, float(np.max(np.abs(np.sum(each, 0) - slopes[y]), initial=0.0)) / size)
    return worst
