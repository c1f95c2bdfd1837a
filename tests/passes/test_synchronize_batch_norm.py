"""The pass that lets batch normalizations exchange their statistics."""

import numpy as np
import pytest

from netbuilder.passes import Devices
from netbuilder.passes.net_pass import PassContext
from netbuilder.passes.processes import ProcessLink
from netbuilder.passes.synchronize_batch_norm import synchronize_batch_norm, synchronize_batch_norm_pass
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, NetDef, NetError
from netbuilder.proto.arguments import arguments, make_op
from netbuilder.runtime import Workspace

SIZES = (3, 1, 2)


def norms(devices, **args):
    """A net with one SpatialBN and its gradient on each device."""
    net = NetDef(name="net")
    for scope, option in zip(devices.scopes, devices.options):
        blobs = [scope + name for name in ("x", "s", "b", "m", "v", "y", "sm", "si", "dy", "dx", "ds", "db")]
        x, s, b, m, v, y, sm, si, dy, dx, ds, db = blobs
        net.op.append(make_op("SpatialBN", [x, s, b, m, v], [y, m, v, sm, si], device_option=option, **args))
        backward = make_op("SpatialBNGradient", [x, s, dy, sm, si], [dx, ds, db], device_option=option, **args)
        net.op.append(backward)
        net.external_input.extend([x, s, b, m, v, dy])
    return net


def values(order="NCHW", seed=0):
    rng = np.random.default_rng(seed)
    shape = (sum(SIZES), 4, 3, 2) if order == "NCHW" else (sum(SIZES), 3, 2, 4)
    found = {"x": rng.normal(size=shape), "dy": rng.normal(size=shape)}
    return {**found, **{name: rng.uniform(0.5, 1, 4) for name in "sbmv"}}


def run(net, devices, whole, sizes):
    """Run a net on the host; return what each device has."""
    for op in net.op:
        op.ClearField("device_option")
        op.type = "Copy" if op.type.startswith("Copy") else op.type
    workspace = Workspace(threads=1)
    ends = np.cumsum(sizes)[:-1]
    for name, value in whole.items():
        parts = np.split(value, ends) if name in ("x", "dy") else [value] * len(devices)
        for blob, part in zip(devices.copies(name), parts):
            workspace.feed(blob, part)
    for blob, size in zip(devices.copies("weight"), sizes):
        workspace.feed(blob, np.array([size], np.float64))
    workspace.run_net_once(net)
    return {
        name: [workspace.fetch(blob) for blob in devices.copies(name)]
        for name in ("y", "m", "v", "sm", "si", "dx", "ds", "db")
    }


@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
@pytest.mark.parametrize("sizes", [(2, 2, 2), SIZES], ids=["equal", "different"])
@pytest.mark.parametrize("device_type", [PROTO_CPU, PROTO_CUDA], ids=["CPU", "GPU"])
def test_results_are_those_of_the_whole_batch(device_type, sizes, order):
    """The operators for GPUs run on the host here."""
    devices, one = Devices(device_type, (7, 0, 3)), Devices(PROTO_CPU, (0,))
    whole = values(order)
    weights = devices.copies("weight") if sizes == SIZES else ()
    net = synchronize_batch_norm(norms(devices, order=order), devices, weights=weights)
    found, want = run(net, devices, whole, sizes), run(norms(one, order=order), one, whole, [6])
    for name in ("y", "dx"):
        np.testing.assert_allclose(np.concatenate(found[name]), want[name][0], rtol=1e-9, atol=1e-12)
    for name in ("m", "v", "sm", "si"):
        for each in found[name]:
            np.testing.assert_allclose(each, want[name][0], rtol=1e-9)
    for name in ("ds", "db"):
        np.testing.assert_allclose(sum(found[name]), want[name][0], rtol=1e-9)


def test_gpus_exchange_through_the_cpu():
    devices = Devices(PROTO_CUDA, (2, 5))
    ops = synchronize_batch_norm(norms(devices), devices).op
    found = [(op.type, op.output[0], op.device_option.device_type) for op in ops[2:7]]
    assert found == [
        ("CopyGPUToCPU", "cpu_0/x_sums_gpu_2_copy", PROTO_CUDA),
        ("CopyGPUToCPU", "cpu_0/x_sums_gpu_5_copy", PROTO_CUDA),
        ("Sum", "cpu_0/x_sums_combined", PROTO_CPU),
        ("CopyCPUToGPU", "gpu_2/x_sums_combined", PROTO_CUDA),
        ("CopyCPUToGPU", "gpu_5/x_sums_combined", PROTO_CUDA),
    ]


