"""GetAllBlobNames: the workspace's blobs, with or without its parent's."""

import numpy as np
import pytest

from checks import DEVICES, GPU
from netbuilder.ops.control.blob_names import EstimateAllBlobSizes, GetAllBlobNames
from netbuilder.proto import PROTO_CUDA, ArgumentError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.proto.netbuilder_pb2 import BlobSerializationOptions, SerializationOptions
from netbuilder.runtime import Workspace
from suite import OperatorSuite, refusal


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


class TestEstimateAllBlobSizes(OperatorSuite):
    """The figures are Caffe2's: 50 bytes and the name for each chunk, and so many for an element."""

    operator = EstimateAllBlobSizes
    no_gradient = "gives names and sizes"
    refusals = (refusal(EstimateAllBlobSizes(options=b"\xff"), [], "a serialized SerializationOptions", ArgumentError),)

    def draw(self, data):
        return EstimateAllBlobSizes(), []

    def test_forward(self):
        workspace = Workspace()
        for name, dtype in (("f4", "f4"), ("f8", "f8"), ("i8", "i8"), ("u1", "u1"), ("u2", "u2"), ("bool", "?")):
            workspace.feed(name, np.zeros((2, 50), dtype))
        workspace.feed("f2", np.zeros(100, np.float16))
        workspace.feed("text", "abcdef")
        workspace.feed("none", np.zeros((0, 3), np.float32))
        workspace.feed("big", np.zeros(2_000_001, np.float32))
        found = self.sizes(workspace)
        each = {"f4": 452, "f8": 852, "i8": 852, "u1": 252, "u2": 352, "bool": 154, "f2": 352, "none": 0}
        assert each.items() <= found.items()
        assert found["big"] == 3 * 53 + 8_000_004
        assert (found["names"], found["sizes"]) == (55 + 50 * len(found), 55 + 8 * len(found))

    def sizes(self, workspace, **args):
        workspace.run_operator_once(make_op("EstimateAllBlobSizes", [], ["names", "sizes"], **args))
        assert workspace.fetch("sizes").dtype == np.int64
        return dict(zip([name.decode() for name in workspace.fetch("names")], workspace.fetch("sizes").tolist()))

    def test_options(self):
        workspace = Workspace(parent=(parent := Workspace()))
        parent.feed("shared", np.zeros(2, np.float32))
        for name in ("x", "xy"):
            workspace.feed(name, np.zeros(1000, np.float32))
        half = BlobSerializationOptions.FLOAT_BFLOAT16
        option = BlobSerializationOptions(blob_name_regex="x", chunk_size=300, float_format=half)
        options = SerializationOptions(options=[option]).SerializeToString()
        found = self.sizes(workspace, options=options)
        assert (found["x"], found["xy"], found["shared"]) == (4 * 51 + 2000, 52 + 4000, 56 + 8)
        assert "shared" not in self.sizes(workspace, options=options, include_shared=False)
