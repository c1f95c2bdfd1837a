"""ModelHelper: nets, parameters, gradients, models that share parameters."""

import warnings
from contextlib import nullcontext

import numpy as np
import pytest

from netbuilder.graph import BlobReference, NameScope, Net
from netbuilder.model import ExternalInitializer, Initializer, ModelHelper, ParameterTags, brew
from netbuilder.proto import BlobError, GradientError, NetError, ShapeError, UsageError
from netbuilder.runtime import Workspace


def trained(name="train"):
    model = ModelHelper(name)
    fc = brew.fc(model, "data", "fc", 3, 4)
    brew.spatial_bn(model, fc, "bn", 4, is_test=False)
    return model


def types(net):
    return [op.type for op in net.Proto().op]


def test_an_operator_call_appends_one_operator_and_returns_its_blobs():
    model = ModelHelper("calls")
    y = model.Relu("x", "y")
    softmax, loss = model.net.SoftmaxWithLoss([y, "label"], ["softmax", "loss"])
    assert (str(y), str(softmax), str(loss)) == ("y", "softmax", "loss")
    assert types(model.net) == ["Relu", "SoftmaxWithLoss"]
    assert types(model.param_init_net) == []


def test_unknown_operators_are_refused_with_the_nearest_names():
    model = ModelHelper("unknown")
    with pytest.raises(AttributeError, match="'Rlu' is neither.*did you mean.*Relu"):
        model.Rlu("x", "y")
    with pytest.raises(AttributeError, match="use model.net.Clone"):
        model.Clone("x")
    assert not hasattr(model, "_hidden")


def test_models_of_known_operators_only():
    model = ModelHelper("known", allow_not_known_ops=False)
    model.Softmax("x", "y")
    with pytest.raises(AttributeError, match="Relu is not among the operators"):
        model.Relu("x", "y")
    model.net.Relu("x", "y")
    assert types(model.net) == ["Softmax", "Relu"]


def test_names_and_messages():
    model = ModelHelper("a_model")
    assert (model.get_name(), model.name) == ("a_model", "a_model")
    assert model.Proto() is model.net.Proto()
    assert model.InitProto() is model.param_init_net.Proto()
    assert model.InitProto().name == model.Proto().name + "_init"
    assert ModelHelper().name == "model"
    assert repr(model) == "ModelHelper('a_model', 0 parameters, 0 operators)"


def test_there_is_one_spelling():
    import netbuilder
    from netbuilder import model

    assert netbuilder.ModelHelper is model.ModelHelper
    assert [name for name in dir(model) if "modelhelper" in name.lower()] == ["ModelHelper"]


def test_the_models_arguments_for_layers():
    assert ModelHelper("a").arg_scope == {"order": "NCHW", "use_cudnn": True, "cudnn_exhaustive_search": False}
    assert ModelHelper("a", arg_scope={"order": "NHWC"}).arg_scope["order"] == "NHWC"


