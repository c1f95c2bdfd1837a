"""The base class of optimizers: names of blobs, the learning rate, state, the update of one parameter."""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from netbuilder.optimizers.learning_rate import check_policy, check_policy_as_in_caffe2, completed
from netbuilder.proto import PROTO_CPU, ArgumentError, DeviceOption, GradientError, TensorProto
from netbuilder.proto.arguments import argument_value
from netbuilder.proto.numbers import check_flags, check_numbers, check_whole_numbers
from netbuilder.proto.suggestions import did_you_mean, similar

__all__ = [
    "ITERATION",
    "ITERATION_MUTEX",
    "OPTIMIZERS",
    "AuxOptimizerParams",
    "Optimizer",
    "constant",
    "iteration_counter",
    "iteration_number",
    "numbered_from",
    "one",
    "optimizer_counts",
    "refuse",
    "require_dense",
    "reset_optimizer_instance_count",
]

ITERATION = "optimizer_iteration"
"""Name of the iteration counter, int64, shape (1,), on the CPU; all optimizers of a net share it."""

ITERATION_MUTEX = "iteration_mutex"
"""Name of the mutex that protects the iteration counter."""

OPTIMIZERS: dict[str, type[Optimizer]] = {}
"""Optimizers by name, for programs that offer them; ``class MyOptimizer(Optimizer, name="my")`` adds one."""

_NOT_SETTINGS = ("engine", "kwargs", "policy")

_instances: Counter[str] = Counter()


def reset_optimizer_instance_count() -> None:
    """Number optimizers from 0 again, as in a new process; the names of their blobs contain these numbers."""
    _instances.clear()


@contextmanager
def numbered_from(counts: Mapping[str, int]) -> Iterator[None]:
    """Number the optimizers that are made in the block as if ``counts``, from ``optimizer_counts``, had been made.

    So blobs of an optimizer that is built again for the same parameters have the same names.
    """
    before = Counter(_instances)
    _instances.clear()
    _instances.update(counts)
    try:
        yield
    finally:
        _instances.clear()
        _instances.update(before)


def optimizer_counts() -> dict[str, int]:
    """Return how many optimizers of each class have been made."""
    return dict(_instances)


class AuxOptimizerParams(NamedTuple):
    """The state of an optimizer: blobs of single parameters, and blobs that parameters share."""

    local: list[BlobReference]
    shared: list[BlobReference]


