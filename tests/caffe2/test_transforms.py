"""Transformations of nets by Caffe2's names: the operators they leave, and the same numbers."""

import numpy as np
import pytest

from netbuilder.caffe2.python import core, workspace
from netbuilder.caffe2.python.transformations import Transformer, fuseConvBN, fuseNNPACKConvRelu
from netbuilder.caffe2.transforms import apply_transform
from netbuilder.proto import NetError

transformer = Transformer()

SHAPES = {"x": (2, 3, 6, 6), "w": (3, 3, 3, 3), "b": (3,), "scale": (3,), "bias": (3,), "mean": (3,)}


def conv_relu(to="z", **kwargs):
    net = core.Net("transformed")
    net.Conv(["x", "w", "b"], "y", kernel=3, **kwargs)
    net.Relu("y", to)
    return net


def feed(net, seed=0):
    draw = np.random.RandomState(seed).randn
    workspace.ResetWorkspace()
    for name, shape in SHAPES.items():
        workspace.FeedBlob(name, draw(*shape).astype(np.float32))
    workspace.FeedBlob("var", np.float32([0.5, 1, 2]))
    workspace.RunNetOnce(net)
    return workspace.FetchBlob(net.Proto().op[-1].output[0])


def types(net):
    return [op.type for op in net.Proto().op]


@pytest.mark.parametrize("kwargs, served", [({}, True), ({"stride": 2}, False), ({"order": "NHWC"}, False)])
def test_add_nnpack(kwargs, served):
    net = conv_relu(**kwargs)
    transformer.AddNNPACK(net)
    assert [op.engine for op in net.Proto().op] == ["NNPACK" if served else "", ""]


@pytest.mark.parametrize("to", ["z", "y", "x"])
def test_a_conv_does_the_work_of_the_relu(to):
    net = conv_relu(to)
    before = feed(net)
    transformer.AddNNPACK(net)
    fuseNNPACKConvRelu(net)
    assert types(net) == ["Conv"] and net.Proto().op[0].output[0] not in net.Proto().op[0].input
    np.testing.assert_allclose(feed(net), before, rtol=1e-5, atol=1e-6)
    assert (before == 0).any()


def test_two_names_in_turn():
    net = core.Net("turns")
    net.Conv(["x", "w", "b"], "y", kernel=3, pad=1)
    net.Relu("y", "x")
    net.Conv(["x", "w", "b"], "y", kernel=3, pad=1)
    before = feed(net)
    transformer.AddNNPACK(net)
    transformer.FuseNNPACKConvRelu(net)
    assert [(op.type, op.input[0], op.output[0]) for op in net.Proto().op] == [
        ("Conv", "x", "x_relu"),
        ("Conv", "x_relu", "y"),
    ]
    np.testing.assert_allclose(feed(net), before, rtol=1e-5, atol=1e-6)


def with_second_reader(net):
    net.Softmax("y", "s")


def with_output(net):
    net.AddExternalOutput(core.BlobReference("y"))


def with_input_as_output(net):
    net.Proto().op[1].output[0] = "x"
    net.Proto().external_output.append("x")


def with_a_writer_between(net):
    net.insert_op_at_idx(core.CreateOperator("Copy", "w", "z"), 1)


@pytest.mark.parametrize("change", [with_second_reader, with_output, with_input_as_output, with_a_writer_between])
def test_a_relu_stays_where_others_need_what_it_reads(change):
    net = conv_relu()
    change(net)
    transformer.AddNNPACK(net)
    transformer.FuseNNPACKConvRelu(net)
    assert "Relu" in types(net)


def conv_bn(inputs=("x", "w", "b"), **kwargs):
    net = core.Net("normalized")
    net.Conv(list(inputs), "y", kernel=3)
    net.SpatialBN(["y", "scale", "bias", "mean", "var"], "z", is_test=True, **kwargs)
    return net


@pytest.mark.parametrize("inputs", [("x", "w", "b"), ("x", "w")])
def test_a_conv_does_the_work_of_the_normalization(inputs):
    net = conv_bn(inputs, epsilon=1e-3)
    before, weights = feed(net), workspace.FetchBlob("w")
    fuseConvBN(net)
    assert types(net) == ["Conv"]
    workspace.RunNetOnce(net)
    np.testing.assert_allclose(workspace.FetchBlob("z"), before, rtol=1e-4, atol=1e-5)
    assert (workspace.FetchBlob("w") == weights).all()  # other nets may share them


def test_training_normalization_is_refused():
    net = core.Net("training")
    net.Conv(["x", "w"], "y", kernel=3)
    net.SpatialBN(["y", "scale", "bias", "mean", "var"], ["z", "mean", "var", "m", "v"])
    with pytest.raises(NetError, match="it is in training mode"):
        transformer.FuseConvBN(net)
    assert types(net) == ["Conv", "SpatialBN"]


def test_unknown_names():
    with pytest.raises(AttributeError, match="must be one of AddNNPACK, FuseNNPACKConvRelu, .*, got 'Nothing'"):
        transformer.Nothing(conv_relu())
    with pytest.raises(RuntimeError, match=r"must be one of \['ConvToNNPack'\], got 'Nothing'"):
        workspace.ApplyTransform("Nothing", conv_relu().Proto())


def test_apply_transform_leaves_its_net_alone():
    net = conv_relu(stride=2).Proto()
    made = workspace.ApplyTransform("ConvToNNPack", net)
    assert [op.engine for op in made.op] == ["NNPACK", ""] and [op.engine for op in net.op] == ["", ""]


@pytest.mark.parametrize("threshold, engine", [(0.0, "NNPACK"), (1e9, "")])
def test_apply_transform_if_faster(threshold, engine):
    net = conv_relu()
    feed(net)
    made = workspace.ApplyTransformIfFaster(
        "ConvToNNPack",
        net.Proto(),
        core.Net("nothing").Proto(),
        warmup_runs=1,
        main_runs=2,
        improvement_threshold=threshold,
    )
    assert made.op[0].engine == engine and workspace.C.nets() == []
    with pytest.raises(TypeError, match=r"keywords must be among .*, got \['runs'\]"):
        workspace.ApplyTransformIfFaster("ConvToNNPack", net.Proto(), core.Net("nothing").Proto(), runs=3)


def test_the_original_net_is_unchanged_by_the_pass():
    net = conv_relu().Proto()
    before = net.SerializeToString()
    apply_transform("ConvToNNPack", net)
    assert net.SerializeToString() == before
