"""Maps of `ai.onnx.ml`: made of rows, and back to vectors."""

from typing import Any

from gradcheck_cli.graph import Node
from tests.ops.case import arr, chain, node

ML = "ai.onnx.ml"


def ml(op: str, inputs: str, outputs: str, **attrs: Any) -> Node:
    """A node of the domain."""
    return node(op, inputs, outputs, ML, **attrs)


STRINGS = ml("ZipMap", "x0", "s", classlabels_strings=("b", "a", "c"))
INTEGERS = ml("ZipMap", "x0", "s", classlabels_int64s=(7, 2, 4))
ONE = node("SequenceAt", "s i", "m")
VOCABULARY = ("c", "z", "a", "b")

CASES = [
    chain("ZipMap", [STRINGS, ONE, ml("DictVectorizer", "m", "y0", string_vocabulary=VOCABULARY)], arr(2, 3), i=1,
          domain=ML, label="strings"),
    chain("ZipMap", [INTEGERS, ONE, ml("CastMap", "m", "y0")], arr(3), i=0, domain=ML, label="one row"),
    chain("DictVectorizer", [INTEGERS, ONE, ml("DictVectorizer", "m", "v", int64_vocabulary=(4, 2, 0, 7)),
                             node("Sin", "v", "y0")], arr(2, 3), i=0, domain=ML, label="integers"),
    *[
        chain("CastMap", [INTEGERS, ONE, ml("CastMap", "m", "v", cast_to=to, **form), *more], arr(2, 3), i=1, domain=ML,
              label=f"{to} {form.get('map_form', 'DENSE')}")
        for to, more in (("TO_FLOAT", [node("Exp", "v", "y0")]), ("TO_INT64", [node("Identity", "v", "y0")]))
        for form in ({}, {"map_form": "SPARSE", "max_map": 8})
    ],
    chain("CastMap", [INTEGERS, ONE, ml("CastMap", "m", "y0", cast_to="TO_STRING", map_form="SPARSE", max_map=9)],
          arr(2, 3), i=1, domain=ML, label="TO_STRING"),
    chain("Element", [STRINGS, node("Element", "s", "m", "gradcheck", index=1),
                      node("Element", "m", "v", "gradcheck", index=0), node("Exp", "v", "y0")], arr(2, 3),
          domain="gradcheck"),
    chain("MapConstruct", [node("MapConstruct", "x0", "m", "gradcheck", keys=("a", "b")), node("Element", "m", "v",
                           "gradcheck", index=0), node("Exp", "v", "y0")], arr(2), domain="gradcheck"),
    chain("Identity", [STRINGS, node("Identity", "s", "t"), node("SequenceAt", "t i", "m"),
                       ml("DictVectorizer", "m", "y0", string_vocabulary=VOCABULARY)], arr(2, 3), i=1,
          label="of maps"),
]  # fmt: skip
