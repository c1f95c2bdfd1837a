"""Scaling of losses and gradients, so that gradients in float16 do not underflow."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.graph.replicas import Replicas
from netbuilder.model import ModelHelper
from netbuilder.proto import NetDef, NetError, OperatorDef, TensorProto
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "GRADIENT_SCALE",
    "SCALE_STATE",
    "GradientScaling",
    "fill_scales",
    "require_dense_gradients",
    "scale_update",
]

GRADIENT_SCALE = "gradient_scale"
"""Name of each replica's blob, float32 of shape (1,), by which its losses are multiplied."""

_STEPS = "gradient_scale_steps"
SCALE_STATE = frozenset({GRADIENT_SCALE, _STEPS})
"""The blobs of scaling that checkpoints contain."""

_FINITE = "gradients_finite"
_BEFORE = "_before_update"


@dataclass(frozen=True)
class GradientScaling:
    """Multiply losses by a scale, and divide gradients by it before the update.

    If a gradient is infinite or NaN, the step changes no parameter and no state of the optimizer, and the scale is
    multiplied by ``backoff``; after ``interval`` steps without that, by ``growth``. So it is nearly as large as the
    range of float16 allows. All replicas and processes have the same scale, in the blob ``gradient_scale`` of each
    replica, which checkpoints contain. Learning rates and metrics count skipped steps, too.

    Args:
        initial: the first scale; powers of 2 add no rounding.
        growth: at least 1; 1: the scale never grows.
        backoff: in (0, 1].
        interval: number of steps.

    Raises:
        NetError: a value is out of range.
    """

    initial: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000

    def __post_init__(self) -> None:
        whole = isinstance(self.interval, int) and not isinstance(self.interval, bool)
        for name, fits, rule in (
            ("initial", _is_number(self.initial) and 2.0**-14 <= self.initial <= 2.0**100, "in [2**-14, 2**100]"),
            ("growth", _is_number(self.growth) and 1 <= self.growth, "at least 1"),
            ("backoff", _is_number(self.backoff) and 0 < self.backoff <= 1, "in (0, 1]"),
            ("interval", whole and self.interval >= 1, "a number of steps, at least 1"),
        ):
            if not fits:
                raise NetError(f"GradientScaling: {name} must be {rule}, got {getattr(self, name)!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def fill_scales(model: ModelHelper, scaling: GradientScaling) -> BlobReference:
    """Let the init net make the scale of the replica whose scope is active; return its blob."""
    init = model.param_init_net
    init.ConstantFill([], _STEPS, shape=[1], value=0, dtype=TensorProto.INT32)
    scale: BlobReference = init.ConstantFill([], GRADIENT_SCALE, shape=[1], value=float(scaling.initial))
    return scale


def require_dense_gradients(model: ModelHelper, record: Replicas) -> None:
    """Raise NetError if a gradient is sparse, or that of a parameter outside the replicas."""
    sparse = [group.parameter for group in record.gradients if group.is_sparse]
    outside = [name for name in record.outside if BlobReference(name) in model.param_to_grad]
    for names, what in ((sparse, "have sparse gradients"), (outside, "are outside the replicas")):
        if names:
            raise NetError(
                f"model {model.name!r}: gradient_scaling is for dense gradients of the replicas, but the parameters "
                f"{names} {what}; omit it"
            )


def scale_update(model: ModelHelper, record: Replicas, start: int, scaling: GradientScaling) -> None:
    """Change the update, which begins at an operator of the main net: divide its gradients, and let it be skipped.

    A float16 gradient is divided where the update has converted it to float32. Each blob has operators of its own, so
    that an engine can join them with its update: then a parameter is read and written once.
    """
    main = model.net.Proto()
    update = list(main.op[start:])
    made = {blob for op in model.param_init_net.Proto().op for blob in op.output}
    halves = {op.input[0] for op in update if op.type == "HalfToFloat"}
    before, after = list[OperatorDef](), list[OperatorDef]()
    for option, scope in zip(record.devices.options, record.devices.scopes):
        scale, finite = scope + GRADIENT_SCALE, scope + _FINITE
        gradients = [scope + group.values for group in record.gradients]
        written = dict.fromkeys(blob for op in update for blob in op.output)
        state = [blob for blob in written if blob in made and blob.startswith(scope) and blob != scale]
        before.append(make_op("AllFinite", gradients, [finite], device_option=option))
        whole = [blob for blob in gradients if blob not in halves]
        before += [make_op("DivideBlobs", [scale, blob], [blob], device_option=option) for blob in whole]
        for blob in state:
            before.append(make_op("SaveBlobs", [blob], [blob + _BEFORE], device_option=option))
            after.append(make_op("RestoreBlobs", [finite, blob, blob + _BEFORE], [blob], device_option=option))
        rule: dict[str, Any] = {
            "growth": float(scaling.growth),
            "backoff": float(scaling.backoff),
            "interval": scaling.interval,
        }
        blobs = [scale, scope + _STEPS]
        after.append(make_op("UpdateGradientScale", [*blobs, finite], blobs, device_option=option, **rule))
    divided = list[OperatorDef]()
    for op in update:
        divided.append(op)
        replica = record.devices.replica_of(op.input[0]) if op.type == "HalfToFloat" else None
        if replica is not None and _is_gradient(op.input[0], record):
            wide, scale = op.output[0], record.devices.scopes[replica] + GRADIENT_SCALE
            divided.append(make_op("DivideBlobs", [scale, wide], [wide], device_option=op.device_option))
    whole_net = NetDef()
    whole_net.CopyFrom(main)
    del whole_net.op[start:]
    whole_net.op.extend([*before, *divided, *after])
    model.net.replace_message(whole_net)


def _is_gradient(blob: str, record: Replicas) -> bool:
    return record.devices.short_name(blob) in {group.values for group in record.gradients}
