"""Optimizers: what they add is compared with Caffe2 in tests/recorded; here names, numbers that no golden net has,
and refusals."""

import numpy as np
import pytest

from netbuilder.graph import BlobReference, DeviceScope, NameScope, Net
from netbuilder.model import ModelHelper, ParameterTags, brew
from netbuilder.optimizers import (
    AdagradOptimizer,
    AdamOptimizer,
    Optimizer,
    RmsPropOptimizer,
    SgdOptimizer,
    add_weight_decay,
    build_adagrad,
    build_adam,
    build_optimizer,
    build_rms_prop,
    build_sgd,
    get_param_device,
    reset_optimizer_instance_count,
)
from netbuilder.optimizers.optimizer import constant
from netbuilder.optimizers.placement import parameter_devices
from netbuilder.proto import PROTO_CUDA, ArgumentError, DeviceError, GradientError, NetDef, NetError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace

BUILDERS = [build_sgd, build_adagrad, build_adam, build_rms_prop]


@pytest.fixture(autouse=True)
def _as_in_a_fresh_process():
    reset_optimizer_instance_count()


def model_of(*layers, gradients=True):
    """A model of fully connected layers without anything between them; the loss is the mean of the scores."""
    model = ModelHelper("model")
    blob = "x"
    for i, (dim_in, dim_out) in enumerate(layers or [(2, 3)]):
        blob = brew.fc(model, blob, f"fc{i}", dim_in, dim_out)
    loss = model.net.AveragedLoss(blob, "loss")
    if gradients:
        model.AddGradientOperators([loss])
    return model


def table_model():
    model = ModelHelper("table")
    table = model.param_init_net.ConstantFill([], "table", shape=[4, 2], value=1.0)
    model.AddParameter(table, ParameterTags.WEIGHT)
    loss = model.net.AveragedLoss(model.net.Gather([table, "i"], "rows"), "loss")
    model.AddGradientOperators([loss])
    return model


def updates(model):
    return [op for op in model.net.Proto().op if op.output and op.output[-1] in model.params]


def run(model, steps=1, **inputs):
    workspace = Workspace(threads=1)
    for name, value in inputs.items():
        workspace.feed(name, value)
    workspace.run_net_once(model.param_init_net)
    workspace.create_net(model.net)
    workspace.run_net(model.net.Name(), steps)
    return workspace


class TestNames:
    def test_optimizers_of_a_class_are_numbered(self):
        first, second, other = SgdOptimizer(), SgdOptimizer(), AdamOptimizer()
        assert first.get_cpu_blob_name("lr") == "SgdOptimizer_0_lr_cpu"
        assert second.get_gpu_blob_name("lr", 3, "") == "SgdOptimizer_1_lr_gpu3"
        assert other.get_cpu_blob_name("lr", "node") == "AdamOptimizer_0_lrnode_cpu"
        with DeviceScope(make_device_option(PROTO_CUDA, 2)):
            assert first.make_unique_blob_name("lr") == "SgdOptimizer_0_lr_gpu2"
        assert first.make_unique_blob_name("lr") == "SgdOptimizer_0_lr_cpu"
        assert "_instance_num" not in first.attributes

    def test_state_is_named_after_the_parameter_whatever_the_scope(self):
        model = model_of()
        with NameScope("inner"):
            build_sgd(model, 0.1, momentum=0.9)
        counts = [op.type for op in model.net.Proto().op].count
        assert (counts("AtomicIter"), counts("LearningRate")) == (1, 1)
        assert {op.input[1] for op in updates(model)} == {"fc0_w_momentum", "fc0_b_momentum"}

    def test_what_a_checkpoint_needs(self):
        expected = {
            build_sgd: (["fc0_w_momentum", "fc0_b_momentum"], ["ONE_0_0"]),
            build_adagrad: (["fc0_w_squared_sum", "fc0_b_squared_sum"], []),
            build_adam: (
                ["fc0_w_first_moment", "fc0_w_second_moment", "fc0_b_first_moment", "fc0_b_second_moment"],
                ["optimizer_iteration"],
            ),
            build_rms_prop: (["fc0_w_mean_squares", "fc0_w_momentum", "fc0_b_mean_squares", "fc0_b_momentum"], []),
        }
        for build, (local, shared) in expected.items():
            options = {"momentum": 0.9} if build in (build_sgd, build_rms_prop) else {}
            aux = build(model_of(), 0.1, **options).get_auxiliary_parameters()
            assert (aux.local, aux.shared) == (local, shared)


