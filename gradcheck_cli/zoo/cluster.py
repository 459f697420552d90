"""Runs jobs on a Dask cluster, or compares one huge Jacobian there in parts; workers may be lost at any time.

Each job gives its records once: the first answer counts, later ones are dropped; a job whose worker is lost is sent to
another, a few times.  Scheduler and workers must have the same gradcheck, Python, NumPy and onnx as this machine, since
results must not depend on the worker.  `engine` does the same on one machine; `worker` is the other side of this module.
Of a huge Jacobian each worker compares a part and returns its findings (`elsewhere`).
"""

from __future__ import annotations

import logging
import os
import re
import selectors
import time
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from msgspec import structs

from gradcheck_cli.errors import GradcheckError, LimitError, UsageError, shown
from gradcheck_cli.formats.untrusted import leads_out, own_folder
from gradcheck_cli.graph.memory import allowed, left, spell
from gradcheck_cli.zoo import LOCAL_CLUSTER, SCHEDULER, SCHEDULERS, Job, JobListener, Limits, cores
from gradcheck_cli.zoo.engine import WORK, Admission, Done, Feed, Interrupts, folder_of_bundles, record_of_crash
from gradcheck_cli.zoo.parcel import Parcel, difference, packed, versions, with_contents
from gradcheck_cli.zoo.shelf import discarded, made, prune, renamed, running
from gradcheck_cli.zoo.worker import MEMORY, Bundles, GivenUp, JobAnswer, is_given_up, perform

if TYPE_CHECKING:
    from distributed import Client, Future

    from gradcheck_cli.checks.parts import Elsewhere, Points, Shares
    from gradcheck_cli.formats.source import Source
    from gradcheck_cli.settings import Settings

RETRIES = 3  # of a job whose worker was lost
_TICK, _SECOND = 0.2, 1.0
_PATIENCE = 60.0  # seconds, at most, without any worker, at the start and later
_SHARE = 0.9  # of a time limit, at most, that this may take
_OF_A_PART = 2 << 30  # bytes for a part on a worker, if no limit is given
_AHEAD = 2  # jobs for each worker beyond those that it runs
_SILENT = logging.CRITICAL + 1
_QUIET = {
    "distributed.admin.large-graph-warning-threshold": "1TB",  # models are sent to workers that do not see them
    "distributed.comm.timeouts.connect": "10s",
}


def run(
    where: str, jobs: Iterable[Job], limits: Limits, done: Done, listen: JobListener | None = None, work: str = WORK
) -> None:
    """Calls `done` with each job and its records as jobs end; `where` is an argument of `connected`.

    `limits.jobs` is the number of jobs at the cluster at once, 0 for as many as it takes.  Raises the errors of
    `engine.run`, a UsageError for a cluster that cannot be used, and a LimitError if it is gone.
    """
    listen = listen or JobListener()
    with connected(where, _patience(limits.timeout), listen.remark) as client:
        Cluster(client, limits, done, listen, work).run(jobs)


@dataclass(slots=True, eq=False)
class Sent:
    """A parcel that was sent to the cluster."""

    parcel: Parcel
    future: Future[JobAnswer]
    began: int = 0  # how often workers began with the job
    tries: int = 0  # how often it was sent again


