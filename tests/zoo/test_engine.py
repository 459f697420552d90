"""The engine: every job gives its records once, whatever its process does, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gradcheck_cli.errors import UsageError
from gradcheck_cli.zoo import Job, JobListener, Limits, engine
from tests.zoo import hostile

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="groups of processes and their memory as Linux has them"
)
Given = dict[str, list[dict[str, Any]]]
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder of their own."""
    monkeypatch.chdir(tmp_path)


def run(deeds: list[str], work: str = hostile.WORK, listen: Any = None, **limits: Any) -> Given:
    """The records of jobs that are called by their number and what they do."""
    found: Given = {}

    def done(job: Job, records: list[dict[str, Any]]) -> None:
        assert job.uri not in found
        found[job.uri] = records

    jobs = (Job(f"{index} {deed}", deed, key=str(index)) for index, deed in enumerate(deeds))
    engine.run(jobs, Limits(**{"jobs": 2, "timeout": 600.0, **limits}), done, listen, work)
    return found


def is_gone(process: int) -> bool:
    """True if a process has ended; init may not have taken note of that yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].startswith(("Z", "X"))
    except OSError:
        return True


def until(true: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Waits for something to be true."""
    deadline = time.monotonic() + seconds
    while not (held := true()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return held


ENDS = [
    ("dies SIGSEGV", "GC603", "its process was killed by SIGSEGV (a segmentation fault) while reading the model"),
    ("dies SIGABRT", "GC603", "its process was killed by SIGABRT (it aborted) while reading the model"),
    ("dies SIGKILL", "GC603", "its process was killed by SIGKILL (by hand, or by the system because memory ran out) while"),
    ("exits 0", "GC603", "its process ended with exit code 0 before the check was done; its last words: \\x1b[2Jout"),
    ("exits 3", "GC603", "its process ended with exit code 3 before the check was done"),
    ("raises oops", "GC603", "its process ended with exit code 1 before the check was done; its last words: ValueError"),
    ("dawdles", "GC603", "its process ended with exit code 4 before the check was done"),
    ("closes", "GC603", "its process closed the pipe that its results come through"),
    ("babbles text", "GC603", "its process sent a frame of 1751477356 bytes"),
    ("babbles long", "GC603", "its process sent a frame of 2147483648 bytes"),
    ("babbles unknown", "GC603", "its process sent a frame of no known kind"),
    ("babbles nan", "GC603", "its process sent a frame that is no JSON"),
    ("babbles deep", "GC603", "its process sent a frame that is no JSON"),
    ("babbles record", "GC603", "its process sent a record that is none"),
    ("babbles end", "GC603", "its process sent an end before all is said"),
]  # fmt: skip


def test_however_a_process_ends_there_is_a_record_and_the_run_goes_on() -> None:
    found = run([deed for end in ENDS for deed in (end[0], "right")])
    assert len(found) == 2 * len(ENDS)
    for index, (deed, code, message) in enumerate(ENDS):
        [record] = found[f"{2 * index} {deed}"]  # half of a task's records are none
        assert (record["status"], record["code"]) == ("limit", code), deed
        assert record["message"].startswith(message), record["message"]
        assert found[f"{2 * index + 1} right"] == [hostile.made(f"{2 * index + 1} right")]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_somebody_kills_is_tried_once_more(number: signal.Signals, tmp_path: Path) -> None:
    """Only the task that was killed; what ends by itself, or is killed again, is recorded as a crash."""
    found = run([f"falters {tmp_path / 'there'} {number:d}", "dies SIGKILL", "right"])
    assert found[f"0 falters {tmp_path / 'there'} {number:d}"] == [hostile.made(name) for name in "abc"]
    [crash] = found["1 dies SIGKILL"]
    assert crash["code"] == "GC603"
    assert crash["message"].endswith("while reading the model, twice")


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_server_that_was_killed_is_started_again_and_its_models_are_tried_again(jobs: int, tmp_path: Path) -> None:
    deeds = ["right", f"orphans {tmp_path / 'there'}", "right 0.2", "right", "right"]
    assert run(deeds, jobs=jobs) == {f"{i} {d}": [hostile.made(f"{i} {d}")] for i, d in enumerate(deeds)}


def test_a_record_of_a_crash_is_one_by_the_schema() -> None:
    from gradcheck_cli.report.json_records import result_schema

    jsonschema = pytest.importorskip("jsonschema")
    [record] = run(["exits 3"])["0 exits 3"]
    jsonschema.validate(record, result_schema())


@pytest.mark.slow
def test_what_hangs_in_c_code_and_ignores_sigterm_is_stopped() -> None:
    found = run(["hangs", "right", "right"], timeout=0.5)
    [record] = found["0 hangs"]
    assert record["code"] == "GC601"
    assert record["message"] == "took longer than 0.5 s (--timeout) and did not stop by itself while sleeping"
    assert len(found) == 3


@pytest.mark.parametrize("memory", ["", "mapped"])
def test_memory_beyond_the_limit_is_refused_or_ends_the_process(memory: str) -> None:
    found = run([f"eats {memory}", "right"], memory=256 << 20)
    [record] = found[f"0 eats {memory}"]
    said = "held more than 256 MiB of memory (--memory-limit)" if memory else "its process ended with exit code 1"
    assert record["message"].startswith(said)
    assert record["code"] == ("GC602" if memory else "GC603")  # a check knows what a MemoryError is, this job does not
    assert found["1 right"]


def test_noise_on_stdout_reaches_nobody(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["shouts"]) == {"0 shouts": [hostile.made("0 shouts")]}
    assert capfd.readouterr() == ("", "")


def test_a_crash_costs_one_task_of_several() -> None:
    [records] = run(["several a,bad b,c,bad d,bad e,f"]).values()
    outcomes = [(record["check"], record["status"]) for record in records]
    assert outcomes == [
        ("a", "pass"),
        ("bad b", "limit"),
        ("c", "pass"),
        ("bad d", "limit"),
        ("bad e", "limit"),
        ("f", "pass"),
    ]


def test_what_a_child_leaves_behind_dies_with_its_job(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    run([f"leaves {note}"])
    assert until(lambda: is_gone(int(note.read_text())))


def test_what_a_job_leaves_behind_is_gone_before_its_process_does_another(tmp_path: Path) -> None:
    notes = [tmp_path / f"pid{index}" for index in range(4)]
    gone: list[bool] = []

    def done(job: Job, records: list[dict[str, Any]]) -> None:
        gone.append(is_gone(int(notes[int(job.key)].read_text())))

    jobs = [Job(str(index), f"leaves {note}", key=str(index)) for index, note in enumerate(notes)]
    engine.run(jobs, Limits(jobs=1), done, work=hostile.WORK)
    assert gone == [True] * 4


def processes(deeds: list[str], **limits: Any) -> list[int]:
    """The numbers of the processes that did these deeds, one after another."""
    found = run(deeds, jobs=1, **limits)
    return [found[f"{index} {deed}"][-1].get("process", 0) for index, deed in enumerate(deeds)]


def test_a_process_that_did_a_job_well_does_another_and_one_waits_meanwhile() -> None:
    assert len(set(processes(["numbers"] * 8))) == 2


def test_a_process_that_died_or_has_grown_does_no_other_job() -> None:
    made = processes(["numbers", "numbers", "exits 3", "dies SIGKILL", "numbers", "numbers", "grows 200 kept"])
    assert len({*made} - {0}) == 4  # two at first, and two in place of those that died
    made = processes(["grows 200 kept"] * 4)
    assert len(set(made)) == 4


def test_a_process_does_no_other_job_where_a_model_brings_code() -> None:
    found: list[int] = []
    jobs = [Job(str(i), "numbers", key=str(i), options={"allow_python": True}) for i in range(4)]
    engine.run(jobs, Limits(jobs=1), lambda _, records: found.append(records[0]["process"]), work=hostile.WORK)
    assert len(set(found)) == 4


def test_the_peak_of_memory_is_that_of_one_job() -> None:
    found = run(["grows 100 back", "grows 100 back", "numbers", "numbers"], jobs=1)
    *large, one, other = (record["peak"] for [record] in found.values())
    assert max(one, other) < min(large) - 50


def test_a_relative_path_starts_from_the_folder_of_its_job(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    found: list[str] = []
    jobs = [Job(str(i), "numbers", key=str(i), folder=str(tmp_path / "inner") if i % 2 else "") for i in range(6)]
    engine.run(jobs, Limits(jobs=1), lambda _, records: found.append(records[0]["folder"]), work=hostile.WORK)
    assert found[1::2] == [str(tmp_path / "inner")] * 3
    assert len({*found[::2]}) == 1
    assert found[0] != found[1]


def test_memory_is_granted_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three that take 60 percent each no two have it at the same time; one that fits nowhere runs alone."""
    from gradcheck_cli.zoo import engine as admission

    monkeypatch.setattr(admission, "left", lambda: 10 << 30)
    found = run(["asks 6e9", "asks 6e9", "asks 6e9", "asks 60e9", "right"], jobs=4, memory=100 << 30)
    assert len(found) == 5
    spans = sorted(record["had"] for [record] in found.values() if "had" in record)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_threads_are_shared_and_the_last_of_all_has_them_all() -> None:
    from gradcheck_cli.zoo import cores

    # a job that starts before the end of the list was seen is not known to be the last
    alone = (run(["threads"], jobs=cores())["0 threads"][0]["threads"] for _ in range(5))
    assert cores() in alone
    found = run(["right 0.5", "threads"], jobs=max(cores(), 2))
    assert found["1 threads"][0]["threads"] == 1


def test_the_listener_hears_of_each_job_in_order() -> None:
    heard: list[tuple[str, ...]] = []

    class Heard(JobListener):
        def started(self, job: Job) -> None:
            heard.append(("started", job.uri))

        def stage(self, job: Job, what: str) -> None:
            heard.append(("stage", job.uri, what))

        def ended(self, job: Job, records: Any) -> None:
            heard.append(("ended", job.uri, records[-1]["status"]))

    run(["dies SIGKILL"], listen=Heard())
    name = "0 dies SIGKILL"
    stage = ("stage", name, "reading the model")
    assert heard == [("started", name), stage, stage, ("ended", name, "limit")]


def test_what_jobs_or_done_raise_ends_the_run_and_its_children(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    def jobs() -> Iterator[Job]:
        yield Job("slow", f"tells {note}")
        assert until(note.exists)
        raise UsageError("no more of them")

    with pytest.raises(UsageError, match="no more of them"):
        engine.run(jobs(), Limits(jobs=2), lambda job, records: None, None, hostile.WORK)
    assert until(lambda: is_gone(int(note.read_text())))

    def done(job: Job, records: Any) -> None:
        raise UsageError("the disk is full")

    with pytest.raises(UsageError, match="the disk is full"):
        engine.run([Job("a", "right")], Limits(jobs=1), done, None, hostile.WORK)


def test_nothing_is_left_open() -> None:
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    run(["right"])  # the server stays
    before = opened()
    run(["right", "dies SIGKILL", "closes", "several a,bad b,c"] * 2)
    assert opened() == before


def test_a_wake_up_after_the_end_reaches_nobody(capfd: pytest.CaptureFixture[str]) -> None:
    interrupts = engine.Interrupts()
    with interrupts.heeded():
        interrupts.wake()
        assert os.read(interrupts.reader, 2) == b"\n"
    interrupts.wake()
    assert capfd.readouterr() == ("", "")


DRIVER = f"""
import json, sys
from gradcheck_cli.zoo import engine
from gradcheck_cli.zoo import Job, Limits
def done(job, records):
    print(json.dumps(records), flush=True)
if __name__ == "__main__":
    engine.run([Job(deed, deed) for deed in sys.argv[1:]], Limits(jobs=3), done, None, {hostile.WORK!r})
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_no_process_outlives_its_driver(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "driver.py").write_text(DRIVER)
    notes = [tmp_path / "one", tmp_path / "two"]
    deeds = ["right", *(f"tells {note}" for note in notes)]
    driver = subprocess.Popen(
        [sys.executable, "driver.py", *deeds], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert driver.stdout is not None
    assert json.loads(driver.stdout.readline()) == [hostile.made("right")]
    assert until(lambda: all(note.exists() and note.read_text() for note in notes))
    children = [int(note.read_text()) for note in notes]
    driver.send_signal(number)
    _, err = driver.communicate(timeout=600)
    assert driver.returncode == (-number if number == signal.SIGKILL else -signal.SIGINT), err  # by KeyboardInterrupt
    assert number == signal.SIGKILL or err.rstrip().endswith("KeyboardInterrupt")
    assert until(lambda: all(map(is_gone, children)))


def test_a_signal_that_the_driver_was_started_to_ignore_is_ignored(tmp_path: Path) -> None:
    """As by nohup."""
    (tmp_path / "driver.py").write_text(DRIVER)
    driver = subprocess.Popen(
        [sys.executable, "driver.py", "right", "right 1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )  # fmt: skip
    assert driver.stdout is not None
    assert json.loads(driver.stdout.readline()) == [hostile.made("right")]
    driver.send_signal(signal.SIGHUP)
    out, err = driver.communicate(timeout=600)
    assert (driver.returncode, json.loads(out)) == (0, [hostile.made("right 1")]), err


SERVED = """
from multiprocessing import get_context
from gradcheck_cli.zoo import processes
if __name__ == "__main__":
    processes.READY = "interrupted"
    processes.warm()
    child = get_context("forkserver").Process(target=print, args=("served",), kwargs={"flush": True})
    child.start()
    child.join()
"""


def test_ctrl_c_of_a_terminal_while_the_server_imports_leaves_it_alone(tmp_path: Path) -> None:
    """All processes of a terminal get it; the driver alone answers."""
    (tmp_path / "driver.py").write_text(SERVED)
    (tmp_path / "interrupted.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nall([])\n")
    command = [sys.executable, "driver.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    driver = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=600, check=False)
    assert (driver.stdout, driver.stderr) == ("served\n", "")
