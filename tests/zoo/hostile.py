"""Jobs whose process does not end as it should."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from gradcheck_cli.checks.assemble import peak_rss_mb
from gradcheck_cli.zoo import Job
from gradcheck_cli.zoo.child import Desk


def made(name: str, status: str = "pass") -> dict[str, Any]:
    """A record, as short as one can be."""
    return {"schema": "gradcheck.result/1", "id": name, "check": name, "status": status, "code": ""}


def work(job: Job, desk: Desk) -> Iterator[Mapping[str, Any]]:
    """Does what the name of the job says, in a task of its own."""
    deed, _, argument = job.path.partition(" ")
    yield from DEEDS[deed](job, desk, argument)


def right(job: Job, desk: Desk, argument: str) -> Iterator[Mapping[str, Any]]:
    time.sleep(float(argument or 0))
    yield made(job.uri)


def tells(job: Job, desk: Desk, argument: str) -> Iterator[Mapping[str, Any]]:
    desk.stage("telling its number")
    with open(argument, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(600)
    yield made(job.uri)


def dies(job: Job, desk: Desk, argument: str) -> Iterator[Mapping[str, Any]]:
    desk.stage("reading the model")
    yield made(job.uri)
    os.kill(os.getpid(), getattr(signal, argument))


def falters(job: Job, desk: Desk, argument: str) -> Iterator[Mapping[str, Any]]:
    """Is killed at the first attempt, in its second task."""
    file, number = argument.split()
    desk.tasks(3)
    for name in ("a", "b", "c")[desk.errand.first :]:
        desk.begin(name)
        if name == "b" and not os.path.exists(file):
            open(file, "w").close()
            os.kill(os.getpid(), int(number))
        yield made(name)


def orphans(job: Job, desk: Desk, argument: str) -> Iterator[Mapping[str, Any]]:
    """Kills the server that it was forked from, at the first attempt."""
    if not os.path.exists(argument):
        open(argument, "w").close()
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)
    yield made(job.uri)


def exits(job: Job, desk: Desk, argument: str) -> Iterator[Mapping[str, Any]]:
    os.write(2, b"\x1b[2Jout of luck\n")
    os._exit(int(argument))
    yield made(job.uri)


def raises(job: Job, desk: Desk, argument: str) -> Iterator[Mapping[str, Any]]:
    raise ValueError(argument)
    yield made(job.uri)


def hangs(job: Job, desk: Desk, argument: str) -> Iterator[Mapping[str, Any]]:
    """In C code that holds the interpreter, deaf to SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    desk.stage("sleeping")
    ctypes.PyDLL(None).sleep(600)
    yield made(job.uri)


def eats(job: Job, desk: Desk, argument: str) -> Iterator[Mapping[str, Any]]:
    """Memory, as long as there is any; `mapped` is memory that no limit of the process counts."""
    held: list[Any] = []
    while True:
        if argument == "mapped":
            import mmap

            held.append(mmap.mmap(-1, 16 << 20, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS))
            held[-1].write(b"x" * (16 << 20))
        else:
            held.append(b"x" * (16 << 20))
    yield made(job.uri)


def shouts(job: Job, desk: Desk, argument: str) -> Iterator[Mapping[str, Any]]:
    for _ in range(200):
        os.write(1, b"noise " * 10000 + b"\n")
    print("more of it", file=sys.stderr)
    yield made(job.uri)


def closes(job: Job, desk: Desk, argument: str) -> Iterator[Mapping[str, Any]]:
    os.closerange(3, 1000)
    time.sleep(600)
    yield made(job.uri)


def babbles(job: Job, desk: Desk, argument: str) -> Iterator[Mapping[str, Any]]:
    os.write(desk.channel, BABBLE[argument])
    time.sleep(600)
    yield made(job.uri)


def leaves(job: Job, desk: Desk, argument: str) -> Iterator[Mapping[str, Any]]:
    """A process of its own behind, and ends well."""
    process = subprocess.Popen(["sleep", "600"])
    with open(argument, "w") as file:
        file.write(str(process.pid))
    yield made(job.uri)


def asks(job: Job, desk: Desk, argument: str) -> Iterator[Mapping[str, Any]]:
    """For memory, and says when it had it."""
    time.sleep(0.2)
    desk.needs(float(argument))
    since = time.monotonic()
    time.sleep(0.2)
    yield {**made(job.uri), "had": [since, time.monotonic()]}


def dawdles(job: Job, desk: Desk, argument: str) -> Iterator[Mapping[str, Any]]:
    """Dies before the first of its tasks begins."""
    desk.tasks(1)
    os._exit(4)
    yield made(job.uri)


def several(job: Job, desk: Desk, argument: str) -> Iterator[Mapping[str, Any]]:
    """Tasks; some of them end the process."""
    names = argument.split(",")
    desk.tasks(len(names))
    for name in names[desk.errand.first :]:
        desk.begin(name)
        if name.startswith("bad"):
            os._exit(3)
        yield made(name)


def threads(job: Job, desk: Desk, argument: str) -> Iterator[Mapping[str, Any]]:
    yield {**made(job.uri), "threads": desk.threads}


def numbers(job: Job, desk: Desk, argument: str) -> Iterator[Mapping[str, Any]]:
    """Gives the number of its process, and the most memory that this job had."""
    yield {**made(job.uri), "process": os.getpid(), "peak": peak_rss_mb(), "folder": os.getcwd()}


def grows(job: Job, desk: Desk, argument: str) -> Iterator[Mapping[str, Any]]:
    """Takes megabytes of memory, and keeps them or gives them back."""
    size, _, how = argument.partition(" ")
    memory = b"x" * (int(size) << 20)
    if how == "kept":
        KEPT.append(memory)
    yield from numbers(job, desk, "")


KEPT: list[bytes] = []
BABBLE = {
    "text": b"hello, world: this is no frame at all",
    "long": (1 << 31).to_bytes(4, "big"),
    "unknown": b'\x00\x00\x00\x0b["nope", 1]',
    "nan": b'\x00\x00\x00\x0c["stage",NaN',
    "deep": (200_000).to_bytes(4, "big") + b"[" * 200_000,
    "record": b'\x00\x00\x00\x0f["record",{"a":1}]'.replace(b"\x0f", b"\x12"),
    "end": b'\x00\x00\x00\x09["end",7]',
}
DEEDS = {
    deed.__name__: deed
    for deed in (
        right,
        tells,
        dies,
        falters,
        orphans,
        exits,
        raises,
        hangs,
        eats,
        shouts,
        closes,
        babbles,
        leaves,
        asks,
        dawdles,
        several,
        threads,
        numbers,
        grows,
    )
}
WORK = f"{__name__}:work"
