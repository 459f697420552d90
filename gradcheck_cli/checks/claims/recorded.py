"""A model held against the record of its framework: the file `model.gradcheck.npz` beside `model.onnx`.

A record has inputs, outputs and vector-Jacobian products as PyTorch, JAX or TensorFlow computed them before the model was
exported (`reference/recording.py` writes it).  Each of its gradients is a claim by numbers, judged as any other; the
outputs are compared within the rounding of the model.  What an exporter or an optimizer lost shows in one of the two.

Parameters are found in the file by their names, else by their values, in any order of axes.  One that is not found, or
is several tensors there, is told in a note.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, combinations, permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import Struct

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.checks.assemble import Pair, model_of, record_of
from gradcheck_cli.checks.claims.claim import put, unit_of
from gradcheck_cli.checks.claims.claimed import UNSEEN, HeldNarrow, RuleGradient, rounding_at
from gradcheck_cli.checks.diagnose.laws import Broken
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.errors import GradcheckError, UsageError, counted, named, shown
from gradcheck_cli.formats.arrays import Npz
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, Graph, Node, is_inexact
from gradcheck_cli.jacobian.jacobian import EPS
from gradcheck_cli.op import Ops
from gradcheck_cli.points.dims import declared_shape
from gradcheck_cli.points.point import in_its_dtype
from gradcheck_cli.results.record import FORWARD, Check, Forward
from gradcheck_cli.settings import Numbers, Settings
from gradcheck_cli.verdict.agreement import difference, farthest, sizes

if TYPE_CHECKING:
    from gradcheck_cli.checks.procedure import Procedure

SCHEMA = "gradcheck.record/1"
ABOUT = "record"  # the member with the description, as JSON in bytes
FORWARD_CODE, GRADIENT_CODE = "GC404", "GC101"
_LARGEST, _LONGEST = 1 << 34, 1 << 24  # bytes of all arrays, and of the description
_SAFETY, _ROUNDINGS = 4.0, 32.0  # on the measured rounding of an output, and roundings allowed in any case
_MOST_AXES = 5
_MOST_MERGED = 6  # parameters that a file may have merged into one, of which every subset is tried
_SHOWN = 6
_LOST = "the exporter froze it, detached it, or left an operator's own gradient behind"
_FROZEN = "a constant may be frozen from the example"
_FOUND = "the framework detached it, and the file does not"


class Parameter(Struct, frozen=True):
    """A parameter of the framework; the digest is that of its values, see `digest`.

    `rounded` is the digest of a float64 parameter in float32, as files often hold it.
    """

    name: str
    shape: tuple[int, ...]
    digest: str
    uniform: bool = False  # all values equal: no way to tell it from another of the same shape
    rounded: str = ""


class RecordDescription(Struct, frozen=True):
    """The description in a record: names in the order of the arrays, and parts of the module in training mode."""

    schema: str
    framework: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    points: int
    seed: int = 0
    training: tuple[str, ...] = ()


def member(kind: str, index: int, point: int = 0) -> str:
    """The name of an array in a record; kinds are input, output, cotangent, gradient (by an input) and parameter."""
    return f"{point}/{kind}/{index}"


def described(name: str, values: Array) -> Parameter:
    """A parameter as records describe it."""
    uniform, wide = bool((values == values.flat[:1]).all()), values.dtype == np.float64
    with np.errstate(over="ignore"):
        rounded = digest(values.astype(np.float32)) if wide else ""
    return Parameter(name, values.shape, digest(values), uniform, rounded)


def digest(values: Array) -> str:
    """The SHA-256 of the values of an array in C order, the same for every shape."""
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return hashlib.sha256(little.tobytes()).hexdigest()


class RecordedFile:
    """A record that was read from an untrusted file; UsageError for one that is none."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name
        try:
            self.arrays = Npz(path, _LARGEST)
            self.about = msgspec.json.decode(self._description(), type=RecordDescription)
        except (OSError, ValueError, KeyError, MemoryError) as error:
            raise self.refused(f"it cannot be read: {error or type(error).__name__}") from None
        if self.about.schema != SCHEMA or not 0 < self.about.points <= 16:
            raise self.refused(f"its schema is not {SCHEMA}")
        names = [*self.about.inputs, *(each.name for each in self.about.parameters)]
        if any(size < 0 for each in self.about.parameters for size in each.shape):
            raise self.refused("a parameter has a negative size")
        if len({*names}) < len(names):
            raise self.refused("two of its tensors have one name")

    def __getitem__(self, key: str) -> Array:
        try:
            values = self.arrays[key]
        except KeyError:
            raise self.refused(f"it has no array {key}") from None
        except (OSError, ValueError, MemoryError) as error:
            raise self.refused(f"{key} cannot be read: {error}") from None
        if values.dtype.kind not in "biuf":
            raise self.refused(f"{key} does not hold numbers")
        return values

    def gradient(self, kind: str, index: int, shape: tuple[int, ...], point: int) -> Array:
        """A recorded gradient of a shape: zeros where the framework gave none."""
        if (key := member(kind, index, point)) not in self.arrays:
            return np.zeros(shape, np.float32)
        return self.require(key, shape)

    def require(self, key: str, shape: tuple[int, ...]) -> Array:
        """An array that has to have a shape."""
        if (values := self[key]).shape != shape:
            raise self.refused(f"{key} has shape {list(values.shape)}, not {list(shape)}")
        return values

    def _description(self) -> bytes:
        values = self.arrays[ABOUT]
        if values.dtype != np.uint8 or values.size > _LONGEST:
            raise ValueError("its description is no text")
        return values.tobytes()

    def refused(self, why: str) -> UsageError:
        return UsageError(f"{shown(str(self.path))}: {shown(why)}. --grad none leaves this record out.")


