"""Stacks of probes: cut into chunks, on threads, in whatever buffers, they give what one probe at a time gives."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import active_children
from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.engine import chunks
from gradcheck_cli.engine.chunks import Budget, in_chunks, shared_out
from gradcheck_cli.engine.program import Program
from gradcheck_cli.engine.rounding import ROUNDINGS, RandomRounding, Rounding
from gradcheck_cli.errors import GradcheckError, LimitError
from gradcheck_cli.jacobian.directions import Directions
from gradcheck_cli.jacobian.jacobian import Backward, by_complex_step, by_ladder, forward_noise
from gradcheck_cli.jacobian.precise import wider_ladder
from gradcheck_cli.verdict.differences import CHEAP_RUNGS
from tests.checking.small import check, model

WEIGHTS = np.random.default_rng(0).normal(size=(24, 24)) / 5
BUDGETS = [Budget(memory, jobs) for memory, jobs in ((2**30, 2), (2**16, 1), (2**14, 2), (2**18, 3))]
LAYERS = (("MatMul", "x W", "h"), ("Relu", "h", "r"), ("Sigmoid", "r", "s"), ("Mul", "s h", "m"), ("Exp", "m", "e"),
          ("ReduceSum", "e", "t"), ("Div", "e t", "d"), ("MatMul", "d V", "y"))  # fmt: skip


def layers() -> gc.Model:
    return model(*LAYERS, x=(3, 24), constants={"W": WEIGHTS, "V": WEIGHTS.T})


def traced(tested: gc.Model, ops: Any = gc.OPS) -> Tape:
    shape = tested.graph.types["x"].shape
    return trace(tested.graph, {"x": np.random.default_rng(1).normal(size=shape)}, ops=ops)


# Chunks

FEW = 1e-9  # probes of a second: whatever takes more of them runs in processes
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="processes with threads are forked on Linux alone")


@pytest.mark.parametrize("size, given", [(30, 3), (500, 4), (27_648, 4), (110_592, 8)])
def test_slopes_of_a_cotangent_are_the_same_beside_others(size: int, given: int) -> None:
    rng = np.random.default_rng(0)
    directions, cotangents = Directions(np.ones(size), rng.normal(size=(given, size))), rng.normal(size=(4, size))
    alone = [directions.slopes(cotangents[i : i + 1]) for i in range(4)]
    np.testing.assert_array_equal(directions.slopes(cotangents), np.concatenate(alone))
    assert directions.slopes(cotangents[:0]).shape == (0, given)


@pytest.mark.parametrize("jobs", [1, 2, 5])
@pytest.mark.parametrize("least", [1, 7, 1000])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 64, 1000])
def test_chunks_cover_every_probe_once_and_in_order(count: int, least: int, jobs: int) -> None:
    budget = Budget(memory=2**20, jobs=jobs)
    pieces = [
        (piece, made()) for piece, made in in_chunks(lambda piece: [3 * p for p in piece], count, 9000, budget, least)
    ]
    assert [p for piece, _ in pieces for p in piece] == list(range(count))
    assert [r for _, result in pieces for r in result] == [3 * p for p in range(count)]
    assert all(len(piece) * 9000 <= 2**20 / (2 * jobs) or len(piece) == 1 for piece, _ in pieces)


def test_chunks_run_on_as_many_threads_as_there_are_jobs() -> None:
    met = threading.Barrier(3, timeout=600)

    def run(piece: range) -> int:
        met.wait()
        return threading.get_ident()

    budget = Budget(jobs=3)
    assert len({ident() for _, ident in in_chunks(run, 3, 1 << 20, budget)}) == 3


def test_chunks_may_run_chunks() -> None:
    budget = Budget(jobs=2)

    def outer(piece: range) -> int:
        return sum(sum(inner) for inner, _ in in_chunks(lambda _: None, 100, 1 << 20, budget)) + len(piece)

    assert [result() for _, result in in_chunks(outer, 8, 64 << 20, budget)] == [4950 + 1] * 8


@pytest.mark.parametrize("count", [1, 2, 8, 100])
def test_stacks_inside_of_chunks_are_cut_alike_for_one_and_two_jobs(count: int) -> None:
    def cut(jobs: int) -> list[Any]:
        budget = Budget(jobs=jobs)

        def outer(piece: range) -> list[range]:
            return [inner for inner, _ in in_chunks(lambda _: None, 100, 1 << 20, budget)]

        return [(piece, made()) for piece, made in in_chunks(outer, count, 64 << 20, budget)]

    assert cut(1) == cut(2)


def test_a_lone_chunk_leaves_the_cores_to_what_runs_inside() -> None:
    def cut() -> list[range]:
        return [piece for piece, _ in in_chunks(lambda _: None, 100, 1 << 20, Budget(jobs=2))]

    [(_, lone)] = in_chunks(lambda _: cut(), 1, 64 << 20, Budget(jobs=2))
    assert lone() == cut() != [range(100)]


def test_an_error_in_a_chunk_is_raised_once_no_other_runs_and_the_next_stack_does() -> None:
    budget, running = Budget(jobs=2), Counter[str]()

    def run(piece: range) -> int:
        running["now"] += 1
        try:
            if piece.start == 3:
                raise ZeroDivisionError
            return piece.start
        finally:
            running["now"] -= 1

    with pytest.raises(ZeroDivisionError):
        [made() for _, made in in_chunks(run, 100, 64 << 20, budget)]
    assert not running["now"]
    assert [result() for _, result in in_chunks(lambda piece: piece.start, 4, 64 << 20, budget)] == [0, 1, 2, 3]


@on_linux
@pytest.mark.parametrize("jobs", [2, 3])
@pytest.mark.parametrize("count", [2, 3, 64, 1000])
def test_what_lasts_runs_in_processes_in_order_and_is_tallied(count: int, jobs: int) -> None:
    tally = Counter(before=1)

    def run(piece: range) -> tuple[int, Any]:
        tally["probes"] += len(piece)
        return os.getpid(), np.asarray(piece)

    found = [
        (piece, made()) for piece, made in in_chunks(run, count, 1 << 20, Budget(jobs=jobs), most=FEW, tally=tally)
    ]
    assert [p for piece, _ in found for p in piece] == list(range(count))
    assert all(np.array_equal(piece, numbers) for piece, (_, numbers) in found)
    assert len({pid for _, (pid, _) in found} - {os.getpid()}) == min(jobs, count)
    assert tally == Counter(before=1, probes=count)
    assert not active_children()


class Unsendable(Exception):
    """An error that cannot be sent to another process."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class UnsendableLimit(LimitError):
    """A limit that cannot be sent to another process."""

    def __init__(self, text: str) -> None:
        super().__init__(text, code="GC602")
        self.lock = threading.Lock()


