"""Operators and nets as Caffe2's scripts build them: operators are checked only when their net is created."""

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
from netbuilder.graph.observability import ALL
from netbuilder.graph.operators import known_arguments, make_operator, unknown_arguments
from netbuilder.graph.source import source_with_path, warn_user
from netbuilder.ops.core.registry import find, is_registered
from netbuilder.proto import PROTO_CUDA, DeviceOption, NetDef, OperatorDef, UsageError
from netbuilder.proto.arguments import make_op

__all__ = ["IgnoredArgumentWarning", "LenientNet", "build_leniently", "logged_repeated_rows", "warn_ignored", "warned"]


class IgnoredArgumentWarning(UserWarning):
    """An operator or builder got an argument that it does not read; raised once per type and argument."""


warned: set[tuple[str, str]] = set()
logged_repeated_rows: list[str] = []
_LOG = logging.getLogger("netbuilder")


def build_leniently(
    op_type: str, inputs: list[str], outputs: list[str], debug_info: str, op: OperatorDef, /, **kwargs: Any
) -> OperatorDef:
    """Return an operator without checking it; arguments that it does not read are kept, with a warning.

    Args: see ``build_operator``. The operator type need not be registered. ``random_seed`` is the operator's seed.
    """
    seed = kwargs.pop("random_seed", None)
    make_operator(op_type, inputs, outputs, debug_info, op, **kwargs)
    if seed is not None:
        op.device_option.random_seed = seed
    if is_registered(op_type):
        cls = find(op_type)
        for name in unknown_arguments(cls, op):
            warn_ignored(op_type, name, known_arguments(cls, name))
    return op


def warn_ignored(owner: str, name: str, text: str) -> None:
    """Warn, once per pair, that an operator type or builder ignores an argument; the message ends with ``text``."""
    if (owner, name) not in warned:
        warn_user(f"{owner}: ignored argument {name!r}{text}", IgnoredArgumentWarning)
        warned.add((owner, name))


class _EveryNet(type):
    """Makes ``isinstance(net, LenientNet)`` True for every net: scripts use it to tell a net from a step or a name."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Net)


class LenientNet(RecordNet, metaclass=_EveryNet):
    """A ``Net`` that adds operators without checking them: number of blobs, in-place rules, arguments, blob names.

    Errors are raised when the net is created in a workspace, as in Caffe2. An argument that an operator does not read
    is kept and ignored, with an ``IgnoredArgumentWarning``.
    """

    shares_counters = True
    updates_as_in_caffe2 = True
    observes = ALL
    _must_fill = False
    _unnamed = True
    _build = staticmethod(build_leniently)

    def __str__(self) -> str:
        """The name alone, as in Caffe2, whose scripts use it as such."""
        return self.Name()

    def AddExternalInput(self, *inputs: Any) -> Any:
        """Declare external inputs; a list declares its elements, a record its blobs or, if it has none, its fields."""
        return super().AddExternalInput(*_flat(inputs))

    AddExternalInputs = AddExternalInput

    def ClonePartial(
        self,
        name: str,
        inputs: Mapping[Any, Any] | Iterable[Any],
        outputs: Mapping[Any, Any] | Iterable[Any],
        remap_funcs: Mapping[str, RemapFunction] | None = None,
    ) -> tuple[Net, list[BlobReference]]:
        """See ``Net.ClonePartial``; as in Caffe2, the copy must not contain an operator that the inputs depend on.

        Raises:
            UsageError: it contains one.
        """
        given = inputs if isinstance(inputs, Mapping) else list(inputs)
        ops, read = self._net.op, [blob_name(blob) for blob in given]
        copied = operators_between(ops, read, [blob_name(blob) for blob in outputs])
        if both := sorted(set(copied) & set(operators_between(ops, [], read))):
            op = ops[both[0]]
            raise UsageError(
                f"net {self}: cannot clone a part with the inputs {read}: operator {both[0]} {op.type} -> "
                f"{list(op.output)} is needed for the outputs, and these inputs depend on it; give its "
                "outputs as inputs, or drop the inputs that depend on it"
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

        Where an operator overwrites a blob that its gradient reads, Caffe2 computes a wrong gradient. Here the operator
        reads a copy instead, made right before it.
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
        """Make an operator read copies of the inputs that it overwrites."""
        index = next(i for i, op in enumerate(self._net.op) if op is error.op)
        for blob in error.blobs:
            kept = str(self.NextBlob(f"{blob}_kept"))
            # The gradient of Sum reads no blob; that of Copy would read the overwritten one.
            copy = make_op("Sum", [blob], [kept], debug_info=error.op.debug_info)
            copy.device_option.CopyFrom(error.op.device_option)
            op = self._net.op[index]
            op.input[:] = [kept if name == blob else name for name in op.input]
            self.insert_op_at_idx(copy, index)
            index += 1

    def repeated_rows(self, gradient: GradientSlice) -> str:
        """See ``Net.repeated_rows``: as in Caffe2, they update the table one after another; logged once."""
        if not logged_repeated_rows:
            logged_repeated_rows.append(str(gradient.values))
            _LOG.warning(
                "%s: an index that occurs several times updates its row that often, one after another, as in Caffe2; "
                "results depend on the order and on the number of devices; sparse_dedup_aggregator='sum' adds the "
                "gradients up first, 'none' silences this message",
                gradient.values,
            )
        return "none"

    def RunAllOnGPU(self, gpu_id: int = 0, use_cudnn: bool = False) -> None:
        """Set the device of the net, and of the step nets of its recurrent operators, to a GPU."""
        super().RunAllOnGPU(gpu_id, use_cudnn)
        for op in self._net.op:
            if op.type == "RecurrentNetwork":
                for argument in op.arg:
                    if argument.name == "step_net":
                        argument.n.device_option.CopyFrom(DeviceOption(device_type=PROTO_CUDA, device_id=gpu_id))

    def reroute_tensor(
        self, tensor: Any, new_producer: OperatorDef, can_modify: Iterable[OperatorDef] | None = None
    ) -> int:
        """Insert an operator that reads a blob, and make readers of the blob read the operator's first output instead.

        The operator is placed after those that write its inputs; the net's external outputs change, too. No blob of
        the net may be overwritten.

        Args:
            tensor: the blob.
            new_producer: the operator; reads the blob and writes its replacement.
            can_modify: operators of the net whose inputs may change; None: none.

        Returns:
            The number of changed operators.

        Raises:
            UsageError: ``new_producer`` does not read the blob.
        """
        old, new = blob_name(tensor), new_producer.output[0]
        if old not in new_producer.input:
            raise UsageError(f"net {self}: {new_producer.type} must read {old!r}, but reads {list(new_producer.input)}")
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
        """Name each operator after the line that created it: "/path/to/file.py:123:function"."""
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
