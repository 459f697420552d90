"""Operators on strings, tensors of Python's `str` (`bytes` if a file holds no UTF-8), and counts of n-grams.

Nothing flows through them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from gradcheck_cli.errors import LimitError, UnsupportedError
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Op, require_known, zero
from gradcheck_cli.op.batching import elementwise
from gradcheck_cli.ops.shape import checked

_CASES: dict[str, Callable[[str], str]] = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}
_PATTERN_MEMORY = 8 << 20  # bytes; a pattern that needs more is refused
Gram: TypeAlias = tuple[Any, ...]
_MODES = ("TF", "IDF", "TFIDF")


def string_normalizer(
    x: Array, *, case_change_action: str = "NONE", is_case_sensitive: int = 0, locale: str = "",
    stopwords: tuple[str, ...] = (),
) -> Array:  # fmt: skip
    """The strings of one row that are no stop words, in lower or upper case; one empty string if none is left.

    Case is changed as Unicode defines it, whatever the locale.
    """
    require_known("case_change_action", case_change_action, _CASES)
    if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
        raise ValueError(f"strings come as [C] or [1, C], not {list(x.shape)}")
    change, same = _CASES[case_change_action], _CASES["NONE"] if is_case_sensitive else str.casefold
    stops = {same(word) for word in stopwords}
    left = [change(word) for word in require_strings(x).ravel().tolist() if same(word) not in stops] or [""]
    return np.asarray(left, object).reshape((-1,) if x.ndim == 1 else (1, -1))


def string_split(x: Array, *, delimiter: str | None = None, maxsplit: int | None = None) -> tuple[Array, Array]:
    """The parts of each string, padded with empty strings, and their number.

    Without a delimiter, any amount of white space separates parts.
    """
    words, most = require_strings(x).ravel().tolist(), -1 if maxsplit is None else maxsplit
    parts = [word.split(delimiter, most) if delimiter else word.strip().split(None, most) for word in words]
    width = max(map(len, parts), default=0)
    table = np.full(checked((len(parts), width)), "", object)
    for row, found in zip(table, parts, strict=True):
        row[: len(found)] = found
    counts = np.asarray([len(found) for found in parts], np.int64)
    return table.reshape(*x.shape, width), counts.reshape(x.shape)


def regex_full_match(x: Array, *, pattern: str = "") -> Array:
    """True if a string as a whole matches a pattern in RE2's syntax."""
    match = compiled(pattern).fullmatch
    return np.asarray([match(word) is not None for word in require_strings(x).ravel().tolist()], bool).reshape(x.shape)


def require_strings(x: Array) -> Array:
    """x itself; an error if it holds no strings."""
    if x.dtype != object:
        raise ValueError(f"strings are needed, not {x.dtype}")
    return x


@lru_cache(maxsize=64)
def compiled(pattern: str) -> Any:
    """A pattern that is matched in time linear in the string: Python's own `re` may take exponential time."""
    try:
        import re2
    except ImportError:
        text = "an expression over strings needs RE2: python -m pip install google-re2"
        raise UnsupportedError(text, code="GC502") from None
    options = re2.Options()
    options.log_errors, options.max_mem = False, _PATTERN_MEMORY
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace") if error.args else "it is not valid"
        if "too large" in reason:
            raise LimitError(f"the pattern {pattern[:60]!r} needs too much memory", code="GC602") from None
        raise ValueError(f"{pattern[:60]!r} is no pattern in RE2's syntax: {reason}") from None


def tf_idf_vectorizer(
    x: Array, *, max_gram_length: int, max_skip_count: int, min_gram_length: int, mode: str,
    ngram_counts: tuple[int, ...], ngram_indexes: tuple[int, ...], pool_int64s: tuple[int, ...] = (),
    pool_strings: tuple[str, ...] = (), weights: tuple[float, ...] = (),
) -> Array:  # fmt: skip
    """Counts of each n-gram of the pool in each row (TF), 1 if it occurs (IDF), or counts times weights (TFIDF)."""
    if x.ndim > 2 or mode not in _MODES or len(weights) not in (0, len(ngram_indexes)):
        raise ValueError(f"x is {list(x.shape)} and mode {mode!r} with {len(weights)} weights; x is a row or rows, and "
                         f"modes are {', '.join(_MODES)}")  # fmt: skip
    pool = _pool(ngram_counts, pool_strings or pool_int64s)
    if (x.dtype == object) != bool(pool_strings) or len(pool) != len(ngram_indexes) or min(ngram_indexes) < 0:
        raise ValueError(f"a pool of {len(pool)} n-grams does not go with {len(ngram_indexes)} indexes and {x.dtype}")
    places: dict[Gram, list[int]] = {}
    for number, gram in enumerate(pool):
        if min_gram_length <= len(gram) <= max_gram_length:
            places.setdefault(gram, []).append(number)
    lengths = sorted({len(gram) for gram in places})
    rows = x if x.ndim == 2 else x.reshape(1, -1)
    counts = np.zeros(checked((len(rows), len(pool))), np.int64)
    for row, tokens in zip(counts, rows.tolist(), strict=True):
        for gram in _grams(tokens, lengths, max_skip_count):
            row[places.get(gram, [])] += 1
    counted = np.minimum(counts, 1) if mode == "IDF" else counts
    weighted = counted * np.asarray(weights) if weights and mode != "TF" else counted
    result = np.zeros(checked((len(rows), max(ngram_indexes) + 1)), np.float32)
    np.add.at(result.T, np.asarray(ngram_indexes), weighted.T)
    return result.reshape(*x.shape[:-1], -1)


def _grams(tokens: Sequence[Any], lengths: Sequence[int], max_skip_count: int) -> Iterator[Gram]:
    """Every n-gram of the given lengths, its tokens next to each other or with a fixed number of others between them."""
    for length in lengths:
        for distance in range(1, (max_skip_count if length > 1 else 0) + 2):
            reach = distance * (length - 1)
            if reach >= len(tokens):
                break
            for start in range(len(tokens) - reach):
                yield tuple(tokens[start : start + reach + 1 : distance])


@lru_cache(maxsize=16)
def _pool(starts: tuple[int, ...], pool: tuple[Any, ...]) -> tuple[Gram, ...]:
    """The n-grams of a pool: of one token from starts[0] on, of two from starts[1] on, and so on."""
    ends = (*starts, len(pool))
    if not pool or ends[0] != 0 or any(a > b or (b - a) % n for n, (a, b) in enumerate(pairwise(ends), 1)):
        raise ValueError(f"ngram_counts {list(starts)} do not divide a pool of {len(pool)} tokens into n-grams")
    spans = enumerate(pairwise(ends), 1)
    return tuple(pool[i : i + n] for n, (a, b) in spans for i in range(a, b, n))


STRINGS: list[Op] = [
    Op("StringConcat", lambda x, y: np.asarray(require_strings(x) + require_strings(y), object), zero, elementwise,
       does="The strings of x followed by those of y."),
    Op("StringNormalizer", string_normalizer, zero),
    Op("StringSplit", string_split, zero, many=True, sized_by=(0,)),
    Op("RegexFullMatch", regex_full_match, zero),
    Op("TfIdfVectorizer", tf_idf_vectorizer, zero),
]  # fmt: skip
