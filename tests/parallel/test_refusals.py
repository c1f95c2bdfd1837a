"""What Parallelize refuses, before it builds or in the middle, and that the model is then as before."""

import inspect
import warnings

import numpy as np
import pytest

from checks import run_plain
from netbuilder import Workspace, graph, parallel
from netbuilder.caffe2 import parallelize as caffe2_parallelize
from netbuilder.engines.arrays import gpu_count
from netbuilder.graph import BlobReference, CurrentNameScope, DeviceScope, NameScope
from netbuilder.model import ModelHelper, brew
from netbuilder.ops.fills.fill import ConstantFill
from netbuilder.optimizers import SgdOptimizer, add_weight_decay, build_optimizer
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, DeviceError, GradientError, NetError, ShapeError
from netbuilder.proto.arguments import make_device_option
from parallel_models import OPTIMIZERS, no_input, parallelize
from toy_models import layers, mlp, scaled_loss

SGD = OPTIMIZERS["sgd"]


def state(model):
    """All that a failed call must leave alone."""
    return {
        name: value.Proto().SerializeToString() if hasattr(value, "Proto") else repr(value)
        for name, value in vars(model).items()
    }


def refuses(error, match, forward=mlp, *, model=None, call=parallel.Parallelize_CPU, **options):
    """Check that a call raises an error and leaves the model unchanged."""
    model = model or ModelHelper("net")
    before = state(model)
    options.setdefault("devices", [0, 1])
    if not {"param_update_builder_fun", "optimizer_builder_fun"} & options.keys():
        options["optimizer_builder_fun"] = SGD
    with pytest.raises(error, match=match):
        call(model, no_input, forward, **options)
    assert state(model) == before
    return model


@pytest.mark.parametrize(
    "devices, error, match",
    [
        ([], NetError, "devices must list at least one device, got an empty list"),
        ([0, 0], NetError, r"devices must all be different, got \[0\] more than once in \[0, 0\]"),
        ([0, -1], NetError, r"devices must be non-negative integers, got -1 in \[0, -1\]"),
        ([0, "1"], NetError, "non-negative integers, got '1'"),
        ([0.5], NetError, "non-negative integers, got 0.5"),
        ([True], NetError, "non-negative integers, got True"),
        (2, NetError, "devices must be a list of integers, got 2"),
        ("01", NetError, "devices must be a list of integers, got '01'"),
    ],
)
@pytest.mark.parametrize("call", [parallel.Parallelize_CPU, parallel.Parallelize_GPU])
def test_devices(devices, error, match, call):
    refuses(error, match, devices=devices, call=call)
    assert issubclass(error, ValueError)


def test_devices_may_be_numpy_integers_and_any_iterable():
    _, record = parallelize(np.array([3, 12]), mlp)
    assert record.devices.ids == (3, 12)
    model = ModelHelper("net")
    record = parallel.Parallelize_CPU(model, no_input, mlp, optimizer_builder_fun=SGD, devices=iter([1, 0]))
    assert record.devices.scopes == ("cpu_1/", "cpu_0/")


