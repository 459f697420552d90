"""Whatever is killed, full or in use: each check is recorded once, as it would have been, and nothing is left behind."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gradcheck_cli.zoo.store import RECORDS, finished, holder
from tests.cli import models
from tests.cli.conftest import WRONG
from tests.zoo.records import whole

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes where Linux tells of them")
COMMAND = [sys.executable, "-m", "gradcheck_cli", "zoo"]
TIMED = ("duration_s", "peak_rss_mb")
MODELS, PATIENCE = 16, 200.0
VICTIMS = ("driver", "child", "both", "server")
ALONE = ("child", "server")  # without the driver, which goes on
OF_OTHERS = {".ses"}  # which onnxruntime leaves wherever it is imported
PASSING = re.compile(r".*\.running-[\d-]+|.*\.old-\d+|.*\.new|\..*\.[0-9a-f]{8}")  # names of what is being written


class Scene:
    """A folder with models and a run over them, whose processes can be told from all others."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run, self.temporary = folder, folder / "run", folder / "temporary"
        self.temporary.mkdir()
        self.environment = {**os.environ, "TMPDIR": str(self.temporary), "XDG_CACHE_HOME": str(folder / "cache")}
        self.environment["GRADCHECK_SAVE_FAILURES"] = "failures"
        self.driver: subprocess.Popen[str] | None = None

    def start(self, *args: str, run: str = "run", **more: Any) -> subprocess.Popen[str]:
        jobs = () if "-j" in args else ("-j", "2")
        command = [*COMMAND, "models", "--run", run, *jobs, *args]
        self.driver = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environment,
            **more,
        )
        return self.driver

    def to_the_end(self, *args: str, run: str = "run", **more: Any) -> tuple[int, str]:
        """Exit code and stderr of a run that nobody disturbs."""
        process = self.start(*args, run=run, **more)
        _, err = process.communicate(timeout=600)
        return process.returncode, err

    def processes(self) -> list[int]:
        """All that belong to the run and are not the driver."""
        mark = f"TMPDIR={self.temporary}".encode()
        found = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                alive = environ.with_name("stat").read_text().rpartition(") ")[2][0] not in "ZX"
                if alive and mark in environ.read_bytes().split(b"\0"):
                    found.append(int(environ.parent.name))
        return [process for process in found if self.driver is None or process != self.driver.pid]

    def children(self) -> list[int]:
        """Processes among some that check a model, or stand by to: groups of their own."""
        return [process for process in self.processes() if _group(process) == process]

    def servers(self) -> list[int]:
        """The processes from which those are forked that check models."""
        return [each for each in self.processes() if _group(each) != each and b"forkserver" in _command(each)]

    def records(self, run: str = "run") -> dict[str, list[dict[str, Any]]]:
        """The last records of each job, without times."""
        jobs, damaged = finished(self.folder / run)
        assert damaged == 0
        return {job: [_plain(r) for r in whole(self.folder / run, lines)] for job, lines in sorted(jobs.items())}

    def attempts(self) -> dict[str, list[str]]:
        """Outcomes of all attempts at each job, in order, by its first record."""
        found: dict[str, list[str]] = {}
        for line in (self.run / RECORDS).read_text("ascii").splitlines():
            record = json.loads(line)
            if record["zoo"]["part"] == 1:
                found.setdefault(record["zoo"]["job"], []).append(record["code"])
        return found

    def assert_nothing_is_left(self) -> None:
        """Neither processes nor a lock, nor what was being written."""
        deadline = time.monotonic() + PATIENCE
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert left == [], "orphans"
        assert holder(self.run) == ""
        assert [path.name for path in self.temporary.iterdir() if path.name not in OF_OTHERS] == []


def _group(process: int) -> int:
    with suppress(OSError):
        return os.getpgid(process)
    return 0


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in TIMED}


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """Models that pass, fail, cannot be read, cannot be judged."""
    folder = tmp_path / "models"
    folder.mkdir()
    for index in range(MODELS):
        models.conv(folder / f"{index:02}.onnx")
    models.log(folder / "log.onnx")
    models.unknown_operator(folder / "unknown.onnx")
    models.pointer(folder / "lfs.onnx")
    (folder / "wrong.gradcheck.yaml").write_text(WRONG)
    made = Scene(tmp_path)
    yield made
    for process in [*([made.driver.pid] if made.driver and made.driver.poll() is None else []), *made.processes()]:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


# --- killed


