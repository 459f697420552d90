"""A client of a Dask cluster: found by address, by scheduler file, or started on this machine; and found fit for use.

Scheduler and workers must have the same gradcheck, Python, NumPy and onnx as this machine: a record says which versions
it is of, and results must not depend on who has made them.
"""

from __future__ import annotations

import logging
import os
import re
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gradcheck_cli.errors import LimitError, UsageError, shown
from gradcheck_cli.graph.memory import left
from gradcheck_cli.zoo.job import LOCAL_CLUSTER, SCHEDULER, SCHEDULERS, cores
from gradcheck_cli.zoo.parcel import difference, versions
from gradcheck_cli.zoo.worker import MEMORY

if TYPE_CHECKING:
    from distributed import Client

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
