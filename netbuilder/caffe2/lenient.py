"""Operators and nets as Caffe2's scripts build them: what is wrong with an operator is said when its net is created."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from netbuilder.caffe2.net_records import RecordNet
from netbuilder.caffe2.records import Field
from netbuilder.graph.blob import BlobReference, GradientSlice, blob_name
from netbuilder.graph.defuse import operators_between
from netbuilder.graph.gradient_context import OverwrittenInputError
from netbuilder.graph.gradients import Callback
from netbuilder.graph.net import Net, RemapFunction
from netbuilder.graph.operators import known_arguments, make_operator, unknown_arguments
from netbuilder.graph.source import source_with_path, warn_user
from netbuilder.ops.core.registry import find, is_registered
from netbuilder.proto import PROTO_CUDA, DeviceOption, NetDef, OperatorDef, UsageError
from netbuilder.proto.arguments import make_op

__all__ = ["IgnoredArgumentWarning", "LenientNet", "build_leniently", "warn_ignored"]


class IgnoredArgumentWarning(UserWarning):
    """An operator, or a builder, was given an argument that it does not read; given once for each type and argument."""


_warned: set[tuple[str, str]] = set()
_said: list[str] = []
_LOG = logging.getLogger("netbuilder")


def build_leniently(op_type: str, inputs: list[str], outputs: list[str], debug_info: str, **kwargs: Any) -> OperatorDef:
    """Return an operator that is not checked; arguments that it does not read are kept, with a warning.

    Args: as for ``build_operator``. The operator's type need not be known.
    """
    op = make_operator(op_type, inputs, outputs, debug_info, **kwargs)
    if is_registered(op_type):
        cls = find(op_type)
        for name in unknown_arguments(cls, op):
            warn_ignored(op_type, name, known_arguments(cls, name))
    return op


def warn_ignored(taker: str, name: str, text: str) -> None:
    """Warn, once for each pair, that an operator type or a builder ignores an argument; ``text`` ends the message."""
    if (taker, name) not in _warned:
        warn_user(f"{taker}: ignored argument {name!r}{text}", IgnoredArgumentWarning)
        _warned.add((taker, name))


class _EveryNet(type):
    """Makes ``isinstance(net, LenientNet)`` true of every net: scripts use it to tell a net from a step or a name."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Net)


