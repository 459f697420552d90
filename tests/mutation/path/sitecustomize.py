"""Every Python started with this folder on PYTHONPATH runs the package with compiled code from `$MUTATION_CODE` in it.

Processes that tests start thereby run the same mutant as the test.  `HITS` is one byte for each mutant, shared by all
processes: marked code sets it when it runs.
"""

from __future__ import annotations

import marshal
import mmap
import os
from importlib.machinery import SourceFileLoader
from pathlib import Path

_usual = SourceFileLoader.get_code
_root = Path(__file__).parents[3]


def _get_code(self: SourceFileLoader, fullname: str) -> object:
    """Code of a module: what the folder holds for its file, else what stands in the file."""
    path, folder = Path(self.path), os.environ.get("MUTATION_CODE")
    if folder and path.is_relative_to(_root):
        other = Path(folder, str(path.relative_to(_root)).replace("/", "."))
        if other.exists():
            return marshal.loads(other.read_bytes())
    return _usual(self, fullname)


SourceFileLoader.get_code = _get_code  # type: ignore[method-assign,assignment]
if "MUTATION_HITS" in os.environ:
    with open(os.environ["MUTATION_HITS"], "r+b") as _file:
        HITS = mmap.mmap(_file.fileno(), 0)
