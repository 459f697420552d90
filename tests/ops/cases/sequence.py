"""Sequences and optionals: built, taken apart, carried by control flow."""

import numpy as np

from gradcheck_cli.graph import Graph, TensorType
from tests.ops.case import arr, chain, node

FLOAT = np.dtype(np.float64)
TENSOR = TensorType(FLOAT)
SEQUENCE = TensorType(FLOAT, None, "sequence", TENSOR)
PAIR = node("SequenceConstruct", "x0 x1", "s")
THREE = node("SequenceConstruct", "x0 x1 x2", "s")
FIRST, SECOND, THIRD = arr(2, 3), arr(2, 3, seed=1), arr(1, 3, seed=2)

NAMED = dict.fromkeys(("a", "b", "c", "w"), TensorType(FLOAT, (None, None)))
SQUARED = Graph(("a",), ("b",), (node("Mul", "a a", "b"),), types=NAMED)
SCALED = Graph(("a", "w"), ("b", "c"), (node("Mul", "a w", "b"), node("Sin", "a", "c")), types=NAMED)
ADDED = Graph(("a", "c"), ("b",), (node("Mul", "a c", "p"), node("Add", "p x0", "b")), types=NAMED)

TWICE = Graph((), ("t",), (node("Exp", "x0", "e"), node("SequenceConstruct", "e x1", "t")), types={"t": SEQUENCE})
ONCE = Graph((), ("t",), (node("SequenceConstruct", "x1", "t"),), types={"t": SEQUENCE})
GROWING = Graph(
    ("i", "keep", "h"),
    ("keep_out", "longer"),
    (node("Identity", "keep", "keep_out"), node("SequenceAt", "h last", "a"), node("Mul", "a x1", "b"),
     node("SequenceInsert", "h b", "longer")),
    {"last": np.asarray(-1)},
    {"h": SEQUENCE, "longer": SEQUENCE},
)  # fmt: skip
HELD = Graph((), ("t",), (node("OptionalGetElement", "o", "t"),))
ELSE = Graph((), ("t",), (node("Neg", "x1", "t"),))
SUMS = Graph(
    ("h", "a"),
    ("next", "seen"),
    (node("SequenceConstruct", "h a", "both"), node("ConcatFromSequence", "both", "stacked", axis=0, new_axis=1),
     node("ReduceSum", "stacked axes", "next", keepdims=0), node("Tanh", "next", "seen")),
    {"axes": np.asarray([0])},
    {name: TensorType(FLOAT, (3,)) for name in ("next", "seen")},
)  # fmt: skip

