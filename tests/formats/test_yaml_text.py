"""YAML text becomes the values of YAML 1.2's core schema, in their places, or an error that says where."""

from __future__ import annotations

import math

import pytest

from gradcheck_cli.errors import SpecError
from gradcheck_cli.formats.yaml.places import MAX_BYTES, parse, read_text

VALUES = [
    ("1e-3", 1e-3),
    ("1e3", 1000.0),
    ("-.5", -0.5),
    ("1.", 1.0),
    ("+12", 12),
    ("0123", 123),
    ("0o17", 15),
    ("0xff", 255),
    ("1:0", "1:0"),
    ("1_000", "1_000"),
    ("0b11", "0b11"),
    ("no", "no"),
    ("yes", "yes"),
    ("on", "on"),
    ("off", "off"),
    ("true", True),
    ("FALSE", False),
    ("tRue", "tRue"),
    ("null", None),
    ("~", None),
    (".inf", math.inf),
    ("-.INF", -math.inf),
    ("inf", "inf"),
    ("2027-03-31", "2027-03-31"),
    ("'1'", "1"),
    ('"true"', "true"),
    ("! 1", "1"),
    ("!!str 1", "1"),
    ("!!int '1'", 1),
    ("!!float '1'", 1.0),
    ("!!seq [1]", [1]),
    ("[]", []),
    ("{a: 1, b: [x, y]}", {"a": 1, "b": ["x", "y"]}),
    ("|\n  a\n   b\n", "a\n b\n"),
    (">\n  a\n  b\n", "a b\n"),
]


@pytest.mark.parametrize("text, value", VALUES, ids=[text for text, _ in VALUES])
def test_values_are_those_of_the_core_schema(text, value):
    found = parse(f"k: {text}", "f").value["k"]
    assert found == value
    assert type(found) is type(value)


def test_nan_is_a_number():
    assert math.isnan(parse("k: .nan", "f").value["k"])


@pytest.mark.parametrize("key", ["1", "on", "null", "1.50", "a b", "2027-03-31"])
def test_a_key_is_the_text_that_stands_there(key):
    assert list(parse(f"{key}: 1", "f").value) == [key]


def test_values_and_keys_know_their_places():
    root = parse("a: 1\nb:\n  - x\n  - {c: [5, 6]}\n", "f")
    inner = root.children["b"].children[1]
    assert root.keys == {"a": (1, 1), "b": (2, 1)}
    assert inner.keys == {"c": (4, 6)}
    assert [(e.line, e.column) for e in inner.children["c"].children.values()] == [(4, 10), (4, 13)]


def test_columns_count_characters_not_bytes():
    assert parse("é: {ü: 1}", "f").children["é"].children["ü"].column == 8


def test_aliases_stand_for_their_anchor():
    assert parse("a: &x [1, 2]\nb: *x", "f").value == {"a": [1, 2], "b": [1, 2]}


def test_merge_keys_add_what_the_mapping_has_not():
    text = "a: &a {x: 1, y: 2}\nb: &b {y: 3, z: 4}\nc: {<<: [*a, *b], x: 0}\nd: {<<: *b, <<: *a}"
    found = parse(text, "f").value
    assert found["c"] == {"x": 0, "y": 2, "z": 4}
    assert found["d"] == {"y": 3, "z": 4, "x": 1}


def test_a_quoted_merge_sign_is_a_key():
    assert parse("'<<': 1", "f").value == {"<<": 1}


