"""The blobs of a workspace and their sizes in a file: GetAllBlobNames, EstimateAllBlobSizes."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.operator import STRING, Operator, TensorSpec
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.records.serialization_options import as_bfloat16, option_of, parse_options
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.netbuilder_pb2 import BlobSerializationOptions

__all__ = ["EstimateAllBlobSizes", "GetAllBlobNames"]

_CHUNK = 1_000_000
_CHUNK_BYTES = 50
_OBJECT_BYTES = 20
_STRING_BYTES = 50
_ELEMENT_BYTES = {"u1": 2, "i1": 2, "u2": 3, "i2": 3, "f2": 3}  # integers are stored with variable lengths


@dataclass(frozen=True)
class _OverBlobs(Operator):
    """Base: covers all blobs of the workspace and, with ``include_shared``, those of its parent."""

    dynamic: ClassVar[bool] = True
    stateful: ClassVar[bool] = True
    outputs_on_host: ClassVar[bool] = True
    include_shared: bool = True

    def names(self, ctx: RunContext) -> list[str]:
        """Return the sorted names of the blobs, the outputs included."""
        workspace = ctx.workspace
        shared = set() if self.include_shared or workspace.parent is None else set(workspace.parent.blobs())
        return [name for name in sorted({*workspace.blobs(), *ctx.op_def.output}) if name not in shared]


@register
@dataclass(frozen=True)
class GetAllBlobNames(_OverBlobs):
    """blob_names = the sorted names of the workspace's blobs and, with ``include_shared``, of its parent's.

    In a step's private workspace, blobs of the enclosing workspace count as its own once a net has used them.
    """

    signature = "-> blob_names (N): string"
    flops_per_element = 0


@kernel(GetAllBlobNames)
def get_all_blob_names(op: GetAllBlobNames, ctx: RunContext) -> tuple[Any, ...]:
    return (_strings(op.names(ctx)),)


def _strings(names: list[str]) -> Any:
    found = np.empty(len(names), object)
    found[:] = [name.encode() for name in names]
    return found


@register
@dataclass(frozen=True)
class EstimateAllBlobSizes(_OverBlobs):
    """blob_names = the sorted names of the workspace's blobs; blob_sizes = their estimated sizes in a file, in bytes.

    ``options``, a serialized SerializationOptions, states how Save would write blobs (``chunk_size``, and bfloat16 as
    ``float_format``); the first option whose ``blob_name_regex`` matches a name applies.
    """

    signature = "-> blob_names (N): string, blob_sizes (N): int64"
    options: bytes = b""

    def check(self) -> None:
        parse_options(self.type, self.options)


@kernel(EstimateAllBlobSizes)
def estimate_all_blob_sizes(op: EstimateAllBlobSizes, ctx: RunContext) -> tuple[Any, ...]:
    names, options = op.names(ctx), parse_options(op.type, op.options)
    sizes = []
    for name in names:
        if name in ctx.op_def.output:  # they will have one element per blob
            is_names = name == ctx.op_def.output[0]
            spec = TensorSpec((len(names),), STRING if is_names else np.dtype(np.int64))
        else:
            spec = ctx.workspace.spec(name)
        sizes.append(_object_size(ctx, name) if spec is None else _tensor_size(name, spec, option_of(options, name)))
    return _strings(names), np.array(sizes, np.int64)


def _object_size(ctx: RunContext, name: str) -> int:
    value = ctx.workspace.get(name).buffer
    return len(name) + _OBJECT_BYTES + (len(value) if isinstance(value, bytes) else 0)


def _tensor_size(name: str, spec: TensorSpec, option: BlobSerializationOptions) -> int:
    """Return the bytes of a tensor, which is stored in chunks, each with its name."""
    if spec.dtype == STRING:
        each = _STRING_BYTES
    elif as_bfloat16(option, spec.dtype):
        each = 2
    else:
        each = _ELEMENT_BYTES.get(spec.dtype.str[1:], spec.dtype.itemsize)
    chunk = option.chunk_size if option.chunk_size > 0 else _CHUNK
    return -(-spec.size // chunk) * (len(name) + _CHUNK_BYTES) + spec.size * each
