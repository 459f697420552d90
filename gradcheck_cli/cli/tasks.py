"""The tasks of a run: one for each check of a spec, and one for each model that has none.

`expand` finds the files that MODEL arguments mean, `Planner` makes their tasks.  The steps of a model's training
algorithm are models of their own, in which is checked what their `Gradient` nodes differentiate.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from gradcheck_cli.cli import note
from gradcheck_cli.cli.resolve import dims_of, listed
from gradcheck_cli.errors import GradcheckError, ModelError, NothingChecked, UsageError, plural, shown
from gradcheck_cli.formats import is_spec, read
from gradcheck_cli.formats.onnx.file import fields_of
from gradcheck_cli.formats.source import CheckRequest, Source, Spec
from gradcheck_cli.formats.untrusted import inside, opened
from gradcheck_cli.graph.memory import allowed, exhausted
from gradcheck_cli.results.record import SpecPlace

if TYPE_CHECKING:
    from gradcheck_cli.model import Model

_FIELD = 20  # of a model in a file: its training information


def has_training(path: str) -> bool:
    """True if a file has training information; no more of its content is read than that."""
    try:
        with opened(path) as file:
            return _FIELD in fields_of(file)
    except (OSError, ValueError):  # as reading it will say
        return False


def fitting(sources: Mapping[str, Source], named: Collection[str]) -> list[tuple[str, Source]]:
    """A model and its steps, or of them the first that has all tensors that are named; other sources as they are."""
    if not named or not any(source.step for source in sources.values()):
        return [*sources.items()]
    return [each for each in sources.items() if {*named} <= {*each[1].graph.tensors}][:1] or [*sources.items()][-1:]


def targets(step: Source) -> dict[str, tuple[str, ...]]:
    """x and y of a training step: what its `Gradient` nodes differentiate, else the tensors that it updates.

    Empty for a model that is no training step.
    """
    from gradcheck_cli.formats.gradient_nodes import GRADIENT
    from gradcheck_cli.points.targets import is_float

    graph = step.graph
    if not step.step:
        return {}
    nodes = [node for node in graph.nodes if node.key == GRADIENT]
    ys = dict.fromkeys(node.attrs["y"] for node in nodes)
    xs = dict.fromkeys(x for node in nodes for x in node.attrs["xs"])
    if not nodes:
        left = [name for name in graph.outputs if name not in step.updates.values()]
        ys = dict.fromkeys(name for name in left if is_float(graph, name, unknown=True))
        needed = graph.needed_for(ys)
        xs = dict.fromkeys(x for x in step.updates if x in needed and is_float(graph, x))
    return {"x": (*xs,), "y": (*ys,)} if xs and ys else {}


_TARGETS = frozenset(("x", "y", "params", "param"))
SPEC_SUFFIXES = (".gradcheck.yaml", ".gradcheck.yml")


Unread: TypeAlias = list[tuple[str, GradcheckError]]
_AS_TEXT = (".onnxtxt", ".onnxtext", ".textproto")


class LeftOut(Struct):
    """The parts of folders that are not taken: those that cannot be read, with the reason, and others by their kind."""

    unread: Unread = field(default_factory=list)
    links: set[str] = field(default_factory=set)  # to folders elsewhere, which may lead back
    texts: set[str] = field(default_factory=set)  # models as text
    hidden: set[str] = field(default_factory=set)  # models whose names begin with a dot

    def look(self, top: str, folder: str, folders: Iterable[str], names: Iterable[str]) -> None:
        """Notes what is left out of a folder, which lies in the one at the top."""
        every = os.path.join(os.path.realpath(top), "")
        links = (os.path.join(folder, name) for name in folders if not name.startswith("."))
        self.links.update(
            link for link in links if os.path.islink(link) and not f"{os.path.realpath(link)}/".startswith(every)
        )
        self.texts.update(os.path.join(folder, name) for name in names if name.lower().endswith(_AS_TEXT))
        self.hidden.update(os.path.join(folder, name) for name in names if name.startswith(".") and is_model(name))

    def notes(self, taken: Collection[str]) -> list[str]:
        """A note on what is left out, other than what is named by itself."""
        files = {*map(os.path.realpath, taken)}
        kinds = (
            (self.links, "link to a folder", "links to folders"),
            (self.texts, "model as text", "models as text"),
            (self.hidden, "hidden model", "hidden models"),
        )
        counts = [(sum(os.path.realpath(p) not in files for p in paths), one, more) for paths, one, more in kinds]
        told = ", ".join(f"{count} {plural(count, one, more)}" for count, one, more in counts if count)
        return [f"left out of folders: {told}; they are checked where they are named"] if told else []


class Found(NamedTuple):
    """The files that arguments mean, in their order, and arguments without any and folders not read, with the reason."""

    files: list[str]
    missing: Unread
    notes: Sequence[str] = ()  # on what is left out


def expand(arguments: Iterable[str]) -> Found:
    """The files that arguments mean, each once; GradcheckError if no argument means any."""
    paths: list[str] = []
    left = LeftOut()
    missing = left.unread
    for argument in arguments:
        try:
            paths += _files(argument, left)
        except GradcheckError as error:
            missing.append((argument, error))
    if missing and not paths:
        raise missing[0][1]
    files, notes = once(paths)
    return Found(_without_side_cars(files), missing, [*notes, *left.notes(files)])


def once(paths: Iterable[str]) -> tuple[list[str], list[str]]:
    """Each file by one of its names, and a note on the names that are left out.

    A name that is no link is taken before a link.  Each name with a side-car of its own stays: it has its own checks.
    """
    names: dict[str, dict[str, str]] = {}  # absolute -> as given, by file
    for path in paths:
        names.setdefault(os.path.realpath(path), {}).setdefault(os.path.abspath(path), path)
    chosen = [(each.values(), _chosen([*each.values()])) for each in names.values()]
    others = [f"{path} (of {kept[0]})" for every, kept in chosen for path in every if path not in kept]
    notes = [f"left out, as other names of models that are checked: {listed(others)}"] if others else []
    return [path for _, kept in chosen for path in kept], notes


def _chosen(names: Sequence[str]) -> Sequence[str]:
    """The names of one file that are checked."""
    if len(names) == 1:
        return names
    ordered = sorted(names, key=os.path.islink)
    own = {os.path.realpath(beside): name for name in reversed(ordered) if (beside := side_car(name))}
    return [*own.values()][::-1] or ordered[:1]


def side_car(model: str) -> str | None:
    """The spec beside a model that says how it is checked: model.gradcheck.yaml for model.onnx.

    A spec with graphs of its own is none: it is about those, whatever it is called.
    """
    candidates = (os.path.splitext(model)[0] + suffix for suffix in SPEC_SUFFIXES)
    found = (p for p in candidates if not is_spec(model) and os.path.isfile(p) and "graphs" not in keys_of(p))
    return next(found, None)


def defined(source: Source, path: str, allow_python: bool = False) -> Source:
    """The model in a file with the operators that the spec beside it defines."""
    beside = side_car(path)
    return read(beside, allow_python=allow_python).operators(source) if beside else source


def loaded(path: str, options: Mapping[str, Any]) -> Model:
    """The model that a command names by its file and `graph`, with the operators that the spec beside it defines."""
    from gradcheck_cli.api import load
    from gradcheck_cli.model import Model

    allow = bool(options["allow_python"])
    model = load(path, dims=dims_of(options["dim"]) or None, graph=options["graph"], allow_python=allow)
    return Model(defined(model.source, path, allow), model.ops, model.dims)


def keys_of(spec: str) -> Collection[Any]:
    """The top-level keys of a spec; none for one that cannot be read, which is said when it is checked."""
    from gradcheck_cli.errors import SpecError
    from gradcheck_cli.formats.yaml.places import Document

    try:
        return Document.read(spec).root.children.keys()
    except SpecError:
        return ()


def common_folder(paths: Sequence[str]) -> str:
    """The folder that all files lie in, however deep."""
    folders = [os.path.dirname(os.path.abspath(path)) for path in paths]
    try:
        return os.path.commonpath(folders)
    except ValueError:  # on different drives
        return os.getcwd()


def _files(argument: str, left: LeftOut) -> list[str]:
    """The files that an argument means; what is not taken of folders is added to `left`."""
    if argument == "-":
        raise ModelError("models are read from files, which is where their weights are looked for; not from stdin")
    if "\0" in argument:
        raise ModelError(f"{argument} cannot be read: it is no path")
    if "://" in argument:
        raise ModelError(f"{argument} is a URL; download the file and give its path")
    path, mark, check = argument.partition("::")
    if mark and os.path.isfile(path):
        raise UsageError(f"{argument}: a check of a spec is chosen by its name: {path} --check {check}")
    parts = re.split("[,;] *", argument)
    if len(parts) > 1 and not os.path.lexists(argument) and all(map(os.path.lexists, parts)):
        raise UsageError(f"{argument}: models are separated by spaces: {' '.join(parts)}")
    if os.path.isdir(argument):
        return _without_side_cars(sorted(_inside(argument, left))) or _nothing(
            f"{argument!r} holds no *.onnx or *.gradcheck.yaml{_held_instead(argument)}"
        )
    if os.path.exists(argument) or not glob.has_magic(argument):
        return [argument]
    matches = sorted(_matching(argument, left.unread))
    files = [path for match in matches for path in (_inside(match, left) if os.path.isdir(match) else [match])]
    models = any(map(is_model, files))
    wanted = [path for path in files if is_model(path) or (path in matches and not models)]
    return _without_side_cars(wanted) or _nothing(f"{argument!r} matches no file")


_ELSEWHERE = {  # what other models end in, and what makes ONNX of them
    **dict.fromkeys((".pt", ".pth", ".ckpt", ".safetensors"), "torch.onnx.export in Python"),
    **dict.fromkeys((".h5", ".keras", ".pb"), "`python -m tf2onnx.convert`"),
    ".tflite": "`python -m tf2onnx.convert --tflite`",
}


def _held_instead(folder: str) -> str:
    """The rest of a sentence on models of other kinds in a folder."""
    try:
        found = [ext for name in sorted(os.listdir(folder)) if (ext := os.path.splitext(name)[1].lower()) in _ELSEWHERE]
    except OSError:
        return ""
    return f", but {found[0]} files, of which {_ELSEWHERE[found[0]]} makes ONNX" if found else ""


def _matching(pattern: str, unread: Unread) -> Iterator[str]:
    """The files that match a pattern; ** stands for folders of any depth but for links, which may lead back."""
    parts = Path(pattern).parts
    if "**" not in parts:
        yield from glob.glob(pattern)
        return
    depth = parts.index("**")
    for root in glob.glob(str(Path(*parts[:depth]))) if depth else ["."]:
        for path in _below(root, unread):
            if _fits(Path(path).relative_to(root).parts, parts[depth:]):
                yield path


def _below(root: str, unread: Unread) -> Iterator[str]:
    """The path of a folder, and of everything in it that is not hidden."""
    for folder, folders, names in _walk(root, unread):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield str(Path(folder))
        yield from (str(Path(folder) / name) for name in names if not name.startswith("."))


def _fits(path: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """True if the parts of a path match those of a pattern."""
    if pattern[:1] == ("**",):
        return any(_fits(path[start:], pattern[1:]) for start in range(len(path) + 1))
    if not path or not pattern:
        return path == pattern
    return fnmatch.fnmatchcase(path[0], pattern[0]) and _fits(path[1:], pattern[1:])


def _note_unread(unread: Unread, error: OSError) -> None:
    folder = str(error.filename)
    if folder not in dict(unread):
        unread.append((folder, ModelError(f"{folder} cannot be read: {error.strerror or error}")))


def _inside(folder: str, left: LeftOut) -> Iterator[str]:
    """The models and specs in a folder, however deep, but for what is hidden."""
    for root, folders, names in _walk(folder, left.unread):
        left.look(folder, root, folders, names)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (str(Path(root) / name) for name in sorted(names) if is_model(name) and not name.startswith("."))


def _walk(top: str, unread: Unread) -> Iterator[tuple[str, list[str], list[str]]]:
    """Folders as os.walk gives them, which up to Python 3.11 goes no deeper than a recursion."""
    waiting = [top]
    while waiting:
        for folder, folders, names in islice(os.walk(waiting.pop(), onerror=partial(_note_unread, unread)), 1):
            yield folder, folders, names
            inner = [os.path.join(folder, name) for name in reversed(folders)]
            waiting += [path for path in inner if not os.path.islink(path)]


def is_model(name: str) -> bool:
    return name.lower().endswith((".onnx", *SPEC_SUFFIXES))


def _without_side_cars(paths: list[str]) -> list[str]:
    """The files but for specs that are read together with the model they lie beside."""
    read_along = {side_car(path) for path in paths}
    return [path for path in paths if path not in read_along]


def _nothing(reason: str) -> list[str]:
    raise NothingChecked(f"nothing to check: {reason}")


class Task(Struct, frozen=True):
    """One check to do: its model, the settings of its spec, and what names it in a command."""

    name: str
    path: str  # of the file that was named
    load: Callable[[], Source]
    said: Mapping[str, Any] = field(default_factory=dict)
    expect: Mapping[str, Any] | None = None
    check: str | None = None  # its name in a spec, where it has one
    model: str = ""  # the file that its model is in, and of a spec the graph
    graph: str = ""
    line: int = 0  # of the spec that asks for it
    spec: str = ""
    only: tuple[str, ...] = ()  # of the tensors to differentiate by, those that `-k` chooses; without any, all
    whole: Callable[[], Task] | None = None  # with all that its spec says, where that was read in another process
    error: GradcheckError | None = None  # the reason why its file could not be read; the checks in it are not known

    @property
    def place(self) -> SpecPlace:
        """The place in the spec that asks for it; empty where none does."""
        return {"file": self.spec, "line": self.line} if self.line else {}


class Planner(Struct):
    """Turns files into tasks; `given` are the options that were typed.

    `steps` of training algorithms have tasks of their own, for which their models are read.
    """

    given: Mapping[str, Any]
    dims: Mapping[str, int]
    allow_python: bool
    steps: bool = True
    _models: dict[str, Source] = field(default_factory=dict)

    def tasks(self, paths: Iterable[str]) -> list[Task]:
        """The tasks of all files; a spec that cannot be read becomes a task that says so."""
        return [task for path in paths for task in self._tasks_of(path)]

    def _tasks_of(self, path: str) -> list[Task]:
        try:
            if is_spec(path):
                limited = self.given.get("timeout") or self.given.get("memory_limit")  # they hold for the reading too
                return self._of_spec_apart(path) if limited and hasattr(os, "fork") else self._of_spec(path)
            return self._of_model(path)
        except (GradcheckError, MemoryError) as error:
            return [unread(path, exhausted(error) if isinstance(error, MemoryError) else error)]

    def _of_spec_apart(self, path: str) -> list[Task]:
        """The tasks of a spec that is read in processes of their own: one that lists them, and that of each check."""
        from gradcheck_cli.checks.isolation import Bounds, run  # where somebody gave a limit

        def told() -> list[Task]:
            large = {"x_init_value", "extra_feed_dict"}
            pairs = ((task, {n: v for n, v in task.said.items() if n not in large}) for task in self._of_spec(path))
            return [replace(task, load=_nowhere, said=brief) for task, brief in pairs]

        found = run(told, Bounds(self.given.get("timeout"), allowed(self.given.get("memory_limit"))))
        return [replace(task, whole=partial(self._nth_of_spec, path, index)) for index, task in enumerate(found)]

    def _nth_of_spec(self, path: str, index: int) -> Task:
        return self._of_spec(path)[index]

    def _of_spec(self, path: str) -> list[Task]:
        spec = read(path, dims=self.dims, allow_python=self.allow_python)
        if spec.checks:
            return [self._task(request, path, spec) for request in spec.checks]
        if not spec.sources:
            if spec.models:
                raise ModelList(f"nothing to check: {path} lists models, which are checked by `gradcheck zoo {path}`")
            raise NothingChecked(f"nothing to check: {path} has no graphs and no checks")
        said, several = _said(path, dict(spec.defaults)), len(spec.sources) > 1
        return [
            Task(
                f"{path}::{name}" if several else path, path, _giving(source), said, spec.expect, model=path,
                graph=name, line=source.line, spec=path,
            )
            for name, source in spec.sources.items()
        ]  # fmt: skip

    def _of_model(self, path: str) -> list[Task]:
        beside = side_car(path)
        if beside is None:
            return self._with_steps(Task(path, path, lambda: self._model(path), model=path))
        spec = read(beside, allow_python=self.allow_python)
        asked = not _TARGETS.isdisjoint(self.given)
        own = [request for request in spec.checks if _is_same(request.model or "", path)]
        if own and not (asked and len(own) > 1):
            return [self._task(request, beside, spec, path) for request in own]
        said = _said(beside, dict(spec.defaults))
        whole = Task(path, path, lambda: spec.operators(self._model(path)), said, spec.expect, model=path)
        return self._with_steps(whole)

    def _with_steps(self, whole: Task) -> list[Task]:
        """The task of a model and those of its training steps; of them the first that has all tensors that are named."""
        if not self.steps or not has_training(whole.path):
            return [whole]
        model = whole.load()
        sources = {"": model, **{name: model.at_step(name) for name in model.steps}}
        asked = [said.get(option) or () for option in ("x", "y") for said in (whole.said, self.given)]
        named = {name for names in asked for name in ([names] if isinstance(names, str) else names)}
        return [_step_of(whole, name) if name else whole for name, _ in fitting(sources, named)]

    def _task(self, request: CheckRequest, path: str, spec: Spec, model: str = "") -> Task:
        said = _said(path, dict(request.settings))
        own = ("x", "y", "x_init_value", "extra_feed_dict", "init_targets")
        said.update((name, value) for name in own if (value := getattr(request, name)))
        if request.graph is not None:
            file, load = path, _giving(spec.sources[request.graph])
        else:  # the model as it was named on the command line, where a side-car means the same file
            asked = request.model or ""
            file = model if model and _is_same(asked, model) else asked
            load = partial(lambda path: spec.operators(self._model(path)), file)
        return Task(
            request.name, model or path, load, said, request.expect, request.name, file, request.graph or "",
            request.line, path,
        )  # fmt: skip

    def _model(self, path: str) -> Source:
        """The only model of an ONNX file; of several checks of one file the first one reads it."""
        if path not in self._models:
            self._models.clear()
            self._models[path] = next(iter(read(path).sources.values()))
        return self._models[path]


def targets_said(said: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tensors that an entry of a list names: they count as if they were typed."""
    return {name: value for name, value in said.items() if name in _TARGETS and value}