class TestBuilders:
    @pytest.mark.parametrize("build", BUILDERS)
    def test_computed_parameters_are_not_touched(self, build):
        model = ModelHelper("normalized")
        brew.spatial_bn(model, "x", "bn", 3, is_test=False)
        model.AddGradientOperators([model.net.AveragedLoss("bn", "loss")])
        before = model.net.op_len
        build(model, 0.1)
        touched = {blob for op in model.net.Proto().op[before:] for blob in op.output}
        assert {"bn_s", "bn_b"} <= touched
        assert not touched & {"bn_rm", "bn_riv"}

    def test_weight_decay_touches_weights_alone(self):
        model = ModelHelper("decay")
        brew.spatial_bn(model, brew.conv(model, "x", "conv", 2, 3, 1), "bn", 3, is_test=False)
        brew.prelu(model, "bn", "act")
        model.AddGradientOperators([model.net.AveragedLoss("act", "loss")])
        before = model.net.op_len
        add_weight_decay(model, 0.1)
        assert [op.output[0] for op in model.net.Proto().op[before:]] == ["conv_w_grad", "bn_s_grad"]

    @pytest.mark.parametrize("build", BUILDERS)
    def test_a_backward_pass_comes_first(self, build):
        with pytest.raises(GradientError, match="'model' has no backward pass yet"):
            build(model_of(gradients=False), 0.1)

    @pytest.mark.parametrize("build", BUILDERS)
    def test_parameters_are_listed_once(self, build):
        model = model_of()
        model.params.append(model.params[0])
        with pytest.raises(NetError, match=r"duplicate parameters \['fc0_w'\]"):
            build(model, 0.1)

    @pytest.mark.parametrize("build", BUILDERS)
    @pytest.mark.parametrize(
        "arguments, match",
        [
            ({"policy": "stairs"}, "unknown policy 'stairs'; the policies are .*cosine, .*fixed, .*step"),
            ({"policy": "step", "gamma": 0.5}, "'step' needs stepsize"),
            ({"policy": "step", "gamma": 0.5, "stepsize": 2, "step_size": 3}, "unknown argument 'step_size'"),
            ({"policy": "composite"}, "'composite' needs sub_policy_num_iters"),
            ({"policy": "exp", "gamma": "fast"}, "policy 'exp': gamma must be a number of at least 0, got 'fast'"),
        ],
    )
    def test_policies_are_checked_before_anything_is_added(self, build, arguments, match):
        model = model_of()
        before = model.net.op_len
        with pytest.raises(ArgumentError, match=match):
            build(model, 0.1, **arguments)
        assert model.net.op_len == before

    def test_arguments_that_a_policy_does_not_read_are_reported(self):
        with pytest.warns(UserWarning, match="policy 'fixed' does not use gamma, stepsize"):
            build_sgd(model_of(), 0.1, policy="fixed", gamma=0.5, stepsize=3)

    def test_some_parameters_only(self):
        model = model_of((2, 3), (3, 2))
        build_adagrad(model, 0.1, parameters=model.params[2:])
        assert [op.output[0] for op in updates(model)] == []
        assert [op.output[0] for op in model.net.Proto().op if op.type == "Adagrad"] == ["fc1_w", "fc1_b"]

    @pytest.mark.parametrize("build", BUILDERS)
    def test_a_second_update_of_a_parameter_is_refused(self, build):
        model = model_of()
        build_sgd(model, 0.1)
        before = model.net.Proto().SerializeToString()
        with pytest.raises(NetError, match=r"\['fc0_w', 'fc0_b'\] have an update already .*\(params=\)"):
            build(model, 0.1)
        assert model.net.Proto().SerializeToString() == before

    def test_optimizers_that_share_out_the_parameters_are_not_refused(self, recwarn):
        model = model_of((2, 3), (3, 2))
        build_adagrad(model, 0.1, parameters=model.params[:2])
        build_optimizer(model, SgdOptimizer(0.1), params=model.params[2:])
        assert not recwarn.list
        with pytest.raises(NetError, match=r"\['fc0_b'\] have an update already"):
            build_adagrad(model, 0.1, parameters=model.params[1:2])

    def test_weight_decay_comes_before_the_update(self):
        model = model_of((2, 3), (3, 2))
        build_adagrad(model, 0.1, parameters=model.params[2:])
        with pytest.raises(NetError, match=r"\['fc1_w'\] have updates already, .* before building the optimizer"):
            add_weight_decay(model, 0.1)

    def test_a_refused_update_can_be_built_again(self, recwarn):
        model = model_of()
        with pytest.raises(ArgumentError, match="unknown policy"):
            build_sgd(model, 0.1, policy="stairs")
        build_sgd(model, 0.1)
        assert not recwarn.list

    def test_a_parameters_own_optimizer_goes_first(self):
        model = model_of()
        model.get_param_info(model.params[0]).optimizer = AdagradOptimizer()
        build_sgd(model, 0.1)
        assert [op.type for op in model.net.Proto().op[-3:]] == ["Adagrad", "LearningRate", "WeightedSum"]

    def test_a_base_optimizer_adds_nothing(self):
        with pytest.raises(NotImplementedError, match="Optimizer: adds no update"):
            build_optimizer(model_of(), Optimizer())
        with pytest.raises(NotImplementedError, match="has no learning rate to scale"):
            Optimizer().scale_learning_rate(0.5)

    @pytest.mark.parametrize("kind", [SgdOptimizer, AdagradOptimizer, AdamOptimizer, RmsPropOptimizer])
    def test_rates_can_be_scaled(self, kind):
        model, optimizer = model_of(), kind(0.5)
        optimizer.scale_learning_rate(0.25)
        build_optimizer(model, optimizer)
        assert abs(run(model, x=np.ones((2, 2), np.float32)).fetch(f"{kind.__name__}_0_lr_cpu")) == 0.125


