"""The base of optimizers: names, the learning rate, the update of one parameter."""

from __future__ import annotations

import difflib
import inspect
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from netbuilder.graph.blob import BlobReference, GradientSlice, ScopedName
from netbuilder.graph.net import Net
from netbuilder.graph.scope import CurrentDeviceScope, DeviceScope
from netbuilder.graph.source import warn_user
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.ops.updates.learning_rate import LearningRate
from netbuilder.optimizers.learning_rate import check_policy
from netbuilder.proto import PROTO_CPU, ArgumentError, DeviceOption, GradientError, TensorProto

__all__ = [
    "ITERATION",
    "ITERATION_MUTEX",
    "AuxOptimizerParams",
    "Optimizer",
    "constant",
    "iteration_counter",
    "one",
    "refuse",
    "require_dense",
    "reset_optimizer_instance_count",
]

ITERATION = "optimizer_iteration"
"""The blob that counts iterations, int64, shape (1,), on the CPU; shared by all optimizers of a net."""

ITERATION_MUTEX = "iteration_mutex"
"""The blob of the mutex that counting takes."""

_instances: Counter[str] = Counter()


def reset_optimizer_instance_count() -> None:
    """Number optimizers from 0 again, as in a fresh process; blobs are named by these numbers."""
    _instances.clear()


class AuxOptimizerParams(NamedTuple):
    """What an optimizer keeps: the state of single parameters, and what they share."""

    local: list[BlobReference]
    shared: list[BlobReference]


