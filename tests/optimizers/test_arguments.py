"""Each argument of each optimizer, builder and learning rate policy with values that it cannot have."""

import inspect
import math

import numpy as np
import pytest

from netbuilder import optimizers
from netbuilder.caffe2.python import optimizer as caffe2_optimizers
from netbuilder.caffe2.python.model_helper import ModelHelper as CompatibleModelHelper
from netbuilder.model import ModelHelper, brew
from netbuilder.ops.updates.rate_policies import POLICIES
from netbuilder.optimizers import OPTIMIZERS, EarlyStopping, add_moving_averages, add_weight_decay, build_optimizer
from netbuilder.optimizers.learning_rate import NEEDED
from netbuilder.proto import NetError
from netbuilder.proto.numbers import check_flags, check_numbers, check_whole_numbers

BUILDERS = sorted(name for name in optimizers.__all__ if name.startswith("build_") and name != "build_optimizer")
NO_NUMBERS = [math.nan, math.inf, -math.inf, "1", b"1", [0.5], (0.5,), {}, object(), np.float32("nan"), True, 1j]
NEGATIVE = [-1, -0.5, np.float32(-0.5)]
NO_FLAGS = ["no", "True", 2, -1, [], None, 0.5]
NO_TEXTS = [3, 0.5, ["sum"], object(), b"sum"]
UNSUPPORTED = {"ema_options", "pruning_options", "swa_options", "weight_scale"}  # refused whatever they are


def model_of(model_class=ModelHelper):
    model = model_class("model")
    loss = model.net.AveragedLoss(brew.fc(model, "x", "fc", 2, 3), "loss")
    model.AddGradientOperators([loss])
    return model


def wrong_values(name, default):
    """Values that an argument with this default value cannot have."""
    if isinstance(default, bool):
        return NO_FLAGS
    if isinstance(default, (int, float)):
        halflife = name == "counter_halflife"
        return [*NO_NUMBERS, *([-2, 0.5] if halflife else NEGATIVE), None]
    if default is None and name == "lars":
        return [*NO_NUMBERS, *NEGATIVE]
    return NO_TEXTS


CASES = [
    (key, argument, value)
    for key, about in OPTIMIZERS.items()
    for argument, parameter in inspect.signature(about).parameters.items()
    if argument != "kwargs" and argument not in UNSUPPORTED
    for value in wrong_values(argument, parameter.default)
]
CASES += [(key, "momentum", 1.5) for key in ("sgd", "rms-prop", "multi-precision-sgd", "fp16-sgd")]
CASES += [("adam", "beta1", 1.0), ("adam", "beta2", 1.5), ("adagrad", "decay", 2), ("yellowfin", "curv_win_width", 0.5)]
CASES += [("yellowfin", "nesterov", "no"), ("ftrl", "alpha", 0), ("wngrad", "moment_init", 0)]


@pytest.mark.parametrize("key", OPTIMIZERS)
def test_no_argument_of_an_optimizer_takes_what_it_cannot_have(key):
    model = model_of()
    before = model.Proto().SerializeToString(), model.InitProto().SerializeToString()
    for optimizer, argument, value in CASES:
        if optimizer != key:
            continue
        with pytest.raises((NetError, TypeError)) as caught:
            build_optimizer(model, OPTIMIZERS[key](**{argument: value}))
        said = str(caught.value)
        name = "base rate" if argument == OPTIMIZERS[key].rate_name and "base rate" in said else argument
        assert name in said or "policy" in said, (argument, value, said)
        assert repr(value) in said or str(value) in said, (argument, value, said)
        assert (model.Proto().SerializeToString(), model.InitProto().SerializeToString()) == before


@pytest.mark.parametrize("name", BUILDERS)
def test_builders(name):
    build, model = getattr(optimizers, name), model_of()
    rate = "alpha" if "ftrl" in name else "base_learning_rate"
    for argument, values in {
        rate: [*NO_NUMBERS, *NEGATIVE],
        "max_gradient_norm": [*NO_NUMBERS, *NEGATIVE, 0],
        "allow_lr_injection": NO_FLAGS,
        "momentun": [0.9],
    }.items():
        for value in values:
            with pytest.raises((NetError, TypeError)) as caught:
                build(model, **{rate: 0.1, argument: value})
            said = str(caught.value)
            known = ("base rate", "alpha", argument) if argument == rate else (argument,)  # its name in the optimizer
            assert any(f" {one} " in said or f"'{one}'" in said for one in known), (argument, value, said)
    for wrong in (None, 3, "model", model.net, object()):
        with pytest.raises(TypeError, match="an optimizer needs a ModelHelper, got"):
            build(wrong, **{rate: 0.1})
    if name not in ("build_fp16_sgd",):
        build(model, **{rate: 0.1})
        with pytest.raises(NetError, match="have an update already and would take two steps"):
            build(model, **{rate: 0.1})


