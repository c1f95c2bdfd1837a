"""Copies between devices, put where an operator reads what another device has."""

import pytest

from netbuilder.caffe2.proto import caffe2_pb2
from netbuilder.caffe2.python import core
from netbuilder.proto import NetError, UsageError

CPU, GPU0, GPU1 = core.DeviceOption(0), core.DeviceOption(1, 0), core.DeviceOption(1, 1)


def on(device, op_type, inputs, outputs, **kwargs):
    return core.CreateOperator(op_type, inputs, outputs, device_option=device, **kwargs)


def net_of(*ops):
    net = core.Net("several_devices")
    net.extend_ops(ops)
    return net


def shown(net):
    return [(op.type, list(op.input), list(op.output)) for op in net.Proto().op]


DEVICES = {
    "Relu": (["x"], ["y"], [GPU1], [GPU1]),
    "CopyGPUToCPU": (["x"], ["y"], [GPU1], [CPU]),
    "CopyCPUToGPU": (["x"], ["y"], [CPU], [GPU1]),
    "CopyFromCPUInput": (["x"], ["y"], [CPU], [GPU1]),
    "Concat": (["a", "b"], ["y", "s"], [GPU1, GPU1], [GPU1, CPU]),
    "Split": (["x", "s"], ["a", "b"], [GPU1, CPU], [GPU1, GPU1]),
    "Adam": (["p", "m", "v", "g", "lr", "i"], ["p", "m", "v"], [GPU1] * 5 + [CPU], [GPU1] * 3),
}


@pytest.mark.parametrize("op_type", DEVICES)
def test_where_an_operator_wants_its_blobs(op_type):
    inputs, outputs, where_in, where_out = DEVICES[op_type]
    op = on(GPU1, op_type, inputs, outputs)
    places = core.InferOpBlobDevices(op)
    assert [[core.device_equal(a, b) for a, b in zip(*pair)] for pair in zip(places, (where_in, where_out))] == [
        [True] * len(inputs),
        [True] * len(outputs),
    ]
    assert core.InferOpBlobDevicesAsDict(op)[0].keys() == set(inputs)
    assert all(device == GPU1 for device in core.InferOpDeviceAsBlobDevices(op)[0])


def test_one_copy_serves_all_readers_of_a_device():
    net = net_of(
        on(GPU1, "Relu", "x", "a"), on(CPU, "Relu", "x", "b"), on(GPU1, "Relu", "x", "c"), on(GPU0, "Relu", "x", "d")
    )
    made, devices = core.InjectCrossDeviceCopies(net)
    assert shown(made) == [
        ("CopyCPUToGPU", ["x"], ["x_gpu_1"]),
        ("Relu", ["x_gpu_1"], ["a"]),
        ("Relu", ["x"], ["b"]),
        ("Relu", ["x_gpu_1"], ["c"]),
        ("CopyCPUToGPU", ["x"], ["x_gpu_0"]),
        ("Relu", ["x_gpu_0"], ["d"]),
    ]
    assert made.Proto().op[0].device_option == GPU1 and devices["c"] == GPU1 and devices["b"] == CPU
    assert len(net.Proto().op) == 4


def test_between_gpus_and_back_to_the_host():
    net = net_of(on(GPU0, "Relu", "x", "a"), on(GPU1, "Relu", "a", "b"), on(CPU, "Relu", "b", "c"))
    made, _ = core.InjectCrossDeviceCopies(net, {"x": GPU0})
    assert [row[0] for row in shown(made)] == ["Relu", "Copy", "Relu", "CopyGPUToCPU", "Relu"]


def test_an_operator_in_place_works_on_the_copy():
    made, _ = core.InjectCrossDeviceCopies(net_of(on(GPU1, "Relu", "x", "x"), on(GPU1, "Relu", "x", "y")))
    assert shown(made) == [
        ("CopyCPUToGPU", ["x"], ["x_gpu_1"]),
        ("Relu", ["x_gpu_1"], ["x_gpu_1"]),
        ("Relu", ["x_gpu_1"], ["y"]),
    ]


def test_nets_that_follow_one_another_share_copies():
    first = net_of(on(CPU, "ConstantFill", [], "w", shape=[2]), on(GPU1, "Relu", "w", "a"))
    second = net_of(on(GPU1, "Add", ["w", "a"], "b"))
    nets, devices = core.InjectDeviceCopiesAmongNets([first, second], {"unused": GPU0})
    assert [row[0] for row in shown(nets[0])] == ["ConstantFill", "CopyCPUToGPU", "Relu"]
    assert shown(nets[1]) == [("Add", ["w_gpu_1", "a"], ["b"])] and "w_gpu_1" in nets[1].Proto().external_input
    assert devices["w_gpu_1"] == GPU1
    assert len(core.InjectDeviceCopiesAmongNetsWithoutB2D([first])) == 1


def test_placeholders_need_no_schema():
    send, receive = on(CPU, "Send", ["w"], []), on(CPU, "Receive", [], ["w"])
    made, devices = core.InjectCrossDeviceCopies(
        net_of(on(GPU0, "ConstantFill", [], "w", shape=[1]), send), placeHolderOps=["Send", "Receive"]
    )
    assert [row[:2] for row in shown(made)[1:]] == [("CopyGPUToCPU", ["w"]), ("Send", ["w_cpu"])]
    made, _ = core.InjectCrossDeviceCopies(net_of(receive), devices, placeHolderOps=["Send", "Receive"])
    assert shown(made) == [("Receive", [], ["w_cpu"])]


def test_refusals():
    with pytest.raises(NetError, match="Relu writes blob 'a' on GPU 1, but it was written on CPU 0 before"):
        core.InjectCrossDeviceCopies(net_of(on(CPU, "Relu", "x", "a"), on(GPU1, "Relu", "y", "a")), {"y": GPU1})
    with pytest.raises(UsageError, match="needs a list of nets"):
        core.InjectDeviceCopiesAmongNets(core.Net("alone"))
    with pytest.raises(ValueError, match=r"device types \[9\]: blobs can be copied only between CPUs"):
        core.copy_func_between_devices(CPU, caffe2_pb2.DeviceOption(device_type=9))
    assert core.copy_func_between_devices(CPU, CPU) is None and core.copy_func_between_devices(GPU0, GPU0) is None


def test_a_device_may_be_left_open():
    with core.DeviceScope(0, node_name="host"):
        option = core.CreateOperator("Relu", "x", "y").device_option
    assert option.node_name == "host" and not option.HasField("device_type")
