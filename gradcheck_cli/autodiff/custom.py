"""Operators that a spec defines: a forward graph, and the gradient graph that is under test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.installed import with_installed
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.autodiff.trace import Body
from gradcheck_cli.errors import SpecError
from gradcheck_cli.formats.source import OperatorBody, Source
from gradcheck_cli.op import Op, Ops, deciding


def ops_for(source: Source, ops: Ops) -> Ops:
    """The operator table with the operators that a spec defines, and those of installed packages that it needs."""
    made = [custom_op(body) for body in source.operators]
    return with_installed({**ops, **{op.key: op for op in made}} if made else ops, source.graph)


def custom_op(body: OperatorBody) -> Op:
    """The operator: its forward records what it is made of, its gradient body is the rule for all of it."""

    def forward(*operands: Var | None) -> tuple[Var, ...]:
        given = [x for x in operands if x is not None]
        if len(given) != len(body.forward.inputs):
            raise SpecError(f"{body.name} takes {len(body.forward.inputs)} inputs, not {len(given)}")
        return Body(given[0].tape, body.forward, {}, f"forward of {body.name}")(*given)

    return Op(
        body.name,
        forward,
        _rule(body) if body.gradient is not None else None,
        domain=body.domain,
        composed=True,
        inner=body.forward if body.gradient is None else None,
        cuts=deciding(*body.cuts) if body.cuts else None,
    )


def _rule(body: OperatorBody) -> Any:
    """The gradient body as a rule: it reads the operator's inputs x, outputs y and cotangents dy by name."""
    gradient = body.gradient
    assert gradient is not None

    def vjp(ct: Any, ans: Any, *primals: Var) -> tuple[Var | None, ...]:
        cts, answers = _as_tuple(ct), _as_tuple(ans)
        known = dict(zip(body.forward.inputs, primals, strict=True))
        known.update(zip(body.forward.outputs, answers, strict=True))
        known.update(_cotangents(body, cts, answers))
        made = Body(primals[0].tape, gradient, known, f"gradient of {body.name}")(
            *[known[name] for name in gradient.inputs]
        )
        by_input = {body.gradient_of[o]: v for o, v in zip(gradient.outputs, made, strict=True)}
        return tuple(by_input.get(name) for name in body.forward.inputs)

    return vjp


def _cotangents(body: OperatorBody, cts: Sequence[Var | None], answers: Sequence[Var]) -> dict[str, Var]:
    pairs = zip(body.forward.outputs, cts, answers, strict=True)
    return {f"d{name}": sym.zeros_like(y) if ct is None else ct for name, ct, y in pairs}


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
