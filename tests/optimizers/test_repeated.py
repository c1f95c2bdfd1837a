"""Updates repeated for other parameters: the nets are the same to the byte as when each update is built by itself."""

import hashlib

import pytest

from netbuilder.graph import net as net_module
from netbuilder.graph.blob import BlobReference
from netbuilder.model import ModelHelper, brew
from netbuilder.model.initializers import Initializer
from netbuilder.optimizers import OPTIMIZERS, SgdOptimizer, add_weight_decay, build_optimizer, optimizer_by_name
from netbuilder.optimizers import repeated as module
from netbuilder.optimizers.optimizer import reset_optimizer_instance_count
from netbuilder.parallel import Parallelize_CPU
from netbuilder.proto import ArgumentError, GradientError
from netbuilder.zoo.resnet import create_resnet50
from toy_models import softmax_loss

LAYERS = 6


def layers(model, loss_scale):
    blob = "data"
    for i in range(LAYERS):
        blob = brew.relu(model, brew.fc(model, blob, f"fc{i}", 8, 8), f"relu{i}")
    return [model.net.Scale(model.net.AveragedLoss(blob, "loss"), "scaled", scale=loss_scale)]


def sparse_layers(model, loss_scale):
    for i in range(2):
        table = model.create_param(f"table{i}", [9, 8], Initializer("XavierFill"))
        model.net.Gather([table, "rows"], f"picked{i}")
    model.net.Add(["picked0", "picked1"], "data")
    return layers(model, loss_scale)


def resnet(model, loss_scale):
    scores = create_resnet50(model, "data", 3, 10, no_loss=True, no_bias=True)
    return [model.net.Scale(softmax_loss(model, scores), "scaled", scale=loss_scale)]


def built(update, forward=layers, devices=2, first=lambda model: None):
    """Return all that the optimizer leaves: the nets, what they know of their blobs, the optimizer's state."""
    reset_optimizer_instance_count()
    model, optimizers = ModelHelper("one_of_two"), []

    def add(model):
        first(model)
        optimizers.append(update(model))

    Parallelize_CPU(model, lambda model: None, forward, optimizer_builder_fun=add, devices=range(devices))
    local, shared = optimizers[0].get_auxiliary_parameters()
    digests, names = [], []
    for net in (model.net, model.param_init_net):
        text = str(net.Proto()).replace(net.Name(), "net")  # names of nets are unique in a process
        digests.append(hashlib.sha256(text.encode()).hexdigest())
        blobs = net._blobs
        known = [sorted(blobs.written), sorted(blobs.external), blobs._next_index]
        names.append(str(known).replace(net.Name(), "net"))
    made = [(str(blob), blob.Net() is model.param_init_net) for blob in local]
    return digests, names, made, list(map(str, shared)), list(map(str, model.GetAllParams("")))


@pytest.fixture
def appended(monkeypatch):
    """The updates that were made again for other parameters."""
    calls = []

    def watched(self, blobs, append=module.Update.append):
        if (names := append(self, blobs)) is not None:
            calls.append(blobs)
        return names

    monkeypatch.setattr(module.Update, "append", watched)
    return calls


def both(monkeypatch, *args, **kwargs):
    repeated = built(*args, **kwargs)
    with monkeypatch.context() as without:
        without.setattr(module.Update, "append", lambda self, blobs: None)
        assert built(*args, **kwargs) == repeated


