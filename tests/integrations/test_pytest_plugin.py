"""The plugin for pytest: a spec is a file of tests, a check is a test."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.cli import models
from tests.cli.conftest import WRONG

INSTALLED = any(entry.name == "gradcheck" for entry in entry_points(group="pytest11"))
MANIFEST = "gradcheck: 1\nmodels: [{path: mlp.onnx}]\n"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A folder with an ordinary test, two specs, a side-car and a manifest."""
    models.mlp(tmp_path / "mlp.onnx")
    (tmp_path / "test_plain.py").write_text("def test_plain(): pass\n")
    (tmp_path / "wrong.gradcheck.yaml").write_text(WRONG)
    (tmp_path / "mlp.gradcheck.yml").write_text(
        "gradcheck: 1\nchecks: [{name: mlp, model: mlp.onnx, x: input, y: loss}]\n"
    )
    (tmp_path / "zoo.gradcheck.yaml").write_text(MANIFEST)
    (tmp_path / "other.yaml").write_text("gradcheck: 1\n")
    return tmp_path


def run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """pytest in a folder, the plugin named where this installation does not say that there is one."""
    plugin = () if INSTALLED else ("-p", "gradcheck_cli.pytest_plugin")
    alone = () if "-n" in args else ("-p", "no:xdist")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *alone, "--color=no", *plugin, *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)


def test_each_check_is_a_test(suite: Path) -> None:
    ran = run(suite, "-rA", "-q")
    outcomes = set(re.findall(r"^(PASSED|FAILED|XFAIL|SKIPPED) (?:\[1\] )?([\w./:]+)", ran.stdout, re.MULTILINE))
    assert outcomes >= {
        ("PASSED", "test_plain.py::test_plain"),
        ("PASSED", "mlp.gradcheck.yml::mlp"),
        ("PASSED", "wrong.gradcheck.yaml::sum/right"),
        ("XFAIL", "wrong.gradcheck.yaml::square/known"),
        ("FAILED", "wrong.gradcheck.yaml::square/wrong"),
    }
    assert "1 failed, 3 passed, 1 skipped, 1 xfailed" in ran.stdout
    assert ran.returncode == 1


@pytest.mark.slow
def test_workers_of_xdist_find_the_same(suite: Path) -> None:
    pytest.importorskip("xdist")
    ran = run(suite, "-q", "-n", "2")
    assert "1 failed, 3 passed, 1 skipped, 1 xfailed" in ran.stdout
    assert ran.returncode == 1


@pytest.mark.slow
def test_collecting_checks_nothing(suite: Path) -> None:
    ran = run(suite, "-q", "--collect-only")
    assert [line for line in ran.stdout.splitlines() if "::" in line] == [
        "mlp.gradcheck.yml::mlp", "test_plain.py::test_plain", "wrong.gradcheck.yaml::square/wrong",
        "wrong.gradcheck.yaml::square/known", "wrong.gradcheck.yaml::sum/right", "zoo.gradcheck.yaml::zoo.gradcheck.yaml",
    ]  # fmt: skip
    assert not (suite / ".gradcheck").exists()


@pytest.mark.slow
def test_a_failure_shows_the_report(suite: Path) -> None:
    out = run(suite, "-q", "wrong.gradcheck.yaml::square/wrong").stdout
    assert "square/wrong: d loss/d x: FAIL GC101 3/3 entries differ, max rel err 5.0e-01" in out
    assert "  suspect    node 0  Square  x -> h" in out
    assert "  reproduce  gradcheck wrong.gradcheck.yaml --check square/wrong --x x --y loss --seed 0 --point 0" in out
    assert "Traceback" not in out


@pytest.mark.slow
def test_options_of_a_check_are_given_as_one_types_them(suite: Path) -> None:
    ran = run(suite, "-q", "-k", "wrong and not known", "--gradcheck-args=--rtol 1 --points 2")
    assert ran.returncode == 0, ran.stdout
    (suite / "pytest.ini").write_text("[pytest]\ngradcheck_args = --rtol 1\n")
    assert run(suite, "-q", "wrong.gradcheck.yaml::square/wrong").returncode == 0
    assert run(suite, "-q", "wrong.gradcheck.yaml::square/wrong", "--gradcheck-args=").returncode == 1
    (suite / "gradcheck.toml").write_text("exit-zero = true\n")
    assert run(suite, "-q", "wrong.gradcheck.yaml::square/wrong", "--gradcheck-args=").returncode == 0


