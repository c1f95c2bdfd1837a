"""Exchange in a lane of its own, or by another thread: bit-identical to one lane; what goes on meanwhile."""

import numpy as np
import pytest

from netbuilder import ModelHelper, Workspace, parallel
from netbuilder.graph.net_names import reset_names
from netbuilder.ops.core.instructions import Role
from netbuilder.optimizers import reset_optimizer_instance_count
from netbuilder.runtime.plan import compiler, update_fusion
from netbuilder.runtime.plan.values import StepKind
from parallel_models import OPTIMIZERS, Task, no_input, train
from thread_ranks import on_ranks, use_thread_worlds
from toy_models import convnet, looked_up, mlp, normalized

IMAGES = (24, 3, 8, 8)
CASES = {
    "mlp": Task(mlp),
    "convnet": Task(convnet, IMAGES, steps=3),
    "normalized": Task(normalized, IMAGES, steps=3),
    "sparse": Task(looked_up),
    "one copy of the parameters": Task(options={"shared_model": True}),
    "updates on one device": Task(options={"reduce_update_broadcast": True}),
    "micro-batches": Task(options={"accumulate_steps": 2}),
    "shared memory": Task(options={"optimize_gradient_memory": True}),
}


def parameters(workspace, record):
    names = [blob for name in (*record.parameters, *record.computed) for blob in record.blobs(name)]
    return {name: workspace.fetch(name) for name in names}


@pytest.mark.one_in(8)
@pytest.mark.parametrize("count", [2, 3, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 8))])
@pytest.mark.parametrize("case", CASES)
def test_an_exchange_that_overlaps_changes_no_bit(case, count, monkeypatch):
    monkeypatch.setattr(compiler, "SMALL_FLOPS", -1)  # no reduction is too small for a lane of its own
    optimizer = OPTIMIZERS["sgd" if case == "sparse" else "momentum"]
    _, record, one = train(range(count), optimizer, CASES[case], threads=1)
    model, _, several = train(range(count), optimizer, CASES[case], threads=count)
    want = parameters(one, record)
    for name, value in parameters(several, record).items():
        np.testing.assert_array_equal(value, want[name], err_msg=name)
    nets = [several.net(name) for name in several.nets() if name.startswith(model.net.Name())]
    steps = [step for net in nets for plan in net.plans for step in plan.steps]
    assert any(step.node.role is Role.EXCHANGE and step.lane == count for step in steps), "no lane for the exchange"


def trained_by_two(monkeypatch, optimizer, devices, steps=3, **options):
    """Train on two processes, which are threads; return for each its parameters, and the steps of its plan."""
    use_thread_worlds(monkeypatch, 2)
    models = []
    for rank in range(2):
        reset_names()
        reset_optimizer_instance_count()
        model, place = ModelHelper("net"), {"num_shards": 2, "shard_id": rank, "engine": "MPI"}
        options = {"optimizer_builder_fun": OPTIMIZERS[optimizer], "bucket_bytes": 144, **options}  # two buckets
        record = parallel.Parallelize_CPU(model, no_input, mlp, devices=devices, rendezvous=place, **options)
        models.append((model, record))

    def run(rank):
        (model, record), workspace = models[rank], Workspace(threads=1, seed=rank)
        rng = np.random.default_rng(rank)
        for scope in record.devices.scopes:
            workspace.feed(scope + "data", rng.normal(size=(4, 6)).astype(np.float32))
            workspace.feed(scope + "label", rng.integers(0, 4, 4).astype(np.int32))
        parallel.RunInitNet(model, workspace=workspace)
        parallel.RunNet(model, steps, workspace=workspace)
        nets = [workspace.net(name) for name in workspace.nets() if name.startswith(model.net.Name())]
        plans = [plan for net in nets for plan in net.plans]
        return parameters(workspace, record), [step for plan in plans for step in plan.steps]

    return on_ranks(2, run)


UPDATES = {"sgd": "WeightedSum", "momentum": "MomentumSGDUpdate", "adam": "Adam"}


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    "optimizer, devices, options",
    [
        *((optimizer, [0], {}) for optimizer in UPDATES),
        ("momentum", [0, 1], {}),
        ("momentum", [0], {"dynamic_memory_management": True}),
        ("momentum", [0], {"reduce_update_broadcast": True}),
    ],
    ids=str,
)
def test_parameters_are_updated_while_the_next_bucket_is_exchanged(optimizer, devices, options, monkeypatch):
    whole = [found for found, _ in trained_by_two(monkeypatch, optimizer, devices, **options)]
    monkeypatch.setattr(update_fusion, "EARLY_BYTES", 1)
    for (found, steps), want in zip(trained_by_two(monkeypatch, optimizer, devices, **options), whole):
        for name, value in found.items():
            np.testing.assert_array_equal(value, want[name], err_msg=name)
        sums = [step for step in steps if step.node.first.op_def.type == "AllreduceBucket"]
        begun = [steps.index(step) for step in sums if step.kind is StepKind.COMPUTE]
        waited = [steps.index(step) for step in sums if step.kind is StepKind.WAIT]
        layers = [
            max(index for index, step in enumerate(steps) if updates(step, UPDATES[optimizer], layer))
            for layer in ("fc2", "fc1")
        ]
        assert len(begun) == len(waited) == 2
        if len(devices) > 1:  # in one lane, the copies to the other device wait
            continue
        assert begun[1] < waited[0], "both are exchanged before the first one is waited for"
        assert waited[0] < layers[0] < waited[1] < layers[1], (
            "the last layer is updated before the other bucket is there"
        )


def updates(step, op_type, layer):
    return any(
        part.op_def.type == op_type and f"cpu_0/{layer}_w" in part.outputs and f"cpu_0/{layer}_w_grad" in part.inputs
        for part in step.node.parts
    )


def test_small_updates_stay_together(monkeypatch):
    for _, steps in trained_by_two(monkeypatch, "momentum", [0]):
        assert sum(step.node.first.op_def.type == "MomentumSGDUpdate" for step in steps) == 1
