"""Concat, Split, Transpose, Slice and other shapes on a GPU: copies that CUDA graphs contain, against NumPy."""

import numpy as np
import pytest

from cudnn_double import cudnn_double
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from on_gpu import ON_GPU, graphs, launched, run_net

pytestmark = pytest.mark.gpu

RNG = np.random.default_rng(4)
TYPES = ["float32", "float16", "float64", "int32", "int64", "uint8", "bool"]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_concat_and_split(axis, dtype):
    shape = [3, 4, 5]
    parts = {}
    for name, extent in (("a", 2), ("b", 0), ("c", 7)):
        shape[axis] = extent
        parts[name] = RNG.integers(0, 90, shape).astype(dtype)
    ops = [
        make_op("Concat", list(parts), ["y", "info"], axis=axis),
        make_op("Split", ["y", "info"], ["d", "e", "f"], axis=axis),
    ]
    with launched() as launches:
        found = run_net(ops, parts, ["y", "info", "d", "e", "f"], runs=2)
    assert launches.count("parts_copied") == 8
    np.testing.assert_array_equal(found["y"], np.concatenate([*parts.values()], axis))
    np.testing.assert_array_equal(found["info"], np.int32([2, 0, 7]))
    for name, part in zip("def", parts.values()):
        np.testing.assert_array_equal(found[name], part)


@pytest.mark.parametrize("axis", [0, 1, 3])
def test_a_new_axis(axis):
    parts = {name: RNG.normal(size=(2, 3, 4)).astype(np.float32) for name in "abc"}
    ops = [
        make_op("Concat", list(parts), ["y", "info"], axis=axis, add_axis=1),
        make_op("Split", ["y"], ["d", "e", "f"], axis=axis, add_axis=1),
    ]
    found = run_net(ops, parts, ["y", "info", "d", "e", "f"])
    np.testing.assert_array_equal(found["y"], np.stack([*parts.values()], axis))
    for name, part in zip("def", parts.values()):
        np.testing.assert_array_equal(found[name], part)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("axes", [(0,), (1, 0), (2, 0, 1), (0, 2, 1), (3, 1, 2, 0), (4, 2, 0, 3, 1)])
def test_transpose(axes, dtype):
    x = RNG.integers(0, 90, (2, 3, 1, 5, 4)[: len(axes)]).astype(dtype)
    found = run_net([make_op("Transpose", ["x"], ["y"], axes=axes)], {"x": x}, ["y"])["y"]
    np.testing.assert_array_equal(found, x.transpose(axes))


def test_channels_and_shapes():
    x = RNG.normal(size=(2, 3, 4, 5)).astype(np.float32)
    ops = [make_op("NCHW2NHWC", ["x"], ["last"]), make_op("NHWC2NCHW", ["last"], ["back"])]
    ops += [make_op("Flatten", ["x"], ["rows"]), make_op("ExpandDims", ["rows"], ["more"], dims=[0, 2])]
    ops += [make_op("Squeeze", ["more"], ["fewer"], dims=[0]), make_op("ResizeLike", ["fewer", "x"], ["like"])]
    names = [op.output[0] for op in ops]
    found = run_net(ops, {"x": x}, names)
    np.testing.assert_array_equal(found["last"], np.moveaxis(x, 1, -1))
    for name, shape in zip(names[1:], [x.shape, (2, 60), (1, 2, 1, 60), (2, 1, 60), x.shape]):
        assert found[name].shape == shape
        np.testing.assert_array_equal(found[name].reshape(-1), x.reshape(-1))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("starts", "ends", "part"),
    [((1,), (-1,), np.s_[1:]), ((0, 1), (2, -2), np.s_[:2, 1:-1]), ((2, 0, 3), (9, -1, 4), np.s_[2:, :, 3:4]),
     ((0, 0, 0), (-1, -1, -1), np.s_[:]), ((1, 2), (2, 2), np.s_[1:2, 2:2])],
)  # fmt: skip
def test_slice_and_its_gradient(starts, ends, part, dtype):
    x = RNG.integers(0, 90, (3, 4, 5)).astype(dtype)
    dy = RNG.integers(0, 90, x[part].shape).astype(dtype)
    bounds = {"starts": starts, "ends": ends}
    ops = [make_op("Slice", ["x"], ["y"], **bounds), make_op("SliceGradient", ["x", "dy"], ["dx"], **bounds)]
    with launched() as launches:
        found = run_net(ops, {"x": x, "dy": dy}, ["y", "dx"], runs=2)
    assert (launches.count("transposed"), launches.count("padded")) == (2 if dy.size else 0, 2)
    np.testing.assert_array_equal(found["y"], x[part])
    wanted = np.zeros_like(x)
    wanted[part] = dy
    np.testing.assert_array_equal(found["dx"], wanted)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("group", [1, 2, 3, 6])
