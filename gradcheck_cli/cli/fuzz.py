"""`gradcheck fuzz`: random models, judged on gradcheck itself or on another engine; what fails is shrunk and kept."""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from gradcheck_cli.cli import interrupts, note
from gradcheck_cli.cli.options import DURATION, TEXT_OR_JSON
from gradcheck_cli.errors import UsageError, counted, quoted, shown

if TYPE_CHECKING:
    from gradcheck_cli.reference.fuzzing import FuzzJob, FuzzResult, ShrunkFault

    Kept = tuple[ShrunkFault, int, Path | None]  # a fault, its number of cases, and the folder of its model

CASES = 1000  # where neither a number nor a time is given
FOLDER = ".gradcheck/fuzz"
_EVERY = 0.2  # seconds between lines of progress
_WIDTH = 79


@click.command("fuzz")
@click.option("--seed", default=0, show_default=True, metavar="INT", help="Cases are the same for a seed.")
@click.option("--cases", type=click.IntRange(min=1), metavar="N",
              help=f"Number of models. [default: {CASES}, or as many as there is --time for]")  # fmt: skip
@click.option("--time", "seconds", type=DURATION, metavar="TIME", help="Time to go on for: 30s, 10m, 1h.")
@click.option("--only", multiple=True, metavar="OP", help="Models of this operator alone; may be given several times.")
@click.option("--engine", default="", metavar="NAME", show_default="gradcheck itself",
              help="An engine of `gradcheck conformance`, or path.py:Class.")  # fmt: skip
@click.option("--python", default=sys.executable, metavar="FILE", show_default="this one",
              help="The interpreter in whose environment the engine is installed.")  # fmt: skip
@click.option("-o", "--output", default=FOLDER, show_default=True, metavar="FOLDER",
              type=click.Path(path_type=Path, file_okay=False), help="Folder for the models that fail.")  # fmt: skip
@click.option("-j", "--jobs", type=click.IntRange(min=1), metavar="INT", help="Processes. [default: one a core]")
@click.option(*TEXT_OR_JSON.opts, type=TEXT_OR_JSON.type, default="full", help=TEXT_OR_JSON.help)
def command(
    seed: int, cases: int | None, seconds: float | None, only: tuple[str, ...], engine: str, python: str, output: Path,
    jobs: int | None, output_format: str,
) -> int:  # fmt: skip
    """Check random models, and shrink those that fail to the smallest that fail in the same way.

    gradcheck itself is held against its numerical derivatives and onnxruntime's forward run, another engine against
    reference gradients. The exit code is 1 for a wrong gradient or output, 6 for a crash.
    """
    from gradcheck_cli.reference.fuzzing import FuzzJob, FuzzResult, started
    from gradcheck_cli.reference.random_models import operators
    from gradcheck_cli.reference.scores import exit_code
    from gradcheck_cli.zoo import cores

    job = FuzzJob(seed, tuple(operators(only)), engine, python)
    started(job)
    found, start = FuzzResult(job, {}, {}), time.monotonic()
    numbers = range(cases or CASES) if cases or seconds is None else itertools.count()
    until = start + seconds if seconds is not None else float("inf")
    interrupted = _ran(found, numbers, jobs or cores(), until)
    taken = time.monotonic() - start
    saved, unwritten = _kept(found, output)
    code = interrupts.INTERRUPTED if interrupted else unwritten.exit_code if unwritten else exit_code(found.counts)
    if output_format == "json":
        click.echo(_as_json(found, saved, taken, code))
    else:
        from gradcheck_cli.cli.output import fitted

        click.echo(fitted(_text(found, saved, taken)))
    if unwritten and not interrupted:
        raise unwritten
    if unwritten:
        note(str(unwritten))
    return code


def ranked(found: FuzzResult) -> list[tuple[ShrunkFault, int]]:
    """Faults, by status and operators."""
    return sorted(found.faults.values(), key=lambda each: (each[0].status, len(each[0].operators), each[0].key))


def _ran(found: FuzzResult, numbers: Any, jobs: int, until: float) -> bool:
    """Takes all answers; True if Ctrl-C ends it, and what was found until then is kept."""
    from gradcheck_cli.reference.fuzzing import answers

    shown_at, on_terminal = 0.0, sys.stderr.isatty()
    try:
        for answer in answers(found.job, numbers, jobs, until):
            found.take(answer)
            if on_terminal and time.monotonic() > shown_at + _EVERY:
                shown_at = time.monotonic()
                sys.stderr.write(f"\r{counted(found.cases, 'case')}, {counted(len(found.faults), 'fault')}")
                sys.stderr.flush()
    except KeyboardInterrupt:
        interrupts.heard(last=False)
        return True
    finally:
        if on_terminal:
            sys.stderr.write("\r\x1b[2K")
    return False


