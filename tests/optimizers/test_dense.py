"""The optimizers other than SGD, Adagrad, Adam and RMSProp: they lower a loss; scaling, errors."""

import numpy as np
import pytest

from netbuilder.graph import BlobReference, DeviceScope
from netbuilder.graph.net import Net
from netbuilder.model import ModelHelper, brew
from netbuilder.optimizers import (
    SgdOptimizer,
    StormOptimizer,
    WngradOptimizer,
    YellowFinOptimizer,
    build_adadelta,
    build_adagrad,
    build_adam,
    build_decay_adagrad,
    build_ftrl,
    build_gftrl,
    build_sgd,
    build_storm,
    build_wngrad,
    build_yellowfin,
    reset_optimizer_instance_count,
)
from netbuilder.proto import PROTO_CUDA, ArgumentError, GradientError, NetError
from netbuilder.proto.arguments import make_device_option
from netbuilder.runtime import Workspace

BUILDERS = {
    "adadelta": lambda model: build_adadelta(model, 1.0, epsilon=1e-2),
    "adadelta_injected": lambda model: build_adadelta(model, 1.0, epsilon=1e-2, allow_lr_injection=True),
    "adagrad_lars": lambda model: build_adagrad(model, 0.5, lars=1.0, weight_decay=0.001),
    "adam_lr_adaption": lambda model: build_adam(model, 0.05, use_lr_adaption=True),
    "decay_adagrad": lambda model: build_decay_adagrad(model, 0.5, beta1=0.5),
    "ftrl": lambda model: build_ftrl(model, alpha=0.5, lambda1=0.001),
    "gftrl": lambda model: build_gftrl(model, alpha=0.5, lambda1=0.001),
    "sgd_lars": lambda model: build_sgd(model, 0.5, lars=1.0),
    "sgd_lars_clipped": lambda model: build_sgd(model, 0.5, lars=1.0, momentum=0.5, max_gradient_norm=100.0),
    "storm": lambda model: build_storm(model, 0.3),
    "wngrad": lambda model: build_wngrad(model, 2.0, moment_init=1.0),
    "yellowfin": lambda model: build_yellowfin(model, 0.05, curv_win_width=5, beta=0.9, nesterov=True),
}


@pytest.fixture(autouse=True)
def _as_in_a_fresh_process():
    reset_optimizer_instance_count()


def regression():
    model = ModelHelper("model")
    brew.fc(model, "x", "y", 3, 2)
    loss = model.net.AveragedLoss(model.net.SquaredL2Distance(["y", "target"], "distance"), "loss")
    model.AddGradientOperators([loss])
    return model


def table_model():
    model = ModelHelper("table")
    table = model.param_init_net.UniformFill([], "table", shape=[4, 2])
    model.AddParameter(table)
    model.AddGradientOperators([model.net.AveragedLoss(model.net.Gather([table, "i"], "rows"), "loss")])
    return model


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.one_in(12)
def test_the_loss_falls(name):
    model = regression()
    BUILDERS[name](model)
    x = np.random.default_rng(1).standard_normal((32, 3)).astype(np.float32)
    workspace = Workspace()
    workspace.feed("x", x)
    workspace.feed("target", x @ np.float32([[1, -1], [0.5, 0], [0, 2]]) + 1)
    workspace.run_net_once(model.param_init_net)
    workspace.create_net(model.net)
    losses = []
    # YellowFin's rate rises without bound where gradients vanish, as they do at the end of a problem without noise.
    for _ in range(40 if name == "yellowfin" else 150):
        workspace.run_net(model.net)
        losses.append(float(workspace.fetch("loss")))
    assert losses[-1] < 0.15 * losses[0], losses[::10]


@pytest.mark.parametrize("name", [name for name in BUILDERS if "lars" not in name and "adam" not in name])
def test_state_is_kept(name):
    model = regression()
    kept = BUILDERS[name](model).get_auxiliary_parameters().local
    made = {blob for op in model.param_init_net.Proto().op for blob in op.output}
    assert {str(blob) for blob in kept} <= made and len(kept) >= 2
    update = next(op for op in model.net.Proto().op if op.output[0] == "y_w")
    assert set(update.output[1:]) <= {str(blob) for blob in kept}


@pytest.mark.parametrize("name", ["gftrl", "yellowfin"])
def test_sparse_gradients_are_refused(name):
    with pytest.raises(GradientError, match="supports only dense gradients, but the gradient of table is sparse"):
        BUILDERS[name](table_model())


def test_lars_divides_by_the_gradient():
    """|w| = 5 and |g| = 10 give 1 / (10 / 5 + 0.5) of the rate."""
    net, init = Net("net"), Net("init")
    SgdOptimizer(0.1, lars=0.5)(net, init, BlobReference("w"), BlobReference("g"))
    workspace = Workspace()
    workspace.feed("w", np.float32([3, 4]))
    workspace.feed("g", np.float32([6, 8]))
    workspace.run_net_once(init)
    workspace.run_net_once(net)
    np.testing.assert_allclose(workspace.fetch("w"), [3 - 0.24, 4 - 0.32], 1e-6)


def test_constants_of_lars_lie_where_their_parameter_does():
    net, init = Net("net"), Net("init")
    optimizer = SgdOptimizer(0.1, lars=0.5)
    for i in range(2):
        with DeviceScope(make_device_option(PROTO_CUDA, i)):
            optimizer(net, init, BlobReference(f"w{i}"), BlobReference(f"g{i}"))
    for op in net.Proto().op:
        if op.type == "Lars":
            i = op.device_option.device_id
            assert list(op.input[2:]) == [f"weight_decay_1_{i}", f"trust_1_{i}", f"lr_max_1_{i}"]


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: build_ftrl(regression(), alpha=0), "FtrlOptimizer: alpha must be a positive number, got 0"),
        (
            lambda: build_yellowfin(regression(), sparse_dedup_aggregator="sum"),
            "YellowFinOptimizer: these options are not",
        ),
        (lambda: build_adadelta(regression(), 0.1, decai=0.5), "unknown argument 'decai'; did you mean 'decay'"),
        (lambda: build_yellowfin(regression(), policy="step"), "policy must be 'fixed', because the rate is tuned"),
        (lambda: build_yellowfin(regression(), nesterow=True), r"unknown arguments \['nesterow'\]"),
        (lambda: YellowFinOptimizer(0), "alpha must be a positive number, got 0"),
        (lambda: StormOptimizer(grad_sq_init=-1), "grad_sq_init must be a number of at least 0, got -1"),
        (lambda: WngradOptimizer(moment_init=0), "moment_init must be a positive number, got 0"),
        (lambda: WngradOptimizer(lars=-1), "WngradOptimizer: lars must be a number of at least 0, got -1"),
        (lambda: build_decay_adagrad(regression(), 0.1, ema_options={}), "not supported: {'ema_options': {}}"),
        (lambda: build_wngrad(regression(), -1.0), "the base rate must not be negative, got -1.0"),
    ],
)
def test_refusals(make, match):
    with pytest.raises(NetError, match=match) as error:
        make()
    assert isinstance(error.value, ArgumentError)


@pytest.mark.parametrize("kind", [YellowFinOptimizer, StormOptimizer, WngradOptimizer])
def test_rates_are_scaled(kind):
    optimizer = kind(0.5)
    optimizer.scale_learning_rate(0.5)
    assert 0.25 in optimizer.attributes.values()