class Optimizer:
    """Adds the operators that update parameters from their gradients.

    Called once for each parameter, under its device scope. A subclass says by ``_run`` what is added.
    Blobs of the optimizer itself are named ``<class>_<number>_<what>_<device>``, where optimizers of
    a class are numbered in a process.
    """

    updates = True
    """Whether it changes the parameters, which one optimizer does; False: it only changes their gradients."""

    def __init__(self) -> None:
        kind = type(self).__name__
        self._instance_num = _instances[kind]
        _instances[kind] += 1
        self._aux_params = AuxOptimizerParams([], [])
        self._shared: set[BlobReference] = set()
        self._lr_multiplier: BlobReference | None = None
        self._scaled_from: dict[str, BlobReference] = {}

    def __call__(
        self,
        net: Net,
        param_init_net: Net,
        param: ParameterInfo | BlobReference | str,
        grad: BlobReference | GradientSlice | str | None = None,
    ) -> None:
        """Add the update of one parameter.

        Args:
            net: gets the update.
            param_init_net: gets the first values of the optimizer's state.
            param: the parameter with its gradient; or its blob, or the name of that, and ``grad``.
            grad: the gradient.

        Raises:
            TypeError: ``grad`` is missing.
        """
        if not isinstance(param, ParameterInfo):
            if grad is None:
                raise TypeError(
                    f"{type(self).__name__}: needs a ParameterInfo, or a blob and its gradient; got {param!r}"
                )
            blob = BlobReference(param) if isinstance(param, str) else param
            param = ParameterInfo(None, blob, grad=BlobReference(grad) if isinstance(grad, str) else grad)
        self._run(net, param_init_net, param)

    def _run(self, net: Net, param_init_net: Net, param_info: ParameterInfo) -> None:
        raise NotImplementedError(f"{type(self).__name__}: adds no update")

    # Names

    def get_cpu_blob_name(self, base_str: str, node_name: str = "") -> str:
        """Return the name of the optimizer's blob ``base_str`` on the CPU."""
        return f"{type(self).__name__}_{self._instance_num}_{base_str}{node_name}_cpu"

    def get_gpu_blob_name(self, base_str: str, gpu_id: int, node_name: str) -> str:
        """Return the name of the optimizer's blob ``base_str`` on a GPU."""
        return f"{type(self).__name__}_{self._instance_num}_{base_str}{node_name}_gpu{gpu_id}"

    def make_unique_blob_name(self, base_str: str) -> str:
        """Return the name of the optimizer's blob ``base_str`` on the current device scope's device."""
        device = CurrentDeviceScope() or DeviceOption()
        if device.device_type == PROTO_CPU:
            return self.get_cpu_blob_name(base_str, device.node_name)
        return self.get_gpu_blob_name(base_str, device.device_id, device.node_name)

    # The learning rate

    def build_lr(
        self,
        net: Net,
        param_init_net: Net,
        base_learning_rate: float,
        learning_rate_blob: str | None = None,
        policy: str = "fixed",
        iter_val: int = 0,
        **kwargs: Any,
    ) -> tuple[BlobReference, BlobReference]:
        """Return the blobs of the rate on the current device and of the iteration; make them if they are not there.

        Args:
            base_learning_rate: with the sign that the update wants.
            learning_rate_blob: name of the rate; None: one after this optimizer and the device.
            policy: see ``netbuilder.ops.updates.rate_policies``.
            iter_val: what the iteration counts from.
            kwargs: arguments of the policy.

        Raises:
            ArgumentError: an argument of the policy is unknown, missing or out of range.
        """
        name = learning_rate_blob or self.make_unique_blob_name("lr")
        rate = BlobReference(ScopedName(name), net)
        known = net.BlobIsDefined(rate)
        if not known:
            check_policy(abs(base_learning_rate), policy, kwargs)
        iteration = iteration_counter(net, param_init_net, iter_val)
        if not known:
            rate = net.LearningRate([iteration], name, base_lr=float(base_learning_rate), policy=policy, **kwargs)
        return self._scaled(net, rate), iteration

    def _rate(
        self, net: Net, param_init_net: Net, sign: int, base: float, policy: str, arguments: dict[str, Any]
    ) -> tuple[BlobReference, BlobReference]:
        """Return ``build_lr`` of a rate that the user gave, with the sign that the update wants."""
        if not isinstance(base, Real):
            raise ArgumentError(f"{type(self).__name__}: the base rate must be a number, got {base!r}")
        if base < 0:
            raise ArgumentError(
                f"{type(self).__name__}: the base rate must not be negative, got {base}; the update sets its sign"
            )
        if hasattr(base, "is_loss_scale"):
            warn_user(
                f"{type(self).__name__}: the base rate {base} was computed from loss_scale, which the losses are "
                "multiplied by already: steps become too small; give the rate of one device"
            )
        self._refuse_unknown(arguments)
        return self.build_lr(net, param_init_net, sign * base, policy=policy, **arguments)

    def _refuse_unknown(self, arguments: Iterable[str]) -> None:
        """Raise ArgumentError for what neither this optimizer nor the learning rate takes."""
        known = _known_arguments(type(self))
        for name in arguments:
            if name not in known and not name.startswith(LearningRate.open_arguments):
                near = difflib.get_close_matches(name, known, n=3)
                raise ArgumentError(
                    f"{type(self).__name__}: unknown argument {name!r}"
                    + (f"; did you mean {', '.join(near)}?" if near else "; it is none of a rate's policy either")
                )

    @classmethod
    def unknown_arguments(cls, arguments: Iterable[str], *takers: Any) -> list[str]:
        """Return those that neither this optimizer, a learning rate nor ``takers`` have, nor any like them."""
        known = _known_arguments(cls).union(*(inspect.signature(taker).parameters for taker in takers))
        return [
            name
            for name in arguments
            if name not in known
            and not name.startswith(LearningRate.open_arguments)
            and not difflib.get_close_matches(name, known)
        ]

    def _scaled(self, net: Net, rate: BlobReference) -> BlobReference:
        if self._lr_multiplier is None:
            return rate
        name = self.make_unique_blob_name("scaled_lr")
        if self._scaled_from.setdefault(ScopedName(name), rate) != rate:  # a second rate on this device
            name = self.make_unique_blob_name("other_scaled_lr")
        scaled = BlobReference(ScopedName(name), net)
        if net.BlobIsDefined(scaled):
            return scaled
        here = net.CopyFromCPUInput(self._lr_multiplier, self.make_unique_blob_name("lr_multiplier"))
        product: BlobReference = net.Mul([rate, here], name, broadcast=1)
        return product

    def add_lr_multiplier(self, lr_multiplier: BlobReference) -> None:
        """Let the rate be multiplied by a blob on the CPU, shape () or (1,), that is made before the updates."""
        self._lr_multiplier = lr_multiplier

    # Layer-wise rates

    def create_lars_inputs(
        self, param_init_net: Net, weight_decay: float, trust: float, lr_max: float
    ) -> tuple[BlobReference, BlobReference, BlobReference]:
        """Add the constants that the operator Lars reads, each of shape (1,), on the current device; return them."""
        device = CurrentDeviceScope() or DeviceOption()
        elsewhere = device.device_type != PROTO_CPU or device.device_id
        suffix = f"_{device.device_type}_{device.device_id}{device.node_name}" if elsewhere else ""
        wd, share, most = (
            param_init_net.ConstantFill([], name + suffix, shape=[1], value=value)
            for name, value in (("weight_decay", weight_decay), ("trust", trust), ("lr_max", lr_max))
        )
        return wd, share, most

    def _checked_lars(self, offset: float | None) -> float | None:
        if offset is not None and offset < 0:
            raise ArgumentError(f"{type(self).__name__}: lars must not be negative, got {offset}")
        return offset

    def _local_rate(
        self, net: Net, param_init_net: Net, param_info: ParameterInfo, offset: float | None
    ) -> BlobReference | None:
        """Add the share of the rate that a dense parameter takes; None without ``offset``, or for a sparse gradient."""
        param, grad = param_info.blob, param_info.grad
        if offset is None or isinstance(grad, GradientSlice):
            return None
        constants = self.create_lars_inputs(param_init_net, 0.0, 1.0, float(np.finfo(np.float32).max))
        share: BlobReference = net.Lars(
            [param, grad, *constants], self.make_unique_blob_name(f"{param}_lars"), offset=offset, lr_min=0.0
        )
        return share

    def _localized(self, net: Net, rate: BlobReference, local: BlobReference | None) -> BlobReference:
        """Return the rate, times a share that ``_local_rate`` gave."""
        if local is None:
            return rate
        product: BlobReference = net.Mul([rate, local], self.make_unique_blob_name("local_scaled_lr"), broadcast=1)
        return product

    def scale_learning_rate(self, *args: Any, **kwargs: Any) -> None:
        """Multiply the base rate; before the updates are added.

        Raises:
            NotImplementedError: this optimizer has no rate of its own.
        """
        raise NotImplementedError(f"{type(self).__name__} has no learning rate to scale")

    # State

    def get_auxiliary_parameters(self) -> AuxOptimizerParams:
        """Return the blobs that a checkpoint needs besides the parameters."""
        return self._aux_params

    @property
    def attributes(self) -> dict[str, Any]:
        """The optimizer's settings and state, without its number."""
        return {name: value for name, value in vars(self).items() if name != "_instance_num"}

    def _state(self, param_init_net: Net, param: BlobReference, suffix: str, value: float = 0.0) -> BlobReference:
        """Add a blob like ``param``, on its device and named after it, that a checkpoint keeps."""
        state: BlobReference = param_init_net.ConstantFill([param], param + suffix, value=value)
        self._aux_params.local.append(state)
        return state

    def _row_state(self, param_init_net: Net, param_info: ParameterInfo, suffix: str, **fill: Any) -> BlobReference:
        """Add a blob with one number for each row of a parameter, named after it, that a checkpoint keeps."""
        rows = self._shape(param_info, "one number a row")[0]
        state: BlobReference = param_init_net.ConstantFill([], param_info.blob + suffix, shape=[int(rows)], **fill)
        self._aux_params.local.append(state)
        return state

    def _shape(self, param_info: ParameterInfo, what: str) -> Sequence[int]:
        """Return the shape of a parameter.

        Raises:
            ArgumentError: it is not known; ``what`` needs it.
        """
        if param_info.shape is None:
            raise ArgumentError(
                f"{type(self).__name__}: {what} needs the shape of {param_info}; make it by create_param, or by a "
                "fill with the argument shape"
            )
        return param_info.shape

    def _share(self, blob: BlobReference) -> None:
        if blob not in self._shared:
            self._shared.add(blob)
            self._aux_params.shared.append(blob)

    @staticmethod
    def dedup(net: Net, sparse_dedup_aggregator: str | None, grad: Any) -> Any:
        """Return the gradient; of a sparse one, the rows with one index joined.

        Args:
            sparse_dedup_aggregator: "sum" or "mean" of these rows, by Caffe2's operators, for which indices are a
                vector; "none": they stay apart, and update the table one after another, as in Caffe2; None: they are
                added up, for indices of any shape, or, in the compatibility layer, stay apart.

        Raises:
            ArgumentError: it is another one.
        """
        if sparse_dedup_aggregator not in (None, "sum", "mean", "none"):
            raise ArgumentError(
                f"sparse_dedup_aggregator must be 'sum', 'mean', 'none' or None, got {sparse_dedup_aggregator!r}"
            )
        if not isinstance(grad, GradientSlice):
            return grad
        if sparse_dedup_aggregator in ("sum", "mean"):
            return net.DeduplicateGradientSlices(grad, aggregator=sparse_dedup_aggregator)
        if sparse_dedup_aggregator == "none" or net.repeated_rows(grad) == "none":
            return grad
        results = [f"{grad.values}_rows", f"{grad.values}_sums"]
        rows, sums = net.SumRepeatedRows([grad.indices, grad.values], results)
        return GradientSlice(indices=rows, values=sums)


