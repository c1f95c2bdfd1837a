"""GetAllBlobNames: what blobs a workspace has."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.contexts import RunContext
from netbuilder.ops.declaration import dataclass
from netbuilder.ops.operator import Operator
from netbuilder.ops.registry import kernel, register

__all__ = ["GetAllBlobNames"]


@register
@dataclass(frozen=True)
class GetAllBlobNames(Operator):
    """The names of the workspace's blobs, sorted, as strings; with ``include_shared`` those of its parent's, too.

    A step's private workspace sees the blobs of the one around as its own once a net has used them.
    """

    inputs = ()
    outputs = ("blob_names",)
    dynamic = True
    stateful = True
    outputs_on_host = True
    include_shared: bool = True

    def flops(self) -> int:
        return 0


@kernel(GetAllBlobNames)
def get_all_blob_names(op: GetAllBlobNames, ctx: RunContext) -> tuple[Any, ...]:
    workspace = ctx.workspace
    shared = set() if op.include_shared or workspace.parent is None else set(workspace.parent.blobs())
    there = {*workspace.blobs(), *ctx.op_def.output}
    found = [name.encode() for name in sorted(there) if name not in shared]
    names = np.empty(len(found), object)
    names[:] = found
    return (names,)
