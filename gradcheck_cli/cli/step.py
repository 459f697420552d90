"""`gradcheck step`: the graphs of a training step, written to a folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import rich_click as click

from gradcheck_cli.cli.options import SETTINGS, Text, TypedCommand, completing, options_of
from gradcheck_cli.errors import counted, plural

if TYPE_CHECKING:
    from gradcheck_cli.training import TrainingStep

FOLDER = click.RichOption(
    ["-o", "--output"], required=True, metavar="DIR", type=click.Path(file_okay=False), help="The folder to write."
)


@click.command("step", cls=TypedCommand, context_settings=SETTINGS, params=[FOLDER, *options_of("step", panels=False)])
@click.argument("models", nargs=1, required=True, metavar="MODEL", type=click.Path())
@click.option("--loss", required=True, multiple=True, metavar="TENSOR|KIND:X,TARGET[,OPTION=V]",
              help="A tensor of the model, or mse, l1, huber, bce-with-logits or cross-entropy of a tensor and a target, "
              "which is a new input where the model has no tensor of that name. Options: reduction=sum; delta; pos_weight; "
              "axis, ignore, label_smoothing, probabilities (the target holds these). "
              "Several add up; FACTOR: before one scales it.")  # fmt: skip
@click.option("--optimizer", default="adam", show_default=True, metavar="NAME[:OPTION=V,...]",
              help="sgd, momentum, adam, adamw, adagrad, rmsprop or lion, with PyTorch's defaults.")  # fmt: skip
@click.option("--lr", type=click.FloatRange(min=0), metavar="RATE", help="The learning rate. Default: the optimizer's.")
@click.option(
    "--weight-decay", type=click.FloatRange(min=0), metavar="NUMBER", help="The weight decay. Default: the optimizer's."
)
@click.option("--no-decay", multiple=True, type=Text(), metavar="GLOB", shell_complete=completing("tensors"),
              help="Weights that do not decay, such as biases: '*bias'.")  # fmt: skip
@click.option("--lr-scale", multiple=True, type=Text(), metavar="FACTOR:GLOB",
              help="Another learning rate for some weights: '0.1:encoder*'; the last that fits counts.")  # fmt: skip
@click.option("--trainable", multiple=True, type=Text(), metavar="GLOB", shell_complete=completing("tensors"),
              help="Train these constants; !GLOB leaves some out. Default: the weights.")  # fmt: skip
@click.option("--lora", multiple=True, type=Text(), metavar="RANK:GLOB",
              help="Train low-rank factors beside these weights, which stay frozen (LoRA).")  # fmt: skip
@click.option("--clip-norm", type=click.FloatRange(min=0, min_open=True), metavar="NORM",
              help="Scale all gradients down together where their common norm is larger.")  # fmt: skip
@click.option("--accumulate", type=click.IntRange(min=1), default=1, metavar="K",
              help="Update once for K batches, by the mean of their gradients.")  # fmt: skip
@click.option("--loss-scale", type=click.FloatRange(min=0, min_open=True), metavar="FACTOR",
              help="Scale the loss for the gradients, for float16; batches that overflow are skipped.")  # fmt: skip
@click.option("--metric", multiple=True, type=Text(), metavar="TENSOR|grad_norm|accuracy:X,LABELS",
              help="One more output: a tensor, the norm of the gradients, or the share of right classes.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, metavar="INT", help="Seed of new low-rank factors.")
@click.option("--graph", metavar="NAME", help="The graph of a spec, if it has several.")
def command(models: str, output: str, **options: Any) -> int:
    """Write the graphs of a training step: loss, gradients and optimizer in plain ONNX."""
    from gradcheck_cli.checks.forward.runtime import WORKER
    from gradcheck_cli.cli.limits import within
    from gradcheck_cli.cli.output import fitted
    from gradcheck_cli.errors import clean

    WORKER.warm()  # it gets ready while what follows is imported
    sys.stdout.write(clean(fitted(within(options, partial(_made, models, output, options), models)) + "\n"))
    return 0


def _made(path: str, output: str, given: Mapping[str, Any]) -> list[str]:
    """Writes the folder, and gives the sentences that tell so."""
    from gradcheck_cli.cli.resolve import feeds_of
    from gradcheck_cli.cli.tasks import loaded
    from gradcheck_cli.training import training_step

    of_command = ("timeout", "memory_limit", "allow_python", "dim", "graph")
    options = {name: value for name, value in given.items() if name not in of_command}
    model = loaded(path, given)
    options["feeds"] = feeds_of(model.source, options.pop("extra_feed_dict"))
    metrics, straight = options.pop("metric"), bool(options.pop("straight_through"))
    made = training_step(model, metrics=metrics, straight_through=straight, **options)
    notes = made.save(output)
    return [*_said(made, output, notes)]


def _said(made: TrainingStep, output: str, notes: Sequence[str]) -> Iterator[str]:
    """The sentences that tell what was written, and how to train."""
    from gradcheck_cli.export.proof import UNKNOWN

    graph = made.train.graph
    yield f"{output}  train.onnx ({counted(len(graph.nodes), 'node')}), eval.onnx, init.npz, step.py"
    yield from (f"  data    {name} {graph.types[name]}" for name in made.data)
    entries, more = sum(made.init[name].size for name in made.params), " ..." if made.params[6:] else ""
    size = f"{counted(len(made.params), 'tensor')} of {entries:,} {plural(entries, 'entry')}"
    yield f"  trains  {size}: {', '.join(made.params[:6])}{more}"
    yield f"  gives   {', '.join((made.loss, *made.metrics))}"
    if made.open_dims:
        yield f"  open    {', '.join(made.open_dims)}: any size at which the model runs"
    told = dict.fromkeys((*made.notes, *notes))  # both graphs may not run for the same reason
    yield from (f"  note    {note}" for note in told)
    if not any(UNKNOWN in note for note in told):
        yield f"  run     python {os.path.join(output, 'step.py')} DATA.npz"