@pytest.mark.slow
def test_a_waiver_that_no_longer_holds_fails(suite: Path) -> None:
    ran = run(suite, "-q", "wrong.gradcheck.yaml::square/known", "--gradcheck-args=--rtol 1")
    assert ran.returncode == 1
    assert "FAIL GC203 passes, but is expected to give fail (ACME-412)" in ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "args, said",
    [
        ("--rtoll 1", "No such option"),
        ("--help", "'--help' checks nothing"),
        ("'", "No closing quotation"),
        ("--baseline none.json", "--baseline none.json cannot be read"),
    ],
)
def test_mistyped_options_are_an_error_of_the_collection(suite: Path, args: str, said: str) -> None:
    ran = run(suite, "-q", f"--gradcheck-args={args}")
    assert ran.returncode == 2
    assert said in ran.stdout


@pytest.mark.slow
def test_a_spec_that_cannot_be_read_fails_with_line_and_column(suite: Path) -> None:
    (suite / "bad.gradcheck.yaml").write_text("gradcheck: 1\nchecks:\n  - {name: a, detla: 1}\n")
    ran = run(suite, "-q", "bad.gradcheck.yaml")
    assert ran.returncode == 1
    assert "bad.gradcheck.yaml:3:15: unknown key 'detla'" in ran.stdout


@pytest.mark.slow
def test_checks_can_be_chosen_by_marker_and_left_alone(suite: Path) -> None:
    assert "1 deselected" in run(suite, "-q", "-m", "gradcheck", "--strict-markers").stdout
    assert "1 passed, 5 deselected" in run(suite, "-q", "-m", "not gradcheck").stdout
    if INSTALLED:
        assert run(suite, "-q", "-p", "no:gradcheck").stdout.splitlines()[-1].startswith("1 passed")


def test_nothing_heavy_is_imported_where_there_is_no_spec(tmp_path: Path) -> None:
    (tmp_path / "test_imports.py").write_text(
        "import sys\ndef test(): assert not {'numpy', 'onnx', 'click', 'rich', 'yaml', 'pydantic'} & set(sys.modules)\n"
    )
    ran = run(tmp_path, "-q", "-p", "no:hypothesispytest")
    assert ran.returncode == 0, ran.stdout


# --- models


MODELS = "[pytest]\ngradcheck_models = models/*.onnx loose.onnx\n"


@pytest.fixture
def modelled(tmp_path: Path) -> Path:
    """A folder with models, of which some are collected: one has a side-car with two checks, one cannot be judged."""
    for folder in ("models/sub", "other"):
        (tmp_path / folder).mkdir(parents=True)
    for path in ("models/mlp.onnx", "models/sub/deep.onnx", "other/mlp.onnx", "other/loose.onnx"):
        models.mlp(tmp_path / path)
    models.log(tmp_path / "models/log.onnx")
    (tmp_path / "models/mlp.gradcheck.yaml").write_text(
        "gradcheck: 1\nchecks:\n  - {name: by input, model: mlp.onnx, x: input, y: loss}\n"
        "  - {name: by W, model: mlp.onnx, x: W, y: loss}\n"
    )
    (tmp_path / "test_plain.py").write_text("def test_plain(): pass\n")
    (tmp_path / "pytest.ini").write_text(MODELS)
    return tmp_path


COLLECTED = [
    "models/log.onnx::log.onnx", "models/mlp.onnx::by input", "models/mlp.onnx::by W", "other/loose.onnx::loose.onnx",
    "test_plain.py::test_plain",
]  # fmt: skip


def collected(folder: Path, *args: str) -> list[str]:
    """The tests that are found."""
    return sorted(line for line in run(folder, "-q", "--collect-only", *args).stdout.splitlines() if "::" in line)


def test_models_are_collected_where_configured(modelled: Path) -> None:
    assert collected(modelled) == sorted(COLLECTED)
    assert collected(modelled, "-k", "W or loose") == ["models/mlp.onnx::by W", "other/loose.onnx::loose.onnx"]
    assert collected(modelled, "models/log.onnx") == ["models/log.onnx::log.onnx"]


