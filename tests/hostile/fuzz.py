"""Gives spoiled files to everything that reads files, for as long as one likes, and prints what was tried.

    python -m tests.hostile.fuzz --minutes 60
    python -m tests.hostile.fuzz --minutes 5 --only results --only bundles
    python -m tests.hostile.fuzz --again findings/results-0

Each reader runs in a process of its own, under a limit of memory; a file that it takes too long over, that ends the
process, or that raises anything but a GradcheckError is a finding, and is kept.  Where atheris is installed, half of the
time goes to it: it looks at which branches of the readers a file reaches, and keeps those that reach new ones.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

READING = tuple(f"gradcheck_cli.{name}" for name in ("formats", "results", "zoo", "cli", "graph", "settings"))
SECONDS, MEMORY = 20.0, 3 << 30  # that one file may take, of the processor's time
_WAITING = 15 * SECONDS  # and this of anybody's: other processes may be busy
_PAUSE = 2.0  # seconds between two words about how many there were


class TooLong(BaseException):
    """Nothing may catch it."""


class Trial:
    """One kind of file, and what has become of those that were tried."""

    def __init__(self, name: str, note: Path, keep: Path) -> None:
        from tests.hostile.readers import KINDS, PLACES

        self.name, self.kind, self.note, self.keep = name, KINDS[name], note, keep
        self.place = Path(PLACES[1], self.kind.file)
        self.place.parent.mkdir(exist_ok=True)
        self.seeds = self.kind.seeds()
        self.told: dict[str, Any] = {"inputs": 0, "read": 0, "refused": 0, "findings": 0, "slowest": 0.0}
        self.known: set[str] = set()
        self.said = 0.0

    def attempt(self, data: bytes) -> str:
        """Outcome for a file: "read", "refused", or the end of a traceback."""
        from gradcheck_cli.errors import GradcheckError

        self.place.write_bytes(data)
        began = time.process_time()
        _limit(SECONDS, _WAITING)
        try:
            self.kind.read(self.place)
            outcome = "read"
        except (GradcheckError, MemoryError):
            outcome = "refused"
        except TooLong:
            outcome = f"more than {SECONDS:g} s"
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            outcome = f"{type(error).__name__} at {Path(frames[-1].filename).name}:{frames[-1].lineno}: {error}"
        finally:
            _limit(0, 0)
        self._count(data, outcome, time.process_time() - began)
        return outcome

    def _count(self, data: bytes, outcome: str, seconds: float) -> None:
        self.told["inputs"] += 1
        self.told["slowest"] = max(self.told["slowest"], seconds)
        if outcome in ("read", "refused"):
            self.told[outcome] += 1
        elif (about := outcome.split(": ")[0]) not in self.known:
            self.known.add(about)
            self.told["findings"] += 1
            keep(self.keep, self.name, data, outcome)
        if (now := time.monotonic()) > self.said + _PAUSE:
            self.said = now
            self.tell()

    def tell(self) -> None:
        self.note.write_text(json.dumps(self.told))


def keep(folder: Path, name: str, data: bytes, outcome: str) -> None:
    """A finding, as a file to try again."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = stem_of(name)
    path = folder / f"{stem}-{len(list(folder.glob(f'{stem}-*')))}"
    path.write_bytes(data)
    print(f"\nfinding: {name}: {outcome}\n  {path}", flush=True)


def stem_of(name: str) -> str:
    return name.strip(".").replace(" ", "-").replace(".", "-")


def again(path: Path) -> None:
    """Reads a finding once more."""
    from tests.hostile.readers import KINDS

    kind = next(each for name, each in KINDS.items() if stem_of(name) == path.name.rpartition("-")[0])
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, kind.file)
        place.write_bytes(path.read_bytes())
        print(kind.read(place))


def at_random(trial: Trial, seconds: float, seed: int) -> None:
    """Files spoiled at random; those that can still be read are spoiled further."""
    from tests.hostile.spoiling import spoiled

    rng, pool = random.Random(seed), [*trial.seeds]
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        data = spoiled(rng.choice(pool), pool, rng)
        if trial.attempt(data) == "read" and len(pool) < 500:
            pool.append(data)


def by_branches(trial: Trial, seconds: float, seed: int) -> None:
    """As atheris does it."""
    import atheris

    for each in gc.get_objects():  # by now all that reads is imported, by whatever loader
        if isinstance(each, FunctionType) and str(each.__module__).startswith(READING):
            with suppress(Exception):
                atheris.instrument_func(each)
    corpus = Path("corpus")
    corpus.mkdir(exist_ok=True)
    for index, data in enumerate(trial.seeds):
        (corpus / f"seed-{index}").write_bytes(data)
    how = [f"-max_total_time={max(1, int(seconds))}", f"-seed={seed + 1}", "-rss_limit_mb=0", "-max_len=65536",
           "-timeout=0", "-verbosity=0"]  # fmt: skip
    atheris.Setup([sys.argv[0], *how, str(corpus)], lambda data: trial.attempt(data) and None)
    atheris.Fuzz()  # which ends the process


