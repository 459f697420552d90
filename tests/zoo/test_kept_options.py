"""Options that a run's folder keeps: what one can give comes back as it was, and nothing else does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradcheck_cli.cli.options import given_in
from gradcheck_cli.cli.zoo.runner import as_given
from gradcheck_cli.cli.zoo.start import run as command
from gradcheck_cli.errors import UsageError
from gradcheck_cli.zoo.store import About, read_about, write_about

TYPED = [
    "--x", "a", "--x", "b", "--params", "-k", "conv and not slow", "--mode", "sampled", "--max-entries", "5",
    "--x-shape", "x:1,3", "--dim", "N=2", "--x-init-value", "x=@a.npz:k", "--point", "0", "--seed", "7",
    "--method", "central", "--delta", "0.001", "--dtype", "model", "--forward", "internal", "--rtol", "5e-7",
    "--max-inconclusive", "0", "--no-coloring", "--straight-through", "--compat", "tf", "--fail-on", "fail,dead",
    "--exit-zero", "--baseline", "b.json", "--timeout", "0.0000001s", "--memory-limit", "3GiB", "-j", "2",
    "--show", "2", "--save-failures", "none", "-v", "-v", "--color", "never", "--shard", "2/3", "--test-data", "none",
]  # fmt: skip


def kept(options: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Options by way of a run's folder."""
    write_about(folder, About(("models",), options, "."))
    return as_given(read_about(folder).options, "run.json")


def test_what_was_given_comes_back_as_it_was(tmp_path: Path) -> None:
    context = command.make_context("zoo", [*TYPED, "models"], auto_envvar_prefix="GRADCHECK")
    given = given_in(context, {name: value for name, value in context.params.items() if name != "sources"})
    assert len(given) > 30
    assert kept(given, tmp_path) == given
    assert (
        kept({"seed": "random", "delta": "auto", "timeout": 90.0, "fail_on": ("dead",)}, tmp_path)["seed"] == "random"
    )


MISFITS = [
    ("nonsense", 1), ("x", "a"), ("x", [1]), ("x", [["a"]]), ("params", 1), ("params", "yes"), ("mode", "quick"),
    ("mode", {}), ("points", 0), ("points", "3"), ("points", 3.0), ("points", True), ("points", 1e400), ("seed", -1),
    ("seed", 0.5), ("seed", "late"), ("delta", 0.0), ("delta", [1]), ("max_inconclusive", 2.0), ("coloring", "no"),
    ("fail_on", ["nothing"]), ("fail_on", "fail"), ("fail_on", [1]), ("fail_on", []),
    ("timeout", -1.0), ("timeout", float("nan")), ("timeout", float("inf")), ("timeout", True), ("timeout", [1, 2]),
    ("memory_limit", 0), ("memory_limit", -5),
    ("memory_limit", None), ("shard", [3, 2]), ("shard", [1]), ("shard", ["1", "2"]), ("verbose", "2"), ("test_data", 5),
    ("baseline", {"a": 1}), ("save_failures", None), ("dask", 7),
]  # fmt: skip


@pytest.mark.parametrize("name, value", MISFITS)
def test_what_nobody_can_have_given_is_an_error(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"^run\.json: {name} cannot be .*; run `gradcheck zoo` again$"):
        kept({name: value}, tmp_path)


def test_resuming_a_run_with_such_options_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gradcheck_cli.cli import main

    write_about(tmp_path, About(("models",), {"points": 3}, str(tmp_path)))
    place = tmp_path / "run.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), "options": {"points": "\x1b[2J" * 99}}))
    assert main(["zoo", "resume", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error GC201: {place}: points cannot be '\\x1b[2J")
    assert err.count("\n") == 1
