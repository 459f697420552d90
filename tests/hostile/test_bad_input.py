"""Files that are wrong as a whole, and numbers and shapes at the edge of what there is: a message and an exit code each."""

from __future__ import annotations

import io
import random
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from gradcheck_cli.cli import main

ROOT = Path(__file__).parents[2]
MLP = (ROOT / "examples" / "mlp.onnx").read_bytes()
NAN, INF = float("nan"), float("inf")
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A command line in an empty folder: exit code, and all that was printed."""
    monkeypatch.chdir(tmp_path)

    def command(*args: str) -> tuple[int, str]:
        code = main([*args, "--output-format", "concise"])
        return code, "".join(capsys.readouterr())

    return command


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


# Whole files

MODELS = {
    "nothing": (b"", "net.onnx is empty."),
    "one byte": (b"\x08", "net.onnx is truncated or damaged"),
    "half of a model": (MLP[: len(MLP) // 2], "net.onnx is truncated or damaged"),
    "all but the last byte": (MLP[:-1], "net.onnx is truncated or damaged"),
    "a model and a byte more": (MLP + b"\x0a", "net.onnx is truncated or damaged"),
    "a model without its beginning": (MLP[20:], "net.onnx is"),
    "zeros": (bytes(1000), "net.onnx is not an ONNX model"),
    "ones": (b"\xff" * 1000, "net.onnx is not an ONNX model"),
    "random bytes": (noise(1000), "net.onnx is not an ONNX model"),
    "many random bytes": (noise(100_000), "net.onnx is not an ONNX model"),
    "a spec": (b"gradcheck: 1\ngraphs: {}\n", "net.onnx is"),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("data, message", MODELS.values(), ids=MODELS)
def test_a_file_that_is_no_model(data: bytes, message: str, run: Run) -> None:
    Path("net.onnx").write_bytes(data)
    code, said = run("net.onnx")
    assert code == 4, said
    assert said.startswith(f"error GC401: {message}"), said


GRAPH = "graphs: {g: {inputs: {x: {shape: [2]}}, nodes: 'y = Tanh (x)', outputs: [y]}}\n"
ALIASES = "".join(f"{c}: &{c} [{','.join(['*' + p] * 10)}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True))
SPECS = {
    "nothing": ("", 2, "the file is empty; a spec starts with 'gradcheck: 1'"),
    "a model": (MLP, 2, ""),
    "random bytes": (noise(1000), 2, ""),
    "a billion laughs": (f"a: &a [1]\n{ALIASES}", 2, "aliases stand for more than 100,000 values"),
    "an alias of itself": ("a: &a {b: *a}", 2, "the alias '*a' stands inside its own value"),
    "a merge with itself": ("a: &a {<<: *a}", 2, "the alias '*a' stands inside its own value"),
    "brackets 100,000 deep": ("a: " + "[" * 100_000, 2, "nested deeper than 64 levels"),
    "blocks 3,000 deep": ("".join(" " * i + "a:\n" for i in range(3000)), 2, "nested deeper than 64 levels"),
    "a text of 5 MB": (f"a: {'x' * 5_000_000}", 2, "unknown key 'a'"),
    "a key of 1 MB": (f"{'x' * 1_000_000}: 1", 2, "not YAML"),
    "an anchor of 1 MB": (f"a: &{'x' * 1_000_000} 1", 2, "unknown key 'a'"),
    "100,000 digits": (f"defaults: {{seed: {'9' * 100_000}}}", 2, "a number with too many digits"),
    "an endless exponent": (f"defaults: {{rtol: 1e{'9' * 50_000}}}", 2, "defaults.rtol is inf"),
    "10,000 documents": ("---\n" * 10_000, 2, "a spec is one document"),
    "20,000 unknown keys": ("".join(f"k{i}: 1\n" for i in range(20_000)), 2, "unknown key 'k0'"),
    "a call of Python": ("a: !!python/object/apply:os.system ['exit']", 2, "a spec holds plain values only"),
    "a null character": (b"a: \x00", 2, "the character U+0000 is not allowed"),
    "UTF-16": ("a: 1".encode("utf-16"), 2, "a spec is UTF-8 text"),
    "50,000 brackets in a node": (GRAPH.replace("(x)", "(" * 50_000), 2, "brackets nested deeper than 64 levels"),
    "a size of 5,000 digits": (GRAPH.replace("[2]", f"[{'9' * 5000}]"), 2, "a number with too many digits"),
    "a size beyond all memory": (GRAPH.replace("[2]", "[1000000000000]"), 6, "[1000000000000] takes 7.28 TiB"),
    "a size beyond 64 bits": (GRAPH.replace("[2]", "[99999999999999999999]"), 6, "input 'x' of shape"),
    "a negative size": (GRAPH.replace("[2]", "[-1]"), 2, "shape[0] is -1"),
    "100 dimensions": (GRAPH.replace("[2]", f"[{','.join('1' * 100)}]"), 4, "has 100 dimensions; at most 60 are possible"),
    "too many inputs": (GRAPH.replace("(x)", "(x, x)"), 4, "node 0 Tanh 'y': it takes 1 input at most, and 2 are given"),
    "a range of NaN": (GRAPH.replace("[2]", "[2], range: [.nan, 1]"), 2, "range is [nan, 1.0]"),
}  # fmt: skip


@pytest.mark.one_in(6)
@pytest.mark.parametrize("text, expected, message", SPECS.values(), ids=SPECS)
def test_a_file_that_is_no_spec(text: str | bytes, expected: int, message: str, run: Run) -> None:
    data = text if isinstance(text, bytes) else f"gradcheck: 1\n{text}".encode() if text else b""
    Path("net.gradcheck.yaml").write_bytes(data)
    began = time.process_time()
    code, said = run("net.gradcheck.yaml")
    assert code == expected, said
    assert message in said
    assert len(said) < 20_000
    assert time.process_time() - began < 60  # of work, however busy the machine is


def npz(content: bytes = b"", **arrays: np.ndarray) -> bytes:
    """A zip archive of arrays, and of one entry that is none."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("bad.npy", content)
    return buffer.getvalue()


