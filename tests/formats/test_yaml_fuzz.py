"""Whatever stands in a file, reading it ends in a spec or in an error of gradcheck's own."""

# ruff: noqa: SIM905  (lists of words)

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradcheck_cli.errors import GradcheckError, SpecError
from gradcheck_cli.formats.yaml.reading import read_spec

ROOT = Path(__file__).parents[2]
SPECS = [path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("specs/*.gradcheck.yaml"))]
QUICK = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def survives(tmp_path, data):
    path = tmp_path / "f.gradcheck.yaml"
    path.write_bytes(data)
    found = outcome(path)
    if isinstance(found, SpecError):
        assert found.exit_code == 2
        assert str(found).startswith(str(path))


def outcome(path):
    """The spec in a file, or the error that reading it ends in."""
    try:
        return read_spec(path)
    except GradcheckError as error:
        return error


@QUICK
@given(st.binary(max_size=60))
def test_bytes(tmp_path, data):
    survives(tmp_path, data)


@QUICK
@given(st.text(alphabet="abc:-[]{}&*!|>'\"#%@`,?\t\n <=01.e~", max_size=60))
def test_yaml_like_text(tmp_path, text):
    survives(tmp_path, f"gradcheck: 1\n{text}".encode())


@pytest.mark.slow
@QUICK
@given(st.sampled_from(SPECS), st.data())
def test_specs_with_a_piece_replaced(tmp_path, spec, data):
    start = data.draw(st.integers(0, len(spec) - 1))
    end = data.draw(st.integers(start, min(len(spec), start + 12)))
    piece = data.draw(st.text(alphabet="xyW[]{}:,-1.0e|<>()=@ \n'", max_size=6))
    survives(tmp_path, (spec[:start] + piece + spec[end:]).encode())


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(
    ["", "x", "y", "W", "zeros", "acme.F", "y = Relu (x)", "1+2j", "Relu", "If", "file", "normal", "auto", "a.npz"]
)  # fmt: skip
KEYS = st.sampled_from(
    "gradcheck defaults graphs ops init checks models g acme.F x y W inputs outputs nodes params constants dims opset"
    " op attrs name domain then_branch body ref values dtype shape kind path key from range seed delta x_init_value"
    " extra_feed_dict init_targets expect status until forward gradient python rtol val_range model graph".split()
)
TREES = st.recursive(SCALARS, lambda t: st.lists(t, max_size=3) | st.dictionaries(KEYS, t, max_size=4), max_leaves=12)
NODE = st.fixed_dictionaries(
    {"op": st.sampled_from(["Relu", "If", "acme.F", "FFT", "Constant"]), "outputs": st.just(["y"])},
    optional={"inputs": st.lists(SCALARS, max_size=3), "attrs": st.dictionaries(KEYS, TREES, max_size=2)},
)
GRAPH = st.fixed_dictionaries(
    {"outputs": st.just(["y"]), "nodes": st.lists(NODE, max_size=2) | TREES},
    optional={
        "inputs": st.just({"x": {"shape": [2]}}) | TREES,
        "params": st.dictionaries(KEYS, st.fixed_dictionaries({"init": TREES, "shape": st.just([2, 2])}) | TREES),
        "constants": st.dictionaries(KEYS, TREES, max_size=2),
        "opset": st.integers(1, 30),
        "dims": TREES,
    },
)
FILES = st.fixed_dictionaries(
    {"gradcheck": st.just(1)},
    optional={
        "graphs": st.dictionaries(KEYS, GRAPH, max_size=2),
        "checks": st.lists(st.dictionaries(KEYS, TREES, max_size=4), max_size=2),
        "ops": st.dictionaries(st.just("acme.F"), TREES, max_size=1),
        "init": st.dictionaries(KEYS, st.dictionaries(KEYS, TREES, max_size=2), max_size=1),
        "models": TREES,
        "defaults": st.dictionaries(KEYS, TREES, max_size=2),
    },
)


@pytest.mark.slow
@QUICK
@given(FILES)
def test_files_of_the_right_form(tmp_path, file):
    text = json.dumps(file).replace("NaN", ".nan").replace("-Infinity", "-.inf").replace("Infinity", ".inf")
    survives(tmp_path, text.encode())


TOKENS = st.sampled_from('y = Relu ( ) < > { } [ ] x , => @a alpha 1.0 "s # \n float g : ; Constant value'.split(" "))


@QUICK
@given(st.lists(TOKENS, max_size=25))
def test_onnx_text(tmp_path, tokens):
    text = json.dumps(" ".join(tokens))
    spec = f"gradcheck: 1\ngraphs: {{g: {{inputs: {{x: {{}}}}, nodes: {text}, outputs: [x]}}}}"
    survives(tmp_path, spec.encode())


@pytest.mark.parametrize("text", ["(" * 100_000, "{" * 100, "y = If (x) <a = g () => (z) {" * 200])
def test_deep_brackets(tmp_path, text):
    spec = f"gradcheck: 1\ngraphs: {{g: {{inputs: {{x: {{}}}}, nodes: '{text}', outputs: [x]}}}}"
    survives(tmp_path, spec.encode())
