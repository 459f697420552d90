"""A training step as a folder: graphs, first values, and a loop that trains with NumPy and onnxruntime."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gradcheck_cli.autodiff.outlined import OutlinedTape
from gradcheck_cli.checks.forward.runtime import GraphRuns, installed
from gradcheck_cli.errors import UsageError, named
from gradcheck_cli.export.derivatives import with_unique_names
from gradcheck_cli.export.proof import Run, require_runs, values_of
from gradcheck_cli.export.trials import where_it_runs
from gradcheck_cli.formats.onnx.opset import LOWEST
from gradcheck_cli.formats.onnx.write import EXTERNAL_ABOVE, ExternalConstants, serialized, to_proto
from gradcheck_cli.formats.whole_file import replacing
from gradcheck_cli.graph import Array, Graph
from gradcheck_cli.settings import Settings
from gradcheck_cli.training.optimizers import RATE

if TYPE_CHECKING:
    from gradcheck_cli.training import TrainingStep

_LARGE = 1 << 16  # bytes of a frozen weight that both graphs should not hold
_CHECKPOINT = "checkpoint.npz"
_LOOP = '''\
"""Trains the model of this folder: python step.py DATA.npz [STEPS] [BATCH].

DATA.npz has an array for each name in DATA, one sample after the other.  The checkpoint is what init.npz was, and the
next run goes on from it: values of parameters and state, by input of train.onnx, and the number of batches drawn;
eval.onnx takes the parameters.
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime

HERE, RATE, BATCH = Path(__file__).parent, {lr!r}, {batch!r}
DATA, METRICS = {data!r}, {metrics!r}
CHECKPOINT = HERE / "{checkpoint}"


