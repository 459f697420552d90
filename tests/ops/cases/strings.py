"""Operators on strings, and those that move tensors of strings as they move others."""

import numpy as np

from tests.ops.case import case

WORDS = [["Monday", "is"], ["no", "Holiday"]]
LONG = ["one,two,,three", "", "four", ",five"]
SPACED = ["  a bc\td ", "", "e  f"]

CASES = [
    case("StringConcat", WORDS, [["!"], ["?"]], label="broadcast"),
    case("StringConcat", "a", ["b", "c"]),
    case("StringNormalizer", ["Monday", "is", "NOT", "monday"], stopwords=("monday", "is")),
    case("StringNormalizer", ["Monday", "is", "NOT"], stopwords=("monday",), is_case_sensitive=1),
    case("StringNormalizer", [["Monday", "ist", "ein", "Straße"]], case_change_action="UPPER", locale="de_DE"),
    case("StringNormalizer", [["Monday", "is"]], case_change_action="LOWER", stopwords=("is",), is_case_sensitive=1),
    case("StringNormalizer", ["a", "b"], stopwords=("A", "B")),
    case("StringNormalizer", [["a", "b"]], stopwords=("A", "B")),
    case("StringSplit", LONG, delimiter=",", n_outputs=2),
    case("StringSplit", LONG, delimiter=",", maxsplit=1, n_outputs=2),
    case("StringSplit", SPACED, n_outputs=2, label="white space"),
    case("StringSplit", SPACED, delimiter="", maxsplit=1, n_outputs=2),
    case("StringSplit", [["a-b", "c"], ["d", "e-f-g"]], delimiter="-", n_outputs=2),
    case("StringSplit", np.zeros((2, 0), object), n_outputs=2),
    case("StringSplit", "a b", n_outputs=2, label="scalar"),
    case("RegexFullMatch", ["www.google.com", "www.facebook.com", "www.bbc.co.uk"], pattern=r"www\.[\w.-]+\.\bcom\b"),
    case("RegexFullMatch", [["a", "Ab"], ["", "aé"]], pattern=r"(?i)a[[:alpha:]]?|\pL{2}"),
    case("TfIdfVectorizer", ["a", "b", "a", "c", "a"], max_gram_length=2, max_skip_count=1, min_gram_length=1,
         mode="TF", ngram_counts=(0, 3), ngram_indexes=(2, 0, 1, 4, 3), pool_strings=("a", "b", "z", "a", "b", "a", "a")),
    *[
        case("TfIdfVectorizer", [[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8]], max_gram_length=longest, max_skip_count=skips,
             min_gram_length=shortest, mode=mode, ngram_counts=(0, 4), ngram_indexes=(0, 1, 2, 3, 4, 5, 6),
             pool_int64s=(2, 3, 5, 4, 5, 6, 7, 8, 6, 7), weights=(2.0, 0.5, 1.0, 3.0, 0.25, 4.0, 1.5))
        for mode in ("TF", "IDF", "TFIDF")
        for shortest, longest, skips in ((1, 1, 0), (2, 2, 0), (1, 2, 0), (1, 2, 5), (2, 2, 3))
    ],
    case("TfIdfVectorizer", np.asarray([2, 2, 3], np.int32), max_gram_length=3, max_skip_count=0, min_gram_length=1,
         mode="TFIDF", ngram_counts=(0, 1, 1), ngram_indexes=(0, 1), pool_int64s=(2, 2, 2, 3)),
    case("Cast", ["3.14", "1e-5", "-INF", "NaN", "+inf"], to=1, label="from strings"),
    case("Cast", ["9007199254740993", "-7", "100.5"], to=7, label="from strings"),
    case("Cast", [3, -2], to=8, label="to strings"),
    case("CastLike", [1, 2], ["a"], label="to strings"),
    case("Identity", WORDS),
    case("Equal", WORDS, ["Monday", "Holiday"]),
    case("Where", [True, False], WORDS, "else"),
    case("Gather", WORDS, [1, 0, 1], axis=1),
    case("GatherElements", WORDS, [[1, 0]], axis=0),
    case("GatherND", WORDS, [[0, 1], [1, 1]]),
    case("ScatterElements", WORDS, [[1]], [["maybe"]]),
    case("ScatterND", WORDS, [[0, 1]], ["was"]),
    case("Reshape", WORDS, [4]),
    case("Transpose", WORDS),
    case("Concat", WORDS, [["x", "y"]], axis=0),
    case("Split", WORDS, n_outputs=2, axis=1, num_outputs=2),
    case("Slice", WORDS, [0], [1], [1]),
    case("Pad", ["a", "b"], [1, 1], "?", label="of strings"),
    case("Squeeze", [["a"]], [0]),
    case("Unsqueeze", ["a"], [0]),
    case("Flatten", WORDS),
    case("Expand", "a", [2, 2]),
    case("Tile", WORDS, [1, 2]),
    case("Compress", WORDS, [False, True], axis=0),
    case("OneHot", [1, 0], 2, ["off", "on"]),
    case("ReverseSequence", WORDS, [2, 1]),
    case("Shape", WORDS),
    case("Size", WORDS),
    case("SpaceToDepth", np.asarray([[WORDS]], object), blocksize=2, label="of strings"),
    case("DepthToSpace", np.asarray(["a", "b", "c", "d"], object).reshape(1, 4, 1, 1), blocksize=2, label="of strings"),
    case("Unique", ["b", "a", "b", "c"], n_outputs=4),
    case("Unique", ["b", "a", "b", "c"], sorted=0, n_outputs=4),
    case("Unique", [["b", "a"], ["b", "a"], ["a", "c"]], axis=0, n_outputs=4),
    case("CenterCropPad", ["a", "b", "c"], [1], label="of strings"),
]  # fmt: skip
