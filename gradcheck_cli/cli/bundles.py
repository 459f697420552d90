"""`--save-failures`: each check of a run that fails leaves a bundle, and so does one that ends the process.

A bundle is begun before its check and taken away again if that passes, so that a crash, which nobody can catch, leaves
it; the next run in the same folder finds it and gives it its name.  Saving never changes what a run gives.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradcheck_cli.checks.assemble import versions
from gradcheck_cli.cli.reproduce import quoted
from gradcheck_cli.cli.tasks import Task
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.formats.source import Source
from gradcheck_cli.record import Check
from gradcheck_cli.settings import Settings

if TYPE_CHECKING:
    from gradcheck_cli.points.point import Point

FOLDER, MOST = os.path.join(".gradcheck", "failures"), 100
_SAVED_STATUS = ("fail", "inconclusive", "limit")
_SAVED_EXIT = (6, 70)  # of errors that end a check: limits and bugs
_FINISHED, _RUNNING = re.compile(r".+-[0-9a-f]{8}"), re.compile(r"(.+-[0-9a-f]{8})\.running-(\d{1,10})")


class Bundles:
    """The bundles of one run; `folder` is None where none are wanted."""

    def __init__(self, folder: str) -> None:
        self.folder = None if folder == "none" else Path(folder)
        self.own = folder == FOLDER  # to be made and cleared away, and unseen by git
        self.saved: list[Path] = []
        self.crashed: list[Path] = []
        self.lost: list[str] = []
        if self.folder is not None:
            self._adopt(self.folder)

    @contextmanager
    def watching(self, task: Task) -> Iterator[Keeper]:
        """The keeper of one check; what ends the check for a reason that is worth a bundle leaves one."""
        keeper = Keeper(self, task)
        try:
            yield keeper
        except Exception as error:
            if not isinstance(error, GradcheckError) or error.exit_code in _SAVED_EXIT:
                keeper.save((), str(error) or type(error).__name__)
            self.say()
            raise
        finally:
            keeper.discard()

    def say(self) -> None:
        """What a user should know of, on stderr."""
        for path in self.crashed:
            _note(f"an earlier check ended with its process, before it was done: gradcheck reproduce {_typed(path)}")
        if len(self.saved) == 1:
            _note(f"saved, to run it again: gradcheck reproduce {_typed(self.saved[0])}")
        elif self.saved:
            _note(f"{len(self.saved)} failures are saved in {self.folder}, to run them again: gradcheck reproduce DIR")
        for reason in dict.fromkeys(self.lost):
            _note(f"failures are not saved: {reason}")
        self.saved, self.crashed, self.lost = [], [], []

    def made(self, folder: Path) -> None:
        """The folder of all bundles made, where it is not there."""
        folder.mkdir(parents=True, exist_ok=True)
        ignore = folder.parent / ".gitignore"
        if self.own and not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")

    def cleared(self, folder: Path) -> None:
        """Takes away the folder of all bundles where nothing is left in it."""
        with suppress(OSError):
            folder.rmdir()
            if self.own and os.listdir(folder.parent) == [".gitignore"]:
                (folder.parent / ".gitignore").unlink()
                folder.parent.rmdir()

    def _adopt(self, folder: Path) -> None:
        """Bundles of processes that are no more get their names."""
        with suppress(OSError):
            for name in os.listdir(folder):
                match = _RUNNING.fullmatch(name)
                if match and not _alive(int(match[2])):
                    self.crashed.append(_renamed(folder / name, folder / match[1]))

    def prune(self, folder: Path) -> None:
        """The oldest bundles go where there are too many."""
        found = [p for p in folder.iterdir() if _FINISHED.fullmatch(p.name) and (p / "bundle.json").is_file()]
        for path in sorted(found, key=lambda p: p.stat().st_mtime_ns)[: max(0, len(found) - MOST)]:
            shutil.rmtree(path, ignore_errors=True)


class Keeper:
    """One check: begun before it, completed if it fails, taken away if not."""

    def __init__(self, bundles: Bundles, task: Task) -> None:
        self.bundles, self.task = bundles, task
        self.running: Path | None = None
        self.name = self.trouble = ""
        self.settings = Settings()
        self.manifest: Mapping[str, Any] = {}
        self.drawn: dict[int, Mapping[str, Any]] = {}
        self.sizes: Mapping[str, int] = {}

    def begin(self, source: Source, settings: Settings) -> None:
        """What is known before the check is written; a folder that cannot be written is no reason to stop."""
        from gradcheck_cli.bundles.bundle import Subject, begin

        if self.bundles.folder is None:
            return
        self.settings = settings
        folder, path = self.bundles.folder, os.path.abspath(self.task.model)
        self.name = bundle_name(self.task.name, path, self.task.graph, *(settings.x or ()), "/", *(settings.y or ()))
        subject = Subject(path, source.sha256, self.task.graph, dict(source.dims))
        running = folder / f"{self.name}.running-{os.getpid()}"
        try:
            self.bundles.made(folder)
            self.manifest = begin(running, self.task.name, subject, settings, sys.argv, versions())
            self.running = running
        except Exception as error:  # whatever goes wrong here has nothing to do with the gradient
            self.trouble = _reason(error)
            shutil.rmtree(running, ignore_errors=True)

    def see(self, index: int, point: Point) -> None:
        """A point of the check: the inputs that were drawn for it."""
        if self.running is not None:
            given = {*self.settings.x_init_value, *self.settings.extra_feed_dict}
            self.drawn[index] = {n: v for n, v in point.feeds.items() if n not in given}
            self.sizes = point.dims

    def ended(self, checks: tuple[Check, ...]) -> tuple[Check, ...]:
        """The records with the path of their bundle, where one of them is worth it."""
        kept = [c for c in checks if c.status in _SAVED_STATUS or c.exit_code in _SAVED_EXIT]
        path = self.save([c.as_json() for c in checks]) if kept else None
        return tuple(replace(c, bundle=str(path)) if path and c in kept else c for c in checks)

    def save(self, records: Sequence[Mapping[str, Any]], error: str = "") -> Path | None:
        """The bundle completed, under its name; None where it cannot be had."""
        if self.running is None or self.bundles.folder is None:
            self.bundles.lost += [self.trouble] if self.trouble else []
            return None
        from gradcheck_cli.bundles.bundle import complete

        try:
            complete(self.running, self.manifest, self.settings, self.drawn, self.sizes, records, error)
            path = _renamed(self.running, self.bundles.folder / self.name)
            self.bundles.prune(self.bundles.folder)
        except Exception as failure:
            self.bundles.lost.append(_reason(failure))
            return None
        self.running = None
        self.bundles.saved.append(path)
        return path

    def discard(self) -> None:
        """Nothing is left of a check that passed."""
        if self.bundles.folder is not None and self.name:
            if self.running is not None:
                shutil.rmtree(self.running, ignore_errors=True)
            self.bundles.cleared(self.bundles.folder)
        self.running = None


def bundle_name(check: str, *identity: str) -> str:
    """The name of a check as one of a folder, on every system, and a digest that tells it from others."""
    digest = hashlib.sha256("\0".join((check, *identity)).encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{re.sub('[^A-Za-z0-9._]+', '-', check)[-60:].strip('-.') or 'check'}-{digest}"


def _renamed(folder: Path, name: Path) -> Path:
    """A folder under its name, in the place of what had it before."""
    if name.exists():
        old = name.with_name(f"{name.name}.old-{os.getpid()}")
        os.replace(name, old)
        shutil.rmtree(old, ignore_errors=True)
    os.replace(folder, name)
    return name


def _alive(process: int) -> bool:
    """A process of this number runs, other than this one; where that cannot be asked, it may."""
    if process == os.getpid():
        return False
    if os.name != "posix":  # there os.kill would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _typed(path: Path) -> str:
    return quoted(str(path))


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)