def _nowhere() -> Source:
    raise UsageError("the spec of this model was read in another process")


def _step_of(whole: Task, name: str) -> Task:
    """The task of a training step of a model."""
    said = {**targets(whole.load().at_step(name)), **whole.said}
    return replace(whole, name=f"{whole.name}::{name}", load=lambda: whole.load().at_step(name), said=said, graph=name)


def _said(path: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that a spec writes out, with paths as seen from here."""
    for name in ("test_data", "grad_model"):
        if (file := settings.get(name)) and file not in ("auto", "none"):
            settings[name] = os.path.join(os.path.dirname(path), file)
    settings["grad"] = {x: _beside(path, by) for x, by in settings.get("grad", {}).items()}
    return settings


def _beside(path: str, claim: str) -> str:
    """A gradient that a spec gives: a tensor, or numbers in a file below the folder of the spec."""
    if not claim.startswith("@"):
        return claim
    folder = os.path.dirname(path)
    try:
        inside(Path(folder), claim[1:], "the folder of the spec")
    except ValueError as error:
        raise UsageError(f"{path}: grad: {error}") from None
    return f"@{os.path.join(folder, claim[1:])}"


def _is_same(asked: str, named: str) -> bool:
    return os.path.realpath(asked) == os.path.realpath(named)


def _giving(source: Source) -> Callable[[], Source]:
    return lambda: source


def unread(path: str, error: GradcheckError) -> Task:
    """The task of a file that cannot be read, which says so."""
    return Task(path, path, raising(error), error=error)


class ModelList(NothingChecked):
    """A spec lists models alone, which a zoo checks."""


def without_lists(tasks: list[Task]) -> list[Task]:
    """The tasks but for lists of models beside others, which a note names."""
    lists = [task.path for task in tasks if isinstance(task.error, ModelList)]
    if not lists or len(lists) == len(tasks):
        return tasks
    note(f"left out, as lists of models, which `gradcheck zoo` checks: {listed(lists)}")
    return [task for task in tasks if not isinstance(task.error, ModelList)]


def errors_of(tasks: Iterable[Task]) -> list[GradcheckError]:
    """The errors of files whose checks are not known."""
    return [task.error for task in tasks if task.error is not None]


def naming(path: str, error: BaseException) -> BaseException:
    """An error that names its model, also where it speaks of a node."""
    if isinstance(error, ModelError) and os.path.basename(path) not in str(error):
        return ModelError(f"{shown(path)}: {error}", code=error.code)
    return error


def raising(error: GradcheckError) -> Callable[[], Source]:
    """A function that raises an error in place of loading a model."""

    def load() -> Source:
        raise error

    return load
