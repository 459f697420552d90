"""`gradcheck report`: results that were written before, in any format."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import rich_click as click

from gradcheck_cli.cli import note
from gradcheck_cli.cli.options import OneOf, OutputPath, Text, either, given_in, options_of
from gradcheck_cli.errors import counted, shown
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
    one report, in which the last record of a check counts.  It exits with 0 whatever they say, unless --gate or another
    option of that panel asks for their verdict.
    """
    from gradcheck_cli.results import many

    with many():
        return run(results, given_in(ctx, options), ctx)


def run(results: Sequence[str], options: Mapping[str, Any], ctx: click.Context) -> int:
    """Shows or writes the results, and gives the exit code."""
    from gradcheck_cli.cli.baseline import gates_of
    from gradcheck_cli.cli.output import Output
    from gradcheck_cli.results.record import Report

    form = options.get("output_format", "")
    kind = OutputPath(() if form else suffixes())
    paths = [kind.convert(path, OUTPUT, ctx) for path in options.get("output", ())]
    output = Output({**options, "report": paths})
    pictured = bool(form and FORMATS[form].pictured) or output.pictures != "none"
    past = _read(results, pictured)
    checks = _judged(past.checks, options)
    gates = gates_of(options) if "fail_on" in options else tuple(past.gates)
    duration = sum(check.duration_s for check in checks.outcomes)
    found = Report(checks, (), duration, gates, unfinished=past.unfinished, summed=True)
    if not paths:
        output.whole(found)
    output.write_reports(found, form)
    return found.exit_code if options.keys() & {"gate", "fail_on", "select", "ignore", "baseline"} else 0


class Past(NamedTuple):
    """The records of a run that was done, the gates that it had, and a sentence on what it did not do."""

    checks: Kept
    gates: Collection[str]
    unfinished: str


def _read(results: Sequence[str], pictured: bool) -> Past:
    """The records of all files and runs of a zoo, with data of pictures if there will be some."""
    from gradcheck_cli.results import joined
    from gradcheck_cli.results.record import GATES
    from gradcheck_cli.zoo.store import is_run

    found = [(_of_run(path, pictured) if is_run(path) else of_file(path)) for path in results]
    checks = joined(_last([each.checks for each in found]))
    said = [(path, each.unfinished) for path, each in zip(results, found, strict=True) if each.unfinished]
    unfinished = "; ".join(f"{shown(path)}: {text}" if len(results) > 1 else text for path, text in said)
    gates = {gate for each in found for gate in each.gates}
    gates |= {word for check in checks.outcomes for word in check.at_health}  # of files that do not say their gates
    return Past(checks, tuple(gate for gate in GATES if gate in gates), unfinished)


def _last(parts: Sequence[Kept]) -> list[Kept]:
    """Records without those of checks that a later part has too: a later record counts, and the others are noted.

    A record of a model that could not be checked at all gives way to any later one of its check.
    """
    from gradcheck_cli.cli.baseline import key_of

    found: list[Kept] = []
    later: set[tuple[str, str]] = set()
    for part in reversed(parts):
        keys = [key_of(check) for check in part.outcomes]
        found.append(part.some([place for place, key in enumerate(keys) if key not in later]))
        later.update(keys, ((uri, check.check) for (uri, _), check in zip(keys, part.outcomes, strict=True)))
    if twice := sum(map(len, parts)) - sum(map(len, found)):
        note(f"{counted(twice, 'record')} of checks that later results have too left out: the last counts")
    return found[::-1]


def _of_run(path: str, pictured: bool) -> Past:
    """The records of a run of a zoo."""
    from gradcheck_cli.cli.zoo.results import FinishedJobs
    from gradcheck_cli.zoo.store import read_about

    found = FinishedJobs.of_run(Path(path))
    found.tell_unfinished()
    return Past(found.records(pictured=pictured), read_about(Path(path)).fail_on, found.unfinished)


def of_file(path: str) -> Past:
    """The records in a file; an interrupted run is noted.  Lines do not say what fails their run, nor how it ended."""
    from gradcheck_cli.results import put_aside
    from gradcheck_cli.results.record import OUTCOMES

    heads: list[Mapping[str, Any]] = []
    checks = put_aside(path, note, heads.append)
    interrupted = any(head.get("exit_code") == _INTERRUPTED for head in heads)
    if interrupted:
        note(f"{path}: the run was interrupted")
    kept = (head.get("fail_on") for head in heads)
    gates = {str(gate) for each in kept if isinstance(each, list) for gate in each}  # none of a run with --exit-zero
    return Past(checks, gates or OUTCOMES, "the run was interrupted" if interrupted else "")


def _judged(checks: Kept, options: Mapping[str, Any]) -> Kept:
    """The records, waived by --baseline, --select and --ignore and with the gates of --fail-on, if those are given."""
    from gradcheck_cli.checks.health.checkup import with_gates
    from gradcheck_cli.cli.baseline import Baseline

    if (asked := options.get("fail_on")) is not None:
        checks = checks.changed(lambda check: with_gates(check, asked), by_all=True)
    if options.keys() & {"baseline", "select", "ignore"}:
        checks = checks.changed((baseline := Baseline.of(options)).judged, by_all=bool(baseline.known))
    return checks
