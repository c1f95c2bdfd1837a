"""Random values for what a net reads and does not make."""

import numpy as np
import pytest

from netbuilder.caffe2.python import core, workspace


@pytest.fixture
def net():
    net = core.Net("simple")
    net.ConstantFill([], "c", shape=[2], value=1.0)
    net.Relu("c", "d")
    return net


class TestRandomInputs:
    def test_what_a_net_reads_and_does_not_make(self):
        net = core.Net("random")
        net.Relu("x", "y")
        net.Add(["y", "z"], "s")
        workspace.FillRandomNetworkInputs(net, [[(3, 2)], [(3, 2), (3, 2)]], [["float"], ["float", "double"]])
        assert workspace.FetchBlob("x").shape == (3, 2) and workspace.FetchBlob("z").dtype == np.float64
        assert not workspace.HasBlob("y")
        assert 0 <= workspace.FetchBlob("x").min() < workspace.FetchBlob("x").max() < 1

    def test_indices_and_lengths_fit(self):
        net = core.Net("lookup")
        net.SparseLengthsSum(["table", "indices", "lengths"], "y")
        workspace.FillRandomNetworkInputs(net, [[(5, 2), (7,), (3,)]], [["float", "int64", "int"]])
        workspace.RunNetOnce(net)
        assert workspace.FetchBlob("lengths").sum() == 7 and workspace.FetchBlob("indices").max() < 5

    @pytest.mark.parametrize(
        "dims, types, match",
        [
            ([], [], "the net has 2 operators, got shapes for 0"),
            ([[], []], [[], []], r"Relu has the inputs \['c'\], got 0 shapes"),
            ([[], [(1,)]], [[], ["complex"]], r"types must be among .*, got \['complex'\]"),
        ],
    )
    def test_refusals(self, net, dims, types, match):
        before = workspace.Blobs()
        with pytest.raises(RuntimeError, match=match):
            workspace.FillRandomNetworkInputs(net, dims, types)
        assert workspace.Blobs() == before