class Mapped(Struct, frozen=True):
    """A tensor of the file with the recorded arrays that are its gradient: the sum of `parts`, transposed by `axes`."""

    x: str
    kind: str
    parts: tuple[tuple[int, str, tuple[int, ...]], ...]  # place in the record, name there, shape
    axes: tuple[int, ...] | None = None
    changed: bool = False  # its values are not the recorded ones
    rounded: bool = False  # they are the recorded ones in float32

    @property
    def called(self) -> str:
        """Its name in the framework."""
        return " + ".join(shown(name) for _, name, _ in self.parts)

    def subsets(self) -> Iterator[Mapped]:
        """Itself with some of its parts, the first always among them."""
        first, *more = self.parts
        counts = range(len(more) + 1) if len(more) <= _MOST_MERGED else (0, len(more))
        for some in chain.from_iterable(combinations(more, count) for count in counts):
            yield msgspec.structs.replace(self, parts=(first, *some))


class Located(Struct, frozen=True):
    """The tensors of a graph that a record speaks of, and sentences on those that it does not have."""

    inputs: Mapping[str, int]  # by name in the file: place in the record
    missing: tuple[int, ...]  # inputs that the file does not have
    ys: Mapping[str, int]
    parameters: tuple[Mapped, ...]
    notes: tuple[str, ...]


def parted(graph: Graph) -> Graph:
    """A graph in which Identity nodes read copies of constants.

    Exporters make one tensor of equal parameters and buffers, and give the others their names by Identity nodes: as in
    the framework, each has a gradient of its own then.
    """
    nodes, copies = list(graph.nodes), dict[str, Array]()
    for i, node in enumerate(nodes):
        if _is_copy(graph, node):
            name = f"{node.outputs[0]}/copy"
            if name not in graph.tensors:
                copies[name], nodes[i] = graph.constants[node.inputs[0]], replace(node, inputs=(name,))
    return replace(graph, nodes=tuple(nodes), constants={**graph.constants, **copies}) if copies else graph


def _is_copy(graph: Graph, node: Node) -> bool:
    return node.op == "Identity" and not node.domain and node.inputs[0] in graph.constants


