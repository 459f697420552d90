"""A check in a process of its own says, writes and ends as it does without."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli import models
from tests.cli.conftest import Command
from tests.cli.test_process import COMMAND, imported, run

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes that fork")
LINES = [
    "mlp.onnx", "mlp.onnx conv.onnx log.onnx", "mlp.onnx --x nothing", "unknown.onnx",
    "lfs.onnx", "wrong.gradcheck.yaml", "wrong.gradcheck.yaml --output-format junit", "conv.onnx --mode nodes",
    "embedding.onnx --x ids", "mlp.onnx --heatmap", "mlp.onnx --forward internal --second-order", "absent.onnx",
    "wrong.gradcheck.yaml lfs.onnx --fail-fast", "mlp.onnx --rtol nonsense:1",
]  # fmt: skip


def told(text: str) -> str:
    """Output without times, and without the limit in commands."""
    return re.sub(r" --timeout 1h|\d+(\.\d+)?s\b|(?<=time=)\"[^\"]*\"", "", text)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("line", LINES)
def test_what_is_said_is_the_same(gradcheck: Command, line: str) -> None:
    here, apart = gradcheck(*line.split()), gradcheck(*line.split(), "--timeout", "1h")
    assert (here.code, told(here.out), told(here.err)) == (apart.code, told(apart.out), told(apart.err))


@pytest.mark.slow
def test_what_is_said_on_the_way_is_the_same(folder: Path) -> None:
    line = ("mlp.onnx", "--x", "input", "--y", "loss", "-v")
    here, apart = (run(*line, *more, cwd=folder) for more in ((), ("--timeout", "1h")))
    assert "d loss/d input: full, 8 x 1 entries" in apart.stderr
    assert told(here.stderr) == told(apart.stderr)


def plain(record: dict[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in record.items() if n not in ("duration_s", "peak_rss_mb", "reproduce", "bundle")}


@pytest.mark.parametrize("line", ["mlp.onnx", "wrong.gradcheck.yaml", "log.onnx --val-range -1,1"])
def test_records_are_the_same(gradcheck: Command, line: str) -> None:
    both = [json.loads(gradcheck(*line.split(), "--output-format", "json", *more).out)["checks"]
            for more in ((), ("--memory-limit", "4GiB"))]  # fmt: skip
    assert both[0] and [plain(r) for r in both[0]] == [plain(r) for r in both[1]]  # noqa: PT018


def test_failures_leave_their_bundles(gradcheck: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADCHECK_SAVE_FAILURES")
    ran = gradcheck("wrong.gradcheck.yaml", "--check", "square/wrong", "--timeout", "1h")
    [bundle] = (folder / ".gradcheck" / "failures").iterdir()
    assert f"gradcheck reproduce {Path('.gradcheck', 'failures', bundle.name)}" in ran.err
    assert gradcheck("reproduce", str(bundle)).code == 1


def test_a_small_model_without_limits_has_no_process_of_its_own(folder: Path) -> None:
    assert "gradcheck_cli.checks.isolation" not in imported(folder, "mlp.onnx")
    assert "gradcheck_cli.checks.isolation" in imported(folder, "mlp.onnx", "--timeout", "1h")


@pytest.mark.parametrize("graph, is_large", [
    ("m (float[268435456] x) => (float[268435456] y) { y = Exp (x) }", True),
    ("m (float[2] x) => (float[2] y) { y = Exp (x) }", False),
    ("m (float[N,1000000] x) => (float[N,1000000] y) { y = Exp (x) }", False),
    ("m (float[2,1] x) => (float[?,?] y) <int64[2] s = {2, 134217728}> { y = Expand (x, s) }", True),
    ("m (float x) => (float[?] y) <float a = {0}, float b = {1e9}, float c = {1}> { r = Range (a, b, c)  y = Mul (x, r) }",
     True),
    ("m (float x) => (float[?] y) { r = RandomNormal <shape = [100000000]> ()  y = Mul (x, r) }", True),
])  # fmt: skip
def test_a_model_that_asks_for_much_has_one(tmp_path: Path, graph: str, is_large: bool) -> None:
    from gradcheck_cli.cli.limits import LARGE
    from gradcheck_cli.formats import read
    from gradcheck_cli.points.sizes import outlook

    source = read(models.save(tmp_path / "m.onnx", graph)).meant
    assert source is not None
    assert (outlook(source.graph, {}) > LARGE) == is_large
    assert outlook(source.graph, {"N": 1000}) > LARGE if "N" in graph else True


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="children as Linux lists them")
def test_a_crash_is_a_record_with_a_bundle_and_the_run_goes_on(folder: Path) -> None:
    (folder / "slow.gradcheck.yaml").write_text(
        "gradcheck: 1\nchecks:\n"
        "  - {name: slow, model: conv.onnx, x: image, y: c, dims: {N: 64}, mode: full, method: richardson}\n"
    )
    process = subprocess.Popen(
        [*COMMAND, "slow.gradcheck.yaml", "mlp.onnx", "--timeout", "1h", "--forward", "internal"], cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "GRADCHECK_SAVE_FAILURES": "kept"},
    )  # fmt: skip
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None and not list(folder.glob("kept/*.running-*/bundle.json")):
        time.sleep(0.01)
    os.kill(int(children.read_text().split()[0]), signal.SIGKILL)
    out, err = process.communicate()
    assert process.returncode == 6, err
    assert "GC603" in out
    assert "1 over a limit" in out
    assert "2 passed" in out
    [bundle] = (folder / "kept").iterdir()
    assert f"gradcheck reproduce {Path('kept', bundle.name)}" in err
