"""Puts into pages what their commands print now, where that is not what stands there; lines of dots are lost.

python -m tests.docs.refresh [PAGE.md ...]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.docs.sessions import DOCUMENTS, fill, performed, shell_blocks


def refresh(path: Path) -> int:
    """Rewrites a page; gives the number of outputs that have changed."""
    text, at, changed = path.read_text("utf-8"), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        steps = performed(shell_blocks(path), fill(Path(folder)))
    for step in steps:
        old, new = (f"$ {step.command}\n{output}" for output in (step.shown, f"{step.printed.rstrip()}\n".lstrip("\n")))
        found = text.find(old, at)
        if found >= 0 and not step.agrees:
            text, changed = text[:found] + new + text[found + len(old) :], changed + 1
        at = max(at, found + 1)
    path.write_text(text, "utf-8")
    return changed


if __name__ == "__main__":
    for page in map(Path, sys.argv[1:] or map(str, DOCUMENTS.values())):
        print(f"{page}: {refresh(page)} outputs brought up to date")
