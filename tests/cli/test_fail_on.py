"""`--fail-on`: lists of outcomes and of health, what they leave out, and what they say where they name nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import gradcheck_cli
from gradcheck_cli.errors import UsageError
from gradcheck_cli.report.concise import totals
from gradcheck_cli.results.record import GATES, OUTCOMES, Check, ModelInfo, Report, gates_from, words_for
from tests.cli.conftest import Command

LISTS = [
    ("fail", ("fail",)),
    ("severed,fail", ("fail", "severed")),
    ("fail,dead", ("fail", "dead")),
    ("dead", (*OUTCOMES, "dead")),
    ("vanishing,exploding", (*OUTCOMES, "vanishing", "exploding")),
    ("+dead", (*OUTCOMES, "dead")),
    ("-severed", ("fail", "inconclusive", "unsupported", "forward")),
    ("-severed,-forward,nonfinite", ("fail", "inconclusive", "unsupported", "nonfinite")),
    ("+dead,-inconclusive", ("fail", "unsupported", "severed", "forward", "dead")),
    ("fail,+severed", ("fail", "severed")),
    ("fail,severed,-severed", ("fail",)),
    ("-fail,+fail", OUTCOMES),
    (" fail , severed ", ("fail", "severed")),
    ("-fail,-inconclusive,-unsupported,-severed,-forward,dead", ("dead",)),
]


@pytest.mark.parametrize("text, gates", LISTS)
def test_a_list_means(text: str, gates: Sequence[str]) -> None:
    found = gates_from(word.strip() for word in text.split(","))
    assert found == tuple(gates)
    assert gates_from(words_for(found)) == found


@pytest.mark.parametrize("text", ["", ",", "fails", "+fails", "-fails", "+", "fail,-fail", "fail,,nothing"])
def test_an_empty_list_and_an_unknown_word_are_errors(text: str, gradcheck: Command) -> None:
    with pytest.raises(UsageError):
        gates_from(text.split(","))
    ran = gradcheck("mlp.onnx", f"--fail-on={text}")
    assert (ran.code, "--fail-on" in ran.err) == (2, True)


@pytest.mark.parametrize("value", ["-inconclusive", "fail,severed", "fail"])
def test_what_a_list_leaves_out_and_occurs_is_in_the_summary(gradcheck: Command, value: str) -> None:
    ran = gradcheck("log.onnx", "--fail-on", value)
    assert (ran.code, "1 inconclusive, not in --fail-on" in ran.out) == (0, True)
    assert "not in --fail-on" not in gradcheck("log.onnx", "--exit-zero").out
    assert "not in --fail-on" not in gradcheck("log.onnx").out


def test_a_list_of_health_words_is_added_to_the_default(gradcheck: Command) -> None:
    assert gradcheck("log.onnx", "--fail-on", "dead").code == 3


@pytest.mark.parametrize("said", ['"-inconclusive"', '["fail", "severed"]', '"fail"'])
def test_a_configuration_file_takes_the_same_list(gradcheck: Command, folder: Path, said: str) -> None:
    (folder / "gradcheck.toml").write_text(f"fail-on = {said}\n")
    assert gradcheck("log.onnx").code == 0
    (folder / "gradcheck.toml").write_text("fail-on = []\n")
    assert gradcheck("log.onnx").code == 2


def test_the_environment_takes_the_same_list(gradcheck: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADCHECK_FAIL_ON", "-inconclusive")
    assert gradcheck("log.onnx").code == 0


def test_the_python_function_takes_the_same_list(folder: Path) -> None:
    model = gradcheck_cli.load(folder / "mlp.onnx")
    x, y = "input", "loss"
    assert gradcheck_cli.check(model, x, y).fail_on == OUTCOMES
    assert gradcheck_cli.check(model, x, y, fail_on="-severed").fail_on == gates_from(["-severed"])
    assert gradcheck_cli.check(model, x, y, fail_on=["fail", "dead"]).fail_on == ("fail", "dead")
    for wrong in ("", [], "nothing", 3, ["precision"]):
        with pytest.raises(ValueError, match="fail_on="):
            gradcheck_cli.check(model, x, y, fail_on=wrong)  # type: ignore[arg-type]


def record(status: str, *gates: str) -> Check:
    return Check(f"{status}{gates}", "m", status, "", ModelInfo("m.onnx"), "x", "y", gates=gates)


OF_RECORDS = [  # records, what fails the run, exit code, summary
    ([record("severed", "severed")], OUTCOMES, 1, "1 check: 1 severed"),
    ([record("severed", "severed")], ("fail",), 0, "1 check: 1 severed, not in --fail-on"),
    ([record("severed", "severed")], (), 0, "1 check: 1 severed"),
    ([record("severed"), record("pass")], OUTCOMES, 0, "2 checks: 2 passed, 1 of them severed"),
    ([record("severed"), record("severed", "severed")], OUTCOMES, 1, "2 checks: 1 passed, 1 of them severed, 1 severed"),
    ([record("pass", "forward")], OUTCOMES, 1, "1 check: 1 passed, 1 forward run differs"),
    ([record("pass", "forward")], ("fail",), 0, "1 check: 1 passed, 1 forward run differs, not in --fail-on"),
    ([record("pass", "dead")], GATES, 1, "1 check: 1 passed, 1 stopped by the health of gradients"),
    ([record("fail"), record("severed", "severed")], ("severed",), 1,
     "2 checks: 1 failed, not in --fail-on, 1 severed"),
]  # fmt: skip


@pytest.mark.parametrize("checks, fail_on, code, said", OF_RECORDS)
def test_what_stops_a_run_is_counted(checks: list[Check], fail_on: tuple[str, ...], code: int, said: str) -> None:
    report = Report(checks, fail_on=fail_on)
    assert (report.exit_code, totals(report)) == (code, said)


def test_what_is_waived_stops_at_no_gate_but_that_of_the_forward_run() -> None:
    assert record("severed", "severed", "forward", "dead").waived({"status": "severed"}).gates == ("forward",)
