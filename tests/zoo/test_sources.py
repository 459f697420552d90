"""Sources of a zoo: folders, patterns, lists; links that lead back and lists that lead out."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tarfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from gradcheck_cli.cli import main
from gradcheck_cli.cli.zoo.jobs import ModelPlace, places
from gradcheck_cli.errors import GradcheckError, NothingChecked
from gradcheck_cli.zoo import remote as hub
from tests.cli import models


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with models at several depths, and links that lead back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("zoo/a.onnx", "zoo/deep/b.onnx", "zoo/deep/er/c.onnx", "zoo/.hidden/d.onnx", "zoo/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        models.conv(tmp_path / name)
    for link, target in (
        ("zoo/deep/up", ".."),
        ("zoo/deep/er/top", "../.."),
        ("zoo/loop", "."),
        ("zoo/deep/l", "../deep"),
    ):
        os.symlink(target, tmp_path / link)
    os.symlink("a.onnx", tmp_path / "zoo/same.onnx")
    return tmp_path


def uris(found: list[ModelPlace]) -> list[str]:
    return [place.uri for place in found]


@pytest.mark.parametrize(
    "source, expected",
    [
        ("zoo", ["zoo/a.onnx", "zoo/deep/b.onnx", "zoo/deep/er/c.onnx"]),
        ("zoo/*.onnx", ["zoo/a.onnx"]),
        ("zoo/**/*.onnx", ["zoo/a.onnx", "zoo/deep/b.onnx", "zoo/deep/er/c.onnx"]),
        ("**/er/**/*.onnx", ["zoo/deep/er/c.onnx"]),
        ("zoo/**", ["zoo/a.onnx", "zoo/deep/b.onnx", "zoo/deep/er/c.onnx"]),
        ("zoo/deep/[ab].onnx", ["zoo/deep/b.onnx"]),
        ("./zoo/deep/b.onnx", ["./zoo/deep/b.onnx"]),
    ],
)
def test_each_model_is_found_once_whatever_links_there_are(zoo: Path, source: str, expected: list[str]):
    assert uris(places([source])) == expected


def test_of_overlapping_sources_each_model_is_taken_once(zoo: Path):
    assert uris(places(["zoo/a.onnx", "./zoo/a.onnx", "zoo", "zoo/**"])) == [
        "zoo/a.onnx", "zoo/deep/b.onnx", "zoo/deep/er/c.onnx",
    ]  # fmt: skip


CLAIM = "gradcheck: 1\nchecks: [{name: claim, model: net.onnx, x: image, expect: {status: fail, reason: none}}]\n"


@pytest.fixture
def linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with a side-car that it does not meet, and a link to it in a folder that is read before its own."""
    monkeypatch.chdir(tmp_path)
    for name in ("m/a", "m/real"):
        (tmp_path / name).mkdir(parents=True)
    models.conv(tmp_path / "m/real/net.onnx")
    (tmp_path / "m/real/net.gradcheck.yaml").write_text(CLAIM)
    os.symlink("../real/net.onnx", tmp_path / "m/a/latest.onnx")
    return tmp_path


@pytest.mark.parametrize("command", ["check", "zoo"])
@pytest.mark.parametrize("sources", [["m"], ["m/a/latest.onnx", "m/real/net.onnx"], ["m/a", "m/real"], ["m/*/*.onnx"]])
def test_a_link_to_a_model_does_not_take_the_place_of_its_side_car(
    linked: Path, command: str, sources: list[str], capsys: pytest.CaptureFixture[str]
):
    assert main([command, *sources, "--progress", "off"]) == 1
    note = "left out, as other names of models that are checked: m/a/latest.onnx (of m/real/net.onnx)"
    assert capsys.readouterr().err.count(note) == 1


def test_a_link_with_a_side_car_of_its_own_keeps_its_checks(linked: Path):
    (linked / "m/a/latest.gradcheck.yaml").write_text("gradcheck: 1\ndefaults: {seed: 2}\nchecks: []\n")
    assert sorted(uris(places(["m"]))) == ["m/a/latest.onnx", "m/real/net.onnx"]
    os.remove(linked / "m/real/net.gradcheck.yaml")
    assert uris(places(["m"])) == ["m/a/latest.onnx"]


