"""What a file of derivatives declares of its inputs and outputs, and what is to be said of dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradcheck_cli.export.traced import Traced
from gradcheck_cli.graph import Dim, TensorType
from gradcheck_cli.model import Model
from gradcheck_cli.points.dims import symbol


@dataclass(frozen=True, slots=True)
class Declarations:
    """The declarations of a file that was made of a model's runs."""

    model: Model
    found: Traced

    def type(self, name: str) -> TensorType:
        """What the file declares of an input or an output: what the model does, else what the runs have shown."""
        graph, laid = self.model.graph, self.found.laid
        declared = graph.types.get(name, TensorType())
        if declared.kind != "tensor":
            return declared
        if name in graph.constants and declared.dtype is None:
            declared = TensorType(graph.constants[name].dtype, graph.constants[name].shape)
        dtype = declared.dtype if declared.dtype is not None else laid.dtypes.get(name)
        dtype = self.model.known_dtype(name) if dtype is None else dtype
        if declared.shape is None:
            return TensorType(dtype, self._shown(name))
        return TensorType(dtype, tuple(self._dim(name, axis, d) for axis, d in enumerate(declared.shape)))

    def _dim(self, name: str, axis: int, dim: Dim) -> Dim:
        """A declared dimension, with its size where it got one, by the name of the one that it equals."""
        if isinstance(dim, int):
            return dim
        trials, key = self.found.trials, symbol(name, axis, dim)
        sizes = {**self.model.source.dims, **self.model.dims, **trials.fixed}
        return sizes.get(key, trials.equal.get(key, dim))

    def _shown(self, name: str) -> tuple[Dim, ...] | None:
        """The shape that a tensor had in the runs, by the names of the dimensions that it follows."""
        shape = self.found.laid.shapes.get(name)
        if shape is None:
            return self.model.known_shape(name)
        if name in self.found.passing:
            return (None,) * len(shape)
        by_sizes = {sizes: d for d, sizes in self.found.trials.symbols.items()}
        return tuple(sizes[0] if len(set(sizes)) == 1 else self._named(by_sizes.get(sizes)) for sizes in shape)

    def _named(self, dim: str | None) -> str | None:
        """A dimension that the model gives a name."""
        named = {d for t in self.model.graph.types.values() for d in t.shape or () if isinstance(d, str)}
        return dim if dim in named else None

    def notes(self) -> Iterator[str]:
        trials = self.found.trials
        for dim, other in trials.equal.items():
            yield f"{dim} has to equal {other}"
        for dim, size in trials.fixed.items():
            yield f"{dim} is {size}: the model does not run at other sizes that were tried"
