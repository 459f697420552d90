"""Commands that need no model: `gradcheck ops`, `explain`, `schema` and `completion` print what is known."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import rich_click as click

from gradcheck_cli.cli.options import TEXT_OR_JSON, OneOf, completing

if TYPE_CHECKING:
    from gradcheck_cli.ops.facts import OperatorFacts
    from gradcheck_cli.report.explanations import Page

_WIDTH = 78
OPERATOR = click.RichArgument(
    ["operator"], required=False, metavar="[OP]", shell_complete=completing("operators")
)  # fmt: skip


@click.command("ops", params=[OPERATOR, TEXT_OR_JSON])
def ops(operator: str | None, output_format: str) -> int:
    """Show the operators: forward, gradient, versions, dtypes, kinks. With OP, all about that one."""
    from gradcheck_cli.ops.facts import all_facts, facts_named
    from gradcheck_cli.report.operators import listing, page

    width = _reading_width()
    found = all_facts() if operator is None else facts_named(operator)
    if output_format == "json":
        text = json.dumps([each.as_json() for each in found], indent=2, default=str) + "\n"
    else:
        text = listing(found, width) if operator is None else "\n".join(page(f, width, _known(f)) for f in found)
    sys.stdout.write(text)
    return 0


def _known(facts: OperatorFacts) -> str:
    """The finding of `gradcheck prove` about the rule of an operator; "" for an operator without one."""
    from gradcheck_cli.ops import OPS
    from gradcheck_cli.reference import claim

    key = facts.domain, facts.name
    return claim(OPS[key]) if key in OPS and OPS[key].vjp is not None else ""


@click.command("explain")
@click.argument("code", required=False, shell_complete=completing("codes"))
def explain(code: str | None) -> int:
    """Explain a code such as GC101: what it means, why it happens, what to do. GC1xx lists a family, nothing all.

    `gradcheck explain ops` explains how a spec defines operators.
    """
    sys.stdout.write(_listing() if code is None else _explained(code))
    return 0


def _reading_width() -> int:
    """Columns of pages to be read: no more than a line of text should have."""
    from gradcheck_cli.cli.output import style_of

    return min(_WIDTH, style_of({}).width)


def _listing(only: str = "") -> str:
    """All codes, or those of a family."""
    from gradcheck_cli.report.explanations import FAMILIES, PAGES, TOPICS
    from gradcheck_cli.report.text import wrapped

    lines, width = list[str](), _reading_width()
    for family, (title, code) in FAMILIES.items():
        own = {name: page for name, page in PAGES.items() if name.startswith(family) and only in ("", family)}
        head = wrapped(f"{title} (exit code {code})", width, f"{family}xx  ", " " * 7)
        lines += ["", *head] if own else []
        for name, page in own.items():
            title = page.title + (f" (exit code {page.exit_code})" if page.exit_code else "")
            lines += wrapped(title, width, f"  {name}  ", " " * 9)
    topics = (wrapped(page.partition("\n")[0], width, "", " " * 5) for page in TOPICS.values())
    lines += ["", *(line for topic in topics for line in topic)] if not only else []
    return "\n".join(lines[1:]) + "\n"


def _explained(code: str) -> str:
    """The page of a code or topic, or the codes of a family: GC101, gc101, 101, GC1xx, ops."""
    from gradcheck_cli.errors import UsageError, did_you_mean
    from gradcheck_cli.report.explanations import FAMILIES, PAGES, TOPICS, exit_code
    from gradcheck_cli.report.text import wrapped

    if (topic := code.lower().rstrip(":")) in TOPICS:
        return TOPICS[topic]
    wanted = f"GC{code.upper().removeprefix('GC')}"
    if (family := wanted.removesuffix("XX")) in FAMILIES:
        return _listing(family)
    if wanted not in PAGES:
        near = did_you_mean(wanted, PAGES) or _speaking_of(code.lower(), PAGES)
        raise UsageError(f"there is no code {code!r}.{near} `gradcheck explain` lists all of them.")
    page = PAGES[wanted]
    parts = [("What it means", page.meaning), ("Why it happens", page.causes), ("What to do", page.remedy)]
    width = _reading_width()
    head = wrapped(f"{wanted}  {page.title}", width, "", " " * 7)
    head += wrapped(f"{FAMILIES[wanted[:3]][0]} (exit code {exit_code(wanted)})", width, "", "  ")
    return "\n".join([*head, ""]) + "".join("\n".join(["", title, *wrapped(text, width), ""]) for title, text in parts)


def _speaking_of(word: str, pages: Mapping[str, Page]) -> str:
    """The sentence that names the pages that speak of a word, those with it in their title first."""
    found = [
        code
        for code, page in pages.items()
        if re.search(rf"\b{re.escape(word)}", f"{page.title} {page.meaning}".lower())
    ]
    found.sort(key=lambda code: word not in pages[code].title.lower())
    return f" {word!r} stands in {', '.join(found[:4])}." if found and len(word) > 2 else ""


@click.command("schema")
@click.argument("kind", type=OneOf(("spec", "result")))
def schema(kind: str) -> int:
    """Print the JSON Schema (draft-07) of *.gradcheck.yaml files, or of the JSON that a check gives."""
    if kind == "spec":
        from gradcheck_cli.formats.yaml.fields import spec_schema as made
    else:
        from gradcheck_cli.report.json_records import result_schema as made
    sys.stdout.write(json.dumps(made(), indent=2) + "\n")
    return 0


@click.command("completion")
@click.argument("shell", type=OneOf(("bash", "zsh", "fish")))
def completion(shell: str) -> int:
    """Print a shell's completion script; the script's first lines say where it goes."""
    from gradcheck_cli.cli.completion import script

    sys.stdout.write(script(shell))
    return 0
