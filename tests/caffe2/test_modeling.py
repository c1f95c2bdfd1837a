"""Modifiers of nets, models with one init net, constants of data sets, and what tests of classifiers are made of."""

from __future__ import annotations

import numpy as np
import pytest

from netbuilder.caffe2.python import brew, core, dataset, model_helper, optimizer, workspace
from netbuilder.caffe2.python.modeling.compute_histogram_for_blobs import ComputeHistogramForBlobs
from netbuilder.caffe2.python.modeling.compute_norm_for_blobs import ComputeNormForBlobs
from netbuilder.caffe2.python.modeling.compute_statistics_for_blobs import ComputeStatisticsForBlobs
from netbuilder.caffe2.python.modeling.get_entry_from_blobs import GetEntryFromBlobs
from netbuilder.caffe2.python.modeling.gradient_clipping import GradientClipping
from netbuilder.caffe2.python.models import imagenet_trainer_test_utils
from netbuilder.proto import NetError, UsageError

X = np.float32([[0.25, -0.5, 0.75], [1.5, 0.125, -2.0]])


def run(modifier, **options):
    """Return the blob that a modifier adds for "x", and the net."""
    workspace.ResetWorkspace()
    net = core.Net("watched")
    net.AddExternalInput("x")
    before = set(net.UsedBlobNames())
    modifier(net, **options)
    workspace.FeedBlob("x", X)
    workspace.RunNetOnce(net)
    name = "x" + modifier.field_name_suffix()
    named = [blob for blob in net.UsedBlobNames() - before if blob.endswith(modifier.field_name_suffix())]
    return workspace.FetchBlob(name if name in named else named[0]), net


@pytest.mark.parametrize(
    ("modifier", "expected"),
    [
        (ComputeNormForBlobs(["x"], 0), [np.square(X).sum()]),
        (ComputeNormForBlobs(["x"], 10, p=1, compute_averaged_norm=True), [np.abs(X).mean()]),
        (ComputeNormForBlobs(["x"], -1, row_index=0), [np.square(X[0]).sum()]),
        (ComputeStatisticsForBlobs(["x"], 5), [X.min(), X.max(), X.mean(), X.std(ddof=1)]),
        (ComputeHistogramForBlobs(["x"], 5, num_buckets=2), np.float32([2, 2, 1, 1]) / 6),
        (ComputeHistogramForBlobs(["x"], 0, num_buckets=1, accumulate=True), np.float32([2, 3, 1]) / 6),
        (GetEntryFromBlobs(["x"], 0, i1=1, i2=2), [[-2.0]]),
        (GetEntryFromBlobs(["x"], 0, i1=1, i2=-1), X[1:]),
    ],
)
def test_what_is_computed_of_a_blob(modifier, expected, capfd):
    found, net = run(modifier)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert net.output_record() is None
    found, net = run(modifier, modify_output_record=True)
    (field,) = net.output_record().field_names()
    assert field.endswith(modifier.field_name_suffix())
    np.testing.assert_allclose(workspace.FetchBlob(net.output_record()[field].get()), expected, rtol=1e-6)


def test_several_fields_and_devices():
    net = core.Net("watched")
    net.AddExternalInput("x", "y")
    GetEntryFromBlobs(["x", "y"], 1)(net, blob_to_device={"y": core.DeviceOption(1, 2)}, modify_output_record=True)
    assert net.output_record().field_names() == ["x_0_0", "y_0_0"]
    assert {op.device_option.device_id for op in net.Proto().op if op.input[0].startswith("y")} == {2}
    assert {op.device_option.device_type for op in net.Proto().op if op.input[0] == "x"} == {0}


