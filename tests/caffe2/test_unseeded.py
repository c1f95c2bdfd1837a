"""Workspaces of the compatibility layer draw other numbers each time, as Caffe2's do, unless there is a seed."""

import os
import subprocess
import sys

import numpy as np
import pytest

from netbuilder import Workspace
from netbuilder.caffe2.python import brew, core, data_parallel_model, model_helper, optimizer, workspace
from netbuilder.caffe2.python.session import LocalSession
from netbuilder.caffe2.python.task import Task, TaskGroup, WorkspaceType
from netbuilder.runtime.execute import default


@pytest.fixture(autouse=True)
def _as_a_script_begins():
    workspace.ResetWorkspace()
    yield
    default.workspace().__init__()  # without a seed that a test has set


def init_net(seed=None):
    net = core.Net("init")
    net.GaussianFill([], "w", shape=[6])
    if seed is not None:
        net.set_rand_seed(seed)
    return net


def run_once(net):
    workspace.RunNetOnce(net)
    return workspace.FetchBlob("w")


def run_operator(net):
    workspace.RunOperatorOnce(net.Proto().op[0])
    return workspace.FetchBlob("w")


def run_created(net):
    workspace.CreateNet(net, overwrite=True)
    workspace.RunNet(net)
    return workspace.FetchBlob("w")


def run_plan(net):
    plan = core.Plan("plan")
    plan.AddStep(core.execution_step("step", net))
    workspace.RunPlan(plan)
    workspace.C.delete_net(net.Name())
    return workspace.FetchBlob("w")


def run_in_another(net):
    with workspace.WorkspaceGuard(f"workspace {len(workspace.Workspaces())}"):
        return run_once(net)


def run_in_an_object(net):
    own = workspace.C.Workspace()
    own.run(net)
    return own.fetch_blob("w")


def run_in_a_child(net):
    own = workspace.C.Workspace(workspace.C.Workspace.current)
    own.run(net)
    return own.fetch_blob("w")


def run_in_a_session(net):
    with TaskGroup(WorkspaceType.PRIVATE) as group:
        task = Task(step=net, outputs=[core.BlobReference("w")])
    LocalSession(workspace.C.Workspace.current).run(group)
    return task.outputs()[0].fetch()


def run_in_immediate_mode(net):
    workspace.StartImmediate(True)
    workspace.RunOperatorImmediate(net.Proto().op[0])
    found = workspace.FetchImmediate("w")
    workspace.StopImmediate()
    return found


def run_as_predictor(net):
    predict = core.Net("predict")
    predict.Copy("w", "y")
    predict.Proto().external_input.append("w")
    predict.Proto().external_output.append("y")
    return workspace.Predictor(net, predict).run([])[0]


WAYS = [
    run_once, run_operator, run_created, run_plan, run_in_another, run_in_an_object, run_in_a_child, run_in_a_session,
    run_in_immediate_mode, run_as_predictor,
]  # fmt: skip


def distinct(arrays):
    return len({array.tobytes() for array in arrays})


@pytest.mark.one_in(3)
@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_draws_differ_without_a_seed(way, reset):
    found = []
    for _ in range(5):
        found.append(way(init_net()))
        if reset:
            workspace.ResetWorkspace()
    assert distinct(found) == 5


@pytest.mark.parametrize("way", WAYS)
def test_draws_are_equal_with_an_operators_seed(way):
    assert distinct([way(init_net(seed)) for seed in (3, 3, 3)]) == 1
    assert distinct([way(init_net(seed)) for seed in (3, 4)]) == 2


def test_the_seed_of_a_device_option():
    def run(**option):
        with core.DeviceScope(core.DeviceOption(0, **option)):
            return run_once(init_net())

    assert distinct([run(random_seed=5), run(random_seed=5)]) == 1
    assert distinct([run(), run(), run(random_seed=6)]) == 3


