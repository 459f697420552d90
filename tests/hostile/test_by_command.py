"""Files, bundles, results, runs and names of strangers, given to the command: a documented exit code and a sentence.

Whatever it is, nothing is written outside of the working folder, nobody waits for it, and memory and time are bounded.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from gradcheck_cli.cli import main
from tests.cli import models
from tests.cli.conftest import WRONG, entered
from tests.hostile.conftest import at_most
from tests.hostile.names import COMMANDS, harm

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pipes, devices and limits as Linux has them")
DOCUMENTED = {0, 1, 2, 3, 4, 5, 6, 7}
LONGEST, MOST_PRINTED, MOST_MEMORY = 30, 50_000, 3 << 30  # seconds of work, characters, bytes
CHECK = ("net.onnx", "--forward", "internal")
SPEC = ("net.gradcheck.yaml",)
ZOO = ("zoo", "--run", "run", "-j", "1", "--forward", "internal", "--timeout", "20s")
HEAD = "gradcheck: 1\n"
KEYS = "".join(f"a{i} = 1\n" for i in range(99)) + "[rtol]\n" + "".join(f"a{i}=1\n" for i in range(150_000))
ENTRY = {
    "x": [0, 0],
    "y": [],
    "point": 0,
    "theoretical": 1.0,
    "numerical": 0.0,
    "noise": 0.0,
    "pattern": "",
    "status": "fail",
}
GRAPH = HEAD + "graphs: {g: {inputs: {x: {shape: [2]}}, %snodes: 'y = Tanh (x)', outputs: [y]}}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder, beside a folder that is none of its business; a test cannot wait for ever."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret.npy").write_bytes(b"secret")
    np.savez(tmp_path / "outside/secret.npz", w=np.ones(2))
    models.mlp(tmp_path / "outside/net.onnx")
    (tmp_path / "here").mkdir()
    monkeypatch.delenv("GRADCHECK_SAVE_FAILURES", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "here/cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "here"))
    return entered(tmp_path / "here", monkeypatch)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def text(name: str, data: str | bytes) -> Callable[[], None]:
    """Makes a file."""

    def made() -> None:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(data if isinstance(data, bytes) else data.encode())

    return made


def model(nodes: str, *, head: str = "float[2] x", change: Callable[[onnx.ModelProto], Any] = lambda m: None,
          **weights: Any) -> Callable[[], None]:  # fmt: skip
    """Makes net.onnx."""

    def made() -> None:
        found = parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> g ({head}) => (float y) {{ {nodes} }}')
        found.graph.output[0].type.tensor_type.ClearField("shape")
        found.graph.initializer.extend(numpy_helper.from_array(np.asarray(w), n) for n, w in weights.items())
        change(found)
        Path("net.onnx").write_bytes(found.SerializeToString())

    return made


def external(**where: str) -> Callable[[], None]:
    """Makes a model whose weights are said to lie elsewhere."""

    def change(found: onnx.ModelProto) -> None:
        tensor = found.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in where.items():
            tensor.external_data.add(key=key, value=value)

    return model("y = Mul (x, w)", w=np.ones(2, np.float32), change=change)


def claims(*dims: int) -> Callable[[], None]:
    """Makes a model with a weight that claims a shape, and has no bytes."""

    def change(found: onnx.ModelProto) -> None:
        found.graph.initializer.append(TensorProto(name="w", data_type=1, dims=dims, raw_data=b"\0" * 8))

    return model("y = Mul (x, w)", change=change)


def npz(**members: bytes) -> Callable[[], None]:
    def made() -> None:
        with zipfile.ZipFile("values.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members.items():
                archive.writestr(name.replace("__", "/").replace("_up_", ".."), data)
        models.mlp(Path("net.onnx"))

    return made


def npy(shape: str, data: bytes = b"", dtype: str = "'<f4'") -> bytes:
    header = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}}}".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


def bundle(change: Callable[[dict[str, Any]], Any] = lambda m: None, *, then: Callable[[Path], Any] = lambda p: None):
    """Makes a bundle, with a manifest that is changed, and then a folder that is."""

    def made() -> None:
        Path("wrong.gradcheck.yaml").write_text(WRONG)
        main(["wrong.gradcheck.yaml", "--check", "square/wrong", "-q", "--save-failures", "kept"])
        [place] = Path("kept").iterdir()
        place.rename("bundle")
        manifest = json.loads(Path("bundle/bundle.json").read_text())
        change(manifest)
        Path("bundle/bundle.json").write_text(json.dumps(manifest))
        then(Path("bundle"))

    return made


def results(change: Callable[[dict[str, Any]], Any]) -> Callable[[], None]:
    """Makes results whose first record is changed."""

    def made() -> None:
        models.mlp(Path("net.onnx"))
        main(["net.onnx", "--report", "r.json", "-q", "--forward", "internal"])
        report = json.loads(Path("r.json").read_text())
        change(report["checks"][0])
        Path("r.json").write_text(json.dumps(report))

    return made


def run(change: Callable[[dict[str, Any]], Any] = lambda about: None, *, then: Callable[[], Any] = lambda: None):
    """Makes a run of a zoo whose description is changed."""

    def made() -> None:
        models.mlp(Path("net.onnx"))
        main([*ZOO, "net.onnx", "-q"])
        about = json.loads(Path("run/run.json").read_text())
        change(about)
        Path("run/run.json").write_text(json.dumps(about))
        then()

    return made


def nested(depth: int) -> Any:
    return {"a": nested(depth - 1)} if depth else 1


def bodies(depth: int) -> Callable[[], None]:
    """Makes a model of branches in branches."""

    def made() -> None:
        graph = helper.make_graph(
            [helper.make_node("Identity", ["x"], ["y"])], "g", [], [onnx.ValueInfoProto(name="y")]
        )
        for _ in range(depth):
            node = helper.make_node("If", ["c"], ["y"], then_branch=graph, else_branch=graph.__class__())
            graph = helper.make_graph([node], "g", [], [onnx.ValueInfoProto(name="y")])
        x, c = helper.make_tensor_value_info("x", 1, [2]), helper.make_tensor_value_info("c", 9, [])
        graph.input.extend([x, c])
        Path("net.onnx").write_bytes(helper.make_model(graph).SerializeToString())

    return made


def linked(name: str, target: str) -> Callable[[], None]:
    return lambda: Path(name).symlink_to(target)


LAUGHS = "".join(f"{c}: &{c} [{', '.join(['*' + p] * 9)}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True))
MERGES = "".join(f"m{i}: &m{i} {{<<: [*m{i - 1}, *m{i - 1}], k{i}: 1}}\n" for i in range(1, 200))
INIT = "params: {w: {shape: [2], init: {kind: file, path: '%s', key: w}}}, "
VALUES = (*CHECK, "--x-init-value", "input=@values.npz:x")
AGAIN = ("reproduce", "bundle")
REPORT = ("report", "r.json", "-o", "r.html", "-o", "r.xml", "-o", "r.md")
CASES: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    # specs
    "a list of models of all time": (
        lambda: (models.mlp(Path("net.onnx")),
                 text(*SPEC, f"{HEAD}models: [{{path: net.onnx, timeout: 1.0e+300}}]")()), (*ZOO[:5], *SPEC)),
    "a check of no end": (
        lambda: (models.mlp(Path("net.onnx")),
                 text(*SPEC, f"{HEAD}checks: [{{name: a, model: net.onnx, timeout: .inf}}]")()), SPEC),
    "an input where NumPy would write": (
        text(*SPEC, (GRAPH % "").replace("Tanh (x)", "Mul (x, x, x)")), SPEC),
    "a bomb of aliases": (text(*SPEC, f"{HEAD}a: &a [1, 2]\n{LAUGHS}"), SPEC),
    "a bomb of merges": (text(*SPEC, f"{HEAD}m0: &m0 {{k: 1}}\n{MERGES}"), SPEC),
    "an alias of itself in a check": (text(*SPEC, f"{GRAPH % ''}checks: &c [{{graph: g, x: *c}}]\n"), SPEC),
    "brackets without end": (text(*SPEC, HEAD + "graphs: " + "{g: [" * 20_000), SPEC),
    "a size beyond all numbers": (text(*SPEC, GRAPH.replace("[2]", "[" + "9" * 4000 + "]") % ""), SPEC),
    "sizes whose product is beyond": (text(*SPEC, GRAPH.replace("[2]", "[4294967296, 4294967296]") % ""), SPEC),
    "values above its folder": (text(*SPEC, GRAPH % INIT % "../outside/secret.npz"), SPEC),
    "values at a path of their own": (text(*SPEC, GRAPH % INIT % "/etc/passwd"), SPEC),
    "values in a device": (text(*SPEC, GRAPH % INIT % "/dev/zero"), SPEC),
    "a model above its folder": (text(*SPEC, HEAD + "checks: [{model: ../outside/net.onnx, x: input, y: loss}]\n"), SPEC),
    "a model that is a password file": (text(*SPEC, HEAD + "checks: [{model: /etc/passwd}]\n"), SPEC),
    "code in a tag": (text(*SPEC, HEAD + "a: !!python/object/apply:os.system ['touch ../outside/ran']\n"), SPEC),
    "code in a rule": (text(*SPEC, GRAPH % "" + "ops: {acme.A: {python: 'os:getcwd'}}\n"), SPEC),
    "a name with commands": (text(*SPEC, HEAD + "checks: [{name: \"a\\n::error::x\", model: no.onnx}]\n"), SPEC),
    "a spec that is a pipe": (lambda: os.mkfifo(*SPEC), SPEC),
    "a spec that is a device": (linked(*SPEC, "/dev/zero"), SPEC),
    "a spec that is a folder": (lambda: os.mkdir(*SPEC), SPEC),
    "a configuration that is a device": (
        lambda: (models.mlp(Path("net.onnx")), linked("gradcheck.toml", "/dev/zero")()), CHECK),
    "a configuration nested without end": (
        lambda: (models.mlp(Path("net.onnx")), text("gradcheck.toml", "x = " + "[" * 50_000)()), CHECK),
    "a configuration of a key without end": (
        lambda: (models.mlp(Path("net.onnx")), text("gradcheck.toml", "a." * 40_000 + "a = 1")()), CHECK),
    "a configuration of keys without end": (
        lambda: (models.mlp(Path("net.onnx")), text("gradcheck.toml", KEYS)()), CHECK),
    "a configuration of nested words": (
        lambda: (models.mlp(Path("net.onnx")), text("gradcheck.toml", f"expression = '{'(' * 9000}'")()), CHECK),
    "a configuration of many words": (
        lambda: (models.mlp(Path("net.onnx")), text("gradcheck.toml", f"expression = '{'a or ' * 400_000}net'")()), CHECK),
    # lists of models
    "a list of itself": (text(*SPEC, HEAD + "models: [{path: net.gradcheck.yaml}]\n"), (*ZOO, *SPEC)),
    "a list of what is above": (text(*SPEC, HEAD + "models: [{path: ../../../../../etc/passwd}]\n"), (*ZOO, *SPEC)),
    "a list of a server here": (text(*SPEC, HEAD + "models: [{path: 'http://169.254.169.254/a.onnx'}]\n"), (*ZOO, *SPEC)),
    "a list of a file by its address": (text(*SPEC, HEAD + "models: [{path: 'file:///etc/passwd'}]\n"), (*ZOO, *SPEC)),
    "a hub of no texts": (text("hub.json", json.dumps([{"model_path": {"a": 1}}, 3, None])), (*ZOO, "hub.json")),
    "a hub nested without end": (text("hub.json", "[" * 100_000), (*ZOO, "hub.json")),
    # models
    "branches 20 deep": (bodies(20), CHECK),
    "branches 30 deep": (bodies(30), CHECK),
    "a model that is a pipe": (lambda: os.mkfifo("net.onnx"), CHECK),
    "a model that is a device": (linked("net.onnx", "/dev/zero"), CHECK),
    "a model that is a folder": (lambda: os.mkdir("net.onnx"), CHECK),
    "a model that is a hole": (lambda: (text("net.onnx", b"")(), os.truncate("net.onnx", 1 << 40)), CHECK),
    "weights above its folder": (external(location="../outside/secret.npy"), CHECK),
    "weights at a path of their own": (external(location="/etc/passwd"), CHECK),
    "weights in a pipe": (lambda: (external(location="w.bin")(), os.mkfifo("w.bin")), CHECK),
    "weights through a link": (lambda: (external(location="w.bin")(), linked("w.bin", "../outside/secret.npy")()), CHECK),
    "weights far behind the end": (
        lambda: (external(location="w.bin", offset=str(1 << 62))(), text("w.bin", b"x")()), CHECK),
    "weights of a negative length": (lambda: (external(location="w.bin", length="-1")(), text("w.bin", b"x")()), CHECK),
    "a weight of all addresses": (claims(1 << 31, 1 << 31), CHECK),
    "a weight of a negative size": (claims(-1, 2), CHECK),
    "a weight beyond 64 bits": (claims(*[1 << 20] * 4), CHECK),
    "a loop without end": (
        model("n = Identity (m) c = Identity (t) y = Loop <body = b (int64 i, bool k, float[2] s) => (bool e, float[2] r) "
              "{ e = Identity (k) r = Tanh (s) }> (n, c, x)", m=np.int64(1 << 62), t=np.array(True)), CHECK),
    "a tensor made of nothing": (model("s = Identity (n) y = ConstantOfShape (s)", n=np.array([1 << 40], np.int64)), CHECK),
    "a range without end": (model("y = Range (a, b, c)", a=np.float32(0), b=np.float32(1e30), c=np.float32(1e-30)), CHECK),
    "tiles of tiles": (model("y = Tile (x, n)", n=np.array([1 << 50], np.int64)), CHECK),
    "an operator set of the future": (
        model("y = Tanh (x)", change=lambda m: setattr(m.opset_import[0], "version", 1 << 40)), CHECK),
    "a format of the future": (model("y = Tanh (x)", change=lambda m: setattr(m, "ir_version", 1 << 40)), CHECK),
    "names that are no UTF-8": (
        lambda: (model("yyyy = Tanh (x) y = Exp (yyyy)")(),
                 Path("net.onnx").write_bytes(Path("net.onnx").read_bytes().replace(b"yyyy", b"\xff\xfe\x80y"))), CHECK),
    "names that are commands": (
        model("y = Tanh (x)", change=lambda m: (setattr(m.graph.node[0], "name", "\n::error::x"),
                                                setattr(m.graph, "name", "##[error]"))), (*CHECK, "-v")),
    "a graph to be written": (model("y = Acme (x)"), ("grad", "net.onnx", "-o", "grad.onnx")),
    # values
    "an archive that unpacks without end": (npz(x=npy("(250000000,)", bytes(1_000_000_000))), VALUES),
    "a member that leads out": (npz(**{"_up_____up___outside__x.npy": npy("(8, 4)", bytes(128))}), VALUES),
    "an array of code": (npz(**{"x.npy": npy("(1,)", b"cos\nsystem\n(S'x'\ntR.", "'|O'")}), VALUES),
    "an array of all addresses": (npz(**{"x.npy": npy("(1000000000000,)")}), VALUES),
    "an array of many axes": (npz(**{"x.npy": npy(f"({'1,' * 500})", bytes(4))}), VALUES),
    "a header that is code": (npz(**{"x.npy": npy("__import__('os').system('touch ../outside/ran')")}), VALUES),
    "values that are words": (npz(**{"x.npy": npy("()", b"x\0\0\0", "'<U1'")}), VALUES),
    "values of another kind": (npz(**{"x.npy": npy("(8, 4)", bytes(128), "[('a', '<f4')]")}), VALUES),
    "weights that are words": (
        npz(**{"x.npy": npy("()", b"x\0\0\0", "'<U1'")}), (*CHECK, "--feed", "W=@values.npz:x")),
    "values nested without end": (
        lambda: (models.mlp(Path("net.onnx")), text("v.json", "[" * 200_000)()),
        (*CHECK, "--x-init-value", "input=@v.json")),
    "values in a pipe": (
        lambda: (models.mlp(Path("net.onnx")), os.mkfifo("v.npy")), (*CHECK, "--x-init-value", "input=@v.npy")),
    # bundles
    "a bundle of a model above": (bundle(lambda m: m["model"].update(copy="../../outside/net.onnx")), AGAIN),
    "a bundle of a password file": (bundle(lambda m: m["model"].update(copy="", path="/etc/passwd")), AGAIN),
    "a bundle of all points": (bundle(lambda m: m["settings"].update(points=1 << 62)), (*AGAIN, "--timeout", "1s")),
    "a bundle of all memory": (bundle(lambda m: m["settings"].update(memory_limit=1 << 62)), AGAIN),
    "a bundle of all time": (bundle(lambda m: m["settings"].update(timeout=1e300)), AGAIN),
    "a bundle of no time": (bundle(lambda m: m["settings"].update(timeout=float("nan"))), AGAIN),
    "a bundle of all threads": (bundle(lambda m: m["settings"].update(jobs=1 << 62)), AGAIN),
    "a bundle of a step beyond all": (bundle(lambda m: m["settings"].update(delta=1e308)), AGAIN),
    "a bundle of a size beyond all": (bundle(lambda m: m.update(sizes={"N": 1 << 62})), AGAIN),
    "a bundle of half a character": (bundle(lambda m: m.update(check="\ud800")), AGAIN),
    "a bundle of a byte": (bundle(lambda m: m.update(check="\udc80", error="\udc80")), AGAIN),
    "a bundle of commands": (bundle(lambda m: m.update(check="\n::error::x", versions={"##[error]": "\n::x"})), AGAIN),
    "a bundle nested deeply": (bundle(lambda m: m.update(records=[nested(400)])), AGAIN),
    "a bundle of a pipe": (bundle(then=lambda p: ((p / "bundle.json").unlink(), os.mkfifo(p / "bundle.json"))), AGAIN),
    "a bundle of values in a pipe": (
        bundle(then=lambda p: ((p / "values.npz").unlink(), os.mkfifo(p / "values.npz"))), AGAIN),
    "a bundle of records of another kind": (
        bundle(lambda m: m.update(records=[{**m["records"][0], "worst": 5}])), AGAIN),
    "a bundle of records without a name": (
        bundle(lambda m: m.update(records=[{**m["records"][0], "id": [{}]}])), AGAIN),
    "a bundle whose records are none": (bundle(lambda m: m.update(records=[{"status": 3, "forward": 5}])), AGAIN),
    # results
    "a result of commands": (results(lambda r: r.update(check="\n::error::x", notes=["##[error]", "\x1b[2J"])), REPORT),
    "a result of half a character": (results(lambda r: r.update(check="\ud800", id="\udc00")), REPORT),
    "a result of entries without end": (results(lambda r: r["entries"].update(total=1 << 200)), REPORT),
    "a result of no numbers": (results(lambda r: r.update(max_abs_err="nan", duration_s=1e308)), REPORT),
    "a result of another kind": (results(lambda r: r.update(entries=[1], gradient="x", model=None)), REPORT),
    "a result of a shape beyond all": (results(lambda r: r.update(x_shape=[1 << 62] * 50)), REPORT),
    "a result with a picture of another kind": (results(lambda r: r.update(picture={"cells": [[1] * 3] * 2})), REPORT),
    "a result of an entry without end": (
        results(lambda r: r.update(status="fail", code="GC101", worst=[{**ENTRY, "part": "\u00e9" * 200_000}])), REPORT),
    "results nested without end": (text("r.json", "[" * 200_000), REPORT),
    "results that are a device": (linked("r.json", "/dev/zero"), REPORT),
    # runs and shards
    "a run of jobs above": (run(lambda a: a.update(jobs=["../../outside/x", "/etc/passwd"])), ("zoo", "report", "run")),
    "a run that resumes elsewhere": (run(lambda a: a.update(folder="/nowhere/at all")), ("zoo", "resume", "run")),
    "a run that writes elsewhere": (
        run(lambda a: a["options"].update(report=["../outside/r.json"], save_failures="../outside/f", folder="../outside")),
        ("zoo", "resume", "run")),
    "a run of Python": (run(lambda a: a["options"].update(allow_python=True, allow_local=True)), ("zoo", "resume", "run")),
    "a run of options that are none": (run(lambda a: a["options"].update(seed=[1 << 400])), ("zoo", "resume", "run")),
    "a run of sources that are none": (run(lambda a: a.update(sources=["\0", "\n::error::"])), ("zoo", "resume", "run")),
    "a run of half a character": (run(lambda a: a.update(jobs=["\ud800"], version="\udfff")), ("zoo", "status", "run")),
    "a run whose records are a pipe": (
        run(then=lambda: (os.unlink("run/results.jsonl"), os.mkfifo("run/results.jsonl"))), ("zoo", "status", "run")),
    "a run whose lock is a device": (
        run(then=lambda: (os.unlink("run/lock"), linked("run/lock", "/dev/full")())), ("zoo", "resume", "run")),
    "a run whose records are torn": (
        run(then=lambda: os.truncate("run/results.jsonl", 900)), ("zoo", "merge", "run", "-o", "merged")),
    "a run merged with itself": (run(), ("zoo", "merge", "run", "run", "-o", "merged")),
    "a run merged above": (run(), ("zoo", "merge", "run", "-o", "run/run.json/x")),
    "a shard of none": (run(), (*ZOO, "net.onnx", "--shard", "0/0")),
    "a shard beyond all": (run(), (*ZOO, "net.onnx", "--shard", "999999/999999")),
    "a shard of too many": (run(), (*ZOO, "net.onnx", "--shard", f"1/{'9' * 5000}")),
}  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
def test_what_means_harm_ends_with_a_sentence(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, args = CASES[name]
    make()
    capsys.readouterr()
    before, began = content(folder.parent / "outside"), resource.getrusage(resource.RUSAGE_SELF).ru_utime
    with at_most(MOST_MEMORY):
        code = main(list(args))
    took = resource.getrusage(resource.RUSAGE_SELF).ru_utime - began
    out, err = capsys.readouterr()
    assert code in DOCUMENTED, err
    assert not re.search(r"Traceback|a bug of gradcheck|Error\(", err), err
    assert harm(out + err) == []
    assert len(out + err) < MOST_PRINTED
    assert code == 0 or err or out
    assert took < LONGEST
    assert content(folder.parent / "outside") == before
    assert sorted(os.listdir(folder.parent)) == ["here", "outside"]


@pytest.fixture
def bottomless(folder: Path) -> Iterator[None]:
    """A folder 1,200 deep, with a model at the bottom; the recursion of Python's own functions does not get there."""
    models.mlp(Path("net.onnx"))
    there = os.open(".", os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=there)
        outer, there = there, os.open("d", os.O_RDONLY, dir_fd=there)
        os.close(outer)
    os.link("net.onnx", "net.onnx", dst_dir_fd=there)
    os.close(there)
    yield
    subprocess.run(["rm", "-r", "d"], check=True)