def test_refusals():
    net = core.Net("watched")
    net.AddExternalInput("x")
    with pytest.raises(NetError, match=r"does not have the blobs \['z'\]"):
        ComputeNormForBlobs(["x", "z"], 1)(net)
    assert not net.Proto().op
    with pytest.raises(NetError, match="row_index must not be negative, got -1"):
        ComputeNormForBlobs([], 1, row_index=-1)
    with pytest.raises(NetError, match="i1 must be at least 0 and i2 at least -1, got 0 and -2"):
        GetEntryFromBlobs([], 1, i2=-2)
    with pytest.raises(NetError, match="num_buckets must be at least 1, got 0"):
        ComputeHistogramForBlobs([], 1, num_buckets=0)
    with pytest.raises(NetError, match="grad_clip_method must be one of .*, got 'by_luck'"):
        GradientClipping("by_luck")
    with pytest.raises(NetError, match="clip_norm_type must be one of .*, got None"):
        GradientClipping("by_norm", clip_norm_type=None)
    with pytest.raises(NetError, match="grad_map must be the dict parameter -> gradient"):
        GradientClipping("by_value", clip_norm_type=None)(net)
    with pytest.raises(NetError, match=r"does not have the parameters \['w'\]"):
        GradientClipping("by_value", blobs_to_include=["w"])(net, grad_map={})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"grad_clip_method": "by_value", "clip_max": 0.5, "clip_min": -0.25}, [-0.25, 0.5]),
        ({"grad_clip_method": "by_norm", "clip_threshold": 0.5}, [-0.3, 0.4]),
        ({"grad_clip_method": "by_norm", "clip_norm_type": "l1_norm", "clip_threshold": 0.7}, [-0.3, 0.4]),
        ({"grad_clip_method": "by_norm", "clip_threshold": 9}, [-3, 4]),
        ({"grad_clip_method": "by_norm", "clip_threshold": 0.25, "use_parameter_norm": True}, [-0.3, 0.4]),
        ({"grad_clip_method": "by_value", "blobs_to_exclude": ["w"]}, [-3, 4]),
        ({"grad_clip_method": "by_value", "blobs_to_include": ["v"]}, [-3, 4]),
    ],
)
def test_gradient_clipping(options, expected):
    workspace.ResetWorkspace()
    net = core.Net("clipped")
    net.AddExternalInput("w", "v")
    gradients = {"w": net.Copy("g", "w_grad"), "v": net.Copy("g", "v_grad")}
    GradientClipping(**options)(net, grad_map=gradients)
    workspace.FeedBlob("g", np.float32([-3, 4]))
    for name in "wv":
        workspace.FeedBlob(name, np.float32([0, 2]))
    workspace.RunNetOnce(net)
    np.testing.assert_allclose(workspace.FetchBlob("w_grad"), expected, rtol=1e-5)
    assert set(gradients) == {"w", "v"}


def test_the_ratio_of_norms():
    workspace.ResetWorkspace()
    net = core.Net("ratio")
    net.AddExternalInput("w")
    grad = net.Copy("g", "w_grad")
    GradientClipping("by_norm", use_parameter_norm=True, compute_norm_ratio=True)(net, grad_map={"w": grad})
    workspace.FeedBlob("g", np.float32([-3, 4]))
    workspace.FeedBlob("w", np.float32([0, 2]))
    workspace.RunNetOnce(net)
    np.testing.assert_allclose(workspace.FetchBlob("w_norm_ratio"), [2.5], rtol=1e-6)


def test_models_of_one_set_of_parameters_have_one_init_net():
    model = model_helper.ModelHelper("outer")
    step = model_helper.ModelHelper("step", param_model=model)
    assert step.param_init_net is model.param_init_net
    brew.fc(step, "x", "fc", 2, 3)
    assert [op.type for op in model.param_init_net.Proto().op] == ["XavierFill", "ConstantFill"]
    with pytest.raises(UsageError, match="was requested with"):
        brew.fc(model, "x", "fc", 2, 4)


def test_a_fill_may_have_its_arguments_in_parts():
    model = model_helper.ModelHelper("parts")
    brew.fc(model, "x", "fc", 2, 3, weight_init=("UniformFill", {"min": -1.0}, {"max": 2.0}))
    fill = model.param_init_net.Proto().op[0]
    assert {argument.name: argument.f for argument in fill.arg if argument.HasField("f")} == {"min": -1, "max": 2}


