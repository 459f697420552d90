"""Results read back are the records that were written, and a file that holds none is refused in a sentence."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from gradcheck_cli.errors import UsageError
from gradcheck_cli.report import FORMATS, render
from gradcheck_cli.report.text import Style
from gradcheck_cli.results import check_from_json, read_results
from gradcheck_cli.results.record import Check, ModelInfo, Report
from tests.reports.records import CHECKS

DRAWN = settings(
    max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate]
)
WHOLE = Style(verbosity=1, health=True)
RECORD = Check("a::d y/d x", "a", "fail", "GC101", ModelInfo("a.onnx"), "x", "y", worst=(), duration_s=0.5).as_json()


def test_records_of_real_checks_are_read_as_they_were(results: dict[str, Path]) -> None:
    found = {path: read_results(str(path)) for path in results.values()}
    for path, checks in found.items():
        assert [check.as_json() for check in checks] == json.loads(path.read_text())["checks"]
    every = [check for checks in found.values() for check in checks]
    assert {c.status for c in every} == {
        "pass", "fail", "severed", "inconclusive", "error", "unsupported", "limit", "waived",
    }  # fmt: skip
    assert {c.mode for c in every} == {"full", "nodes", "directional", "sampled"}
    assert any(c.gates for c in every)
    assert any(c.suspect for c in every)


@DRAWN
@given(CHECKS)
def test_any_record_is_read_as_it_was(check: Check) -> None:
    record = check.as_json()
    assert check_from_json(json.loads(json.dumps(record, allow_nan=False))).as_json() == record


@pytest.mark.one_in(3)
@pytest.mark.parametrize("form", FORMATS)
@DRAWN
@given(check=CHECKS)
def test_whatever_was_read_can_be_shown(form: str, check: Check) -> None:
    again = check_from_json(json.loads(json.dumps(check.as_json())))
    text = render(form, Report((again,)), WHOLE)
    assert [c for c in text if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160] == []


def test_what_is_read_shows_as_what_was_found(results: dict[str, Path]) -> None:
    for path in results.values():
        found = read_results(str(path))
        again = tuple(check_from_json(json.loads(line)) for line in render("jsonl", Report(found)).splitlines())
        assert [render(form, Report(again), WHOLE) for form in FORMATS] == [
            render(form, Report(found), WHOLE) for form in FORMATS
        ]


def test_a_run_lines_and_single_records_are_read_alike(tmp_path: Path) -> None:
    run = {"schema": "gradcheck.run/1", "exit_code": 1, "checks": [RECORD, RECORD]}
    texts = {
        "run.json": json.dumps(run, indent=2),
        "run on a line.json": json.dumps(run),
        "record.json": json.dumps(RECORD, indent=2),
        "lines.jsonl": f"{json.dumps(RECORD)}\r\n\n{json.dumps(RECORD)}\n",
        "lines.txt": f"{json.dumps(RECORD)}\n{json.dumps(RECORD)}",
        "none.jsonl": "",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    found = {name: [c.as_json() for c in read_results(str(tmp_path / name))] for name in texts}
    assert found == {
        "run.json": [RECORD] * 2, "run on a line.json": [RECORD] * 2, "record.json": [RECORD],
        "lines.jsonl": [RECORD] * 2, "lines.txt": [RECORD] * 2, "none.jsonl": [],
    }  # fmt: skip


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_what_shells_of_windows_write_is_read(tmp_path: Path, encoding: str) -> None:
    record = {**RECORD, "x": "größe"}
    (tmp_path / "results.json").write_text(json.dumps(record, ensure_ascii=False), encoding=encoding)
    assert read_results(str(tmp_path / "results.json"))[0].x == "größe"


def test_a_line_that_was_not_written_to_its_end_is_left_out_wherever_it_ends(tmp_path: Path) -> None:
    file, line = tmp_path / "results.jsonl", json.dumps({**RECORD, "x": "größe"}, ensure_ascii=False).encode()
    for end in (*range(1, len(line)), "nothing but zeros"):
        torn = line[:end] if isinstance(end, int) else bytes(100)
        said: list[str] = []
        file.write_bytes(line + b"\n" + torn)
        assert len(read_results(str(file), said.append)) == 1
        assert said == [f"{file}:2: the last line was not written to its end, and is left out"]


def test_keys_of_newer_versions_are_passed_over(tmp_path: Path) -> None:
    newer = copy.deepcopy(RECORD) | {"hue": [1], "model": {**RECORD["model"], "weight": {"a": 1}}}
    newer["waiver"] = {"status": "fail", "reason": "r", "by": "somebody"}
    read = check_from_json(newer).as_json()
    assert "hue" not in read
    assert "weight" not in read["model"]
    assert read["waiver"] == newer["waiver"]


MISFITS = [
    ("", "holds no results: it is empty"),
    ("results", ":1 holds no results; --report results.json writes them"),
    ("{", ":1 holds no results; --report results.json writes them"),
    ("[" * 100_000, ":1 holds no results; --report results.json writes them"),
    ("\n\n[]", ":3 holds no result of gradcheck: a list is no record"),
    ('{"schema": "other/1"}', ":1 holds no result of gradcheck: its schema is \"other/1\", not 'gradcheck.result/1'"),
    ("{}", ":1 holds no result of gradcheck: its schema is null, not 'gradcheck.result/1'"),
    ('{"schema": "gradcheck.run/1"}', ":1 holds no results of gradcheck: its checks are no list"),
    ('{"schema": "gradcheck.run/1", "checks": [7]}', ":1 holds no result of gradcheck: 7 is no record"),
    ('{"schema": "gradcheck.result/1"}', ":1 holds no result of gradcheck: id is missing"),
    (json.dumps(RECORD) + "\n\x1b[2J\n", ":2 holds no results; --report results.json writes them"),
]


@pytest.mark.parametrize("text, reason", MISFITS)
def test_a_file_without_results_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "results.json"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_results(str(file))
    assert str(caught.value).startswith(str(file))
    assert str(caught.value).endswith(reason)


@pytest.mark.parametrize(
    "way, value, reason",
    [
        (["status"], "failed", "status should be one of pass, fail, severed, inconclusive, error, unsupported, limit, "
         'waived, and is "failed"'),
        (["code"], "E501", 'code should be a code such as GC101, and is "E501"'),
        (["rtol"], "small", 'rtol should be a number, and is "small"'),
        (["rtol"], 10**400, f"rtol should be a number, and is {'1' + '0' * 36}..."),
        (["rtol"], True, "rtol should be a number, and is true"),
        (["seed"], 0.5, "seed should be an integer, and is 0.5"),
        (["x"], None, "x should be text, and is null"),
        (["x_shape"], "3", 'x_shape should be a list, and is "3"'),
        (["x_shape"], [2, "\x1b"], 'x_shape[] should be an integer, and is "\\u001b"'),
        (["ranges"], {"x": [1]}, "ranges.x should be a list of 2, and is a list"),
        (["model"], "a.onnx", 'model should be an object, and is "a.onnx"'),
        (["model", "opset"], {"\x1b[2J": "17"}, 'model.opset.\\x1b[2J should be an integer, and is "17"'),
        (["entries"], {"failed": 1}, "entries.total is missing"),
        (["worst"], [{"x": [0]}], "worst[].y is missing"),
        (["gradient"], {"health": {"layers": [{}]}}, "gradient.health.layers[].spot is missing"),
        (["gradient"], {"finite": "no"}, 'gradient.finite should be true or false, and is "no"'),
        (["picture"], {"tile": {}}, "picture.tile.over is missing"),
        (["picture"], {"tile": {"over": "x", "sizes": 3}}, "picture.tile.sizes should be a list, and is 3"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_named(way: list[str], value: Any, reason: str) -> None:
    record = copy.deepcopy(RECORD)
    place = record
    for key in way[:-1]:
        place = place[key]
    place[way[-1]] = value
    with pytest.raises(UsageError) as caught:
        check_from_json(record)
    assert str(caught.value) == f"no result of gradcheck: {reason}"


ODD = [None, True, -1, 10**30, 1e308, "nan", "x" * 50, [], {}, [[]], {"a": 1}, float("nan")]


def test_records_with_values_of_any_kind_anywhere_are_refused_or_shown(results: dict[str, Path]) -> None:
    records = [record for path in results.values() for record in json.loads(path.read_text())["checks"]]
    shown, forms = 0, [*FORMATS]
    for index, (record, way) in enumerate((each, way) for each in records[::7] for way in ways(each)):
        for odd in ODD[index % 3 :: 3]:
            try:
                check = check_from_json(changed(record, way, odd))
            except UsageError:
                continue
            shown += 1
            render(forms[shown % len(forms)], Report((check,)), WHOLE)
    assert shown


def ways(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """To every value within one, but the first of a list stands for all."""
    entries = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, each in entries:
        yield (*way, key)
        yield from ways(each, (*way, key))


def changed(value: Any, way: tuple[Any, ...], other: Any) -> Any:
    """A value with another one at the end of a way."""
    if not way:
        return other
    made = copy.copy(value)
    made[way[0]] = changed(value[way[0]], way[1:], other)
    return made
