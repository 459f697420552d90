"""Tokens in com.microsoft: hashes, n-grams, alignments, tokenizers.  Nothing flows through tokens.

Other operands pass: NGramRepeatBlock lets scores through, except those it forbids, and Unique its values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Op, attributes_of, counting, deciding, zero
from gradcheck_cli.ops.onnxruntime.fused import DOMAIN, fused
from gradcheck_cli.ops.shape import checked
from gradcheck_cli.ops.strings import compiled, require_strings

_FIRST, _LAST = "\x02", "\x03"  # marks around a text


def unique(x: Var) -> tuple[Var, ...]:
    """Distinct values in the order of their first occurrence, the index of each entry's value among them, and counts."""
    y, _, inverse, counts = x.tape.emit("Unique", (x,), {"sorted": 0}, n_outputs=4)
    return y, inverse, counts


def ngram_repeat_block(input_ids: Var, scores: Var, *, ngram_size: int) -> Var:
    """Scores, with -infinity for words that would repeat an n-gram."""
    ids = input_ids.tape.guard(input_ids)
    if ngram_size < 1 or ids.ndim != 2 or scores.ndim != 2 or len(ids) != scores.shape[0]:
        raise ValueError(f"words {list(ids.shape)} do not go with scores {list(scores.shape)} in {ngram_size}-grams")
    barred = np.zeros(scores.shape, bool)
    for row, words in zip(barred, ids.tolist(), strict=True):
        end = words[len(words) - ngram_size + 1 :] if len(words) >= ngram_size else None
        starts = range(len(words) - ngram_size + 1)
        row[[words[i + ngram_size - 1] for i in starts if words[i : i + ngram_size - 1] == end]] = True
    return sym.where(scores.tape.constant(barred), -np.inf, scores)


def dynamic_time_warping(cost: Array) -> Array:
    """The cheapest path through a matrix of costs from its first corner to its last, as rows and columns."""
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
    """Tokens with the predicted ones up to the first that differs from the source, and where the source continues.

    The source continues behind the only place where it has their last few tokens; -1 if there is none, or several.
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
    """The place behind the only match of the last tokens, of as few as suffice."""
    for size in range(least, min(most, len(made)) + 1):
        last = made[len(made) - size :]
        found = [i for i in range(len(text) - size + 1) if text[i : i + size] == last]
        if len(found) < 2:
            return found[0] + size if found else -1
    return -1


def murmur_hash3(x: Array, *, positive: int = 1, seed: int = 0) -> Array:
    """MurmurHash3 (32 bits) of the bytes of each entry, or of a string in UTF-8."""
    if x.dtype == object:
        texts = [word if isinstance(word, bytes) else word.encode() for word in require_strings(x).ravel().tolist()]
        hashed = np.asarray([_murmur(text, seed) for text in texts], np.uint32)
    else:
        hashed = np.asarray([_murmur(entry.tobytes(), seed) for entry in np.ascontiguousarray(x).ravel()], np.uint32)
    return hashed.reshape(x.shape) if positive else hashed.reshape(x.shape).view(np.int32)


def _murmur(data: bytes, seed: int) -> int:
    """Austin Appleby's MurmurHash3_x86_32."""
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
    """The tokens of each string, along a new last axis: the parts between separators, or the matches of an expression."""
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
    """The parts between matches, split by one expression after the other."""
    parts = [word]
    for separator in separators:
        split = compiled(separator).split
        parts = [piece for part in parts for piece in split(part) if piece]
    return parts


def _matched(word: str, expression: str) -> list[str]:
    """The non-empty matches of an expression, from left to right."""
    return [match.group(0) for match in compiled(expression).finditer(word) if match.group(0)]


@dataclass(frozen=True, slots=True)
class NGramHashes:
    """Hashes of n-grams of several lengths, with several heads for each, and the words before the first one."""

    multipliers: Array
    sizes: Array
    offsets: Array | None
    end: Array | None
    _: KW_ONLY  # attributes of the operators
    max_ngram_size: int
    n_head_per_ngram: int
    pad_id: int
    reset_on_eos: int = 0

    def __post_init__(self) -> None:
        if self.reach < 1 or self.sizes.shape != (self.reach * self.n_head_per_ngram,) or (self.sizes < 1).any():
            raise ValueError("n-grams are of 2 words or more, and each head has a positive size")

    @property
    def reach(self) -> int:
        """The number of words that an n-gram looks back."""
        return self.max_ngram_size - 1

    @property
    def blank(self) -> int:
        """The word in place of those that are not visible."""
        return self.pad_id if self.end is None else int(self.end)

    def history(self, past: Array | None, count: int, dtype: Any) -> Array:
        """The words before each sequence."""
        return np.full((count, self.reach), self.blank, dtype) if past is None else past

    def begun(self, segments: Array | None, past: Array | None) -> Array:
        """Places in a row, its history included, at which a segment begins."""
        if segments is None:
            return np.zeros(0, np.int64)
        known, first = (segments, self.reach) if past is None else (np.concatenate([past, segments]), 0)
        return np.flatnonzero(np.diff(known)) + 1 + first

    def of(self, row: Array, begun: Array) -> Array:
        """Hashes at each word of a row behind its history; n-grams do not reach across the start of a segment."""
        places, made = np.arange(self.reach, len(row)), []
        barred = np.asarray([self._barred(row, begun, place) for place in places.tolist()], np.int64)
        mixed = np.zeros(len(places), row.dtype)
        with np.errstate(over="ignore"):
            for shift in range(self.max_ngram_size):
                words = np.where(places - shift > barred, row[places - shift], np.asarray(self.blank, row.dtype))
                mixed = mixed ^ (words * self.multipliers[shift])
                if shift:
                    own = slice((shift - 1) * self.n_head_per_ngram, shift * self.n_head_per_ngram)
                    codes = mixed[:, None] % self.sizes[own]
                    made.append(codes if self.offsets is None else codes + self.offsets[own])
        return np.concatenate(made, axis=1)

    def _barred(self, row: Array, begun: Array, place: int) -> int:
        """The last place that is not visible to an n-gram which ends at `place`."""
        cuts = begun[begun <= place] - 1
        ends = np.flatnonzero(row[:place] == self.end) if self.reset_on_eos and self.end is not None else cuts[:0]
        return int(max(cuts[-1] if cuts.size else -1, ends[-1] if ends.size else -1))


