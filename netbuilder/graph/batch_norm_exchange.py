"""The exchange of batch normalization over several devices: the sums that statistics and gradients are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from netbuilder.graph.blob import device_prefix
from netbuilder.graph.devices import Devices
from netbuilder.graph.scope import SEPARATOR
from netbuilder.ops.core.renaming import subgraphs
from netbuilder.proto import PROTO_CPU, DeviceOption, NetDef, NetError, OperatorDef
from netbuilder.proto.arguments import arguments, make_device_option, make_op, set_argument
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BatchNormExchange", "combined_statistics", "count_name", "normalizes_over_batch"]

Group = Sequence[str]


def _synchronizes(op: OperatorDef, kind: str) -> bool:
    return op.type == kind and not arguments(op).get("is_test", 0)


def normalizes_over_batch(net: NetDef) -> bool:
    """Return whether a net has normalizations in training mode, over which its replicas have to exchange sums.

    Raises:
        NetError: one is in the subgraph of an operator, has ``num_batches`` already, or lacks the outputs for the
            statistics.
    """
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
_MEAN = 3  # the index of the mean, among the outputs of SpatialBN and the inputs of its gradient
_COUNT = 2  # the index, among the outputs of ChannelStats, of the number of elements


def combined_statistics(net: NetDef) -> set[str]:
    """Return the running statistics of normalizations over parts of a batch, which are equal for all replicas."""
    parts = [op for op in net.op if op.type == "SpatialBN" and arguments(op).get("num_batches", 1) > 1]
    return {blob for op in parts for blob in op.output[1:_MEAN]}


def count_name(mean: str) -> str:
    """Return the name of the number of elements of a batch, given that of the mean that SpatialBN saves."""
    return f"{mean}_count"


def _inside(op: OperatorDef) -> Iterator[OperatorDef]:
    for subgraph in subgraphs(op):
        for inner in subgraph.op:
            yield inner
            yield from _inside(inner)


@dataclass
class BatchNormExchange:
    """Appends the operators of the exchanges to a net, and changes the normalizations that read their results.

    Args:
        net: the net to append to.
        devices: devices of the replicas.
        names: the names of all blobs; extended.
        across: returns the operators that replace blobs by their sums over all processes; None: there is one process.
        by_nccl: the devices are GPUs that NCCL sums over; without it GPUs exchange sums through the CPU, as in Caffe2.
        across_gpus: with ``by_nccl`` and several processes: returns the operators that replace the blobs of groups, one
            for each GPU, by their sums over all processes.
    """

    net: NetDef
    devices: Devices
    names: set[str]
    parts: int
    weights: Group = ()
    counts: bool = False
    debug_info: str = ""
    count: int = 0
    across: Callable[[Sequence[str]], Sequence[OperatorDef]] | None = None
    by_nccl: bool = False
    across_gpus: Callable[[Sequence[Group]], Sequence[OperatorDef]] | None = None
    _last: str = ""  # the first output of the last NCCLAllreduce

    def add_row(self, row: Sequence[OperatorDef]) -> None:
        """Append the same operator of all replicas and, if it normalizes or is the gradient of that, the exchange.

        Args:
            row: one operator for each replica, or one outside of them.
        """
        if _synchronizes(row[0], "SpatialBN"):
            self._forward(row)
        elif _synchronizes(row[0], "SpatialBNGradient"):
            self._backward(row)
        self.net.op.extend(row)

    def _forward(self, row: Sequence[OperatorDef]) -> None:
        """Append the sums over the inputs of SpatialBN on all devices, and let the operators read them."""
        self.count += 1
        stems = [op.input[0] for op in row]
        groups = [self._new(stems, "_sums"), self._new(stems, "_sumsq")]
        if self.counts:  # NCCL adds in place
            groups.append((self._count_names(row) if self.by_nccl else []) or self._new(stems, "_count"))
        for replica, op in enumerate(row):
            inputs = [op.input[0], *self.weights[replica : replica + 1]]
            self._add("ChannelStats", inputs, [group[replica] for group in groups], row, replica)
        sums = range(len(groups))
        into = groups if self.by_nccl else [self._count_names(row) if number == _COUNT else () for number in sums]
        for totals in self._reduce(groups, row, into):
            for op, total in zip(row, totals):
                op.input.append(total)
        for op in row:
            set_argument(op, "num_batches", self.parts)

    def _count_names(self, row: Sequence[OperatorDef]) -> list[str]:
        """Return the blobs that get the numbers of elements of the batch; the gradient reads them by the same names."""
        if len(row[0].output) <= _MEAN:
            return []
        found = [count_name(op.output[_MEAN]) for op in row[: 1 if self.devices.is_cpu else None]]
        if taken := self.names.intersection(found):
            raise NetError(
                f"net {self.net.name!r}: {sorted(taken)} are names of blobs for the number of elements that SpatialBN "
                f"{list(row[0].output)} normalizes over; give other blobs another name"
            )
        self.names.update(found)
        return found

    def _backward(self, row: Sequence[OperatorDef]) -> None:
        """Append the gradients of scale and bias, summed over all devices, before SpatialBNGradient."""
        for replica, op in enumerate(row):
            x, _, dy, mean, deviation = op.input
            self._add("ChannelBackpropStats", [x, mean, deviation, dy], op.output[1:], row, replica)
        groups = [[op.output[output] for op in row] for output in (1, 2)]
        self._reduce(groups, row, into=groups)
        for replica, op in enumerate(row):
            op.input.extend(op.output[1:])
            if self.counts:
                mean = row[0].input[_MEAN] if self.devices.is_cpu else op.input[_MEAN]
                op.input.extend([count_name(mean), *self.weights[replica : replica + 1]])
            set_argument(op, "num_batches", self.parts)

    def _reduce(self, groups: Sequence[Group], row: Sequence[OperatorDef], into: Sequence[Group]) -> list[Group]:
        """Append the sums of groups of blobs over all devices; return for each the blobs with the sum, one per device.

        Args:
            groups: the groups of blobs.
            row: the normalizations that the sums are for.
            into: for each group the blobs that get the sum, one per device, or one that all devices read; without, they
                are new, and on the CPU all devices read one.
        """
        if self.by_nccl:
            self._sum_by_nccl(groups, row)
            return list(groups)
        if self.across is None:
            pairs = zip(groups, into)
            return [
                self._results(self._local_sum(group, row, results), group, row, results) for group, results in pairs
            ]
        totals = [self._local_sum(group, row, results) for group, results in zip(groups, into)]
        self.net.op.extend(self.across(totals))
        return [self._results(total, group, row, results) for total, group, results in zip(totals, groups, into)]

    def _sum_by_nccl(self, groups: Sequence[Group], row: Sequence[OperatorDef]) -> None:
        """Append the sums of groups over all GPUs, in place."""
        if self.across_gpus is not None:
            self.net.op.extend(self.across_gpus(groups))
            return
        for group in groups:
            op = self._op("NCCLAllreduce", group, group, self.devices.options[0], row)
            op.control_input.extend([self._last] if self._last else [])  # as for gradients, their order is fixed
            self._last = group[0]

    def _local_sum(self, group: Group, row: Sequence[OperatorDef], into: Group) -> str:
        """Append the sum of a group over the devices of this process; return the blob with the sum, on the CPU."""
        home, terms = self._staged(group, row)
        named = into[0] if self.devices.is_cpu and len(into) == 1 else ""
        if len(terms) == 1 and named in ("", terms[0]):
            return terms[0]
        total = named or self._new([home], "_combined")[0]
        self._op("Sum", terms, [total], _HOST if not self.devices.is_cpu else self.devices.options[0], row)
        return total

    def _results(self, total: str, group: Group, row: Sequence[OperatorDef], into: Group) -> Group:
        """Append the copies of a sum to the devices; return the blob that each of them reads."""
        if self.devices.is_cpu and len(into) < 2:
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
        line = self.debug_info or row[0].debug_info
        op.debug_info = f"{line} ({note})" if line else note
        return op


_HOST = make_device_option(PROTO_CPU, 0)
_HOST_SCOPE = device_prefix(PROTO_CPU, 0) + SEPARATOR
