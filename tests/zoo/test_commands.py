"""`gradcheck zoo` as one types it: what it prints, what it keeps, how it goes on, how it ends."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import termios
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gradcheck_cli.cli import main
from gradcheck_cli.cli.zoo.changes import compared
from gradcheck_cli.results import check_from_json
from gradcheck_cli.results.record import Check
from tests.cli import models
from tests.cli.conftest import WRONG, Command, entered, typed
from tests.zoo.records import record as record_of

COMMAND = [sys.executable, "-m", "gradcheck_cli", "zoo"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with models that pass, fail, cannot be judged, cannot be read."""
    (tmp_path / "models" / "sub").mkdir(parents=True)
    models.mlp(tmp_path / "models/mlp.onnx")
    models.conv(tmp_path / "models/sub/conv.onnx")
    models.log(tmp_path / "models/sub/log.onnx")
    models.unknown_operator(tmp_path / "models/unknown.onnx")
    models.pointer(tmp_path / "models/lfs.onnx")
    (tmp_path / "models/wrong.gradcheck.yaml").write_text(WRONG)
    return entered(tmp_path, monkeypatch)


@pytest.fixture
def zoo(folder: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `gradcheck zoo` in the folder."""
    return partial(typed, capsys, "zoo")


def records(run: str | Path) -> list[dict[str, Any]]:
    """The lines of a run's store."""
    return [json.loads(line) for line in (Path(run) / "results.jsonl").read_text("ascii").splitlines()]


def jobs(run: str | Path) -> list[str]:
    """The jobs of a run's lines, each attempt once."""
    return [record["zoo"]["job"] for record in records(run) if record["zoo"]["part"] == 1]


SUMMARY = """\
                models  checks
passed               3       4
known failures       1       1
failed               1       1
inconclusive         1       1
unsupported          1       1
errors               1       1

FAIL GC101  models/wrong.gradcheck.yaml::square/wrong
  d loss/d x: 3/3 entries differ, max rel err 5.0e-01
ERROR GC403  models/lfs.onnx
  is a Git LFS pointer (63 bytes), not a model. `git lfs pull` fetches the
  model.
UNSUPPORTED GC502  models/unknown.onnx
  d y/d x: unknown operator 'acme.Magic' (node 1 Magic 'y'); it stops d y/d x.
  Check up to it: --y a; or define it: ops: in a spec, or an installed package;
  or give what it computes: --feed y=@FILE.npy
INCONCLUSIVE GC302  models/sub/log.onnx
  d y/d x: 'y' is not finite at point 0: first NaN at node 1 Log 'y' (input min
  -2.99). Narrow: --val-range x:LOW,HIGH

9 checks: 4 passed, 1 known failure, 1 failed, 1 inconclusive, 1 unsupported, 1 error in TIME
"""


def test_every_model_gets_a_record_and_failures_come_first(zoo: Command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    ran = zoo("models")
    assert (ran.code, ran.out) == (1, SUMMARY)
    assert len([line for line in ran.err.splitlines() if re.match(r"\[[1-8]/8\] [A-Z]+", line)]) == 8
    assert sorted({record["model"]["uri"] for record in records(".gradcheck/zoo/models")}) == [
        f"models/{name}" for name in ("lfs.onnx", "mlp.onnx", "sub/conv.onnx", "sub/log.onnx", "unknown.onnx",
                                      "wrong.gradcheck.yaml")
    ]  # fmt: skip
    assert Path(".gradcheck/.gitignore").read_text() == "*\n"


def test_the_same_command_repeats_nothing_and_gives_the_same(zoo: Command):
    first = zoo("models", "--run", "run")
    before = Path("run/results.jsonl").read_bytes()
    again = zoo("models", "--run", "run", "--output-format", "full", "--report", "r.json")
    assert again[:2] == first[:2]
    assert again.err == "note: 8 of 8 models were done before, in run; --rerun all does them again\n"
    assert Path("run/results.jsonl").read_bytes() == before


def test_runs_of_other_sources_have_folders_of_their_own(zoo: Command, folder: Path):
    for name in ("x/models", "y/models"):
        (folder / name).mkdir(parents=True)
        models.mlp(folder / name / "net.onnx")
    for source in ("x/models", "y/models", "x/models", "./y/models"):
        assert zoo(source).code == 0
    first, second = sorted(os.listdir(".gradcheck/zoo"))
    assert (jobs(f".gradcheck/zoo/{first}"), first) == (["x/models/net.onnx"], "models")
    assert {*jobs(f".gradcheck/zoo/{second}")} <= {"y/models/net.onnx", "./y/models/net.onnx"}


def test_a_folder_of_models_is_left_as_it_is(zoo: Command):
    before = sorted(os.listdir("models"))
    ran = zoo("models/sub/conv.onnx", "--run", "models")
    assert (ran.code, ran.err) == (2, "error GC201: models holds lfs.onnx and no run; give a new folder by --run\n")
    assert sorted(os.listdir("models")) == before


def test_a_folder_that_is_given_is_taken_and_a_note_tells_what_it_held(zoo: Command, folder: Path):
    (folder / "run").mkdir()
    (folder / "run/log.txt").write_text("")
    assert zoo("models/mlp.onnx", "--run", "run").code == 0
    ran = zoo("models/sub/conv.onnx", "--run", "run")
    assert ran.code == 0
    assert ran.err.startswith("note: run held a run of models/mlp.onnx, which this one takes the place of\n")


def test_a_run_goes_on_with_more_of_its_sources(zoo: Command):
    zoo("models/mlp.onnx", "--run", "run")
    assert zoo("models/mlp.onnx", "models/sub/conv.onnx", "--run", "run").code == 0
    assert jobs("run") == ["models/mlp.onnx", "models/sub/conv.onnx"]


def test_what_has_changed_is_checked_again_alone(zoo: Command, folder: Path):
    zoo("models", "--run", "run")
    done = len(jobs("run"))
    models.mlp(folder / "models/sub/conv.onnx")
    (folder / "models/mlp.gradcheck.yaml").write_text("gradcheck: 1\ndefaults: {seed: 4}\nchecks: []\n")
    zoo("models", "--run", "run")
    assert sorted(jobs("run")[done:]) == ["models/mlp.onnx", "models/sub/conv.onnx"]
    assert {r["seed"] for r in records("run")[-4:] if r["check"] == "models/mlp.onnx"} == {4}
    zoo("models", "--run", "run", "--seed", "9")
    assert sorted(jobs("run")[done + 2 :]) == sorted({*jobs("run")})


@pytest.mark.parametrize("operator, again", [("twice", False), ("restored", True)])
def test_what_changed_while_it_was_checked_is_checked_again(zoo: Command, folder: Path, operator: str, again: bool):
    """Its records may tell of another content than its key, which it has again in the next run."""
    (folder / "restored.gradcheck.yaml").write_text(f"""gradcheck: 1
ops: {{acme.Twice: {{python: "tests.cli.models:{operator}"}}}}
graphs: {{net: {{inputs: {{x: {{shape: [2]}}}}, nodes: "y = acme.Twice (x)", outputs: [y]}}}}
""")
    zoo("restored.gradcheck.yaml", "--run", "run", "--allow-python")
    ran = zoo("restored.gradcheck.yaml", "--run", "run", "--allow-python")
    assert (ran.code, len(jobs("run"))) == (0, 1 + again)
    assert ("1 model touched during the run, to be checked again by the same command" in ran.err) == again


def test_rerun_does_again_what_failed_or_all(zoo: Command):
    zoo("models", "--run", "run")
    every = sorted(jobs("run"))
    zoo("models", "--run", "run", "--rerun", "failed")
    assert len(jobs("run")) == len(every) + 4
    zoo("models", "--run", "run", "--rerun", "all")
    assert sorted(jobs("run")[len(every) + 4 :]) == every


def test_the_shards_of_a_run_merged_are_the_run(zoo: Command):
    zoo("models", "--run", "whole")
    for index in (1, 2, 3):
        assert zoo("models", "--run", f"part{index}", "--shard", f"{index}/3").code in (0, 1, 3, 4, 5)
    parts = ["part1", "part2", "part3"]
    assert zoo("merge", *parts, "-o", "merged")[:2] == (0, "merged: 8 models of 3 runs\n")
    assert sorted(jobs("merged")) == sorted(jobs("whole"))

    def lasting(run: str) -> list[Any]:
        passing = ("duration_s", "peak_rss_mb", "bundle")
        return sorted(([r["zoo"]["key"], {k: v for k, v in r.items() if k not in (*passing, "zoo")}] for r in records(run)),
                      key=str)  # fmt: skip

    assert lasting("merged") == lasting("whole")
    assert zoo("status", "merged", "--output-format", "json").code == 0
    assert zoo("diff", "whole", "merged")[:2] == (0, "9 checks: nothing has changed\n")


def test_a_shard_without_models_is_an_empty_run_that_is_merged_as_any(zoo: Command):
    for index in range(1, 10):
        reports = ("--report", f"{index}.json", "--report", f"{index}.xml")
        ran = zoo("models/mlp.onnx", "models/sub/conv.onnx", "--run", f"part{index}", "--shard", f"{index}/9", *reports)
        assert ran.code == 0, ran.err
        assert ("none of 2 checks is in this shard" in ran.err) == (index > 2)
        assert json.loads(Path(f"{index}.json").read_text())["exit_code"] == 0
    status = json.loads(zoo("status", "part9", "--output-format", "json").out)
    assert (status["state"], status["jobs"], status["exit_code"]) == ("finished", 0, 0)
    assert zoo("resume", "part9").code == 0
    assert zoo("merge", *(f"part{index}" for index in range(9, 0, -1)), "-o", "merged").code == 0
    assert {*jobs("merged")} == {"models/mlp.onnx", "models/sub/conv.onnx"}
    assert zoo("merge", "part8", "part9", "-o", "nothing")[:2] == (0, "nothing: 0 models of 2 runs\n")
    assert zoo("models/mlp.onnx", "-k", "conv", "--shard", "1/1").code == 7


def lost(run: str, *models: str) -> None:
    """Takes the records of some models out of a run, as if it had been interrupted before them."""
    path = Path(run, "results.jsonl")
    lines = path.read_text("ascii").splitlines(keepends=True)
    path.write_text("".join(line for line in lines if json.loads(line)["zoo"]["job"] not in models), "ascii")


@pytest.fixture
def parts(zoo: Command) -> list[str]:
    """The two shards of a run in which everything passes, and a third folder with the second shard interrupted."""
    for index in (1, 2):
        assert (
            zoo("models/mlp.onnx", "models/sub/conv.onnx", "--run", f"part{index}", "--shard", f"{index}/2").code == 0
        )
    shutil.copytree("part2", "torn")
    lost("torn", *jobs("torn"))
    return ["part1", "part2", "torn"]


@pytest.mark.parametrize(
    "runs, said",
    [
        (("part1", "part2"), ""),
        (("part1", "torn"), "1 of 2 models was not run"),
        (("torn",), "1 of 1 model was not run; shard 1/2 not merged"),
        (("part1",), "shard 2/2 not merged"),
    ],
)
def test_a_run_of_which_a_part_is_missing_passes_no_gate(
    zoo: Command, parts: list[str], runs: tuple[str, ...], said: str
):
    """The part is named by merge, status, report and diff, and by every format for people and services."""
    merging = zoo("merge", *runs, "-o", "merged")
    noted = f"note: merged: {said}; to go on: gradcheck zoo resume merged\n" if said else ""
    assert (merging.code, merging.err) == (0, noted)
    state = json.loads(zoo("status", "merged", "--output-format", "json").out)["state"]
    assert state == ("interrupted" if said else "finished")
    assert f"  {said}\n" in zoo("status", "merged").out or not said
    wanted = [f"r.{end}" for end in ("html", "md", "xml", "json")]
    gate = zoo("report", "merged", "--gate", *(word for path in wanted for word in ("-o", path)))
    assert (gate.code, gate.err) == (130 if said else 0, noted)
    assert zoo("diff", "part1", "merged").err.startswith(noted)
    page, document, suites, run = (Path(path).read_text() for path in wanted)
    assert ("All gradients of 2 models are right" in page, f"Not complete: {said}" in page) == (not said, bool(said))
    assert f"**Not complete: {said}**" in document or not said
    root = ElementTree.fromstring(suites)
    errors = [error.get("message") for error in root.iter("error")]
    assert (errors, root.get("errors")) == ([said] * bool(said), str(len(errors)))
    assert int(str(root.get("tests"))) == len(list(root.iter("testcase")))
    assert json.loads(run)["exit_code"] == gate.code
    assert main(("report", "r.json", "--gate")) == gate.code


def test_shards_that_are_merged_one_after_another_are_all_there(zoo: Command):
    sources = ("models/mlp.onnx", "models/sub/conv.onnx")
    for index in (1, 2, 3):
        zoo(*sources, "--run", f"part{index}", "--shard", f"{index}/3")
    assert "shard 3/3 not merged" in zoo("merge", "part1", "part2", "-o", "two").err
    assert zoo("merge", "two", "part3", "-o", "three").err == ""
    assert zoo("report", "three", "--gate").code == 0
    assert zoo("resume", "two").code == 0
    assert zoo("report", "two", "--gate")[0::2] == (0, "")


def test_a_run_keeps_its_gates(zoo: Command, folder: Path):
    (folder / "gradcheck.toml").write_text('fail_on = ["-inconclusive"]\n')
    assert zoo("models/sub", "--run", "lenient").code == zoo("resume", "lenient").code == 0
    assert zoo("models/sub", "--run", "strict", "--fail-on", "inconclusive").code == 3
    assert [zoo("report", run, "--gate").code for run in ("lenient", "strict")] == [0, 3]
    assert zoo("report", "lenient", "strict", "--gate").code == 3
    zoo("merge", "lenient", "strict", "-o", "both")
    assert zoo("report", "both", "--gate").code == 3
    assert zoo("report", "both", "--fail-on", "-inconclusive").code == 0


@pytest.mark.parametrize("options", ["--ignore GC1,GC3", "--select GC5", "--baseline all.json"])
def test_a_run_keeps_what_it_lets_through(zoo: Command, folder: Path, options: str):
    """Its results, looked at later and from elsewhere, say what the run itself said, and so does its gate."""
    sources = ("models/sub", "models/wrong.gradcheck.yaml")
    zoo(*sources, "--run", "all", "--report", "all.json")
    ran = zoo(*sources, "--run", "run", "--report", "run.json", *options.split())
    counts = ran.out.splitlines()[-1].rpartition(" in ")[0]
    assert ran.code == 0
    assert '"status": "waived"' in Path("run.json").read_text()
    (folder / "elsewhere").mkdir()
    os.chdir("elsewhere")
    gate = zoo("report", "../run", "--gate", "-q")
    assert (gate.code, gate.err, gate.out.splitlines()[-1].rpartition(" in ")[0]) == (0, "", counts)
    assert counts in zoo("status", "../run").out
    assert json.loads(zoo("status", "../run", "--output-format", "json").out)["failing"] == 0
    assert "nothing has changed" in zoo("diff", "../run", "../run.json").out
    zoo("merge", "../run", "-o", "one")
    assert zoo("report", "one", "--gate").code == 0
    zoo("merge", "../all", "../run", "-o", "both")  # a part that lets nothing through
    assert zoo("report", "both", "--gate").code == 1


def test_a_baseline_of_resume_is_read_where_one_types_and_kept_only_if_it_can_be(zoo: Command, folder: Path):
    """As --report is written there: the folder where the run was begun is that of its own settings."""
    zoo("models/sub", "--run", "run", "--report", "all.json")
    ran = zoo("resume", "run", "--baseline", "nowhere.json")
    assert (ran.code, "nowhere.json cannot be read" in ran.err) == (2, True)
    assert zoo("resume", "run").code == 3  # of the log
    (folder / "elsewhere").mkdir()
    os.chdir("elsewhere")
    shutil.move("../all.json", "own.json")
    assert zoo("resume", "../run", "--baseline", "own.json").code == 0
    os.chdir("..")
    assert zoo("resume", "run").code == zoo("report", "run", "--gate").code == 0


def test_codes_of_a_configuration_file_are_kept_and_a_baseline_that_is_gone_is_noted(zoo: Command, folder: Path):
    (folder / "gradcheck.toml").write_text('ignore = ["GC1", "GC3"]\n')
    assert zoo("models/sub", "models/wrong.gradcheck.yaml", "--run", "run").code == 0
    assert zoo("report", "run", "--gate").code == 0
    (folder / "gradcheck.toml").unlink()
    zoo("models/sub", "--run", "all", "--report", "all.json")
    assert zoo("models/sub", "--run", "other", "--baseline", "all.json").code == 0
    Path("all.json").unlink()
    gate = zoo("report", "other", "--gate")
    assert gate.code == 3
    assert "all.json cannot be read: No such file or directory: what it waived counts" in gate.err


def test_a_damaged_line_is_noted_wherever_results_are_shown(zoo: Command):
    zoo("models/sub", "--run", "run")
    shutil.copytree("run", "damaged")
    lines = Path("run/results.jsonl").read_text("ascii").splitlines(keepends=True)
    Path("damaged/results.jsonl").write_text(lines[0][:200] + "\n" + "".join(lines[1:]), "ascii")
    for told in (("status", "damaged"), ("report", "damaged"), ("diff", "run", "damaged"), ("resume", "damaged")):
        assert "damaged/results.jsonl: 1 damaged line left out, to be checked again\n" in zoo(*told).err
    for told in (("status", "damaged"), ("resume", "damaged"), ("diff", "run", "damaged")):  # which it was
        assert "damaged/results.jsonl: 1 damaged line left out\n" in zoo(*told).err


def test_runs_are_merged_into_a_new_folder_alone(zoo: Command, folder: Path):
    zoo("models/mlp.onnx", "--run", "one")
    assert zoo("merge", "one", "-o", "one").err == "error GC201: one is there already; runs are put into a new folder\n"
    assert zoo("merge", "none", "-o", "two").code == 2
    assert zoo("merge", "one", "-o", "no/where/two").code == 0
    assert sorted(os.listdir("no/where")) == ["two"]
    (folder / "file").write_text("")
    for target in ("file/two", "/proc/two"):
        assert zoo("merge", "one", "-o", target).err.startswith(f"error GC201: {target} cannot be written: ")


def test_runs_that_are_no_parts_of_one_are_told(zoo: Command):
    zoo("models/mlp.onnx", "--run", "one")
    zoo("models/mlp.onnx", "models/sub/conv.onnx", "--run", "two", "--seed", "3")
    assert zoo("merge", "one", "two", "-o", "both").err == "note: the runs differ in sources and options\n"
    (line,) = [r for r in records("both") if r["check"] == "models/mlp.onnx" and r["x"] == "input"]
    assert line["seed"] == 3


def test_status_tells_how_far_a_run_is(zoo: Command, folder: Path):
    assert zoo("status")[0::2] == (7, "error GC701: there is no run in .gradcheck/zoo; gradcheck zoo SRC begins one\n")
    zoo("models")
    (folder / "models/sub/log.onnx").rename(folder / "models/new.onnx")
    lines = Path(".gradcheck/zoo/models/results.jsonl").read_text().splitlines(keepends=True)
    Path(".gradcheck/zoo/models/results.jsonl").write_text("".join(line for line in lines if "lfs.onnx" not in line))
    status = zoo("status", ".gradcheck/zoo/models", "--show", "1")
    assert status.code == 0
    assert status.out.startswith(
        ".gradcheck/zoo/models  interrupted, 7/8 models\n  models\n  gradcheck ",
    )
    assert "  to go on: gradcheck zoo resume .gradcheck/zoo/models\n" in status.out
    assert "\n... 2 more models: gradcheck zoo status .gradcheck/zoo/models --show 7\n" in status.out
    told = json.loads(zoo("status", ".gradcheck/zoo/models", "--output-format", "json").out)
    assert {k: told[k] for k in ("state", "jobs", "done", "failing", "exit_code")} == {
        "state": "interrupted", "jobs": 8, "done": 7, "failing": 3, "exit_code": 1,
    }  # fmt: skip
    assert zoo("status").out == (
        "run                    done  failing\n.gradcheck/zoo/models   7/8        3  interrupted\n"
    )


def test_counts_and_times_mean_the_same_everywhere(zoo: Command, folder: Path):
    """The summary, the state for scripts, the reports and the store agree on models, checks and the checks' time."""
    out = zoo("models", "--run", "run", "--report", "r.json").out
    found = records("run")
    told = json.loads(zoo("status", "run", "--output-format", "json").out)
    models = {record["zoo"]["job"] for record in found}
    assert told["models"] == told["jobs"] == told["done"] == len(models)
    kept = json.loads((folder / "r.json").read_text())["checks"]
    assert told["checks"] == sum(told["statuses"].values()) == len(found) == len(kept)
    assert told["seconds"] == pytest.approx(sum(record["duration_s"] for record in kept), abs=2e-3)
    columns = [line.split()[-2:] for line in out.splitlines()[1:7]]
    assert [sum(int(row[i]) for row in columns) for i in (0, 1)] == [told["models"], told["checks"]]
    assert out.splitlines()[-1].startswith(f"{told['checks']} checks: ")
    last = zoo("status", "run").out.splitlines()[-1]
    assert last == zoo("report", "run").out.splitlines()[-1]
    assert last == f"{out.splitlines()[-1]} of checks"


def test_the_health_of_every_model_is_shown_where_it_is_asked_for(zoo: Command):
    assert "Health of" not in zoo("models", "--run", "run").out
    out = zoo("models", "--run", "run", "--health").out
    assert re.findall(r"^(models/\S+)\nHealth of ", out, re.MULTILINE) == [
        "models/mlp.onnx", "models/sub/conv.onnx", "models/sub/log.onnx", "models/wrong.gradcheck.yaml::square/wrong",
        "models/wrong.gradcheck.yaml::square/known", "models/wrong.gradcheck.yaml::sum/right",
    ]  # fmt: skip
    assert out.endswith("1 error in TIME\n")


def test_what_did_not_pass_is_drawn_where_it_is_asked_for(zoo: Command, folder: Path):
    pytest.importorskip("matplotlib")
    ran = zoo("models", "--run", "run", "--plot", "wrong.png")
    assert [path.name for path in folder.glob("*.png")] == ["wrong.png"]
    assert (folder / "wrong.png").read_bytes().startswith(b"\x89PNG")
    assert "note: wrong.png: d loss / d x" in ran.err
    ran = zoo("models/mlp.onnx", "--run", "other", "--plot", "none.svg")
    assert (ran.code, (folder / "none.svg").exists()) == (0, False)
    assert "every check that was compared passed, so --plot none.svg was not written" in ran.err


def test_resume_goes_on_from_the_folder_where_it_was_begun(zoo: Command, folder: Path, monkeypatch: pytest.MonkeyPatch):
    zoo("models", "--run", "run", "--seed", "5")
    lines = Path("run/results.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if "conv.onnx" not in line and "mlp.onnx" not in line]
    Path("run/results.jsonl").write_text("".join(kept))
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    resumed = zoo("resume", "../run", "--report", "r.json")
    assert resumed.code == 1
    again = {record["zoo"]["job"] for record in records("../run")[len(kept) :]}
    assert again == {"models/mlp.onnx", "models/sub/conv.onnx"}
    assert {record["seed"] for record in records("../run") if record["code"] not in ("GC403", "GC302", "GC502")} == {5}
    assert len(json.loads(Path("r.json").read_text())["checks"]) == 9
    assert zoo("resume", "../nothing").err.startswith("error GC201: ../nothing holds no run of `gradcheck zoo`.")


def test_a_random_seed_stays_the_same_when_a_run_is_gone_on_with(zoo: Command):
    zoo("models/sub/conv.onnx", "--run", "run", "--seed", "random")
    zoo("resume", "run")
    assert len(jobs("run")) == 1


def test_a_run_is_reported_in_every_format(zoo: Command):
    zoo("models", "--run", "run")
    names = [f"r.{suffix}" for suffix in ("json", "jsonl", "xml", "md")]
    assert zoo("report", "run", *(word for name in names for word in ("-o", name))) == (0, "", "")
    assert len(json.loads(Path("r.json").read_text())["checks"]) == 9
    assert json.loads(Path("r.json").read_text())["exit_code"] == 1
    assert len(Path("r.jsonl").read_text().splitlines()) == 9
    assert "zoo" not in json.loads(Path("r.jsonl").read_text().splitlines()[0])
    assert zoo("report", "run", "-o", "r.txt").code == 2


@pytest.mark.one_in(3)
@pytest.mark.parametrize("form", ["concise", "json", "jsonl", "junit", "github", "gitlab", "markdown"])
def test_a_run_is_printed_in_every_format(zoo: Command, form: str):
    ran = zoo("models/wrong.gradcheck.yaml", "models/mlp.onnx", "--run", "run", "--output-format", form)
    assert ran.code == 1
    assert "square/wrong" in ran.out


CHANGES = """\
newly failing (2)
  models/sub/conv.onnx::d y/d x  INCONCLUSIVE GC302
  square/known::d loss/d x       KNOWN FAILURE -> FAIL GC203

fixed (1)
  square/wrong::d loss/d x  FAIL GC101 -> PASS

gone (2)
  models/sub/conv.onnx::d loss/d image  PASS
  models/unknown.onnx::d y/d x          UNSUPPORTED GC502

new (1)
  models/unknown.onnx::d loss/d image  PASS

9 checks: 2 newly failing, 1 fixed, 2 gone, 1 new
"""


def test_diff_tells_what_fails_newly_what_is_fixed_what_is_gone_and_what_is_new(zoo: Command, folder: Path):
    zoo("models", "--run", "old")
    spec = folder / "models/wrong.gradcheck.yaml"
    spec.write_text(WRONG.replace("dx = Mul (dy, x)", "h = Mul (dy, x)\n      dx = Add (h, h)"))
    models.log(folder / "models/sub/conv.onnx")
    models.conv(folder / "models/unknown.onnx")
    zoo("models", "--run", "new")
    told = zoo("diff", "old", "new")
    assert (told.code, told.out) == (1, CHANGES)
    assert zoo("diff", "new", "new")[:2] == (0, "9 checks: nothing has changed\n")
    back = json.loads(zoo("diff", "new", "old", "--output-format", "json").out)
    assert (back["schema"], back["exit_code"]) == ("gradcheck.diff/1", 1)
    assert sorted({change["kind"] for change in back["changes"]}) == ["fixed", "gone", "new", "newly failing"]
    assert zoo("diff", "old", "nothing").code == 2


def test_diff_takes_files_of_results_too(zoo: Command):
    zoo("models/sub", "--run", "run", "--report", "r.json", "--report", "r.jsonl")
    assert (
        zoo("diff", "r.json", "run")[:2] == zoo("diff", "run", "r.jsonl")[:2] == (0, "2 checks: nothing has changed\n")
    )
    assert zoo("diff", "models/lfs.onnx", "run").code == 2


def test_what_no_source_means_is_exit_code_7_and_an_unknown_command_is_told_the_nearest(zoo: Command, folder: Path):
    (folder / "empty").mkdir()
    assert zoo("empty").code == 7
    assert zoo("models", "-k", "nothing").code == 7
    said = zoo("statsu", "x").err
    assert said.startswith("error GC201: 'statsu' is neither a command nor a file. Did you mean 'status'?")
    assert not Path(".gradcheck").exists()


def test_a_source_may_be_called_like_a_command(zoo: Command, folder: Path):
    shutil.copytree(folder / "models/sub", folder / "status")
    assert zoo("./status", "-k", "conv").code == 0
    assert jobs(".gradcheck/zoo/status") == ["status/conv.onnx"]


CHECKED = """gradcheck: 1
checks:
  - {name: first, model: mlp.onnx, x: input, y: loss}
  - {name: second, model: mlp.onnx, x: aux_in, y: aux_out}
"""


@pytest.mark.parametrize(
    "expression, chosen",
    [
        ("mlp.onnx", ["models/mlp.onnx::first", "models/mlp.onnx::second"]),
        ("mlp.onnx and second", ["models/mlp.onnx::second"]),
        ("mlp.onnx::f", ["models/mlp.onnx::first"]),
        ("*/mlp.onnx::s*", ["models/mlp.onnx::second"]),
        ("models/* and not (mlp or wrong or conv)", ["models/lfs.onnx", "models/sub/log.onnx", "models/unknown.onnx"]),
        ("first or conv", ["models/mlp.onnx::first", "models/sub/conv.onnx"]),
    ],
)
def test_an_expression_chooses_by_names_of_models_and_of_checks(
    zoo: Command, folder: Path, expression: str, chosen: list[str]
):
    (folder / "models/mlp.gradcheck.yaml").write_text(CHECKED)
    zoo("models", "--run", "run", "-k", expression)
    assert sorted(jobs("run")) == chosen


@pytest.mark.parametrize("entry", ["y: [aux_out]", "x: [aux_in]", "x: aux_in, y: aux_out, name: mine"])
def test_targets_of_an_entry_count_as_typed_beside_a_side_car_of_several_checks(zoo: Command, folder: Path, entry: str):
    (folder / "models/mlp.gradcheck.yaml").write_text(CHECKED)
    (folder / "list.gradcheck.yaml").write_text(f"gradcheck: 1\nmodels: [{{path: models/mlp.onnx, {entry}}}]\n")
    assert zoo("list.gradcheck.yaml", "--run", "run").code == 0
    [found] = records("run")
    assert (found["x"], found["y"], found["status"]) == ("aux_in", "aux_out", "pass")
    assert jobs("run") == ["mine" if "mine" in entry else "models/mlp.onnx"]


def test_an_entry_without_targets_has_the_checks_of_its_side_car(zoo: Command, folder: Path):
    (folder / "models/mlp.gradcheck.yaml").write_text(CHECKED)
    (folder / "list.gradcheck.yaml").write_text("gradcheck: 1\nmodels: [{path: models/mlp.onnx, seed: 7}]\n")
    assert zoo("list.gradcheck.yaml", "--run", "run").code == 0
    assert sorted((found["check"], found["x"]) for found in records("run")) == [
        ("first", "input"),
        ("second", "aux_in"),
    ]


def test_a_list_names_its_models_and_says_how_they_are_checked(zoo: Command, folder: Path):
    text = """gradcheck: 1
models:
  - {path: models/mlp.onnx, name: small, seed: 7, x: [input], y: [loss]}
  - {path: models/lfs.onnx, expect: {status: error, reason: not here}}
  - {path: models/none.onnx}
  - {path: models/sub/conv.onnx, sha256: "%s"}
"""
    (folder / "list.gradcheck.yaml").write_text(text % ("0" * 64))
    ran = zoo("list.gradcheck.yaml", "--run", "run")
    assert ran.code == 4
    found = {record["check"]: record for record in records("run")}
    assert sorted(found) == ["models/lfs.onnx", "models/none.onnx", "models/sub/conv.onnx", "small"]
    assert (found["small"]["seed"], found["small"]["x"], found["small"]["status"]) == (7, "input", "pass")
    assert found["models/lfs.onnx"]["status"] == "waived"
    assert "does not exist" in found["models/none.onnx"]["message"]
    assert "SHA-256" in found["models/sub/conv.onnx"]["message"]


def test_what_could_not_be_had_is_tried_again(zoo: Command, folder: Path):
    (folder / "list.gradcheck.yaml").write_text("gradcheck: 1\nmodels: [{path: 'http://127.0.0.1:9/a.onnx'}]\n")
    for attempt in (1, 2):
        assert zoo("list.gradcheck.yaml", "--run", "run").code == 4
        assert len(jobs("run")) == attempt


def test_fail_fast_begins_no_more_models(zoo: Command):
    zoo("models", "--run", "run", "--fail-fast", "-j", "1")
    assert len(jobs("run")) < 8


def test_a_limit_of_memory_that_a_process_takes_at_its_start_is_refused(zoo: Command):
    small = zoo("models/mlp.onnx", "--run", "small", "--memory-limit", "50MB")
    said = "error GC201: --memory-limit is less than a process takes at its start; give 128 MiB or more\n"
    assert (small.code, small.err, Path("small").exists()) == (2, said, False)
    assert zoo("models/mlp.onnx", "--run", "small", "--memory-limit", "128MiB").code == 0


def test_fail_fast_begins_no_model_after_the_first_that_fails(zoo: Command, folder: Path):
    (folder / "several").mkdir()
    (folder / "several/a.gradcheck.yaml").write_text(WRONG)
    for name in "bcdefgh":
        models.conv(folder / f"several/{name}.onnx")
    assert zoo("several", "--run", "run", "--fail-fast", "-j", "1").code == 1
    assert {record["status"] for record in records("run")[:-1]} <= {"pass", "waived"}
    assert records("run")[-1]["status"] == "fail"
    assert zoo("resume", "run").code == 1
    assert len(jobs("run")) == len({*jobs("run")}) >= 8


def test_a_baseline_waives_what_failed_before(zoo: Command):
    zoo("models", "--run", "run", "--report", "old.json")
    ran = zoo("models", "--run", "run", "--baseline", "old.json")
    assert (ran.code, "5 known failures" in ran.out) == (0, True)


def test_what_a_baseline_lets_through_is_fixed_when_it_passes_and_not_before(zoo: Command, folder: Path):
    zoo("models/wrong.gradcheck.yaml", "--run", "old", "--report", "old.json")
    zoo("models/wrong.gradcheck.yaml", "--run", "known", "--baseline", "old.json")
    spec = folder / "models/wrong.gradcheck.yaml"
    spec.write_text(WRONG.replace("dx = Mul (dy, x)", "h = Mul (dy, x)\n      dx = Add (h, h)"))
    zoo("models/wrong.gradcheck.yaml", "--run", "right", "--baseline", "old.json")
    told = ("changed (1)\n  square/wrong::d loss/d x  FAIL GC101 -> KNOWN FAILURE", "3 checks: 1 changed\n")
    assert all(each in zoo("diff", "old", "known").out for each in told)
    assert "fixed (1)\n  square/wrong::d loss/d x  KNOWN FAILURE -> PASS" in zoo("diff", "known", "right").out
    assert "square/wrong::d loss/d x  KNOWN FAILURE -> FAIL GC101" in zoo("diff", "known", "old").out


@pytest.mark.parametrize("was, now, kinds", [
    ("GC101", "known GC101", ["changed"]), ("known GC101", "known GC103", ["changed"]), ("known GC101", "", ["fixed"]),
    ("known GC101", "GC101", ["newly failing"]), ("", "known GC101", ["changed"]), ("GC203", "known GC101", ["fixed"]),
])  # fmt: skip
def test_a_failure_that_is_let_through_is_not_repaired(was: str, now: str, kinds: list[str]):
    one, other = map(outcome, (was, now))
    assert [change.kind for change in compared([one], [other])] == kinds


def outcome(said: str) -> Check:
    """A check with a code that fails, or that is known to; one that passes without."""
    known, code = "known" in said, said[-5:]
    status = "waived" if known else "fail" if code else "pass"
    return replace(
        check_from_json(record_of("m.onnx", status=status, code=code)), waiver={"reason": "r"} if known else None
    )


def test_more_time_is_a_reason_to_try_again(zoo: Command):
    assert zoo("models/sub/conv.onnx", "--run", "run", "--timeout", "0.001s").code == 6
    zoo("models/sub/conv.onnx", "--run", "run", "--timeout", "0.001s")
    assert len(jobs("run")) == 1
    assert zoo("models/sub/conv.onnx", "--run", "run", "--timeout", "5m").code == 0


def test_a_bug_of_gradcheck_is_a_reason_to_try_again(zoo: Command):
    assert zoo("models/mlp.onnx", "--run", "run").code == 0
    store = Path("run/results.jsonl")
    store.write_text(store.read_text().replace('"status": "pass", "code": ""', '"status": "error", "code": "GC901"'))
    assert zoo("status", "run").out.splitlines()[0].startswith("run  finished")
    assert zoo("models/mlp.onnx", "--run", "run").code == 0
    assert jobs("run") == ["models/mlp.onnx"] * 2


def test_a_waiver_that_has_ended_is_a_reason_to_try_again(zoo: Command, folder: Path):
    (folder / "list.gradcheck.yaml").write_text(
        "gradcheck: 1\nmodels: [{path: models/lfs.onnx, expect: {status: error, until: 2999-12-31}}]\n"
    )
    ask = "list.gradcheck.yaml", "--run", "run"
    assert (zoo(*ask).code, zoo(*ask).code, jobs("run")) == (0, 0, ["models/lfs.onnx"])
    store = Path("run/results.jsonl")
    store.write_text(store.read_text().replace("2999-12-31", "2020-12-31"))
    zoo(*ask)
    assert jobs("run") == ["models/lfs.onnx"] * 2


def test_names_move_no_cursor_and_lines_keep_their_width(zoo: Command, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    hostile = folder / "models" / "a\n\x1b[2J\x07\u202e" / ("b" * 200)
    hostile.mkdir(parents=True)
    (hostile / "x.onnx").write_text("nothing")
    ran = zoo("models", "--run", "run")
    assert not set(ran.out + ran.err) & {"\x1b", "\x07", "\u202e"}
    assert max(map(len, ran.out.splitlines()[:-1])) <= 80
    assert zoo("status", "run").code == 0


def test_a_folder_that_cannot_be_written_is_one_error(zoo: Command, folder: Path):
    (folder / "file").write_text("")
    ran = zoo("models", "--run", "file/run")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert ran.err.startswith("error GC201: file/run cannot be written: Not a directory")


def test_several_runs_make_one_report(zoo: Command):
    zoo("models/mlp.onnx", "--run", "one")
    zoo("models/lfs.onnx", "--run", "two")
    ran = zoo("report", "one", "two", "--format", "concise", "--gate")
    assert (ran.code, ran.out.splitlines()[-1]) == (4, "3 checks: 2 passed, 1 error in TIME of checks")
    assert [line.partition(":")[0] for line in ran.out.splitlines()[:-1]] == ["models/mlp.onnx"] * 2 + [
        "models/lfs.onnx"
    ]
    assert zoo("report", "models").err == "error GC201: models holds no run of `gradcheck zoo`. Runs there: one, two.\n"


# --- processes


def slow(folder: Path, count: int = 12) -> None:
    """Models that take some tenths of a second each."""
    shutil.rmtree(folder / "models")
    (folder / "models").mkdir()
    for index in range(count):
        text = f"""net (float[2,{24 + index}] x) => (float loss) {{
            h = MatMul (x, W)
            t = Tanh (h)
            loss = ReduceSum <keepdims = 0> (t)
        }}"""
        models.save(folder / "models" / f"{index:02}.onnx", text, W=[[0.1] * 24] * (24 + index))


def started(*args: str, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **more
    )


def wait_for_records(run: Path, least: int) -> None:
    """Until some records are there."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        with_lines = run / "results.jsonl"
        if with_lines.exists() and with_lines.read_bytes().count(b"\n") >= least:
            return
        time.sleep(0.02)
    raise AssertionError("no record after ten minutes")


def ended_by(by: signal.Signals, folder: Path, count: int) -> tuple[int, str] | None:
    """Exit code and stderr of a run of so many models that a signal ended; None where it came to its own end first."""
    slow(folder, count)
    process = started("models", "--run", "run", "-j", "1")
    wait_for_records(folder / "run", 2)
    process.send_signal(by)
    _, err = process.communicate(timeout=600)
    return None if process.returncode == 0 else (process.returncode, err)


@pytest.mark.slow
@pytest.mark.parametrize("by, code", [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 130)])
def test_a_run_that_is_ended_goes_on_and_repeats_nothing(folder: Path, zoo: Command, by: signal.Signals, code: int):
    count = 12
    while (ended := ended_by(by, folder, count)) is None:  # it was faster than this process
        count *= 4
        shutil.rmtree(folder / "run")
    assert ended[0] == code
    err = ended[1]
    if by != signal.SIGKILL:
        assert "to go on: gradcheck zoo resume run\n" in err
    before = jobs("run")
    assert 0 < len(before) < count
    assert zoo("resume", "run").code == 0
    assert len(jobs("run")) == len({*jobs("run")}) == count
    assert jobs("run")[: len(before)] == before


@pytest.mark.slow
def test_a_second_run_in_the_same_folder_is_refused(folder: Path, zoo: Command):
    slow(folder, 1)
    models.endless(folder / "models/endless.onnx")
    process = started("models", "--run", "run", "-j", "1", "--timeout", "10m")
    wait_for_records(folder / "run", 1)
    ran = zoo("models", "--run", "run")
    told = json.loads(zoo("status", "run", "--output-format", "json").out)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=600)
    assert (ran.code, told["state"]) == (2, "running")
    assert f"run is in use by process {process.pid}; wait for it to end" in ran.err


@pytest.mark.slow
def test_a_full_disk_ends_the_run_with_one_error_and_loses_nothing(folder: Path, zoo: Command):
    slow(folder, 4)
    zoo("models/00.onnx", "models/01.onnx", "--run", "run")
    size = (folder / "run/results.jsonl").stat().st_size

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, size + 10))

    process = started("models", "--run", "run", "--save-failures", "none", preexec_fn=full)
    _, err = process.communicate(timeout=600)
    errors = [line for line in err.splitlines() if line.startswith("error")]
    assert (process.returncode, len(errors)) == (2, 1), err
    assert "results.jsonl cannot be written: File too large; what was finished before is kept" in errors[0]
    assert (folder / "run/results.jsonl").stat().st_size == size
    assert zoo("models", "--run", "run").code == 0
    assert len(jobs("run")) == 4


def lines_of(seen: bytes) -> list[str]:
    """The lines that a terminal was told to show, one after the other."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode(errors="ignore")).replace("\r", "\n").split("\n")


def shows(seen: bytes, text: str) -> bool:
    return any(text in line for line in lines_of(seen))


@pytest.mark.slow
def test_in_a_terminal_a_bar_says_how_far_it_is_and_what_runs(folder: Path):
    slow(folder, 2)
    models.endless(folder / "models/endless.onnx")  # it runs for as long as it takes to be seen
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    command = [*COMMAND, "models", "--run", "run", "-j", "1", "--color", "never", "--timeout", "10m"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True) as process:
        os.close(theirs)
        seen, ended = b"", False
        with suppress(OSError):  # which is how a terminal ends
            while data := os.read(ours, 4096):
                seen += data
                if not ended and shows(seen, "2/3") and shows(seen, "  models/endless.onnx"):
                    process.send_signal(signal.SIGINT)
                    ended = True
        out, _ = process.communicate()
    os.close(ours)
    assert process.returncode == 130
    frames = lines_of(seen)
    assert any("2/3" in line for line in frames)
    assert any(line.startswith("  models/endless.onnx") for line in frames)
    assert max(len(line) for line in frames) <= 80
    assert "\x1b" not in out
