"""The activation that an argument of Conv asks for, which Caffe2's transformations set."""

from __future__ import annotations

from netbuilder.proto import ArgumentError, OperatorDef
from netbuilder.proto.arguments import arguments

__all__ = ["as_fused"]

_PLAIN = ("", "identity")


def as_fused(op: OperatorDef) -> OperatorDef:
    """Return a Conv with the argument ``activation="Relu"`` as a ConvRelu; any other operator unchanged.

    Caffe2's transformation FuseNNPACKConvRelu removes a Relu and sets this argument of the Conv before it, for the
    engine NNPACK.

    Raises:
        ArgumentError: the activation is another one.
    """
    if op.type != "Conv" or op.engine != "NNPACK":
        return op
    value = arguments(op).get("activation", "")
    activation = value.decode() if isinstance(value, bytes) else value
    if activation in _PLAIN:
        return op
    if activation != "Relu":
        raise ArgumentError(f"Conv: activation must be 'Relu' or 'identity', got {activation!r}")
    fused = OperatorDef()
    fused.CopyFrom(op)
    fused.type = "ConvRelu"
    return fused
