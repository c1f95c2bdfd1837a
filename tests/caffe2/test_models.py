"""Models, layers, optimizers, exports and test cases by Caffe2's names."""

import unittest

import numpy as np
import pytest

from netbuilder.caffe2.proto import caffe2_pb2
from netbuilder.caffe2.python import brew, cnn, core, model_helper, optimizer, test_util, workspace
from netbuilder.caffe2.python.helpers import (
    algebra,
    arg_scope,
    array_helpers,
    control_ops,
    conv,
    db_input,
    dropout,
    fc,
    nonlinearity,
    normalization,
    pooling,
    train,
)
from netbuilder.caffe2.python.modeling import initializers, parameter_info, parameter_sharing
from netbuilder.caffe2.python.models import resnet
from netbuilder.caffe2.python.predictor import mobile_exporter
from netbuilder.model import brew as native_brew
from netbuilder.proto import ArgumentError, NetError
from netbuilder.proto.arguments import arguments

HELPERS = [
    algebra,
    array_helpers,
    control_ops,
    conv,
    db_input,
    dropout,
    fc,
    nonlinearity,
    normalization,
    pooling,
    train,
]


class TestBrew:
    def test_all_helpers_are_there(self):
        assert brew.conv is native_brew.conv and brew.arg_scope is arg_scope.arg_scope
        assert brew.has_helper("fc") and not brew.has_helper("nothing") and "spatial_bn" in dir(brew)

    def test_a_helper_of_the_users(self, monkeypatch):
        monkeypatch.setattr(native_brew, "_helpers", dict(native_brew._helpers))

        def own_test_helper(model, blob_in, blob_out, **kwargs):
            return model.net.Relu(blob_in, blob_out)

        brew.Register(own_test_helper)
        model = model_helper.ModelHelper("own_helper")
        assert brew.own_test_helper(model, "x", "y") == "y" and brew.has_helper(own_test_helper)
        with pytest.raises(AttributeError, match="own_test_helper"):
            brew.Register(own_test_helper)

    def test_what_is_no_model(self):
        with pytest.raises(RuntimeError, match="the first argument must be a ModelHelper"):
            brew.fc("x")

    def test_plain_functions(self):
        model = model_helper.ModelHelper("plain")
        assert fc.fc(model, "x", "y", 2, 3) == "y" and nonlinearity.relu(model, "y", "y") == "y"
        names = [name for module in HELPERS for name in module.__all__]
        assert len(names) == len(set(names)) > 25 and all(brew.has_helper(name) for name in names)


class TestCnn:
    def layers(self, **kwargs):
        model = cnn.CNNModelHelper(name="layers", **kwargs)
        model.Conv("x", "conv", 2, 4, 3)
        model.ConvTranspose("x", "up", 2, 4, 3)
        model.GroupConv("x", "group", 2, 4, 3, group=2)
        model.GroupConv_Deprecated("x", "old_group", 2, 4, 3, group=2)
        model.FC("x", "fc", 8, 2)
        model.MaxPool("x", "max", kernel=2)
        model.AveragePool("x", "average", kernel=2)
        model.LRN("x", "lrn", size=3)
        model.Dropout("x", "dropout", is_test=0)
        model.Softmax("fc", "softmax")
        model.SpatialBN("x", "bn", 2)
        model.Relu("bn", "bn")
        model.PRelu("x", "prelu")
        model.Concat(["x", "bn"], "concat")
        model.DepthConcat(["x", "bn"], "depth")
        model.Sum(["x", "x"], "sum")
        model.Transpose("x", "transposed")
        model.Iter("iteration")
        model.Accuracy(["softmax", "label"], "accuracy")
        return model

    def test_every_layer(self):
        types = [op.type for op in self.layers().net.Proto().op]
        want = (
            "Conv ConvTranspose Conv DepthSplit Conv Conv Concat FC MaxPool AveragePool LRN Dropout Softmax "
            "SpatialBN Relu PRelu Concat Concat Sum Transpose Iter Accuracy"
        )
        assert types == want.split()

    def test_the_models_arguments_reach_the_layers(self):
        op = self.layers(use_cudnn=False, order="NHWC", ws_nbytes_limit=100).net.Proto().op[0]
        assert (arguments(op)["order"], op.engine) == (b"NHWC", "")
        op = self.layers(cudnn_exhaustive_search=True, ws_nbytes_limit=100).net.Proto().op[0]
        assert (arguments(op)["exhaustive_search"], arguments(op)["ws_nbytes_limit"], op.engine) == (1, 100, "CUDNN")

    def test_what_it_is_called_and_has(self):
        model = cnn.CNNModelHelper()
        assert model.get_name() == "CNN" and isinstance(model, model_helper.ModelHelper)
        assert (model.XavierInit, model.MSRAInit, model.ZeroInit) == (
            ("XavierFill", {}),
            ("MSRAFill", {}),
            ("ConstantFill", {}),
        )
        assert model.ConstantInit(2) == ("ConstantFill", {"value": 2})
        assert model.CPU.device_type == caffe2_pb2.CPU and model.GPU.device_type == caffe2_pb2.CUDA
        model.ConvNd("x", "y", 1, 2, [3, 3], weight_init=model.MSRAInit, bias_init=model.ConstantInit(1.0))
        assert [op.type for op in model.param_init_net.Proto().op] == ["MSRAFill", "ConstantFill"]
        model.AddWeightDecay(0.1)
        assert model.param_init_net.Proto().op[-1].output[0] == "ONE"
        with pytest.raises(NetError, match="order must be 'NCHW' or 'NHWC', got 'NC'"):
            cnn.CNNModelHelper("NC")

    def test_parameters_are_shared(self):
        first = cnn.CNNModelHelper(name="first")
        first.FC("x", "y", 2, 3)
        second = cnn.CNNModelHelper(name="second", param_model=first)
        second.FC("x", "y", 2, 3)
        assert second.params == first.params == ["y_w", "y_b"]
        assert second.param_init_net is first.param_init_net
        assert [op.output[0] for op in first.param_init_net.Proto().op] == ["y_w", "y_b"]  # filled once