def test_the_seed_among_an_operators_arguments():
    net = core.Net("init")
    net.GaussianFill([], "w", shape=[6], random_seed=5)
    op = core.CreateOperator("GaussianFill", [], ["w"], shape=[6], random_seed=5)
    assert op.device_option.random_seed == 5 and "random_seed" not in [argument.name for argument in op.arg]
    found = [run_once(net), run_once(net)]
    workspace.RunOperatorOnce(op)
    assert distinct([*found, workspace.FetchBlob("w")]) == 1


@pytest.mark.parametrize("way", [run_once, run_operator, run_created, run_plan, run_in_a_child, run_in_a_session])
def test_a_seed_of_the_workspace_holds_beyond_a_reset(way):
    default.workspace().seed = 0
    found = []
    for _ in range(3):
        found.append(way(init_net()))
        workspace.ResetWorkspace()
    assert distinct(found) == 1


def test_runs_of_a_created_net_differ_and_go_on():
    net = init_net()
    workspace.CreateNet(net)
    found = []
    for _ in range(3):
        workspace.RunNet(net)
        found.append(workspace.FetchBlob("w"))
    assert distinct(found) == 3


def parallel_model(devices):
    model = model_helper.ModelHelper("parallel")

    def forward(model, loss_scale):
        softmax = brew.softmax(model, brew.fc(model, "data", "fc", 4, 3), "softmax")
        xent = model.net.LabelCrossEntropy([softmax, "label"], "xent")
        return [model.net.Scale(model.net.AveragedLoss(xent, "loss"), scale=loss_scale)]

    data_parallel_model.Parallelize_CPU(
        model,
        input_builder_fun=lambda model: None,
        forward_pass_builder_fun=forward,
        optimizer_builder_fun=lambda model: optimizer.build_sgd(model, 0.1),
        devices=list(range(devices)),
    )
    for device in range(devices):
        workspace.FeedBlob(f"cpu_{device}/data", np.ones((2, 4), np.float32))
        workspace.FeedBlob(f"cpu_{device}/label", np.int32([0, 2]))
    return model


def test_parallel_models_differ_and_their_replicas_do_not():
    found = []
    for _ in range(3):
        data_parallel_model.RunInitNet(parallel_model(2))
        replicas = [workspace.FetchBlob(f"cpu_{device}/fc_w") for device in (0, 1)]
        np.testing.assert_array_equal(*replicas)
        found.append(replicas[0])
        workspace.ResetWorkspace()
    assert distinct(found) == 3


SCRIPT = """
import os
from caffe2.python import core, workspace

def drawn(**arguments):
    workspace.RunOperatorOnce(core.CreateOperator("GaussianFill", [], ["w"], shape=[6], **arguments))
    return str(workspace.FetchBlob("w").tolist()) + chr(10)

os.write(1, drawn(random_seed=1).encode())
os.write(1, drawn().encode())
for _ in range(2 if hasattr(os, "fork") else 0):
    if os.fork() == 0:
        os.write(1, drawn().encode())
        os._exit(0)
    os.wait()
"""


def test_runs_of_a_script_and_forked_processes_differ():
    """Of a seeded fill, an unseeded one, and those of two forked processes."""
    command = [sys.executable, "-m", "netbuilder.caffe2", "-c", SCRIPT]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines() for _ in range(2)]
    assert runs[0][0] == runs[1][0] and len(runs[0]) == len(runs[1]) == (4 if hasattr(os, "fork") else 2)
    unseeded = runs[0][1:] + runs[1][1:]
    assert len(set(unseeded)) == len(unseeded)


def test_native_workspaces_draw_the_same_as_before():
    def run():
        own = Workspace()
        own.run_net_once(init_net())
        own.run_net_once(init_net())
        return own.fetch("w")

    default.reset()
    default.workspace().run_net_once(init_net())
    assert distinct([run(), run(), default.workspace().fetch("w")]) == 1
    assert (Workspace().seed, Workspace(parent=Workspace(seed=4)).seed) == (0, 4)
