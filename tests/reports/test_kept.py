"""Records that stay in a file: every format says of them what it says of those in memory, and holds few at a time."""

from __future__ import annotations

import json
import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path

import pytest

from gradcheck_cli.cli.baseline import Baseline
from gradcheck_cli.cli.zoo.results import FinishedJobs
from gradcheck_cli.report import FORMATS, render, write
from gradcheck_cli.report.markdown import bounded
from gradcheck_cli.report.text import Style
from gradcheck_cli.results import joined, put_aside, read_results
from gradcheck_cli.results.record import Check, Kept, Report
from gradcheck_cli.zoo.store import Store
from tests.reports.test_formats import FAILED, PASSED, WAIVED, hostile

BIT_BY_BIT = [form.name for form in FORMATS.values() if not form.pictured]
EVERY = [
    FAILED, PASSED, WAIVED, replace(PASSED, gates=("dead",)), hostile("<b>"), replace(FAILED, status="inconclusive"),
    replace(FAILED, status="error", code="GC401", message="GC401: nothing"), replace(PASSED, check="other"),
]  # fmt: skip


class Held(Check):
    """A record that can be watched."""

    __slots__ = ("__weakref__",)


class Source:
    """Records that are made anew whenever one is read; how many of them were there at once."""

    def __init__(self, checks: Sequence[Check]) -> None:
        self.checks, self.made, self.most = checks, list[weakref.ref[Held]](), 0

    def read(self, places: Sequence[int]) -> Iterator[Check]:
        for place in places:
            made = Held(*(getattr(self.checks[place], field.name) for field in fields(Check)))
            self.made = [*filter(lambda ref: ref() is not None, self.made), weakref.ref(made)]
            self.most = max(self.most, len(self.made))
            yield made

    def kept(self) -> Kept:
        return Kept([check.outcome for check in self.checks], self.read)


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_says_of_them_what_it_says_of_those_in_memory(
    form: str, results: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    for path in results.values():
        checks = read_results(str(path))
        assert render(form, Report(put_aside(str(path)), (), 1.5)) == render(form, Report(checks, (), 1.5))
    assert render(form, Report(Source(EVERY).kept())) == render(form, Report(EVERY))
    assert render(form, Report(Source(()).kept())) == render(form, Report(()))


@pytest.mark.parametrize("form", BIT_BY_BIT)
def test_a_format_that_is_written_bit_by_bit_holds_a_check_at_a_time(form: str, tmp_path: Path) -> None:
    many = [replace(check, check=f"{number}") for number in range(40) for check in (FAILED, PASSED, WAIVED)]
    source = Source(many)
    write(str(tmp_path / "report"), Report(source.kept()), Style(), form)
    assert source.most < 10
    assert (tmp_path / "report").read_text() == render(form, Report(many))


@pytest.mark.parametrize("form", BIT_BY_BIT)
def test_every_format_says_of_those_in_a_store_what_it_says_of_those_in_memory(form: str, tmp_path: Path) -> None:
    half = replace(PASSED, check="caf\udce9.onnx", notes=("\N{GRINNING FACE}", 'a "quote" \\', "\x7f"))
    checks = [*EVERY, half, replace(PASSED, max_rel_err=math.nan, gradient={"norm": math.inf})]
    with Store(tmp_path) as store:
        for number, check in enumerate(checks):
            store.append(f"{number:02}", "", [check.as_json()])
    kept = FinishedJobs(tmp_path, None, Baseline()).records()
    assert render(form, Report(kept)) == render(form, Report(checks))


def test_a_record_of_an_earlier_version_has_the_fields_of_this_one_in_json(tmp_path: Path) -> None:
    record = {**FAILED.as_json(), "later": 1}
    with Store(tmp_path) as store:
        store.append("a", "", [{name: value for name, value in record.items() if name not in ("copy_of", "claim")}])
    [told] = json.loads(render("json", Report(FinishedJobs(tmp_path, None, Baseline()).records())))["checks"]
    assert told == FAILED.as_json()


def test_the_summary_of_a_step_is_the_same(results: dict[str, Path]) -> None:
    checks = [check for path in results.values() for check in read_results(str(path))]
    for most in (1 << 20, 20_000, 5_000, 500, 10):
        assert bounded(Report(Source(checks).kept()), Style(), most) == bounded(Report(checks), Style(), most)


def test_a_record_that_cannot_be_read_leaves_the_report_of_earlier_as_it_is(tmp_path: Path) -> None:
    def read(places: Sequence[int]) -> Iterator[Check]:
        yield FAILED
        raise OSError("gone")

    file = tmp_path / "report.json"
    file.write_text("earlier")
    with pytest.raises(OSError, match="gone"):
        write(str(file), Report(Kept([FAILED.outcome] * 2, read)), Style())
    assert file.read_text() == "earlier"


def test_they_are_a_sequence(results: dict[str, Path]) -> None:
    """Slices of them too, and several one after another."""
    checks = [check for path in results.values() for check in read_results(str(path))]
    kept = joined([put_aside(str(path)) for path in results.values()])
    assert list(kept) == checks
    assert len(kept) == len(checks)
    assert [kept[place] for place in (0, 3, -1)] == [checks[place] for place in (0, 3, -1)]
    assert list(kept[5:1:-2]) == checks[5:1:-2]
    assert list(kept[3:][1:]) == checks[4:]
    assert list(kept.some([4, 1, 4])) == [checks[place] for place in (4, 1, 4)]
    with pytest.raises(IndexError):
        kept[len(kept)]


def test_what_a_change_needs_may_be_in_the_outcome_or_in_all_of_a_record() -> None:
    kept = Source([FAILED, PASSED]).kept()
    waived = kept.changed(lambda check: replace(check, status="waived"))
    assert {check.status for check in (*waived, *waived.outcomes)} == {"waived"}
    marked = kept.changed(lambda check: replace(check, gates=("dead",) if check.max_rel_err else ()), by_all=True)
    assert [check.gates for check in marked] == [check.gates for check in marked.outcomes] == [("dead",), ("dead",)]


def test_of_more_records_than_are_held_all_come_back_in_any_order(tmp_path: Path) -> None:
    many = [replace(EVERY[number % len(EVERY)], id=f"{number}") for number in range(1200)]
    file = tmp_path / "results.jsonl"
    file.write_text(render("jsonl", Report(many)), "utf-8")
    kept = put_aside(str(file))
    assert list(kept) == many
    assert list(kept[::-7]) == many[::-7]
    assert [kept[place].id for place in (999, 1000, 1199, 0)] == ["999", "1000", "1199", "0"]
