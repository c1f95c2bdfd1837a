"""The nets of a DataParallel: the user's functions built by Parallelize, initialized and created in a workspace."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from netbuilder.graph.blob import BlobReference, ScopedBlobReference
from netbuilder.graph.defuse import dependencies, undefined_inputs, with_earlier
from netbuilder.graph.devices import Devices
from netbuilder.graph.gradient_shares import is_backward
from netbuilder.graph.memory_budget import clear_stored_budget
from netbuilder.graph.net_copy import copy_operators, join_parts, prefixed
from netbuilder.graph.observability import ALL, OUTPUTS
from netbuilder.graph.replicas import Replicas
from netbuilder.graph.scope import CurrentDeviceScope, CurrentNameScope
from netbuilder.graph.shapes import infer_shapes
from netbuilder.model import ModelHelper
from netbuilder.model.parameter_info import ParameterTags
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.precision import (
    DETERMINISTIC_ARGUMENT,
    PRECISION_ARGUMENT,
    TF32_ARGUMENT,
    check_switch,
    precision_of,
)
from netbuilder.parallel.builders import require_scalar_losses
from netbuilder.parallel.call_arguments import Leaf, difference, map_leaves
from netbuilder.parallel.options import DataParallelOptions
from netbuilder.parallel.parallelize import Parallelize
from netbuilder.parallel.running import require_devices
from netbuilder.parallel.same_state import made_equal
from netbuilder.parallel.synchronize import FinalizeAfterCheckpoint
from netbuilder.proto import NetDef, NetError, ShapeError
from netbuilder.proto.arguments import arguments
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime import Workspace

__all__ = [
    "Definition",
    "Kind",
    "Structure",
    "WrappedNet",
    "as_function",
    "build",
    "create",
    "create_parts",
    "initialize",
    "lacks_values",
    "numeric_settings",
]

Function = Callable[..., Any]


class Kind(enum.Enum):
    """What a net is for."""

    TRAINING = "training"  #: forward pass, losses, backward pass and update
    SUMMING = "summing"  #: the same in two nets: gradients are added to their sums, and the update uses these
    FORWARD = "forward"  #: the forward pass in training mode; its init net is that of TRAINING without the optimizer's
    VALIDATION = "validation"  #: forward pass and losses in test mode
    TEST = "test"  #: the forward pass in test mode

    @property
    def in_test_mode(self) -> bool:
        """Whether it uses the parameters of another net, and its init net fills none."""
        return self in (Kind.VALIDATION, Kind.TEST)

    @property
    def has_losses(self) -> bool:
        """Whether it computes losses."""
        return self.trains or self is Kind.VALIDATION

    @property
    def trains(self) -> bool:
        """Whether it has a backward pass and an update."""
        return self in (Kind.TRAINING, Kind.SUMMING)


@dataclass(frozen=True)
class Structure:
    """The arguments of a call, with a ``Leaf`` in place of each array."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def is_flat(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether arguments are positional NumPy arrays, as these were: a quick answer for most calls."""
        if kwargs or self.kwargs or len(args) != len(self.args):
            return False
        return all(type(given) is np.ndarray and type(leaf) is Leaf for given, leaf in zip(args, self.args))

    def blobs(self) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments, with references to blobs under the current scope in place of the arrays."""

        def reference(leaf: Any, path: str) -> Any:
            return ScopedBlobReference(leaf.name) if isinstance(leaf, Leaf) else leaf

        return (
            [map_leaves(reference, value, "") for value in self.args],
            {key: map_leaves(reference, value, "") for key, value in self.kwargs.items()},
        )

    def names(self) -> list[str]:
        """Return the names of the arrays."""
        found: list[str] = []

        def note(leaf: Any, path: str) -> None:
            if isinstance(leaf, Leaf):
                found.append(leaf.name)

        map_leaves(note, [self.args, dict(self.kwargs)], "")
        return found


@dataclass(frozen=True)
class Definition:
    """What a DataParallel was made of, see there."""

    name: str
    model: Function
    loss: Function | None
    optimizer: Function | None
    devices: Devices
    arg_scope: Mapping[str, Any] | None
    options: DataParallelOptions


@dataclass(frozen=True)
class WrappedNet:
    """A model that Parallelize has built.

    Args:
        helper: the model, with its nets.
        record: of its replicas.
        outputs: for each replica what the user's function returned.
        losses: for each replica its losses, before they are scaled.
        single: the function returned one loss, not a list.
        per_sample: each loss has a number for each sample.
    """

    helper: ModelHelper
    record: Replicas
    outputs: list[Any]
    losses: list[list[BlobReference]]
    single: bool
    per_sample: bool

    @property
    def name(self) -> str:
        """The name of the main net."""
        return str(self.helper.net.Name())

    def output_blobs(self) -> list[str]:
        """Return the names of the blobs that the model returned, of all replicas."""
        found: list[str] = []

        def note(leaf: Any, path: str) -> None:
            if isinstance(leaf, BlobReference):
                found.append(str(leaf))

        map_leaves(note, self.outputs, "")
        return list(dict.fromkeys(found))

    def loss_blobs(self) -> list[str]:
        """Return the names of the losses of all replicas."""
        return list(dict.fromkeys(str(loss) for losses in self.losses for loss in losses))


def build(
    definition: Definition,
    kind: Kind,
    inputs: Structure,
    targets: Structure,
    specs: Mapping[str, TensorSpec],
    several: tuple[int, Mapping[str, TensorSpec]],
) -> WrappedNet:
    """Build a net for arguments of the given structure.

    Args:
        specs: shapes and types of the first replica's arguments, by blob.
        several: a number of samples, two or more, and what ``specs`` would be with it.

    Raises:
        NetError: the functions make different outputs on the devices, no loss, or overwrite an input; some losses are
            one number, and others have a number for each sample.
        ShapeError: a loss is neither one number nor one for each sample.
    """
    trains = kind.trains
    helper = ModelHelper(definition.name, init_params=not kind.in_test_mode, arg_scope=definition.arg_scope)
    for net, suffix in ((helper.net, ""), (helper.param_init_net, "_init")):
        net.Proto().name = definition.name + suffix  # names made from it, and random streams, are those of all kinds
    outputs: list[Any] = []
    losses: list[list[BlobReference]] = []
    single: list[bool] = []
    means: list[list[BlobReference]] = []
    per_sample: list[bool] = []

    def forward(helper: ModelHelper, scale: float) -> list[Any]:
        args, kwargs = inputs.blobs()
        outputs.append(definition.model(helper, *args, **kwargs))
        if not kind.has_losses:
            return []
        assert definition.loss is not None
        args, kwargs = targets.blobs()
        found = definition.loss(helper, outputs[-1], *args, **kwargs)
        single.append(isinstance(found, BlobReference))
        losses.append(_losses(found, definition))
        if not per_sample:
            per_sample.append(_are_per_sample(definition, helper, losses[-1], *several))
        means.append([_mean(helper, loss) for loss in losses[-1]] if per_sample[0] else losses[-1])
        return [helper.net.Scale(loss, f"{_short(loss)}_scaled", scale=scale) for loss in means[-1]]

    options = definition.options if trains else definition.options.for_evaluation()
    with warnings.catch_warnings():
        if not kind.in_test_mode:  # only the init net is needed, or what it computes before a backward pass
            warnings.filterwarnings("ignore", ".*is for evaluation, but")
        record = Parallelize(
            helper,
            lambda helper: None,
            forward,
            optimizer_builder_fun=definition.optimizer if trains else None,
            devices=list(definition.devices.ids),
            cpu_device=definition.devices.is_cpu,
            options=dataclasses.replace(
                options, weighted_shares=kind.has_losses, **_SUMS if kind is Kind.SUMMING else {}
            ),
        )
    if kind is not Kind.TRAINING:
        helper.net.Proto().name += f"_{kind.value}"
    _check_outputs(definition, record, outputs)
    _check_inputs(definition, record, helper, [*inputs.names(), *targets.names()])
    if losses:
        require_scalar_losses(helper, means[0], specs)
    return WrappedNet(helper, record, outputs, losses, all(single), any(per_sample))


_SUMS: Mapping[str, Any] = {"accumulate_steps": 2, "combine_means": False}
"""Options with which gradients are summed; the number of calls in a sum is not fixed."""


def _short(blob: BlobReference) -> str:
    return str(blob).rpartition("/")[2]


def _mean(helper: ModelHelper, loss: BlobReference) -> BlobReference:
    found: BlobReference = helper.net.AveragedLoss(loss, f"{_short(loss)}_mean")
    return found


def _are_per_sample(
    definition: Definition,
    helper: ModelHelper,
    losses: list[BlobReference],
    samples: int,
    specs: Mapping[str, TensorSpec],
) -> bool:
    """Return whether losses, those of the first replica, have a number for each sample; else they are one number each.

    Losses whose shapes cannot be inferred are taken for one number, and checked when their gradients are computed.
    """
    try:
        found = infer_shapes([helper.param_init_net, helper.net], specs)
    except ShapeError:  # the net is for another number of samples only, or has a fault that is reported as it runs
        return False
    many = [loss for loss in losses if (spec := found.spec(loss)) is not None and spec.shape == (samples,)]
    if many and len(many) < len(losses):
        raise NetError(
            f"DataParallel {definition.name!r}: the loss {str(many[0])!r} has a number for each sample, and another "
            "has not; let all losses be of one kind: helper.net.AveragedLoss(loss, ...) is the mean"
        )
    return bool(many)


def _losses(found: Any, definition: Definition) -> list[BlobReference]:
    losses = [found] if isinstance(found, BlobReference) else list(found) if isinstance(found, (list, tuple)) else []
    if not losses or not all(isinstance(loss, BlobReference) for loss in losses):
        raise NetError(
            f"DataParallel {definition.name!r}: loss must return a blob of one number, or a list of such blobs, got "
            f"{found!r}"
        )
    return losses


def _check_outputs(definition: Definition, record: Replicas, outputs: list[Any]) -> None:
    """Raise NetError unless the outputs of all replicas have one structure."""

    def short(leaf: Any, path: str) -> Any:
        return Leaf(record.devices.short_name(str(leaf))) if isinstance(leaf, BlobReference) else leaf

    first, *others = [map_leaves(short, value, "") for value in outputs]
    for number, other in zip(record.devices.ids[1:], others):
        if text := difference(other, first, "the model's result"):
            raise NetError(
                f"DataParallel {definition.name!r}: {text} on device {record.devices.ids[0]} (first) and device "
                f"{number}; the model must make the same net on each device"
            )


def _check_inputs(definition: Definition, record: Replicas, helper: ModelHelper, names: list[str]) -> None:
    """Raise NetError if an operator writes a blob in which an argument is fed."""
    fed = {blob for name in names for blob in record.devices.copies(name)}
    for op in helper.net.Proto().op:
        if not fed.isdisjoint(op.output):
            name = record.devices.short_name(sorted(fed.intersection(op.output))[0])
            raise NetError(
                f"DataParallel {definition.name!r}: operator {op.type} writes blob {name!r}, in which the argument of "
                "this name is fed; give its output another name"
            )


def initialize(net: WrappedNet, workspace: Workspace) -> None:
    """Run the operators of the init net that fill blobs which have no value yet.

    Raises:
        DeviceError: a GPU is missing.
    """
    require_devices(net.record, net.helper.net.Proto())
    whole = net.helper.param_init_net.Proto()
    has_value = {blob for blob in _outputs(whole) if workspace.has(blob) and not workspace.get(blob).is_empty}
    due = [index for index, op in enumerate(whole.op) if not op.output or not has_value.issuperset(op.output)]
    workspace.run_net_once(part := copy_operators(whole, whole.name, due))
    made_equal(net.record, map(net.record.devices.short_name, _outputs(part)), workspace)
    if not net.record.trains and len(net.record) > 1 and due:
        FinalizeAfterCheckpoint(net.helper, workspace=workspace)  # the init nets of training do it themselves


def lacks_values(net: WrappedNet, workspace: Workspace) -> bool:
    """Whether a parameter of the net has no value in the workspace."""
    names = {*map(str, net.helper.GetAllParams("")), *net.record.outside}
    return any(not workspace.has(name) or workspace.get(name).is_empty for name in names)


def _outputs(net: NetDef) -> list[str]:
    return [blob for op in net.op for blob in op.output]


def create(net: WrappedNet, kind: Kind, workspace: Workspace, clock: Any) -> None:
    """Create the main net. Its outputs, losses and what else is in "outputs" are observable.

    All that a net for the forward pass computes is observable, so that a net for training can continue there.

    Args:
        clock: counts the iterations, on which random numbers depend.
    """
    written = set(_outputs(net.helper.net.Proto()))
    observable = [blob for blob in (*net.output_blobs(), *net.loss_blobs()) if blob in written]
    workspace.create_net(
        net.helper.net,
        observable=ALL if kind is Kind.FORWARD else observable or OUTPUTS,
        shares_counter=net.helper.net.shares_counters,
        clock=clock,
    )


def create_parts(net: WrappedNet, whole: NetDef, workspace: Workspace, clock: Any) -> list[str]:
    """Create three nets that do together, in order, what a net with losses does; return their names.

    The first computes the model's outputs, the second the losses, the third the rest. One that has nothing to do has
    the name "".

    Args:
        whole: the net that is divided: the main net of ``net``, or what it does for each call.
    """
    end = next((index for index, op in enumerate(whole.op) if is_backward(op)), len(whole.op))
    waits = dependencies(list(whole.op[:end]))
    done: set[int] = set()
    chosen: list[list[int]] = []
    for blobs in (net.output_blobs(), net.loss_blobs()):
        needed = _needed(whole, end, waits, blobs) - done
        done |= needed
        chosen.append(sorted(needed))
    chosen.append([index for index in range(len(whole.op)) if index not in done])
    names = [f"{whole.name}_{suffix}" for suffix in ("outputs", "losses", "rest")]
    parts = [copy_operators(whole, name, indices) for name, indices in zip(names, chosen)]
    join_parts(whole, parts)
    for part, blobs in zip(parts, (net.output_blobs(), net.loss_blobs(), net.output_blobs())):
        clear_stored_budget(part)
        written = set(_outputs(part)) - set(part.external_output)
        part.external_output.extend(blob for blob in blobs if blob in written)
        if part.op:
            workspace.create_net(part, observable=OUTPUTS, shares_counter=True, clock=clock)
    return [name if part.op else "" for name, part in zip(names, parts)]


def _needed(net: NetDef, end: int, waits: list[set[int]], blobs: list[str]) -> set[int]:
    """Return the operators before ``end`` that make blobs, and all that must run before these."""
    requested = set(blobs)
    return with_earlier(waits, (index for index in range(end) if not requested.isdisjoint(net.op[index].output)))


def as_function(model: ModelHelper) -> Function:
    """Return a function that appends copies of a model's nets and parameters, under the current scopes.

    Its arguments are the external inputs of the model's main net that its init net does not fill, by name or in this
    order; it returns the external outputs, or without these the blobs that no operator reads.

    Raises:
        NetError: the model has a backward pass.
    """
    if model.gradient_ops_added:
        raise NetError(
            f"DataParallel: model {model.name!r} has a backward pass already; give it without one: DataParallel adds "
            "one for each device"
        )
    main, init = model.net.Proto(), model.param_init_net.Proto()
    own = {*_outputs(init), *map(str, model.GetAllParams(""))}
    inputs = [blob for blob in dict.fromkeys([*main.external_input, *undefined_inputs(main.op)]) if blob not in own]
    read = {blob for op in main.op for blob in op.input}
    outputs = list(main.external_output) or [blob for blob in dict.fromkeys(_outputs(main)) if blob not in read]

    def append(helper: ModelHelper, *args: Any, **kwargs: Any) -> tuple[BlobReference, ...]:
        scope, device = CurrentNameScope(), CurrentDeviceScope()
        for op in prefixed(init, scope).op if helper.init_params else ():
            if device is not None:
                op.device_option.CopyFrom(device)
            helper.param_init_net.extend_ops([op])
            _register(helper, model, scope, set(op.output))
        if not helper.init_params:
            _register(helper, model, scope, {scope + str(param) for param in model.GetAllParams("")})
        helper.net.AppendNet(main, device, scope=scope)
        return tuple(BlobReference(scope + name, helper.net) for name in outputs)

    append.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            for name in ("helper", *(_identifier(name) for name in inputs))
        ]
    )
    append.__name__ = model.net.Name()
    return append


def numeric_settings(model: ModelHelper) -> dict[str, Any]:
    """Return what a model's main net says of its numbers, as options.

    Raises:
        NetError: a setting has an unknown value.
    """
    net, where = model.net.Proto(), f"model {model.name!r}"
    given = arguments(net)
    found: dict[str, Any] = {
        option: check_switch(given[name], name, where)
        for option, name in (("deterministic", DETERMINISTIC_ARGUMENT), ("allow_tf32", TF32_ARGUMENT))
        if name in given
    }
    return {**found, "dtype": precision_of(net, where)} if PRECISION_ARGUMENT in given else found


def _identifier(name: str) -> str:
    if not name.isidentifier():
        raise NetError(f"DataParallel: the input {name!r} of the model must be named like an argument of a function")
    return name


def _register(helper: ModelHelper, model: ModelHelper, scope: str, made: set[str]) -> None:
    """Register the copies of a model's parameters that are among ``made``."""
    known = {str(param) for param in helper.GetAllParams("")}
    weights, biases = set(map(str, model.weights)), set(map(str, model.biases))
    for param in model.GetAllParams(""):
        name = scope + str(param)
        if name not in made or name in known:
            continue
        tags = [
            tag
            for tag, names in (
                (ParameterTags.WEIGHT, weights),
                (ParameterTags.BIAS, biases),
                (ParameterTags.COMPUTED_PARAM, set(map(str, model.GetComputedParams("")))),
            )
            if str(param) in names
        ]
        helper.AddParameter(BlobReference(name, helper.param_init_net), tags)
