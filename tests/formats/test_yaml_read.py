"""A spec becomes sources and check requests that mean what the file says."""

from __future__ import annotations

import datetime
import hashlib
import textwrap
from pathlib import Path

import numpy as np
import pytest

from gradcheck_cli.formats import companion_files
from gradcheck_cli.formats.source import CheckRequest
from gradcheck_cli.formats.yaml.reading import read_spec
from gradcheck_cli.graph import Graph, Node, TensorType

ROOT = Path(__file__).parents[2]
SPECS = sorted([*ROOT.glob("specs/*.gradcheck.yaml"), *ROOT.glob("examples/*.gradcheck.yaml")])


@pytest.fixture
def read(tmp_path):
    """A function from the text of a spec to the spec."""

    def read(text, **options):
        path = tmp_path / "f.gradcheck.yaml"
        path.write_text("gradcheck: 1\n" + textwrap.dedent(text), encoding="utf-8")
        return read_spec(path, **options)

    return read


@pytest.fixture
def graph_of(read):
    """A function from the lines of one graph to that graph; outputs default to y."""

    def graph_of(text, **options):
        body = textwrap.indent(textwrap.dedent(text), "    ")
        outputs = "" if "\n    outputs:" in f"\n{body}" else "    outputs: [y]\n"
        return read(f"graphs:\n  g:\n{body}\n{outputs}", **options).sources["g"].graph

    return graph_of


@pytest.fixture
def param(read):
    """A function from what stands under a parameter's name to its array."""

    def param(written, name="p"):
        text = f"graphs:\n  g:\n    params: {{{name}: {written}}}\n    nodes: []\n    outputs: [{name}]\n"
        return read(text).sources["g"].graph.constants[name]

    return param


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_the_specs_that_come_with_gradcheck_are_right(path):
    spec = read_spec(path)
    assert spec.checks
    assert spec.uri == str(path)


def test_a_graph_is_what_the_file_says(read):
    spec = read("""\
        graphs:
          mlp:
            dims: {N: 8}
            inputs:
              input: {shape: [N, 4], range: [-1, 1]}
              labels: {shape: [N], dtype: int64, range: [0, 2]}
            params:
              W: {shape: [4, N], init: ones}
            nodes:
              - {name: fc, op: MatMul, inputs: [input, W], outputs: [h]}
              - {op: Softmax, inputs: [h], outputs: [p], attrs: {axis: -1}}
            outputs: [p]
        """)
    source = spec.sources["mlp"]
    graph = source.graph
    assert (graph.name, graph.inputs, graph.outputs) == ("mlp", ("input", "labels"), ("p",))
    assert graph.nodes == (
        Node("MatMul", ("input", "W"), ("h",), {}, name="fc"),
        Node("Softmax", ("h",), ("p",), {"axis": -1}),
    )
    assert graph.types["input"] == TensorType(np.dtype(np.float32), ("N", 4))
    assert graph.types["labels"] == TensorType(np.dtype(np.int64), ("N",))
    assert graph.types["W"] == TensorType(np.dtype(np.float32), (4, 8))
    assert graph.constants["W"].shape == (4, 8)
    assert source.ranges == {"input": (-1, 1), "labels": (0, 2)}
    assert (source.dims, source.nodes, source.opset) == ({"N": 8}, 2, {"": 21})
    assert source.sha256 == hashlib.sha256(Path(source.uri).read_bytes()).hexdigest()


def test_sizes_of_the_caller_win(read):
    text = """\
        graphs:
          g:
            dims: {N: 8}
            inputs: {x: {shape: [N]}}
            params: {W: {shape: [N], init: zeros}}
            nodes: []
            outputs: [x]
        """
    source = read(text, dims={"N": 3}).sources["g"]
    assert source.dims == {"N": 3}
    assert source.graph.constants["W"].shape == (3,)


def test_sizes_may_come_from_the_caller_alone(read):
    source = read("graphs: {g: {inputs: {x: {shape: [M]}}, nodes: [], outputs: [x]}}", dims={"M": 3}).sources["g"]
    assert source.dims == {"M": 3}