def test_no_devices_are_all_of_the_machine(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    model = ModelHelper("net")
    record = parallel.Parallelize_CPU(model, no_input, mlp, optimizer_builder_fun=SGD)
    assert record.devices.ids == (0, 1, 2) and model.GetDevices() == [0, 1, 2]


@pytest.mark.skipif(gpu_count() > 0, reason="needs a machine without GPU")
def test_all_gpus_of_a_machine_without():
    refuses(
        DeviceError, "devices=None means all GPUs, but this machine has no", devices=None, call=parallel.Parallelize
    )


def test_both_builders_of_the_update():
    refuses(
        NetError,
        r"param_update_builder_fun \(called once per device\) or optimizer_builder_fun \(called once\), not both",
        param_update_builder_fun=no_input,
        optimizer_builder_fun=SGD,
    )


@pytest.mark.parametrize("devices", [[0], [0, 1]], ids=str)
@pytest.mark.parametrize("build", [SGD, OPTIMIZERS["adam"], lambda model: add_weight_decay(model, 0.1)])
def test_an_optimizer_that_is_built_once_per_device(devices, build):
    said = r"model 'net.*': \w+ is for the parameters of all devices, .* optimizer_builder_fun=\.\.\., which is"
    refuses(NetError, said, param_update_builder_fun=build, devices=devices)


def test_only_cpu_0_is_a_device_for_operators_of_any_replica():
    """It is Caffe2's default device, with which scripts place operators on the host."""

    def forward_on(number):
        def forward(model, loss_scale):
            with DeviceScope(make_device_option(PROTO_CPU, number)):
                brew.relu(model, "data", "positive")
            return mlp(model, loss_scale)

        return forward

    model = ModelHelper("net")
    parallel.Parallelize_CPU(model, no_input, forward_on(0), optimizer_builder_fun=SGD, devices=[0, 1])
    assert [op.output[0] for op in model.net.Proto().op[:8] if op.type == "Relu"][0] == "cpu_0/positive"
    refuses(NetError, "'cpu_0/data' is on CPU 0, but the operator runs on CPU 1", forward_on(1))


def test_an_optimizer_of_the_parameters_of_its_device():
    def update(model):
        build_optimizer(model, SgdOptimizer(0.1), params=model.GetParams())

    model = ModelHelper("net")
    record = parallel.Parallelize_CPU(model, no_input, mlp, update, devices=[0, 1])
    updated = [op.output[0] for op in model.net.Proto().op if op.type == "WeightedSum"]
    assert sorted(updated) == sorted(blob for name in record.parameters for blob in record.blobs(name))


@pytest.mark.parametrize(
    "function, fixed",
    [
        (parallel.Parallelize, None),
        (parallel.Parallelize_CPU, "cpu_device"),
        (parallel.Parallelize_GPU, "cpu_device"),
        (parallel.Parallelize_iDeep, "ideep"),
        (parallel.Parallelize_BMUF, None),
        (parallel.Parallelize_CPU_BMUF, "cpu_device"),
        (parallel.Parallelize_GPU_BMUF, "cpu_device"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_misspelt_argument_is_one_of_the_function_that_was_called(function, fixed):
    whole = parallel.Parallelize_BMUF if "BMUF" in function.__name__ else parallel.Parallelize
    expected = [name for name in inspect.signature(whole).parameters if name != fixed]
    assert list(inspect.signature(function).parameters) == expected
    for called in (function, getattr(caffe2_parallelize, function.__name__)):
        with pytest.raises(
            TypeError, match=f"^{function.__name__}: .* instead of 'device', did you mean 'devices'\\?$"
        ):
            called(ModelHelper("net"), no_input, mlp, no_input, device=[0])


def test_a_type_error_of_a_builder_is_left_alone():
    def broken(model):
        return len(3)

    with pytest.raises(TypeError, match="^object of type 'int' has no len"):
        parallel.Parallelize_CPU(ModelHelper("net"), broken, mlp, devices=[0], cpu_device=False)


@pytest.mark.parametrize("name", ["param_update_builder_fun", "post_sync_builder_fun", "net_transformer_fun"])
def test_builders_are_functions(name):
    options = {} if name.startswith("param") else {"optimizer_builder_fun": SGD}
    takes = "model, num_devices, device_prefix, device_type" if name == "net_transformer_fun" else "model"
    refuses(
        NetError, rf"{name} is called with the arguments \({takes}\), but takes \(\)", **options, **{name: lambda: None}
    )
    options = {name: "sgd"} if name.startswith("param") else {name: "sgd", "optimizer_builder_fun": SGD}
    refuses(TypeError, f"{name} must be a function, got 'sgd'", **options)
    refuses(TypeError, "forward_pass_builder_fun must be a function, got None", None)


def test_a_forward_builder_in_the_old_style():
    refuses(
        NetError,
        r"forward_pass_builder_fun is called with the arguments \(model, loss_scale\), but takes \(model\)",
        lambda model: [],
    )


def mlp_loss(model, loss_scale):
    return mlp(model, loss_scale)[0]


@pytest.mark.parametrize(
    "returned, match",
    [
        (lambda model, scale: None, "got None of type NoneType"),
        (mlp_loss, "got BlobReference.* of type BlobReference"),
        (lambda model, scale: tuple(mlp(model, scale)), "of type tuple"),
        (lambda model, scale: ["loss"], "got 'loss' of type str in it"),
        (lambda model, scale: [], "got an empty list: without a loss there is nothing to train"),
        (lambda model, scale: [BlobReference("loss")], "under the scope 'cpu_0/' of the replica; got 'loss'"),
    ],
    ids=["none", "reference", "tuple", "strings", "empty", "outside"],
)
def test_losses(returned, match):
    refuses(
        NetError,
        r"forward_pass_builder_fun \(.*test_refusals.py:\d+ in .*\) must return a list of losses.*" + match,
        returned,
    )


FLAGS = [
    name for name, option in inspect.signature(parallel.Parallelize).parameters.items() if option.annotation == "bool"
]


@pytest.mark.parametrize("value", ["yes", "", 1, 0, None, np.True_])
@pytest.mark.parametrize("name", FLAGS)
def test_flags_are_true_or_false(name, value):
    refuses(TypeError, f"^{name} must be True or False, got {value!r}$", call=parallel.Parallelize, **{name: value})


def test_all_flags_are_found():
    assert {"use_nccl", "cpu_device", "weighted_shares", "reduce_update_broadcast"} < set(FLAGS)


def test_peer_access_is_a_function():
    refuses(TypeError, "peer_access must be a function of two device numbers, or None, got True", peer_access=True)


def test_other_arguments():
    refuses(
        NetError,
        "optimize_gradient_memory or dynamic_memory_management, not both",
        optimize_gradient_memory=True,
        dynamic_memory_management=True,
    )
    refuses(NetError, "unknown net_type 'dagg'; the types are simple", net_type="dagg")
    refuses(NetError, "num_threads_per_device must be at least 1, got 0", num_threads_per_device=0)
    refuses(TypeError, "num_threads_per_device must be an integer, got 'two'", num_threads_per_device="two")
    refuses(NetError, "ideep=True is not supported: .*call Parallelize_CPU", call=parallel.Parallelize_iDeep)
    refuses(
        NetError,
        "shared_model=True needs replicas on the CPU",
        shared_model=True,
        call=parallel.Parallelize_GPU,
    )
    with pytest.raises(TypeError, match="unexpected keyword argument 'device'"):
        parallel.Parallelize_CPU(ModelHelper("net"), no_input, mlp, device=[0])


def test_what_is_no_model():
    with pytest.raises(TypeError, match="Parallelize: the model must be a ModelHelper, got 'model' of type str"):
        parallel.Parallelize_CPU("model", no_input, mlp, devices=[0])


def test_a_model_that_is_used_up():
    model, _ = parallelize([0, 1])
    refuses(NetError, "model 'net' is data-parallel already; make a new ModelHelper", model=model)
    model = ModelHelper("single")
    model.AddGradientOperators(mlp(model, 1.0))
    refuses(NetError, "model 'single' has a backward pass already", model=model)


def test_a_gpu_scope_around_the_call():
    with DeviceScope(make_device_option(PROTO_CUDA, 1)):
        refuses(NetError, r"called inside DeviceScope\(device_type: 1 device_id: 1\); call it outside of GPU scopes")
    with DeviceScope(make_device_option(0, 0)):
        parallelize([0, 1])


def test_a_name_scope_around_the_call():
    with NameScope("outer"):
        refuses(NetError, r"called inside NameScope\('outer'\); call it outside of name scopes")


def per_device(*builders):
    """Return a forward builder that builds another net on each device."""
    calls = iter(builders)
    return lambda model, scale: next(calls)(model, scale)


def wider(model, loss_scale):
    brew.fc(model, "data", "extra", 6, 2)
    return mlp(model, loss_scale)


def frozen(model, loss_scale):
    stopped = model.net.StopGradient(brew.fc(model, "data", "fc1", 6, 8), "stopped")
    return scaled_loss(model, brew.fc(model, stopped, "fc2", 8, 4), loss_scale)


def two_losses(model, loss_scale):
    losses = mlp(model, loss_scale)
    return [*losses, model.Scale(losses[0], "more", scale=0.5)]


@pytest.mark.parametrize(
    "second, match",
    [
        (two_losses, "forward_pass_builder_fun returned 1 loss on device 0 and 2 on device 3"),
        (wider, "parameter 'extra_w' exists on device 3, but is missing on device 0"),
        (frozen, r"parameter 'fc1_w' has a gradient on devices \[0\], but none on devices \[3\]"),
        (
            layers(6, 7, 4),
            r"parameter 'fc1_w' has different shapes on the devices: cpu_0/fc1_w \[8, 6\], cpu_3/fc1_w \[7, 6\]",
        ),
    ],
    ids=["losses", "missing", "frozen", "shape"],
)
def test_replicas_that_differ(second, match):
    refuses(NetError, match, per_device(mlp, second), devices=[0, 3])


def test_a_duplicate_parameter_is_listed_once():
    def forward(model, loss_scale):
        losses = mlp(model, loss_scale)
        model.AddParameter(model.GetParams()[0])
        return losses

    message = r"duplicate parameters \['cpu_0/fc1_w', 'cpu_1/fc1_w'\].* initialized at .*toy_models.py:\d+ in mlp$"
    refuses(NetError, message, forward)


def test_a_parameter_under_no_replicas_scope():
    def forward(model, loss_scale):
        with NameScope("mine", reset=True):
            brew.fc(model, "data", "fc", 6, 4)
        return mlp(model, loss_scale)

    refuses(
        NetError, "parameter 'mine/fc_w' was created by the builders, but not under the scope of a replica", forward
    )


def test_a_computed_parameter_under_no_replicas_scope():
    def forward(model, loss_scale):
        mean = model.param_init_net.ConstantFill([], BlobReference("mean"), shape=[3])
        model.AddParameter(mean, "COMPUTED_PARAM")
        return mlp(model, loss_scale)

    refuses(NetError, r"duplicate parameters \['mean'\]", forward)
    refuses(NetError, "computed parameter 'mean' was created by the builders, but not under", forward, devices=[0])


def test_a_parameter_that_the_init_net_does_not_make():
    def forward(model, loss_scale):
        model.AddParameter(BlobReference(CurrentNameScope() + "table"))
        return mlp(model, loss_scale)

    refuses(NetError, r"the init net does not initialize the parameters \['cpu_0/table', 'cpu_1/table'\]", forward)


ON_BOTH = pytest.mark.parametrize("call", [parallel.Parallelize_CPU, parallel.Parallelize_GPU])


@ON_BOTH
@pytest.mark.parametrize("which, blob", [("net", "fc1"), ("param_init_net", "fc1_w")])
@pytest.mark.filterwarnings("ignore:GPUs .* are not on this machine")
def test_an_operator_that_reads_another_replica(call, which, blob):
    """An initializer, too."""
    first = f"{call.__name__[-3:].lower()}_0/{blob}"

    def forward(model, loss_scale):
        losses = mlp(model, loss_scale)
        getattr(model, which).Relu(BlobReference(first), "copied")
        return losses

    match = rf"Relu, made at tests/parallel/test_refusals.py:\d+ in forward: input '{first}' is on .PU 0, but"
    refuses(NetError, match, forward, call=call)


@ON_BOTH
@pytest.mark.filterwarnings("ignore:GPUs .* are not on this machine")
def test_a_loss_over_another_replicas_blob(call):
    """The message names the cause, not its consequence that a parameter has no gradient on its device."""

    def forward(model, loss_scale):
        brew.fc(model, "data", "x", 6, 4)
        x = model.net.Relu(BlobReference(f"{call.__name__[-3:].lower()}_0/x"), "relu")
        return scaled_loss(model, x, loss_scale)

    match = r"operator \d+ Relu, made at .*test_refusals.py:\d+ in forward: input '.pu_0/x' is on .PU 0, but the op"
    refuses(NetError, match, forward, call=call)


class Broken(Exception):
    pass


def broken_after(forward, calls):
    """Return a builder that fails when it is called so many times, having built something."""
    count = iter(range(100))

    def build(model, *args):
        result = forward(model, *args) if forward else None
        if next(count) == calls:
            raise Broken("no such layer")
        return result

    return build


@pytest.mark.parametrize(
    "options",
    [
        {"forward": broken_after(mlp, 0)},
        {"forward": broken_after(mlp, 1)},
        {"optimizer_builder_fun": broken_after(SGD, 0)},
        {"param_update_builder_fun": broken_after(lambda model: model.Relu("x", "y"), 1)},
        {"post_sync_builder_fun": broken_after(None, 1), "optimizer_builder_fun": SGD},
        {"pre_grad_net_transformer_fun": broken_after(None, 0), "optimizer_builder_fun": SGD},
        {"net_transformer_fun": broken_after(None, 0), "optimizer_builder_fun": SGD},
    ],
    ids=["forward", "second_forward", "optimizer", "update", "post_sync", "before_gradients", "transformer"],
)
def test_a_builder_that_raises_leaves_the_model_as_before(options):
    options = dict(options)
    model = ModelHelper("net")
    with NameScope("outside"):
        model.AddParameter(model.param_init_net.XavierFill([], "table", shape=[5, 3]))
    model.net.Relu("a", "b")
    model = refuses(Broken, "no such layer", options.pop("forward", mlp), model=model, **options)
    record = parallel.Parallelize_CPU(model, no_input, mlp, optimizer_builder_fun=SGD, devices=[0, 1])
    assert record.outside == ("outside/table",)
    assert [op.type for op in model.net.Proto().op[:2]] == ["Relu", "FC"]


def test_absent_gpus_are_warned_of_and_the_net_is_built():
    model = ModelHelper("net")
    absent = gpu_count() + 2
    with pytest.warns(UserWarning, match=rf"GPUs \[{absent}\] are not on this machine.*can be built, but not run"):
        parallel.Parallelize_GPU(model, no_input, mlp, optimizer_builder_fun=SGD, devices=[absent])
    with pytest.raises(
        DeviceError, match=rf"needs the GPUs \[{absent}\], but this machine has .*; missing: \[{absent}\]"
    ):
        parallel.RunInitNet(model)
    with pytest.raises(DeviceError, match="Parallelize_CPU"):
        parallel.CreateNet(model)


def test_an_optimizer_in_the_forward_builder():
    def forward(model, loss_scale):
        losses = mlp(model, loss_scale)
        SGD(model)
        return losses

    model = ModelHelper("train")
    with pytest.raises(GradientError, match="'train' has no backward pass yet; Parallelize .* optimizer_builder_fun="):
        parallel.Parallelize_CPU(model, no_input, forward, optimizer_builder_fun=SGD, devices=[0, 1])
    with pytest.raises(GradientError, match="'train' has no backward pass yet; call AddGradientOperators first"):
        SGD(model)


def test_a_net_for_evaluation_that_would_initialize_is_warned_of():
    with pytest.warns(UserWarning, match=r"model 'eval' has no update.*ModelHelper\(init_params=False\)"):
        parallel.Parallelize_CPU(ModelHelper("eval"), no_input, mlp, devices=[0, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel.Parallelize_CPU(ModelHelper("eval", init_params=False), no_input, mlp, devices=[0, 1])


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (lambda m, **mode: brew.spatial_bn(m, "data", "y", 3, **mode), "SpatialBN 'cpu_0/y'.*statistics, 'cpu_0/y_rm'"),
        (lambda m, **mode: brew.dropout(m, "data", "y", **{"is_test": 0, **mode}), "Dropout 'cpu_0/y'.*at random"),
    ],
    ids=["spatial_bn", "dropout"],
)
def test_a_net_for_evaluation_in_training_mode_is_warned_of(layer, text):
    def build(**mode):
        model = ModelHelper("eval", init_params=False)
        parallel.Parallelize_CPU(model, no_input, lambda model, scale: layer(model, **mode), devices=[0, 1])

    with pytest.warns(UserWarning, match=rf"model 'eval' has no update.*{text}.*is_test=1") as found:
        build()
    assert len(found) == 1
    build(is_test=1)  # a warning is an error


def test_batch_normalization_that_keeps_no_statistics_is_not_warned_of():
    def forward(model, loss_scale):
        return model.net.SpatialBN(["data", "scale", "bias", "mean", "var"], "y", is_test=0)

    parallel.Parallelize_CPU(ModelHelper("eval", init_params=False), no_input, forward, devices=[0, 1])


def distances(model, loss_scale):
    """Return a loss of each sample, on data that the init net has if there is ``model.data``."""
    if model.data is not None:
        with graph.EmptyNameScope():
            model.param_init_net.ConstantFill([], "data", shape=model.data)
    scores = brew.fc(model, "data" if model.data is None else graph.BlobReference("data"), "fc", 4, 3)
    loss = model.net.ReduceBackSum(scores, "distances")
    return [model.net.Scale(loss, "scaled", scale=loss_scale)]


CALLS = {
    "Parallelize": (parallel.Parallelize_CPU, {"optimizer_builder_fun": SGD}),
    "weighted": (parallel.Parallelize_CPU, {"optimizer_builder_fun": SGD, "weighted_shares": True}),
    "micro-batches": (parallel.Parallelize_CPU, {"optimizer_builder_fun": SGD, "accumulate_steps": 2}),
    "BMUF": (parallel.Parallelize_CPU_BMUF, {"param_update_builder_fun": SGD}),
}


class TestLossesOfSeveralNumbers:
    """The gradient of their sum would depend on the number of devices, so they are refused, unless requested."""

    @staticmethod
    def model(data=None):
        model = ModelHelper("net")
        model.data = data
        return model

    @pytest.mark.parametrize("name", CALLS)
    def test_when_the_net_is_built(self, name):
        call, options = CALLS[name]
        match = r"model 'net': the loss 'cpu_0/scaled' has shape \(5,\), and must be one number.*return .*AveragedLoss"
        refuses(ShapeError, match, distances, model=self.model(data=[5, 4]), call=call, **options)
        call(self.model(data=[5, 4]), no_input, distances, devices=[0, 1], vector_losses=True, **options)
        call(self.model(data=[1, 4]), no_input, distances, devices=[0, 1], **options)

    @pytest.mark.one_in(2)
    @pytest.mark.parametrize("name", CALLS)
    @pytest.mark.parametrize("threads", [1, 2])
    def test_when_the_net_runs_if_inputs_are_fed(self, name, threads):
        call, options = CALLS[name]
        for accepted in (False, True):
            model, workspace = self.model(), Workspace(threads=threads)
            record = call(model, no_input, distances, devices=[0, 1], vector_losses=accepted, **options)
            parallel.RunInitNet(model, workspace=workspace)
            for blob in record.devices.copies("data"):
                workspace.feed(blob, np.ones((5, 4), np.float32))
            before = workspace.fetch("cpu_0/fc_w")
            if accepted:
                parallel.RunNet(model, 2, workspace=workspace)
                assert (workspace.fetch("cpu_0/fc_w") != before).any()
                continue
            match = r"ConstantFill \['cpu_0/scaled'\].* made at .*a loss must be one number.*got shape \(5,\)"
            with pytest.raises(ShapeError, match=match):
                parallel.RunNet(model, workspace=workspace)
            assert (workspace.fetch("cpu_0/fc_w") == before).all()

    def test_operators_that_run_one_by_one(self):
        op = ConstantFill(value=1.0, of_scalar_loss=True).with_arity(1, 1)
        assert run_plain(op, [np.zeros((1, 1), np.float32)])[0].shape == (1, 1)
        with pytest.raises(ShapeError, match=r"a loss must be one number, .*; got shape \(2,\)"):
            run_plain(op, [np.zeros(2, np.float32)])

    def test_the_flag(self):
        refuses(TypeError, "vector_losses must be True or False, got 1", vector_losses=1)