def killed(scene: Scene, victim: str, rng: random.Random, *options: str) -> str:
    """Starts or goes on with the run and kills something of it at some moment; "" where the run was faster."""
    process = scene.start(*options)
    began, wait = time.monotonic(), rng.choice((rng.uniform(0, 1), rng.uniform(0.5, 2.5)))
    found: list[int] = []
    look = scene.servers if victim == "server" else scene.children
    while process.poll() is None and (time.monotonic() < began + wait or (victim in ALONE and not found)):
        time.sleep(0.005)
        if victim != "driver" and time.monotonic() >= began + wait:
            found = look()
    for each in found[:1]:
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    if victim not in ALONE:
        process.kill()
    process.communicate(timeout=600)  # without a child it goes on to its end
    return victim if process.returncode == -signal.SIGKILL or (victim in ALONE and found) else ""


@pytest.mark.parametrize(
    ("count", "moments"), [(4, 4), *(pytest.param(40, moments, marks=pytest.mark.slow) for moments in range(6))]
)
def test_killed_at_random_moments_each_check_is_recorded_once_as_if_undisturbed(
    scene: Scene, count: int, moments: int
) -> None:
    """Driver, child, both, or the server; `--rerun failed` then does again what a process killed twice could not end."""
    assert scene.to_the_end(run="undisturbed")[0] == 1
    expected = scene.records("undisturbed")
    assert len(expected) == MODELS + 6
    rng, kills = random.Random(moments), Counter[str]()
    while kills.total() < count:
        victim = killed(scene, VICTIMS[kills.total() % len(VICTIMS)], rng)
        kills += Counter([victim] if victim else [])
        scene.assert_nothing_is_left()
        if scene.run.exists() and len(scene.attempts() if (scene.run / RECORDS).exists() else ()) == len(expected):
            repaired(scene, expected)
    repaired(scene, expected)
    print(f"killed: {dict(sorted(kills.items()))}")


def repaired(scene: Scene, expected: dict[str, list[dict[str, Any]]]) -> None:
    """Goes on to the end: all is as it should be; then the run is taken away, to begin anew."""
    scene.to_the_end()
    before = scene.attempts()
    assert {job: len(codes) for job, codes in before.items()} == dict.fromkeys(expected, 1)
    assert scene.to_the_end("--rerun", "failed")[0] == 1
    scene.assert_nothing_is_left()
    assert scene.records() == expected
    for job, codes in scene.attempts().items():
        assert codes[0] in (expected[job][0]["code"], "GC603"), job
    left = [path.name for path in scene.folder.rglob("*") if PASSING.fullmatch(path.name)]
    assert left == []
    shutil.rmtree(scene.run)
    shutil.rmtree(scene.folder / "failures", ignore_errors=True)


