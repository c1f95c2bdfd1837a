"""Parallel nets over lanes where only parameters are observable: memory is shared within a lane; same results."""

import numpy as np
import pytest

from netbuilder import ModelHelper, Parallelize_CPU, Workspace
from netbuilder.optimizers import build_sgd
from netbuilder.zoo.resnet_cifar import create_resnet_cifar
from switches import single


def trained(threads, **options):
    model = ModelHelper("parallel", arg_scope={"order": "NCHW"})

    def forward(model, loss_scale):
        _, loss = create_resnet_cifar(model, "data", 3, 4, 8, label="label")
        return [model.net.Scale(loss, "scaled_loss", scale=loss_scale)]

    record = Parallelize_CPU(
        model,
        input_builder_fun=lambda model: None,
        forward_pass_builder_fun=forward,
        optimizer_builder_fun=lambda model: build_sgd(model, 0.05, momentum=0.9),
        devices=[0, 1],
    )
    rng = np.random.default_rng(0)
    workspace = Workspace(threads=threads, seed=1)
    for name, array in (
        ("data", rng.normal(size=(6, 3, 16, 16)).astype(np.float32)),
        ("label", rng.integers(0, 4, 6).astype(np.int32)),
    ):
        for blob, part in zip(record.devices.copies(name), np.split(array, 2)):
            workspace.feed(blob, part)
    workspace.run_net_once(model.param_init_net)
    workspace.create_net(model.net, **options)
    workspace.run_net(model.net.Name(), 3)
    net = workspace.net(model.net.Name())
    return {str(p): workspace.fetch(str(p)) for p in model.params}, net


@pytest.mark.one_in(2)
@pytest.mark.parametrize("threads", [1, 2])
def test_shared_memory_changes_nothing(threads):
    want, net = trained(threads)
    assert net.options.lanes == threads
    for without in (single("reuse"), []):
        got, _ = trained(threads, observable="outputs", without=without)
        for name, value in want.items():
            assert np.array_equal(got[name], value), name


def test_lanes_do_not_share_memory():
    _, net = trained(2, observable="outputs")
    (plan,) = net.plans
    lanes = {}  # buffer of values that are not observable -> the lanes that write it, in place one after the other
    for step in plan.steps:
        for value in step.outputs:
            if value is not None and net.hides(value.name, 0, len(net.program)):
                start = value.buffer.ctypes.data
                lanes.setdefault((start, start + value.buffer.nbytes, id(value.buffer)), set()).add(step.lane)
    assert {0} in lanes.values() and {1} in lanes.values()
    reached, user, overlaps = 0, None, 0
    for (start, end, _), here in sorted(lanes.items()):
        if start < reached:
            assert here == user and len(here) == 1
            overlaps += 1
        if end > reached:
            reached, user = end, here
    assert overlaps > 5
