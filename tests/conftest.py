"""The tests run against the package that is installed, whichever way pytest was started.

`python -m pytest` puts the working folder first, where an ordinary installation has no compiled kernels: the
folder moves behind the installed packages.  An editable installation leads back to it by itself.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from zlib import crc32

import pytest

_ROOT = Path(__file__).parents[1]
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _ROOT] + [str(_ROOT)]

os.environ["GRADCHECK_SAVE_FAILURES"] = "none"  # failures are wanted here: they leave nothing in the working folder
for _ignored in ("SIGHUP", "SIGINT"):  # by a shell that started pytest in the background: what is tested would be deaf
    if (_signal := getattr(signal, _ignored, None)) and signal.getsignal(_signal) == signal.SIG_IGN:
        signal.signal(_signal, signal.default_int_handler if _ignored == "SIGINT" else signal.SIG_DFL)


def pytest_configure(config: pytest.Config) -> None:
    """Stops where the installed package is an older one than the checkout: its tests would say nothing about this one."""
    if hasattr(config, "workerinput"):  # of pytest-xdist: whoever started it has looked
        return
    found = find_spec("gradcheck_cli")
    if found is None or found.origin is None:
        pytest.exit("gradcheck_cli is not installed: python -m pip install '.[test]'", 4)
    other = differing(Path(found.origin).parent, _ROOT / "gradcheck_cli")
    if other:
        more = f" and {len(other) - 1} more" if len(other) > 1 else ""
        pytest.exit(f"the installed gradcheck_cli is not this checkout's: {other[0]}{more} differ in "
                    f"{Path(found.origin).parent}; python -m pip install '.[test]'", 4)  # fmt: skip


def differing(installed: Path, checkout: Path) -> list[str]:
    """Files of Python that one of two packages lacks, or that say something else in it."""
    if installed == checkout:
        return []
    one, two = ({str(p.relative_to(root)): p for p in root.rglob("*.py")} for root in (installed, checkout))
    return sorted(n for n in {*one, *two} if n not in one or n not in two or one[n].read_bytes() != two[n].read_bytes())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run files, and the tests in each, in a random order")
    parser.addoption("--part", metavar="K/N", help="run the K-th of N parts, from 1; together they are all")


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves slow tests out unless they are asked for; then --part and --shuffle say which run, and in which order."""
    mark_the_rest(items)
    if config.option.part:
        keep(config, items, part(items, config.option.part))
    if not whole(config):
        keep(config, items, [item for item in items if not item.get_closest_marker("slow")])
    if config.option.shuffle is not None:
        items[:] = shuffled(items, config.option.shuffle)


def pytest_collection_finish() -> None:
    """Sets what collecting made aside: the garbage collector would look through all of it again and again."""
    gc.collect()
    gc.freeze()


def mark_the_rest(items: list[pytest.Item]) -> None:
    """Marks as slow all cases but one in n of a test that is marked `one_in(n)`; the first stays in any case.

    With `one_in(n, of="op")` that is the first of each value of this attribute of the case.  Which others stay follows
    from their names alone, so that a new case changes nothing for the others.
    """
    seen = set[tuple[str, str]]()
    for item in items:
        if (mark := item.get_closest_marker("one_in")) is None:
            continue
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        group = item.nodeid.partition("[")[0], getattr(params.get("case"), mark.kwargs.get("of", ""), "")
        if group in seen and crc32(item.nodeid.encode()) % mark.args[0]:
            item.add_marker("slow")
        seen.add(group)


def part(items: list[pytest.Item], which: str) -> list[pytest.Item]:
    """Every N-th test, from the K-th on."""
    k, n = map(int, which.split("/"))
    return items[k - 1 :: n]


def keep(config: pytest.Config, items: list[pytest.Item], chosen: list[pytest.Item]) -> None:
    """Deselects all but the chosen."""
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = chosen


def shuffled(items: list[pytest.Item], seed: int) -> list[pytest.Item]:
    """Files in another order, and the tests of each; what a file's tests share is still made once."""
    rng, files = random.Random(seed), dict[Path, list[pytest.Item]]()
    for item in rng.sample(items, len(items)):
        files.setdefault(item.path, []).append(item)
    return [item for file in files.values() for item in file]


def whole(config: pytest.Config) -> bool:
    """`-m slow`, or an expression with it, was given."""
    asked: str = config.option.markexpr
    return "slow" in asked and "not slow" not in asked
