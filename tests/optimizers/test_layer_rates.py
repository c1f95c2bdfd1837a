"""Rates by pattern and by layer: against optimizers of their own for each group; the layers of nets of the zoo."""

import numpy as np
import pytest

from netbuilder.graph import BlobReference
from netbuilder.model import Initializer, ModelHelper, brew
from netbuilder.optimizers import OPTIMIZERS, build_optimizer, layer_rates, layers_of, optimizer_by_name
from netbuilder.parallel import Parallelize_CPU, RunInitNet, RunNet, feed_shares
from netbuilder.proto import ArgumentError, NetError
from netbuilder.runtime import Workspace
from netbuilder.tools.training.nets import NETS
from toy_models import layers

RATED = [name for name, about in OPTIMIZERS.items() if not about.for_float16 and not about.tunes_rate]
DATA = np.random.default_rng(0).standard_normal((12, 5)).astype(np.float32)
LABEL = np.random.default_rng(1).integers(0, 3, 12).astype(np.int32)


def trained(update, devices=1, steps=4, accumulate=1, **options):
    """Return the parameters of the first replica after some steps."""
    model, workspace = ModelHelper("rates"), Workspace(seed=1)
    Parallelize_CPU(
        model, lambda model: None, layers(5, 8, 3), optimizer_builder_fun=update, devices=range(devices),
        weighted_shares=True, accumulate_steps=accumulate, **options,
    )  # fmt: skip
    begun = False
    for _ in range(steps):
        for _ in feed_shares(model, {"data": DATA, "label": LABEL}, workspace=workspace):
            if not begun:
                RunInitNet(model, workspace=workspace)
                begun = True
            RunNet(model, workspace=workspace)
    return {str(p): workspace.fetch(str(p)) for p in model.params if str(p).startswith("cpu_0/")}


def names_of(model, *parts):
    return [str(param).removeprefix("cpu_0/") for param in model.params
            if str(param).startswith("cpu_0/") and any(part in str(param) for part in parts)]  # fmt: skip


def with_factors(name, rate, rates, **more):
    def update(model):
        return build_optimizer(model, optimizer_by_name(name, rate), rates=rates, **more)

    return update


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", RATED)
def test_a_factor_is_an_optimizer_with_another_rate(name):
    """The same parameters, to the bit, as of one optimizer for each group; factors are powers of two."""
    rate = OPTIMIZERS[name].usual_rate / 4
    decay = {"decoupled_decay": 0.25} if OPTIMIZERS[name].decouples else {}

    def apart(model):
        for part, factor in (("fc1", 0.25), ("fc2", 1.0)):
            group = names_of(model, part)
            assert group
            found = build_optimizer(model, optimizer_by_name(name, factor * rate), params=group, **decay)
        return found

    one = trained(with_factors(name, rate, {"fc1*": 0.5, "*fc1_?": 0.5}, **decay))
    other, plain = trained(apart), trained(with_factors(name, rate, None, **decay))
    assert len(one) == 4
    for blob, value in one.items():
        np.testing.assert_array_equal(value, other[blob], err_msg=blob)
        assert "fc1" not in blob or (value != plain[blob]).any()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["sgd", "adamw", "lamb"])
@pytest.mark.parametrize(
    "options", [{"devices": 3}, {"devices": 2, "accumulate": 2}, {"devices": 2, "strategy": "zero:1"}], ids=str
)
def test_devices_and_micro_batches_agree(name, options):
    update = with_factors(name, 0.01, {"fc1*": 0.3, "*_b": 2}, max_gradient_norm=1.0)
    one, other = trained(update), trained(update, **options)
    for blob, value in one.items():
        np.testing.assert_allclose(other[blob], value, 1e-4, 1e-5, err_msg=blob)


def test_a_parameters_own_optimizer_gets_the_factor_too():
    found = []
    for rate, rates in ((0.5, {"fc1_w": 0.5}), (0.25, None)):

        def update(model, rate=rate, rates=rates):
            for scope in model.replica_scopes:
                model.get_param_info(BlobReference(scope + "fc1_w")).optimizer = optimizer_by_name("adam", rate)
            return build_optimizer(model, optimizer_by_name("sgd", 0.1), rates=rates)

        found.append(trained(update, devices=2))
    for blob, value in found[0].items():
        np.testing.assert_array_equal(value, found[1][blob], err_msg=blob)


def two_layers():
    model = ModelHelper("two")
    scores = brew.fc(model, brew.relu(model, brew.fc(model, "data", "fc1", 5, 4), "relu"), "fc2", 4, 3)
    model.AddGradientOperators([model.net.SoftmaxWithLoss([scores, "label"], ["softmax", "loss"])[1]])
    return model