class TestParameters:
    def test_tags_sort_them(self):
        model = ModelHelper("tags")
        fill = Initializer("ConstantFill")
        model.create_param("w", [1], fill, tags=ParameterTags.WEIGHT)
        model.create_param("b", [1], fill, tags=[ParameterTags.BIAS, "mine"])
        model.create_param("r", [1], fill, tags={ParameterTags.COMPUTED_PARAM})
        model.create_param("n", [1], fill)
        assert (model.params, model.weights, model.biases) == (["w", "b", "n"], ["w"], ["b"])
        assert (model.GetComputedParams(), model.GetAllParams()) == (["r"], ["w", "b", "n", "r"])

    def test_asked_for_again_it_is_the_same(self):
        model = ModelHelper("again")
        first = model.create_param("w", [2, 3], Initializer("XavierFill"))
        assert model.create_param("w", (2, 3), Initializer("XavierFill")) == first
        assert model.create_param(BlobReference("w"), None, ExternalInitializer()) == first
        assert (model.params, types(model.param_init_net)) == (["w"], ["XavierFill"])

    def test_another_shape_is_refused(self):
        model = ModelHelper("again")
        model.create_param("w", [2, 3], Initializer("XavierFill"))
        with pytest.raises(UsageError, match=r"exists already with shape \[2, 3\], and was requested with \[2, 4\]"):
            model.create_param("w", [2, 4], Initializer("XavierFill"))
        brew.fc(model, "x", "fc", 2, 3)
        with pytest.raises(UsageError, match="'fc_w' exists already .* give the layer another name or scope"):
            brew.fc(model, "x", "fc", 2, 4)

    @pytest.mark.parametrize("shape", [[2, -4], [2, 1.5], [3, "2"], "ab"], ids=str)
    def test_a_shape_is_whole_numbers(self, shape):
        model = ModelHelper("shapes")
        with pytest.raises(ShapeError, match="the shape of parameter 'w' must be integers >= 0, got"):
            model.create_param("w", shape, Initializer("XavierFill"))
        assert model.params == [] and types(model.param_init_net) == []

    def test_an_initializer_makes_parameters(self):
        with pytest.raises(TypeError, match=r"'w': the initializer must have a method create_param.*got None"):
            ModelHelper("m").create_param("w", [2], None)

    def test_names_are_strings_or_references(self):
        with pytest.raises(TypeError, match="param_name must be a string or a BlobReference, got 3"):
            ModelHelper("m").create_param(3, [1], Initializer("XavierFill"))

    @pytest.mark.parametrize("wrong", ["fc_w", None, 3])
    def test_a_parameter_is_a_blob_reference(self, wrong):
        model = ModelHelper("m")
        for call in (model.AddParameter, model.get_param_info):
            with pytest.raises(TypeError, match=f"a parameter must be .*BlobReference.* got {wrong!r}"):
                call(wrong)
        assert model.params == []

    def test_tags_are_strings(self):
        with pytest.raises(TypeError, match="tags must be .* got 3"):
            ModelHelper("m").AddParameter(BlobReference("w"), tags=3)

    def test_information(self):
        model = ModelHelper("info")
        w = model.create_param("w", [2, 3], Initializer("XavierFill"))
        table = model.param_init_net.UniformFill([], "table", shape=[5, 2])
        model.param_init_net.ConstantFill([], "other", shape=[1])
        model.AddParameter(table)
        like = model.param_init_net.ConstantFill(table, "like")
        model.AddParameter(like)
        assert (model.get_param_info(w).shape, model.get_param_info(w).size) == ([2, 3], 6)
        assert list(model.get_param_info(table).shape) == [5, 2]
        assert (model.get_param_info(like).shape, model.get_param_info(like).size) == (None, None)
        assert model.get_param_info(BlobReference("nothing")) is None

    def test_an_optimizer_of_its_own_is_set_once(self):
        model = ModelHelper("own")
        info = model.get_param_info(model.create_param("w", [1], Initializer("XavierFill")))
        info.optimizer = "first"
        with pytest.raises(ValueError, match="'w' has its own optimizer already: 'first'"):
            info.optimizer = "second"

    def test_by_scope(self):
        model = ModelHelper("scopes")
        for scope in ("gpu_1", "gpu_10"):
            with NameScope(scope):
                brew.fc(model, "x", "fc", 2, 3)
        brew.fc(model, "x", "fc", 2, 3)
        ones = ["gpu_1/fc_w", "gpu_1/fc_b"]
        assert model.GetParams("gpu_1") == model.GetParams("gpu_1/") == ones
        assert len(model.GetParams()) == len(model.GetParams("")) == 6
        with NameScope("gpu_1"):
            assert model.GetParams() == model.GetAllParams() == ones
            with NameScope("inner"):
                assert (model.GetParams(), model.GetParams(top_scope=True)) == ([], ones)

    def test_duplicates_are_listed_once_each(self):
        model = ModelHelper("twice")
        model.params.extend(BlobReference(name) for name in "cabaca")
        model.AddParameter(BlobReference("d"))
        with pytest.raises(NetError, match=r"model 'twice': duplicate parameters \['a', 'c'\]; two layers"):
            model.Validate()
        with pytest.raises(NetError, match="duplicate parameters"):
            model.AddGradientOperators(["loss"])
        assert not model.gradient_ops_added


