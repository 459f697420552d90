"""Results as a table: Markdown to read on stdout, JSON beside it in `benchmarks/results/`."""

from __future__ import annotations

import json
import os
import platform
import re
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"
_PEERS = ("numpy", "onnx", "onnxruntime", "torch", "jax", "tensorflow-cpu", "numdifftools")


@dataclass(slots=True)
class Table:
    """Rows under a head of column names."""

    title: str
    head: tuple[str, ...]
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)  # of peers that ran in environments of their own

    def add(self, *cells: Any) -> None:
        """One more row."""
        self.rows.append(cells)

    def markdown(self) -> str:
        """The table as Markdown, with the machine and the versions below."""
        lines = [self.head, ("---",) * len(self.head), *([_cell(c) for c in row] for row in self.rows)]
        return "\n".join(
            [f"## {self.title}", "", *(f"| {' | '.join(line)} |" for line in lines), "", _said(self.machine)]
        )

    @property
    def machine(self) -> dict[str, Any]:
        """What the figures depend on."""
        here = machine()
        return {**here, "versions": {**here["versions"], **self.versions}}


def write(table: Table) -> None:
    """Prints the table and keeps it as JSON."""
    print(table.markdown())
    FOLDER.mkdir(exist_ok=True)
    found = {
        "title": table.title,
        **table.machine,
        "rows": [dict(zip(table.head, row, strict=True)) for row in table.rows],
    }
    name = re.sub(r"\W+", "-", table.title.lower())
    (FOLDER / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": _versions(),
    }


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    named = re.search(r"model name\s*: (.*)", text)
    return named[1] if named else platform.processor()


def _versions() -> dict[str, str]:
    found = {}
    for name in _PEERS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _said(facts: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    return f"{facts['processor']}, {facts['cores']} cores; Python {facts['python']}, {versions}"
