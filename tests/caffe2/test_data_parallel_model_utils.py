"""Activations on other GPUs: where operators run, and that the shifted nets compute what the others do."""

import numpy as np
import pytest

from netbuilder.caffe2.python import (
    brew,
    core,
    data_parallel_model,
    data_parallel_model_utils,
    model_helper,
    optimizer,
    workspace,
)
from netbuilder.caffe2.python.modeling.initializers import PseudoFP16Initializer, ReversePseudoFP16Initializer
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, NetError

pytestmark = pytest.mark.filterwarnings("ignore:GPUs .* are not on this machine")

OPTIMIZERS = {
    "sgd": lambda model: optimizer.build_sgd(model, 0.1),
    "momentum": lambda model: optimizer.build_sgd(model, 0.1, policy="fixed", momentum=0.9),
    "adam": lambda model: optimizer.build_adam(model, 0.1),
}


def forward(model, loss_scale):
    hidden = brew.relu(model, brew.fc(model, "data", "fc1", 4, 8), "relu1")
    for number in (2, 3):
        hidden = brew.fc(model, hidden, f"fc{number}", 8, 8)
        hidden = brew.relu(model, hidden, hidden)
    softmax = brew.softmax(model, brew.fc(model, hidden, "fc4", 8, 3), "softmax")
    loss = model.net.AveragedLoss(model.net.LabelCrossEntropy([softmax, "label"], "xent"), "loss")
    return [model.net.Scale(loss, "scaled", scale=loss_scale)]


def parallel_model(kind="momentum", cpu=False, decay=0.0):
    model = model_helper.ModelHelper("model")

    def build(model):
        if decay:
            optimizer.add_weight_decay(model, decay)
        OPTIMIZERS[kind](model)

    make = data_parallel_model.Parallelize_CPU if cpu else data_parallel_model.Parallelize
    make(model, lambda model: None, forward, optimizer_builder_fun=build, devices=[0, 1])
    return model


def on_the_cpu(net):
    """Return the net with all operators on the CPU, where copies between GPUs are plain ones."""
    made = core.Net(net.Proto())
    for op in made.Proto().op:
        if op.device_option.device_type == PROTO_CUDA:
            op.device_option.device_type, op.device_option.device_id = PROTO_CPU, 0
        op.type = "Copy" if op.type in ("CopyCPUToGPU", "CopyGPUToCPU") else op.type
    return made


def trained(model):
    """Return the parameters of the first replica after three steps."""
    workspace.ResetWorkspace()
    model.param_init_net.set_rand_seed(1)
    rng = np.random.default_rng(0)
    for device in (0, 1):
        workspace.FeedBlob(f"gpu_{device}/data", rng.standard_normal((4, 4)).astype(np.float32))
        workspace.FeedBlob(f"gpu_{device}/label", np.int32([0, 1, 2, device]))
    init, net = on_the_cpu(model.param_init_net), on_the_cpu(model.net)
    workspace.RunNetOnce(init)
    workspace.CreateNet(net)
    workspace.RunNet(net, 3)
    return {name: workspace.FetchBlob(name) for name in map(str, model.GetParams(""))}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("first", [0, 2, 3, 5])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_shifted_model_trains_alike(kind, first):
    decay = 0.01 if kind == "sgd" else 0.0
    want = trained(parallel_model(kind, decay=decay))
    model = parallel_model(kind, decay=decay)
    activations = data_parallel_model_utils.GetActivationBlobs(model)
    data_parallel_model_utils.ShiftActivationDevices(model, activations[first:], {0: 2, 1: 3})
    got = trained(model)
    assert got.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-6, atol=1e-7, err_msg=name)


def test_where_operators_run():
    model = parallel_model()
    activations = data_parallel_model_utils.GetActivationBlobs(model)
    assert activations[:3] == ["fc1", "relu1", "fc2"] and "softmax" in activations
    assert not {"fc1_w", "data"} & set(activations) and not any(name.endswith("_grad") for name in activations)
    data_parallel_model_utils.ShiftActivationDevices(model, ["fc4", "softmax"], {0: 2, 1: 3})
    places = {}
    for net in (model.param_init_net, model.net):
        for op in net.Proto().op:
            if op.device_option.device_type == PROTO_CUDA:
                places.update(dict.fromkeys(op.output, op.device_option.device_id))
    for replica, other in ((0, 2), (1, 3)):
        for blob in ("fc4", "softmax", "fc4_w", "fc4_w_momentum"):
            assert places[f"gpu_{replica}/{blob}"] == other, blob
        for blob in ("fc1", "fc3", "fc1_w", "fc1_w_momentum"):
            assert places[f"gpu_{replica}/{blob}"] == replica, blob
    # Nothing reads a blob of another GPU but the operators that copy it.
    for op in model.net.Proto().op:
        if op.device_option.device_type == PROTO_CUDA and op.type != "Copy":
            home = op.device_option.device_id
            assert {places.get(blob, home) for blob in op.input if blob.startswith("gpu_")} <= {home}, op


def test_refusals():
    shift = data_parallel_model_utils.ShiftActivationDevices
    with pytest.raises(NetError, match="model 'alone.*' has no replicas: call Parallelize first"):
        shift(model_helper.ModelHelper("alone"), [], {})
    with pytest.raises(NetError, match="must have its replicas on GPUs, not on CPU 0, 1"):
        shift(parallel_model(cpu=True), [], {0: 2})
    model = parallel_model()
    before = model.net.Proto().SerializeToString()
    with pytest.raises(NetError, match=r"shifts from GPUs \[5\], but the replicas are on GPU 0, 1"):
        shift(model, ["fc1"], {5: 2})
    with pytest.raises(NetError, match=r"GPUs \[1\] must not both give and take"):
        shift(model, ["fc1"], {0: 1, 1: 2})
    with pytest.raises(NetError, match=r"has no activations \['fc11'\].*'fc1'"):
        shift(model, ["fc11"], {0: 2})
    assert model.net.Proto().SerializeToString() == before


@pytest.mark.parametrize(
    "name, same",
    [("pFP16Initializer", PseudoFP16Initializer), ("ReversepFP16Initializer", ReversePseudoFP16Initializer)],
)
def test_initializers_as_trainers_of_2017_name_them(name, same):
    names = {}
    exec(f"from caffe2.python.modeling.initializers import Initializer, {name} as found", names)
    assert names["found"] is same
    model = model_helper.ModelHelper("half")
    brew.fc(model, "data", "fc", 4, 3, WeightInitializer=names["found"], BiasInitializer=names["found"])
    workspace.RunNetOnce(model.param_init_net)
    kinds = {blob: workspace.FetchBlob(blob).dtype for blob in workspace.Blobs()}
    half = {"fc_w", "fc_b"} if name == "pFP16Initializer" else {"fc_w_fp16", "fc_b_fp16"}
    assert {blob for blob, dtype in kinds.items() if dtype == np.float16} == half and len(kinds) == 4
