"""The private functions of data_parallel_model: a script that makes replicas by them, and each of them alone."""

import json
from pathlib import Path

import numpy as np
import pytest

from netbuilder.caffe2.missing_names import reason_of
from netbuilder.caffe2.python import brew, core, data_parallel_model, model_helper, scope, workspace
from netbuilder.distributed.transport import time_limits
from netbuilder.graph import observability
from netbuilder.graph.net_names import reset_names
from netbuilder.proto import NetError
from netbuilder.proto.arguments import arguments
from structure import differences
from toy_models import scaled_loss

RECORDED = json.loads((Path(__file__).parent / "data" / "signatures.json").read_text())
PRIVATE = [name for name in RECORDED["python"]["data_parallel_model"]["functions"] if name.startswith("_")]
CPU, GPU = 0, 1


def forward(model, loss_scale):
    x = brew.spatial_bn(model, "data", "bn", 3, is_test=False)
    return scaled_loss(model, brew.fc(model, x, "fc", 3 * 4, 5), loss_scale)


def update(model):
    one = model.param_init_net.ConstantFill([], "one", shape=[1], value=1.0)
    rate = model.param_init_net.ConstantFill([], "rate", shape=[1], value=-0.1)
    for param in model.GetParams():
        model.WeightedSum([param, one, model.param_to_grad[param], rate], param)


def by_parallelize(devices, **options):
    reset_names()
    model = model_helper.ModelHelper("net")
    data_parallel_model.Parallelize(
        model, lambda model: None, forward, update, devices=list(devices), cpu_device=True, **options
    )
    return model


def by_hand(devices):
    """What scripts do that make replicas by the functions of Caffe2's module."""
    reset_names()
    model, devices, losses = model_helper.ModelHelper("net"), list(devices), {}
    model._devices, model._device_type, model._device_prefix = devices, CPU, "cpu"
    model._rendezvous = None
    each = {"device_type": CPU, "device_prefix": "cpu", "scoped": True}

    def build(device, scale):
        losses[device] = forward(model, scale)

    data_parallel_model._ForEachDevice(devices, build, scale=1.0 / len(devices), **each)
    data_parallel_model._ValidateParams(model.params)
    params = data_parallel_model._GroupByDevice(model, devices, model.params, [])
    computed = data_parallel_model._GroupByDevice(model, devices, model.GetComputedParams(""), [])
    model._device_grouped_blobs = {**params, **computed}
    model._param_names, model._computed_param_names = list(params), list(computed)
    data_parallel_model._AddGradientOperators(devices, model, losses)
    grads = data_parallel_model._GroupByDevice(model, devices, list(model.param_to_grad.values()), [])
    model._device_grouped_blobs.update(grads)
    model._grad_names = list(grads)
    data_parallel_model._InferBlobDevice(model)
    if len(devices) > 1:
        data_parallel_model._BroadcastComputedParams(devices, model, None)
        order = data_parallel_model._GetReverseOrderedGrads(model)
        data_parallel_model._AllReduceBlobs(order, devices, model, model.net, None, False, 16)
    data_parallel_model._ForEachDevice(devices, lambda device: update(model), **each)
    _, names = data_parallel_model._ComputeBlobsToSync(model)
    data_parallel_model._SyncAllParams(devices, model, model.param_init_net, model.param_init_net, None, sorted(names))
    data_parallel_model._AnalyzeOperators(model)
    data_parallel_model._InferBlobDevice(model)  # also of what has been added since
    data_parallel_model._AddBarrierToModelNets(model, 300)
    return model


@pytest.mark.parametrize("devices", [[0], [0, 1], [3, 1, 2]])
def test_replicas_made_by_hand_are_those_of_parallelize(devices):
    got, want = by_hand(devices), by_parallelize(devices)
    assert differences(got.net.Proto(), want.net.Proto()) == []
    assert differences(got.param_init_net.Proto(), want.param_init_net.Proto()) == []
    assert got.param_to_grad == want.param_to_grad
    assert {name: got._blob_to_device[name] for name in want._blob_to_device} == dict(want._blob_to_device)
    assert got._grad_names == want._grad_names and got._param_names == want._param_names


