"""JSON, TOML and YAML that somebody else has written: values, or an error with the place, and soon.

The readers of the libraries take minutes, or all of the memory, for some small texts: nested 20,000 deep, or with
references that multiply. They take a name that is there twice, and numbers that mean something else than they say.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from netbuilder.proto.errors import NetError, ParseError
from netbuilder.proto.extras import how_to_install
from netbuilder.proto.opened_files import read_text

__all__ = ["parse_json", "parse_toml", "parse_yaml", "read_structured"]

_DEPTH = 64  # lists and tables within one another, and parts of a name with dots
_DIGITS = 400  # of a number; no float64 has more
_SIZE = {".json": 1 << 26, ".toml": 1 << 18, ".yaml": 1 << 18, ".yml": 1 << 18}  # bytes that are read in a second
_NODES = 10_000  # values of YAML, counted each time that a reference repeats them
_DOUBLED = "the name {} is there twice in one table"


def read_structured(path: str | os.PathLike[str], *, what: str = "") -> Any:
    """Return the values in a file of TOML (``.toml``), YAML (``.yaml``, ``.yml``) or JSON (``.json``).

    Args:
        path: its suffix says which of them it is.
        what: what the file should hold, for messages.

    Raises:
        FileNotFoundError: there is no such file.
        ParseError: it is damaged, nested too deep, or too large, has a name twice in one table, or a number of YAML
            that is read otherwise than it looks; the message has line and column.
        NetError: it is of another kind, or a package to read it is missing.
    """
    kind, name = Path(path).suffix.lower(), os.fspath(path)
    text = read_text(path, most=_SIZE.get(kind))
    if kind not in _SIZE:
        raise NetError(f"{name!r} must end in .toml, .yaml, .yml or .json")
    parse = {".json": parse_json, ".toml": parse_toml}.get(kind, parse_yaml)
    return parse(text, f"{name!r}{' with ' * bool(what)}{what}")


def parse_json(text: str | bytes, source: str = "the given text") -> Any:
    """Return the value of a text in JSON.

    Args:
        text: the text.
        source: what to call it in errors, such as the quoted name of its file.

    Raises:
        ParseError: it is not JSON, is nested more than 64 deep, or has a name twice in one object or a number of more
            than 400 digits.

    >>> parse_json('{"a": [1, 2]}')
    {'a': [1, 2]}
    >>> parse_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
        ...
    netbuilder.proto.errors.ParseError: the given text: line 1, column 10: the name "a" is there twice in one table
    """
    try:
        shown = text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        raise ParseError(f"{source}: byte {error.start} is no UTF-8 text") from None
    fault = next(_faults_of_json(shown), None)
    try:
        if fault is None:
            return json.loads(shown)
    except json.JSONDecodeError as error:
        fault = error.pos, f"{error.msg}; this is not JSON"
    raise _error(source, shown, *fault)


_JSON_TOKEN = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*"?)(\s*:)?|[\[\]{}]|-?\d[\d.eE+-]*', re.DOTALL)


def _faults_of_json(text: str) -> Iterator[tuple[int, str]]:
    """Yield where lists and objects are too deep, names are there twice, and numbers are too long."""
    names: list[set[str]] = []  # of the lists and objects that are open
    for token in _JSON_TOKEN.finditer(text):
        first = text[token.start()]
        if first == '"':
            if token[2] and names:
                name = token[1] if "\\" not in token[1] else _plain(token[1])
                if name in names[-1]:
                    yield token.start(), _DOUBLED.format(token[1][:80])
                names[-1].add(name)
        elif first in "[{":
            names.append(set())
            if len(names) > _DEPTH:
                yield token.start(), _too_deep()
        elif first in "]}":
            del names[-1:]
        elif len(token[0]) > _DIGITS:
            yield token.start(), _too_long(token[0])


def _plain(quoted: str) -> str:
    """Return a name of JSON without escapes, in quotes; as it is if its escapes are wrong."""
    try:
        return f'"{json.loads(quoted)}"'
    except ValueError:
        return quoted


def parse_toml(text: str, source: str = "the given text") -> Any:
    """Return the table of a text in TOML.

    Raises:
        ParseError: it is not TOML, is nested more than 64 deep, or has a number of more than 400 digits.
        NetError: Python is older than 3.11, and the package tomli is missing.
    """
    try:
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
    except ImportError:
        raise NetError(f"{source}: TOML needs Python 3.11 or the package tomli; {how_to_install('train')}") from None
    if (fault := next(_faults_of_toml(text), None)) is not None:
        raise _error(source, text, *fault)
    try:
        return tomllib.loads(text)
    except ValueError as error:  # a TOMLDecodeError names line and column
        at = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|(end of document))\)", str(error), re.DOTALL)
        place = f"line {at[2]}, column {at[3]}: " if at and at[2] else "at its end: " if at else ""
        reason = at[1] if at else str(error)
        raise ParseError(f"{source}: {place}{reason[:1].lower()}{reason[1:]}; this is not TOML") from None


_TOML_TOKEN = re.compile(
    r'"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*(?:"""|\Z)'
    r"|'''[^']*(?:'(?!'')[^']*)*(?:'''|\Z)"
    r'|"[^"\\\n]*(?:\\.[^"\\\n]*)*"?'
    r"|'[^'\n]*'?"
    r"|#[^\n]*|[\[\]{}=,\n.]|(?<![\w.-])[-+]?\d[\w+-]*",
    re.DOTALL,
)


