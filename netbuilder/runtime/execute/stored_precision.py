"""Whether activations can be stored as a net asks for: what is wrong is said when the net is created."""

from __future__ import annotations

from netbuilder.engines.engine import engine_names, find_engine
from netbuilder.graph.source import warn_user
from netbuilder.ops.core.precision import PRECISIONS
from netbuilder.ops.core.renaming import subgraphs
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, NetDef, NetError
from netbuilder.proto.arguments import arguments
from netbuilder.runtime.plan.options import PlanOptions

__all__ = ["check_stored_precision"]


def check_stored_precision(net: NetDef, options: PlanOptions, *, on_gpus: bool) -> None:
    """Warn if activations would not be stored in the precision of the plans of a net, or if gradients vanish in it.

    Args:
        net: the net.
        options: of its plans.
        on_gpus: whether some operator is on a GPU.

    Raises:
        NetError: nothing of the net is on GPUs, and there is no engine for CPUs that has the precision, not even one
            that is not installed.
    """
    precision, kind = options.dtype, PROTO_CUDA if on_gpus else PROTO_CPU
    if precision == PRECISIONS[0]:
        return
    engines = [each for each in map(find_engine, engine_names()) if kind in each.device_types]
    able = [each for each in engines if precision in each.precisions]
    if not able and not _mentions_gpus(net):
        known = {each for engine in engines for each in engine.precisions}
        raise NetError(
            f"net {net.name!r}: activations are stored as {precision} on GPUs only, and all operators are on the CPU; "
            f"let dtype be {' or '.join(each for each in PRECISIONS if each in known)}"
        )
    scaled = any(op.type == "UpdateGradientScale" for op in net.op)
    if precision == "float16" and not scaled and any(op.is_gradient_op for op in net.op):
        warn_user(
            f"net {net.name!r}: gradients are stored as float16 without a scale, so that those below 6e-8 become 0; "
            "build the net with Parallelize(dtype='float16'), which scales them, or let dtype be bfloat16"
        )
    able = [each for each in able if options.uses_engine(each.name)]
    if on_gpus and not any(engine.available() for engine in able):
        missing = "; ".join(f"engine {engine.name} could, but {engine.why_unavailable()}" for engine in able)
        warn_user(
            f"net {net.name!r}: activations on GPUs are stored as {PRECISIONS[0]}, not {precision}: no engine for "
            f"GPUs that stores them so can be used{f' ({missing})' if missing else ''}"
        )


def _mentions_gpus(net: NetDef) -> bool:
    """Whether an operator of a net, or of its subgraphs, is on a GPU, or runs a net on GPUs."""
    todo = [net]
    while todo:
        net = todo.pop()
        if PROTO_CUDA in {net.device_option.device_type, *(op.device_option.device_type for op in net.op)}:
            return True
        if any(arguments(op).get("device_type") == PROTO_CUDA for op in net.op):
            return True
        todo += [subgraph for op in net.op for subgraph in subgraphs(op)]
    return False