@pytest.mark.parametrize(
    ("rates", "error", "message"),
    [
        ({"fc3*": 0.1}, NetError, "model 'two': rates: 'fc3\\*' fits no parameter of fc1_b, fc1_w, fc2_b, fc2_w"),
        ({"fc1*": 0}, ArgumentError, "rates: that of 'fc1\\*' must be a positive number, got 0"),
        ({"fc1*": float("nan")}, ArgumentError, "must be a positive number, got nan"),
    ],
)
def test_refused_rates(rates, error, message):
    model = two_layers()
    with pytest.raises(error, match=message):
        build_optimizer(model, optimizer_by_name("sgd"), rates=rates)
    build_optimizer(model, optimizer_by_name("sgd"))  # the model is in its former state


def test_a_rate_that_is_tuned_takes_no_factor():
    with pytest.raises(ArgumentError, match="YellowFinOptimizer: tunes the rate of each parameter itself"):
        build_optimizer(two_layers(), optimizer_by_name("yellowfin"), rates={"fc1*": 0.1})
    build_optimizer(two_layers(), optimizer_by_name("yellowfin"), rates={"fc1*": 1.0})


def zoo_layers(name, side):
    """Return the layers of a net, which have each of its parameters once."""
    model = ModelHelper(name, arg_scope={"order": "NCHW"})
    NETS[name](model, (3, side, side), 10, is_test=False, label="label")
    (found,) = layers_of(model)
    assert sorted(name for layer in found for name in layer) == sorted(map(str, model.params))
    return found


@pytest.mark.parametrize(
    ("name", "side", "count"),
    [
        ("resnet18", 64, 1 + 8 + 1),  # stem, blocks, classifier
        ("resnet50", 64, 1 + 16 + 1),
        ("vgg11", 64, 8 + 3),
        ("vgg11-bn", 64, 8 + 3),  # normalizations belong to their convolutions
        ("densenet121", 64, 1 + 4 + 3 + 1),  # stem, dense blocks, transitions, classifier
        ("inception-v3", 299, 5 + 11 + 1),
        ("vit-s16", 32, 2 + 24 + 1),  # patches with the class vector, positions, halves of 12 blocks, classifier
    ],
)
def test_layers_of_nets(name, side, count):
    assert len(zoo_layers(name, side)) == count


def test_the_layers_of_a_resnet_are_its_blocks():
    # Convolution, scale and bias of the stem; twice that in a block, and a third time where there is a shortcut.
    assert [len(layer) for layer in zoo_layers("resnet18", 64)] == [3, 6, 6, 9, 6, 9, 6, 9, 6, 2]


def test_layer_rates_of_replicas_are_equal():
    seen = {}

    def update(model):
        seen.update(layer_rates(model, 0.5))
        return build_optimizer(model, optimizer_by_name("sgd", 0.1), rates=seen)

    trained(update, devices=3)
    assert seen == {
        f"cpu_{device}/fc{n}_{what}": 0.5 ** (2 - n) for device in range(3) for n in (1, 2) for what in "wb"
    }
    with pytest.raises(ArgumentError, match=r"layer rates: decay must be a number in \(0, 1\], got 1.5"):
        layer_rates(two_layers(), 1.5)


def test_layers_with_branches_shared_parameters_and_values_without_data():
    model = ModelHelper("branches")
    matrices = {
        name: model.create_param(name, [4, 4], initializer=Initializer("XavierFill"))
        for name in ("tied", "late", "block", "end")
    }
    bias = model.create_param("bias", [4], initializer=Initializer("XavierFill"))
    early = model.net.Relu(matrices["late"], "early")  # computed at the beginning, used in the last layer but one
    mask = model.net.Sigmoid("data", "mask")  # computed from data, read everywhere
    x = model.net.MatMul(["data", matrices["tied"]], "first")
    x = model.net.Mul([x, mask], "masked")
    branch = model.net.MatMul([x, matrices["block"]], "branch")
    x = model.net.Add([x, model.net.Mul([branch, mask], "branch_masked")], "sum")
    x = model.net.Add([x, bias], "sum", broadcast=1)
    x = model.net.MatMul([x, early], "before")
    x = model.net.MatMul([x, matrices["tied"]], "again")
    x = model.net.MatMul([x, matrices["end"]], "last")
    model.net.AveragedLoss(x, "loss")
    assert layers_of(model) == [[["tied"], ["block", "bias"], ["late"], ["end"]]]
    other = model.net.MatMul(
        ["data", model.create_param("other", [4, 4], initializer=Initializer("XavierFill"))], "own_end"
    )
    model.net.AveragedLoss(other, "own_loss")
    assert layers_of(model)[1] == [["other"]]  # another net, which counts from its own end
    assert layer_rates(model, 0.5) == {"tied": 0.125, "block": 0.25, "bias": 0.25, "late": 0.5, "end": 1, "other": 1}
