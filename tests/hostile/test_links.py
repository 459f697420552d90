"""Links that somebody put into a project beforehand: no command writes, removes, renames or reads anything through one."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from gradcheck_cli.cli import main
from gradcheck_cli.formats.untrusted import own_folder
from gradcheck_cli.zoo.shelf import adopted, clear, dropped, prune, running
from tests.cli import models
from tests.cli.conftest import WRONG, Command, entered, typed

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
FAILING = ("wrong.gradcheck.yaml", "--check", "square/wrong")
ZOO = ("zoo", "models", "-j", "1", "--forward", "internal")
DOCUMENTED = {0, 1, 2, 3, 4, 5, 6, 7, 130}
PAST = "net-12345678"  # the name of a bundle


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, and beside it a folder of somebody else with things that look like ours."""
    project = tmp_path / "project"
    (project / "models").mkdir(parents=True)
    models.mlp(project / "mlp.onnx")
    models.mlp(project / "models/mlp.onnx")
    (project / "wrong.gradcheck.yaml").write_text(WRONG)
    victim = tmp_path / "victim"
    for name in (PAST, f"{PAST}.running-999999", f"{PAST}.running-1-999999", "run", "empty"):
        (victim / name).mkdir(parents=True)
        (victim / name / "bundle.json").write_text("{}")
        (victim / name / "bundle.json.new").write_text("{")
    for name in ("file", "lock", "run.json", "results.jsonl", ".gitignore", "run/lock", "run/results.jsonl"):
        (victim / name).write_text("precious, and without an end of line")
    (victim / "empty/bundle.json").unlink()
    (victim / "empty/bundle.json.new").unlink()
    monkeypatch.delenv("GRADCHECK_SAVE_FAILURES", raising=False)
    return entered(project, monkeypatch)


