"""One run of `gradcheck check`: tasks one after another, their results printed as they come.

`select` chooses checks by name: `-k` as in pytest (substrings and globs with and, or, not), `--check` exactly.  Of a
check, `-k` chooses among the tensors to differentiate by as well, where the check's name leaves it open.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import Any

import rich_click as click
from msgspec import structs

from gradcheck_cli.autodiff.custom import ops_for
from gradcheck_cli.checks.progress import Progress
from gradcheck_cli.cli import interrupts, note, say
from gradcheck_cli.cli.baseline import Baseline, gates_of
from gradcheck_cli.cli.bundles import Bundles
from gradcheck_cli.cli.checker import Checker
from gradcheck_cli.cli.config import blamed, file_above, settings_above
from gradcheck_cli.cli.options import names_at, put_over
from gradcheck_cli.cli.output import Output
from gradcheck_cli.cli.resolve import Layer, dims_of, listed, resolve
from gradcheck_cli.cli.tasks import (
    Found,
    Planner,
    Task,
    common_folder,
    errors_of,
    expand,
    naming,
    unread,
    without_lists,
)
from gradcheck_cli.errors import GradcheckError, NothingChecked, UsageError, counted, did_you_mean
from gradcheck_cli.ops import OPS
from gradcheck_cli.ops.straight import NOTHING_ROUNDS
from gradcheck_cli.points.targets import choose_x, choose_y, globbed, is_glob
from gradcheck_cli.results.record import Check, Report
from gradcheck_cli.zoo.shelf import FOLDER

Holds = Callable[[str], bool | None]  # whether a word matches; None where that is open
Matcher = Callable[[Holds], bool | None]


def select(
    names: Sequence[str], exact: Iterable[str], expression: str | None, *, also: Sequence[tuple[str, ...]] = (),
    errors: Iterable[GradcheckError] = (),
) -> list[int]:  # fmt: skip
    """Indices of the checks that are wanted; NothingChecked if there is none.

    An expression may match further names of a check, `also`, such as that of its model.  Where a check is missing, the
    first of the `errors` is raised: it may be in the file that could not be read.
    """
    wanted, broken = set(exact), next(iter(errors), None)
    for name in wanted:
        if name not in names:
            if broken is not None:
                raise broken
            several = [part.strip() for part in name.split(",")]
            near = f" Write {' '.join(f'--check {part}' for part in several)}." if {*several} <= {*names} else ""
            near = near or did_you_mean(name, names)
            raise UsageError(f"no check is called {name!r}.{near} Checks: {listed(names)}.")
    matches = matcher(expression) if expression is not None else lambda holds: True
    every = [(name, *more) for name, more in zip_longest(names, also, fillvalue=())]
    chosen = [i for i, each in enumerate(every) if (not wanted or each[0] in wanted) and matches(partial(fits, each))]
    if not chosen:
        if broken is not None:
            raise broken
        of = counted(len(names), "check")
        raise NothingChecked(f"nothing to check: -k {expression!r} matches none of {of}: {listed(names)}")
    return chosen


def fits(names: Sequence[str], word: str) -> bool:
    """True for a word that is part of a name, or with * or ? a glob that fits all of one; in any case."""
    if is_glob(word):
        form = globbed(word, re.IGNORECASE)
        return any(form.fullmatch(name) for name in names)
    return any(word.lower() in name.lower() for name in names)


def narrowed(tasks: Sequence[Task], expression: str, layers: Callable[[Task], Sequence[Layer]]) -> list[Task]:
    """The tasks that `-k` chooses: whole ones by their names, of others the x that it matches; NothingChecked for none."""
    matches, chosen, known = matcher(expression), list[Task](), dict[str, None]()
    for task in tasks:
        by_name = partial(fits, (task.name,))
        if (decided := matches(_open_unless(by_name))) is None and (xs := _xs(task, layers(task))):
            known.update(dict.fromkeys(xs))
            only = tuple(x for x in xs if matches(partial(fits, (task.name, x))))
            chosen += [task if only == xs else structs.replace(task, only=only)] if only else []
        elif decided or (decided is None and matches(by_name)):  # without an x, that is said where it is checked
            chosen.append(task)
    if not chosen:
        if broken := errors_of(tasks):
            raise broken[0]
        names = f"{counted(len(tasks), 'check')}: {listed([task.name for task in tasks])}"
        more = f"; nor any x of these: {listed([*known])}. Weights are among the x with --params" if known else ""
        raise NothingChecked(f"nothing to check: -k {expression!r} matches none of {names}{more}")
    for task in tasks:
        if task.error is not None and task not in chosen:
            note(f"-k leaves out a file that cannot be read: {str(task.error).partition(chr(10))[0]}")
    return chosen


def _open_unless(holds: Callable[[str], bool]) -> Holds:
    """A predicate that leaves open what does not hold: a word may still match an x."""
    return lambda word: holds(word) or None


def _xs(task: Task, layers: Sequence[Layer]) -> tuple[str, ...]:
    """The tensors that a task would differentiate by; none for a model that cannot be read."""
    try:
        source = (task if task.whole is None else task.whole()).load()
        asked = [{name: layer[name] for name in _TARGETS if layer.get(name)} for layer in layers]
        settings = resolve(source, asked)
        ys = settings.y or choose_y(source.graph)
        ops = ops_for(source, OPS)
        return choose_x(source.graph, ys, x=settings.x, params=settings.params, param=settings.param, ops=ops)
    except (GradcheckError, MemoryError):
        return ()


def matcher(expression: str) -> Matcher:
    """A function of a predicate on words, by which it tells if an expression matches, or that this is open."""
    parser = _Parser(expression)
    matches = parser.parse()
    if parser.tokens:
        parser.fail(f"{parser.tokens[0]!r} is not expected there")
    return matches


_DEEPEST = 64  # brackets and nots around a word


class _Parser:
    """A parser of the grammar any: all (or all)*; all: factor (and factor)*; factor: not factor, ( any ), or a word."""

    def __init__(self, text: str) -> None:
        self.text, self.depth = text, 0
        self.tokens = deque(re.findall(r"[()]|[^\s()]+", text))

    def parse(self) -> Matcher:
        return self._several("or", self._all, True)

    def _all(self) -> Matcher:
        return self._several("and", self._factor, False)

    def _several(self, mark: str, part: Callable[[], Matcher], decides: bool) -> Matcher:
        """Parts of which one that is `decides` decides; without one, one that is open leaves all of it open."""
        parts = [part()]
        while self._take(mark):
            parts.append(part())

        def together(holds: Holds) -> bool | None:
            found = {matches(holds) for matches in parts}
            return decides if decides in found else None if None in found else not decides

        return together

    def _factor(self) -> Matcher:
        self.depth += 1
        if self.depth > _DEEPEST:
            self.fail(f"it is nested deeper than {_DEEPEST} levels")
        found = self._unnested()
        self.depth -= 1
        return found

    def _unnested(self) -> Matcher:
        if self._take("not"):
            inner = self._factor()
            return lambda holds: None if (found := inner(holds)) is None else not found
        if self._take("("):
            inner = self.parse()
            if not self._take(")"):
                self.fail("a ')' is missing")
            return inner
        if not self.tokens or self.tokens[0] in ("and", "or", ")"):
            self.fail("a word is missing" + (f" before {self.tokens[0]!r}" if self.tokens else " at the end"))
        word = self.tokens.popleft()
        return lambda holds: holds(word)

    def _take(self, token: str) -> bool:
        found = bool(self.tokens) and self.tokens[0] == token
        if found:
            self.tokens.popleft()
        return found

    def fail(self, reason: str) -> None:
        raise UsageError(f"-k {self.text!r}: {reason}; write words joined by and, or, not and brackets")


_TARGETS = ("x", "y", "params", "param")
OF_THE_RUN = tuple(names_at("Gate", "Output"))


def begun(models: Sequence[str], given: Mapping[str, Any], ctx: click.Context) -> Run:
    """The run that checks models."""
    found = expand(models)
    for text in found.notes:
        note(text)
    options = put_over(settings_above(common_folder(found.files), ctx), given)
    baseline = Baseline.of(options)
    try:
        tasks = planned(found, options, given)
    except UsageError as error:
        raise blamed(error, common_folder(found.files), ctx, given) from None
    return Run(tasks, given, options, ctx, baseline)


def planned(found: Found, options: Mapping[str, Any], given: Mapping[str, Any]) -> list[Task]:
    """The tasks that were chosen; an argument that means no file is a task that says so."""
    dims = dims_of(options.get("dim", ()))
    tasks = without_lists(Planner(options, dims, bool(options.get("allow_python"))).tasks(found.files))
    for path in {*found.files}.intersection(task.check or "" for task in tasks):
        if not os.path.lexists(path):
            raise UsageError(f"{path!r} is the name of a check, and no file. Write --check {path}")
    tasks += [unread(argument, error) for argument, error in found.missing]
    if options.get("check"):
        chosen = select([task.name for task in tasks], options["check"], None, errors=errors_of(tasks))
        tasks = [tasks[i] for i in chosen]
    if (expression := options.get("expression")) is not None:
        tasks = narrowed(tasks, expression, lambda task: (options, task.said, given))
    return tasks


@dataclass(slots=True)
class Run:
    """Tasks with the options of the run; `given` are those that were typed or set in the environment."""

    tasks: Sequence[Task]
    given: Mapping[str, Any]
    options: Mapping[str, Any]
    ctx: click.Context
    baseline: Baseline
    made: Callable[..., Checker] = Checker
    output: Output = field(init=False)
    checker: Checker = field(init=False)
    records: list[Check] = field(default_factory=list)
    noted: set[str] = field(default_factory=set)  # configuration files of which something was said
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.output = Output(self.options)
        verbose = self.options.get("verbose", 0) > self.options.get("quiet", 0)
        self.checker = self.made(
            given=self.given,
            ctx=self.ctx,
            bundles=Bundles(self.options.get("save_failures", FOLDER)),
            progress=Progress(self.options.get("progress", "auto"), verbose=verbose),
            gates=gates_of(self.options),
            baseline=self.baseline,
            pictures=self.output.pictures,
            alone=len({(task.model, task.graph) for task in self.tasks}) == 1,
            failing=self._stopped_alone,
            apart=True,
        )

    def run(self) -> int:
        """Checks all tasks, prints what they gave, and gives the exit code."""
        done = 0
        try:
            for task in self.tasks:
                self._note_idle(os.path.dirname(task.path) or ".")
                checks = self.checker.check(task)
                self.records.extend(map(self.output.kept, checks))
                done += 1
                self.output.section(checks, task.said.get("show"))
                self.output.draw(checks)
                if self.options.get("fail_fast") and self._report().exit_code:
                    break
        except KeyboardInterrupt:
            interrupts.heard()
            raise KeyboardInterrupt(self._interrupted(done)) from None
        report = self._report()
        try:
            self.output.write_reports(report)
        finally:  # a report that cannot be written is no reason to keep the results back
            self.output.end(report)
        self.checker.bundles.say()
        for remark in self.baseline.notes():
            note(remark)
        return report.exit_code

    def _interrupted(self, done: int) -> str:
        """Shows and writes what is done; gives the sentence that says how much that is."""
        unit = "check" if any(task.check for task in self.tasks) else "model"  # which may have several checks
        text = f"interrupted after {done} of {counted(len(self.tasks), unit)}"
        report = replace(self._report(), unfinished=text)
        try:
            self.output.write_reports(report)
        except GradcheckError as error:
            say(error)
        if self.records:
            self.output.end(report)
        return text

    def _note_idle(self, folder: str) -> None:
        """Tells of options of the run in a configuration file that lies below some of the models only."""
        config: Mapping[str, Any] = {}
        with suppress(GradcheckError):  # said when the model is checked
            config = put_over(settings_above(folder, self.ctx), self.given)
        idle = [name for name in OF_THE_RUN if name in config and self.options.get(name) != config[name]]
        file = file_above(folder, self.ctx) if idle else ""
        if idle and file not in self.noted:
            self.noted.add(file)
            note(f"{file}: {', '.join(idle)} has no effect here: it lies below some of the models")

    def _stopped_alone(self, failed: Check, error: BaseException) -> None:
        """Raises the error of the only task where people read stderr: they need no record of it."""
        alone = self._report(failed)
        if len(self.tasks) == 1 and self.output.for_people and alone.exit_code:
            self.output.write_reports(alone)
            raise naming(self.tasks[0].path, error)

    def _report(self, *more: Check) -> Report:
        gates = tuple(self.checker.gates)
        checks = (*self.records, *more)
        idle = sum(NOTHING_ROUNDS in check.notes for check in checks)
        notes = (f"{NOTHING_ROUNDS} ({idle} of {counted(len(checks), 'check')})",) if idle else ()
        return Report(checks, notes, time.monotonic() - self.began, gates)
