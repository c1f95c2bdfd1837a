"""Gradients in shared blobs: the same numbers to the bit, fewer blobs, parameters' gradients in their own."""

import dataclasses

import numpy as np
import pytest

from netbuilder import ModelHelper, Parallelize_CPU, Workspace, parallel
from netbuilder.graph.net_names import reset_names
from netbuilder.optimizers import build_sgd
from netbuilder.parallel.accumulate import why_micro_batches_differ
from netbuilder.proto import ArgumentError, BlobError, NetDef, NetError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime.plan.values import StepKind
from netbuilder.tools.proof.measure import trained
from netbuilder.tools.proof.models import OPTIMIZERS as PROVED
from netbuilder.tools.proof.table import MODELS
from netbuilder.zoo.resnet_cifar import create_resnet_cifar
from parallel_models import OPTIMIZERS, Task, no_input, parallelize, train
from toy_models import convnet, layers, mlp

SHARED = {"optimize_gradient_memory": True}


def made(model):
    return {name for op in model.net.Proto().op for name in op.output}


def shared(model):
    return {name for name in made(model) if name.endswith("_shared")}


@pytest.mark.parametrize(
    "model, devices",  # each model on one number of devices; they take turns
    [
        pytest.param(model, devices, marks=() if devices == 1 + number % 3 else pytest.mark.slow)
        for number, model in enumerate(MODELS)
        for devices in (1, 2, 3)
    ],
)
@pytest.mark.one_in(8)
def test_tables_and_sequences_train_as_without_sharing(model, devices):
    plain = MODELS[model]
    sharing = dataclasses.replace(plain, options={**plain.options, **SHARED})
    name = list(PROVED)[devices % len(PROVED)]
    want, got = (trained(each, PROVED[name], devices, steps=3) for each in (plain, sharing))
    assert list(got) == list(want)
    for blob in want:
        np.testing.assert_array_equal(got[blob], want[blob], err_msg=blob)


@pytest.mark.one_in(3)
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


@pytest.mark.one_in(2)
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
    with pytest.raises(ArgumentError, match="model must be a ModelHelper, got 'model'"):
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


def held(devices, *, observable=None, **options):
    """Return the bytes of the arena, and of the blobs that a plan of a training step makes."""
    model = ModelHelper("small", arg_scope={"order": "NCHW"})

    def forward(model, loss_scale):
        _, loss = create_resnet_cifar(model, "data", 3, 10, 8, label="label")
        return [model.net.Scale(loss, "scaled_loss", scale=loss_scale)]

    record = Parallelize_CPU(
        model,
        no_input,
        forward,
        optimizer_builder_fun=lambda model: build_sgd(model, 0.1, momentum=0.9),
        devices=devices,
        **options,
    )
    if observable is not None:
        model.net.set_observable(*observable(model))
    workspace = Workspace(threads=1)
    for scope in record.devices.scopes:
        workspace.feed(f"{scope}data", np.zeros((2, 3, 32, 32), np.float32))
        workspace.feed(f"{scope}label", np.zeros(2, np.int32))
    parallel.RunInitNet(model, workspace=workspace)
    net = workspace.net(model.net.Name())
    plans = net.plan_ahead()
    outside = {*net.proto.external_input}
    blobs = {id(buffer): buffer for plan in plans for blob, buffer in plan.outputs if blob.name not in outside}
    return sum(plan.memory.nbytes + plan.memory.alone for plan in plans) + sum(b.nbytes for b in blobs.values())


def outputs_and_gradients(model):
    return "outputs", [str(gradient) for gradient in model.param_to_grad.values()]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("devices", [[0], [0, 1]])
def test_renaming_never_makes_a_plan_larger(devices):
    whole = held(devices, observable=lambda model: ("all",))
    assert held(devices, **SHARED, observable=lambda model: ("all",)) < whole
    least = held(devices, observable=outputs_and_gradients)
    assert held(devices, **SHARED) <= least < held(devices)


def fetchable(workspace):
    return {blob for blob in workspace.blobs() if not workspace.get(blob).is_empty}


def test_what_can_be_fetched_from_a_net_that_shares():
    _, record, workspace = train([0, 1], OPTIMIZERS["momentum"], Task(convnet, (6, 3, 8, 8), options=SHARED))
    kept = fetchable(workspace)
    for scope in record.devices.scopes:
        assert {f"{scope}{blob}" for blob in ("loss", "conv1_w", "conv1_w_grad", "data")} <= kept
        assert f"{scope}pooled" not in kept
        with pytest.raises(BlobError, match="pooled' is not observable"):
            workspace.fetch(f"{scope}pooled")


DYNAMIC = {"dynamic_memory_management": True}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("accumulate_steps", [1, 2])
@pytest.mark.parametrize(
    "blobs, kept",
    [
        (None, []),
        ([], []),
        (["pooled", "block_grad"], ["cpu_0/pooled", "cpu_1/pooled", "cpu_0/block_grad", "cpu_1/block_grad"]),
        (["cpu_1/pooled"], ["cpu_1/pooled"]),
    ],
)
def test_blobs_to_keep(blobs, kept, accumulate_steps):
    options = {**DYNAMIC, "accumulate_steps": accumulate_steps, **({} if blobs is None else {"blobs_to_keep": blobs})}
    every = {**options, "blobs_to_keep": ["pooled", "block_grad"]}
    (_, _, whole), (_, record, workspace) = (
        train([0, 1], OPTIMIZERS["adam"], Task(convnet, (6, 3, 8, 8), options=each)) for each in (every, options)
    )
    found = fetchable(workspace)
    assert found.intersection(f"cpu_{i}/{name}" for i in (0, 1) for name in ("pooled", "block_grad", "conv2")) == set(
        kept
    )
    for name in sorted(found.intersection(whole.blobs()) - {"iteration_mutex"}):
        np.testing.assert_array_equal(workspace.fetch(name), whole.fetch(name), err_msg=name)
    assert {"cpu_0/loss", "cpu_1/loss"} <= found


