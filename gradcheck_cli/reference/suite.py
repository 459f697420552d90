"""Cases of the conformance suite: models of a few nodes with inputs, outputs, cotangents and reference gradients.

A case is a folder in the layout of ONNX's backend tests: `model.onnx` and `test_data_set_0/` with `input_i.pb` and
`output_j.pb`; beside them `cotangent_j.pb`, and `gradient_i.pb` with sum over y of <cotangent of y, d y / d input i>.
`case.json` holds what is known of it: bounds within which a gradient is right, and the oracle that confirmed it.

References are computed in float64.  A model at a tie or kink, or of which any entry stays open, makes no case, and
neither does one that no independent implementation confirms.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import onnx
import yaml
from msgspec import Struct, structs
from onnx import TensorProto, defs, numpy_helper

from gradcheck_cli.api import run
from gradcheck_cli.api.gradients import gradients
from gradcheck_cli.checks.procedure import Procedure
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.export.inner import draws
from gradcheck_cli.formats.onnx.read import read_proto
from gradcheck_cli.graph import Array
from gradcheck_cli.model import Model
from gradcheck_cli.ops import OPS
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


class Case(Struct, frozen=True):
    """A model with inputs, and what is known of its gradient there.

    kind     where the model is from: "onnx" (its backend tests), "attributes", "network", "second order"
    oracle   the implementation whose differences confirmed the gradients, and by how much they differed
    bounds   input -> the absolute error within which an entry of its gradient is right
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
                    tensor = numpy_helper.from_array(np.asarray(arrays[name]), name)
                    (data / f"{kind}_{index}.pb").write_bytes(tensor.SerializeToString(deterministic=True))
        said = {
            "schema": "gradcheck.case/1", "operator": self.operator, "opset": self.opset, "kind": self.kind,
            "bounds": dict(self.bounds), "oracle": {"by": self.oracle, "gap": self.gap},
        }  # fmt: skip
        (folder / "case.json").write_text(json.dumps(said, indent=1) + "\n")
        return folder


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
    """The operators and networks of the table."""
    return sorted({name for _, row in rows() for name in row["operators"]})


def drafts() -> Iterator[Sample]:
    """A draft for each combination that ONNX accepts, numbered within an operator and opset."""
    counts: dict[str, int] = {}
    for kind, row in rows():
        for operator, *values in product(row["operators"], *row.get("choices", {}).values()):
            stem = f"{operator.replace(' ', '_').lower()}_{row['opset']}"
            number = counts[stem] = counts.get(stem, -1) + 1
            chosen = {"op": operator, **dict(zip(row.get("choices", ()), values, strict=True))}
            inputs, nodes = (Template(row[part]).substitute(chosen) for part in ("inputs", "nodes"))
            if (model := _model(row["opset"], inputs, nodes)) is not None:
                yield Sample(f"{stem}_{number:03d}", operator, kind, model, {})


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
        versions = [since(node, entry.version) for node in _nodes(model.graph) if node.domain == entry.domain]
        entry.version = max([*versions, 7 if not entry.domain else 1])
    model.ir_version = min(model.ir_version, IR_VERSION)


def since(node: onnx.NodeProto, version: int) -> int:
    """The version since which an operator means what it means at an opset; the opset's own if it is not known."""
    try:
        return int(defs.get_schema(node.op_type, version, node.domain).since_version)
    except defs.SchemaError:
        return version


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


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
    return structs.replace(case, oracle=oracle, gap=gap)


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
        extra_feed_dict={n: v for n, v in inputs.items() if n not in xs}, mode="full", jobs=1, timeout=20.0,
    )  # fmt: skip
    try:
        records = Procedure(tested.source, settings).run("case")
    except GradcheckError:
        return False, set()
    passed = {r.x for r in records if r.status == "pass"}
    plain = all(r.status in ("pass", "severed") for r in records)
    clean = all(not r.entries["inconclusive"] and not r.entries["kink_ok"] for r in records if r.status == "pass")
    return plain and clean, set(xs) - passed


def referenced(draft: Sample, tested: Model, xs: list[str], ys: list[str], inputs: Feeds) -> Case:
    """The case with its reference gradients and their bounds, not confirmed yet."""
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
                dict(zip(xs, at, strict=True)), bounds)  # fmt: skip


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
    """The first independent implementation whose differences agree with the gradients, and by how much they differ."""
    from onnx.reference import ReferenceEvaluator

    gaps = {}
    for name, opened, wide in (("onnx.reference", ReferenceEvaluator, True), ("onnxruntime", session_of, False)):
        # an implementation that does not run the model is no oracle
        with contextlib.suppress(Exception), warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            session = opened(case.model)
            for step in _STEPS:
                gap, single = _gap(case, session, wide, step)
                if gap <= (_AGREES_SINGLE if single else _AGREES):
                    return f"differences of {name}" + (" in float32" if single else ""), gap
                gaps[name] = gap
        if name in gaps and not single:  # what contradicts in float64 is not outvoted in float32
            break
    raise Dropped(f"no oracle: {gaps}" if gaps else "no implementation runs it")


def _gap(case: Case, session: Any, wide: bool, step: float) -> tuple[float, bool]:
    """Relative gap between slopes by gradients and by differences of another implementation; if that has float32."""
    rng, ys, worst, single = np.random.default_rng(1), list(case.cotangents), 0.0, not wide
    for _ in range(3):
        along = {x: rng.normal(size=g.shape) for x, g in case.gradients.items()}

        def total(t: float) -> float:
            nonlocal single
            feeds = dict(case.inputs)
            for x, v in along.items():  # noqa: B023
                moved = np.asarray(case.inputs[x], np.float64) + t * v
                feeds[x] = moved if wide else moved.astype(case.inputs[x].dtype)
            made = session.run(ys, feeds)
            single |= any(np.asarray(m).dtype != np.float64 for m in made)
            terms = zip(made, case.cotangents.values(), strict=True)
            return float(sum(np.sum(np.asarray(m, np.float64) * ct) for m, ct in terms))

        total(0.0)
        h = step * (1e-2 if single else 1e-3)
        central = [(total(s) - total(-s)) / (2 * s) for s in (h, h / 2)]
        slope = (4 * central[1] - central[0]) / 3
        parts = [np.sum(g * along[x]) for x, g in case.gradients.items()]
        size = max(float(np.sqrt(sum(np.sum((g * along[x]) ** 2) for x, g in case.gradients.items()))), 1e-6)
        worst = max(worst, abs(float(sum(parts)) - slope) / size)
    return worst, single
