"""The results of a zoo run, read from its store: summed up, printed, written as reports."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gradcheck_cli.cli import note, say
from gradcheck_cli.cli.baseline import Baseline, gates_of
from gradcheck_cli.cli.output import Output
from gradcheck_cli.errors import GradcheckError, counted, quoted, shown
from gradcheck_cli.report.concise import forward_reason, outcome, subject
from gradcheck_cli.report.health import health_tables
from gradcheck_cli.report.text import name
from gradcheck_cli.report.zoo_summary import Group, document, worst
from gradcheck_cli.results import check_from_texts, many
from gradcheck_cli.results.record import Check, Kept, Report
from gradcheck_cli.zoo.store import RECORDS, Line, finished, read_about, texts

_OF_ONE_MODEL = ("show", "heatmap")
_LINES_ELSEWHERE, _LINES_OF_MORE, _LINES_EACH = 40, 14, 2


class Results:
    """Shows the results of a run as its options ask for."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        self.folder, self.options = folder, options
        self.output = Output({name: value for name, value in options.items() if name not in _OF_ONE_MODEL})
        self.baseline = Baseline.of(options)

    def end(self, jobs: Iterable[str] | None, duration: float = 0.0) -> int:
        """Writes reports, prints the results, and gives the exit code."""
        found = self.write(jobs, duration)
        self.show(found, duration)
        self._draw(found)
        for each in self.baseline.notes():
            note(each)
        return found.report(gates_of(self.options), duration).exit_code

    def write(self, jobs: Iterable[str] | None, duration: float = 0.0) -> FinishedJobs:
        """Writes reports, and gives the jobs in them."""
        found = FinishedJobs(self.folder, jobs, self.baseline, bool(self.options.get("shard")))
        self._write(found, found.report(gates_of(self.options), duration))
        return found

    @many()
    def _write(self, found: FinishedJobs, report: Report) -> None:
        if self.output.writes:
            self.output.write_reports(found.full(report, pictured=self.output.pictures != "none"))

    def interrupted(self, jobs: Sequence[str], duration: float) -> str:
        """Shows and writes the results so far, and says how to resume the run; gives the sentence on how far it came."""
        found = FinishedJobs(self.folder, jobs, self.baseline)
        text = f"interrupted after {len(found.lines)} of {counted(len(jobs), 'model')}"
        try:
            self._write(found, replace(found.report(gates_of(self.options), duration), unfinished=text))
        except GradcheckError as error:
            say(error)
        if self.output.for_people and found.lines:
            self.show(found, duration)
        note(f"to go on: gradcheck zoo resume {quoted(str(self.folder))}")
        return text

    @many()
    def _draw(self, found: FinishedJobs) -> None:
        """Draws the checks that did not pass, whose pictures are kept, where --plot asks for it."""
        if not self.output.plot:
            return
        for check in found.full(found.report(gates_of(self.options), 0.0), pictured=True).wrong:
            self.output.draw((check,))
        if not self.output.drawn:
            note(f"every check that was compared passed, so --plot {self.output.plot} was not written")

    @many()
    def show(self, found: FinishedJobs, duration: float = 0.0) -> None:
        """Prints results to stdout."""
        report = found.report(gates_of(self.options), duration)
        if not duration:  # of a run that is looked at
            report = replace(report, duration_s=found.seconds, summed=True)
        if self.output.format.name != "full":
            self.output.whole(found.full(report))
            return
        if self.output.style.health:
            for group in found.groups:
                self.output.put(self._health(group.name, found.checks(group.name)))
        more = f"gradcheck zoo status {quoted(str(self.folder))} --show {len(found.lines)}"
        self.output.put(document(found.groups, report, found.detail, self.output.style, self._most, more))

    def _health(self, job: str, checks: Sequence[Check]) -> str:
        """The health of the gradients of one model, below its name; nothing where it has none."""
        lines = [*health_tables(checks, self.output.style)]
        return "\n".join([name(job), *lines]) + "\n\n" if lines else ""

    @property
    def _most(self) -> int:
        """The number of failing models to show: as many as fit, unless --show says otherwise."""
        terminal = sys.stdout.isatty()
        lines = shutil.get_terminal_size().lines if terminal else _LINES_ELSEWHERE
        fitting = max(3, (lines - _LINES_OF_MORE) // _LINES_EACH)
        return int(self.options.get("show", fitting))


def tell_damaged(records: Path, damaged: int, *, again: bool) -> None:
    """Notes the lines of a file that are left out, and that what they told is to be checked again where it is."""
    if damaged:
        note(f"{records}: {counted(damaged, 'damaged line')} left out{', to be checked again' if again else ''}")


@dataclass
class FinishedJobs:
    """The finished ones among the given jobs of a run, in that order; without jobs all finished ones, by name."""

    folder: Path
    jobs: Iterable[str] | None
    baseline: Baseline
    shard: bool = False
    lines: dict[str, tuple[Line, ...]] = field(init=False)
    damaged: int = field(init=False)  # lines that are left out
    unfinished: str = ""  # in words, the jobs of a run that have no records

    def __post_init__(self) -> None:
        there, self.damaged = finished(self.folder)
        self.lines = {job: there[job] for job in (sorted(there) if self.jobs is None else self.jobs) if job in there}

    @classmethod
    def of_run(cls, folder: Path) -> FinishedJobs:
        """All finished jobs of a run, in its order and waived as there; damaged lines of the run are noted."""
        about = read_about(folder)
        found = cls(folder, about.jobs, Baseline.kept(about.waives), bool(about.shard))
        found.unfinished = about.lacks(len(found.lines))
        tell_damaged(folder / RECORDS, found.damaged, again=bool(found.unfinished))
        return found

    def tell_unfinished(self) -> None:
        """Notes that the run is not finished, and the command that goes on with it."""
        if self.unfinished:
            folder = str(self.folder)
            note(f"{shown(folder)}: {self.unfinished}; to go on: gradcheck zoo resume {quoted(folder)}")

    @cached_property
    def groups(self) -> list[Group]:
        """Outcomes by job, with failures that the baseline knows waived."""
        outcomes = ((job, tuple(line.check for line in lines)) for job, lines in self.lines.items())
        complete = ((job, self.checks(job) if self.baseline.knows(checks) else checks) for job, checks in outcomes)
        return [Group(job, [c.outcome for c in self.baseline.waived(tuple(checks))]) for job, checks in complete]

    @property
    def outcomes(self) -> list[Check]:
        """All records, reduced to their outcomes."""
        return [check for group in self.groups for check in group.checks]

    @property
    def seconds(self) -> float:
        """The seconds that all checks took, added up: several may have run at once."""
        return sum(check.duration_s for check in self.outcomes)

    def report(self, fail_on: tuple[str, ...], duration: float) -> Report:
        """A report of all outcomes."""
        return Report(self.outcomes, (), duration, fail_on, self.shard)

    def full(self, report: Report, *, pictured: bool = False) -> Report:
        """The report with complete records."""
        return replace(report, checks=self.records(pictured=pictured))

    def records(self, *, pictured: bool = False) -> Kept:
        """Complete records, each read on access; data for pictures is left out unless `pictured`."""
        lines = [line for each in self.lines.values() for line in each]

        def written(places: Sequence[int]) -> Iterator[dict[str, str]]:
            for record in texts(self.folder, [lines[place] for place in places]):
                if not pictured:
                    record.pop("picture", None)
                yield record

        def read(places: Sequence[int]) -> Iterator[Check]:
            yield from map(check_from_texts, written(places))

        return Kept([line.check for line in lines], read, written).changed(
            self.baseline.judged, by_all=bool(self.baseline.known)
        )

    def checks(self, job: str) -> list[Check]:
        """The complete records of a job, without pictures."""
        records = texts(self.folder, self.lines[job])
        return [check_from_texts({k: v for k, v in record.items() if k != "picture"}) for record in records]

    def detail(self, job: str) -> str:
        """The worst record of a job, on one line."""
        lines = self.lines[job]
        decides = worst([line.check for line in lines])
        line = next(each for each in lines if each.check is decides)
        check = check_from_texts(next(texts(self.folder, [line])))
        pair = subject(check).removeprefix(name(check.check)).removeprefix(": ")
        if check.gradient_passes and check.forward_differs:
            return ": ".join(filter(None, (pair, forward_reason(check))))
        return ": ".join(filter(None, (pair, outcome(check).removeprefix(f"{name(check.check)} "))))
