"""A file of a few bytes may ask for any amount of memory: it gets an error with a hint, and the machine nothing to bear."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

import gradcheck_cli as gc
from gradcheck_cli.cli import main
from gradcheck_cli.errors import LimitError
from gradcheck_cli.graph import memory
from tests.hostile.conftest import LITTLE

resource = pytest.importorskip("resource", reason="only Unix limits memory")

# Nodes that make y of 30 GB and more from x, float[2, 3], and little else.
GREEDY = {
    "ConstantOfShape": "s = Constant <value_ints=[1000000000,2,3]> () c = ConstantOfShape (s) y = Add (x, c)",
    "Expand": "s = Constant <value_ints=[1000000000,2,3]> () y = Expand (x, s)",
    "Tile": "s = Constant <value_ints=[60000,60000]> () y = Tile (x, s)",
    "Range": """l = Constant <value_int=4000000000> () o = Constant <value_int=1> () z = Constant <value_int=0> ()
                r = Range (z, l, o) f = Cast <to=1> (r) s = ReduceSum (x) y = Mul (f, s)""",
    "OneHot": """d = Constant <value_int=2000000000> () i = Cast <to=7> (x) v = Constant <value_floats=[0.0, 1.0]> ()
                 h = OneHot (i, d, v) s = ReduceSum (x) y = Mul (h, s)""",
    "Pad": "p = Constant <value_ints=[0,0,60000,60000]> () y = Pad (x, p)",
    "Resize": 'e = Constant <value_floats=[40000.0,40000.0]> () y = Resize <mode="linear"> (x, , e)',
    "RandomNormal": "r = RandomNormal <shape=[2000000000,2,1]> () y = Add (x, r)",
    "RandomUniform": "r = RandomUniform <shape=[2000000000,2,1]> () y = Add (x, r)",
    "Multinomial": "r = Multinomial <sample_size=2000000000> (x) f = Cast <to=1> (r) s = ReduceSum (x) y = Mul (f, s)",
    "Gather": """s = Constant <value_ints=[2000000000]> () z = Constant <value_int=0> () i = Expand (z, s)
                 y = Gather (x, i)""",
    "HannWindow": "n = Constant <value_int=4000000000> () w = HannWindow (n) s = ReduceSum (x) y = Mul (w, s)",
    "Concat of itself": "f = Flatten <axis=0> (x) t = Transpose (f) " + " ".join(
        f"a{i} = Concat <axis=1> ({', '.join([f'a{i - 1}' if i else 'f'] * 64)})" for i in range(5)
    ) + " y = Identity (a4)",
    "elementwise broadcasting": """s = Constant <value_ints=[80000,1]> () t = Constant <value_ints=[1,80000]> ()
                                   m = ReduceSum (x) a = Expand (m, s) b = Expand (m, t) y = Mul (a, b)""",
    "MatMul": """s = Constant <value_ints=[80000,1]> () t = Constant <value_ints=[1,80000]> ()
                 m = ReduceSum (x) a = Expand (m, s) b = Expand (m, t) y = MatMul (a, b)""",
    "Einsum": """s = Constant <value_ints=[80000]> () m = ReduceSum <keepdims=0> (x) a = Expand (m, s)
                 y = Einsum <equation="i,j->ij"> (a, a)""",
    "Conv": """s = Constant <value_ints=[1,1,2,3]> () i = Reshape (x, s) k = Constant <value_float=1.0> ()
               o = Constant <value_ints=[1,1,1,1]> () w = Expand (k, o)
               y = Conv <pads=[30000,30000,30000,30000]> (i, w)""",
    "a list of numbers": """s = Constant <value_ints=[300000000]> () z = Constant <value_int=1> () r = Expand (z, s)
                            y = Reshape (x, r)""",
}  # fmt: skip


def model(nodes: str, shape: str = "2,3") -> onnx.ModelProto:
    """A model of some nodes between x and y."""
    return parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18]> g (float[{shape}] x) => (float y) {{ {nodes} }}'
    )


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", GREEDY)
def test_a_tiny_file_that_asks_for_30_gigabytes(
    name: str, tmp_path: Path, little_memory: None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "greedy.onnx"
    onnx.save(model(GREEDY[name]), path)
    assert path.stat().st_size < 10_000
    assert main([str(path), "--output-format", "concise"]) == 6
    said = capsys.readouterr()
    assert "GC602" in said.out + said.err
    assert "smaller sizes (--x-shape, --dim) or a lower --jobs need less" in said.out + said.err
    assert "node " in said.out + said.err, said


@pytest.mark.parametrize("shape", ["4000000000", "65536,65536,2", "9223372036854775807,2", "1,9223372036854775807,0"])
def test_an_input_that_does_not_fit(
    shape: str, tmp_path: Path, little_memory: None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wide.onnx"
    onnx.save(model("y = Relu (x)", shape), path)
    assert main([str(path)]) == 6
    assert "'x'" in capsys.readouterr().err


def test_the_message_says_who_asked_how_much_there_is_and_what_to_do(tmp_path: Path, little_memory: None) -> None:
    path = tmp_path / "greedy.onnx"
    onnx.save(model(GREEDY["Expand"]), path)
    with pytest.raises(LimitError) as caught:
        gc.check(gc.load(path))
    assert (caught.value.exit_code, caught.value.code) == (6, "GC602")
    who, left = (
        r"node \d Expand 'y': a tensor of shape \[1000000000,2,3\]",
        r"(2(\.0\d)?|1\.9\d) GiB of memory are left",
    )
    more = r"(the check needs --memory-limit \d+GiB or more|this machine has no room for it)"
    assert re.match(f"{who} takes 44.7 GiB, and {left}; {more}; smaller", str(caught.value))


def test_what_fits_is_not_refused(little_memory: None) -> None:
    memory.require(LITTLE // 2, "half of it")
    memory.require_shape((LITTLE // 32,))
    with pytest.raises(MemoryError, match="twice that takes 4 GiB, and "):
        memory.require(2 * LITTLE, "twice that")


def test_operands_that_do_not_broadcast_are_no_question_of_memory() -> None:
    memory.require_broadcast([np.broadcast_to(1.0, (10**6, 3)), np.broadcast_to(1.0, (10**6, 2))])
    with pytest.raises(MemoryError, match=r"a result of shape \[1000000,1000000\] takes 7.28 TiB"):
        memory.require_broadcast([np.broadcast_to(1.0, (10**6, 1)), np.broadcast_to(1.0, (10**6,)), None])


def test_the_limit_holds_for_what_runs_under_it_only() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with memory.held():
        assert 0 < resource.getrlimit(resource.RLIMIT_DATA)[0] < 1 << 50
        with pytest.raises(MemoryError):
            np.ones(1 << 45)
        with memory.held():
            pass
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] < 1 << 50
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_running_out_names_the_place_where_it_is_known() -> None:
    assert str(memory.exhausted(MemoryError())).startswith("out of memory; smaller sizes")
    assert str(memory.exhausted(MemoryError("too much"), "node 1 Add 'y'")).startswith("node 1 Add 'y': too much; ")
    assert memory.exhausted(LimitError("time", code="GC601")).code == "GC601"
    with pytest.raises(MemoryError) as numpys:
        np.ones(1 << 45)
    assert str(memory.exhausted(numpys.value)).startswith("no room for an array of 256 TiB; ")
    assert str(memory.exhausted(RuntimeError("can't start new thread"))).startswith("no room for a thread; ")


def test_a_limit_that_was_reached_is_not_the_one_that_is_asked_for() -> None:
    """The arrays that had filled the memory are gone when the message is made."""
    with memory.held(1 << 30):
        reached = resource.getrlimit(resource.RLIMIT_DATA)[0]
        with pytest.raises(MemoryError) as caught:
            print(len([np.empty(4 << 20) for _ in range(64)]))
        asked = re.search(r"--memory-limit (\d+)(MiB|GiB) or more", str(memory.exhausted(caught.value)))
    assert asked is not None
    assert int(asked[1]) << {"MiB": 20, "GiB": 30}[asked[2]] > reached


@pytest.mark.parametrize(
    ("error", "of_memory"),
    [
        (MemoryError(), True), (LimitError("", code="GC602"), True), (LimitError("", code="GC601"), False),
        (RuntimeError("can't start new thread"), True), (RuntimeError("thread: Resource temporarily unavailable"), True),
        (RuntimeError("dictionary changed size during iteration"), False), (ValueError(), False),
    ],
)  # fmt: skip
def test_errors_that_are_of_memory(error: Exception, of_memory: bool) -> None:
    assert memory.is_of_memory(error) == of_memory


@pytest.mark.parametrize("share, named, said", [(1.0, "1022MiB", "766 MiB"), (0.75, "2GiB", "1022 MiB")])
def test_limits_are_named_as_they_are_typed(share: float, named: str, said: str):
    """The checks of a zoo get a part of the limit: what allows 929 MiB is larger by as much."""
    memory.has_part(share)
    try:
        assert (memory.generous(929 << 20), memory.spell(memory.typed(1022 * 0.75 * (1 << 20)))) == (named, said)
    finally:
        memory.has_part(1.0)
