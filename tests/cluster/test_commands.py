"""`gradcheck zoo --dask` and `gradcheck check --dask` as one types them: the records are those of one machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed", reason="needs Dask, which is in the extra `dask`")

from tests.cli import models
from tests.cli.conftest import WRONG
from tests.cluster.test_cluster import Started
from tests.zoo.test_engine import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="groups of processes as Linux has them")
COMMAND = [sys.executable, "-m", "gradcheck_cli"]
_OF_A_RUN = ("duration_s", "peak_rss_mb", "bundle")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with models that pass, fail, cannot be judged, cannot be read."""
    (tmp_path / "models").mkdir()
    models.mlp(tmp_path / "models/mlp.onnx")
    models.conv(tmp_path / "models/conv.onnx")
    models.log(tmp_path / "models/log.onnx")
    models.pointer(tmp_path / "models/lfs.onnx")
    (tmp_path / "models/wrong.gradcheck.yaml").write_text(WRONG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def started(folder: Path) -> Iterator[Started]:
    """A scheduler and two workers, in another folder."""
    (folder / "cluster").mkdir()
    made = Started(folder / "cluster")
    made.schedule()
    made.work()
    made.work()
    yield made
    made.end()


def run(*args: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    done = subprocess.run([*COMMAND, *args], capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout, done.stderr


def records(store: str) -> dict[str, dict[str, Any]]:
    """The records of a run by their id, without what another run has otherwise."""
    lines = [json.loads(line) for line in Path(store, "results.jsonl").read_text().splitlines()]
    assert len({line["id"] for line in lines}) == len(lines)
    return {line["id"]: {n: v for n, v in line.items() if n not in (*_OF_A_RUN, "zoo")} for line in lines}


@pytest.mark.slow
def test_records_are_those_of_one_machine_whether_models_are_seen_or_sent(started: Started) -> None:
    code, _, err = run("zoo", "models", "--run", "here")
    assert code == 70 or code in (1, 4), err
    assert run("zoo", "models", "--run", "there", "--dask", str(started.file))[0] == code
    assert records("there") == records("here")
    code, _, err = run("zoo", "/proc/self/cwd/models", "--run", "sent", "--dask", started.address)  # each has its own
    codes = {name: each["code"] for name, each in records("here").items()}
    assert {name.removeprefix("/proc/self/cwd/"): each["code"] for name, each in records("sent").items()} == codes, err
    assert "gradcheck-" not in Path("sent/results.jsonl").read_text()  # nothing tells where they were laid out


@pytest.mark.slow
def test_a_failure_on_a_worker_is_saved_here_and_can_be_run_again(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRADCHECK_SAVE_FAILURES")
    code, _, err = run("zoo", "/proc/self/cwd/models/wrong.gradcheck.yaml", "--run", "sent", "--dask", started.address)
    assert code == 1, err
    lines = [json.loads(line) for line in Path("sent/results.jsonl").read_text().splitlines()]
    [record] = [line for line in lines if line["status"] == "fail"]
    assert Path(record["bundle"], "bundle.json").is_file()
    code, out, _ = run("reproduce", record["bundle"])
    assert code == 1
    assert record["code"] in out


@pytest.mark.slow
def test_ctrl_c_stops_the_workers_and_resume_does_the_rest(started: Started) -> None:
    for index in range(12):
        os.link("models/conv.onnx", f"models/conv{index}.onnx")
    store = Path("run/results.jsonl")
    process = subprocess.Popen(
        [*COMMAND, "zoo", "models", "--run", "run", "--dask", started.address, "--points", "40"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert until(lambda: store.exists() and b"\n" in store.read_bytes(), 60)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130, err
    before = records("run")
    assert 0 < len(before) < 16
    code, _, err = run("zoo", "resume", "run")
    assert code in (1, 4), err
    after = records("run")
    assert after.items() >= before.items()
    assert len(after) >= 16


@pytest.mark.slow
def test_a_jacobian_in_parts_has_the_same_record_by_any_number_of_workers(folder: Path) -> None:
    found = []
    for count in (1, 2, 3):
        code, out, err = run("models/mlp.onnx", "--dask", f"local:{count}", "--output-format", "json")
        assert code == 0, err
        found.append([{n: v for n, v in each.items() if n not in _OF_A_RUN} for each in json.loads(out)["checks"]])
    assert found[0] == found[1] == found[2]
    _, out, _ = run("models/mlp.onnx", "--no-coloring", "--output-format", "json")
    for one, other in zip(found[0], json.loads(out)["checks"], strict=True):
        assert [one[n] for n in ("id", "status", "entries", "worst")] == [
            other[n] for n in ("id", "status", "entries", "worst")
        ]


@pytest.mark.slow
def test_workers_that_declare_no_memory_compare_parts_too(folder: Path) -> None:
    (folder / "cluster").mkdir()
    with ExitStack() as stack:
        stack.callback((made := Started(folder / "cluster")).end)
        made.schedule()
        made.work(memory="")
        code, _, err = run("models/mlp.onnx", "--dask", made.address)
    assert code == 0, err


@pytest.mark.slow
def test_a_worker_killed_while_it_compares_loses_no_part(started: Started) -> None:
    given = ["models/conv.onnx", "--dim", "N=32", "--points", "20"]
    with subprocess.Popen(
        [*COMMAND, *given, "--dask", started.address, "--output-format", "json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert until(lambda: len(busy(started.address)) == 2 or process.poll() is not None, 60)
        assert process.poll() is None
        started.processes[1].kill()
        out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    [check, *_] = json.loads(out)["checks"]
    assert check["entries"]["checked"] == check["entries"]["total"]


def busy(address: str) -> list[str]:
    """The workers that have something to do."""
    from distributed import Client

    with Client(address, set_as_default=False) as client:
        return [worker for worker, tasks in client.processing().items() if tasks]


@pytest.mark.slow
@pytest.mark.parametrize("args, said", [
    (("zoo", "models", "--dask", "nowhere"), "'nowhere' is no Dask scheduler; write tcp://HOST:8786"),
    (("zoo", "models", "--dask", "tcp://127.0.0.1:9"), "no Dask scheduler answers at tcp://127.0.0.1:9"),
    (("zoo", "models", "--dask", "local:2", "--engine", "local"), "--dask has no effect beside --engine local"),
    (("models/mlp.onnx", "--dask", "local:1", "--mode", "sampled"), "leave out --mode sampled"),
])  # fmt: skip
def test_what_cannot_be_is_an_error_of_usage(folder: Path, args: tuple[str, ...], said: str) -> None:
    code, _, err = run(*args)
    assert code == 2
    assert said in " ".join(err.replace("│", " ").split())


@pytest.mark.parametrize(
    "args, limit", [(("zoo", "models", "--run", "run"), 2.0), (("check", "models/conv.onnx"), 10.0)]
)
def test_a_cluster_without_workers_says_so_and_is_waited_for_no_longer_than_the_time_limit(
    args: tuple[str, ...], limit: float, folder: Path
) -> None:
    (folder / "cluster").mkdir()
    empty = Started(folder / "cluster")
    try:
        empty.schedule()
        code, out, err = run(*args, "--dask", str(empty.file), "--timeout", f"{limit}s")
    finally:
        empty.end()
    assert out == ""
    first, last = [line for line in err.splitlines() if not line.startswith("note: results")]
    patience = f"{0.9 * limit:g} s"
    assert (
        first == f"note: the scheduler at {empty.file} has no worker yet; waiting {patience} for one (--timeout: less)"
    )
    late = f"error GC601: took longer than {limit:g} s (--timeout)"  # which counts from an earlier moment in a check
    none = f"error GC201: the scheduler at {empty.file} has no worker after {patience}; start some: dask"
    assert (code, last[: len(late)]) == (6, late) or (code, last[: len(none)]) == (2, none)
