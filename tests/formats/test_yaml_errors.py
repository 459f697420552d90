"""Everything that can be wrong in a spec is reported at its line and column, with what would be right."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest

from gradcheck_cli.errors import LimitError, SpecError, UsageError
from gradcheck_cli.formats.yaml.reading import read_spec


def problems(tmp_path, text, **options):
    """The first lines of all problems in a spec, without its path."""
    path = tmp_path / "f.gradcheck.yaml"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        read_spec(path, **options)
    return [str(problem).split("\n")[0].removeprefix(f"{path}:") for problem in caught.value.problems]


HEAD = [
    ("graphs: {}", "1:1: a spec starts with 'gradcheck: 1'; here the first key is 'graphs'"),
    ("gradchek: 1", "1:1: a spec starts with 'gradcheck: 1'; here the first key is 'gradchek'"),
    ("graphs: {}\ngradcheck: 1", "2:1: a spec starts with 'gradcheck: 1'; here it is not the first key"),
    ("gradcheck: 2", "1:12: version 2 of the format is not known; known is 1"),
    ("gradcheck: true", "1:12: version true of the format is not known; known is 1"),
    ("gradcheck: '1'", "1:12: version '1' of the format is not known; known is 1"),
    ("- gradcheck: 1", "1:1: a spec is a mapping that starts with 'gradcheck: 1'"),
    ("gradcheck", "1:1: a spec is a mapping that starts with 'gradcheck: 1'"),
    ("gradcheck: 1\nchekcs: []", "2:1: unknown key 'chekcs'. Did you mean 'checks'?"),
    ("gradcheck: 1\ninputs: {}", "2:1: 'inputs' stands one level further in: graphs: {net: {inputs: ...}}"),
    ("gradcheck: 1\nx: x", "2:1: 'x' stands one level further in: checks: [{x: ...}]"),
]

# After the head, the graph `g`: x [2,3] -> y = Relu(x) W, each on a line that the errors can name.
GRAPH = """\
gradcheck: 1
graphs:
  g:
    inputs: {x: {shape: [N, 3]}, i: {shape: [N], dtype: int64}}
    params: {W: {shape: [3, 4], init: ones}}
    dims: {N: 2}
    nodes:
      - {op: Relu, inputs: [x], outputs: [h]}
      - {op: MatMul, inputs: [h, W], outputs: [y]}
    outputs: [y]
