"""The same bad argument to each of the ways to train on several devices: the same kind of error, at once."""

import numpy as np
import pytest

from netbuilder import graph, parallel
from netbuilder.model import ModelHelper, brew
from netbuilder.proto import PROTO_CUDA, NetError, UsageError
from netbuilder.proto.arguments import make_device_option
from parallel_models import OPTIMIZERS, no_input
from toy_models import mlp

SGD = OPTIMIZERS["sgd"]


def parallelize(model=None, **given):
    options = {"devices": [0, 1], "cpu_device": True, "optimizer_builder_fun": SGD, **given}
    parallel.Parallelize(model or ModelHelper("net"), no_input, mlp, **options)


def bmuf(model=None, **given):
    options = {"devices": [0, 1], "cpu_device": True, **given}
    parallel.Parallelize_BMUF(model or ModelHelper("net"), no_input, mlp, SGD, **options)


def parallel_do(model=None, **given):
    model = model or ModelHelper("net")
    with parallel.ParallelDo(model, **{"devices": [0, 1], **given}) as block:
        loss = block.write_output(model.net.AveragedLoss(brew.fc(model, block.read_input("x"), "fc", 3, 2), "loss"))
    model.AddGradientOperators([loss])


def scores(model, x):
    return brew.fc(model, x, "fc", 3, 2)


def wrapper(model=None, **given):
    options = {"devices": [0, 1], "cpu_device": True, **given}
    return parallel.DataParallel(model or scores, **options)


def called(model=None, **given):
    """A wrapper whose nets are built."""
    np.asarray(wrapper(model, gather=True, **given).eval()(np.ones((4, 3), np.float32)))


ALL = [parallelize, bmuf, parallel_do, wrapper]
OF_NETS = [parallelize, bmuf, wrapper]
WITHOUT_BLOCKS = [parallelize, parallel_do, wrapper]

WRONG = [
    *((ALL, {"devices": value}, NetError) for value in ([], [0, 0], [0, -1], [True], [0.5], ["a"], "01", 2)),
    *((ALL, {"use_nccl": value}, TypeError) for value in (1, "yes", None)),
    *((WITHOUT_BLOCKS, {"combine_spatial_bn": value}, TypeError) for value in (1, "yes", None)),
    *((OF_NETS, {"cpu_device": value}, TypeError) for value in (1, "yes", None)),
    *((OF_NETS, {"optimize_gradient_memory": value}, TypeError) for value in (1, None)),
    *(([parallelize, wrapper], {name: 1}, TypeError) for name in (
        "broadcast_computed_params", "reduce_update_broadcast", "shared_model"
    )),
    *(([parallelize, bmuf], {name: 1}, TypeError) for name in ("weighted_shares", "vector_losses")),
    ([parallelize], {"average_initial_parameters": 1}, TypeError),
    *(([parallelize, bmuf], {"accumulate_steps": value}, error) for value, error in (
        (0, NetError), (1.5, TypeError), (True, TypeError)
    )),
    *((OF_NETS, {"num_threads_per_device": value}, error) for value, error in (
        (0, NetError), (True, TypeError), ("2", TypeError)
    )),
    (OF_NETS, {"net_type": "prism"}, NetError),
    (OF_NETS, {"peer_access": 3}, TypeError),
    (OF_NETS, {"dtype": "float8"}, NetError),
    ([parallelize, wrapper], {"gradient_scaling": 1024}, TypeError),
    *((OF_NETS, {"memory_budget": value}, NetError) for value in (-1, "x", 0.0, True)),
    *(([parallelize, wrapper], {"outside_from_bytes": value}, error) for value, error in (
        (-1, NetError), (1.5, TypeError)
    )),
    *((ALL, {"model": value}, TypeError) for value in ("net", 3, object())),
]  # fmt: skip


@pytest.mark.parametrize(
    "call, given, error", [(call, given, error) for calls, given, error in WRONG for call in calls]
)
def test_arguments(call, given, error):
    with pytest.raises(error) as caught:
        call(**given)
    if "model" not in given:
        assert next(iter(given)) in str(caught.value) or "activations" in str(caught.value)  # what --dtype is about
    assert "unexpected keyword" not in str(caught.value)


def test_flags_of_the_wrapper_alone():
    for name in ("gather", "sync"):
        with pytest.raises(TypeError, match=f"{name} must be True or False, got 1"):
            wrapper(**{name: 1})


def with_backward_pass():
    model = ModelHelper("net")
    model.AddGradientOperators([model.net.AveragedLoss(brew.fc(model, "x", "first", 3, 2), "first_loss")])
    return model


def made_parallel():
    model = ModelHelper("net")
    parallelize(model)
    return model


@pytest.mark.parametrize("make", [with_backward_pass, made_parallel])
@pytest.mark.parametrize("call", ALL)
def test_models(call, make):
    with pytest.raises(NetError, match="a backward pass already|data-parallel already"):
        call(make())


SCOPES = {
    "NameScope": lambda: graph.NameScope("outer"),
    "DeviceScope": lambda: graph.DeviceScope(make_device_option(PROTO_CUDA, 0)),
}


@pytest.mark.parametrize("name, scope", SCOPES.items())
@pytest.mark.parametrize("call", [parallelize, bmuf, called])
def test_scopes(call, name, scope):
    with scope(), pytest.raises(UsageError, match=f"was called inside {name}") as caught:
        call()
    assert ("DataParallel(scores" in str(caught.value)) == (call is called)


def test_a_wrapper_may_be_made_in_a_scope():
    with graph.NameScope("outer"):
        made = wrapper(gather=True)
    assert np.shape(made.eval()(np.ones((4, 3), np.float32))) == (4, 2)