def test_constants_of_data_sets_are_fed_once():
    net = core.Net("counting")
    count, one = dataset.Const(net, 0, dtype=np.int32), dataset.Const(net, 5, np.int32, name="five")
    net.Add([count, one], [count])
    workspace.CreateNet(net)
    for _ in range(3):
        workspace.RunNet(net)
    assert workspace.FetchBlob(count) == 15 and {str(count), str(one)} <= set(net.Proto().external_input)


def test_optimizers_called_with_names():
    optimizer.reset_optimizer_instance_count()
    model = model_helper.ModelHelper("sgd")
    loss = model.net.AveragedLoss(brew.fc(model, "x", "fc", 2, 1), "loss")
    model.AddGradientOperators([loss])
    sgd = optimizer.SgdOptimizer(base_learning_rate=0.1)
    assert optimizer._optimizer_instance_count["SgdOptimizer"] == 1
    devices = optimizer._get_param_to_device(model)
    with core.DeviceScope(optimizer.get_param_device("fc_w", "fc_w_grad", devices)):
        sgd(model.net, model.param_init_net, "fc_w", "fc_w_grad")
    workspace.FeedBlob("x", np.float32([[1, 2]]))
    workspace.RunNetOnce(model.param_init_net)
    before = workspace.FetchBlob("fc_w")
    workspace.RunNetOnce(model.net)
    np.testing.assert_allclose(workspace.FetchBlob("fc_w"), before - np.float32([[0.1, 0.2]]), rtol=1e-5, atol=1e-6)


def test_smart_decay_keeps_its_state_for_dense_gradients_too():
    model = model_helper.ModelHelper("adam")
    loss = model.net.AveragedLoss(brew.fc(model, "x", "fc", 2, 1), "loss")
    model.AddGradientOperators([loss])
    optimizer.build_adam(model, 0.1, beta1=0.0, use_smart_decay=True)
    workspace.FeedBlob("x", np.float32([[1, 2]]))
    workspace.RunNetOnce(model.param_init_net)
    workspace.RunNetOnce(model.net)
    assert workspace.FetchBlob("fc_w_last_seen").tolist() == [0]
    assert [op.type for op in model.net.Proto().op].count("Adam") == 2


def test_classifiers_under_memonger():
    """A small net in the place of a classifier: fewer blobs, and the same results."""

    def create(model, data, num_input_channels, num_labels, label=None, is_test=False):
        blob = brew.average_pool(model, data, "pool", kernel=227)
        for index in range(4):
            blob = brew.relu(model, brew.fc(model, blob, f"fc{index}", 3, 3), f"relu{index}")
        last = brew.fc(model, blob, "last", 3, num_labels)
        if label is None:
            return last
        softmax, loss = model.net.SoftmaxWithLoss([last, label], ["softmax", "loss"])
        return softmax, loss

    arguments = {"last_out_blob": "gpu_0/last", "num_labels": 5}
    for test in (
        imagenet_trainer_test_utils.test_forward_only,
        imagenet_trainer_test_utils.test_forward_only_fast_simplenet,
    ):
        (after, before), shared, (plain, optimized) = test(create, **arguments)
        assert after < before and shared > 0 and plain.shape == (4, 5)
        np.testing.assert_array_equal(plain, optimized)
    counts, *results = imagenet_trainer_test_utils.test_shared_grads(True, create, "gpu_0/fc0_w", **arguments)
    assert counts[0] < counts[1] and len(results) == 2
    for plain, optimized in results:
        assert plain.size > 1
        np.testing.assert_array_equal(plain, optimized)
    net = core.Net("one")
    net.Relu("x", "y")
    assert imagenet_trainer_test_utils.has_blob(net.Proto(), "y")
    assert not imagenet_trainer_test_utils.has_blob(net.Proto(), "z")