def _faults_of_toml(text: str) -> Iterator[tuple[int, str]]:
    depth = dots = 0
    for token in _TOML_TOKEN.finditer(text):
        first = text[token.start()]
        if first == ".":
            dots += 1
            if dots > _DEPTH:
                yield token.start(), f"a name has more than {_DEPTH} parts"
            continue
        if first in "=,\n{":
            dots = 0
        if first in "[{":
            depth += 1
            if depth > _DEPTH:
                yield token.start(), _too_deep()
        elif first in "]}":
            depth = max(0, depth - 1)
        elif first.isdigit() or first in "+-":
            if len(token[0]) > _DIGITS:
                yield token.start(), _too_long(token[0])


def parse_yaml(text: str, source: str = "the given text") -> Any:
    """Return the value of a text in YAML 1.1; None of an empty one.

    Raises:
        ParseError: it is not YAML, is nested more than 64 deep, has more than 10,000 values with those that references
            repeat, a name twice in one table, a number of more than 400 digits, or one such as 010 or 1:30, which is 8
            or 90 in YAML 1.1 and something else for most who write it.
        NetError: the package pyyaml is missing.
    """
    try:
        import yaml
    except ImportError:
        raise NetError(f"{source}: YAML needs the package pyyaml; {how_to_install('train')}") from None
    try:
        for mark, reason in _faults_of_yaml(text):
            raise ParseError(f"{source}: line {mark.line + 1}, column {mark.column + 1}: {reason}")
        return yaml.load(text, Loader=_yaml_loader())  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ParseError(f"{source}: {place}{error.problem or error.context}; this is not YAML") from None
    except yaml.YAMLError as error:
        raise ParseError(f"{source}: {' '.join(str(error).split())}; this is not YAML") from None


_OCTAL = re.compile(r"[-+]?0[0-9_]+")
_SIXTIETHS = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")
_NUMBER = re.compile(r"[-+]?[0-9.][0-9A-Fa-fxob_.+-]*")


def _faults_of_yaml(text: str) -> Iterator[tuple[Any, str]]:
    """Yield where lists and tables are too deep or too many, and where numbers mislead."""
    import yaml

    total, sizes, begun = 0, dict[str, int](), list[tuple[str | None, int]]()
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = begun.pop()
            if anchor is not None:
                sizes[anchor] = total - before
            continue
        if not isinstance(event, yaml.NodeEvent):
            continue
        mark, anchor = event.start_mark, event.anchor
        if isinstance(event, yaml.AliasEvent):
            if anchor in [each for each, _ in begun]:
                yield mark, f"*{anchor} stands inside of what it refers to"
            total += sizes.get(anchor, 1)
        else:
            total += 1
        if isinstance(event, yaml.ScalarEvent):
            if anchor is not None:
                sizes[anchor] = 1
            if (reason := _misleading(event)) is not None:
                yield mark, reason
        elif isinstance(event, yaml.CollectionStartEvent):
            begun.append((anchor, total - 1))
            if len(begun) > _DEPTH:
                yield mark, _too_deep()
        if total > _NODES:
            yield (
                mark,
                f"there are more than {_NODES} values, counted each time that a reference such as *a repeats them",
            )


def _misleading(event: Any) -> str | None:
    text = event.value
    if not (event.style is None and event.implicit[0]) and not str(event.tag).endswith((":int", ":float")):
        return None
    if _OCTAL.fullmatch(text):
        plain = text.lstrip("+-").replace("_", "").lstrip("0") or "0"
        return (
            f"{text:.40} is octal in YAML 1.1, and {plain:.40} for others; write {plain:.40}, or '{text:.40}' for text"
        )
    if _SIXTIETHS.fullmatch(text):
        return f"{text:.80} counts sixtieths in YAML 1.1; write one number, or '{text:.80}' for text"
    return _too_long(text) if len(text) > _DIGITS and _NUMBER.fullmatch(text) else None


@functools.cache
def _yaml_loader() -> Any:
    """Return a loader of plain values that refuses a name that is there twice, and says where a value is wrong."""
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            names = set[str]()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in names:
                    shown = _DOUBLED.format(repr(key.value[:80]))
                    raise yaml.constructor.ConstructorError(None, None, shown, key.start_mark)
                if isinstance(key, yaml.ScalarNode):
                    names.add(key.value)
            return node

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep)
            except (ValueError, OverflowError, TypeError, AttributeError) as error:  # a 13th month, say
                problem = f"{node.value!r:.80} cannot be read ({error})"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None

    return Loader


def _too_deep() -> str:
    return f"lists and tables are nested more than {_DEPTH} deep"


def _too_long(number: str) -> str:
    return f"a number has {len(number)} characters; {_DIGITS} are the most"


def _error(source: str, text: str, position: int, reason: str) -> ParseError:
    line, column = text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)
    return ParseError(f"{source}: line {line}, column {column}: {reason}")
