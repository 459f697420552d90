"""`--baseline`: what failed before in the same way is waived, everything else counts."""

from __future__ import annotations

import datetime
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradcheck_cli.cli.baseline import Baseline, Known, Manner, key_of, with_waiver
from gradcheck_cli.results.record import Check, ModelInfo, Suspect
from tests.cli.conftest import WRONG, Command

SPEC = "wrong.gradcheck.yaml"


@pytest.fixture(params=["before.json", "before.jsonl"])
def baseline(gradcheck: Command, request: pytest.FixtureRequest) -> str:
    """The results of a run in which a check and a model failed."""
    assert gradcheck(SPEC, "lfs.onnx", "log.onnx", "--report", request.param).code == 1
    return str(request.param)


def test_what_failed_in_the_same_way_is_waived(gradcheck: Command, baseline: str) -> None:
    ran = gradcheck(SPEC, "lfs.onnx", "log.onnx", "--baseline", baseline, "--output-format", "concise")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        f"{SPEC}:18: square/wrong: d loss/d x: KNOWN FAILURE fail, as expected: {baseline}",
        f"{SPEC}:19: square/known: d loss/d x: KNOWN FAILURE fail, as expected: ACME-412 (until 2999-12-31)",
        f"{SPEC}:21: sum/right: d loss/d h: PASS 3 entries, max rel err 0.0e+00",
        f"lfs.onnx: KNOWN FAILURE error, as expected: {baseline}",
        f"log.onnx: d y/d x: KNOWN FAILURE inconclusive, as expected: {baseline}",
        "5 checks: 1 passed, 4 known failures in TIME",
    ]
    assert gradcheck("lfs.onnx", "--baseline", baseline).code == 0
    apart = gradcheck(SPEC, "--check", "square/wrong", "--baseline", baseline, "--timeout", "60s")
    assert (apart.code, apart.err) == (0, "")


def test_what_failed_otherwise_or_not_at_all_counts(gradcheck: Command, folder: Path, baseline: str) -> None:
    (folder / "lfs.onnx").write_bytes(b"")
    assert gradcheck("lfs.onnx", "--baseline", baseline).code == 4
    assert gradcheck("unknown.onnx", "--baseline", baseline).code == 5
    without = WRONG.replace("expect:", "x_shape: {}, extra_feed_dict: {}, #")
    (folder / SPEC).write_text(without.replace(",\n     x_shape", ", x_shape").split("#")[0].rstrip(", ") + "}\n")
    assert gradcheck(SPEC, "--check", "square/known", "--baseline", baseline).code == 1


BAD = "gradcheck: 1\nchecks: [{model: mlp.onnx, detla: 1}]\n"


@pytest.mark.parametrize(
    ("argv", "code"),
    [(["bad.gradcheck.yaml"], 2), (["mlp.onnx", "--x", "nope"], 2), (["mlp.onnx", "bad.gradcheck.yaml"], 2)],
)
def test_a_run_that_could_not_do_what_it_was_asked_for_is_never_waived(
    gradcheck: Command, folder: Path, argv: list[str], code: int
) -> None:
    """One code tells of every mistake in a spec: a check that is misspelt today would hide one that ends tomorrow."""
    (folder / "bad.gradcheck.yaml").write_text(BAD)
    assert gradcheck(*argv, "--report", "before.json").code == code
    assert gradcheck(*argv, "--baseline", "before.json").code == code
    assert gradcheck("report", "before.json", "--baseline", "before.json", "--gate").code == code
    assert gradcheck("zoo", "bad.gradcheck.yaml", "--baseline", "before.json", "--run", "zoo").code == 2


RULE = """gradcheck: 1
ops:
  acme.F:
    inputs: [x]
    outputs: [y]
    forward: y = Mul (x, x)
    gradient: |
      {}
graphs:
  net: {{inputs: {{x: {{shape: [40], range: [0.5, 2]}}}}, nodes: y = acme.F (x), outputs: [y]}}
checks: [{{name: f, graph: net, x: x, y: y}}]
"""


