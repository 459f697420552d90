"""Runs put together, such as the shards of one: the records of each job once, as they stand."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gradcheck_cli.errors import UsageError
from gradcheck_cli.zoo.folder import About, read_about, sync, unwritable, write_about
from gradcheck_cli.zoo.store import Line, Store, finished, raw


def merged(folders: Sequence[Path], target: Path) -> About:
    """Puts runs into a new one, whole or not at all; of two that have the same job the one named last counts."""
    abouts = [read_about(folder) for folder in folders]
    found = [finished(folder)[0] for folder in folders]
    last = {job: index for index, jobs in enumerate(found) for job in jobs}
    about = _together(abouts)
    if target.exists():
        raise UsageError(f"{target} is there already; runs are put into a new folder")
    new = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with Store(new) as store:
            for index, (folder, jobs) in enumerate(zip(folders, found, strict=True)):
                for lines in _kept(jobs, last, index):
                    store.append_raw(b"".join(raw(folder, lines)))
        write_about(new, about)
        os.rename(new, target)
        sync(target.parent)
    except OSError as error:
        raise unwritable(target, error) from None
    finally:
        with suppress(OSError):
            shutil.rmtree(new)
    return about


def differing(folders: Sequence[Path]) -> str:
    """In what runs differ that should be the same, as a sentence; "" where they are parts of one."""
    abouts = [read_about(folder) for folder in folders]
    options = [{name: value for name, value in about.options.items() if name != "shard"} for about in abouts]
    names = ["versions"] * (len({about.version for about in abouts}) > 1)
    names += ["sources"] * (len({about.sources for about in abouts}) > 1)
    names += ["options"] * any(each != options[0] for each in options)
    return f"the runs differ in {' and '.join(names)}" if names else ""


def _kept(jobs: Mapping[str, tuple[Line, ...]], last: Mapping[str, int], index: int) -> list[tuple[Line, ...]]:
    return [lines for job, lines in jobs.items() if last[job] == index]


def _together(abouts: Sequence[About]) -> About:
    """What the runs are about together."""
    first = abouts[0]
    options = {name: value for name, value in first.options.items() if name != "shard"}
    sources = dict.fromkeys(source for about in abouts for source in about.sources)
    jobs = dict.fromkeys(job for about in abouts for job in about.jobs)
    return replace(first, sources=tuple(sources), options=options, shard="", jobs=tuple(sorted(jobs)))
