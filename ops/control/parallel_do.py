"""ParallelDo: a net that runs on several devices at the same time, each with a share of the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal
from weakref import WeakKeyDictionary

import numpy as np

from netbuilder.ops.core.contexts import LEFT_AS_IS, GradientContext, RunContext, Sparse
from netbuilder.ops.core.instructions import describe_operator, infer_outputs, located, read_instruction
from netbuilder.ops.core.operator import Operator, TensorSpec, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.core.replication import Distributed, Merged, Replication, share_sizes
from netbuilder.proto import PROTO_CPU, ArgumentError, GradientError, NetDef, NetError, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["OnDevices", "ParallelDo", "ParallelDoGradient"]

_MODES = ("split", "whole", "updated")
_MERGES = ("concat", "mean", "sum", "updated")
_GIVEN = {"concat": "split", "mean": "scaled", "sum": "whole"}  # how the devices get the gradient of a merged output

_KEPT_CALLS = 8  # compiled nets kept for each operator, one for each division of a batch

_compiled: WeakKeyDictionary[Any, dict[Any, Callable[[], None]]] = WeakKeyDictionary()


@dataclass(frozen=True)
class _Inner:
    """What the spec of the sizes has for the gradient, whose shapes follow from it.

    Args:
        shares: the number of samples of each device at work.
        blobs: for each of these numbers, the specs of the blobs of the net on such a device.
        results: for each row of the sizes but the first, the name of the output in the net.
    """

    shares: tuple[int, ...]
    blobs: Mapping[int, Mapping[str, TensorSpec]]
    results: tuple[str, ...]


@dataclass(frozen=True)
class OnDevices(Operator):
    """Base: a net, the devices that run it, and for each input and output its name in the net."""

    dynamic = True
    stateful = True
    copy_arguments = False
    blob_arguments: ClassVar[tuple[str, ...]] = ("inner_inputs", "inner_outputs")
    net: NetDef | None = None
    devices: tuple[int, ...] = ()
    device_type: int = PROTO_CPU
    inner_inputs: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    inner_outputs: tuple[str, ...] = ()
    merge: tuple[str, ...] = ()
    use_nccl: bool = False
    combine_spatial_bn: bool = False

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "any"

    def check(self) -> None:
        if self.net is None:
            raise ArgumentError(f"{self.type}: the argument net, a net, must be given")
        if not self.devices or len(set(self.devices)) < len(self.devices):
            raise ArgumentError(f"{self.type}: devices must list different devices, at least one, got {self.devices}")

    def infer_partial(
        self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]
    ) -> tuple[Sequence[TensorSpec | None], Sequence[TensorSpec | None]]:
        known = [spec for spec in inputs if spec is not None]
        return inputs, outputs if len(known) < len(inputs) else self.infer(*known)

    def _infer_net(self, specs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
        """Return the specs of all blobs of the net on one device, given those of what it reads."""
        net, found = self.net or NetDef(), dict(specs)
        for index, op_def in enumerate(net.op):
            if any(name not in found for name in op_def.input):
                raise NotImplementedError(f"{self.type}: the shapes of {list(op_def.input)} are not known")
            inputs = [found[name] for name in op_def.input]
            try:
                instruction = read_instruction(index, op_def)
                made: Sequence[TensorSpec | None] | None = infer_outputs(instruction, inputs)
                if made is None:  # an operator with a subgraph may know them
                    made = instruction.op.infer_partial(inputs, [None] * len(op_def.output))[1]
            except NetError as error:
                raise located(describe_operator(net.name, index, op_def), error, in_subgraph=True) from error
            for name, spec in zip(op_def.output, made):
                if spec is None:
                    raise NotImplementedError(f"{self.type}: the shapes of {list(op_def.output)} depend on data")
                found[name] = spec.plain
        return found

    def _merged(self, name: str, merge: str, parts: Sequence[TensorSpec]) -> TensorSpec:
        first = parts[0]
        if merge == "updated":
            return first
        joined = merge == "concat"
        require(
            first.ndim > 0 or not joined,
            self,
            f"output {name!r} is one number on each device, which cannot be concatenated; merge it by 'mean' or 'sum'",
        )
        for device, part in zip(self.devices, parts):
            require(
                part.shape[joined:] == first.shape[joined:] and part.dtype == first.dtype,
                self,
                f"output {name!r} has shape {part.shape} on device {device} and {first.shape} on device "
                f"{self.devices[0]}, so it cannot be merged by {merge!r}"
                + ("" if joined else "; outputs with a row for each sample are merged by 'concat'"),
            )
        require(
            merge != "mean" or first.dtype.kind == "f",
            self,
            f"output {name!r} is of type {first.dtype}, and only floating-point outputs are merged by 'mean'",
        )
        return first.with_shape((sum(part.shape[0] for part in parts), *first.shape[1:])) if joined else first


@register
@dataclass(frozen=True)
class ParallelDo(OnDevices):
    """Run ``net`` on several devices at the same time, each with a share of the batch, and merge the outputs.

    The samples are divided evenly, except that the first devices may have one more; if there are fewer samples than
    devices, only as many devices work as there are samples. The last output has the sizes: in its first row the number
    of samples of each device at work, then for each output the number of its rows on each device.

    Args:
        net: the net; its blobs on device 1 of the CPU are under the scope ``cpu_1/`` in the workspace.
        devices, device_type: the devices.
        inner_inputs: for each input its name in ``net``.
        modes: for each input "split" (along axis 0), "whole" (all devices read it) or "updated" (``net`` overwrites it,
            and the first device's value counts).
        inner_outputs: for each output but the last its name in ``net``.
        merge: for each of these "concat" (along axis 0), "mean" (weighted by the numbers of samples), "sum", or
            "updated".
        kept: set by the gradient: the blobs of ``net`` that it reads.
        use_nccl: sum gradients on GPUs by NCCL's operators.
        combine_spatial_bn: SpatialBN in training mode uses the statistics of the whole batch.
    """

    signature = """
        X+ (...): any
        -> Y+ (...): any, the last are the sizes, (len(Y), D) of int32
    """
    effects = ""
    inplace = "one-to-one"
    blob_arguments: ClassVar[tuple[str, ...]] = ("inner_inputs", "inner_outputs", "kept")
    kept: tuple[str, ...] = ()

    def check(self) -> None:
        super().check()
        for given, number, known, what in (
            (self.modes, self.n_in, _MODES, "modes"),
            (self.merge, self.n_out - 1, _MERGES, "merge"),
        ):
            names = self.inner_inputs if known is _MODES else self.inner_outputs
            if len(given) != number or len(names) != number or not set(given) <= set(known):
                raise ArgumentError(
                    f"ParallelDo: {what} must have one of {', '.join(known)} for each of the {number} names in "
                    f"{'inner_inputs' if known is _MODES else 'inner_outputs'}, got {given} for {names}"
                )
        if "split" not in self.modes:
            raise ArgumentError("ParallelDo: no input is split over the devices; give at least one")

    def shares(self, names: Sequence[str], xs: Sequence[Any]) -> tuple[int, ...]:
        """Return the number of samples of each device at work.

        Args:
            names: of the inputs, for messages.
            xs: arrays or specs.

        Raises:
            ShapeError: the inputs have different numbers of samples, or none.
        """
        split = {name: x.shape for name, x, mode in zip(names, xs, self.modes) if mode == "split"}
        counts = {shape[0] if shape else 0 for shape in split.values()}
        shapes = ", ".join(f"{name!r} of shape {tuple(shape)}" for name, shape in split.items())
        require(len(counts) == 1, self, f"the inputs that are split must have the same number of samples, got {shapes}")
        samples = counts.pop()
        require(samples > 0, self, f"a batch must have at least one sample, got {shapes}")
        return tuple(share_sizes(samples, min(samples, len(self.devices))))

    def infer(self, *xs: TensorSpec) -> tuple[TensorSpec, ...]:
        shares = self.shares(self.inner_inputs, xs)
        by_size = {size: self._infer_net(self._share(size, xs)) for size in dict.fromkeys(shares)}
        found = [
            self._merged(name, merge, [by_size[size][name] for size in shares])
            for name, merge in zip(self.inner_outputs, self.merge)
        ]
        inner = _Inner(shares, by_size, self.inner_outputs)
        sizes = TensorSpec((len(found) + 1, len(shares)), np.dtype(np.int32), inner=inner)
        return (*found, sizes)

    def _share(self, size: int, xs: Sequence[TensorSpec]) -> dict[str, TensorSpec]:
        """Return the specs of the net's inputs on a device with ``size`` samples."""
        return {
            name: x.with_shape((size, *x.shape[1:])) if mode == "split" else x.plain
            for name, x, mode in zip(self.inner_inputs, xs, self.modes)
        }

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        """Return a ParallelDoGradient of the gradient of the net; gradients of whole inputs are summed."""
        return _Gradient(self, g).operators()


@register
@dataclass(frozen=True)
class ParallelDoGradient(OnDevices):
    """The gradients of the inputs of a ParallelDo, on the devices and from the shares of its last run.

    Args:
        net: the gradient of the net of ParallelDo, whose blobs it reads.
        modes: for each input but the first "split", "whole", or "scaled" (by the device's fraction of the batch).
        rows: for each of these that is split, the row of ``shares`` that has the number of its rows on each device.
        merge: for each output "concat" or "sum".
    """

    signature = "shares (Y, D): int32, X* (...): any -> dX* (...): any"
    effects = ""
    rows: tuple[int, ...] = ()

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if index == 0 else "any"

    def infer(self, shares: TensorSpec, *xs: TensorSpec) -> tuple[TensorSpec, ...]:
        inner = shares.inner
        if not isinstance(inner, _Inner):
            raise NotImplementedError("ParallelDoGradient: the shapes of the blobs of ParallelDo are not known")
        by_size = {size: self._infer_net(self._share(size, inner, xs)) for size in dict.fromkeys(inner.shares)}
        return tuple(
            self._merged(name, merge, [by_size[size][name] for size in inner.shares])
            for name, merge in zip(self.inner_outputs, self.merge)
        )

    def _share(self, size: int, inner: _Inner, xs: Sequence[TensorSpec]) -> dict[str, TensorSpec]:
        """Return the specs of what the net may read on a device with ``size`` samples."""
        specs = dict(inner.blobs[size])
        for name, x, mode, row in zip(self.inner_inputs, xs, self.modes, self.rows):
            if mode == "split":
                specs[name] = x.with_shape((specs[inner.results[row - 1]].shape[0], *x.shape[1:]))
            else:
                specs[name] = x.plain
        return specs


class _Gradient:
    """Builds the gradient of a ParallelDo."""

    def __init__(self, op: ParallelDo, g: GradientContext) -> None:
        self._op, self._g = op, g
        self._given: list[tuple[str, str, str, int]] = []  # outer blob, name in the net, mode, row of the sizes
        self._made: list[tuple[str, str, str]] = []  # outer blob, name in the net, how it is merged

    def operators(self) -> list[OperatorDef]:
        op, g = self._op, self._g
        seeds = self._seeds()
        if not seeds:
            return []
        done = g.differentiate(op.net or NetDef(), seeds, with_callbacks=True)
        for index, name in enumerate(op.inner_inputs):
            if name in done.gradients:
                self._add_output(index, done.gradients[name])
        if not self._made:
            return []
        self._pass_forward_blobs(done.net)
        outer, inner, modes, rows = (list(each) for each in zip(*self._given))
        made, results, merge = (list(each) for each in zip(*self._made))
        return [
            make_op(
                "ParallelDoGradient",
                [g.output(op.n_out - 1), *outer],
                made,
                net=done.net,
                devices=op.devices,
                device_type=op.device_type,
                inner_inputs=inner,
                modes=modes,
                rows=rows,
                inner_outputs=results,
                merge=merge,
                use_nccl=op.use_nccl or None,
                combine_spatial_bn=op.combine_spatial_bn or None,
            )
        ]

    def _seeds(self) -> dict[str, str]:
        seeds = {}
        for row, (name, merge) in enumerate(zip(self._op.inner_outputs, self._op.merge)):
            if merge in _GIVEN and self._g.has_d_output(row):
                seeds[name] = f"{name}_seed"
                self._given.append((self._g.d_output(row), seeds[name], _GIVEN[merge], row + 1))
        return seeds

    def _add_output(self, index: int, gradient: Any) -> None:
        """Return the gradient of an input: rows of each device, or the sum over the devices."""
        mode, name = self._op.modes[index], self._g.op.input[index]
        if mode == "updated":
            return
        if not isinstance(gradient, Sparse):
            self._made.append((self._g.d_input(index), gradient, "concat" if mode == "split" else "sum"))
            return
        if mode == "split":
            raise GradientError(
                f"ParallelDo: input {name!r} is split over the devices and gets a sparse gradient, whose indices refer "
                "to the rows of a share; give it whole (read_input(..., split=False))"
            )
        stem = self._g.d_input(index)
        self._g.set_d_input_sparse(index, f"{stem}_indices", f"{stem}_values")
        self._made.append((f"{stem}_indices", gradient.indices, "concat"))
        self._made.append((f"{stem}_values", gradient.values, "concat"))

    def _pass_forward_blobs(self, net: NetDef) -> None:
        """Pass whole inputs of the forward net on to the gradient net; let the forward net keep its blobs."""
        op, g = self._op, self._g
        seeds = {inner for _, inner, _, _ in self._given}
        outside = {name: i for i, (name, mode) in enumerate(zip(op.inner_inputs, op.modes)) if mode != "split"}
        results = {blob for _, blob, _ in self._made}
        written = {blob for one in net.op for blob in one.output}
        kept = []
        for name in dict.fromkeys([*net.external_input, *results - written]):
            if name in seeds:
                continue
            index = outside.get(name)
            if index is None:
                kept.append(name)
            elif op.modes[index] == "whole":
                self._given.append((g.input(index), name, "whole", 0))
            else:
                self._given.append((g.output(op.inner_outputs.index(name)), name, "whole", 0))
        g.set_forward_argument("kept", kept)


def _run(ctx: RunContext, op: OnDevices, key: Any, replication: Callable[[], Replication]) -> None:
    """Run the operator's net with a division of the batch, compiled when it first occurs."""
    calls = _compiled.setdefault(ctx, {})
    call = calls.pop(key, None) or ctx.compile(op.net or NetDef(), replication())
    while len(calls) >= _KEPT_CALLS:
        del calls[next(iter(calls))]
    calls[key] = call
    call()


@kernel(ParallelDo)
def parallel_do(op: ParallelDo, ctx: RunContext, *xs: Any) -> tuple[Any, ...]:
    names = list(ctx.op_def.input)
    shares = op.shares(names, xs)
    outputs = [
        Merged(outer, inner, merge, f"{inner}_rows" if merge == "concat" else "")  # type: ignore[arg-type]
        for outer, inner, merge in zip(ctx.op_def.output, op.inner_outputs, op.merge)
    ]

    def replication() -> Replication:
        _check_outputs(op, [ctx.workspace.spec(name) for name in names])
        inputs = [
            Distributed(outer, inner, mode, shares if mode == "split" else ())  # type: ignore[arg-type]
            for outer, inner, mode in zip(names, op.inner_inputs, op.modes)
        ]
        devices = op.devices[: len(shares)]
        return Replication(
            op.device_type, devices, shares, inputs, outputs, op.kept, op.use_nccl, op.combine_spatial_bn
        )

    _run(ctx, op, shares, replication)
    sizes = np.zeros((len(outputs) + 1, len(shares)), np.int32)
    sizes[0] = shares
    for row, output in enumerate(outputs, 1):
        if output.rows:
            sizes[row] = ctx.workspace.fetch(output.rows)
    return (*(LEFT_AS_IS for _ in outputs), ctx.xp.asarray(sizes))


def _check_outputs(op: ParallelDo, specs: Sequence[TensorSpec]) -> None:
    """Raise ShapeError if outputs cannot be merged, as far as their shapes can be told before the run."""
    try:
        op.infer(*specs)
    except NotImplementedError:
        pass


@kernel(ParallelDoGradient)
def parallel_do_gradient(op: ParallelDoGradient, ctx: RunContext, sizes: Any, *xs: Any) -> tuple[Any, ...]:
    table = [tuple(map(int, row)) for row in sizes]

    def replication() -> Replication:
        inputs = [
            Distributed(outer, inner, mode, table[row] if mode == "split" else ())  # type: ignore[arg-type]
            for outer, inner, mode, row in zip(ctx.op_def.input[1:], op.inner_inputs, op.modes, op.rows)
        ]
        outputs = list(_merged(op, ctx.op_def))
        devices = op.devices[: len(table[0])]
        return Replication(op.device_type, devices, table[0], inputs, outputs, (), op.use_nccl, op.combine_spatial_bn)

    _run(ctx, op, tuple(table), replication)
    return tuple(LEFT_AS_IS for _ in ctx.op_def.output)


def _merged(op: ParallelDoGradient, op_def: OperatorDef) -> Iterator[Merged]:
    for outer, inner, merge in zip(op_def.output, op.inner_outputs, op.merge):
        yield Merged(outer, inner, merge)  # type: ignore[arg-type]