_known: dict[type[Optimizer], frozenset[str]] = {}


def _known_arguments(optimizer: type[Optimizer]) -> frozenset[str]:
    """Return the names of the arguments that an optimizer and a learning rate take (kept for each class)."""
    if optimizer not in _known:
        own = (inspect.signature(takes).parameters for takes in (optimizer, optimizer.build_lr))
        _known[optimizer] = frozenset(field.name for field in fields(LearningRate)).union(*own)
    return _known[optimizer]


def require_dense(optimizer: Optimizer, param_info: ParameterInfo) -> BlobReference:
    """Return the gradient of a parameter.

    Raises:
        GradientError: it is sparse, and the optimizer has no update for such.
    """
    grad = param_info.grad
    if isinstance(grad, GradientSlice):
        raise GradientError(
            f"{type(optimizer).__name__}: the gradient of {param_info} is sparse, and it updates by dense ones only; "
            "give that parameter an optimizer of its own (ParameterInfo.optimizer), such as SgdOptimizer"
        )
    assert grad is not None
    return grad


def one(param_init_net: Net) -> BlobReference:
    """Add the constant 1 on the current device, shape (1,), and return its blob."""
    return constant(param_init_net, "ONE", 1.0)


def constant(param_init_net: Net, name: str, value: float) -> BlobReference:
    """Add a constant on the current device, shape (1,), and return its blob."""
    device = CurrentDeviceScope() or DeviceOption()
    name = f"{name}_{device.device_type}_{device.device_id}{device.node_name}"
    blob: BlobReference = param_init_net.ConstantFill([], name, shape=[1], value=value)
    return blob


