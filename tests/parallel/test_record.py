"""The record of replicas: what it says, stored and read back, and read off a net without one."""

import pytest

import golden_data
from netbuilder import parallel
from netbuilder.graph import GradientSlice, NameScope
from netbuilder.model import ModelHelper
from netbuilder.parallel import Replicas, has_record, replicas_of
from netbuilder.passes import Devices
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, BlobError, NetDef, NetError
from netbuilder.proto.arguments import make_device_option, make_op, set_argument
from parallel_models import OPTIMIZERS, golden_parallel, no_input, parallelize
from toy_models import convnet, mlp


def test_what_it_says():
    model = ModelHelper("net")
    with NameScope("cpu"):
        table = model.param_init_net.XavierFill([], "table", shape=[5, 6])
        model.AddParameter(table)
    record = parallel.Parallelize_CPU(model, no_input, mlp, optimizer_builder_fun=OPTIMIZERS["sgd"], devices=[3, 12])
    assert (len(record), record.devices.ids, record.devices.scopes) == (2, (3, 12), ("cpu_3/", "cpu_12/"))
    assert record.parameters == ("fc1_w", "fc1_b", "fc2_w", "fc2_b")
    assert record.blobs("fc1_w") == ("cpu_3/fc1_w", "cpu_12/fc1_w")
    assert {g.parameter: g.values for g in record.gradients} == {name: name + "_grad" for name in record.parameters}
    scaled = model.net.Name() + "/Scale"
    assert record.losses == (("cpu_3/" + scaled,), ("cpu_12/" + scaled,))
    assert record.outside == ("cpu/table",) and not record.shared and record.computed == ()


@pytest.mark.parametrize("name", ["dp_convnet_2", "dp_convnet_2_shared_model", "gpu_structure_embed_inside_2"])
def test_it_is_stored_in_the_net_and_read_back(name):
    model, record = golden_parallel(name)
    for net in (model.net, model.param_init_net):
        stored = NetDef.FromString(net.Proto().SerializeToString())
        assert has_record(stored)
        assert Replicas.load(stored) == record == replicas_of(stored)


def test_storing_again_replaces_it():
    net = NetDef(name="net")
    first, second = (Replicas(Devices(PROTO_CPU, ids), parameters=("w",)) for ids in ((0, 1), (2,)))
    first.store(net)
    count = len(net.arg)
    second.store(net)
    assert (Replicas.load(net), len(net.arg)) == (second, count)


def test_sparse_gradients_keep_both_blobs():
    _, record = golden_parallel("gpu_structure_embed_inside_2")
    sparse = [group for group in record.gradients if group.is_sparse]
    assert [(g.parameter, g.indices, g.values, str(g)) for g in sparse] == [
        ("vecs", "indices_gathered", "gathered_grad", "indices_gathered:gathered_grad")
    ]


def test_a_shared_parameter_is_one_blob():
    _, record = golden_parallel("dp_convnet_2_shared_model")
    assert record.blobs("pred_w") == ("cpu_0/pred_w", "cpu_0/pred_w")
    assert record.blobs("conv1_bn_rm") == ("cpu_0/conv1_bn_rm", "cpu_1/conv1_bn_rm")


@pytest.mark.parametrize(
    "name, kind, count", [("dp_convnet_4", PROTO_CPU, 4), ("gpu_structure_convnet_2", PROTO_CUDA, 2)]
)
def test_a_net_of_caffe2_is_read_by_its_operators_devices(name, kind, count):
    net = golden_data.net(name).main
    assert not has_record(net)
    record = replicas_of(net)
    assert (record.devices.device_type, record.devices.ids) == (kind, tuple(range(count)))
    assert record.parameters == () and record.losses == ()


def test_a_net_whose_replicas_cannot_be_distinguished_is_refused():
    with pytest.raises(NetError, match="net 'mlp_sgd' has no record of replicas, and none of its operators writes"):
        replicas_of(golden_data.net("mlp_sgd").main)
    with pytest.raises(NetError, match="net 'mlp_sgd' has no record of replicas"):
        Replicas.load(golden_data.net("mlp_sgd").main)


def test_devices_that_contradict_the_scopes_are_refused():
    ops = [
        make_op("Relu", ["cpu_0/x"], ["cpu_0/y"], device_option=make_device_option(0, 0)),
        make_op("Relu", ["cpu_1/x"], ["cpu_1/y"], device_option=make_device_option(0, 1)),
        make_op("Relu", ["cpu_1/x"], ["cpu_0/z"], device_option=make_device_option(0, 1)),
    ]
    with pytest.raises(NetError, match="contradict its scopes: operator 2 Relu runs on device 1 and writes 'cpu_0/z'"):
        replicas_of(NetDef(name="net", op=ops))


def test_a_damaged_record_is_refused():
    model, _ = parallelize([0, 1])
    net = model.net.Proto()
    set_argument(net, "replica_losses_each", [1, 5])
    with pytest.raises(NetError, match=r"net 'net(_\d+)?': its record of replicas is damaged"):
        Replicas.load(net)


def test_names_are_taken_with_scope_and_without():
    _, record = parallelize([0, 12])
    known = ["fc1_w", "fc1_b"]
    assert record.short_names(["fc1_w", "cpu_12/fc1_b", "cpu_0/fc1_w"], known) == ["fc1_w", "fc1_b", "fc1_w"]
    for wrong in ("fc9_w", "cpu_3/fc1_w", "gpu_0/fc1_w"):
        with pytest.raises(BlobError, match=f"blob '{wrong}': the replicas on CPU 0, 12 have no blob of this name"):
            record.short_names([wrong], known)


def test_caffe2s_scripts_find_their_attributes_on_the_model():
    model, record = golden_parallel("gpu_structure_embed_inside_2")
    assert model._devices == [0, 1] and model.GetDevices() == [0, 1]
    assert (model._device_type, model._device_prefix, model._shared_model, model._rendezvous) == (1, "gpu", False, None)
    assert model._param_names == list(record.parameters) and model._computed_param_names == []
    assert model._grad_names == ["indices_gathered:gathered_grad", "fc_w_grad", "fc_b_grad"]
    assert model._device_grouped_blobs["fc_w"] == {0: "gpu_0/fc_w", 1: "gpu_1/fc_w"}
    assert model._device_grouped_blobs["indices_gathered:gathered_grad"][1] == GradientSlice(
        "gpu_1/indices_gathered", "gpu_1/gathered_grad"
    )
    assert [str(loss) for loss in model._losses_by_gpu[1]] == list(record.losses[1])
    assert model._blob_to_device["gpu_1/fc_w"].device_id == 1 and "gpu_1/fc_w" in model._blob_to_device
    assert len(model._blob_to_device) == len(list(model._blob_to_device))
    assert model._data_parallel_model_nets == [model.net]
    assert model._data_parallel_model_init_nets == [model.param_init_net]
    assert model._optimizer is not None


def test_the_blobs_of_the_update_are_on_their_devices_too():
    model, _ = parallelize([0, 1], convnet, OPTIMIZERS["momentum"])
    devices = {blob: device.device_id for blob, device in model._blob_to_device.items()}
    assert (devices["cpu_1/fc_w_momentum"], devices["cpu_0/fc_w_momentum"]) == (1, 0)