class TestRefusals:
    @pytest.mark.parametrize(
        "make, match",
        [
            (lambda: SgdOptimizer(lars=-0.5), "SgdOptimizer: lars must be a number of at least 0, got -0.5"),
            (lambda: SgdOptimizer(momentum=-1), "momentum must be a number in .0, 1., got -1"),
            (lambda: AdagradOptimizer(swa_options=1, ema_options=2), r"\{'swa_options': 1, 'ema_options': 2\}"),
            (lambda: AdagradOptimizer(weight_decay=-0.1), "weight_decay must be a number of at least 0, got -0.1"),
            (lambda: AdamOptimizer(enableRAdam=True, rowWise=True), "rowWise and enableRAdam exclude each other"),
            (
                lambda: AdamOptimizer(use_smart_decay=True, use_lr_adaption=True),
                "use_smart_decay and use_lr_adaption exclude",
            ),
            (lambda: build_adam(model_of(), -0.1), "AdamOptimizer: the base rate must not be negative, got -0.1"),
            (lambda: build_sgd(model_of(), -0.1), "base rate must not be negative, got -0.1"),
            (
                lambda: build_sgd(model_of(), "0.1"),
                "the base rate must be a number of at least 0, got '0.1'",
            ),
            (lambda: build_sgd(model_of(), 0.1, momentun=0.9), "unknown argument 'momentun'; did you mean 'momentum'"),
            (
                lambda: build_adam(model_of(), 0.1, xyz=1),
                "AdamOptimizer: unknown argument 'xyz'; no learning rate policy",
            ),
            (lambda: add_weight_decay(model_of(), -0.1), "weight_decay must be a number of at least 0, got -0.1"),
            (
                lambda: build_sgd(model_of(), 0.1, max_gradient_norm=0),
                "max_gradient_norm must be a positive number, got 0",
            ),
            (
                lambda: build_adagrad(table_model(), 0.1, decay=0.5),
                "decay must be 1 for the sparse gradient of '?table'?, got 0.5",
            ),
            (
                lambda: build_sgd(table_model(), 0.1, sparse_dedup_aggregator="max"),
                "must be 'sum', 'mean', 'none' or None, got 'max'",
            ),
        ],
    )
    def test_arguments(self, make, match):
        with pytest.raises(NetError, match=match):
            make()

    @pytest.mark.parametrize(
        "make, match",
        [
            (
                lambda: build_rms_prop(table_model(), 0.1),
                "RmsPropOptimizer: supports only dense gradients",
            ),
            (
                lambda: add_weight_decay(table_model(), 0.1),
                "weight decay: supports only dense .* gradient of table is sparse",
            ),
            (
                lambda: build_adagrad(model_of(), 0.1, rowWise=True),
                "rowWise requires sparse gradients, but the gradient of fc0_w",
            ),
            (
                lambda: build_adam(model_of(), 0.1, rowWise=True),
                "rowWise requires sparse gradients, but the gradient of fc0_w",
            ),
        ],
    )
    def test_gradients(self, make, match):
        with pytest.raises(GradientError, match=match):
            make()

    @pytest.mark.parametrize(
        "build",
        [
            lambda model: build_adam(model, 0.1, beta1=2),
            lambda model: build_adagrad(model, 0.1, epsilon=-1),
            lambda model: build_rms_prop(model, 0.1, decay=3),
            lambda model: build_rms_prop(model, 0.1, max_gradient_norm=1.0, allow_lr_injection=True, engine=3),
        ],
        ids=["adam", "adagrad", "rms_prop", "engine"],
    )
    def test_a_refused_optimizer_leaves_the_model_as_before(self, build):
        model = model_of()
        before = model.Proto().SerializeToString(), model.InitProto().SerializeToString()
        with pytest.raises((NetError, TypeError)):
            build(model)
        assert (model.Proto().SerializeToString(), model.InitProto().SerializeToString()) == before
        build_sgd(model, 0.1)
        assert "fc0_w" in [op.output[0] for op in model.Proto().op if op.type == "WeightedSum"]

    def test_a_model_is_needed(self):
        with pytest.raises(TypeError, match="an optimizer needs a ModelHelper, got 'model'"):
            build_sgd("model", 0.1)

    def test_a_gradient_comes_with_a_blob(self):
        model = model_of()
        with pytest.raises(
            TypeError, match="SgdOptimizer: param must be a ParameterInfo, or a blob together with grad"
        ):
            SgdOptimizer()(model.net, model.param_init_net, BlobReference("fc0_w"))