class Cluster:
    """A run of jobs on a cluster."""

    def __init__(self, client: Client, limits: Limits, done: Done, listen: JobListener, work: str) -> None:
        self.client, self.limits, self.done, self.listen, self.work = client, limits, done, listen, work
        self.topic = _ticket()
        self.admission, self.interrupts = Admission(limits), Interrupts()
        self.out: dict[str, Sent] = {}  # ticket -> a parcel without an answer
        self.news: deque[tuple[str, str, Any]] = deque()  # ticket, kind, value; from threads of the client
        self.workers: Mapping[str, Mapping[str, Any]] = {}
        self.looked = self.met = 0.0  # times at which workers were looked up, and at which there were some

    def run(self, jobs: Iterable[Job]) -> None:
        with self.interrupts.heeded(), selectors.DefaultSelector() as selector:
            selector.register(self.interrupts.reader, selectors.EVENT_READ)
            # files are read in the feed's thread
            feed = Feed((packed(_ticket(), job, self.limits, self.work) for job in jobs), self.interrupts.wake)
            self.client.subscribe_topic(self.topic, self._hear)
            try:
                self._look()
                while self._fill(feed):
                    selector.select(_TICK)
                    self.interrupts.awake()
                    if self.interrupts.asked:
                        raise KeyboardInterrupt
                    self._turn()
            finally:
                feed.close()
                self._end()

    # --- sending

    def _fill(self, feed: Feed[Parcel]) -> bool:
        """Sends as many parcels as there are threads, and some more; False if nothing is left to do."""
        places = sum(worker["nthreads"] + _AHEAD for worker in self.workers.values())
        while len(self.out) < min(self.limits.jobs or places, places) and (parcel := feed.take()) is not None:
            self._send(parcel)
        return bool(self.out) or not feed.over

    def _send(self, parcel: Parcel, before: Sent | None = None) -> None:
        """Sends a parcel; one that is too large for every worker gets a record at once."""
        try:
            resources = _resources(self.workers, self.admission.first(parcel.job), "is predicted to take")
        except LimitError as error:
            self._fail(parcel.job, error)
            return
        future = self.client.submit(perform, parcel, self.topic, key=parcel.ticket, pure=False, resources=resources)
        self.out[parcel.ticket] = Sent(parcel, future, *((before.began, before.tries + 1) if before else ()))
        future.add_done_callback(lambda _: self._note(parcel.ticket, "over", None))

    def _anew(self, sent: Sent, parcel: Parcel) -> None:
        """Sends a job again under a new ticket, so that answers to the old one are dropped."""
        self._send(replace(parcel, ticket=_ticket()), sent)

    # --- hearing

    def _hear(self, event: Any) -> None:
        """Takes an event of a worker, to which the scheduler has added more keys; called in a thread of the client."""
        told = event[1]
        self._note(told["ticket"], told["kind"], told["value"])

    def _note(self, ticket: str, kind: str, value: Any) -> None:
        self.news.append((ticket, kind, value))
        self.interrupts.wake()

    def _turn(self) -> None:
        """Handles everything that has happened since the last turn."""
        while self.news:
            ticket, kind, value = self.news.popleft()
            if (sent := self.out.get(ticket)) is not None:
                self._heard(sent, kind, value)
        if not is_on(self.client):
            raise gone()
        if time.monotonic() > self.looked + _SECOND:
            self._look()

    def _heard(self, sent: Sent, kind: str, value: Any) -> None:
        job = sent.parcel.job
        if kind == "over":
            del self.out[sent.parcel.ticket]
            self._settle(sent)
        elif kind == "stage":
            self.listen.stage(job, value)
        elif kind == "memory":
            self.listen.memory(job, value)
        elif kind == "started":
            sent.began += 1
            if sent.began > 1 + RETRIES:  # the scheduler may allow more
                del self.out[sent.parcel.ticket]
                self._give_up(sent)
            else:
                self.listen.started(job)

    def _settle(self, sent: Sent) -> None:
        """Handles the end of a future, with or without an answer."""
        if sent.future.status == "finished":
            self._accept(sent, _fetched(sent.future))
        elif not is_on(self.client):
            raise gone()
        elif _is_lost(sent.future):
            if sent.began > RETRIES or sent.tries > 2 * RETRIES:
                self._give_up(sent)
            else:
                self._anew(sent, sent.parcel)
        else:
            said = f"its worker failed: {_named(sent.future.exception())}"
            self._fail(sent.parcel.job, LimitError(said, code="GC603"))

    def _accept(self, sent: Sent, answer: JobAnswer) -> None:
        if answer.differs:
            raise UsageError(f"worker {answer.worker} is not like this machine: {answer.differs}")
        if answer.records is not None:
            _save(sent.parcel.job, answer.bundles)
            self._give(sent.parcel.job, answer.records)
            return
        try:
            self._anew(sent, with_contents(sent.parcel))
        except (OSError, GradcheckError) as error:
            if not isinstance(error, GradcheckError):
                error = LimitError(f"it cannot be sent: {error}", code="GC603")
            self._fail(sent.parcel.job, error)

    def _give_up(self, sent: Sent) -> None:
        said = f"its worker was lost {max(sent.began, 1)} times while it ran, killed or out of memory"
        self._fail(sent.parcel.job, LimitError(said, code="GC603"))
        with suppress(Exception):
            self.client.cancel([sent.future], force=True)

    def _fail(self, job: Job, error: GradcheckError) -> None:
        self._give(job, [record_of_crash(job, "", error)])

    def _give(self, job: Job, records: list[dict[str, Any]]) -> None:
        self.done(job, records)
        self.listen.ended(job, records)

    # --- the cluster

    def _look(self) -> None:
        """Looks up the workers; raises a LimitError if there have been none for long."""
        self.workers = workers_of(self.client)
        self.looked = now = time.monotonic()
        self.met = now if self.workers or not self.met else self.met
        if now > self.met + (patience := _patience(self.limits.timeout)):
            raise LimitError(f"the cluster has had no worker for {patience:g} s", code="GC603")

    def _end(self) -> None:
        """Cancels all jobs at the cluster."""
        with suppress(Exception):  # the scheduler may be ending
            if not is_on(self.client):
                return
            self.client.cancel([sent.future for sent in self.out.values()], force=True)
            self.client.unsubscribe_topic(self.topic)


