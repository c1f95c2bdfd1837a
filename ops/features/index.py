"""Indexes, which number keys in the order of arrival: IntIndexCreate, IndexGet, IndexLoad and related operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.data.key_index import MAX_ELEMENTS, Index
from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.objects import OnHost, shared_object
from netbuilder.ops.core.operator import STRING, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "IndexFreeze",
    "IndexGet",
    "IndexLoad",
    "IndexSize",
    "IndexStore",
    "IntIndexCreate",
    "LongIndexCreate",
    "StringIndexCreate",
]

_KINDS: dict[str, np.dtype[Any]] = {
    "IntIndexCreate": np.dtype(np.int32),
    "LongIndexCreate": np.dtype(np.int64),
    "StringIndexCreate": STRING,
}


_HANDLE = TensorSpec((), STRING)


@dataclass(frozen=True)
class _OnIndex(OnHost):
    """Base: works with an index stored in a blob."""

    signature = "index -> index"
    effects = ""

    def index(self, value: Any) -> Index:
        return shared_object(self, value, Index, "IntIndexCreate, LongIndexCreate or StringIndexCreate")

    def keys_on_host(self, ctx: RunContext, index: Index, keys: Any) -> Any:
        """Return the keys, which must be of the index's type."""
        require(
            keys.dtype == index.key_type, self, f"keys must be of the index's type, {index.key_type}, got {keys.dtype}"
        )
        return keys if keys.dtype == STRING else ctx.host(keys)


@dataclass(frozen=True)
class _Create(_OnIndex):
    """Base: creates an index without keys."""

    signature = "-> index: object"
    max_elements: int = MAX_ELEMENTS

    def check(self) -> None:
        if self.max_elements < 1:
            raise ArgumentError(f"{self.type}: max_elements must be positive, got {self.max_elements}")


@register
@dataclass(frozen=True)
class IntIndexCreate(_Create):
    """Create an index of int32 keys, with capacity for ``max_elements`` numbers, 0 included."""


@register
@dataclass(frozen=True)
class LongIndexCreate(_Create):
    """Create an index of int64 keys, with capacity for ``max_elements`` numbers, 0 included."""


@register
@dataclass(frozen=True)
class StringIndexCreate(_Create):
    """Create an index of string keys, with capacity for ``max_elements`` numbers, 0 included."""


@kernel(IntIndexCreate)
@kernel(LongIndexCreate)
@kernel(StringIndexCreate)
def create_index(op: _Create, ctx: RunContext) -> tuple[Any, ...]:
    return (Index(_KINDS[op.type], op.max_elements),)


@register
@dataclass(frozen=True)
class IndexGet(_OnIndex):
    """indices = the number of each key; new keys get the next numbers, or 0 in a frozen index."""

    signature = "index: object, keys (*S): int32|int64|string -> indices (*S): int64"

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []  # not differentiable


@kernel(IndexGet)
def index_get(op: IndexGet, ctx: RunContext, handle: Any, keys: Any) -> tuple[Any, ...]:
    index = op.index(handle)
    return (index.get(op.keys_on_host(ctx, index, keys)),)


@register
@dataclass(frozen=True)
class IndexLoad(_OnIndex):
    """Replace the keys of an index by ``items``, numbered from 1; with ``skip_first_entry``, from the second on."""

    signature = "index: object, items (*S): int32|int64|string -> index: object"
    must_inplace = ((0, 0),)
    skip_first_entry: bool = False


@kernel(IndexLoad)
def index_load(op: IndexLoad, ctx: RunContext, handle: Any, items: Any) -> tuple[Any, ...]:
    index = op.index(handle)
    index.load(op.keys_on_host(ctx, index, items).reshape(-1)[op.skip_first_entry :])
    return (handle,)


@register
@dataclass(frozen=True)
class IndexStore(_OnIndex):
    """items = the keys of an index in the order of their numbers, from number 1 on."""

    signature = "index: object -> items (*S): int32|int64|string"
    dynamic = True


@kernel(IndexStore)
def index_store(op: IndexStore, ctx: RunContext, handle: Any) -> tuple[Any, ...]:
    return (op.index(handle).keys,)


@register
@dataclass(frozen=True)
class IndexFreeze(_OnIndex):
    """Freeze an index: from now on unknown keys are not added."""

    signature = "index: object -> index: object"

    must_inplace = ((0, 0),)


@kernel(IndexFreeze)
def index_freeze(op: IndexFreeze, ctx: RunContext, handle: Any) -> tuple[Any, ...]:
    op.index(handle).frozen = True
    return (handle,)


@register
@dataclass(frozen=True)
class IndexSize(_OnIndex):
    """items = the count of numbers in an index, 0 included."""

    signature = "index: object -> items (): int64"


@kernel(IndexSize)
def index_size(op: IndexSize, ctx: RunContext, handle: Any) -> tuple[Any, ...]:
    return (np.array(len(op.index(handle)), np.int64),)
