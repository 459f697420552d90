"""Files that other services read: the action, the hook, examples of CI jobs, the image; their shell steps are run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from tests.cli import models
from tests.cli.conftest import WRONG

ROOT = Path(__file__).parents[2]
ACTION, GITHUB, GITLAB = ROOT / "action.yml", ROOT / "examples/ci/github.yml", ROOT / "examples/ci/gitlab.yml"
BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None or os.name != "posix", reason="runs steps in bash")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with a model that passes and a spec with a wrong gradient; a runner's files beside it."""
    folder = tmp_path / "project"
    for name in ("models", "specs"):
        (folder / name).mkdir(parents=True)
    (tmp_path / "temp").mkdir()
    models.mlp(folder / "models" / "mlp.onnx")
    models.conv(folder / "models" / "a net.onnx")
    (folder / "specs" / "wrong.gradcheck.yaml").write_text(WRONG)
    return folder


def shell(script: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """A step, with this Python and its commands first, as a runner on Linux does it."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", **more}
    return subprocess.run(
        [BASH or "", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=900,
    )  # fmt: skip


# GitHub


def validated(file: Path, schema: str, *more: str) -> None:
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *more, str(file)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_action_and_the_jobs_fit_their_schemas() -> None:
    validated(ACTION, "vendor.github-actions")
    validated(GITHUB, "vendor.github-workflows")
    validated(GITLAB, "vendor.gitlab-ci", "--data-transform", "gitlab-ci")


def step(name: str) -> dict[str, Any]:
    steps = yaml.safe_load(ACTION.read_text("utf-8"))["runs"]["steps"]
    found: dict[str, Any] = next(each for each in steps if each["name"] == name)
    return found


def run_step(name: str, project: Path, inputs: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A step of the action with its inputs, in a runner's environment."""
    known = {name: each["default"] for name, each in yaml.safe_load(ACTION.read_text("utf-8"))["inputs"].items()}
    found, temp = step(name), project.parent / "temp"
    values = {f"inputs.{key}": value for key, value in {**known, **inputs}.items()}
    values["github.action_path"] = str(project.parent / "action")
    said = {key: re.sub(r"\$\{\{ (.*?) \}\}", lambda m: values[m[1]], value) for key, value in found["env"].items()}
    files = {file: str(temp / file.lower()) for file in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GITHUB_PATH")}
    return shell(found["run"], project, **said, **files, RUNNER_TEMP=str(temp), GITHUB_WORKSPACE=str(project))


@needs_bash
def test_the_action_checks_annotates_and_sums_up(project: Path) -> None:
    ran = run_step("Check gradients", project, {"models": "models 'specs/*.yaml'", "args": "--points 2"})
    assert ran.returncode == 1, ran.stderr
    assert re.search(
        r"^::error file=specs/wrong.gradcheck.yaml,line=\d+,title=GC101 square/wrong", ran.stdout, re.MULTILINE
    )
    temp = project.parent / "temp"
    outputs = dict(line.split("=", 1) for line in (temp / "github_output").read_text().splitlines())
    results = json.loads(Path(outputs["results"]).read_text())
    assert outputs["exit-code"] == "1"
    assert {check["points"] for check in results["checks"]} == {2}
    assert {check["model"]["uri"] for check in results["checks"]} >= {"models/a net.onnx", "models/mlp.onnx"}
    assert json.loads(Path(outputs["sarif"]).read_text())["runs"][0]["results"]
    assert (temp / "github_step_summary").read_text().startswith("## gradcheck: ")


@pytest.mark.slow
@needs_bash
def test_the_action_passes_what_a_baseline_knows(project: Path) -> None:
    shell("gradcheck . --report base.json || true", project)
    ran = run_step("Check gradients", project, {"baseline": "base.json"})
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.slow
@needs_bash
@pytest.mark.parametrize("text", ["$(touch pwned)", "`touch pwned`", "; touch pwned", "' ; touch pwned ; '"])
def test_no_input_of_the_action_is_run(project: Path, text: str) -> None:
    for name in ("models", "args", "baseline"):
        run_step("Check gradients", project, {name: text})
    assert not (project / "pwned").exists()
    assert "${{ inputs" not in "".join(
        each.get("run", "") for each in [step("Check gradients"), step("Install gradcheck")]
    )


@needs_bash
@pytest.mark.slow
def test_the_action_installs_its_own_source(project: Path) -> None:
    source = project.parent / "action"
    shutil.copytree(
        ROOT / "gradcheck_cli", source / "gradcheck_cli", ignore=shutil.ignore_patterns("__pycache__", "*.so")
    )
    for file in ("pyproject.toml", "README.md", "LICENSE"):  # as the image copies them
        shutil.copy(ROOT / file, source)
    ran = run_step("Install gradcheck", project, {})
    assert ran.returncode == 0, ran.stderr
    folder = (project.parent / "temp" / "github_path").read_text().strip()
    assert "gradcheck" in shell(f"'{folder}/gradcheck' --version", project).stdout


def requirements(path: Path) -> list[str]:
    """The requirements that a file hands to pip, with its variables put in."""
    text = path.read_text("utf-8")
    values = dict(re.findall(r"^ +(\w+): (\S+)", text, re.MULTILINE))
    return [
        re.sub(r"\$(\w+)", lambda name: values[name[1]], found)
        for found in re.findall(r"pip install .*?[\"'](.+?)[\"']", text)
    ]


@pytest.mark.parametrize("file", [GITHUB, GITLAB], ids=lambda file: file.name)
def test_the_jobs_install_from_a_repository_with_onnxruntime(file: Path) -> None:
    [wanted] = map(Requirement, requirements(file))
    assert wanted.url is not None
    assert wanted.url.startswith("git+https://")
    assert "runtime" in wanted.extras


def test_the_action_and_the_image_have_onnxruntime() -> None:
    assert yaml.safe_load(ACTION.read_text("utf-8"))["inputs"]["extras"]["default"] == "runtime"
    [image] = requirements(ROOT / "Dockerfile")
    assert "runtime" in image.strip(".[]").split(",")


def commands(steps: list[Any]) -> list[str]:
    return [each["run"] for each in steps if "run" in each and "pip install" not in each["run"]]


@pytest.mark.slow
@needs_bash
def test_the_job_for_github_runs(project: Path) -> None:
    pytest.importorskip("jinja2")
    check, report = commands(yaml.safe_load(GITHUB.read_text("utf-8"))["jobs"]["gradients"]["steps"])
    assert shell(check, project).returncode == 1
    assert shell(report, project).returncode == 0
    assert {file.name for file in project.glob("gradcheck.*")} == {
        "gradcheck.json", "gradcheck.xml", "gradcheck.html", "gradcheck.sarif",
    }  # fmt: skip


# GitLab


@pytest.mark.slow
@needs_bash
def test_the_job_for_gitlab_runs(project: Path) -> None:
    job = yaml.safe_load(GITLAB.read_text("utf-8"))["gradcheck"]
    assert shell("\n".join(job["script"]), project, **job["variables"]).returncode == 1
    assert shell("\n".join(job["after_script"]), project).returncode == 0
    for file in (*job["artifacts"]["paths"], *job["artifacts"]["reports"].values()):
        assert (project / file).stat().st_size, file
    [issue] = json.loads((project / "gl-code-quality-report.json").read_text())
    assert issue["location"]["path"] == "specs/wrong.gradcheck.yaml"


# pre-commit


def test_the_hook_is_one_for_pre_commit() -> None:
    clientlib = pytest.importorskip("pre_commit.clientlib")
    [hook] = clientlib.load_manifest(ROOT / ".pre-commit-hooks.yaml")
    names = ["a.onnx", "deep/b.gradcheck.yaml", "c.gradcheck.yml", "d.yaml", "e.onnx_data", "f.onnx.md"]
    assert [name for name in names if re.search(hook["files"], name)] == names[:3]


@pytest.mark.slow
@needs_bash
def test_the_hook_checks_the_files_that_it_is_given(project: Path) -> None:
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    command = f"{hook['entry']} {' '.join(hook['args'])}"
    right = shell(f"{command} models/mlp.onnx 'models/a net.onnx'", project)
    assert (right.returncode, right.stderr) == (0, "")
    shutil.copy(project / "models" / "mlp.onnx", project / "--points.onnx")
    dashed = shell(f"{command} --points.onnx", project)
    assert (dashed.returncode, dashed.stderr) == (0, "")
    of_a_project = shell(f"{hook['entry']} --points 2 -- models/mlp.onnx", project)
    assert (of_a_project.returncode, of_a_project.stderr) == (0, "")
    wrong = shell(f"{command} models/mlp.onnx specs/wrong.gradcheck.yaml", project)
    assert wrong.returncode == 1
    assert re.match(r"specs/wrong.gradcheck.yaml:\d+: square/wrong: d loss/d x: FAIL GC101", wrong.stdout)


# The image


def test_what_runs_as_on_another_processor_is_there() -> None:
    named = re.findall(r"tests/[\w/.]+", (ROOT / ".ci" / "variant").read_text("utf-8"))
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_image_copies_what_there_is_and_runs_as_nobody_in_particular() -> None:
    lines = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ").splitlines()
    copied = [
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    assert copied
    assert [name for name in copied if not (ROOT / name).exists()] == []
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")]
    assert {name.removeprefix("./") for name in copied} == {*sent}
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users[-1].isdigit()
    assert users[-1] != "0"
    assert 'ENTRYPOINT ["gradcheck"]' in lines


def test_the_image_passes_its_linter() -> None:
    linter = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if linter is None:
        pytest.skip("hadolint is not installed")
    ran = subprocess.run([linter, str(ROOT / "Dockerfile")], capture_output=True, text=True, timeout=600)
    assert (ran.returncode, ran.stdout) == (0, "")
