"""Every command and every Python example of the documentation runs and prints the output shown.

Commands stand in ```console blocks of README and of the pages in docs/, and in the headers of files in examples/ and
specs/; Python in ```pycon blocks.  All run in a copy of both folders (`tests/docs/sessions.py`).
"""

from __future__ import annotations

import doctest
import json
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from gradcheck_cli.cli.group import gradcheck
from gradcheck_cli.report.explanations import PAGES as CODES
from gradcheck_cli.results.record import SEVERITY
from tests.docs.sessions import DOCUMENTS, PAGES, ROOT, Block, blocks, fill, header, performed, run, shell_blocks

LONG = {"docs/pages/guides/clusters.md", "docs/pages/guides/zoo.md"}  # they start servers and many processes
EXAMPLES = {
    f"{path.parent.name}/{path.name}": [Block("console", "", header(path))]
    for folder in ("examples", "specs")
    for path in sorted((ROOT / folder).iterdir())
    if path.suffix in (".py", ".yaml", ".yml") and re.search(r"^\$ ", header(path), re.MULTILINE)
}
SHOWN = {name: found for name, path in DOCUMENTS.items() if (found := shell_blocks(path))} | EXAMPLES
IS_LONG = {name for name in SHOWN if name in LONG or name in EXAMPLES or "/examples/" in name}
FILES = {"yaml": "yaml", "toml": "toml", "json": "json"}  # languages of files that can be read whole


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with the models that the documentation speaks of, and without the sources."""
    return fill(tmp_path)


def prose(path: Path) -> str:
    """A document without its fenced blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(not shutil.which("bash"), reason="commands are written for bash")
@pytest.mark.parametrize("place", [pytest.param(p, marks=pytest.mark.slow if p in IS_LONG else ()) for p in SHOWN])
def test_every_command_prints_what_stands_below_it(place: str, folder: Path):
    steps = performed(SHOWN[place], folder)
    assert steps
    for step in steps:
        assert step.agrees, f"$ {step.command}\n--- shown\n{step.shown}\n--- printed\n{step.printed}"


COMMENTED = {  # commands in the header of a spec, each with a remark behind it and no output below it
    command: f"{path.parent.name}/{path.name}"
    for path in sorted((*ROOT.glob("specs/*.yaml"), *ROOT.glob("examples/*.yaml")))
    for command in re.findall(r"^(gradcheck .*?)(?:  .*)?$", header(path), re.MULTILINE)
}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMENTED)
def test_every_command_in_the_header_of_a_spec_passes(command: str, folder: Path):
    assert COMMENTED[command].split("/")[1].split(".")[0] in command
    [output] = run([f"{command} -q; echo exit $?"], folder)
    assert output.splitlines()[-1] == "exit 0", output


