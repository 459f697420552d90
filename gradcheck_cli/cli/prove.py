"""`gradcheck prove`: gradient rules held to exact identities, of operators that gradcheck knows and of a spec's own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import rich_click as click

from gradcheck_cli.cli.options import SETTINGS, TEXT_OR_JSON, Text, TypedCommand, options_of
from gradcheck_cli.errors import counted

if TYPE_CHECKING:
    from gradcheck_cli.formats.source import OperatorBody, Spec
    from gradcheck_cli.graph import Node
    from gradcheck_cli.op import Op
    from gradcheck_cli.reference import Proof

PARAMS = [TEXT_OR_JSON, *options_of("prove", panels=False)]
EXIT_CODES = {"wrong": 1, "no rule": 5, "neither": 3}
_HEAD = ("operator", "rule", "cases", "odds", "time", "method")
DEFAULTS = "numbers among its attributes were only ever their defaults: exact numbers reach no others"
_FEW = 3  # operators, about each of which all is said
_MODEL = "{} is a model; prove takes operators, such as Conv, and specs. `gradcheck {}` checks its gradients."


@click.command("prove", cls=TypedCommand, context_settings=SETTINGS, params=PARAMS)
@click.argument("subjects", nargs=-1, metavar="[OP|SPEC]...", type=Text())
@click.option("--all", "every", is_flag=True, help="All operators that have a rule of their own.")
def command(subjects: tuple[str, ...], every: bool, output_format: str, **options: Any) -> int:
    """Prove gradient rules by exact identities, over a lattice of shapes and attributes.

    OP is an operator (Conv, com.microsoft.Pad), SPEC a file whose operators under `ops` are proven. The exit code is 1
    for a rule that is wrong, 3 for one that could not be decided, 5 for an operator without a rule.
    """
    from gradcheck_cli.cli.limits import within
    from gradcheck_cli.errors import UsageError
    from gradcheck_cli.results.record import worst_code

    if bool(subjects) == every:
        raise UsageError("name operators or a spec, or give --all" + (", not both" if every else ""))
    proofs = within(options, partial(_proofs, subjects, bool(options["allow_python"])))
    sys.stdout.write(_as_json(proofs) if output_format == "json" else "\n".join(_text(proofs)) + "\n")
    return worst_code({EXIT_CODES.get(proof.status, 0) for proof in proofs})


def _proofs(subjects: Sequence[str], allow_python: bool) -> list[Proof]:
    """The proofs for all subjects; names and files are read before anything runs."""
    from gradcheck_cli.autodiff.custom import installed
    from gradcheck_cli.ops import OPS
    from gradcheck_cli.reference import named, proof_of

    ops = {**installed(), **OPS}
    files = list(filter(_is_file, subjects))
    names = [name for name in subjects if name not in files]
    found = {op.key: op for op in (named(ops, names or None) if names or not files else ())}
    own = [made for file in files for made in _operators(file, allow_python)]
    proofs = [proof_of(op, ops) for op in found.values()]
    for op, table, given, added in own:
        if added and all(p.status != "proven" for p in proofs if p.operator == _name(op)):
            continue  # all is said
        proof = proof_of(op, {**ops, **table}, **given)
        if not added or proof.status != "neither":
            proofs.append(proof)
        else:  # such as an exponent that exact numbers take as an integer alone
            proofs = [_by_default(each) if each.operator == _name(op) else each for each in proofs]
    return proofs


def _name(op: Op) -> str:
    """The name of an operator of a spec, without the attributes of a node."""
    return op.full_name.partition("[")[0]


def _by_default(proof: Proof) -> Proof:
    from msgspec.structs import replace

    return proof if proof.outside or proof.says else replace(proof, says=DEFAULTS)


def _is_file(subject: str) -> bool:
    from gradcheck_cli.errors import UsageError
    from gradcheck_cli.formats import is_spec

    if subject.lower().endswith((".onnx", ".onnxtxt", ".pb")):
        raise UsageError(_MODEL.format(subject, subject))
    return is_spec(subject) or os.sep in subject


def _operators(path: str, allow_python: bool) -> Iterator[tuple[Op, Mapping[Any, Op], dict[str, Any], bool]]:
    """The operators of a spec, with the table of all and what is known of their operands.

    True goes with one that only differs from another by numbers that no graph of the spec gives its attributes.
    """
    from gradcheck_cli.autodiff.custom import custom_op
    from gradcheck_cli.errors import UsageError
    from gradcheck_cli.formats.source import Source
    from gradcheck_cli.formats.yaml.reading import read_spec
    from gradcheck_cli.graph import Graph

    spec = read_spec(path, allow_python=allow_python)
    bodies = spec.operators(Source(Graph((), (), ()), path)).operators
    varied = tuple(filter(None, map(_at_other_numbers, bodies)))
    known, bodies = len(bodies), spec.operators(Source(Graph((), (), varied), path)).operators
    if not bodies:
        raise UsageError(f"{path} defines no operators under 'ops'. `gradcheck {path}` checks its graphs.")
    made = [custom_op(body) for body in bodies]
    table = {op.key: op for op in made}
    used = _shapes_used(spec, made)
    for number, (body, op) in enumerate(zip(bodies, made, strict=True)):
        sizes = {"inputs": len(body.forward.inputs), "outputs": len(body.forward.outputs)}
        yield op, table, {**sizes, "used": used[_name(op)]}, number >= known


def _at_other_numbers(body: OperatorBody) -> Node | None:
    """A node of a spec's operator whose numbers as attributes are no defaults; a rule may hold for these alone."""
    from math import copysign

    from gradcheck_cli.graph import Node

    numbers = [(name, value) for name, value in body.attrs.items() if isinstance(value, float)]
    others = {name: copysign(1 - 0.5 ** (at + 1), value) for at, (name, value) in enumerate(numbers)}
    if not others or body.gradient is None or "[" in body.name:
        return None
    others.update((name, other / 2) for name, value in numbers if (other := others[name]) == value)
    return Node(body.name, body.forward.inputs, body.forward.outputs, others, body.domain)


