"""The schemas name all that there is: nothing in a record, and no key of a spec, that they do not know."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from gradcheck_cli.errors import UsageError
from gradcheck_cli.formats.yaml.fields import spec_schema
from gradcheck_cli.report.json_records import result_schema
from gradcheck_cli.results import check_from_json
from gradcheck_cli.results.record import STATUSES, Check
from tests.checking.small import between, check, scaled, with_rule
from tests.reports.records import CHECKS
from tests.reports.test_results import DRAWN, ways

jsonschema = pytest.importorskip("jsonschema")
WORDS = ("enum", "const", "pattern")  # which of several values a field holds


def parts(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and all that it is made of."""
    if isinstance(schema, dict):
        yield schema
        for each in schema.values():
            yield from parts(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from parts(each)


def closed(*ignored: str) -> Any:
    """A validator of records, by a schema that allows no other keys than those it names."""
    schema = result_schema()
    number = json.loads(json.dumps(schema["definitions"]["number"]))
    for part in [*parts(schema)]:
        if isinstance(part.get("properties"), dict):
            part["additionalProperties"] = False
        for word in ignored:
            if not isinstance(part.get(word), dict):  # a field may be called so
                part.pop(word, None)
    definitions = {**schema["definitions"], "number": number}
    return jsonschema.Draft7Validator({"$ref": "#/definitions/result", "definitions": definitions})


def test_records_of_real_checks_hold_nothing_that_the_schema_does_not_name(results: dict[str, Path]) -> None:
    every = [record for path in results.values() for record in json.loads(path.read_text())["checks"]]
    assert {record["status"] for record in every} == {*STATUSES}
    judge = closed()
    for record in every:
        judge.validate(record)


def test_so_do_records_with_what_pictures_are_drawn_from() -> None:
    found = check(between("Tanh"), ops=with_rule("Tanh", scaled("Tanh", 2.0)), pictures="wrong")
    record = found.as_json(pictured=True)
    assert record["picture"]["curve"]
    closed().validate(json.loads(json.dumps(record)))


@DRAWN
@given(CHECKS)
def test_whatever_the_fields_of_a_record_hold_is_named(drawn: Check) -> None:
    record = replace(drawn, duration_s=1.0, peak_rss_mb=1.0).as_json()
    closed(*WORDS).validate(json.loads(json.dumps(record)))


def test_a_field_that_the_schema_does_not_name_is_seen(results: dict[str, Path]) -> None:
    record = json.loads(results["plain"].read_text())["checks"][0]
    for more in ({"new": 1}, {"model": {**record["model"], "new": 1}}, {"power": {"new": 1}}, {"waiver": {"new": 1}}):
        assert not closed().is_valid({**record, **more}), more


def without(value: Any, way: tuple[Any, ...]) -> Any:
    """A value without the key at the end of a way."""
    made = copy.deepcopy(value)
    place = made
    for key in way[:-1]:
        place = place[key]
    del place[way[-1]]
    return made


@pytest.mark.slow
def test_the_reader_asks_for_the_keys_that_the_schema_asks_for(results: dict[str, Path]) -> None:
    judge, asked = closed(), Counter[bool]()
    drawn = check(between("Tanh"), ops=with_rule("Tanh", scaled("Tanh", 2.0)), pictures="wrong")
    real = [record for path in results.values() for record in json.loads(path.read_text())["checks"]]
    longest = sorted(real, key=lambda record: len(json.dumps(record)))[-4:]
    for record in (*longest, json.loads(json.dumps(drawn.as_json(pictured=True)))):
        for way in (way for way in ways(record) if isinstance(way[-1], str)):
            spoiled = without(record, way)
            valid = judge.is_valid(spoiled)
            asked[valid] += 1
            if valid:
                check_from_json(spoiled)
            else:
                with pytest.raises(UsageError, match=r"is missing|its schema is null"):
                    check_from_json(spoiled)
    assert min(asked[True], asked[False]) > 20


def test_every_field_is_described() -> None:
    properties = result_schema()["definitions"]["result"]["properties"]
    bare = {name for name, part in properties.items() if not any("description" in each for each in parts(part))}
    assert bare == {"schema"}


def test_a_schema_that_was_changed_changes_no_other() -> None:
    result_schema()["definitions"]["number"].clear()
    assert result_schema()["definitions"]["number"]


def test_keys_of_a_spec_are_those_that_the_schema_names() -> None:
    objects = [part for part in parts(spec_schema()) if isinstance(part.get("properties"), dict)]
    assert len(objects) > 10
    assert [part.get("title") for part in objects if part.get("additionalProperties") is not False] == []
