"""Jobs as they are asked for, from a thread: fetching the next one may take a while, and nothing waits for it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")  # a job, however it is wrapped


class Feed(Generic[T]):
    """The jobs of an iterable, fetched `ahead` of what was taken; `wake` is called when there is something new."""

    def __init__(self, jobs: Iterable[T], wake: Callable[[], None], ahead: int = 2) -> None:
        self.jobs, self.wake = jobs, wake
        self.ready: deque[T] = deque()
        self.room = threading.Semaphore(ahead)
        self.fetched = self.closed = False
        self.error: BaseException | None = None
        threading.Thread(target=self._fetch, name="jobs", daemon=True).start()

    @property
    def over(self) -> bool:
        """All were taken."""
        return self.fetched and not self.ready

    def take(self) -> T | None:
        """The next job if it is there; raises what the iterable raised."""
        if self.ready:
            self.room.release()
            return self.ready.popleft()
        if self.fetched and self.error is not None:
            raise self.error
        return None

    def close(self) -> None:
        """No more are fetched."""
        self.closed = True
        self.room.release()

    def _fetch(self) -> None:
        try:
            for job in self.jobs:
                self.room.acquire()
                if self.closed:
                    return
                self.ready.append(job)
                self.wake()
        except BaseException as error:  # raised where jobs are taken
            self.error = error
        self.fetched = True
        self.wake()