def train(data, steps, batch, threads=0, tell=lambda *said: None):
    """Losses of some steps from the checkpoint on; each takes rows that the number of batches drawn so far decides.

    Each step is told as it is done: its number, its loss and its metrics.  Whatever ends them, what is done is kept.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(HERE / "train.onnx", options, ["CPUExecutionProvider"])
    outputs, losses = [each.name for each in session.get_outputs()], []
    first = dict(np.load(HERE / "init.npz"))
    state = dict(np.load(CHECKPOINT)) if CHECKPOINT.exists() else first
    if lacking := [name for name in first if name not in state]:
        sys.exit(f"{{CHECKPOINT}} has no {{', '.join(lacking[:3])}}: it is of another training step. To go on from its "
                 "weights, put them in the place of those in init.npz and remove it.")
    count, drawn = len(next(iter(data.values()))), int(state.get("batches_drawn", state["step"]))
    state = {{name: state[name] for name in first}}
    try:
        for number in range(drawn, drawn + steps):  # one that is skipped, as its gradients overflow, does not count
            rows = np.random.default_rng(number).choice(count, min(batch, count), replace=False)
            feeds = {{name: values[rows] for name, values in data.items()}}
            made = dict(zip(outputs, session.run(None, {{**feeds, **state, "learning_rate": np.array(RATE)}})))
            state, drawn = {{name: made[name + {suffix!r}] for name in state}}, number + 1
            losses.append(float(made[{loss!r}].item()))
            tell(number, losses[-1], *(made[name].squeeze() for name in METRICS))
    finally:
        if losses:
            np.savez(CHECKPOINT, **state, batches_drawn=drawn)
    return losses


if __name__ == "__main__":
    given = dict(enumerate(sys.argv))
    try:
        train(dict(np.load(given[1])), int(given.get(2, 200)), int(given.get(3, BATCH)), tell=print)
    except KeyboardInterrupt:
        sys.exit(130)
'''


def write_folder(step: TrainingStep, folder: str | os.PathLike[str]) -> list[str]:
    """Writes the files of a training step, all of them or none; UsageError where there is no room.

    Frozen weights of some size are in a file `frozen.data` that both graphs read.  Graphs are run by onnxruntime
    first, where it is installed; gives notes on that, and on a checkpoint that is there.
    """
    to = Path(folder)
    with _folder(to), ExitStack() as opened:
        graphs = {name: with_unique_names(model.graph) for name, model in step.models.items()}
        least = max(LOWEST, step.train.source.opset.get("", 0))
        notes = [note for name in graphs if installed() for note in _proven(step, name, graphs[name], least)]
        large = any(value.nbytes > _LARGE for graph in graphs.values() for value in graph.constants.values())
        names = (*graphs, "init.npz", "step.py", *(["frozen.data"] if large else []))
        files = {name: opened.enter_context(replacing(to / name)) for name in names}
        constants = ExternalConstants(files["frozen.data"], "frozen.data").tensor if large else None
        for name, graph in graphs.items():
            files[name].write(serialized(to_proto(graph, least=least, constants=constants)))
        np.savez(files["init.npz"], **dict(step.init))  # type: ignore[arg-type]  # its keywords are refused as names
        loop = _LOOP.format(
            data=step.data, metrics=step.metrics, lr=step.lr, suffix=step.suffix, loss=step.loss, batch=_batch(step),
            checkpoint=_CHECKPOINT,
        )  # fmt: skip
        files["step.py"].write(loop.encode("utf-8"))
        for file in files.values():  # what finds no room is noticed before the first takes its place
            file.flush()
    if (to / _CHECKPOINT).exists():
        notes.append(f"{to / _CHECKPOINT} is there: step.py goes on from its values; remove it to begin with init.npz")
    return notes


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """A folder to write to; one that was not there before goes again where nothing is written."""
    new = not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}.") from None
    try:
        yield
    except BaseException:  # Ctrl-C too
        with suppress(OSError):
            if new:
                path.rmdir()
        raise


def _batch(step: TrainingStep) -> int:
    """The samples of a batch: as many as the model takes, or 32 if it takes any number."""
    shapes = (step.train.graph.types[name].shape for name in step.data)
    return next((shape[0] for shape in shapes if shape and isinstance(shape[0], int)), 32)


def _proven(step: TrainingStep, name: str, graph: Graph, least: int) -> Iterator[str]:
    """Notes on the run of a graph by onnxruntime at the first values; UnsupportedError where it refuses it alone."""
    model = step.models[name]
    if sum(value.nbytes for value in graph.constants.values()) > EXTERNAL_ABOVE:
        return
    first = {n: value for n, value in {**step.init, RATE: np.array(step.lr)}.items() if n in model.graph.inputs}
    values: Run = {}
    with where_it_runs():
        names = (*model.graph.outputs, *(n for n in step.grads if n in model.graph.tensors))
        tape = model.tape(names, Settings(extra_feed_dict=first, seed=1), on=OutlinedTape)
        values = values_of(tape, (*model.graph.inputs, *names))
    if not values:
        return
    data = serialized(to_proto(graph, least=least))
    if said := require_runs(data, model.graph, step.evaluate.graph, values, model.ops, GraphRuns(), least):
        yield said
    grads = [values[n] for n in step.grads if n in values]
    yield from _stuck(step, {n: values[n + step.suffix] for n in step.init if n + step.suffix in values}, grads)


def _stuck(step: TrainingStep, after: Run, grads: Sequence[Array]) -> Iterator[str]:
    """A note where one step spoils weights, or teaches them nothing: they stay as they are, or decay alone moves them.

    Counters are scalars, and move.
    """
    spoilt = [n for n, value in after.items() if not np.isfinite(value).all()]
    if spoilt:
        weights = named(n for n in spoilt if n in step.params) or "gradients"
        yield f"at random data one step makes NaN or infinity of {weights}"
    moving = [n for n, value in step.init.items() if value.size > 1]
    still = after and all(np.array_equal(after.get(n, 0), step.init[n]) for n in moving)
    if moving and (still or (grads and not any(g.any() for g in grads))):
        yield ("at random data nothing is learnt: gradients are 0 (as behind a dead Relu), not finite, or too small for "
               "the learning rate")  # fmt: skip
