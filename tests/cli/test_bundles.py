"""Bundles that a failure or a crash leaves: they run again exactly; those that mean harm are refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from gradcheck_cli.cli.bundles import Bundles
from gradcheck_cli.cli.tasks import Task
from gradcheck_cli.errors import LimitError, UsageError
from gradcheck_cli.formats import read
from gradcheck_cli.graph.containers import Map, Optional, Sequence
from gradcheck_cli.graph.memory import allowed
from gradcheck_cli.settings import Settings
from gradcheck_cli.zoo import bundle as bundles
from gradcheck_cli.zoo.bundle import MOST_BYTES, ValueReader, ValueWriter, load, write_arrays
from gradcheck_cli.zoo.shelf import bundle_name, prune
from tests.cli import models
from tests.cli.conftest import Command, Ran

FAILURES = Path(".gradcheck/failures")
SQUARE = ["wrong.gradcheck.yaml", "--check", "square/wrong"]
posix = pytest.mark.skipif(os.name != "posix", reason="signals and limits of POSIX")


@pytest.fixture(autouse=True)
def saving(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default of the command, which the other tests turn off."""
    monkeypatch.delenv("GRADCHECK_SAVE_FAILURES")


def only_bundle() -> Path:
    [path] = FAILURES.iterdir()
    return path


