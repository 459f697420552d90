"""Records and bundles of checks whose process has died."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.zoo.job import Job
from gradcheck_cli.zoo.shelf import FOLDER, adopted, dropped


def record(job: Job, name: str, error: GradcheckError, **more: Any) -> dict[str, Any]:
    """The JSON record of a check that ended with an error."""
    from gradcheck_cli.checks.assemble import failed_record, versions  # imports NumPy, which a driver can do without
    from gradcheck_cli.results.record import Check, ModelInfo

    name = name or job.uri
    blank = Check(id=name, check=name, status="limit", code="", model=ModelInfo(job.uri), x="", y="",
                  versions=versions(), **more)  # fmt: skip
    return failed_record(blank, error).as_json()


def folder_of(job: Job) -> Path | None:
    """The folder for bundles of a job; None if none are kept."""
    folder = job.options.get("save_failures", FOLDER)
    return None if folder == "none" else Path(job.folder, folder)


def bundle(job: Job, process: int) -> str | None:
    """The path of the bundle that a dead process has begun, after it got its final name."""
    folder = folder_of(job)
    found = [] if folder is None else adopted(folder, process)
    return str(found[0]) if found else None


def forget(job: Job, process: int) -> None:
    """Removes the bundle of a check that was interrupted."""
    folder = folder_of(job)
    if folder is not None:
        dropped(folder, process)
