"""The store keeps what was finished, whatever ends its process, and nothing that was not."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gradcheck_cli.errors import UsageError
from gradcheck_cli.zoo.store import RECORDS, About, Store, finished, holder, merged, read_about, write_about
from tests.zoo.records import job, whole

ROOT = Path(__file__).parents[2]
APPENDING = """
import sys
from pathlib import Path
from gradcheck_cli.zoo.store import Store
from tests.zoo.records import job
with Store(Path(sys.argv[1])) as store:
    for index in range(int(sys.argv[2]), 1 << 30):
        store.append(*job(index, 1 + index % 4, 3000 * (index % 7)))
        print(index, flush=True)
"""


def appending(folder: Path, first: int) -> subprocess.Popen[str]:
    """A process that appends jobs, one after another, and says which are done."""
    return subprocess.Popen(
        [sys.executable, "-c", APPENDING, str(folder), str(first)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


def killed_at_random(folder: Path, times: int) -> None:
    """Processes that append, each killed in the middle of it; each goes on where the last one got to."""
    said = -1
    for seed in range(times):
        process = appending(folder, said + 1)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(random.Random(seed).uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()
        process.wait()
        process.stdout.close()
        whole_numbers = [int(word) for word in rest if word.isdecimal()]
        jobs, damaged = finished(folder)
        assert damaged == 0
        done = len(jobs)
        assert done >= max([said + 2, *(number + 1 for number in whole_numbers[:-1])])
        said = done - 1
    jobs, _ = finished(folder)
    for index in range(said + 1):
        name, key, records = job(index, 1 + index % 4, 3000 * (index % 7))
        assert [line.key for line in jobs[name]] == [key] * len(records)
        assert list(whole(folder, jobs[name])) == records


@pytest.mark.slow
def test_killed_in_the_middle_of_appending_nothing_that_was_done_is_lost(tmp_path: Path):
    killed_at_random(tmp_path, 30)


@pytest.mark.slow
def test_killed_two_hundred_times_nothing_that_was_done_is_lost(tmp_path: Path):
    killed_at_random(tmp_path, 200)


@pytest.mark.slow
def test_a_last_line_torn_at_any_byte_is_dropped_and_the_next_run_goes_on(tmp_path: Path):
    with Store(tmp_path) as store:
        store.append(*job(0))
        size = (tmp_path / RECORDS).stat().st_size
        store.append(*job(1, 2))
    data = (tmp_path / RECORDS).read_bytes()
    for end in range(size, len(data)):
        (tmp_path / RECORDS).write_bytes(data[:end])
        assert set(finished(tmp_path)[0]) == {"models/0.onnx"}
        if end % 50 and size + 50 < end < len(data) - 50:
            continue
        with Store(tmp_path) as store:
            store.append(*job(2, 1))
        jobs, damaged = finished(tmp_path)
        assert (set(jobs), damaged) == ({"models/0.onnx", "models/2.onnx"}, 0)
        assert all(json.loads(line) for line in (tmp_path / RECORDS).read_text("utf-8").splitlines())


@pytest.mark.parametrize("damage", [b"\0" * 40, b'{"zoo": {}}', b"[" * 5000, b"\xff\xfe", b'{"zoo": {"key": 1'])
def test_a_damaged_line_costs_its_own_job_alone(tmp_path: Path, damage: bytes):
    with Store(tmp_path) as store:
        for index in range(3):
            store.append(*job(index))
    lines = (tmp_path / RECORDS).read_bytes().split(b"\n")
    lines[4] = damage
    (tmp_path / RECORDS).write_bytes(b"\n".join(lines))
    jobs, damaged = finished(tmp_path)
    assert (set(jobs), damaged) == ({"models/0.onnx", "models/2.onnx"}, 1)


@pytest.mark.parametrize("other", [("other", "key-0", 2), ("models/0.onnx", "other", 2), ("models/0.onnx", "key-0", 3)])
def test_records_of_several_attempts_make_no_finished_job(tmp_path: Path, other: tuple[str, str, int]):
    """The first half of an attempt and the second half of another, which is of another job, key or number of records."""
    name, key, count = other
    with Store(tmp_path) as store:
        store.append(*job(0, 2))
        store.append(name, key, job(0, count)[2])
    lines = (tmp_path / RECORDS).read_bytes().splitlines(keepends=True)
    (tmp_path / RECORDS).write_bytes(b"".join([lines[0], *lines[3:]]))
    assert finished(tmp_path) == ({}, 0)


def test_of_two_attempts_at_a_job_the_last_counts(tmp_path: Path):
    name, _, records = job(0)
    with Store(tmp_path) as store:
        store.append(name, "old", records)
        store.append(*job(1))
        store.append(name, "new", records[:1])
    jobs, _ = finished(tmp_path)
    assert [line.key for line in jobs[name]] == ["new"]


def test_names_come_back_as_they_were(tmp_path: Path):
    names = ["a\nb", "\x1b[31m", "ü" * 3000, "\ud800", '"}', "\u2028"]
    with Store(tmp_path) as store:
        for name in names:
            store.append(name, "key", [dict(job(0, 1)[2][0], check=name)])
    jobs, damaged = finished(tmp_path)
    assert (list(jobs), damaged) == (names, 0)
    assert [next(whole(tmp_path, lines))["check"] for lines in jobs.values()] == names


def test_two_runs_in_one_folder_are_refused_with_the_number_of_the_process(tmp_path: Path):
    process = appending(tmp_path, 0)
    assert process.stdout is not None
    process.stdout.readline()
    with pytest.raises(UsageError, match=f"in use by process {process.pid};"):
        Store(tmp_path)
    assert holder(tmp_path) == f"process {process.pid}"
    process.kill()
    process.communicate()
    assert holder(tmp_path) == ""
    with Store(tmp_path), pytest.raises(UsageError, match=f"process {os.getpid()};"):
        Store(tmp_path)


def test_a_full_disk_is_one_error_and_keeps_what_was_written(tmp_path: Path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Store(tmp_path) as store:
        store.append(*job(0))
        size = (tmp_path / RECORDS).stat().st_size
        for room in (1, 100, 4096):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, before[1]))
            try:
                with pytest.raises(UsageError, match=r"results\.jsonl cannot be written: File too large"):
                    store.append(*job(1, padding=5000))
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
            assert (tmp_path / RECORDS).stat().st_size == size
        store.append(*job(2))
    jobs, damaged = finished(tmp_path)
    assert (set(jobs), damaged) == ({"models/0.onnx", "models/2.onnx"}, 0)


def test_a_place_that_cannot_be_written_is_one_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/run")):
        with pytest.raises(UsageError, match="cannot be written"):
            Store(folder)


@pytest.mark.parametrize(("padding", "source", "file"), [(5000, "models", "results"), (0, "m" * 5000, "run")])
def test_a_full_disk_is_told_of_the_folder_that_runs_are_merged_into(
    tmp_path: Path, padding: int, source: str, file: str
):
    with Store(tmp_path / "one") as store:
        store.append(*job(0, padding=padding))
    write_about(tmp_path / "one", About((source,), {}, "/tmp", "", ("models/0.onnx",)))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))
    try:
        with pytest.raises(UsageError, match=rf"/all/{file}\.jsonl? cannot be written: File too large"):
            merged([tmp_path / "one"], tmp_path / "all")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert sorted(os.listdir(tmp_path)) == ["one"]


def test_what_a_run_is_about_comes_back(tmp_path: Path):
    about = About(("models", "s3://a/b"), {"seed": 1, "rtol": ("1e-6",), "timeout": 60.0}, "/tmp", "1/2", ("a", "b\n"))
    about = replace(about, fail_on=("fail", "dead"), shards=("1/3", "2/3"))
    about = replace(about, waives={"select": ("GC1", "GC3"), "ignore": ("GC301",), "baseline": "/tmp/b.json"})
    write_about(tmp_path, about)
    assert read_about(tmp_path) == about
    assert sorted(os.listdir(tmp_path)) == ["run.json"]


@pytest.mark.parametrize(
    "waives", [[], 3, {"baseline": ["a"]}, {"baseline": "\0"}, {"select": "GC1"}, {"ignore": [3]}, {"others": ["a"]}]
)
def test_waivers_that_make_no_sense_are_an_error(tmp_path: Path, waives: object):
    write_about(tmp_path, About(("models",), {}, "/tmp"))
    about = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**about, "waives": waives}))
    with pytest.raises(UsageError, match="was not written by this version"):
        read_about(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"schema": "gradcheck.zoo/9"}', '{"schema": "gradcheck.zoo/1"}']
)
def test_a_run_that_makes_no_sense_is_an_error(tmp_path: Path, text: str):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(UsageError, match="was not written by this version"):
        read_about(tmp_path)


def test_a_mistyped_run_is_told_the_nearest(tmp_path: Path):
    write_about_in = tmp_path / "models"
    write_about_in.mkdir()
    write_about(write_about_in, About((), {}, "/"))
    with pytest.raises(UsageError, match=r"holds no run of `gradcheck zoo`\. Did you mean 'models'"):
        read_about(tmp_path / "model")


def test_what_a_summary_reads_does_not_grow_with_the_record(tmp_path: Path):
    with Store(tmp_path) as store:
        store.append(*job(0, 1, padding=1 << 20))
    (line,) = finished(tmp_path)[0]["models/0.onnx"]
    assert line.length > 1 << 20
    assert line.check.notes == ()