class TestOptimizer:
    def test_the_injected_rate(self):
        with pytest.raises(RuntimeError, match="no blob 'lr_injection'"):
            optimizer.get_lr_injection()
        optimizer.set_lr_injection(0.5)
        assert optimizer.get_lr_injection().tolist() == [0.5] and optimizer.get_lr_injection().dtype == np.float32

    def test_it_scales_the_step(self):
        model = model_helper.ModelHelper("injected")
        brew.fc(model, "x", "y", 2, 1)
        model.net.AveragedLoss("y", "loss")
        model.AddGradientOperators(["loss"])
        optimizer.build_sgd(model, 0.1, allow_lr_injection=True)
        workspace.FeedBlob("x", np.ones((1, 2), np.float32))
        workspace.RunNetOnce(model.param_init_net)
        workspace.CreateNet(model.net)
        steps = []
        for scale in (1.0, 0.5):
            optimizer.set_lr_injection(scale)
            before = workspace.FetchBlob("y_b")
            workspace.RunNet(model.net)
            steps.append(float((workspace.FetchBlob("y_b") - before)[0]))
        np.testing.assert_allclose(steps, [-0.1, -0.05], rtol=1e-5)


def test_modeling_and_nets():
    model = model_helper.ModelHelper("modeled")
    with parameter_sharing.ParameterSharing({"b": "a"}), core.NameScope("b"):
        brew.fc(model, "x", "y", 2, 3, WeightInitializer=initializers.Initializer, weight_init=("MSRAFill", {}))
    assert model.params == ["a/y_w", "a/y_b"]
    assert isinstance(model.get_param_info(model.params[0]), parameter_info.ParameterInfo)
    parameter_sharing.parameter_sharing_context.add_scope_overrides({"c": "a"})
    with core.NameScope("c"):
        assert parameter_sharing.parameter_sharing_context.get_parameter_name("y_w") == "a/y_w"
        parameter_sharing.parameter_sharing_context.pop()
        assert parameter_sharing.parameter_sharing_context.get_parameter_name("y_w") == "c/y_w"
    softmax, _ = resnet.create_resnet50(model_helper.ModelHelper("fifty"), "data", 3, 10, label="label")
    assert softmax == "softmax" and resnet.RESNEXT_BLOCK_CONFIG[50] == (3, 4, 6, 3)
    assert list(resnet.RESNEXT_STRIDES) == [1, 2, 2, 2]


class TestExport:
    @pytest.mark.parametrize(
        "value, op_type",
        [
            (np.float32([[1, 2]]), "GivenTensorFill"),
            (np.int32([1]), "GivenTensorIntFill"),
            (np.array([b"a"], object), "GivenTensorStringFill"),
            (b"text", "GivenTensorStringFill"),
        ],
    )
    def test_tensors_become_fills(self, value, op_type):
        net = core.Net("fills")
        mobile_exporter.add_tensor(net, core.BlobReference("x"), value)
        assert net.Proto().op[0].type == op_type
        workspace.RunNetOnce(net)
        assert np.array_equal(workspace.FetchBlob("x"), value)

    def test_others_do_not(self):
        with pytest.raises(ArgumentError, match="blob 'x': an init net cannot hold elements of type complex64"):
            mobile_exporter.add_tensor(core.Net("fills"), "x", np.complex64([1]))


class TestTestUtil:
    def test_arrays(self):
        np.random.seed(1)
        array = test_util.rand_array(20, 30)
        assert array.shape == (20, 30) and array.dtype == np.float32 and -0.5 <= array.min() < array.max() < 0.5
        assert test_util.rand_array().shape == ()
        test_util.randBlob("x", np.float64, 50, offset=2.0)
        assert workspace.FetchBlob("x").min() >= 1.5 and workspace.FetchBlob("x").dtype == np.float64
        test_util.randBlobsFloat32(["a", "b"], 2, 3)
        assert workspace.FetchBlob("b").shape == (2, 3) and workspace.FetchBlob("b").dtype == np.float32

    def test_texts_and_sizes(self):
        assert test_util.str_compare("a", b"a") and not test_util.str_compare(b"a", "b")
        net = core.Net("size")
        net.Relu("x", "y")
        assert test_util.numOps(net) == 1

    @pytest.mark.parametrize("flaky, ran", [("0", ["steady"]), ("1", ["shaky"])])
    def test_cases(self, flaky, ran, monkeypatch):
        monkeypatch.setenv(test_util.FLAKY_VARIABLE, flaky)
        seen, folders = [], []
        workspace.FeedBlob("left", np.ones(1))

        class Case(test_util.TestCase):
            def steady(self):
                self.note("steady")

            @test_util.caffe2_flaky
            def shaky(self):
                self.note("shaky")

            def note(self, name):
                seen.append(name)
                self.assertEqual(workspace.Blobs(), [])
                self.ws.create_blob("x").feed(np.ones(1))
                workspace.FeedBlob("y", np.ones(1))
                folders.append(self.make_tempdir())
                self.assertTrue(folders[-1].is_dir())

        suite = unittest.TestSuite([Case("steady"), Case("shaky")])
        result = suite.run(unittest.TestResult())
        assert result.wasSuccessful() and len(result.skipped) == 1 and seen == ran
        assert workspace.Blobs() == [] and not folders[0].exists()
