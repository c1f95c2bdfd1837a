"""Planned memory: known before anything runs, by kind, and what is in the arena during each step."""

import itertools

import numpy as np
import pytest

from netbuilder import ModelHelper, Workspace, brew
from netbuilder.graph import DeviceScope, Net
from netbuilder.optimizers import build_sgd
from netbuilder.proto import PROTO_CPU, BlobError, DeviceOption, NetError
from netbuilder.runtime.profile.arena_map import arena_map
from netbuilder.runtime.profile.memory import bytes_text, held_outside, planned_memory
from toy_models import softmax_loss

SIZE = 4 * 50 * 60  # bytes of an activation


def chain(length=6, **options):
    """A chain of products; all but the last can share memory."""
    net = Net("chain")
    for i in range(length):
        net.MatMul([f"x{i}", "w"], f"x{i + 1}")
    workspace = Workspace(engines=(), threads=1)
    workspace.feed("x0", np.ones((50, 60), np.float32))
    workspace.feed("w", np.eye(60, dtype=np.float32))
    return workspace, workspace.create_net(net, **options)


def training():
    model = ModelHelper("train")
    scores = brew.fc(model, brew.relu(model, brew.fc(model, "data", "a", 20, 300), "b"), "scores", 300, 4)
    model.AddGradientOperators([softmax_loss(model, scores)])
    build_sgd(model, 0.1, momentum=0.9)
    workspace = Workspace(threads=1)
    workspace.feed("data", np.ones((8, 20), np.float32))
    workspace.feed("label", np.zeros(8, np.int32))
    workspace.run_net_once(model.param_init_net)
    workspace.create_net(model.net, observable="outputs")
    return workspace, model


def test_nothing_is_written_before_the_memory_is_known():
    workspace, name = chain(observable=["x6"])
    memory = planned_memory(workspace, name, ["w"])
    assert not workspace.arena.memory(memory.arena).any() and memory.whole
    assert 2 * SIZE <= memory.arena <= 2 * SIZE + 256
    assert (memory.parameters, memory.inputs, memory.state, memory.blobs) == (4 * 60 * 60, SIZE, 0, SIZE)
    assert memory.total == memory.arena + memory.parameters + 2 * SIZE and memory.alone == memory.copies == 0
    workspace.run_net(name)
    assert workspace.arena.memory(memory.arena).any()
    assert planned_memory(workspace, name, ["w"]).total == memory.total
    np.testing.assert_array_equal(workspace.fetch("x6"), 1)


def test_the_next_run_uses_the_plan():
    workspace, name = chain()
    net = workspace.net(name)
    [plan] = net.plan_ahead()
    workspace.run_net(name)
    assert net.plan_ahead() == [plan] and net.plans == [plan]
    assert net.clock.iteration == 1


def test_moments_are_state_even_if_the_init_net_made_them():
    workspace, model = training()
    made = {blob for op in model.param_init_net.Proto().op for blob in op.output}
    for parameters in (made, model.GetParams()):
        memory = planned_memory(workspace, model.net.Name(), parameters)
        size = 4 * (20 * 300 + 300 + 300 * 4 + 4)
        assert size <= memory.parameters < size + 100 and size <= memory.state < size + 100
        assert memory.inputs < 8 * 20 * 4 + 8 * 4 + 100 and memory.arena > 0
    net = workspace.net(model.net.Name())
    held = held_outside(net, net.plan_ahead(), [], set(map(str, model.GetParams())))
    assert {each.name for each in held if each.kind == "parameters"} == {"a_w", "a_b", "scores_w", "scores_b"}
    assert {"a_w_momentum", "scores_b_momentum"} <= {each.name for each in held if each.kind == "state"}
    assert held[0].nbytes == 4 * 20 * 300


def test_nets_of_one_workspace_share_the_arena():
    workspace, name = chain(observable=["x6"])
    net = Net("after")
    net.MatMul(["x6", "w"], "y")
    net.MatMul(["y", "w"], "z")
    later = workspace.create_net(net, observable=["z"])
    both = planned_memory(workspace, [name, later], ["w"])
    assert both.arena == planned_memory(workspace, name).arena
    assert (both.parameters, both.inputs, both.blobs) == (4 * 60 * 60, SIZE, 2 * SIZE)


