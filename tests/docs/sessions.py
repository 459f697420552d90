"""Commands as the documentation shows them, each with what is printed below it: found, run, and compared.

A ```console block is a session: commands stand behind `$ `, their output below.  A block with a title, as in
```yaml title="net.gradcheck.yaml", is a file that the reader writes.  All that a page shows runs in one shell, in the
order in which it stands there.  Three things may differ: times; rounding errors, which are numbers below 1e-6 in
scientific notation and the digits that are left of a gradient in the model's own dtype; and what a line of dots leaves out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = {path.relative_to(ROOT).as_posix(): path for path in sorted((ROOT / "docs" / "pages").rglob("*.md"))}
DOCUMENTS = {"README.md": ROOT / "README.md", **PAGES}
FENCE = re.compile(r"^( *)```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
MARK = "<<next command>>"


class Block(NamedTuple):
    """A fenced block of a page: its language, its title and its text."""

    kind: str
    title: str
    text: str


def blocks(path: Path, *kinds: str) -> list[Block]:
    """The fenced blocks of some kinds in a Markdown file; without any, all of them."""
    found = FENCE.finditer(path.read_text("utf-8"))
    every = (Block(each[2], each[3] or "", _included(_outdented(each[4], each[1]))) for each in found)
    return [block for block in every if not kinds or block.kind in kinds]


def _outdented(text: str, indent: str) -> str:
    return "".join(line.removeprefix(indent) for line in text.splitlines(keepends=True))


def _included(text: str) -> str:
    """A text with the files that it includes."""
    return re.sub(r'^--8<-- "(.+)"$\n?', lambda found: (ROOT / found[1]).read_text("utf-8"), text, flags=re.MULTILINE)


def shell_blocks(path: Path) -> list[Block]:
    """The sessions of a page, and the files that its reader writes."""
    return [block for block in blocks(path) if block.kind == "console" or block.title]


def sessions(text: str) -> list[tuple[str, str]]:
    """Commands behind `$ `, each with what is printed below it."""
    parts = re.split(r"^\$ (.*)\n", text, flags=re.MULTILINE)[1:]
    return [(command, output) for command, output in zip(parts[::2], parts[1::2], strict=True)]


def header(path: Path) -> str:
    """The docstring or the comment that a file opens with, without its margin."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        doc = text.split('"""')[1]
        return "\n".join(line.removeprefix("    ") for line in doc.splitlines())
    lines = text.split("\n\n")[0].splitlines() if text.startswith("#") else []
    return "\n".join(line.removeprefix("#").removeprefix("   ") for line in lines)


def fill(place: Path) -> Path:
    """A working folder with the models that the documentation speaks of, and without the sources."""
    for name in ("examples", "specs"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    return place


def environment() -> dict[str, str]:
    """The programs of this Python first, a terminal of 80 columns, no settings from around."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GRADCHECK_", "PYTEST", "COV"))}
    programs = [sysconfig.get_path("scripts"), str(Path(sys.executable).parent), kept.get("PATH", "")]
    path = os.pathsep.join(programs)
    return {**kept, "PATH": path, "COLUMNS": "80", "NO_COLOR": "1", "PYTHONWARNINGS": "error"}


def run(commands: list[str], folder: Path) -> list[str]:
    """Output of each command on both streams, in one shell."""
    script = "\n".join(f"{command}\n__status=$?; echo '{MARK}'; (exit $__status)" for command in commands)
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment(), text=True, timeout=600,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.stdout.split(f"{MARK}\n")[:-1]


def commands(shown: list[Block]) -> list[tuple[str, str]]:
    """The commands of some blocks with what they print; a titled block is a command that writes the file."""
    return [step for block in shown for step in (_written(block) if block.title else sessions(block.text))]


def _written(block: Block) -> list[tuple[str, str]]:
    return [(f"cat > '{block.title}' <<'<<end of file>>'\n{block.text}<<end of file>>", "")]


def normalized(text: str) -> list[str]:
    """Lines without times and rounding errors."""
    text = re.sub(r"\bin \d[\d.]*s\b", "in TIME", text)
    text = re.sub(r"\b(0\.0e\+00|\d(\.\d+)?e-(0[7-9]|[1-9]\d))\b", "ROUNDING", text)
    text = re.sub(r"keeps \S+ (of \S+ digits) at the median, \S+ at worst\s+\([^()]+\)", r"keeps ROUNDING \1", text)
    return [re.sub(r" +", " ", line).rstrip() for line in text.strip().splitlines()]


def agrees(wanted: list[str], found: list[str]) -> bool:
    """The same lines, where a line of dots stands for any number of lines."""
    if not wanted:
        return not found
    if wanted[0] == "...":
        return any(agrees(wanted[1:], found[i:]) for i in range(len(found) + 1))
    return bool(found) and wanted[0] == found[0] and agrees(wanted[1:], found[1:])


class Step(NamedTuple):
    """A command of a page, the output shown below it, and the one that it has."""

    command: str
    shown: str
    printed: str

    @property
    def agrees(self) -> bool:
        """True if nothing is shown that is not printed."""
        return agrees(normalized(self.shown), normalized(self.printed))


def performed(shown: list[Block], folder: Path) -> list[Step]:
    """The commands of some blocks, run in a folder."""
    wanted = commands(shown)
    outputs = run([command for command, _ in wanted], folder)
    assert len(outputs) == len(wanted), f"a command ended the shell, or had no end: {wanted[len(outputs)][0]}"
    return [Step(*each, output) for each, output in zip(wanted, outputs, strict=True)]