@attributes_of(NGramHashes)
def ngram_hash_mapping(
    ids: Array, multipliers: Array, sizes: Array, past: Array | None = None, offsets: Array | None = None,
    end: Array | None = None, segments: Array | None = None, **how: int,
) -> tuple[Array, Array]:  # fmt: skip
    """Hashes of the n-grams that end at each word, `(N, S, heads)`, and the last words, for the next call."""
    if ids.ndim != 2:
        raise ValueError(f"words are (N, S), not {list(ids.shape)}")
    hashes = NGramHashes(multipliers, sizes, offsets, end, **how)
    whole = np.concatenate([hashes.history(past, len(ids), ids.dtype), ids], axis=1)
    parts = [None] * len(ids) if segments is None else list(segments)
    made = [hashes.of(row, hashes.begun(part, None)) for row, part in zip(whole, parts, strict=True)]
    shape = (*ids.shape, len(sizes))
    return np.asarray(made, ids.dtype).reshape(shape), whole[:, ids.shape[1] :].copy()


@attributes_of(NGramHashes)
def varlen_ngram_hash_mapping(
    ids: Array, multipliers: Array, sizes: Array, ends: Array, past: Array | None = None,
    offsets: Array | None = None, end: Array | None = None, segments: Array | None = None,
    past_segments: Array | None = None, captured: Array | None = None, *, state_update_capacity: int = 0, **how: int,
) -> tuple[Array, Array, Array, Array]:  # fmt: skip
    """NGramHashMapping of consecutive sequences; also their last words and segments, at the end and on the way."""
    places = ends.tolist()
    if ids.ndim != 1 or places[:1] != [0] or places[-1] != len(ids) or any(a >= b for a, b in pairwise(places)):
        raise ValueError(f"sequences that end at {places} are not {list(ids.shape)} words")
    if (captured is not None) != (state_update_capacity > 0):
        raise ValueError("capture_count comes with a positive state_update_capacity, and no other")
    hashes = NGramHashes(multipliers, sizes, offsets, end, **how)
    count, reach = len(places) - 1, hashes.reach
    before = hashes.history(past, count, ids.dtype)
    made, last, spans = [], [], np.zeros((count, reach), np.int32)
    update = np.full((count, state_update_capacity, reach), hashes.pad_id, ids.dtype)
    for i, (start, stop) in enumerate(pairwise(places)):
        row = np.concatenate([before[i], ids[start:stop]])
        part = None if segments is None else segments[start:stop]
        old = None if past_segments is None else past_segments[i]
        made.append(hashes.of(row, hashes.begun(part, old)))
        last.append(row[stop - start :])
        if part is not None:
            known = np.full(reach, part[0] if old is None else 0) if old is None else old
            spans[i] = np.concatenate([known, part])[stop - start :]
        kept = 0 if captured is None else min(int(captured[i]), stop - start, state_update_capacity)
        for t in range(kept):
            update[i, t] = row[t + 1 : t + 1 + reach]
    return np.concatenate(made), np.asarray(last, ids.dtype), spans, update


FUSED_TOKENS: list[Op] = [
    Op("BifurcationDetector", bifurcation_detector, zero, domain=DOMAIN, many=True),
    Op("DynamicTimeWarping", dynamic_time_warping, zero, domain=DOMAIN, analytic=False, ordered=True),
    Op("MurmurHash3", murmur_hash3, zero, domain=DOMAIN, stored=True, analytic=False),
    Op("NGramHashMapping", ngram_hash_mapping, zero, domain=DOMAIN, many=True),
    fused("NGramRepeatBlock", ngram_repeat_block, cuts=deciding(0)),
    Op("Tokenizer", tokenizer, zero, domain=DOMAIN),
    Op("VarlenNGramHashMapping", varlen_ngram_hash_mapping, zero, domain=DOMAIN, many=True),
    fused("Unique", unique, cuts=counting(1, 2)),
]
