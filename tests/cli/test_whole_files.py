"""Files that a command writes are whole or not there: on a full disk, in a folder that is read-only, at Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from pathlib import Path

import numpy as np
import pytest

from gradcheck_cli.formats.whole_file import whole
from tests.cli import models
from tests.cli.conftest import WRONG, entered

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits of files as Unix has them")
PYTHON = [sys.executable, "-m", "gradcheck_cli"]
MANY = "\n".join(f"  - {{name: 'sum {i}', graph: net, x: h, y: loss}}" for i in range(40))
REPORTS = ("r.json", "r.jsonl", "r.xml", "r.html", "r.md", "r.sarif", "pages/")
WRITTEN = {  # what is written, and a command that writes it
    **{path: ("wrong.gradcheck.yaml", "--report", path) for path in REPORTS},
    "plot.png": ("mlp.onnx", "--x", "input", "--plot", "plot.png"),
    "plot.svg": ("mlp.onnx", "--x", "input", "--plot", "plot.svg"),
    "again.json": ("report", "results.json", "-o", "again.json"),
    "again.html": ("report", "results.json", "-o", "again.html"),
    "grad.onnx": ("grad", "wide.onnx", "-o", "grad.onnx"),
    "step/": ("step", "mlp.onnx", "--loss", "loss", "-o", "step/"),
}
CHEAP = ("r.json", "r.xml", "grad.onnx", "step/")
CASES = [pytest.param(path, marks=() if path in CHEAP else pytest.mark.slow, id=path) for path in WRITTEN]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    models.mlp(tmp_path / "mlp.onnx")
    models.save(tmp_path / "wide.onnx", "g (float[5000] x) => (float[5000] y) { y = Mul (x, w) }", w=np.ones(5000))
    (tmp_path / "wrong.gradcheck.yaml").write_text(f"{WRONG}{MANY}\n")
    entered(tmp_path, monkeypatch)
    ran("wrong.gradcheck.yaml", "--report", "results.json")
    return tmp_path


def ran(*args: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """A command in a shell, behind a command of the shell's own; Python would keep half of its own files too."""
    command = ["sh", "-c", f'{before or ":"}; "$@"', "sh", *PYTHON, *args]
    given = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=600, env=given)


def content(path: str) -> dict[str, bytes]:
    """The bytes of a file, or of the files in a folder."""
    files = [Path(path)] if os.path.isfile(path) else sorted(each for each in Path(path).rglob("*") if each.is_file())
    return {str(file): file.read_bytes() for file in files}


def temporary() -> list[str]:
    """Names of files that are left of writing."""
    return [str(path) for path in Path().rglob("*") if re.search(r"\.(tmp|old|new)$", path.name)]


@pytest.mark.parametrize("path", CASES)
@pytest.mark.parametrize("earlier", [True, False], ids=["beside an earlier one", "for the first time"])
def test_what_finds_no_room_leaves_the_earlier_one_and_nothing_else(path: str, earlier: bool, folder: Path) -> None:
    """A file has at most 2 blocks, of 512 bytes or 1 KiB."""
    if earlier:
        assert ran(*WRITTEN[path]).returncode in (0, 1)
    before = content(path)
    assert bool(before) is earlier
    full = ran(*WRITTEN[path], before="ulimit -f 2")
    assert full.returncode == 2, full.stderr
    assert re.search(rf"error GC\d+: .*{path.rstrip('/')}(/[\w.]*)? cannot be written: File too large", full.stderr)
    assert "Traceback" not in full.stderr
    assert (os.path.exists(path), content(path)) == (earlier, before)
    assert temporary() == []


@pytest.mark.parametrize("path", CASES)
def test_a_disk_that_is_full_leaves_the_earlier_one_and_nothing_else(path: str, folder: Path) -> None:
    os.mkdir("disk")
    earlier = "true" if path.endswith("/") else f"printf earlier > disk/{path}"
    script = f'mount -t tmpfs -o size=4k none disk && {earlier} && "$@"; code=$?; cp -r disk copied; exit $code'
    args = [word.replace(path, f"disk/{path}") for word in WRITTEN[path]]
    apart = ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh", *PYTHON, *args]
    full = subprocess.run(apart, capture_output=True, text=True, timeout=600)
    if "unshare:" in full.stderr or "mount:" in full.stderr:
        pytest.skip(f"no folder can be mounted here: {full.stderr.strip().splitlines()[0]}")
    assert full.returncode == 2, full.stderr
    assert "cannot be written: No space left on device" in full.stderr
    assert content("copied") == ({} if path.endswith("/") else {f"copied/{path}": b"earlier"})


