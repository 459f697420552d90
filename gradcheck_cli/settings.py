"""The table of options; those that bear on the check of a model are the fields of `Settings`.

An option is declared here and nowhere else.  Command lines and their help, the environment, configuration files, keys of
specs and their schema, keywords of the Python API, bundles, `gradcheck reproduce` and docs/ are made from the record;
each knows the kinds of values, none knows names.  Nothing here takes long to import: every command's help needs it.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import msgspec

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

Mode: TypeAlias = Literal["auto", "full", "nodes", "directional", "sampled"]
Method: TypeAlias = Literal["auto", "complex-step", "richardson", "central", "forward"]
DType: TypeAlias = Literal["float64", "model"]
Forward: TypeAlias = Literal["internal", "onnxruntime"]
Pictures: TypeAlias = Literal["none", "wrong", "all"]
ANY = ""  # the key of a value that was given without a tensor's name
MOST_SECONDS = 1e8  # three years: of a limit that a timer can hold, on any system
NOTHING = "none"  # of `grad` without a name: no gradients of others are looked for

Kind: TypeAlias = Literal[
    "flag", "count", "word", "whole", "real", "seconds", "bytes", "text", "path", "data",  # one value
    "tensors", "globs", "names", "sizes", "shapes", "ranges", "tolerances", "values", "feeds", "claims",  # several
    "gates", "codes", "formats", "reports", "plot", "scheduler", "pictures",  # with words that other rooms know
]  # fmt: skip
Role: TypeAlias = Literal["setting", "target", "point", "limit", "run"]
Panel: TypeAlias = Literal["What", "Inputs", "Method", "Gate", "Limits", "Output", ""]
PANELS: tuple[str, ...] = get_args(Panel)


class Idle(msgspec.Struct, frozen=True):
    """An option has no effect beside another one that is typed too, but for some values of that."""

    beside: str
    why: str
    but: tuple[str, ...] = ()


class Option(msgspec.Struct, frozen=True):
    """One option: its name, what it can be, and where it may stand.

    `places` are the commands that take it beside `check`; "file" for a configuration file; "settings" for a spec's
    checks, models and defaults, "checks" or "models" for these entries alone.  Each place may have a help of its own.
    In a help, {default} stands for the default and {words} for what other rooms know.
    """

    kind: Kind
    help: str
    panel: Panel = ""  # of the help of `check`; "" is for the Python API alone
    places: Mapping[str, str] = msgspec.field(default_factory=dict)
    default: Any = None
    name: str = ""
    field: str = ""  # in `Settings`, in specs and in the Python API; "" is an option of the run
    spelt: tuple[str, ...] = ()  # on the command line; without any: as the name
    form: str = ""  # of its value, as the help shows it
    words: tuple[str, ...] = ()  # that it can be; of a number, words that stand for a way to choose one
    least: float = -math.inf
    most: float = math.inf
    above: bool = False  # `least` itself is too little
    role: Role = "setting"
    redraws: bool = False  # given, it asks for other inputs than were drawn
    idle: Idle | None = None

    @property
    def spellings(self) -> tuple[str, ...]:
        """All spellings of the option on the command line."""
        return self.spelt or (f"--{self.name.replace('_', '-')}",)

    @property
    def spelling(self) -> str:
        """The usual spelling of the option on the command line."""
        return next((word for word in self.spellings if word.startswith("--")), self.spellings[0])

    @property
    def keys(self) -> tuple[str, ...]:
        """Names for it where nothing is typed: its own, and those of its long spellings."""
        long = (word[2:].replace("-", "_") for word in self.spellings if word.startswith("--"))
        return tuple(dict.fromkeys(filter(None, (self.name, self.field, *long))))

    @property
    def is_repeated(self) -> bool:
        """The command that shows a check again repeats it; targets and points it states itself."""
        return self.role == "setting" and bool(self.panel)

    def allows(self, number: float) -> bool:
        """The number is finite and within the limits."""
        finite = isinstance(number, int) or math.isfinite(number)  # an int may be too large to be a float
        return finite and self.least <= number <= self.most and not (self.above and number == self.least)

    def text(self, place: str, words: str = "") -> str:
        """The help at a place."""
        told = self.places.get(place) or self.places.get(_LIKE.get(place, "")) or self.help
        return told.replace("{default}", str(self.default)).replace("{words}", words)


def parts(help: str) -> tuple[str, str]:
    """The help of an option and the words for its default; "" where it names none."""
    found = re.search(r" \[default: ([^]]*)\]| Default: (.*)\.$", help)
    return (help, "") if found is None else (help.replace(found[0], ""), found[1] or found[2])


_LIKE = {"resume": "zoo"}  # a place, and the one whose words it has where it has none of its own
_USUAL = "zoo reproduce file settings"  # where a setting may stand


def _option(default: Any, kind: Kind, panel: Panel, help: str, at: str, **more: Any) -> Option:
    """A record; of `more`, what is no field of it is the help at a place."""
    known = Option.__struct_fields__
    places = {**dict.fromkeys(at.split(), ""), **{name: text for name, text in more.items() if name not in known}}
    own = {name: value for name, value in more.items() if name in known}
    return Option(kind, help, panel, places, default, **own)


def _setting(
    default: Any, kind: Kind, panel: Panel, help: str, at: str = _USUAL, *, usual: Any = None, **more: Any
) -> Any:
    """A field of `Settings` that is an option; a default that can be called makes one.

    `usual` is what counts on the command line and in specs where nobody says anything, if not the default of the field.
    """
    made = callable(default)
    known = ({} if default is dict else None) if made else default  # before anything is asked of the machine
    option = _option(known if usual is None else usual, kind, panel, help, at, **more)
    metadata = {"option": option}
    return field(default_factory=default, metadata=metadata) if made else field(default=default, metadata=metadata)


def _of_run(name: str, kind: Kind, panel: Panel, help: str, at: str = "", default: Any = None, **more: Any) -> Option:
    """An option of the run, which says nothing of how a model is checked."""
    return _option(default, kind, panel, help, at, name=name, **{"role": "run", **more})


class Numbers(msgspec.Struct, frozen=True, eq=False):
    """An array, and its origin for messages; `blur` are errors that each number may have besides its own rounding."""

    values: Array
    origin: str = "numbers"
    blur: Array | None = None

    def __str__(self) -> str:
        return self.origin

    @classmethod
    def real(cls, values: Array, origin: str = "numbers") -> Numbers | None:
        """Real numbers, among them complex ones whose imaginary parts are 0; None for other arrays."""
        values = values.real if values.dtype.kind == "c" and not values.imag.any() else values
        return cls(values, origin) if values.dtype.kind in "biuf" or values.dtype.name == "bfloat16" else None


_TOLERANCE = "[default: 8 roundings of the less precise model: 5e-7 float32, 4e-3 float16, 3e-2 bfloat16 or 8 bits]"


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the check of one model: the options that bear on it, each with its default.

    Mappings by tensor name may hold a value under "" that counts for every tensor without one of its own.  If x or y is
    None, it is chosen.
    """

    x: tuple[str, ...] | None = _setting(
        None, "tensors", "What",
        "Differentiate with respect to this input, weight or inner tensor. Default: the float inputs, or the weights "
        "if there are none.",
        "zoo reproduce grad inspect file checks models", form="NAME", role="target",
        diff="Differentiate with respect to this tensor of A. Default: float inputs or parameters.",
    )  # fmt: skip
    y: tuple[str, ...] | None = _setting(
        None, "tensors", "What", "Differentiate this output or inner tensor. Default: the float outputs.",
        "zoo reproduce inspect file checks models", form="NAME", role="target",
        diff="Compare this output or inner tensor of A. Default: all outputs.",
        grad="Differentiate the sum of these tensors. Default: the float outputs.",
    )  # fmt: skip
    params: bool = _setting(
        False, "flag", "What", "Differentiate with respect to the weights too; `gradcheck inspect` lists them.",
        f"{_USUAL} grad", role="target", diff="Also by weights that both have.", inspect="The weights as x too.",
    )  # fmt: skip
    param: tuple[str, ...] = _setting(
        (), "globs", "What",
        "Differentiate with respect to these constants too, weights or not. !GLOB leaves some out; alone, it stands "
        "for all other weights.",
        f"{_USUAL} grad inspect", form="GLOB", role="target",
        diff="Also by constants that both have, of any role; !GLOB leaves out.",
    )  # fmt: skip
    grad: Mapping[str, str | Numbers] = _setting(
        dict, "claims", "What",
        "Check a gradient that somebody else computed, of y with respect to X: a tensor of the model, or numbers "
        "from a file. none: do not look for any in the model.",
        "zoo reproduce file", form="X=TENSOR|@FILE[:KEY]|none",
        settings="The tensor that claims to be the gradient by x, or @FILE[:KEY].",
    )  # fmt: skip
    grad_model: str | None = _setting(
        None, "path", "What",
        "A separate model that computes the gradients to check; --grad X=TENSOR says which of its tensors.",
        "zoo reproduce file", form="FILE", settings="Another model that computes the gradients to check.",
    )  # fmt: skip
    mode: Mode = _setting(
        "auto", "word", "What",
        "What is compared. full: every entry of the Jacobian; nodes: every node on its own; directional: random "
        "projections of the Jacobian; sampled: randomly drawn entries. [default: {default}, by predicted cost]",
        words=get_args(Mode),
    )  # fmt: skip
    max_entries: int = _setting(
        4096, "whole", "What", "Number of entries that --mode sampled draws. [default: {default}]", form="N", least=1,
        idle=Idle("mode", "only --mode sampled draws entries", ("sampled", "auto")),
    )  # fmt: skip
    x_shape: Mapping[str, tuple[int, ...]] = _setting(
        dict, "shapes", "Inputs", "Shape of an input: 1,3,32,32 or [1,3,32,32] or 1x3x32x32.",
        "zoo reproduce diff inspect file", settings="Shape of the only x, or shapes by name of tensor.",
        form="[NAME:]SHAPE", redraws=True, spelt=("--x-shape", "--input-shapes"),
    )  # fmt: skip
    y_shape: Mapping[str, tuple[int, ...]] = _setting(
        dict, "shapes", "Inputs", "Shape that y is expected to have.", "zoo reproduce file", form="[NAME:]SHAPE",
    )  # fmt: skip
    dims: Mapping[str, int] = _setting(
        dict, "sizes", "Inputs", "Size of an open (symbolic) dimension. "
        "Default: 2 for batches (3 if normalized by their own statistics), else the first size that runs.",
        "zoo reproduce diff inspect file", settings="Sizes by the name that shapes use.", name="dim", form="NAME=INT",
        redraws=True, grad="Fix the size of an open dimension in the file.",
        step="Fix the size of an open dimension in the files.",
    )  # fmt: skip
    x_init_value: Mapping[str, Array] = _setting(
        dict, "values", "Inputs",
        "Value of x: a number, nested lists, or a .npy, .npz, .pb or .json file. Default: random.",
        "zoo reproduce diff file", checks="Value of the only x, or values by name.", form="[NAME=]VALUE|@FILE[:KEY]",
    )  # fmt: skip
    extra_feed_dict: Mapping[str, Array] = _setting(
        dict, "feeds", "Inputs", "Fix the value of any tensor during the check, inner ones included.",
        "zoo reproduce diff file",
        checks="Values of any tensors, fixed during the check.", form="NAME=VALUE|@FILE[:KEY]",
        spelt=("--extra-feed-dict", "--feed"), grad="Fix a tensor in the file, inner ones included.",
        step="Fix a tensor in the files, inner ones included.",
    )  # fmt: skip
    init_targets: tuple[str, ...] = _setting(
        (), "names", "Inputs", "Initialization to run first: a group of a spec's `init:`, or training_info of an "
        "ONNX model.",
        "zoo reproduce file checks", form="NAME", redraws=True,
    )  # fmt: skip
    test_data: Path | Literal["auto"] | None = _setting(  # a folder with input_0.pb ..., or the one beside the model
        None, "data", "Inputs",
        "ONNX test data (input_0.pb ...) to feed. [default: {default}, test_data_set_0 beside the model]",
        "zoo diff file", settings="auto, none, or a folder of ONNX test data.", form="auto|DIR|none", usual="auto",
    )  # fmt: skip
    val_range: Mapping[str, tuple[float, float]] = _setting(
        dict, "ranges", "Inputs",
        "Range from which float inputs are drawn. [default: -1,1, narrowed to the domains of operators]",
        f"{_USUAL} diff",        form="[NAME:]LO,HI", redraws=True,
    )  # fmt: skip
    points: int = _setting(
        1, "whole", "Inputs", "Number of random points that are checked. [default: {default}]", form="INT", least=1,
        role="point", idle=Idle("point", "--point is one point alone"),
        diff="Number of random points at which both are compared. [default: 3]",
    )  # fmt: skip
    point: int | None = _setting(
        None, "whole", "Inputs", "Check only the random point with this number, counted from 0.", f"{_USUAL} diff",
        form="INT", least=0,
        role="point",
    )  # fmt: skip
    seed: int = _setting(
        0, "whole", "Inputs", "Seed of all that is drawn at random. [default: {default}]", f"{_USUAL} diff",
        form="INT|random", words=("random",), least=0, role="point", redraws=True,
    )  # fmt: skip
    method: Method = _setting(
        "auto", "word", "Method",
        "How the numerical derivative is computed: complex-step, or by richardson (extrapolated), central or forward "
        "differences. [default: {default}, stated in the output]",
        form="METHOD", words=get_args(Method),
    )  # fmt: skip
    delta: float | None = _setting(
        None, "real", "Method", "Size of the perturbation, for central or forward differences. [default: {default}]",
        form="FLOAT|auto", words=("auto",), least=0, above=True, usual="auto",
    )  # fmt: skip
    dtype: DType = _setting(
        "float64", "word", "Method",
        "model: also report how many digits the gradient keeps in the model's own dtype. [default: {default}]",
        words=get_args(DType),
        diff="model: run each model in its own dtype, where it may overflow. [default: {default}, for both]",
    )  # fmt: skip
    forward: Forward | None = _setting(  # None: internal, held against onnxruntime if it is there
        None, "word", "Method",
        "Who runs the model for the numerical derivative: gradcheck (internal), or onnxruntime in the model's own "
        "dtype. [default: internal, and compared with onnxruntime where that is installed]",
        form="internal|onnxruntime", words=get_args(Forward),
    )  # fmt: skip
    rtol: Mapping[str, float] = _setting(  # where nothing is given, that of the verdict
        dict, "tolerances", "Method", "Relative error that is accepted. [default: 5e-7]", form="[NAME:]FLOAT",
        diff=f"Relative difference that is accepted. {_TOLERANCE}",
    )  # fmt: skip
    atol: Mapping[str, float] = _setting(
        dict, "tolerances", "Method", "Absolute error that is accepted. [default: 0]", form="[NAME:]FLOAT",
        diff="Absolute difference that is accepted. [default: 0; with --dtype model 8 roundings of 1]",
    )  # fmt: skip
    max_inconclusive: float = _setting(
        0.02, "real", "Method", "Fraction of entries that may stay inconclusive in a check that passes. "
        "[default: {default}]",
        form="FLOAT", least=0, most=1,
    )  # fmt: skip
    coloring: bool = _setting(
        True, "flag", "Method", "Perturb one entry of x at a time, even where several can share a run of the model.",
        "zoo reproduce file", spelt=("--no-coloring",),
        settings="Perturb entries of x together that no entry of y shares.",
    )  # fmt: skip
    straight_through: bool = _setting(
        False, "flag", "Method",
        "Straight-through estimator: differentiate quantizers, Round, Floor, Ceil and Casts to fewer bits and back "
        "as the identity.",
        f"{_USUAL} diff grad step",
    )  # fmt: skip
    second_order: bool = _setting(False, "flag", "Method", "Check the gradient of the gradient too.")
    compat: Literal["tf"] | None = _setting(
        None, "word", "Method", "Compare as TensorFlow's checker does: central differences, delta 1e-3, "
        "rtol and atol 1e-4.",
        form="tf", words=("tf",),
    )  # fmt: skip
    timeout: float | None = _setting(  # seconds
        None, "seconds", "Limits", "Time limit for each model: 30s, 10m, 1h. [default: none]",
        "reproduce grad step prove diff inspect resume file",
        form="TIME", role="limit", zoo="Time limit for each model: 30s, 10m, 1h. [default: 10m]", settings="Seconds.",
    )  # fmt: skip
    memory_limit: int | None = _setting(  # bytes that a check may take beside what it starts with; None: by the machine
        None, "bytes", "Limits",
        "Memory limit for each model: 512MB, 2GiB. [default: half of what the machine or the container has]",
        "reproduce grad step prove diff inspect file", form="SIZE", role="limit",
        zoo="Memory limit for each model, all of its processes. [default: 8GiB]",
    )  # fmt: skip
    jobs: int = _setting(
        lambda: os.cpu_count() or 1, "whole", "Limits",
        "Number of threads, or of processes for work that takes seconds. [default: all cores]",
        "reproduce diff resume file",
        spelt=("-j", "--jobs"), form="INT", least=1, role="limit", zoo="Models at once. [default: one a core]",
    )  # fmt: skip
    pictures: Pictures = _setting(
        "none", "pictures", "", "Keep what pictures need, of all pairs or of what is wrong.", ""
    )

    @property
    def run_in(self) -> DType:
        """The dtype of the run at a point: the model's own if that is to be looked at, or if others run it too."""
        return "model" if self.forward == "onnxruntime" else self.dtype


