"""Whatever is done to a model, checking it ends in a result or in an error of gradcheck's own, in bounded time and memory.

A failure prints the mutations; `mutated(MODELS[name], [Mutation(...)])` is that model again.  Thousands of them:
`MUTANTS=10000 python -m pytest -m slow tests/hostile`.
"""

from __future__ import annotations

import io
import json
import os
import re
import time
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto

from gradcheck_cli.cli import main
from gradcheck_cli.report import on_stdout
from tests.hostile.mutations import KINDS, OF_BYTES, OF_MODELS, Mutation, mutated

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "models"
MANY = int(os.environ.get("MUTANTS", "0"))
CODES = {0, 1, 2, 3, 4, 5, 6, 7}
SECONDS = 60  # of work that a mutant may take before it counts as endless
WAYS = (
    ("check",), ("check", "--dtype", "model"), ("check", "--params"), ("check", "--mode", "directional"),
    ("check", "--method", "richardson"), ("check", "--method", "central"), ("check", "--points", "2"), ("inspect",),
)  # fmt: skip


def small(folder: Path, pattern: str = "*.onnx", most: int = 40_000) -> dict[str, bytes]:
    """Files of a folder by name, without the large ones."""
    return {path.name: path.read_bytes() for path in sorted(folder.rglob(pattern)) if path.stat().st_size < most}


def of_onnx() -> dict[str, bytes]:
    """ONNX's own cases, which use every operator in every way."""
    from tests.ops.test_onnx_cases import onnx_cases

    return {name: data for name, case in onnx_cases().items() if len(data := case.model.SerializeToString()) < 10_000}


MODELS = {**small(ROOT / "examples"), **small(ROOT / "tests" / "models" / "files", most=20_000)}
SPECS = small(ROOT / "specs", "*.gradcheck.yaml")

names, ways, forms = st.sampled_from(sorted(MODELS)), st.sampled_from(WAYS), st.sampled_from(on_stdout())
numbers = st.integers(0, 1 << 16)
mutations = st.builds(Mutation, st.sampled_from(KINDS), numbers, numbers, numbers)
edits = st.builds(Mutation, st.sampled_from(sorted(OF_BYTES)), numbers, numbers, numbers)
few = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
many = settings(deadline=None, max_examples=max(MANY, 1), suppress_health_check=list(HealthCheck), database=None)


def survives(folder: Path, name: str, data: bytes, way: tuple[str, ...], form: str) -> None:
    """A run of the command on this file ends with an exit code of the table, and prints nothing that does harm."""
    path = folder / name
    path.write_bytes(data)
    more = ["--timeout", f"{SECONDS / 3:g}s", "--jobs", "1"] if way[0] == "check" else []
    form = form if way[0] == "check" or form == "json" else "full"
    out, err, began = io.StringIO(), io.StringIO(), time.process_time()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([way[0], str(path), *way[1:], *more, "--output-format", form])
    said = out.getvalue() + err.getvalue()
    assert code in CODES, traceback_in(said)
    assert time.process_time() - began < SECONDS
    assert form in ("json", "jsonl") or all(line.isprintable() for line in said.split("\n"))
    if form == "json" and out.getvalue():
        json.loads(out.getvalue(), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def traceback_in(said: str) -> str:
    """The traceback that gradcheck saved of a bug of its own."""
    kept = re.search(r"traceback is in (\S+\.txt)", said.replace("\\", ""))  # which Markdown escapes with
    return Path(kept[1]).read_text(encoding="utf-8") if kept else said


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of mutants; one and the same for all of them."""
    return tmp_path_factory.mktemp("mutants")


@pytest.mark.slow
@settings(few, max_examples=25)
@given(names, st.lists(mutations, min_size=1, max_size=3), ways, forms)
def test_a_mutated_model_is_checked_or_refused(
    folder: Path, bounded_memory: None, name: str, changes: list[Mutation], way: tuple[str, ...], form: str
) -> None:
    survives(folder, "mutant.onnx", mutated(MODELS[name], changes), way, form)


@pytest.mark.slow
@settings(few, max_examples=15)
@given(st.sampled_from(sorted(SPECS)), st.lists(edits, min_size=1, max_size=3), forms)
def test_a_mutated_spec_is_checked_or_refused(
    folder: Path, bounded_memory: None, name: str, changes: list[Mutation], form: str
) -> None:
    survives(folder, "mutant.gradcheck.yaml", mutated(SPECS[name], changes), ("check",), form)


@pytest.mark.parametrize("kind", OF_MODELS)
def test_a_mutation_changes_a_model(kind: str) -> None:
    for name in ("mlp.onnx", "own_loop_script.onnx", "own_cnn_ts_op7.onnx", "q_cnn_qdq.onnx"):
        changed = [ModelProto.FromString(MODELS[name]) for _ in range(40)]
        for n, model in enumerate(changed):
            OF_MODELS[kind](model, Mutation(kind, n, 3 * n, 7 * n))
        if any(model.SerializeToString() != MODELS[name] for model in changed):
            return
    pytest.fail("it leaves every model as it is")


@cache
def all_models() -> dict[str, bytes]:
    """The models of this repository, those of a collection beside it, and ONNX's."""
    return {**MODELS, **small(SHARED), **of_onnx()}


@pytest.mark.slow
@pytest.mark.skipif(not MANY, reason="takes as long as one lets it: MUTANTS=10000")
@settings(many)
@given(st.data(), st.lists(mutations, min_size=1, max_size=3), ways, forms)
def test_thousands_of_mutants_are_checked_or_refused(
    folder: Path, bounded_memory: None, data: st.DataObject, changes: list[Mutation], way: tuple[str, ...], form: str
) -> None:
    name = data.draw(st.sampled_from(sorted(all_models())), "model")
    survives(folder, "mutant.onnx", mutated(all_models()[name], changes), way, form)


@pytest.mark.slow
@pytest.mark.skipif(not MANY, reason="takes as long as one lets it: MUTANTS=10000")
@settings(many)
@given(st.sampled_from(sorted(SPECS)), st.lists(edits, min_size=1, max_size=4), forms)
def test_thousands_of_mutated_specs_are_checked_or_refused(
    folder: Path, bounded_memory: None, name: str, changes: list[Mutation], form: str
) -> None:
    survives(folder, "mutant.gradcheck.yaml", mutated(SPECS[name], changes), ("check",), form)