def npy(header: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


HUGE = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }\n"
FEEDS = {
    "zeros.npy": (bytes(100), 2),
    "empty.npy": (b"", 2),
    "half.npy": (npy(HUGE)[:40], 2),
    "pickle.npy": (npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n") + b"cos\nsystem\n.", 2),
    "odd.npy": (npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }\n"), 2),
    "text.npy": (npy(b"[" * 1000), 2),
    "dates.npy": (npy(b"{'descr': '<M8[D]', 'fortran_order': False, 'shape': (), }\n") + bytes(8), 2),
    "spans.npy": (npy(b"{'descr': '<m8[s]', 'fortran_order': False, 'shape': (), }\n") + bytes(8), 2),
    "records.npy": (npy(b"{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (), }\n") + bytes(8), 2),
    "lying.npy": (npy(HUGE) + bytes(80), 2),
    "zeros.npz": (bytes(100), 2),
    "half.npz": (npz(a=np.ones(9))[:50], 2),
    "spoiled.npz": (npz(a=np.ones(9)).replace(b"NUMPY", b"YPMUN"), 2),
    "two.npz": (npz(a=np.ones(3)), 2),
    "deep.json": (b"[" * 100_000, 2),
    "ragged.json": (b"[[1, 2], [3]]", 2),
    "digits.json": (b"9" * 10_000, 2),
    "text.json": (b'{"a": "b"}', 2),
    "latin.json": (b'"\xe4"', 2),
    "random.pb": (noise(100), 4),
    "lying.pb": (onnx.TensorProto(dims=[1 << 40], data_type=1, raw_data=b"1234").SerializeToString(), 4),
    "shape.npy": (None, 2),
    "folder.npy": (None, 2),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name, content", [(name, content) for name, (content, _) in FEEDS.items()], ids=FEEDS)
@pytest.mark.parametrize("option", ["--x-init-value", "--feed"])
def test_a_file_that_holds_no_value(option: str, name: str, content: bytes | None, run: Run) -> None:
    Path("net.onnx").write_bytes(MLP)
    if content is not None:
        Path(name).write_bytes(content)
    elif name == "folder.npy":
        Path(name).mkdir()
    else:
        np.save(name, np.ones((7, 7)))
    code, said = run("net.onnx", "--x", "input", "--y", "loss", option, f"input=@{name}")
    assert code == FEEDS[name][1], said
    assert said.startswith("error GC"), said


ODD = ["1e999", "nan", "-inf", "[nan]", "1e-320", "[[]]", "9" * 5000, "[" * 3000, "null", "true", '"x"', "{}"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("value", ODD, ids=lambda value: value[:8])
def test_a_value_that_is_hardly_one(value: str, run: Run) -> None:
    Path("net.onnx").write_bytes(MLP)
    code, said = run("net.onnx", "--x", "input", "--y", "loss", "--x-init-value", value)
    assert code in (0, 2, 3), said


# Numbers and shapes

WAYS = [(), ("--dtype", "model"), ("--mode", "directional"), ("--method", "central")]
W = np.asarray
NONFINITE = "GC302 'y' is not finite at point 0: "
NOTHING = "GC701 x or y has no entries at these sizes: nothing was checked"
GRAPHS = {  # nodes from x to y, shape of x, constant w, exit code, message
    "a NaN among the weights": ("y = Mul(x, w)", "2", W([1, NAN]), 3, f"{NONFINITE}'w' is not, which the model is given."),
    "an infinite weight": ("y = Mul(x, w)", "2", W([1, INF]), 3, f"{NONFINITE}'w' is not, which the model is given."),
    "weights of NaN alone": ("y = Mul(x, w)", "2", W([NAN, NAN]), 3, f"{NONFINITE}'w' is not"),
    "a NaN that nothing reads": ("z = Mul(x, w) y = Tanh(x)", "2", W([1, NAN]), 0, "PASS 4 entries"),
    "an infinite mask before a softmax": ("h = Add(x, w) y = Softmax(h)", "2", W([0, -INF]), 0,
                                          "PASS zero everywhere 4 entries"),
    "weights too small to normalize": ("y = Mul(x, w)", "2", W([1e-45, 1e-40]), 0, "PASS 4 entries"),
    "weights as large as there are": ("y = Mul(x, w)", "2", W([3e38, -3e38]), 0, "PASS 4 entries"),
    "a result beyond all numbers": ("h = Mul(x, w) y = Exp(h)", "2", W([3e38, 3e38]), 3,
                                    f"{NONFINITE}first infinity at node 1 Exp 'y'"),
    "a root of zero": ("h = Mul(x, w) y = Sqrt(h)", "2", W([0, 0]), 1, "GC103"),
    "a division by zero": ("y = Div(x, w)", "2", W([0, 1]), 3, NONFINITE),
    "no entries": ("y = Tanh(x)", "0", None, 7, NOTHING),
    "no rows": ("h = Tanh(x) y = ReduceSum<keepdims=0>(h)", "0,3", None, 7, NOTHING),
    "no columns in the weights": ("y = MatMul(x, w)", "2,3", np.zeros((3, 0)), 7, NOTHING),
    "no depth": ("y = MatMul(x, w)", "2,0", np.zeros((0, 3)), 7, NOTHING),
    "a softmax of nothing": ("y = Softmax(x)", "2,0", None, 7, NOTHING),
    "a mean of nothing": ("y = ReduceMean<keepdims=0>(x)", "0", None, 3, NONFINITE),
    "no images": ("y = Conv(x, w)", "0,3,5,5", np.ones((2, 3, 3, 3)), 7, NOTHING),
    "no channels": ("y = Conv(x, w)", "1,0,5,5", np.ones((2, 0, 3, 3)), 7, NOTHING),
    "images smaller than the kernel": ("y = Conv(x, w)", "1,3,2,2", np.ones((2, 3, 3, 3)), 4,
                                       "windows that span [3, 3] do not fit"),
    "no windows": ("y = MaxPool<kernel_shape=[2,2]>(x)", "0,3,5,5", None, 7, NOTHING),
    "no steps": ("y = LSTM<hidden_size=2>(x, w, w)", "0,1,2", np.ones((1, 8, 2)), 7, NOTHING),
    "no indices": ("i = Cast<to=7>(w) y = Gather(x, i)", "4", np.zeros(0), 7, NOTHING),
    "an index beyond the end": ("i = Cast<to=7>(w) y = Gather(x, i)", "4", W([4]), 4, "node 1 Gather 'y'"),
    "sizes that do not broadcast": ("y = Add(x, w)", "2", np.ones(3), 4, "node 0 Add 'y'"),
    "nothing beside something": ("y = Concat<axis=0>(x, w)", "2", np.zeros(0), 0, "PASS 4 entries"),
    "a broadcast with nothing": ("y = Add(x, w)", "2", np.zeros((0, 2)), 7, NOTHING),
    "a scalar": ("y = Tanh(x)", "", None, 0, "PASS 1 entry"),
    "a scalar weight": ("y = Mul(x, w)", "2", W(2.0), 0, "PASS 4 entries"),
    "a scalar turned": ("y = Transpose(x)", "", None, 0, "PASS 1 entry"),
    "a scalar summed": ("y = ReduceSum<keepdims=0>(x)", "", None, 0, "PASS 1 entry"),
    "a scalar as a matrix": ("y = Flatten<axis=0>(x)", "", None, 0, "PASS 1 entry"),
    "a scalar in a sum of products": ('y = Einsum<equation=",->">(x, x)', "", None, 0, "PASS 1 entry"),
    "a softmax of a scalar": ("y = Softmax(x)", "", None, 4, "node 0 Softmax 'y': axis -1 is out of range"),
    "a product of scalars as matrices": ("y = MatMul(x, x)", "", None, 4, "node 0 MatMul 'y' cannot be computed from []"),
    "entries of a scalar": ("i = Cast<to=7>(w) y = Gather(x, i)", "", W(0.0), 4, "node 1 Gather 'y': a scalar has no axis"),
    "scalars in a row": ("y = Concat<axis=0>(x, x)", "", None, 4, "node 0 Concat 'y'"),
    "a scalar sorted": ("k = Cast<to=7>(w) y, i = TopK(x, k)", "", W([1]), 4, "node 1 TopK 'y'"),
    "a scalar split": ("y = Split<num_outputs=1>(x)", "", None, 4, "node 0 Split 'y'"),
    "a convolution of scalars": ("y = Conv(x, x)", "", None, 4, "node 0 Conv 'y'"),
    "60 dimensions": ("y = Tanh(x)", ",".join("1" * 60), None, 0, "PASS 1 entry"),
    "61 dimensions": ("y = Tanh(x)", ",".join("1" * 61), None, 4, "input 'x' has 61 dimensions; at most 60 are possible"),
    "61 dimensions inside": ("i = Cast<to=7>(w) y = Unsqueeze(x, i)", ",".join("1" * 60), W([0]), 4,
                             "the result has 61 dimensions; at most 60 are possible"),
    "too many pieces": ("s = SplitToSequence<axis=0>(x) y = ConcatFromSequence<axis=0>(s)", "3000000", None, 6,
                        "GC602: a sequence of 3,000,000 tensors; at most 200,000 are possible"),
    "a crop of nothing": ("i = Cast<to=7>(w) y = Pad(x, i)", "0,4,4", W([0, -1, -1, 0, -1, -1]), 7, NOTHING),
    "a crop of a batch to nothing": ("i = Cast<to=7>(w) y = Pad(x, i)", "2,4", W([-2, 0, 0, 0]), 7, NOTHING),
    "a crop of more than there is": ("i = Cast<to=7>(w) y = Pad(x, i)", "0,4", W([0, -3, 0, -3]), 4,
                                     "has a negative dimension"),
    "a crop and a reflection of nothing": ('i = Cast<to=7>(w) y = Pad<mode="reflect">(x, i)', "0,4", W([0, -1, 0, 1]), 7,
                                           NOTHING),
    "no nodes": ("", "2", None, 4, ""),
    "a node without inputs": ("y = Add()", "2", None, 4, "node 0 Add 'y'"),
    "a node of itself": ("y = Add(x, y)", "2", None, 4, "'y'"),
    "nodes of each other": ("a = Add(x, b) b = Add(x, a) y = Tanh(b)", "2", None, 4, ""),
    "a name twice": ("y = Tanh(x) y = Exp(x)", "2", None, 4, "'y'"),
    "x made anew": ("x = Tanh(x) y = Exp(x)", "2", None, 4, "'x'"),
    "a tensor from nowhere": ("y = Add(x, nowhere)", "2", None, 4, "needs 'nowhere', which nothing computes"),
}  # fmt: skip


@pytest.mark.one_in(40)
@pytest.mark.parametrize("nodes, shape, w, expected, message", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("ways", WAYS, ids=" ".join)
def test_numbers_and_shapes_at_the_edge(
    ways: tuple[str, ...], nodes: str, shape: str, w: np.ndarray | None, expected: int, message: str, run: Run
) -> None:
    dims = f"[{shape}]" if shape else ""
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> g (float{dims} x) => (float y) {{ {nodes} }}')
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    if w is not None:
        model.graph.initializer.append(numpy_helper.from_array(w.astype(np.float32), "w"))
    onnx.save(model, "net.onnx")
    code, said = run("net.onnx", "--x", "x", "--y", "y", *ways)
    assert code == expected, said
    entries = message.startswith("PASS") and "directional" in ways  # of projections
    assert (message.split()[0] if entries else message) in said.replace("float32", "float64"), said


@pytest.mark.parametrize("count", [1, 3])
def test_outputs_that_are_inputs_or_constants(count: int, run: Run) -> None:
    x = helper.make_tensor_value_info("x", 1, [2])
    w = numpy_helper.from_array(np.ones(2, np.float32), "w")
    outputs = [x, helper.make_tensor_value_info("w", 1, [2]), x][:count]
    graph = helper.make_graph([], "g", [x], outputs, [w])
    onnx.save(helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 18)]), "net.onnx")
    code, said = run("net.onnx")
    assert code in (0, 4), said
    assert "bug" not in said


@pytest.mark.parametrize("sparse", [False, True])
def test_initializers_of_one_name_are_refused(sparse: bool, run: Run) -> None:
    """Runtimes take one or the other."""
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (float[2] x) => (float[2] y) { y = Mul(x, w) }'
    )
    for value in (1, 2):
        model.graph.initializer.append(numpy_helper.from_array(np.full(2, value, np.float32), "w"))
    if sparse:
        indices = numpy_helper.from_array(np.arange(2), "")
        model.graph.sparse_initializer.append(helper.make_sparse_tensor(model.graph.initializer.pop(), indices, [2]))
    onnx.save(model, "net.onnx")
    for command in ([], ["inspect"], ["zoo"]):
        code, said = run(*command, "net.onnx") if command != ["inspect"] else (main(["inspect", "net.onnx"]), "'w'")
        assert code == 4, said
        assert "two initializers of a graph have the same name: 'w'" in said or command == ["inspect"]


