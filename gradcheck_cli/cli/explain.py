"""`gradcheck explain`: one page for each code, and one on operators of one's own."""

from __future__ import annotations

import sys
import textwrap

import rich_click as click


@click.command("explain")
@click.argument("code", required=False)
def command(code: str | None) -> int:
    """Explain a code such as GC101: what it means, why it happens, what to do. GC1xx lists a family, nothing all.

    `gradcheck explain ops` explains how a spec defines operators.
    """
    sys.stdout.write(_listing() if code is None else _explained(code))
    return 0


def _listing(only: str = "") -> str:
    """All codes, or those of a family."""
    from gradcheck_cli.report.explanations import FAMILIES, PAGES, TOPICS

    lines: list[str] = []
    for family, (title, code) in FAMILIES.items():
        if only not in ("", family):
            continue
        lines += ["", f"{family}xx  {title} (exit code {code})"]
        for own, page in PAGES.items():
            ends = "" if page.exit_code is None else f" (exit code {page.exit_code})"
            lines += [f"  {own}  {page.title}{ends}"] if own.startswith(family) else []
    lines += ["", *(page.partition("\n")[0] for page in TOPICS.values())] if not only else []
    return "\n".join(lines[1:]) + "\n"


def _explained(code: str) -> str:
    """The page of a code or topic, or the codes of a family: GC101, gc101, 101, GC1xx, ops."""
    from gradcheck_cli.errors import UsageError, did_you_mean
    from gradcheck_cli.report.explanations import FAMILIES, PAGES, TOPICS, exit_code

    if code.lower().rstrip(":") in TOPICS:
        return TOPICS[code.lower().rstrip(":")]
    wanted = f"GC{code.upper().removeprefix('GC')}"
    if (family := wanted.removesuffix("XX")) in FAMILIES:
        return _listing(family)
    if wanted not in PAGES:
        near = did_you_mean(wanted, PAGES)
        raise UsageError(f"there is no code {code!r}.{near} `gradcheck explain` lists all of them.")
    page = PAGES[wanted]
    parts = [("What it means", page.meaning), ("Why it happens", page.causes), ("What to do", page.remedy)]
    head = f"{wanted}  {page.title}\n{FAMILIES[wanted[:3]][0]} (exit code {exit_code(wanted)})\n"
    wrap = textwrap.TextWrapper(
        78, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
    )
    return head + "".join(f"\n{title}\n{wrap.fill(text)}\n" for title, text in parts)
