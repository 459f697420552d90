"""`gradcheck ops`: forward, gradient, versions, dtypes and kinks of every operator, as facts."""

from __future__ import annotations

import json

import pytest
from onnx import defs

from gradcheck_cli.op import zero
from gradcheck_cli.ops import OPS
from gradcheck_cli.ops.facts import FORWARD, GRADIENT, OperatorFacts, all_facts
from gradcheck_cli.report.operators import classes, listing, page
from tests.cli.conftest import Command
from tests.versions import is_later

FACTS = {(f.domain, f.name): f for f in all_facts()}
every_operator = pytest.mark.parametrize("facts", FACTS.values(), ids=lambda f: f.full_name)


def test_every_operator_that_is_known_or_defined_by_onnx_is_there() -> None:
    defined = {(s.domain, s.name) for s in defs.get_all_schemas_with_history()}
    assert set(FACTS) == {*OPS, *defined}


@every_operator
def test_facts_are_those_of_the_operator_table(facts: OperatorFacts) -> None:
    op = OPS.get((facts.domain, facts.name))
    assert (facts.forward in FORWARD, facts.gradient in GRADIENT) == (True, True)
    if op is None:
        assert facts.known == bool(facts.read_as)
        return
    assert (facts.forward == "composed") == op.composed
    assert (facts.gradient == "zero") == (op.vjp is zero)
    assert (facts.gradient == "none") == (not op.differentiable)
    assert facts.kinks == ("parts" if op.composed else "yes" if op.branch is not None else "no")


@every_operator
def test_versions_and_dtypes_are_those_of_onnx(facts: OperatorFacts) -> None:
    if facts.domain == "gradcheck" or not defs.has(facts.name, facts.domain) or is_later(facts.name, facts.domain):
        return
    newest = defs.get_schema(facts.name, domain=facts.domain)
    while newest.deprecated:
        newest = defs.get_schema(facts.name, newest.since_version - 1, facts.domain)
    assert facts.versions[-1] == newest.since_version
    assert list(facts.versions) == sorted(set(facts.versions))
    formals = newest.inputs or newest.outputs
    assert list(facts.dtypes) == [formal.name for formal in formals]
    for formal in formals:
        kinds = {t if t.startswith("tensor(") else t.split("(")[0] for t in formal.types}
        assert len(facts.dtypes[formal.name]) == len(kinds), formal.types
    assert ("float32" in facts.dtypes[facts.data]) == any(
        "tensor(float)" in f.types for f in formals if f.name == facts.data
    )


def test_some_facts_by_hand() -> None:
    relu, softmax, where = FACTS["", "Relu"], FACTS["", "Softmax"], FACTS["", "Where"]
    assert (relu.forward, relu.gradient, relu.kinks, relu.versions) == ("kernel", "rule", "yes", (1, 6, 13, 14))
    assert softmax.dtypes == {"input": ("float32", "float16", "float64", "bfloat16")}
    assert (where.data, where.dtypes["condition"]) == ("X", ("bool",))
    assert (FACTS["", "Floor"].gradient, FACTS["", "Upsample"].read_as) == ("zero", "Resize")
    assert (FACTS["", "Clip"].complex_step, FACTS["", "LSTM"].gradient) == ("yes", "composed")


@pytest.mark.parametrize("dtypes, word", [
    (("float32", "float16", "bfloat16"), "float"),
    (("float8_e4m3fn", "int4"), "float int"),
    (("bool",), "bool"),
    (("uint2", "int64"), "int"),
    (("float32", "complex64"), "float complex"),
    (("float32", "int8", "bool"), "real"),
    (("float32", "int8", "bool", "complex64"), "any"),
    (("float32", "string", "sequence"), "float"),
    (("string",), "string"),
    (("sequence",), "sequence"),
    ((), ""),
])  # fmt: skip
def test_dtypes_in_a_word(dtypes: tuple[str, ...], word: str) -> None:
    assert classes(dtypes) == word


def test_the_list_has_a_line_for_each_operator_within_80_columns(gradcheck: Command) -> None:
    out = gradcheck("ops").out
    head, *lines = out.splitlines()
    assert head.split() == ["operator", "forward", "gradient", "versions", "dtypes", "kinks"]
    assert max(map(len, [head, *lines])) <= 80
    starts = [line.split(" ")[0] for line in lines]
    shown = [f for f in FACTS.values() if f.known and not f.read_as]
    assert all(starts.count(f.name) >= 1 for f in shown)
    assert ["Softmax", "kernel", "rule", "1-13", "float"] in [line.split() for line in lines]
    assert "ai.onnx.ml" in lines
    assert "  Constant (a constant), Scatter (ScatterElements), Upsample (Resize)" in lines


def test_an_operator_that_only_onnx_knows_is_listed_as_not_known() -> None:
    unknown = OperatorFacts(
        "Magic", "acme", "none", "none", (1,), {"x": ("float32",)}, "x", "no", "no", {}, {}
    )  # fmt: skip
    known = [f for f in FACTS.values() if f.known or not is_later(f.name, f.domain)]
    assert listing([*known, unknown]).endswith("Not known, so that a check stops there:\n  acme.Magic\n")


def test_a_page_says_all_about_one(gradcheck: Command) -> None:
    assert gradcheck("ops", "leakyrelu").out.splitlines()[2:] == [
        "  forward       computed by a kernel of its own",
        "  gradient      by a rule of its own",
        "  known         proven by exact integers over shape (11 values), alpha (4)",
        "  kinks         yes",
        "  complex step  yes",
        "  versions      1, 6, 16",
        "  input 0       X: float32, float16, float64, bfloat16",
        "  attribute     alpha = 0.01",
    ]
    assert "  input 1       axes, a constant: int64\n" in gradcheck("ops", "ReduceSum").out


def test_every_page_fits_80_columns() -> None:
    pages = {facts.full_name: page(facts).splitlines() for facts in FACTS.values()}
    assert [name for name, lines in pages.items() if lines[0] != name] == []
    assert [name for name, lines in pages.items() if max(map(len, lines)) > 80] == []


def test_json_has_the_same_facts(gradcheck: Command) -> None:
    listed = json.loads(gradcheck("ops", "--output-format", "json").out)
    assert [(op["domain"], op["name"]) for op in listed] == list(FACTS)
    [conv] = json.loads(gradcheck("ops", "Conv", "--output-format", "json").out)
    assert (conv["forward"], conv["gradient"], conv["versions"]) == ("kernel", "rule", [1, 11, 22])
    assert conv["dtypes"]["W"] == ["float32", "float16", "float64", "bfloat16"]