def test_they_train():
    found = []
    for make in (by_hand, by_parallelize):
        workspace.ResetWorkspace()
        model, rng = make([0, 1]), np.random.default_rng(1)
        for device in (0, 1):
            workspace.FeedBlob(f"cpu_{device}/data", rng.normal(size=(6, 3, 2, 2)).astype(np.float32))
            workspace.FeedBlob(f"cpu_{device}/label", rng.integers(0, 5, 6).astype(np.int32))
        workspace.RunNetOnce(model.param_init_net)
        weights = rng.normal(size=workspace.FetchBlob("cpu_0/fc_w").shape).astype(np.float32)
        for device in (0, 1):
            workspace.FeedBlob(f"cpu_{device}/fc_w", weights)
        workspace.CreateNet(model.net)
        workspace.RunNet(model.net, 3)
        found.append([workspace.FetchBlob(f"cpu_{device}/fc_w") for device in (0, 1)])
    np.testing.assert_array_equal(*found)
    np.testing.assert_array_equal(*found[0])


def test_the_private_functions_of_caffe2_answer_or_name_what_replaces_them():
    assert len(PRIVATE) == 32
    for name in PRIVATE:
        if reason := reason_of(f"python.data_parallel_model.{name}"):
            assert "Parallelize" in reason or "several hosts" in reason
            with pytest.raises(ImportError, match=f"{name}.*: {reason[:10]}"):
                exec(f"from caffe2.python.data_parallel_model import {name}")
        else:
            assert callable(getattr(data_parallel_model, name)), name
            assert name not in data_parallel_model.__all__


OLD_NAMES = {
    "_AllReduceGradients": "_AllReduceBlobs",
    "_AllReduceGradientsDistributed": "_AllReduceBlobs",
    "_AllReduceGradientsSingleHost": "_AllReduceBlobs",
    "_AddDistributedParameterSync": "_SyncAllParams",
    "_SyncParams": "_SyncAllParams",
    "_OptimizeGradientMemory": "OptimizeGradientMemory",
    "stripParamName": "stripBlobName",
}


@pytest.mark.parametrize("name", OLD_NAMES)
def test_names_of_earlier_versions_of_caffe2_name_their_successor(name):
    assert callable(getattr(data_parallel_model, OLD_NAMES[name]))
    with pytest.raises(ImportError, match=f"{name}: later versions of Caffe2 call it {OLD_NAMES[name]}"):
        exec(f"from caffe2.python.data_parallel_model import {name}")


def test_constants_and_the_log():
    assert data_parallel_model._DEFAULT_TIMEOUT_SEC == 30
    assert data_parallel_model._DEFAULT_BARRIER_NET_TIMEOUT_SEC == 300
    assert data_parallel_model.log.name == "netbuilder"


def test_an_assigned_time_limit_is_that_of_the_collectives(monkeypatch):
    monkeypatch.setattr(time_limits, "given_limits", None)
    model = model_helper.ModelHelper("limit")
    monkeypatch.setattr(data_parallel_model, "_DEFAULT_TIMEOUT_SEC", 7)
    data_parallel_model._CreateOrCloneCommonWorld(
        model.param_init_net, "cw", rendezvous={"kv_handler": None, "num_shards": 1, "shard_id": 0, "engine": "MPI"}
    )
    (op,) = model.param_init_net.Proto().op
    assert arguments(op)["timeout_ms"] == 7000
    by_parallelize([0, 1])
    assert time_limits.time_limits().seconds == 7


def test_for_each_device_without_name_scopes():
    seen = []

    def note(device, word, more=0):
        seen.append((device, word, more, scope.CurrentDeviceScope().device_id, core.ScopedName("x")))

    data_parallel_model._ForEachDevice([4, 2], note, GPU, "gpu", False, "a", more=1)
    data_parallel_model._ForEachDevice([7], note, GPU, "gpu", True, "b")
    assert seen == [(4, "a", 1, 4, "x"), (2, "a", 1, 2, "x"), (7, "b", 0, 7, "gpu_7/x")]