DENSE = [name for name, about in OPTIMIZERS.items() if not about.for_float16]
SETTINGS = {
    "sgd": [{"momentum": 0.9}, {"lars": 0.5}, {"momentum": 0.9, "nesterov": False, "lars": 0.1}],
    "adam": [{"use_lr_adaption": True}],
    "adagrad": [{"output_effective_lr_and_update": True}, {"lars": 0.5}],
    "wngrad": [{"output_effective_lr": True, "lars": 0.5}],
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name, settings", [(name, s) for name in DENSE for s in [{}, *SETTINGS.get(name, [])]])
@pytest.mark.parametrize("devices", [1, 3])
def test_same_as_each_update_by_itself(name, settings, devices, monkeypatch, appended):
    both(monkeypatch, lambda model: build_optimizer(model, optimizer_by_name(name, **settings)), devices=devices)
    kinds = 2 if name in ("adamw", "lamb") else 1  # weights decay, biases do not: the first of each is built twice
    assert len(appended) == devices * (2 * LAYERS - 2 * kinds)


def test_with_policy_decay_clipping_and_injected_rate(monkeypatch, appended):
    def update(model):
        optimizer = SgdOptimizer(0.1, policy="step", stepsize=10, gamma=0.5, momentum=0.9)
        return build_optimizer(model, optimizer, max_gradient_norm=1.0, allow_lr_injection=True)

    both(monkeypatch, update, first=lambda model: add_weight_decay(model, 1e-4))
    assert len(appended) == 2 * (2 * LAYERS - 2) + 2 * (LAYERS - 2)


def test_resnet(monkeypatch, appended):
    both(monkeypatch, lambda model: build_optimizer(model, SgdOptimizer(0.1, momentum=0.9)), forward=resnet)
    assert len(appended) == 2 * (161 - 2)


def test_sparse_gradients_between_dense_ones(monkeypatch, appended):
    both(monkeypatch, lambda model: build_optimizer(model, optimizer_by_name("adam")), forward=sparse_layers)
    assert len(appended) == 2 * (2 * LAYERS - 2)


def test_updates_that_depend_on_the_shape_are_not_repeated(monkeypatch, appended):
    both(monkeypatch, lambda model: build_optimizer(model, optimizer_by_name("adagrad", weight_decay=0.1)))
    assert not appended


class PerParameter(SgdOptimizer):
    """A user's optimizer that treats one parameter differently."""

    def _run(self, net, param_init_net, param_info):
        if param_info.name.endswith("fc3_w"):
            net.Scale(param_info.grad, param_info.grad, scale=0.25)
        super()._run(net, param_init_net, param_info)


def test_a_subclass_is_called_for_each_parameter(monkeypatch, appended):
    both(monkeypatch, lambda model: build_optimizer(model, PerParameter(0.1)))
    assert not appended


def test_parameters_with_their_own_optimizer(monkeypatch, appended):
    def own(model):
        for k in range(2):
            model.get_param_info(BlobReference(f"cpu_{k}/fc2_w")).optimizer = optimizer_by_name("adam")

    both(monkeypatch, lambda model: build_optimizer(model, SgdOptimizer(0.1)), first=own)
    assert len(appended) == 2 * (2 * LAYERS - 2 - 3)


def test_watched_operators_are_built_one_by_one(monkeypatch, appended):
    seen = []
    monkeypatch.setattr(net_module, "operator_watchers", [seen.append])
    monkeypatch.setattr(module, "operator_watchers", net_module.operator_watchers)
    built(lambda model: build_optimizer(model, SgdOptimizer(0.1)))
    assert not appended
    assert sum(op.type == "WeightedSum" for op in seen) == 2 * 2 * LAYERS


def test_errors_name_the_parameter_and_the_net_is_unchanged(appended):
    model = ModelHelper("refused")
    layers(model, 1.0)
    model.AddGradientOperators([BlobReference("scaled")])
    before = model.net.op_len, model.param_init_net.op_len
    with pytest.raises(GradientError, match="gradient of fc0_w is dense"):
        build_optimizer(model, optimizer_by_name("adam", rowWise=True))
    with pytest.raises(ArgumentError, match="unknown argument 'stepsiz'"):
        build_optimizer(model, SgdOptimizer(0.1, policy="step", stepsiz=10, gamma=0.5))
    assert (model.net.op_len, model.param_init_net.op_len) == before
    assert not appended


def test_a_gradient_with_the_name_of_a_state(monkeypatch, appended):
    """Two blobs would be one, so the update is built by itself."""

    def clash(model):
        name = "cpu_1/fc4_w"
        model.param_to_grad[BlobReference(name)] = BlobReference(name + "_momentum")

    both(monkeypatch, lambda model: build_optimizer(model, SgdOptimizer(0.1, momentum=0.9)), first=clash)
    assert len(appended) == 2 * (2 * LAYERS - 2) - 1


@pytest.mark.parametrize("names", [["a", "aa", "aab", "S", "m", "lars"], ["w", "w_grad", "w_momentum", "_w"]])
def test_names_of_parameters_that_are_parts_of_others(names, monkeypatch):
    def forward(model, loss_scale):
        blob = "data"
        for name in names:
            table = model.create_param(BlobReference(name), [8, 8], Initializer("XavierFill"))
            blob = model.net.MatMul([blob, table])
        return [model.net.Scale(model.net.AveragedLoss(blob), "scaled", scale=loss_scale)]

    def update(model):
        build_optimizer(model, SgdOptimizer(0.1, momentum=0.9, lars=0.5))

    def text():
        reset_optimizer_instance_count()
        model = ModelHelper("one_device")
        model.net.Proto().name = "net"
        model.AddGradientOperators(forward(model, 1.0))
        update(model)
        return str(model.net.Proto()), str(model.param_init_net.Proto().op)

    repeated = text()
    monkeypatch.setattr(module.Update, "append", lambda self, blobs: None)
    assert text() == repeated
