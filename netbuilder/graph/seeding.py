"""Random seeds for the operators of a net."""

from __future__ import annotations

import zlib

from netbuilder.proto import NetDef, NetError

__all__ = ["seed_operators"]


def seed_operators(net: NetDef, seed: int, *, in_sequence: bool = True, by_operator: bool = False) -> None:
    """Give every operator a random seed of its own, in its device option.

    Args:
        net: changed in place.
        seed: of the first operator.
        in_sequence: operator i gets ``seed + i``; otherwise all get ``seed``.
        by_operator: a seed from ``seed`` and the operator's inputs, outputs and type, which an operator
            put before it does not change.

    Raises:
        NetError: both ways are asked for.

    >>> net = NetDef()
    >>> for blob in "ab":
    ...     op = net.op.add(type="UniformFill", output=[blob])
    >>> seed_operators(net, 7)
    >>> [op.device_option.random_seed for op in net.op]
    [7, 8]
    """
    if in_sequence and by_operator:
        raise NetError(f"net {net.name!r}: operators are seeded in sequence or by themselves, not both")
    for index, op in enumerate(net.op):
        if by_operator:
            text = "|".join([op.type, *op.input, "", *op.output, str(seed)])
            op.device_option.random_seed = zlib.crc32(text.encode())
        else:
            op.device_option.random_seed = seed + index if in_sequence else seed