def _ticket() -> str:
    """A unique name."""
    return f"gradcheck-{uuid.uuid4().hex}"


def _is_lost(future: Future[Any]) -> bool:
    """True if a job ended because its worker or the process beside it was lost."""
    lost = ("KilledWorker", "Lost", "GivenUp")
    return future.status in ("cancelled", "lost") or type(future.exception()).__name__ in lost


def _fetched(future: Future[JobAnswer]) -> JobAnswer:
    """The answer of a job that finished, which is still with its worker; a LimitError if the scheduler is gone."""
    try:
        return future.result()
    except (OSError, CancelledError):  # the client may not have noticed yet
        raise gone() from None


def _named(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {shown(str(error))[:300]}"


def _save(job: Job, bundles: Bundles) -> None:
    """Writes bundles that came with an answer to this machine's folder of bundles, without files that lead out of it."""
    folder = folder_of_bundles(job)
    if folder is None or not bundles:
        return
    with suppress(OSError):  # a bundle that cannot be kept is no reason to lose a record
        for name, files in bundles.items():
            if leads_out(name):
                continue
            made(folder)
            discarded(folder, place := running(name))
            with own_folder(folder, place, make=True) as bundle:
                for path in (each for each in files if not leads_out(each)):
                    with bundle.below(path) as (below, last):
                        below.write(last, files[path])
            renamed(folder, place, name)
        prune(folder)


def _patience(timeout: float | None) -> float:
    """Seconds in which a worker has to come, fewer than a time limit has."""
    return _PATIENCE if timeout is None else min(_PATIENCE, _SHARE * timeout)


@contextmanager
def connected(
    where: str = "", patience: float = _PATIENCE, tell: Callable[[str], None] = lambda text: None
) -> Iterator[Client]:
    """A client of a cluster: tcp://HOST:PORT, a scheduler file, local:N for N workers, or "" for Dask's configuration.

    Raises a UsageError if there is no such cluster, or if it cannot be used; one without workers is told at once, and
    given some seconds.
    """
    try:
        import dask
        import distributed
    except ImportError:
        raise UsageError("--engine dask needs Dask: python -m pip install distributed") from None
    logging.getLogger("distributed").setLevel(_SILENT)  # the run reports problems itself
    with dask.config.set(_QUIET):
        where = where or dask.config.get("scheduler-address", None) or "local"
        with _cluster(where) as at:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # about different versions, which are reported below
                    client = distributed.Client(**at, set_as_default=False)
            except (OSError, ValueError) as error:
                raise UsageError(f"no Dask scheduler answers at {shown(where)}: {_brief(error)}") from None
            try:
                _await_workers(client, where, patience, tell)
                _require_same(client)
                yield client
            finally:
                client.close(timeout=2)


@contextmanager
def _cluster(where: str) -> Iterator[Mapping[str, Any]]:
    """Arguments of `distributed.Client` for a cluster; a local one is started and stopped."""
    if (match := re.fullmatch(LOCAL_CLUSTER, where)) is not None:
        from distributed import LocalCluster

        count = max(1, int(match["workers"] or cores()))
        share = int(0.9 * left()) // count
        with LocalCluster(
            n_workers=count, threads_per_worker=1, resources={MEMORY: share}, memory_limit=0, dashboard_address=None,
            silence_logs=_SILENT,
        ) as cluster:  # fmt: skip
            yield {"address": cluster}
    elif re.fullmatch(SCHEDULER, where):
        yield {"address": where}
    elif os.path.isfile(where):
        yield {"scheduler_file": where}
    else:
        raise UsageError(f"{shown(where)!r} is no Dask scheduler; {SCHEDULERS}")


def _await_workers(client: Client, where: str, patience: float, tell: Callable[[str], None]) -> None:
    deadline = time.monotonic() + patience
    if not workers_of(client):
        tell(f"the scheduler at {shown(where)} has no worker yet; waiting {patience:g} s for one (--timeout: less)")
    while not workers_of(client):
        if time.monotonic() > deadline:
            hint = f"dask worker --scheduler-file {where}" if os.path.isfile(where) else f"dask worker {where}"
            raise UsageError(f"the scheduler at {shown(where)} has no worker after {patience:g} s; start some: {hint}")
        time.sleep(min(0.2, patience / 10))


def _require_same(client: Client) -> None:
    """Raises a UsageError that lists the scheduler and workers whose versions differ from this machine's."""
    there: dict[str, Any] = {}
    try:
        there["the scheduler"] = client.run_on_scheduler(versions)
    except Exception as error:  # reported like an answer
        there["the scheduler"] = error
    there |= {f"worker {address}": found for address, found in client.run(versions, on_error="return").items()}
    others = [f"  {who}: {how}" for who, found in sorted(there.items()) if (how := _difference(found))]
    if others:
        lines = [*others[:20], *([f"  ... and {len(others) - 20} more"] if len(others) > 20 else [])]
        raise UsageError("\n".join(["the cluster is not like this machine; it needs the same versions:", *lines]))


def _difference(found: Any) -> str:
    """A sentence about versions that differ, or about the error of asking for them; "" if all are the same."""
    if isinstance(found, ModuleNotFoundError):
        return f"has no gradcheck ({found})"
    return f"cannot tell: {_brief(found)}" if isinstance(found, BaseException) else difference(versions(), found)


def workers_of(client: Client) -> Mapping[str, Mapping[str, Any]]:
    """Workers by address, with `nthreads` and `resources`; raises a LimitError if the scheduler is gone."""
    try:
        return dict(client.scheduler_info(n_workers=-1)["workers"])
    except (OSError, RuntimeError, TimeoutError):
        raise gone() from None


def is_on(client: Client) -> bool:
    """True while the client is connected to the scheduler."""
    return str(client.status) == "running"


def gone() -> LimitError:
    """The error for a cluster whose scheduler is gone."""
    said = "the Dask scheduler is gone; what was finished is kept, and the same command goes on with the rest"
    return LimitError(said, code="GC603")


def _brief(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return shown(lines[0])[:200] if lines else type(error).__name__


def on_workers(settings: Settings) -> Settings:
    """The settings, with a lower memory limit: a worker may have less memory than this machine."""
    return replace(settings, memory_limit=min(allowed(settings.memory_limit), _OF_A_PART))


def elsewhere(where: str, source: Source, settings: Settings, tell: Callable[[str], None]) -> Elsewhere:
    """A function that compares the parts of a check on a cluster; `where` is an argument of `connected`."""

    def ask(count: int, points: Points) -> Iterator[tuple[int, Shares]]:
        shared = structs.replace(source, values_at=points), replace(settings, test_data=None, jobs=1)
        with connected(where, _patience(settings.timeout), tell) as client:
            yield from _compared(client, shared, count, allowed(settings.memory_limit))

    return ask


def _compared(client: Client, shared: tuple[Source, Settings], count: int, memory: int) -> Iterator[tuple[int, Shares]]:
    """The findings of all parts as they come; an error of one part ends all."""
    from distributed import as_completed

    advice = "; a lower --memory-limit makes parts smaller"
    resources = _resources(workers_of(client), memory, "a part may take", advice)
    [with_data] = client.scatter([shared], broadcast=True, hash=False)
    tickets = {_ticket(): index for index in range(count)}
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


def _resources(
    workers: Mapping[str, Mapping[str, Any]], size: int, what: str, advice: str = ""
) -> Mapping[str, int] | None:
    """The memory that a job needs of its worker, None if no worker declares any; a LimitError if all have less."""
    offered = {address: worker["resources"].get(MEMORY, 0) for address, worker in workers.items()}
    largest = max(offered, key=offered.__getitem__, default="")
    if not offered.get(largest):
        return None
    if offered[largest] < size:
        most = f"the largest worker, {largest}, offers {spell(offered[largest])}"
        raise LimitError(f"{what} {spell(size)}, and {most}{advice}", code="GC602")
    return {MEMORY: size}


def _answer(client: Client, future: Future[Shares]) -> Shares:
    try:
        shares: Shares = future.result()
    except (GradcheckError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if not is_on(client):
            raise gone() from None
        lost = "workers were lost while they compared it, killed or out of memory"
        what = lost if _is_lost(future) else _named(error)
        raise LimitError(f"a part of the Jacobian was not compared: {what}", code="GC603") from None
    return shares


def share(shared: tuple[Source, Settings], index: int, count: int, ticket: str, needed: Mapping[str, str]) -> Shares:
    """The findings of one part; runs in a thread of a Dask worker."""
    from distributed import get_worker

    from gradcheck_cli.checks.parts import Part
    from gradcheck_cli.checks.procedure import Procedure  # not imported in a scheduler, which reads this module too

    worker: Any = get_worker()
    if differs := difference(needed, versions()):
        raise UsageError(f"worker {worker.address} is not like the machine that asks: {differs}")
    part, stop = Part(index, count), _Cancellation(worker, ticket)
    return Procedure(*shared, listen=stop, part=part).shares()


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