@on_linux
@pytest.mark.parametrize(
    ("error", "expected"),
    [(ZeroDivisionError("by 3"), ZeroDivisionError), (Unsendable("it holds a lock"), GradcheckError),
     (UnsendableLimit("too much of it"), LimitError)],
)  # fmt: skip
def test_an_error_in_a_process_is_raised_here(error: Exception, expected: type[Exception]) -> None:
    def run(piece: range) -> int:
        if 3 in piece:
            raise error
        return piece.start

    with pytest.raises(expected, match=str(error)) as found:
        [made() for _, made in in_chunks(run, 100, 1 << 20, Budget(jobs=2), most=FEW, tally=Counter())]
    assert getattr(found.value, "code", "GC901") == getattr(error, "code", "GC901")
    assert not active_children()


@on_linux
def test_what_a_process_that_died_leaves_undone_is_done_here() -> None:
    here = os.getpid()

    def run(piece: range) -> int:
        if os.getpid() != here and 40 in piece:
            os.kill(os.getpid(), signal.SIGKILL)
        return sum(piece)

    found = [made() for _, made in in_chunks(run, 100, 16 << 20, Budget(jobs=2), most=FEW, tally=Counter())]
    assert sum(found) == sum(range(100))


@on_linux
def test_whoever_stops_listening_ends_the_processes() -> None:
    lasting: Iterator[Any] = in_chunks(
        lambda piece: time.sleep(600), 100, 16 << 20, Budget(jobs=2), most=FEW, tally=Counter()
    )
    next(lasting)
    assert len(active_children()) == 2
    lasting.close()  # type: ignore[attr-defined]
    assert not active_children()


@on_linux
def test_a_thread_beside_others_does_not_fork() -> None:
    def pids() -> set[int]:
        chunks_of = in_chunks(lambda piece: os.getpid(), 100, 16 << 20, Budget(jobs=2), most=FEW, tally=Counter())
        return {made() for _, made in chunks_of}

    with ThreadPoolExecutor(1) as other:
        assert other.submit(pids).result() == {os.getpid()}


