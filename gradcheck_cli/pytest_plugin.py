"""A pytest plugin: every *.gradcheck.yaml that pytest finds is a file of tests, and each check in it one test.

The models that `gradcheck_models` names are collected too, each a file with one test, or with those of its side-car.
Nothing but pytest is imported before such a file is found.  `-p no:gradcheck` leaves them alone.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gradcheck_cli.cli.collected import Collected
    from gradcheck_cli.cli.tasks import Task

_SUFFIXES = (".gradcheck.yaml", ".gradcheck.yml")
_HELP = "options of `gradcheck check` for the checks of *.gradcheck.yaml, as in '--points 3 --rtol 1e-5'"


_MODELS = "ONNX files to check, as patterns from the root folder or for names: models/*.onnx; none by default"

_MET = pytest.StashKey[set[str]]()  # patterns of models that some file fits
_GLOB = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}


class Wrong(Exception):
    """A check did not pass; its text is the report."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("gradcheck").addoption("--gradcheck-args", metavar="OPTIONS", help=_HELP)
    parser.addini("gradcheck_args", _HELP, default="")
    parser.addini("gradcheck_models", _MODELS, type="args", default=[])


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_MET] = set()
    config.addinivalue_line("markers", "gradcheck: a check of a *.gradcheck.yaml, or of a model in gradcheck_models")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    spec = file_path.name.endswith(_SUFFIXES)
    if _is_read_along(file_path, parent) if spec else not _is_wanted(file_path, parent.config):
        return None
    found: pytest.Collector = SpecFile.from_parent(parent, path=file_path)
    return found


def _is_wanted(path: Path, config: pytest.Config) -> bool:
    """True for a model that a pattern of `gradcheck_models` means; one without a slash is about the name alone."""
    below = path.relative_to(config.rootpath).as_posix() if path.is_relative_to(config.rootpath) else str(path)
    met = set()
    for pattern in map(str, config.getini("gradcheck_models")):
        parts = (_GLOB.get(part, re.escape(part)) for part in re.split(r"(\*\*/|\*|\?)", pattern))
        if re.fullmatch("".join(parts), below if "/" in pattern else path.name):
            met.add(pattern)
    config.stash[_MET] |= met
    return bool(met)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Warns of a pattern that means no file, unless paths were given, which may leave its files out."""
    config = session.config
    if config.args_source is config.ArgsSource.ARGS:
        return
    for pattern in map(str, config.getini("gradcheck_models")):
        if pattern not in config.stash[_MET]:
            told = f"gradcheck_models: {pattern!r} matches no file that was collected"
            try:
                warnings.warn(pytest.PytestCollectionWarning(told), stacklevel=1)
            except Warning as error:  # where warnings are errors
                raise pytest.UsageError(str(error)) from None


def _is_read_along(spec: Path, parent: pytest.Collector) -> bool:
    """True for the side-car of a model that is collected: its checks are tests of the model."""
    stem = next(spec.name.removesuffix(suffix) for suffix in _SUFFIXES if spec.name.endswith(suffix))
    model = spec.with_name(f"{stem}.onnx")
    if not (model.is_file() and _is_wanted(model, parent.config)):
        return False
    from gradcheck_cli.cli.tasks import side_car

    return side_car(str(model)) == str(spec)


class SpecFile(pytest.File):
    """The checks of a spec or of a model."""

    def collect(self) -> Iterator[pytest.Item]:
        from gradcheck_cli.cli.collected import Collected
        from gradcheck_cli.errors import GradcheckError

        given = self.config.getoption("--gradcheck-args")
        args = self.config.getini("gradcheck_args") if given is None else given
        try:
            workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
            collected = Collected(self._path_seen_from_here(), str(args), workers)
        except (GradcheckError, ValueError) as error:
            raise self.CollectError(str(error)) from None
        for task in collected.tasks:
            alone = task.name if self.path.name.endswith(_SUFFIXES) else task.graph or self.path.name
            yield CheckItem.from_parent(self, name=task.check or alone, task=task, collected=collected)

    def _path_seen_from_here(self) -> str:
        here = self.config.invocation_params.dir
        return str(self.path.relative_to(here)) if self.path.is_relative_to(here) else str(self.path)


class CheckItem(pytest.Item):
    """One check; a waived one (known failure) is an expected failure."""

    def __init__(self, *, task: Task, collected: Collected, **more: Any) -> None:
        super().__init__(**more)
        self.task, self.collected = task, collected
        self.add_marker("gradcheck")

    def runtest(self) -> None:
        report = self.collected.report(self.task)
        if {check.code for check in report.checks} == {"GC701"}:
            pytest.skip(report.checks[0].message)
        if report.exit_code:
            raise Wrong(self.collected.wrong(report))
        if any(check.status == "waived" for check in report.checks):
            pytest.xfail("; ".join(str((check.waiver or {}).get("reason")) for check in report.checks if check.waiver))
        self.add_report_section("call", "gradcheck", self.collected.text(report.checks))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        return str(excinfo.value) if isinstance(excinfo.value, Wrong) else super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"gradcheck: {self.name}"
