"""The empty name, of a blob, a net or a plan: one like others, as in Caffe2."""

import numpy as np
import pytest

from netbuilder.caffe2.python import core, workspace
from netbuilder.proto import NetError
from netbuilder.runtime import Workspace


def test_a_blob_without_a_name_is_fed_fetched_and_reset():
    workspace.ResetWorkspace()
    workspace.FeedBlob("", np.float32([1, 2]))
    assert workspace.Blobs() == [""] and workspace.HasBlob("")
    np.testing.assert_array_equal(workspace.FetchBlob(""), [1, 2])
    content = workspace.SerializeBlob("")
    workspace.FeedBlob("", np.float32([3]))
    workspace.DeserializeBlob("", content)
    np.testing.assert_array_equal(workspace.FetchBlob(""), [1, 2])


def test_operators_and_nets_read_and_write_it():
    workspace.ResetWorkspace()
    workspace.RunOperatorOnce(core.CreateOperator("ConstantFill", [], [""], shape=[1], value=-2.0))
    np.testing.assert_array_equal(workspace.FetchBlob(""), [-2])
    net = core.Net("")
    net.ConstantFill([], [""], shape=[1], value=3.0)
    net.Sqr("", "y")
    workspace.CreateNet(net)
    workspace.RunNet(net)
    np.testing.assert_array_equal(workspace.FetchBlob("y"), [9])


def test_a_plan_of_nets_without_names():
    space = workspace.C.Workspace()
    net = core.Net("")
    net.ConstantFill([], [""], shape=[1], value=4.0)
    plan = core.Plan("")
    plan.AddStep(core.ExecutionStep("", nets=[net], num_iter=1))
    space.run(plan)
    np.testing.assert_array_equal(space.blobs[""].fetch(), [4])


def test_the_native_workspace_requires_a_name():
    with pytest.raises(NetError, match="a blob needs a name"):
        Workspace().feed("", np.float32([1]))