def test_mappings_and_texts_may_be_mixed(graph_of):
    graph = graph_of("""\
        inputs: {x: {shape: [2]}}
        nodes:
          - {op: Relu, inputs: [x], outputs: [a]}
          - |
            b = Neg (a)   # a comment
            [named] c, d = TopK <axis = 0> (b, k)
          - "e = Add (c, b)"
          - {op: Neg, inputs: [e], outputs: [y]}
        constants: {k: [1]}
        """)
    assert [node.op for node in graph.nodes] == ["Relu", "Neg", "TopK", "Add", "Neg"]
    assert graph.nodes[2] == Node("TopK", ("b", "k"), ("c", "d"), {"axis": 0}, name="named")


def test_statements_may_span_lines_and_share_them(graph_of):
    graph = graph_of("""\
        inputs: {x: {shape: [2]}}
        nodes: |
          a = Relu (x) b = Neg
            (a) c = Elu (b) <alpha = 2.0>
          y = Foo <s = "a ) > b", l = [1, 2]> (a, , c)
        """)
    assert [str(node) for node in graph.nodes] == [
        "a = Relu (x)",
        "b = Neg (a)",
        "c = Elu <alpha=2.0> (b)",
        "y = Foo <s='a ) > b', l=(1, 2)> (a, , c)",
    ]


def test_attributes_are_onnx_values(graph_of):
    graph = graph_of("""\
        inputs: {x: {shape: [2]}}
        nodes:
          - op: Any
            inputs: [x, null, ""]
            outputs: [y]
            attrs: {i: 1, b: true, f: 0.1, s: text, ints: [1, 2], floats: [1, 0.5], texts: [a, b], none: [],
                    to: float64, t: {dtype: int8, values: [[1, 2]]}, fill: {values: 0.5, shape: [2, 2]}}
        """)
    [node] = graph.nodes
    attrs = dict(node.attrs)
    tensor, fill = attrs.pop("t"), attrs.pop("fill")
    assert node.inputs == ("x", "", "")
    assert attrs == {"i": 1, "b": 1, "f": float(np.float32(0.1)), "s": "text", "ints": (1, 2),
                     "floats": (1.0, 0.5),
                     "texts": ("a", "b"), "none": (), "to": 11}  # fmt: skip
    assert type(attrs["b"]) is int
    assert (tensor.dtype, tensor.tolist()) == (np.int8, [[1, 2]])
    assert (fill.dtype, fill.tolist()) == (np.float32, [[0.5, 0.5], [0.5, 0.5]])


def test_numbers_among_inputs_are_constants(graph_of):
    graph = graph_of("""\
        inputs: {x: {shape: [2]}}
        nodes:
          - {op: Mul, inputs: [x, 2.5], outputs: [a]}
          - {op: Reshape, inputs: [a, [1, 2]], outputs: [b]}
          - {op: Where, inputs: [true, a, b], outputs: [y]}
        """)
    found = {node.op: graph.constants.get(node.inputs[1]) for node in graph.nodes}
    assert (found["Mul"].dtype, found["Mul"].tolist()) == (np.float32, 2.5)
    assert (found["Reshape"].dtype, found["Reshape"].tolist()) == (np.int64, [1, 2])
    assert graph.constants[graph.nodes[2].inputs[0]].dtype == np.bool_


def test_written_constants_take_names_that_nobody_has(graph_of):
    graph = graph_of("""\
        inputs: {x: {shape: [2]}, y/input1: {shape: [2]}}
        nodes:
          - {op: Mul, inputs: [x, 2.5], outputs: [y]}
          - {op: TopK, inputs: [x, [1]], outputs: ["", places]}
        """)
    assert [node.inputs[1] for node in graph.nodes] == ["y/input1_1", "places/input1"]


def test_constants_take_the_float_type_of_the_graph(graph_of):
    graph = graph_of(
        """\
        inputs: {x: {shape: [2], dtype: float64}, z: {shape: [2], dtype: complex128}}
        constants: {c: 0.1, n: 1, z: {dtype: complex64, values: ["1+2j", 3]}}
        nodes: [{op: Mul, inputs: [x, 0.1], outputs: [y]}]
        """.replace("z: {dtype", "w: {dtype")
    )
    assert graph.constants["c"].dtype == graph.constants["y/input1"].dtype == np.float64
    assert graph.constants["n"].dtype == np.int64
    assert graph.constants["w"].tolist() == [1 + 2j, 3]


