"""One page for each code: what it means, why it happens, what to do.  The pages are text, in `explanations.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, NamedTuple


class Page(NamedTuple):
    """A code as `gradcheck explain` prints it."""

    title: str
    meaning: str
    causes: str
    remedy: str
    exit_code: int | None = None  # where it is not that of its family
    hint: str = ""  # what to try first, in a line of the report


FAMILIES = {
    "GC1": ("the gradient is wrong, or there is none", 1),
    "GC2": ("a mistake in the command line, a spec or a configuration file", 2),
    "GC3": ("inconclusive: neither confirmed nor wrong at this point", 3),
    "GC4": ("a model that cannot be loaded, or whose outputs differ", 4),
    "GC5": ("an operator, a gradient or a dtype that is not supported", 5),
    "GC6": ("a limit was reached", 6),
    "GC7": ("nothing was checked", 7),
    "GC9": ("a bug of gradcheck", 70),
}


def _read() -> tuple[dict[str, Page], dict[str, str]]:
    """The pages by code, each text on one line, and those on what no code stands for."""
    found: dict[str, Any] = tomllib.loads(Path(__file__).with_name("explanations.toml").read_text("utf-8"))
    topics, pages = found.pop("topics"), dict[str, Page]()
    for code, page in found.items():
        flat: dict[str, Any] = {k: " ".join(v.split()) if isinstance(v, str) else v for k, v in page.items()}
        pages[code] = Page(**flat)
    return pages, topics


PAGES, TOPICS = _read()


def exit_code(code: str) -> int:
    """The exit code where nothing worse happened."""
    own = PAGES[code].exit_code
    return FAMILIES[code[:3]][1] if own is None else own
