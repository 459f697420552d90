"""The options of `check`, in the panels in which its help shows them.

None of them has a default here: what nobody gives comes from a side-car, a configuration file, or `Settings`.
"""

from __future__ import annotations

from typing import Any

import rich_click as click
from click.shell_completion import CompletionItem

from gradcheck_cli.cli.param_types import (
    ByteSize,
    Duration,
    Gates,
    NumberOr,
    OneOf,
    PlotPath,
    ReportPath,
    Scheduler,
    Text,
)

OUTPUT_FORMATS = ("full", "concise", "json", "jsonl", "junit", "github", "gitlab", "markdown")
METHODS = ("auto", "complex-step", "richardson", "central", "forward")


def complete_tensor(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the tensors of the model that stands on the command line so far."""
    from gradcheck_cli.cli.tensor_names import tensor_names

    words = ctx.params.get("models") or ctx.args  # behind an option without its value nothing is parsed
    return [CompletionItem(name) for name in tensor_names(words) if name.startswith(incomplete)]


def _option(panel: str, *names: str, **more: Any) -> click.RichOption:
    return click.RichOption(list(names), panel=panel, **more)


def _many(panel: str, *names: str, **more: Any) -> click.RichOption:
    return _option(panel, *names, multiple=True, **{"type": Text(), **more})


MODELS = click.RichArgument(
    ["models"],
    nargs=-1,
    required=True,
    metavar="MODEL...",
    type=click.Path(),
)

WHAT = [
    _many(
        "What",
        "--x",
        metavar="NAME",
        shell_complete=complete_tensor,
        help="Differentiate by this input, parameter or inner tensor. Default: float inputs or parameters.",
    ),
    _many(
        "What",
        "--y",
        metavar="NAME",
        shell_complete=complete_tensor,
        help="Differentiate this tensor. Default: the float outputs.",
    ),
    _option("What", "--params", is_flag=True, default=None, help="The weights as x too; inspect shows which they are."),
    _many(
        "What",
        "--param",
        metavar="GLOB",
        help="Constants of any role as x too, by name or glob; !GLOB leaves out, alone: of the weights.",
    ),
    _many(
        "What",
        "--grad",
        metavar="X=TENSOR|@FILE[:KEY]|none",
        help="Check somebody else's gradient by X: a tensor of the model, or numbers from a file. none: look for none.",
    ),
    _option(
        "What",
        "--grad-model",
        metavar="FILE",
        help="A separate model that computes the gradients to check; --grad X=TENSOR says which of its tensors.",
    ),
    _option(
        "What",
        "-k",
        "expression",
        metavar="EXPR",
        help="Checks whose name matches, as in pytest: 'conv and not slow'.",
    ),
    _many("What", "--check", metavar="NAME", help="The check of a spec with exactly this name."),
    _option(
        "What",
        "--mode",
        type=OneOf(("auto", "full", "nodes", "directional", "sampled")),
        help="Every entry of the Jacobian, node by node, random projections, or drawn entries. [default: auto, by cost]",
    ),
    _option(
        "What", "--max-entries", type=click.IntRange(1), metavar="N", help="Entries of a sampled check. [default: 4096]"
    ),
]
INPUTS = [
    _many(
        "Inputs",
        "--x-shape",
        "--input-shapes",
        "x_shape",
        metavar="[NAME:]SHAPE",
        help="Shape of an input: 1,3,32,32 or [1,3,32,32] or 1x3x32x32.",
    ),
    _many("Inputs", "--y-shape", metavar="[NAME:]SHAPE", help="Shape that y is expected to have."),
    _many(
        "Inputs",
        "--dim",
        metavar="NAME=INT",
        help="Size of an open dimension. Default: 2 for batches, else what runs.",
    ),
    _many(
        "Inputs",
        "--x-init-value",
        metavar="[NAME=]VALUE|@FILE[:KEY]",
        help="Value of x: a number, nested lists, or a .npy, .npz, .pb or .json file. Default: random.",
    ),
    _many(
        "Inputs",
        "--extra-feed-dict",
        "--feed",
        "extra_feed_dict",
        metavar="NAME=VALUE|@FILE[:KEY]",
        help="Fix any tensor during the check, inner ones included.",
    ),
    _many(
        "Inputs",
        "--init-targets",
        metavar="NAME",
        help="Initialization to run first: of a spec, or of training info.",
    ),
    _option(
        "Inputs",
        "--test-data",
        metavar="auto|DIR|none",
        help="ONNX's input_0.pb ... to feed. [default: auto, test_data_set_0 beside the model]",
    ),
    _many(
        "Inputs",
        "--val-range",
        metavar="[NAME:]LO,HI",
        help="Draw float inputs from here. [default: -1,1, by domain]",
    ),
    _option(
        "Inputs",
        "--points",
        type=click.IntRange(min=1),
        metavar="INT",
        help="How many points are tried. [default: 1]",
    ),
    _option("Inputs", "--point", type=click.IntRange(min=0), metavar="INT", help="Only this one of them."),
    _option(
        "Inputs",
        "--seed",
        type=NumberOr(int, "random", 0),
        metavar="INT|random",
        help="Of everything drawn. [default: 0]",
    ),
]
METHOD = [
    _option(
        "Method",
        "--method",
        type=OneOf(METHODS),
        metavar="METHOD",
        help="Numerical side: complex-step, richardson, central, forward. [default: auto, and says which]",
    ),
    _option(
        "Method",
        "--delta",
        type=NumberOr(float, "auto", 0, above=True),
        metavar="FLOAT|auto",
        help="The perturbation, of central or forward differences. [default: auto]",
    ),
    _option(
        "Method",
        "--dtype",
        type=OneOf(("float64", "model")),
        help="model: say as well how many digits the gradient keeps in the model's own dtype. [default: float64]",
    ),
    _option(
        "Method",
        "--forward",
        type=OneOf(("internal", "onnxruntime")),
        metavar="internal|onnxruntime",
        help="Who evaluates the numerical side: gradcheck alone, or onnxruntime, in the model's own dtype. "
        "[default: internal, held against onnxruntime where that is installed]",
    ),
    _many(
        "Method",
        "--rtol",
        metavar="[NAME:]FLOAT",
        help="Relative error that does not matter. [default: 5e-7]",
    ),
    _many("Method", "--atol", metavar="[NAME:]FLOAT", help="Absolute error that does not matter. [default: 0]"),
    _option(
        "Method",
        "--max-inconclusive",
        type=click.FloatRange(0, 1),
        metavar="FLOAT",
        help="Fraction of entries that may stay inconclusive. [default: 0.02]",
    ),
    _option(
        "Method",
        "--no-coloring",
        "coloring",
        flag_value=False,
        default=None,
        help="Perturb every entry of x alone, even where many can move together.",
    ),
    _option(
        "Method",
        "--straight-through",
        is_flag=True,
        default=None,
        help="Quantizers, Round, Floor, Ceil and Casts to fewer bits and back do not round: gradients go through them.",
    ),
    _option("Method", "--second-order", is_flag=True, default=None, help="Check the gradient's own gradient too."),
    _option(
        "Method",
        "--compat",
        type=OneOf(("tf",)),
        metavar="tf",
        help="Compare as TensorFlow: central, delta 1e-3, --rtol 1e-4, --atol 1e-4.",
    ),
]
GATE = [
    _option(
        "Gate",
        "--fail-on",
        type=Gates(),
        metavar="LIST",
        help="What fails the run. [default: fail,inconclusive,unsupported,severed,forward] A list with one of these "
        "replaces them; nonfinite, dead, vanishing, exploding and precision, of the gradient's health, are added; "
        "+word and -word change the default.",
    ),
    _option("Gate", "--health", is_flag=True, default=None, help="Show the health of gradients, layer by layer."),
    _option("Gate", "--exit-zero", is_flag=True, default=None, help="None of them fails the run; other errors do."),
    _option("Gate", "--fail-fast", is_flag=True, default=None, help="Stop at the first model that fails the run."),
    _option(
        "Gate",
        "--baseline",
        metavar="FILE",
        help="Results of --report: what failed there in the same way is waived.",
    ),
]
LIMITS = [
    _option(
        "Limits",
        "--timeout",
        type=Duration(),
        metavar="TIME",
        help="For each model: 30s, 10m, 1h. [default: none]",
    ),
    _option(
        "Limits",
        "--memory-limit",
        type=ByteSize(),
        metavar="SIZE",
        help="For each model: 512MB, 2GiB. [default: half of what the machine or the container has]",
    ),
    _option(
        "Limits",
        "-j",
        "--jobs",
        type=click.IntRange(min=1),
        metavar="INT",
        help="Threads. [default: all cores]",
    ),
    _option(
        "Limits",
        "--engine",
        type=OneOf(("local", "dask")),
        metavar="local|dask",
        help="Where all entries are compared: here, or in parts by the workers of a Dask cluster. [default: local]",
    ),
    _option(
        "Limits",
        "--dask",
        type=Scheduler(),
        metavar="WHERE",
        help="The cluster: tcp://HOST:8786, a scheduler file, or local:N workers. [default: as Dask is configured]",
    ),
    _option("Limits", "--allow-python", is_flag=True, default=None, help="Let a spec call Python functions."),
]
OUTPUT = [
    _option(
        "Output",
        "--output-format",
        type=OneOf(OUTPUT_FORMATS),
        metavar="FORMAT",
        help="On stdout: full, concise, json, jsonl, junit, github, gitlab or markdown. [default: full]",
    ),
    _many(
        "Output",
        "--report",
        type=ReportPath(),
        metavar="PATH",
        help="Also write .json, .jsonl, .xml (JUnit), .html, .md or .sarif; DIR/ is a folder of pages.",
    ),
    _option(
        "Output",
        "--plot",
        type=PlotPath(),
        metavar="PATH",
        help="Draw each check as .png or .svg; the second goes to PATH-2, and so on. Needs matplotlib.",
    ),
    _option("Output", "--heatmap", is_flag=True, default=None, help="Show where in the Jacobian the errors are."),
    _option(
        "Output",
        "--save-failures",
        metavar="DIR|none",
        help="Keep what fails, for `gradcheck reproduce`. [default: .gradcheck/failures]",
    ),
    _option(
        "Output",
        "--show",
        type=click.IntRange(min=0),
        metavar="INT",
        help="Entries shown of each failure. [default: 3]",
    ),
    _option("Output", "-v", "--verbose", count=True, metavar="", help="Say more about checks that passed."),
    _option("Output", "-q", "--quiet", count=True, metavar="", help="Say nothing about checks that passed."),
    _option("Output", "--color", type=OneOf(("auto", "always", "never")), help="Colors. [default: auto]"),
    _option(
        "Output",
        "--progress",
        type=OneOf(("auto", "on", "off")),
        help="A progress bar on stderr. [default: auto]",
    ),
]
OPTIONS: list[click.Parameter] = [MODELS, *WHAT, *INPUTS, *METHOD, *GATE, *LIMITS, *OUTPUT]
