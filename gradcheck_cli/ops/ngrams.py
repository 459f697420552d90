"""TfIdfVectorizer: counts of n-grams, in which tokens may be skipped.  Integers and strings in, nothing flows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from gradcheck_cli.graph import Array
from gradcheck_cli.op import Op, zero
from gradcheck_cli.ops.shape import checked

Gram: TypeAlias = tuple[Any, ...]
_MODES = ("TF", "IDF", "TFIDF")


def tf_idf_vectorizer(
    x: Array, *, max_gram_length: int, max_skip_count: int, min_gram_length: int, mode: str,
    ngram_counts: tuple[int, ...], ngram_indexes: tuple[int, ...], pool_int64s: tuple[int, ...] = (),
    pool_strings: tuple[str, ...] = (), weights: tuple[float, ...] = (),
) -> Array:  # fmt: skip
    """How often each n-gram of the pool occurs in each row (TF), whether it does (IDF), or the count times its weight."""
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
    """The n-grams of a pool: those of one token from starts[0] on, those of two from starts[1] on ..."""
    ends = (*starts, len(pool))
    if not pool or ends[0] != 0 or any(a > b or (b - a) % n for n, (a, b) in enumerate(pairwise(ends), 1)):
        raise ValueError(f"ngram_counts {list(starts)} do not divide a pool of {len(pool)} tokens into n-grams")
    spans = enumerate(pairwise(ends), 1)
    return tuple(pool[i : i + n] for n, (a, b) in spans for i in range(a, b, n))


NGRAMS: list[Op] = [Op("TfIdfVectorizer", tf_idf_vectorizer, zero)]