def iteration_counter(
    net: Net, param_init_net: Net, first: int = 0, *, counter: Any = ITERATION, mutex: Any = ITERATION_MUTEX
) -> BlobReference:
    """Return the counter of iterations, which ``net`` counts up once a run; make it if it is not there.

    Args:
        net: counts.
        param_init_net: gets the first value.
        first: what the count starts from.
        counter, mutex: the blobs, under the current name scope: int64 of shape (1,), and what locks it.
    """
    counter, mutex = BlobReference(ScopedName(counter), net), BlobReference(ScopedName(mutex), net)
    if net.BlobIsDefined(counter):
        return counter
    with DeviceScope(DeviceOption(device_type=PROTO_CPU, device_id=0, extra_info=["device_type_override:cpu"])):
        if not param_init_net.BlobIsDefined(counter):
            param_init_net.ConstantFill([], counter, shape=[1], value=first, dtype=TensorProto.INT64)
            param_init_net.CreateMutex([], mutex)
        net.AtomicIter([mutex, counter], counter)
    return counter


def refuse(optimizer: str, options: dict[str, Any], defaults: dict[str, Any] | None = None) -> None:
    """Refuse options that this library has no update for, unless they have their default value.

    Raises:
        ArgumentError: one is set; the message names all that are.
    """
    wanted = {name: value for name, value in options.items() if value != (defaults or {}).get(name)}
    if wanted:
        raise ArgumentError(f"{optimizer}: these options are not available: {wanted}; leave them out")
