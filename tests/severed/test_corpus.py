"""Every net of the corpus is judged rightly, with the nodes that cut it named."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gradcheck_cli.checks.procedure import Procedure
from gradcheck_cli.results.record import Check
from gradcheck_cli.settings import Settings
from tests.diff.twins import read_proto
from tests.severed.nets import CUTS, FLOWS, PARTLY, TWINS, ZEROS, Drawn, Piece, drawn, made, one_branch, plain

FAST = [
    (name, {name: put}, ("first", "last", "between") if name == "plain" else ("between",))
    for name, put in FLOWS.items()
]
EVERY = [(name, {name: put}, ("first", "last", "between")) for name, put in FLOWS.items()]


def judged(net: Drawn) -> Check:
    [record] = Procedure(read_proto(net.model, "net.onnx"), Settings(x=("x",), y=("y",))).run(net.name)
    return record


def nets(pieces: list[Piece], table: list[tuple[str, dict, tuple[str, ...]]]) -> Iterator[Drawn]:  # type: ignore[type-arg]
    for _, flows, places in table:
        yield from drawn(pieces, flows, places)


def told(record: Check) -> tuple[str, str, set[str]]:
    """Status, the part that is severed, and the operators that cut."""
    found = record.severed
    part = found.partial if found is not None else None
    cut = () if found is None else part.cut if part is not None else found.cut
    return record.status, part.kind if part is not None else "", {spot.op for spot in cut}


def wrong_of_cuts(table: list) -> list:  # type: ignore[type-arg]
    found = [(net, judged(net)) for net in nets(CUTS, table)]
    assert len(found) >= 40
    return [(net.name, told(r)) for net, r in found if told(r) != ("severed", "", {net.op}) or r.gates != ("severed",)]


def wrong_of_twins(table: list) -> list:  # type: ignore[type-arg]
    found = [(net, judged(net)) for net in nets(TWINS, table)]
    assert len(found) >= 40
    return [(net.name, told(r)) for net, r in found if told(r) != ("pass", "", set()) or r.gates]


def wrong_of_parts(table: list) -> list:  # type: ignore[type-arg]
    found = []
    for net in nets(PARTLY, table):
        kind, op = net.op.split()
        record = judged(net)
        expected = ("severed" if kind == "scale" else "pass", kind, {op})
        notes = sum("no gradient: cut at " in note for note in record.notes)
        found.append((net.name, told(record) == expected and notes == (kind != "scale"), told(record)))
    assert len(found) >= 40
    return [each for each in found if not each[1]]


def wrong_of_zeros(table: list) -> list:  # type: ignore[type-arg]
    found = [(net, judged(net)) for net in nets(ZEROS, table)]
    assert len(found) >= 40
    return [(net.name, told(r), r.gradient["health"].lost) for net, r in found
            if not (told(r) == ("pass", "", set()) and r.zero_everywhere and r.gradient["health"].lost.op == net.op
                    and "vanishing" in r.gradient["health"].shows)]  # fmt: skip


KINDS = {"cut": wrong_of_cuts, "twins": wrong_of_twins, "in part": wrong_of_parts, "zero": wrong_of_zeros}


@pytest.mark.parametrize("kind", KINDS)
def test_nets_are_judged_by_what_is_in_them(kind: str) -> None:
    assert KINDS[kind](FAST) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_nets_are_judged_so_at_every_place_in_every_control_flow(kind: str) -> None:
    assert KINDS[kind](EVERY) == []


@pytest.mark.parametrize("piece", CUTS, ids=lambda piece: piece.name)
def test_another_branch_than_the_one_taken_is_a_way(piece: Piece) -> None:
    record = judged(
        Drawn(piece.name, made(f"h = MatMul (x, W1)  {one_branch(piece.text, 'h')}  y = Tanh (t)"), piece.op)
    )
    assert (record.status, record.severed, record.zero_everywhere) == ("pass", None, True)


@pytest.mark.parametrize("piece", CUTS, ids=lambda piece: piece.name)
def test_what_lies_behind_a_cut_is_reached(piece: Piece) -> None:
    record = judged(
        Drawn(piece.name, made(f"h = MatMul (x, W1)  {plain(piece.text, 'h')}  y = MatMul (t, W2)"), piece.op)
    )
    assert record.severed is not None
    assert "the gradient of y goes back as far as node" in record.message
    assert f"{piece.op} " in record.message
