"""Jobs on a Dask cluster of separate processes: each gives its records once, whatever becomes of workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed", reason="needs Dask, which is in the extra `dask`")

from gradcheck_cli.errors import LimitError, UsageError
from gradcheck_cli.zoo import Job, Limits, cluster
from gradcheck_cli.zoo.parcel import MOST
from tests.cluster.deeds import WORK
from tests.zoo import hostile
from tests.zoo.test_engine import is_gone, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="groups of processes as Linux has them")
TESTS = Path(__file__).parents[1]
DASK = [sys.executable, "-m", "dask"]
GIB = 1 << 30
Given = dict[str, list[dict[str, Any]]]


class Started:
    """A scheduler and workers, each a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "scheduler.json"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.scheduler: subprocess.Popen[bytes] | None = None
        self.path = folder / "path"  # with these tests; their neighbour, the package's source, may have no kernels
        self.path.mkdir()
        (self.path / "tests").symlink_to(TESTS)

    @property
    def address(self) -> str:
        return str(json.loads(self.file.read_text())["address"])

    def start(self, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        log = open(self.folder / f"log-{len(self.processes)}", "wb")  # noqa: SIM115  # the process has it
        environment = {**os.environ, "PYTHONPATH": str(self.path), **environment}
        with log:
            process = subprocess.Popen(
                [*DASK, *command], cwd=self.folder, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        self.processes.append(process)
        return process

    def schedule(self, **environment: str) -> None:
        command = [
            "scheduler",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--no-dashboard",
            "--scheduler-file",
            str(self.file),
        ]
        self.scheduler = self.start(*command, **environment)
        assert until(lambda: self.file.exists() and bool(self.file.read_text()))

    def work(self, *more: str, memory: str = "4e9", threads: int = 1, **environment: str) -> subprocess.Popen[bytes]:
        """A worker; without its nanny, so that the process is the worker itself."""
        nanny = () if "--nanny" in more else ("--no-nanny",)
        command = ["worker", self.address, "--host", "127.0.0.1", "--nthreads", str(threads), "--no-dashboard"]
        resources = ("--resources", f"MEMORY={memory}") if memory else ()
        return self.start(*command, *resources, *nanny, "--local-directory", str(self.folder), *more, **environment)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    """No process yet; all of them end with the test, which has a working folder of its own."""
    (tmp_path / "here").mkdir()
    (tmp_path / "cluster").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    made = Started(tmp_path / "cluster")
    with ExitStack() as stack:
        stack.callback(made.end)
        yield made


@pytest.fixture
def two(started: Started) -> Started:
    """Two workers of a thread each."""
    started.schedule()
    started.work()
    started.work()
    return started


def run(where: str, deeds: Sequence[str], hear: Callable[[str], None] = lambda _: None, **more: Any) -> Given:
    """The records of jobs that are called by their number and what they do; each may come once."""
    found: Given = {}

    def done(job: Job, records: list[dict[str, Any]]) -> None:
        assert job.uri not in found
        found[job.uri] = records
        hear(job.uri)

    jobs = (Job(f"{index} {deed}", deed, key=str(index), **more) for index, deed in enumerate(deeds))
    cluster.run(where, jobs, Limits(jobs=0, timeout=600.0), done, None, WORK)
    return found


def begun(folder: Path) -> Counter[str]:
    """Number of times that each job began, by its number."""
    return Counter(path.name.partition("-")[0] for path in folder.iterdir())


@pytest.mark.slow
def test_however_a_process_ends_there_is_a_record_and_the_worker_stays(two: Started) -> None:
    found = run(two.address, ["right", "dies SIGSEGV", "exits 3", "babbles text", "right", "several a,bad b,c"])
    assert {name: [record["code"] for record in records] for name, records in found.items()} == {
        "0 right": [""],
        "1 dies SIGSEGV": ["GC603"],
        "2 exits 3": ["GC603"],
        "3 babbles text": ["GC603"],
        "4 right": [""],
        "5 several a,bad b,c": ["", "GC603", ""],
    }
    assert all(process.poll() is None for process in two.processes)


@pytest.mark.slow
def test_a_worker_killed_in_the_middle_loses_nothing_and_nothing_counts_twice(two: Started, tmp_path: Path) -> None:
    folder = tmp_path / "begun"
    folder.mkdir()
    victim = two.processes[1]

    def hear(name: str) -> None:
        if victim.poll() is None and len(begun(folder)) > 2:
            victim.send_signal(signal.SIGKILL)

    found = run(two.address, [f"notes 0.4 {folder}"] * 10, hear)
    assert sorted(int(name.partition(" ")[0]) for name in found) == list(range(10))
    assert all(records == [hostile.made(name)] for name, records in found.items())
    assert victim.wait() == -signal.SIGKILL
    children = [int(path.name.partition("-")[2]) for path in folder.iterdir()]
    two.end()  # the other worker keeps a process for its next job
    assert until(lambda: all(map(is_gone, children)))  # those of the killed worker too


@pytest.mark.slow
def test_a_job_that_kills_its_workers_is_a_record_and_the_others_pass(started: Started) -> None:
    started.schedule()
    for _ in range(2):
        started.work("--nanny")
    found = run(started.address, ["slays", *["right 0.2"] * 6])
    [record] = found.pop("0 slays")
    assert (record["code"], record["status"]) == ("GC603", "limit")
    assert record["message"] == "its worker was lost 4 times while it ran, killed or out of memory"
    assert [records[0]["status"] for records in found.values()] == ["pass"] * 6


@pytest.mark.slow
def test_a_job_whose_workers_are_lost_three_times_may_still_be_done(started: Started, tmp_path: Path) -> None:
    started.schedule()
    started.work("--nanny")
    (tmp_path / "marks").mkdir()
    [[record]] = run(started.address, [f"slays 3 {tmp_path / 'marks'}"]).values()
    assert record["status"] == "pass", record


@pytest.mark.slow
def test_a_worker_that_was_thought_dead_and_comes_back_counts_for_nothing(started: Started, tmp_path: Path) -> None:
    started.schedule(DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL="4s")
    stopped = started.work()
    folder = tmp_path / "begun"
    folder.mkdir()

    def hear(name: str) -> None:
        if name.startswith("0 "):
            os.kill(stopped.pid, signal.SIGSTOP)
            started.work()
        if len(begun(folder)) == 6:
            os.kill(stopped.pid, signal.SIGCONT)

    found = run(started.address, [f"notes 0.3 {folder}"] * 6, hear)
    assert len(found) == 6
    assert max(begun(folder).values()) > 1  # one was done again


@pytest.mark.slow
def test_what_no_worker_has_the_memory_for_fails_at_once_and_says_who_has_most(two: Started) -> None:
    two.work(memory="6e9")
    assert until(lambda: len(_workers(two)) == 3)
    found = run(two.address, ["right", "right"], predicted_mb=5.5e9 / (1 << 20))
    assert {records[0]["status"] for records in found.values()} == {"pass"}
    found = run(two.address, ["right"], predicted_mb=7e9 / (1 << 20))
    [[record]] = found.values()
    assert (record["status"], record["code"]) == ("limit", "GC602")
    assert record["message"].startswith("is predicted to take 6.52 GiB, and the largest worker, tcp://127.0.0.1:")
    assert record["message"].endswith(", offers 5.59 GiB")


def _workers(started: Started) -> list[str]:
    from distributed import Client

    with Client(started.address, set_as_default=False) as client:
        return list(client.scheduler_info(n_workers=-1)["workers"])


@pytest.mark.slow
def test_no_two_jobs_have_memory_that_there_is_only_once(started: Started) -> None:
    started.schedule()
    started.work(memory=str(2 * GIB), threads=3)
    found = run(started.address, ["asks 1"] * 3, predicted_mb=1200)
    spans = sorted(record["had"] for [record] in found.values())
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


@pytest.mark.slow
def test_a_scheduler_that_goes_away_before_an_answer_is_fetched_is_said(two: Started) -> None:
    """The others have finished, and their answers are still with the workers."""
    finished: list[str] = []

    def hear(name: str) -> None:
        finished.append(name)
        time.sleep(2)
        assert two.scheduler is not None
        two.scheduler.kill()

    with pytest.raises(LimitError, match=r"the Dask scheduler is gone; what was finished is kept"):
        run(two.address, ["right"] * 6, hear)
    assert len(finished) == 1


@pytest.mark.slow
def test_a_scheduler_that_goes_away_is_said_and_what_is_finished_stays(two: Started, tmp_path: Path) -> None:
    finished: list[str] = []
    folder = tmp_path / "begun"
    folder.mkdir()

    def hear(name: str) -> None:
        finished.append(name)
        if len(finished) == 2:
            assert two.scheduler is not None
            two.scheduler.kill()

    with pytest.raises(LimitError, match=r"the Dask scheduler is gone; what was finished is kept"):
        run(two.address, [f"notes 0.3 {folder}"] * 8, hear)
    assert 2 <= len(finished) < 8
    children = [int(path.name.partition("-")[2]) for path in folder.iterdir()]
    assert until(lambda: all(map(is_gone, children)), 60)


@pytest.mark.slow
def test_a_worker_without_the_native_kernels_is_not_like_this_machine(two: Started) -> None:
    two.work(GRADCHECK_KERNELS="numpy")
    assert until(lambda: len(_workers(two)) == 3)
    with pytest.raises(UsageError, match=r"needs the same versions:\n  worker tcp\S+: kernels numpy \(here native\)$"):
        run(two.address, ["right"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Mismatched versions found")  # that of the test's own client
def test_workers_that_differ_are_listed_before_anything_is_sent(two: Started, tmp_path: Path) -> None:
    other = tmp_path / "other/numpy-1.2.3.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.2.3\n")
    two.work(PYTHONPATH=f"{other.parent}:{two.path}")
    assert until(lambda: len(_workers(two)) == 3)
    with pytest.raises(UsageError) as caught:
        run(two.address, ["right"])
    first, *others = str(caught.value).splitlines()
    assert first == "the cluster is not like this machine; it needs the same versions:"
    assert len(others) == 1
    assert others[0].startswith("  worker tcp://127.0.0.1:")
    assert ": numpy 1.2.3 (here " in others[0]


@pytest.mark.slow
def test_files_that_a_worker_does_not_see_are_sent_along(two: Started) -> None:
    """/proc/self/cwd is another folder in each process."""
    Path("here.txt").write_text("it says so")
    path = "/proc/self/cwd/here.txt"
    [records] = run(two.address, [f"reads {path}"], files=(path,)).values()
    assert records[0]["message"] == "it says so"
    assert records[0]["path"] == path  # where it was laid out is nobody's business
    [records] = run(two.address, ["reads here.txt"], files=("here.txt",)).values()
    assert (records[0]["message"], records[0]["path"]) == ("it says so", os.path.abspath("here.txt"))


@pytest.mark.slow
def test_files_that_are_too_large_to_be_sent_are_one_record(two: Started) -> None:
    with open("here.bin", "wb") as file:
        file.truncate(MOST + 1)
    path = "/proc/self/cwd/here.bin"
    [[record]] = run(two.address, [f"reads {path}"], files=(path,)).values()
    assert (record["status"], record["code"]) == ("limit", "GC602")
    assert record["message"].startswith("its files take ")


@pytest.mark.slow
def test_a_worker_that_comes_later_and_differs_ends_the_run(started: Started) -> None:
    started.schedule()
    started.work()

    def hear(name: str) -> None:
        if len(started.processes) == 2:
            started.work(GRADCHECK_KERNELS="numpy")

    with pytest.raises(UsageError, match=r"worker tcp\S+ is not like this machine: kernels numpy \(here native\)$"):
        run(started.address, ["right 0.3"] * 200, hear)


def test_an_error_without_words_is_called_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(**_: Any) -> None:
        raise TimeoutError

    monkeypatch.setattr("distributed.Client", silent)
    with pytest.raises(UsageError, match=r"no Dask scheduler answers at tcp://127.0.0.1:9: TimeoutError$"):
        run("tcp://127.0.0.1:9", ["right"])


@pytest.mark.one_in(9)
@pytest.mark.parametrize("where, said", [
    ("nowhere", "'nowhere' is no Dask scheduler; write tcp://HOST:8786, the path of a scheduler file, or local:N"),
    ("tcp://127.0.0.1:9", "no Dask scheduler answers at tcp://127.0.0.1:9"),
])  # fmt: skip
def test_where_there_is_no_scheduler_it_is_said(where: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        run(where, ["right"])
