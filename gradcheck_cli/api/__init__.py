"""The Python API besides `gradients` and `compute_gradient`: `load` a model, `run`, `check` and `save` it.

The logger "gradcheck" is told what is chosen and found: nothing of it is shown unless logging is configured.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.checks.health.checkup import gates_given, with_gates
from gradcheck_cli.checks.procedure import Procedure
from gradcheck_cli.checks.progress import Progress
from gradcheck_cli.errors import UsageError, shown
from gradcheck_cli.formats import read
from gradcheck_cli.graph import Array
from gradcheck_cli.graph.containers import mapped, plain
from gradcheck_cli.graph.memory import allowed
from gradcheck_cli.model import Model, Tensor, arguments, call_options
from gradcheck_cli.op import Ops
from gradcheck_cli.ops import OPS
from gradcheck_cli.results.codes import CodeChoice
from gradcheck_cli.results.display import subject, summary
from gradcheck_cli.results.record import Check, Report, sizes_said
from gradcheck_cli.settings import Settings

if TYPE_CHECKING:
    from gradcheck_cli.points.point import Point

LOG = logging.getLogger("gradcheck")
LOG.addHandler(logging.NullHandler())
Names: TypeAlias = "Tensor | str | Sequence[Tensor | str]"


def load(
    path: str | os.PathLike[str], *, dims: Mapping[str, int] | None = None, graph: str | None = None,
    allow_python: bool = False,
) -> Model:  # fmt: skip
    """The model in an ONNX file, or one graph of a YAML spec.

    Operators compute as the ONNX standard defines them, at the versions that the file names.

    Args:
        path: a `.onnx` file or a `.gradcheck.yaml` spec.
        dims: sizes for symbolic dimensions, by name, in entries.
        graph: the graph of a spec; may be left out if there is only one.  "training_info" is the first step of an
            ONNX model's training algorithm.
        allow_python: True lets a spec name Python functions to import.

    Returns:
        A `Model`: `model["name"]` is the handle of a tensor.

    Raises:
        ModelError: the file cannot be read as a model.
        SpecError: the spec is wrong, at a line and column.
        ValueError: there is no such graph, or several and none was named; or no such open dimension.
    """
    sizes, allowed = call_options.sizes(dims, "dims"), call_options.flag(allow_python, "allow_python")
    spec = read(call_options.path(path, "path"), dims=sizes, allow_python=allowed)
    known = ", ".join(repr(name) for name in spec.sources)
    if graph is not None and (not isinstance(graph, str) or graph not in spec.sources):
        raise UsageError(f"{os.fspath(path)} has no graph {graph!r}; it has {known}.")
    if not spec.sources:
        raise UsageError(f"{os.fspath(path)} has no graphs: give the file of a model, or a spec with graphs.")
    if graph is None and spec.meant is None:
        ways = "say which, as graph=..., in a command --graph NAME"
        raise UsageError(f"{os.fspath(path)} has {len(spec.sources)} graphs ({known}): {ways}")
    source = spec.meant if graph is None else spec.sources[graph]
    assert source is not None
    arguments.require_open(source, sizes)
    LOG.debug("%s: read, %d nodes", shown(source.uri), source.nodes)
    return Model(source, OPS, sizes)


def run(tensors: Names, feeds: Mapping[Any, Any] | None = None, *, dtype: str = "float64") -> list[Array]:
    """Values of tensors, derivatives included, in one run of the model.

    The definition is that of TensorFlow 1's `tf.Session.run`; operators compute as ONNX defines them.

    Args:
        tensors: one tensor or a list of them, of one model.
        feeds: values by tensor or name, for any tensor of the model, each of the tensor's shape (a number fills it);
            inputs without one are drawn by seed.
        dtype: the precision, "float64", or "model" for the model's own.

    Returns:
        A list as long as `tensors` of arrays, each of its tensor's shape; a list for a sequence, a dict for a map.

    Raises:
        ValueError: something in `tensors` is not a tensor, or a feed does not fit.
        GradcheckError: the model cannot be run: unknown operator, shapes that do not fit, not enough memory.
    """
    wanted = list(tensors) if isinstance(tensors, list | tuple) else [tensors]
    for i, tensor in enumerate(wanted):
        if tensor is None:
            raise UsageError(
                f"tensors[{i}] is None: gradients() returned it for an x that y does not depend on. Leave it "
                "out, or ask for zeros with unconnected_gradients=UnconnectedGradients.ZERO."
            )
    model = arguments.model_of(wanted, "tensors")
    names = [arguments.name_of(model, t, f"tensors[{i}]") for i, t in enumerate(wanted)]
    settings = Settings(
        extra_feed_dict=arguments.feeds(model, feeds, "feeds"),
        dtype=call_options.one_of(dtype, "dtype", ("float64", "model")),
    )
    tape = model.tape(names, settings)
    return [_value(tape, name) for name in names]


def check(
    model: Model, x: Names | None = None, y: Names | None = None, *, x_init_value: Mapping[Any, Any] | None = None,
    extra_feed_dict: Mapping[Any, Any] | None = None, ops: Ops = OPS, rtol: float | Mapping[str, float] | None = None,
    atol: float | Mapping[str, float] | None = None, fail_on: str | Sequence[str] | None = None,
    select: str | Sequence[str] | None = None, ignore: str | Sequence[str] | None = None, isolate: bool = False,
    progress: bool = False, **settings: Any,
) -> Report:  # fmt: skip
    """Checks gradients as the command `gradcheck check` does, and returns a `Report`.

    The theoretical Jacobian is that of the gradient rules, the numerical one comes from the forward run alone; both
    have shape `(x_size, y_size)`, and `gradcheck explain` defines each verdict.

    Args:
        model: a model from `load`.
        x: tensors, names or globs of * and ? to differentiate by; None: all float inputs, or the parameters if there are
            none.
        y: tensors, names or globs to differentiate; None: all float outputs.
        x_init_value: values of x, by tensor or name, each of the tensor's shape.
        extra_feed_dict: values of any tensors, by tensor or name, that stay fixed for both Jacobians.
        ops: the operator table, by (domain, name): a rule under test goes in here.
        rtol: the relative error that matters, for all tensors or by name; a number without unit.
        atol: the absolute error that matters, likewise, in units of y per unit of x.
        fail_on: findings for which the report's exit code is not 0, in the words of `--fail-on`; None: its default.
        select: codes that fail it, of the findings in `fail_on`: "GC101", or "GC1" for all that begin so; None: all.
        ignore: codes that do not fail it; of `select` and `ignore` the longest prefix decides.
        isolate: True runs the check in a forked process, where `timeout` and `memory_limit` hold at any time; else
            they hold between chunks of probes.  Needs a system that forks.
        progress: True shows a bar in a terminal or a notebook, lines on stderr elsewhere, once a check takes longer
            than a second.
        settings: mode, method, dtype, seed, points, delta, dims, params and the other fields of `Settings`;
            one that is None counts as not given.

    Returns:
        The report: `report.checks[i].status .x .y .suspect`, `report.exit_code`.

    Raises:
        ValueError: an argument is invalid.
        GradcheckError: the model cannot be checked at all.
    """
    given = _settings(model, x, y, x_init_value, extra_feed_dict, {"rtol": rtol, "atol": atol, **settings})
    call = partial(_checks, model, given, call_options.operators(ops), shows=call_options.flag(progress, "progress"))
    gates = gates_given(fail_on, given.dtype)
    codes = CodeChoice(call_options.codes(select, "select"), call_options.codes(ignore, "ignore"))
    start = time.perf_counter()
    checks = _isolated(given, call) if call_options.flag(isolate, "isolate") else call()
    judged = tuple(with_gates(codes.judged(each), gates) for each in checks)
    report = Report(judged, duration_s=time.perf_counter() - start, fail_on=gates)
    _log(report)
    return report


def _settings(
    model: Any, x: Names | None, y: Names | None, x_init_value: Any, extra_feed_dict: Any, more: Mapping[str, Any]
) -> Settings:
    """The settings that a call of `check` gave."""
    if not isinstance(model, Model):
        raise UsageError(f"model is {call_options.described(model)}, not what load() gives.")
    values = arguments.feeds(model, x_init_value, "x_init_value")
    fed = arguments.feeds(model, extra_feed_dict, "extra_feed_dict")
    if both := sorted(values.keys() & fed.keys()):
        raise UsageError(f"x_init_value and extra_feed_dict both have a value for {both[0]!r}; leave out one of them.")
    return Settings(
        x=arguments.names_to_check(model, x, "x"),
        y=arguments.names_to_check(model, y, "y"),
        x_init_value=values,
        extra_feed_dict=fed,
        **{"dims": model.dims, "pictures": "wrong", **call_options.settings(more)},
    )


def _checks(model: Model, settings: Settings, ops: Ops, *, shows: bool) -> tuple[Check, ...]:
    """The results of a check, in the process that runs it."""
    name = Path(model.source.uri).name
    listener = Listening(name, Progress("on" if shows else "off"))
    procedure = Procedure(model.source, settings, ops, listener, see=listener.see)
    listener.begin(procedure.xs, procedure.ys)
    try:
        return procedure.run(name)
    finally:
        listener.done()


class Listening:
    """The listener of a check: it shows the progress, and logs what is chosen."""

    def __init__(self, name: str, progress: Progress) -> None:
        self.name, self.title, self.progress = shown(name), "", progress
        self.expect, self.advance, self.done = progress.expect, progress.advance, progress.done

    def begin(self, xs: Iterable[str], ys: Iterable[str]) -> None:
        """Takes note of a check that begins, with the tensors that were given or chosen."""
        self.progress.begin(self.name)
        LOG.info("%s: x %s; y %s", self.name, ", ".join(map(shown, xs)), ", ".join(map(shown, ys)))

    def see(self, index: int, point: Point) -> None:
        """Takes note of a point before anything is compared there."""
        dims, notes = sizes_said(point.dims, point.notes), "; ".join(map(shown, point.notes))
        LOG.info("%s: point %d%s", self.name, index, "".join(f", {text}" for text in (shown(dims), notes) if text))

    def start(self, title: str, total: int) -> None:
        """Takes note of a pair that begins, or of one more pass of it."""
        if title != self.title:
            self.title = title
            LOG.debug("%s: comparing %s", self.name, shown(title))
        self.progress.start(title, total)


def _log(report: Report) -> None:
    """Tells the logger of each pair: its mode and why that was taken, its result, and notes on it."""
    for check in report.checks if LOG.isEnabledFor(logging.INFO) else ():
        chosen = f" ({shown(check.chosen)})" if check.chosen else ""
        LOG.info("%s: %s; mode %s%s, %s", subject(check), summary(check), check.mode, chosen, check.method)
        for note in check.notes:
            LOG.info("%s: %s", subject(check), shown(note))


def _isolated(settings: Settings, call: Callable[[], tuple[Check, ...]]) -> tuple[Check, ...]:
    """The results of a check in a process of its own, within its limits."""
    from gradcheck_cli.checks.isolation import Bounds, possible, run

    if not possible():
        raise UsageError("isolate=True needs a system that can fork processes, which this one cannot.")
    return run(call, Bounds(settings.timeout, allowed(settings.memory_limit)))


def save(
    model: Model, path: str | os.PathLike[str], outputs: Names | None = None, *, feeds: Mapping[Any, Any] | None = None
) -> None:
    """Writes the model with its derivatives as an ONNX file whose outputs are `outputs`.

    The file is ONNX, of the model's opset, or the lowest from 18 on that has the operators.  It is right for every size
    of the model's open dimensions, every branch and number of iterations, in the model's own dtypes.  The
    model's nodes and metadata stay as they are; weights that lie in another file get one called
    `<name>.data`.  The inputs of the file are those of the model that the outputs need; all of them where all of the
    model's outputs are among them.  Dimensions that have to be equal, or have one size alone, are declared so.

    Args:
        model: a model from `load`.
        path: the file to write; it is written as a whole or not at all.
        outputs: tensors or names, derivatives included; None: the outputs of the model.
        feeds: values by tensor or name that the file holds as constants.

    Raises:
        ValueError: an output is no tensor of the model, or is given twice; the path cannot be written, or is what
            the model was read from.
        UnsupportedError: a complex operator, which ONNX does not have; a branch that follows from values of an input
            (`feeds` fixes it); a size that no operator of ONNX computes from an open dimension
            (`load(..., dims=...)` fixes it); a file that would not compute what the model does at other sizes and values,
            or that onnxruntime, where it is installed, refuses although it runs the model.
    """
    from gradcheck_cli.checks.forward.runtime import runs
    from gradcheck_cli.export.derivatives import export

    if not isinstance(model, Model):
        raise UsageError(f"model is {call_options.described(model)}, not what load() gives.")
    names = arguments.names(model, outputs, "outputs") or model.graph.outputs
    fed = arguments.feeds(model, feeds, "feeds")
    export(model, call_options.path(path, "path"), names, fed, runtime=runs())
    LOG.debug("%s: written, outputs %s", shown(os.fspath(path)), ", ".join(map(shown, names)))


def _value(tape: Tape, name: str) -> Any:
    if name in tape.blocked:
        raise tape.blocked[name]
    if name in tape.containers:
        return plain(mapped(lambda var: np.array(var.value), tape.containers[name]))
    return np.array(tape.named[name].value)