class TestDevices:
    def test_of_a_parameter(self):
        gpu = make_device_option(PROTO_CUDA, 1)
        assert get_param_device("w", "g", {"w": gpu}) == gpu
        assert get_param_device("w", "g", {"g": gpu}) == gpu
        assert get_param_device("w", "g", {}, default_device=gpu) == gpu
        with pytest.raises(DeviceError, match="parameter 'w': its device is unknown"):
            get_param_device("w", "g", {})

    def test_the_first_operator_decides_and_copies_do_not(self):
        gpu = make_device_option(PROTO_CUDA, 1)
        main, init = NetDef(), NetDef()
        main.op.append(make_op("CopyCPUToGPU", ["table"], ["here"], device_option=gpu))
        main.op.append(make_op("FC", ["here", "w", "b"], ["y"], device_option=gpu))
        init.op.append(make_op("UniformFill", [], ["table"]))
        found = parameter_devices([main, init], ["w", "table", "nowhere"])
        assert {name: device.device_type for name, device in found.items()} == {"w": PROTO_CUDA, "table": 0}

    def test_a_net_on_a_gpu(self):
        model = model_of()
        model.RunAllOnGPU(gpu_id=1)
        build_sgd(model, 0.1)
        assert {op.device_option.device_id for op in updates(model)} == {1}


