"""Scopes that share the parameters of other scopes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from netbuilder.caffe2.missing import names_of
from netbuilder.graph import BlobReference
from netbuilder.model.parameter_sharing import ParameterSharing, parameter_name

__all__ = ["ParameterSharing", "ParameterSharingContext", "parameter_sharing_context"]

__getattr__ = names_of(__name__)


class ParameterSharingContext:
    """The shared scopes as a stack; prefer ``ParameterSharing`` blocks."""

    def __init__(self) -> None:
        self._blocks: list[AbstractContextManager[None]] = []

    def get_parameter_name(self, name: str) -> BlobReference:
        """Return the full name of parameter ``name`` in the current name scope."""
        return parameter_name(name)

    def add_scope_overrides(self, shared_scopes: Mapping[str, str]) -> None:
        """Share scopes, as ``ParameterSharing`` does, until ``pop``."""
        block = ParameterSharing(shared_scopes)
        block.__enter__()
        self._blocks.append(block)

    def pop(self) -> None:
        """Undo the last ``add_scope_overrides``."""
        self._blocks.pop().__exit__(None, None, None)


parameter_sharing_context = ParameterSharingContext()
"""The object that scripts use."""
