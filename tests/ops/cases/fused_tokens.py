"""Tokens in com.microsoft: alignments, hashes of every type, n-grams with history and segments, words out of strings."""

import numpy as np

from tests.ops.case import Case, arr, ints
from tests.ops.cases.fused import ms

SOURCE = np.array([1, 5, 3, 4, 1, 5, 7])
IDS, MANY = ints(2, 5, low=-9, high=9), (np.array([3, 5, 7]), np.array([11, 13, 17, 19]))
HASHED = {"max_ngram_size": 3, "n_head_per_ngram": 2, "pad_id": 4, "n_outputs": 2}
ENDED = np.array([[5, 2, 7, 2, 3, 1], [2, 1, 1, 4, 2, 9]])
SEGMENTS = np.array([[0, 0, 1, 1, 1, 2], [3, 3, 3, 3, 4, 4]], np.int32)
TEXT = np.array(["Hello World", "I love computer science !", ""], object)
CUT = {"mark": 0, "pad_value": "#", "mincharnum": 1}

PACKED, RUNS, SPANS = np.array([5, 2, 7, 2, 3]), np.array([0, 2, 5], np.int32), np.array([0, 1, 1, 1, 2], np.int32)
BEFORE, BEFORE_SPANS = np.array([[8, 9], [6, 1]]), np.array([[0, 0], [3, 1]], np.int32)


def packed(*more: object, n_outputs: int = 3, runs: np.ndarray = RUNS, **attrs: object) -> Case:
    """VarlenNGramHashMapping of two sequences."""
    return ms("VarlenNGramHashMapping", PACKED, *MANY, runs, *more, **{**HASHED, "n_outputs": n_outputs}, **attrs)


CASES = [
    packed(n_outputs=2),
    packed(BEFORE, np.arange(4) * 100, n_outputs=2),
    packed(None, None, None, SPANS),
    packed(None, None, np.array(2), SPANS, reset_on_eos=1),
    packed(BEFORE, None, None, SPANS, label="segments from here on"),
    packed(BEFORE, np.arange(4) * 100, None, SPANS, BEFORE_SPANS),
    packed(BEFORE, None, None, SPANS, None, np.array([1, 5], np.int32), n_outputs=4, state_update_capacity=2),
    packed(None, None, None, SPANS, runs=np.array([0, 1, 5], np.int32), label="short"),
    ms("DynamicTimeWarping", arr(4, 5)),
    ms("DynamicTimeWarping", arr(1, 3, 6)),
    ms("DynamicTimeWarping", np.ones((3, 4)), label="ties"),
    ms("Unique", arr(6), n_outputs=3),
    ms("MurmurHash3", ints(2, 3, low=-99, high=99).astype(np.int32)),
    ms("MurmurHash3", ints(3, high=99).astype(np.uint32), seed=7),
    ms("MurmurHash3", ints(3, low=-99, high=99), positive=0),
    ms("MurmurHash3", ints(3, high=99).astype(np.uint64), positive=0, seed=3),
    ms("MurmurHash3", arr(2, 3).astype(np.float32)),
    ms("MurmurHash3", np.array(["", "a", "abc", "hello world", "\u00e9t\u00e9"], object), seed=5, label="strings"),
    ms("NGramRepeatBlock", np.array([[1, 2, 3, 4, 5]]), arr(1, 6), ngram_size=2),
    ms("NGramRepeatBlock", np.array([[1, 2]]), arr(1, 6), ngram_size=4, label="too short"),
    *(
        ms("BifurcationDetector", SOURCE, np.array(tokens), np.array(0), n_outputs=2, **more, label=str(tokens))
        for tokens in ([2, 5, 3], [2, 7], [1, 5, 7], [4, 1], [9], [3, 4, 1, 5], [1, 5])
        for more in ({}, {"min_ngram_size": 2}, {"max_ngram_size": 1})
    ),
    ms("BifurcationDetector", SOURCE, np.array([2, 3]), np.array(3), np.array([4, 1, 9, 8, 8]), n_outputs=2),
    ms(
        "BifurcationDetector",
        SOURCE,
        np.array([2]),
        np.array(4),
        np.array([1, 5, 7, 3]),
        n_outputs=2,
        label="all right",
    ),
    ms("Tokenizer", TEXT, separators=[" "], **CUT),
    ms("Tokenizer", TEXT[:2], separators=[""], **{**CUT, "mark": 1}),
    ms("Tokenizer", TEXT[:2], tokenexp="[a-z]+", **{**CUT, "mark": 1, "mincharnum": 2}),
    ms("Tokenizer", TEXT[:2], tokenexp=".", **CUT),
    ms("Tokenizer", np.array([["a,b;c", "x"]], object), separators=[",", ";"], **CUT),
    ms("Tokenizer", np.array(["aXXbX", "one two"], object), separators=["X+", "o", "ne"], **CUT),
    ms("Tokenizer", np.array(["  ", ""], object), separators=[" "], **CUT, label="nothing left"),
    ms("NGramHashMapping", IDS, *MANY, **HASHED),
    ms("NGramHashMapping", *(x.astype(np.int32) for x in (IDS, *MANY)), **HASHED, label="int32"),
    ms("NGramHashMapping", IDS, *MANY, ints(2, 2, high=9), np.arange(4) * 100, **HASHED),
    ms("NGramHashMapping", ENDED, *MANY, ints(2, 2, high=9), None, np.array(2), reset_on_eos=1, **HASHED),
    ms("NGramHashMapping", ENDED, *MANY, None, None, np.array(2), **HASHED, label="an end that resets nothing"),
    ms("NGramHashMapping", ENDED, *MANY, ints(2, 2, high=9), None, None, SEGMENTS, **HASHED, label="segments"),
    ms("NGramHashMapping", ENDED, *MANY, None, None, np.array(2), SEGMENTS, reset_on_eos=1, **HASHED, label="segments"),
    ms("NGramHashMapping", IDS * 10**18, MANY[0] * 10**9, MANY[1], **HASHED, label="overflow"),
]