# What mutants of models have found

FOUND = {  # graph, exit code, message
    "an axis that the table of an index lacks": (
        "g (float[3] x, int64[2] i) => (float y) { y = Gather <axis=2> (x, i) }", 2, "node 0 Gather 'y': axis 2"),
    "a depth of NaN": (
        """g (int64[2] i, float[2] x) => (float y)
        { d = Constant <value_float=0.0> () n = Div (d, d) h = OneHot (i, n, x) y = Identity (h) }""", 2, "OneHot 'h'"),
    "a comparison with NaN": (
        """g (float[2] x, int64 i) => (float y) { n = Constant <value = float {nan}> () c = Equal (i, n)
        f = Cast <to=1> (c) y = Mul (x, f) }""", 0, "PASS"),
    "a constant that is a graph": (
        "g (float[2] x) => (float y) { c = Constant <value_float = b () => (z) { z = Tanh (x) }> () y = Mul (x, c) }",
        4, "attribute 'value_float' is of type Graph; it must be of type FLOAT"),
    "a body that is a number": (
        """<opset_import: ["": 24, "ai.onnx.preview": 1]>
        g (float[1,1,2,4] x) => (float y) { y = ai.onnx.preview.FlexAttention <score_mod=1> (x, x, x) }""",
        4, "attribute 'score_mod' is of type int; it must be of type GRAPH"),
    "an operand left out of many": (
        'g (float[2] x) => (float y) { y = Einsum <equation="i,i,i->"> (x, , x) }', 4, "needs its input 1"),
    "a scan output without a name": (
        """g (float[2] x) => (float[2] y, float z) { n = Constant <value_int=2> () t = Constant <value = bool {1}> ()
        y, z = Loop <body = b (int64 i, bool c, float[2] s) => (bool d, float[2] r, float none)
        { d = Identity (c) r = Tanh (s) }> (n, t, x) }""", 4, ""),
    "a sequence that is said to be a tensor": (
        "g (float[2] x) => (float y) { y = SequenceConstruct (x) }", 5, "no float output"),
    "integers that are said to be floats": (
        "g (float[2] x) => (float y) { y = ArgMax <axis=0> (x) }", 5, "no float output"),
    "quantized numbers that are said to be floats": (
        "g (float[2] x) => (float y) { y = Cast <to=19> (x) }", 5, "no float output"),
    "complex numbers whose shape alone counts": (
        "g (complex128[2] x, float[2] w) => (float y) { s = Shape (x) f = Cast <to=1> (s) y = Mul (w, f) }", 0, "PASS"),
}  # fmt: skip


@pytest.mark.one_in(10)
@pytest.mark.parametrize("text, expected, message", FOUND.values(), ids=FOUND)
@pytest.mark.parametrize("ways", [*WAYS, ("--points", "2"), ("--params",)], ids=" ".join)
def test_what_mutants_found(ways: tuple[str, ...], text: str, expected: int, message: str, run: Run) -> None:
    head = '<opset_import: ["": 18]>' if not text.startswith("<") else ""
    model = parser.parse_model(f"{head}{text}".replace("<opset", "<ir_version: 10, opset", 1))
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    for output in (each for node in model.graph.node for a in node.attribute for each in a.g.output):
        output.name = output.name.replace("none", "")
    onnx.save(model, "net.onnx")
    code, said = run("net.onnx", *ways)
    assert code == expected, said
    assert message in said