def test_constant_nodes_become_constants(graph_of):
    graph = graph_of("""\
        inputs: {x: {shape: [2]}}
        nodes: |
          a = Constant <value_float = 2.0> ()
          b = Constant <value_ints = [1, 2]> ()
          c = Constant <value = double[2] {1.0, 2.0}> ()
          y = Foo (x, a, b, c)
        """)
    assert [node.op for node in graph.nodes] == ["Foo"]
    assert {name: str(array.dtype) for name, array in graph.constants.items()} == {
        "a": "float32",
        "b": "int64",
        "c": "float64",
    }


def test_complex_operators_stand_without_a_domain(graph_of):
    graph = graph_of("""\
        inputs: {x: {shape: [2], dtype: complex64}}
        nodes:
          - {op: FFT, inputs: [x], outputs: [a]}
          - "b = Conj (a)"
          - {op: gradcheck.Real, inputs: [b], outputs: [c]}
          - {op: ai.onnx.Relu, inputs: [c], outputs: [d]}
          - {op: Scaler, domain: ai.onnx.ml, inputs: [d], outputs: [y]}
        """)
    assert [node.key for node in graph.nodes] == [
        ("gradcheck", "FFT"),
        ("gradcheck", "Conj"),
        ("gradcheck", "Real"),
        ("", "Relu"),
        ("ai.onnx.ml", "Scaler"),
    ]
    assert graph.opset == {"": 21, "ai.onnx.ml": 1, "gradcheck": 1}


IF = """\
    inputs: {{x: {{shape: [2]}}, c: {{shape: [], dtype: bool}}}}
    nodes:
      - op: If
        inputs: [c]
        outputs: [y]
        attrs:
          then_branch: {then}
          else_branch: {{nodes: ["n = Neg (x)"], outputs: [n]}}
    """
BRANCHES = [
    "{nodes: [{op: Mul, inputs: [x, 2.0], outputs: [m]}], outputs: [m]}",
    "{nodes: 'two = Constant <value_float = 2.0> () m = Mul (x, two)', outputs: [m]}",
    "'g () => (m) { two = Constant <value_float = 2.0> () m = Mul (x, two) }'",
    "'g () => (m) <float two = {2.0}> { m = Mul (x, two) }'",
    "{nodes: [{op: Mul, inputs: [x, two], outputs: [m]}], constants: {two: 2.0}, outputs: [m]}",
]


@pytest.mark.parametrize("then", BRANCHES)
def test_a_branch_reads_the_tensors_around_it(graph_of, then):
    graph = graph_of(IF.format(then=then))
    [node] = graph.nodes
    branch = node.attrs["then_branch"]
    assert isinstance(branch, Graph)
    assert (branch.inputs, branch.outputs, branch.captures) == ((), ("m",), ("x",))
    assert [inner.op for inner in branch.nodes] == ["Mul"]
    assert [array.tolist() for array in branch.constants.values()] == [2.0]
    assert node.reads == ("c", "x")


def test_a_loop_hands_values_to_its_body(graph_of):
    graph = graph_of("""\
        inputs: {x: {shape: [2]}}
        nodes:
          - op: Loop
            inputs: [3, true, x]
            outputs: [y]
            attrs:
              body:
                inputs: [i, go, h]
                nodes: [{op: Add, inputs: [h, x], outputs: [next]}]
                outputs: [go, next]
        """)
    body = graph.nodes[0].attrs["body"]
    assert (body.inputs, body.outputs, body.captures) == (("i", "go", "h"), ("go", "next"), ("x",))


def test_texts_that_name_a_graph_attribute_of_another_operator_stay_texts(graph_of):
    graph = graph_of("""\
        inputs: {x: {shape: [2]}}
        nodes: [{op: Foo, inputs: [x], outputs: [y], attrs: {body: b}}]
        """)
    assert graph.nodes[0].attrs == {"body": "b"}