class TestGradients:
    def model(self):
        model = ModelHelper("gradients")
        brew.fc(model, "x", "fc", 2, 3)
        model.AddParameter(model.param_init_net.ConstantFill([], "unused", shape=[1]))
        return model, model.net.AveragedLoss("fc", "loss")

    def test_gradients_of_parameters(self):
        model, loss = self.model()
        gradients = model.AddGradientOperators([loss])
        assert model.param_to_grad == {"fc_w": "fc_w_grad", "fc_b": "fc_b_grad"}
        assert gradients is model.grad_map
        assert gradients["x"] == "x_grad"

    def test_parameters_without_gradient_are_not_updated(self):
        model, loss = self.model()
        model.AddGradientOperators([loss])
        infos = model.GetOptimizationParamInfo()
        assert [(info.name, str(info.grad)) for info in infos] == [("fc_w", "fc_w_grad"), ("fc_b", "fc_b_grad")]
        assert [info.name for info in model.GetOptimizationParamInfo([BlobReference("fc_b")])] == ["fc_b"]

    def test_sparse_ones_can_be_omitted(self):
        model = ModelHelper("sparse", skip_sparse_optim=True)
        table = model.param_init_net.UniformFill([], "table", shape=[4, 2])
        model.AddParameter(table)
        brew.fc(model, model.net.Gather([table, "i"], "rows"), "fc", 2, 3)
        model.AddGradientOperators([model.net.AveragedLoss("fc", "loss")])
        assert (str(model.param_to_grad[table].indices), str(model.param_to_grad[table].values)) == ("i", "rows_grad")
        assert [info.name for info in model.GetOptimizationParamInfo()] == ["fc_w", "fc_b"]

    def test_only_once_and_before_they_are_used(self):
        model, loss = self.model()
        for early in (model.GetOptimizationParamInfo, lambda: model.get_param_to_grad(model.params)):
            with pytest.raises(GradientError, match="'gradients' has no backward pass yet; call AddGradientOperators"):
                early()
        with pytest.raises(GradientError):
            model.AddGradientOperators(["nothing"])
        for no_loss in ([], (), {}):
            with pytest.raises(GradientError, match="'gradients': ys must be a list of at least one loss, got"):
                model.AddGradientOperators(no_loss)
        assert not model.gradient_ops_added
        model.AddGradientOperators([loss])
        with pytest.raises(GradientError, match="has a backward pass already"):
            model.AddGradientOperators([loss])

    def test_callbacks_see_each_operator(self):
        model, loss = self.model()
        seen = []
        model.AddGradientOperators([loss], callbacks=[lambda net, op: seen.append(op.type)])
        assert seen == types(model.net)[2:]


