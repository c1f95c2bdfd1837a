"""Inserts checks of values into a net: a run ends with an error if a value is infinite or NaN."""

from __future__ import annotations

from collections.abc import Collection

from netbuilder.passes.net_pass import PassContext, PassResult, net_pass
from netbuilder.proto import BlobError, NetDef
from netbuilder.proto.arguments import make_op

__all__ = ["check_finite_pass"]


@net_pass
def check_finite_pass(net: NetDef, context: PassContext, *, blobs: Collection[str]) -> PassResult:
    """Insert an operator EnforceFinite after each operator that writes one of ``blobs``.

    Returns:
        The net; ``checks``: the number of inserted operators.

    Raises:
        BlobError: no operator writes a blob.
    """
    written = {blob for op in net.op for blob in op.output}
    if missing := sorted(set(blobs) - written):
        raise BlobError(f"net {net.name!r}: cannot check {missing}: no operator writes them")
    result = NetDef()
    result.CopyFrom(net)
    del result.op[:]
    for op in net.op:
        result.op.append(op)
        for blob in op.output:
            if blob in blobs:
                check = make_op("EnforceFinite", [blob], [])
                check.device_option.CopyFrom(op.device_option)
                result.op.append(check)
    return PassResult(result, {"checks": len(result.op) - len(net.op)})