@pytest.mark.parametrize("count", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_killed_at_random_moments_copies_refer_to_checks_that_stand(scene: Scene, count: int) -> None:
    """Each model is recorded once in the end, and a copy only of one of its structure that passed by itself."""
    once, rng, kills = ("--same-structure", "once"), random.Random(count), 0
    assert scene.to_the_end(*once, run="undisturbed")[0] == 1
    expected = {job: found[0]["status"] for job, found in scene.records("undisturbed").items()}
    while kills < count:
        kills += bool(killed(scene, VICTIMS[kills % len(VICTIMS)], rng, *once))
        scene.assert_nothing_is_left()
        if kills == count or (scene.run.exists() and scene.driver is not None and scene.driver.returncode == 1):
            scene.to_the_end(*once)
            assert scene.to_the_end(*once, "--rerun", "failed")[0] == 1
            records = {job: found[0] for job, found in scene.records().items()}
            assert {job: record["status"] for job, record in records.items()} == expected
            copies = {job: record["copy_of"] for job, record in records.items() if record["copy_of"]}
            assert len(copies) >= MODELS // 2
            assert not {records[first]["copy_of"] or records[first]["status"] for first in copies.values()} - {"pass"}
            assert all(records[job]["structure"] == records[first]["structure"] for job, first in copies.items())
            shutil.rmtree(scene.run)


@pytest.mark.slow
def test_a_run_goes_on_when_the_server_of_its_processes_is_killed(scene: Scene) -> None:
    """The server is started again, and so are the checks that ran then."""
    process = scene.start()
    deadline = time.monotonic() + 600
    while not scene.children() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(scene.servers()[0], signal.SIGKILL)
    process.communicate(timeout=600)
    assert process.returncode == 1
    assert len(scene.records()) == MODELS + 6
    assert {code for codes in scene.records().values() for code in (codes[0]["code"],)} >= {"", "GC101"}
    assert not any(r["code"] == "GC603" for rs in scene.records().values() for r in rs)


def _command(process: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


# --- full, read-only, not to be written


def in_a_namespace(scene: Scene, mount: str, *args: str) -> tuple[int, str]:
    """A run whose folder `disk` is mounted for it alone; what was on it is copied to `copied`."""
    script = f'mkdir -p disk && {mount} && shift 0; "$@"; code=$?; cp -r disk/. copied; exit $code'
    command = ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh", *COMMAND, "models", "-j", "2", *args]
    (scene.folder / "copied").mkdir(exist_ok=True)
    ran = subprocess.run(command, cwd=scene.folder, env=scene.environment, capture_output=True, text=True, timeout=600)
    if "unshare:" in ran.stderr or "mount:" in ran.stderr:
        pytest.skip(f"no folder can be mounted here: {ran.stderr.strip().splitlines()[0]}")
    return ran.returncode, ran.stderr


def errors_in(err: str) -> list[str]:
    return [line for line in err.splitlines() if line.startswith("error")]


@pytest.mark.slow
def test_a_full_disk_is_one_error_and_what_was_finished_is_kept(scene: Scene) -> None:
    mount = "mount -t tmpfs -o size=24k none disk"
    code, err = in_a_namespace(scene, mount, "--run", "disk/run", "--save-failures", "none")
    assert (code, len(errors_in(err))) == (2, 1), err
    assert "results.jsonl cannot be written: No space left on device; what was finished before is kept" in err
    shutil.copytree(scene.folder / "copied/run", scene.run)
    kept = scene.attempts()
    assert 0 < len(kept) < MODELS
    assert scene.to_the_end("--save-failures", "none")[0] == 1
    assert {job: len(codes) for job, codes in scene.attempts().items()} == dict.fromkeys(scene.records(), 1)
    assert len(scene.records()) == MODELS + 6


@pytest.mark.slow
def test_where_bundles_find_no_room_checks_end_as_they_would(scene: Scene) -> None:
    mount = "mount -t tmpfs -o size=4k none disk"
    code, err = in_a_namespace(scene, mount, "--run", "run", "--save-failures", "disk/failures")
    assert (code, errors_in(err)) == (1, []), err
    assert len(scene.records()) == MODELS + 6


@pytest.mark.slow
def test_a_read_only_folder_is_one_error(scene: Scene) -> None:
    code, err = in_a_namespace(
        scene, "mount --bind -o ro disk disk && mount -o remount,bind,ro disk", "--run", "disk/run"
    )
    assert (code, len(err.splitlines())) == (2, 1), err
    assert "disk/run cannot be written: Read-only file system" in err


REPORTS = ("full.json", "right.jsonl", "full.xml")


@pytest.mark.slow
def test_reports_that_cannot_be_written_keep_no_other_from_being_and_lose_nothing(scene: Scene) -> None:
    for name in ("full.json", "full.xml"):
        (scene.folder / name).symlink_to("/dev/full")
    code, err = scene.to_the_end(*(word for name in REPORTS for word in ("--report", name)))
    assert (code, len(errors_in(err))) == (2, 1), err
    assert len((scene.folder / "right.jsonl").read_text().splitlines()) == sum(map(len, scene.records().values()))
    assert len(scene.records()) == MODELS + 6
    assert scene.to_the_end()[0] == 1


@pytest.mark.slow
def test_an_output_that_is_full_is_one_error_and_the_records_are_kept(scene: Scene) -> None:
    with open("/dev/full", "w") as full:
        process = subprocess.run(
            [*COMMAND, "models", "--run", "run"], stdout=full, stderr=subprocess.PIPE, text=True, cwd=scene.folder,
            env=scene.environment, timeout=600,
        )  # fmt: skip
    assert (process.returncode, len(errors_in(process.stderr))) == (2, 1), process.stderr
    assert len(scene.records()) == MODELS + 6


@pytest.mark.slow
@pytest.mark.parametrize("gone", [lambda f: shutil.rmtree(f / "models"), lambda f: (f / "models/00.onnx").unlink()])
def test_models_that_are_gone_when_a_run_goes_on_are_told(scene: Scene, gone: Callable[[Path], None]) -> None:
    process = scene.start("-j", "1")
    deadline = time.monotonic() + 600
    while not (scene.run / RECORDS).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    gone(scene.folder)
    code, err = scene.to_the_end()
    assert code in (1, 2, 4, 7), err
    assert "Traceback" not in err


# --- two at once


@pytest.mark.slow
def test_of_runs_in_one_folder_one_goes_and_the_others_are_told(scene: Scene) -> None:
    started = [scene.start() for _ in range(4)]
    ended = [(process.communicate(timeout=600)[1], process.returncode) for process in started]
    codes = Counter(code for _, code in ended)
    assert codes[1] >= 1
    assert set(codes) <= {1, 2}
    assert all(re.search(r"run is in use by process \d+", err) for err, code in ended if code == 2)
    assert {job: len(each) for job, each in scene.attempts().items()} == dict.fromkeys(scene.records(), 1)
    assert len(scene.records()) == MODELS + 6
    scene.assert_nothing_is_left()