def _held(graph: Graph) -> dict[str, Array]:
    """Float tensors that hold values of the file: constants, and copies of them by their own names."""
    copies = {node.inputs[0]: node.outputs[0] for node in graph.nodes if _is_copy(graph, node)}
    return {copies.get(name, name): values for name, values in graph.constants.items() if is_inexact(values.dtype)}


def located(record: RecordedFile, graph: Graph) -> Located:
    """Finds the tensors of a record in a graph; UsageError where inputs or outputs are not those of the record."""
    inputs, missing = _inputs(record, graph)
    outputs = record.about.outputs
    if not {*outputs} <= {*graph.outputs} and len(outputs) != len(graph.outputs):
        raise record.refused(f"it has {counted(len(outputs), 'output')}, and the model has {len(graph.outputs)}")
    names = outputs if {*outputs} <= {*graph.outputs} else graph.outputs
    ys = {y: i for i, y in enumerate(names) if record[member("output", i)].dtype.kind == "f"}
    if not ys:
        raise record.refused("it has no float output")
    return Located(inputs, missing, ys, *_parameters(record.about.parameters, graph))


def _inputs(record: RecordedFile, graph: Graph) -> tuple[dict[str, int], tuple[int, ...]]:
    """The inputs by name, others in order if there are as many, else by shape where one alone fits."""
    names = record.about.inputs
    found = {name: i for i, name in enumerate(names) if name in graph.inputs}
    open_ = [name for name in graph.free_inputs if name not in found]
    left = [i for i in range(len(names)) if i not in found.values()]
    values = {i: record[member("input", i)] for i in left}
    if len(open_) == len(left) and all(_fits(graph, n, values[i]) for n, i in zip(open_, left, strict=True)):
        return found | dict(zip(open_, left, strict=True)), ()
    for name in open_:
        fits = [i for i in left if _fits(graph, name, values[i])]
        if len(fits) != 1:
            raise record.refused(f"no one of its inputs alone fits {name!r}: {', '.join(names)}")
        found[name] = fits[0]
        left.remove(fits[0])
    return found, tuple(left)


def _fits(graph: Graph, name: str, values: Array) -> bool:
    """True if an input of the graph may have these values."""
    shape, declared = declared_shape(graph, name), graph.types.get(name)
    if declared is not None and declared.dtype is not None and is_inexact(declared.dtype) != is_inexact(values.dtype):
        return False
    if shape is None:
        return True
    return len(shape) == values.ndim and all(
        not isinstance(dim, int) or dim == size for dim, size in zip(shape, values.shape, strict=True)
    )


def _parameters(recorded: Sequence[Parameter], graph: Graph) -> tuple[tuple[Mapped, ...], tuple[str, ...]]:
    """The parameters that are one tensor of the graph, and notes on the others."""
    held, named = _held(graph), dict[str, Mapped]()
    values = Initializers(held)
    left, several = list[tuple[int, Parameter]](), list[str]()
    for place, each in enumerate(recorded):
        same = values.like(each)
        copies = [name for name, _ in same if name != each.name]
        if each.name in held and not copies:
            axes = next((axes for _, axes in same), None)
            named[each.name] = Mapped(each.name, "parameter", (_part(place, each),), axes, changed=not same)
        elif len(copies) == 1 and each.name not in held and copies[0] not in named:
            named[copies[0]] = Mapped(copies[0], "parameter", (_part(place, each),), same[0][1])
        elif copies:
            several.append(each.name)
        else:
            left.append((place, each))
    found = [_rounding(_merged(mapped, recorded, left), recorded, held) for mapped in named.values()]
    taken = {place for mapped in found for place, _, _ in mapped.parts}
    gone = [each.name for place, each in left if place not in taken]
    said = {
        "not one tensor in the file": several,
        "not in the file by name or value": gone,
        "of other values in the file, as folding leaves them": [m.called for m in found if m.changed],
    }
    notes = [f"not compared, since {why}: {_listed(names)}" for why, names in said.items() if names]
    rounded = [m.called for m in found if m.rounded]
    notes += [f"float64 there and float32 in the file, which may differ by that: {_listed(rounded)}"] if rounded else []
    return tuple(m for m in found if not m.changed), tuple(notes)