def test_an_old_opset_is_brought_to_the_newest_form(graph_of):
    graph = graph_of("""\
        opset: 12
        inputs: {x: {shape: [2, 3]}}
        nodes:
          - {op: ReduceSum, inputs: [x], outputs: [a], attrs: {axes: [0], keepdims: 0}}
          - {op: Elu, inputs: [a], outputs: [b], attrs: {alpha: 2}}
          - "y = Squeeze <axes = [0]> (b)"
        """)
    assert [node.op for node in graph.nodes] == ["ReduceSum", "Elu", "Squeeze"]
    assert "axes" not in graph.nodes[0].attrs
    assert graph.constants[graph.nodes[0].inputs[1]].tolist() == [0]
    assert graph.nodes[1].attrs == {"alpha": 2.0}
    assert graph.constants[graph.nodes[2].inputs[1]].tolist() == [0]


BODIES = ["{nodes: 'm = Softmax <axis = 1> (x)', outputs: [m]}", "'g () => (m) { m = Softmax <axis = 1> (x) }'"]


@pytest.mark.parametrize("then", BODIES)
def test_a_branch_is_written_in_the_opset_of_its_graph(graph_of, then):
    graph = graph_of(f"""\
        opset: 11
        inputs: {{x: {{shape: [2, 3, 4]}}, c: {{shape: [], dtype: bool}}}}
        nodes:
          - {{op: If, inputs: [c], outputs: [y], attrs: {{then_branch: {then}, else_branch: {then}}}}}
        """)
    for branch in graph.nodes[0].attrs.values():
        assert "Flatten" in [node.op for node in branch.nodes]  # a softmax over all axes from the second on


def test_the_declared_opset_is_kept(read):
    source = read("graphs: {g: {opset: 13, inputs: {x: {}}, nodes: 'y = Relu (x)', outputs: [y]}}").sources["g"]
    assert source.opset == {"": 13}
    assert source.graph.opset[""] > 21


INITS = [
    ("{shape: [2, 2], init: zeros}", [[0, 0], [0, 0]]),
    ("{shape: [2], init: ones}", [1, 1]),
    ("{shape: [2], init: {kind: constant, value: 3}}", [3, 3]),
    ("{shape: [2], init: 2.5}", [2.5, 2.5]),
    ("{init: 2.5}", 2.5),
    ("2.5", 2.5),
    ("[1, 2]", [1, 2]),
    ("{init: [[1, 2], [3, 4]]}", [[1, 2], [3, 4]]),
    ("{init: {kind: values, values: [1, 2]}}", [1, 2]),
    ("{shape: [2, 3], init: arange}", [[0, 1, 2], [3, 4, 5]]),
    ("{shape: [3], init: {kind: arange, start: 1, step: -0.5}}", [1, 0.5, 0]),
    ("{shape: [2, 3], init: identity}", [[1, 0, 0], [0, 1, 0]]),
    ("{shape: [2, 2], init: {kind: eye, gain: 2}}", [[2, 0], [0, 2]]),
    ("{shape: [1, 2, 2], init: eye}", [[[1, 0], [0, 1]]]),
    ("{shape: [0], init: normal}", []),
]


@pytest.mark.parametrize("written, value", INITS)
def test_parameters_have_the_values_that_are_asked_for(param, written, value):
    found = param(written)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, value)


@pytest.mark.parametrize(
    "written, dtype",
    [
        ("{dtype: int8, init: [1, -128]}", "int8"),
        ("{dtype: bool, init: [true, false]}", "bool"),
        ("{dtype: uint64, init: [18446744073709551615]}", "uint64"),
        ("{dtype: float16, init: 0.1}", "float16"),
        ("{dtype: bfloat16, init: 0.1}", "bfloat16"),
        ("{dtype: complex64, init: '1+2j'}", "complex64"),
        ("{dtype: complex128, shape: [2], init: ones}", "complex128"),
    ],
)
def test_parameters_have_the_type_that_is_asked_for(param, written, dtype):
    assert str(param(written).dtype) == dtype


DRAWN = [
    ("{kind: uniform, low: 2, high: 3}", 2.5, 1 / np.sqrt(12)),
    ("uniform", 0, 1 / np.sqrt(3)),
    ("{kind: normal, mean: 5, std: 0.2}", 5, 0.2),
    ("glorot_uniform", 0, np.sqrt(2 / 300)),
    ("glorot_normal", 0, np.sqrt(2 / 300)),
    ("{kind: he_normal, gain: 2}", 0, 2 * np.sqrt(2 / 200)),
    ("he_uniform", 0, np.sqrt(2 / 200)),
    ("lecun_normal", 0, np.sqrt(1 / 200)),
    ("lecun_uniform", 0, np.sqrt(1 / 200)),
]


