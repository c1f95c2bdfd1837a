"""JSON, TOML and YAML of others: the same values as the libraries read, and errors with the place, within a second."""

import datetime
import json
import os
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netbuilder.proto import NetError, ParseError
from netbuilder.proto.structured_text import parse_json, parse_toml, parse_yaml, read_structured

DEEP = 20_000
PARSE = {"json": parse_json, "toml": parse_toml, "yaml": parse_yaml}
pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
pytest.importorskip("yaml")

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=30, deadline=None)
@given(values)
def test_json_of_all_kinds(value):
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value, ensure_ascii=False, indent=1).encode()) == value


def test_toml_of_all_kinds():
    found = parse_toml(
        "# a [[[[ comment\na.b.'c.d' = 1.5\ne = [1, 2, {f = '[[', g = \"]\\\"[\"}]\nh = '''\n[[ ' '' ''''\n"
        'i = """\n[[ " "" \\""" """"\nj = 1979-05-27\nk = [1.5, 2.5, 3.5]\n[[m]]\nn = 0x1F\n'
    )
    assert found == {
        "a": {"b": {"c.d": 1.5}}, "e": [1, 2, {"f": "[[", "g": ']"['}], "h": "[[ ' '' '",
        "i": '[[ " "" """ "', "j": datetime.date(1979, 5, 27), "k": [1.5, 2.5, 3.5], "m": [{"n": 31}],
    }  # fmt: skip


def test_yaml_of_all_kinds():
    found = parse_yaml(
        "base: &base {a: 1, b: [x, 'y']}\nmore:\n  <<: *base\n  b: 1e-3\n"
        "list: [*base, 0x1F, 0, -0.5, '010', \"1:30\"]\n"
        "text: 1:90:30 x\nbinary: 0b11\ndate: 2026-01-01\nname: 10 oxen\nversion: 1.10.0\nzero: 00.5\n"
    )
    base = {"a": 1, "b": ["x", "y"]}
    assert found == {
        "base": base, "more": {"a": 1, "b": "1e-3"}, "list": [base, 31, 0, -0.5, "010", "1:30"], "text": "1:90:30 x",
        "binary": 3, "date": datetime.date(2026, 1, 1), "name": "10 oxen", "version": "1.10.0", "zero": 0.5,
    }  # fmt: skip
    assert parse_yaml("") is None


BILLION = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 40))

HOSTILE = [
    ("json", "[" * DEEP, "line 1, column 65: lists and tables are nested more than 64 deep"),
    ("json", "[" * DEEP + "]" * DEEP, "line 1, column 65: lists and tables are nested"),
    ("json", '\n{"a":' * DEEP + "1" + "}" * DEEP, "line 66, column 1: lists and tables are nested"),
    ("json", '{"a": 1,\n "b": {"a": 2, "a": 3}}', 'line 2, column 16: the name "a" is there twice in one table'),
    ("json", '{"a": {"b": [1]}, "c": [{}],\n "a": 2}', 'line 2, column 2: the name "a" is there twice in one table'),
    ("json", '{"a": 1, "\\u0061": 2}', 'line 1, column 10: the name "\\\\u0061" is there twice'),
    ("json", '{"a": ' + "1" * 5000 + "}", "line 1, column 7: a number has 5000 characters; 400 are the most"),
    ("json", '{"a": 010}', "line 1, column 8: Expecting ',' delimiter; this is not JSON"),
    ("json", '{"a": "' + '\\"' * 100_000, "line 1, column 7: Unterminated string starting at; this is not JSON"),
    ("json", "", "line 1, column 1: Expecting value; this is not JSON"),
    ("toml", "a = " + "[" * DEEP, "line 1, column 69: lists and tables are nested more than 64 deep"),
    ("toml", "a = " + "{b=" * DEEP, "line 1, column 197: lists and tables are nested more than 64 deep"),
    ("toml", ".".join("a" * DEEP) + " = 1", "line 1, column 130: a name has more than 64 parts"),
    ("toml", f"[{'.'.join('a' * DEEP)}]", "line 1, column 131: a name has more than 64 parts"),
    ("toml", "a = 1\nb = 2\na = 3\nc = 4", "line 3, column 6: cannot overwrite a value; this is not TOML"),
    ("toml", "a = 1\nb = 010", "line 2, column 6: .*; this is not TOML"),
    ("toml", "a = 1:30", "line 1, column 6: .*; this is not TOML"),
    ("toml", "a = " + "1" * 5000, "line 1, column 5: a number has 5000 characters"),
    ("toml", 'a = """' + '\\"' * 100_000, "this is not TOML"),
    ("yaml", BILLION, "line 12, column \\d+: there are more than 10000 values, counted each time that a reference"),
    ("yaml", MERGES, "line 11, column \\d+: there are more than 10000 values"),
    ("yaml", "a: &a [*a]", "line 1, column 8: \\*a stands inside of what it refers to"),
    ("yaml", "a: *b", "line 1, column 4: found undefined alias 'b'; this is not YAML"),
    ("yaml", "a: " + "[" * DEEP, "line 1, column 67: lists and tables are nested more than 64 deep"),
    ("yaml", "{a: " * DEEP, "line 1, column 257: lists and tables are nested more than 64 deep"),
    ("yaml", "- " * DEEP + "a", "line 1, column 129: lists and tables are nested more than 64 deep"),
    ("yaml", "? " * DEEP, "line 1, column 129: lists and tables are nested more than 64 deep"),
    ("yaml", "".join(f"{' ' * i}a:\n" for i in range(500)), "line 65, column 65: lists and tables are nested more"),
    ("yaml", "[" + "a, " * DEEP + "a]", "there are more than 10000 values"),
    ("yaml", "a: 1\nb: 2\na: 3", "line 3, column 1: the name 'a' is there twice in one table"),
    ("yaml", 'x: {a: 1, "a": 3}', "line 1, column 11: the name 'a' is there twice in one table"),
    ("yaml", "a: 1\nb: 010", "line 2, column 4: 010 is octal in YAML 1.1, and 10 for others; write 10, or '010' for"),
    ("yaml", "b: [08, 1]", "line 1, column 5: 08 is octal in YAML 1.1, and 8 for others"),
    ("yaml", "b: !!int '010'", "line 1, column 4: 010 is octal"),
    ("yaml", "a: 1:30", "line 1, column 4: 1:30 counts sixtieths in YAML 1.1; write one number, or '1:30' for text"),
    ("yaml", "- -190:20:30.15", "line 1, column 3: -190:20:30.15 counts sixtieths"),
    ("yaml", "a: " + "1" * 5000, "line 1, column 4: a number has 5000 characters"),
    ("yaml", "a: 2026-13-45", "line 1, column 4: '2026-13-45' cannot be read .month must be in 1..12"),
    ("yaml", "a: !!int x", "line 1, column 4: 'x' cannot be read .*; this is not YAML"),
    ("yaml", "a: !!python/object/apply:os.system ['true']", "line 1, column 4: could not determine a constructor"),
    ("yaml", "a: \x07", "special characters are not allowed"),
    ("yaml", "a: [1, 2", "line 1, column 9: expected ',' or ']', but got '<stream end>'; this is not YAML"),
    ("yaml", "a: 1\n---\nb: 1", "line 2, column 1: but found another document; this is not YAML"),
    ("yaml", "? [a]\n: 1", "line 1, column 3: found unhashable key; this is not YAML"),
]  # fmt: skip


