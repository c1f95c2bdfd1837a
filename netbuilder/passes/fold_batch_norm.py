"""Folding of batch normalization in test mode into the weights of the layer before it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from netbuilder.graph.versions import EXTERNAL, number_versions
from netbuilder.ops.core.fused_activation import as_fused
from netbuilder.ops.core.operator import decode
from netbuilder.ops.core.registry import find
from netbuilder.ops.core.renaming import names_in_net, subgraphs
from netbuilder.passes.net_pass import PassContext, PassResult, net_pass
from netbuilder.proto import NetDef, NetError, OperatorDef
from netbuilder.proto.arguments import made_at
from netbuilder.proto.call_checks import checked
from netbuilder.proto.depth import deep_nets
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["fold_batch_norm", "fold_batch_norm_pass", "training_batch_norms"]

Array = np.ndarray[Any, np.dtype[Any]]

_SUFFIX = "_folded"


@dataclass(frozen=True)
class _Pair:
    """A layer and the normalization after it: their positions in the net, and the operators."""

    before: int
    after: int
    layer: OperatorDef
    norm: OperatorDef


@checked()
def fold_batch_norm(net: Any, parameters: Mapping[str, Any], *, affine: bool = False) -> tuple[NetDef, dict[str, Any]]:
    """Return a net in test mode without the normalizations that can be folded, and the parameters that it needs.

    See ``fold_batch_norm_pass``; ``net``, a Net or NetDef, and ``parameters`` are not changed.
    """
    result = fold_batch_norm_pass(net, PassContext(parameters=parameters), affine=affine)
    return result.net, result.extras["parameters"]


@net_pass
def fold_batch_norm_pass(proto: NetDef, context: PassContext, *, affine: bool = False) -> PassResult:
    """Fold batch normalization in test mode into the weights of the layer before it. Reads ``parameters``.

    Args:
        affine: replace one that cannot be folded by an AffineChannel: one multiplication and one addition an element.

    A SpatialBN in test mode after a Conv, ConvTranspose or FC multiplies each channel by ``f = scale / sqrt(var +
    epsilon)`` and shifts it; the layer does the same with the weights ``f * W`` and the bias ``f * (b - mean) +
    bias``. They are computed in float64. The layer gets a bias if it had none, and its weights and bias get new names,
    because other operators may use the old ones. The folded net computes the same results up to rounding.

    A normalization is not folded if its input has other readers or is an external output, if a parameter
    is not among ``parameters``, is written by the net or is neither float32 nor float64, if layer and normalization
    run on different devices, or if the new weights would not be finite.

    Returns:
        The net; extra ``parameters``: name -> value of the parameters that it needs.

    Raises:
        NetError: a SpatialBN is in training mode.
    """
    parameters = context.parameters
    if found := training_batch_norms(proto):
        index, op = found[0]
        raise NetError(
            f"net {proto.name!r}, operator {index} {op.type} {list(op.input)} -> {list(op.output)}{made_at(op)}: it is "
            "in training mode (is_test=0) and normalizes by the statistics of each batch, so it cannot be folded; "
            "build the net in test mode (is_test=1) with ModelHelper(init_params=False)"
        )
    result = NetDef()
    result.CopyFrom(proto)
    values = dict(parameters)
    written = {blob for op in proto.op for blob in _writes(op)}
    known = {name: value for name, value in parameters.items() if name not in written}
    taken = {
        *values,
        *written,
        *proto.external_input,
        *proto.external_output,
        *(b for op in proto.op for b in op.input),
    }
    folded: set[int] = set()
    for pair in _pairs(proto):
        computed = _fold(pair, known)
        if computed is None:
            continue
        weights, bias = computed
        layer = result.op[pair.before]
        names = [_fresh(base, taken) for base in (layer.input[1], _bias_name(layer))]
        layer.input[1:] = names
        layer.output[0] = pair.norm.output[0]
        _drop_argument(layer, "no_bias")
        values.update(zip(names, (weights, bias)))
        result.external_input.extend(names)
        folded.add(pair.after)
    replaced = [index for index in range(len(proto.op)) if affine and index not in folded]
    replaced = [index for index in replaced if _replace(result.op[index], known, values, taken, result.external_input)]
    if folded or replaced:
        remaining = [op for index, op in enumerate(result.op) if index not in folded]
        del result.op[:]
        with deep_nets():
            result.op.extend(remaining)
        _remove_unread(result, proto, values)
    return PassResult(result, {"parameters": values})


def training_batch_norms(net: NetDef) -> list[tuple[int, OperatorDef]]:
    """Return the normalizations in training mode with their positions; in a subgraph, the position of its operator."""
    found = []
    for index, op in enumerate(net.op):
        if op.type == "SpatialBN" and not _decoded(op).is_test:
            found.append((index, op))
        found += [(index, inner) for subgraph in subgraphs(op) for _, inner in training_batch_norms(subgraph)]
    return found


def _decoded(op: OperatorDef) -> Any:
    return decode(find(op.type), op)


def _writes(op: OperatorDef) -> Iterator[str]:
    yield from op.output
    for subgraph in subgraphs(op):
        for inner in subgraph.op:
            yield from _writes(inner)


def _pairs(net: NetDef) -> Iterator[_Pair]:
    """Yield each layer whose output is read only by a normalization, with that normalization."""
    versions = number_versions(net.op)
    in_subgraphs = {blob for op in net.op for subgraph in subgraphs(op) for blob in names_in_net(subgraph)}
    outputs = {versions.last[blob] for blob in net.external_output if blob in versions.last}
    device = [_device(net, op) for op in net.op]
    for after, norm in enumerate(net.op):
        if norm.type != "SpatialBN" or len(norm.output) != 1:
            continue
        between = versions.inputs[after][0]
        before = versions.writers[between]
        if before == EXTERNAL or len(versions.readers[between]) != 1 or between in outputs:
            continue
        if norm.input[0] in in_subgraphs:
            continue
        layer = as_fused(net.op[before])
        if layer.type not in _CHANNELS or device[before] != device[after]:
            continue
        name = norm.output[0]
        if name != norm.input[0] and (name in in_subgraphs or _is_mentioned(net.op[before : after + 1], name)):
            continue  # the layer would write it earlier than the normalization did
        yield _Pair(before, after, layer, norm)


def _is_mentioned(ops: Collection[OperatorDef], name: str) -> bool:
    *before, last = ops
    return name in last.input or any(name in op.input or name in op.output for op in before)


def _device(net: NetDef, op: OperatorDef) -> tuple[int, int]:
    option = op.device_option if op.HasField("device_option") else net.device_option
    return option.device_type, option.device_id


def _conv_channels(op: Any, norm: Any, w: Array) -> Any:
    """Return the shape of the factors, one per channel, that broadcasts against the weights of a Conv."""
    return (-1, *[1] * (w.ndim - 1)) if norm.order == op.order else None


def _fc_channels(op: Any, norm: Any, w: Array) -> Any:
    if op.axis != 1 or op.axis_w != 1 or w.ndim != 2:
        return None
    return (1, -1) if op._transposed else (-1, 1)


def _conv_transpose_channels(op: Any, norm: Any, w: Array) -> Any:
    if norm.order != op.order or op.group != 1:
        return None
    ones = [1] * (w.ndim - 2)
    return (1, -1, *ones) if op.order == "NCHW" else (1, *ones, -1)


_CHANNELS = {
    "Conv": _conv_channels,
    "ConvTranspose": _conv_transpose_channels,
    "FC": _fc_channels,
    "FCTransposed": _fc_channels,
}


def _fold(pair: _Pair, parameters: Mapping[str, Any]) -> tuple[Array, Array] | None:
    """Return the layer's new weights and bias; None if the pair cannot be folded."""
    given = [*pair.layer.input[1:], *pair.norm.input[1:5]]
    arrays: list[Any] = [parameters.get(name) for name in given]
    if any(not isinstance(a, np.ndarray) or a.dtype not in (np.float32, np.float64) for a in arrays):
        return None
    w, *rest = arrays
    op, norm = _decoded(pair.layer), _decoded(pair.norm)
    shape = _CHANNELS[pair.layer.type](op, norm, w)
    channels = arrays[-1].shape
    if (
        shape is None
        or len(channels) != 1
        or any(a.shape != channels for a in rest)
        or not _matches(w, shape, channels)
    ):
        return None
    before = rest[0].astype(np.float64) if len(rest) == 5 else 0.0
    factor, shift = _factor_and_shift(norm, *rest[-4:])
    with np.errstate(all="ignore"):
        weights = (w * factor.reshape(shape)).astype(w.dtype)
        bias = (factor * before + shift).astype(w.dtype)
    return (weights, bias) if np.isfinite(weights).all() and np.isfinite(bias).all() else None


