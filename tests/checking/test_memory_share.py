"""The memory limit that nobody gave is half of what the machine or its control group has."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradcheck_cli.graph import memory
from gradcheck_cli.settings import Settings

GIB = 1 << 30
STAT = "anon 1\ninactive_file 4096\n"
SECOND = ("memory.max", "memory.current")
FIRST = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def machine(folder: Path, table: str, bounds: dict[str, str], files: tuple[str, str]) -> tuple[Path, Path]:
    """A table of groups, and a mounted tree of them with bounds by folder."""
    for place, bound in bounds.items():
        (folder / "mount" / place).mkdir(parents=True, exist_ok=True)
        for name, text in zip((*files, "memory.stat"), (bound, "8192", STAT), strict=True):
            (folder / "mount" / place / name).write_text(text)
    (folder / "table").write_text(table)
    return folder / "table", folder / "mount"


@pytest.mark.parametrize(
    ("table", "bounds", "files", "most"),
    [
        ("0::/\n", {".": f"{GIB}\n"}, SECOND, GIB),
        ("0::/a/b\n", {"a": f"{GIB}\n", "a/b": "max\n"}, SECOND, GIB),
        ("0::/a/b\n", {"a": f"{2 * GIB}\n", "a/b": f"{GIB}\n"}, SECOND, GIB),
        ("0::/a\n", {"a": "max\n", "other": f"{GIB}\n"}, SECOND, None),
        ("4:cpu,memory:/a\n0::/\n", {"memory": f"{1 << 62}\n", "memory/a": f"{GIB}\n"}, FIRST, GIB),
        ("4:cpu:/a\n", {"memory/a": f"{GIB}\n"}, FIRST, None),
        ("nonsense\n", {"memory": f"{GIB}\n"}, FIRST, GIB),
        ("0::/a\n", {"a": "nonsense\n"}, SECOND, None),
    ],
)
def test_the_tightest_group_around_a_process_counts(
    table: str, bounds: dict[str, str], files: tuple[str, str], most: int | None, tmp_path: Path
) -> None:
    assert memory.most(*machine(tmp_path, table, bounds, files)) == (most or memory.installed())


def test_without_groups_it_is_the_machine(tmp_path: Path) -> None:
    assert memory.most(tmp_path / "none", tmp_path / "nowhere") == memory.installed()


def test_the_default_limit_is_half_of_it() -> None:
    assert memory.allowed(Settings().memory_limit) == memory.most() // 2
    assert memory.allowed(1) == 1
