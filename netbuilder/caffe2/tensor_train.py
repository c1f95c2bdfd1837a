"""Replaces fully connected layers, FC, by tensor trains, TT."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from netbuilder.caffe2.tensor_cores import matrix_to_tt, split_size
from netbuilder.passes.net_pass import PassContext, PassResult, net_pass
from netbuilder.proto import NetDef, NetError
from netbuilder.proto.arguments import arguments, make_op

__all__ = ["fc_net_to_tt_net", "fc_net_to_tt_net_pass"]


def fc_net_to_tt_net(
    net: Any, parameters: Mapping[str, Any], *, num_cores: int = 2, rank: int = 16
) -> tuple[NetDef, dict[str, np.ndarray[Any, np.dtype[Any]]]]:
    """Return a net in which TT replaces each FC whose weights are known, and the arrays of its cores.

    For arguments and errors see ``fc_net_to_tt_net_pass``; ``parameters`` are those of its context.
    """
    result = fc_net_to_tt_net_pass(net, PassContext(parameters=parameters), num_cores=num_cores, rank=rank)
    return result.net, result.extras["cores"]


@net_pass
def fc_net_to_tt_net_pass(net: NetDef, context: PassContext, *, num_cores: int = 2, rank: int = 16) -> PassResult:
    """Replace each FC whose weights are known by TT. Reads ``parameters``.

    Weights W, (N, K), become a blob ``<W>_cores``; K and N are split into ``num_cores`` factors each, of similar size.
    With full ranks the net computes the same up to rounding; lower ranks approximate W. An FC is not replaced if its
    weights are not in ``parameters`` or are written by the net, if ``axis`` or ``axis_w`` is not 1, or if the train
    would have more parameters.

    Args:
        num_cores: number of cores of each layer.
        rank: maximum rank between two cores.

    Returns:
        The net; ``cores``: arrays by name.

    Raises:
        NetError: ``num_cores`` or ``rank`` is less than 1, or the net has gradient operators.
    """
    if num_cores < 1 or rank < 1:
        raise NetError(f"fc_net_to_tt_net: num_cores and rank must be at least 1, got {num_cores} and {rank}")
    result = NetDef()
    result.CopyFrom(net)
    parameters = context.parameters
    if any(op.is_gradient_op for op in result.op):
        raise NetError(
            f"fc_net_to_tt_net: net {result.name!r} must not have gradients; call this before AddGradientOperators"
        )
    written = {blob for op in result.op for blob in op.output}
    made: dict[str, Any] = {}
    replaced: set[str] = set()
    for op in result.op:
        if op.type != "FC" or len(op.input) != 3 or op.input[1] in written or op.input[1] not in parameters:
            continue
        given = arguments(op)
        weights = np.asarray(parameters[op.input[1]])
        if given.get("axis", 1) != 1 or given.get("axis_w", 1) != 1 or weights.ndim != 2:
            continue
        outer, inner = (split_size(extent, num_cores) for extent in weights.shape)
        ranks = _ranks([i * o for i, o in zip(inner, outer)], rank)
        if sum(i * o * r * s for i, o, r, s in zip(inner, outer, ranks, ranks[1:])) > weights.size:
            continue
        name = f"{op.input[1]}_cores"
        replaced.add(op.input[1])
        made[name] = matrix_to_tt(weights, inner, outer, ranks).astype(weights.dtype)
        train = make_op(
            "TT", [op.input[0], op.input[2], name], op.output, inp_sizes=inner, out_sizes=outer, tt_ranks=ranks
        )
        train.name, train.debug_info = op.name, op.debug_info
        train.device_option.CopyFrom(op.device_option)
        op.CopyFrom(train)
    _rename_inputs(result, made, replaced)
    return PassResult(result, {"cores": made})


def _ranks(sizes: list[int], rank: int) -> list[int]:
    """Return the ranks between cores of these sizes: ``rank``, or the full rank if that is smaller."""
    cuts = range(1, len(sizes))
    return [1, *(min(rank, math.prod(sizes[:k]), math.prod(sizes[k:])) for k in cuts), 1]


def _rename_inputs(net: NetDef, made: Mapping[str, Any], replaced: set[str]) -> None:
    """Add the cores to the net's external inputs, and remove weights that are no longer read."""
    read = {blob for op in net.op for blob in op.input}
    gone = replaced - read
    kept = [name for name in net.external_input if name not in gone]
    net.external_input[:] = [*kept, *(name for name in made if name not in kept)]
