"""Records of many models: time and memory of whatever reads them again once a run is over.

The records are those of real checks of a few small models, right and wrong, each written over and over under names of
its own to the store of a run, as `gradcheck zoo` would.  Every command then runs in a process of its own; its memory is
given beyond that of the same command over ten records, so that what is left grows with the records alone.

python -m benchmarks.records
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import zoo
from benchmarks.alone import alone
from benchmarks.table import Table, write

TITLE = "Records of many models"
COMMANDS: dict[str, tuple[str, ...]] = {  # {run}: the folder of the run, {out}: a folder for files
    "status": ("status", "{run}"),
    "diff": ("diff", "{run}", "{run}"),
    "json": ("report", "{run}", "-o", "{out}/all.json"),
    "jsonl": ("report", "{run}", "-o", "{out}/all.jsonl"),
    "junit": ("report", "{run}", "-o", "{out}/all.xml"),
    "markdown": ("report", "{run}", "-o", "{out}/all.md"),
    "html, a page": ("report", "{run}", "-o", "{out}/all.html"),
    "html, a folder": ("report", "{run}", "-o", "{out}/pages/"),
}
_WRONG = 100  # one record of so many is that of a wrong gradient
_WRITTEN = 1000  # records that are written at once
_LEAST = 10  # records with which the memory of a command is compared
_NAME, _DIGEST, _KEY = "models/---------.onnx", b"d" * 64, b"k" * 32  # in the lines that are written over and over
_SPEC = """gradcheck: 1
graphs:
  g:
    inputs: {x: {shape: [2, 6]}}
    nodes:
      - {op: own.Soft, inputs: [x], outputs: [y]}
    outputs: [y]
ops:
  own.Soft:
    inputs: [x]
    outputs: [y]
    forward: "y = Softmax (x)"
    gradient: "dx = Mul (dy, y)"
checks:
  - {graph: g}
"""


def tables(quick: bool = False) -> Iterator[Table]:
    """One table: each command by the number of records."""
    head = ("command", "records", "wall, s", "memory, MB", "grew by, MB", "written, MB")
    table = Table(TITLE, head, note="Memory is the most that the command's process had.")
    with tempfile.TemporaryDirectory() as folder:
        least = {name: _measured(folder, name, _LEAST)[1] for name in COMMANDS}
        for count in (100,) if quick else (10_000, 100_000):
            for name in COMMANDS:
                wall, most, size = _measured(folder, name, count)
                table.add(name, count, wall, most, most - least[name], size)
    yield table


def _measured(folder: str, name: str, count: int) -> tuple[float, float, float]:
    """Seconds and megabytes of a command over so many records, and the megabytes that it wrote."""
    run = Path(folder, f"run-{count}")
    if not run.exists():
        alone("benchmarks.records:prepare", folder=folder, count=count)
    with tempfile.TemporaryDirectory(dir=folder) as out:
        words = [word.format(run=run, out=out) for word in COMMANDS[name]]
        wall, most = alone("benchmarks.records:command", words=words)
        return wall, most, sum(path.stat().st_size for path in Path(out).rglob("*") if path.is_file()) / 1e6


def prepare(folder: str, count: int) -> None:
    """The folder of a run with so many records."""
    from gradcheck_cli.zoo.store import About, Store, write_about

    right, wrong = _lines(Path(folder, f"templates-{count}"))
    target, names = Path(folder, f"run-{count}"), [f"models/{number:09}.onnx" for number in range(count)]
    with Store(target) as store:
        for start in range(0, count, _WRITTEN):
            some = range(start, min(start + _WRITTEN, count))
            lines = (wrong if each % _WRONG == _WRONG - 1 else right[each % len(right)] for each in some)
            store.append_raw(b"".join(_named(line, names[each]) for line, each in zip(lines, some, strict=True)))
    write_about(target, About(("models",), {}, folder, jobs=tuple(names)))


def _named(line: bytes, name: str) -> bytes:
    """The line of a record, as if it were that of a model of this name."""
    digest = hashlib.sha256(name.encode()).hexdigest().encode()
    return line.replace(_NAME.encode(), name.encode()).replace(_DIGEST, digest).replace(_KEY, digest[:32])


def _lines(folder: Path) -> tuple[list[bytes], bytes]:
    """Lines of a store: of models that pass, and of one whose gradient is wrong, under a name and digests to replace."""
    from gradcheck_cli.zoo.store import RECORDS, Store

    folder.mkdir()
    spec = folder / "wrong.gradcheck.yaml"
    spec.write_text(_SPEC)
    with Store(folder / "run") as store:
        for path in (*zoo.prepare(folder, len(zoo.MODELS)), str(spec)):
            found = json.dumps(_records(path)).replace(path, _NAME)
            found = re.sub(r'"sha256": "[0-9a-f]{64}"', f'"sha256": "{_DIGEST.decode()}"', found)
            store.append(_NAME, _KEY.decode(), json.loads(found))
    *right, wrong = (folder / "run" / RECORDS).read_bytes().splitlines(keepends=True)
    return right, wrong


def _records(path: str) -> list[Mapping[str, Any]]:
    """The records of the check of a file."""
    from gradcheck_cli.cli.zoo.child_check import records
    from gradcheck_cli.zoo import Job
    from gradcheck_cli.zoo.child import Desk, Errand

    job = Job(path, path, options={"save_failures": "none"}, key=path)
    with open(os.devnull, "wb") as nobody:
        return [*records(job, Desk(Errand(job, "", None, 8 << 30, 8 << 30), nobody.fileno()))]


def command(words: list[str]) -> float:
    """The seconds that `gradcheck zoo` takes with these words, with its output thrown away."""
    from gradcheck_cli.cli import main

    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        code = main(["zoo", *words])
    if code not in (0, 1):
        raise RuntimeError(f"gradcheck zoo {' '.join(words)}: {code}, {said.getvalue()}")
    return time.perf_counter() - start


if __name__ == "__main__":
    for made in tables():
        write(made)
