"""Arrays in .npy and .npz files from untrusted sources.

Nothing is unpickled, and nothing is allocated before its bytes are known to be there, whatever a header claims and
however small an archive is.  A bad file raises a ValueError or an OSError, one that does not fit a MemoryError.
"""

from __future__ import annotations

import math
import os
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO

import numpy as np

from gradcheck_cli.errors import shown
from gradcheck_cli.formats.untrusted import opened
from gradcheck_cli.graph import MAX_RANK, Array
from gradcheck_cli.graph.memory import require, spell

_BLOCK = 1 << 20
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_KNOWN_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # those that NumPy writes


def read_npy(path: str | os.PathLike[str], most: int | None = None) -> Array:
    """The array of a .npy file; a ValueError if it has more than `most` bytes."""
    with _as_value_errors(), opened(path) as file:
        return _array(file, os.fstat(file.fileno()).st_size, most)


class Npz(Mapping[str, Array]):
    """The arrays of a .npz file by name, each read on access; a ValueError if they have more than `most` bytes."""

    def __init__(self, path: str | os.PathLike[str], most: int | None = None) -> None:
        self.path, self.most = path, most
        with _as_value_errors(), opened(path) as file, zipfile.ZipFile(file) as archive:
            self._members = {each.filename.removesuffix(".npy"): each for each in archive.infolist()}
        total = sum(each.file_size for each in self._members.values())
        if most is not None and total > most:
            raise ValueError(f"its arrays take {spell(total)}, more than {spell(most)}")

    def __getitem__(self, name: str) -> Array:
        member = self._members[name]
        with _as_value_errors(), opened(self.path) as file, zipfile.ZipFile(file) as archive:
            if member.compress_type not in _KNOWN_COMPRESSIONS:
                raise ValueError(f"{shown(name)} is compressed in a way that NumPy does not know")
            with archive.open(member) as stream:
                return _array(stream, member.file_size, self.most)

    def __contains__(self, name: object) -> bool:
        return name in self._members  # without reading the array

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


def _array(stream: IO[bytes], size: int, most: int | None) -> Array:
    """The array in a stream of `size` bytes."""
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"version {'.'.join(map(str, version))} of NumPy's format is not known")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of Python 2, whose integers are written 4L
        shape, fortran, dtype = _HEADERS[version](stream)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not unpickled")
    if dtype.kind in "mM" or dtype.names:  # which NumPy turns into numbers where it is asked for some
        raise ValueError(f"it holds {'records' if dtype.names else 'dates'}, and no numbers")
    if len(shape) > MAX_RANK or any(length < 0 for length in shape):
        raise ValueError(f"its shape {str(shape)[:60]} is none")
    wanted, there = math.prod(shape) * dtype.itemsize, size - stream.tell()
    if wanted > there:
        raise ValueError(f"its header asks for {wanted:,} bytes, and {there:,} are there")
    if most is not None and wanted > most:
        raise ValueError(f"it takes {spell(wanted)}, more than {spell(most)}")
    require(wanted, "its array")
    values = _read(stream, wanted).view(dtype)
    return values.reshape(shape[::-1]).T if fortran else values.reshape(shape)


def _read(stream: IO[bytes], size: int) -> Array:
    data = np.empty(size, np.uint8)
    at = 0
    while at < size:
        block = stream.read(min(size - at, _BLOCK))
        if not block:
            raise ValueError("it ends before its last number")
        data[at : at + len(block)] = np.frombuffer(block, np.uint8)
        at += len(block)
    return data


@contextmanager
def _as_value_errors() -> Iterator[None]:
    """Turns the various exceptions of zipfile and NumPy for damaged files into ValueErrors."""
    try:
        yield
    except (OSError, ValueError, MemoryError):
        raise
    except zipfile.BadZipFile as error:
        raise ValueError(str(error)) from None
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