CASES = [
    chain("SequenceConstruct", [PAIR, node("ConcatFromSequence", "s", "y0", axis=1)], FIRST, SECOND),
    chain("SequenceConstruct", [node("SequenceConstruct", "x0", "s"), node("SequenceAt", "s i", "y0")], FIRST, i=0),
    chain("SequenceAt", [PAIR, node("SequenceAt", "s i", "y0")], FIRST, SECOND, i=-2, label="from behind"),
    chain("SequenceAt", [THREE, node("SequenceAt", "s x3", "a"), node("Sin", "a", "y0")], FIRST, SECOND, THIRD,
          np.asarray(2, np.int32), label="position fed"),
    chain("SequenceAt", [PAIR, node("SequenceAt", "s i", "y0"), node("SequenceAt", "s i", "y1")], FIRST, SECOND,
          n_outputs=2, i=1, label="twice"),
    *[
        chain("SequenceInsert",
              [PAIR, node("SequenceInsert", "s x2 i", "t"), node("ConcatFromSequence", "t", "y0", axis=0)],
              FIRST, SECOND, THIRD, i=position, label=f"at {position}")
        for position in (0, 1, 2, -1, -2)
    ],
    chain("SequenceInsert", [PAIR, node("SequenceInsert", "s x2", "t"),
                             node("ConcatFromSequence", "t", "y0", axis=-2)], FIRST, SECOND, THIRD, label="at the end"),
    chain("SequenceErase", [THREE, node("SequenceErase", "s", "t"), node("ConcatFromSequence", "t", "y0", axis=0)],
          FIRST, SECOND, THIRD, label="the last"),
    *[
        chain("SequenceErase",
              [THREE, node("SequenceErase", "s i", "t"), node("ConcatFromSequence", "t", "y0", axis=0)],
              FIRST, SECOND, THIRD, i=position, label=f"at {position}")
        for position in (0, 1, -3)
    ],
    chain("SequenceEmpty", [node("SequenceEmpty", "", "e", dtype=11), node("SequenceInsert", "e x0", "s"),
                            node("SequenceInsert", "s x1 i", "t"), node("ConcatFromSequence", "t", "y0", axis=0)],
          FIRST, SECOND, i=0),
    chain("SequenceLength", [THREE, node("SequenceLength", "s", "n"), node("CastLike", "n x0", "f"),
                             node("Mul", "f x0", "y0")], FIRST, SECOND, THIRD),
    chain("SequenceLength", [node("SequenceEmpty", "", "e"), node("SequenceLength", "e", "n"),
                             node("CastLike", "n x0", "f"), node("Add", "f x0", "y0")], FIRST, label="none"),
    *[
        chain("SplitToSequence", [node("SplitToSequence", "x0", "s", axis=axis, keepdims=keepdims),
                                  node("SequenceAt", "s i", "a"), node("Sin", "a", "y0"),
                                  node("ConcatFromSequence", "s", "y1", axis=0)],
              arr(2, 3, 4), n_outputs=2, i=1, label=f"axis {axis} keepdims {keepdims}")
        for axis, keepdims in ((0, 1), (1, 0), (-1, 0))
    ],
    *[
        chain("SplitToSequence", [node("SplitToSequence", "x0 split", "s", axis=1, keepdims=0),
                                  node("SequenceAt", "s i", "a"), node("Exp", "a", "y0"),
                                  node("SequenceLength", "s", "y1")],
              arr(2, 7), n_outputs=2, i=-1, split=split, label=f"split {split}")
        for split in (3, 7, 10, [2, 4, 1], [7], [0, 7])
    ],
    chain("SplitToSequence", [node("SplitToSequence", "x0 x1", "s"), node("SequenceAt", "s i", "y0")],
          arr(5, 2), [3, 2], i=1, label="split fed"),
    *[
        chain("ConcatFromSequence", [PAIR, node("ConcatFromSequence", "s", "y0", axis=axis, new_axis=1)], FIRST, SECOND,
              label=f"new axis {axis}")
        for axis in (0, 1, 2, -1, -3)
    ],
    chain("ConcatFromSequence", [node("SequenceConstruct", "x0", "s"), node("ConcatFromSequence", "s", "y0", axis=0)],
          FIRST, label="one"),
    chain("SequenceMap", [PAIR, node("SequenceMap", "s", "t", body=SQUARED),
                          node("ConcatFromSequence", "t", "y0", axis=0)], FIRST, SECOND),
    chain("SequenceMap", [PAIR, node("SequenceMap", "s x2", "t u", body=SCALED),
                          node("ConcatFromSequence", "t", "y0", axis=0), node("SequenceAt", "u i", "y1")],
          FIRST, SECOND, THIRD, n_outputs=2, i=0, label="a tensor for all"),
    chain("SequenceMap", [PAIR, node("SequenceConstruct", "x1 x2", "r"), node("SequenceMap", "s r", "t", body=ADDED),
                          node("ConcatFromSequence", "t", "y0", axis=0)],
          FIRST, SECOND, THIRD, label="two sequences, captures"),
    chain("Optional", [node("Optional", "x0", "o"), node("OptionalGetElement", "o", "y0")], FIRST),
    chain("Optional", [PAIR, node("Optional", "s", "o"), node("OptionalGetElement", "o", "t"),
                       node("ConcatFromSequence", "t", "y0", axis=0)], FIRST, SECOND, label="of a sequence"),
    chain("OptionalGetElement", [node("OptionalGetElement", "x0", "a"), node("Sin", "a", "y0")], FIRST,
          label="of a tensor"),
    chain("OptionalGetElement", [PAIR, node("OptionalGetElement", "s", "t"), node("SequenceAt", "t i", "y0")],
          FIRST, SECOND, i=1, label="of a sequence"),
    *[
        chain("OptionalHasElement", [made, node("OptionalHasElement", "o", "has"),
                                     node("If", "has", "y0", then_branch=HELD, else_branch=ELSE)],
              FIRST, SECOND, label=label)
        for made, label in [(node("Optional", "x0", "o"), "yes"), (node("Optional", "", "o", type=TENSOR), "no")]
    ],
    chain("OptionalHasElement", [node("OptionalHasElement", "x0", "y0"), node("OptionalHasElement", "", "y1")], FIRST,
          n_outputs=2, label="of a tensor and of nothing"),
    chain("Identity", [PAIR, node("Identity", "s", "t"), node("SequenceAt", "t i", "y0")], FIRST, SECOND, i=1,
          label="of a sequence"),
    *[
        chain("If", [node("If", "which", "s", then_branch=TWICE, else_branch=ONCE),
                     node("ConcatFromSequence", "s", "y0", axis=0)], FIRST, SECOND, which=which,
              label=f"sequence {which}")
        for which in (True, False)
    ],
    chain("Loop", [node("SequenceConstruct", "x0", "s"), node("Loop", "trips - s", "t", body=GROWING),
                   node("ConcatFromSequence", "t", "y0", axis=0)], FIRST, SECOND, trips=3, label="growing sequence"),
    chain("Scan", [node("Scan", "x0 x1", "y0 y1", body=SUMS, num_scan_inputs=1)], arr(3), arr(4, 3, seed=1),
          n_outputs=2, label="sequences inside"),
]  # fmt: skip
