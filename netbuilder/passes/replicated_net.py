"""A subgraph replicated over devices: its operators once for each device, with the blobs and the device of each.

The inputs are distributed before the operators, and each output is merged right after the last operator that its
results depend on, so that the reduction of a gradient can run at the same time as the rest of the backward pass.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from netbuilder.graph.batch_means import sums_first
from netbuilder.graph.batch_norm_exchange import BatchNormExchange, count_name
from netbuilder.graph.defuse import undefined_inputs
from netbuilder.graph.devices import Devices
from netbuilder.ops.core.replication import Distributed, Merged, Replication
from netbuilder.passes.replicate import Template, draw_as, place
from netbuilder.proto import NetDef, OperatorDef
from netbuilder.proto.arguments import make_op, set_argument

__all__ = ["replicated_net"]

_SHARE = "_share"  # suffix of a result times the fraction of the batch that its device has


def replicated_net(net: NetDef, replication: Replication) -> NetDef:
    """Return a net that runs a subgraph on several devices at the same time.

    Its external outputs are the merged outputs, and the blobs to keep of all devices. Blobs of the subgraph other than
    inputs that all devices read are under the scope of their device.

    Args:
        net: the subgraph; unchanged.
        replication: the devices, and the inputs and outputs.
    """
    return _Replicated(net, replication).net()


class _Names(dict[str, str]):
    """Maps blobs of the subgraph to those of one device: those that have no other name are under its scope."""

    def __init__(self, scope: str) -> None:
        super().__init__({"": ""})  # an output that nobody reads
        self._scope = scope

    def __missing__(self, name: str) -> str:
        renamed = self[name] = self._scope + name
        return renamed


class _Replicated:
    def __init__(self, net: NetDef, replication: Replication) -> None:
        self._net, self._replication = net, replication
        self._devices = Devices(replication.device_type, replication.devices)
        self._count = len(self._devices)
        self._uneven = len(set(replication.shares)) > 1
        self._first_samples = [sum(replication.shares[:i]) if self._uneven else None for i in range(self._count)]
        self._names = list(map(_Names, self._devices.scopes))
        for given in replication.inputs:
            if given.mode in ("whole", "updated"):
                for names in self._names if given.mode == "whole" else self._names[:1]:
                    names[given.inner] = given.outer
        self._templates = list(map(Template, net.op))

    def _copies(self, inner: str) -> list[str]:
        """Return the names of a blob of the subgraph, one for each device."""
        return [names[inner] for names in self._names]

    def net(self) -> NetDef:
        result = NetDef(name=self._net.name, type="dag")
        for given in self._replication.inputs:
            result.op.extend(self._distribution(given))
        due = self._due()
        result.op.extend(due.pop(-1, ()))
        if self._replication.combine_spatial_bn and self._count > 1:
            self._add_rows(result, due)
        else:
            self._add_replicas(result, due)
        self._combine_means(result)
        if any(op.is_gradient_op for op in self._net.op):
            for op in result.op:
                op.is_gradient_op = True
        result.external_input.extend(undefined_inputs(result.op))
        written = {name for op in result.op for name in op.output}
        merged = [name for output in self._replication.outputs for name in (output.outer, output.rows) if name]
        kept = [name for blob in self._replication.kept for name in self._kept(blob, written)]
        result.external_output.extend(dict.fromkeys([*merged, *kept]))
        return result

    def _add_replicas(self, result: NetDef, due: Mapping[int, Sequence[OperatorDef]]) -> None:
        """Append the operators of one device after another, and what is due after those of the last device."""
        for device in range(self._count):
            last = device == self._count - 1
            for index, template in enumerate(self._templates):
                result.op.append(self._replica(device, template))
                if last:
                    result.op.extend(due.get(index, ()))

    def _add_rows(self, result: NetDef, due: Mapping[int, Sequence[OperatorDef]]) -> None:
        """Append each operator for all devices, so that they reach the exchanges of batch normalization together."""
        taken = {name for op in self._net.op for blob in (*op.input, *op.output) for name in self._copies(blob)}
        exchange = BatchNormExchange(
            result, self._devices, taken, self._count, counts=self._uneven, by_nccl=self._replication.use_nccl
        )
        for index, template in enumerate(self._templates):
            exchange.add_row([self._replica(device, template) for device in range(self._count)])
            result.op.extend(due.get(index, ()))

    def _combine_means(self, result: NetDef) -> None:
        """Append the sums of the divisors of means over the whole batch, and let them run early."""
        copied = {name for op in self._net.op if op.type == "Copy" for name in op.output}
        means = (op for op in self._net.op if op.type == "WholeBatchMean")
        groups = [self._copies(name) for name in dict.fromkeys(op.input[2] for op in means) if name in copied]
        if not groups or self._count == 1:
            return
        sums, options = list[OperatorDef](), self._devices.options
        for group in groups:
            sums.append(make_op("Sum", group, group[:1], device_option=options[0]))
            sums += [
                make_op("Copy", group[:1], [blob], device_option=option) for blob, option in zip(group[1:], options[1:])
            ]
        ops = sums_first(list(result.op), [name for group in groups for name in group], sums)
        del result.op[:]
        result.op.extend(ops)

    def _kept(self, blob: str, written: Collection[str]) -> list[str]:
        """Return the blobs to keep for one of the subgraph: its copies, and the count of the batch if it is a mean."""
        found = self._copies(blob)
        counts = map(count_name, found) if self._replication.combine_spatial_bn and self._uneven else ()
        return [*found, *(name for name in counts if name in written)]

    def _distribution(self, given: Distributed) -> list[OperatorDef]:
        options = self._devices.options
        if given.mode == "split":
            rows = list(given.rows)
            return [
                make_op("Split", [given.outer], self._copies(given.inner), axis=0, split=rows, device_option=options[0])
            ]
        if given.mode == "scaled":
            copies = self._copies(given.inner)
            return [op for device, copy in enumerate(copies) for op in self._weighted(device, given.outer, copy)]
        if given.mode == "updated":
            copies = self._copies(given.inner)[1:]
            return [
                make_op("Copy", [given.outer], [copy], device_option=option)
                for copy, option in zip(copies, options[1:])
            ]
        return []

    def _weighted(self, device: int, blob: str, result: str) -> Iterator[OperatorDef]:
        """Yield the operators that multiply a blob by the fraction of the batch that a device has.

        The factors are arguments of float32: 1/n, which Scale makes exact for float64, and a whole number.
        """
        total, share, option = sum(self._replication.shares), self._replication.shares[device], self._devices.options
        common = math.gcd(total, share)
        yield make_op("Scale", [blob], [result], scale=common / total, device_option=option[device])
        if share > common:
            yield make_op("Scale", [result], [result], scale=float(share // common), device_option=option[device])

    def _replica(self, device: int, template: Template) -> OperatorDef:
        replica = template.operator(self._names[device])
        place(replica, self._devices.options[device])
        if replica.type == "WholeBatchMean":
            set_argument(replica, "parts", float(sum(self._replication.shares)))
            set_argument(replica, "part", float(self._replication.shares[device]))
        draw_as(replica, self._devices.scopes[device], device, self._first_samples[device])
        return replica

    def _due(self) -> dict[int, list[OperatorDef]]:
        """Return the operators that merge outputs, by the last operator of the subgraph that they wait for."""
        last = {name: index for index, op in enumerate(self._net.op) for name in op.output}
        due: dict[int, list[OperatorDef]] = defaultdict(list)
        for output in self._replication.outputs:
            due[last.get(output.inner, -1)] += self._merge(output)
        return due

    def _merge(self, output: Merged) -> list[OperatorDef]:
        options, parts = self._devices.options, self._copies(output.inner)
        made: list[OperatorDef] = []
        if output.mode == "updated":
            return []
        if output.mode == "mean":
            weighted = [self._devices.scopes[device] + output.inner + _SHARE for device in range(self._count)]
            for device, (part, name) in enumerate(zip(parts, weighted)):
                made += self._weighted(device, part, name)
            parts = weighted
        if output.mode == "concat":
            written = [output.outer, output.rows or output.outer + "_rows"]
            return [*made, make_op("Concat", parts, written, axis=0, device_option=options[0])]
        op_type = "Copy" if self._count == 1 else "NCCLReduce" if self._replication.use_nccl else "Sum"
        return [*made, make_op(op_type, parts, [output.outer], device_option=options[0])]
