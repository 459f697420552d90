"""Ways to spoil any file: its bytes, its words, and where it is JSON or an ONNX model its values."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from tests.hostile.mutations import INTEGERS, KINDS, OF_MODELS, Mutation, of_model
from tests.hostile.names import NAMES

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1 << 31, 1 << 63, -(1 << 63), 10**30, 0.5, -0.0, 1e308, float("inf"), float("nan"), "", "x",
    "\ud800", "pass", "nan", [], {}, [[]], [None], {"": 1}, "2030-01-01", ["a", 1], {"a": {"b": [1]}}, *NAMES.values(),
)  # fmt: skip
WORDS = (
    b"", b"[", b"]", b"{", b"}", b":", b",", b'"', b"'", b"\n", b"\r", b"\0", b"\\", b"#", b"|", b">", b"~", b"=", b"[[",
    b"&a", b"*a", b"<<: *a", b"!!x ", b"- ", b"---\n", b"nan", b"inf", b"1e999", b"-1", b"0x", b"9" * 30, b"99999999999",
    b"2030-01-01", b"\xff", b"\xed\xa0\x80", "\u2028".encode(), "\x85".encode(), b"\xef\xbb\xbf", b"PK\x03\x04",
    b"\x93NUMPY", b"\x1f\x8b", b"../", b"/dev/zero",
)  # fmt: skip


def spoiled(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """The file after some changes."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        data = rng.choice((_bytes, _bytes, _words, _block, _spliced, _values, _model))(data, others, rng)
    return data[: 1 << 20]


def _place(data: bytes, rng: random.Random) -> int:
    return rng.randrange(len(data) + 1)


def _bytes(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """One byte, one bit, or one number."""
    at, made = _place(data, rng), bytearray(data)
    size = rng.choice((1, 1, 2, 4, 8))
    number = rng.choice((rng.getrandbits(8 * size), 0, (1 << 8 * size) - 1, 1 << 8 * size - 1, *INTEGERS)) % (
        1 << 8 * size
    )
    made[at : at + size] = number.to_bytes(size, rng.choice(("little", "big")))
    return bytes(made)


def _words(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + rng.choice(WORDS) * rng.choice((1, 1, 2, 70)) + data[at + rng.choice((0, 0, 1, 5)) :]


def _block(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """A piece left out, doubled, or all behind it cut off."""
    start, end = sorted((_place(data, rng), _place(data, rng)))
    return rng.choice((data[:start] + data[end:], data[:end] + data[start:], data[:start]))


def _spliced(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    other = rng.choice(others)
    return data[: _place(data, rng)] + other[_place(other, rng) :]


def _values(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """A value of JSON, or of one of its lines, is another; a key is gone or more."""
    lines = data.split(b"\n")
    index = rng.randrange(len(lines))
    for text in (data, lines[index]):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue
        made = json.dumps(_changed(value, rng)).encode()
        return made if text is data else b"\n".join([*lines[:index], made, *lines[index + 1 :]])
    return data


def _changed(value: Any, rng: random.Random) -> Any:
    spots = list(_spots(value))
    if not spots:
        return rng.choice(ODD)
    holder, key = rng.choice(spots)
    if rng.random() < 0.15:
        del holder[key]
    elif rng.random() < 0.2:
        other, place = rng.choice(spots)
        holder[key] = json.loads(json.dumps(other[place]))
    else:
        holder[key] = rng.choice(ODD)
    return value


def _spots(value: Any) -> Iterator[tuple[Any, Any]]:
    """All places in a value, as what holds them and the key there."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield value, key
        yield from _spots(each)


def _model(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """The model that a text says, if it says one."""
    kind = rng.choice([each for each in KINDS if each in OF_MODELS])
    return of_model(data, Mutation(kind, *(rng.randrange(1 << 16) for _ in range(3))))