def _merged(mapped: Mapped, recorded: Sequence[Parameter], left: Sequence[tuple[int, Parameter]]) -> Mapped:
    """A parameter with those of the same values that are not in the file: exporters merge what is equal."""
    own = recorded[mapped.parts[0][0]]
    alike = (_part(place, each) for place, each in left if (each.digest, each.shape) == (own.digest, own.shape))
    return mapped if mapped.changed else msgspec.structs.replace(mapped, parts=(*mapped.parts, *alike))


def _rounding(mapped: Mapped, recorded: Sequence[Parameter], held: Mapping[str, Array]) -> Mapped:
    """A parameter, and whether the file has rounded it."""
    own, values = recorded[mapped.parts[0][0]], held[mapped.x]
    there = values if mapped.axes is None else values.transpose(mapped.axes)
    rounded = bool(own.rounded) and not mapped.changed and digest(there.astype(np.float64)) != own.digest
    return msgspec.structs.replace(mapped, rounded=rounded and values.dtype == np.float32)


def _part(place: int, parameter: Parameter) -> tuple[int, str, tuple[int, ...]]:
    return place, parameter.name, parameter.shape


def _listed(names: Sequence[str]) -> str:
    return named(names, _SHOWN)


class Initializers:
    """Tensors that are found by their values in any order of axes."""

    def __init__(self, held: Mapping[str, Array]) -> None:
        self.held = held
        self.by_size: dict[int, list[str]] = {}
        for name, values in held.items():
            self.by_size.setdefault(values.size, []).append(name)
        self._digests: dict[str, dict[str, tuple[int, ...]]] = {}

    def like(self, wanted: Parameter) -> list[tuple[str, tuple[int, ...]]]:
        """Tensors with the values of a parameter, each with its order of axes; a uniform one is found by name only."""
        size = math.prod(wanted.shape)
        names = self.by_size.get(size, []) if not wanted.uniform else []
        names = [wanted.name] if wanted.uniform and wanted.name in self.by_size.get(size, []) else names
        same = (
            (name, orders.get(wanted.digest, orders.get(wanted.rounded)))
            for name in names
            for orders in [self._orders(name)]
        )
        return [(name, axes) for name, axes in same if axes is not None]

    def _orders(self, name: str) -> dict[str, tuple[int, ...]]:
        """Orders of axes of a tensor by the digest of its values in that order."""
        if name not in self._digests:
            values = self.held[name]
            every = list(permutations(range(values.ndim))) if values.ndim <= _MOST_AXES else [tuple(range(values.ndim))]
            self._digests[name] = {digest(values.transpose(axes)): axes for axes in reversed(every)}
        return self._digests[name]


Checked = Callable[[Source, Settings], "Procedure"]  # the procedure of a check


