"""The corpus as a table: `python -m tests.corpus --seeds 5 --from 100` scores every kind of fault over fresh seeds."""

from __future__ import annotations

import argparse
import itertools
import os
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from tests.corpus.hard import HARD, became
from tests.corpus.hosts import composed, with_rules
from tests.corpus.kinds import KINDS
from tests.corpus.networks import NETWORKS
from tests.corpus.score import Score, of_case, of_kind, of_network
from tests.ops.cases import CASES

PARTS = {
    "operators": [partial(of_case, case) for case in with_rules(CASES)],
    "composed": [partial(of_case, case) for case in composed(CASES)],
    "kinds": [partial(of_kind, kind) for kind in KINDS],
    "networks": [partial(of_network, name) for name in NETWORKS],
}
COLUMNS = ("mutants", "caught", "missed", "inconclusive", "no fault", "suspect right", "wrong", "none")


def main() -> None:
    """Scores the parts that were asked for, and prints them."""
    given = arguments()
    seeds = range(given.start, given.start + given.seeds)
    entries = [(part, i, seed) for part in given.parts for seed in seeds for i in range(len(PARTS[part]))]
    jobs = [job for job in entries if (job[1] + job[2]) % given.thin == 0]
    with ProcessPoolExecutor(given.jobs) as pool:
        scores = list(itertools.chain(*pool.map(scored, jobs, chunksize=8)))
    print_mutants(scores)
    print_twins(scores)
    print_hard(seeds)
    print("\n".join(["", *(str(s) for s in scores if not s.good)][: given.show + 1]))


def arguments() -> Any:
    """Arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--from", dest="start", type=int, default=100, help="the first seed")
    parser.add_argument("--thin", type=int, default=1, help="take each N-th entry alone, others at other seeds")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--show", type=int, default=50, help="how many cases that went wrong are named")
    return parser.parse_args()


def scored(job: tuple[str, int, int]) -> list[Score]:
    """The scores of one entry of a part at one seed."""
    part, index, seed = job
    return list(PARTS[part][index](seed))


def print_mutants(scores: list[Score]) -> None:
    """A row for each kind of fault."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for score in scores:
        if score.side == "mutant":
            counted = [score.outcome, f"suspect {score.suspect}" if score.suspect == "right" else score.suspect]
            for row in (score.fault, "all"):
                rows[row].update(["mutants"] if score.outcome != "no fault" else [])
                rows[row].update(word for word in counted if word)
    print_table("fault", COLUMNS, [(n, [c[k] for k in COLUMNS]) for n, c in rows.items() if n != "all"])
    print(row_of("all", [rows["all"][k] for k in COLUMNS]))


def print_twins(scores: list[Score]) -> None:
    """One line for all right tables."""
    counts = Counter(s.outcome for s in scores if s.side == "twin")
    print(f"\ntwins: {sum(counts.values())}, {dict(counts)}")
    runs, rows = Counter[str](), sum(s.rows for s in scores)
    for score in scores:
        runs.update(score.runs)
    print("runs a row: " + ", ".join(f"{n / max(rows, 1):.2f} {kind}" for kind, n in runs.items()))


def print_hard(seeds: range) -> None:
    """Right gradients that are hard: what did not become of them what should."""
    found = [(h, seed, became(h, np.random.default_rng(seed), seed)) for h in HARD for seed in seeds]
    fails = sum(status.startswith("fail") for *_, status in found)
    open_ = sum(status.startswith("inconclusive") for *_, status in found)
    print(f"\nhard but right: {len(found)}, false alarms {fails}, inconclusive {open_}")
    for hard, seed, status in found:
        if status not in hard.expected.split(" | "):
            print(f"  {hard.name}, seed {seed}: {status}, not {hard.expected}")


def print_table(title: str, columns: tuple[str, ...], rows: list[tuple[str, list[int]]]) -> None:
    """Markdown."""
    print(row_of(title, list(columns)))
    print(row_of("---", ["---:"] * len(columns)))
    for name, cells in sorted(rows):
        print(row_of(name, cells))


def row_of(name: str, cells: list[Any]) -> str:
    """One row of it."""
    return "| " + " | ".join([name, *map(str, cells)]) + " |"


if __name__ == "__main__":
    main()