@pytest.fixture
def gradcheck(folder: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return partial(typed, capsys)


def content(folder: Path) -> dict[str, bytes | None]:
    """All that is in a folder, by path."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def link(place: str, target: str) -> None:
    """A link in the project to something of somebody else's."""
    os.makedirs(os.path.dirname(place) or ".", exist_ok=True)
    os.symlink(os.path.abspath(os.path.join("..", "victim", target)), place)


LINKS = {  # where a link lies, and what it leads to, "." being the whole folder
    "home": (".gradcheck", "."), "home, empty": (".gradcheck", "empty"), "failures": (".gradcheck/failures", "."),
    "failures, empty": (".gradcheck/failures", "empty"), "ignored": (".gradcheck/.gitignore", "file"),
    "ignored, dangling": (".gradcheck/.gitignore", "nothing"), "a bundle": (f".gradcheck/failures/{PAST}", PAST),
    "a bundle of one that died": (f".gradcheck/failures/{PAST}.running-999999", PAST),
    "one that is renamed": (f".gradcheck/failures/{PAST}.old-999999", "run"),
    "zoo": (".gradcheck/zoo", "."), "a run": (".gradcheck/zoo/models", "run"),
    "a run, empty": (".gradcheck/zoo/models", "empty"),
    "lock": (".gradcheck/zoo/models/lock", "file"), "lock, dangling": (".gradcheck/zoo/models/lock", "nothing"),
    "results": (".gradcheck/zoo/models/results.jsonl", "file"),
    "results, dangling": (".gradcheck/zoo/models/results.jsonl", "nothing"),
    "description": (".gradcheck/zoo/models/run.json", "run.json"),
    "description, half written": (".gradcheck/zoo/models/run.json.new", "file"),
    "merged": (".gradcheck/zoo/merged", "nothing"), "given": ("kept", "."), "given, above": ("up", "."),
    "given, dangling": ("kept", "nothing"),
}  # fmt: skip
COMMANDS = {
    "a check that passes": ("mlp.onnx", "--x", "input", "--y", "loss"),
    "a check that fails": FAILING,
    "failures kept elsewhere": (*FAILING, "--save-failures", "kept"),
    "failures kept below": (*FAILING, "--save-failures", "up/there"),
    "a zoo": ZOO,
    "a zoo kept elsewhere": (*ZOO, "--run", "kept"),
    "a zoo kept below": (*ZOO, "--run", "up/there", "--save-failures", "up/failures"),
    "status": ("zoo", "status", ".gradcheck/zoo/models"),
    "resume": ("zoo", "resume", ".gradcheck/zoo/models"),
    "a report of a run": ("zoo", "report", ".gradcheck/zoo/models"),
    "a merge": ("zoo", "merge", "past", "-o", ".gradcheck/zoo/merged"),
    "reproduce": ("reproduce", f".gradcheck/failures/{PAST}"),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("place, target", LINKS.values(), ids=LINKS)
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_nothing_is_changed_through_a_link(
    command: tuple[str, ...], place: str, target: str, folder: Path, gradcheck: Command
) -> None:
    if "merge" in command:
        assert main([*ZOO, "--run", "past", "--save-failures", "none", "-q"]) == 0
    link(place, target)
    before = content(folder.parent / "victim")
    ran = gradcheck(*command)
    assert content(folder.parent / "victim") == before
    assert os.path.islink(place) or not os.path.lexists(place) or place.endswith((".new", ".old-999999"))
    assert ran.code in DOCUMENTED, ran.err
    assert "Traceback" not in ran.err


TOLD = {
    ".gradcheck": FAILING,
    ".gradcheck/failures": FAILING,
    "kept": (*FAILING, "--save-failures", "kept"),
    ".gradcheck/zoo": ZOO,
    ".gradcheck/zoo/models": ZOO,
    ".gradcheck/zoo/models/lock": ZOO,
    ".gradcheck/zoo/models/results.jsonl": ZOO,
}


@pytest.mark.parametrize("place, command", TOLD.items(), ids=TOLD)
def test_a_link_that_is_not_followed_is_named(
    place: str, command: tuple[str, ...], folder: Path, gradcheck: Command
) -> None:
    link(place, "empty")
    ran = gradcheck(*command)
    assert ran.code == (2 if command == ZOO else 1)
    assert f"{place} is a link, which is not followed" in ran.err


def test_a_run_is_not_read_through_links(folder: Path, gradcheck: Command) -> None:
    assert gradcheck(*ZOO, "--run", "../victim/real").code == 0
    for name in ("run.json", "results.jsonl"):
        shutil.copytree("../victim/real", "copy")
        (folder / "copy" / name).unlink()
        (folder / "copy" / name).symlink_to(folder.parent / "victim/real" / name)
        ran = gradcheck("zoo", "report", "copy")
        assert (ran.code, ran.out) == (2, "")
        assert f"copy/{name} is a link, which is not followed" in ran.err
        shutil.rmtree("copy")


@pytest.mark.parametrize("name", ["bundle.json", "values.npz"])
def test_a_bundle_is_not_read_through_links(name: str, folder: Path, gradcheck: Command) -> None:
    assert gradcheck(*FAILING, "--x-init-value", "x=[1,2,3]").code == 1
    [bundle] = Path(".gradcheck/failures").iterdir()
    shutil.move(bundle / name, folder.parent / name)
    (bundle / name).symlink_to(folder.parent / name)
    ran = gradcheck("reproduce", str(bundle))
    assert (ran.code, ran.out) == (2, "")
    assert f"{name} is a link, which is not followed" in ran.err


CHORES: dict[str, Callable[[Path], object]] = {
    "adopted": adopted, "dropped": lambda f: dropped(f, 999999), "clear": clear, "prune": lambda f: prune(f, 0),
}  # fmt: skip


@pytest.mark.parametrize("chore", CHORES.values(), ids=CHORES)
def test_whoever_clears_up_takes_links_away_and_not_what_they_lead_to(
    chore: Callable[[Path], object], folder: Path
) -> None:
    os.mkdir("shelf")
    for name in (PAST, f"{PAST}.running-999999", f"{PAST}.running-1-999999"):
        os.symlink(folder.parent / "victim/run", os.path.join("shelf", name))
    before = content(folder.parent / "victim")
    chore(Path("shelf"))
    assert content(folder.parent / "victim") == before


def test_links_on_the_way_to_a_folder_are_those_of_whoever_typed_it(folder: Path) -> None:
    """As /tmp is one on some systems; below the working folder, or in `.gradcheck`, they are not."""
    elsewhere = folder.parent / "elsewhere"
    elsewhere.symlink_to(folder.parent / "victim")
    with own_folder(elsewhere / "run") as own:
        assert sorted(own.names()) == ["bundle.json", "bundle.json.new", "lock", "results.jsonl"]
    (folder.parent / "victim/.gradcheck").symlink_to(folder.parent / "victim/run")
    for path in (elsewhere, elsewhere / ".gradcheck", folder.parent / "victim/.gradcheck"):
        with pytest.raises(OSError, match="is a link, which is not followed"), own_folder(path):
            pass


def test_the_bundle_of_a_process_that_died_is_told_from_one_of_another_process_with_its_number(folder: Path) -> None:
    """Numbers of processes are given anew: one that began at another time is another process."""
    parent = os.getppid()
    ticks = Path(f"/proc/{parent}/stat").read_bytes().rpartition(b") ")[2].split()[19].decode()
    other = f"{int(ticks) - 1}"
    names = [f"net-1234567{n}.running-{began}-{parent}" for n, began in enumerate((ticks, other))]
    for name in names:
        os.makedirs(os.path.join("shelf", name))
    assert adopted(Path("shelf")) == [Path("shelf/net-12345671")]
    assert sorted(os.listdir("shelf")) == [names[0], "net-12345671"]
    assert running("net").endswith(f"-{os.getpid()}")


def test_the_bundle_of_a_process_that_nobody_has_asked_for_its_exit_code_is_that_of_a_dead_one(folder: Path) -> None:
    if not (process := os.fork()):
        os.makedirs(os.path.join("shelf", running("net-12345678")))
        os._exit(0)
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    try:
        assert adopted(Path("shelf")) == [Path("shelf/net-12345678")]
    finally:
        os.waitpid(process, 0)
