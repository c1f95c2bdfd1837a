"""The time to build an operator does not depend on the number of devices; garbage collection is enabled afterwards."""

import gc

import pytest

from cost import cpu_seconds
from netbuilder import parallel
from netbuilder.model import ModelHelper
from parallel_models import OPTIMIZERS, no_input, parallelize
from toy_models import mlp


def per_operator(count):
    made = []
    seconds = cpu_seconds(lambda: made.append(parallelize(range(count), optimizer=OPTIMIZERS["momentum"])[0]))
    return seconds / made[0].net.op_len


@pytest.mark.slow
def test_the_cost_per_operator_does_not_grow():
    few, many = (min(per_operator(count) for _ in range(3)) for count in (4, 64))
    assert many < 5 * few  # 16 times, if the cost of building were quadratic


@pytest.mark.slow
def test_the_size_of_an_operator_does_not_grow():
    """Each operator of a reduction says over which devices, without listing them all."""
    few, many = (parallelize(range(count))[0].net.Proto() for count in (8, 256))
    assert many.ByteSize() / len(many.op) < 1.1 * few.ByteSize() / len(few.op)


@pytest.mark.parametrize("count", [1, 2, 16])
def test_operators_grow_with_the_devices(count):
    """Per parameter and device: its update, and a share of the reduction."""
    model, record = parallelize(range(count))
    per_device = len(["FC", "Relu", "FC", "SoftmaxWithLoss", "Scale"]) * 2 + 1  # forward, backward, seed
    reduction = len(record.parameters) * count if count > 1 else 0
    update = len(record.parameters) * count + len(["Copy", "AtomicIter", "LearningRate"])
    assert model.net.op_len == per_device * count + reduction + update


def test_garbage_is_collected_again_afterwards():
    assert gc.isenabled()
    parallelize([0, 1])
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        parallel.Parallelize_CPU(ModelHelper("net"), no_input, lambda model, scale: 1 / 0, devices=[0, 1])
    assert gc.isenabled()
    gc.disable()
    try:
        parallelize([0, 1], mlp)
        assert not gc.isenabled()
    finally:
        gc.enable()
