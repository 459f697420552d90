"""The package as an index shows it and a stranger installs it: metadata, floors of dependencies, files around the code."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gradcheck_cli.errors import VERSION
from tests.integrations.test_ci import needs_bash, validated

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
BY_HAND = {"oracles", "bench", "dev"}  # peers and linters: whatever is newest
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def requirements() -> Iterator[str]:
    """All that is asked for by the build, the package and its extras."""
    yield from PROJECT["build-system"]["requires"]
    yield from PROJECT["project"]["dependencies"]
    for extra, wanted in PROJECT["project"]["optional-dependencies"].items():
        yield from () if extra in BY_HAND else wanted


def test_every_requirement_says_its_lowest_version():
    others = [each for each in requirements() if not each.startswith("gradcheck-cli[")]
    assert len(others) > 20
    assert [each for each in others if not re.fullmatch(r"[\w-]+(\[\w+\])?>=\d+(\.\d+)+", each)] == []


def test_a_package_has_one_lowest_version_wherever_it_is_asked_for():
    asked = {each for each in requirements() if not each.startswith(("gradcheck-cli[", "onnxruntime"))}
    names = [each.partition(">=")[0] for each in asked]
    assert sorted(names) == sorted(set(names))


def test_classifiers_and_wheels_name_the_same_versions_of_python():
    classified = {each for line in PROJECT["project"]["classifiers"] if (each := line.rpartition(" 3.")[2]).isdigit()}
    assert classified <= {each[3:].rstrip("-*") for each in PROJECT["tool"]["cibuildwheel"]["build"]}
    assert f">=3.{min(classified)}" == PROJECT["project"]["requires-python"]


def test_the_address_of_the_documentation_is_one():
    [address] = {url for url in PROJECT["project"]["urls"].values() if "readthedocs" in url}
    shown = {
        found
        for file in (*ROOT.glob("gradcheck_cli/**/*.py"), ROOT / "CITATION.cff", *ROOT.glob(".github/**/*.*"))
        for found in re.findall(r"https://[^\s\"'{}]*readthedocs[^\s\"'{}]*", file.read_text("utf-8"))
    }
    assert shown <= {address}


def test_citation_names_this_version_and_license():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert (citation["version"], citation["license"]) == (VERSION, PROJECT["project"]["license"])
    validated(ROOT / "CITATION.cff", "vendor.citation-file-format")


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_forms_for_issues_fit_their_schema(form: Path) -> None:
    validated(form, "vendor.github-issue-config" if form.stem == "config" else "vendor.github-issue-forms")


def contents(source: set[str], wheel: set[str], folder: Path) -> str:
    """Output of `.ci/contents.py` on an archive and a wheel that hold these files."""
    with tarfile.open(folder / "a.tar.gz", "w:gz") as archive:
        for name in sorted(source):
            archive.addfile(tarfile.TarInfo(f"gradcheck_cli-1/{name}"))
    with zipfile.ZipFile(folder / "a.whl", "w") as made:
        for name in sorted(wheel):
            made.writestr(name, "")
    command = [sys.executable, str(ROOT / ".ci/contents.py"), str(folder / "a.tar.gz"), str(folder / "a.whl")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert ran.returncode == (0 if ran.stdout.startswith("source archive") else 1), ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def files() -> tuple[set[str], set[str]]:
    """Files of a right source archive and of a right wheel."""
    listed = subprocess.run(["git", "ls-files", "gradcheck_cli"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no checkout")
    own = {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    build = {name for name in own if "/native/src/" in name or name.endswith("CMakeLists.txt")}
    return own | {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO"}, (own - build) | {
        "gradcheck_cli/native/_kernels.abi.so", "gradcheck_cli-1.dist-info/METADATA",
    }  # fmt: skip


def test_archives_that_hold_what_they_should_are_right(files, tmp_path: Path) -> None:
    source, wheel = files
    assert contents(source, wheel, tmp_path).startswith(
        f"source archive: {len(source)} files, wheel: {len(wheel)} files"
    )


@pytest.mark.parametrize(
    "gone, come, said",
    [
        ("gradcheck_cli/py.typed", "", "gradcheck_cli/py.typed is missing from the wheel"),
        ("gradcheck_cli/report/html/templates/style.css", "", "style.css is missing from the wheel"),
        ("gradcheck_cli/native/_kernels.abi.so", "", "the wheel has 0 builds of the kernels"),
        ("", "tests/test_house.py", "tests/test_house.py is in the wheel"),
        ("", "gradcheck_cli/native/src/view.cpp", "view.cpp is in the wheel"),
        ("", "gradcheck_cli/.hidden", ".hidden is in the wheel"),
    ],
)
def test_a_wheel_that_lacks_or_has_too_much_is_found_out(
    files, tmp_path: Path, gone: str, come: str, said: str
) -> None:
    source, wheel = files
    assert said in contents(source, (wheel - {gone}) | ({come} - {""}), tmp_path)


@pytest.mark.parametrize(
    "gone, come, said",
    [
        ("gradcheck_cli/native/CMakeLists.txt", "", "CMakeLists.txt is missing from the source archive"),
        ("LICENSE", "", "LICENSE is missing from the source archive"),
        ("", ".git", ".git is in the source archive"),
        ("", "gradcheck_cli/native/_kernels.abi.so", "_kernels.abi.so is in the source archive"),
    ],
)
def test_a_source_archive_that_lacks_or_has_too_much_is_found_out(files, tmp_path, gone, come, said) -> None:
    source, wheel = files
    assert said in contents((source - {gone}) | ({come} - {""}), wheel, tmp_path)


@pytest.mark.slow
@needs_bash
@pytest.mark.parametrize("script", ["package", "lowest"])
def test_the_package_is_built_installed_and_tried(script: str) -> None:
    ran = subprocess.run([str(ROOT / ".ci" / script)], cwd=ROOT, capture_output=True, text=True, timeout=1800)
    assert ran.returncode == 0, ran.stdout + ran.stderr
