"""ParallelDo: a part of a net, built once, that runs on several devices with a share of the batch on each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

from netbuilder.graph.batch_means import BatchMeans, Kind, split_means
from netbuilder.graph.batch_norm_exchange import normalizes_over_batch
from netbuilder.graph.blob import BlobReference, ScopedName
from netbuilder.graph.defuse import undefined_inputs
from netbuilder.graph.replicas import has_record
from netbuilder.graph.scope import SEPARATOR, DeviceScope, EmptyNameScope
from netbuilder.graph.source import warn_user
from netbuilder.graph.versions import describe
from netbuilder.model import ModelHelper
from netbuilder.ops.core.renaming import rename_in_operator
from netbuilder.parallel import settings
from netbuilder.parallel.options import DataParallelOptions, takes_options
from netbuilder.proto import PROTO_CPU, NetDef, NetError, OperatorDef, UsageError
from netbuilder.proto.suggestions import suggests_arguments

__all__ = ["ParallelDo"]

_MERGES = ("concat", "mean", "sum")


class ParallelDo:
    """A block of operators that runs on several devices at the same time, each with a share of the batch.

    What the block adds to ``model.net`` becomes the net of one operator, ParallelDo. In each run its inputs are split
    along their first axis, each device runs the net with its share, and the outputs are merged. Parameters exist once;
    all devices read them, and their gradients are summed over the devices while the backward pass still runs. The
    training is that of a single device with the whole batch. A batch that the number of devices does not divide gives
    the first devices one sample more, and a batch of fewer samples than devices uses only as many devices.

    Operators of the block may read inputs and parameters of the model. Parameters that they overwrite, such as running
    averages, get the values of the first device. The other blobs of the block are private; in the workspace those of
    device 1 of the CPU are under the scope ``cpu_1/<name>/``.

    Args:
        model: the model; layers inside the block create their parameters as outside.
        devices: device numbers; None: all GPUs, or as many replicas as the CPU has cores.
        device_type: PROTO_CPU or PROTO_CUDA.
        name: prefix of the block's blobs; made unique in the net.
        options: ``use_nccl`` and ``combine_spatial_bn`` of ``DataParallelOptions``, which are keywords, too. Without
            ``combine_spatial_bn`` each device normalizes its own share, and the running averages are those of the first
            device.

    Raises:
        TypeError: ``model`` is not a ModelHelper, or a flag is neither True nor False.
        NetError: the device type or a device is none, or the model is data-parallel already.
        DeviceError: ``devices`` is None and there is no GPU.

    >>> from netbuilder.model import brew
    >>> model = ModelHelper("example")
    >>> with ParallelDo(model, devices=[0, 1]) as block:
    ...     x, label = block.read_input("data"), block.read_input("label")
    ...     scores = brew.fc(model, x, "scores", dim_in=4, dim_out=3)
    ...     _, loss = model.net.SoftmaxWithLoss([scores, label], ["softmax", "loss"])
    ...     loss = block.write_output(loss, merge="mean")
    >>> gradients = model.AddGradientOperators([loss])
    >>> [op.type for op in model.net.Proto().op]
    ['ParallelDo', 'ConstantFill', 'ParallelDoGradient']
    >>> model.param_to_grad[model.params[0]]
    BlobReference("scores_w_grad")
    """

    @suggests_arguments
    @takes_options
    def __init__(
        self,
        model: ModelHelper,
        devices: Iterable[int] | None = None,
        *,
        device_type: int = PROTO_CPU,
        name: str = "parallel_do",
        options: DataParallelOptions | None = None,
        **fields: Any,
    ) -> None:
        assert options is not None
        if not isinstance(model, ModelHelper):
            raise TypeError(
                f"ParallelDo: the model must be a ModelHelper, got {model!r} of type {type(model).__name__}"
            )
        if has_record(model.net.Proto()):
            raise NetError(
                f"ParallelDo: model {model.name!r} is data-parallel already; call ParallelDo in the builder that "
                "Parallelize is given, or make a new ModelHelper"
            )
        self.devices = settings.choose_devices(devices, settings.check_device_type(device_type))
        self.outputs: list[BlobReference] = []  # references to the merged outputs, in the order of ``write_output``
        self._model = model
        self._use_nccl = settings.choose_nccl(options.use_nccl, self.devices)
        self._combine_spatial_bn = options.combine_spatial_bn
        self.name = str(model.net.NextBlob(model.net.Name() + SEPARATOR + name))
        self._start: NetDef | None = None  # the net before the block
        self._ended = False
        self._split: dict[str, str] = {}  # blob outside -> its share inside
        self._whole: set[str] = set()
        self._merged: dict[str, str] = {}  # result inside, as the block names it -> how it is merged

    def __enter__(self) -> ParallelDo:
        if self._start is not None:
            raise UsageError(f"{self}: its block has been built already; make another ParallelDo")
        self._start = NetDef()
        self._start.CopyFrom(self._model.net.Proto())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._start is not None
        self._ended = True
        net = self._model.net
        ops = [_copy(op) for op in net.Proto().op[len(self._start.op) :]]
        net.replace_message(self._start)
        if kind is None:
            self._add(ops)

    def __str__(self) -> str:
        return f"ParallelDo {self.name!r}"

    def read_input(self, blob: Any, *, split: bool = True) -> BlobReference:
        """Return a reference to an input, for use in the block.

        Args:
            blob: a blob outside the block; a string gets the current name scope.
            split: give each device a share of the samples, which are the rows of the first axis; False: all devices
                read the whole blob.

        Raises:
            UsageError: the call is outside the block.
            NetError: the block made the blob, or it was read in the other way before.
        """
        name = ScopedName(blob)
        self._require_open("read_input")
        if name in self._written():
            raise NetError(f"{self}: {name!r} is made in the block, so it is no input; use it directly")
        if name in (self._whole if split else self._split):
            raise NetError(f"{self}: input {name!r} is read both whole and split; read it in one way")
        if not split:
            self._whole.add(name)
            return BlobReference(name, self._model.net)
        inner = self._split.setdefault(name, self.name + SEPARATOR + name)
        return BlobReference(inner, self._model.net)

    def write_output(self, blob: Any, merge: str = "concat") -> BlobReference:
        """Make a result of the block an output, which has the same name outside.

        Args:
            blob: a blob that operators of the block write.
            merge: "concat": the rows of all devices, one after the other, along the first axis; "mean": the mean over
                the batch, that is, the results of the devices weighted by their numbers of samples; "sum".

        Returns:
            A reference to the merged blob, for use after the block.

        Raises:
            UsageError: the call is outside the block.
            NetError: the block does not make the blob, it is an output already, or ``merge`` is unknown.
        """
        name = ScopedName(blob)
        self._require_open("write_output")
        if merge not in _MERGES:
            raise NetError(f"{self}: output {name!r}: merge must be one of {', '.join(_MERGES)}, got {merge!r}")
        if name in self._merged:
            raise NetError(f"{self}: {name!r} is an output already; write it once")
        if name not in self._written():
            raise NetError(f"{self}: no operator of the block writes {name!r}, so it cannot be an output")
        self._merged[name] = merge
        self.outputs.append(BlobReference(name, self._model.net))
        return self.outputs[-1]

    def _require_open(self, method: str) -> None:
        if self._start is None or self._ended:
            raise UsageError(f"{self}: {method} must be called in its with block")

    def _written(self) -> set[str]:
        """Return the blobs that the block has written so far."""
        assert self._start is not None
        return {name for op in self._model.net.Proto().op[len(self._start.op) :] for name in op.output}

    # When the block ends

    def _add(self, ops: list[OperatorDef]) -> None:
        """Append the operator whose net has the block's operators."""
        if not self._split:
            raise NetError(f"{self} has no input to split over the devices; call read_input in its block")
        if not self._merged:
            raise NetError(f"{self} has no output; call write_output in its block")
        whole = self._read_whole(ops)
        ops = self._combine_means(ops, whole)
        written = {name for op in ops for name in op.output}
        updated = [name for name in whole if name in written]
        local = {name: self.name + SEPARATOR + name for name in (*whole, *written)}
        local.update({inner: inner for inner in self._split.values()})
        for op in ops:
            rename_in_operator(op, local)
        inputs, outputs = [*self._split, *whole], [*self._merged, *updated]
        inner_inputs = [*self._split.values(), *(local[name] for name in whole)]
        inner_outputs = [local[name] for name in outputs]
        net = NetDef(name=self.name, op=ops, external_input=inner_inputs, external_output=inner_outputs)
        combines = self._combine_spatial_bn and normalizes_over_batch(net)
        with EmptyNameScope(), DeviceScope(self.devices.options[0]):
            self._model.net.ParallelDo(
                [BlobReference(name) for name in inputs],
                [BlobReference(name) for name in (*outputs, self.name + SEPARATOR + "sizes")],
                net=net,
                devices=self.devices.ids,
                device_type=self.devices.device_type,
                inner_inputs=inner_inputs,
                modes=["split"] * len(self._split) + ["updated" if name in updated else "whole" for name in whole],
                inner_outputs=inner_outputs,
                merge=[*self._merged.values(), *("updated" for _ in updated)],
                use_nccl=self._use_nccl,
                combine_spatial_bn=combines or None,
            )

    def _combine_means(self, ops: list[OperatorDef], whole: Sequence[str]) -> list[OperatorDef]:
        """Return the operators with means whose divisor the data determine as means over the whole batch."""
        found = BatchMeans(ops, whole)
        for name, merge in self._merged.items():
            why = found.why(name) if found.kind(name) == Kind.MIXED or merge == "mean" else ""
            if found.kind(name) == Kind.MEAN and merge == "sum":
                why = "it is a mean over samples; merge it by 'mean'"
            if why and merge != "concat":
                warn_user(f"{self}: output {name!r} depends on the number of devices: {why}")
        taken = {name for op in ops for name in (*op.input, *op.output)}.union(whole, self._split)
        return split_means(ops, found, taken).ops

    def _read_whole(self, ops: Sequence[OperatorDef]) -> list[str]:
        """Return the blobs outside that the block reads as they are.

        Raises:
            NetError: one is neither an input nor a parameter.
        """
        init_net = self._model.param_init_net.Proto()
        known = {str(param) for param in (*self._model.GetAllParams(""), *self._model.GetComputedParams(""))}
        known.update(name for op in init_net.op for name in op.output)
        inputs = set(self._split.values())
        read = [name for name in undefined_inputs(ops) if name not in inputs]
        for name in read:
            if name in self._whole or name in known and name not in self._split:
                continue
            index, op = next((index, op) for index, op in enumerate(ops) if name in op.input)
            remedy = (
                "use the reference that read_input returned, which is the device's share"
                if name in self._split
                else "give it to the block by read_input, or with split=False if all devices read the whole blob"
            )
            raise NetError(
                f"{self}: {describe(op, index)} reads {name!r}, which is neither an input of the block nor a parameter "
                f"of model {self._model.name!r}; {remedy}"
            )
        return read


def _copy(op: OperatorDef) -> OperatorDef:
    copy = OperatorDef()
    copy.CopyFrom(op)
    return copy
