"""Puts what was measured into the documentation, between its two marks: figures are never typed.

python -m benchmarks.readme [--results DIR] [PAGE]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.table import FOLDER, Machine, Table

PAGE = Path("docs/pages/method/comparison.md")
BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"


WAYS = {
    "torch slow": "torch.autograd.gradcheck",
    "tensorflow": "tf.test.compute_gradient",
    "jax": "JAX, compiled before",
    "jax with compiling": "with compiling",
    "numdifftools": "numdifftools",
}


def section(results: dict[str, Any]) -> str:
    """Full checks beside those of other libraries as Markdown, with the machine and the versions."""
    table = beside_others(results["tables"]["Jacobians"])
    here = Machine(**{name: results[name] for name in Machine.__slots__})
    return f"{BEGIN}\n{table.markdown().removeprefix('## ').strip()}\n\n{here}.\n{END}"


def beside_others(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A line for each function: what its full check takes, and how many times longer others take."""
    table = Table("", ("full check of", "gradcheck", *(f"{name} takes" for name in WAYS.values())))
    for case in dict.fromkeys(row["case"] for row in rows):
        mine = {row["way"]: row for row in rows if row["case"] == case}
        others = (_times(mine.get(way, {}).get("auto: times faster")) for way in WAYS)
        table.add(case, f"{1e3 * mine['auto']['seconds']:.3g} ms", *others)
    return table


def _times(ratio: Any) -> str:
    return f"x {float(f'{ratio:.2g}'):g}" if isinstance(ratio, int | float) else "-"


def replaced(text: str, new: str) -> str:
    """The text with what stands between the marks replaced."""
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise SystemExit(f"the page has no section between {BEGIN} and {END}")
    return before + new + after


def main() -> None:
    """Rewrites the file."""
    parser = argparse.ArgumentParser("python -m benchmarks.readme", description=__doc__.split("\n")[0])
    parser.add_argument("page", nargs="?", type=Path, default=PAGE)
    parser.add_argument("--results", type=Path, default=FOLDER)
    given = parser.parse_args()
    results = json.loads((given.results / "benchmarks.json").read_text())
    given.page.write_text(replaced(given.page.read_text("utf-8"), section(results)), "utf-8")


if __name__ == "__main__":
    main()
