"""`--save-failures`: each check of a run that fails leaves a bundle, and so does one that ends the process.

A bundle is begun before its check and taken away again if that passes, so that a crash, which nobody can catch, leaves
it; the next run in the same folder finds it and gives it its name.  Saving never changes what a run gives.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradcheck_cli.checks.assemble import versions
from gradcheck_cli.cli import note
from gradcheck_cli.cli.tasks import Task
from gradcheck_cli.errors import GradcheckError, quoted, shown
from gradcheck_cli.formats.source import Source
from gradcheck_cli.formats.untrusted import own_folder
from gradcheck_cli.points.test_data import BESIDE
from gradcheck_cli.results.record import Check
from gradcheck_cli.settings import Settings
from gradcheck_cli.zoo.shelf import adopted, bundle_name, clear, discarded, dropped, made, prune, renamed, running

if TYPE_CHECKING:
    from gradcheck_cli.points.point import Point

_SAVED_STATUS = ("fail", "severed", "inconclusive", "limit")
_SAVED_EXIT = (6, 70)  # of errors that end a check: limits and bugs


class Bundles:
    """The bundles of one run; `folder` is None where none are wanted.

    One that is `shared` by several processes at a time is looked after by the one that started them.
    """

    def __init__(self, folder: str, *, shared: bool = False) -> None:
        self.folder, self.shared = None if folder == "none" else Path(folder), shared
        self.saved: list[Path] = []
        self.crashed: list[Path] = []
        self.lost: list[str] = []
        if self.folder is not None and not shared:
            self.crashed += adopted(self.folder)

    @contextmanager
    def watching(self, task: Task) -> Iterator[Keeper]:
        """The keeper of one check; an error that ends the check and is worth a bundle leaves one."""
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
        """Tells the user of the bundles, on stderr."""
        for path in self.crashed:
            note(
                f"an earlier check ended with its process, before it was done: gradcheck reproduce {quoted(str(path))}"
            )
        if len(self.saved) == 1:
            note(f"saved, to run it again: gradcheck reproduce {quoted(str(self.saved[0]))}")
        elif self.saved:
            note(f"{len(self.saved)} failures are saved in {self.folder}, to run them again: gradcheck reproduce DIR")
        for reason in dict.fromkeys(self.lost):
            note(f"failures are not saved: {reason}")
        self.saved, self.crashed, self.lost = [], [], []

    def adopt(self, process: int) -> str | None:
        """The path of the bundle that was begun by a process which has been stopped."""
        found = [] if self.folder is None else adopted(self.folder, process)
        self.saved += found
        return str(found[0]) if found else None

    def drop(self, process: int) -> None:
        """Removes the bundles that an interrupted process has begun."""
        if self.folder is not None:
            dropped(self.folder, process)
            clear(self.folder)


class Keeper:
    """The bundle of one check: begun before it, completed if it fails, removed if not."""

    def __init__(self, bundles: Bundles, task: Task) -> None:
        self.bundles, self.task = bundles, task
        self.running = ""  # the name of the bundle, while it has one
        self.name = self.trouble = ""
        self.settings = Settings()
        self.manifest: Mapping[str, Any] = {}
        self.drawn: dict[int, Mapping[str, Any]] = {}
        self.sizes: Mapping[str, int] = {}

    def begin(self, source: Source, settings: Settings) -> None:
        """Writes all that is known before the check; a folder that cannot be written is no reason to stop."""
        from gradcheck_cli.zoo.bundle import Subject, begin, identity

        if self.bundles.folder is None:
            return
        self.settings = settings
        folder, path = self.bundles.folder, os.path.abspath(self.task.model)
        targets = (*(settings.x or ()), "/", *(settings.y or ()))
        self.name = bundle_name(self.task.name, path, self.task.graph, *targets, identity(settings))
        subject = Subject(path, source.sha256, self.task.graph, dict(source.dims))
        name = running(self.name)
        try:
            made(folder)
            self.manifest = begin(folder, name, self.task.name, subject, settings, sys.argv, versions())
            self.running = name
        except Exception as error:  # whatever goes wrong here has nothing to do with the gradient
            self.trouble = _reason(error)
            discarded(folder, name)

    def see(self, index: int, point: Point) -> None:
        """Keeps the inputs that were drawn for a point of the check."""
        if self.running:
            given = {*self.settings.x_init_value, *self.settings.extra_feed_dict}
            self.drawn[index] = {n: v for n, v in point.feeds.items() if n not in given}
            self.sizes = point.dims

    def ended(self, checks: tuple[Check, ...]) -> tuple[Check, ...]:
        """The records with the path of their bundle, where one of them is worth it."""
        kept = [
            c
            for c in checks
            if (c.status in _SAVED_STATUS and not c.passes) or c.exit_code in _SAVED_EXIT or c.forward_differs
        ]
        path = self.save([c.as_json() for c in checks]) if kept else None
        return tuple(replace(c, bundle=str(path)) if path and c in kept else c for c in checks)

    def save(self, records: Sequence[Mapping[str, Any]], error: str = "") -> Path | None:
        """Completes the bundle and gives it its name; None where there is none, or it cannot be written."""
        folder = self.bundles.folder
        if not self.running or folder is None:
            self.bundles.lost += [self.trouble] if self.trouble else []
            return None
        from gradcheck_cli.zoo.bundle import complete

        try:
            given = self.settings.test_data  # a folder, or the one beside the model
            beside = Path(self.task.model).parent / BESIDE if given == "auto" else given
            shipped = beside if any(record["forward"].get("agrees") is False for record in records) else None
            with own_folder(folder, self.running) as place:
                complete(place, self.manifest, self.settings, self.drawn, self.sizes, records, error, shipped)
            path = renamed(folder, self.running, self.name)
            prune(folder)
        except Exception as failure:
            self.bundles.lost.append(_reason(failure))
            return None
        self.running = ""
        self.bundles.saved.append(path)
        return path

    def discard(self) -> None:
        """Removes the bundle of a check that passed."""
        if self.bundles.folder is not None and self.name:
            if self.running:
                discarded(self.bundles.folder, self.running)
            if not self.bundles.shared:
                clear(self.bundles.folder)
        self.running = ""


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.ELOOP:
        return str(error.strerror)
    if isinstance(error, OSError) and error.filename:
        return f"{shown(str(error.filename))}: {error.strerror}"
    return str(error) or type(error).__name__