class TestNumbers:
    X = np.float32([[1, 2], [3, 4]])

    def test_clipping_counts_a_replicated_parameter_once(self):
        model = model_of((2, 3), (3, 3))
        model.parameter_copies.update({"fc1_w": "fc0_w", "fc1_b": "fc0_b"})
        build_sgd(model, 0.25, max_gradient_norm=1.0)
        measured = [op.input[0] for op in model.net.Proto().op if op.type == "SumSqrElements"]
        assert measured == ["fc0_w_grad", "fc0_b_grad"]
        assert len([op for op in model.net.Proto().op if op.type == "WeightedSum"]) == 4

    def test_injected_rate(self):
        model = model_of()
        build_sgd(model, 0.25, allow_lr_injection=True)
        workspace = run(model, x=self.X)
        assert workspace.fetch("SgdOptimizer_0_scaled_lr_cpu") == -0.25
        workspace.feed("lr_injection", np.float32([2.0]))
        workspace.run_net(model.net.Name())
        assert workspace.fetch("SgdOptimizer_0_scaled_lr_cpu") == -0.5

    def test_the_iteration_counts_on_from_a_given_start(self):
        model = model_of()
        build_sgd(model, 1.0, policy="step", stepsize=10, gamma=0.5, iter_val=9)
        workspace = run(model, x=self.X)
        rates = [float(workspace.fetch("SgdOptimizer_0_lr_cpu"))]
        workspace.run_net(model.net.Name())
        rates.append(float(workspace.fetch("SgdOptimizer_0_lr_cpu")))
        assert rates == [-1.0, -0.5]
        assert workspace.fetch("optimizer_iteration").tolist() == [11]

    def test_repeated_rows_are_applied_one_by_one_or_joined(self):
        rows = np.int64([1, 3, 1])
        each = np.float32([0, 2, 0, 1])[:, None] / 6  # gradient of the mean of three rows of two
        expected = {None: 1 - each, "sum": 1 - each, "mean": 1 - np.minimum(each, 1 / 6)}
        for aggregator, want in expected.items():
            model = table_model()
            build_sgd(model, 1.0, sparse_dedup_aggregator=aggregator)
            np.testing.assert_allclose(run(model, i=rows).fetch("table"), np.broadcast_to(want, (4, 2)), rtol=1e-6)


def test_constants_of_one_name_and_several_values_are_several_blobs():
    net = Net("init")
    names = [str(constant(net, "wd", value)) for value in (0.1, 0.2, 0.1, 0.2, 0.3)]
    assert names == ["wd_0_0", "wd_0_0_2", "wd_0_0", "wd_0_0_2", "wd_0_0_3"]
    workspace = Workspace()
    workspace.run_net_once(net)
    np.testing.assert_array_equal([workspace.fetch(name)[0] for name in names], np.float32([0.1, 0.2, 0.1, 0.2, 0.3]))


def test_weights_may_decay_at_several_rates():
    model = model_of((2, 3), (3, 1))
    add_weight_decay(model, 0.1, skip=["fc1_w"])
    add_weight_decay(model, 0.2, skip=["fc0_w"])
    [first, second] = [op for op in model.net.Proto().op if op.type == "WeightedSum"]
    workspace = Workspace()
    workspace.run_net_once(model.param_init_net)
    rates = [workspace.fetch(op.input[3])[0] for op in (first, second)]
    np.testing.assert_array_equal(rates, np.float32([0.1, 0.2]))
