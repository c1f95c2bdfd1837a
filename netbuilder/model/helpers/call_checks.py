"""Checks of what layer helpers are called with, by the types in their signatures."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.proto.call_checks import CallChecks, Check, is_number, is_whole

__all__ = ["helper_checks"]


def _is_blob(value: Any) -> bool:
    return isinstance(value, (str, BlobReference))


def _is_kernel(value: Any) -> bool:
    return is_whole(value) or isinstance(value, (list, tuple)) and all(map(is_whole, value))


def _may_be_blobs(value: Any) -> bool:
    return _is_blob(value) or isinstance(value, (list, tuple))  # whose elements the operator checks


_BLOB = Check(_is_blob, "the name of a blob, or a BlobReference", by_type=True)
_KINDS: Mapping[str, Check] = {
    "Blob": _BLOB,
    "str | BlobReference": _BLOB,
    "float": Check(lambda value: is_number(value) and math.isfinite(value), "a finite number"),
    "int | Sequence[int]": Check(_is_kernel, "a whole number, or a list of them"),
    "Sequence[Blob]": Check(_may_be_blobs, "a blob, or a list of blobs"),
    "TransformInputs": Check(callable, "a function", by_type=True),
}
_CHECKED = (*_KINDS, "int", "bool", "str")
_OF_OPERATORS = {"engine": "str", "is_test": "bool", "no_bias": "bool", "order": "str", "use_cudnn": "bool"}
"""Types of arguments that helpers take as ``**kwargs``."""
_INPUTS = ("blob_in",)  # one blob, or a list of it


def helper_checks(name: str, signature: inspect.Signature) -> CallChecks:
    """Return the checks of the arguments of a layer helper; those of other types are checked by what they are for.

    Args:
        name: of the helper.
        signature: its signature, with the types as they are written.
    """
    kinds = {parameter.name: str(parameter.annotation) for parameter in signature.parameters.values()}
    own = [argument for argument, kind in kinds.items() if kind.removesuffix(" | None") not in _CHECKED]
    may_be_none = {argument for argument, kind in kinds.items() if kind.endswith(" | None")}
    more = {
        argument: f"{kind} | None" if argument in may_be_none else kind for argument, kind in _OF_OPERATORS.items()
    } | {argument: "Sequence[Blob]" for argument in _INPUTS if kinds.get(argument) == "Blob"}
    return CallChecks(f"brew.{name}", signature, {}, _KINDS, own, more)