@pytest.mark.parametrize("name", [name for name, path in DOCUMENTS.items() if blocks(path, "pycon")])
def test_python_sessions_print_what_stands_below_them(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    text = "".join(block.text for block in blocks(DOCUMENTS[name], "pycon"))
    parsed = doctest.DocTestParser().get_doctest(text, {}, name, name, 0)
    report: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(parsed, out=report.append)
    assert result.attempted
    assert not result.failed, "".join(report)


WRITTEN = [
    (name, block) for name, path in DOCUMENTS.items() for block in blocks(path, "python", "yaml", "toml", "bash")
]


@pytest.mark.parametrize("name, block", WRITTEN, ids=[f"{name} {i}" for i, (name, _) in enumerate(WRITTEN)])
def test_files_and_scripts_can_be_read(name: str, block: Block):
    import yaml

    if block.kind == "python":
        compile(block.text, name, "exec")
    elif block.kind == "yaml":
        assert yaml.safe_load(block.text)
    elif block.kind == "toml":
        assert tomllib.loads(block.text)
    else:
        read = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
        assert read.stderr == ""


@pytest.mark.parametrize("name", PAGES)
def test_files_that_a_page_includes_are_put_in(name: str):
    text = "".join(block.text for block in blocks(PAGES[name]))
    assert re.findall(r"^ *-+ *8.*", text, re.MULTILINE) == []


def test_every_spec_that_a_page_shows_whole_is_a_file_of_it():
    shown = {
        name: [b for b in blocks(path, "yaml") if b.text.startswith("gradcheck: 1\n")] for name, path in PAGES.items()
    }
    assert sum(map(len, shown.values())) > 5
    assert [(name, b.text) for name, found in shown.items() for b in found if not b.title] == []


def test_blocks_are_of_kinds_that_are_tried():
    kinds = {(name, block.kind) for name, path in DOCUMENTS.items() for block in blocks(path)}
    tried = {"console", "pycon", "python", "yaml", "toml", "bash", "text"} | {"sh"}
    assert {kind for _, kind in kinds} <= tried
    assert {name for name, kind in kinds if kind == "sh"} == {"README.md"}
    untitled = [(name, b.text) for name, path in DOCUMENTS.items() for b in blocks(path, "text") if not b.title]
    assert untitled == []  # nothing that looks like output and is not run


def test_every_python_example_says_what_it_prints():
    scripts = [p for p in sorted((ROOT / "examples").glob("*.py")) if p.name != "make_mlp.py"]
    assert [f"examples/{p.name}" for p in scripts if f"examples/{p.name}" not in SHOWN] == []


@pytest.mark.slow
def test_every_spec_comes_out_as_its_checks_expect(folder: Path):
    specs = sorted((*ROOT.glob("specs/*.yaml"), *ROOT.glob("examples/*.gradcheck.yaml")))
    names = [f"{p.parent.name}/{p.name}" for p in specs]
    outputs = run([f"gradcheck {name} -q; echo exit $?" for name in names], folder)
    ends = {name: output.splitlines()[-1] for name, output in zip(names, outputs, strict=True)}
    wrong = "specs/custom_op_wrong.gradcheck.yaml"
    assert ends == {name: "exit 1" if name == wrong else "exit 0" for name in names}


def test_the_model_of_the_examples_is_what_its_script_writes(folder: Path):
    before = (folder / "examples" / "mlp.onnx").read_bytes()
    assert len(before) < 10_000
    assert run(["python examples/make_mlp.py"], folder) == [""]
    import onnx

    after = onnx.load(folder / "examples" / "mlp.onnx")
    assert after == onnx.load_from_string(before)


@pytest.mark.slow
@pytest.mark.skipif(not all(map(find_spec, ("torch", "onnxscript"))), reason="PyTorch exports the model")
def test_the_files_of_the_tutorial_are_what_pytorch_exports(folder: Path):
    import numpy as np

    place = folder / "examples" / "tutorial"
    kept = {name: dict(np.load(place / name)) for name in ("gradients.npz", "mended.npz")}
    for words in ([], ["mended"]):
        subprocess.run([sys.executable, "export.py", *words], cwd=place, check=True, capture_output=True)
    for name, numbers in kept.items():
        made = dict(np.load(place / name))
        assert made.keys() == numbers.keys()
        assert all(np.allclose(made[key], values, rtol=1e-12) for key, values in numbers.items())
    [output] = run(["gradcheck classifier.onnx --x features --x active --y loss -q; echo exit $?"], place)
    assert output.splitlines()[-1] == "exit 0"


def test_the_two_commands_of_the_readme_are_one_line_each():
    commands = [block.text for block in blocks(ROOT / "README.md", "sh")]
    assert len(commands) == 2
    assert all(command.count("\n") == 1 for command in commands)
    assert "gradcheck examples/mlp.onnx --x input --y loss" in commands[0]
    assert "-m pytest" in commands[1]


def test_the_readme_can_be_read_at_once():
    assert 150 <= (ROOT / "README.md").read_text("utf-8").count("\n") <= 250


@pytest.mark.parametrize("name", [*DOCUMENTS, "CONTRIBUTING.md", "CHANGELOG.md"])
def test_paths_in_the_documentation_exist(name: str):
    text = prose(ROOT / name)
    mentioned = re.findall(r"`((?:gradcheck_cli|tests|specs|examples|docs|\.ci)/[\w./]*)`", text)
    linked = [] if name in PAGES else re.findall(r"\]\(([\w./-]+?)(?:#[\w-]+)?\)", text)
    assert [path for path in (*mentioned, *linked) if not (ROOT / path).exists()] == []


def every_option(command: click.Command, context: click.Context) -> set[str]:
    """The spellings of all options of a command and of the commands in it."""
    found = {word for param in command.params for word in param.opts}
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        inner = command.get_command(context, name)
        assert inner is not None
        found |= every_option(inner, click.Context(inner, parent=context, info_name=name))
    return found


@pytest.mark.parametrize("name", DOCUMENTS)
def test_options_and_codes_that_are_named_exist(name: str):
    text = DOCUMENTS[name].read_text("utf-8")
    others = {"--rm", "--nthreads", "--resources", "--array", "--models"}  # of docker, dask, sbatch, benchmarks
    known = every_option(gradcheck, click.Context(gradcheck, info_name="gradcheck")) | {"--help"} | others
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) <= known
    assert set(re.findall(r"\bGC\d{3}\b", text)) <= set(CODES)


@pytest.mark.parametrize("name", ["README.md", "docs/pages/reference/exit-codes.md"])
def test_exit_codes_stand_in_their_order(name: str):
    text = DOCUMENTS[name].read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \|", text, re.MULTILINE)
    assert sorted(map(int, rows)) == sorted(SEVERITY)
    order = ", ".join(str(code) for code in SEVERITY if code)
    assert f"Of several outcomes the first of {order} counts." in text.replace("\n", " ")


def test_the_readme_names_every_command():
    table = prose(ROOT / "README.md").partition("## Commands")[2].partition("\n## ")[0]
    named = set(re.findall(r"^\| `gradcheck ([a-z]+)", table, re.MULTILINE)) | {"check"}
    assert named == set(gradcheck.list_commands(click.Context(gradcheck)))


def test_nothing_in_the_documentation_is_tied_to_a_machine_or_left_to_do():
    marks = ("TO" + "DO", "FIX" + "ME", "/home" + "/", "/work" + "/", "/Users" + "/", "/tmp" + "/")
    texts = {name: path.read_text("utf-8") for name, path in DOCUMENTS.items()}
    assert [(name, mark) for name, text in texts.items() for mark in marks if mark in text] == []


def test_the_schema_that_a_page_offers_is_json():
    from tests.docs.site import reference

    assert all(json.loads(text)["$schema"] for text in reference().schema_files().values())