def _kept(found: FuzzResult, output: Path) -> tuple[list[Kept], UsageError | None]:
    """Faults with their folders, and the error of one that cannot be written: what was found is told all the same."""
    saved: list[Kept] = []
    unwritten = None
    for fault, times in ranked(found):
        folder = None
        try:
            folder = _saved(found.job, fault, output)
        except OSError as error:
            unwritten = UsageError(f"{output} cannot be written: {error.strerror or error}.")
        saved.append((fault, times, folder))
    return saved, unwritten


def _saved(job: FuzzJob, fault: ShrunkFault, output: Path) -> Path | None:
    """The folder of the model of a fault: a bundle for gradcheck's own, a case for an engine's."""
    from gradcheck_cli.reference.fuzzing import reference
    from gradcheck_cli.reference.random_models import built

    if fault.plan is None:
        return None
    name = "-".join((*(o.lower() for o in fault.operators), fault.status, f"{job.seed}_{fault.number}"))[-100:]
    sample = built(fault.plan, name)
    return reference(sample).write(output) if job.engine else bundle_of(sample, output)


def bundle_of(sample: Any, output: Path) -> Path:
    """The bundle of a model that fails in gradcheck itself."""
    from dataclasses import replace

    from gradcheck_cli.checks.assemble import versions
    from gradcheck_cli.formats.untrusted import own_folder
    from gradcheck_cli.reference.fuzzing import checked, settings_of
    from gradcheck_cli.zoo.bundle import Subject, begin, complete
    from gradcheck_cli.zoo.shelf import made, renamed, running

    settings, going = replace(settings_of(sample), forward=None), running(sample.name)
    try:
        records = [record.as_json() for record in checked(sample)[1]]
    except Exception:  # what ends the check will do so when it is run again
        records = []
    with tempfile.TemporaryDirectory(prefix="gradcheck-") as place:
        path = Path(place, "model.onnx")
        path.write_bytes(sample.model.SerializeToString())
        made(output)
        manifest = begin(output, going, sample.name, Subject(str(path)), settings, sys.argv, versions())
        with own_folder(output, going) as folder:
            complete(folder, manifest, settings, {}, {}, records)
    return renamed(output, going, sample.name)


def _command(job: FuzzJob, saved: Sequence[Kept]) -> str:
    """The command that runs an engine on all that was saved."""
    home = next((str(folder.parent) for _, _, folder in saved if folder is not None), "")
    python = [] if job.python == sys.executable else ["--python", job.python]
    return " ".join(map(quoted, ["gradcheck", "conformance", "run", home, "--engine", job.engine, *python]))


def _as_json(found: FuzzResult, saved: Sequence[Kept], taken: float, code: int) -> str:
    from gradcheck_cli.reference.fuzzing import SCHEMA

    job = found.job
    faults = [
        {"operators": list(fault.operators), "status": fault.status, "kind": fault.kind, "ways": list(fault.ways),
         "message": fault.message, "case": fault.number, "cases": times, "folder": str(folder) if folder else None}
        for fault, times, folder in saved
    ]  # fmt: skip
    said = {
        "schema": SCHEMA, "exit_code": code, "engine": job.engine or "gradcheck", "seed": job.seed, "cases": found.cases,
        "duration_s": round(taken, 3), "statuses": found.counts, "faults": faults,
    }  # fmt: skip
    return json.dumps(said, indent=2)


def _text(found: FuzzResult, saved: Sequence[Kept], taken: float) -> Iterator[str]:
    """The counts, then each fault with its smallest model."""
    from gradcheck_cli.errors import clean
    from gradcheck_cli.reference.fuzzing import STATUSES
    from gradcheck_cli.report.text import seconds

    for status, meaning in STATUSES.items():
        if number := found.counts.get(status):
            yield f"{number:7}  {status:8} {meaning}"
    for fault, times, folder in saved:
        ways = f" ({', '.join(fault.ways)})" if fault.ways else ""
        yield f"\n{fault.status}  {', '.join(fault.operators)}{ways}: {counted(times, 'case')}, first {fault.number}"
        yield f"  {clean(fault.message)}"
        if folder is not None:
            yield f"  {shown(str(folder) if found.job.engine else f'gradcheck reproduce {quoted(str(folder))}')}"
    if found.job.engine and any(folder is not None for _, _, folder in saved):
        yield f"\nto run them again: {shown(_command(found.job, saved))}"
    total = f"{counted(found.cases, 'case')}, {counted(len(saved), 'fault')}, seed {found.job.seed}"
    yield f"\n{total}, {found.cases / max(taken, 1e-9):.0f} a second in {seconds(taken)}"