@pytest.mark.parametrize("kind, text, message", HOSTILE, ids=[f"{i}-{kind}" for i, (kind, *_) in enumerate(HOSTILE)])
def test_hostile_texts(kind, text, message, tmp_path):
    path = tmp_path / f"config.{kind}"
    path.write_text(text)
    begin = time.process_time()
    with pytest.raises(ParseError, match=rf"config.{kind}': .*{message}") as caught:
        read_structured(path)
    assert time.process_time() - begin < 1
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize("kind", ["toml", "yaml", "yml"])
def test_a_file_that_is_too_large(kind, tmp_path):
    (tmp_path / f"a.{kind}").write_text("#" * 300_000)
    with pytest.raises(ParseError, match=rf"a.{kind}' has 300000 bytes; it may have 262144"):
        read_structured(tmp_path / f"a.{kind}")


@pytest.mark.parametrize("kind", ["toml", "yaml", "yml", "json"])
def test_a_size_is_checked_before_reading(kind, tmp_path):
    with open(tmp_path / f"a.{kind}", "wb") as file:
        file.truncate(1 << 40)  # 1 TiB, none of them on the disk
    with pytest.raises(ParseError, match=rf"a.{kind}' has {1 << 40} bytes; it may have"):
        read_structured(tmp_path / f"a.{kind}")


@pytest.mark.parametrize("kind", ["toml", "yaml", "json"])
@pytest.mark.parametrize("written", [False, True])
def test_a_pipe_is_refused_and_not_waited_for(kind, written, tmp_path):
    path = tmp_path / f"a.{kind}"
    os.mkfifo(path)
    ours = os.open(path, os.O_RDWR) if written else None  # one who might write
    try:
        with pytest.raises(ParseError, match=rf"a.{kind}' is a pipe, not a file; write what comes from it into one"):
            read_structured(path)
    finally:
        if ours is not None:
            os.close(ours)


def test_a_device_is_refused(tmp_path):
    (tmp_path / "a.toml").symlink_to("/dev/zero")
    with pytest.raises(ParseError, match="a.toml' is a device, not a file"):
        read_structured(tmp_path / "a.toml")


def test_as_large_as_may_be_takes_seconds(tmp_path):
    (tmp_path / "a.yaml").write_text("".join(f"name{i}: [value, 7]\n" for i in range(2400)))
    begin = time.process_time()
    assert len(read_structured(tmp_path / "a.yaml")) == 2400
    assert time.process_time() - begin < 10


def test_other_kinds(tmp_path):
    (tmp_path / "a.ini").write_text("")
    with pytest.raises(NetError, match="a.ini' must end in .toml, .yaml, .yml or .json"):
        read_structured(tmp_path / "a.ini")
    with pytest.raises(FileNotFoundError):
        read_structured(tmp_path / "a.json")
    (tmp_path / "a.json").write_bytes(b"\xff")
    with pytest.raises(ParseError, match="byte 0 of 1 is no UTF-8 text"):
        read_structured(tmp_path / "a.json")
    with pytest.raises(ParseError, match="the given text: byte 0 is no UTF-8 text"):
        parse_json(b"\xff")


@settings(deadline=None)
@given(st.text("[]{}\"':,.=#&*!\\-? \n01ab", max_size=60))
def test_nonsense_gives_values_or_errors(text):
    for parse in PARSE.values():
        try:
            parse(text)
        except ParseError as error:
            assert "\n" not in str(error)
