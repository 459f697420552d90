"""Tokens in com.microsoft: hashes, n-grams, alignments, words cut out of strings.  Nothing flows through any of them.

Scores that pass by them do: NGramRepeatBlock lets all through but those it forbids, Unique its values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcheck_cli import symbolic as sym
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Op, counting, deciding, zero
from gradcheck_cli.ops.fused import DOMAIN, fused
from gradcheck_cli.ops.shape import checked
from gradcheck_cli.ops.strings import compiled, require_strings
from gradcheck_cli.tape import Var

_FIRST, _LAST = "\x02", "\x03"  # marks around a text


def unique(x: Var) -> tuple[Var, ...]:
    """Values in the order in which they come first, where each entry is among them, and how often each one is there."""
    y, _, inverse, counts = x.tape.emit("Unique", (x,), {"sorted": 0}, n_outputs=4)
    return y, inverse, counts


def ngram_repeat_block(input_ids: Var, scores: Var, *, ngram_size: int) -> Var:
    """Scores, -infinity for words with which an n-gram would stand there a second time."""
    ids = input_ids.tape.guard(input_ids)
    if ngram_size < 1 or ids.ndim != 2 or scores.ndim != 2 or len(ids) != scores.shape[0]:
        raise ValueError(
            f"words {list(ids.shape)} do not go with scores {list(scores.shape)}, or {ngram_size} is no size"
        )
    barred = np.zeros(scores.shape, bool)
    for row, words in zip(barred, ids.tolist(), strict=True):
        end = words[len(words) - ngram_size + 1 :] if len(words) >= ngram_size else None
        starts = range(len(words) - ngram_size + 1)
        row[[words[i + ngram_size - 1] for i in starts if words[i : i + ngram_size - 1] == end]] = True
    return sym.where(scores.tape.constant(barred), -np.inf, scores)


def dynamic_time_warping(cost: Array) -> Array:
    """The cheapest way through a matrix of costs from its first corner to the last, as rows and columns it passes."""
    table = cost[0] if cost.ndim == 3 else cost
    if table.ndim != 2 or (cost.ndim == 3 and len(cost) != 1) or not table.size:
        raise ValueError(f"costs are M x N or 1 x M x N, not {list(cost.shape)}")
    rows, columns = table.shape
    total = np.full((rows + 1, columns + 1), np.inf)
    total[0, 0] = 0
    came = np.zeros((rows + 1, columns + 1), np.int8)
    for i in range(1, rows + 1):
        for j in range(1, columns + 1):
            both, above, left = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
            came[i, j] = 0 if both < above and both < left else 1 if above < both and above < left else 2
            total[i, j] = table[i - 1, j - 1] + (both, above, left)[came[i, j]]
    came[0], came[:, 0] = 2, 1
    way, i, j = [], rows, columns
    while i > 0 or j > 0:
        way.append((i - 1, j - 1))
        step = came[i, j]
        i, j = i - (step != 2), j - (step != 1)
    return np.ascontiguousarray(np.asarray(way[::-1], np.int32).T)


def bifurcation_detector(
    source: Array, tokens: Array, previous: Array, predicted: Array | None = None, *, max_ngram_size: int = 3,
    min_ngram_size: int = 1,
) -> tuple[Array, Array]:  # fmt: skip
    """Tokens with those predicted up to the first that is not the source's, and where the source goes on after them.

    That is behind the only place where the source has their last few tokens; -1 if there is none, or several.
    """
    text, made = source.tolist(), tokens.tolist()
    if predicted is not None:
        start, new = int(previous), predicted.tolist()
        if len(new) != len(text) + 1 - start:
            raise ValueError(f"{len(new)} predicted tokens for {len(text)} from {start} on; one more is needed")
        same = next((i for i, (a, b) in enumerate(zip(new, text[start:], strict=False)) if a != b), len(new) - 1)
        made = made + new[: same + 1]
    return np.asarray(made, np.int64), np.asarray(_goes_on(text, made, min_ngram_size, max_ngram_size), np.int64)


def _goes_on(text: list[int], made: list[int], least: int, most: int) -> int:
    """The place behind the only match of the last tokens, of as few as are enough."""
    for size in range(least, min(most, len(made)) + 1):
        last = made[len(made) - size :]
        found = [i for i in range(len(text) - size + 1) if text[i : i + size] == last]
        if len(found) < 2:
            return found[0] + size if found else -1
    return -1


def murmur_hash3(x: Array, *, positive: int = 1, seed: int = 0) -> Array:
    """MurmurHash3 of 32 bits of each entry as it is stored, or of a string in UTF-8."""
    if x.dtype == object:
        texts = [word if isinstance(word, bytes) else word.encode() for word in require_strings(x).ravel().tolist()]
        hashed = np.asarray([_murmur(text, seed) for text in texts], np.uint32)
    else:
        hashed = np.asarray([_murmur(entry.tobytes(), seed) for entry in np.ascontiguousarray(x).ravel()], np.uint32)
    return hashed.reshape(x.shape) if positive else hashed.reshape(x.shape).view(np.int32)


def _murmur(data: bytes, seed: int) -> int:
    """Austin Appleby's function, x86 of 32 bits."""
    whole = len(data) - len(data) % 4
    state = seed & 0xFFFFFFFF
    for at in range(0, whole, 4):
        state ^= _scrambled(int.from_bytes(data[at : at + 4], "little"))
        state = (_turned(state, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    state ^= _scrambled(int.from_bytes(data[whole:], "little"))
    state ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        state = ((state ^ state >> shift) * factor) & 0xFFFFFFFF
    return state


def _scrambled(block: int) -> int:
    return _turned((block * 0xCC9E2D51) & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF


def _turned(x: int, bits: int) -> int:
    return ((x << bits) | (x >> (32 - bits))) & 0xFFFFFFFF


def tokenizer(
    x: Array, *, mark: int, mincharnum: int, pad_value: str, separators: Sequence[str] = (), tokenexp: str = ""
) -> Array:
    """The tokens of each string, along a new last axis: what stands between separators, or what an expression matches."""
    if x.ndim not in (1, 2) or bool(separators) == bool(tokenexp) or mincharnum < 1:
        raise ValueError("strings come as [C] or [N, C]; separators or tokenexp is given, and mincharnum is positive")
    if not x.size:
        return x
    single = tuple(separators) == ("",) or tokenexp == "."
    rows = []
    for word in require_strings(x).ravel().tolist():
        found = list(word) if single else _matched(word, tokenexp) if tokenexp else _apart(word, separators)
        rows.append([token for token in found if len(token) >= mincharnum])
    width = max(map(len, rows))
    rows = [[_FIRST, *row, _LAST] if mark else row for row in rows]
    width = max(map(len, rows)) if mark or width else 0
    table = np.full(checked((len(rows), width)), pad_value, object)
    for line, row in zip(table, rows, strict=True):
        line[: len(row)] = row
    return table.reshape(*x.shape, width)


def _apart(word: str, separators: Sequence[str]) -> list[str]:
    """What is left between matches of one expression after the other."""
    parts = [word]
    for separator in separators:
        split = compiled(separator).split
        parts = [piece for part in parts for piece in split(part) if piece]
    return parts


def _matched(word: str, expression: str) -> list[str]:
    """What an expression matches, from left to right, where that is something."""
    return [match.group(0) for match in compiled(expression).finditer(word) if match.group(0)]


def ngram_hash_mapping(
    ids: Array, multipliers: Array, sizes: Array, past: Array | None = None, offsets: Array | None = None,
    end: Array | None = None, segments: Array | None = None, *, max_ngram_size: int, n_head_per_ngram: int,
    pad_id: int, reset_on_eos: int = 0,
) -> tuple[Array, Array]:  # fmt: skip
    """Hashes of the n-grams that end at each word, `(N, S, heads)`, and the last words, for the next call."""
    reach = max_ngram_size - 1
    if ids.ndim != 2 or reach < 1 or sizes.shape != (reach * n_head_per_ngram,) or (sizes < 1).any():
        raise ValueError("words are (N, S), n-grams of 2 or more, and each head has a positive size")
    blank = pad_id if end is None else int(end)
    before = np.full((len(ids), reach), blank, ids.dtype) if past is None else past
    whole = np.concatenate([before, ids], axis=1)
    hashed = [
        _hashes(row, reach, None if segments is None else segments[i], (multipliers, sizes, offsets), n_head_per_ngram,
                int(end) if end is not None and reset_on_eos else None, blank)
        for i, row in enumerate(whole)
    ]  # fmt: skip
    shape = (*ids.shape, len(sizes))
    return np.asarray(hashed, ids.dtype).reshape(shape), whole[:, whole.shape[1] - reach :].copy()


def _hashes(
    row: Array, reach: int, segments: Array | None, numbers: Any, heads: int, end: int | None, blank: int
) -> Array:
    """Hashes at each word of one row, whose first `reach` words are history."""
    multipliers, sizes, offsets = numbers
    count = len(row) - reach
    places = np.arange(reach, len(row))
    start = np.zeros(count, np.int64) - 1  # the last place that a window must not reach
    for t, place in enumerate(places):
        if end is not None and (found := np.flatnonzero(row[:place] == end)).size:
            start[t] = found[-1]
        if segments is not None and (cut := np.flatnonzero(np.diff(segments[: t + 1]))).size:
            start[t] = max(start[t], cut[-1] + reach)
    mixed, made = np.zeros(count, row.dtype), []
    with np.errstate(over="ignore"):
        for shift in range(reach + 1):
            words = np.where(places - shift > start, row[places - shift], np.asarray(blank, row.dtype))
            mixed = mixed ^ (words * multipliers[shift])
            if shift:
                own = slice((shift - 1) * heads, shift * heads)
                codes = mixed[:, None] % sizes[own]
                made.append(codes if offsets is None else codes + offsets[own])
    return np.concatenate(made, axis=1) if count else np.zeros((0, len(sizes)), row.dtype)


FUSED_TOKENS: list[Op] = [
    Op("BifurcationDetector", bifurcation_detector, zero, domain=DOMAIN, many=True),
    Op("DynamicTimeWarping", dynamic_time_warping, zero, domain=DOMAIN, analytic=False, ordered=True),
    Op("MurmurHash3", murmur_hash3, zero, domain=DOMAIN, stored=True, analytic=False),
    Op("NGramHashMapping", ngram_hash_mapping, zero, domain=DOMAIN, many=True),
    fused("NGramRepeatBlock", ngram_repeat_block, cuts=deciding(0)),
    Op("Tokenizer", tokenizer, zero, domain=DOMAIN),
    fused("Unique", unique, cuts=counting(1, 2)),
]