def test_grouping():
    model = by_parallelize([0, 1])
    blobs = [core.BlobReference(name) for name in ("table", "cpu_0/a/w", "cpu_1/a/w", "cpu_0/b", "cpu_1/b")]
    grouped = data_parallel_model._GroupByDevice(model, [0, 1], blobs, blobs[:1])
    assert list(grouped) == ["a/w", "b"] and grouped["b"] == {0: "cpu_0/b", 1: "cpu_1/b"}
    rows = core.GradientSlice(core.BlobReference("cpu_0/i"), core.BlobReference("cpu_0/v"))
    assert data_parallel_model._GroupByDevice(model, [0, 1], [rows], []) == {"i:v": {0: rows}}
    with pytest.raises(NetError, match=r"blob 'table' is not in the scope of a device \(cpu_0/, cpu_1/\)"):
        data_parallel_model._GroupByDevice(model, [0, 1], blobs, [])
    with pytest.raises(NetError, match="'cpu_0/b' must be a BlobReference"):
        data_parallel_model._GroupByDevice(model, [0, 1], ["cpu_0/b"], [])
    with pytest.raises(NetError, match=r"the parameters \['cpu_0/b'\] are listed more than once"):
        data_parallel_model._ValidateParams([*blobs, blobs[3]])


def test_blobs_to_synchronize():
    model = by_parallelize([1, 0])
    blobs, names = data_parallel_model._ComputeBlobsToSync(model)
    assert names == {"bn_s", "bn_b", "bn_rm", "bn_riv", "fc_w", "fc_b", "one", "rate"}
    assert blobs == [f"cpu_{device}/{name}" for device in (1, 0) for name in sorted(names)]
    model._param_names = ["other"]
    with pytest.raises(NetError, match=r"does not initialize the parameters \['other'\]"):
        data_parallel_model._ComputeBlobsToSync(model)


def test_single_groups():
    model = by_parallelize([0, 1])
    net = core.Net("reduction")
    data_parallel_model._AllReduce([0, 1], model, net, "fc_w", control_input="ready")
    data_parallel_model._Broadcast([0, 1], model, net, "rate")  # not in the groups: by name
    ops = [(op.type, list(op.input), list(op.output), list(op.control_input)) for op in net.Proto().op]
    assert ops == [
        ("Sum", ["cpu_0/fc_w", "cpu_1/fc_w"], ["cpu_0/fc_w"], ["ready"]),
        ("Copy", ["cpu_0/fc_w"], ["cpu_1/fc_w"], []),
        ("Copy", ["cpu_0/rate"], ["cpu_1/rate"], []),
    ]
    nccl = core.Net("nccl")
    data_parallel_model._AllReduceBlobs(["fc_w", "fc_b"], [0, 1], model, nccl, None, True, 16)
    assert [op.type for op in nccl.Proto().op] == ["NCCLAllreduce"] * 2
    assert list(nccl.Proto().op[1].control_input) == ["cpu_0/fc_w"]
    with pytest.raises(NetError, match="group 'fc_w' has no blob on device 5"):
        data_parallel_model._AllReduce([0, 5], model, net, "fc_w")
    rows = core.GradientSlice(core.BlobReference("cpu_0/i"), core.BlobReference("cpu_0/v"))
    model._device_grouped_blobs["i:v"] = {0: rows, 1: rows}
    with pytest.raises(NetError, match="'i:v' is a sparse gradient, which only Parallelize exchanges"):
        data_parallel_model._AllReduce([0, 1], model, net, "i:v")


def test_devices_of_blobs():
    model = by_parallelize([0, 1])
    assert not data_parallel_model._IsGPUBlob(model, "fc_w") and not data_parallel_model._IsIDEEPBlob(model, "fc_w")
    with pytest.raises(NetError, match="its nets have no blob 'nothing'"):
        data_parallel_model._IsGPUBlob(model, "nothing")
    model.net.Proto().op[-1].device_option.device_type = GPU
    model._blob_to_device = {"gpu_0/x": core.DeviceOption(GPU, 0)}
    model._device_prefix = "gpu"
    assert data_parallel_model._IsGPUBlob(model, "x")


