"""Arrays from .npy and .npz files beside a spec.

A spec may come from anywhere, so a path stays inside the spec's folder, nothing is unpickled, and an array is
read only if its header agrees with the size of the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gradcheck_cli.errors import SpecError, did_you_mean
from gradcheck_cli.formats.arrays import Npz, read_npy
from gradcheck_cli.formats.untrusted import inside
from gradcheck_cli.formats.yaml.places import Spot
from gradcheck_cli.graph import Array

MAX_ARRAY_BYTES = 2 << 30
_FAILURES = (OSError, ValueError, RuntimeError, MemoryError)  # of paths that lead in circles, and of files
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder of a spec: the only place from which it may read."""

    root: Path

    def array(self, path: str, key: str | None, spot: Spot) -> Array:
        """The array of a .npy file, or the one called `key` of a .npz file."""
        file = self.inside(path, spot)
        if file.suffix == ".npz":
            return _attempt(lambda: _read_member(file, path, key, spot), path, spot)
        if file.suffix != ".npy":
            raise spot.error(f"{path!r} is neither a .npy nor a .npz file")
        if key is not None:
            raise spot.error(f"{path!r} holds a single array; leave out the key {key!r}")
        return _attempt(lambda: read_npy(file, MAX_ARRAY_BYTES), path, spot)

    def names(self, path: str, spot: Spot) -> tuple[str, ...]:
        """Names of the arrays in a .npz file."""
        file = self.inside(path, spot)
        if file.suffix != ".npz":
            raise spot.error(f"{path!r} is no .npz file, so its arrays have no names")
        return _attempt(lambda: tuple(Npz(file, MAX_ARRAY_BYTES)), path, spot)

    def inside(self, path: str, spot: Spot) -> Path:
        """The file at a path relative to the folder; refused if it lies elsewhere, by a link too."""
        file = _attempt(lambda: self._meant(path, spot), path, spot)
        if not _attempt(file.is_file, path, spot):
            raise spot.error(f"there is no file {path!r} in the spec's folder")
        return file

    def _meant(self, path: str, spot: Spot) -> Path:
        try:
            return inside(self.root, path, "the spec's folder")
        except ValueError as error:
            raise spot.error(str(error)) from None


def _attempt(read: Callable[[], _Read], path: str, spot: Spot) -> _Read:
    try:
        return read()
    except SpecError:
        raise
    except _FAILURES as error:
        raise spot.error(f"{path!r} cannot be read: {error}") from None


def _read_member(file: Path, path: str, key: str | None, spot: Spot) -> Array:
    arrays = Npz(file, MAX_ARRAY_BYTES)
    if key is None and len(arrays) == 1:
        key = next(iter(arrays))
    if key is None or key not in arrays:
        known = ", ".join(list(arrays)[:10])
        several = f"has {len(arrays)} arrays; choose one by key: {known}"
        wrong = f"has no array {key!r}; it has {known}" if key else several
        raise spot.error(f"{path!r} {wrong}.{did_you_mean(key or '', arrays)}")
    return arrays[key]
