"""Batch normalization over all devices: the replicas exchange the sums that statistics and gradients are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from netbuilder.graph.blob import device_prefix
from netbuilder.graph.devices import Devices
from netbuilder.graph.rename import subgraphs
from netbuilder.graph.scope import SEPARATOR
from netbuilder.passes.interleave import rows_of
from netbuilder.passes.net_pass import PassContext, PassResult, net_pass
from netbuilder.proto import PROTO_CPU, DeviceOption, NetDef, NetError, OperatorDef
from netbuilder.proto.arguments import arguments, make_device_option, make_op, set_argument

__all__ = ["synchronize_batch_norm", "synchronize_batch_norm_pass"]

Group = Sequence[str]


def synchronize_batch_norm(
    net: NetDef, devices: Devices, *, parts: int | None = None, weights: Group = (), debug_info: str = ""
) -> NetDef:
    """Return a copy of a net whose batch normalizations use the statistics of the batches of all replicas together.

    The replicas' operators are interleaved. Before each SpatialBN in training mode, ChannelStats sums its input on each
    device, and the sums are added over the devices. Before each SpatialBNGradient, ChannelBackpropStats computes the
    gradients of scale and bias on each device, which are added over the devices too. Normalizations in test mode are
    not changed. On the CPU all replicas read the sums of the first one; on GPUs the sums are added on the CPU, as in
    Caffe2.

    Args:
        net: a net with forward and backward pass of all replicas, and no exchange of gradients yet; left unchanged.
        devices: devices of the replicas.
        parts: number of replicas of all processes; None: those of this net.
        weights: for each replica the blob with the weight of its share of a batch, 0 for a share without samples. With
            them, shares may have different sizes: their numbers of elements are added as well. Without: all shares
            have the same size.
        debug_info: line of the user's program; the operators record it.

    Raises:
        NetError: the replicas have different operators; or a normalization in training mode is in the subgraph of an
            operator, has ``num_batches`` already, or lacks the outputs for the statistics.
    """
    options = {"parts": parts, "weights": weights, "debug_info": debug_info}
    return synchronize_batch_norm_pass(net, PassContext(devices=devices), **options).net


@net_pass
def synchronize_batch_norm_pass(
    net: NetDef, context: PassContext, *, parts: int | None = None, weights: Group = (), debug_info: str = ""
) -> PassResult:
    """Do what ``synchronize_batch_norm`` does; extra ``count``: how many normalizations each replica exchanges for."""
    devices = context.devices
    assert devices is not None
    source, result = NetDef(), NetDef()
    for copy in (source, result):
        copy.CopyFrom(net)
    if len(devices) < 2 or not _check_operators(net):
        return PassResult(result, {"count": 0})
    del result.op[:]
    names = {blob for op in net.op for blob in (*op.input, *op.output)}.union(net.external_input, context.available)
    exchange = _Exchange(result, devices, names, parts or len(devices), weights, debug_info)
    for row in rows_of(source, devices):
        if _synchronizes(row[0], "SpatialBN"):
            exchange.forward(row)
        elif _synchronizes(row[0], "SpatialBNGradient"):
            exchange.backward(row)
        result.op.extend(row)
    result.external_input.extend(weight for weight in weights if weight not in names)
    return PassResult(result, {"count": exchange.count})


def _synchronizes(op: OperatorDef, kind: str) -> bool:
    return op.type == kind and not arguments(op).get("is_test", 0)


def _check_operators(net: NetDef) -> bool:
    """Return whether there is a normalization to synchronize, and raise NetError for one that cannot be."""
    found = False
    for op in net.op:
        for inner in _inside(op):
            if _synchronizes(inner, "SpatialBN"):
                raise NetError(
                    f"net {net.name!r}: {op.type} {list(op.output)} has SpatialBN {list(inner.output)} in its "
                    "subgraph, where devices cannot exchange statistics; use it outside of control flow, or "
                    "without combine_spatial_bn"
                )
        if not _synchronizes(op, "SpatialBN"):
            continue
        found = True
        number = arguments(op).get("num_batches", 1)
        if number > 1 or len(op.input) != _INPUTS:
            raise NetError(
                f"net {net.name!r}: SpatialBN {list(op.output)} has num_batches={number} and {len(op.input)} inputs: "
                "so it is over several parts of a batch already; combine_spatial_bn must add them itself"
            )
    return found


_INPUTS = 5  # of a SpatialBN over the batch of one device


def _inside(op: OperatorDef) -> Iterator[OperatorDef]:
    for subgraph in subgraphs(op):
        for inner in subgraph.op:
            yield inner
            yield from _inside(inner)


@dataclass
class _Exchange:
    """Appends the operators of the exchanges to a net, and changes the normalizations that read their results.

    Args:
        net: the net to append to.
        devices: devices of the replicas.
        names: the names of all blobs; extended.
        parts, weights, debug_info: see ``synchronize_batch_norm``.
    """

    net: NetDef
    devices: Devices
    names: set[str]
    parts: int
    weights: Group
    debug_info: str
    count: int = 0
    _counts: dict[str, str] = field(default_factory=dict)  # saved mean -> the count of its batch

    def forward(self, row: Sequence[OperatorDef]) -> None:
        """Append the sums over the inputs of SpatialBN on all devices, and let the operators read them."""
        self.count += 1
        stems = [op.input[0] for op in row]
        groups = [self._new(stems, "_sums"), self._new(stems, "_sumsq")]
        if self.weights:
            groups.append(self._new(stems, "_count"))
        for replica, op in enumerate(row):
            inputs = [op.input[0], *self.weights[replica : replica + 1]]
            self._add("ChannelStats", inputs, [group[replica] for group in groups], row, replica)
        for group in groups:
            totals = self._reduce(group, row)
            for op, total in zip(row, totals):
                op.input.append(total)
        if self.weights:
            self._counts.update((op.output[3], op.input[-1]) for op in row if len(op.output) > 3)
        for op in row:
            set_argument(op, "num_batches", self.parts)

    def backward(self, row: Sequence[OperatorDef]) -> None:
        """Append the gradients of scale and bias, summed over all devices, before SpatialBNGradient."""
        for replica, op in enumerate(row):
            x, _, dy, mean, deviation = op.input
            self._add("ChannelBackpropStats", [x, mean, deviation, dy], op.output[1:], row, replica)
        for output in (1, 2):
            group = [op.output[output] for op in row]
            self._reduce(group, row, into=group)
        for replica, op in enumerate(row):
            count = self._counts.get(op.input[3])
            op.input.extend(op.output[1:])
            if count is not None:
                op.input.extend([count, self.weights[replica]])
            set_argument(op, "num_batches", self.parts)

    def _reduce(self, group: Group, row: Sequence[OperatorDef], into: Group = ()) -> Group:
        """Append the sum of a group of blobs over the devices; return the blobs with the sum, one per device.

        Args:
            group: the blobs.
            row: the normalizations that the sum is for.
            into: the blobs that get the sum, one per device; without, on the CPU all devices read one blob.
        """
        home, terms = self._staged(group, row)
        total = self._new([home], "_combined")[0]
        self._op("Sum", terms, [total], _HOST if not self.devices.is_cpu else self.devices.options[0], row)
        if self.devices.is_cpu and not into:
            return [total] * len(group)
        results = list(into) or self._new(group, "_combined")
        kind = "Copy" if self.devices.is_cpu else "CopyCPUToGPU"
        for blob, option in zip(results, self.devices.options):
            self._op(kind, [total], [blob], option, row)
        return results

    def _staged(self, group: Group, row: Sequence[OperatorDef]) -> tuple[str, Group]:
        """Append the copies of a group from GPUs to the CPU; return the stem of the sum's name, and the terms."""
        if self.devices.is_cpu:
            return group[0], group
        copies = []
        home = _HOST_SCOPE + self.devices.short_name(group[0])
        for blob, number, option in zip(group, self.devices.ids, self.devices.options):
            copy = self._new([home], f"_{self.devices.word}_{number}_copy")[0]
            self._op("CopyGPUToCPU", [blob], [copy], option, row)
            copies.append(copy)
        return home, copies

    def _new(self, stems: Group, suffix: str) -> list[str]:
        """Return new names made of stems and a suffix, with a number where one of them is taken."""
        number, found = 0, [stem + suffix for stem in stems]
        while not self.names.isdisjoint(found):
            number += 1
            found = [f"{stem}{suffix}_{number}" for stem in stems]
        self.names.update(found)
        return found

    def _add(self, kind: str, inputs: Group, outputs: Group, row: Sequence[OperatorDef], replica: int) -> None:
        op = self._op(kind, inputs, outputs, self.devices.options[replica], row)
        order = arguments(row[replica]).get("order", b"NCHW")
        if order != b"NCHW":
            set_argument(op, "order", order)

    def _op(
        self, kind: str, inputs: Group, outputs: Group, option: DeviceOption, row: Sequence[OperatorDef]
    ) -> OperatorDef:
        op = self.net.op.add()
        op.CopyFrom(make_op(kind, inputs, outputs, device_option=option))
        note = f"{row[0].type} of {self.devices.short_name(row[0].input[0])!r} over {self.devices}"
        op.debug_info = f"{self.debug_info} ({note})" if self.debug_info else note
        return op


_HOST = make_device_option(PROTO_CPU, 0)
_HOST_SCOPE = device_prefix(PROTO_CPU, 0) + SEPARATOR
