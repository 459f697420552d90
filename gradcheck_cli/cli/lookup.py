"""Commands that need no model: `gradcheck ops`, `explain`, `schema` and `completion` print what is known."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import rich_click as click

from gradcheck_cli.cli.options import TEXT_OR_JSON, OneOf

if TYPE_CHECKING:
    from gradcheck_cli.ops.facts import OperatorFacts

_SHELLS = {  # with the line that turns completion on
    "bash": 'eval "$(gradcheck completion bash)"  in ~/.bashrc',
    "zsh": 'eval "$(gradcheck completion zsh)"  in ~/.zshrc',
    "fish": "gradcheck completion fish > ~/.config/fish/completions/gradcheck.fish",
}


@click.command("ops", params=[click.RichArgument(["operator"], required=False, metavar="[OP]"), TEXT_OR_JSON])
def ops(operator: str | None, output_format: str) -> int:
    """Show the operators: forward, gradient, versions, dtypes, kinks. With OP, all about that one."""
    from gradcheck_cli.ops.facts import all_facts, facts_named
    from gradcheck_cli.report.operators import listing, page

    found = all_facts() if operator is None else facts_named(operator)
    if output_format == "json":
        text = json.dumps([each.as_json() for each in found], indent=2, default=str) + "\n"
    else:
        text = listing(found) if operator is None else "\n".join(page(each, _known(each)) for each in found)
    sys.stdout.write(text)
    return 0


def _known(facts: OperatorFacts) -> str:
    """The finding of `gradcheck prove` about the rule of an operator; "" for an operator without one."""
    from gradcheck_cli.ops import OPS
    from gradcheck_cli.reference import claim

    key = facts.domain, facts.name
    return claim(OPS[key]) if key in OPS and OPS[key].vjp is not None else ""


@click.command("explain")
@click.argument("code", required=False)
def explain(code: str | None) -> int:
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
        own = {name: page for name, page in PAGES.items() if name.startswith(family) and only in ("", family)}
        lines += ["", f"{family}xx  {title} (exit code {code})"] if own else []
        for name, page in own.items():
            lines += [f"  {name}  {page.title}" + (f" (exit code {page.exit_code})" if page.exit_code else "")]
    lines += ["", *(page.partition("\n")[0] for page in TOPICS.values())] if not only else []
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
        near = did_you_mean(wanted, PAGES)
        raise UsageError(f"there is no code {code!r}.{near} `gradcheck explain` lists all of them.")
    page = PAGES[wanted]
    parts = [("What it means", page.meaning), ("Why it happens", page.causes), ("What to do", page.remedy)]
    head = f"{wanted}  {page.title}\n{FAMILIES[wanted[:3]][0]} (exit code {exit_code(wanted)})\n"
    return head + "".join("\n".join(["", title, *wrapped(text, 78), ""]) for title, text in parts)


@click.command("schema")
@click.argument("kind", type=OneOf(("spec", "result")))
def schema(kind: str) -> int:
    """Print the JSON Schema (draft-07) of *.gradcheck.yaml files, or of the JSON that a check gives."""
    if kind == "spec":
        from gradcheck_cli.formats.yaml.fields import spec_schema as made
    else:
        from gradcheck_cli.results.json_schema import result_schema as made
    sys.stdout.write(json.dumps(made(), indent=2) + "\n")
    return 0


@click.command("completion")
@click.argument("shell", type=OneOf(tuple(_SHELLS)))
def completion(shell: str) -> int:
    """Print a shell's completion script; the script's first line says where it goes."""
    from click.shell_completion import get_completion_class

    from gradcheck_cli.cli.group import gradcheck

    script = get_completion_class(shell)
    assert script is not None
    source = script(gradcheck, {}, "gradcheck", "_GRADCHECK_COMPLETE").source()
    first = f"# {_SHELLS[shell]}\n" if shell != "zsh" else ""  # zsh looks for #compdef in the first line
    sys.stdout.write(f"{first}{source.strip()}\n")
    return 0
