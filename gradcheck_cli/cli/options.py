"""The options of `check`, in the panels in which its help shows them.

None of them has a default here: what nobody gives comes from a side-car, a configuration file, or `Settings`.

Types of options that click does not have: durations, sizes in bytes, lists of words, number or word.

Names for shell completion: the tensors of a model, the likely ones first.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import rich_click as click
from click.shell_completion import CompletionItem

from gradcheck_cli.cli.environment import words
from gradcheck_cli.errors import UsageError, did_you_mean
from gradcheck_cli.report import files_said, on_stdout, suffixes
from gradcheck_cli.results.record import GATES, gates_from
from gradcheck_cli.zoo.job import SCHEDULER, SCHEDULERS

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]  # generic only in newer releases of click
    Choice = click.Choice[str]
else:
    ParamType = click.ParamType
    Choice = click.Choice

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_BYTES = {
    "": 1,
    "B": 1,
    **{f"{p}B": 1000**i for i, p in enumerate("KMGT", 1)},
    **{f"{p}iB": 1024**i for i, p in enumerate("KMGT", 1)},
}


class Text(ParamType):
    """A text; several in an environment variable are separated by spaces."""

    name = "text"

    def split_envvar_value(self, rv: str) -> list[str]:
        return words(rv)


class OneOf(Choice):
    """A word of a fixed set; a misspelt one is told the nearest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            self.fail(f"{error.message}{did_you_mean(str(value), self.choices)}", param, ctx)


class NumberOr(ParamType):
    """A number, or one word that stands for a way to choose it."""

    def __init__(self, kind: type[int] | type[float], word: str, least: float, *, above: bool = False) -> None:
        self.kind, self.word, self.least, self.above = kind, word, least, above
        self.name = f"{'int' if kind is int else 'float'}|{word}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == self.word:
            return value
        try:
            number = self.kind(value)
            finite = math.isfinite(number)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor {self.word!r}.", param, ctx)
        except OverflowError:
            self.fail(f"{str(value)[:20]!r}... is too large.", param, ctx)
        if not finite or number < self.least or (self.above and number == self.least):
            self.fail(f"{value!r} must be {'above' if self.above else 'at least'} {self.least:g}.", param, ctx)
        return number


class Duration(ParamType):
    """Seconds, from 90, 30s, 10m or 1h."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", str(value).strip())
        if not match or not float(match[1]):
            self.fail(f"{value!r} is no duration; write 30s, 10m or 1h.", param, ctx)
        return float(match[1]) * _UNITS[match[2]]


class ByteSize(ParamType):
    """A number of bytes, from 2GiB, 512MB ..."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(value).strip(), re.IGNORECASE)
        unit = next((u for u in _BYTES if match and u.lower() == match[2].lower()), None)
        if not match or unit is None or not float(match[1]):
            self.fail(f"{value!r} is no size; write 2GiB or 512MB.", param, ctx)
        return int(float(match[1]) * _BYTES[unit])


class Words(ParamType):
    """Words of a fixed set, separated by commas."""

    name = "list"

    def __init__(self, known: tuple[str, ...]) -> None:
        self.known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        words = tuple(word.strip() for word in str(value).split(",") if word.strip())
        for word in words:
            if word not in self.known:
                near = did_you_mean(word, self.known)
                self.fail(f"{word!r} is none of {', '.join(self.known)}.{near}", param, ctx)
        return words

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(word) for word in self.known if word.startswith(incomplete)]


class Gates(Words):
    """What fails a run: words of outcomes and of the gradient's health, which `gates_from` makes a whole list of."""

    def __init__(self) -> None:
        super().__init__(GATES)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return gates_from(word.strip() for word in str(value).split(","))
        except UsageError as error:
            self.fail(str(error), param, ctx)


class ReportPath(Text):
    """A file to write, whose suffix says in which format."""

    name = "path"
    suffixes: tuple[str, ...] = (*suffixes(),)
    folders = True  # a path that ends in "/" is a folder of pages

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        suffix = os.path.splitext(value)[1]
        if self.folders and (value.endswith(("/", os.sep)) or os.path.isdir(value)):
            return self._folder(value, param, ctx)
        if self.suffixes and suffix not in self.suffixes:
            self.fail(f"{value!r} must end in {', '.join(self.suffixes)}.", param, ctx)
        folder = os.path.dirname(value) or "."
        if not os.path.isdir(folder):
            self.fail(f"{value!r}: there is no folder {folder!r}.", param, ctx)
        if os.path.isdir(value) or not os.access(value if os.path.exists(value) else folder, os.W_OK):
            self.fail(f"{value!r} cannot be written.", param, ctx)
        return str(value)

    def _folder(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from gradcheck_cli.report.html import refusal

        if reason := refusal(value):
            self.fail(f"{value!r} cannot be written: {reason}.", param, ctx)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


class AnyPath(ReportPath):
    """A file to write in a format that something else says."""

    suffixes = ()


class PlotPath(ReportPath):
    """A figure to write."""

    suffixes = (".png", ".svg")
    folders = False


class Scheduler(ParamType):
    """Where a Dask cluster is."""

    name = "scheduler"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.fullmatch(SCHEDULER, str(value)) and not os.path.isfile(value):
            self.fail(f"{value!r} is no Dask scheduler; {SCHEDULERS}", param, ctx)
        return str(value)


METHODS = ("auto", "complex-step", "richardson", "central", "forward")


def complete_tensor(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the tensors of the model that stands on the command line so far."""

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
        type=OneOf(on_stdout()),
        metavar="FORMAT",
        help=f"On stdout: {', '.join(on_stdout()[:-1])} or {on_stdout()[-1]}. [default: full]",
    ),
    _many(
        "Output",
        "--report",
        type=ReportPath(),
        metavar="PATH",
        help=f"Also write {files_said()}.",
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


def tensor_names(models: Iterable[str]) -> list[str]:
    """Every tensor of the models that can be read; a shell gets no errors."""
    names: list[str] = []
    for path in models:
        try:
            names.extend(_tensors(path))
        except Exception:
            continue
    return list(dict.fromkeys(names))


def _tensors(path: str) -> list[str]:
    from gradcheck_cli.formats import read

    graphs = [source.graph for source in read(path).sources.values()]
    ends = [name for graph in graphs for name in (*graph.inputs, *graph.outputs)]
    return [*ends, *(name for graph in graphs for name in graph.tensors)]
