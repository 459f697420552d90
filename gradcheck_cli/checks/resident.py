"""How much memory groups of processes hold, as Linux tells it; nothing elsewhere."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

_HELD = (b"RssAnon", b"RssShmem")  # what is mapped from files can be dropped at any time
_GROUP = 2  # where a line of /proc/*/stat has the process group, counted from behind the name


def resident(process: int) -> int:
    """Bytes of its own that a process has in memory."""
    with suppress(OSError, ValueError):
        rows = (line.split() for line in Path(f"/proc/{process}/status").read_bytes().splitlines())
        return sum(int(row[1]) << 10 for row in rows if row[0].rstrip(b":") in _HELD)
    return 0


def members(groups: Collection[int]) -> dict[int, list[int]]:
    """The processes of each group."""
    found: dict[int, list[int]] = {group: [] for group in groups}
    with suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdecimal() and (group := _group(int(name))) in found:
                found[group].append(int(name))
    return found


def _group(process: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{process}/stat").read_bytes().rpartition(b") ")[2].split()[_GROUP])
    return 0
