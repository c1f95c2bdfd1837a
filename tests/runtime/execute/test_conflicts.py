"""Nets of one workspace that would overwrite each other's blobs are errors."""

import numpy as np
import pytest

from netbuilder.caffe2.python import brew as caffe2_brew
from netbuilder.caffe2.python import model_helper as caffe2_model_helper
from netbuilder.caffe2.python import optimizer as caffe2_optimizer
from netbuilder.caffe2.python import workspace as caffe2_workspace
from netbuilder.graph import NameScope
from netbuilder.model import ModelHelper, brew
from netbuilder.optimizers import build_sgd
from netbuilder.parallel import CreateNet, Parallelize_CPU
from netbuilder.proto import NetError
from netbuilder.runtime import Workspace

RATE = {"base_learning_rate": 0.1, "policy": "step", "stepsize": 1, "gamma": 0.5}


def _model(name, layer, *, trains=True, build=build_sgd, helper=ModelHelper, layers=brew):
    model = helper(name)
    layers.fc(model, "x", layer, dim_in=3, dim_out=2)
    loss = model.net.AveragedLoss(model.net.SquaredL2Distance([layer, "y"], layer + "_distance"), layer + "_loss")
    if trains:
        model.AddGradientOperators([loss])
        build(model, **RATE)
    return model


def _workspace():
    workspace = Workspace()
    workspace.feed("x", np.ones((4, 3), np.float32))
    workspace.feed("y", np.zeros((4, 2), np.float32))
    return workspace


def _trained():
    workspace, model = _workspace(), _model("train", "fc")
    workspace.run_net_once(model.param_init_net)
    workspace.create_net(model.net)
    workspace.run_net(model.net)
    return workspace, model


class TestInitNets:
    def test_a_test_model_over_trained_parameters(self):
        workspace, _ = _trained()
        before = workspace.fetch("fc_w")
        evaluated = _model("held_out", "fc", trains=False)
        with pytest.raises(
            NetError, match=r"for evaluation.*'fc_b', 'fc_w'.*trains; make .*init_params=False.*overwrite"
        ):
            workspace.run_net_once(evaluated.param_init_net)
        assert np.array_equal(workspace.fetch("fc_w"), before)
        workspace.run_net_once(evaluated.param_init_net, overwrite=True)
        assert not np.array_equal(workspace.fetch("fc_w"), before)

    def test_a_created_init_net(self):
        workspace, _ = _trained()
        before = workspace.fetch("fc_w")
        init_net = _model("held_out", "fc", trains=False).param_init_net
        workspace.create_net(init_net)
        with pytest.raises(NetError, match="for evaluation"):
            workspace.run_net(init_net)
        assert np.array_equal(workspace.fetch("fc_w"), before)
        workspace.run_net(init_net, overwrite=True)
        assert not np.array_equal(workspace.fetch("fc_w"), before)

    def test_what_spoils_nothing_runs(self):
        workspace, model = _trained()
        workspace.run_net_once(model.param_init_net)  # training starts again
        other = _model("other", "other_fc", trains=False)
        workspace.run_net_once(other.param_init_net)
        workspace.run_net_once(other.param_init_net)  # these are not trained
        shares = ModelHelper("held_out", init_params=False)
        brew.fc(shares, "x", "fc", dim_in=3, dim_out=2)
        workspace.run_net_once(shares.param_init_net)

    def test_a_parallel_model_for_evaluation(self):
        model = ModelHelper("evaluated")
        with pytest.warns(UserWarning, match="is for evaluation"):
            Parallelize_CPU(
                model,
                lambda m: None,
                lambda m, loss_scale: [brew.fc(m, "x", "fc", dim_in=3, dim_out=2)] and [],
                devices=[0, 1],
            )
        workspace = Workspace()
        workspace.feed("cpu_1/fc_b", np.ones(2, np.float32))  # as a checkpoint would
        with pytest.raises(NetError, match=r"would overwrite \['cpu_1/fc_b'\], which hold values already"):
            workspace.run_net_once(model.param_init_net)
        workspace.run_net_once(model.param_init_net, overwrite=True)

    def test_the_compatibility_layer_runs_it(self):
        caffe2_workspace.ResetWorkspace()
        kinds = {"helper": caffe2_model_helper.ModelHelper, "layers": caffe2_brew, "build": caffe2_optimizer.build_sgd}
        caffe2_workspace.FeedBlob("x", np.ones((4, 3), np.float32))
        caffe2_workspace.FeedBlob("y", np.zeros((4, 2), np.float32))
        model = _model("train", "fc", **kinds)
        caffe2_workspace.RunNetOnce(model.param_init_net)
        caffe2_workspace.CreateNet(model.net)
        assert caffe2_workspace.RunNetOnce(_model("held_out", "fc", trains=False, **kinds).param_init_net)
        second = _model("second", "fc2", **kinds)
        caffe2_workspace.RunNetOnce(second.param_init_net)
        assert caffe2_workspace.CreateNet(second.net)
        assert {"optimizer_iteration"} == {op.output[0] for op in second.net.Proto().op if op.type == "AtomicIter"}
        caffe2_workspace.ResetWorkspace()


class TestCounters:
    def test_two_trainers_do_not_count_together(self):
        workspace, _ = _trained()
        second = _model("second", "fc2")
        workspace.run_net_once(second.param_init_net)
        with pytest.raises(NetError, match=r"'second.*'optimizer_iteration', which the created net 'train.*NameScope"):
            workspace.create_net(second.net)
        assert second.net.Name() not in workspace.nets()
        assert workspace.create_net(second.net, shares_counter=True)

    def test_a_name_scope_has_its_own_count(self):
        workspace, first = _trained()
        with NameScope("second"):
            second = _model("second", "fc2")
        workspace.feed("second/x", np.ones((4, 3), np.float32))
        workspace.feed("second/y", np.zeros((4, 2), np.float32))
        workspace.run_net_once(second.param_init_net)
        workspace.create_net(second.net)
        workspace.run_net(second.net, 3)
        assert workspace.fetch("optimizer_iteration") == 1 and workspace.fetch("second/optimizer_iteration") == 3

    def test_nets_of_one_model_may(self):
        workspace, model = _trained()
        workspace.create_net(model.net, overwrite=True)
        workspace.create_net(model.net.Clone("again"))  # the same parameters

    def test_two_parallel_models(self):
        workspace, made = Workspace(), []
        for layer in ("fc", "fc2"):
            model = ModelHelper(layer)

            def forward(model, loss_scale, layer=layer):
                out = brew.fc(model, "x", layer, dim_in=3, dim_out=2)
                loss = model.net.AveragedLoss(model.net.SquaredL2Distance([out, "y"], layer + "_d"), layer + "_loss")
                return [model.net.Scale(loss, scale=loss_scale)]

            Parallelize_CPU(
                model,
                lambda m: None,
                forward,
                optimizer_builder_fun=lambda m: build_sgd(m, **RATE),
                devices=[0, 1],
            )
            for device in (0, 1):
                workspace.feed(f"cpu_{device}/x", np.ones((4, 3), np.float32))
                workspace.feed(f"cpu_{device}/y", np.zeros((4, 2), np.float32))
            workspace.run_net_once(model.param_init_net)
            made.append(model)
        CreateNet(made[0], workspace=workspace)
        with pytest.raises(NetError, match="counts iterations in 'optimizer_iteration'"):
            CreateNet(made[1], workspace=workspace)