def rule(factor: str) -> str:
    """A spec of which the gradient, dy * 2 x, is taken times a factor."""
    lines = ("h = Mul (dy, x)", "d = Add (h, h)", f"c = Constant <value_float = {factor}> ()", "dx = Mul (d, c)")
    return RULE.format("\n      ".join(lines))


@pytest.mark.parametrize(
    "before, now, code",
    [
        (rule("1.00001"), rule("1.00001"), 0),
        (rule("1.00001"), rule("1.00003"), 0),
        (rule("1.00003"), rule("1.00001"), 0),
        (rule("1.00001"), rule("1.5"), 1),  # much worse
        (rule("2.0"), rule("-1.0"), 1),  # another pattern
        (rule("2.0"), rule("2.0").replace("acme.F", "acme.G"), 1),  # another operator
    ],
)
def test_a_failure_that_is_known_is_another_where_it_fails_otherwise(
    gradcheck: Command, folder: Path, before: str, now: str, code: int
) -> None:
    """The way is the code, the operator that is wrong, the pattern, and the size of the error; in zoo as in check."""
    spec = folder / "rule.gradcheck.yaml"
    spec.write_text(before)
    assert gradcheck(spec.name, "--report", "before.json").code == 1
    spec.write_text(now)
    assert gradcheck(spec.name, "--baseline", "before.json", "--report", "now.json").code == code
    assert gradcheck("report", "now.json", "--gate").code == code
    assert gradcheck("zoo", spec.name, "--run", "run", "--baseline", "before.json", "--report", "zoo.json").code == code
    assert gradcheck("report", "zoo.json", "--gate").code == code
    assert gradcheck("zoo", "report", "run", "--baseline", "before.json").code == code


FAILED: dict[str, Any] = {"status": "fail", "code": "GC101", "needed": {"rtol": 1e-3}}


def record(status: str = "pass", failed: int = 0, **more: Any) -> Check:
    entries = {"total": 40, "checked": 40, "failed": failed, "inconclusive": 0}
    return Check("n", "n", status, more.pop("code", ""), ModelInfo("m.onnx"), "x", "y", entries=entries, **more)


def after(before: Check) -> Baseline:
    """The baseline of a run with one record."""
    return Baseline("before.json", {key_of(before): Known.of(before)})


@pytest.mark.parametrize(
    ("now", "waived"),
    [
        (record(**FAILED, failed=3), True),
        (record(**FAILED, failed=30), True),
        (record(**FAILED, failed=31), False),  # more than ten times as many entries
        (record(**{**FAILED, "needed": {"rtol": 1e-2}}, failed=3), True),
        (record(**{**FAILED, "needed": {"rtol": 1.1e-2}}, failed=3), False),  # more than ten times as wrong
        (record(**{**FAILED, "code": "GC102"}, failed=3), False),
        (record("inconclusive", code="GC303"), False),
    ],
)
def test_a_known_failure_that_spreads_or_grows_is_another(now: Check, waived: bool) -> None:
    [judged] = after(record(**FAILED, failed=3)).waived((now,))
    assert (judged.status == "waived") == waived


def test_the_operator_of_a_failure_is_that_of_the_node() -> None:
    """A composed one is wrong in a part of it that another version may be made without."""
    parts = [Suspect(1, op, "", ("y",), part_of="Gelu") for op in ("Erf", "Tanh")]
    assert {Manner.of(record(**FAILED, failed=1, suspect=part)).operator for part in parts} == {"Gelu"}
    alone = Suspect(1, "Erf", "", ("y",))
    assert Manner.of(record(**FAILED, failed=1, suspect=alone)).operator == "Erf"


def test_a_waived_forward_run_says_nothing_of_how_the_gradient_came_out() -> None:
    differs: dict[str, Any] = {"gates": ("forward",), "forward": {"agrees": False}}
    before = after(record(**differs)).judged(record("inconclusive", code="GC303", **differs))
    assert (before.status, before.gates, before.waiver and before.waiver["forward"]) == ("inconclusive", (), "differs")
    assert Known.of(before)[:2] == (("inconclusive", "GC303", ()), True)


