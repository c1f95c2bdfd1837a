"""Caffe2's named transformations of nets: set engines, fuse Relu or batch normalization into Conv."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from netbuilder.graph.versions import EXTERNAL, number_versions
from netbuilder.ops.core.operator import decode
from netbuilder.ops.core.registry import find
from netbuilder.ops.core.renaming import subgraphs
from netbuilder.passes.fold_batch_norm import fold_batch_norm
from netbuilder.passes.net_pass import NetPass, PassContext, PassResult, net_pass
from netbuilder.proto import PROTO_CPU, NetDef, NetError, OperatorDef
from netbuilder.proto.arguments import set_argument
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute.benchmark import benchmark_net

__all__ = [
    "NET_TRANSFORMS",
    "TRANSFORMS",
    "WORKSPACE_TRANSFORMS",
    "apply_transform",
    "apply_transform_if_faster",
]

_ENGINE = "NNPACK"


@net_pass
def add_nnpack_pass(net: NetDef, context: PassContext) -> PassResult:
    """Set the engine NNPACK for Convs on the CPU with order NCHW and stride 1.

    The engine selects no kernel here; FuseNNPACKConvRelu checks it.
    """
    result = _copied(net)
    for op in result.op:
        if op.type != "Conv" or _device(net, op) != PROTO_CPU:
            continue
        conv: Any = decode(find(op.type), op)
        if conv.order == "NCHW" and all(
            n == 1 for n in (conv.stride, conv.stride_h, conv.stride_w, *conv.strides) if n
        ):
            op.engine = _ENGINE
            set_argument(op, "convolution_transform_strategy", "PRECOMPUTE")
    return PassResult(result)


@net_pass
def fuse_nnpack_conv_relu_pass(net: NetDef, context: PassContext) -> PassResult:
    """Fuse Convs that have the engine NNPACK with a Relu that is their only reader.

    The Conv gets the argument ``activation="Relu"`` and the Relu's output. If that name is also an input of the Conv,
    as where two names alternate, the output is renamed, also in its readers; if it is then also an external output of
    the net, the Relu is not fused.
    """
    result = _copied(net)
    while _fuse_one(result):
        pass
    return PassResult(result)


def _fuse_one(net: NetDef) -> bool:
    versions = number_versions(net.op)
    held = {blob for op in net.op for inner in subgraphs(op) for blob in inner.external_input}
    outputs = {versions.last[blob] for blob in net.external_output if blob in versions.last}
    for index, relu in enumerate(net.op):
        if relu.type != "Relu":
            continue
        value = versions.inputs[index][0]
        writer = versions.writers[value]
        if writer == EXTERNAL or len(versions.readers[value]) != 1 or value in outputs or relu.input[0] in held:
            continue
        conv = net.op[writer]
        if conv.type != "Conv" or conv.engine != _ENGINE or _device(net, conv) != _device(net, relu):
            continue
        result = versions.outputs[index][0]
        name = relu.output[0]
        readers = versions.readers[result]
        between = net.op[writer + 1 : index]
        if name != relu.input[0] and any(name in op.input or name in op.output for op in between):
            continue  # the Conv would write the output too early
        if name in conv.input:
            in_place = any(name in net.op[reader].output for reader in readers)
            if result in outputs or name in held or in_place:
                continue
            name = _fresh(net, name)
            for reader in readers:
                for slot, read in enumerate(versions.inputs[reader]):
                    if read == result:
                        net.op[reader].input[slot] = name
        conv.output[0] = name
        set_argument(conv, "activation", "Relu")
        del net.op[index]
        return True
    return False


def fuse_conv_bn(net: NetDef, workspace: Workspace) -> NetDef:
    """Return a net with batch normalizations in test mode folded into the Conv or FC before them.

    The new weights and biases are fed under new names, so that other nets keep theirs; see ``fold_batch_norm``.
    """
    read = {blob for op in net.op for blob in op.input}
    held = [blob for blob in read if workspace.has(blob) and workspace.spec(blob) is not None]
    before = {blob: workspace.fetch(blob) for blob in held}
    folded, after = fold_batch_norm(net, before)
    for name, value in after.items():
        if name not in before:
            workspace.feed(name, value)
    return folded


@net_pass
def conv_to_nnpack_pass(net: NetDef, context: PassContext) -> PassResult:
    """Set the engine NNPACK for Convs on the CPU."""
    result = _copied(net)
    for op in result.op:
        if op.type == "Conv" and _device(net, op) == PROTO_CPU:
            op.engine = _ENGINE
    return PassResult(result)


NET_TRANSFORMS: dict[str, NetPass] = {
    "AddNNPACK": add_nnpack_pass,
    "FuseNNPACKConvRelu": fuse_nnpack_conv_relu_pass,
}
"""The transformations of ``transformations.Transformer``."""

WORKSPACE_TRANSFORMS: dict[str, Callable[[NetDef, Workspace], NetDef]] = {"FuseConvBN": fuse_conv_bn}
"""Transformations that also change parameters in a workspace."""

TRANSFORMS: dict[str, NetPass] = {"ConvToNNPack": conv_to_nnpack_pass}
"""The transformations of ``workspace.ApplyTransform``."""


def apply_transform(name: str, net: NetDef) -> NetDef:
    """Return the transformed net.

    Raises:
        NetError: there is no such transformation.
    """
    if name not in TRANSFORMS:
        raise NetError(f"the transformation must be one of {sorted(TRANSFORMS)}, got {name!r}")
    return TRANSFORMS[name](net).net


def apply_transform_if_faster(
    workspace: Workspace,
    name: str,
    net: NetDef,
    init_net: NetDef,
    warmup_runs: int,
    main_runs: int,
    improvement_threshold: float,
) -> NetDef:
    """Return the transformed net if it is faster than the original by the given factor, otherwise a copy of the net.

    Args:
        workspace: where ``init_net`` is run and both nets are timed; neither net is kept.
        name: name of the transformation.
        net, init_net: the net, and a net that fills its inputs.
        warmup_runs: runs before the timing.
        main_runs: timed runs.
        improvement_threshold: required speed-up.
    """
    transformed = apply_transform(name, net)
    workspace.run_net_once(init_net)
    times = [_milliseconds(workspace, candidate, warmup_runs, main_runs) for candidate in (net, transformed)]
    return transformed if times[0] >= improvement_threshold * times[1] else _copied(net)


def _milliseconds(workspace: Workspace, net: NetDef, warmup_runs: int, main_runs: int) -> float:
    timed = _copied(net)
    timed.name = next(name for i in itertools.count() if (name := f"{net.name}_timed_{i}") not in workspace.nets())
    workspace.create_net(timed)
    try:
        return benchmark_net(workspace, timed.name, warmup_runs, main_runs)[0]
    finally:
        workspace.delete_net(timed.name)


def _copied(net: NetDef) -> NetDef:
    copy = NetDef()
    copy.CopyFrom(net)
    return copy


def _device(net: NetDef, op: OperatorDef) -> int:
    option = op.device_option if op.HasField("device_option") else net.device_option
    return option.device_type


def _fresh(net: NetDef, base: str) -> str:
    taken = {*net.external_input, *net.external_output}
    for op in net.op:
        taken.update(op.input, op.output)
    names = itertools.chain([f"{base}_relu"], (f"{base}_relu_{i}" for i in itertools.count(1)))
    return next(name for name in names if name not in taken)
