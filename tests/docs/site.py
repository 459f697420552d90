"""The documentation as a site: built once, and the code that makes its reference."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from gradcheck_cli.errors import DOCUMENTATION
from tests.docs.sessions import ROOT


@cache
def reference() -> ModuleType:
    """docs/reference.py, which lies outside of every package."""
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Builds the site into a folder, as CI does: a warning is an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", "docs/mkdocs.yml", "-d", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)


def file_of(address: str, site: Path) -> Path:
    """The file of the site that an address of the documentation opens."""
    assert address.startswith(DOCUMENTATION)
    return site / address.removeprefix(DOCUMENTATION).partition("#")[0] / "index.html"