def one(name: str, seconds: float, seed: int, note: Path, found: Path, way: str) -> None:
    """All that a process does."""
    warnings.simplefilter("ignore")
    from tests.hostile.readers import NOT_ALL

    for timer in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(timer, _too_long)
    trial = Trial(name, note, found)
    for data in trial.seeds:
        outcome = trial.attempt(data)
        assert outcome == "read" or name in NOT_ALL, outcome
    data_now = int(
        next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("VmData")).split()[1]
    )
    resource.setrlimit(resource.RLIMIT_DATA, ((data_now << 10) + MEMORY,) * 2)
    try:
        {"random": at_random, "branches": by_branches}[way](trial, seconds, seed)
    finally:
        trial.tell()


def _limit(own: float, all_in_all: float) -> None:
    """Has `TooLong` raised after some seconds of this process, or of the clock; 0 for never."""
    signal.setitimer(signal.ITIMER_PROF, own)
    signal.setitimer(signal.ITIMER_REAL, all_in_all)


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TooLong


def tried(name: str, seconds: float, seed: int, found: Path, way: str) -> dict[str, Any]:
    """Outcomes for the files of one kind, in a process of its own that may end in any way."""
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder, "note")
        asked = [
            "--one",
            name,
            "--seconds",
            f"{seconds:g}",
            "--seed",
            str(seed),
            "--note",
            str(note),
            "--keep",
            str(found),
        ]
        environment = {**os.environ, "XDG_CACHE_HOME": folder, "PYTHONPATH": str(Path(__file__).parents[2])}
        command = [sys.executable, "-m", "tests.hostile.fuzz", *asked, "--way", way]
        ended = subprocess.run(command, cwd=folder, env=environment, stderr=subprocess.PIPE, check=False)
        told = json.loads(note.read_text()) if note.exists() else {"inputs": 0, "findings": 0}
        if ended.returncode:
            last = Path(folder, "tried")
            data = next(iter(last.iterdir())).read_bytes() if last.is_dir() else b""
            words = ended.stderr.decode(errors="replace").strip().splitlines()[-8:]
            keep(found, name, data, f"the process ended with {ended.returncode}: " + " | ".join(words))
            told["findings"] += 1
        return told


def table(rows: dict[str, dict[str, Any]]) -> str:
    """A table of all tries, a line a kind."""
    lines = [f"{'':<18}{'inputs':>10}{'read':>10}{'refused':>10}{'slowest':>10}{'findings':>10}"]
    for name, row in [*rows.items(), ("all", total(rows.values()))]:
        counts = "".join(f"{row.get(each, 0):>10,}" for each in ("inputs", "read", "refused"))
        lines.append(f"{name:<18}{counts}{row.get('slowest', 0.0):>9.2f}s{row['findings']:>10}")
    return "\n".join(lines)


def total(rows: Any) -> dict[str, Any]:
    """Two or more of them together."""
    made: dict[str, Any] = {"inputs": 0, "read": 0, "refused": 0, "slowest": 0.0, "findings": 0}
    for row in rows:
        for name in made:
            combine: Callable[..., Any] = max if name == "slowest" else sum
            made[name] = combine((made[name], row.get(name, 0)))
    return made


def main() -> int:
    args = arguments()
    if args.again:
        again(args.again)
        return 0
    if args.one:
        one(args.one, args.seconds, args.seed, args.note, args.keep, args.way)
        return 0
    from tests.hostile.readers import KINDS

    names = args.only or [*KINDS]
    ways = ["random", "branches"] if find_spec("atheris") else ["random"]
    seconds = 60 * args.minutes / len(names) / len(ways)
    rows = {}
    for name in names:
        rows[name] = total([tried(name, seconds, args.seed, args.keep.resolve(), way) for way in ways])
        print(
            f"{name}: {rows[name]['inputs']:,} inputs, {rows[name]['findings']} findings", file=sys.stderr, flush=True
        )
    print(table(rows))
    return int(any(row["findings"] for row in rows.values()))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0, help="for all kinds of files together")
    parser.add_argument("--only", action="append", help="a kind of file (many)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", type=Path, help="a finding, to see its traceback")
    parser.add_argument("--keep", type=Path, default=Path("findings"), help="where findings go")
    for name, kind in (("one", str), ("seconds", float), ("note", Path), ("way", str)):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
