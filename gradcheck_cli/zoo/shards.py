"""Compares one huge Jacobian on a Dask cluster: each worker compares a part and returns its findings.

If a worker is lost, the scheduler gives its part to another one.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gradcheck_cli.errors import GradcheckError, LimitError, UsageError, shown
from gradcheck_cli.graph.memory import allowed, spell
from gradcheck_cli.zoo.cluster import connected, gone, is_on, workers_of
from gradcheck_cli.zoo.parcel import difference, versions
from gradcheck_cli.zoo.worker import MEMORY, GivenUp, is_given_up

if TYPE_CHECKING:
    from distributed import Client, Future

    from gradcheck_cli.checks.parts import Elsewhere, Points, Shares
    from gradcheck_cli.formats.source import Source
    from gradcheck_cli.settings import Settings


_OF_A_PART = 2 << 30  # bytes for a part on a worker, if no limit is given


@dataclass(frozen=True, slots=True)
class SharedInput:
    """The model and settings of a check, which every worker gets once."""

    source: Source
    settings: Settings


def on_workers(settings: Settings) -> Settings:
    """Settings of parts if no memory limit is given: workers have less memory than this machine."""
    return replace(settings, memory_limit=min(allowed(settings.memory_limit), _OF_A_PART))


def elsewhere(where: str, source: Source, settings: Settings) -> Elsewhere:
    """A function that compares the parts of a check on a cluster; `where` is an argument of `connected`."""

    def ask(count: int, points: Points) -> Iterator[tuple[int, Shares]]:
        shared = SharedInput(replace(source, values_at=points), replace(settings, test_data=None, jobs=1))
        with connected(where) as client:
            yield from _compared(client, shared, count, allowed(settings.memory_limit))

    return ask


def _compared(client: Client, shared: SharedInput, count: int, memory: int) -> Iterator[tuple[int, Shares]]:
    """The findings of all parts as they come; an error of one part ends all."""
    from distributed import as_completed

    resources = _resources(client, memory)
    [with_data] = client.scatter([shared], broadcast=True, hash=False)
    tickets = {f"gradcheck-{uuid.uuid4().hex}": index for index in range(count)}
    futures = [
        client.submit(share, with_data, index, count, ticket, versions(), key=ticket, pure=False, resources=resources)
        for ticket, index in tickets.items()
    ]
    try:
        for future in as_completed(futures, loop=client.loop):
            yield tickets[future.key], _answer(client, future)
    finally:
        with suppress(Exception):  # the scheduler may be ending
            if is_on(client):
                client.cancel(futures, force=True)


def _resources(client: Client, memory: int) -> Mapping[str, int] | None:
    """The memory that a part needs of its worker, None if no worker declares any; a LimitError if all have less."""
    offered = {a: worker["resources"].get(MEMORY, 0) for a, worker in workers_of(client).items()}
    largest = max(offered, key=offered.__getitem__)
    if not offered[largest]:
        return None
    if offered[largest] < memory:
        said = f"a part may take {spell(memory)}, and the largest worker, {largest}, offers {spell(offered[largest])}"
        raise LimitError(f"{said}; a lower --memory-limit makes parts smaller", code="GC602")
    return {MEMORY: memory}


def _answer(client: Client, future: Future[Shares]) -> Shares:
    try:
        shares: Shares = future.result()
    except GradcheckError:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        if not is_on(client):
            raise gone() from None
        lost = future.status in ("cancelled", "lost") or type(error).__name__ == "KilledWorker"
        what = "workers were lost while they compared it, killed or out of memory" if lost else _brief(error)
        raise LimitError(f"a part of the Jacobian was not compared: {what}", code="GC603") from None
    return shares


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {shown(str(error))[:300]}"


def share(shared: SharedInput, index: int, count: int, ticket: str, needed: Mapping[str, str]) -> Shares:
    """The findings of one part; runs in a thread of a Dask worker."""
    from distributed import get_worker

    from gradcheck_cli.checks.parts import Part
    from gradcheck_cli.checks.procedure import check_part  # not imported in a scheduler, which reads this module too

    worker: Any = get_worker()
    if differs := difference(needed, versions()):
        raise UsageError(f"worker {worker.address} is not like the machine that asks: {differs}")
    return check_part(shared.source, shared.settings, Part(index, count), listen=_Cancellation(worker, ticket))


class _Cancellation:
    """Stops a part that was cancelled."""

    def __init__(self, worker: Any, ticket: str) -> None:
        self.worker, self.ticket = worker, ticket

    def expect(self, forecasts: Iterable[Any]) -> None: ...
    def start(self, title: str, total: int) -> None: ...
    def done(self) -> None: ...

    def advance(self, done: int, total: int) -> None:
        if is_given_up(self.worker, self.ticket):
            raise GivenUp
