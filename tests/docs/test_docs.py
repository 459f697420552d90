"""Every command and every Python example of the documentation runs and prints the output shown.

Commands stand in ```console blocks of README and in the headers of files in examples/ and specs/; Python in
```pycon blocks.  All run in a copy of both folders.  Three things may differ: times; numbers below 1e-6 in
scientific notation, which are rounding errors; and what a line of dots leaves out.
"""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from gradcheck_cli.cli import check
from gradcheck_cli.report import FORMATS
from gradcheck_cli.settings import options_at, parts

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = "<<next command>>"


def blocks(path: Path, kind: str) -> list[str]:
    """The fenced blocks of one kind in a Markdown file."""
    return [text for found, text in BLOCK.findall(path.read_text("utf-8")) if found == kind]


def header(path: Path) -> str:
    """The docstring or the comment that a file opens with, without its margin."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        doc = text.split('"""')[1]
        return "\n".join(line.removeprefix("    ") for line in doc.splitlines())
    lines = text.split("\n\n")[0].splitlines() if text.startswith("#") else []
    return "\n".join(line.removeprefix("#").removeprefix("   ") for line in lines)


def sessions(text: str) -> list[tuple[str, str]]:
    """Commands behind `$ `, each with what is printed below it."""
    parts = re.split(r"^\$ (.*)\n", text, flags=re.MULTILINE)[1:]
    return [(command, output) for command, output in zip(parts[::2], parts[1::2], strict=True)]


SHOWN = {f"README.md {i}": text for i, text in enumerate(blocks(ROOT / "README.md", "console"))}
SHOWN |= {
    f"{path.parent.name}/{path.name}": header(path)
    for folder in ("examples", "specs")
    for path in sorted((ROOT / folder).iterdir())
    if path.suffix in (".py", ".yaml", ".yml") and re.search(r"^\$ ", header(path), re.MULTILINE)
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with the models that the documentation speaks of, and without the sources."""
    place = tmp_path_factory.mktemp("docs")
    for name in ("examples", "specs"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    return place


def environment() -> dict[str, str]:
    """The programs of this Python first, a terminal of 80 columns, no settings from around."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GRADCHECK_", "PYTEST", "COV"))}
    programs = [sysconfig.get_path("scripts"), str(Path(sys.executable).parent), kept.get("PATH", "")]
    path = os.pathsep.join(programs)
    return {**kept, "PATH": path, "COLUMNS": "80", "NO_COLOR": "1", "PYTHONWARNINGS": "error"}


def run(commands: list[str], folder: Path) -> list[str]:
    """Output of each command on both streams, in one shell."""
    script = "\n".join(f"{command}\n__status=$?; echo '{MARK}'; (exit $__status)" for command in commands)
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment(), text=True, timeout=600,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.stdout.split(f"{MARK}\n")[:-1]


def normalized(text: str) -> list[str]:
    """Lines without times and rounding errors."""
    text = re.sub(r"\bin \d[\d.]*s\b", "in TIME", text)
    text = re.sub(r"\b(0\.0e\+00|\d(\.\d+)?e-(0[7-9]|[1-9]\d))\b", "ROUNDING", text)
    return [re.sub(r" +", " ", line).rstrip() for line in text.strip().splitlines()]


def agrees(wanted: list[str], found: list[str]) -> bool:
    """The same lines, where a line of dots stands for any number of lines."""
    if not wanted:
        return not found
    if wanted[0] == "...":
        return any(agrees(wanted[1:], found[i:]) for i in range(len(found) + 1))
    return bool(found) and wanted[0] == found[0] and agrees(wanted[1:], found[1:])


@pytest.mark.skipif(not shutil.which("bash"), reason="commands are written for bash")
@pytest.mark.parametrize("place", [pytest.param(p, marks=() if "README" in p else pytest.mark.slow) for p in SHOWN])
def test_every_command_prints_what_stands_below_it(place: str, folder: Path):
    shown = sessions(SHOWN[place])
    assert shown
    outputs = run([command for command, _ in shown], folder)
    for (command, wanted), found in zip(shown, outputs, strict=True):
        lines = normalized(wanted), normalized(found)
        assert agrees(*lines), f"$ {command}\n--- shown\n{wanted}\n--- printed\n{found}"


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


