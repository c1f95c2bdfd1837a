"""Indexes, which number keys in the order of arrival: IntIndexCreate, IndexGet, IndexLoad and related operators."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from netbuilder.data.forking import new_lock
from netbuilder.data.object_records import ObjectKind, register_kind
from netbuilder.data.tensor_records import proto_to_tensor, tensor_to_proto
from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.declaration import operator_class
from netbuilder.ops.core.objects import shared_object
from netbuilder.ops.core.operator import STRING, Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, BlobProto, OperatorDef, OperatorError, ParseError

__all__ = [
    "Index",
    "IndexFreeze",
    "IndexGet",
    "IndexLoad",
    "IndexSize",
    "IndexStore",
    "IntIndexCreate",
    "LongIndexCreate",
    "StringIndexCreate",
]

_MAX_ELEMENTS = 2**31 - 1
_KINDS: dict[str, np.dtype[Any]] = {
    "IntIndexCreate": np.dtype(np.int32),
    "LongIndexCreate": np.dtype(np.int64),
    "StringIndexCreate": STRING,
}


class Index:
    """Numbers for keys, from 1 in the order of arrival; 0 stands for an unknown key.

    Args:
        dtype: of the keys: int32, int64, or ``STRING``.
        max_elements: maximum count of numbers, 0 included.
        frozen: whether unknown keys are no longer added.
    """

    def __init__(self, dtype: np.dtype[Any], max_elements: int = _MAX_ELEMENTS, *, frozen: bool = False) -> None:
        self.key_type = dtype
        self.max_elements = max_elements
        self.frozen = frozen
        self._lock = new_lock()
        self._keys = self._sorted = np.zeros(0, dtype)
        self._numbers = np.zeros(0, np.int64)

    @property
    def keys(self) -> Any:
        """The keys in the order of their numbers, from number 1 on."""
        return self._keys.copy()

    def __len__(self) -> int:
        return self._keys.size + 1

    def get(self, keys: Any) -> Any:
        """Return the number of each key, int64; unless the index is frozen, unknown keys are added.


        Raises:
            OperatorError: there would be more than ``max_elements``.
        """
        flat = keys.reshape(-1)
        with self._lock:
            if not self.frozen and flat.size:
                self._append(flat[self._look_up(flat) == 0])
            return self._look_up(flat).reshape(keys.shape)

    def load(self, keys: Any) -> None:
        """Replace all keys by these, numbered from 1.

        Raises:
            OperatorError: a key occurs twice, or there are more than ``max_elements`` allows.
        """
        with self._lock:
            if np.unique(keys).size < keys.size:
                raise OperatorError("the keys that an index loads must be distinct, but some occur twice")
            self._check_capacity(keys.size)
            self._keys = keys.copy()
            self._sort()

    def _look_up(self, keys: Any) -> Any:
        numbers = np.zeros(keys.size, np.int64)
        if self._sorted.size:
            at = np.searchsorted(self._sorted, keys).clip(0, self._sorted.size - 1)
            known = self._sorted[at] == keys
            numbers[known] = self._numbers[at[known]]
        return numbers

    def _append(self, keys: Any) -> None:
        if keys.size:
            new, first = np.unique(keys, return_index=True)
            self._check_capacity(self._keys.size + new.size)
            self._keys = np.concatenate([self._keys, new[np.argsort(first)]])
            self._sort()

    def _check_capacity(self, count: int) -> None:
        if count + 1 > self.max_elements:
            raise OperatorError(
                f"an index has capacity for {self.max_elements} elements, number 0 included, but needs {count + 1}; "
                "raise max_elements"
            )

    def _sort(self) -> None:
        order = np.argsort(self._keys, kind="stable")
        self._sorted, self._numbers = self._keys[order], order + 1


def _write(blob: BlobProto, index: Index) -> None:
    keys = index.keys
    blob.tensor.CopyFrom(tensor_to_proto(keys, blob.name, segment=(0, keys.size)))
    blob.content = f"{index.max_elements} {int(index.frozen)}".encode()


def _read(blob: BlobProto) -> Index:
    try:
        max_elements, frozen = (int(word) for word in blob.content.split())
    except ValueError:
        raise ParseError(f"an index needs its size and whether it is frozen, got {blob.content!r}") from None
    keys = proto_to_tensor(blob.tensor)
    if keys.dtype not in _KINDS.values():
        raise ParseError(f"an index has keys of int32, int64 or strings, got {keys.dtype}")
    index = Index(keys.dtype, max_elements)
    index.load(keys.reshape(-1))
    index.frozen = bool(frozen)
    return index


register_kind(ObjectKind("std::unique_ptr<caffe2::IndexBase>", Index, _write, _read))

_HANDLE = TensorSpec((), STRING)


@operator_class(frozen=True)
class _OnIndex(Operator):
    """Base: works on the host, with an index stored in a blob."""

    signature = "index -> index"
    stateful = True
    outputs_on_host = True

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host"

    def index(self, value: Any) -> Index:
        return shared_object(self, value, Index, "IntIndexCreate, LongIndexCreate or StringIndexCreate")

    def keys_on_host(self, ctx: RunContext, index: Index, keys: Any) -> Any:
        """Return the keys, which must be of the index's type."""
        require(
            keys.dtype == index.key_type, self, f"keys must be of the index's type, {index.key_type}, got {keys.dtype}"
        )
        return keys if keys.dtype == STRING else ctx.host(keys)

    def flops(self, *inputs: TensorSpec) -> int:
        return 0


