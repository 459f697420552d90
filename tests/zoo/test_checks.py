"""Children do the same with models as `gradcheck check`, and no harm."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import parser

from gradcheck_cli.cli import main
from gradcheck_cli.zoo import Job, JobListener, Limits, engine
from tests.cli import models

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="groups of processes and their memory as Linux has them"
)
TIMED = ("duration_s", "peak_rss_mb")
GREEDY = """
<ir_version: 9, opset_import: ["" : 17]>
greedy (float[4] x) => (float y) {
  shape = Constant <value_ints = [100000, 4000, 4]> ()
  big = Expand (x, shape)
  s = Sin (big)
  y = ReduceSum <keepdims = 0> (s)
}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with some models."""
    monkeypatch.chdir(tmp_path)
    models.mlp(tmp_path / "mlp.onnx")
    models.conv(tmp_path / "conv.onnx")
    models.log(tmp_path / "log.onnx")
    models.unknown_operator(tmp_path / "unknown.onnx")
    (tmp_path / "empty.onnx").touch()
    models.endless(tmp_path / "endless.onnx")
    onnx.save(parser.parse_model(GREEDY), tmp_path / "greedy.onnx")
    return tmp_path


def run(jobs: list[Job], listen: Any = None, **limits: Any) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    engine.run(jobs, Limits(**{"jobs": 2, "timeout": 600.0, **limits}), lambda j, r: found.update({j.uri: r}), listen)
    return found


def plain(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records without what differs from run to run."""
    return [{name: value for name, value in record.items() if name not in TIMED} for record in records]


def test_records_are_those_of_check(folder: Path) -> None:
    names = ["mlp.onnx", "conv.onnx", "log.onnx", "unknown.onnx", "empty.onnx"]
    found = run([Job(name, name, options={"save_failures": "none"}) for name in names])
    for name in names:
        main([name, "--save-failures", "none", "--report", "one.jsonl", "-q"])
        expected = [json.loads(line) for line in Path("one.jsonl").read_text().splitlines()]
        assert plain(found[name]) == plain(expected), name


def test_a_check_of_a_spec_is_chosen_by_name_or_place_and_settings_of_a_list_count(folder: Path) -> None:
    (folder / "s.gradcheck.yaml").write_text(
        "gradcheck: 1\nchecks:\n  - {name: one, model: mlp.onnx, x: aux_in, y: aux_out}\n"
        "  - {name: two, model: mlp.onnx, x: W, y: loss}\n"
    )
    path = "s.gradcheck.yaml"
    jobs = [
        Job("all", path),
        Job("by name", path, "two"),
        Job("by place", path, 0, said={"seed": 7}),
        Job("gone", path, 9),
    ]
    found = {name: [(r["check"], r["status"], r["seed"]) for r in records] for name, records in run(jobs).items()}
    assert found["all"] == [("one", "pass", 0), ("two", "pass", 0)]
    assert found["by name"] == [("two", "pass", 0)]
    assert found["by place"] == [("one", "pass", 7)]
    assert found["gone"] == [("gone", "error", 0)]


def test_a_model_without_end_is_stopped_and_its_bundle_kept(folder: Path) -> None:
    found = run([Job("loop", "endless.onnx"), Job("mlp", "mlp.onnx")], timeout=2.0)
    [record] = found["loop"]
    assert (record["status"], record["code"]) == ("limit", "GC601")
    assert "2 s" in record["message"]
    assert Path(record["bundle"], "bundle.json").is_file()
    assert found["mlp"]  # the run goes on, with a limit that says nothing of a slow machine


def test_a_model_that_asks_for_more_than_the_limit_is_refused(folder: Path) -> None:
    found = run([Job("greedy", "greedy.onnx"), Job("mlp", "mlp.onnx")], memory=1 << 30)
    [record] = found["greedy"]
    assert (record["status"], record["code"]) == ("limit", "GC602")
    assert {r["status"] for r in found["mlp"]} == {"pass"}


def test_a_crash_leaves_a_bundle_and_a_pass_leaves_nothing(folder: Path) -> None:
    class Killer(JobListener):
        """Ends the process of the check whose bundle is there."""

        def memory(self, job: Job, size: int) -> None:
            for path in Path(".gradcheck/failures").glob("*.running-*"):
                os.kill(int(path.name.rpartition("-")[2]), signal.SIGSEGV)

    [record] = run([Job("loop", "endless.onnx")], Killer())["loop"]
    assert record["code"] == "GC603"
    assert record["message"].startswith(
        "its process was killed by SIGSEGV (a segmentation fault) while reading the model"
    )
    assert Path(record["bundle"], "bundle.json").is_file()
    assert not list(Path(".gradcheck/failures").glob("*.running-*"))
    assert {r["status"] for r in run([Job("mlp", "mlp.onnx", options={"save_failures": "kept"})])["mlp"]} == {"pass"}
    assert not Path("kept").exists()


def test_an_interrupted_run_leaves_no_bundle(folder: Path) -> None:
    class Stop(Exception):
        pass

    class Stopper(JobListener):
        def memory(self, job: Job, size: int) -> None:
            if list(Path(".gradcheck/failures").glob("*.running-*")):
                raise Stop

    with pytest.raises(Stop):
        run([Job("loop", "endless.onnx")], Stopper())
    assert not Path(".gradcheck").exists()


def test_onnxruntime_is_asked_in_the_group_of_its_child(folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    [record] = run([Job("conv", "conv.onnx")])["conv"]
    assert re.fullmatch(r"onnxruntime [\d.]+", record["forward"]["compared_with"])


@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_whichever_children_are_killed_each_job_has_its_records_once(folder: Path, count: int) -> None:
    """Children are killed at random moments, one after another, until so many are: the run goes on to its end."""
    killed: list[int] = []
    done: list[str] = []
    rng = random.Random(0)

    def jobs() -> Iterator[Job]:
        index = 0
        while len(killed) < count and index < 20 * count:
            yield Job(str(index), "mlp.onnx", options={"save_failures": "none"})
            index += 1

    def given(job: Job, records: list[dict[str, Any]]) -> None:
        done.append(job.uri)
        assert [r["status"] for r in records] == ["pass"] * 2 or [r["code"] for r in records] == ["GC603"]

    over = threading.Event()

    def kill() -> None:
        while not over.wait(rng.uniform(0.0, 0.1)):
            if found := children_of_children():
                with suppress(ProcessLookupError):
                    os.kill(rng.choice(found), signal.SIGKILL)
                    killed.append(1)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        engine.run(jobs(), Limits(jobs=3), given)
    finally:
        over.set()
        killer.join()
    assert len(killed) >= count
    assert sorted(map(int, done)) == list(range(len(done)))


def children_of_children() -> list[int]:
    """The processes that the servers of this process have forked."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(") ")[2].split()
            if fields[0] not in "ZX":
                parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    return [child for server in parents.get(os.getpid(), []) for child in parents.get(server, [])]