def test_python_examples_of_the_readme_print_what_stands_below_them(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    for i, text in enumerate(blocks(ROOT / "README.md", "pycon")):
        parsed = doctest.DocTestParser().get_doctest(text, {}, f"README.md {i}", "README.md", 0)
        report: list[str] = []
        result = doctest.DocTestRunner(verbose=False).run(parsed, out=report.append)
        assert result.attempted
        assert not result.failed, "".join(report)


def test_the_yaml_of_the_readme_is_a_spec_whose_checks_pass(folder: Path):
    for i, text in enumerate(blocks(ROOT / "README.md", "yaml")):
        (folder / f"readme{i}.gradcheck.yaml").write_text(text)
        [output] = run([f"gradcheck readme{i}.gradcheck.yaml && echo passed"], folder)
        assert output.endswith("passed\n"), output


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


def test_the_two_commands_of_the_readme_are_one_line_each():
    commands = blocks(ROOT / "README.md", "sh")
    assert len(commands) == 2
    assert all(command.count("\n") == 1 for command in commands)
    assert "gradcheck examples/mlp.onnx --x input --y loss" in commands[0]
    assert "-m pytest" in commands[1]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_paths_in_the_documentation_exist(name: str):
    text = re.sub(r"^```.*?^```$", "", (ROOT / name).read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    mentioned = re.findall(r"`((?:gradcheck_cli|tests|specs|examples|\.ci)/[\w./]*)`", text)
    assert [path for path in mentioned if not (ROOT / path).exists()] == []


def test_the_readme_names_options_and_codes_that_exist():
    from gradcheck_cli.cli import diff, grad, report, step
    from gradcheck_cli.cli.zoo.start import RUN_OPTIONS
    from gradcheck_cli.report.explanations import PAGES

    text = (ROOT / "README.md").read_text("utf-8")
    commands = (check, report, grad, step, diff)
    every = (*RUN_OPTIONS, *(param for each in commands for param in each.command.params))
    others = {"--rm", "--nthreads", "--resources", "--array"}  # of docker, dask, sbatch
    known = {name for option in every for name in option.opts} | {"--help"} | others
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) <= known
    assert set(re.findall(r"\bGC\d{3}\b", text)) <= set(PAGES)


def options() -> list[str]:
    """The table of the options of a check in README."""
    rows, panel = ["| option | meaning | default |", "|---|---|---|"], ""
    for option in options_at("check"):
        if option.panel != panel:
            panel = option.panel
            rows.append(f"| **{panel}** | | |")
        [made] = [param for param in check.command.params if param.name == option.name]
        meaning, default = parts(made.help)
        value = option.form or "|".join(option.words)
        cells = f"`{', '.join(option.spellings)}{' ' * bool(value)}{value}`", meaning, default
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return rows


def test_the_readme_has_every_option_of_a_check():
    assert "\n".join(options()) in (ROOT / "README.md").read_text("utf-8")


def formats() -> list[str]:
    """The table of output formats in README."""
    rows = [
        f"| `{form.name}` | {', '.join(f'`{suffix}`' for suffix in form.suffixes) or '-'} "
        f"| {'yes' if form.stdout else 'no'} | {form.good_for} |"
        for form in FORMATS.values()
    ]
    return ["| format | suffix | on stdout | good for |", "|---|---|---|---|", *rows]


def test_the_readme_has_every_output_format():
    assert "\n".join(formats()) in (ROOT / "README.md").read_text("utf-8")


def test_the_readme_has_the_exit_codes_in_their_order():
    from gradcheck_cli.results.record import SEVERITY

    text = (ROOT / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \|", text, re.MULTILINE)
    assert sorted(map(int, rows)) == sorted(SEVERITY)
    order = ", ".join(str(code) for code in SEVERITY if code)
    assert f"Of several outcomes the first of {order} counts." in text.replace("\n", " ")