class Parity:
    """A model and its record, held against each other at every recorded point."""

    def __init__(self, source: Source, settings: Settings, ops: Ops, path: Path) -> None:
        self.ops, self.graph = ops, parted(source.graph)
        self.source = msgspec.structs.replace(source, graph=self.graph)
        self.record = RecordedFile(path)
        self.located = located(self.record, self.graph)
        ys = tuple(self.located.ys)
        self.of_others = settings.y is not None and not {*ys} <= {*settings.y}
        self.every = [*self._inputs(), *self.located.parameters]
        self.chosen = [mapped for mapped in self.every if settings.x is None or mapped.x in settings.x]
        self.agreed = False  # the forward run, at an earlier point
        self.narrow = self._narrow()
        none: dict[str, Any] = {}
        self.settings = replace(
            settings, y=ys, params=False, param=(), points=1, point=None, extra_feed_dict=none, test_data=None, dims=none,
            x_shape=none, y_shape=none, val_range=none, init_targets=(), forward="internal", second_order=False,
            dtype="float64", pictures="none",
        )  # fmt: skip

    def _narrow(self) -> HeldNarrow | None:
        """The numbers that the file has rounded; None for a record in float32, whose numbers are no longer."""
        if all(self.record[member("output", place)].dtype != np.float64 for place in self.located.ys.values()):
            return None
        exact = {mapped.x for mapped in self.located.parameters if not mapped.rounded}
        return HeldNarrow.of(self.graph, exact)

    def _inputs(self) -> Iterator[Mapped]:
        for name, place in self.located.inputs.items():
            values = self.record[member("input", place)]
            if values.dtype.kind == "f":
                yield Mapped(name, "gradient", ((place, self.record.about.inputs[place], values.shape),))

    def beside(self, checks: Sequence[Check], checked: Checked, name: str) -> tuple[Check, ...]:
        """The records of a check, followed by those of all recorded gradients; notes stand in the first."""
        found, ordinary = list[Check](), [*checks]
        for point in range(0 if self.of_others else self.record.about.points):
            here = RecordedPoint(self, point)
            more = [*here.checks(checked, name)]
            self.agreed = self.agreed or here.forward["agrees"] is True
            found += more
            if not more:
                ordinary = [here.beside(check) for check in ordinary]
        first, *others = [*ordinary, *found]
        return replace(first, notes=(*first.notes, *self._notes())), *others

    def _notes(self) -> Iterator[str]:
        """Sentences on what of the record was not compared."""
        if self.of_others:
            yield f"{self.record.name} is not compared: it is about {_listed(tuple(self.located.ys))} together"
            return
        yield from (f"{self.record.name}: {note}" for note in self.located.notes)
        if fewer := len(self.every) - len(self.chosen):
            yield f"{self.record.name}: --x leaves out {fewer} of its {counted(len(self.every), 'gradient')}"