def _replace(norm: OperatorDef, known: Mapping[str, Any], values: dict[str, Any], taken: set[str], inputs: Any) -> bool:
    """Make a normalization with known parameters an AffineChannel, whose parameters are added; whether it is one."""
    if norm.type != "SpatialBN" or len(norm.output) != 1:
        return False
    arrays: list[Any] = [known.get(name) for name in norm.input[1:5]]
    if len({_kind(array) for array in arrays}) != 1 or _kind(arrays[0]) is None:
        return False
    factor, shift = _factor_and_shift(_decoded(norm), *arrays)
    if not (np.isfinite(factor).all() and np.isfinite(shift).all()):
        return False
    names = [_fresh(name, taken) for name in norm.input[1:3]]
    values.update(zip(names, (factor.astype(arrays[0].dtype), shift.astype(arrays[0].dtype))))
    inputs.extend(names)
    norm.type, norm.input[1:] = "AffineChannel", names
    order = [argument for argument in norm.arg if argument.name == "order"]
    del norm.arg[:]
    norm.arg.extend(order)
    return True


def _kind(array: Any) -> Any:
    """Return shape and type of a vector of floating-point numbers; None for anything else."""
    floating = isinstance(array, np.ndarray) and array.dtype in (np.float32, np.float64) and array.ndim == 1
    return (array.shape, array.dtype) if floating else None


