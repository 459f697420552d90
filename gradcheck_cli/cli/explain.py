"""`gradcheck explain`: one page for each code."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING

import rich_click as click

if TYPE_CHECKING:
    from gradcheck_cli.report.explanations import Page


@click.command("explain")
@click.argument("code", required=False)
def command(code: str | None) -> int:
    """Explain a code such as GC101: what it means, why it happens, what to do. GC1xx lists a family, nothing all."""
    sys.stdout.write(_listing() if code is None else _explained(code))
    return 0


def _listing(only: str = "") -> str:
    """All codes, or those of a family."""
    from gradcheck_cli.report.explanations import FAMILIES, PAGES

    lines: list[str] = []
    for family, (title, code) in FAMILIES.items():
        if only not in ("", family):
            continue
        lines += [
            f"{family}xx  {title} (exit code {code})",
            *(_line(c, page) for c, page in PAGES.items() if c.startswith(family)),
            "",
        ]
    return "\n".join(lines[:-1]) + "\n"


def _line(code: str, page: Page) -> str:
    return f"  {code}  {page.title}" + ("" if page.exit_code is None else f" (exit code {page.exit_code})")


def _explained(code: str) -> str:
    """The page of a code, or the codes of a family: GC101, gc101, 101, GC1xx."""
    from gradcheck_cli.errors import UsageError, did_you_mean
    from gradcheck_cli.report.explanations import FAMILIES, PAGES

    wanted = f"GC{code.upper().removeprefix('GC')}"
    if (family := wanted.removesuffix("XX")) in FAMILIES:
        return _listing(family)
    if wanted in PAGES:
        return _page(wanted)
    raise UsageError(f"there is no code {code!r}.{did_you_mean(wanted, PAGES)} `gradcheck explain` lists all of them.")


def _page(wanted: str) -> str:
    from gradcheck_cli.report.explanations import FAMILIES, PAGES, exit_code

    page = PAGES[wanted]
    parts = [("What it means", page.meaning), ("Why it happens", page.causes), ("What to do", page.remedy)]
    head = f"{wanted}  {page.title}\n{FAMILIES[wanted[:3]][0]} (exit code {exit_code(wanted)})\n"
    return head + "".join(f"\n{title}\n{_wrapped(text)}\n" for title, text in parts)


def _wrapped(text: str) -> str:
    return textwrap.fill(
        text, 78, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
    )