"""

CHECKS = [
    ("checks: [{x: x, detla: 1}]", "11:17: unknown key 'detla' in checks[0]. Did you mean 'delta'?"),
    ("checks: [{x: x, feed: {x: 1}}]", "11:17: unknown key 'feed' in checks[0]. Did you mean 'extra_feed_dict'?"),
    ("checks: [{zzzz: 1}]", None),
    ("checks: [{graph: f}]", "11:18: no graph is called 'f'."),
    ("checks: [{graph: g, model: m.onnx}]", "11:21: a check has a graph or a model, not both"),
    ("checks: [{x: X}]", "11:14: 'g' has no tensor 'X'."),
    ("checks: [{x: [x, hh]}]", "11:18: 'g' has no tensor 'hh'."),
    ("checks: [{x: [W, w1]}]", "11:18: 'g' has no tensor 'w1'."),
    ("checks: [{x: [x, x]}]", "11:14: checks[0].x names 'x' twice"),
    ("checks: [{x: []}]", "11:14: checks[0].x is []; it must be a name or a list of names"),
    ("checks: [{y: 3}]", "11:14: checks[0].y is 3; it must be a name or a list of names"),
    ("checks: [{name: a}, {name: a}]", "11:28: a check is called 'a' already"),
    ("checks: [{delta: 0}]", "11:18: checks[0].delta is 0; it must be a number above 0, or auto"),
    ("checks: [{delta: .nan}]", "11:18: checks[0].delta is nan; it must be a number above 0, or auto"),
    (f"checks: [{{delta: {'9' * 400}}}]", f"11:18: checks[0].delta is {'9' * 37}...; it must be a number above 0, or auto"),
    ("checks: [{delta: true}]", "11:18: checks[0].delta is true; it must be a number above 0, or auto"),
    ("checks: [{seed: -1}]", "11:17: checks[0].seed is -1; it must be an integer from 0, or random"),
    ("checks: [{seed: 1.5}]", "11:17: checks[0].seed is 1.5; it must be an integer from 0, or random"),
    ("checks: [{points: 0}]", "11:19: checks[0].points is 0; it must be at least 1"),
    ("checks: [{points: 1.0}]", "11:19: checks[0].points is 1.0; it must be an integer"),
    ("checks: [{points: true}]", "11:19: checks[0].points is true; it must be an integer"),
    ("checks: [{mode: ful}]", "11:17: checks[0].mode is 'ful'; known are auto, full, nodes, directional, sampled."
     " Did you mean 'full'?"),
    ("checks: [{method: cental}]", "11:19: checks[0].method is 'cental'; known are auto, complex-step, richardson,"
     " central, forward. Did you mean 'central'?"),
    ("checks: [{rtol: -1}]", "11:17: checks[0].rtol is -1; it must be a number from 0,"
     " or one for each tensor by name"),
    (f"checks: [{{rtol: {'9' * 400}}}]", f"11:17: checks[0].rtol is {'9' * 37}...; it must be a number from 0,"),
    (f"checks: [{{atol: {{y: {'9' * 400}}}}}]", f"11:21: checks[0].atol.y is {'9' * 37}...; it must be a number from 0,"),
    ("checks: [{rtol: {y: no}}]", "11:21: checks[0].rtol.y is 'no'; it must be a number from 0,"
     " or one for each tensor by name"),
    ("checks: [{rtol: {yy: 1}}]", "11:18: 'g' has no tensor 'yy'."),
    ("checks: [{max_inconclusive: 2}]", "11:29: checks[0].max_inconclusive is 2; it must be at most 1"),
    ("checks: [{val_range: [1, 0]}]", "11:22: checks[0].val_range is [1, 0]; low must not be above high,"
     " and both finite"),
    ("checks: [{val_range: [1]}]", "11:22: checks[0].val_range is [1]; it must be [low, high]"),
    ("checks: [{show: x}]", "11:17: checks[0].show is 'x'; it must be an integer"),
    ("checks: [{params: 1}]", "11:19: checks[0].params is 1; it must be true or false"),
    ("checks: [{dims: {M: 3}}]", "11:18: no input of 'g' has the size 'M'."),
    ("checks: {x: y}", "11:9: checks is {'x': 'y'}; it must be a list"),
    ("checks: [x]", "11:10: checks[0] is 'x'; it must be a mapping"),
    ("checks: [{init_targets: [trained]}]", "11:26: no group of 'init' is called 'trained'."),
    ("checks: [{extra_feed_dict: {xx: 1}}]", "11:29: 'g' has no tensor 'xx'."),
    ("checks: [{extra_feed_dict: {x: [1, 2]}}]", "11:32: the values have the shape [2], declared is [2, 3]"),
    ("checks: [{extra_feed_dict: {i: [1, 0.5]}}]", "11:32: 0.5 is no int64"),
    ("checks: [{extra_feed_dict: {i: [[1, 2], [3]]}}]", "11:32: the lists have different lengths,"
     " so they are no tensor"),
    ("checks: [{x: x, x_init_value: {W: 1}}]", "11:32: 'W' is not among x."),
    ("checks: [{x: x, x_init_value: [a]}]", "11:31: 'a' is no number; a complex one is written '1+2j'"),
    ("checks: [{x: x, x_init_value: 1_0}]", "11:31: '1_0' is a text in YAML, no number; write 10"),
    ("checks: [{x: x, x_init_value: '1+2j'}]", "11:31: complex values for a tensor of float32"),
    ("checks: [{expect: {}}]", "11:19: checks[0].expect says nothing of what is expected: give a status"),
    ("checks: [{expect: {status: fails}}]", "11:28: checks[0].expect.status is 'fails'; known are fail,"
     " severed, inconclusive, unsupported, error, limit. Did you mean 'fail'?"),
    ("checks: [{expect: {status: fail, until: 2027-02-30}}]", "11:41: checks[0].expect.until is '2027-02-30';"
     " it must be a day as YYYY-MM-DD"),
    ("defaults: {point: -1}", "11:19: defaults.point is -1; it must be at least 0"),
    ("defaults: {graph: g}", None),
    ("init: {a: {W1: zeros}}", "11:12: no parameter is called 'W1'."),
    ("init: {a: {W: {kind: normall}}}", "11:22: init.a.W.kind is 'normall'; known are zeros, ones, constant,"),
    ("init: {a: {from: no.npz}}", "11:18: there is no file 'no.npz' in the spec's folder"),
    ("init: {a: {from: 3}}", "11:18: must be the path of a .npz file"),
    ("models: [{path: a.onnx, nme: b}]", "11:25: unknown key 'nme' in models[0]. Did you mean 'name'?"),
    ("models: [{name: a}]", "11:10: models[0] lacks the key 'path'"),
    ("models: [{path: a, name: m}, {path: b, name: m}]", "11:46: a model is called 'm' already"),
    ("models: [{path: a, sha256: 12}]", "11:28: models[0].sha256 is 12; it must be a text"),
]  # fmt: skip


@pytest.mark.parametrize("text, message", HEAD, ids=[text for text, _ in HEAD])
def test_head(tmp_path, text, message):
    assert problems(tmp_path, text) == [message]


@pytest.mark.parametrize("text, message", CHECKS, ids=[text for text, _ in CHECKS])
def test_sections_beside_graphs(tmp_path, text, message):
    [found] = problems(tmp_path, GRAPH + text)
    if message is None:
        assert "unknown key" in found
    else:
        assert found.startswith(message)


GRAPHS = [
    ("nodes: []", "6:15: no tensor is called 'y'."),
    ("nodes: [{op: Relu, inputs: [X], outputs: [y]}]", "4:33: no tensor is called 'X'."),
    ("nodes: [{op: Relu, inputs: [xx], outputs: [y]}]", "4:33: no tensor is called 'xx'. Did you mean 'x'?"),
    ("nodes: [{op: Relu, inputs: [y], outputs: [y]}]", "4:33: 'y' is computed from itself"),
    ("nodes: [{op: Relu, inputs: [x], outputs: [x]}, {op: Relu, inputs: [x], outputs: [y]}]",
     "4:47: 'x' exists already; every tensor is computed once"),
    ("nodes: [{op: Relu, inputs: [h], outputs: [y]}, {op: Relu, inputs: [x], outputs: [h]}]",
     "4:33: 'h' is read before it is computed; nodes stand in the order of computation"),
    ("nodes: [{op: Relu, inputs: [x]}]", "4:13: graphs.g.nodes[0] lacks the key 'outputs'"),
    ("nodes: [{inputs: [x], outputs: [y]}]", "4:13: graphs.g.nodes[0] lacks the key 'op'"),
    ("nodes: [{op: Relu, inputs: x, outputs: [y]}]", "4:32: graphs.g.nodes[0].inputs is 'x'; it must be a list"),
    ("nodes: [{op: Relu, inputs: [{a: 1}], outputs: [y]}]", "4:33: graphs.g.nodes[0].inputs[0] is {'a': 1};"
     " an input is a tensor's name, a number, a list, or null"),
    ("nodes: [{op: acme.Relu, inputs: [x], outputs: [y]}]", "4:18: the operator 'acme.Relu' is not defined in"
     " 'ops'. Other domains known: ai.onnx.ml, ai.onnx.preview.training, ai.onnx.training, com.microsoft,"
     " gradcheck."),
    ("nodes: [{op: acme.Relu, domain: b, inputs: [x], outputs: [y]}]", "4:37: the domain is 'acme' in 'op'"
     " and 'b' here"),
    ("nodes: [{op: Elu, inputs: [x], outputs: [y], attrs: {alpha: null}}]",
     "4:65: graphs.g.nodes[0].attrs.alpha is null; it must be a number, a text or nested lists of them"),
    ("nodes: [{op: Elu, inputs: [x], outputs: [y], attrs: {alpha: 1e300}}]",
     "4:65: 1e+300 does not fit into float32, the type of ONNX's attributes"),
    ("nodes: [{op: Elu, inputs: [x], outputs: [y], attrs: {a: 99999999999999999999}}]",
     "4:61: 99999999999999999999 does not fit into int64"),
    ("nodes: [{op: Elu, inputs: [x], outputs: [y], attrs: {a: [[1]]}}]",
     "4:62: [1] is no value of an attribute; a tensor is written {values: ..., dtype: ...}"),
    ("nodes: [{op: Elu, inputs: [x], outputs: [y], attrs: {a: [1, b]}}]", "4:61: texts and numbers in one list"),
    ("nodes: [{op: Elu, inputs: [x], outputs: [y], attrs: {a: {ref: b}}}]", "4:67: '@b' refers to an attribute,"
     " which only the body of an operator in 'ops' has"),
    ("nodes: [{op: Elu, inputs: [x], outputs: [y], attrs: {a: {values: 1, dtyp: int8}}}]",
     "4:73: unknown key 'dtyp' in graphs.g.nodes[0].attrs.a. Did you mean 'dtype'?"),
    ("nodes: [{op: Elu, inputs: [x], outputs: [y], attrs: {a: {values: [1, 2], shape: [3]}}}]",
     "4:85: 2 values do not fill the shape [3]"),
    ("nodes: [{op: If, inputs: [x], outputs: [y], attrs: {then_branch: {nodes: [{op: Neg, inputs: [xx],"
     " outputs: [z]}], outputs: [w]}}}]", "4:98: no tensor is called 'xx'. Did you mean 'x'?"),
    ("nodes: [{op: If, inputs: [x], outputs: [y], attrs: {then_branch: 'g () => (z) { z = Neg (q) }'}}]",
     "4:13: no tensor is called 'q'."),
    ("nodes: 'y = Relu (z)'", "4:23: no tensor is called 'z'."),
    ("nodes: 'y = Relu x)'", "4:22: not ONNX's text syntax: Expected character ( not found."),
    ("nodes: 'y = acme.F (x)'", "4:13: the operator 'acme.F' is not defined in 'ops'."),
    ("nodes: 'y = Elu <alpha = @a> (x)'", "4:13: '@a' refers to an attribute, which only the body of an"),
    ("nodes: 3", "4:12: graphs.g.nodes is 3; it must be a list or a text"),
    ("inputs: {x: {shape: [2]}, x: {}}", "4:31: the key 'x' stands here a second time; first at 4:14"),
    ("inputs: {x: {shape: [-1]}}", "4:26: graphs.g.inputs.x.shape[0] is -1; a size is an integer from 0,"),
    ("inputs: {x: {shape: 3}}", "4:25: graphs.g.inputs.x.shape is 3; it must be a list"),
    ("inputs: {x: {dtype: float}}", "4:25: graphs.g.inputs.x.dtype is 'float'; known are float16,"),
    ("inputs: {x: {range: [0, .inf]}}", "4:25: graphs.g.inputs.x.range is [0.0, inf]; low must not be above"),
    ("inputs: {x: {range: [1]}}", "4:25: graphs.g.inputs.x.range is [1]; it must have 2 values"),
    ("inputs: {'': {}}", "4:14: graphs.g.inputs"),
    ("params: {x: {init: 1}}\n    outputs: [x]", "4:14: 'x' is an input already"),
    ("dims: {M: 3}", "4:12: no shape of this graph uses the size 'M'."),
    ("opset: 99", "4:12: opset 99 is not known; the newest known is "),
    ("opset: 0", "4:12: graphs.g.opset is 0; it must be at least 1"),
    ("opset: 13\n    nodes: [{op: Relu, inputs: [x, x], outputs: [y]}]", "5:13: node Relu 'y' has 2 inputs;"),
    ("opset: 13\n    nodes: [{op: Elu, inputs: [x], outputs: [y], attrs: {alhpa: 1}}]",
     "5:13: node Elu 'y': attribute 'alhpa' is unknown to opset 13. Did you mean 'alpha'?"),
    ("nodes: [{op: ReduceSum, inputs: [x], outputs: [y], attrs: {keepdims: no}}]",
     "4:13: node ReduceSum 'y': attribute 'keepdims' is of type str; it must be of type INT."),
    ("nodes: 'y = Gemm <transB = 0.0> (x, x)'",
     "4:13: node Gemm 'y': attribute 'transB' is of type float; it must be of type INT."),
    ("nodes: [{op: AveragePool, inputs: [x], outputs: [y], attrs: {kernel_shape: 2}}]",
     "4:13: node AveragePool 'y': attribute 'kernel_shape' is of type int; it must be of type INTS."),
    ("nodes: [{op: Loop, inputs: [3, true, x], outputs: [y], attrs: {bdoy: 1}}]",
     "4:13: node Loop 'y': attribute 'body' is missing."),
    ("nodes: 'y = Relu (x, x)'", "4:13: node Relu 'y' has 2 inputs; at most 1 are possible."),
    ("nodes: 'y = Scan <num_scan_inputs = 1, body = b (r) => (z) { z = Softmax <axis = 1.5> (r) }> (x)'",
     "4:13: node Softmax 'z': attribute 'axis' is of type float; it must be of type INT."),
    ("constants: {x: 1}", "4:17: 'x' exists already"),
    ("constants: {c: {values: [1, 2], dtype: int8, shap: [2]}}", "4:50: unknown key 'shap' in graphs.g.constants.c."
     " Did you mean 'shape'?"),
    ("constants: {c: {values: 300, dtype: int8}}", "4:29: 300 is no int8"),
    ("constants: {c: [true, 1]}", "4:20: true and false stand among numbers"),
    ("outputs: []", "4:14: graphs.g.outputs is []; it must not be empty"),
]  # fmt: skip

PLAIN = {"inputs": "{x: {shape: [2]}}", "nodes": "'y = Relu (x)'", "outputs": "[y]"}


@pytest.mark.parametrize("lines, message", GRAPHS, ids=[lines for lines, _ in GRAPHS])
def test_graphs(tmp_path, lines, message):
    given = {line.strip().split(":")[0] for line in lines.split("\n")}
    rest = "".join(f"\n    {key}: {value}" for key, value in PLAIN.items() if key not in given)
    found = problems(tmp_path, f"gradcheck: 1\ngraphs:\n  g:\n    {lines}{rest}\n")
    assert found[0].startswith(message)


OPS = [
    ("  acme.F: {outputs: [y], forward: 'y = Relu (x)'}", "3:3: ops.acme.F lacks the key 'inputs'"),
    ("  F: {inputs: [x], outputs: [y], forward: 'y = Relu (x)'}", "3:3: an operator of one's own is called"
     " domain.Name, such as acme.F"),
    ("  ai.onnx.F: {inputs: [x], outputs: [y], forward: 'y = Relu (x)'}", "3:3: an operator of one's own is called"
     " domain.Name, such as acme.F; the domain ai.onnx is taken"),
    ("  com.microsoft.Gelu: {inputs: [x], outputs: [y], forward: 'y = Relu (x)'}", "3:3: an operator of one's own is"
     " called domain.Name, such as acme.Gelu; the domain com.microsoft is taken"),
    ("  acme.F: {inputs: [x], outputs: [y], forward: 'y = Relu (x)', cuts: [w]}",
     "3:70: 'w' is none of the inputs: x"),
    ("  acme.F: {inputs: [x], outputs: [y], forward: 'z = Relu (x)'}", "3:39: does not compute 'y', an output of"
     " the operator."),
    ("  acme.F: {inputs: [x, x], outputs: [y], forward: 'y = Relu (x)'}", "3:24: 'x' stands here a second time"),
    ("  acme.F: {inputs: [x], outputs: [y], forward: 'y = Relu (q)'}", "3:59: no tensor is called 'q'."),
    ("  acme.F: {inputs: [x], outputs: [y], forward: 'y = Relu (x)', gradient: 'z = Relu (dy)'}",
     "3:64: computes none of dx, the gradients of its inputs"),
    ("  acme.F: {inputs: [x, b], outputs: [y], forward: 'y = Add (x, b)', gradient: 'dx = Relu (dy) dbb = Relu (dy)'}",
     "3:69: computes 'dbb', which no node reads and which is none of dx, db, the gradients of its inputs. Did you mean"
     " 'db'?"),
    ("  acme.F: {inputs: [x, b], outputs: [y], forward: 'y = Add (x, b)', gradient: 'dx = Relu (dy) z = Relu (dy)'}",
     "3:69: computes 'z', which no node reads and which is none of dx, db, the gradients of its inputs."),
    ("  acme.F: {inputs: [x], outputs: [y], forward: 'y = Relu (x)', gradient: 'dx = Mul (dz, x)'}",
     "3:85: no tensor is called 'dz'."),
    ("  acme.F: {inputs: [y, dy], outputs: [x], forward: 'x = Relu (y)', gradient: 'ddy = Relu (x)'}",
     "3:3: 'dy' is also the name of the gradient of 'y'; choose another"),
    ("  acme.F: {inputs: [x], outputs: [y], forward: 'y = acme.F (x)'}", "3:49: the operator 'acme.F' is defined"
     " by itself: acme.F -> acme.F"),
    ("  acme.F: {inputs: [x], outputs: [y], forward: 'y = ReduceSum <keepdims = @k> (x)', attrs: {k: no}}",
     "3:49: node ReduceSum 'y': attribute 'keepdims' is of type str; it must be of type INT."),
    ("  acme.F: {inputs: [x], outputs: [y], forward: 'y = Relu (x)', gradient: 'dx = Elu <alhpa = 1.0> (dy)'}",
     "3:75: node Elu 'dx': attribute 'alhpa' is unknown to opset 21. Did you mean 'alpha'?"),
    ("  acme.F: {inputs: [x], outputs: [y], forward: 'y = Elu <alpha = @a> (x)', attrs: {b: 1}}",
     "3:49: the operator has no attribute 'a'; it has b"),
    ("  acme.F: {inputs: [x], outputs: [y], forward: 'y = Relu (x)', facts: {domian: {x: [0, 1]}}}",
     "3:72: unknown key 'domian' in ops.acme.F.facts. Did you mean 'domain'?"),
    ("  acme.F: {inputs: [x], outputs: [y], forward: 'y = Relu (x)', facts: {domain: {z: [0, 1]}}}",
     "3:81: 'z' is none of the inputs: x."),
    ("  acme.F: {inputs: [x], outputs: [y], forward: 'y = Relu (x)', facts: {domain: {x: [1, 1]}}}",
     "3:84: ops.acme.F.facts.domain.x is [1.0, 1.0]; least must be below most"),
    ("  acme.F: {inputs: [x], outputs: [y], forward: 'y = Relu (x)', facts: {domain: {x: [1]}}}",
     "3:84: ops.acme.F.facts.domain.x is [1]; it must have 2 values"),
    ("  acme.F: {inputs: [x], outputs: [y], forward: 'y = Relu (x)', facts: {integers: {x: [3, 2]}}}",
     "3:86: ops.acme.F.facts.integers.x is [3, 2]; low must not be above high"),
    ("  acme.F: {inputs: [x], outputs: [y], forward: 'y = Relu (x)', facts: {integers: {x: {along: t}}}}",
     "3:94: 't' is none of the inputs: x."),
    ("  acme.F: {inputs: [x], outputs: [y], forward: 'y = Relu (x)', facts: {roles: {x: wieght}}}",
     "3:83: ops.acme.F.facts.roles.x is 'wieght'; known are weight, statistic, quantization. Did you mean 'weight'?"),
    ("  acme.F: {inputs: [x], outputs: [y], forward: 'y = Relu (x)', facts: {bends: [[x, w]]}, gradient: 'dx = Relu (dy)'}",
     "3:84: 'w' is none of the inputs: x."),
    ("  acme.F: {inputs: [x], outputs: [y], forward: 'y = Relu (x)', facts: {layer: true}}",
     "3:72: ops.acme.F.facts.layer is of an operator with a gradient; else its nodes say it"),
    ("  acme.F: {python: 'os:getcwd'}", "3:12: runs code, which a spec may do only with --allow-python"),
]  # fmt: skip


@pytest.mark.parametrize("line, message", OPS, ids=[line for line, _ in OPS])
def test_operators(tmp_path, line, message):
    assert problems(tmp_path, f"gradcheck: 1\nops:\n{line}\n")[0].startswith(message)


UNUSED = [
    "i, k: dx = Relu (dy)",  # k has no gradient
    "i, k: t, u = TopK (dy, k) dx = Relu (t)",  # u is not needed, t is
    "i, k: one = Constant <value_float = 1.0> () dx = Relu (dy)",
    "x, b: t = Neg (dy) dx = Relu (dy) db = Relu (dy)",  # nothing is missing
]


@pytest.mark.parametrize("case", UNUSED)
def test_a_gradient_may_leave_inputs_and_results_out(tmp_path, case):
    (first, second), (_, gradient) = case.split(":")[0].split(", "), case.split(": ")
    gradient = gradient.replace("dx", f"d{first}")
    path = tmp_path / "f.gradcheck.yaml"
    path.write_text(f"gradcheck: 1\nops:\n  acme.F: {{inputs: [{first}, {second}], outputs: [y], forward: 'y = Add"
                    f" ({first}, {second})', gradient: '{gradient}'}}\n")  # fmt: skip
    read_spec(path)


def test_a_gradient_of_which_a_node_cannot_be_read_is_told_once(tmp_path):
    entry = "inputs: [x, b], outputs: [y], forward: 'y = Add (x, b)', gradient: 't = Neg (dy) dx = Mul (t, zz)'"
    [found] = problems(tmp_path, f"gradcheck: 1\nops:\n  acme.F: {{{entry}}}\n")
    assert found.endswith("no tensor is called 'zz'.")


CALLS = [
    ("y = acme.F (x)", "10:15: acme.F takes the inputs a, b; here are 1"),
    ("y, z = acme.F (x, x)", "10:15: acme.F gives the outputs y; here are 2"),
    ("y = acme.F <alhpa = 1.0> (x, x)", "10:15: acme.F has no attribute 'alhpa'. Did you mean 'alpha'?"),
    ("y = F (x, x)", "10:15: no operator of ONNX is called 'F'. Did you mean 'acme.F'?"),
    ("y = acme.G (x, x)", "10:15: the operator 'acme.G' is not defined in 'ops'. Did you mean 'acme.F'?"),
]


@pytest.mark.parametrize("line, message", CALLS, ids=[line for line, _ in CALLS])
def test_calls_of_operators(tmp_path, line, message):
    text = f"""\
    gradcheck: 1
    ops:
      acme.F: {{inputs: [a, b], outputs: [y], attrs: {{alpha: 1.0}}, forward: 'y = Mul (a, b)'}}
    graphs:
      g:
        inputs: {{x: {{shape: [2]}}}}
        outputs: [y]
        nodes:
          - {{op: Relu, inputs: [x], outputs: [h]}}
          - |-
              # a comment
              {line}
    """
    assert problems(tmp_path, text)[0] == message.replace("10:15", "12:11")


def test_errors_in_text_have_the_line_and_column_of_the_file(tmp_path):
    text = """\
    gradcheck: 1
    graphs:
      g:
        inputs: {x: {shape: [2]}}
        nodes: |

          # a comment with ( a bracket
          a = Relu (x)
          b = Conv <pads = [1, 1],
                    strides = [1, "> 1]> (a)
          [name] c = Relu
            (aa)
        outputs: [c]
    """
    [first, second] = problems(tmp_path, text)
    assert first.startswith("10:")
    assert "not ONNX's text syntax: " in first
    assert second == "12:10: no tensor is called 'aa'. Did you mean 'a'?"


PARAMS = [
    ("{shape: [K], init: zeros}", "4:26: a parameter has the size 'K', which 'dims' does not give."),
    ("{shape: [null], init: zeros}", "4:26: a parameter has an unknown size."),
    ("{init: zeros}", "4:24: zeros needs a shape"),
    ("{shape: [2], init: zeroes}", "4:36: 'zeroes' is no way to initialise; known are zeros, ones, constant,"),
    ("{shape: [2], init: constant}", "4:36: constant needs 'value': write {kind: constant, value: ...}"),
    ("{shape: [2], init: {value: 1}}", "4:36: graphs.g.params.p.init lacks the key 'kind'; known are zeros,"),
    ("{shape: [2], init: {kind: normal, sd: 1}}", "4:51: graphs.g.params.p.init.sd is an unknown key;"
     " normal takes mean, std. Did you mean 'std'?"),
    (f"{{shape: [2], init: {{kind: normal, std: {'9' * 400}}}}}",
     f"4:56: graphs.g.params.p.init.std is {'9' * 37}...; it must be a number"),
    ("{shape: [2], init: {kind: normal, std: x}}", "4:56: graphs.g.params.p.init.std is 'x'; it must be a number"),
    ("{shape: [2], init: {kind: normal, std: -1}}", "4:56: the standard deviation must not be below 0"),
    ("{shape: [2], init: {kind: uniform, low: 1, high: 0}}", "4:36: uniform from 1 to 0 is empty"),
    ("{shape: [2], dtype: int8, init: {kind: uniform, high: 200}}", "4:49: no values of int8 from -1.0 to 200"),
    ("{shape: [2], dtype: int8, init: normal}", "4:49: normal gives no values of int8"),
    ("{shape: [2], init: orthogonal}", "4:36: orthogonal needs a shape of two or more dimensions, not [2]"),
    ("{shape: [300], dtype: int8, init: arange}", "4:51: 128 is no int8"),
    ("{shape: [2], init: [1, 2, 3]}", "4:36: the values have the shape [3], declared is [2]"),
    ("{shape: [2], init: [1, x]}", "4:36: 'x' is no number; a complex one is written '1+2j'"),
    ("{shape: [2], init: [1, '2']}", "4:36: '2' is a text in YAML, no number; write 2"),
    ("{init: 1_000}", "4:24: '1_000' is a text in YAML, no number; write 1000"),
    ("[0.5, [1_0.5]]", "4:17: '1_0.5' is a text in YAML, no number; write 10.5"),
    ("{shape: [2], init: -inf}", "4:36: '-inf' is a text in YAML, no number; write -.inf"),
    ("[nan, 1]", "4:17: 'nan' is a text in YAML, no number; write .nan"),
    ("{shape: [2], init: ['1+1j', 0]}", "4:36: complex values for a tensor of float32"),
    ("{shape: [1000000, 1000000], init: zeros}", "4:51: a tensor of shape [1000000, 1000000] is too large:"),
    ("{shape: [2], init: {kind: file, path: /etc/passwd}}", "4:36: the path '/etc/passwd' is absolute;"),
    ("{shape: [2], init: {kind: file, path: 'C:\\w.npy'}}", "4:36: the path 'C:\\\\w.npy' is absolute;"),
    ("{shape: [2], init: {kind: file, path: ../w.npy}}", "4:36: the path '../w.npy' leads out of the spec's folder"),
    ("{shape: [2], init: {kind: file, path: link.npy}}", "4:36: the path 'link.npy' leads out of the spec's folder"),
    ("{shape: [2], init: {kind: file, path: none.npy}}", "4:36: there is no file 'none.npy' in the spec's folder"),
    ("{shape: [2], init: {kind: file, path: .}}", "4:36: there is no file '.' in the spec's folder"),
    ("{shape: [2], init: {kind: file, path: w.txt}}", "4:36: 'w.txt' is neither a .npy nor a .npz file"),
    ("{shape: [2], init: {kind: file, path: pickled.npy}}", "4:36: 'pickled.npy' cannot be read: it holds Python objects"),
    ("{shape: [2], init: {kind: file, path: huge.npy}}", "4:36: 'huge.npy' cannot be read: its header asks for"),
    ("{shape: [2], init: {kind: file, path: torn.npz}}", "4:36: 'torn.npz' cannot be read: File is not a zip file"),
    ("{shape: [2], init: {kind: file, path: two.npz}}", "4:36: 'two.npz' has 2 arrays; choose one by key: a, bias."),
    ("{shape: [2], init: {kind: file, path: two.npz, key: bais}}", "4:36: 'two.npz' has no array 'bais'; it has"
     " a, bias. Did you mean 'bias'?"),
    ("{shape: [2], init: {kind: file, path: many.npz}}", "4:36: 'many.npz' has 12 arrays; choose one by key: a0, a1, a2,"
     " a3, a4, a5, a6, a7, a8, a9 and 2 more."),
    ("{shape: [2], init: {kind: file, path: two.npz, key: a}}", "4:36: the values have the shape [3], declared is"),
    ("{shape: [2], init: {kind: file, path: w.npy, key: a}}", "4:36: 'w.npy' holds a single array; leave out the key"),
]  # fmt: skip


@pytest.fixture
def files(tmp_path):
    """Arrays that a spec must not read, and some that it may."""
    np.save(tmp_path.parent / "outside.npy", np.zeros(2))
    (tmp_path / "link.npy").symlink_to(tmp_path.parent / "outside.npy")
    np.save(tmp_path / "w.npy", np.zeros(2))
    np.save(tmp_path / "pickled.npy", np.array([{}], dtype=object))
    np.savez(tmp_path / "many.npz", **{f"a{i}": np.ones(2) for i in range(12)})
    np.savez(tmp_path / "two.npz", a=np.zeros(3), bias=np.ones(2))
    (tmp_path / "torn.npz").write_bytes(b"PK nothing")
    (tmp_path / "w.txt").write_text("0 0")
    with open(tmp_path / "huge.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (2 << 40,)})
    return tmp_path


@pytest.mark.parametrize("value, message", PARAMS, ids=[value for value, _ in PARAMS])
def test_parameters(files, value, message):
    text = f"gradcheck: 1\ngraphs:\n  g:\n    params: {{p: {value}}}\n    nodes: []\n    outputs: [p]\n"
    assert problems(files, text)[0].startswith(message)


def test_everything_wrong_is_said_at_once_in_the_order_of_the_file(tmp_path):
    text = """\
    gradcheck: 1
    graphs:
      g:
        inputs: {x: {shape: [2]}}
        params: {W: {shape: [K], init: zeros}, V: {shape: [2], init: zeroes}}
        nodes:
          - {op: Relu, inputs: [xx], outputs: [a]}
          - {op: Relu, inputs: [a], outputs: [b]}
          - "c = Relu (bb)"
        outputs: [b, d]
    """
    lines = [found.split(":")[0] for found in problems(tmp_path, text)]
    assert lines == ["5", "5", "7", "9", "10"]


def test_hundreds_of_errors_are_cut(tmp_path):
    path = tmp_path / "f.yaml"
    path.write_text("gradcheck: 1\nchecks:\n" + "- {foo: 1}\n" * 100)
    with pytest.raises(SpecError) as caught:
        read_spec(path)
    assert str(caught.value).endswith("\n... and 80 more")


def test_a_size_that_nobody_uses_is_refused(tmp_path):
    path = tmp_path / "f.yaml"
    path.write_text(GRAPH)
    with pytest.raises(UsageError, match=r"f\.yaml has no size 'M'\."):
        read_spec(path, dims={"M": 1})


def test_names_are_checked_in_every_graph_of_its_own(tmp_path):
    text = GRAPH + "  f: {inputs: {q: {}}, nodes: [], outputs: [q]}\nchecks: [{graph: f, x: W}]"
    assert problems(tmp_path, text) == ["12:24: 'f' has no tensor 'W'."]


def test_with_several_graphs_a_check_names_its_own(tmp_path):
    text = GRAPH + "  f: {inputs: {q: {}}, nodes: [], outputs: [q]}\nchecks: [{x: x}]"
    assert problems(tmp_path, text) == ["12:10: checks[0] lacks the key 'graph' or 'model'. 'graph' is one of g, f."]


PYTHON = [
    ("os", "3:20: 'os' names no function; write module:function"),
    ("os:", "3:20: 'os:' names no function; write module:function"),
    (":getcwd", "3:20: ':getcwd' names no function; write module:function"),
    ("nowhere.at_all:f", "3:20: nowhere.at_all:f cannot be called: ModuleNotFoundError:"),
    ("os:nothing", "3:20: os:nothing cannot be called: AttributeError:"),
    ("os:getcwd", "3:20: os:getcwd returns no operator: it is '"),
    (
        "operator_for_gradcheck:number",
        "3:20: operator_for_gradcheck:number returns no operator: it is 5; it must be a mapping",
    ),
    (
        "operator_for_gradcheck:typo",
        "3:20: operator_for_gradcheck:typo returns no operator: unknown key 'forwrd'. Did you mean 'forward'?",
    ),
    (
        "operator_for_gradcheck:text",
        "3:20: operator_for_gradcheck:text returns no operator: inputs is 'x'; it must be a list",
    ),
    (
        "operator_for_gradcheck:nodes",
        "3:20: operator_for_gradcheck:nodes returns no operator: forward is 3; it must be a list or a text",
    ),
    ("operator_for_gradcheck:nothing", "3:3: ops.acme.F lacks the key 'inputs'"),
    ("sys:exit", "3:20: sys:exit cannot be called: SystemExit"),
    ("a_script_for_gradcheck:f", "3:20: a_script_for_gradcheck:f cannot be called: SystemExit: 0"),
]


RETURNING = """\
def number(): return 5
def typo(): return {"inputs": ["x"], "outputs": ["y"], "forwrd": "y = Tanh (x)"}
def text(): return {"inputs": "x", "outputs": ["y"], "forward": "y = Tanh (x)"}
def nodes(): return {"inputs": ["x"], "outputs": ["y"], "forward": 3}
def nothing(): return {"outputs": ["y"], "forward": "y = Tanh (x)"}
"""
USING = "graphs:\n  g: {inputs: {x: {shape: [3]}}, nodes: 'y = acme.F (x)', outputs: [y]}\n"


@pytest.mark.parametrize("target, message", PYTHON)
def test_python_that_gives_no_operator(tmp_path, monkeypatch, target, message):
    (tmp_path / "a_script_for_gradcheck.py").write_text("def f(): ...\nraise SystemExit(0)\n")
    (tmp_path / "operator_for_gradcheck.py").write_text(RETURNING)
    monkeypatch.syspath_prepend(tmp_path)
    text = f"gradcheck: 1\nops:\n  acme.F: {{python: '{target}'}}\n"
    for using in ("", USING):
        [found] = problems(tmp_path, text + using, allow_python=True)
        assert found.startswith(message)


WITHOUT = [
    ("python: 'os:getcwd'", "3:12: runs code, which a spec may do only with --allow-python"),
    ("outputs: [y], forward: 'y = Relu (x)'", "3:3: ops.acme.F lacks the key 'inputs'"),
    ("inputs: [x], outputs: [y]", "3:3: ops.acme.F lacks the key 'forward'"),
]


@pytest.mark.parametrize("entry, message", WITHOUT)
def test_an_operator_without_a_body_is_told_once(tmp_path, entry, message):
    assert problems(tmp_path, f"gradcheck: 1\nops:\n  acme.F: {{{entry}}}\n{USING}") == [message]


def test_python_that_runs_out_of_memory_is_a_limit(tmp_path, monkeypatch):
    (tmp_path / "memory_for_gradcheck.py").write_text("def f(): raise MemoryError\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "f.gradcheck.yaml"
    path.write_text("gradcheck: 1\nops:\n  acme.F: {python: 'memory_for_gradcheck:f'}\n")
    with pytest.raises(LimitError, match=r"^memory_for_gradcheck:f: out of memory") as caught:
        read_spec(path, allow_python=True)
    assert caught.value.code == "GC602"


def test_an_interrupt_of_python_stays_one(tmp_path, monkeypatch):
    (tmp_path / "an_interrupt_for_gradcheck.py").write_text("raise KeyboardInterrupt\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "f.gradcheck.yaml"
    path.write_text("gradcheck: 1\nops:\n  acme.F: {python: 'an_interrupt_for_gradcheck:f'}\n")
    with pytest.raises(KeyboardInterrupt):
        read_spec(path, allow_python=True)


CONSTANTS = [
    ("one", "value_float = @beta", "8:7: 'value_float' of Constant cannot be 'one'"),
    ("1.0", "value_float = 'a'", "8:7: 'value_float' of Constant cannot be 'a'"),
    ("1.0", "value_int = 2.0e20", "8:7: 'value_int' of Constant cannot be 2.0000000400817547e+20"),
    ("1.0", "value_int = 99999999999999999999", "8:7: not ONNX's text syntax: a number in it is too large"),
]


@pytest.mark.parametrize("beta, attribute, message", CONSTANTS)
def test_constants_that_cannot_be(tmp_path, beta, attribute, message):
    text = f"""\
        gradcheck: 1
        ops:
          own.Scaled:
            inputs: [x]
            outputs: [y]
            attrs: {{beta: {beta}}}
            forward: |
              b = Constant <{attribute.replace("'", '"')}> ()
              y = Mul (b, x)
        """
    assert problems(tmp_path, text) == [message]
