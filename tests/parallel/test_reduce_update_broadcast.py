"""Reduce to the first device, update there, broadcast: the parameters are those of an all-reduce, to the bit."""

import numpy as np
import pytest

from netbuilder import optimizers, parallel
from netbuilder.model import ModelHelper
from netbuilder.proto import NetError
from parallel_models import OPTIMIZERS, Task, no_input, train
from toy_models import convnet, looked_up, mlp

ASKED = {"reduce_update_broadcast": True}


def values(devices, optimizer, forward=mlp, shape=(24, 6), **options):
    """Return the parameters of every replica, stacked."""
    _, record, workspace = train(devices, optimizer, Task(forward, shape, steps=3, options=options), threads=1)
    return [np.stack([workspace.fetch(blob) for blob in record.blobs(name)]) for name in record.parameters]


def by_hand(model):
    rate = model.param_init_net.ConstantFill([], "rate", shape=[1], value=-0.1)
    one = model.param_init_net.ConstantFill([], "one", shape=[1], value=1.0)
    for param, gradient in model.get_param_to_grad(model.GetParams()).items():
        model.WeightedSum([param, one, gradient, rate], param)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_the_parameters_are_those_of_an_allreduce(name, count):
    want = values(range(count), OPTIMIZERS[name])
    for got, one in zip(values(range(count), OPTIMIZERS[name], **ASKED), want):
        np.testing.assert_array_equal(got, one)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("update", [optimizers.build_adagrad, optimizers.build_adam])
def test_tables_and_images(update, count):
    def rows(model):
        return update(model, 0.05)

    for forward, shape in ((looked_up, (24, 6)), (convnet, (24, 3, 8, 8))):
        want = values(range(count), rows, forward, shape)
        for got, one in zip(values(range(count), rows, forward, shape, **ASKED), want):
            np.testing.assert_array_equal(got, one)


def build(devices, cpu=True, **options):
    model = ModelHelper("net")
    record = parallel.Parallelize(model, no_input, mlp, devices=devices, cpu_device=cpu, **options, **ASKED)
    return model, record


@pytest.mark.filterwarnings("ignore:GPUs .* are not on this machine")
@pytest.mark.parametrize("cpu", [True, False])
def test_one_device_updates_and_the_others_get_copies(cpu):
    model, record = build([0, 1, 2], cpu, optimizer_builder_fun=OPTIMIZERS["momentum"])
    ops = list(model.net.Proto().op)
    updates = [op for op in ops if op.type == "MomentumSGDUpdate"]
    assert {op.output[2] for op in updates} == {record.blobs(name)[0] for name in record.parameters}
    copies = {op.output[0] for op in ops[ops.index(updates[-1]) :] if op.type == "Copy"}
    assert copies == {blob for name in record.parameters for blob in record.blobs(name)[1:]}
    state = [blob for op in model.param_init_net.Proto().op for blob in op.output if blob.endswith("_momentum")]
    assert len(state) == len(record.parameters)
    assert len(model.params) == 3 * len(record.parameters) == len(model.param_to_grad.keys() & set(model.params))


def test_over_micro_batches():
    want = values([0, 1], OPTIMIZERS["momentum"], accumulate_steps=3)
    for got, one in zip(values([0, 1], OPTIMIZERS["momentum"], accumulate_steps=3, **ASKED), want):
        np.testing.assert_array_equal(got, one)


def test_a_builder_of_one_replicas_update_is_called_once():
    model, record = build([0, 1], param_update_builder_fun=by_hand)
    updated = [op.output[0] for op in model.net.Proto().op if op.type == "WeightedSum"]
    assert sorted(updated) == sorted(record.blobs(name)[0] for name in record.parameters)


@pytest.mark.filterwarnings("ignore:GPUs .* are not on this machine")
@pytest.mark.parametrize("other", ["shared_model", "use_nccl"])
def test_refusals(other):
    with pytest.raises(NetError, match=f"reduce_update_broadcast=True cannot be combined with {other}=True.*give one"):
        build([0, 1], other == "shared_model", **{other: True})