def test_blobs_to_keep_that_are_refused():
    with pytest.raises(NetError, match="model 'net' makes no blob 'pool', so it cannot be among blobs_to_keep"):
        parallelize([0, 1], convnet, **DYNAMIC, blobs_to_keep=["pool"])
    with pytest.raises(NetError, match="blobs_to_keep has no effect without dynamic_memory_management=True"):
        parallelize([0, 1], convnet, blobs_to_keep=["pooled"])
    with pytest.raises(NetError, match="blobs_to_keep must be a list, got the single string 'pooled'"):
        parallelize([0, 1], convnet, **DYNAMIC, blobs_to_keep="pooled")


@pytest.mark.one_in(6)
@pytest.mark.parametrize("devices", [[0], [0, 1, 2]])
@pytest.mark.parametrize("accumulate_steps", [1, 3])
@pytest.mark.parametrize("model", ["embedding inside", "both on one table"])
def test_each_kind_trains_the_same(model, accumulate_steps, devices):
    found = []
    for kind in ("all", "activations", "outputs"):
        plain = MODELS[model]

        def build(helper, *about, plain=plain, kind=kind):
            helper.net.set_observable(kind)
            return plain.build(helper, *about)

        options = {**plain.options, "accumulate_steps": accumulate_steps}
        found.append(trained(dataclasses.replace(plain, build=build, options=options), PROVED["Adam"], len(devices)))
    for other in found[1:]:
        for blob in found[0]:
            np.testing.assert_array_equal(other[blob], found[0][blob], err_msg=blob)


def test_micro_batches_keep_what_other_parts_read():
    model, record = parallelize([0, 1], convnet, accumulate_steps=2)
    model.net.set_observable("outputs", ["cpu_0/pooled"])
    workspace = Workspace(threads=1)
    for scope in record.devices.scopes:
        workspace.feed(f"{scope}data", np.ones((3, 3, 8, 8), np.float32))
        workspace.feed(f"{scope}label", np.zeros(3, np.int32))
    parallel.RunInitNet(model, workspace=workspace)
    parallel.RunNet(model, 4, workspace=workspace)
    assert {"cpu_0/pooled", "cpu_0/loss", "cpu_1/loss"} <= fetchable(workspace)
    assert "cpu_1/pooled" not in fetchable(workspace)
    with pytest.raises(BlobError, match="'cpu_1/pooled' is not observable"):
        workspace.fetch("cpu_1/pooled")
    parallel.RunNet(model, workspace=workspace)
    assert workspace.fetch("cpu_1/pooled").shape == (3, 4, 1, 1)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("net_type", ["simple", "dag"])
@pytest.mark.parametrize("devices", [1, 2])
def test_under_a_memory_budget(devices, net_type):
    options = {"net_type": net_type}
    tasks = [
        Task(layers(*[6] * 6, 4), (2048, 6), options={**options, **more}) for more in ({}, {"memory_budget": "85%"})
    ]
    (_, record, want), (model, _, got) = (train(range(devices), OPTIMIZERS["momentum"], task) for task in tasks)
    for param in record.parameters:
        for blob in record.blobs(param):
            np.testing.assert_array_equal(got.fetch(blob), want.fetch(blob))
    plans = got.net(model.net.Name()).plans
    assert any(step.kind is StepKind.RECOMPUTE for step in plans[-1].steps)


def test_a_memory_budget_with_micro_batches():
    """Only the net of a micro-batch has the budget: there is nothing to compute again in an update."""
    options = {"accumulate_steps": 2}
    tasks = [Task(mlp, (4096, 6), options={**options, **more}) for more in ({}, {"memory_budget": "1GiB"})]
    (_, record, want), (model, _, got) = (train([0, 1], OPTIMIZERS["momentum"], task) for task in tasks)
    for param in record.parameters:
        np.testing.assert_array_equal(got.fetch(record.blobs(param)[1]), want.fetch(record.blobs(param)[1]))
    budgets = {name: got.net(name).options.memory_budget for name in got.nets()}
    assert {name.removeprefix(model.net.Name()): budget for name, budget in budgets.items()} == {
        "_micro_batch": 1 << 30, "_update": None
    }  # fmt: skip
    with pytest.raises(NetError, match="memory_budget must be a number of bytes"):
        parallelize([0], mlp, memory_budget="some")


@pytest.mark.parametrize("kind", ["SpatialBN", "Dropout", "Relu"])
def test_why_micro_batches_differ(kind):
    def net(**arguments):
        return NetDef(op=[make_op("FC", ["x", "w", "b"], ["y"]), make_op(kind, ["y"], ["z"], **arguments)])

    found = why_micro_batches_differ(net())
    assert (
        found
        == {
            "SpatialBN": "SpatialBN 'z' normalizes with statistics of the whole batch",
            "Dropout": "Dropout 'z' draws other random numbers for each micro-batch",
            "Relu": None,
        }[kind]
    )
    assert why_micro_batches_differ(net(is_test=1)) is None
