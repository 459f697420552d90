"""Runs jobs on a Dask cluster, as `engine` does on one machine: each gives its records once, whatever becomes of workers.

The driver keeps count: a job is done when its first answer is here, what comes later is dropped; one whose worker was
lost is given to another, a few times.  What a worker does with a job is in `worker`.

A client of a Dask cluster: found by address, by scheduler file, or started on this machine; and found fit for use.

Scheduler and workers must have the same gradcheck, Python, NumPy and onnx as this machine: a record says which versions
it is of, and results must not depend on who has made them.
"""

from __future__ import annotations

import logging
import os
import re
import selectors
import shutil
import time
import uuid
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradcheck_cli.errors import GradcheckError, LimitError, UsageError, shown
from gradcheck_cli.graph.memory import left, spell
from gradcheck_cli.zoo import crash
from gradcheck_cli.zoo.engine import WORK, Admission, Done, Feed, Interrupts
from gradcheck_cli.zoo.job import LOCAL_CLUSTER, SCHEDULER, SCHEDULERS, Job, Limits, Listener, Silent, cores
from gradcheck_cli.zoo.parcel import Parcel, difference, packed, versions, with_contents
from gradcheck_cli.zoo.shelf import prune, renamed, running
from gradcheck_cli.zoo.worker import MEMORY, Answer, Bundles, perform

if TYPE_CHECKING:
    from distributed import Client, Future


_SILENT = logging.CRITICAL + 1
_WAIT = 60.0  # seconds for the first worker to be there
_QUIET = {
    "distributed.admin.large-graph-warning-threshold": "1TB",  # models go along where workers do not see them
    "distributed.comm.timeouts.connect": "10s",
}


@contextmanager
def connected(where: str = "") -> Iterator[Client]:
    """A client of the cluster at tcp://HOST:PORT, in a scheduler file, or of local:N workers; "" as Dask is configured.

    UsageError where there is none, or none that can be used.
    """
    try:
        import dask
        import distributed
    except ImportError:
        raise UsageError("--engine dask needs Dask: pip install 'gradcheck-cli[dask]'") from None
    logging.getLogger("distributed").setLevel(_SILENT)  # what matters is said by the run
    with dask.config.set(_QUIET):
        where = where or dask.config.get("scheduler-address", None) or "local"
        with _cluster(where) as at:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of versions that differ: said below, in full
                    client = distributed.Client(**at, set_as_default=False)
            except (OSError, ValueError) as error:
                raise UsageError(f"no Dask scheduler answers at {shown(where)}: {_brief(error)}") from None
            try:
                _await_workers(client, where)
                _require_same(client)
                yield client
            finally:
                client.close(timeout=2)


@contextmanager
def _cluster(where: str) -> Iterator[Mapping[str, Any]]:
    """How a client is told of a cluster, which is there meanwhile."""
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


def _await_workers(client: Client, where: str) -> None:
    deadline = time.monotonic() + _WAIT
    while not workers_of(client):
        if time.monotonic() > deadline:
            hint = f"dask worker --scheduler-file {where}" if os.path.isfile(where) else f"dask worker {where}"
            raise UsageError(f"the scheduler at {shown(where)} has no worker after {_WAIT:.0f} s; start some: {hint}")
        time.sleep(0.2)


def _require_same(client: Client) -> None:
    """UsageError that lists who is not like this machine."""
    there: dict[str, Any] = {"the scheduler": _asked(client)}
    there |= {f"worker {address}": found for address, found in client.run(versions, on_error="return").items()}
    apart = [f"  {who}: {how}" for who, found in sorted(there.items()) if (how := _apart(found))]
    if apart:
        shown_ = [*apart[:20], *([f"  ... and {len(apart) - 20} more"] if len(apart) > 20 else [])]
        raise UsageError("\n".join(["the cluster is not like this machine; it needs the same versions:", *shown_]))


def _asked(client: Client) -> Any:
    try:
        return client.run_on_scheduler(versions)
    except Exception as error:  # whatever it is, it is said
        return error


def _apart(found: Any) -> str:
    """How somebody differs, from what versions it has or why it could not tell."""
    if isinstance(found, ModuleNotFoundError):
        return f"has no gradcheck ({found})"
    return f"cannot tell: {_brief(found)}" if isinstance(found, BaseException) else difference(versions(), found)