class Optimizer:
    """Adds the operators that update parameters from their gradients.

    An optimizer is called once for each parameter, in the parameter's device scope. Subclasses implement ``_run``.
    Blobs of the optimizer itself are named ``<class>_<number>_<what>_<device>``; optimizers of
    a class are numbered in each process.

    Args:
        name: of a class statement: the key of the class in ``OPTIMIZERS``, unless None.

    Raises:
        ArgumentError: another class has the name.
    """

    updates = True
    """Whether it updates parameters, which only one optimizer may do; False: it only changes their gradients."""

    repeats = False
    """Whether, after the first one on a device, updates for dense gradients differ only in the names of blobs.

    Then the operators of one of them are repeated with the other names. A class must set it itself, since a subclass
    may add other operators. A name made of the parameter's or the gradient's must have it once, or the update is built
    by itself; all state must be in the list that ``get_auxiliary_parameters`` returns.
    """

    uses_shapes = False
    """Whether an update has depended on the shape of its parameter; then none is repeated."""

    rate_name: str | None = None
    """The argument and attribute with its base learning rate; None: it has none."""

    usual_rate = 0.01
    """The learning rate of programs whose user gives none."""

    for_float16 = False
    """Whether its parameters are float16."""

    decouples = True
    """Whether ``decoupled_decay`` is supported: the rate is a blob, and float32 parameters are what is updated."""

    decoupled_decay = 0.0
    """Weight decay w = w - rate * decay * w before the update, apart from the gradient; see ``build_optimizer``.

    Source: Loshchilov and Hutter, "Decoupled weight decay regularization", 2019, arXiv:1711.05101.
    """

    tunes_rate = False
    """Whether it computes its rate itself, so that ``rate_factor`` must be 1."""

    rate_factor = 1.0
    """Factor of the rate in the updates that are added, see ``build_optimizer``."""

    own_decay_is_decoupled = False
    """Whether its argument ``weight_decay`` is the ``decoupled_decay``."""

    def __init_subclass__(cls, name: str | None = None, **more: Any) -> None:
        super().__init_subclass__(**more)
        if name is None:
            return
        other = OPTIMIZERS.get(name, cls)
        place, here = (f"{each.__module__}.{each.__qualname__}" for each in (other, cls))
        if place != here:  # they are equal where a cell of a notebook runs again
            raise ArgumentError(f"{here}: the optimizer {place} has the name {name!r}; choose another one")
        OPTIMIZERS[name] = cls

    @classmethod
    def settings(cls) -> list[str]:
        """Return the names of its arguments other than the learning rate and its policy."""
        return [name for name in inspect.signature(cls).parameters if name not in (*_NOT_SETTINGS, cls.rate_name)]

    @classmethod
    def has_policy(cls) -> bool:
        """Return whether it supports learning rate policies; otherwise the rate is fixed."""
        return "kwargs" in inspect.signature(cls).parameters and not cls.tunes_rate

    def __init__(self) -> None:
        kind = type(self).__name__
        self._instance_num = _instances[kind]
        _instances[kind] += 1
        self._aux_params = AuxOptimizerParams([], [])
        self._shared: set[BlobReference] = set()
        self._lr_multiplier: BlobReference | None = None
        self._decaying: ParameterInfo | None = None
        self._scaled_from: dict[str, BlobReference] = {}

    def __repr__(self) -> str:
        """The class with the arguments that are not its defaults, as its attributes are now."""
        shown = []
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name, parameter.default)
            if parameter.kind is inspect.Parameter.VAR_KEYWORD or value is parameter.default:
                continue
            if type(value) is not type(parameter.default) or value != parameter.default:
                shown.append(f"{name}={value!r}")
        shown += [f"{name}={value!r}" for name, value in getattr(self, "init_kwargs", {}).items()]
        return f"{type(self).__name__}({', '.join(shown)})"

    def __call__(
        self,
        net: Net,
        param_init_net: Net,
        param: ParameterInfo | BlobReference | str,
        grad: BlobReference | GradientSlice | str | None = None,
    ) -> None:
        """Add the update of one parameter.

        Args:
            net: net that gets the update.
            param_init_net: net that initializes the state of the optimizer.
            param: the parameter with its gradient; or its blob or name, together with ``grad``.
            grad: the gradient.

        Raises:
            TypeError: ``grad`` is missing.
        """
        if not isinstance(param, ParameterInfo):
            if grad is None:
                raise TypeError(
                    f"{type(self).__name__}: param must be a ParameterInfo, or a blob together with grad; got {param!r}"
                )
            blob = BlobReference(param) if isinstance(param, str) else param
            param = ParameterInfo(None, blob, grad=BlobReference(grad) if isinstance(grad, str) else grad)
        self._decaying = param if self.decoupled_decay else None
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
        """Return the name of the optimizer's blob ``base_str`` on the device of the current device scope."""
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
        """Return the blobs of the rate on the current device and of the iteration's number; create them if necessary.

        The first iteration has number ``iter_val``, so that a policy of N iterations is over after N steps, and bias
        corrections begin with t = 1. In the compatibility layer, as in Caffe2, it has number ``iter_val`` + 1.

        Args:
            base_learning_rate: the rate, with the sign that the update needs.
            learning_rate_blob: name of the rate; None: a name made from this optimizer and the device.
            policy: see ``netbuilder.ops.updates.rate_policies``.
            iter_val: initial value of the iteration counter.
            kwargs: arguments of the policy.

        Raises:
            ArgumentError: an argument of the policy is unknown, missing or out of range.
        """
        if learning_rate_blob is not None and not isinstance(learning_rate_blob, (str, BlobReference)):
            raise TypeError(
                f"{type(self).__name__}: learning_rate_blob must be the name of a blob, got {learning_rate_blob!r}"
            )
        name = learning_rate_blob or self.make_unique_blob_name("lr")
        rate = BlobReference(ScopedName(name), net)
        known = net.BlobIsDefined(rate)
        if not known:
            check_numbers(type(self).__name__, "finite", base_learning_rate=base_learning_rate)
            check = check_policy_as_in_caffe2 if net.updates_as_in_caffe2 else check_policy
            check(abs(base_learning_rate), policy, kwargs)
            check_whole_numbers(type(self).__name__, 0, iter_val=iter_val)
        iteration = iteration_number(net, iteration_counter(net, param_init_net, iter_val))
        if not known:
            if not net.updates_as_in_caffe2:
                kwargs = completed(policy, kwargs)
                if policy == "composite":  # whose operator counts from 1, so its first part would last one longer
                    first, *others = kwargs["sub_policy_num_iters"]
                    kwargs["sub_policy_num_iters"] = [first - 1, *others]
            rate = net.LearningRate([iteration], name, base_lr=float(base_learning_rate), policy=policy, **kwargs)
        return self._with_factor(net, param_init_net, self._scaled(net, rate)), iteration

    def _rate(
        self, net: Net, param_init_net: Net, sign: int, base: float, policy: str, arguments: dict[str, Any]
    ) -> tuple[BlobReference, BlobReference]:
        """Return ``build_lr`` of a rate given by the user, with the sign that the update needs."""
        if isinstance(base, Real) and base < 0:
            raise ArgumentError(
                f"{type(self).__name__}: the base rate must not be negative, got {base}; the update sets its sign"
            )
        check_numbers(type(self).__name__, "at least 0", **{"the base rate": base})
        if hasattr(base, "is_loss_scale"):
            warn_user(
                f"{type(self).__name__}: the base rate {base} was computed from loss_scale although the losses already "
                "are multiplied by it, so steps become too small; give the rate of one device"
            )
        self._refuse_unknown(arguments)
        rate, iteration = self.build_lr(net, param_init_net, sign * base, policy=policy, **arguments)
        if self._decaying is not None:
            self._decay(net, param_init_net, self._decaying, rate, sign)
        return rate, iteration

    def _decay(self, net: Net, param_init_net: Net, param_info: ParameterInfo, rate: BlobReference, sign: int) -> None:
        """Add the decoupled decay of a parameter, before its update."""
        if isinstance(param_info.grad, GradientSlice):
            raise GradientError(
                f"{type(self).__name__}: decoupled weight decay supports only dense gradients, but the gradient of "
                f"{param_info} is sparse; do not tag this parameter as a weight, or name it in no_decay"
            )
        kept = BlobReference(f"{rate}_kept_share", net)
        if not net.BlobIsDefined(kept):
            unit = one(param_init_net)
            decay = constant(param_init_net, "decoupled_decay", -sign * float(self.decoupled_decay))
            net.WeightedSum([unit, unit, decay, rate], kept)  # 1 - |rate| * decay
        net.Mul([param_info.blob, kept], param_info.blob, broadcast=1)

    def require_decoupled(self) -> None:
        """Raise ArgumentError if ``decoupled_decay`` is not supported."""
        if not self.decouples:
            raise ArgumentError(
                f"{type(self).__name__}: supports no decoupled weight decay; use add_weight_decay, which adds it to "
                "the gradients"
            )

    def _refuse_unknown(self, arguments: Iterable[str]) -> None:
        """Raise ArgumentError for an argument of neither this optimizer nor the learning rate."""
        known = _known_arguments(type(self))
        for name in arguments:
            if name not in known and not name.startswith(LearningRate.open_arguments):
                hint = did_you_mean(name, known) or "; no learning rate policy has it either"
                raise ArgumentError(f"{type(self).__name__}: unknown argument {name!r}{hint}")

    @classmethod
    def unknown_arguments(cls, arguments: Iterable[str], *takers: Any) -> list[str]:
        """Return the arguments that are not similar to any of this optimizer, a learning rate or ``takers``."""
        known = _known_arguments(cls).union(*(inspect.signature(taker).parameters for taker in takers))
        return [
            name
            for name in arguments
            if name not in known and not name.startswith(LearningRate.open_arguments) and not similar(name, known)
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

    def _with_factor(self, net: Net, param_init_net: Net, rate: BlobReference) -> BlobReference:
        """Return the rate times ``rate_factor``."""
        if self.rate_factor == 1:
            return rate
        scaled = BlobReference(f"{rate}_times_{float(self.rate_factor)!r}", net)
        if not net.BlobIsDefined(scaled):
            net.Mul([rate, constant(param_init_net, "rate_factor", self.rate_factor)], scaled, broadcast=1)
        return scaled

    def require_rate_factor(self) -> None:
        """Raise ArgumentError if ``rate_factor`` is not supported."""
        if self.tunes_rate:
            raise ArgumentError(
                f"{type(self).__name__}: tunes the rate of each parameter itself, so that rates would have no effect; "
                "leave them out, or use another optimizer"
            )

    def add_lr_multiplier(self, lr_multiplier: BlobReference) -> None:
        """Multiply the rate by a blob on the CPU, of shape () or (1,), that is computed before the updates."""
        self._lr_multiplier = lr_multiplier

    # Layer-wise rates

    def create_lars_inputs(
        self, param_init_net: Net, weight_decay: float, trust: float, lr_max: float
    ) -> tuple[BlobReference, BlobReference, BlobReference]:
        """Add the constants for the operator Lars, each of shape (1,), on the current device; return them."""
        device = CurrentDeviceScope() or DeviceOption()
        not_default = device.device_type != PROTO_CPU or device.device_id
        suffix = f"_{device.device_type}_{device.device_id}{device.node_name}" if not_default else ""
        wd, trust_blob, lr_max_blob = (
            param_init_net.ConstantFill([], name + suffix, shape=[1], value=value)
            for name, value in (("weight_decay", weight_decay), ("trust", trust), ("lr_max", lr_max))
        )
        return wd, trust_blob, lr_max_blob

    def _checked_lars(self, offset: float | None) -> float | None:
        if offset is not None:
            self._check("at least 0", lars=offset)
        return offset

    def _check(self, rule: str, **given: Any) -> None:
        """Raise ArgumentError if arguments are no numbers that follow a rule, see ``check_numbers``."""
        check_numbers(type(self).__name__, rule, **given)

    def _check_flags(self, **given: Any) -> None:
        check_flags(type(self).__name__, **given)

    def _check_choices(self, *, engine: Any = "", sparse_dedup_aggregator: Any = None) -> None:
        """Raise ArgumentError if one of these arguments, which several optimizers have, is none that there can be."""
        if engine is not None and not isinstance(engine, str):
            raise ArgumentError(f"{type(self).__name__}: engine must be a name, or '', got {engine!r}")
        if sparse_dedup_aggregator not in (None, "sum", "mean", "none"):
            raise ArgumentError(
                f"{type(self).__name__}: sparse_dedup_aggregator must be 'sum', 'mean', 'none' or None, got "
                f"{sparse_dedup_aggregator!r}"
            )

    def _local_rate(
        self, net: Net, param_init_net: Net, param_info: ParameterInfo, offset: float | None
    ) -> BlobReference | None:
        """Add the layer-wise factor of the rate; None without ``offset``, or for a sparse gradient."""
        param, grad = param_info.blob, param_info.grad
        if offset is None or isinstance(grad, GradientSlice):
            return None
        constants = self.create_lars_inputs(param_init_net, 0.0, 1.0, float(np.finfo(np.float32).max))
        factor: BlobReference = net.Lars(
            [param, grad, *constants], self.make_unique_blob_name(f"{param}_lars"), offset=offset, lr_min=0.0
        )
        return factor

    def _localized(self, net: Net, rate: BlobReference, local: BlobReference | None) -> BlobReference:
        """Return the rate multiplied by the factor of ``_local_rate``."""
        if local is None:
            return rate
        product: BlobReference = net.Mul([rate, local], self.make_unique_blob_name("local_scaled_lr"), broadcast=1)
        return product

    def scale_learning_rate(self, scale: float) -> None:
        """Multiply the base rate; call it before the updates are added.

        Raises:
            NotImplementedError: this optimizer has no learning rate.
            ArgumentError: ``scale`` is not a positive number.
        """
        if self.rate_name is None:
            raise NotImplementedError(f"{type(self).__name__} has no learning rate to scale")
        self._check("positive", scale=scale)
        setattr(self, self.rate_name, getattr(self, self.rate_name) * scale)

    # State

    def get_auxiliary_parameters(self) -> AuxOptimizerParams:
        """Return the blobs that a checkpoint needs in addition to the parameters."""
        return self._aux_params

    @property
    def attributes(self) -> dict[str, Any]:
        """The optimizer's settings and state, without its number."""
        return {name: value for name, value in vars(self).items() if name != "_instance_num"}

    def _state(self, param_init_net: Net, param: BlobReference, suffix: str, value: float = 0.0) -> BlobReference:
        """Add a state blob of the shape of ``param``, named after it."""
        state: BlobReference = param_init_net.ConstantFill([param], param + suffix, value=value)
        self._aux_params.local.append(state)
        return state

    def _row_state(self, param_init_net: Net, param_info: ParameterInfo, suffix: str, **fill: Any) -> BlobReference:
        """Add a state blob with one number for each row of a parameter, named after it."""
        rows = self._shape(param_info, "state per row")[0]
        state: BlobReference = param_init_net.ConstantFill([], param_info.blob + suffix, shape=[int(rows)], **fill)
        self._aux_params.local.append(state)
        return state

    def _shape(self, param_info: ParameterInfo, what: str) -> Sequence[int]:
        """Return the shape of a parameter.

        Raises:
            ArgumentError: it is not known; the message says that ``what`` needs it.
        """
        if param_info.shape is None:
            raise ArgumentError(
                f"{type(self).__name__}: {what} needs the shape of {param_info}, which is not known; create it by "
                "create_param, or by a fill with the argument shape"
            )
        self.uses_shapes = True
        return param_info.shape

    def _share(self, blob: BlobReference) -> None:
        if blob not in self._shared:
            self._shared.add(blob)
            self._aux_params.shared.append(blob)

    @staticmethod
    def dedup(net: Net, sparse_dedup_aggregator: str | None, grad: Any, *, shape: Sequence[int] | None = None) -> Any:
        """Return the gradient; if it is sparse, with the rows of equal index aggregated.

        Args:
            sparse_dedup_aggregator: "sum" or "mean" of these rows, by Caffe2's operators, which require a vector of
                indices; "none": rows are not aggregated and update the table one after another, as in Caffe2; None:
                their sum, for indices of any shape, or "none" in the compatibility layer.
            shape: of the parameter, if it is known: the sums are then as many as the indices, so that the net's plan
                has the update, on a GPU nothing waits for the number of distinct rows, and CUDA graphs can contain it.

        Raises:
            ArgumentError: it has another value.
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
        options: dict[str, Any] = {"num_rows": int(shape[0])} if shape else {}
        rows, sums = net.SumRepeatedRows([grad.indices, grad.values], results, **options)
        return GradientSlice(indices=rows, values=sums)


_known: dict[type[Optimizer], frozenset[str]] = {}


def _known_arguments(optimizer: type[Optimizer]) -> frozenset[str]:
    """Return the names of the arguments of an optimizer and of a learning rate (cached for each class)."""
    if optimizer not in _known:
        own = (inspect.signature(takes).parameters for takes in (optimizer, optimizer.build_lr))
        _known[optimizer] = frozenset(field.name for field in fields(LearningRate)).union(*own)
    return _known[optimizer]


def require_dense(optimizer: Optimizer, param_info: ParameterInfo) -> BlobReference:
    """Return the gradient of a parameter.

    Raises:
        GradientError: it is sparse, which the optimizer does not support.
    """
    grad = param_info.grad
    if isinstance(grad, GradientSlice):
        raise GradientError(
            f"{type(optimizer).__name__}: supports only dense gradients, but the gradient of {param_info} is sparse; "
            "give that parameter its own optimizer (ParameterInfo.optimizer), such as SgdOptimizer"
        )
    assert grad is not None
    return grad


def one(param_init_net: Net) -> BlobReference:
    """Add the constant 1 on the current device, shape (1,), and return its blob."""
    return constant(param_init_net, "ONE", 1.0)


def constant(param_init_net: Net, name: str, value: float) -> BlobReference:
    """Add a constant on the current device, shape (1,), and return its blob.

    Args:
        param_init_net: net that gets the constant.
        name: of the blob, before what stands for the device; a number follows where the net has such a blob with
            another value.
        value: the value.
    """
    device = CurrentDeviceScope() or DeviceOption()
    name = f"{name}_{device.device_type}_{device.device_id}{device.node_name}"
    rounded, free = np.float32(value), name
    for number in itertools.count(2):
        if _value_of(param_init_net, ScopedName(free)) in (None, rounded):
            break
        free = f"{name}_{number}"
    blob: BlobReference = param_init_net.ConstantFill([], free, shape=[1], value=value)
    return blob


def _value_of(net: Net, blob: str) -> Any:
    """Return the value of a constant that a net makes, in float32; None if it does not make it."""
    op = net.writer_of(blob)
    if op is None:
        return None
    return np.float32(next((argument_value(each) for each in op.arg if each.name == "value"), 0.0))


def iteration_counter(
    net: Net, param_init_net: Net, first: int = 0, *, counter: Any = ITERATION, mutex: Any = ITERATION_MUTEX
) -> BlobReference:
    """Return the iteration counter, which ``net`` increments once per run; create it if necessary.

    Operators after the increment read the number of runs, this one included. What ``net`` has kept of the counter from
    before it, see ``iteration_number``, is the number of finished ones.

    Args:
        net: net that increments the counter.
        param_init_net: net that initializes it.
        first: initial value.
        counter, mutex: names of the counter, int64 of shape (1,), and its mutex, under the current name scope.
    """
    counter, mutex = BlobReference(ScopedName(counter), net), BlobReference(ScopedName(mutex), net)
    if net.BlobIsDefined(counter):
        return counter
    with DeviceScope(DeviceOption(device_type=PROTO_CPU, device_id=0, extra_info=["device_type_override:cpu"])):
        if not param_init_net.BlobIsDefined(counter):
            param_init_net.ConstantFill([], counter, shape=[1], value=first, dtype=TensorProto.INT64)
            param_init_net.CreateMutex([], mutex)
        if not net.updates_as_in_caffe2:
            net.Copy(counter, _before_increment(net, counter))
        net.AtomicIter([mutex, counter], counter)
    return counter


def _before_increment(net: Net, counter: BlobReference) -> BlobReference:
    return BlobReference(f"{counter}_before", net)


def iteration_number(net: Net, counter: BlobReference) -> BlobReference:
    """Return the number of the current iteration: from 0, or as Caffe2 from 1, which is the incremented counter."""
    before = _before_increment(net, counter)
    return before if not net.updates_as_in_caffe2 and net.BlobIsDefined(before) else counter


def refuse(optimizer: str, options: dict[str, Any], defaults: dict[str, Any] | None = None) -> None:
    """Raise if unsupported options do not have their default values.

    Raises:
        ArgumentError: an option is set; the message lists all that are.
    """
    requested = {name: value for name, value in options.items() if value != (defaults or {}).get(name)}
    if requested:
        raise ArgumentError(f"{optimizer}: these options are not supported: {requested}; omit them")
