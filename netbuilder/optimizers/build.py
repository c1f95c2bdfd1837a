"""Adding the updates of an optimizer, clipping of gradients and weight decay to a whole model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain, groupby
from typing import Any

from netbuilder.graph.blob import BlobReference, GradientSlice
from netbuilder.graph.net import Net
from netbuilder.graph.scope import DeviceScope, NameScope
from netbuilder.graph.source import warn_user
from netbuilder.model.model_helper import ModelHelper
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.model.rollback import remove_added_on_error
from netbuilder.optimizers.layer_rates import factors_by_pattern, parameters_by_pattern
from netbuilder.optimizers.learning_rate import LR_INJECTION
from netbuilder.optimizers.optimizer import Optimizer, constant, one
from netbuilder.optimizers.placement import get_param_device, parameter_devices
from netbuilder.optimizers.repeated import RepeatedUpdates
from netbuilder.proto import PROTO_CPU, DeviceOption, GradientError, NetError, TensorProto
from netbuilder.proto.arguments import make_device_option
from netbuilder.proto.numbers import check_flags, check_numbers
from netbuilder.proto.suggestions import did_you_mean

__all__ = [
    "Params",
    "WeightDecayBuilder",
    "add_weight_decay",
    "build_optimizer",
    "chosen_parameters",
    "updates_of_one_replica",
]

Params = str | BlobReference | Iterable[str | BlobReference]
"""Parameters of a model: names or references, or name scopes that contain them."""

_CLIPPING_SCOPE = "norm_clipped_grad_update"

_of_one_replica: ContextVar[bool] = ContextVar("of_one_replica", default=False)


@contextmanager
def updates_of_one_replica() -> Iterator[None]:
    """Raise NetError in the block for optimizers of all parameters: it is for the update of one replica of several."""
    token = _of_one_replica.set(True)
    try:
        yield
    finally:
        _of_one_replica.reset(token)


def build_optimizer(
    model: ModelHelper,
    optimizer: Optimizer,
    *,
    params: Params | None = None,
    weights_only: bool = False,
    use_param_info_optim: bool = True,
    max_gradient_norm: float | None = None,
    allow_lr_injection: bool = False,
    decoupled_decay: float | None = None,
    no_decay: Collection[str] = (),
    rates: Mapping[str, float] | None = None,
) -> Optimizer:
    """Add the update of each parameter that has a gradient, on the parameter's device; return the optimizer.

    Args:
        model: the model, after its backward pass.
        optimizer: the optimizer of parameters without one of their own.
        params: update only these: parameters or their names, without the scope of a replica, or name scopes, such as
            ``"G"`` for all of a generator. None: all.
        weights_only: update only parameters tagged as weights.
        use_param_info_optim: prefer a parameter's own optimizer (``ParameterInfo.optimizer``).
        max_gradient_norm: if the global norm of the updated parameters' gradients is greater, divide all gradients so
            that it equals this, before the optimizer reads them; None: never. The gradients are those of the whole
            batch, over all devices and processes, in which the rows of a sparse gradient with equal index count as
            their sum. Weight decay added before is a part of them. In the compatibility layer, as in Caffe2, the
            rate is scaled instead, which changes little where an optimizer normalizes its steps, as Adam does.
        allow_lr_injection: multiply the rate by the blob ``lr_injection``, which is 1 until it is fed.
        decoupled_decay: before each update of a weight, subtract the rate times this times the weight; biases and
            computed parameters do not decay. None: what the optimizer says, which is 0 for all but AdamW, LAMB and
            Lion. LAMB adds it to the step that it normalizes.
        no_decay: full names of weights that do not decay, or patterns of names, such as ``"*_scale"`` for the scales of
            normalizations, without the scope of a replica or with it.
        rates: pattern of names, such as ``"conv1_*"``, without the scope of a replica or with it -> factor of the rate,
            and so of decoupled decay, too; where several fit, their product. ``layer_rates`` makes one for all layers.

    Raises:
        GradientError: there is no backward pass yet, or an optimizer does not support a gradient.
        NetError: parameters are listed twice, or have an update already; weight decay is added after the update of a
            parameter; or ``Parallelize`` has called its ``param_update_builder_fun``, and this is for all parameters;
            or a pattern of ``rates`` or ``no_decay`` fits no parameter.
        DeviceError: the device of a parameter cannot be determined.
        ArgumentError: ``max_gradient_norm``, ``allow_lr_injection``, ``decoupled_decay`` or a factor is out of
            range, or the optimizer supports no decoupled decay, or no factors, as it tunes its rate.
        TypeError: ``model`` is no ModelHelper, ``optimizer`` no Optimizer, or ``params`` no list of blobs.

    In the compatibility layer, as in Caffe2, a parameter that has an update already gets another one, with a warning.
    After an exception the model is in its former state.
    """
    if not isinstance(model, ModelHelper):
        raise TypeError(f"an optimizer needs a ModelHelper, got {model!r}")
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"model {model.name!r}: optimizer must be an Optimizer, got {optimizer!r}")
    check_flags(type(optimizer).__name__, allow_lr_injection=allow_lr_injection)
    if max_gradient_norm is not None:
        check_numbers(type(optimizer).__name__, "positive", max_gradient_norm=max_gradient_norm)
    if params is None and _of_one_replica.get():
        raise NetError(
            f"model {model.name!r}: {type(optimizer).__name__} is for the parameters of all devices, but is built in "
            "param_update_builder_fun (the fourth argument of Parallelize), which is called once per device; give the "
            "function that builds it by keyword, optimizer_builder_fun=..., which is called once"
        )
    if decoupled_decay is not None:
        check_numbers(type(optimizer).__name__, "at least 0", decoupled_decay=decoupled_decay)
    parameters = None if params is None else chosen_parameters(model, params)
    model.Validate()
    with remove_added_on_error(model):
        _add_updates(
            model,
            optimizer,
            model.GetOptimizationParamInfo(parameters),
            of_some=parameters is not None,
            weights_only=weights_only,
            use_param_info_optim=use_param_info_optim,
            max_gradient_norm=max_gradient_norm,
            allow_lr_injection=allow_lr_injection,
            decay=optimizer.decoupled_decay if decoupled_decay is None else decoupled_decay,
            no_decay=frozenset(chain(*parameters_by_pattern(model, "no_decay", map(str, no_decay)).values())),
            factors=factors_by_pattern(model, rates or {}),
        )
    return optimizer


def chosen_parameters(model: ModelHelper, params: Params) -> list[BlobReference]:
    """Return the parameters of a model that ``params`` names, of all replicas if it names them without their scopes.

    Raises:
        TypeError: ``params`` is neither a name nor a list of names.
        NetError: the model has no such parameter or scope.
    """
    given = [params] if isinstance(params, (str, BlobReference)) else params
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise TypeError(f"model {model.name!r}: params must be a list of parameters, or a name scope, got {params!r}")
    names = list(given)
    scopes = model.replica_scopes
    found: set[BlobReference] = set()
    for name in names:
        whole = str(name).rstrip("/") if isinstance(name, (str, BlobReference)) else ""
        full = [whole, *(scope + whole for scope in scopes)]
        begins = tuple(each + "/" for each in full)
        of_name = [param for param in model.params if str(param) in full or str(param).startswith(begins)]
        if not whole or not of_name:
            known = {part for param in model.params for part in (str(param), str(param).rpartition("/")[0])} - {""}
            raise NetError(
                f"model {model.name!r}: params must be parameters of the model, or name scopes that have some, got "
                f"{name!r}{did_you_mean(whole, known)}"
            )
        found.update(of_name)
    return [param for param in model.params if param in found]


def _add_updates(
    model: ModelHelper,
    optimizer: Optimizer,
    infos: list[ParameterInfo],
    *,
    of_some: bool,
    weights_only: bool,
    use_param_info_optim: bool,
    max_gradient_norm: float | None,
    allow_lr_injection: bool,
    decay: float,
    no_decay: frozenset[str],
    factors: Mapping[str, float],
) -> None:
    if weights_only:
        weights = set(model.weights)
        infos = [info for info in infos if info.blob in weights]
    _check_not_updated(model, optimizer, infos)
    if not infos and optimizer.updates:
        warn_user(
            f"model {model.name!r}: {type(optimizer).__name__} updates nothing, because no parameter "
            f"{'of those given ' if of_some else ''}has a gradient"
        )
        return
    devices = parameter_devices([model.net.Proto(), model.param_init_net.Proto()], [info.blob for info in infos])
    multiplier = None
    if max_gradient_norm is not None:
        multiplier = _clip(model, infos, devices, max_gradient_norm)
    if allow_lr_injection:
        injected = model.param_init_net.ConstantFill([], LR_INJECTION, shape=[1], value=1.0)
        multiplier = (
            injected if multiplier is None else model.net.Mul([multiplier, injected], "lr_multiplier", broadcast=1)
        )
    if multiplier is not None:
        optimizer.add_lr_multiplier(multiplier)
    decaying = {str(weight) for weight in model.weights} - no_decay if decay else set()
    for device, of_device in groupby(infos, lambda info: get_param_device(info.name, info.grad, devices)):
        with DeviceScope(device):
            updates: dict[tuple[bool, float], RepeatedUpdates] = {}  # does it decay, factor -> updates of such ones
            for info in of_device:
                own = info.optimizer if use_param_info_optim else None
                decays, factor = group = info.name in decaying, factors.get(info.name, 1.0)
                with _with_settings(own or optimizer, decay if decays else 0.0, factor):
                    if own:
                        own(model.net, model.param_init_net, info)
                        updates = {}  # another optimizer may have changed what the updates share
                        continue
                    updates[group] = updates.get(group) or RepeatedUpdates(optimizer, model)
                    updates[group].add(info)
    if optimizer.updates:
        model._updated += [info.blob for info in infos]


@contextmanager
def _with_settings(optimizer: Optimizer, decay: float, factor: float) -> Iterator[None]:
    """Let an optimizer add updates with this decoupled decay and factor of the rate."""
    if decay:
        optimizer.require_decoupled()
    if factor != 1:
        optimizer.require_rate_factor()
    before = optimizer.decoupled_decay, optimizer.rate_factor
    optimizer.decoupled_decay, optimizer.rate_factor = decay, factor
    try:
        yield
    finally:
        optimizer.decoupled_decay, optimizer.rate_factor = before


def _check_not_updated(model: ModelHelper, optimizer: Optimizer, infos: list[ParameterInfo]) -> None:
    updated = set(model._updated)
    names = [info.name for info in infos if info.blob in updated]
    if not names:
        return
    if optimizer.updates:
        text = (
            f"model {model.name!r}: parameters {names} have an update already and {{}} take two steps per iteration; "
            "build one optimizer, or give each optimizer its own parameters (params=)"
        )
        if not model.net.updates_as_in_caffe2:
            raise NetError(text.format("would"))
        warn_user(text.format("now"))
        return
    raise NetError(
        f"model {model.name!r}: {names} have updates already, so weight decay would have no effect on them; call "
        "add_weight_decay before building the optimizer"
    )


def _without_copies(model: ModelHelper, infos: Sequence[ParameterInfo]) -> list[ParameterInfo]:
    """Return only the first copy of each replicated parameter; the gradients of the others are equal to its own."""
    return [info for info in infos if info.name not in model.parameter_copies]


def _clip(
    model: Any, infos: Sequence[ParameterInfo], param_to_device: Mapping[str, DeviceOption], max_gradient_norm: float
) -> BlobReference | None:
    """Add operators that divide the gradients by ``max(bound, norm) / bound``.

    In the compatibility layer return the inverse of this divisor, a scalar on the CPU, for the learning rate instead.

    Args:
        model: the model, after its backward pass.
        infos: the parameters whose gradients are clipped, copies of replicated ones included.
        param_to_device: device of each parameter.
        max_gradient_norm: the bound, positive.

    Source: Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks", 2013,
    arXiv:1211.5063, algorithm 1.
    """
    net = model.net
    squares = _squared_norms(model, _without_copies(model, infos), param_to_device)
    with NameScope(_CLIPPING_SCOPE), DeviceScope(make_device_option()):
        norm = net.Pow(net.Sum(squares, "grad_squared_full_sum"), "global_norm", exponent=0.5)
        bound = model.param_init_net.ConstantFill([], "clip_norm", shape=[], value=float(max_gradient_norm))
        largest = net.Max([norm, bound], "max_norm")
        if net.updates_as_in_caffe2:
            ratio: BlobReference = net.Div([bound, largest], "norm_ratio")
            return ratio
        divisor = net.ExpandDims(net.Div([largest, bound], "norm_excess"), "gradient_divisor", dims=[0])
    _divide(net, infos, param_to_device, divisor)
    return None


def _squared_norms(
    model: Any, infos: Sequence[ParameterInfo], param_to_device: Mapping[str, DeviceOption]
) -> list[BlobReference]:
    """Add the sum of squares of each gradient, on the CPU.

    The rows of a sparse gradient are aggregated first; in the compatibility layer, as in Caffe2, they are not, so that
    each repeated row is a term of its own.
    """
    net, squares = model.net, []
    with NameScope(_CLIPPING_SCOPE):
        for i, info in enumerate(infos):
            with DeviceScope(get_param_device(info.name, info.grad, param_to_device)):
                grad: Any = info.grad
                if isinstance(grad, GradientSlice):
                    default = "none" if net.updates_as_in_caffe2 else None
                    grad = Optimizer.dedup(net, default, grad, shape=info.shape).values
                elif TensorProto.FLOAT in (info.blob_copy or {}):
                    grad = net.HalfToFloat(grad, f"grad_{i}_fp32")  # in float16 the sum of squares would overflow
                squares.append(net.EnsureCPUOutput(net.SumSqrElements([grad], f"grad_{i}_squared_sum")))
    return squares


def _divide(
    net: Net, infos: Sequence[ParameterInfo], param_to_device: Mapping[str, DeviceOption], divisor: BlobReference
) -> None:
    """Divide the gradients in place by a number on the CPU; a gradient of several parameters once."""
    here: dict[bytes, BlobReference] = {}
    done: set[str] = set()
    for info in infos:
        grad: Any = info.grad.values if isinstance(info.grad, GradientSlice) else info.grad
        if str(grad) in done:
            continue
        done.add(str(grad))
        device = get_param_device(info.name, info.grad, param_to_device)
        with DeviceScope(device):
            place = device.SerializeToString(deterministic=True)
            if place not in here:
                on_cpu = device.device_type == PROTO_CPU
                here[place] = divisor if on_cpu else net.CopyFromCPUInput(divisor, f"{divisor}_{device.device_id}")
            net.DivideBlobs([here[place], grad], grad)


class WeightDecayBuilder(Optimizer):
    """g = g + weight_decay * w.

    Args:
        weight_decay: the factor, not negative.

    Raises:
        ArgumentError: ``weight_decay`` is negative.
    """

    updates = False
    repeats = True

    def __init__(self, weight_decay: float) -> None:
        super().__init__()
        self._check("at least 0", weight_decay=weight_decay)
        self.weight_decay = weight_decay

    def _run(self, net: Net, param_init_net: Net, param_info: ParameterInfo) -> None:
        param, grad = param_info.blob, param_info.grad
        if isinstance(grad, GradientSlice):
            raise GradientError(
                f"weight decay: supports only dense gradients, but the gradient of {param_info} is sparse; "
                "do not tag this parameter as a weight"
            )
        unit = one(param_init_net)
        decay = constant(param_init_net, "wd", float(self.weight_decay))
        net.WeightedSum([grad, unit, param, decay], grad)


def add_weight_decay(model: ModelHelper, weight_decay: float, *, skip: Collection[str] = ()) -> None:
    """Add ``weight_decay`` times each weight to its gradient; biases and computed parameters do not decay.

    Call it after the backward pass and before building the optimizer.

    Args:
        weight_decay: the factor, not negative; the same for any number of devices.
        skip: full names of weights that do not decay, such as the scales of normalizations.

    Raises:
        ArgumentError: ``weight_decay`` is negative.
        GradientError: there is no backward pass yet, or a weight's gradient is sparse.
        NetError: a weight has its update already, so that the decay would come too late.
    """
    decaying = [param for param in model.params if str(param) not in skip] if skip else None
    build_optimizer(
        model, WeightDecayBuilder(weight_decay), params=decaying, weights_only=True, use_param_info_optim=False
    )
