"""Pipes that nobody writes to, devices without end, files of the kernel, holes of a terabyte: nobody waits for them."""

from __future__ import annotations

import gzip
import io
import os
import signal
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from gradcheck_cli.cli import main
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.formats import companion_files
from gradcheck_cli.zoo import remote as hub
from gradcheck_cli.zoo.parcel import content_of, read_along
from tests.cli import models
from tests.hostile.conftest import at_most
from tests.hostile.readers import KINDS
from tests.hostile.test_readers import outcome

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pipes and devices as Linux has them")
PATIENCE = 20  # seconds


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder; whoever waits in it is woken up."""

    def awake(*_: object) -> None:
        raise AssertionError("it waits")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = signal.signal(signal.SIGALRM, awake)
    signal.alarm(PATIENCE)
    yield tmp_path
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def kernel(path: Path) -> None:
    """As large as all addresses, for those who may read it."""
    path.symlink_to("/proc/kcore")


def hole(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 40)


PASSED_OVER = ("gradcheck.toml", "lists of models")  # it is no configuration then; it is told when its turn comes
NO_FILES: tuple[Callable[[Path], None], ...] = (pipe, device, kernel, hole)


@pytest.mark.parametrize("make", NO_FILES, ids=lambda make: make.__name__)
@pytest.mark.parametrize("name", [name for name in KINDS if name != "results"])  # which may come through a pipe
def test_what_is_no_file_is_refused_where_one_is_read(name: str, make: Callable[[Path], None], folder: Path) -> None:
    if name == "stores of runs" and make in (kernel, hole):
        pytest.skip("a store may be of any size; it is read line by line")
    path = folder / "read" / KINDS[name].file
    path.parent.mkdir()
    make(path)
    try:
        KINDS[name].read(path)
    except GradcheckError:
        pass
    else:
        assert name in PASSED_OVER or (name, make) == ("archives", hole)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("make", NO_FILES, ids=lambda make: make.__name__)
@pytest.mark.parametrize("name", ["net.onnx", "net.gradcheck.yaml", "weights.bin", "test_data_set_0/input_0.pb"])
def test_a_zoo_waits_for_none(name: str, make: Callable[[Path], None], folder: Path) -> None:
    zoo = folder / "zoo"
    (zoo / "test_data_set_0").mkdir(parents=True)
    models.conv(zoo / "right.onnx")
    if name != "net.onnx":
        models.conv(zoo / "net.onnx")
    if name == "weights.bin":
        with_data(zoo / "net.onnx", "weights.bin")
    make(zoo / name)
    run = [
        "zoo",
        "zoo",
        "--run",
        "run",
        "-j",
        "1",
        "--timeout",
        "10s",
        "--save-failures",
        "none",
        "--forward",
        "internal",
    ]
    assert main([*run, "--output-format", "concise"]) in (0, 2, 4)
    text = (folder / "run/results.jsonl").read_text()
    assert '"job": "zoo/right.onnx"' in text
    assert '"job": "zoo/net.' in text


def with_data(path: Path, location: str) -> None:
    """A model whose weights are said to lie elsewhere."""
    model = onnx.load(str(path))
    tensor: TensorProto = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    onnx.save(model, str(path))


def test_what_a_model_names_through_a_link_is_not_given_away_with_it(folder: Path) -> None:
    inside = folder / "net"
    inside.mkdir()
    (folder / "secret").write_bytes(b"secret")
    (inside / "weights.bin").symlink_to(folder / "secret")
    models.conv(inside / "net.onnx")
    with_data(inside / "net.onnx", "weights.bin")
    assert companion_files(inside / "net.onnx") == {}
    assert [*read_along(inside / "net.onnx")] == [inside / "net.onnx"]
    (inside / "weights.bin").unlink()
    (inside / "weights.bin").write_bytes(b"own")
    assert list(companion_files(inside / "net.onnx")) == ["weights.bin"]


def test_the_key_of_a_file_too_large_to_be_read_changes_with_its_time(folder: Path) -> None:
    hole(folder / "large")
    first = content_of(folder / "large")
    os.utime(folder / "large", (1, 1))
    assert first != content_of(folder / "large")


# --- small archives that unfold


BOMB = 512 << 20  # bytes


def bomb(size: int, claimed: int | None = None) -> bytes:
    """A .npz of zeros, compressed; its directory claims as many bytes as it is told to."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": (size,)})
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w", force_zip64=True) as file,
    ):
        file.write(head.getvalue())
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
    data = buffer.getvalue()
    if claimed is not None:
        whole = (size + len(head.getvalue())).to_bytes(8, "little")
        short = (size + len(head.getvalue())).to_bytes(4, "little")
        data = data.replace(whole, claimed.to_bytes(8, "little")).replace(
            short, min(claimed, (1 << 32) - 2).to_bytes(4, "little")
        )
    return data


@pytest.mark.parametrize("claimed", [None, 1000, 1 << 31])
def test_a_zip_bomb_is_an_error(claimed: int | None, folder: Path) -> None:
    data = bomb(BOMB if claimed is None else 64 << 20, claimed)
    assert len(data) < 1 << 20
    (folder / "x.npz").write_bytes(data)
    models.conv(folder / "net.onnx")
    with at_most(BOMB // 2):
        assert main(["net.onnx", "--x-init-value", "@x.npz"]) in (2, 6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bundles", "YAML specs"])
def test_a_zip_bomb_beside_a_file_is_an_error(name: str, folder: Path) -> None:
    (folder / "values.npz").write_bytes(bomb(BOMB))
    weights = "{w: {init: {kind: file, path: values.npz}}}"
    spec = f"gradcheck: 1\ngraphs: {{g: {{inputs: {{}}, params: {weights}, nodes: [], outputs: [w]}}}}"
    data = spec.encode() if name == "YAML specs" else KINDS[name].seeds()[0]
    with at_most(BOMB // 2):
        assert "cannot be read" in outcome(name, folder, data)


def tar(member: tarfile.TarInfo, data: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as files:
        files.addfile(member, io.BytesIO(data))
    return gzip.compress(buffer.getvalue())


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_an_archive_whose_head_unfolds_is_refused(kind: bytes, folder: Path) -> None:
    member = tarfile.TarInfo("x")
    member.type, member.size = kind, 64 << 20
    (folder / "a.tar.gz").write_bytes(tar(member, bytes(member.size)))
    with pytest.raises(GradcheckError, match="cannot be unpacked: one of its headers is too long"):
        hub.unpacked(folder / "a.tar.gz", "0" * 64)
    assert not list((folder / "cache").rglob("*.onnx"))