@pytest.mark.parametrize("init, mean, std", DRAWN)
def test_drawn_values_have_their_mean_and_deviation(param, init, mean, std):
    found = param(f"{{shape: [200, 100], dtype: float64, init: {init}}}")
    assert found.mean() == pytest.approx(mean, abs=0.03)
    assert found.std() == pytest.approx(std, rel=0.03)


def test_a_kernel_counts_its_space_among_the_connections(param):
    found = param("{shape: [64, 32, 3, 3], dtype: float64, init: lecun_normal}")
    assert found.std() == pytest.approx(np.sqrt(1 / (32 * 9)), rel=0.03)


def test_a_complex_tensor_is_as_large_as_a_real_one(param):
    found = param("{shape: [100, 100], dtype: complex128, init: normal}")
    assert np.abs(found).std() ** 2 + np.abs(found).mean() ** 2 == pytest.approx(1, rel=0.05)
    assert found.real.std() == pytest.approx(found.imag.std(), rel=0.05)


@pytest.mark.parametrize("shape", [(4, 4), (2, 5), (5, 2), (3, 2, 2)])
def test_orthogonal_is_orthogonal(param, shape):
    q = param(f"{{shape: {list(shape)}, dtype: float64, init: orthogonal}}").reshape(shape[0], -1)
    small = q @ q.T if q.shape[0] <= q.shape[1] else q.T @ q
    np.testing.assert_allclose(small, np.eye(min(q.shape)), atol=1e-12)


def test_integers_include_both_ends(param):
    found = param("{shape: [1000], dtype: int64, init: {kind: uniform, low: 0, high: 3}}")
    assert set(found.tolist()) == {0, 1, 2, 3}


def test_values_depend_on_seed_and_name_only(read):
    def values(extra, head=""):
        params = f"{{{extra}p: {{shape: [4], init: normal}}}}"
        text = f"{head}\ngraphs: {{g: {{params: {params}, nodes: [], outputs: [p]}}}}"
        return read(text).sources["g"].graph.constants["p"].tolist()

    first = values("")
    assert values("q: {shape: [4], init: normal}, ") == first
    assert values("", "defaults: {seed: 0}") == first
    assert values("", "defaults: {seed: 1}") != first


def test_values_come_from_files(read, tmp_path):
    (tmp_path / "sub").mkdir()
    np.save(tmp_path / "sub" / "w.npy", np.arange(3.0))
    with open(tmp_path / "second.npy", "wb") as file:
        np.lib.format.write_array(file, np.arange(5.0), version=(2, 0))
    np.savez(tmp_path / "two.npz", a=np.ones((2, 2)), b=np.zeros(2))
    np.savez_compressed(tmp_path / "one.npz", only=np.full(2, 7.0))
    graph = (
        read("""\
        graphs:
          g:
            params:
              p: {shape: [3], init: {kind: file, path: sub/../sub/w.npy}}
              q: {init: {kind: file, path: two.npz, key: a}}
              s: {init: {kind: file, path: second.npy}}
              r: {init: {kind: file, path: one.npz}, dtype: float64}
            nodes: []
            outputs: [p]
        """)
        .sources["g"]
        .graph
    )
    assert {name: array.tolist() for name, array in graph.constants.items()} == {
        "p": [0, 1, 2],
        "q": [[1, 1], [1, 1]],
        "r": [7, 7],
        "s": [0, 1, 2, 3, 4],
    }
    assert {str(array.dtype) for array in graph.constants.values()} == {"float32", "float64"}


def test_files_that_a_spec_names_belong_to_it(read, tmp_path):
    for name in ("w.npy", "x.npz", "unread.npy"):
        (tmp_path / name).touch()
    (tmp_path / "f.gradcheck.yaml").write_text("""\
        gradcheck: 1
        graphs:
          g: {params: {p: {shape: [3], init: {kind: file, path: w.npy}}}, nodes: [], outputs: [p]}
        checks:
          - {x_init_value: {p: {kind: file, path: x.npz, key: a}}}
          - {x_init_value: {p: {kind: file, path: missing.npy}}}
    """)
    assert companion_files(tmp_path / "f.gradcheck.yaml") == {n: tmp_path / n for n in ("x.npz", "w.npy")}


