"""The memory that is left, which a model's requests are compared with before anything is allocated.

Shapes come from files: a few bytes may ask for terabytes.  `require` is for arrays whose size is known before they are
made; `held` has the system refuse every allocation beyond.  Either way it is a MemoryError, which becomes a LimitError
where the node that asked is known.
"""

from __future__ import annotations

import gc
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TypeGuard

import numpy as np

from gradcheck_cli.errors import LimitError
from gradcheck_cli.graph import Array

_UNKNOWN = 64 << 30  # bytes: assumed for a machine that does not tell
_ENDLESS = sys.maxsize
_ADDRESSED = 1 << 62  # bytes: NumPy refuses larger shapes, even with a dimension of 0
_CHEAP = 32 << 20  # bytes: smaller requests are not checked
_BEYOND = 1 << 64  # a size larger than any address
_FOUR_DIGITS = 999.5  # 1022 MiB is less than one GiB
_MOMENT, _FAR = 0.05, 16  # seconds, and how many times as much is far more
_NO_THREAD = ("Resource temporarily unavailable", "can't start new thread")  # said by C++, and by Python
_GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")  # this process's control groups, and their mount point
_OF_GROUPS = (  # files of a group in version 2 and in version 1: its limit, its use, and its statistics
    ("memory.max", "memory.current", "memory.stat"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"),
)


class TooLarge(MemoryError):
    """A request for `size` bytes, more than the memory that is left."""

    def __init__(self, message: str, size: float = 0.0) -> None:
        super().__init__(message)
        self.size = size


def require(size: float, what: str) -> None:
    """Raises TooLarge if `what` takes more than the memory that is left; `size` in bytes."""
    if size > _CHEAP and size > (there := _lately(size)):
        raise TooLarge(f"{what} takes {spell(size)}, and {spell(there)} of memory are left", size)


def _lately(size: float) -> int:
    """Bytes left within this process's limits, and elsewhere now, or a moment ago if those are far more than `size`.

    Asking about the machine and the container takes half a millisecond.
    """
    now = time.monotonic()
    if now > _Measured.time + _MOMENT or size * _FAR > _Measured.left:
        _Measured.time, _Measured.left = now, _elsewhere()
    return max(0, min(_of_limits(), _Measured.left))


class _Measured:
    """The memory that machine and container had left, and when."""

    time, left = -math.inf, 0


def require_shape(shape: Sequence[int], what: str = "a tensor") -> None:
    """Raises MemoryError for a shape whose entries, at 8 bytes each, do not fit into the memory that is left."""
    size = 8.0 * math.prod(float(min(d, _BEYOND)) for d in shape if d)
    if size > _CHEAP and (0 not in shape or size > _ADDRESSED):
        require(size, f"{what} of shape {_brief(shape)}")


def require_broadcast(arrays: Sequence[Array | None]) -> None:
    """Raises MemoryError if the operands of an elementwise operator broadcast to a result that does not fit."""
    if 8 * math.prod(x.size for x in arrays if x is not None) > _CHEAP:
        with suppress(ValueError):  # operands that do not broadcast: the operator raises the better error
            require_shape(np.broadcast_shapes(*[x.shape for x in arrays if x is not None]), "a result")


class Owned:
    """Bytes of arrays that are added one after another, memory shared by views counted once."""

    def __init__(self) -> None:
        self.bytes, self._seen = 0, set[int]()

    def add(self, arrays: Iterable[Array]) -> int:
        """Counts more arrays, which must stay alive; the bytes of all so far."""
        for base in map(_base, arrays):
            if id(base) not in self._seen:
                self._seen.add(id(base))
                self.bytes += base.nbytes
        return self.bytes


def _base(array: Array) -> Array:
    """The array whose memory a view shows."""
    while isinstance(array.base, type(array)):
        array = array.base
    return array


def is_of_memory(error: BaseException) -> TypeGuard[MemoryError | LimitError | RuntimeError]:
    """True if memory did not suffice, be it for a thread, and not another limit."""
    if isinstance(error, RuntimeError):
        return any(text in str(error) for text in _NO_THREAD)
    return isinstance(error, MemoryError) or (isinstance(error, LimitError) and error.code == "GC602")


def exhausted(error: MemoryError | LimitError | RuntimeError, where: str = "", least: float = 0.0) -> LimitError:
    """The error for users when memory, or another limit, did not suffice; at least `least` bytes are needed."""
    place = f"{where}: " if where else ""
    if isinstance(error, LimitError):
        return LimitError(f"{place}{error}", code=error.code)
    what = "no room for a thread" if isinstance(error, RuntimeError) else _refused(error)
    least = max(least, _reached(error))
    hint = f"{_allowing(_asked(error), least)}smaller sizes (--x-shape, --dim) or a lower --jobs need less"
    return LimitError(f"{place}{what}; {hint}", code="GC602")


def _refused(error: MemoryError) -> str:
    """The array that memory did not suffice for, in our words where NumPy has its own."""
    if isinstance(error, TooLarge) or not (size := _asked(error)):
        return str(error) or "out of memory"
    return f"no room for an array of {spell(size)}"


def _asked(error: MemoryError | RuntimeError) -> float:
    """Bytes whose allocation failed; 0 if unknown."""
    if isinstance(error, TooLarge):
        return error.size
    shape, dtype = (getattr(error, name, None) for name in ("shape", "dtype"))  # of NumPy's _ArrayMemoryError
    return math.prod(map(float, shape)) * dtype.itemsize if shape is not None and dtype is not None else 0.0


def _allowing(asked: float, least: float) -> str:
    """A hint for messages: the memory limit that would be needed, if the machine has as much."""
    size = asked
    with suppress(OSError, ValueError, KeyError):
        size += _status("VmData") if asked else 0
    size = max(size, least)
    fits = (
        f"the check needs --memory-limit {generous(size)} or more; "
        if size < most()
        else "this machine has no room for it; "
    )
    return fits if size else ""


def _reached(error: MemoryError | RuntimeError) -> float:
    """Bytes of the limit that NumPy met when it asked for memory, which may be free again; 0 if it met none."""
    if isinstance(error, TooLarge) or not _asked(error):
        return 0.0
    with suppress(ImportError, OSError):
        import resource

        soft = resource.getrlimit(resource.RLIMIT_DATA)[0]
        return 0.0 if soft == resource.RLIM_INFINITY else soft
    return 0.0


def generous(size: float) -> str:
    """A limit that allows `size` bytes and a tenth more, as one types it."""
    unit, power = ("GiB", 30) if typed(size) > 1 << 30 else ("MiB", 20)
    return f"{-(-int(typed(1.1 * size)) >> power)}{unit}"


class _Part:
    """The part of the limit that was typed which the checks of this process get."""

    share = 1.0


def has_part(share: float) -> None:
    """Tells messages of this process that its checks get a part of the limit that is typed."""
    _Part.share = share


def typed(limit: float) -> float:
    """The limit that has to be typed, of which a check gets `limit` bytes."""
    return limit / _Part.share


def release(error: BaseException) -> None:
    """Frees what the frames hold that an error came through, which its traceback keeps alive with all their arrays."""
    import traceback  # only where memory ran out

    each: BaseException | None = error
    while each is not None:
        traceback.clear_frames(each.__traceback__)
        each = each.__cause__ or each.__context__
    gc.collect()


@contextmanager
def held(limit: float = math.inf) -> Iterator[None]:
    """In the block, allocations beyond the memory that is left now, and beyond `limit` bytes, raise MemoryError.

    On systems that cannot do that, nothing is bounded.
    """
    before = _lower(limit)
    try:
        yield
    finally:
        if before is not None:
            import resource

            resource.setrlimit(resource.RLIMIT_DATA, before)


def left() -> int:
    """Bytes that this process can still get: from its machine, its container, and within its own limits."""
    return max(0, min(_of_limits(), _elsewhere()))


def _elsewhere() -> int:
    """Bytes that the machine and the container have left."""
    return min(_of_machine(), *(_left_in(*group) for group in groups(*_GROUPS)))


def installed() -> int:
    """Bytes of memory in this machine."""
    with suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return _UNKNOWN


def spell(size: float) -> str:
    """Bytes in text: 30 GiB."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB")):
        if size >= 1 << 10 * power:
            number = size / (1 << 10 * power)
            return f"{number:.3g} {unit}" if number < _FOUR_DIGITS else f"{number:.0f} {unit}"
    return f"{size / 1024:.3g} KiB"


def _brief(shape: Sequence[int]) -> str:
    sizes = [str(size) if size < _BEYOND else f"2^{size.bit_length()}" for size in shape]
    return f"[{','.join(sizes if len(sizes) <= 8 else [*sizes[:6], '...', sizes[-1]])}]"


def _lower(limit: float) -> tuple[int, int] | None:
    """Limits the process to the memory it has and may get; gives the limits before, None if the system has none."""
    with suppress(ImportError, OSError, ValueError, KeyError):
        import resource

        before = resource.getrlimit(resource.RLIMIT_DATA)
        bounds = [bound for bound in before if bound != resource.RLIM_INFINITY]
        most_data = _status("VmData") + int(min(left(), max(limit, _CHEAP)))
        resource.setrlimit(resource.RLIMIT_DATA, (min([most_data, *bounds]), before[1]))
        return before
    return None


def _of_machine() -> int:
    with suppress(OSError, ValueError, KeyError):
        return sum(_kilobytes("/proc/meminfo", "MemAvailable", "SwapFree"))
    return installed()


def _left_in(folder: Path, files: Sequence[str]) -> int:
    """Bytes that a control group leaves; files in the page cache count as used there and can be dropped."""
    with suppress(OSError, ValueError, KeyError):
        most, used, counts = ((folder / file).read_text() for file in files)
        dropped = int(dict(line.split() for line in counts.splitlines())["inactive_file"])
        return int(most) - int(used) + dropped
    return _ENDLESS


def groups(table: Path, mount: Path) -> list[tuple[Path, Sequence[str]]]:
    """The control groups that bound the memory of a process, its own and all around it, with their files.

    A container sees its own group as the root, whatever the table says.
    """
    second, first = _OF_GROUPS
    found = dict.fromkeys([(mount, second), (mount / "memory", first)])
    with suppress(OSError):
        for _, kinds, path in (line.split(":", 2) for line in table.read_text().splitlines() if line.count(":") > 1):
            if not kinds or "memory" in kinds.split(","):
                root, files = (mount / "memory", first) if kinds else (mount, second)
                place = root / path.lstrip("/")
                found.update(dict.fromkeys((at, files) for at in (place, *place.parents) if at.is_relative_to(root)))
    return list(found)


def most(table: Path = _GROUPS[0], mount: Path = _GROUPS[1]) -> int:
    """Bytes that this process could have if nothing else ran: all of the machine, or the limit of its control group."""
    bounds = [installed()]
    for folder, files in groups(table, mount):
        with suppress(OSError, ValueError):  # "max"
            bounds.append(int((folder / files[0]).read_text()))
    return min(bounds)


@cache
def allowed(limit: int | None = None) -> int:
    """Bytes that a check may take: the limit that was given, else half of `most`."""
    return min(limit, _ADDRESSED) if limit else max(1, most() // 2)


def _of_limits() -> int:
    """Bytes that the limits of the process leave (ulimit -v, -d)."""
    with suppress(ImportError, OSError, ValueError, KeyError):
        import resource

        pairs = ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData"))
        soft = [(resource.getrlimit(kind)[0], used) for kind, used in pairs]
        return min([_ENDLESS, *(limit - _status(used) for limit, used in soft if limit != resource.RLIM_INFINITY)])
    return _ENDLESS


def _status(name: str) -> int:
    return _kilobytes("/proc/self/status", name)[0]


def _kilobytes(path: str, *names: str) -> list[int]:
    """Rows `name: 123 kB` of a file of the kernel, in bytes."""
    rows = dict(line.split(":", 1) for line in Path(path).read_text().splitlines())
    return [int(rows[name].split()[0]) << 10 for name in names]
