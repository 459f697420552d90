"""Models that allocate without end, loop for ever, unfold or crash: a record each, and the run goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, parser

from gradcheck_cli.zoo import Job, Limits, engine
from tests.cli import models
from tests.cli.models import ENDLESS
from tests.hostile.test_memory import GREEDY

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of memory as Linux has them")
HEAD = '<ir_version: 9, opset_import: ["" : 18]>'
LIMITS, MEMORY = {"GC601", "GC602", "GC603"}, 1 << 30
GREEDIEST = ("ConstantOfShape", "Expand", "Tile", "Range", "Pad", "Resize", "Concat of itself", "a list of numbers")


def text(graph: str, **functions: str) -> ModelProto:
    """A model, with functions of its own."""
    own = ', "own": 1' if functions else ""
    bodies = "".join(
        f'<domain: "own", opset_import: ["": 18, "own": 1]> {n} (a) => (b) {{ {b} }}\n' for n, b in functions.items()
    )
    return parser.parse_model(f'<ir_version: 9, opset_import: ["": 18{own}]> {graph}\n{bodies}')


def plain(nodes: str) -> ModelProto:
    return text(f"g (float[2, 3] x) => (float y) {{ {nodes} }}")


def repeated(count: int) -> ModelProto:
    """Many nodes, one after another."""
    nodes = [helper.make_node("Tanh", [f"h{i}" if i else "x"], [f"h{i + 1}"]) for i in range(count)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", f"h{count}")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 18)])


def empty(count: int) -> bytes:
    """Nodes that say nothing: two bytes each in the file, a hundred in memory."""
    nodes = b"\x0a\x00" * count  # of a graph; what is said of a model in two pieces counts together
    length = bytearray()
    size = len(nodes)
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return plain("y = Tanh (x)").SerializeToString() + bytes([7 << 3 | 2, *length, size]) + nodes


def nested(depth: int) -> ModelProto:
    """If in If in If, as deep as a file can have it."""
    graph = parser.parse_graph("b () => (float[2] y) { y = Tanh (x) }")
    for _ in range(depth):
        node = NodeProto(op_type="If", input=["c"], output=["y"])
        for name in ("then_branch", "else_branch"):
            node.attribute.append(
                AttributeProto(name=name, type=AttributeProto.GRAPH, g=graph if name[0] == "t" else None)
            )
        node.attribute[1].g.CopyFrom(parser.parse_graph("b () => (float[2] y) { y = Exp (x) }"))
        graph = GraphProto(name="b", node=[node], output=graph.output)
    graph.input.extend(parser.parse_graph("g (float[2] x, bool c) => () {}").input)
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 18)])


def laughs(count: int = 10, depth: int = 10) -> ModelProto:
    """Functions that call each other ten times: a few hundred bytes stand for 10^10 nodes."""

    def calls(name: str) -> str:
        return " ".join(
            f"{'b' if i == count - 1 else f't{i}'} = {name} ({f't{i - 1}' if i else 'a'})" for i in range(count)
        )

    bodies = {f"f{level}": calls(f"own.f{level + 1}" if level + 1 < depth else "Tanh") for level in range(depth)}
    return text("g (float[2] x) => (float[2] y) { y = own.f0 (x) }", **bodies)


def shaped(*dims: int) -> ModelProto:
    model = plain("y = Tanh (x)")
    del model.graph.input[0].type.tensor_type.shape.dim[:]
    for size in dims:
        model.graph.input[0].type.tensor_type.shape.dim.add(dim_value=size)
    return model


def with_opset(version: int) -> ModelProto:
    model = plain("y = Tanh (x)")
    model.opset_import[0].version = version
    return model


def long_loop(body: str, count: int = 1 << 62) -> ModelProto:
    return text(f"""g (float[2] x) => (float y) {{
        n = Constant <value = int64 {{{count}}}> ()
        t = Constant <value = bool {{1}}> ()
        y = Loop (n, t, x) <body = b (int64 i, bool c, float[2] s) => (bool d, float r) {{ d = Identity (c) {body} }}>
    }}""")


LOOP = """m = Constant <value = int64 {1000000000}> ()
    r = Loop (m, c, s) <body = q (int64 j, bool e, float[2] u) => (bool f, float v) { f = Identity (e) v = Sin (u) }>"""
HOSTILE: dict[str, tuple[Callable[[], ModelProto | bytes], set[str]]] = {
    "a loop without end": (lambda: parser.parse_model('<ir_version: 9, opset_import: ["" : 17]>' + ENDLESS), {"GC601"}),
    "a loop that doubles": (lambda: long_loop("r = Concat <axis=0> (s, s)"), LIMITS),
    "a loop in a loop": (lambda: long_loop(LOOP), LIMITS),
    **{f"{name} without measure": (lambda name=name: plain(GREEDY[name]), LIMITS) for name in GREEDIEST},
    "a function that calls itself": (
        lambda: text("g (float[2] x) => (float[2] y) { y = own.f (x) }", f="b = own.f (a)"), {"GC401"}),
    "functions that call each other": (
        lambda: text("g (float[2] x) => (float[2] y) { y = own.f (x) }", f="b = own.h (a)", h="b = own.f (a)"), {"GC401"}),
    "functions that unfold": (laughs, LIMITS | {"GC401"}),
    "branches in branches": (lambda: nested(24), {"", "GC401", *LIMITS}),
    "20,000 nodes": (lambda: repeated(20_000), {"", *LIMITS}),
    "3,000,000 empty nodes": (lambda: empty(3_000_000), {"GC401", *LIMITS}),
    "a size of 2^62": (lambda: shaped(1 << 62), {"GC602"}),
    "sizes whose product is beyond 64 bits": (lambda: shaped(1 << 40, 1 << 40, 1 << 40), {"GC602", "GC401"}),
    "a negative size": (lambda: shaped(-5), {"", "GC401", "GC201"}),
    "opset 10^9": (lambda: with_opset(10**9), {"GC502", "GC401"}),
    "opset -1": (lambda: with_opset(-1), {"GC401"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The records of all of them, from one run, with a model that is right behind each."""
    folder = tmp_path_factory.mktemp("hostile")
    models.conv(folder / "right.onnx")
    jobs = []
    for index, (name, (make, _)) in enumerate(HOSTILE.items()):
        made = make()
        data = made if isinstance(made, bytes) else made.SerializeToString()
        (folder / f"{index}.onnx").write_bytes(data)
        jobs += [Job(name, str(folder / f"{index}.onnx")), Job(f"right {index}", str(folder / "right.onnx"))]
    records: dict[str, list[dict[str, Any]]] = {}
    plain_jobs = [Job(job.uri, job.path, options={"save_failures": "none", "forward": "internal"}) for job in jobs]
    Path("/proc/self/clear_refs").write_text("5")  # the highest is from now on: other tests have been here before
    before = resident("VmRSS")
    engine.run(
        plain_jobs, Limits(jobs=2, timeout=20.0, memory=MEMORY), lambda job, given: records.update({job.uri: given})
    )
    records["driver"] = [{"grown": resident("VmHWM") - before}]
    return records


