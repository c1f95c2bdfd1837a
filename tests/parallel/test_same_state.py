"""A run begins with the same parameters, moments and iteration in all replicas, whatever was fed or loaded before."""

import numpy as np
import pytest

from netbuilder import parallel
from netbuilder.caffe2.python.model_helper import ModelHelper as CompatibleModelHelper
from netbuilder.graph import Net
from netbuilder.model import brew
from netbuilder.proto import NetError
from netbuilder.runtime import Workspace
from parallel_models import OPTIMIZERS, no_input, parallelize, train
from toy_models import mlp, softmax_loss

STATE = ["fc1_w", "fc1_w_momentum", "fc2_b"]


def write(workspace, blob, how, value):
    """Write a blob of this value by a feed, by an operator, or by a net that runs once."""
    shape = workspace.fetch(blob).shape
    if how == "feed":
        workspace.feed(blob, np.full(shape, value, np.float32))
        return
    net = Net("load")
    net.GivenTensorFill([], blob, shape=list(shape), values=[float(value)] * int(np.prod(shape)))
    if how == "operator":
        workspace.run_operator_once(net.Proto().op[0])
    else:
        workspace.run_net_once(net)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("how", ["feed", "operator", "net"])
@pytest.mark.parametrize("name", STATE)
def test_what_one_replica_has_alone_is_refused(name, how):
    model, record, workspace = train([0, 1, 2], OPTIMIZERS["momentum"])
    write(workspace, f"cpu_1/{name}", how, 0.25)
    with pytest.raises(NetError, match=f"blob 'cpu_1/{name}' differs from 'cpu_0/{name}', although all replicas"):
        parallel.RunNet(model, workspace=workspace)


@pytest.mark.parametrize("name", STATE)
def test_what_all_replicas_get_is_taken(name):
    model, record, workspace = train([0, 1, 2], OPTIMIZERS["momentum"])
    for blob in record.devices.copies(name):
        write(workspace, blob, "feed", np.nan if name == "fc2_b" else 0.25)
    parallel.RunNet(model, workspace=workspace)


def test_a_copy_of_the_first_to_the_others_mends_it():
    model, record, workspace = train([0, 1], OPTIMIZERS["momentum"])
    write(workspace, "cpu_0/fc1_w", "feed", 0.25)
    parallel.FinalizeAfterCheckpoint(model, ["fc1_w"], workspace=workspace)
    parallel.RunNet(model, workspace=workspace)


def test_another_initialization_of_one_replica_is_refused():
    model, record = parallelize([0, 1])
    workspace = Workspace(threads=1)
    for scope in record.devices.scopes:
        workspace.feed(scope + "data", np.ones((2, 6), np.float32))
        workspace.feed(scope + "label", np.zeros(2, np.int32))
    workspace.run_net_once(model.param_init_net)  # which makes all replicas equal
    parallel.CreateNet(model, workspace=workspace)
    parallel.RunNet(model, workspace=workspace)
    workspace.run_operator_once(next(op for op in model.param_init_net.Proto().op if op.type == "XavierFill"))
    with pytest.raises(NetError, match="'cpu_1/fc1_w' differs from 'cpu_0/fc1_w'"):
        parallel.RunNet(model, workspace=workspace)


def test_data_and_what_replicas_may_have_for_themselves_is_not_compared():
    model, record, workspace = train([0, 1], OPTIMIZERS["momentum"])
    workspace.feed("cpu_1/data", np.ones((12, 6), np.float32))
    workspace.feed("cpu_1/softmax", np.ones((12, 4), np.float32))
    before = set(workspace.generation.fed)
    parallel.RunNet(model, workspace=workspace)
    assert "cpu_1/data" in before and workspace.generation.fed == before  # nothing was compared


def test_each_model_of_a_workspace_is_checked():
    workspace = Workspace(threads=1)
    models = []
    for name in ("first", "second"):
        model, record = parallelize([0, 1], name=name, forward=mlp)
        models.append(model)
        for scope in record.devices.scopes:
            workspace.feed(scope + "data", np.ones((2, 6), np.float32))
            workspace.feed(scope + "label", np.zeros(2, np.int32))
    parallel.RunInitNet(models[0], workspace=workspace)
    parallel.RunNet(models[0], workspace=workspace)
    write(workspace, "cpu_1/fc1_w", "feed", 0.25)
    with pytest.raises(NetError, match="model 'first': blob 'cpu_1/fc1_w' differs"):
        parallel.RunNet(models[0], workspace=workspace)


def test_the_wrapper_refuses_it_too():
    def scores(helper, data):
        return brew.fc(helper, data, "fc", 6, 4)

    def loss(helper, scores, label):
        return softmax_loss(helper, scores, label)

    workspace = Workspace(threads=1)
    net = parallel.DataParallel(
        scores, [0, 1], cpu_device=True, loss=loss, optimizer=OPTIMIZERS["momentum"], workspace=workspace
    )

    def step():
        net(np.ones((4, 6), np.float32))
        net.loss(np.zeros(4, np.int32))
        net.backward()
        net.step()

    step()
    step()
    name = next(blob for blob in workspace.blobs() if blob.endswith("cpu_1/fc_w"))
    workspace.feed(name, np.zeros((4, 6), np.float32))
    with pytest.raises(NetError, match=f"{name}' differs from"):
        step()


def test_in_the_compatibility_layer_it_is_a_warning():
    model = CompatibleModelHelper("net")
    record = parallel.Parallelize_CPU(model, no_input, mlp, optimizer_builder_fun=OPTIMIZERS["momentum"],
                                      devices=[0, 1])  # fmt: skip
    workspace = Workspace(threads=1)
    for scope in record.devices.scopes:
        workspace.feed(scope + "data", np.ones((2, 6), np.float32))
        workspace.feed(scope + "label", np.zeros(2, np.int32))
    parallel.RunInitNet(model, workspace=workspace)
    write(workspace, "cpu_1/fc1_w", "feed", 0.25)
    with pytest.warns(UserWarning, match="'cpu_1/fc1_w' differs from 'cpu_0/fc1_w'"):
        parallel.RunNet(model, workspace=workspace)
