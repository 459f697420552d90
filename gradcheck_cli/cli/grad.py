"""`gradcheck grad`: a model that also computes derivatives, written to a file: `tf.gradients` for files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import rich_click as click

from gradcheck_cli.cli.options import SETTINGS, OneOf, Text, TypedCommand, completing, options_of
from gradcheck_cli.errors import counted
from gradcheck_cli.settings import Idle

if TYPE_CHECKING:
    from gradcheck_cli.export.derivatives import Derivatives, Kind
    from gradcheck_cli.export.gradient_graph import Written
    from gradcheck_cli.graph import Array
    from gradcheck_cli.model import Model

_METHODS = {"add-n": "ADD_N", "tree": "EXPERIMENTAL_TREE", "accumulate-n": "EXPERIMENTAL_ACCUMULATE_N"}

OUTPUT = click.RichOption(
    ["-o", "--output"], required=True, metavar="OUT", type=click.Path(), help="The ONNX file to write."
)


@click.command(
    "grad",
    cls=TypedCommand,
    context_settings=SETTINGS,
    params=[OUTPUT, *options_of("grad", panels=False)],
    idle={
        "grad_ys": Idle("jvp", "tangents start from inputs of the file"),
        "safe": Idle("jvp", "a Where passes a pole by in tangents as it does in values"),
    },
)
@click.argument("models", nargs=1, required=True, metavar="MODEL", type=click.Path())
@click.option(
    "--jvp",
    is_flag=True,
    help="Write Jacobian-vector products instead, for tangents of x that are inputs.",
)
@click.option(
    "--hvp", is_flag=True, help="Write Hessian-vector products instead; the vectors are inputs, one for each x."
)
@click.option("--grad-ys", multiple=True, type=Text(), metavar="ones|inputs|Y=G",
              help="The gradient that arrives at y: ones, inputs, or for one y a tensor, a number or @FILE.")  # fmt: skip
@click.option("--name", default="gradients", metavar="SCOPE", help="Names of added nodes begin with this.")
@click.option("--stop-gradients", multiple=True, type=Text(), metavar="NAME", shell_complete=completing("tensors"),
              help="Do not differentiate through this tensor.")  # fmt: skip
@click.option(
    "--aggregation",
    type=OneOf(tuple(_METHODS)),
    default="add-n",
    help="Nodes that add up gradients of a tensor that is read more than once.",
)
@click.option("--unconnected", type=OneOf(("none", "zero")), default="none",
              help="Output for an x on which no y depends.")  # fmt: skip
@click.option("--gate", is_flag=True, help="Compute all gradients of a node before any of them is used.")
@click.option(
    "--colocate", is_flag=True, help="Give added nodes the device and the metadata of the forward node they belong to."
)
@click.option(
    "--params-as-inputs",
    is_flag=True,
    help="Make the weights, or those of --param, inputs of the file with their values as defaults.",
)
@click.option("--per-sample", is_flag=True, help="Write a gradient for each row of the batch on its own.")
@click.option(
    "--safe", is_flag=True, help="Where no gradient arrives at an operator, give 0 instead of 0 times infinity."
)
@click.option("--graph", metavar="NAME", help="The graph of a spec, if it has several.")
@click.pass_context
def command(ctx: click.Context, /, models: str, output: str, **options: Any) -> int:
    """Write a model that also computes its gradients, for every size of its open dimensions."""
    if options["jvp"] and options["hvp"]:
        raise click.UsageError("--jvp and --hvp are two files: write one after the other.", ctx)
    from gradcheck_cli.checks.forward.runtime import WORKER
    from gradcheck_cli.cli.limits import within
    from gradcheck_cli.cli.output import fitted
    from gradcheck_cli.errors import clean

    WORKER.warm()  # it gets ready while what follows is imported
    sys.stdout.write(clean(fitted(within(options, partial(_made, ctx, models, output, options), models)) + "\n"))
    return 0


def _made(ctx: click.Context, path: str, output: str, options: Mapping[str, Any]) -> list[str]:
    """Writes the file, and gives the sentences that tell so."""
    from gradcheck_cli.cli.tasks import loaded
    from gradcheck_cli.ops.sparing import without_poles

    model = loaded(path, options)
    if options["straight_through"]:
        model = _straight(model, ctx, options)
    if options["safe"]:
        model = model.with_graph(model.graph, without_poles(model.ops, twice=options["hvp"]))
    model = _sliced(model, options["y"])
    model, weights = _opened(model, options) if options["params_as_inputs"] else (model, {})
    added, written = _written(model, output, options, weights)
    return [*_said(model, output, options, added, written)]


def _sliced(model: Model, ys: Sequence[str]) -> Model:
    """The model with the slices among ys as tensors."""
    from gradcheck_cli.export.rewrites import with_slice

    graph = model.graph
    for y in ys:
        base = y.rpartition("[")[0]
        if y not in model and base in graph.tensors and model.kind(base) == "tensor":
            graph = with_slice(graph, y)
    return model if graph is model.graph else model.with_graph(graph)


def _opened(model: Model, options: Mapping[str, Any]) -> tuple[Model, Mapping[str, Array]]:
    """The model with its weights as inputs, and their values."""
    from gradcheck_cli.errors import UsageError
    from gradcheck_cli.export.rewrites import lifted, opened
    from gradcheck_cli.points.targets import choose_y, matched_params, weights

    graph = lifted(model.graph)
    ys = options["y"] or choose_y(graph)
    trained = weights(graph, ys, ops=model.ops) if options["params"] or not options["param"] else ()
    names = matched_params(graph, ys, options["param"], trained, model.ops)
    if not names:
        raise UsageError("--params-as-inputs: the model has no weights; --param GLOB names constants.")
    values = {name: graph.constants[name] for name in names}
    return model.with_graph(opened(graph, values)), values


def _straight(model: Model, ctx: click.Context, options: Mapping[str, Any]) -> Model:
    """The model with a derivative of what rounds."""
    from gradcheck_cli.cli.resolve import refuse_idle_rounding
    from gradcheck_cli.model import Model
    from gradcheck_cli.ops.straight import estimated
    from gradcheck_cli.settings import Settings

    xs, ys = options["x"], options["y"]
    through = estimated(model.source, model.ops, xs, ys)
    refuse_idle_rounding(ctx, Settings(x=xs, y=ys, straight_through=True), model.source)
    return Model(*through, model.dims)


def _written(
    model: Model, output: str, options: Mapping[str, Any], weights: Mapping[str, Array]
) -> tuple[Derivatives, Written]:
    """Adds what was asked for, and writes the file."""
    from pathlib import Path

    from gradcheck_cli.checks.forward.runtime import runs
    from gradcheck_cli.cli.resolve import feeds_of
    from gradcheck_cli.errors import UsageError
    from gradcheck_cli.export.derivatives import export, require_other_file

    require_other_file(model, Path(output))
    feeds = feeds_of(model.source, options["extra_feed_dict"])
    added = _added(model, options, tuple(weights))
    if not added.results:
        raise UsageError(f"{_unconnected(added.missing, options)}; {_instead(model, options)}.")
    outputs = dict.fromkeys([*model.graph.outputs, *added.results.values()])
    written = export(model, output, tuple(outputs), feeds, weights, per_sample=options["per_sample"], runtime=runs())
    return added, written


def _kind(options: Mapping[str, Any]) -> Kind:
    return "jvp" if options["jvp"] else "hvp" if options["hvp"] else "gradient"


def _unconnected(names: Sequence[str], options: Mapping[str, Any]) -> str:
    """A sentence on names without a result: xs, of tangents ys."""
    said = {"gradient": "nothing depends on {}", "jvp": "{} depends on no x", "hvp": "no gradient depends on {}"}
    return f"{said[_kind(options)].format(', '.join(names))} here"


def _instead(model: Model, options: Mapping[str, Any]) -> str:
    """Names the option with which a file can be written where no gradient arrives."""
    from gradcheck_cli.ops.straight import rounds
    from gradcheck_cli.settings import Settings

    rounded = not options["straight_through"] and rounds(
        model.source, Settings(x=options["x"], y=options["y"]), model.ops
    )
    through = "--straight-through differentiates what rounds as training does, and " if rounded else ""
    return f"{through}--unconnected zero writes zeros"


def _added(model: Model, options: Mapping[str, Any], weights: tuple[str, ...]) -> Derivatives:
    """The derivatives that the options ask for."""
    from gradcheck_cli.api.gradients import AggregationMethod, aggregate_of, all_missing, scope_of
    from gradcheck_cli.errors import NoGradientError
    from gradcheck_cli.export.derivatives import derivatives

    xs, ys = _targets(model, options, weights)
    how = {
        **{name: options[name] for name in ("gate", "colocate")},
        "scope": scope_of(options["name"]),
        "aggregate": aggregate_of(AggregationMethod[_METHODS[options["aggregation"]]]),
        "zeros": options["unconnected"] == "zero",
        "stop": _known(model, options["stop_gradients"]),
    }
    initial = _initial(model, ys, options["grad_ys"])
    try:
        return derivatives(model, _kind(options), xs, ys, initial, how)
    except NoGradientError as error:
        raise NoGradientError(all_missing(error, model.source), error.missing) from error


def _targets(model: Model, options: Mapping[str, Any], weights: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """The xs and ys of the derivatives: as given, else chosen as for a check."""
    from gradcheck_cli.errors import UsageError
    from gradcheck_cli.model import arguments
    from gradcheck_cli.points.targets import check_paths, choose_x, choose_y, expanded, refuse_constants

    ys = _known(model, options["y"]) or choose_y(model.graph)
    if not ys:
        raise UsageError(f"{model.source.uri} has no float output: name a tensor to differentiate, --y NAME.")
    asked = _known(model, expanded(model.graph, options["x"], "--x"))
    param = () if weights else options["param"]
    xs = (
        [*weights]
        if weights and not asked and not options["params"]
        else choose_x(model.graph, ys, x=(*asked, *weights), params=options["params"], param=param, ops=model.ops)
    )
    if not xs:
        refuse_constants(model.graph, ys)
        raise UsageError(f"{model.source.uri} has no float input or parameter that {', '.join(ys)} depends on.")
    if options["unconnected"] == "none":
        check_paths(model.graph, asked, ys)
    for option, names in (("--x", xs), ("--y", ys)):
        for name in names:
            arguments.require_inexact(model, model[name], option)
    return list(xs), list(ys)


def _known(model: Model, names: Sequence[str]) -> tuple[str, ...]:
    """Names of tensors of the model, each once."""
    return tuple(dict.fromkeys(model[name].name for name in names))


def _initial(model: Model, ys: Sequence[str], given: Sequence[str]) -> Any:
    """The value of --grad-ys: `ones`, `inputs`, or tensors and numbers by the name of their y."""
    from gradcheck_cli.cli.resolve import array_of
    from gradcheck_cli.errors import UsageError, did_you_mean
    from gradcheck_cli.model import arguments

    words = [text for text in given if text in ("ones", "inputs")]
    if words:
        if len(given) > 1:
            raise UsageError(f"--grad-ys {words[0]} is for all y; give it alone.")
        return words[0]
    found: dict[str, str | Array] = {}
    for text in given:
        name = max((y for y in ys if text.startswith(f"{y}=")), key=len, default="")
        if not name:
            wrong = text.partition("=")[0]
            raise UsageError(f"--grad-ys {text}: {wrong!r} is no y.{did_you_mean(wrong, [*ys, 'ones', 'inputs'])} "
                             f"Write ones, inputs, or NAME=TENSOR for one of {', '.join(ys)}.")  # fmt: skip
        value = text[len(name) + 1 :]
        found[name] = value if value in model else arguments.held(model, name, array_of(value), f"--grad-ys {name}")
    return found or "ones"


def _said(model: Model, output: str, options: Mapping[str, Any], added: Derivatives, written: Written) -> Iterator[str]:
    """The sentence that tells which file was written, and how to run it."""
    from gradcheck_cli.export.proof import UNKNOWN
    from gradcheck_cli.points.targets import said_of_merged

    graph = written.graph
    beside = f", weights in {os.path.basename(output)}.data" if os.path.exists(f"{output}.data") else ""
    nodes = graph.nodes if len(graph.nodes) >= written.added else [*graph.all_nodes]  # all of a Scan of rows
    yield f"{output}  {counted(len(nodes), 'node')}, {written.added} of them added{beside}"
    for kind, names in (("output", added.results.values()), ("input", added.inputs.values())):
        yield from (f"  {kind:7} {name} {graph.types[name]}" for name in names)
    if written.open_dims:
        yield f"  open    {', '.join(written.open_dims)}: any size at which the model runs"
    yield from (f"  note    {note}" for note in written.notes)
    yield from (f"  note    {_unconnected([x], options)}: no derivative was written" for x in added.missing)
    yield from (f"  note    nothing depends on {x} here: it has no tangent" for x in added.still)
    yield from (f"  note    {note}" for note in said_of_merged(model.graph, model.requests[0].xs, model.ops))
    yield from _of_constant_sums(model)
    feeds = ", ".join(f"{name!r}: ..." for name in graph.free_inputs)
    first = next(iter(added.results.values()), graph.outputs[0])
    by = (
        "onnx.reference.ReferenceEvaluator"
        if any(UNKNOWN in n for n in written.notes)
        else "onnxruntime.InferenceSession"
    )
    yield f"  run     {by}({output!r}).run([{first!r}], {{{feeds}}})"


def _of_constant_sums(model: Model) -> Iterator[str]:
    """Hints for outputs of a Softmax, of which ones as initial gradients say nothing."""
    made = {name: node.op for node in model.graph.nodes for name in node.outputs}
    request = model.requests[0]
    for y, given in zip(request.ys, request.grad_ys, strict=True):
        if given is None and made.get(y) == "Softmax":
            axes = ",".join([":"] * (len(model.shape(y)) - 1) + ["0"])
            yield (f"  note    {y} adds up to 1 whatever goes in, and its gradient to 0: --grad-ys inputs, or an entry, "
                   f"--y '{y}[{axes}]'")  # fmt: skip