def resident(what: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at most."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[what].split()[0]) << 10


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_a_model_that_does_harm_has_a_record(name: str, found: dict[str, list[dict[str, Any]]]) -> None:
    assert {record["code"] for record in found[name]} <= HOSTILE[name][1], found[name]
    assert all(record["peak_rss_mb"] < 1.5 * (MEMORY >> 20) for record in found[name])


@pytest.mark.slow
def test_models_beside_them_are_checked(found: dict[str, list[dict[str, Any]]]) -> None:
    beside = {
        name: {record["status"] for record in records} for name, records in found.items() if name.startswith("right")
    }
    assert len(beside) == len(HOSTILE)
    assert set().union(*beside.values()) == {"pass"}


@pytest.mark.slow
def test_the_driver_takes_no_memory_for_them(found: dict[str, list[dict[str, Any]]]) -> None:
    """Memory that a model asks for is asked in its own process."""
    assert found["driver"][0]["grown"] < 256 << 20


MLP = Path(__file__).parents[2] / "examples" / "mlp.onnx"
CUTS = range(0, MLP.stat().st_size, 64)


def test_models_cut_off_at_any_place_are_errors_that_say_so(tmp_path: Path) -> None:
    data = MLP.read_bytes()
    for cut in CUTS:
        (tmp_path / f"{cut}.onnx").write_bytes(data[:cut])
    found: dict[str, str] = {}
    jobs = [Job(str(cut), str(tmp_path / f"{cut}.onnx"), options={"save_failures": "none"}) for cut in CUTS]
    engine.run(jobs, Limits(jobs=2), lambda job, given: found.update({job.uri: given[0]["code"]}))
    assert found == {str(cut): "GC401" for cut in CUTS}


@pytest.mark.slow
def test_a_million_nodes_end_at_a_limit(tmp_path: Path) -> None:
    onnx.save(repeated(1_000_000), tmp_path / "long.onnx")
    found: dict[str, str] = {}
    job = Job("long", str(tmp_path / "long.onnx"), options={"save_failures": "none"})
    engine.run(
        [job],
        Limits(jobs=1, timeout=600.0, memory=8 << 30),
        lambda job, given: found.update({job.uri: given[0]["code"]}),
    )
    assert found["long"] in {"", *LIMITS}
