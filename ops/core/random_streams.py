"""Random streams: the arguments that say what an operator draws, whatever it and its blobs are called later.

An operator that draws random numbers does so by (seed, stream, iteration, global sample). The stream is a text in its
argument ``random_stream``. Builders write the name of its first output there, without the scope of a replica, and
passes keep it: a copy under other names, or one computed again, draws the same numbers. ``random_replica`` is the
number of its replica over all processes; the samples of a replica follow those of the replicas before. Caffe2 ignores
both.
"""

from __future__ import annotations

from netbuilder.ops.core.registry import find, is_registered
from netbuilder.proto import ArgumentError, OperatorDef

__all__ = ["RANDOM_ARGUMENTS", "RANDOM_REPLICA", "RANDOM_STREAM", "draws", "replica_of", "stream_of"]

RANDOM_STREAM = "random_stream"
RANDOM_REPLICA = "random_replica"
RANDOM_ARGUMENTS = frozenset({RANDOM_STREAM, RANDOM_REPLICA})


def draws(op: OperatorDef) -> bool:
    """Whether an operator draws random numbers."""
    return is_registered(op.type) and find(op.type).draws


def stream_of(op: OperatorDef, scope: str = "") -> str:
    """Return the random stream of an operator.

    Args:
        op: the operator; without the argument (nets of Caffe2, or written by hand) its first output counts.
        scope: of its replica, which that name loses wherever it is in it: cells put names with it after their own.

    >>> stream_of(OperatorDef(type="Dropout", output=["cpu_1/y", "cpu_1/mask"]), "cpu_1/")
    'y'

    Raises:
        ArgumentError: the argument holds no text.
    """
    for argument in op.arg:
        if argument.name == RANDOM_STREAM:
            if not argument.HasField("s"):
                raise ArgumentError(f"{op.type}: argument {RANDOM_STREAM!r} must be a text")
            return argument.s.decode(errors="backslashreplace")
    name = op.output[0] if op.output else op.type
    return name.replace(scope, "") if scope else name


def replica_of(op: OperatorDef) -> int | None:
    """Return the number of the replica that an operator draws for; None: it does not say so.

    Raises:
        ArgumentError: the argument is no whole number from 0 on.
    """
    for argument in op.arg:
        if argument.name == RANDOM_REPLICA:
            if not argument.HasField("i") or argument.i < 0:
                raise ArgumentError(f"{op.type}: argument {RANDOM_REPLICA!r} must be a whole number from 0 on")
            return int(argument.i)
    return None