@on_linux
@pytest.mark.parametrize("method", ["complex-step", "richardson"])
def test_a_check_in_processes_is_the_same(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"mode": "full", "method": method, "forward": "internal", "memory_limit": 1 << 26}
    threaded, forked, original = check(layers(), jobs=2, **settings), list[int](), chunks.forked

    def counted(*given: Any) -> Any:
        forked.append(1)
        return original(*given)

    monkeypatch.setattr(chunks, "forked", counted)
    monkeypatch.setattr(chunks, "_LASTING", 0)
    monkeypatch.setattr(chunks, "_ALONE_BYTES", 0)
    monkeypatch.setattr(chunks, "_SHARED", 1 << 40)
    found = check(layers(), jobs=2, **settings)
    assert forked
    assert dataclasses.replace(found, duration_s=0, peak_rss_mb=0) == dataclasses.replace(
        threaded, duration_s=0, peak_rss_mb=0
    )


@on_linux
@pytest.mark.parametrize("rule", ["Sigmoid", "Tanh"], ids=["right", "wrong"])
def test_nodes_that_processes_look_at_are_what_one_process_finds(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ops = {**gc.OPS, ("", "Sigmoid"): dataclasses.replace(gc.OPS["", "Sigmoid"], vjp=gc.OPS["", rule].vjp)}
    alone, started, original = check(layers(), ops=ops, mode="nodes", jobs=1), list[int](), chunks.forked
    monkeypatch.setattr(chunks, "_LASTING", 0)
    monkeypatch.setattr(chunks, "forked", lambda *given: started.append(1) or original(*given))
    found = check(layers(), ops=ops, mode="nodes", jobs=2)
    assert started
    assert (found.status, found.suspect and found.suspect.node) == (
        ("pass", None) if rule == "Sigmoid" else ("fail", 2)
    )
    assert dataclasses.replace(found, duration_s=0, peak_rss_mb=0) == dataclasses.replace(
        alone, duration_s=0, peak_rss_mb=0
    )
    monkeypatch.setattr(chunks, "forked", None)  # a rule of others may not outlive a fork
    other = {
        **gc.OPS,
        ("", "Sigmoid"): dataclasses.replace(ops["", "Sigmoid"], vjp=lambda ct, y, x: (ct * y * (1 - y),)),
    }
    assert check(layers(), ops=other, mode="nodes", jobs=2).status == "pass"


@on_linux
def test_what_is_shared_out_comes_in_order_and_ends_with_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_LASTING", 0)
    told = list[int]()
    budget = Budget(jobs=2, progress=lambda done, total: told.append(done))

    def run(number: int, given: Budget) -> tuple[int, int]:
        given.progress(number, 9)
        return number, os.getpid() if not told else 0

    found = list(shared_out(run, 9, budget))
    assert [number for number, _ in found] == [*range(9)]
    assert (len({pid for _, pid in found} - {os.getpid(), 0}), told) == (2, [])  # no progress is told from there
    for alone in (shared_out(run, 9, Budget(jobs=1)), shared_out(run, 9, budget, forks=False)):
        assert len(list(alone)) == 9
    assert told == [*range(9)]
    rest = shared_out(lambda number, given: time.sleep(600 * (number > 2)) or number, 100, budget)
    assert [next(rest), next(rest), next(rest)] == [0, 1, 2]
    assert len(active_children()) == 2
    rest.close()  # type: ignore[attr-defined]
    assert not active_children()


@on_linux
def test_a_limit_of_time_ends_what_is_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_LASTING", 0)

    def late(done: int, total: int) -> None:
        raise LimitError("took more than 1 s")

    with pytest.raises(LimitError):
        next(shared_out(lambda number, given: time.sleep(600), 9, Budget(jobs=2, progress=late)))
    assert not active_children()


def test_whoever_stops_listening_stops_the_chunks() -> None:
    ran, ended = list[int](), list[int]()

    def run(piece: range) -> None:
        ran.append(piece.start)
        time.sleep(0.02)
        ended.append(piece.start)

    threaded: Iterator[Any] = in_chunks(run, 1000, 64 << 20, Budget(jobs=2))
    next(threaded)
    threaded.close()  # type: ignore[attr-defined]
    assert len(ran) < 10
    assert len(ended) == len(ran)


# Programs


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_lines_are_differentiated_once_for_many_probes(op: str, axis: int, dtype: type) -> None:
    x, counted = np.random.default_rng(1).normal(size=(3, 4, 5)).astype(dtype), Counter[int]()
    plain = gc.OPS["", op]

    def forward(x: Any, *, axis: int = -1) -> Any:
        counted[len(x)] += x.dtype.kind == "c"
        return plain.forward(x, axis=axis)

    ops = {**gc.OPS, plain.key: dataclasses.replace(plain, forward=forward)}
    tape = trace(model((op, "x", "y", {"axis": axis}), x=x.shape).graph, {"x": x}, ops=ops)
    program = Program(tape, [tape.named["x"].name], [tape.named["y"].name])
    tangents = np.random.default_rng(2).normal(size=(40, *x.shape)).astype(x.dtype)
    each = [program.jvp({program.probes[0]: t[None]})[0] for t in tangents]
    counted.clear()
    [many] = program.jvp({program.probes[0]: tangents})
    np.testing.assert_allclose(many, np.concatenate(each), rtol=0, atol=64 * np.finfo(dtype).eps)
    assert counted == {x.shape[axis]: 1}  # probes of one run, and not 40


@pytest.mark.parametrize("budget", BUDGETS, ids=lambda b: f"{b.memory} bytes, {b.jobs} jobs")
def test_numbers_do_not_depend_on_chunks_or_threads(budget: Budget) -> None:
    tape, all_at_once = traced(layers()), Budget(jobs=1)
    x, y = tape.named["x"].name, tape.named["y"].name
    program, backward = Program(tape, [x], [y]), Backward(tape, y, [x])
    rows, noise = Directions(tape.values[x], range(tape.values[x].size)), forward_noise(program)
    weights, near = WEIGHTS[:5].repeat(3, axis=1), {"rtol": 1e-12, "atol": 1e-14}
    for rounding in (None, 3):
        exact = by_complex_step(program, rows, all_at_once, rounding)
        np.testing.assert_allclose(by_complex_step(program, rows, budget, rounding), exact, **near)
        theory = backward.along(weights, all_at_once, rounding)[0]
        np.testing.assert_allclose(backward.along(weights, budget, rounding)[0], theory, **near)
    first = by_ladder(program, rows, CHEAP_RUNGS, noise, all_at_once)
    second = by_ladder(program, rows, CHEAP_RUNGS, noise, budget)
    np.testing.assert_allclose(second.estimate.value, first.estimate.value, rtol=1e-6, atol=1e-9)
    assert first.crossed.keys() == second.crossed.keys()
    assert all((second.crossed[step] == rows).all() for step, rows in first.crossed.items())


def test_values_on_the_tape_and_stacks_given_are_never_written_to() -> None:
    tape = traced(layers())
    x, y = tape.named["x"].name, tape.named["y"].name
    program, backward = Program(tape, [x], [y]), Backward(tape, y, [x])
    before = {name: np.array(value) for name, value in tape.values.items()}
    stack = tape.values[x] * np.linspace(0.9, 1.1, 5)[:, None, None]
    given = stack.copy()
    for value in (stack, *tape.values.values()):
        value.flags.writeable = False
    program.run({x: stack}, branches=True)
    program.run({x: stack}, rounding=RandomRounding.seeded(0))
    program.jvp({x: stack})
    backward.along(np.ones((4, tape.values[y].size)), Budget(jobs=1))
    assert (stack == given).all()
    assert all((tape.values[name] == value).all() for name, value in before.items())


def test_two_runs_of_one_program_share_no_buffer() -> None:
    tape = traced(layers())
    x = tape.named["x"].name
    names = [tape.named[n].name for n in ("h", "r", "s", "m", "e", "y")]
    program, stack = Program(tape, [x], names), np.repeat(tape.values[x][None], 3, axis=0)
    first = program.run({x: stack}).outputs
    kept = [value.copy() for value in first]
    program.run({x: 1.1 * stack})
    for value, once in zip(first, kept, strict=True):
        np.testing.assert_array_equal(value, once)
    for i, value in enumerate(first):
        assert not any(np.shares_memory(value, other) for other in first[i + 1 :])


def test_what_no_probe_reaches_is_never_computed_again() -> None:
    calls = Counter[str]()

    def counted(op: gc.Op) -> gc.Op:
        def forward(*arrays: Any, **metadata: Any) -> Any:
            calls[op.name] += 1
            return op.forward(*arrays, **metadata)

        return dataclasses.replace(op, forward=forward)

    ops = {key: counted(op) if op.name in ("Tanh", "Cos", "Exp", "Sin") else op for key, op in gc.OPS.items()}
    tested = model(("Tanh", "W", "w"), ("Cos", "w", "c"), ("Mul", "x c", "h"), ("Exp", "h", "e"), ("Sin", "h", "dead"),
                   ("Add", "e c", "y"), x=(4,), constants={"W": np.ones(4)})  # fmt: skip
    tape = traced(tested, ops)
    x = tape.named["x"].name
    program, stack = Program(tape, [x], [tape.named["y"].name]), np.ones((7, 4))
    calls.clear()
    program.run({x: stack})
    program.run({x: stack}, branches=True, rounding=RandomRounding.seeded(0))
    assert calls == {"Exp": 2}


def test_probes_that_have_to_run_alone_are_moved_by_roundings_as_in_a_stack() -> None:
    tested = model(("Exp", "x", "e"), ("ReduceSum", "e", "t"), ("NonZero", "x", "at"), ("Cast", "at", "c", {"to": 11}),
                   ("ReduceSum", "c", "s"), ("Add", "s t", "y"), x=(5,))  # fmt: skip
    tape = traced(tested)
    x = tape.named["x"].name
    program, stack = Program(tape, [x], [tape.named["y"].name]), np.repeat(tape.values[x][None], 3, axis=0)
    stack[1, 2] = 0  # one place less: no stack
    together = program.run({x: stack}, rounding=RandomRounding.seeded(0)).outputs[0]
    for p in range(3):
        alone = program.run({x: stack[p : p + 1]}, rounding=RandomRounding.seeded(0)).outputs[0]
        np.testing.assert_array_equal(together[p], alone[0])


def test_roundings_move_complex_results_in_size_and_in_direction() -> None:
    """Either part of a product is off by a rounding of the whole, however small the part is."""
    x = np.array([1.5 - 0.4j, 0.4 + 1e-9j, 1e-9 + 0.7j])
    tape = trace(model(("Tanh", "x", "y"), x=(3,)).graph, {"x": x}, ops=gc.OPS)
    program = Program(tape, [tape.named["x"].name], [tape.named["y"].name])
    rounding = RandomRounding.seeded(*range(50), mode=Rounding.BY_PROBE)
    [moved] = program.run({program.probes[0]: np.repeat(x[None], 50, axis=0)}, rounding=rounding).outputs
    by = (moved - np.tanh(x)) / np.tanh(x) / (ROUNDINGS * np.finfo(float).eps)
    for part in (by.real, by.imag):
        np.testing.assert_allclose(np.sqrt(np.mean(part**2, axis=0)), 1, rtol=0.3)


# The ladder


SMALL = np.array([1.0, -2e-4, 0.7, 3e-6, -1.3, 0.02])


def test_entries_far_smaller_than_the_rest_are_seen_by_larger_steps() -> None:
    weights = np.random.default_rng(5).normal(size=(6, 6))
    record = check(model(("MatMul", "x W", "h"), ("Tanh", "h", "y"), x=(6,), constants={"W": weights}), SMALL,
                   method="richardson")  # fmt: skip
    assert (record.status, record.worst) == ("pass", ())


TINY = np.array([1.0, -2e-4, 0.7, 1e-9, -1.3, 0.02])


def spike(width: float) -> gc.Model:
    """Sums of x + width * tanh(x / width): the slope of that is 1, but 2 in a spike of this width."""
    weights = np.random.default_rng(5).normal(size=(6, 6))
    return model(("Div", "x w", "a"), ("Tanh", "a", "t"), ("Mul", "t w", "b"), ("Add", "x b", "c"), ("MatMul", "c W", "y"),
                 x=(6,), constants={"w": np.float64(width), "W": weights})  # fmt: skip


@pytest.mark.parametrize("width", 10.0 ** np.arange(-9, 1))
def test_larger_steps_bound_what_they_overlook_by_what_small_ones_see(width: float) -> None:
    tested = spike(width)
    tape = trace(tested.graph, {"x": TINY}, ops=gc.OPS)
    program = Program(tape, [tape.named["x"].name], [tape.named["y"].name])
    found = wider_ladder(program, Directions(TINY, range(6)), forward_noise(program), Budget(jobs=1)).estimate
    slope = 1 + 1 / np.cosh(np.clip(TINY / width, -300, 300)) ** 2
    assert (np.abs(found.value - slope[:, None] * tested.graph.constants["W"]) <= 8 * found.error).all()