@pytest.mark.parametrize(("agrees", "repaired"), [(True, ["n"]), (False, []), (None, [])])
def test_a_forward_run_that_was_not_made_is_not_repaired(agrees: bool | None, repaired: list[str]) -> None:
    differs: dict[str, Any] = {"gates": ("forward",), "forward": {"agrees": False}}
    baseline = after(record(**differs))
    baseline.waived((record(forward={"agrees": agrees}, gates=("forward",) * (agrees is False)),))
    assert baseline.repaired == repaired


LAST = datetime.date(2027, 3, 31)
EXPECTED = {"status": "fail", "until": LAST}


@pytest.mark.parametrize(("day", "status"), [(0, "waived"), (1, "fail")])
def test_a_waiver_holds_on_its_last_day(day: int, status: str) -> None:
    [judged] = with_waiver((record(**FAILED),), EXPECTED, LAST + datetime.timedelta(day))
    assert (judged.status, bool(judged.waiver and judged.waiver.get("ended"))) == (status, day == 1)


@pytest.mark.parametrize(("agrees", "code"), [(True, "GC203"), (None, "")])
def test_an_expected_difference_is_over_only_where_the_forward_run_was_made(agrees: bool | None, code: str) -> None:
    check = record(forward={"agrees": agrees})
    assert [each.code for each in with_waiver((check,), {"forward": "differs"}, LAST)] == [code]
    other = replace(check, x="other", gates=("forward",), forward={"agrees": False})
    assert [each.code for each in with_waiver((check, other), {"forward": "differs"}, LAST)] == ["", ""]


@pytest.mark.parametrize("limits", [[], ["--timeout", "60s"]], ids=["here", "apart"])
def test_what_passes_now_is_noted(gradcheck: Command, baseline: str, limits: list[str]) -> None:
    ran = gradcheck(SPEC, "--rtol", "10", "--check", "square/wrong", "--baseline", baseline, *limits)
    assert (ran.code, ran.err) == (0, f"note: {baseline}: 1 check of it passed: write it anew with --report\n")


def test_checks_of_other_specs_are_others_though_they_are_called_the_same(
    gradcheck: Command, folder: Path, baseline: str
) -> None:
    (folder / "other.gradcheck.yaml").write_text(WRONG)
    assert gradcheck("other.gradcheck.yaml", "--check", "square/wrong", "--baseline", baseline).code == 1
    both = gradcheck(SPEC, "other.gradcheck.yaml", "--baseline", baseline, "--output-format", "concise")
    assert [line.split(": ")[3].split()[0] for line in both.out.splitlines()[:-1]] == [
        "KNOWN", "KNOWN", "PASS", "FAIL", "KNOWN", "PASS",
    ]  # fmt: skip
    assert gradcheck(f"./{SPEC}", "--check", "square/wrong", "--baseline", baseline).code == 0


def test_a_baseline_of_other_checks_is_noted(gradcheck: Command, baseline: str) -> None:
    ran = gradcheck("mlp.onnx", "--baseline", baseline)
    assert ran.code == 0
    assert ran.err == f"note: {baseline} knows none of these checks: were their models named from another folder?\n"


def test_waived_records_say_why(gradcheck: Command, baseline: str) -> None:
    ran = gradcheck(SPEC, "--check", "square/wrong", "--baseline", baseline, "--output-format", "json")
    [record] = json.loads(ran.out)["checks"]
    assert (record["status"], record["code"]) == ("waived", "GC101")
    assert record["waiver"] == {"status": "fail", "reason": baseline, "until": None, "baseline": True}


def test_results_of_a_run_with_a_baseline_are_a_baseline(gradcheck: Command, baseline: str) -> None:
    assert gradcheck(SPEC, "lfs.onnx", "--baseline", baseline, "--report", baseline).code == 0
    assert gradcheck(SPEC, "lfs.onnx", "--baseline", baseline).code == 0