@pytest.mark.parametrize("command", ["check", "zoo"])
@pytest.mark.parametrize("source", ["zoo", "zoo/**", "zoo/**/*.onnx", "zoo/deep"])
def test_a_folder_that_cannot_be_read_is_an_error_as_a_file_is(
    zoo: Path, command: str, source: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    scandir = os.scandir

    def locked(path: str) -> object:
        if os.fspath(path).endswith("er"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", locked)
    assert main([command, source, "--progress", "off", "--output-format", "concise"]) == 4
    assert "zoo/deep/er cannot be read: Permission denied" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["check", "zoo"])
def test_what_a_folder_leaves_out_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    for name in ("m/a.onnx", "m/.b.onnx", "m/c.onnxtxt", "m/d.textproto", "elsewhere/e.onnx", "m/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        models.conv(tmp_path / name)
    os.symlink("../elsewhere", "m/more")
    os.symlink(".", "m/loop")
    assert main([command, "m", "--progress", "off", "-q"]) == 0
    counts = "1 link to a folder, 2 models as text, 1 hidden model"
    note = f"note: left out of folders: {counts}; they are checked where they are named\n"
    assert capsys.readouterr().err.count(note) == 1


def test_a_link_to_nothing_says_where_it_leads(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    os.symlink("gone.onnx", tmp_path / "net.onnx")
    assert main([str(tmp_path / "net.onnx")]) == 4
    assert "net.onnx is a link to gone.onnx, which does not exist." in capsys.readouterr().err


def test_a_source_without_models_is_told_beside_the_others_and_an_error_alone(zoo: Path):
    found = places(["zoo/a.onnx", "zoo/x*.onnx", "ftp://host/a.onnx"])
    assert [(place.uri, getattr(place.error, "exit_code", 0)) for place in found] == [
        ("zoo/a.onnx", 0), ("zoo/x*.onnx", 7), ("ftp://host/a.onnx", 2),
    ]  # fmt: skip
    with pytest.raises(NothingChecked, match="matches no file"):
        places(["zoo/x*.onnx"])


def listing(path: Path, text: str) -> str:
    path.write_text(f"gradcheck: 1\n{text}", encoding="utf-8")
    return str(path)


def test_a_list_gives_names_and_settings_seen_from_its_folder(zoo: Path):
    text = """defaults: {points: 2}
models:
  - {path: a.onnx, name: first, seed: 3, expect: {status: fail, reason: known}}
  - {path: deep, rtol: 1e-3, test_data: none}
  - {path: ../zoo/.hidden/d.onnx, x: [image]}
"""
    found = places([listing(zoo / "zoo" / "list.gradcheck.yaml", text)])
    assert uris(found) == ["first", str(zoo / "zoo/deep/b.onnx"), str(zoo / "zoo/deep/er/c.onnx"),
                           str(zoo / "zoo/../zoo/.hidden/d.onnx")]  # fmt: skip
    assert [place.said for place in found] == [
        {"points": 2, "seed": 3}, *[{"points": 2, "rtol": 1e-3, "test_data": "none"}] * 2, {"points": 2, "x": ["image"]},
    ]  # fmt: skip
    assert found[0].expect is not None
    assert found[0].expect["reason"] == "known"


def test_a_model_that_a_list_in_the_same_folder_names_is_checked_as_the_list_says(zoo: Path):
    listing(
        zoo / "zoo" / "list.gradcheck.yaml", "models: [{path: a.onnx, name: one}, {path: a.onnx, name: two, seed: 1}]"
    )
    assert sorted(uris(places(["zoo"]))) == ["one", "two", "zoo/deep/b.onnx", "zoo/deep/er/c.onnx"]


@pytest.mark.parametrize(
    "text, reason",
    [
        ("models: [{path: list.gradcheck.yaml}]", "which another list cannot name"),
        ("models: [{path: nothing/*.onnx}]", "matches no file"),
        ("models: [{path: 'deep', name: several}]", "cannot be the name of 2 models"),
        ("models: [{path: a.onnx, sed: 1}]", "unknown key 'sed'"),
        ("models: [{path: 'ssh://host/a.onnx'}]", "is none of http"),
        ("models: [{path: 'a.onnx', sha256: abc}]", "sha256"),
    ],
)
def test_a_list_that_makes_no_sense_says_why(zoo: Path, text: str, reason: str):
    with pytest.raises(GradcheckError, match=reason):
        places([listing(zoo / "zoo" / "list.gradcheck.yaml", text)])


def test_a_list_of_its_own_folder_does_not_go_round_in_circles(zoo: Path):
    listing(zoo / "zoo" / "list.gradcheck.yaml", "models: [{path: ., seed: 1}]")
    assert uris(places(["zoo"])) == ["zoo/a.onnx", "zoo/deep/b.onnx", "zoo/deep/er/c.onnx"]


# --- ONNX's hub


def hub_list(folder: Path, *entries: object) -> str:
    path = folder / "ONNX_HUB_MANIFEST.json"
    path.write_text(json.dumps(list(entries)), encoding="utf-8")
    return str(path)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_models_of_the_hub_come_with_their_digest(zoo: Path):
    digest = sha256(zoo / "zoo/a.onnx")
    entry = {"model": "A", "model_path": "a.onnx", "opset_version": 17, "metadata": {"model_sha": digest, "tags": []}}
    (found,) = places([hub_list(zoo / "zoo", entry, {**entry, "opset_version": 18})])
    assert (found.path, found.sha256, found.archive) == (str(zoo / "zoo/a.onnx"), digest, None)


@pytest.mark.parametrize("path", ["../a.onnx", "/etc/passwd", "deep/../../a.onnx", "C:\\a.onnx", "..\\a.onnx", "\0",
                                  "https://elsewhere/a.onnx", "file:///etc/passwd"])  # fmt: skip
def test_a_model_of_the_hub_that_leads_out_of_its_folder_is_refused(zoo: Path, path: str):
    for entry in ({"model_path": path}, {"model_path": "a.onnx", "metadata": {"model_with_data_path": path}}):
        with pytest.raises(GradcheckError, match="leads out of the folder"):
            places([hub_list(zoo / "zoo", entry)])


NO_LISTS = ("", "{", "{}", "[1]", "[{}]", '[{"model_path": 1}]', '[{"model_path": "a", "metadata": {"model_sha": 1}}]',
            "[" * 100_000)  # fmt: skip


@pytest.mark.parametrize("text", NO_LISTS, ids=lambda text: text[:30])
def test_a_list_of_the_hub_that_makes_no_sense_is_one_error(zoo: Path, text: str):
    path = zoo / "ONNX_HUB_MANIFEST.json"
    path.write_text(text)
    with pytest.raises(GradcheckError, match="is no list of models as ONNX's hub has it"):
        places([str(path)])


def archive(path: Path, folder: Path, **more: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as files:
        files.add(folder, "net")
        for info in more.values():
            files.addfile(info)
    return path


def test_test_data_of_the_hub_is_unpacked_beside_the_model(zoo: Path):
    (zoo / "zoo/deep/test_data_set_0").mkdir()
    (zoo / "zoo/deep/test_data_set_0/input_0.pb").write_bytes(b"data")
    packed = archive(zoo / "net.tar.gz", zoo / "zoo/deep")
    model = hub.unpacked(packed, sha256(zoo / "zoo/deep/b.onnx"))
    assert model is not None
    assert (model.parent / "test_data_set_0/input_0.pb").read_bytes() == b"data"
    assert hub.unpacked(packed, "0" * 64) is None


def test_an_archive_cannot_write_outside_its_folder(zoo: Path):
    out, link = tarfile.TarInfo("../../evil.txt"), tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc"
    packed = archive(zoo / "evil.tar.gz", zoo / "zoo/deep/er", out=out)
    with pytest.raises(GradcheckError, match="cannot be unpacked"):
        hub.unpacked(packed, "0" * 64)
    assert hub.unpacked(archive(zoo / "link.tar.gz", zoo / "zoo/deep/er", link=link), "0" * 64) is None
    assert not any(path.is_symlink() for path in (zoo / "cache").rglob("*"))
    assert not list(zoo.rglob("evil.txt"))
    assert not list((zoo / "cache").rglob(".*"))


@pytest.mark.parametrize("count, holds", [(10_000, True), (10_001, False)])
def test_an_archive_may_hold_so_many_files_and_no_more(zoo: Path, count: int, holds: bool):
    (zoo / "empty").mkdir()  # the first of them
    links = {f"link{number}": tarfile.TarInfo(f"link{number}") for number in range(count - 1)}
    for info in links.values():
        info.type, info.linkname = tarfile.SYMTYPE, "net"
    packed = archive(zoo / "links.tar.gz", zoo / "empty", **links)
    with nullcontext() if holds else pytest.raises(GradcheckError, match="it holds too much"):
        assert hub.unpacked(packed, "0" * 64) is None


BROKEN = (
    b"",
    b"nonsense",
    b"\x1f\x8b\x08\x00broken",
    gzip.compress(bytes(9000), 0, mtime=0)[:20] + b"\xff" * 500,
    b"BZh9" + bytes(500),
)


@pytest.mark.parametrize("data", BROKEN, ids=lambda data: str(data[:8]))
def test_an_archive_that_is_none_is_one_error(zoo: Path, data: bytes):
    (zoo / "broken.tar.gz").write_bytes(data)
    with pytest.raises(GradcheckError, match="cannot be unpacked"):
        hub.unpacked(zoo / "broken.tar.gz", "0" * 64)
