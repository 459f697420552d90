"""Wrong rules fail and their node is the suspect; the right rules pass: over operators, models, faults and seeds.

A part runs by default: one case of each operator, some kinds and networks.  `python -m pytest -m slow tests/corpus`
runs all cases with another seed, `python -m tests.corpus` counts what became of them over as many seeds as one likes.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gradcheck_cli.ops import OPS
from tests.corpus.hosts import composed, host, one_of_each, with_rules
from tests.corpus.kinds import KINDS, Kind
from tests.corpus.networks import NETWORKS, network, rules_of
from tests.corpus.score import FEW, Score, jacobian, of_case, of_kind, of_network
from tests.ops.case import Case
from tests.ops.cases import CASES


def by_name(entry: Case | Kind) -> str:
    return entry.id if isinstance(entry, Case) else entry.name.replace(" ", "-")


def require_all_good(scores: Iterable[Score]) -> list[Score]:
    scores = list(scores)
    wrong = [str(score) for score in scores if not score.good]
    assert not wrong, "\n".join(wrong)
    return scores


@pytest.mark.one_in(8)
@pytest.mark.parametrize("case", one_of_each(with_rules(CASES)), ids=by_name)
def test_faults_at_an_operator_are_found_there(case: Case, seed: int) -> None:
    scores = require_all_good(of_case(case, seed, FEW))
    assert sum(s.outcome == "caught" for s in scores) > len(FEW) / 2, "hardly any fault changes anything"


@pytest.mark.slow
@pytest.mark.parametrize("case", [*with_rules(CASES), *composed(CASES)], ids=by_name)
def test_faults_at_an_operator_are_found_there_however_it_is_used(case: Case, seed: int) -> None:
    require_all_good(of_case(case, seed))


@pytest.mark.one_in(16)
@pytest.mark.parametrize("kind", KINDS, ids=by_name)
def test_errors_that_people_make_are_found(kind: Kind, seed: int) -> None:
    assert any(score.outcome == "caught" for score in require_all_good(of_kind(kind, seed)))


@pytest.mark.one_in(16)
@pytest.mark.parametrize("name", NETWORKS)
def test_faults_in_a_network_are_found_where_they_are(name: str, seed: int) -> None:
    caught = [s for s in require_all_good(of_network(name, seed, FEW[1::2])) if s.outcome == "caught"]
    assert len(caught) > 0.7 * 2 * len(rules_of(network(name, seed))), "hardly any fault changes anything"


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_all_faults_in_a_network_are_found_where_they_are(name: str, seed: int) -> None:
    require_all_good(of_network(name, seed))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["directional", "nodes", "sampled"])
@pytest.mark.parametrize("name", NETWORKS)
def test_faults_in_a_network_are_found_in_every_mode(name: str, mode: str, seed: int) -> None:
    require_all_good(of_network(name, seed, FEW, mode=mode))


def test_all_rules_have_mutants() -> None:
    keys = {(case.domain, case.op) for case in with_rules(CASES)}
    without = keys - {(case.domain, case.op) for case in one_of_each(with_rules(CASES))}
    assert not without, "no case makes a model"


def test_models_around_operators_have_gradients_of_every_size() -> None:
    """Errors would show nowhere if what an operator does came to nothing."""
    [case] = [c for c in CASES if c.op == "Erf" and c.inputs[0].ndim == 2][:1]
    for seed in range(5):
        made = host(case, seed)
        assert made is not None
        assert (abs(jacobian(made, OPS)) > 1e-3).all()