@pytest.mark.parametrize("path", [path for path in WRITTEN if not path.endswith("/")])
def test_a_path_that_is_a_folder_of_somebody_else_is_refused(path: str, folder: Path) -> None:
    os.mkdir(path)
    Path(path, "own").write_text("mine")
    refused = ran(*WRITTEN[path])
    assert refused.returncode == 2, refused.stderr
    assert path in refused.stderr
    assert content(path) == {f"{path}/own": b"mine"}
    assert temporary() == []


@pytest.mark.slow
@pytest.mark.parametrize("path", WRITTEN)
def test_at_ctrl_c_there_is_the_earlier_one_or_the_new_one(path: str, folder: Path) -> None:
    """At six moments of a run; a report of a run that was stopped has what was done: it is looked at for its end."""
    assert ran(*WRITTEN[path]).returncode in (0, 1)
    before, began = content(path), time.monotonic()
    ran(*WRITTEN[path])
    took = time.monotonic() - began
    for part in range(6):
        process = subprocess.Popen(
            [*PYTHON, *WRITTEN[path]], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        time.sleep(took * (0.5 + 0.1 * part))
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=600)[1]
        assert process.returncode in (0, 1, 130, -signal.SIGINT), err
        assert content(path).keys() == before.keys() or f"{path}index.html" in content(path)
        for name, data in content(path).items():
            if Path(name).suffix in (".json", ".jsonl", ".sarif"):
                assert all(
                    isinstance(json.loads(part), dict) for part in (data.splitlines() if "jsonl" in name else [data])
                )
            elif Path(name).suffix == ".xml":
                assert xml.fromstring(data).tag == "testsuites"
            else:
                assert data[-2:] == before.get(name, data)[-2:], name
        assert temporary() == []


def test_ctrl_c_while_it_is_written_leaves_the_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("earlier")

    def interrupted() -> None:
        with whole(tmp_path / "file") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert content(str(tmp_path)) == {str(tmp_path / "file"): b"earlier"}


def test_rights_of_a_file_links_to_it_pipes_and_devices_stay(tmp_path: Path) -> None:
    file, link, pipe = tmp_path / "file", tmp_path / "link", tmp_path / "pipe"
    file.write_text("earlier")
    file.chmod(0o640)
    link.symlink_to(file)
    with whole(link) as written:
        written.write(b"new")
    assert (link.is_symlink(), file.read_bytes(), file.stat().st_mode & 0o777) == (True, b"new", 0o640)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with whole(pipe) as written:
        written.write(b"through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    with whole("/dev/null") as written:
        written.write(b"nowhere")
    with pytest.raises(OSError, match="No space left on device"), whole("/dev/full") as written:
        written.write(b"nowhere")


def test_a_file_in_a_folder_of_gradchecks_own_is_not_written_through_a_link(folder: Path) -> None:
    Path("victim").write_text("precious")
    os.mkdir(".gradcheck")
    os.symlink("../victim", ".gradcheck/r.json")
    refused = ran("mlp.onnx", "--report", ".gradcheck/r.json")
    assert refused.returncode == 2
    assert ".gradcheck/r.json is a link, which is not followed" in refused.stderr
    assert Path("victim").read_text() == "precious"


@pytest.mark.skipif(os.name != "posix" or os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_read_only_is_an_error(folder: Path) -> None:
    os.mkdir("locked")
    Path("locked/r.json").write_text("earlier")
    os.chmod("locked", 0o500)
    refused = ran("mlp.onnx", "--report", "locked/r.json")
    os.chmod("locked", 0o700)
    assert (refused.returncode, "cannot be written: Permission denied" in refused.stderr) == (2, True)
    assert content("locked") == {"locked/r.json": b"earlier"}