def test_an_operator_on_blobs_of_another_device():
    model = by_parallelize([0, 1])
    data_parallel_model._AnalyzeOperators(model)
    model.net.Proto().op[0].input[0] = "cpu_1/data"
    with pytest.raises(NetError, match="cpu_1/data"):
        data_parallel_model._AnalyzeOperators(model)


def test_memory():
    model = by_parallelize([0, 1])
    data_parallel_model._OptimizeGradientMemorySimple(model, model._losses_by_gpu, model._devices)
    assert any("_shared" in blob for op in model.net.Proto().op for blob in op.output)
    model = by_parallelize([0, 1])
    data_parallel_model._AddDynamicMemoryOptimization(model, ["fc"], model._devices)
    assert observability.stored(model.net.Proto()) == ("outputs", ["cpu_0/fc", "cpu_1/fc"])
    with pytest.raises(NetError, match="makes no blob 'nothing'"):
        data_parallel_model._AddDynamicMemoryOptimization(model, ["nothing"], model._devices)


HOSTS = {"num_shards": 2, "shard_id": 1, "engine": "GLOO", "kv_handler": "store"}


def test_one_host_among_one():
    model = by_parallelize([0, 1])
    before = len(model.net.Proto().op)
    for hosts in (None, {**HOSTS, "num_shards": 1, "shard_id": 0}):
        model._rendezvous = hosts
        assert data_parallel_model._RunComparison(model, "fc_w") is True
        data_parallel_model._AddBarrierToModelNets(model, 300)
        data_parallel_model.AddDistributedBlobSync(model, ["fc_w"])
        assert len(model.net.Proto().op) == before and model._data_parallel_model_nets == [model.net]


def over_hosts(devices=(0, 1)):
    """What scripts do that make replicas of several hosts by the functions of Caffe2's module."""
    model = by_parallelize(list(devices))
    made = {name: vars(model)[name] for name in ("_devices", "_device_type", "_device_prefix", "_computed_param_names")}
    reset_names()
    plain = model_helper.ModelHelper("net")
    vars(plain).update(made, _rendezvous=HOSTS)
    plain.net.Proto().num_workers = 8
    return plain


def exchanged(net):
    return [(op.type, list(op.input), list(op.output)) for op in net.Proto().op]


def test_blobs_are_summed_over_hosts():
    model = over_hosts()
    data_parallel_model._AllReduceBlobs(["a", "b", "c"], [0, 1], model, model.net, HOSTS, False, 2)
    found = exchanged(model.net)
    assert found[:3] == [
        ("Sum", ["cpu_0/a", "cpu_1/a"], ["cpu_0/a"]),
        ("AllreduceBucket", ["net_0_cw", "cpu_0/a"], ["cpu_0/a"]),
        ("Copy", ["cpu_0/a"], ["cpu_1/a"]),
    ]
    sums = [op for op in model.net.Proto().op if op.type == "AllreduceBucket"]
    assert [op.input[0] for op in sums] == ["net_0_cw", "net_1_cw", "net_0_cw"]
    assert [list(op.control_input) for op in sums] == [[], [], ["cpu_0/a"]]
    data_parallel_model._BroadcastComputedParams([0, 1], model, HOSTS)
    assert [op[0] for op in exchanged(model.net)[9:]] == ["BroadcastBucket", "Copy", "Copy"]
    data_parallel_model._SyncAllParams([0, 1], model, model.param_init_net, model.param_init_net, HOSTS, {"z", "y"}, 3)
    made = exchanged(model.param_init_net)
    assert [op[2] for op in made[:4]] == [[f"net_{i}_cw"] for i in range(4)], "each is made once"
    assert made[4:] == [
        ("BroadcastBucket", ["net_0_cw", "cpu_0/y", "cpu_0/z"], ["cpu_0/y", "cpu_0/z"]),
        ("Copy", ["cpu_0/y"], ["cpu_1/y"]),
        ("Copy", ["cpu_0/z"], ["cpu_1/z"]),
    ]


def test_blobs_that_are_not_those_of_devices_are_summed_over_hosts():
    model = over_hosts([0])
    data_parallel_model.AddDistributedBlobSync(model, ["count", core.BlobReference("total")])
    assert exchanged(model.net) == [("AllreduceBucket", ["net_0_cw", "count", "total"], ["count", "total"])]
    with pytest.raises(TypeError, match="blobs must be a list of strings or references, got the single string"):
        data_parallel_model.AddDistributedBlobSync(model, "count")


