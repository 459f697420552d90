"""Strings: patterns in RE2's syntax, casts, what is refused, and the packages that some operators need."""

from __future__ import annotations

import io
import sys
import time
from typing import Any

import numpy as np
import pytest

from gradcheck_cli.errors import LimitError, ModelError, UnsupportedError
from tests.ops.case import Case, case
from tests.ops.cases.image import PIXELS

HOSTILE = [r"(a+)+b", r"(a|aa)+c", r"(.*a){20}x", r"(?:a?){40}a{40}b"]
MATCHES = [  # pattern in RE2's syntax, text, whether all of it matches
    (r"(?i)HeLLo\pL?", "helloé", True), (r"[[:digit:]]{2,3}", "1234", False), (r"a\zb?", "a", True),
    (r"\Q.*\E", ".*", True), (r"(?P<x>a)(b)?", "ab", True), (r"\x{e9}", "é", True), ("", "", True), (r"a.c", "a\nc", False),
]  # fmt: skip
UNFIT = [
    case("StringConcat", ["a"], [1]),
    case("StringConcat", ["a", "b"], ["a", "b", "c"]),
    case("StringNormalizer", [["a"], ["b"]]),
    case("StringNormalizer", ["a"], case_change_action="TITLE"),
    case("StringSplit", [1, 2], n_outputs=2),
    case("Cast", ["one"], to=1),
    case("Cast", ["one"], to=7),
    case("Cast", ["1" * 30], to=7),
    case("TfIdfVectorizer", ["a"], max_gram_length=1, max_skip_count=0, min_gram_length=1, mode="TF", ngram_counts=(0,),
         ngram_indexes=(0,), pool_int64s=(1,)),
    case("TfIdfVectorizer", [1], max_gram_length=1, max_skip_count=0, min_gram_length=1, mode="TF", ngram_counts=(0, 1),
         ngram_indexes=(0,), pool_int64s=(1, 2)),
    case("TfIdfVectorizer", [1], max_gram_length=1, max_skip_count=0, min_gram_length=1, mode="TF", ngram_counts=(0,),
         ngram_indexes=(0, -1), pool_int64s=(1, 2)),
    case("LabelEncoder", ["a"], domain="ai.onnx.ml", keys_int64s=(1,), values_int64s=(1,)),
    case("LabelEncoder", ["a"], domain="ai.onnx.ml", keys_strings=("a", "b"), values_int64s=(1,)),
    case("LabelEncoder", ["a"], domain="ai.onnx.ml", keys_strings=("a",)),
    case("OneHotEncoder", ["a"], domain="ai.onnx.ml", cats_int64s=(1,)),
    case("OneHotEncoder", ["a"], domain="ai.onnx.ml", cats_strings=("b",), zeros=0),
    case("CategoryMapper", ["a"], domain="ai.onnx.ml", cats_strings=("b",), cats_int64s=(1, 2)),
]  # fmt: skip


@pytest.mark.parametrize("case", UNFIT, ids=lambda c: c.id)
def test_what_does_not_fit_is_an_error_that_names_the_node(case: Case) -> None:
    with pytest.raises(ModelError, match="node 0"):
        case.tape()


@pytest.mark.parametrize("pattern, text, expected", MATCHES)
def test_patterns_are_read_in_the_syntax_of_re2(pattern: str, text: str, expected: bool) -> None:
    pytest.importorskip("re2")
    assert computed(case("RegexFullMatch", [text], pattern=pattern)).tolist() == [expected]


@pytest.mark.parametrize("pattern", HOSTILE)
def test_no_pattern_takes_long(pattern: str) -> None:
    pytest.importorskip("re2")
    start = time.process_time()
    assert computed(case("RegexFullMatch", ["a" * 20_000], pattern=pattern)).tolist() == [False]
    assert time.process_time() - start < 2.0


@pytest.mark.parametrize("pattern", ["(", "a**", r"(?=a)", r"(a)\1", "x{1001}", "[z-a]"])
def test_what_is_no_pattern_of_re2_is_refused(pattern: str) -> None:
    pytest.importorskip("re2")
    with pytest.raises(ModelError, match="is no pattern in RE2's syntax"):
        case("RegexFullMatch", ["a"], pattern=pattern).tape()


def test_a_pattern_that_takes_too_much_memory_is_a_limit() -> None:
    pytest.importorskip("re2")
    with pytest.raises(LimitError, match="too much memory"):
        case("RegexFullMatch", ["a"], pattern=r"((\pL{500}){2}\w{1000})" * 400).tape()


def test_an_image_that_is_too_large_is_a_limit() -> None:
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.new("1", (20_000, 20_000)).save(file, "PNG")
    with pytest.raises(LimitError, match="an image is too large"):
        case("ImageDecoder", np.frombuffer(file.getvalue(), np.uint8)).tape()


def test_what_is_no_image_gives_no_pixels() -> None:
    pytest.importorskip("PIL")
    for data in (b"", b"no image", PIXELS[:-1]):
        assert computed(case("ImageDecoder", np.frombuffer(data, np.uint8))).shape == (0, 0, 3)
    with pytest.raises(ModelError, match="pixel_format"):
        case("ImageDecoder", np.frombuffer(PIXELS, np.uint8), pixel_format="HSV").tape()


@pytest.mark.parametrize("package, needs, said", [
    ("re2", case("RegexFullMatch", ["a"], pattern="a package that is not there"), "google-re2"),
    ("PIL", case("ImageDecoder", np.frombuffer(PIXELS, np.uint8)), "pillow"),
])  # fmt: skip
def test_without_its_package_an_operator_is_unsupported(package: str, needs: Case, said: str, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UnsupportedError, match=f"python -m pip install {said}$") as caught:
        needs.tape()
    assert (caught.value.code, caught.value.exit_code) == ("GC502", 5)


def test_numbers_become_the_shortest_text_of_their_dtype() -> None:
    tape = case("Cast", np.asarray([0.1, 1e-7, np.inf, np.nan], np.float32), to=8).tape(dtype="model")
    assert tape.named["y0"].value.tolist() == ["0.1", "1e-07", "inf", "nan"]
    assert computed(case("Cast", [True, False], to=8)).tolist() == ["True", "False"]


def test_integers_are_read_from_text_exactly() -> None:
    assert computed(case("Cast", ["9007199254740993", "100.5", "-7"], to=7)).tolist() == [9007199254740993, 100, -7]


def computed(one: Case) -> Any:
    """The first output."""
    return one.tape().named["y0"].value