OPERATOR = """\
    ops:
      acme.Scale:
        inputs: [x, w]
        outputs: [y]
        attrs: {by: 2.0}
        forward: |
          c = Constant <value_float = @by> ()
          s = Mul (x, c)
          y = Mul (s, w)
        gradient:
          - {op: Constant, outputs: [c], attrs: {value_float: {ref: by}}}
          - {op: Mul, inputs: [dy, c], outputs: [t]}
          - {op: Mul, inputs: [t, w], outputs: [dx]}
      acme.Twice:
        inputs: [x]
        outputs: [y]
        forward: "y = acme.Scale (x, x)"
    graphs:
      g:
        inputs: {x: {shape: [2]}}
        nodes: |
          a = acme.Scale (x, x)
          b = acme.Scale <by = 3.0> (a, x)
          c = acme.Scale <by = 2.0> (b, x)
          y = acme.Twice (c)
        outputs: [y]
    """


def test_operators_have_bodies(read):
    source = read(OPERATOR).sources["g"]
    scale, *_ = source.operators
    assert (scale.domain, scale.name) == ("acme", "Scale")
    assert (scale.forward.inputs, scale.forward.outputs) == (("x", "w"), ("y",))
    assert scale.gradient is not None
    assert scale.gradient.inputs == ("x", "w", "y", "dy")
    assert scale.gradient_of == {"dx": "x"}


def test_attributes_of_an_operator_make_bodies_of_their_own(read):
    source = read(OPERATOR).sources["g"]
    assert [node.op for node in source.graph.nodes] == ["Scale", "Scale[by=3.0]", "Scale", "Twice"]
    assert all(not node.attrs for node in source.graph.nodes)
    constants = {body.name: [a.tolist() for a in body.forward.constants.values()] for body in source.operators}
    assert constants == {"Scale": [2.0], "Twice": [], "Scale[by=3.0]": [3.0]}


