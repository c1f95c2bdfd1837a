"""Random streams: the arguments that determine an operator's random numbers, independent of the names of its blobs.

The random numbers of an operator depend on (seed, stream, iteration, global sample). The stream is a string in the
argument ``random_stream``. Builders set it to the name of the first output, without the scope of a replica, and passes
keep it: a renamed copy of the operator, or one that recomputes its output, draws the same numbers. ``random_replica``
is the number of the operator's replica over all processes; the samples of a replica follow those of earlier replicas.
Where the replicas have different numbers of samples, ``random_first_sample`` is the number of the replica's first one.
Caffe2 ignores these arguments.
"""

from __future__ import annotations

from netbuilder.ops.core.registry import find, is_registered
from netbuilder.proto import ArgumentError, OperatorDef

__all__ = [
    "RANDOM_ARGUMENTS",
    "RANDOM_FIRST_SAMPLE",
    "RANDOM_REPLICA",
    "RANDOM_STREAM",
    "draws",
    "first_sample_of",
    "replica_of",
    "stream_of",
]

RANDOM_STREAM = "random_stream"
RANDOM_REPLICA = "random_replica"
RANDOM_FIRST_SAMPLE = "random_first_sample"
RANDOM_ARGUMENTS = frozenset({RANDOM_STREAM, RANDOM_REPLICA, RANDOM_FIRST_SAMPLE})


def draws(op: OperatorDef) -> bool:
    """Whether an operator draws random numbers."""
    return is_registered(op.type) and find(op.type).draws


def stream_of(op: OperatorDef, scope: str = "") -> str:
    """Return the random stream of an operator.

    Args:
        op: the operator; without the argument (nets of Caffe2, or written by hand) the stream is its first output.
        scope: of its replica; it is removed from that name, at any position: RNN cells embed the prefixed name inside
            longer names.

    >>> stream_of(OperatorDef(type="Dropout", output=["cpu_1/y", "cpu_1/mask"]), "cpu_1/")
    'y'

    Raises:
        ArgumentError: the argument is not a string.
    """
    for argument in op.arg:
        if argument.name == RANDOM_STREAM:
            if not argument.HasField("s"):
                raise ArgumentError(f"{op.type}: argument {RANDOM_STREAM!r} must be a string")
            return argument.s.decode(errors="backslashreplace")
    name = op.output[0] if op.output else op.type
    return name.replace(scope, "") if scope else name


def replica_of(op: OperatorDef) -> int | None:
    """Return the number of an operator's replica, None without the argument ``random_replica``.

    Raises:
        ArgumentError: the argument is not a whole number of 0 or more.
    """
    return _whole_number(op, RANDOM_REPLICA)


def first_sample_of(op: OperatorDef) -> int | None:
    """Return the number of the first sample of an operator's replica, None without ``random_first_sample``.

    Raises:
        ArgumentError: the argument is not a whole number of 0 or more.
    """
    return _whole_number(op, RANDOM_FIRST_SAMPLE)


def _whole_number(op: OperatorDef, name: str) -> int | None:
    for argument in op.arg:
        if argument.name == name:
            if not argument.HasField("i") or argument.i < 0:
                raise ArgumentError(f"{op.type}: argument {name!r} must be a whole number, 0 or more")
            return int(argument.i)
    return None
