"""Of models of one structure one gets the check of the gradient; the others refer to it, if nothing tells against it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from gradcheck_cli.cli import main
from gradcheck_cli.formats.onnx.file import structures_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a zoo needs processes that fork")
HEAD = '<ir_version: 9, opset_import: ["" : 17]>\n'
NET = """net (float[4,3] x) => (float[4,2] y) {{
  h = MatMul (x, {w})
  a = Relu (h)
  axes = Constant <value_ints = [{axis}]> ()
  s = ReduceSum <keepdims = 1> (a, axes)
  half = Constant <value_float = {half}> ()
  t = Mul (s, half)
  u = {op} (t)
  y = MatMul (u, {v})
}}"""
FIRST, LAST = np.random.default_rng(0).normal(size=(3, 5)), np.random.default_rng(1).normal(size=(1, 2))


def model(weights: Mapping[str, Any], text: str = NET, **parts: Any) -> onnx.ModelProto:
    """A model whose weights are initializers."""
    names = dict(zip("wv", [*weights, "", ""], strict=False))
    made = parser.parse_model(HEAD + text.format(**{"axis": 1, "half": 0.5, "op": "Tanh", **names, **parts}))
    for name, value in weights.items():
        made.graph.initializer.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
    return made


def net(seed: int = 0, **parts: Any) -> onnx.ModelProto:
    rng = np.random.default_rng(seed)
    return model({"w": rng.normal(size=(3, 5)), "v": rng.normal(size=(1, 2))}, **parts)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zoo").mkdir()
    return tmp_path


def saved(**models: onnx.ModelProto) -> None:
    for name, made in models.items():
        onnx.save(made, f"zoo/{name}.onnx")


def zoo(*options: str, run: str = "run", processes: int = 2) -> int:
    return main(["zoo", "run", "zoo", "--run", run, "--same-structure", "once", "-j", str(processes), "-q",
                 "--save-failures", "none", *options])  # fmt: skip


def records(run: str = "run") -> dict[str, dict[str, Any]]:
    """The last record of each model, by the name of its file."""
    lines = map(json.loads, Path(run, "results.jsonl").read_text().splitlines())
    return {Path(line["zoo"]["job"]).stem: line for line in lines}


def copies(run: str = "run") -> dict[str, str]:
    return {name: Path(record["copy_of"]).stem for name, record in records(run).items() if record["copy_of"]}


def renamed(made: onnx.ModelProto) -> onnx.ModelProto:
    """Another name for every tensor inside, and for every node."""
    kept = {each.name for each in (*made.graph.input, *made.graph.output)}
    for index, node in enumerate(made.graph.node):
        node.name = f"layer {index}"
        for field in (node.input, node.output):
            field[:] = [name if name in kept else f"other.{name}" for name in field]
    for each in made.graph.initializer:
        each.name = f"other.{each.name}"
    return made


def in_double(made: onnx.ModelProto) -> onnx.ModelProto:
    """The same model in float64."""
    for each in (*made.graph.input, *made.graph.output):
        each.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    wide = [
        numpy_helper.from_array(numpy_helper.to_array(w).astype(np.float64), w.name) for w in made.graph.initializer
    ]
    del made.graph.initializer[:]
    made.graph.initializer.extend(wide)
    made.graph.node[4].attribute[0].CopyFrom(
        onnx.helper.make_attribute("value", numpy_helper.from_array(np.array(0.5)))
    )
    return made


LIKE: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "other weights": lambda: net(7),
    "other names of what is inside": lambda: renamed(net(7)),
    "the same weights": net,
}
UNLIKE: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "another operator": lambda: net(op="Sigmoid"),
    "another constant that nobody trains": lambda: net(half=0.25),
    "another dtype": lambda: in_double(net()),
    "another size of a weight": lambda: model({"w": np.ones((3, 6)) * FIRST[:, :1], "v": LAST}),
    "weights that are a mask": lambda: model({"w": np.ones((3, 5)), "v": LAST}),
}


@pytest.mark.parametrize("case", LIKE)
def test_a_model_that_differs_in_names_and_weights_alone_is_a_copy(case: str) -> None:
    saved(a=net(), b=LIKE[case]())
    assert zoo() == 0
    assert copies() == {"b": "a"}
    copy = records()["b"]
    assert (copy["status"], copy["entries"]["checked"], copy["power"]) == ("pass", 0, {})
    assert copy["gradient"]["finite"]
    assert copy["forward"]["agrees"] in (True, None)


@pytest.mark.parametrize("case", UNLIKE)
def test_a_model_that_differs_in_anything_else_is_checked_itself(case: str) -> None:
    saved(a=net(), b=UNLIKE[case]())
    assert zoo() == 0
    assert copies() == {}
    assert records()["b"]["entries"]["checked"] > 0


def test_the_value_of_an_integer_is_part_of_a_structure() -> None:
    text = "g (float[3,3] x) => (float[3] y) {{\n axes = Constant <value_ints = [{axis}]> ()\n h = MatMul (x, {w})\n" \
           " y = ReduceL2 <keepdims = 0, axes = [{axis}]> (h)\n}}"  # fmt: skip
    weights = {"w": FIRST[:, :3]}
    saved(a=model(weights, text, axis=0), b=model(weights, text, axis=1), c=model({"w": FIRST[:, 2:]}, text, axis=0))
    assert zoo() == 0
    assert copies() == {"c": "a"}


def test_a_copy_takes_no_branch_that_the_first_check_has_not_taken() -> None:
    text = "g (float[4,3] x) => (float[4,5] y) {{\n s = Mul (x, x)\n h = MatMul (s, {w})\n y = Relu (h)\n}}"
    up, both = np.abs(FIRST), FIRST
    saved(a=model({"w": up}, text), b=model({"w": 2 * up}, text), c=model({"w": both}, text))
    assert zoo() == 0
    assert records()["a"]["branches"]["covered"] == 1
    assert copies() == {"b": "a"}
    assert records()["c"]["branches"]["covered"] == 2


def test_roles_of_constants_are_part_of_a_structure_where_they_choose_what_is_differentiated() -> None:
    text = "g (float[4,3] x) => (float[4,3] y) {{\n h = Mul (x, {w})\n y = Sin (h)\n}}"
    saved(
        a=model({"w": FIRST[:1, :3]}, text), b=model({"w": np.ones((1, 3))}, text), c=model({"w": FIRST[1:2, :3]}, text)
    )
    assert zoo("--params") == 0
    assert copies() == {"c": "a"}
    every = [json.loads(line)["id"] for line in lines()]
    assert [each for each in every if "d w" in each] == [f"zoo/{n}.onnx::d y/d w" for n in "ac"]


def test_a_structure_whose_first_check_does_not_pass_has_no_copies() -> None:
    endless = FIRST.copy()
    endless[0, 0] = np.inf
    saved(a=model({"w": endless, "v": LAST}), b=net(1), c=net(2))
    assert zoo() == 1
    assert copies() == {}
    assert [records()[name]["status"] for name in "abc"] == ["fail", "pass", "pass"]


def test_a_copy_that_is_not_finite_at_its_own_weights_does_not_pass() -> None:
    endless = FIRST.copy()
    endless[0, 0] = np.nan
    saved(a=net(), b=model({"w": endless, "v": LAST}), c=net(2))
    assert zoo() == 3
    assert copies() == {"c": "a"}
    assert (records()["b"]["status"], records()["b"]["code"]) == ("inconclusive", "GC302")
    saved(a=net(9))
    before = len(lines())
    assert zoo() == 3
    assert sorted(json.loads(each)["zoo"]["job"][4] for each in lines()[before:]) == [
        "a",
        "c",
    ]  # b is a check of its own


def test_after_a_model_of_a_structure_that_does_not_pass_each_is_checked_by_itself() -> None:
    """But for those that were begun before it had ended, of which one process has a few."""
    endless = FIRST.copy()
    endless[0, 0] = np.nan
    saved(a=net(), b=model({"w": endless, "v": LAST}), **{name: net(seed) for seed, name in enumerate("cdefghijkl", 2)})
    assert zoo(processes=1) == 3
    assert not {"a", "b", "k", "l"}.intersection(copies())


def test_options_that_name_tensors_make_names_count() -> None:
    saved(a=net(), b=net(3), c=renamed(net(4)))
    assert zoo("--x", "x") == 0
    assert copies() == {"b": "a"}


def lines() -> list[str]:
    return Path("run/results.jsonl").read_text().splitlines(keepends=True)


def kept(wanted: Sequence[str]) -> None:
    """Leaves of a run what it would have, had it been killed."""
    Path("run/results.jsonl").write_text(
        "".join(each for each in lines() if json.loads(each)["zoo"]["job"][4] in wanted)
    )


@pytest.mark.parametrize(("left", "again"), [("", "abcd"), ("a", "bcd"), ("ab", "cd"), ("bcd", "a"), ("abcd", "")])
def test_a_run_that_was_killed_goes_on(left: str, again: str) -> None:
    saved(a=net(), b=net(1), c=net(2), d=net(3))
    zoo()
    kept(left)
    before = len(lines())
    assert main(["zoo", "resume", "run", "-q"]) == 0
    assert sorted(json.loads(each)["zoo"]["job"][4] for each in lines()[before:]) == [*again]
    assert copies() == {"b": "a", "c": "a", "d": "a"}


def test_copies_are_done_again_when_the_first_model_changes() -> None:
    saved(a=net(), b=net(1), c=net(2))
    zoo()
    saved(a=net(9))
    before = len(lines())
    assert zoo() == 0
    assert sorted(json.loads(each)["zoo"]["job"][4] for each in lines()[before:]) == ["a", "b", "c"]
    saved(a=net(op="Sigmoid"))
    assert zoo() == 0
    assert copies() == {"c": "b"}


def test_without_the_option_every_model_is_checked_again() -> None:
    saved(a=net(), b=net(1))
    zoo()
    assert main(["zoo", "run", "zoo", "--run", "run", "-q", "--save-failures", "none"]) == 0
    assert copies() == {}


def test_each_shard_has_first_checks_of_its_own_and_a_merged_run_goes_on_with_them() -> None:
    saved(**{name: net(seed) for seed, name in enumerate("abcdef")})
    for shard in (1, 2):
        assert zoo("--shard", f"{shard}/2", run=f"part{shard}") == 0
    assert [len(records(f"part{n}")) - len(copies(f"part{n}")) for n in (1, 2)] == [1, 1]
    assert main(["zoo", "merge", "part1", "part2", "-o", "run"]) == 0
    before = copies()
    assert len(before) == 4
    assert zoo() == 0
    assert copies() == before
    assert len(lines()) == 6


def test_merging_leaves_out_copies_of_a_check_that_another_run_has_replaced() -> None:
    saved(a=net(), b=net(1))
    zoo(run="old")
    saved(a=net(5))
    Path("zoo/b.onnx").unlink()
    zoo(run="new")
    assert main(["zoo", "merge", "old", "new", "-o", "run"]) == 0
    assert sorted(records()) == ["a"]


def test_what_an_optimizer_has_changed_is_named_and_checked(capsys: pytest.CaptureFixture[str]) -> None:
    text = "g (float[4,3] x) => (float[4,5] y) {{\n i = Identity (x)\n h = MatMul (i, {w})\n y = Add (h, {v})\n}}"
    fused = "g (float[4,3] x) => (float[4,5] y) {{\n y = Gemm (x, {w}, {v})\n}}"
    weights = {"w": FIRST, "v": FIRST[0]}
    saved(
        a=model(weights, text), b=model(weights, fused), c=model(weights, fused.replace("Gemm (", "Gemm <alpha=2.0> ("))
    )
    assert main(["zoo", "run", "zoo", "--run", "run", "--same-structure", "once", "--save-failures", "none"]) == 0
    assert "zoo/b.onnx is zoo/a.onnx but for an optimizer's level" in capsys.readouterr().err
    assert copies() == {}
    assert "as zoo/a.onnx but for an optimizer's level" in " ".join(records()["b"]["notes"])


def test_every_report_says_what_is_a_copy(capsys: pytest.CaptureFixture[str]) -> None:
    saved(a=net(), b=net(1), c=net(2))
    zoo()
    capsys.readouterr()
    main(["zoo", "status", "run"])
    assert "3 checks: 3 passed, 2 of them copies" in capsys.readouterr().out
    for form in ("full", "concise", "json", "jsonl", "junit", "markdown"):
        main(["zoo", "report", "run", "--output-format", form])
        assert capsys.readouterr().out.replace('copy_of": "', "copy of ").count("copy of zoo/a.onnx") == 2, form
    main(["zoo", "report", "run", "-o", "zoo.html"])
    assert "copy of" in Path("zoo.html").read_text()
    main(["zoo", "diff", "run", "run"])
    assert "nothing has changed" in capsys.readouterr().out


def test_a_file_that_is_no_model_has_no_structure(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"\x08\xff\xff")
    assert structures_of(tmp_path / "bad.onnx", named=False) == ("", "")
