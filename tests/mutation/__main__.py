"""Mutation testing: `python -m tests.mutation /tmp/mutation` breaks the package in 420 places, one at a time.

The first pass finds the tests that run each place: every test function runs cases in a random order until it has used
`--each` seconds.  Then each mutant lives in a fork of this process, which has collected all tests: one function gets
other code, and tests that run it go on until one fails or hangs (killed), or `--budget` seconds of processor time are
used up (survived).  Processes that tests start run the same mutant (`path/sitecustomize.py`).  Code that only imports
run has run before the fork: such mutants are `not reached`, as are those that no test runs.

Both passes write JSON lines into the folder, and go on where they stopped as long as nothing has changed; `--part 0/2`
and `--part 1/2` share the work.  All other arguments are pytest's, and choose tests.
"""

from __future__ import annotations

import argparse
import gc
import json
import marshal
import os
import random
import resource
import select
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from tests.mutation.mutants import PACKAGE, ROOT, Mutant, code, drawn, exchanged

Say = Callable[[], object]
Record = dict[str, Any]
MORE_MEMORY, LONGEST_TEST = 7 << 30, 120  # bytes of addresses beside what is there; seconds, whatever the load


class Run:
    """Both passes, in place of pytest's loop over the tests it has collected."""

    def __init__(self, given: argparse.Namespace):
        self.given, self.folder = given, given.folder
        self.part, self.parts = map(int, given.part.split("/"))
        self.mutants = drawn(given.seed, given.least, given.mutants)
        self.marked = defaultdict[str, dict[int, int]](dict)
        for number, mutant in enumerate(self.mutants):
            self.marked[mutant.path][mutant.index] = number
        self.failed = False

    def write_marked(self) -> None:
        """Writes the package's files with their marks, before any is imported; `$MUTATION_CODE` leads to them."""
        for path, marked in self.marked.items():
            Path(os.environ["MUTATION_CODE"], flat(path)).write_bytes(marshal.dumps(code(path, marked)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed = self.failed or report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        alive = gc.get_objects()
        self.functions = [f for f in alive if isinstance(f, FunctionType) and within(f.__code__.co_filename)]
        self.caches = [f for f in alive if hasattr(type(f), "cache_clear")]
        gc.freeze()
        while self.unseen():
            self.forked(self.find_mutants_of_tests, "tests")
        self.kill_mutants()
        return True

    def passes(self, name: str) -> bool:
        """Runs one test; a skipped one passes."""
        self.failed, item = False, self.items[name]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return not self.failed

    # the first pass

    def seen(self) -> dict[str, Record]:
        """Outcomes of tests without a mutant, by their names."""
        return {line["test"]: line for line in lines(self.folder.glob("tests-*.jsonl"))}

    def unseen(self) -> list[str]:
        """Cases still to run, the first of every function before its others."""
        seen, nth = self.seen(), Counter[str]()
        used = used_by_function(seen)
        left = []
        for name in random.Random(0).sample([*self.items], len(self.items)):
            nth[function(name)] += 1
            if name not in seen and used[function(name)] < self.given.each:
                left.append((nth[function(name)], name))
        return [name for _, name in sorted(left, key=lambda each: each[0])][self.part :: self.parts]

    def find_mutants_of_tests(self, say: Say) -> None:
        """Runs cases, and writes each one's time, outcome and mutants."""
        from sitecustomize import HITS

        used = used_by_function(self.seen())
        with (self.folder / f"tests-{self.part}.jsonl").open("a") as out:
            for name in self.unseen():
                if used[function(name)] >= self.given.each:
                    continue
                say()
                record = {"test": name, "seconds": self.given.each, "passed": False, "mutants": []}
                print(json.dumps(record), file=out, flush=True)  # holds if the test ends the process
                HITS[:], start = bytes(len(HITS)), processor_time()
                passed = self.passes(name)
                ran = [number for number in range(len(self.mutants)) if HITS[number]]
                record |= {"seconds": processor_time() - start, "passed": passed, "mutants": ran}
                used[function(name)] += record["seconds"]
                print(json.dumps(record), file=out, flush=True)

    # the second pass

    def kill_mutants(self) -> None:
        """Runs each mutant that has no outcome yet, or survived a smaller budget, and writes how it ended."""
        known = lines(self.folder.glob("mutants-*.jsonl"))
        done = {line["mutant"] for line in known if line["by"] or line["budget"] >= self.given.budget}
        tests = [test for test in self.seen().values() if test["passed"] and test["test"] in self.items]
        left = self.given.only or [number for number in range(len(self.mutants)) if number not in done]
        for number in left[self.part :: self.parts]:
            chosen = [*in_order(tests, number)]
            outcome = self.outcome(number, chosen) if chosen else {"outcome": "not reached", "by": ""}
            record = {"mutant": number, **asdict(self.mutants[number]), "budget": self.given.budget, **outcome}
            with (self.folder / f"mutants-{self.part}.jsonl").open("a") as out:
                print(json.dumps(record), file=out)
            print(json.dumps(record), file=sys.stderr)

    def outcome(self, number: int, chosen: list[str]) -> Record:
        """The end of a mutant in a fork, where the tests that run it are tried."""
        folder = self.folder / f"code-{number}"
        shutil.copytree(os.environ["MUTATION_CODE"], folder, dirs_exist_ok=True)
        end = self.forked(lambda say: self.try_tests(number, chosen, folder, say), f"mutant-{number}")
        written = lines([folder / "outcome"])
        shutil.rmtree(folder)
        return written[-1] if written else {"outcome": "killed", "by": end}

    def try_tests(self, number: int, chosen: list[str], folder: Path, say: Say) -> None:
        """Puts a mutant in place, and runs tests until one fails."""
        resource.setrlimit(resource.RLIMIT_AS, (MORE_MEMORY + addresses(),) * 2)
        self.mutate(self.mutants[number], folder)
        start, outcome, by = processor_time(), "survived", ""
        for name in chosen:
            say()
            if not self.passes(name):
                outcome, by = "killed", name
            if by or processor_time() - start > self.given.budget:
                break
        used = processor_time() - start
        record = {"outcome": outcome, "by": by, "seconds": used}
        (folder / "outcome").write_text(json.dumps(record))

    def mutate(self, mutant: Mutant, folder: Path) -> None:
        """Changes one function: where it lives, for modules not yet imported, and for processes not yet started."""
        marked = self.marked[mutant.path]
        new = code(mutant.path, marked, mutant.index)
        (folder / flat(mutant.path)).write_bytes(marshal.dumps(new))
        os.environ["MUTATION_CODE"] = str(folder)
        changed = [*exchanged(code(mutant.path, marked), new)]
        for f in self.functions:
            if f.__code__.co_filename == str(ROOT / mutant.path):
                f.__code__ = next((b for a, b in changed if a == f.__code__), f.__code__)
        for cache in self.caches:
            cache.cache_clear()

    def forked(self, work: Callable[[Say], None], name: str) -> str:
        """Runs work in a fork, which says that it is alive at every test; gives how it ended if not as it should."""
        temporary = self.folder / f"tmp-{name}"
        reader, writer = os.pipe()
        if not (child := os.fork()):
            try:
                os.setsid()
                next(iter(self.items.values())).config._tmp_path_factory._given_basetemp = temporary  # type: ignore[attr-defined]
                work(lambda: os.write(writer, b"."))
            finally:
                os._exit(0)
        os.close(writer)
        end = "timeout"
        while select.select([reader], [], [], LONGEST_TEST)[0]:
            if not os.read(reader, 1 << 16):
                end = "crash"
                break
        with suppress(ProcessLookupError):
            os.killpg(child, 9)
        os.waitpid(child, 0)
        os.close(reader)
        shutil.rmtree(temporary, ignore_errors=True)
        return end


def in_order(tests: list[Record], mutant: int) -> Iterator[str]:
    """Tests that run a mutant: fast ones of few mutants first, and one of every function before a second of any."""
    nth, ranked = Counter[str](), []
    for test in sorted(tests, key=lambda t: (t["seconds"] + 0.02) * (10 + len(t["mutants"]))):
        if mutant in test["mutants"]:
            nth[function(test["test"])] += 1
            ranked.append((nth[function(test["test"])], test["test"]))
    yield from (name for _, name in sorted(ranked, key=lambda each: each[0]))


def used_by_function(seen: dict[str, Record]) -> Counter[str]:
    """Seconds that the cases of each test function took together."""
    used = Counter[str]()
    for name, line in seen.items():
        used[function(name)] += line["seconds"]
    return used


def function(test: str) -> str:
    return test.partition("[")[0]


def flat(path: str) -> str:
    return path.replace("/", ".")


def within(path: str) -> bool:
    return Path(path).is_relative_to(PACKAGE)


def processor_time() -> float:
    """Seconds used by this process and by those it has waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def addresses() -> int:
    """Bytes of addresses that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def lines(paths: Any) -> list[Record]:
    return [json.loads(line) for path in paths if path.exists() for line in path.read_text().splitlines()]


def arguments() -> tuple[argparse.Namespace, list[str]]:
    """The command line: options of this script, and the rest, which are pytest's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=lambda text: Path(text).resolve(), help="results are kept here")
    parser.add_argument("--seed", type=int, default=1, help="other mutants by another seed")
    parser.add_argument("--mutants", type=int, default=420, help="number of mutants")
    parser.add_argument("--least", type=int, default=8, help="number of mutants in each folder of the package")
    parser.add_argument("--each", type=float, default=0.5, help="seconds of each test function in the first pass")
    parser.add_argument("--budget", type=float, default=20, help="seconds of tests for a mutant")
    parser.add_argument("--part", default="0/1", help="I/N: the I-th of N processes that share the work")
    parser.add_argument("--only", type=int, action="append", help="a mutant by its number, once more")
    return parser.parse_known_args()


def main() -> None:
    """Starts itself again with the hook on its path, then runs pytest."""
    given, rest = arguments()
    own = given.folder / f"part-{given.part.replace('/', '-')}"
    if "MUTATION_CODE" not in os.environ:
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir(parents=True)
        (own / "hits").write_bytes(bytes(given.mutants + 1000))
        path = [str(Path(__file__).parent / "path"), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ |= {
            "MUTATION_CODE": str(own),
            "MUTATION_HITS": str(own / "hits"),
            "PYTHONPATH": os.pathsep.join(path),
        }
        os.execv(sys.executable, [sys.executable, "-m", "tests.mutation", *sys.argv[1:]])
    run = Run(given)
    run.write_marked()
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-m", "not slow", *rest], plugins=[run]))


if __name__ == "__main__":
    main()
