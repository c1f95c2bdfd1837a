"""Batch normalization over all devices: the replicas exchange the sums that statistics and gradients are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netbuilder.graph.batch_norm_exchange import BatchNormExchange, normalizes_over_batch
from netbuilder.graph.devices import Devices
from netbuilder.passes.interleave import rows_of
from netbuilder.passes.net_pass import PassContext, PassResult, net_pass
from netbuilder.passes.processes import ProcessLink
from netbuilder.proto import NetDef

__all__ = ["synchronize_batch_norm", "synchronize_batch_norm_pass"]

Group = Sequence[str]


def synchronize_batch_norm(
    net: NetDef,
    devices: Devices,
    *,
    parts: int | None = None,
    weights: Group = (),
    debug_info: str = "",
    link: ProcessLink | None = None,
    use_nccl: bool = False,
) -> NetDef:
    """Return a copy of a net whose batch normalizations use the statistics of the batches of all replicas together.

    The replicas' operators are interleaved. Before each SpatialBN in training mode, ChannelStats sums its input on each
    device, and the sums are added over the devices. Before each SpatialBNGradient, ChannelBackpropStats computes the
    gradients of scale and bias on each device, which are added over the devices too. Normalizations in test mode are
    not changed. On the CPU all replicas read the sums of the first one. GPUs exchange the sums by NCCL, or through the
    CPU, as in Caffe2.

    Args:
        net: a net with forward and backward pass of all replicas, and no exchange of gradients yet; left unchanged.
        devices: devices of the replicas.
        parts: number of replicas of all processes; None: those of this net.
        weights: for each replica the blob with the weight of its share of a batch, 0 for a share without samples. With
            them, shares may have different sizes: their numbers of elements are added as well. Without: all shares
            have the same size.
        debug_info: line of the user's program; the operators record it.
        link: how the sums of all processes are added; None: they are not.
        use_nccl: the replicas are on GPUs, whose sums NCCL adds.

    Raises:
        NetError: the replicas have different operators; or a normalization in training mode is in the subgraph of an
            operator, has ``num_batches`` already, or lacks the outputs for the statistics.
    """
    options: dict[str, Any] = {"parts": parts, "weights": weights, "debug_info": debug_info, "link": link}
    options["use_nccl"] = use_nccl
    return synchronize_batch_norm_pass(net, PassContext(devices=devices), **options).net


@net_pass
def synchronize_batch_norm_pass(
    net: NetDef,
    context: PassContext,
    *,
    parts: int | None = None,
    weights: Group = (),
    debug_info: str = "",
    link: ProcessLink | None = None,
    use_nccl: bool = False,
) -> PassResult:
    """Do what ``synchronize_batch_norm`` does; extra ``count``: how many normalizations each replica exchanges for."""
    devices = context.devices
    assert devices is not None
    source, result = NetDef(), NetDef()
    for copy in (source, result):
        copy.CopyFrom(net)
    if len(devices) < 2 and link is None or not normalizes_over_batch(net):
        return PassResult(result, {"count": 0})
    del result.op[:]
    names = {blob for op in net.op for blob in (*op.input, *op.output)}.union(net.external_input, context.available)
    by_nccl = use_nccl if link is None else link.by_nccl and not devices.is_cpu
    options: dict[str, Any] = {"counts": bool(weights), "debug_info": debug_info, "by_nccl": by_nccl}
    exchange = BatchNormExchange(result, devices, names, parts or len(devices), weights, **options)
    if link is not None:
        exchange.across, exchange.across_gpus = link.allreduce, link.allreduce_over_gpus
    for row in rows_of(source, devices):
        exchange.add_row(row)
    worlds = link.worlds[:1] if link is not None and exchange.count else ()
    result.external_input.extend(blob for blob in (*weights, *worlds) if blob not in names)
    return PassResult(result, {"count": exchange.count})
