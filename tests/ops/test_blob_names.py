"""GetAllBlobNames: the workspace's blobs, with or without its parent's."""

import numpy as np
import pytest

from checks import DEVICES, GPU
from netbuilder.ops.blob_names import GetAllBlobNames
from netbuilder.proto import PROTO_CUDA
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite


def names(workspace, device=None, **args):
    op = make_op("GetAllBlobNames", [], ["names"], **args)
    if device == GPU:
        op.device_option.CopyFrom(make_device_option(PROTO_CUDA, 0))
    workspace.run_operator_once(op)
    return workspace.fetch("names")


class TestGetAllBlobNames(OperatorSuite):
    operator = GetAllBlobNames
    no_gradient = "gives names"
    refuses_nothing = "has no inputs"

    def draw(self, data):
        return GetAllBlobNames(), []

    def test_inplace(self):
        assert not self.operator.inplace

    @pytest.mark.parametrize("device", DEVICES)
    def test_forward(self, device):
        parent = Workspace()
        parent.feed("x", np.zeros(2, np.float32))
        found = names(parent, device)
        assert found.dtype == object and found.tolist() == [b"names", b"x"]
        child = Workspace(parent=parent)
        child.feed("own", np.zeros(1, np.float32))
        assert b"own" in names(child, device) and b"x" in names(child, device)
        alone = names(child, device, include_shared=0).tolist()
        assert b"own" in alone and b"x" not in alone
