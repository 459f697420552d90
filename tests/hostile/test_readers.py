"""Whatever stands in a file from elsewhere, reading it ends in a value or in an error of gradcheck's own.

For hours of it: `python -m tests.hostile.fuzz --minutes 60`.
"""

from __future__ import annotations

import json
import random
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.zoo.store import SCHEMA
from tests.hostile.readers import KINDS, NOT_ALL, PLACES
from tests.hostile.spoiling import spoiled

SECONDS = 20  # of work that a file may take


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / PLACES[0]).mkdir()
    return tmp_path / PLACES[0]


def outcome(name: str, folder: Path, data: bytes) -> str:
    """ "read", or what it was refused for."""
    path = folder / KINDS[name].file
    path.write_bytes(data)
    began = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's, of headers that are hardly any
            KINDS[name].read(path)
    except (GradcheckError, MemoryError) as error:
        return str(error) or "too large"
    finally:
        assert time.process_time() - began < SECONDS
    return "read"


@pytest.mark.parametrize("name", KINDS)
def test_what_is_right_is_read(name: str, folder: Path) -> None:
    found = [outcome(name, folder, data) for data in KINDS[name].seeds()]
    assert found
    assert name in NOT_ALL or {*found} == {"read"}, found


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("count", [60, pytest.param(5000, marks=pytest.mark.slow)])
def test_what_is_spoiled_is_read_or_refused(name: str, count: int, folder: Path, bounded_memory: None) -> None:
    rng, seeds = random.Random(name), KINDS[name].seeds()
    for _ in range(count):
        outcome(name, folder, spoiled(rng.choice(seeds), seeds, rng))


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", KINDS)
def test_what_is_cut_off_is_read_or_refused(name: str, folder: Path) -> None:
    for data in sorted(KINDS[name].seeds(), key=len)[:2]:
        for end in range(0, len(data), max(1, min(64, len(data) // 40))):
            outcome(name, folder, data[:end])


HEAD = b'{"zoo": {"key": "k", "job": "j", "timeout": 1, "of": 1, "part": 1, "id": "i", "check": "c", "code": "", "uri": "",'
WHOLE = b'"status": "pass", "gates": [], "waiver": null, "duration_s": 1'


def line(*changes: tuple[bytes, bytes]) -> bytes:
    """A line of a store after some changes."""
    data = HEAD + WHOLE + b"}}\n"
    for old, new in changes:
        data = data.replace(old, new)
    return data


def about(**changes: Any) -> bytes:
    """Description of a run after some changes."""
    right = {
        "schema": SCHEMA,
        "sources": [],
        "options": {},
        "folder": "",
        "shard": "",
        "jobs": [],
        "version": "",
        "created": "",
    }
    return json.dumps({**right, **changes}).encode()


FOUND = {  # by reading on and by trial: kind of file, content, what is said of it
    "a part without end": ("stores of runs", line((b'"part": 1', b'"part": 1e999')), "read"),
    "a waiver that is a list": ("stores of runs", line((b"null", b"[1]")), "read"),
    "a date that is a number": ("stores of runs", line((b"null", b'{"until": 5}')), "read"),
    "jobs that are no names": ("run.json", about(jobs=[{}]), "was not written by this version"),
    "a folder that is a number": ("run.json", about(folder=1), "was not written by this version"),
    "options that are none": ("run.json", about(options=[1]), "was not written by this version"),
    "a table nested deeply": ("gradcheck.toml", b"x = " + b"[" * 5000, "not TOML: nested too deeply"),
    "keys nested deeply": ("gradcheck.toml", b"x" + b".x" * 5000 + b" = 1", ""),
    "a number of 5,000 digits": ("gradcheck.toml", b"seed = " + b"9" * 5000, "not TOML: "),
    "a seed of 400 digits": ("gradcheck.toml", b"seed = " + b"9" * 400, "is too large"),
    "100,000 empty lines": ("gradcheck.toml", b"\n" * 100_000 + b'"no\\u0074hing" = 1', "unknown key 'nothing'"),
    "20,000 unknown keys": ("gradcheck.toml", b"".join(b"k%d = 1\n" % i for i in range(20_000)), "and 80 more"),
}  # fmt: skip


@pytest.mark.parametrize("name, data, said", FOUND.values(), ids=FOUND)
def test_what_was_found(name: str, data: bytes, said: str, folder: Path) -> None:
    assert said in outcome(name, folder, data)