def test_the_barrier_is_the_first_net():
    model = over_hosts()
    model._data_parallel_model_init_nets, model._data_parallel_model_nets = [model.param_init_net], [model.net]
    for _ in range(2):  # the second time it is there
        data_parallel_model._AddBarrierToModelNets(model, 20)
    assert model._data_parallel_model_nets == [model._barrier_net, model.net]
    assert model._data_parallel_model_init_nets == [model._barrier_init_net, model.param_init_net]
    assert exchanged(model._barrier_net) == [("Barrier", ["net_barrier_cw"], [])]
    assert exchanged(model._barrier_init_net) == [("CreateCommonWorld", ["store"], ["net_barrier_cw"])]


def test_common_worlds_by_hand():
    """As in Caffe2's own functions: each slot has a common world, and its users wait for one another."""
    model = model_helper.ModelHelper("net")
    control = data_parallel_model.CollectivesConcurrencyControl("allreduce", 2, model.param_init_net, HOSTS)
    found = [tuple(map(str, control.get_control_and_context(blob))) for blob in "abcde"]
    assert found == [
        ("allreduce_0_cw", "None"),
        ("allreduce_1_cw", "None"),
        ("allreduce_0_cw", "a"),
        ("allreduce_1_cw", "b"),
        ("allreduce_0_cw", "c"),
    ]
    data_parallel_model._CreateOrCloneCommonWorld(model.param_init_net, "slow_cw", HOSTS, "slow", 60)
    assert exchanged(model.param_init_net) == [
        ("CreateCommonWorld", ["store"], ["allreduce_0_cw"]),
        ("CloneCommonWorld", ["allreduce_0_cw"], ["allreduce_1_cw"]),
        ("CreateCommonWorld", ["store"], ["slow_cw"]),
    ]
    assert model.param_init_net.Proto().op[2].name == "slow"
    with pytest.raises(NetError, match="rendezvous must be of two processes or more"):
        data_parallel_model._AllReduceBlobsDistributed(
            ["a"], [0], model, model.net, {**HOSTS, "num_shards": 1, "shard_id": 0}, 2
        )


def test_a_model_of_one_process_has_no_common_worlds():
    model = by_parallelize([0, 1])
    with pytest.raises(NetError, match="model 'net' was parallelized without this rendezvous"):
        data_parallel_model._AllReduceBlobsDistributed(["fc_w"], [0, 1], model, model.net, HOSTS, 2)


def test_operators_between_hosts_need_workers():
    model = over_hosts()
    model.net.Proto().num_workers = 1
    with pytest.raises(NetError, match="net 'net.*' has 1 workers; operators between processes need two or more"):
        data_parallel_model._AllReduceBlobs(["a"], [0, 1], model, model.net, HOSTS, False, 16)


def test_parallelize_over_hosts_leaves_its_attributes():
    model = by_parallelize([0, 1], rendezvous=HOSTS)
    assert model._rendezvous.num_shards == 2 and model._rendezvous.shard_id == 1
    assert model._data_parallel_model_nets == [model._barrier_net, model.net]
    assert exchanged(model._barrier_net) == [("Barrier", ["net_barrier_cw"], [])]
    data_parallel_model._AddBarrierToModelNets(model, 300)
    assert len(model._data_parallel_model_nets) == 2
    data_parallel_model.AddDistributedBlobSync(model, ["count"])
    assert model.net.Proto().op[-1].input[0] in ("net_0_cw", "net_1_cw", "net_2_cw", "net_3_cw")
    with pytest.raises(NetError, match=r"device must be one of \[0, 1\], got 5"):
        data_parallel_model._RunComparison(model, "fc_w", 5)


def test_a_model_without_replicas():
    model = model_helper.ModelHelper("plain")
    with pytest.raises(NetError, match="model 'plain' has no replicas: call Parallelize"):
        data_parallel_model._Broadcast([0, 1], model, model.net, "fc_w")