@pytest.mark.usefixtures("bottomless")
@pytest.mark.parametrize("args", [(".",), ("**/*.onnx",), (*ZOO, ".")], ids=" ".join)
def test_models_are_found_however_deep_folders_are(args: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*args, "-q"]) == 0
    assert "4 checks: 4 passed" in capsys.readouterr().out


ENTRIES = {  # of a list, beside one of a model
    "half a path": 'path: "a\\0b"',
    "a name beyond all": f"path: {'a' * 5000}",
    "test data beyond all": f"path: net.onnx, name: b, test_data: {'a' * 5000}",
}


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_that_cannot_be_read_is_an_error_beside_the_others(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models.mlp(Path("net.onnx"))
    Path("list.gradcheck.yaml").write_text(f"{HEAD}models: [{{path: net.onnx}}, {{{ENTRIES[name]}}}]\n")
    assert main([*ZOO, "list.gradcheck.yaml"]) == 4
    said = capsys.readouterr().out
    assert "3 checks: 2 passed, 1 error" in said
    assert "cannot be read" in said


def test_a_model_of_a_hub_whose_name_no_file_can_have_is_an_error(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models.mlp(Path("net.onnx"))
    listed = [{"model_path": name, "metadata": {"model_sha": "0" * 64}} for name in ("net.onnx", "a" * 5000)]
    Path("ONNX_HUB_MANIFEST.json").write_text(json.dumps(listed))
    assert main([*ZOO, "ONNX_HUB_MANIFEST.json"]) == 4
    assert "cannot be read: File name too long" in capsys.readouterr().out


TYPED = [
    ("{}",), ("net.onnx", "--x", "{}"), ("net.onnx", "--check", "{}"), ("net.onnx", "--dim", "{}=1"), ("reproduce", "{}"),
    ("zoo", "{}", "--run", "run"), ("report", "{}"), ("explain", "{}"), ("zoo", "status", "{}"),
    ("net.onnx", "--report", "{}/r.json"), ("net.onnx", "--save-failures", "{}"),
]  # fmt: skip


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", [*COMMANDS.values(), "\udcff", "a" * 300, "-", " "])
@pytest.mark.parametrize("args", TYPED, ids=" ".join)
def test_names_that_are_typed_mean_no_harm(
    args: tuple[str, ...], name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models.mlp(Path("net.onnx"))
    code = main([word.replace("{}", name) for word in args])
    out, err = capsys.readouterr()
    assert code in DOCUMENTED, err
    assert harm(out + err) == []
    assert not re.search(r"Traceback|a bug of gradcheck", err), err
    assert sorted(os.listdir(folder.parent)) == ["here", "outside"]