def _shapes_used(spec: Spec, made: Sequence[Op]) -> Mapping[str, list[Any]]:
    """The shapes of the operands of each operator, whatever its attributes, where models of its spec use it."""
    from dataclasses import replace

    from gradcheck_cli.errors import GradcheckError
    from gradcheck_cli.formats import read
    from gradcheck_cli.ops import OPS
    from gradcheck_cli.points.point import find_point
    from gradcheck_cli.settings import Settings

    found: dict[str, list[Any]] = {_name(op): [] for op in made}

    def noted(op: Op, *operands: Any) -> Any:
        found[_name(op)].append(tuple(x.shape for x in operands if x is not None))
        return op.forward(*operands)

    table = {**OPS, **{op.key: replace(op, forward=partial(noted, op)) for op in made}}
    models = dict.fromkeys(check.model for check in spec.checks if check.model is not None)
    for path in (None, *models):
        with suppress(GradcheckError):  # a check of it says more
            sources = spec.sources if path is None else read(path).sources
            for source in map(spec.operators, sources.values()) if path else sources.values():
                find_point(source, Settings(), table, source.graph.outputs)
    return found


def _as_json(proofs: Sequence[Proof]) -> str:
    import msgspec

    found = [msgspec.to_builtins(proof) for proof in proofs]
    codes = {"schema": "gradcheck.proofs/1", "proofs": found}
    return json.dumps(codes, indent=2) + "\n"


def _text(proofs: Sequence[Proof]) -> Iterator[str]:
    """A table, what there is to say of each, and the number of each outcome."""
    from collections import Counter

    from gradcheck_cli.cli.output import fitted, style_of
    from gradcheck_cli.errors import clean
    from gradcheck_cli.report.text import seconds, table

    yield from map(clean, table([_HEAD, *map(_row, proofs)], "<<>>><", width=style_of({}).width))
    for proof in proofs:
        if proof.status not in ("proven", "tested") or proof.outside or len(proofs) <= _FEW:
            yield from ("", fitted(map(clean, _said(proof))))
    found = Counter(proof.status for proof in proofs)
    total = seconds(sum(proof.seconds for proof in proofs))
    yield ""
    yield f"{counted(len(proofs), 'operator')}: {', '.join(f'{n} {status}' for status, n in found.items())} in {total}"


def _row(proof: Proof) -> tuple[str, ...]:
    from gradcheck_cli.report.text import seconds

    ran = proof.cases or proof.status == "wrong"
    odds = f"2^{int(proof.odds)}" if proof.status == "proven" else ""
    word = "WRONG" if proof.status == "wrong" else proof.status
    return proof.operator, word, str(proof.cases) if ran else "", odds, seconds(proof.seconds), proof.method


def _said(proof: Proof) -> Iterator[str]:
    """All about one operator."""
    if proof.status == "wrong":
        yield f"WRONG {proof.operator}: {proof.case}"
        yield f"  the rule gives  {proof.given}"
        yield f"  right is        {proof.right}"
    elif proof.lattice and proof.cases:
        number = f"{counted(proof.cases, 'case')} over {proof.lattice}"
        odds = f"a wrong rule passes one with odds of at most 2^{int(proof.odds)}"
        yield f"{proof.operator} is proven on {number}; {odds}."
    if proof.outside:
        yield f"{proof.operator}: {counted(proof.outside, 'case')} not decided: {proof.says}"
    elif proof.says:
        yield f"{proof.operator}: {proof.says}"
