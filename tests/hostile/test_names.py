"""Tensors may be called anything: every name can be asked for, and none of them does more than stand on the screen."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import onnx
import pytest
from onnx import TensorProto, helper

from gradcheck_cli.cli import main
from gradcheck_cli.errors import quoted, shown
from gradcheck_cli.report import on_stdout
from tests.hostile.names import NAMES

USABLE = {kind: name for kind, name in NAMES.items() if name}
INJECTED = "x\n::error::y\r\n\x1b[2J"  # a line of its own would be a command to a CI job
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A command line in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def command(*args: str) -> tuple[int, str, str]:
        code = main(args)
        return (code, *capsys.readouterr())

    return command


def save(name: str, path: str = "net.onnx", op: str = "Tanh") -> None:
    """A model in which everything has the same name, or one that begins with it."""
    x, y, w = (helper.make_tensor_value_info(f"{name}{end}", TensorProto.FLOAT, [2, 3]) for end in ("", "/y", "/w"))
    open_ = helper.make_tensor_value_info(f"{name}/open", TensorProto.FLOAT, [name, 3])
    nodes = [
        helper.make_node("Mul", [x.name, w.name], [f"{name}/h"], name=name),
        helper.make_node(op, [f"{name}/h"], [y.name], name=name),
        helper.make_node("Exp", [open_.name], [f"{name}/z"], name=name),
    ]
    weights = helper.make_tensor(w.name, TensorProto.FLOAT, [2, 3], [1, 2, 3, 4, 5, 6])
    z = onnx.ValueInfoProto(name=f"{name}/z")
    graph = helper.make_graph(nodes, name or "g", [x, open_], [y, z], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def harmless(text: str) -> bool:
    """True if a text moves no cursor, and each of its lines was meant to be one."""
    lines = text.split("\n")
    return all(line.isprintable() for line in lines) and not any(line.strip().startswith("::error::") for line in lines)


@pytest.mark.one_in(20)
@pytest.mark.parametrize("form", on_stdout())
@pytest.mark.parametrize("name", USABLE.values(), ids=USABLE)
def test_any_tensor_can_be_asked_for_and_printed(name: str, form: str, run: Run) -> None:
    save(name)
    code, out, err = run("net.onnx", "--x", name, f"--y={name}/y", "--output-format", form)
    assert (code, err) == (0, "")
    assert harmless(out)
    if form == "json":
        assert [check["x"] for check in json.loads(out)["checks"]] == [name]
    if form == "junit":
        assert ElementTree.fromstring(out).find(".//testcase") is not None
    if form == "concise" and len(name) < 1000:
        assert out.startswith(f"net.onnx: d {shown(name)}/y/d {shown(name)}: PASS ")


@pytest.mark.one_in(20)
@pytest.mark.parametrize("form", on_stdout())
@pytest.mark.parametrize("name", USABLE.values(), ids=USABLE)
def test_any_name_can_fail(name: str, form: str, run: Run) -> None:
    save(name, op="Log")
    code, out, _ = run("net.onnx", "--x", name, "--y", f"{name}/y", "--val-range=-2,-1", "--output-format", form)
    assert code == 3
    assert harmless(out)
    assert not any(line.startswith("::") and not line.startswith("::warning ") for line in out.split("\n"))


ODD = ["in put:0", "[bold]x[/]", INJECTED, "größe_名前", "x" * 3000]
# Ways to go wrong, {} being the name
WRONG = [
    (["--x", "{}?"], 2), (["--y", "{}?"], 2), (["--x", "{}/y", "--y", "{}"], 2), (["--x", "{}/open", "--y", "{}/y"], 2),
    (["--x-shape", "{}:7,7"], 2), (["--y-shape", "{}/y:7"], 2), (["--dim", "{}?=3"], 2), (["--dim", "{}=-3"], 2),
    (["--x-init-value", "{}=a"], 2), (["--feed", "{}=[1,2]"], 2), (["--feed", "{}=@{}.npy"], 2), (["--rtol", "{}:-1"], 2),
    (["--val-range", "{}:2,1"], 2), (["-k", "{}("], 2), (["--check", "{}"], 2), (["--init-targets", "{}"], 2),
    (["--output-format", "{}"], 2), (["--test-data", "{}/none"], 2), (["--report", "{}/no/x.json"], 2),
    (["{}/none.onnx"], 4),
]  # fmt: skip


@pytest.mark.one_in(10)
@pytest.mark.parametrize("args, expected", WRONG, ids=[" ".join(args) for args, _ in WRONG])
@pytest.mark.parametrize("name", ODD, ids=lambda name: shown(name)[:20])
def test_errors_print_names_safely(args: list[str], expected: int, name: str, run: Run) -> None:
    save(name)
    code, out, err = run("net.onnx", *(arg.replace("{}", name) for arg in args))
    assert code == (7 if args == ["{}/none.onnx"] and "[" in name else expected), (out, err)  # that is a pattern
    assert harmless(out + err), err


@pytest.mark.parametrize("name", USABLE.values(), ids=USABLE)
def test_inspect_prints_names_safely(name: str, run: Run) -> None:
    save(name)
    code, out, err = run("inspect", "net.onnx", "-v")
    assert (code, err) == (0, "")
    assert harmless(out)
    assert json.loads(run("inspect", "net.onnx", "--output-format", "json")[1])["tensors"][0]["name"] == name


@pytest.mark.one_in(10)
@pytest.mark.parametrize(
    "name", [n for n in USABLE.values() if "/" not in n and "\0" not in n and len(n.encode()) < 200]
)
def test_a_file_may_have_any_name(name: str, run: Run, tmp_path: Path) -> None:
    save("x", str(tmp_path / f"{name}.onnx"))
    for form in on_stdout():
        code, out, err = run("check", f"./{name}.onnx", "--x", "x", "--output-format", form)
        assert (code, err) == (0, "")
        assert harmless(out)


def test_markup_is_text(run: Run) -> None:
    save("[bold]x[/]")
    assert "d [bold]x[/]/y / d [bold]x[/]" in run("net.onnx", "--x", "[bold]x[/]", "-v", "--color", "never")[1]
    assert "no tensor '[red]y[/]'" in run("net.onnx", "--x", "[red]y[/]")[2]


def test_an_empty_name_is_none(run: Run) -> None:
    save("")
    code, _, err = run("net.onnx")
    assert (code, err) == (4, "error GC401: net.onnx: two inputs of a graph have the same name, or one has none.\n")
    save("x")
    assert run("net.onnx", "--x", "")[:2] == (2, "")


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_shell_reads_what_reproduce_prints(name: str) -> None:
    if "\0" in name:
        pytest.skip("no shell can pass a null character")
    assert quoted(name).isprintable()
    if name.isprintable():
        assert shlex.split(quoted(name)) == [name]
    script = ["bash", "-c", f"printf %s {quoted(name)}"]
    assert subprocess.run(script, capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"}).stdout.decode() == name


@pytest.mark.parametrize("name", ["dense/MatMul;dense/Add", "a b", "it's", "x[0]", "$x"])
def test_a_way_out_that_a_message_gives_can_be_typed_as_it_is(run: Run, name: str) -> None:
    """As names of TFLite have semicolons, at which a shell ends a command."""
    nodes = [helper.make_node("Tanh", ["x"], [name]), helper.make_node("Foo", [name], ["y"], domain="acme")]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy")
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("acme", 1)]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=opsets), "m.onnx")
    code, out, err = run("m.onnx")
    told = " ".join((out + err).split()).partition("Check up to it: ")[2]
    assert (code, shlex.split(told.partition("; or ")[0])) == (5, ["--y", name])
    assert run("m.onnx", *shlex.split(told.partition("; or ")[0]))[0] == 0


@pytest.mark.parametrize(
    "name, expected",
    [("größe", "größe"), ("a b", "a b"), ("[b]", "[b]"), ("a\nb", "a\\nb"), ("\x1b[2J", "\\x1b[2J"), ("\u202e", "\\u202e"),
     ("\U000e0001", "\\U000e0001"), ("", "")],
)  # fmt: skip
def test_what_cannot_be_printed_is_escaped(name: str, expected: str) -> None:
    assert shown(name) == expected