class RecordedPoint:
    """One point of a record: a float64 run of the model there, its outputs and gradients beside the recorded ones."""

    def __init__(self, parity: Parity, point: int) -> None:
        self.parity, self.point, self.record, self.graph = parity, point, parity.record, parity.graph
        self.ys = parity.located.ys
        self.feeds = {name: self.record[member("input", i, point)] for name, i in parity.located.inputs.items()}
        self.seeds = {y: self.record[member("cotangent", i, point)] for y, i in self.ys.items()}
        for i in self.ys.values():
            self.record.require(member("cotangent", i, point), self.record[member("output", i, point)].shape)
        self.wanted = [m for m in parity.chosen if not point or m.kind == "gradient"]

    def checks(self, checked: Checked, name: str) -> Iterator[Check]:
        """The records of the wanted gradients at this point."""
        reached = self.graph.needed_for(self.ys)
        yield from (self.beside(each) for each in self._cut_off(reached, name))
        if all(y in self.tape.named and self.tape.named[y].shape == self.seeds[y].shape for y in self.ys):
            claimed = {m.x: self._nearest(m) for m in self.wanted if m.x in reached}
            yield from (self.beside(each) for each in self._claimed(claimed, checked, name))

    @cached_property
    def tape(self) -> Tape:
        """The model's float64 run."""
        return self._run("float64")

    def _run(self, dtype: str) -> Tape:
        targets = [*self.ys, *(m.x for m in self.wanted)]
        feeds = {n: in_its_dtype(self.graph, n, v) for n, v in self.feeds.items()}
        if dtype == "float64":  # no input is rounded there
            feeds |= {n: v for n, v in self.feeds.items() if v.dtype.kind == feeds[n].dtype.kind == "f"}
        seed = self.parity.settings.seed
        return trace(self.graph, feeds, ops=self.parity.ops, dtype=dtype, seed=seed, targets=targets, lenient=True)

    @cached_property
    def own(self) -> RuleGradient:
        """gradcheck's own gradient of the outputs, weighed by the recorded cotangents."""
        y = put(self.tape, tuple(self.ys), {y: seed.astype(np.float64) for y, seed in self.seeds.items()})
        total = self.tape.named[y].name
        return RuleGradient(self.tape, total, [self.tape.named[m.x].name for m in self.wanted if m.x in self.tape.named],
                            Budget())  # fmt: skip

    def values(self, mapped: Mapped) -> Array:
        """The recorded gradient, in the layout of the file's tensor."""
        parts = [self.record.gradient(mapped.kind, place, shape, self.point) for place, _, shape in mapped.parts]
        values = np.sum(parts, axis=0, dtype=parts[0].dtype) if len(parts) > 1 else parts[0]
        if mapped.kind == "gradient":
            return values
        shape = self.tape.named[mapped.x].shape
        if mapped.axes is None:
            return values.reshape(shape)
        return values.reshape([shape[axis] for axis in mapped.axes]).transpose(np.argsort(mapped.axes))

    def _nearest(self, mapped: Mapped) -> Mapped:
        """The sum of those parts that is nearest to the file's gradient, where the file has merged several."""
        own = self._own(mapped) if len(mapped.parts) > 1 else None
        if own is None:
            return mapped
        return min(mapped.subsets(), key=lambda some: float(np.linalg.norm(self.values(some).reshape(-1) - own)))

    def _own(self, mapped: Mapped) -> Array | None:
        """gradcheck's own gradient by a tensor, flat; None where there is none."""
        try:
            found = self.own.jacobian(self.tape.named[mapped.x].name)
        except (GradcheckError, KeyError):
            return None
        return None if found is None else found.reshape(-1)

    def _claimed(self, claimed: Mapping[str, Mapped], checked: Checked, name: str) -> Iterator[Check]:
        """The records of gradients by tensors that the outputs depend on."""
        if not claimed:
            return
        grad = {y: Numbers(seed, f"{self.record.name}:cotangent") for y, seed in self.seeds.items()}
        grad |= {
            x: Numbers(self.values(m), f"{self.record.name}:{self._called(m)}", self._blur(m))
            for x, m in claimed.items()
        }
        procedure = checked(
            self.parity.source, replace(self.parity.settings, x=tuple(claimed), grad=grad, x_init_value=self.feeds)
        )
        records = {record.x: record for record in procedure.run(name)}
        for x, mapped in claimed.items():
            notes = tuple(note for note in records[x].notes if not note.endswith(UNSEEN))
            record = replace(records[x], claim={**records[x].claim, "found": True}, notes=notes)
            yield self._told(record, mapped) if record.status in ("fail", "severed") else record

    def _blur(self, mapped: Mapped) -> Array | None:
        """Bounds of the differences of a gradient by numbers that the file has rounded."""
        narrow = self.parity.narrow
        try:
            ct = (
                None
                if narrow is None or mapped.x not in self.tape.named
                else self.own.cotangent(self.tape.named[mapped.x].name)
            )
            return None if narrow is None or ct is None else np.asarray(narrow.spread(self.tape, ct))
        except GradcheckError:
            return None

    def _called(self, mapped: Mapped) -> str:
        return mapped.called + (f" at point {self.point}" if self.point else "")

    def _told(self, record: Check, mapped: Mapped) -> Check:
        """A record that fails, with the sentence on what the file has lost."""
        own = self._own(mapped)
        message = self._message(mapped, self.values(mapped), np.zeros(1) if own is None else own)
        others = (record.message,) if record.message else ()
        return replace(record, message=message, notes=(*others, *record.notes))

    def _message(self, mapped: Mapped, recorded: Array, own: Array) -> str:
        """The difference of a recorded gradient and the file's, in words."""
        if recorded.any() and not own.any():
            said = f"is not zero, the file's is zero everywhere: {_LOST}"
        elif own.any() and not recorded.any():
            said = f"is zero everywhere, the file's is not: {_FOUND}"
        else:
            said = "is not the file's"
        return f"the recorded gradient of {mapped.called} {said}{self._in_training}"

    @property
    def _in_training(self) -> str:
        training = self.record.about.training
        return f"; {_listed(training)} {'were' if len(training) > 1 else 'was'} recorded in training mode" * bool(
            training
        )

    def _cut_off(self, reached: Collection[str], name: str) -> Iterator[Check]:
        """The records of gradients that are not zero by tensors without a path to the outputs, or without a tensor."""
        cut = [m for m in self.wanted if m.x not in reached]
        names, settings = self.record.about.inputs, self.parity.settings
        if self.parity.chosen == self.parity.every:
            shapes = {i: self.record[member("input", i, self.point)].shape for i in self.parity.located.missing}
            cut += [Mapped(names[i], "gradient", ((i, names[i], shape),)) for i, shape in shapes.items()]
        for mapped in cut:
            parts = [self.record.gradient(mapped.kind, i, shape, self.point) for i, _, shape in mapped.parts]
            if any(part.any() for part in parts):
                pair = Pair(mapped.x, " + ".join(self.ys), x_shape=parts[0].shape)
                pair.broken.append(Broken(GRADIENT_CODE, self._message(mapped, parts[0], np.zeros(1))))
                pair.claimed = {"by": f"{self.record.name}:{self._called(mapped)}", "kind": "file",
                                "of": tuple(self.ys), "found": True, "layout": "as x", "seed": "drawn",
                                "theoretical": "none"}  # fmt: skip
                record = record_of(pair, model_of(self.parity.source), settings, name, {})
                yield replace(record, id=f"{record.id} by {record.claim['by']}")

    @cached_property
    def forward(self) -> Forward:
        """The outputs beside the recorded ones: they may differ by the rounding of the recorded dtype."""
        apart, most, bound = list[str](), (0.0, 0.0), 0.0
        for y, place in self.ys.items():
            there = self.record[member("output", place, self.point)]
            if y in self.tape.named:
                ours = self.tape.named[y].value
                allowed = self._allowed(y, there)
                here = farthest(ours, there, sizes(there))
                most = max(most[0], here[0]), max(most[1], here[1])
                bound = max(bound, float(np.max(allowed / np.where(sizes(there), sizes(there), 1.0), initial=0.0)))
                apart += (
                    [f"{shown(y)!r} is not what {self.record.name} says: {how}"] if (how := self._how(y, there)) else []
                )
        frozen = f"; at the first inputs it is: {_FROZEN}" if self.point and self.parity.agreed else ""
        told = "\n".join(apart) + (self._in_training + frozen if apart else "")
        return {"compared_with": f"{self.record.name}, {shown(self.record.about.framework)}", "agrees": not apart,
                "code": FORWARD_CODE if apart else None, "reason": told, "max_abs_err": most[0], "max_rel_err": most[1],
                "bound": bound, "first_node": None, "refused": False}  # fmt: skip

    def _allowed(self, y: str, there: Array) -> Array:
        """Differences of an output that rounding explains."""
        unit, ours = unit_of(there), self.tape.named[y]
        moved = rounding_at(self.tape, ours.name) * (unit / EPS)
        allowed = _ROUNDINGS * unit * sizes(there)
        if moved.shape != there.shape:
            return allowed
        narrow = self.parity.narrow
        return np.asarray(allowed + _SAFETY * moved + (0.0 if narrow is None else narrow.spread(self.tape, ours.name)))

    def _how(self, y: str, there: Array) -> str:
        """The difference of an output; where a rounding decides, the model's own dtype has the last word."""
        allowed = self._allowed(y, there)
        found = difference(self.tape.named[y].value, there, allowed)
        narrow = self._narrow.named.get(y) if found else None
        return difference(narrow.value, there, allowed) if narrow is not None else found

    @cached_property
    def _narrow(self) -> Tape:
        return self._run("model")

    def beside(self, check: Check) -> Check:
        """A record with this point's forward comparison, unless it has one that differs."""
        if self.parity.settings.straight_through or check.forward_differs:
            return check
        if not check.claim and self.forward["agrees"]:
            return check
        gates = check.gates if self.forward["agrees"] else (*check.gates, FORWARD)
        return replace(check, forward=self.forward, gates=gates)