def test_no_model_is_collected_unless_it_is_configured(modelled: Path) -> None:
    (modelled / "pytest.ini").write_text("[pytest]\n")
    assert collected(modelled) == [
        "models/mlp.gradcheck.yaml::by W", "models/mlp.gradcheck.yaml::by input", "test_plain.py::test_plain",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("patterns, found", [
    ("**/deep.onnx", ["models/sub/deep.onnx"]),
    ("models/**/*.onnx", ["models/log.onnx", "models/mlp.onnx", "models/sub/deep.onnx"]),
    ("*/mlp.onnx", ["models/mlp.onnx", "other/mlp.onnx"]),
    ("l?g.onnx", ["models/log.onnx"]),
    ("models/[l]og.onnx", []),
])  # fmt: skip
def test_patterns_are_those_of_a_shell(modelled: Path, patterns: str, found: list[str]) -> None:
    names = collected(modelled, "-o", f"gradcheck_models={patterns}", "models", "other")
    assert sorted({name.partition("::")[0] for name in names if ".onnx::" in name}) == found


@pytest.mark.parametrize("ini, args, said", [
    ("gradcheck_models = modles/*.onnx loose.onnx", (), "'modles/*.onnx' matches no file that was collected"),
    ("gradcheck_models = models/*.onnx\ntestpaths = other", (), "'models/*.onnx' matches no file that was collected"),
    ("gradcheck_models = modles/*.onnx", ("other",), ""),
    ("gradcheck_models = other/*.onnx loose.onnx", (), ""),
])  # fmt: skip
def test_a_pattern_without_a_model_is_told_unless_paths_were_given(
    modelled: Path, ini: str, args: tuple[str, ...], said: str
) -> None:
    (modelled / "pytest.ini").write_text(f"[pytest]\n{ini}\n")
    out = run(modelled, "-q", "--collect-only", *args).stdout
    assert said in out
    assert ("matches no file" in out) == bool(said)


def test_where_warnings_are_errors_a_pattern_without_a_model_is_one_of_usage(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\ngradcheck_models = modles/*.onnx\nfilterwarnings = error::pytest.PytestCollectionWarning\n"
    )
    (tmp_path / "test_plain.py").write_text("def test_plain(): pass\n")
    ran = run(tmp_path, "-q")
    assert (ran.returncode, "INTERNALERROR" in ran.stdout + ran.stderr) == (4, False), ran.stdout
    assert "'modles/*.onnx' matches no file" in ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("args", [(), ("-n", "2")])
def test_a_model_that_fails_says_so_in_few_lines(modelled: Path, args: tuple[str, ...]) -> None:
    if args:
        pytest.importorskip("xdist")
    ran = run(modelled, "-q", *args)
    assert (ran.returncode, "1 failed, 4 passed" in ran.stdout) == (1, True), ran.stdout
    assert "models/log.onnx: d y/d x: INCONCLUSIVE GC302" in ran.stdout
    assert "Traceback" not in ran.stdout
    text = ran.stdout.partition("FAILURES")[2].partition("short test summary")[0]
    assert len(text.splitlines()) < 30


@pytest.mark.slow
def test_only_what_failed_last_is_run_again(modelled: Path) -> None:
    plugin = [] if INSTALLED else ["-p", "gradcheck_cli.pytest_plugin"]
    command = [sys.executable, "-m", "pytest", "-q", "--color=no", *plugin]
    subprocess.run(command, cwd=modelled, capture_output=True, timeout=600)
    models.mlp(modelled / "models/log.onnx")
    again = subprocess.run([*command, "--lf"], cwd=modelled, capture_output=True, text=True, timeout=600)
    assert (again.returncode, again.stdout.splitlines()[-1].startswith("1 passed")) == (0, True), again.stdout


@pytest.mark.slow
def test_a_spec_of_its_own_beside_a_model_stays_a_file_of_tests(modelled: Path) -> None:
    (modelled / "models/log.gradcheck.yaml").write_text(WRONG)
    assert [name for name in collected(modelled) if "log" in name] == [
        "models/log.gradcheck.yaml::square/known", "models/log.gradcheck.yaml::square/wrong",
        "models/log.gradcheck.yaml::sum/right", "models/log.onnx::log.onnx",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_broken_model_fails_and_stops_no_other(modelled: Path) -> None:
    (modelled / "models/log.onnx").write_bytes(b"\x08\x07garbage\x1b[2J")
    ran = run(modelled, "-q")
    assert (ran.returncode, "1 failed, 4 passed" in ran.stdout, "GC401" in ran.stdout) == (1, True, True), ran.stdout
    assert "\x1b" not in ran.stdout
