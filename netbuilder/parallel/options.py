"""DataParallelOptions: how replicas are built, for all doors to data parallelism."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

from netbuilder.distributed.strategies import Strategy
from netbuilder.graph.blob import BlobReference, blob_name
from netbuilder.graph.memory_budget import parse_budget
from netbuilder.ops.core.precision import check_precision, check_switch
from netbuilder.optimizers.build import Params
from netbuilder.parallel.gradient_scaling import GradientScaling
from netbuilder.passes.processes import AUTO, DEFAULT_BUCKET_BYTES
from netbuilder.passes.reductions import PeerAccess
from netbuilder.proto import ArgumentError, NetError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.suggestions import near_or_known
from netbuilder.runtime import NET_TYPES

__all__ = ["DataParallelOptions", "check_flags", "takes_options"]

P = ParamSpec("P")
R = TypeVar("R")

_MOST_THREADS = 1 << 16  # for each device: the message of a net holds their sum
_WHERE = "DataParallelOptions"


def check_flags(**given: Any) -> None:
    """Raise TypeError for a flag that is not True or False; flags are given as keywords."""
    for name, value in given.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, got {value!r}")


def _whole(least: int, most: float = float("inf"), what: str = "an integer") -> Callable[[str, Any], None]:
    """Return a check for integers in a range."""

    def check(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be {what}, got {value!r}")
        if value < least:
            raise NetError(f"{name} must be at least {least}, got {value}")
        if value > most:
            raise NetError(f"{name} must be at most {most}, got {value}")

    return check


def _check_bucket(name: str, value: Any) -> None:
    if value != AUTO:
        _whole(0, what=f"an integer or {AUTO!r}")(name, value)


def _check_net_type(name: str, value: Any) -> None:
    if not isinstance(value, str) or value not in NET_TYPES:
        raise NetError(f"unknown {name} {value!r}; the types are {', '.join(NET_TYPES)}")


def _check_seconds(name: str, value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0):
        raise NetError(f"{name} must be a positive number of seconds, got {value!r}")


def _check_blobs(name: str, value: Any) -> None:
    if isinstance(value, (str, bytes)):
        raise NetError(f"{name} must be a list, got the single string {value!r}")


def _check_peer_access(name: str, value: Any) -> None:
    if not callable(value):
        raise TypeError(f"{name} must be a function of two device numbers, or None, got {value!r}")


def _check_scaling(name: str, value: Any) -> None:
    if not isinstance(value, GradientScaling):
        raise TypeError(f"{name} must be a GradientScaling or None, got {value!r}")


def _check_params(name: str, value: Any) -> None:
    if isinstance(value, bytes) or not isinstance(value, (str, BlobReference, Iterable)):
        raise TypeError(f"{name} must be a list of parameters, or a name scope, got {value!r}")


def _check_bytes(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer (bytes) or None, got {value!r}")
    if value < 0:
        raise NetError(f"{name} must not be negative, got {value}")


_BLOCKS, _WRAPPER, _DO = "Parallelize_BMUF", "DataParallel", "ParallelDo"


def _option(
    default: Any, *doors: str, check: Callable[[str, Any], Any] | None = None, for_training: bool = False
) -> Any:
    """Return a field for an option.

    Args:
        default: its value if it is not given.
        doors: the functions and classes that take it, besides ``Parallelize``, which takes all.
        check: called with its name and another value than the default; raises if it is wrong. Flags need none.
        for_training: it has no effect on a net without backward pass, or is refused there.
    """
    metadata = {"doors": frozenset(("Parallelize", *doors)), "check": check, "for_training": for_training}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class DataParallelOptions:
    """How replicas are built, by ``Parallelize``, ``Parallelize_BMUF``, ``DataParallel`` and ``ParallelDo``.

    Each takes it as ``options``, and options by keyword, which replace those of the object. The signature of each has
    the options that it takes; it refuses an object with other values of those that it does not take.

    Args:
        net_type: the executor of the net.
        broadcast_computed_params: copy the first replica's running means and variances to the others in each step.
        optimize_gradient_memory: let gradients of activations share blobs if they are not needed at the same time,
            and keep only outputs and gradients of parameters after a step; the results are the same.
        dynamic_memory_management: keep only what is read after a step (``Net.set_observable("outputs")``).
        blobs_to_keep: with ``dynamic_memory_management``: other blobs that can be fetched after a step, of each replica
            if they are given without its scope.
        use_nccl: GPUs: exchange gradients by NCCL, one NCCLAllreduce per gradient, which plans start in groups, instead
            of by sums and copies; with ``combine_spatial_bn`` its sums, too, which go through the host otherwise. On
            CPUs it is ignored with a warning.
        max_concurrent_distributed_ops: with a rendezvous: maximum number of common worlds, which the operators
            between processes use in turn, and so of such operators at the same time; at most one fewer than the net
            has threads. Without this object, ``Parallelize_BMUF`` has 4, as in Caffe2.
        num_threads_per_device: maximum number of threads per device that run the net.
        shared_model: CPU: one copy of each parameter for all replicas instead of one each. A process with one device
            has one copy anyway; with a rendezvous, several devices are refused.
        combine_spatial_bn: batch normalization in training mode uses the statistics of the whole batch instead of each
            device's share, forward and backward: the devices exchange sums per channel, and their operators are
            interleaved. Shares must be equal, unless ``weighted_shares`` is given; those of ``ParallelDo`` need not.
        barrier_net_timeout_sec: with a rendezvous: how long the processes may wait for one another before each
            ``RunNet``, in seconds; None: the limit of collectives that was asked for (see ``set_collective_timeout``),
            and 300 s without one.
        peer_access: GPUs: ``peer_access(a, b)`` returns whether GPU a can read the memory of GPU b; None: ask the
            driver, or assume it if there is no GPU.
        dtype: type in which plans store activations, "float32", "bfloat16" or, on GPUs, "float16" (see
            ``Net.set_activation_dtype``); None: the setting of the model.
        weighted_shares: allow shares of a batch of different sizes, weighted so that the gradient is that of the mean
            over the batch: see ``feed_shares`` and ``prefetch``. Implied by ``accumulate_steps``.
        accumulate_steps: number of micro-batches per step: their gradients are summed, and exchanged and applied only
            after the last one; with block-wise updates each replica applies them alone. Each is one iteration of
            ``RunNet``. Rows of sparse gradients are concatenated.
        outside_from_bytes: tables of at least this many bytes that are used only for lookups are stored once, on the
            CPU, outside the replicas, under their name without a scope, and the lookups run there; the log lists
            them. None: each replica has its own tables, except for those created before the call.
        shard_tables: with a rendezvous: the rows of tables outside the replicas are divided over the processes, which
            exchange indices and rows for each lookup; each updates its rows, and has what the optimizer keeps for
            them. See docs/sparse.md.
        reduce_update_broadcast: sum gradients only on the first device, update its parameters there, and copy them to
            the others, instead of summing and updating on each device: the same parameters, with one copy of the
            optimizer's state. ``param_update_builder_fun`` is called only for the first device.
        memory_budget: the memory that a step may take, in bytes, as text such as "4GiB", or as a fraction of what it
            would take: activations are computed again in the backward pass to keep to it (see
            ``Net.set_memory_budget``). The numbers are the same to the bit.
        bucket_bytes: with a rendezvous: gradients are exchanged between processes in groups, each filled up to this
            size in the order in which they are ready; 0: each alone. "auto": the size with which a step is shortest by
            the times of the first steps and of the link, as ``netbuilder-simulate`` predicts it; until it is chosen,
            and where no size is clearly faster, it is that of the default. Checkpoints have it, so that a resumed run
            goes on with it.
        deterministic: two runs on as many devices and processes are equal to the bit (see ``Net.set_deterministic``):
            sums over devices and processes, too, have a fixed order. None: the setting of the model.
        vector_losses: losses may have several numbers, each of which gets the gradient 1, as in Caffe2. Without this, a
            loss must be one number, because the gradient of a sum over samples depends on the number of devices, if
            the builder multiplies it by the loss scale only.
        strategy: with a rendezvous: what the processes exchange, and when; None: ``Plain()``. A text such as
            "topk:0.01" is one, too. Builders, optimizers and loops are the same for all strategies.
        allow_tf32: GPUs: whether products of float32 values may use TF32 (see ``Net.set_allow_tf32``); None: the
            setting of the model.
        gradient_scaling: multiply losses by a scale, and divide gradients by it before the update, so that float16
            gradients do not underflow; steps whose gradients overflow are skipped. None: ``GradientScaling()`` if
            activations are stored in float16; otherwise gradients are not scaled.
        average_initial_parameters: begin with the mean over all replicas, of all processes, of what the init net fills
            a parameter with, in place of the values of the first replica of rank 0.
        params: train only these parameters: their names without the scope of a replica, or name scopes, such as ``"G"``
            for a generator whose discriminator stays as it is. Gradients of others are neither exchanged nor applied.
            None: all.
        combine_means: a mean whose divisor the data determine (the weights of SoftmaxWithLoss, ignored labels, rows
            that BooleanMask chooses) is that over the samples of all devices, processes and micro-batches (with
            block-wise updates those of a replica): they add up their divisors. Nets without such means are not changed.
            There is a warning for a loss that a script's own arithmetic makes of means or sums over samples otherwise.
            False: each share of a batch divides by its own, as in Caffe2, so that the results depend on the number of
            shares.

    Raises:
        NetError: a value is out of range, or two exclude each other.
        TypeError: a value is of the wrong type.

    >>> DataParallelOptions(memory_budget="4GiB", accumulate_steps=2).accumulate_steps
    2
    """

    net_type: str = _option("dag", _BLOCKS, _WRAPPER, check=_check_net_type)
    broadcast_computed_params: bool = _option(True, _WRAPPER, for_training=True)
    optimize_gradient_memory: bool = _option(False, _BLOCKS, _WRAPPER, for_training=True)
    dynamic_memory_management: bool = _option(False)
    blobs_to_keep: Iterable[str] | None = _option(None, check=_check_blobs)
    use_nccl: bool = _option(False, _BLOCKS, _WRAPPER, _DO)
    max_concurrent_distributed_ops: int = _option(16, _BLOCKS, check=_whole(1))
    num_threads_per_device: int = _option(4, _BLOCKS, _WRAPPER, check=_whole(1, _MOST_THREADS))
    shared_model: bool = _option(False, _WRAPPER)
    combine_spatial_bn: bool = _option(False, _WRAPPER, _DO, for_training=True)
    barrier_net_timeout_sec: float | None = _option(None, _BLOCKS, check=_check_seconds)
    peer_access: PeerAccess | None = _option(None, _BLOCKS, _WRAPPER, check=_check_peer_access, for_training=True)
    dtype: str | None = _option(None, _BLOCKS, _WRAPPER, check=lambda name, value: check_precision(value, name))
    weighted_shares: bool = _option(False, _BLOCKS)
    accumulate_steps: int = _option(1, _BLOCKS, check=_whole(1))
    outside_from_bytes: int | None = _option(None, _WRAPPER, check=_check_bytes)
    shard_tables: bool = _option(False)
    reduce_update_broadcast: bool = _option(False, _WRAPPER, for_training=True)
    memory_budget: Any = _option(None, _BLOCKS, _WRAPPER, check=lambda name, value: parse_budget(value, _WHERE))
    bucket_bytes: int | str = _option(DEFAULT_BUCKET_BYTES, check=_check_bucket)
    deterministic: bool | None = _option(
        None, _BLOCKS, _WRAPPER, check=lambda name, value: check_flags(**{name: value})
    )
    vector_losses: bool = _option(False, _BLOCKS)
    strategy: Strategy | str | None = _option(None, check=lambda name, value: Strategy.of(value))
    allow_tf32: bool | None = _option(
        None, _BLOCKS, _WRAPPER, check=lambda name, value: check_switch(value, name, _WHERE)
    )
    gradient_scaling: GradientScaling | None = _option(None, _WRAPPER, check=_check_scaling, for_training=True)
    average_initial_parameters: bool = _option(False)
    params: Params | None = _option(None, check=_check_params, for_training=True)
    combine_means: bool = _option(True, _BLOCKS, _WRAPPER)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, check = getattr(self, field.name), field.metadata["check"]
            if field.type == "bool":
                check_flags(**{field.name: value})
            elif check is not None and value is not field.default:
                check(field.name, value)
        if self.optimize_gradient_memory and self.dynamic_memory_management:
            raise NetError(
                "give optimize_gradient_memory or dynamic_memory_management, not both: they exclude each other"
            )
        if self.blobs_to_keep is not None and not self.dynamic_memory_management:
            raise NetError("blobs_to_keep has no effect without dynamic_memory_management=True; give both, or neither")
        if self.blobs_to_keep is not None:  # an iterator serves one call only
            object.__setattr__(self, "blobs_to_keep", tuple(map(blob_name, self.blobs_to_keep)))
        if self.params is not None and not isinstance(self.params, (str, BlobReference)):
            object.__setattr__(self, "params", tuple(self.params))
        if self.reduce_update_broadcast and self.use_nccl:
            self.refuse_one_update("use_nccl=True, which sums on all devices")

    def refuse_one_update(self, other: str) -> None:
        """Raise NetError: the first device cannot update alone together with another option."""
        raise NetError(f"reduce_update_broadcast=True cannot be combined with {other}; give one of them")

    def for_evaluation(self) -> DataParallelOptions:
        """Return the options for a net without backward pass: without those that are for training."""
        without: dict[str, Any] = {f.name: f.default for f in _FIELDS.values() if f.metadata["for_training"]}
        return dataclasses.replace(self, **without)


_FIELDS = {field.name: field for field in dataclasses.fields(DataParallelOptions)}


def takes_options(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that gathers the options among its arguments in one object.

    ``function`` has an argument ``options``, which is given the object, and the keywords that it lacks end in
    ``**fields``, of which the result has those that its door (its name, or that of its class) takes. Options may also
    be arguments of their own, at the places that Caffe2 has given them: their defaults hold without an object.

    Raises:
        ArgumentError: an option that the door does not take has another value than its default.
        TypeError: ``options`` is no DataParallelOptions.
    """
    *_, owner, name = ("", *function.__qualname__.split("."))
    door = owner if name == "__init__" else name
    taken = {key: field for key, field in _FIELDS.items() if door in field.metadata["doors"]}
    signature = inspect.signature(function)
    own = {key: item for key, item in signature.parameters.items() if item.kind is not item.VAR_KEYWORD}
    places = {key: item.default for key, item in own.items() if key in taken}
    further = [
        inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for key, field in taken.items()
        if key not in own
    ]
    whole = signature.replace(parameters=[*own.values(), *further])

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        _refuse([key for key in kwargs if key in _FIELDS], taken, door)
        given = whole.bind(*args, **kwargs).arguments
        chosen = {key: given.pop(key) for key in list(given) if key in taken}
        options = given.get("options")
        if options is None:
            given["options"] = DataParallelOptions(**{**places, **chosen})
        elif isinstance(options, DataParallelOptions):
            changed = [key for key, field in _FIELDS.items() if getattr(options, key) != field.default]
            _refuse(changed, taken, door)
            given["options"] = dataclasses.replace(options, **chosen)
        else:
            raise TypeError(f"{door}: options must be a DataParallelOptions or None, got {options!r}")
        return function(**given)  # type: ignore[call-arg]

    result: Any = call
    result.__signature__ = whole
    return call


def _refuse(names: Iterable[str], taken: Mapping[str, Any] | Collection[str], door: str) -> None:
    if unknown := sorted(set(names).difference(taken)):
        raise ArgumentError(f"{door}: unknown options {unknown}{near_or_known(unknown[0], sorted(taken), 'options')}")
