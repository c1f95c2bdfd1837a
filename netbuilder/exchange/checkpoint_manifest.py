"""The record of a checkpoint file with the state of the training: its fields, their types and bounds, and its seal."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from netbuilder.proto import NetError, ParseError
from netbuilder.proto.structured_text import parse_json

__all__ = ["FORMAT", "VERSION", "check_fields", "mapping", "optional", "parse_manifest", "real", "seal", "whole"]

FORMAT, VERSION = "netbuilder checkpoint", 1

_MOST = 2**63 - 1
_SEEDS = 2**64 - 1
_SHOWN = 60  # characters of a wrong value
_DIGEST = re.compile("[0-9a-f]{64}")

Check = Callable[[Any], str | None]
"""Returns what is wrong with a value, or None; what begins with a bracket or a point is within it."""


def whole(least: int = 0, most: int = _MOST) -> Check:
    """Return a check for whole numbers from ``least`` to ``most``."""

    def check(value: Any) -> str | None:
        if type(value) is int and least <= value <= most:
            return None
        return f" must be a whole number from {least} to {most}, got {_short(value)}"

    return check


def real(value: Any) -> str | None:
    """Check a number, also NaN or an infinite one."""
    return None if type(value) in (int, float) else f" must be a number, got {_short(value)}"


def text(value: Any) -> str | None:
    """Check a text."""
    return None if isinstance(value, str) else f" must be text, got {_short(value)}"


def _digest(value: Any) -> str | None:
    right = isinstance(value, str) and _DIGEST.fullmatch(value)
    return None if right else f" must be a checksum of 64 hexadecimal digits, got {_short(value)}"


def _digests(value: Any) -> str | None:
    """Check the checksums of a blob's records."""
    if not isinstance(value, list):
        return f" must be a list of checksums, got {_short(value)}"
    return next((problem for each in value if (problem := _digest(each))), None)


def optional(check: Check) -> Check:
    """Return a check for None, or what ``check`` accepts."""
    return lambda value: None if value is None else check(value)


def mapping(values: Check | None = None, fields: Mapping[str, Check] | None = None) -> Check:
    """Return a check for values by name: all are accepted by ``values``, and the ``fields`` by checks of their own."""

    def check(value: Any) -> str | None:
        if not isinstance(value, dict):
            return f" must be values by name, got {_short(value)}"
        for name, of in (fields or {}).items():
            if name not in value:
                return f".{name} is missing"
            if problem := of(value[name]):
                return f".{name}{problem}"
        if values is not None:
            for name, one in value.items():
                if problem := values(one):
                    return f"[{_short(name)}]{problem}"
        return None

    return check


FIELDS: dict[str, Check] = {
    "step": whole(),
    "metric": optional(real),
    "model": text,
    "net": text,
    "random": optional(mapping(fields={"seed": whole(-(2**63), _SEEDS), "iterations": mapping(whole())})),
    "readers": mapping(whole()),
    "state": mapping(),
    "blobs": mapping(_digest),
    "records": mapping(_digests),
}
"""All fields of a manifest, besides its format and version."""

_RECORDS: dict[str, Any] = {"records": {}}
"""The field that a manifest has only if the file has divided blobs of several records."""


def check_fields(value: Any, fields: Mapping[str, Check], where: str) -> None:
    """Check values by name.

    Raises:
        ParseError: a field is missing, or its value is of another type or out of bounds; the message begins with
            ``where``, and names the field.
    """
    if problem := mapping(fields=fields)(value):
        raise ParseError(f"{where} is damaged: {problem.removeprefix('.').strip()}")


def seal(manifest: Mapping[str, Any]) -> bytes:
    """Return a manifest as JSON after its checksum.

    Raises:
        NetError: its state is not text, numbers, None, and lists and dicts of these; or a field has a value that
            ``parse_manifest`` would refuse, such as a seed of more than 64 bits.
    """
    try:
        _check_keys(manifest["state"])
        found = json.dumps({"format": FORMAT, "version": VERSION, **manifest}, sort_keys=True, default=_plain)
    except RecursionError:
        raise NetError("checkpoint: its state holds itself, or is nested too deep to be stored") from None
    except (TypeError, ValueError) as error:
        raise NetError(
            f"checkpoint: its state must be text, numbers, None, and lists and dicts of these: {error}"
        ) from error
    if problem := mapping(fields=FIELDS)(_RECORDS | json.loads(found)):
        raise NetError(f"checkpoint: {problem.removeprefix('.')}")
    return f"{hashlib.sha256(found.encode()).hexdigest()} {found}".encode()


def parse_manifest(content: bytes, where: str) -> dict[str, Any]:
    """Return the manifest that ``seal`` has written.

    Args:
        content: its bytes.
        where: the beginning of errors.

    Raises:
        ParseError: it is damaged, of a later version, or a field has an impossible value.
    """
    digest, _, data = content.partition(b" ")
    if hashlib.sha256(data).hexdigest().encode() != digest:
        raise ParseError(f"{where} is damaged: its checksum is wrong")
    found: dict[str, Any] = parse_json(data, where)
    if not isinstance(found, dict):
        raise ParseError(f"{where} is not a JSON object but {type(found).__name__}")
    version = found.get("version")
    if found.get("format") != FORMAT or type(version) is not int or not 1 <= version <= VERSION:
        raise ParseError(
            f"{where} has the format {_short(found.get('format'))}, version {_short(version)}; this netbuilder reads "
            f"{FORMAT!r} up to version {VERSION}"
        )
    check_fields(_RECORDS | found, FIELDS, where)
    return found


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."


def _check_keys(value: Any) -> None:
    """Raise TypeError if a dict has a key that is not text: JSON would convert it to text."""
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"keys of dicts must be text, got {wrong[0]!r}")
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return
    for item in value:
        _check_keys(item)


def _plain(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(f"got {type(value).__name__} {value!r}")