class LenientNet(RecordNet, metaclass=_EveryNet):
    """A ``Net`` that takes operators without checks: numbers of blobs, in-place rules, arguments
    and the empty name of a blob.

    What is wrong is an error when the net is created in a workspace, as in Caffe2. An argument that an operator does
    not read is kept and ignored, with an ``IgnoredArgumentWarning``.
    """

    shares_counters = True
    _must_fill = False
    _unnamed = True
    _build = staticmethod(build_leniently)

    def AddExternalInput(self, *inputs: Any) -> Any:
        """Declare external inputs; a list declares its members, a record its blobs or, if it has none, its fields."""
        return super().AddExternalInput(*_flat(inputs))

    AddExternalInputs = AddExternalInput

    def ClonePartial(
        self,
        name: str,
        inputs: Mapping[Any, Any] | Iterable[Any],
        outputs: Mapping[Any, Any] | Iterable[Any],
        remap_funcs: Mapping[str, RemapFunction] | None = None,
    ) -> tuple[Net, list[BlobReference]]:
        """See ``Net.ClonePartial``; as in Caffe2, no operator of the copy may be one that the inputs come from.

        Raises:
            UsageError: one is.
        """
        given = inputs if isinstance(inputs, Mapping) else list(inputs)
        ops, read = self._net.op, [blob_name(blob) for blob in given]
        copied = operators_between(ops, read, [blob_name(blob) for blob in outputs])
        if both := sorted(set(copied) & set(operators_between(ops, [], read))):
            op = ops[both[0]]
            raise UsageError(
                f"net {self}: cannot clone a part with the inputs {read}: operator {both[0]} {op.type} -> "
                f"{list(op.output)} is needed for the outputs and makes what these inputs come from; give its "
                "outputs as inputs, or leave out the inputs that come after it"
            )
        return super().ClonePartial(name, given, outputs, remap_funcs)

    def AddGradientOperators(
        self,
        ys: Iterable[Any] | Mapping[Any, Any],
        skip: int = 0,
        *,
        callbacks: Sequence[Callback] = (),
    ) -> dict[BlobReference, BlobReference | GradientSlice]:
        """See ``Net.AddGradientOperators``.

        An operator that overwrites what its gradient reads, from which Caffe2 computes a wrong gradient, is given a
        copy of it, which is made right before it.
        """
        before: NetDef | None = None
        while True:
            try:
                return super().AddGradientOperators(ys, skip, callbacks=callbacks)
            except OverwrittenInputError as error:
                if before is None:
                    before = NetDef()
                    before.CopyFrom(self._net)
                self._keep_inputs(error)
            except BaseException:
                if before is not None:
                    self._net.CopyFrom(before)
                    self._blobs.invalidate()
                raise

    def _keep_inputs(self, error: OverwrittenInputError) -> None:
        """Let an operator read copies of the inputs that it overwrites."""
        index = next(i for i, op in enumerate(self._net.op) if op is error.op)
        for blob in error.blobs:
            kept = str(self.NextBlob(f"{blob}_kept"))
            # The gradient of a Sum reads nothing, where that of a Copy would read what is overwritten.
            copy = make_op("Sum", [blob], [kept], debug_info=error.op.debug_info)
            copy.device_option.CopyFrom(error.op.device_option)
            op = self._net.op[index]
            op.input[:] = [kept if name == blob else name for name in op.input]
            self.insert_op_at_idx(copy, index)
            index += 1

    def repeated_rows(self, gradient: GradientSlice) -> str:
        """See ``Net.repeated_rows``: as in Caffe2, they update a table one after another; said once."""
        if not _said:
            _said.append(str(gradient.values))
            _LOG.warning(
                "%s: where an index comes several times, its rows update the table one after another, as in Caffe2, so "
                "that results depend on their order and on the number of devices; sparse_dedup_aggregator='sum' adds "
                "them up first, and 'none' says that this is meant",
                gradient.values,
            )
        return "none"

    def RunAllOnGPU(self, gpu_id: int = 0, use_cudnn: bool = False) -> None:
        """Set the device of the net, and of the step nets that its recurrent operators hold, to a GPU."""
        super().RunAllOnGPU(gpu_id, use_cudnn)
        for op in self._net.op:
            if op.type == "RecurrentNetwork":
                for argument in op.arg:
                    if argument.name == "step_net":
                        argument.n.device_option.CopyFrom(DeviceOption(device_type=PROTO_CUDA, device_id=gpu_id))

    def reroute_tensor(
        self, tensor: Any, new_producer: OperatorDef, can_modify: Iterable[OperatorDef] | None = None
    ) -> int:
        """Insert an operator after a blob, and let readers of the blob read its first output instead.

        It comes after the operators that make what it reads; the net's external outputs follow, too. No blob of the net
        may be overwritten.

        Args:
            tensor: the blob.
            new_producer: reads it, and makes what is read instead.
            can_modify: operators of the net that read ``tensor``; None: none of them changes.

        Returns:
            How many operators were changed.

        Raises:
            UsageError: ``new_producer`` does not read the blob.
        """
        old, new = blob_name(tensor), new_producer.output[0]
        if old not in new_producer.input:
            raise UsageError(f"net {self}: {new_producer.type} reads {list(new_producer.input)} and not {old!r}")
        readers = list(can_modify or ())
        written = {blob: index for index, op in reversed(list(enumerate(self._net.op))) for blob in op.output}
        self.insert_op_at_idx(new_producer, max(written.get(blob, -1) for blob in new_producer.input) + 1)
        self._net.external_output[:] = [new if blob == old else blob for blob in self._net.external_output]
        changed = [op for op in self._net.op if op in readers]
        for op in changed:
            op.input[:] = [new if blob == old else blob for blob in op.input]
        self._blobs.invalidate()
        return len(changed)

    def PopulateProtoWithFileName(self) -> None:
        """Name each operator after the line that made it: "/path/to/file.py:123:function"."""
        for op in self._net.op:
            if op.debug_info and (name := source_with_path(op.debug_info)):
                op.name = name

    def _CheckLookupTables(self) -> None:
        """Read the net's message again; Caffe2's tests call this."""
        self._blobs.invalidate()
        self._blobs.refresh()


def _flat(inputs: Iterable[Any]) -> Iterator[Any]:
    for thing in inputs:
        if isinstance(thing, Field):
            yield from thing.field_blobs() if thing.has_blobs() else thing.field_names()
        elif isinstance(thing, (list, tuple)):
            yield from _flat(thing)
        else:
            yield thing