def test_python_gives_an_operator_if_allowed(read, tmp_path, monkeypatch):
    (tmp_path / "mine_for_gradcheck.py").write_text(
        "def softsign():\n    return {'inputs': ['x'], 'outputs': ['y'], 'forward': 'y = Softsign (x)'}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    text = """\
        ops: {acme.F: {python: "mine_for_gradcheck:softsign"}}
        graphs: {g: {inputs: {x: {}}, nodes: "y = acme.F (x)", outputs: [y]}}
        """
    [body] = read(text, allow_python=True).sources["g"].operators
    assert [node.op for node in body.forward.nodes] == ["Softsign"]


GRAPH = """\
    defaults: {seed: 3, rtol: 1e-5}
    graphs:
      g:
        dims: {N: 2}
        inputs: {x: {shape: [N, 3]}, i: {shape: [N], dtype: int64}}
        params: {W: {shape: [3], init: ones}, b: {shape: [], init: zeros}}
        nodes: "h = Mul (x, W) y = Add (h, b)"
        outputs: [y]
    """


def check_of(read, text):
    [check] = read(textwrap.dedent(GRAPH) + textwrap.dedent(text)).checks
    return check


def test_a_spec_may_have_no_checks(read):
    assert read(GRAPH).checks == ()


def test_a_check_says_what_and_how(read):
    check = check_of(read, """\
        checks:
          - name: one
            graph: g
            x: [x, W]
            y: y
            delta: auto
            points: 4
            val_range: {x: [-2, 2]}
            atol: 0
            expect: {status: fail, reason: ACME-412, until: 2027-03-31}
        """)  # fmt: skip
    assert check == CheckRequest(
        name="one",
        graph="g",
        x=("x", "W"),
        y=("y",),
        settings={
            "seed": 3,
            "rtol": 1e-5,
            "points": 4,
            "delta": "auto",
            "val_range": {"x": (-2, 2)},
            "atol": 0,
        },
        expect={"status": "fail", "forward": None, "reason": "ACME-412", "until": datetime.date(2027, 3, 31)},
        line=11,
    )
    assert read(textwrap.dedent(GRAPH) + "checks:\n  - {x: x}\n  - name: two\n    x: W\n").checks[1].line == 12


def test_the_only_graph_need_not_be_named(read):
    checks = read(textwrap.dedent(GRAPH) + "checks: [{x: x}, {x: W}, {name: w}]").checks
    assert [(check.name, check.graph) for check in checks] == [("g", "g"), ("g#2", "g"), ("w", "g")]


def test_a_side_car_is_about_a_file_beside_it(read, tmp_path):
    [check] = read("checks: [{model: sub/net.onnx, x: [a], init_targets: training_info}]").checks
    assert (check.name, check.graph, check.model) == ("net.onnx", None, str(tmp_path / "sub/net.onnx"))
    assert check.init_targets == ("training_info",)


def test_fixed_values_have_type_and_shape_of_their_tensors(read):
    check = check_of(read, "checks: [{extra_feed_dict: {i: [0, 1], x: 2, h: [1, 2], b: {kind: normal}}}]")
    found = check.extra_feed_dict
    assert (found["i"].dtype, found["i"].tolist()) == (np.int64, [0, 1])
    assert (found["x"].dtype, found["x"].tolist()) == (np.float32, [[2, 2, 2], [2, 2, 2]])
    assert found["h"].tolist() == [1, 2]
    assert found["b"].shape == ()


def test_a_bare_initial_value_is_that_of_x(read, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(6.0).reshape(2, 3))
    by_value = check_of(read, "checks: [{x: x, x_init_value: [[1, 2, 3], [4, 5, 6]]}]")
    by_file = check_of(read, "checks: [{x: x, x_init_value: {kind: file, path: x.npy}}]")
    by_name = check_of(read, "checks: [{x: [x, W], x_init_value: {W: uniform}}]")
    assert by_value.x_init_value["x"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert by_file.x_init_value["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert by_name.x_init_value["W"].shape == (3,)


def test_groups_of_values_are_graphs_of_constants(read, tmp_path):
    np.savez(tmp_path / "w.npz", W=np.array([1, 2, 3]), other=np.zeros(7))
    source = read(textwrap.dedent(GRAPH) + "init: {file: {from: w.npz}, both: {from: w.npz, b: 5, W: zeros}}").sources[
        "g"
    ]
    file, both = source.initializations["file"], source.initializations["both"]
    assert file.bindings == {"W": "W"}
    assert (file.graph.inputs, file.graph.outputs) == ((), ("W",))
    assert file.graph.constants["W"].tolist() == [1, 2, 3]
    assert file.graph.constants["W"].dtype == np.float32
    assert {name: array.tolist() for name, array in both.graph.constants.items()} == {"W": [0, 0, 0], "b": 5}


def test_a_manifest_keeps_its_entries(read):
    spec = read("""\
        defaults: {seed: 1}
        models:
          - {path: "nets/*.onnx", x: a, dims: {N: 2}, rtol: {a: 1e-3}}
          - {path: "https://example.com/net.onnx", name: net, expect: {status: unsupported}}
        """)
    assert spec.models == (
        {"seed": 1, "path": "nets/*.onnx", "x": ["a"], "dims": {"N": 2}, "rtol": {"a": 1e-3}},
        {
            "seed": 1,
            "path": "https://example.com/net.onnx",
            "name": "net",
            "expect": {"status": "unsupported", "forward": None, "reason": "", "until": None},
        },
    )


def test_anchors_and_merge_keys_save_repetition(read):
    spec = read("""\
        graphs:
          a: &a {inputs: {x: {}}, nodes: "y = Relu (x)", outputs: [y]}
          b: {<<: *a, outputs: [x]}
        checks: [{graph: b, y: x}]
        """)
    assert spec.sources["b"].graph.outputs == ("x",)


def test_tensors_may_have_any_name(graph_of):
    graph = graph_of("""\
        inputs: {1: {shape: [2]}, on: {shape: [2]}, "a/b:0": {shape: [2]}}
        nodes:
          - {op: Sum, inputs: ["1", on, "a/b:0"], outputs: [null.x]}
          - {op: Neg, inputs: [null.x], outputs: [y]}
        """)
    assert graph.nodes[0].inputs == ("1", "on", "a/b:0")
