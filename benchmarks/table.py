"""Results as tables: Markdown to read, JSON beside it, with the machine and the versions that the figures depend on."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gradcheck_cli import native

FOLDER = Path(__file__).parent / "results"
_PEERS = ("gradcheck-cli", "numpy", "onnx", "onnxruntime", "torch", "jax", "tensorflow-cpu", "numdifftools", "autograd")


@dataclass(slots=True)
class Table:
    """Rows under a head of column names; `note` says how to read it."""

    title: str
    head: tuple[str, ...]
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)  # of peers that ran in environments of their own
    note: str = ""

    def add(self, *cells: Any) -> None:
        """One more row."""
        self.rows.append(cells)

    def markdown(self) -> str:
        """The table as Markdown."""
        lines = [self.head, ("---",) * len(self.head), *([_cell(c) for c in row] for row in self.rows)]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return "\n\n".join(part for part in (f"## {self.title}", self.note, table) if part)

    @property
    def records(self) -> list[dict[str, Any]]:
        """The rows by the names of the columns."""
        return [dict(zip(self.head, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts of a machine that the figures depend on."""

    processor: str
    cores: int
    kernels: str
    python: str
    versions: dict[str, str]

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return f"{self.processor}, {self.cores} cores; kernels: {self.kernels}; Python {self.python}, {versions}"


def write(table: Table, folder: Path = FOLDER) -> None:
    """Prints one table and keeps it as JSON."""
    here = machine()
    here.versions.update(table.versions)
    print(f"{table.markdown()}\n\n{here}")
    folder.mkdir(parents=True, exist_ok=True)
    found = {"title": table.title, **asdict(here), "rows": table.records}
    name = re.sub(r"\W+", "-", table.title.lower())
    (folder / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


def write_all(tables: Sequence[Table], seconds: float, folder: Path = FOLDER) -> None:
    """All tables as one Markdown file and one JSON file."""
    folder.mkdir(parents=True, exist_ok=True)
    said = f"{machine()}; all of it took {seconds / 60:.1f} min"
    text = "\n\n".join(["# gradcheck, measured", said, *(table.markdown() for table in tables)])
    (folder / "benchmarks.md").write_text(text + "\n")
    found = {**asdict(machine()), "seconds": round(seconds, 1), "tables": {t.title: t.records for t in tables}}
    (folder / "benchmarks.json").write_text(json.dumps(found, indent=1) + "\n")


@cache
def machine() -> Machine:
    """This machine, and what is installed on it."""
    versions = {name: _version(name) for name in _PEERS}
    return Machine(_processor(), os.cpu_count() or 1, _kernels(), platform.python_version(), versions)


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    named = re.search(r"model name\s*: (.*)", text)
    return named[1] if named else platform.processor()


def _kernels() -> str:
    info = native.info()
    return f"{info['kernels']} {info['isa']}" if info["kernels"] == "native" else str(info["kernels"])


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