OF_A_RUN = (
    _of_run("expression", "text", "What",
            "Checks whose name matches, as in pytest: 'conv and not slow'; else of a check the x that match: 'fc*.bias'.",
            "file", zoo="Checks whose name, or whose model's, matches, as in pytest: 'conv and not slow'.",
            spelt=("-k",), form="EXPR"),
    _of_run("check", "names", "What", "Run the check of a spec that has exactly this name.", "zoo file", form="NAME"),
    _of_run("fail_on", "gates", "Gate",
            "Outcomes that fail the run. [default: fail,inconclusive,unsupported,severed,forward] "
            "A list with one of these replaces the default; nonfinite, dead, vanishing, exploding and precision (the "
            "gradient's health) are added to it; +word and -word change it.",
            "zoo reproduce report resume file", form="LIST"),
    _of_run("select", "codes", "Gate",
            "Of these outcomes, only those with one of these codes fail the run: GC101, or GC1 for all that begin so. "
            "[default: all codes]", "zoo reproduce report resume file", form="CODES"),
    _of_run("ignore", "codes", "Gate",
            "Outcomes with one of these codes do not fail the run; of both options the longest prefix decides.",
            "zoo reproduce report resume file", form="CODES"),
    _of_run("health", "flag", "Gate", "Show for each layer how large the gradient is, and dead and saturated units.",
            "zoo reproduce report resume file",
            idle=Idle("output_format", "only the full output has its tables", ("full",))),
    _of_run("exit_zero", "flag", "Gate", "The run does not fail for the outcomes of --fail-on; other errors still "
            "fail it.",
            "zoo reproduce diff resume file"),
    _of_run("fail_fast", "flag", "Gate", "Stop at the first model that fails the run.", "resume file",
            zoo="Begin no model after the first that fails the run."),
    _of_run("watch", "flag", "Gate", "Check again whenever a model, its weights, its side-car, a spec or gradcheck.toml "
            "changes, until Ctrl-C; then exit as the last check did."),
    _of_run("baseline", "path", "Gate", "Results of an earlier --report: what failed there in the same way is a "
            "known failure, and no longer fails the run.",
            "zoo report resume file", form="FILE"),
    _of_run("engine", "word", "Limits", "Where a full comparison runs: here, or in parts on the workers of a Dask "
            "cluster. [default: {default}]", default="local", form="local|dask", words=("local", "dask")),
    _of_run("dask", "scheduler", "Limits", "The cluster: tcp://HOST:8786, a scheduler file, or local:N workers. "
            "[default: as Dask is configured]", form="WHERE", idle=Idle("engine", "it asks no cluster", ("dask",))),
    _of_run("allow_python", "flag", "Limits", "Let a spec call Python functions: runs code that it names.",
            "zoo reproduce grad step prove inspect resume file", role="setting"),
    _of_run("output_format", "formats", "Output", "On stdout: {words}. [default: {default}]",
            "zoo reproduce diff resume file", "full", form="FORMAT"),
    _of_run("report", "reports", "Output", "Also write {words}.",
            "zoo reproduce diff resume file", form="PATH"),
    _of_run("plot", "plot", "Output", "Draw a figure of each check, .png or .svg; the second goes to PATH-2, and so "
            "on. Needs matplotlib.", "reproduce file", form="PATH",
            zoo="Draw a figure of each check that did not pass, .png or .svg; the second goes to PATH-2, and so on. "
            "Needs matplotlib.", resume=""),
    _of_run("heatmap", "flag", "Output", "Show where in the Jacobian the errors are.", "reproduce file"),
    _of_run("save_failures", "path", "Output", "Keep what `gradcheck reproduce` needs to run a failure again. "
            "[default: {default}]",
            "zoo file", ".gradcheck/failures", form="DIR|none"),
    _of_run("show", "whole", "Output", "Number of entries shown for each failure. [default: {default}]",
            "reproduce diff report file settings", 3, form="INT", least=0),
    _of_run("verbose", "count", "Output", "Say more: show every row, and how each check was done.",
            "zoo reproduce diff report resume file", spelt=("-v", "--verbose"), inspect="All tensors and all pairs."),
    _of_run("quiet", "count", "Output", "Say nothing about checks that passed.",
            "zoo reproduce diff report resume file", spelt=("-q", "--quiet"),
            idle=Idle("verbose", "-q says less and -v says more")),
    _of_run("color", "word", "Output", "Colors. [default: {default}]",
            "zoo reproduce diff inspect report resume file", "auto", words=("auto", "always", "never")),
    _of_run("progress", "word", "Output", "A progress bar on stderr. [default: {default}]",
            "zoo reproduce diff resume file", "auto", words=("auto", "on", "off")),
)  # fmt: skip


def table(settings: type[Settings], of_a_run: Iterable[Option]) -> dict[str, Option]:
    """All options by name, in the order of the help."""
    declared = ((f.name, f.metadata["option"]) for f in fields(settings))
    own = (msgspec.structs.replace(option, field=name, name=option.name or name) for name, option in declared)
    return {option.name: option for option in sorted((*own, *of_a_run), key=lambda each: PANELS.index(each.panel))}


OPTIONS = table(Settings, OF_A_RUN)
SETTINGS = {option.field: option for option in OPTIONS.values() if option.field}  # those of the check, by field


def options_at(place: str) -> list[Option]:
    """The options that a place takes, in the order of the help; `check` takes all that can be typed."""
    return [o for o in OPTIONS.values() if (o.panel if place == "check" else place in o.places)]


def setting_of(key: str) -> Option | None:
    """The setting of a check that a name or a key stands for."""
    return SETTINGS.get(key) or next((option for option in SETTINGS.values() if option.name == key), None)
