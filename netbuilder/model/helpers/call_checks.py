"""Checks of what layer helpers are called with, by the types in their signatures."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.proto import ArgumentError

__all__ = ["CallChecks"]


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _is_flag(value: Any) -> bool:
    return isinstance(value, (Integral, Real)) and value in (0, 1) or type(value).__name__ in ("bool", "bool_")


def _is_blob(value: Any) -> bool:
    return isinstance(value, (str, BlobReference))


def _is_kernel(value: Any) -> bool:
    return _is_whole(value) or isinstance(value, (list, tuple)) and all(map(_is_whole, value))


def _may_be_blobs(value: Any) -> bool:
    return _is_blob(value) or isinstance(value, (list, tuple))  # whose elements the operator checks


_BLOB = (_is_blob, "the name of a blob, or a BlobReference")
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (_is_whole, "a whole number"),
    "float": (_is_number, "a finite number"),
    "bool": (_is_flag, "True or False"),
    "str": (lambda value: isinstance(value, str), "a string"),
    "Blob": _BLOB,
    "str | BlobReference": _BLOB,
    "int | Sequence[int]": (_is_kernel, "a whole number, or a list of them"),
    "Sequence[Blob]": (_may_be_blobs, "a blob, or a list of blobs"),
    "TransformInputs": (callable, "a function"),
}
_OF_OPERATORS = {"engine": "str", "is_test": "bool", "no_bias": "bool", "order": "str", "use_cudnn": "bool"}
"""Types of arguments that helpers take as ``**kwargs``."""
_INPUTS = ("blob_in",)  # one blob, or a list of it


class CallChecks:
    """Checks the arguments of one helper.

    Args:
        name: of the helper.
        signature: its signature, with the types as they are written.
    """

    def __init__(self, name: str, signature: inspect.Signature) -> None:
        self._name = name
        self._parameters = tuple(signature.parameters)
        self._checks = {name: _KINDS[kind] for name, kind in _OF_OPERATORS.items()}
        for parameter in signature.parameters.values():
            kind = str(parameter.annotation).removesuffix(" | None")
            if kind in _KINDS:
                self._checks[parameter.name] = _KINDS["Sequence[Blob]" if parameter.name in _INPUTS else kind]

    def problem(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return what is wrong with the first argument that has another type; "" for none, or None as its value."""
        for name, value in (*zip(self._parameters, args), *kwargs.items()):
            check = self._checks.get(name)
            if check is not None and value is not None and not check[0](value):
                return f"brew.{self._name}: {name} must be {check[1]}, got {value!r}"
        return ""

    def explained(self, error: Exception, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ArgumentError | None:
        """Return the error for an argument that is None and must not be; None: there is none."""
        given = {**dict(zip(self._parameters, args)), **kwargs}
        for name, (_, rule) in self._checks.items():
            if name in given and given[name] is None:
                return ArgumentError(f"brew.{self._name}: {name} must be {rule}, got None ({error})")
        return None