def test_a_baseline_does_not_outlast_the_waiver_of_a_spec(gradcheck: Command, folder: Path, baseline: str) -> None:
    (folder / SPEC).write_text(WRONG.replace("2999-12-31", "2020-01-01"))
    ran = gradcheck(SPEC, "--check", "square/known", "--baseline", baseline)
    assert ran.code == 1
    assert "was a known failure, ACME-412, until 2020-01-01" in ran.out


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": "other/1"}', '{"schema": "gradcheck.run/1"}', "\x00", "[" * 9999]
)
def test_a_file_without_results_is_refused(gradcheck: Command, folder: Path, text: str) -> None:
    (folder / "no.json").write_text(text)
    ran = gradcheck("mlp.onnx", "--baseline", "no.json")
    assert (ran.code, ran.out) == (2, "")
    assert re.match(r"error GC201: --baseline no\.json(:1)? holds no results?\b", ran.err)
    assert "no such.json cannot be read" in gradcheck("mlp.onnx", "--baseline", "no such.json").err


DEAD = """gradcheck: 1
graphs:
  net:
    inputs: {x: {shape: [2, 3]}}
    params: {b: [-100.0, -100.0, 1.0]}
    nodes: |
      a = Add(x, b)
      h = Relu(a)
      y = ReduceSum<keepdims=0>(h)
    outputs: [y]
checks: [{graph: net, x: b, y: y}]
"""
HEALTH = [  # gates of the baseline and of the run, a change of the spec, the exit code, and what it says
    ("dead", "dead", None, 0, "KNOWN FAILURE dead, as expected: before.json"),
    ("dead", "dead,vanishing", None, 0, "KNOWN FAILURE dead, as expected: before.json"),
    ("fail", "dead", None, 1, "its gradient is dead (--fail-on dead)"),
    ("vanishing", "dead", None, 1, "its gradient is dead (--fail-on dead)"),
    ("dead", "dead", ("-100.0, -100.0, 1.0", "1.0, 2.0, 3.0"), 0, "before.json: 1 check of it passed"),
    ("dead", "fail", None, 0, "1 passed"),
    ("dead", "dead", ("Relu", "Round"), 1, "severed"),
]


@pytest.mark.parametrize(("before", "now", "change", "code", "said"), HEALTH)
def test_the_health_of_a_gradient_may_be_known(
    gradcheck: Command, folder: Path, before: str, now: str, change: tuple[str, str] | None, code: int, said: str
) -> None:
    spec = folder / "net.gradcheck.yaml"
    spec.write_text(DEAD)
    gradcheck(spec.name, "--fail-on", before, "--report", "before.json")
    if change is not None:
        spec.write_text(spec.read_text().replace(*change))
    ran = gradcheck(
        spec.name, "--fail-on", now, "--baseline", "before.json", "--report", "now.json", "--output-format", "concise"
    )
    assert ran.code == code
    assert said in ran.out + ran.err
    zoo = gradcheck("zoo", spec.name, "--run", "run", "--fail-on", now, "--baseline", "before.json")
    later = gradcheck("zoo", "report", "run", "--fail-on", now, "--baseline", "before.json")
    again = gradcheck("report", "now.json", "--gate", "--fail-on", now, "--baseline", "before.json")
    assert [zoo.code, later.code, again.code] == [code] * 3
    assert gradcheck(spec.name, "--fail-on", now, "--baseline", "now.json").code == 0


def test_health_that_is_known_lets_no_other_word_through_later(gradcheck: Command, folder: Path) -> None:
    (folder / "net.gradcheck.yaml").write_text(DEAD)
    gradcheck("net.gradcheck.yaml", "--fail-on", "dead", "--report", "before.json")
    gradcheck("net.gradcheck.yaml", "--fail-on", "dead", "--baseline", "before.json", "--report", "now.json")
    text = (folder / "now.json").read_text()
    assert '"shows": ["dead"]' in text
    (folder / "now.json").write_text(text.replace('"shows": ["dead"]', '"shows": ["dead", "vanishing"]'))
    codes = {"dead": 0, "vanishing": 1, "dead,vanishing": 1, "fail": 0}
    assert {word: gradcheck("report", "now.json", "--gate", "--fail-on", word).code for word in codes} == codes