ARGUMENTS = {
    "stepsize": 10, "gamma": 0.5, "power": 1.0, "max_iter": 10, "period": 10, "num_iter": 5, "max_lr": 1.0,
    "multiplier": 0.5, "multiplier_1": 0.5, "multiplier_2": 1.0, "num_iter_1": 2, "num_iter_2": 5, "m1": 0.1, "n1": 2,
    "m2": 0.5, "n2": 5, "m3": 1.0, "active_period": 3, "inactive_period": 2, "start_multiplier": 0.5,
    "constant_warmup_num_iter": 2, "linear_warmup_num_iter": 3, "cyclical_step_size": 5, "cyclical_max_lr": 1.0,
    "cosine_period": 7,
}  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
def test_policies(policy):
    whole = {name: ARGUMENTS[name] for name in NEEDED.get(policy, ())}
    optimizers.check_policy(0.1, policy, whole)
    prefixed = {f"sub_policy_0_{name}": value for name, value in whole.items()}
    optimizers.check_policy(0.1, "composite", {"sub_policy_num_iters": [3], "sub_policy_0_policy": policy, **prefixed})
    for name, value in whole.items():
        rest = {other: given for other, given in whole.items() if other != name}
        with pytest.raises(NetError, match=f"policy '{policy}' needs {name}"):
            optimizers.check_policy(0.1, policy, rest)
        for wrong in [*NO_NUMBERS, *([] if name == "power" else NEGATIVE), *([0.5] if isinstance(value, int) else [])]:
            with pytest.raises((NetError, TypeError), match=name):
                optimizers.check_policy(0.1, policy, {**whole, name: wrong})


@pytest.mark.parametrize(
    "arguments",
    [
        {"policy": None}, {"policy": 3}, {"policy": ["step"]}, {"policy": "Step", "stepsize": 2, "gamma": 0.5},
        {"policy": "composite", "sub_policy_num_iters": 3}, {"policy": "composite", "sub_policy_num_iters": "3"},
        {"policy": "composite", "sub_policy_num_iters": [-1], "sub_policy_0_policy": "fixed"},
        {"policy": "composite", "sub_policy_num_iters": [1], "sub_policy_0_policy": "composite"},
        {"policy": "composite", "sub_policy_num_iters": [1]}, {"policy": "fixed", "iter_val": -1},
        {"policy": "fixed", "iter_val": 0.5}, {"policy": "fixed", "learning_rate_blob": 3},
    ],
    ids=str,
)  # fmt: skip
def test_rates(arguments):
    with pytest.raises((NetError, TypeError), match="polic|iter_val|learning_rate_blob"):
        optimizers.build_sgd(model_of(), 0.1, **arguments)


@pytest.mark.parametrize("value", [*NO_NUMBERS, *NEGATIVE])
def test_helpers(value):
    for call in (
        lambda: add_weight_decay(model_of(), value),
        lambda: add_moving_averages(model_of(), value),
        lambda: EarlyStopping(value),
        lambda: EarlyStopping(1, least=value),
        lambda: optimizers.SgdOptimizer(0.1).scale_learning_rate(value),
        lambda: optimizers.optimizer_by_name("sgd", value) and optimizers.build_optimizer(
            model_of(), optimizers.optimizer_by_name("sgd", value)),
        lambda: optimizers.optimizer_by_name(value),
    ):  # fmt: skip
        with pytest.raises(NetError):
            call()


@pytest.mark.parametrize("optimizer", [None, "sgd", 3, optimizers.SgdOptimizer])
def test_what_is_no_optimizer(optimizer):
    with pytest.raises(TypeError, match="optimizer must be an Optimizer, got"):
        build_optimizer(model_of(), optimizer)


@pytest.mark.parametrize("params", [3, "fc", "", [3], ["nothing"], [None], b"fc0_w"], ids=str)
def test_what_are_no_parameters(params):
    with pytest.raises((NetError, TypeError), match="params must be"):
        build_optimizer(model_of(), optimizers.SgdOptimizer(0.1), params=params)


def test_in_the_compatibility_layer_a_second_update_is_a_warning():
    model = model_of(CompatibleModelHelper)
    caffe2_optimizers.build_sgd(model, 0.1)
    with pytest.warns(UserWarning, match="have an update already and now take two steps"):
        caffe2_optimizers.build_sgd(model, 0.1)


def test_numbers_of_numpy_are_numbers():
    check_numbers("this", "in [0, 1)", x=np.float32(0.5), y=np.float64(0), z=0)
    check_whole_numbers("this", 1, n=np.int64(3))
    check_flags("this", a=np.bool_(True), b=1, c=0, d=False)