@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
def test_channel_shuffle(order, group, dtype):
    x = RNG.integers(0, 90, (2, 6, 4, 5) if order == "NCHW" else (2, 4, 5, 6)).astype(dtype)
    ops = [make_op("ChannelShuffle", ["x"], ["y"], group=group, order=order),
           make_op("ChannelShuffleGradient", ["y"], ["z"], group=group, order=order)]  # fmt: skip
    with launched() as launches:
        found = run_net(ops, {"x": x}, ["y", "z"])
    assert launches.count("transposed") == 2
    shuffled = np.arange(6).reshape(group, 6 // group).T.reshape(-1)
    np.testing.assert_array_equal(found["y"], np.take(x, shuffled, 1 if order == "NCHW" else 3))
    np.testing.assert_array_equal(found["z"], x)


@pytest.mark.emulated
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_channel_shuffle_of_images_with_channels_last(dtype):
    """They stay as they are stored between two convolutions, with 16 bits too."""
    net = NetDef(name="net", device_option=ON_GPU, op=[
        make_op("Conv", ["x", "v"], ["a"], kernel=1), make_op("ChannelShuffle", ["a"], ["b"], group=2),
        make_op("Conv", ["b", "w"], ["y"], kernel=1),
    ])  # fmt: skip
    x, v, w = (RNG.integers(-2, 3, shape).astype(np.float32) for shape in ((2, 4, 3, 5), (8, 4, 1, 1), (4, 8, 1, 1)))
    with cudnn_double():
        workspace = Workspace()
        for name, value in {"x": x, "v": v, "w": w}.items():
            workspace.feed(name, value, ON_GPU)
        workspace.create_net(net, dtype=dtype, observable=["y"])
        workspace.run_net("net")
        (plan,) = workspace.net("net").plan_ahead()
        between = plan.steps[[step.prepared.name.startswith("cuda nb_transposed") for step in plan.steps].index(True)]
        assert [value.spec.layout.elements for value in between.inputs] == [dtype]
        a = np.einsum("nchw,kc->nkhw", x, v[..., 0, 0])[:, [0, 4, 1, 5, 2, 6, 3, 7]]
        np.testing.assert_array_equal(workspace.fetch("y"), np.einsum("nchw,kc->nkhw", a, w[..., 0, 0]))


@pytest.mark.emulated
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("channels", [(4, 8), (3, 5), (1, 8), (8, 0)])
def test_images_with_channels_last_are_joined_and_divided_as_they_are(dtype, channels):
    """With 16 bits, too, and in the other order for what would otherwise be copied twice: nothing is reordered."""
    first, second = channels
    ops = [
        make_op("Conv", ["x", "v"], ["a"], kernel=1), make_op("Conv", ["x", "w"], ["b"], kernel=1),
        make_op("Concat", ["a", "b"], ["c", "info"], axis=1), make_op("Split", ["c", "info"], ["d", "e"], axis=1),
        make_op("Conv", ["d", "u"], ["y"], kernel=1),
    ]  # fmt: skip
    if not second:
        ops[1] = make_op("Slice", ["x"], ["b"], starts=[0, 0, 0, 0], ends=[-1, 0, -1, -1])
    shapes = {"x": (2, 4, 3, 5), "v": (first, 4, 1, 1), "w": (max(second, 1), 4, 1, 1), "u": (4, first, 1, 1)}
    values = {name: RNG.integers(-2, 3, shape).astype(np.float32) for name, shape in shapes.items()}
    with cudnn_double():
        workspace = Workspace()
        for name, value in values.items():
            workspace.feed(name, value, ON_GPU)
        net = NetDef(name="net", device_option=ON_GPU, op=ops)
        workspace.create_net(net, dtype=dtype, observable=["y", "e"])
        workspace.run_net("net")
        (plan,) = workspace.net("net").plan_ahead()
        copied = [step for step in plan.steps if step.prepared.name.startswith("cuda nb_parts_copied")]
        assert len(copied) == 2
        whole = copied[0].outputs[0].spec
        assert whole.layout.elements == dtype and not whole.layout.is_row_major
        a, b = (np.einsum("nchw,kc->nkhw", values["x"], values[name][..., 0, 0]) for name in "vw")
        np.testing.assert_array_equal(workspace.fetch("e"), b[:, :second])
        expected = np.einsum("nchw,kc->nkhw", a, values["u"][..., 0, 0])
        np.testing.assert_array_equal(workspace.fetch("y"), expected)


def test_they_do_not_divide_a_graph():
    """Nothing is read on the host: the gradient of Concat knows the extents."""
    ops = [
        make_op("Relu", ["x"], ["a"]),
        make_op("Concat", ["a", "x"], ["b", "info"], axis=1),
        make_op("Transpose", ["b"], ["c"]),
        make_op("Flatten", ["c"], ["f"]),
        make_op("Scale", ["b"], ["g"], scale=2.0),
        make_op("Split", ["g", "info"], ["d", "e"], axis=1),
        make_op("Sum", ["d", "e"], ["s"]),
        make_op("Slice", ["s"], ["t"], starts=[1], ends=[-1]),
        make_op("SliceGradient", ["s", "t"], ["y"], starts=[1], ends=[-1]),
    ]
    net = NetDef(name="net", op=ops)
    net.device_option.CopyFrom(ON_GPU)
    x = RNG.normal(size=(3, 4)).astype(np.float32)
    workspace = Workspace(threads=1)
    workspace.feed("x", x, ON_GPU)
    workspace.create_net(net)
    workspace.run_net("net", 5)
    assert set(graphs(workspace)) == {0}
    wanted = np.where(np.arange(3)[:, None] >= 1, 2 * np.maximum(x, 0) + 2 * x, 0)
    np.testing.assert_array_equal(workspace.fetch("y"), wanted)
