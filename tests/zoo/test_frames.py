"""Messages of children come in pieces, and may be anything."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from gradcheck_cli.zoo.child import LONGEST, Frames, Garbled, packed

SAID = [
    ("tasks", 2),
    ("task", "a"),
    ("stage", "ünï \ud800"),
    ("record", {"id": "a", "worst": [1.5, "nan"]}),
    ("end", 1),
]


def heard(pieces: list[bytes]) -> list[tuple[str, Any]]:
    frames = Frames()
    return [frame for piece in pieces for frame in frames.feed(piece)]


def test_frames_are_whole_wherever_they_are_cut() -> None:
    data = b"".join(packed(kind, value) for kind, value in SAID)
    for cut in range(len(data)):
        assert heard([data[:cut], data[cut:]]) == SAID
    assert heard([bytes([byte]) for byte in data]) == SAID


def test_a_torn_frame_is_none() -> None:
    data = packed("stage", "reading the model")
    assert all(heard([data[:end]]) == [] for end in range(len(data)))


@settings(deadline=None)
@given(some.binary(max_size=200))
def test_whatever_comes_is_a_frame_or_garbled(data: bytes) -> None:
    framed = len(data).to_bytes(4, "big") + data
    for each in (data, framed):
        try:
            found = heard([each])
        except Garbled:
            continue
        assert all(kind in {name for name, _ in SAID} | {"needs"} for kind, _ in found)


@pytest.mark.parametrize("value", [True, None, 1.0, "1", [1], {"a": 1}])
def test_a_value_is_of_its_kind(value: Any) -> None:
    data = json.dumps(["tasks", value]).encode()
    with pytest.raises(Garbled, match="no known kind"):
        heard([len(data).to_bytes(4, "big") + data])


def test_sizes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="more than"):
        packed("stage", "x" * LONGEST)
    monkeypatch.setattr("gradcheck_cli.zoo.child.MOST", 1000)
    with pytest.raises(Garbled, match="of results"):
        heard([packed("stage", "x" * 400)] * 3)