def workers_of(client: Client) -> Mapping[str, Mapping[str, Any]]:
    """Workers by address, with `nthreads` and `resources`; LimitError where the scheduler is gone."""
    try:
        return dict(client.scheduler_info(n_workers=-1)["workers"])
    except (OSError, RuntimeError, TimeoutError):
        raise gone() from None


def is_on(client: Client) -> bool:
    """The scheduler answers."""
    return str(client.status) == "running"


def gone() -> LimitError:
    """That the cluster is no more."""
    said = "the Dask scheduler is gone; what was finished is kept, and the same command goes on with the rest"
    return LimitError(said, code="GC603")


def _brief(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return shown(lines[0])[:200] if lines else type(error).__name__


RETRIES = 3  # times that a job is done again because its worker was lost
_TICK, _SECOND = 0.2, 1.0
_PATIENCE = 60.0  # seconds without any worker
_AHEAD = 2  # jobs beyond what workers do at once, for each thread


def run(
    where: str, jobs: Iterable[Job], limits: Limits, done: Done, listen: Listener | None = None, work: str = WORK
) -> None:
    """Calls `done` with each job and its records, as they end; `where` is what `connected` takes.

    `limits.jobs` is how many are at the cluster at once, 0 for as many as it takes.  Raises what `engine.run` raises,
    UsageError for a cluster that cannot be used, and LimitError once it is gone.
    """
    with connected(where) as client:
        Cluster(client, limits, done, listen or Silent(), work).run(jobs)


@dataclass(slots=True, eq=False)
class Sent:
    """A parcel at the cluster."""

    parcel: Parcel
    future: Future[Answer]
    began: int = 0  # times that some worker began with the job
    tries: int = 0  # times that it was sent anew


class Cluster:
    """One run: the parcels that are out."""

    def __init__(self, client: Client, limits: Limits, done: Done, listen: Listener, work: str) -> None:
        self.client, self.limits, self.done, self.listen, self.work = client, limits, done, listen, work
        self.topic = f"gradcheck-{uuid.uuid4().hex}"
        self.admission, self.interrupts = Admission(limits), Interrupts()
        self.out: dict[str, Sent] = {}  # by ticket
        self.news: deque[tuple[str, str, Any]] = deque()  # ticket, kind, value; from threads of the client
        self.workers: Mapping[str, Mapping[str, Any]] = {}
        self.looked = self.met = 0.0  # when, at the workers; when there were any

    def run(self, jobs: Iterable[Job]) -> None:
        """All of it."""
        with self.interrupts.heeded(), selectors.DefaultSelector() as selector:
            selector.register(self.interrupts.reader, selectors.EVENT_READ)
            feed = Feed((self._packed(job) for job in jobs), self.interrupts.wake)
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

    def _packed(self, job: Job) -> Parcel:
        """In the thread that jobs come from: files are read for it."""
        return packed(f"gradcheck-{uuid.uuid4().hex}", job, self.limits, self.work)

    def _fill(self, feed: Feed[Parcel]) -> bool:
        """Sends as much as there are threads for, and some more; False where nothing is left to do."""
        while len(self.out) < self._places() and (parcel := feed.take()) is not None:
            self._send(parcel)
        return bool(self.out) or not feed.over

    def _places(self) -> int:
        threads = sum(worker["nthreads"] for worker in self.workers.values())
        return min(self.limits.jobs or threads + _AHEAD * len(self.workers), threads + _AHEAD * len(self.workers))

    def _send(self, parcel: Parcel, before: Sent | None = None) -> None:
        """A parcel that no worker could ever take becomes a record at once."""
        wanted = self.admission.first(parcel.job)
        offered = {address: worker["resources"].get(MEMORY) for address, worker in self.workers.items()}
        known = {address: size for address, size in offered.items() if size is not None}
        largest = max(known, key=known.__getitem__, default="")
        if known and wanted > known[largest]:
            most = f"the largest worker, {largest}, offers {spell(known[largest])}"
            said = f"is predicted to take {spell(wanted)}, and {most}"
            self._give(parcel.job, [crash.record(parcel.job, "", LimitError(said, code="GC602"))])
            return
        future = self.client.submit(
            perform, parcel, self.topic, key=parcel.ticket, pure=False,
            resources={MEMORY: wanted} if known else None,
        )  # fmt: skip
        self.out[parcel.ticket] = Sent(parcel, future, *((before.began, before.tries + 1) if before else ()))
        future.add_done_callback(lambda _: self._note(parcel.ticket, "over", None))

    def _anew(self, sent: Sent, parcel: Parcel) -> None:
        """The same job under another ticket: what still comes for this one is dropped."""
        self._send(replace(parcel, ticket=f"gradcheck-{uuid.uuid4().hex}"), sent)

    # --- hearing

    def _hear(self, event: Any) -> None:
        """An event of a worker, in a thread of the client."""
        told = event[1]
        self._note(told["ticket"], told["kind"], told["value"])

    def _note(self, ticket: str, kind: str, value: Any) -> None:
        self.news.append((ticket, kind, value))
        self.interrupts.wake()

    def _turn(self) -> None:
        """What has happened since."""
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
            if sent.began > 1 + RETRIES:  # a scheduler may be more patient
                del self.out[sent.parcel.ticket]
                self._give_up(sent)
            else:
                self.listen.started(job)

    def _settle(self, sent: Sent) -> None:
        """An answer, or that none will come."""
        if sent.future.status == "finished":
            self._accept(sent, sent.future.result())
        elif not is_on(self.client):
            raise gone()
        elif _is_lost(sent.future):
            if sent.began > RETRIES or sent.tries > 2 * RETRIES:
                self._give_up(sent)
            else:
                self._anew(sent, sent.parcel)
        else:
            self._give(sent.parcel.job, [crash.record(sent.parcel.job, "", _refused(sent.future.exception()))])

    def _accept(self, sent: Sent, answer: Answer) -> None:
        if answer.differs:
            raise UsageError(f"worker {answer.worker} is not like this machine: {answer.differs}")
        if answer.records is not None:
            _save(sent.parcel.job, answer.bundles)
            self._give(sent.parcel.job, answer.records)
            return
        try:
            self._anew(sent, with_contents(sent.parcel))
        except (OSError, GradcheckError) as error:
            reason = (
                error if isinstance(error, GradcheckError) else LimitError(f"it cannot be sent: {error}", code="GC603")
            )
            self._give(sent.parcel.job, [crash.record(sent.parcel.job, "", reason)])

    def _give_up(self, sent: Sent) -> None:
        said = f"its worker was lost {max(sent.began, 1)} times while it ran, killed or out of memory"
        self._give(sent.parcel.job, [crash.record(sent.parcel.job, "", LimitError(said, code="GC603"))])
        with suppress(Exception):
            self.client.cancel([sent.future], force=True)

    def _give(self, job: Job, records: list[dict[str, Any]]) -> None:
        self.done(job, records)
        self.listen.ended(job, records)

    # --- the cluster

    def _look(self) -> None:
        """Who is there; LimitError where nobody has been for long."""
        self.workers = workers_of(self.client)
        self.looked = now = time.monotonic()
        self.met = now if self.workers or not self.met else self.met
        if now > self.met + _PATIENCE:
            raise LimitError(f"the cluster has had no worker for {_PATIENCE:.0f} s", code="GC603")

    def _end(self) -> None:
        """Nothing is asked for any more: workers stop what they do."""
        with suppress(Exception):  # the scheduler may be about to go
            if not is_on(self.client):
                return
            self.client.cancel([sent.future for sent in self.out.values()], force=True)
            self.client.unsubscribe_topic(self.topic)


def _is_lost(future: Future[Answer]) -> bool:
    """No fault of the job's own: its worker, or what it ran in, is no more."""
    return future.status in ("cancelled", "lost") or type(future.exception()).__name__ in (
        "KilledWorker",
        "Lost",
        "GivenUp",
    )


def _refused(error: BaseException | None) -> GradcheckError:
    return LimitError(f"its worker failed: {type(error).__name__}: {shown(str(error))[:300]}", code="GC603")


def _save(job: Job, bundles: Bundles) -> None:
    """Bundles that came with an answer, where those of this machine are kept."""
    folder = crash.folder_of(job)
    if folder is None or not bundles:
        return
    with suppress(OSError):  # a bundle that cannot be kept is no reason to lose a record
        for name, files in bundles.items():
            place = running(folder, name)
            for path, content in _inside(place, files):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            renamed(place, folder / name)
        prune(folder)


def _inside(place: Path, files: Mapping[str, bytes]) -> Iterator[tuple[Path, bytes]]:
    """Files with their places; none that would lie elsewhere."""
    shutil.rmtree(place, ignore_errors=True)
    for name, content in files.items():
        path = place / name
        if path.resolve().is_relative_to(place.resolve()):
            yield path, content