def records(out: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(out)["checks"]
    return found


# What is left, and when


def test_a_failure_leaves_one_bundle_that_git_does_not_see(gradcheck: Command) -> None:
    ran = gradcheck(*SQUARE)
    path = only_bundle()
    assert ran.code == 1
    assert ran.err == f"note: saved, to run it again: gradcheck reproduce {path}\n"
    assert Path(".gradcheck/.gitignore").read_text() == "*\n"
    assert {p.name for p in path.iterdir()} == {"bundle.json", "values.npz", "model"}


def test_the_report_for_people_is_the_same_with_and_without(gradcheck: Command) -> None:
    assert gradcheck(*SQUARE).out == gradcheck(*SQUARE, "--save-failures", "none").out


def test_the_record_names_the_bundle_of_what_failed_alone(gradcheck: Command) -> None:
    failed, waived, right = records(gradcheck("wrong.gradcheck.yaml", "--output-format", "json").out)
    assert (failed["bundle"], waived["bundle"], right["bundle"]) == (str(only_bundle()), None, None)


@pytest.mark.parametrize("line", ["mlp.onnx", "wrong.gradcheck.yaml --check square/known", "unknown.onnx", "lfs.onnx",
                                  "mlp.onnx --x nosuch", "wrong.gradcheck.yaml --save-failures none"])  # fmt: skip
def test_what_passes_is_waived_or_cannot_be_checked_leaves_nothing(gradcheck: Command, line: str) -> None:
    ran = gradcheck(*line.split())
    assert not Path(".gradcheck").exists()
    assert "note:" not in ran.err


def cut(more: str = "") -> None:
    """A model whose output y has no derivative, and a spec that expects that."""
    models.save(
        Path("cut.onnx"), f"cut (float[3] x) => (float[3] y{', float[3] z' * bool(more)}) {{ y = Round (x) {more} }}"
    )
    expected = "{name: cut, model: cut.onnx, x: x, y: y, expect: {status: severed}}"
    Path("expected.gradcheck.yaml").write_text(f"gradcheck: 1\nchecks:\n  - {expected}\n")


def test_a_severed_check_that_fails_leaves_a_bundle_that_runs_again(gradcheck: Command) -> None:
    cut()
    [record] = records(gradcheck("cut.onnx", "--output-format", "json").out)
    assert (record["status"], record["bundle"]) == ("severed", str(only_bundle()))
    again = gradcheck("reproduce", record["bundle"])
    assert (again.code, again.err) == (1, "note: the same as when it was saved, to the last bit\n")
    assert "NO GRADIENT GC107  d y / d x: cut at node 0 Round 'y'" in again.out


@pytest.mark.parametrize("model, more", [("expected.gradcheck.yaml", ""), ("cut.onnx", "z = Tanh (x)")])
def test_a_severed_check_that_passes_leaves_nothing(gradcheck: Command, model: str, more: str) -> None:
    cut(more)
    ran = gradcheck(model)
    assert ran.code == 0
    assert "GC107" in gradcheck(model, "--output-format", "json").out
    assert not Path(".gradcheck").exists()


def test_the_same_check_has_one_bundle_and_another_has_its_own(gradcheck: Command) -> None:
    gradcheck(*SQUARE)
    first = only_bundle()
    gradcheck(*SQUARE, "--timeout", "10m", "--jobs", "1", "-v")
    assert only_bundle() == first
    gradcheck(*SQUARE, "--x", "h", "--y", "loss")  # passes, and leaves what there is
    gradcheck(*SQUARE, "--y", "h")
    assert len(list(FAILURES.iterdir())) == 2


def test_a_check_that_is_run_again_with_other_settings_leaves_the_bundle_of_the_first(gradcheck: Command) -> None:
    others = ["--points 3", "--seed 5", "--rtol 1e-5", "--x-init-value 1", "--x-init-value 2", "--mode nodes"]
    for index, more in enumerate(["", *others, *others]):
        gradcheck(*SQUARE, *more.split())
        assert len(list(FAILURES.iterdir())) == min(index, len(others)) + 1, more
    kept = [json.loads((path / "bundle.json").read_text())["settings"] for path in FAILURES.iterdir()]
    assert {each["seed"] for each in kept} == {0, 5}
    assert {each["points"] for each in kept} == {1, 3}


def test_a_folder_of_ones_own_has_no_gitignore_and_goes_when_nothing_failed(gradcheck: Command) -> None:
    gradcheck("mlp.onnx", "--save-failures", "kept/here")
    assert not Path("kept/here").exists()
    gradcheck(*SQUARE, "--save-failures", "kept/here")
    assert len(list(Path("kept/here").iterdir())) == 1
    assert not Path("kept/.gitignore").exists()


def test_the_environment_and_a_configuration_file_say_where(
    gradcheck: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkdir("inner")
    shutil.move("wrong.gradcheck.yaml", "inner")
    Path("inner/gradcheck.toml").write_text('save_failures = "of-file"\n')
    gradcheck("inner/wrong.gradcheck.yaml")
    assert Path("inner/of-file").is_dir()
    monkeypatch.setenv("GRADCHECK_SAVE_FAILURES", "of-environment")
    gradcheck("inner/wrong.gradcheck.yaml")
    assert Path("of-environment").is_dir()
    assert not Path(".gradcheck").exists()


def test_there_are_never_more_than_so_many(folder: Path) -> None:
    for index in range(105):
        path = Path("many") / bundle_name(f"check {index}")
        path.mkdir(parents=True)
        (path / "bundle.json").write_text("{}")
        os.utime(path, (index, index))
    (Path("many") / "notes-of-mine").mkdir()
    prune(Path("many"))
    names = {p.name.rpartition("-")[0] for p in Path("many").iterdir()}
    assert names == {f"check-{index}" for index in range(5, 105)} | {"notes-of"}


@pytest.mark.parametrize("name", ["../../etc/x", "a" * 300, "x::y z", "\x1b[2J", "", "...", "ünï", "C:\\x"])
def test_any_check_has_a_name_that_is_one_of_a_folder(name: str) -> None:
    made = bundle_name(name)
    assert made.isascii()
    assert made.isprintable()
    assert len(made) < 80
    assert made == Path(made).name
    assert not set(made) & set("/\\: ")
    assert made != bundle_name(name + "b")


# Running it again


def test_it_runs_again_from_anywhere_to_the_last_bit(
    gradcheck: Command, folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = gradcheck(*SQUARE, "--points", "2", "--output-format", "json")
    away = tmp_path_factory.mktemp("away")
    shutil.move(only_bundle(), away / "b")
    shutil.rmtree(folder, ignore_errors=True)
    monkeypatch.chdir(away)
    for argument in ("b", "b/bundle.json"):
        again = gradcheck("reproduce", argument, "--output-format", "json")
        assert again.code == before.code == 1
        assert "note: the same as when it was saved, to the last bit\n" in again.err
        for was, now in zip(records(before.out), records(again.out), strict=True):
            for name in ("id", "status", "code", "worst", "entries", "max_abs_err", "max_rel_err", "noise", "seed"):
                assert now[name] == was[name], name


def test_the_values_are_those_that_were_drawn_whatever_draws_now(gradcheck: Command) -> None:
    gradcheck(*SQUARE)
    path = only_bundle()
    with np.load(path / "values.npz") as saved:
        changed = {name: np.array([0.5, 0.625, 0.75]) for name in saved.files}
    with (path / "values.npz").open("wb") as file:
        write_arrays(file, changed)
    [record] = records(gradcheck("reproduce", str(path), "--output-format", "json").out)
    assert sorted(entry["theoretical"] for entry in record["worst"]) == [0.5, 0.625, 0.75]


def test_a_value_that_was_given_is_not_kept_as_drawn_besides(gradcheck: Command) -> None:
    gradcheck(*SQUARE, "--x-init-value", "[1,2,3]")
    assert json.loads((only_bundle() / "bundle.json").read_text())["drawn"] == {"0": {}}


OVERRIDES = {
    "--rtol 1": (0, "pass"),
    "--x h": (0, "pass"),
    "--seed 7": (1, "fail"),
    "--x-init-value [1,2,3]": (1, "fail"),
    "--method central": (1, "fail"),
    "--points 3": (1, "fail"),
    "--val-range x:2,3": (1, "fail"),
}


@pytest.mark.parametrize("line", OVERRIDES)
def test_options_change_single_settings(gradcheck: Command, line: str) -> None:
    gradcheck(*SQUARE)
    ran = gradcheck("reproduce", str(only_bundle()), *line.split(), "--output-format", "json")
    found = records(ran.out)
    code, status = OVERRIDES[line]
    assert (ran.code, {record["status"] for record in found}) == (code, {status})
    assert "to the last bit" not in ran.err


def test_another_seed_draws_other_values(gradcheck: Command) -> None:
    gradcheck(*SQUARE)
    worst = [records(gradcheck("reproduce", str(only_bundle()), *more, "--output-format", "json").out)[0]["worst"]
             for more in ((), ("--seed", "0"), ("--seed", "7"))]  # fmt: skip
    assert worst[0] == worst[1] != worst[2]


def test_the_environment_and_configuration_files_do_not_matter(
    gradcheck: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradcheck(*SQUARE)
    monkeypatch.setenv("GRADCHECK_RTOL", "1")
    (folder / "gradcheck.toml").write_text("rtol = 1\n")
    assert gradcheck("reproduce", str(only_bundle())).code == 1


def test_what_was_given_by_hand_is_in_it(gradcheck: Command, folder: Path) -> None:
    np.save("value.npy", np.array([0.5, 0.25, 2.0]))
    gradcheck(*SQUARE, "--x-init-value", "@value.npy", "--rtol", "x:1e-4", "--y-shape", "loss:[]")
    (folder / "value.npy").unlink()
    [record] = records(gradcheck("reproduce", str(only_bundle()), "--output-format", "json").out)
    assert record["rtol"] == 1e-4
    assert sorted(entry["numerical"] for entry in record["worst"]) == pytest.approx([0.5, 1.0, 4.0], rel=1e-9)


def test_files_that_a_spec_names_are_in_it(gradcheck: Command, folder: Path) -> None:
    os.mkdir("arrays")
    np.savez("arrays/weights.npz", w=np.array([1.0, 2.0, 3.0], np.float32))
    Path("own.gradcheck.yaml").write_text(
        Path("wrong.gradcheck.yaml").read_text().partition("graphs:")[0] + "graphs:\n  net:\n"
        "    inputs: {x: {shape: [3]}}\n"
        "    params: {w: {shape: [3], init: {kind: file, path: arrays/weights.npz, key: w}}}\n"
        "    nodes: |\n      a = Mul (x, w)\n      y = acme.Square (a)\n    outputs: [y]\n"
    )
    assert gradcheck("own.gradcheck.yaml").code == 1
    os.unlink("arrays/weights.npz")
    assert gradcheck("reproduce", str(only_bundle())).code == 1


# Models that are not copied, and what has changed since


def external(path: Path) -> None:
    """A model whose weights lie in a file beside it."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Floor", ["h"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, [2, 3])],
        [numpy_helper.from_array(np.eye(3, dtype=np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path, save_as_external_data=True, location="sub.data", size_threshold=0)


def out_of_time(gradcheck: Command, *args: str) -> Ran:
    """Runs it until its time is up, with time enough for this machine to begin the check."""
    for seconds in (0.2, 2, 20, 200):
        ran = gradcheck(*args, "--points", "1000000", "--timeout", str(seconds))
        if FAILURES.exists():
            break
    return ran


def told(err: str) -> str:
    """The notes, but for one: whether a process ends by itself as its time is up, or is ended, depends on the machine."""
    return err.replace("note: its process ended before this check did\n", "")


@posix
def test_a_model_comes_with_its_external_data(gradcheck: Command, folder: Path) -> None:
    external(folder / "net.onnx")
    assert out_of_time(gradcheck, "net.onnx").code == 6
    os.unlink("net.onnx")
    os.unlink("sub.data")
    path = only_bundle()
    assert {p.name for p in (path / "model").iterdir()} == {"net.onnx", "sub.data"}
    again = gradcheck("reproduce", str(path), "--points", "1", "--timeout", "10m")
    assert (again.code, told(again.err)) == (0, "")


@posix
def test_a_large_model_is_referred_to_and_its_changes_are_told(
    gradcheck: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    external(folder / "net.onnx")
    with Path("sub.data").open("r+b") as file:  # sparse: it takes no room
        file.truncate(bundles.COPIED + 1)
    out_of_time(gradcheck, "net.onnx")
    path = only_bundle()
    assert not (path / "model").exists()
    once = ["reproduce", str(path), "--points", "1", "--timeout", "10m"]
    assert told(gradcheck(*once).err) == ""
    with Path("sub.data").open("r+b") as file:
        file.write(np.float32(2).tobytes())
    assert (
        told(gradcheck(*once).err)
        == f"note: {folder / 'sub.data'} is not the file that was checked: its digest differs\n"
    )
    os.unlink("net.onnx")
    gone = gradcheck(*once)
    assert gone.code == 4
    assert "net.onnx does not exist" in gone.err


def test_other_versions_are_told(gradcheck: Command) -> None:
    gradcheck(*SQUARE)
    spoil(only_bundle(), lambda m: m["versions"].update(numpy="1.0", gradcheck="0.0.1"))
    err = gradcheck("reproduce", str(only_bundle())).err
    assert f"note: numpy was 1.0, and is {np.__version__} here\n" in err
    assert "note: gradcheck was 0.0.1, and is " in err


def test_another_outcome_is_told(gradcheck: Command) -> None:
    gradcheck(*SQUARE)
    path = only_bundle()
    text = (path / "model/wrong.gradcheck.yaml").read_text()
    (path / "model/wrong.gradcheck.yaml").write_text(
        text.replace("dx = Mul (dy, x)", "d = Mul (dy, x)\n      dx = Add (d, d)")
    )
    again = gradcheck("reproduce", str(path))
    assert again.code == 0
    assert "is not the file that was checked: its digest differs" in again.err
    assert "note: square/wrong::d loss/d x: fail when it was saved, pass now\n" in again.err


# Crashes and limits


def running(*args: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "gradcheck_cli", *args]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def until(condition: Callable[[], Any], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


@posix
def test_a_process_that_is_killed_leaves_a_bundle_that_runs(gradcheck: Command) -> None:
    process = running("wrong.gradcheck.yaml", "--check", "sum/right", "--points", "1000000", "--seed", "3")
    until(lambda: [*FAILURES.glob("*.running-*/bundle.json")])
    process.send_signal(signal.SIGKILL)
    process.wait(600)
    left = only_bundle()
    again = gradcheck("reproduce", str(left), "--points", "1", "--output-format", "json")
    assert again.code == 0
    assert again.err == "note: its process ended before this check did\n"
    assert (records(again.out)[0]["check"], records(again.out)[0]["seed"]) == ("sum/right", 3)
    (left / "bundle.json.new").write_text("{")  # as if it had been writing that
    later = gradcheck("mlp.onnx")
    named = only_bundle()
    assert ".running" not in named.name
    assert not (named / "bundle.json.new").exists()
    assert later.err == (
        f"note: an earlier check ended with its process, before it was done: gradcheck reproduce {named}\n"
    )
    assert gradcheck("reproduce", str(named), "--points", "1").code == 0


@posix
def test_a_process_that_is_interrupted_leaves_nothing(folder: Path) -> None:
    process = running("wrong.gradcheck.yaml", "--check", "sum/right", "--points", "1000000")
    until(lambda: [*FAILURES.glob("*.running-*/bundle.json")])
    process.send_signal(signal.SIGINT)
    try:
        assert process.wait(600) == 130
    finally:
        process.kill()
    assert not Path(".gradcheck").exists()


@posix
@pytest.mark.parametrize("output", ["full", "json"])
def test_a_time_limit_leaves_a_bundle(gradcheck: Command, output: str) -> None:
    ran = out_of_time(gradcheck, "mlp.onnx", "--output-format", output)
    again = gradcheck("reproduce", str(only_bundle()), "--points", "1", "--timeout", "10m")
    assert (ran.code, again.code) == (6, 0)
    assert f"gradcheck reproduce {only_bundle()}" in ran.err


def broken_off(kept: Bundles, task: Task, error: BaseException) -> None:
    """A check that an error ends."""
    with kept.watching(task) as keeper:
        keeper.begin(task.load(), Settings())
        raise error


def test_a_bug_and_a_limit_leave_a_bundle_and_other_errors_do_not(folder: Path) -> None:
    source = next(iter(read("mlp.onnx").sources.values()))
    task = Task("mlp", "mlp.onnx", lambda: source, model="mlp.onnx")
    for error, count in (
        (ZeroDivisionError(), 1),
        (LimitError("l"), 1),
        (UsageError("u"), 0),
        (KeyboardInterrupt(), 0),
    ):
        kept = Bundles("kept")
        with pytest.raises(type(error)):
            broken_off(kept, task, error)
        assert len([*Path("kept").glob("*")]) == count
        shutil.rmtree("kept", ignore_errors=True)


# Folders that cannot be written


def test_where_nothing_can_be_written_a_failure_says_so_and_a_pass_says_nothing(gradcheck: Command) -> None:
    Path(".gradcheck").write_text("no folder")
    ran = gradcheck(*SQUARE)
    assert ran.code == 1
    assert ran.err.startswith("note: failures are not saved: ")
    assert gradcheck("mlp.onnx").err == ""


@pytest.mark.slow
@posix
@pytest.mark.parametrize("blocks", [0, 2])
def test_a_full_disk_changes_nothing_but_the_note(folder: Path, blocks: int) -> None:
    """The manifest does not fit, or only the model does not: a file has at most so many blocks of 512 bytes or 1 KiB."""
    text = Path("wrong.gradcheck.yaml").read_text()
    Path("wrong.gradcheck.yaml").write_text(text + "# " + "x" * 5000 + "\n")
    command = f"ulimit -f {blocks}; exec {sys.executable} -m gradcheck_cli {' '.join(SQUARE)}"
    ran = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=600)
    assert ran.returncode == 1
    assert "note: failures are not saved: " in ran.stderr
    assert not Path(".gradcheck").exists()


# Bundles that mean harm


def spoil(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    manifest = json.loads((path / "bundle.json").read_text())
    change(manifest)
    (path / "bundle.json").write_text(json.dumps(manifest))


HARM: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a model elsewhere": (lambda m: m["model"].update(copy="../../../wrong.gradcheck.yaml"), "lies outside of the bundle"),
    "an absolute model": (lambda m: m["model"].update(copy=str(Path("wrong.gradcheck.yaml").resolve())), "lies outside"),
    "a relative reference": (lambda m: m["model"].update(copy="", path="wrong.gradcheck.yaml"), "no absolute path"),
    "a share": (lambda m: m["model"].update(copy="", path="//server/share/m.onnx"), "no absolute path"),
    "another graph": (lambda m: m["model"].update(graph="\x1b[2Jnosuch"), "has no graph"),
    "another schema": (lambda m: m.update(schema="x"), "its schema is not"),
    "a setting of the future": (lambda m: m["settings"].update(turbo=1), "does not know"),
    "a method of none": (lambda m: m["settings"].update(method="guess"), "is not one of"),
    "a negative size": (lambda m: m["settings"].update(dims={"N": -1}), "dims"),
    "a size of another kind": (lambda m: m["model"].update(dims=[1]), "dims"),
    "settings of another kind": (lambda m: m.update(settings=3), "is no bundle"),
    "drawn values of another kind": (lambda m: m.update(drawn=[1]), "is no bundle"),
    "a point of another kind": (lambda m: m.update(drawn={"x": {}}), "is no bundle"),
    "a value of another kind": (lambda m: m.update(drawn={"0": {"x": "cos\nsystem"}}), "is no saved value"),
    "an array that is not there": (lambda m: m.update(drawn={"0": {"x": {"array": "9"}}}), "is missing"),
    "nested values": (lambda m: m.update(drawn={"0": {"x": nested(40)}}), "too deeply"),
    "a record of another kind": (lambda m: m.update(records=[1]), "is no bundle"),
    "no model": (lambda m: m.pop("model"), "is no bundle"),
    "half of a character": (lambda m: m.update(check="a\ud800"), "half of a character, \\ud800"),
    "half of a character in a name": (lambda m: m["versions"].update({"\udfff": "1"}), "half of a character, \\udfff"),
    "half of a character, deep inside": (lambda m: m["records"][0].update(notes=["\ud83d"]), "half of a character"),
    "a dtype of another kind": (lambda m: m.update(drawn={"0": {"x": {"array": "0", "dtype": "os"}}}), "there is no dtype"),
}  # fmt: skip


ASKS = {  # settings of a bundle, and the words on them
    "a year": ({"timeout": 3e7}, "note: it asks for --timeout 30000000, and has 3600 unless more is typed\n"),
    "a million points": (
        {"points": 1_000_000},
        "note: it asks for --points 1000000, and has 100 unless more is typed\n",
    ),
    "all entries": (
        {"mode": "sampled", "max_entries": 1 << 40},
        "note: it asks for --max-entries 1099511627776, and has 1048576",
    ),
    "all memory": ({"memory_limit": 1 << 50}, "note: it asks for --memory-limit 1024 TiB, and has "),
    "all cores": ({"jobs": 100_000}, ""),
}


@pytest.mark.parametrize("settings, said", ASKS.values(), ids=ASKS)
def test_a_bundle_gets_no_more_of_the_machine_than_it_may(
    gradcheck: Command, settings: dict[str, Any], said: str
) -> None:
    gradcheck(*SQUARE)
    path = only_bundle()
    spoil(path, lambda m: m["settings"].update(settings))
    asked = load(path)
    assert asked.settings.jobs <= (os.cpu_count() or 1)
    assert (asked.settings.timeout, asked.settings.points <= 100) == (3600.0, True)
    assert (asked.settings.memory_limit or 0) <= allowed()
    limit = ("--timeout", "0.01s") if "points" in settings else ()
    ran = gradcheck("reproduce", str(path), *limit)
    assert (ran.code, said in ran.err) == (6 if limit else 1, True), ran.err


def test_more_than_a_bundle_gets_may_be_typed(gradcheck: Command) -> None:
    gradcheck(*SQUARE)
    path = only_bundle()
    spoil(path, lambda m: m["settings"].update(points=5000, timeout=7200.0))
    ran = gradcheck("reproduce", str(path), "--points", "3", "--timeout", "2h", "--output-format", "json")
    assert "it asks for" not in ran.err
    assert {record["points"] for record in records(ran.out)} == {3}


def test_a_file_of_which_the_name_is_no_text_leaves_a_bundle_that_runs(gradcheck: Command, folder: Path) -> None:
    name = os.fsdecode(b"wr\xffng.gradcheck.yaml")
    os.rename("wrong.gradcheck.yaml", name)
    gradcheck(name, "--check", "square/wrong")
    again = gradcheck("reproduce", str(only_bundle()))
    assert (again.code, "the same as when it was saved" in again.err) == (1, True), again.err


def nested(depth: int) -> Any:
    return {"sequence": [nested(depth - 1)]} if depth else {"array": "0"}


@pytest.mark.parametrize("name", HARM)
def test_a_bundle_that_means_harm_is_refused(gradcheck: Command, name: str) -> None:
    change, reason = HARM[name]
    gradcheck(*SQUARE)
    spoil(only_bundle(), change)
    ran = gradcheck("reproduce", str(only_bundle()))
    assert (ran.code, ran.out) == (2, "")
    assert reason in ran.err
    assert "\x1b" not in ran.err


NO_JSON = {
    "empty": b"",
    "half": b'{"schema": ',
    "deep": b"[" * 100_000,
    "a number": b"9" * 100_000,
    "not UTF-8": b"\xff\xfe{",
}


@pytest.mark.parametrize("name", NO_JSON)
def test_what_is_no_json_is_refused(gradcheck: Command, name: str) -> None:
    Path("bundle.json").write_bytes(NO_JSON[name])
    assert gradcheck("reproduce", "bundle.json").code == 2


def test_a_link_out_of_the_bundle_is_refused(gradcheck: Command, folder: Path) -> None:
    gradcheck(*SQUARE)
    model = only_bundle() / "model/wrong.gradcheck.yaml"
    model.unlink()
    model.symlink_to(folder / "wrong.gradcheck.yaml")
    ran = gradcheck("reproduce", str(only_bundle()))
    assert (ran.code, "lies outside of the bundle" in ran.err) == (2, True)


@posix
def test_a_pipe_is_refused_and_not_waited_for(gradcheck: Command) -> None:
    os.mkfifo("bundle.json")
    assert "is no regular file" in gradcheck("reproduce", "bundle.json").err


def test_python_of_a_spec_runs_only_if_allowed_again(gradcheck: Command, folder: Path) -> None:
    (folder / "harm.py").write_text("open('ran', 'w')\ndef body():\n    return {}\n")
    gradcheck(*SQUARE)
    spec = only_bundle() / "model/wrong.gradcheck.yaml"
    spec.write_text(spec.read_text().replace("ops:\n", "ops:\n  acme.Other: {python: harm:body}\n", 1))
    ran = gradcheck("reproduce", str(only_bundle()))
    assert (ran.code, Path("ran").exists()) == (2, False)
    assert "--allow-python" in ran.err


def npz(path: Path, member: bytes, name: str = "0.npy") -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, member)


def header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


HOSTILE_ARRAYS = {
    "a pickle": header("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}") + b"cos\nsystem\n(S'x'\ntR.",
    "a size that is not there": header("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}") + b"x",
    "a negative size": header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}"),
    "code for a header": header("__import__('os').system('x')"),
    "no array": b"nothing of the kind",
    "a version of the future": b"\x93NUMPY\x63\x00",
    "many axes": header("{'descr': '<f8', 'fortran_order': False, 'shape': (" + "1," * 70 + ")}") + bytes(8),
}


@pytest.mark.parametrize("name", HOSTILE_ARRAYS)
def test_arrays_that_mean_harm_are_refused(gradcheck: Command, name: str) -> None:
    gradcheck(*SQUARE)
    npz(only_bundle() / "values.npz", HOSTILE_ARRAYS[name])
    ran = gradcheck("reproduce", str(only_bundle()))
    assert (ran.code, "values.npz cannot be read" in ran.err) == (2, True), ran.err


def test_an_archive_that_unpacks_to_more_than_memory_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "values.npz"
    npz(file, bytes(1 << 20))
    with zipfile.ZipFile(file) as archive:
        [member] = archive.infolist()
    data = file.read_bytes()
    size = member.file_size.to_bytes(4, "little")
    file.write_bytes(data.replace(size, (MOST_BYTES + 1).to_bytes(4, "little")))
    with pytest.raises(UsageError, match="more than 1 GiB"):
        ValueReader(file).value({"array": "0"})


# Values


@pytest.mark.parametrize("value", [
    np.arange(6.0).reshape(2, 3), np.array(2 + 1j), np.zeros((0, 3), np.int8), np.array([True]),
    np.array(["a", b"\xff", ""], object).reshape(3, 1),
    Sequence((np.ones(2), np.zeros(3))), Optional(), Optional(np.ones(1)), Map(("a", "b"), np.ones(2)),
    Map((1, 2), np.array(["x", "y"], object)), Sequence((Map((), np.ones(0)),)), np.asfortranarray(np.ones((2, 3))),
    np.ones(3, ">f4"),
])  # fmt: skip
def test_values_of_all_kinds_come_back(value: Any, tmp_path: Path) -> None:
    writer = ValueWriter()
    entry = json.loads(json.dumps(writer.entry(value)))
    with (tmp_path / "v.npz").open("wb") as file:
        write_arrays(file, writer.arrays)
    assert same(ValueReader(tmp_path / "v.npz").value(entry), value)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "int4"])
def test_numbers_that_numpy_does_not_know_come_back(name: str, tmp_path: Path) -> None:
    import ml_dtypes

    test_values_of_all_kinds_come_back(np.array([[1, 2], [3, -4]], getattr(ml_dtypes, name)), tmp_path)


def same(a: Any, b: Any) -> bool:
    if isinstance(b, np.ndarray):
        return bool(a.dtype == b.dtype and a.shape == b.shape and (a == b).all())
    match a, b:
        case Sequence(x), Sequence(y):
            return len(x) == len(y) and all(map(same, x, y))
        case Optional(x), Optional(y):
            return x is y is None or same(x, y)
        case Map(k, x), Map(j, y):
            return k == j and same(x, y)
    return False
