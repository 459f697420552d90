"""`gradcheck conformance`: the cases, an engine held against them, and the scoreboard of several."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from gradcheck_cli.cli import interrupts, note
from gradcheck_cli.cli.group import Helpful
from gradcheck_cli.cli.options import DURATION, TEXT_OR_JSON, OutputPath
from gradcheck_cli.errors import counted, shown

if TYPE_CHECKING:
    from gradcheck_cli.reference.scores import Score, Scored

_FOLDER = click.Path(path_type=Path, file_okay=False)
_FILE = click.Path(path_type=Path, dir_okay=False)
_OUTPUT = OutputPath((), folders=False)
_REASONS = 10  # of refusals that are shown
_DOTS = 50  # cases of a line of progress


@click.group("conformance", cls=Helpful, options_metavar="", subcommand_metavar="write | run | board")
def command() -> None:
    """Hold an engine that differentiates ONNX models against reference gradients.

    `gradcheck conformance write cases/` writes the cases, `gradcheck conformance run --engine NAME cases/` runs an engine
    on them, `gradcheck conformance board *.json -o board.html` shows several side by side.
    """


@command.command("write")
@click.argument("folder", type=_FOLDER)
@click.option("--only", multiple=True, metavar="OP", help="Cases of this operator alone; may be given several times.")
@click.option("-v", "--verbose", is_flag=True, help="Say which models make no case, and why.")
def write(folder: Path, only: tuple[str, ...], verbose: bool) -> int:
    """Write the cases, each a folder in the layout of ONNX's backend tests, with gradients beside inputs and outputs.

    The same cases come out each time; a few minutes and some 30 MB for all.
    """
    from gradcheck_cli.cli.output import fitted
    from gradcheck_cli.reference import scores as scores_of

    reasons: Counter[str] = Counter()

    def told(name: str, dropped: str) -> None:
        reasons[dropped.partition(":")[0]] += 1
        if dropped and verbose:
            click.echo(f"{shown(name)}: {shown(dropped)}", err=True)

    count = scores_of.write(folder, told, only)
    click.echo(f"{counted(count, 'case')} in {shown(str(folder))}")
    for reason, number in reasons.most_common():
        if reason:
            click.echo(fitted([f"{counted(number, 'model makes none', 'models make none')}: {reason}"]))
    return 0 if count else 7


@command.command("run")
@click.argument("folder", type=_FOLDER)
@click.option("--engine", required=True, metavar="NAME", help="An engine that is known, or path.py:Class.")
@click.option("--python", default=sys.executable, metavar="FILE", show_default="this one",
              help="The interpreter in whose environment the engine is installed.")  # fmt: skip
@click.option("--only", multiple=True, metavar="OP", help="Cases of this operator alone; may be given several times.")
@click.option("--case-timeout", type=DURATION, default="60s", show_default=True, metavar="TIME",
              help="Time limit for each case: 30s, 10m, 1h.")  # fmt: skip
@click.option("-o", "--output", type=_OUTPUT, help="Write the score as JSON.")
@click.option("--exit-zero", is_flag=True, help="Exit with 0 whatever the engine gives.")
@click.option(*TEXT_OR_JSON.opts, type=TEXT_OR_JSON.type, default="full", help=TEXT_OR_JSON.help)
def run(
    folder: Path, engine: str, python: str, only: tuple[str, ...], case_timeout: float, output: str | None,
    exit_zero: bool, output_format: str,
) -> int:  # fmt: skip
    """Run an engine on all cases: exit code 1 if a gradient is wrong, 6 if it crashes, 7 if no gradient is right."""
    from gradcheck_cli.reference import scores as scores_of

    answers: list[Scored] = []
    found, interrupted = scores_of.cases_in(folder, only), False
    try:
        for answer in scores_of.answers(engine, found, python, case_timeout):
            answers.append(answer)
            _count(len(answers), len(found))
    except KeyboardInterrupt:
        interrupts.heard(last=False)
        interrupted = True
    score = scores_of.Score(engine, tuple(answers))
    if output_format == "json":
        click.echo(json.dumps(scores_of.plain(score), indent=2))
    else:
        _print(score)
    if interrupted:
        note(f"interrupted after {counted(len(answers), 'case')} of {len(found)}; no score is written")
        return interrupts.INTERRUPTED
    if output is not None:
        score.write(Path(output))
    ends = {status: score.count(status) for status in scores_of.STATUSES if status != "forward"}  # is no gradient
    return 0 if exit_zero else scores_of.exit_code(ends)


@command.command("board")
@click.argument("scores", nargs=-1, required=True, type=_FILE)
@click.option("-o", "--output", type=_OUTPUT, help="Write a page, or a badge of the first score: .html or .svg.")
def board(scores: tuple[Path, ...], output: str | None) -> int:
    """Show scores side by side: operators by engines."""
    from gradcheck_cli.reference import scores as scores_of

    read = [scores_of.Score.read(path) for path in scores]
    if output is None:
        _print_board(read)
    else:
        scores_of.publish(read, Path(output))
        click.echo(f"wrote {shown(output)}", err=True)
    return 0


def _count(number: int, total: int) -> None:
    """Counts answers on stderr, if that is a terminal."""
    if sys.stderr.isatty() and (number % _DOTS == 0 or number == total):
        sys.stderr.write(f"\r{number}/{total} cases" + ("\n" if number == total else ""))


def _print(score: Score) -> None:
    """The counts, why cases were refused, then the smallest wrong case of each operator."""
    from gradcheck_cli.reference.scores import FAULTS, STATUSES

    for status, meaning in STATUSES.items():
        if number := score.count(status):
            click.echo(f"{number:6}  {status:8} {meaning}")
    if reasons := score.reasons():
        click.echo("\nrefused")
    for reason, number in reasons[:_REASONS]:
        click.echo(f"{number:6}  {shown(reason)}")
    if len(reasons) > _REASONS:
        click.echo(f"        and {counted(len(reasons) - _REASONS, 'more reason')}; -o FILE has them all")
    for status in FAULTS:
        for operator, answer in score.smallest(status).items():
            click.echo(f"\n{status}  {shown(operator)}  {shown(answer.case)}\n       {shown(answer.message)}")


def _print_board(scores: list[Score]) -> None:
    """A row for each operator at which some engine is wrong, then the sums."""
    from gradcheck_cli.cli.output import style_of
    from gradcheck_cli.reference.scores import table
    from gradcheck_cli.report.text import table as aligned

    names, counted_by = table(scores)
    sums = ("all", [sum((counts[i] for _, counts in counted_by), Counter()) for i in range(len(names))])
    wrong = [row for row in counted_by if any(_wrong(counts) for counts in row[1])]
    rows = [(shown(operator), *map(_cell, counts)) for operator, counts in (*wrong, sums)]
    head = ("operator", *map(shown, names))
    click.echo("right / wrong / refused of each engine, where one is wrong\n")
    click.echo("\n".join(aligned([head, *rows], "<" + ">" * len(names), width=style_of({}).width)))


def _wrong(counts: Counter[str]) -> int:
    return counts["wrong"] + counts["forward"]


def _cell(counts: Counter[str]) -> str:
    """Right, wrong and refused of an engine; a crash is a refusal here."""
    return f"{counts['right']} / {_wrong(counts)} / {counts['refused'] + counts['crashed']}" if counts else "-"
