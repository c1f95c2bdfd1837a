"""DataParallel: a model on several devices that is called with arrays, as if it were a function."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np

from netbuilder.data.forking import renew_after_fork
from netbuilder.engines.arrays import gpu_count
from netbuilder.graph.blob import BlobReference
from netbuilder.graph.replicas import Replicas
from netbuilder.model import ModelHelper
from netbuilder.ops.core.precision import PRECISIONS
from netbuilder.optimizers.optimizer import numbered_from, optimizer_counts
from netbuilder.parallel.call_arguments import (
    map_leaves,
)
from netbuilder.parallel.gradient_sums import GradientSums
from netbuilder.parallel.options import DataParallelOptions, check_flags, takes_options
from netbuilder.parallel.same_state import require_equal_replicas
from netbuilder.parallel.settings import check_scope, choose_scaling, choose_sharing, wrapper_devices
from netbuilder.parallel.shares import SHARE_WEIGHT, share_sizes
from netbuilder.parallel.wrapped_nets import (
    Definition,
    Kind,
    Structure,
    WrappedNet,
    as_function,
    build,
    create,
    create_parts,
    initialize,
    lacks_values,
    numeric_settings,
)
from netbuilder.parallel.wrapper_arguments import WrapperArguments
from netbuilder.parallel.wrapper_calls import Call, Output, Stage
from netbuilder.proto import NetError, ShapeError, UsageError
from netbuilder.proto.suggestions import suggests_arguments
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute.net import Clock
from netbuilder.runtime.plan.options import FindNan, check_find_nan

__all__ = ["DataParallel", "Output"]


class DataParallel:
    """A model with a replica on each of several devices, called with whole batches as if it were a function.

    A call splits the arrays among its arguments over the devices along their first axis, in order, nested tuples, lists
    and dicts included. Arrays without axes are given to all devices whole; all other values (numbers, strings, None)
    are handed to the model when the nets are built, at the first call, and must be the same in later ones.

    A training step is ``wrapper(x)``, ``wrapper.loss(y)``, ``wrapper.backward()`` and ``wrapper.step()``. It is one run
    of one net, made by ``Parallelize``, which begins in ``step()``, unless an output is read before: what has
    been computed until then is not computed again. In test mode a call runs at once. Several threads may use a
    wrapper: each has a call of its own, and calls do not mix.

    Args:
        model: function that appends the forward pass of one replica: called with a ModelHelper and, in place of each
            array, a blob that holds its part; returns blobs, or nested tuples, lists and dicts of them. In test mode
            ``init_params`` of the ModelHelper is false. Or a ModelHelper without backward pass, whose nets
            are copied; they are the same in test mode.
        devices: numbers of GPUs, with ``cpu_device`` of replicas on the CPU; or DeviceOptions. None: one device, and
            results are not put into tuples for each device.
        loss: function that appends the losses of one replica: called with the ModelHelper, what ``model`` returned,
            and the parts of the arguments of ``loss()``; returns a blob of one number, a mean over samples, or of a
            number for each sample, (N,), or a list of such blobs, of one kind, which are added.
        optimizer: function that is called with the ModelHelper and appends the update of all parameters, such as
            ``lambda helper: build_sgd(helper, 0.1)``; None: the wrapper is not for training.
        cpu_device: whether numbers in ``devices`` are replicas on the CPU.
        gather: return results of the whole batch instead of a tuple for each device: rows in the order of the samples,
            numbers as means over the samples.
        sync: compute outputs before a call returns, not when they are needed; results are the same.
        find_nan: raise an error at the first operator whose result is NaN ("nan"), or NaN or infinite (True), see
            ``Workspace.run_net``.
        join_threads: gradients of the calls of all threads add up until one of them calls ``step()``, for a pool of
            threads; otherwise each thread has steps of its own.
        batch_axes: name of an argument's array -> the axis of its samples, if it is not the first. Names are those of
            the model's arguments, with "_0" or "_key" appended for each level of nesting. Gathered outputs are joined
            along the axis that is given for the name of their blob.
        dtypes: name of an argument's array -> the type it is converted to.
        workspace: where the nets run; None: a new one.
        name: name of the main net; None: that of ``model``.
        arg_scope: arguments for all layer helpers, see ``ModelHelper``.
        options: how the replicas are built, see ``DataParallelOptions``; its fields are keywords, too. Where ``dtype``,
            ``deterministic`` or ``allow_tf32`` is None, a ModelHelper's setting holds.

    Raises:
        NetError: a device is repeated, or an argument is out of range.
        DeviceError: a device does not exist.
        TypeError: an argument is of the wrong type.

    >>> from netbuilder.model import brew
    >>> from netbuilder.optimizers import build_sgd
    >>> def scores(helper, x):
    ...     return brew.fc(helper, x, "scores", 4, 3)
    >>> def loss(helper, scores, label):
    ...     return helper.net.SoftmaxWithLoss([scores, label], ["softmax", "loss"])[1]
    >>> net = DataParallel(scores, [0, 1], loss=loss, optimizer=lambda m: build_sgd(m, 0.1), cpu_device=True)
    >>> outputs = net(np.ones((6, 4), np.float32))
    >>> losses = net.loss(np.zeros(6, np.int32))
    >>> net.backward()
    >>> net.step()
    >>> [[output.shape for output in of_device] for of_device in outputs], len(losses)
    ([[(3, 3)], [(3, 3)]], 2)
    >>> net
    DataParallel(scores, CPU 0, 1; training)
    """

    @suggests_arguments
    @takes_options
    def __init__(
        self,
        model: Any,
        devices: Iterable[Any] | None = None,
        *,
        loss: Callable[..., Any] | None = None,
        optimizer: Callable[[ModelHelper], Any] | None = None,
        cpu_device: bool = False,
        gather: bool = False,
        sync: bool = False,
        find_nan: FindNan = False,
        join_threads: bool = False,
        batch_axes: Mapping[str, int] | None = None,
        dtypes: Mapping[str, Any] | None = None,
        workspace: Workspace | None = None,
        name: str | None = None,
        arg_scope: Mapping[str, Any] | None = None,
        options: DataParallelOptions | None = None,
        **fields: Any,
    ) -> None:
        assert options is not None
        function = as_function(model) if isinstance(model, ModelHelper) else model
        if isinstance(function, type) or not callable(function):
            raise TypeError(f"DataParallel: model must be a function or a ModelHelper, got {model!r}")
        for what, given in (("loss", loss), ("optimizer", optimizer)):
            if given is not None and not callable(given):
                raise TypeError(f"DataParallel: {what} must be a function, or None, got {given!r}")
        if optimizer is not None and loss is None:
            raise NetError("DataParallel: an optimizer needs a loss; give loss=, a function that returns it")
        if isinstance(model, ModelHelper):
            held = numeric_settings(model).items()
            options = dataclasses.replace(options, **{key: item for key, item in held if getattr(options, key) is None})
        check_flags(cpu_device=cpu_device, gather=gather, sync=sync, join_threads=join_threads)
        self._passes_through = devices is None
        found = wrapper_devices([0] if devices is None else devices, cpu_device or devices is None and not gpu_count())
        shared = dataclasses.replace(options, shared_model=choose_sharing(options, found, None))
        choose_scaling(shared, options.dtype or PRECISIONS[0], trains=optimizer is not None)
        title = name or getattr(function, "__name__", "") or type(function).__name__
        title = title if title != "<lambda>" else "model"
        unique = ModelHelper(title).net.Name()
        self._definition = Definition(unique, function, loss, optimizer, found, arg_scope, options)
        self._title = repr(model) if isinstance(model, ModelHelper) else title
        self._gather, self._sync = gather or devices is None, sync
        self._join_threads = join_threads
        self._find_nan = check_find_nan(find_nan, "DataParallel")
        self._workspace = workspace or Workspace()
        self._arguments = WrapperArguments(
            self._definition, self._workspace, dict(batch_axes or {}), dict(dtypes or {})
        )
        self._training = optimizer is not None
        self._clocks = {True: Clock(), False: Clock()}  # of training, and of test mode
        self._nets: dict[Kind, WrappedNet] = {}
        self._parts: dict[Kind, list[str]] = {}
        self._targets: Structure | None = None
        self._counts: dict[str, int] = {}  # of the optimizers made before that of the net for training
        self._sums: GradientSums | None = None
        self._pending: list[Call] = []  # whose gradients are requested, and not applied yet
        self._fed_weights: list[float] = [1 / len(found)] * len(found)
        self._present: Call | None = None  # whose values the blobs hold
        self._calls = threading.local()
        self._lock = threading.RLock()
        self._closed = False
        renew_after_fork(self)

    def renew(self) -> None:
        """Make the lock free: in a forked process no other thread holds it."""
        self._lock = threading.RLock()

    def __enter__(self) -> DataParallel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        """The number of devices."""
        return len(self._definition.devices)

    def __repr__(self) -> str:
        mode = "closed" if self._closed else "training" if self._training else "test"
        devices = f"no split, {self._definition.devices}" if self._passes_through else str(self._definition.devices)
        return f"DataParallel({self._title}, {devices}; {mode})"

    @property
    def workspace(self) -> Workspace:
        """The workspace with the parameters, whose names begin with the replicas' scopes."""
        return self._workspace

    @property
    def training(self) -> bool:
        """Whether calls are in training mode."""
        return self._training

    @property
    def model(self) -> ModelHelper:
        """The model that ``Parallelize`` made, for checkpoints and learning rates: that for training, if there is one.

        Raises:
            UsageError: nothing has been called yet; the nets are built at the first call.
        """
        return self._net_of_parameters().helper

    @property
    def record(self) -> Replicas:
        """The record of the replicas of ``model``."""
        return self._net_of_parameters().record

    def parameters(self) -> dict[str, Any]:
        """Return the first replica's parameters by name, without its scope, the computed ones (BN) included."""
        with self._lock:
            record = self._net_of_parameters().record
            names = {name: record.blobs(name)[0] for name in (*record.parameters, *record.computed)}
            names.update((name, name) for name in record.outside)
            return {name: self._workspace.fetch(blob) for name, blob in names.items()}

    def _net_of_parameters(self) -> WrappedNet:
        self._check_open()
        for kind in Kind:
            if kind in self._nets:
                return self._nets[kind]
        raise UsageError(f"{self!r}: the nets are built at the first call of a step; call the wrapper and loss() first")

    # Modes.

    def train(self, mode: bool = True) -> DataParallel:
        """Let calls be in training mode, or in test mode; return the wrapper."""
        self._training = bool(mode)
        return self

    def eval(self) -> DataParallel:
        """Let calls be in test mode; return the wrapper."""
        return self.train(False)

    # A step.

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Split a batch over the devices, and return the model's outputs.

        Returns:
            For each device that has samples a tuple of its outputs (``Output``), in the structure that the model
            returned. With ``gather``, or without a device list, only that structure.

        Raises:
            NetError: the number of arguments or their structure differs from that of the model or of the first call.
            ShapeError: the arrays have different numbers of samples, or none.
            UsageError: the wrapper is closed.
        """
        with self._lock:
            self._check_open()
            self._finish_call()
            given, model = self._arguments, self._definition.model
            given.inputs, arrays = given.structured(self, "inputs", model, 1, inputs, named, given.inputs)
            call = self._calls.current = self._begin(arrays)
            net = self._forward_net(self._training)
            self._arguments.check_axes(net)
            if self._sync or not self._training:
                self._run_parts(call, 1)
            return self._results(call, net.outputs)

    def loss(self, *targets: Any, **named: Any) -> Any:
        """Split the targets of the last call over the devices, and return the losses.

        Returns:
            For each device that has samples its loss (``Output``), or a tuple of them if the loss function returns a
            list. With ``gather``, or without a device list, the mean over all samples, or the losses of all samples.

        Raises:
            NetError, ShapeError: as for a call.
            UsageError: there was no call, the wrapper has no loss or is closed, or there is no optimizer for a call in
                training mode.
        """
        with self._lock:
            call = self._current("loss", Stage.CALLED)
            missing = "loss" if self._definition.loss is None else "optimizer"
            if self._definition.loss is None or call.training and self._definition.optimizer is None:
                raise UsageError(f"{self!r}: loss() needs a wrapper that was made with {missing}=; make another one")
            given, loss = self._arguments, self._definition.loss
            targets_of, arrays = given.structured(self, "targets", loss, 2, targets, named, self._targets)
            samples = given.count(arrays, f"{self!r}: loss()", {**self._whole_sizes(call), **arrays})
            kind, sizes = Kind.TRAINING if call.training else Kind.VALIDATION, share_sizes(samples, len(self))
            batches = given.fill(arrays, sizes)
            if kind not in self._nets:
                given.specs = given.first_specs([*call.batches, *batches])
                self._build(kind, targets_of)
                call.parts_run = call.parts_run if call.training else 0  # it kept too little for the losses
            self._targets = targets_of
            call.samples, call.sizes = samples, sizes
            call.batches += batches
            call.stage = Stage.LOSS
            if self._sync or not call.training:
                self._run_parts(call, 2)
            return self._loss_results(call, self._nets[kind])

    def backward(self) -> None:
        """Request the gradients of the losses of this call; they are computed and exchanged in ``step()``.

        Raises:
            UsageError: ``loss()`` was not called before, or the wrapper is closed.
        """
        with self._lock:
            call = self._current("backward", Stage.LOSS)
            call.stage = Stage.BACKWARD
            self._pending.append(call)

    def step(self, batch_size: float | None = None) -> None:
        """Compute what has not been computed yet, and update the parameters by the gradient of a mean over samples.

        If ``backward()`` was called for several calls since the last step, their gradients add up: the mean is that
        over the samples of all of them.

        Args:
            batch_size: if losses are numbers for each sample, their gradients are added up and divided by this; None:
                by the number of samples. Losses of one number are means already.

        Raises:
            UsageError: ``backward()`` was not called before, or the wrapper is closed.
            NetError: ``batch_size`` is not positive, or gradients of several calls cannot add up.
            NetError, OperatorError: an operator failed; the message has its device.
        """
        with self._lock:
            self._check_batch_size(batch_size)
            owner = None if self._join_threads else threading.current_thread()
            calls = [call for call in self._pending if call.owner is owner]
            if not calls:
                self._check_open()
                self._current("step", Stage.BACKWARD)
            net, samples = self._nets[Kind.TRAINING], sum(call.count for call in calls)
            divisor = float(batch_size) if batch_size is not None and net.per_sample else samples
            try:
                if lost := next((call.lost for call in calls if call.lost), ""):
                    raise NetError(f"{self!r}: step(): {lost}")
                if len(calls) == 1 and not calls[0].summed and divisor == samples:
                    calls[0].stage = Stage.DONE
                    self._run_parts(calls[0], 3)
                else:
                    self._run_summed(calls, divisor)
            except BaseException:
                self._drop_sums(owner, calls)
                raise
            finally:
                self._pending = [call for call in self._pending if call not in calls]
                for call in calls:
                    call.stage = Stage.DONE

    def _check_batch_size(self, batch_size: Any) -> None:
        if batch_size is None:
            return
        if isinstance(batch_size, bool) or not isinstance(batch_size, (int, float, np.number)):
            raise TypeError(f"{self!r}: step: batch_size must be a number of samples, or None, got {batch_size!r}")
        if not 0 < batch_size < float("inf"):
            raise NetError(f"{self!r}: step: batch_size must be a positive number of samples, got {batch_size!r}")

    def wait(self) -> None:
        """Wait until all GPUs have finished; results can be read without it."""
        with self._lock:
            self._check_open()
            for net in self._nets.values():
                if net.name in self._workspace.nets():
                    self._workspace.net(net.name).finish()

    def close(self) -> None:
        """Remove the nets from the workspace; outputs stay readable. Calling it again has no effect."""
        with self._lock:
            if self._closed:
                return
            self._read_outputs()
            self._closed = True
            for name in [
                *(net.name for net in self._nets.values()),
                *(n for part in self._parts.values() for n in part),
                *(() if self._sums is None else self._sums.nets),
            ]:
                self._workspace.delete_net(name)

    # Calls.

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"{self!r} is closed; make another one")

    def _current(self, what: str, stage: Stage) -> Call:
        """Return this thread's call, which must be at ``stage``."""
        self._check_open()
        call: Call | None = getattr(self._calls, "current", None)
        if call is not None and call.lost:
            raise NetError(f"{self!r}: {what}(): {call.lost}")
        if call is not None and not call.training and stage is not Stage.CALLED:
            if self._definition.optimizer is None:
                raise UsageError(f"{self!r}: {what}() needs a wrapper that was made with optimizer=; make another one")
            raise UsageError(f"{self!r}: {what}() needs a call in training mode; call train() before")
        if call is None or call.stage is not stage:
            first = {
                Stage.CALLED: "a call",
                Stage.LOSS: "loss()",
                Stage.BACKWARD: "backward()",
            }[stage]
            state = "there is none in this thread" if call is None else f"the last call is at: {call.stage.value}"
            raise UsageError(f"{self!r}: {what}() must follow {first}, and {state}")
        return call

    def _finish_call(self) -> None:
        """Do the forward pass of this thread's last call, if no output was read and no step done: it counts."""
        call: Call | None = getattr(self._calls, "current", None)
        if call is None or not call.training or call.parts_run or call.lost:
            return
        if call.stage in (Stage.CALLED, Stage.LOSS):  # after backward(), its gradients are part of a step
            self._run_parts(call, 1)
        self._calls.current = None

    def _begin(self, arrays: dict[str, Any]) -> Call:
        samples = self._arguments.count(arrays, repr(self), arrays)
        sizes = share_sizes(samples, len(self))
        owner = None if self._join_threads else threading.current_thread()
        return Call(self, self._arguments.fill(arrays, sizes), self._training, samples, sizes, owner)

    def _whole_sizes(self, call: Call) -> dict[str, Any]:
        """Return the number of samples of the inputs as if they were one array, to compare that of the targets."""
        return {"inputs": np.empty((call.samples, 0))} if call.samples else {}

    # Nets and runs.

    def _build(self, kind: Kind, targets: Structure) -> WrappedNet:
        given = self._arguments
        assert given.inputs is not None
        check_scope(f"{self!r}, whose nets are built at the first call,")
        if kind is Kind.TRAINING:
            self._counts = optimizer_counts()
        with numbered_from(self._counts) if kind is Kind.SUMMING else nullcontext():
            net = build(self._definition, kind, given.inputs, targets, given.specs, given.several())
        if not kind.in_test_mode:
            initialize(net, self._workspace)
        if kind is not Kind.SUMMING:
            create(net, kind, self._workspace, self._clocks[not kind.in_test_mode])
            self._nets[kind] = net
        return net

    def _forward_net(self, training: bool) -> WrappedNet:
        """Return a net with the forward pass, whose parameters are initialized."""
        whole, alone = (Kind.TRAINING, Kind.FORWARD) if training else (Kind.VALIDATION, Kind.TEST)
        net = self._nets.get(whole) or self._nets.get(alone) or self._build(alone, Structure())
        if not training and lacks_values(net, self._workspace):
            self._forward_net(True)
        return net

    def _run_parts(self, call: Call, end: int) -> None:
        """Run the parts of a call that have not run, up to ``end``: all three are one run of the whole net."""
        if call.lost:
            raise NetError(f"{self!r}: {call.lost}")
        if call.parts_run >= end:
            return
        kind = Kind.TRAINING if call.training else Kind.VALIDATION
        net, done = self._nets.get(kind), call.parts_run
        for earlier in [each for each in self._pending if call.training and not done and each.owner is call.owner]:
            if earlier is call:
                break
            self._add_gradients(earlier)  # calls run in order: their random numbers do not depend on what is read
        try:
            self._present_batches(call)
            self._feed_weights(call)
            if net is not None and not done:
                require_equal_replicas(net.helper, net.record, self._workspace)
            if net is None:
                self._check_forward(call)
                self._run_part(call, self._forward_net(call.training).name)
            elif done == 0 and end == 3:
                self._workspace.run_net(net.name, wait=self._sync, find_nan=self._find_nan)
            else:
                self._run_some(call, net, kind, end)
        except BaseException:
            call.lost = "an operator failed in this call; call the wrapper again"
            raise
        call.parts_run = end
        forward = self._nets.pop(Kind.FORWARD, None) if net is not None and call.training else None
        if forward is not None:  # the net for training, built since then, has the same forward pass
            self._workspace.delete_net(forward.name)

    def _check_forward(self, call: Call) -> None:
        """Raise NetError if a net without losses would compute something else than the net for training."""
        if call.training and len(self) > 1 and self._definition.options.combine_spatial_bn:
            raise NetError(
                f"{self!r}: with combine_spatial_bn=True outputs in training mode can be computed once loss() has been "
                "called: batch normalization over all devices is a part of nets with losses; read them after that"
            )

    def _run_some(self, call: Call, net: WrappedNet, kind: Kind, end: int) -> None:
        """Run the parts of a step that have not run, up to ``end``, one by one."""
        if kind not in self._parts:
            self._parts[kind] = create_parts(net, net.helper.net.Proto(), self._workspace, self._clocks[call.training])
        for name in self._parts[kind][call.parts_run : end]:
            self._run_part(call, name)

    def _run_part(self, call: Call, name: str) -> None:
        """Run a part of a step: all parts are one iteration, on which random numbers depend."""
        if name:
            clock, again = self._clocks[call.training], call.parts_run > 0
            clock.iteration -= again
            try:
                self._workspace.run_net(name, wait=self._sync, find_nan=self._find_nan)
            except BaseException:
                clock.iteration += again
                raise
        call.parts_run += 1

    def _present_batches(self, call: Call) -> None:
        """Make the arrays of a call the values of its blobs, after what the blobs hold has been read."""
        if self._present is not call:
            before = self._present
            if before is not None and before.stage is Stage.BACKWARD and not before.lost:
                self._add_gradients(before)
            self._read_outputs()
            self._present = call
            if before is not None and before.stage is not Stage.DONE and not before.summed:
                before.lost = (
                    "another call, of another thread or in test mode, has overwritten what this call computed; do not "
                    "read outputs before step(), or use one wrapper for each thread"
                )
        batches, call.batches = call.batches, []
        for batch in batches:
            batch.present(self._workspace)

    def _add_gradients(self, call: Call) -> None:
        """Compute what has not been computed of a call, with its gradients, and add these to the sums."""
        if call.summed:
            return
        if self._sums is None:
            assert self._targets is not None
            self._sums = GradientSums(
                self._build(Kind.SUMMING, self._targets), self._nets[Kind.TRAINING], self._workspace, self._clocks[True]
            )
        if not self._sums.begin(call.owner):
            return  # the sums are those of another thread's step
        self._present_batches(call)
        self._feed_weights(call)
        if not call.parts_run:
            require_equal_replicas(self._nets[Kind.TRAINING].helper, self._nets[Kind.TRAINING].record, self._workspace)
        try:
            self._sums.add(call.count, call.parts_run, wait=self._sync, find_nan=self._find_nan)
        except BaseException:
            call.lost = "an operator failed in this call; call the wrapper again"
            self._drop_sums(call.owner, self._pending)
            raise
        call.summed, call.parts_run = True, 3

    def _drop_sums(self, owner: threading.Thread | None, calls: list[Call]) -> None:
        """After a failure, forget the sums of an owner's gradients, and that of the calls no step can be made."""
        if self._sums is not None and self._sums.begin(owner):
            self._sums.clear()
        for call in calls:
            if call.owner is owner:
                call.lost = call.lost or "the gradients of another call of its step have failed; call the wrapper again"

    def _run_summed(self, calls: list[Call], divisor: float) -> None:
        """Update the parameters by the sum of the gradients of calls, divided by ``divisor``."""
        for call in calls:
            self._add_gradients(call)
        if self._sums is None or not all(call.summed for call in calls):
            raise NetError(
                f"{self!r}: step(): gradients of another thread's calls are being added up, for its own step(); "
                "let one thread after another make its step, or give join_threads=True for one step of all threads"
            )
        self._sums.update(divisor, wait=self._sync, find_nan=self._find_nan)

    def _feed_weights(self, call: Call) -> None:
        """Feed the weights of the shares in a net that reads them, if they differ from those of the last call."""
        net = self._nets.get(Kind.TRAINING if call.training else Kind.VALIDATION)
        if net is None or not net.record.reads_weights:
            return
        weights, blobs = call.weights, self._definition.devices.copies(SHARE_WEIGHT)
        if weights != self._fed_weights or not self._workspace.has(blobs[0]):
            for blob, weight in zip(blobs, weights):
                self._workspace.feed(blob, np.array([weight * len(self)], np.float32))
            self._fed_weights = weights

    # Results.

    def take(self, call: Call, output: Output) -> None:
        """Compute an output that is not read yet, and read it."""
        with self._lock:
            if output.call is None:
                return
            if not call.parts_run or output.of_losses and call.parts_run < 2:
                self._check_open()
                self._run_parts(call, 2 if output.of_losses else 1)
            if self._present is not call:
                raise NetError(f"{self!r}: {call.lost or 'the output was overwritten'}")
            output.fetch()

    def _read_outputs(self) -> None:
        """Read the outputs that somebody holds, before their blobs get other values."""
        call = self._present
        if call is not None:
            for output in list(call.outputs):
                if call.parts_run > output.of_losses:
                    output.fetch()

    def _results(self, call: Call, outputs: list[Any]) -> Any:
        if self._gather:
            return _joined(outputs, lambda blobs: self._output(call, lambda: self._gathered(call, blobs)))

        def single(leaf: Any, path: str) -> Any:
            return self._output(call, lambda: self._fetched(leaf)) if isinstance(leaf, BlobReference) else leaf

        found = [map_leaves(single, value, "") for value in call.active(outputs)]
        return tuple(tuple(value) if isinstance(value, (tuple, list)) else (value,) for value in found)

    def _loss_results(self, call: Call, net: WrappedNet) -> Any:
        if self._gather:
            found = _joined(
                [tuple(losses) for losses in net.losses],
                lambda blobs: self._output(call, lambda: self._gathered(call, blobs), losses=True),
            )
            return found[0] if net.single else found
        of_devices = tuple(
            tuple(self._output(call, lambda loss=loss: self._fetched(loss), losses=True) for loss in losses)  # type: ignore[misc]
            for losses in call.active(net.losses)
        )
        return tuple(losses[0] for losses in of_devices) if net.single else of_devices

    def _output(self, call: Call, read: Callable[[], Any], *, losses: bool = False) -> Output:
        output = Output(call, read, losses)
        call.outputs.add(output)
        return output

    def _fetched(self, blob: BlobReference) -> Any:
        return self._workspace.fetch(str(blob))

    def _gathered(self, call: Call, blobs: list[BlobReference]) -> Any:
        """Return rows of all devices in the order of the samples; the mean of numbers, weighted by the shares."""
        values = [np.asarray(self._fetched(blob)) for blob in call.active(blobs)]
        if len(blobs) == 1:
            return values[0]
        if values[0].ndim == 0:
            return np.average(values, weights=call.active(call.weights)).astype(values[0].dtype)
        name = self._definition.devices.short_name(str(blobs[0]))
        axis = self._arguments.axes.get(name, 0)
        wrong = [
            value.shape
            for value, size in zip(values, call.active(call.sizes))
            if value.shape[axis : axis + 1] != (size,)
        ]
        if call.samples and wrong:
            raise ShapeError(
                f"{self!r}: output {name!r} of shape {wrong[0]} cannot be gathered: it must have one row for each of "
                f"the device's samples along axis {axis}; return it without gather=True, or name its axis in batch_axes"
            )
        return np.concatenate(values, axis)


def _joined(values: list[Any], join: Callable[[list[BlobReference]], Any]) -> Any:
    """Return the structure of the first value, each leaf joined with the same leaf of the others."""
    flat: list[list[Any]] = []
    for value in values:
        leaves: list[Any] = []
        map_leaves(lambda leaf, path, leaves=leaves: leaves.append(leaf), value, "")  # type: ignore[misc]
        flat.append(leaves)
    groups = iter(zip(*flat))

    def of_all(leaf: Any, path: str) -> Any:
        group = list(next(groups))
        return join(group) if isinstance(leaf, BlobReference) else leaf

    return map_leaves(of_all, values[0], "")
