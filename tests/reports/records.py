"""Records of any content that their types allow, whether a check can give them or not."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from gradcheck_cli.results.measures import Health, Precision
from gradcheck_cli.results.record import STATUSES, Check
from gradcheck_cli.results.typed import field_names, is_record
from tests.hostile.names import COMMANDS, NAMES

COUNT, NUMBER = st.integers(0, 10**6), st.floats()
TEXT = st.text(max_size=12) | st.sampled_from([*NAMES.values(), *COMMANDS.values(), "nan", "inf", ""])
PLAIN = {str: TEXT, int: COUNT, float: NUMBER, bool: st.booleans()}
HEALTH, PRECISION = st.deferred(lambda: records(Health)), st.deferred(lambda: records(Precision))
FIGURES = {"norm": NUMBER, "max": NUMBER, "zero_fraction": st.floats(0, 1), "finite": st.booleans()}
OWN = {
    "status": st.sampled_from(STATUSES),
    "code": st.sampled_from(["", "GC101", "GC301", "GC403", "GC999"]),
    "mode": st.sampled_from(["full", "nodes", "directional", "sampled"]),
    "entries": st.just({}) | st.fixed_dictionaries(dict.fromkeys(("total", "checked", "failed", "inconclusive"), COUNT)),
    "evaluations": st.just({}) | st.fixed_dictionaries({"real": COUNT, "complex": COUNT}),
    "nodes": st.just({}) | st.fixed_dictionaries(dict.fromkeys(("total", "checked", "failed"), COUNT)),
    "coloring": st.just({}) | st.fixed_dictionaries({"rows": COUNT, "colors": COUNT}),
    "branches": st.just({}) | st.fixed_dictionaries({"total": COUNT, "covered": COUNT, "missed": st.just(("a",))}),
    "needed": st.just({}) | st.fixed_dictionaries({"rtol": NUMBER, "atol": NUMBER}),
    "gradient": st.just({}) | st.fixed_dictionaries(FIGURES, optional={"health": HEALTH, "precision": PRECISION}),
    "power": st.just({}) | st.fixed_dictionaries({"missed_below": NUMBER, "of": TEXT, "probability": NUMBER}),
    "waiver": st.none() | st.fixed_dictionaries({"status": TEXT, "reason": TEXT, "until": st.none() | TEXT},
                                           optional={"ignored": st.booleans()}),
    "place": st.just({}) | st.fixed_dictionaries({"file": TEXT, "line": COUNT}),
    "forward": st.just({})
    | st.fixed_dictionaries({"compared_with": st.none(), "reason": TEXT})
    | st.fixed_dictionaries({"compared_with": TEXT, "max_abs_err": NUMBER, "max_rel_err": NUMBER}),
    "claim": st.just({})
    | st.fixed_dictionaries(
        {"by": TEXT, "kind": st.sampled_from(["tensor", "file", "model"]), "of": st.just(("y",))},
        optional={"found": st.booleans(), "layout": TEXT, "seed": TEXT, "theoretical": st.sampled_from(["none", "fail"])},
    ),
    "picture": st.none(),
}  # fmt: skip


def records(kind: Any) -> st.SearchStrategy[Any]:
    """Instances of a frozen record."""
    hints = get_type_hints(kind, localns={"Picture": Any})
    own = OWN if kind is Check else {}
    return st.builds(kind, **{f: own[f] if f in own else of_type(hints[f]) for f in field_names(kind)})


def of_type(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type that fields of records have."""
    inside = get_args(kind)
    if kind in PLAIN:
        return PLAIN[kind]
    if is_record(kind):
        return records(kind)
    if NoneType in inside:
        return st.none() | of_type(inside[0])
    if get_origin(kind) is Mapping:
        return st.dictionaries(TEXT, of_type(inside[1]), max_size=2)
    if inside[1] is Ellipsis:
        return st.lists(of_type(inside[0]), max_size=2).map(tuple)
    return st.tuples(*map(of_type, inside))


CHECKS = records(Check)
