"""visualize: the drawn images, with a fake matplotlib; muji: the operators of its sums, compared with Caffe2's."""

import sys
import types

import numpy as np
import pytest

from netbuilder.caffe2.python import core, muji, visualize
from netbuilder.proto import DeviceError, NetError, ShapeError


@pytest.fixture
def drawn(monkeypatch):
    """What was handed to imshow: (picture, colors)."""
    calls = []
    plot = types.ModuleType("matplotlib.pyplot")
    plot.imshow = lambda picture, cmap, interpolation: calls.append((picture, cmap))
    monkeypatch.setitem(sys.modules, "matplotlib", types.ModuleType("matplotlib"))
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", plot)
    return calls


def test_pictures(drawn):
    pictures = np.arange(30, dtype=np.float32).reshape(5, 2, 3)
    visualize.NHWC.ShowMultiple(pictures)
    grid, colors = drawn[-1]
    assert colors == "gray" and grid.shape == (5, 11)
    assert grid[0].tolist() == [0, 1, 2, 14.5, 6, 7, 8, 14.5, 12, 13, 14] and grid[3, 8] == 14.5
    visualize.NHWC.ShowMultiple(pictures, ncols=5)
    assert drawn[-1][0].shape == (2, 19)
    color = np.arange(12).reshape(3, 2, 2)
    visualize.NCHW.ShowSingle(color)
    assert drawn[-1][0].shape == (2, 2, 3) and drawn[-1][1] is None
    visualize.NCHW.ShowChannels(color)
    assert drawn[-1][0].shape == (5, 5) and drawn[-1][1] == "gray"
    visualize.NCHW.ShowImages(np.stack([color] * 4))
    assert drawn[-1][0].shape == (5, 5, 3)
    visualize.NCHW.ShowImages(color[:1])
    assert drawn[-1][0].shape == (2, 2)
    visualize.NHWC.ShowSingle(np.zeros((2, 4)))
    visualize.NHWC.ShowChannels(np.zeros((2, 4, 3)))
    visualize.NHWC.ShowImages(np.zeros((2, 4, 3)))
    visualize.NCHW.ShowMultiple(np.zeros((2, 3, 2, 4)))
    assert [picture.shape for picture, _ in drawn[-4:]] == [(2, 4), (5, 9), (2, 4, 3), (2, 9, 3)]
    assert visualize.ChannelFirst(np.zeros((5, 2, 3, 4))).shape == (5, 4, 2, 3)
    assert visualize.PatchVisualizer().get_patch_shape(color) == (3, 2, 2)


def test_no_pictures(drawn):
    with pytest.raises(ShapeError, match=r"ShowSingle: the array must have 2 or 3 dimensions, got the shape \(4,\)"):
        visualize.NHWC.ShowSingle(np.zeros(4))
    with pytest.raises(ShapeError, match="there is no image"):
        visualize.NHWC.ShowMultiple(np.zeros((0, 2, 2)))


def test_matplotlib_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(DeviceError, match="pip install 'netbuilder-nn.plot.'"):
        visualize.NHWC.ShowSingle(np.zeros((2, 2)))


def structure(net):
    return [(op.type, op.device_option.device_id) for op in net.Proto().op]


def test_sums_over_gpus():
    net = core.Net("sums")
    sums = muji.Allreduce(net, [f"gpu_{i}/x" for i in range(4)])
    assert [str(blob) for blob in sums] == [f"gpu_{i}/x_reduced" for i in range(4)]
    assert [row for row in structure(net) if row[0] == "Add"] == [("Add", 0), ("Add", 2), ("Add", 0)]
    other = core.Net("others")
    assert len(muji.Allreduce(other, ["a", "b", "c"], gpu_indices=[1, 2, 5])) == 3
    assert structure(other)[-2:] == [("Copy", 2), ("Copy", 5)]
    for number, function in (
        (2, muji.Allreduce2),
        (4, muji.Allreduce4),
        (4, muji.Allreduce4Group2),
        (8, muji.Allreduce8),
    ):
        assert len(function(core.Net("n"), list("abcdefgh")[:number], "_r", list(range(number)))) == number
    assert muji.OnGPU(2).device_id == 2 and muji.OnCPU().device_type == 0
    assert len(muji.AllreduceFallback(core.Net("n"), ["a", "b"], "_r", [0, 1])) == 2
    with pytest.raises(
        NetError, match=r"there must be one blob for each of 4 different GPUs, got 3 blobs for the GPUs \[0, 1, 2\]"
    ):
        muji.Allreduce4(net, ["a", "b", "c"], "_r", [0, 1, 2])


@pytest.mark.parametrize("number", [2, 3, 4, 8])
def test_sums_are_right(number):
    """The same operators on the host."""
    from netbuilder.caffe2.python import workspace

    net = core.Net("sums_on_host")
    sums = muji.Allreduce(net, [f"x{i}" for i in range(number)])
    for op in net.Proto().op:
        op.ClearField("device_option")
    for index in range(number):
        workspace.FeedBlob(f"x{index}", np.float32([index, 1]))
    workspace.RunNetOnce(net)
    for blob in sums:
        assert workspace.FetchBlob(str(blob)).tolist() == [number * (number - 1) / 2, number]
