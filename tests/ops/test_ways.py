"""The part of a tape that leads to a tensor is found without a look at the rest of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import pytest

from gradcheck_cli.autodiff.backward import gradients, inexact, units_between
from gradcheck_cli.autodiff.reach import parts_computing, steps_between, steps_computing
from gradcheck_cli.autodiff.tape import Step, Tape, Unit
from gradcheck_cli.graph import between, computing, is_inexact
from gradcheck_cli.op.batching import shape_only
from tests.ops.case import Case
from tests.ops.cases import CASES

every_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)


def all_parts(tape: Tape) -> Iterator[tuple[int, Step | Unit]]:
    """Steps and outermost composed operators of a tape, from its first step to its last."""
    regions = {region.steps.start: region for region in tape.regions}  # of nested ones the outermost, which ends last
    index = 0
    while index < len(tape.steps):
        region = regions.get(index)
        part = region if region is not None and region.steps else tape.steps[index]
        yield index, part
        index = part.steps.stop if isinstance(part, Unit) else index + 1


def leading_to(parts: list[tuple[int, Step | Unit]], names: list[str]) -> list[int]:
    needed, found = set(names), []
    for index, part in reversed(parts):
        if not needed.isdisjoint(part.outputs):
            needed.update(part.operands)
            found.append(index)
    return found[::-1]


def grown(case: Case) -> Iterator[Tape]:
    """The tape of a case as it is, with a part that was put aside, and with the derivatives of its outputs."""
    tape = case.tape()
    yield tape
    ys = [tape.named[y] for y in case.outputs if y in tape.named and inexact(tape.named[y])]
    xs = [tape.named[x].name for x in case.floats()]
    for _ in range(2 if ys and xs else 0):
        with tape.aside():
            seed = tape.hold(tape.fresh("seed"), np.ones_like(ys[0].value))
            gradients(tape, {ys[0].name: seed}, xs)
            yield tape
    yield tape


@pytest.mark.one_in(8, of="op")
@every_case
def test_what_leads_to_a_tensor_is_found_as_by_a_walk_through_the_whole_tape(case: Case) -> None:
    for tape in grown(case):
        nodes, parts = [step.node for step in tape.steps], list(all_parts(tape))
        for name in {n for step in tape.steps[-3:] for n in step.node.outputs if n}:
            assert steps_computing(tape, [name]) == computing(nodes, [name])[0]
        for part in parts[-3:]:
            ends = [n for n in part[1].outputs if n]
            assert sorted(parts_computing(tape, ends)) == leading_to(parts, ends)


def steps_on_the_way(tape: Tape, xs: list[str], ys: list[str]) -> list[int]:
    def through(step: Step, reached: Collection[str]) -> list[str]:
        reads = {*(() if step.op.batching is shape_only else step.operands), *step.statics}
        fed = any(n in reached for n in step.node.outputs)
        return [] if fed or reads.isdisjoint(reached) else [n for n in step.node.outputs if n]

    return between(tape.steps, xs, ys, through, lambda step: step.node.inputs)


def parts_on_the_way(tape: Tape, xs: list[str], ys: list[str]) -> list[int]:
    parts = list(all_parts(tape))

    def through(item: tuple[int, Step | Unit], reached: Collection[str]) -> list[str]:
        made = item[1].outputs if any(n in reached for n in item[1].operands) else ()
        return [n for n in made if n in tape.values and is_inexact(tape.values.like(n).dtype)]

    return [parts[i][0] for i in between(parts, xs, ys, through, lambda item: item[1].operands)]


@pytest.mark.one_in(8, of="op")
@every_case
def test_what_lies_between_two_tensors_is_found_as_by_a_walk_through_the_whole_tape(case: Case) -> None:
    for tape in grown(case):
        read = dict.fromkeys(n for step in tape.steps for n in step.node.inputs if n)
        for xs in ([x] for x in [*read][:4]):
            for ys in ([n for n in step.node.outputs if n] for step in tape.steps[-2:]):
                assert steps_between(tape, xs, ys) == steps_on_the_way(tape, xs, ys)
                between_ = units_between(tape, xs, ys)
                assert [unit.steps.start for unit in between_] == parts_on_the_way(tape, xs, ys)


def test_a_composed_operator_inside_of_another_is_a_part_of_that() -> None:
    [case] = [c for c in CASES if c.op == "LayerNormalization" and c.n_outputs == 1][:1]
    tape = case.tape()
    y = tape.named["y0"].name
    [(index, part)] = parts_computing(tape, [y]).items()
    assert index == 0
    assert isinstance(part, Unit)
    assert [unit.op.name for unit in units_between(tape, [tape.named["x0"].name], [y])] == ["LayerNormalization"]
