"""`gradcheck --watch`: checks again at each change of what the result depends on, until Ctrl-C."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli import models

COMMAND = [sys.executable, "-m", "gradcheck_cli"]
WATCHING = re.compile(r"watching \d+ files?; Ctrl-C ends")
PATIENCE = 120.0
pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


class Watch:
    """A watching command whose output, both streams together, is read as it comes."""

    def __init__(self, folder: Path, *args: str) -> None:
        command = [*COMMAND, *args, "--watch"]
        env = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )

    def checked(self) -> str:
        """All that is shown until the next check has ended."""
        assert self.process.stdout is not None
        seen, deadline = "", time.monotonic() + PATIENCE
        while not WATCHING.search(seen):
            assert select.select([self.process.stdout], [], [], max(deadline - time.monotonic(), 0))[0], seen
            data = os.read(self.process.stdout.fileno(), 65536).decode()
            assert data, seen
            seen += data
        return seen

    def interrupt(self) -> tuple[int, str]:
        """Exit code after a Ctrl-C to this process and its children, as a terminal sends it, and what was shown since."""
        os.killpg(self.process.pid, signal.SIGINT)
        out, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out.decode()


@pytest.fixture
def watch(folder: Path) -> Iterator[Callable[..., Watch]]:
    started: list[Watch] = []

    def start(*args: str) -> Watch:
        started.append(Watch(folder, *args))
        return started[-1]

    yield start
    for each in started:
        with suppress(ProcessLookupError):
            os.killpg(each.process.pid, signal.SIGKILL)
        each.process.communicate()


def replaced(path: Path, make: Callable[[Path], object]) -> None:
    """Writes a file beside it and moves it there at once."""
    new = path.with_suffix(".new")
    make(new)
    new.replace(path)


def test_a_model_that_is_replaced_is_checked_again_and_the_last_check_decides(
    folder: Path, watch: Callable[..., Watch]
):
    running = watch("mlp.onnx")
    assert "2 checks: 2 passed" in running.checked()
    replaced(folder / "mlp.onnx", models.log)
    assert "1 inconclusive" in running.checked()
    assert running.interrupt() == (3, "")


def test_a_model_that_is_half_written_or_gone_ends_nothing(folder: Path, watch: Callable[..., Watch]):
    running, whole = watch("mlp.onnx"), (folder / "mlp.onnx").read_bytes()
    running.checked()
    (folder / "mlp.onnx").write_bytes(whole[:60])
    assert "GC401" in running.checked()
    (folder / "mlp.onnx").unlink()
    assert "mlp.onnx does not exist" in running.checked()
    (folder / "mlp.onnx").write_bytes(whole)
    assert "2 passed" in running.checked()
    assert running.interrupt()[0] == 0


def external(path: Path, scale: float) -> None:
    """Writes a model whose weights lie in a file beside it."""
    weights = np.linspace(-scale, scale, 12, dtype=np.float32).reshape(4, 3)
    models.mlp(path)
    model = onnx.load(path)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weights, "W"))
    (path.parent / "weights.bin").unlink(missing_ok=True)
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)


@pytest.mark.slow
@pytest.mark.parametrize("change", [
    lambda f: (f / "weights.bin").write_bytes(np.zeros(12, np.float32).tobytes()),
    lambda f: (f / "net.gradcheck.yaml").write_text("gradcheck: 1\nchecks: [{model: net.onnx, x: W, y: loss}]\n"),
    lambda f: (f / "gradcheck.toml").write_text("points = 2\n"),
    lambda f: (f / "base.json").write_text("[1.5, 2.5]"),
], ids=["external data", "side-car", "configuration", "value"])  # fmt: skip
def test_whatever_the_result_depends_on_is_watched(
    folder: Path, watch: Callable[..., Watch], change: Callable[[Path], object]
):
    external(folder / "net.onnx", 1.0)
    (folder / "base.json").write_text("[0.5, 1.5]")
    running = watch("net.onnx", "--x-init-value", "aux_in=@base.json")
    running.checked()
    change(folder)
    assert "changed" in running.checked()


@pytest.mark.slow
def test_a_spec_and_the_models_of_its_checks_are_watched(folder: Path, watch: Callable[..., Watch]):
    (folder / "two.gradcheck.yaml").write_text("gradcheck: 1\nchecks: [{model: mlp.onnx, x: W, y: loss}]\n")
    running = watch("two.gradcheck.yaml")
    assert "1 passed" in running.checked()
    replaced(folder / "mlp.onnx", models.mlp)
    assert "mlp.onnx changed" in running.checked()
    (folder / "two.gradcheck.yaml").write_text("gradcheck: 1\nchecks: [{model: mlp.onnx, x: V, y: loss}]\n")
    assert "has no tensor 'V'" in running.checked()
    assert running.interrupt()[0] == 2


@pytest.mark.slow
def test_ctrl_c_in_the_midst_of_a_check_is_an_interrupt(folder: Path, watch: Callable[..., Watch]):
    models.endless(folder / "endless.onnx")
    running = watch("endless.onnx", "--timeout", "10m")
    time.sleep(3)
    code, out = running.interrupt()
    assert (code, "interrupted" in out, "Traceback" in out) == (130, True, False)


@pytest.mark.slow
def test_only_a_terminal_is_cleared(folder: Path, watch: Callable[..., Watch]):
    piped = watch("mlp.onnx")
    piped.checked()
    (folder / "mlp.onnx").touch()
    assert "\x1b" not in piped.checked()
    pid, terminal = pty.fork()
    if not pid:
        os.execv(sys.executable, [*COMMAND, str(folder / "mlp.onnx"), "--watch", "--color", "never"])
    seen = ""
    for times in (1, 2):
        while len(WATCHING.findall(seen)) < times:
            seen += os.read(terminal, 4096).decode()
        (folder / "mlp.onnx").touch()
    assert seen.count("\x1b[2J") == 1
    os.write(terminal, b"\x03")
    with suppress(OSError):
        while os.read(terminal, 4096):
            pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) in (0, 130)
    os.close(terminal)
