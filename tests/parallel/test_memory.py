"""Gradients in shared blobs: the same numbers to the bit, fewer blobs, parameters' gradients in their own."""

import dataclasses

import numpy as np
import pytest

from netbuilder import ModelHelper, Parallelize_CPU, parallel
from netbuilder.graph.net_names import reset_names
from netbuilder.proto import NetError
from netbuilder.tools.proof.measure import trained
from netbuilder.tools.proof.models import OPTIMIZERS as PROVED
from netbuilder.tools.prove import MODELS
from parallel_models import OPTIMIZERS, Task, convnet, mlp, no_input, parallelize, train

SHARED = {"optimize_gradient_memory": True}


def made(model):
    return {name for op in model.net.Proto().op for name in op.output}


def shared(model):
    return {name for name in made(model) if name.endswith("_shared")}


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("model", MODELS)
def test_tables_and_sequences_train_as_without_sharing(model, devices):
    plain = MODELS[model]
    sharing = dataclasses.replace(plain, options={**plain.options, **SHARED})
    name = list(PROVED)[devices % len(PROVED)]
    want, got = (trained(each, PROVED[name], devices, steps=3) for each in (plain, sharing))
    assert list(got) == list(want)
    for blob in want:
        np.testing.assert_array_equal(got[blob], want[blob], err_msg=blob)


@pytest.mark.parametrize("net_type", ["simple", "dag"])
@pytest.mark.parametrize("devices", [[0], [0, 1, 2]])
def test_a_convolutional_net_trains_as_without_sharing(devices, net_type):
    tasks = [Task(convnet, (6, 3, 8, 8), options={"net_type": net_type, **more}) for more in ({}, SHARED)]
    (plain, record, one), (model, _, other) = (train(devices, OPTIMIZERS["momentum"], task) for task in tasks)
    assert shared(model) and not shared(plain)
    assert len(made(model)) < len(made(plain))
    for param in record.parameters:
        for blob in record.blobs(param):
            np.testing.assert_array_equal(other.fetch(blob), one.fetch(blob))
    for group in record.gradients:
        for blob in record.devices.copies(group.values):
            np.testing.assert_array_equal(other.fetch(blob), one.fetch(blob))


def test_blobs_are_shared_within_a_replica():
    plain, _ = parallelize([0, 1], convnet)
    model, record = parallelize([0, 1], convnet, **SHARED)
    for gone in made(plain) - made(model):
        assert not model.net.BlobIsDefined(gone)
    assert all(model.net.BlobIsDefined(name) for name in made(model))
    assert {str(gradient) for gradient in model.grad_map.values()} <= made(model)
    for scope in record.devices.scopes:
        assert any(name.startswith(scope) for name in shared(model))


def test_micro_batches_train_as_without_sharing():
    tasks = [Task(mlp, steps=6, options={"accumulate_steps": 3, **more}) for more in ({}, SHARED)]
    (_, record, one), (model, _, other) = (train([0, 1], OPTIMIZERS["adam"], task) for task in tasks)
    assert shared(model)
    for param in record.parameters:
        np.testing.assert_array_equal(other.fetch(record.blobs(param)[1]), one.fetch(record.blobs(param)[1]))


@pytest.mark.parametrize("name", ["embedding inside", "both on one table"])
def test_rows_kept_over_micro_batches_are_not_shared(name):
    options = {**MODELS[name].options, "accumulate_steps": 2}
    plain, sharing = (dataclasses.replace(MODELS[name], options={**options, **more}) for more in ({}, SHARED))
    want, got = (trained(each, PROVED["Adam"], 2, steps=4) for each in (plain, sharing))
    for blob in want:
        np.testing.assert_array_equal(got[blob], want[blob], err_msg=blob)


def test_a_model_without_gradients_has_none_to_share():
    model = ModelHelper("evaluated", init_params=False)
    with pytest.raises(NetError, match="'evaluated' has no backward pass, so it has no gradients"):
        Parallelize_CPU(model, no_input, mlp, devices=[0], **SHARED)
    Parallelize_CPU(model, no_input, mlp, devices=[0])
    with pytest.raises(NetError, match="has no backward pass"):
        parallel.OptimizeGradientMemory(model, None, None, False)
    with pytest.raises(TypeError, match="model must be a ModelHelper, got 'model'"):
        parallel.OptimizeGradientMemory("model", {}, set(), False)


@pytest.mark.parametrize("recycle_activations", [False, True])
@pytest.mark.parametrize("shapes", [None, {"cpu_0/data": (3, 3, 8, 8), "cpu_1/data": (3, 3, 8, 8)}])
def test_the_later_call(shapes, recycle_activations):
    reset_names()
    model, record = parallelize([0, 1], convnet)
    plain = made(model)
    kept = "cpu_1/pooled_grad"
    assert kept in plain
    parallel.OptimizeGradientMemory(model, shapes, [kept], recycle_activations)
    assert kept in made(model)
    assert len(made(model)) < len(plain)
    activations = {name for name in plain - made(model) if "_grad" not in name}
    assert bool(activations) == recycle_activations
    before = model.net.Proto().SerializeToString()
    parallel.OptimizeGradientMemory(model, shapes, [kept], recycle_activations)
    assert model.net.Proto().SerializeToString() == before
    assert parallel.replicas_of(model.net.Proto()) == dataclasses.replace(record, shares_memory=True)


def test_a_model_that_is_not_parallel():
    with pytest.raises(NetError, match="replicas"):
        parallel.OptimizeGradientMemory(ModelHelper("alone"), None, None, False)