@operator_class(frozen=True)
class _Create(_OnIndex):
    """Base: creates an index without keys."""

    signature = "-> index: object"
    max_elements: int = _MAX_ELEMENTS

    def check(self) -> None:
        if self.max_elements < 1:
            raise ArgumentError(f"{self.type}: max_elements must be positive, got {self.max_elements}")


@register
@operator_class(frozen=True)
class IntIndexCreate(_Create):
    """Create an index of int32 keys, with capacity for ``max_elements`` numbers, 0 included."""

    effects = ""


@register
@operator_class(frozen=True)
class LongIndexCreate(_Create):
    """Create an index of int64 keys, with capacity for ``max_elements`` numbers, 0 included."""

    effects = ""


@register
@operator_class(frozen=True)
class StringIndexCreate(_Create):
    """Create an index of string keys, with capacity for ``max_elements`` numbers, 0 included."""

    effects = ""


@kernel(IntIndexCreate)
@kernel(LongIndexCreate)
@kernel(StringIndexCreate)
def create_index(op: _Create, ctx: RunContext) -> tuple[Any, ...]:
    return (Index(_KINDS[op.type], op.max_elements),)


@register
@operator_class(frozen=True)
class IndexGet(_OnIndex):
    """indices = the number of each key; new keys get the next numbers, or 0 in a frozen index."""

    signature = "index: object, keys (*S): int32|int64|string -> indices (*S): int64"
    effects = ""

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        return []  # not differentiable


@kernel(IndexGet)
def index_get(op: IndexGet, ctx: RunContext, handle: Any, keys: Any) -> tuple[Any, ...]:
    index = op.index(handle)
    return (index.get(op.keys_on_host(ctx, index, keys)),)


@register
@operator_class(frozen=True)
class IndexLoad(_OnIndex):
    """Replace the keys of an index by ``items``, numbered from 1; with ``skip_first_entry``, from the second on."""

    signature = "index: object, items (*S): int32|int64|string -> index: object"
    effects = ""
    must_inplace = ((0, 0),)
    skip_first_entry: bool = False


@kernel(IndexLoad)
def index_load(op: IndexLoad, ctx: RunContext, handle: Any, items: Any) -> tuple[Any, ...]:
    index = op.index(handle)
    index.load(op.keys_on_host(ctx, index, items).reshape(-1)[op.skip_first_entry :])
    return (handle,)


@register
@operator_class(frozen=True)
class IndexStore(_OnIndex):
    """items = the keys of an index in the order of their numbers, from number 1 on."""

    signature = "index: object -> items (*S): int32|int64|string"
    effects = ""
    dynamic = True


@kernel(IndexStore)
def index_store(op: IndexStore, ctx: RunContext, handle: Any) -> tuple[Any, ...]:
    return (op.index(handle).keys,)


@register
@operator_class(frozen=True)
class IndexFreeze(_OnIndex):
    """Freeze an index: from now on unknown keys are not added."""

    signature = "index: object -> index: object"
    effects = ""

    must_inplace = ((0, 0),)


@kernel(IndexFreeze)
def index_freeze(op: IndexFreeze, ctx: RunContext, handle: Any) -> tuple[Any, ...]:
    op.index(handle).frozen = True
    return (handle,)


@register
@operator_class(frozen=True)
class IndexSize(_OnIndex):
    """items = the count of numbers in an index, 0 included."""

    signature = "index: object -> items (): int64"
    effects = ""


@kernel(IndexSize)
def index_size(op: IndexSize, ctx: RunContext, handle: Any) -> tuple[Any, ...]:
    return (np.array(len(op.index(handle)), np.int64),)