ERRORS = [
    ("", "f:1:1: the file is empty; a spec starts with 'gradcheck: 1'"),
    ("# nothing\n", "f:1:1: the file is empty; a spec starts with 'gradcheck: 1'"),
    ("a: 1\n---\nb: 2\n", "f:2:1: a spec is one document; a second one starts here"),
    ("a: 1\nb: 2\na: 3\n", "f:3:1: the key 'a' stands here a second time; first at 1:1"),
    ("x: {a: 1, 'a': 2}", "f:1:11: the key 'a' stands here a second time; first at 1:5"),
    ("? [a]\n: 1", "f:1:3: a key must be a name, not a list or mapping"),
    ("a: *b", "f:1:4: no anchor '&b' stands before this alias."),
    ("weights: &weights 1\nb: *weigths", "f:2:4: no anchor '&weigths' stands before this alias."
     " Did you mean 'weights'?"),
    ("a: &a [*a]", "f:1:8: the alias '*a' stands inside its own value"),
    ("a: {<<: 3}", "f:1:9: '<<' takes a mapping or a list of mappings"),
    ("a: !!python/object:os.system x", "f:1:4: the tag '!!python/object:os.system' is not allowed;"
     " a spec holds plain values only"),
    ("a: !mine {b: 1}", "f:1:4: the tag '!mine' is not allowed; a spec holds plain values only"),
    ("a: !!set {b}", "f:1:4: the tag '!!set' is not allowed; a spec holds plain values only"),
    ("a: !!int x", "f:1:4: 'x' is no int"),
    ("a:\n\t- b", "f:2:1: a tab cannot indent YAML; use spaces"),
    ("a: [1, 2", "f:1:4: not YAML: while parsing a flow sequence did not find expected ',' or ']'"),
    ("a: 'b", "f:1:6: not YAML: while scanning a quoted scalar found unexpected end of stream"),
    ("a: b: c", "f:1:5: not YAML: mapping values are not allowed in this context"),
    ("a: " + "9" * 5000, "f:1:4: a number with too many digits"),
    ("a: \x07", "f:1:4: the character U+0007 is not allowed in YAML"),
    ("a: 1\nb: \x00", "f:2:4: the character U+0000 is not allowed in YAML"),
    ("a: " + "[" * 80, "f:1:67: nested deeper than 64 levels"),
]  # fmt: skip


@pytest.mark.parametrize("text, message", ERRORS, ids=[message for _, message in ERRORS])
def test_errors_name_their_place(text, message):
    with pytest.raises(SpecError) as caught:
        parse(text, "f")
    assert str(caught.value).split("\n")[0] == message
    assert caught.value.exit_code == 2


def test_an_error_shows_its_line_and_a_caret():
    with pytest.raises(SpecError) as caught:
        parse("one: 1\nten: {a: 1, a: 2}", "f")
    assert str(caught.value).split("\n")[1:] == ["  ten: {a: 1, a: 2}", "              ^"]


def test_tabs_stay_before_the_caret_and_other_controls_are_marked():
    with pytest.raises(SpecError) as caught:
        parse("k: {a:\t1,\t'\u200b': 1, a: 2}", "f")
    assert str(caught.value).split("\n")[1:] == ["  k: {a:\t1,\t'\ufffd': 1, a: 2}", "        \t  \t        ^"]


def test_a_long_line_is_cut_around_the_caret():
    with pytest.raises(SpecError) as caught:
        parse("k: {" + "abc: 1, " * 2 + " " * 300 + "abc: 2}", "f")
    _, line, caret = str(caught.value).split("\n")
    assert len(line) <= 102
    assert line[caret.index("^") :].startswith("abc")


def test_laughs_do_not_multiply():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(SpecError, match="aliases stand for more than 100,000 values"):
        parse("\n".join(lines), "f")


def test_merged_laughs_do_not_multiply():
    lines = ["a0: &a0 {" + ", ".join(f"k{i}: [1, 2, 3]" for i in range(10)) + "}"]
    lines += [f"a{i}: &a{i} {{" + ", ".join(f"k{j}: {{<<: *a{i - 1}}}" for j in range(10)) + "}" for i in range(1, 9)]
    with pytest.raises(SpecError, match="aliases stand for more than 100,000 values"):
        parse("\n".join(lines), "f")


def test_deep_nesting_in_block_style_ends():
    with pytest.raises(SpecError, match="nested deeper than 64 levels"):
        parse("- " * 100_000 + "x", "f")


@pytest.mark.parametrize(
    "data, message",
    [
        (b"a: 1\nb: \xff", "2:4: byte 0xff is not UTF-8; a spec is UTF-8 text"),
        ("a: 1".encode("utf-16"), "1:1: byte 0xff is not UTF-8; a spec is UTF-8 text"),
    ],
)
def test_other_encodings_are_refused(tmp_path, data, message):
    path = tmp_path / "f.yaml"
    path.write_bytes(data)
    with pytest.raises(SpecError) as caught:
        read_text(path)
    assert str(caught.value) == f"{path}:{message}"


def test_a_byte_order_mark_is_skipped(tmp_path):
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1")
    assert read_text(path)[0] == "a: 1"


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SpecError, match=r"none\.yaml: cannot be read: No such file or directory"):
        read_text(tmp_path / "none.yaml")


def test_a_folder_is_no_spec(tmp_path):
    with pytest.raises(SpecError, match="cannot be read: Is a directory"):
        read_text(tmp_path)


def test_a_huge_file_is_refused_unread(tmp_path):
    path = tmp_path / "f.yaml"
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(SpecError, match="is larger than 8 MiB"):
        read_text(path)
