"""Predicted time that is left of a run, from the times of its jobs so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from gradcheck_cli.cli.zoo.run_progress import ZooProgress
from gradcheck_cli.zoo import Job

START = 7.0  # seconds until the first job begins
PASSED = [{"id": "a", "check": "a", "status": "pass", "code": ""}]


def estimates(durations: Sequence[float], places: int, before: int = 0) -> Iterator[tuple[float, float | None]]:
    """Seconds that are left and seconds that are said to be, whenever a job has ended; those done before come first."""
    now = 0.0
    progress = ZooProgress("off", len(durations) + before, before, lambda: now)
    now = START
    jobs = [Job(str(index), "", key=str(index)) for index in range(len(durations))]
    waiting, ends, end = list(zip(jobs, durations, strict=True)), list[tuple[float, Job]](), schedule(durations, places)
    for _ in range(before):
        progress.passed_over([])
    while waiting or ends:
        while waiting and len(ends) < places:
            job, duration = waiting.pop(0)
            progress.started(job)
            ends.append((now + duration, job))
        ends.sort(key=lambda pair: pair[0])
        now, job = ends.pop(0)
        progress.ended(job, PASSED)
        if waiting and len(ends) < places:
            job, duration = waiting.pop(0)
            progress.started(job)
            ends.append((now + duration, job))
        yield START + end - now, progress.seconds_left()


def schedule(durations: Sequence[float], places: int) -> float:
    """The time at which the last job ends."""
    free = [0.0] * places
    for duration in durations:
        free.sort()
        free[0] += duration
    return max(free)


@pytest.mark.parametrize("before", [0, 500])
@pytest.mark.parametrize("places", [1, 2, 8])
def test_where_all_jobs_take_the_same_what_is_left_is_known_once_some_have_ended(places: int, before: int) -> None:
    """However long the run took to begin, and whatever was done before."""
    found = [*estimates([3.0] * 40, places, before)]
    assert [said for _, said in found[: places - 1]] == [None] * (places - 1)
    for left, said in found[places - 1 :]:
        assert said == pytest.approx(left, abs=3.0)


def test_what_is_done_before_and_comes_last_is_no_work() -> None:
    now = 0.0
    progress = ZooProgress("off", 100, 90, lambda: now)
    for index in range(5):
        job = Job(str(index), "", key=str(index))
        progress.started(job)
        now += 2.0
        progress.ended(job, PASSED)
    assert progress.seconds_left() == pytest.approx(10.0)


def test_of_jobs_that_take_longer_than_others_did_nothing_is_taken_off() -> None:
    now = 0.0
    progress = ZooProgress("off", 3, 0, lambda: now)
    jobs = [Job(str(index), "", key=str(index)) for index in range(3)]
    progress.started(jobs[0])
    now = 1.0
    progress.ended(jobs[0], PASSED)
    progress.started(jobs[1])
    now = 60.0
    assert progress.seconds_left() == pytest.approx(1.0)  # the third