def test_the_parts_of_all_processes_count():
    devices = Devices(PROTO_CPU, (0, 1))
    result = synchronize_batch_norm_pass(norms(devices), PassContext(devices=devices), parts=6)
    changed = [op for op in result.net.op if op.type.startswith("SpatialBN")]
    assert [arguments(op)["num_batches"] for op in changed] == [6] * 4 and result.extras["count"] == 1


def test_names_that_are_taken_get_a_number():
    devices = Devices(PROTO_CPU, (0, 1))
    net = norms(devices)
    for scope in devices.scopes:
        net.op.append(make_op("Exp", [scope + "dx"], [scope + "x_sums"]))
    made = synchronize_batch_norm(net, devices)
    assert [op.output[0] for op in made.op if op.type == "ChannelStats"] == ["cpu_0/x_sums_1", "cpu_1/x_sums_1"]


@pytest.mark.parametrize("args, ids", [({"is_test": 1}, (0, 1)), ({}, (0,))], ids=["test mode", "one device"])
def test_what_needs_no_exchange_is_not_changed(args, ids):
    devices = Devices(PROTO_CPU, ids)
    net = norms(devices, **args)
    assert synchronize_batch_norm(net, devices) == net


def test_subgraphs_are_refused():
    devices = Devices(PROTO_CPU, (0, 1))
    inner = norms(Devices(PROTO_CPU, (0,)))
    net = NetDef(name="net", op=[make_op("If", ["cpu_0/c"], ["cpu_0/y"], then_net=inner)])
    with pytest.raises(NetError, match=r"If \['cpu_0/y'\] has SpatialBN \['cpu_0/y', .*\] in its subgraph"):
        synchronize_batch_norm(net, devices)


def test_parts_of_a_batch_are_refused():
    devices = Devices(PROTO_CPU, (0, 1))
    with pytest.raises(NetError, match=r"has num_batches=3 and 5 inputs: so it is over several parts"):
        synchronize_batch_norm(norms(devices, num_batches=3), devices)


def test_gpus_exchange_by_nccl():
    """In place, in one order: each call waits for the one before it."""
    devices = Devices(PROTO_CUDA, (2, 5))
    ops = synchronize_batch_norm(norms(devices), devices, use_nccl=True, weights=devices.copies("weight")).op
    assert not any(op.type.startswith("Copy") for op in ops)
    calls = [op for op in ops if op.type == "NCCLAllreduce"]
    names = ["x_sums", "x_sumsq", "sm_count", "ds", "db"]
    assert [list(op.input) for op in calls] == [[f"gpu_2/{name}", f"gpu_5/{name}"] for name in names]
    assert all(op.input == op.output and op.device_option.device_id == 2 for op in calls)
    waits = [list(op.control_input) for op in calls]
    assert waits == [[], *([f"gpu_2/{name}"] for name in names[:-1])]
    reads = [list(op.input[5:]) for op in ops if op.type == "SpatialBN"]
    assert reads == [[scope + name for name in names[:3]] for scope in devices.scopes]


@pytest.mark.parametrize("numbers", [(0,), (0, 1)], ids=str)
def test_gpus_of_several_processes_exchange_by_one_call(numbers):
    devices = Devices(PROTO_CUDA, numbers)
    link = ProcessLink(["cw"], 3, devices, by_nccl=True)
    ops = synchronize_batch_norm(norms(devices), devices, link=link, parts=3 * len(numbers)).op
    assert not any(op.type.startswith(("Copy", "NCCL", "Sum")) for op in ops)
    first, second = [op for op in ops if op.type == "AllreduceBucket"]
    assert list(first.output) == [scope + name for name in ("x_sums", "x_sumsq") for scope in devices.scopes]
    assert list(second.output) == [scope + name for name in ("ds", "db") for scope in devices.scopes]
    for op in (first, second):
        assert op.input[0] == "cw" and arguments(op).get("devices", 1) == len(numbers)
        assert op.device_option.device_type == PROTO_CUDA