def _factor_and_shift(norm: Any, *arrays: Array) -> tuple[Array, Array]:
    """Return what a normalization multiplies by, and then adds, in float64: scale, bias, mean, variance -> both."""
    scale, bias, mean, variance = (array.astype(np.float64) for array in arrays)
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + norm.epsilon)
        return factor, bias - factor * mean


def _matches(w: Array, shape: tuple[int, ...], channels: tuple[int, ...]) -> bool:
    return w.shape[shape.index(-1)] == channels[0]


def _bias_name(layer: OperatorDef) -> str:
    return layer.input[2] if len(layer.input) > 2 else f"{layer.output[0]}_b"


def _fresh(base: str, taken: set[str]) -> str:
    """Return a name that is not in ``taken``, and add it to ``taken``."""
    names = itertools.chain([base + _SUFFIX], (f"{base}{_SUFFIX}_{i}" for i in itertools.count(1)))
    name = next(name for name in names if name not in taken)
    taken.add(name)
    return name


def _drop_argument(op: OperatorDef, name: str) -> None:
    others = [argument for argument in op.arg if argument.name != name]
    if len(others) < len(op.arg):
        del op.arg[:]
        op.arg.extend(others)


def _remove_unread(result: NetDef, before: NetDef, values: dict[str, Any]) -> None:
    """Remove the parameters that have no reader after folding from ``result`` and ``values``."""
    read = {blob for op in result.op for blob in op.input}
    read.update(blob for op in result.op for subgraph in subgraphs(op) for blob in names_in_net(subgraph))
    unread = {blob for op in before.op for blob in op.input if blob in values} - read - set(result.external_output)
    for blob in unread:
        del values[blob]
    result.external_input[:] = [blob for blob in result.external_input if blob not in unread]
