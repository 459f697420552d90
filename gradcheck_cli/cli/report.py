"""`gradcheck report`: results that were written before, in any format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from gradcheck_cli.cli import note
from gradcheck_cli.cli.options import OneOf, OutputPath, Text, either, given_in, options_of
from gradcheck_cli.errors import shown
from gradcheck_cli.report import FORMATS, files_said, suffixes

if TYPE_CHECKING:
    from gradcheck_cli.results.record import Kept


OUTPUT = click.RichOption(
    ["-o", "--output"], panel="Output", multiple=True, type=Text(), metavar="PATH",
    help=f"Write {files_said()}. [default: stdout]",
)  # fmt: skip
PARAMS = [
    OUTPUT,
    click.RichOption(
        ["--output-format", "--format", "output_format"], panel="Output", type=OneOf(FORMATS), metavar="FORMAT",
        help=f"{either(FORMATS)}. [default: by suffix; full on stdout]",
    ),
    click.RichOption(
        ["--gate"], panel="Gate", is_flag=True, default=None,
        help="Exit as the check did: 1 for a wrong gradient, 130 if it did not finish.",
    ),
    *options_of("report"),
]  # fmt: skip
_INTERRUPTED = 130  # the exit code of a run
RESULTS = click.RichArgument(
    ["results"], metavar="RESULTS...", nargs=-1, required=True, type=click.Path(allow_dash=True)
)


@click.command("report", params=[RESULTS, *PARAMS])
@click.pass_context
def command(ctx: click.Context, /, results: tuple[str, ...], **options: Any) -> int:
    """Show results again, or turn them into other formats.

    RESULTS are files that --report wrote, .json or .jsonl, or - for the standard input; those of several files make
    one report.  It exits with 0 whatever they say, unless --gate or another option of that panel asks for their
    verdict.
    """
    from gradcheck_cli.results import many

    with many():
        return run(results, given_in(ctx, options), ctx)


def run(results: Sequence[str], options: Mapping[str, Any], ctx: click.Context) -> int:
    """Shows or writes the results, and gives the exit code."""
    from gradcheck_cli.cli.baseline import gates_of
    from gradcheck_cli.cli.output import Output
    from gradcheck_cli.results.measures import WORDS
    from gradcheck_cli.results.record import Report

    form = options.get("output_format", "")
    kind = OutputPath(() if form else suffixes())
    paths = [kind.convert(path, OUTPUT, ctx) for path in options.get("output", ())]
    output = Output({**options, "report": paths})
    pictured = bool(form and FORMATS[form].pictured) or output.pictures != "none"
    read, unfinished = _read(results, pictured)
    checks = _judged(read, options)
    gates = gates_of(options) if "fail_on" in options else (*gates_of(options), *WORDS)
    found = Report(
        checks, (), sum(check.duration_s for check in checks.outcomes), gates, unfinished=unfinished, summed=True
    )
    if not paths:
        output.whole(found)
    output.write_reports(found, form)
    return found.exit_code if options.keys() & {"gate", "fail_on", "select", "ignore", "baseline"} else 0


def _read(results: Sequence[str], pictured: bool) -> tuple[Kept, str]:
    """The records of all files and runs of a zoo, with data of pictures if there will be some, and what was not done."""
    from gradcheck_cli.results import joined
    from gradcheck_cli.zoo.store import is_run

    found = [(_of_run(path, pictured) if is_run(path) else of_file(path)) for path in results]
    unfinished = [(path, said) for path, (_, said) in zip(results, found, strict=True) if said]
    said = [f"{shown(path)}: {said}" if len(results) > 1 else said for path, said in unfinished]
    return joined([checks for checks, _ in found]), "; ".join(said)


def _of_run(path: str, pictured: bool) -> tuple[Kept, str]:
    """The records of a run of a zoo, and what was not done."""
    from gradcheck_cli.cli.baseline import Baseline
    from gradcheck_cli.cli.zoo.results import FinishedJobs

    found = FinishedJobs.of_run(Path(path), Baseline())
    found.tell_unfinished()
    return found.records(pictured=pictured), found.unfinished


def of_file(path: str) -> tuple[Kept, str]:
    """The records in a file, and a sentence if its run was interrupted, which is noted."""
    from gradcheck_cli.results import put_aside

    heads: list[Mapping[str, Any]] = []
    checks = put_aside(path, note, heads.append)
    if all(head.get("exit_code") != _INTERRUPTED for head in heads):
        return checks, ""
    note(f"{path}: the run was interrupted")
    return checks, "the run was interrupted"


def _judged(checks: Kept, options: Mapping[str, Any]) -> Kept:
    """The records, waived by --baseline, --select and --ignore and with the gates of --fail-on, if those are given."""
    from gradcheck_cli.checks.health.checkup import with_gates
    from gradcheck_cli.cli.baseline import Baseline

    if options.keys() & {"baseline", "select", "ignore"}:
        checks = checks.changed(Baseline.of(options).judged)
    if (asked := options.get("fail_on")) is not None:
        checks = checks.changed(lambda check: with_gates(check, asked), by_all=True)
    return checks
