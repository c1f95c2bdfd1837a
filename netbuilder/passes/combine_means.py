"""Means over all shares of a batch: the operators that add up their divisors become a part of a net."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from netbuilder.graph.batch_means import sums_first
from netbuilder.passes.net_pass import PassContext, PassResult, net_pass
from netbuilder.proto import NetDef, OperatorDef

__all__ = ["add_divisor_sums", "add_divisor_sums_pass"]


def add_divisor_sums(net: NetDef, totals: Iterable[str], sums: Sequence[OperatorDef]) -> NetDef:
    """Return a copy of a net in which ``sums`` run as soon as the divisors are known.

    What the divisors are computed from comes first in the net, then the sums, then the rest, so that the exchange runs
    at the same time as the forward pass where that does not decide about the divisors.

    Args:
        net: a net with the replicas' divisors (``graph.batch_means.split_means``); left unchanged.
        totals: the blobs with a copy of each share's divisor, of all replicas.
        sums: the operators that replace each of them by the sum over all shares.
    """
    return add_divisor_sums_pass(net, totals=tuple(totals), sums=sums).net


@net_pass
def add_divisor_sums_pass(
    net: NetDef, context: PassContext, *, totals: Collection[str], sums: Sequence[OperatorDef]
) -> PassResult:
    """Do what ``add_divisor_sums`` does."""
    result = NetDef()
    result.CopyFrom(net)
    del result.op[:]
    result.op.extend(sums_first(net.op, totals, sums))
    known = {*result.external_input, *(name for op in result.op for name in op.output)}
    result.external_input.extend(dict.fromkeys(name for op in sums for name in op.input if name not in known))
    return PassResult(result)