class TestSharing:
    """A test model uses a trained model's parameters by name and never makes them again."""

    def build(self, model, is_test=False):
        table = model.param_init_net.ConstantFill([], "table", shape=[2, 3], value=1.0)
        model.AddParameter(table, ParameterTags.WEIGHT)
        fc = brew.fc(model, table, "fc", 3, 4)
        brew.spatial_bn(model, fc, "bn", 4, is_test=is_test)

    def test_a_test_model_has_no_initializers(self):
        model = ModelHelper("test", init_params=False)
        with pytest.warns(UserWarning, match="'test' shares parameter 'table'.*ConstantFill is removed"):
            self.build(model)
        assert types(model.param_init_net) == []
        assert model.params == ["table", "fc_w", "fc_b", "bn_s", "bn_b"]
        assert model.GetComputedParams() == ["bn_rm", "bn_riv"]
        assert (model.weights, model.biases) == (["table", "fc_w", "bn_s"], ["fc_b", "bn_b"])
        assert list(model.get_param_info(BlobReference("table")).shape) == [2, 3]

    def test_a_model_with_param_model_has_none_either(self):
        first = ModelHelper("train")
        self.build(first)
        params = list(first.params)
        second = ModelHelper("test", param_model=first)
        with pytest.warns(UserWarning, match="shares parameter 'table'"):
            self.build(second)
        assert types(second.param_init_net) == []
        assert second.params == first.params == params
        first.Validate()
        second.Validate()

    def test_what_param_model_has_not_is_made(self):
        first = ModelHelper("train")
        self.build(first)
        before = types(first.param_init_net)
        second = ModelHelper("more", param_model=first)
        brew.fc(second, "x", "fc", 3, 4)
        brew.fc(second, "x", "head", 3, 2)
        assert [op.output[0] for op in second.param_init_net.Proto().op] == ["head_w", "head_b"]
        assert types(first.param_init_net) == before
        assert first.params[-2:] == ["head_w", "head_b"]
        with pytest.raises(UsageError, match="was requested with"):
            brew.fc(second, "x", "fc", 3, 5)

    def test_trained_values_survive_the_test_models_init_net(self):
        first = ModelHelper("train")
        self.build(first)
        workspace = Workspace(threads=1)
        workspace.run_net_once(first.param_init_net)
        trained = {str(p): workspace.fetch(p) + 1 for p in first.GetAllParams()}
        for name, value in trained.items():
            workspace.feed(name, value)
        for test in (ModelHelper("test", init_params=False), ModelHelper("test", param_model=first)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.build(test, is_test=True)
            workspace.run_net_once(test.param_init_net)
            workspace.run_net_once(test.net)
        for name, value in trained.items():
            np.testing.assert_array_equal(workspace.fetch(name), value)

    def test_param_model_is_a_model(self):
        with pytest.raises(TypeError, match="param_model must be a ModelHelper, got 'train'"):
            ModelHelper("test", param_model="train")


def test_complete_net_runs_both_and_comes_apart_again():
    model = trained()
    whole = model.GetCompleteNet()
    assert types(whole) == types(model.param_init_net) + types(model.net)
    assert list(whole.Proto().external_input) == ["data"]
    workspace = Workspace(threads=1)
    workspace.feed("data", np.ones((2, 3), np.float32))
    workspace.run_net_once(whole)
    assert workspace.fetch("bn").shape == (2, 4)

    other = ModelHelper("other")
    other.ConstructInitTrainNetfromNet(Net(whole.Proto()))
    assert types(other.param_init_net) == types(model.param_init_net)
    assert types(other.net) == types(model.net)
    assert set(other.net.Proto().external_input) == {"data", *map(str, model.GetAllParams())}


def test_devices_are_those_of_parallelize():
    with pytest.raises(NetError, match="call Parallelize to build it on several"):
        ModelHelper("single").GetDevices()


def test_all_on_a_gpu():
    model = trained()
    model.RunAllOnGPU(gpu_id=2)
    assert {net.Proto().device_option.device_id for net in (model.net, model.param_init_net)} == {2}


def test_readers():
    model = ModelHelper("reader")
    reader = model.CreateDB("reader", db="digits.db", db_type="minidb")
    data, label = model.TensorProtosDBInput([], ["data", "label"], batch_size=4, db="digits.db", db_type="minidb")
    assert (str(reader), str(data), str(label)) == ("reader", "data", "label")
    assert types(model.param_init_net) == ["CreateDB", "CreateDB"]


def test_complete_net_runs_as_the_main_net_does():
    model = ModelHelper("typed")
    brew.fc(model, "x", "y", 2, 3)
    model.net.set_type("async_scheduling", 3)
    whole = model.GetCompleteNet().Proto()
    assert (whole.type, whole.num_workers) == ("async_scheduling", 3)
    other = ModelHelper("typed_again")
    other.ConstructInitTrainNetfromNet(model.GetCompleteNet())
    assert other.net.Proto().type == other.param_init_net.Proto().type == "async_scheduling"
    assert other.net.Proto().external_output == ["y"] and other.param_init_net.Proto().external_output == ["y_w", "y_b"]


class TestShapesWhileBuilding:
    def test_shapes_follow_from_inputs_and_parameters(self):
        model = ModelHelper("building")
        x = brew.conv(model, "data", "conv", 3, 8, 3, pad=1)
        given = {"data": (4, 3, 10, 10)}
        assert model.shape(x, given) == (4, 8, 10, 10)
        channels = model.shape("conv", given)[1]
        brew.spatial_bn(model, x, "normal", channels)
        assert model.shape("normal", {"data": np.zeros((2, 3, 6, 6), np.float32)}) == (2, 8, 6, 6)
        assert model.shape("conv_w") == (8, 3, 3, 3)

    def test_a_model_that_shares_parameters_knows_their_shapes(self):
        model = ModelHelper("trained")
        brew.fc(model, "data", "fc", 3, 5)
        other = ModelHelper("tested", param_model=model)
        brew.fc(other, "data", "fc", 3, 5)
        assert other.shape("fc", {"data": (2, 3)}) == (2, 5)
        fixed = ModelHelper("fixed", init_params=False)
        brew.fc(fixed, "data", "fc", 3, 5)
        assert fixed.shape("fc", {"data": (2, 3)}) == (2, 5)

    def test_what_is_not_known_is_an_error(self):
        model = ModelHelper("building")
        brew.fc(model, "data", "fc", 3, 5)
        with pytest.raises(ShapeError, match=r"blob 'fc' is not known; give those of \['data'\], as inputs="):
            model.shape("fc")
        with pytest.raises(BlobError, match="has no blob 'fcc'; did you mean 'fc'"):
            model.shape("fcc")
        with pytest.raises(ShapeError, match="has rows of 4, but W .* takes rows of 3"):
            model.shape("fc", {"data": (2, 4)})
        model.net.Unique("numbers", "once")
        with pytest.raises(ShapeError, match="blob 'once' is not known; it depends on values"):
            model.shape("once", {"data": (2, 3), "numbers": np.arange(3)})


@pytest.mark.parametrize("replica", ["", "cpu_0/"])
def test_an_input_under_a_scope_of_which_another_one_has_a_value(replica):
    """``G/z``: the text ``z`` was read in the scope of the generator; the message names both."""
    model, workspace = ModelHelper("gan"), Workspace()
    with NameScope(replica.rstrip("/")) if replica else nullcontext(), NameScope("G"):
        model.net.Relu("z", "y")
    workspace.feed(f"{replica}z", np.ones((2, 3), np.float32))
    match = rf"input blob '{replica}G/z' does not exist; .*blob '{replica}z' has a value; .*ScopedBlobReference\('z'\)"
    with pytest.raises(BlobError, match=match):
        workspace.run_net_once(model.net)
