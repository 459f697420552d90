"""Puts the measured goals into README.md, between its two marks: figures are never typed.

python -m benchmarks.readme [--results DIR] [README]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.table import FOLDER, Machine, Table

BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"


def section(results: dict[str, Any]) -> str:
    """The goals as Markdown, with the machine and the versions."""
    rows = results["tables"]["Goals"]
    table = Table("", tuple(rows[0]), [tuple(row.values()) for row in rows])
    here = Machine(**{name: results[name] for name in Machine.__slots__})
    return f"{BEGIN}\n{table.markdown().removeprefix('## ').strip()}\n\n{here}.\n{END}"


def replaced(text: str, new: str) -> str:
    """The text with what stands between the marks replaced."""
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise SystemExit(f"README has no section between {BEGIN} and {END}")
    return before + new + after


def main() -> None:
    """Rewrites the file."""
    parser = argparse.ArgumentParser("python -m benchmarks.readme", description=__doc__.split("\n")[0])
    parser.add_argument("readme", nargs="?", type=Path, default=Path("README.md"))
    parser.add_argument("--results", type=Path, default=FOLDER)
    given = parser.parse_args()
    results = json.loads((given.results / "benchmarks.json").read_text())
    given.readme.write_text(replaced(given.readme.read_text("utf-8"), section(results)), "utf-8")


if __name__ == "__main__":
    main()