def test_what_follows_shapes_that_depend_on_data_is_planned_later():
    net = Net("dynamic")
    net.Relu("x", "y")
    net.Unique("indices", "u")
    net.Relu("y", "z")
    workspace = Workspace(threads=1)
    workspace.feed("x", np.ones(1000, np.float32))
    workspace.feed("indices", np.int32([3, 3, 4]))
    name = workspace.create_net(net)
    memory = planned_memory(workspace, name)
    assert not memory.whole and memory.blobs == 4000
    workspace.run_net(name)


def test_errors_of_planning_are_those_of_a_run():
    workspace = Workspace(threads=1)
    net = Net("lacking")
    net.Add(["x", "y"], "z")
    with pytest.raises(NetError, match="no net 'lacking' in the workspace"):
        planned_memory(workspace, "lacking")
    workspace.feed("x", np.ones(3, np.float32))
    workspace.make("y")
    with pytest.raises(BlobError, match="'y'"):
        planned_memory(workspace, workspace.create_net(net))


def test_the_map_of_the_arena():
    workspace, name = chain(observable=["x6"])
    [plan] = workspace.net(name).plan_ahead()
    found = arena_map(plan)
    assert [value.name for value in found.values] == ["x1", "x2", "x3", "x4", "x5"]
    assert [(value.start, value.end) for value in found.values] == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    assert found.values[0].made_by == "MatMul x1" and found.values[0].device == "CPU 0"
    assert found.values[0].line and {value.kind for value in found.values} == {"forward"}
    assert found.nbytes == plan.memory.nbytes and found.live == plan.memory.live == max(found.load)
    assert found.peak == 1 and [value.name for value in found.alive(1)] == ["x1", "x2"]
    for a, b in itertools.combinations(found.values, 2):
        apart = a.end < b.start or b.end < a.start
        assert apart or a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset


def test_the_map_of_an_arena_whose_values_other_lanes_need_to_the_end():
    workspace, net = Workspace(threads=2), Net("lanes")
    net.Proto().type = "dag"
    workspace.feed("x", np.ones((64, 64), np.float32))
    for number in (0, 1):
        with DeviceScope(DeviceOption(device_type=PROTO_CPU, device_id=number)):
            net.MatMul(["x", "x"], f"made{number}")
    with DeviceScope(DeviceOption(device_type=PROTO_CPU, device_id=1)):
        net.MatMul(["made0", "made1"], "y")
    [plan] = workspace.net(workspace.create_net(net, observable=["y"])).plan_ahead()
    assert {step.lane for step in plan.steps} == {0, 1}
    found = arena_map(plan)
    assert {value.name: value.end for value in found.values}["made0"] == len(plan.steps) - 1 == len(found.load) - 1


def test_kinds_of_values_in_the_arena():
    workspace, model = training()
    [plan] = workspace.net(model.net.Name()).plan_ahead()
    kinds = {value.title: value.kind for value in arena_map(plan).values}
    assert kinds["scores"] == "forward" and kinds["b_grad"] == "backward"
    assert all(kind == "scratch" for title, kind in kinds.items() if title.startswith("scratch memory of "))


def test_an_empty_arena():
    workspace = Workspace(threads=1)
    net = Net("one")
    net.Relu("x", "y")
    workspace.feed("x", np.ones(3, np.float32))
    found = arena_map(workspace.net(workspace.create_net(net)).plan_ahead()[0])
    assert (found.nbytes, found.live, found.peak, list(found.values), list(found.load)) == (0, 0, 0, [], [0])


def test_sizes_as_text():
    assert [bytes_text(n) for n in (0, 1023, 1024, 2**20 - 1, 5 * 2**30, 5000 * 2**30)] == [
        "0 B", "1023 B", "1.0 KiB", "1,024.0 KiB", "5.00 GiB", "5,000.00 GiB",
    ]  # fmt: skip
    memory = planned_memory(*chain(observable=["x6"]), ["w"])
    assert str(memory).startswith("61.0 KiB (intermediate values 23.5 KiB, parameters 14.1 KiB, inputs")
