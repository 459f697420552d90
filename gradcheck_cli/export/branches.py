"""If as a node that has a rule: its derivative is an If on the same condition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.backward import inexact
from gradcheck_cli.autodiff.tape import Tape, Var
from gradcheck_cli.errors import GradcheckError, UnsupportedError
from gradcheck_cli.export.inner import InnerTape, zeros
from gradcheck_cli.export.kept import Kept, alone, keep
from gradcheck_cli.graph import Graph
from gradcheck_cli.op import Op

Cts = Sequence[Var | None]


def if_vjp(cts: Cts, ans: Cts, condition: Var, *around: Var, kept: Kept) -> tuple[Var | None, ...]:
    """An If whose branches give the cotangents of what either captures: zeros where it does not."""
    tape, seeds = condition.tape, {i: ct for i, ct in enumerate(cts) if ct is not None}
    xs = [x.name for x in around if sym.wanted(x) and inexact(x)]
    sides = [_Side.of(tape, key, graph, seeds, xs) for key, graph in kept.node.attrs.items()]
    given = [x for x in xs if any(x in side.cts for side in sides)]
    if not given:
        return (None, *(None for _ in around))
    attrs = {side.key: side.graph(given) for side in sides}
    like = [tape.var(x) for x in given]
    made = dict(zip(given, keep(tape, IF, [condition], attrs, count=len(given), like=like), strict=True))
    return (None, *(made.get(x.name) for x in around))


@dataclass(frozen=True, slots=True)
class _Side:
    """The derivative of one branch: the cotangents of tensors around it, by their names."""

    key: str
    inner: InnerTape
    cts: Mapping[str, Var]

    @staticmethod
    def of(tape: Tape, key: str, graph: Graph, seeds: Mapping[int, Var], xs: Sequence[str]) -> _Side:
        inner = InnerTape(tape, key, f"{key} of {tape.place.inside}")
        try:
            outs = inner.run(graph)
        except GradcheckError as error:
            raise UnsupportedError(
                f"{error}\nThe derivative of both branches has to be in a file, so that both must run at this point."
            ) from error
        read = [x for x in xs if x in graph.captures]
        pairs = [(outs[i], inner.stand_in(ct.name, np.zeros_like(outs[i].value))) for i, ct in seeds.items()]
        found = inner.pulled_back(pairs, read)
        return _Side(key, inner, {x: ct for x, ct in zip(read, found, strict=True) if ct is not None})

    def graph(self, xs: Sequence[str]) -> Graph:
        """The graph that gives the cotangents of some tensors around it."""
        known = self.inner.read(xs)
        return self.inner.graph([], [self.cts[x] if x in self.cts else zeros(known[x]) for x in xs])


IF = Op("If", alone, if_vjp, many=True)
