"""The device check: what it finds, what it ignores, and its messages."""

import numpy as np
import pytest

import golden_data
from netbuilder import parallel
from netbuilder.graph import BlobReference, DeviceScope, Net, ScopedBlobReference
from netbuilder.model import ModelHelper, brew
from netbuilder.optimizers import build_sgd
from netbuilder.passes import Devices, blob_devices, check_devices, device_faults
from netbuilder.passes.device_check import CROSSING
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, NetDef, NetError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace

TWO_CPUS = Devices(PROTO_CPU, (0, 1))
TWO_GPUS = Devices(PROTO_CUDA, (0, 1))


def op(op_type, inputs, outputs, device=(PROTO_CPU, 0), **args):
    return make_op(op_type, inputs, outputs, device_option=make_device_option(*device), **args)


def net(*ops, name="net"):
    return NetDef(name=name, op=ops)


@pytest.mark.parametrize("devices, kind", [(TWO_CPUS, PROTO_CPU), (TWO_GPUS, PROTO_CUDA)], ids=["cpu", "gpu"])
def test_reading_another_replica_is_found(devices, kind):
    word = devices.word
    wrong = op("Relu", [f"{word}_0/x"], [f"{word}_1/y"], (kind, 1))
    wrong.debug_info = "train.py:12 in forward"
    place = word.upper()
    said = (
        f"net 'net': operator 0 Relu, made at train.py:12 in forward: input '{word}_0/x' is on {place} 0, but the "
        f"operator runs on {place} 1; it may use blobs under '{word}_1/' .* use '{word}_1/x'"
    )
    with pytest.raises(NetError, match=said):
        check_devices(net(wrong), devices=devices)


def test_writing_to_another_replica_is_found():
    wrong = op("Relu", ["cpu_1/x"], ["cpu_0/y"], (PROTO_CPU, 1))
    with pytest.raises(NetError, match="output 'cpu_0/y' is on CPU 0"):
        check_devices(net(wrong), devices=TWO_CPUS)


def test_the_remedy_has_one_scope():
    """Of a name that had a scope when the builder of a replica added another one."""
    (fault,) = device_faults(net(op("Relu", ["cpu_0/cpu_0/x"], ["cpu_1/y"], (PROTO_CPU, 1))), devices=TWO_CPUS)
    assert "use 'cpu_1/x', or copy" in fault.remedy


def test_a_name_that_only_looks_like_a_replica_belongs_to_none():
    """CPU 7 has no replica here, so cpu_7/ is a scope like any other; so is cpu_util/."""
    fine = op("Sum", ["cpu_1/x", "cpu_7/x", "cpu_util/x", "x"], ["cpu_1/y"], (PROTO_CPU, 1))
    check_devices(net(fine), devices=TWO_CPUS)


MAY_CROSS = """
    Allgather Allreduce AllreduceBucket Broadcast BroadcastBucket Concat Copy CopyCPUToGPU CopyFromCPUInput
    CopyGPUToCPU CopyOnDeviceLike EnsureCPUOutput GatherFromOwners LookupRows NCCLAllGather NCCLAllreduce NCCLBroadcast
    NCCLReduce NCCLReduceScatter Reduce ReduceScatter ReduceToOwners RowsToOwners
""".split()


def test_no_other_types_of_operators_may_cross_devices():
    assert sorted(CROSSING) == MAY_CROSS


def crossing(op_type, devices):
    """Return a net of an operator on the second device that reads a blob of the first."""
    word, place = devices.word, (devices.device_type, 1)
    return net(op(op_type, [f"{word}_0/x"], [f"{word}_1/x"], place))


@pytest.mark.parametrize("devices", [TWO_CPUS, TWO_GPUS], ids=["cpu", "gpu"])
@pytest.mark.parametrize("op_type", MAY_CROSS)
def test_operators_that_cross_devices_are_omitted(op_type, devices):
    check_devices(crossing(op_type, devices), devices=devices)


@pytest.mark.parametrize("devices", [TWO_CPUS, TWO_GPUS], ids=["cpu", "gpu"])
@pytest.mark.parametrize("op_type", ["CopyRows", "MyConcat", "Slice", "NCCLLike"])
def test_types_are_matched_exactly(op_type, devices):
    assert list(device_faults(crossing(op_type, devices), devices=devices))


def test_only_sums_of_an_allreduce_are_omitted():
    check_devices(net(op("Sum", ["cpu_0/g", "cpu_1/g"], ["cpu_0/g"])), devices=TWO_CPUS)
    check_devices(net(op("Sum", ["gpu_0/g", "gpu_1/g"], ["gpu_0/g"], (PROTO_CUDA, 0), name="dpm")), devices=TWO_GPUS)
    for wrong in (["cpu_0/g", "cpu_1/other"], ["cpu_1/g", "cpu_0/g"]):
        assert list(device_faults(net(op("Sum", wrong, ["cpu_0/g"])), devices=TWO_CPUS))
    assert list(device_faults(net(op("Sum", ["gpu_0/g", "gpu_1/g"], ["gpu_0/g"], (PROTO_CUDA, 0))), devices=TWO_GPUS))


def test_host_operators_in_a_net_for_gpus_are_omitted():
    ops = [
        op("Relu", ["gpu_0/x"], ["gpu_1/y"]),
        op("AtomicIter", ["mutex", "iteration"], ["iteration"], (PROTO_CUDA, 1)),
        op("LearningRate", ["iteration"], ["rate"], (PROTO_CUDA, 0)),
    ]
    check_devices(net(*ops), devices=TWO_GPUS)


def test_an_operator_told_to_run_on_the_cpu_is_that_of_the_replica_it_writes_for():
    """Scripts place operators of any replica, and helpers their counters, on "the CPU", which is CPU 0."""
    fine = [op("ConstantFill", [], ["cpu_1/ITER"]), op("Relu", ["cpu_1/x", "shared"], ["cpu_1/y"])]
    check_devices(net(*fine), devices=TWO_CPUS)
    for inputs, outputs in ((["cpu_0/x"], ["cpu_1/y"]), (["cpu_1/x"], ["cpu_0/y"]), (["cpu_1/x", "cpu_0/x"], ["y"])):
        assert list(device_faults(net(op("Relu", inputs, outputs)), devices=TWO_CPUS))


def test_a_blob_outside_the_replicas_is_on_the_gpu_that_makes_it():
    make = op("ConstantFill", [], ["one"], (PROTO_CUDA, 0))
    use = op("Relu", ["one"], ["gpu_1/y"], (PROTO_CUDA, 1))
    with pytest.raises(NetError, match="'one' is on GPU 0, but the operator runs on GPU 1"):
        check_devices(net(use), init_net=net(make), devices=TWO_GPUS)


def test_parameters_of_a_shared_model_are_everybodys():
    use = op("FC", ["cpu_1/x", "cpu_0/w", "cpu_0/b"], ["cpu_1/y"], (PROTO_CPU, 1))
    check_devices(net(use), devices=TWO_CPUS, shared=("cpu_0/w", "cpu_0/b"))
    assert [f.blob for f in device_faults(net(use), devices=TWO_CPUS, shared=("cpu_0/w",))] == ["cpu_0/b"]


def test_nets_that_operators_hold_are_looked_at():
    inner = net(op("Relu", ["cpu_0/x"], ["cpu_1/y"], (PROTO_CPU, 1)))
    outer = op("RecurrentNetwork", ["cpu_1/x"], ["cpu_1/y"], (PROTO_CPU, 1), step_net=inner)
    assert [(f.index, f.op.type, f.blob) for f in device_faults(net(outer), devices=TWO_CPUS)] == [
        (0, "Relu", "cpu_0/x")
    ]


def test_any_net_can_be_checked_by_its_operators_devices():
    good = net(op("Relu", ["x"], ["a"], (PROTO_CUDA, 2)), op("Relu", ["a"], ["b"], (PROTO_CUDA, 2)))
    check_devices(good)
    bad = net(op("Relu", ["x"], ["a"], (PROTO_CUDA, 2)), op("Relu", ["a"], ["b"], (PROTO_CUDA, 3)))
    with pytest.raises(NetError, match="'a' is on GPU 2, but the operator runs on GPU 3; copy it first"):
        check_devices(bad)


def test_a_net_may_be_given_as_such():
    net = Net("users")
    with DeviceScope(make_device_option(1, 0)):
        net.Relu("x", "y")
    with DeviceScope(make_device_option(1, 1)):
        net.Relu("y", "z")
    with pytest.raises(NetError, match=r"operator 1 Relu, made at .*test_device_check.py:\d+ in .*: input 'y' is on"):
        check_devices(net)
    with pytest.raises(NetError, match="expected a Net, a NetDef or its bytes, got 'users' of type str"):
        check_devices("users")


def test_a_net_wide_device_counts():
    inside = NetDef(name="net", op=[make_op("Relu", ["gpu_0/x"], ["gpu_1/y"])])
    inside.device_option.CopyFrom(make_device_option(PROTO_CUDA, 1))
    assert [fault.blob for fault in device_faults(inside, devices=TWO_GPUS)] == ["gpu_0/x"]


def test_many_faults_are_counted():
    wrong = net(*[op("Relu", [f"cpu_0/x{i}"], [f"cpu_1/y{i}"], (PROTO_CPU, 1)) for i in range(5)])
    with pytest.raises(NetError, match="operator 2 Relu.*; and 2 more"):
        check_devices(wrong, devices=TWO_CPUS)


PARALLEL = [n for n in golden_data.nets() if n.startswith(("dp_", "gpu_"))]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [name for name in PARALLEL if "shared_model" not in name])
def test_golden_nets_are_in_order(name):
    golden = golden_data.net(name)
    count = max(int(part) for part in name.split("_") if part.isdigit())
    devices = Devices(PROTO_CUDA if name.startswith("gpu_") else PROTO_CPU, tuple(range(count)))
    check_devices(golden.main, init_net=golden.init, devices=devices)
    check_devices(golden.init, devices=devices)
    check_devices(golden.main, init_net=golden.init)


def test_blob_devices_come_from_the_first_operator_that_touches_a_blob():
    init = net(op("ConstantFill", [], ["w"], (PROTO_CUDA, 1)))
    inner = net(op("Relu", ["h"], ["s"], (PROTO_CUDA, 3)))
    main = net(
        op("FC", ["x", "w"], ["y"], (PROTO_CUDA, 2)),
        op("AtomicIter", ["mutex", "iteration"], ["iteration"], (PROTO_CUDA, 2)),
        op("RecurrentNetwork", ["y"], ["z"], (PROTO_CUDA, 2), step_net=inner),
    )
    found = {blob: (d.device_type, d.device_id) for blob, d in blob_devices([init, main]).items()}
    assert found == {
        "w": (1, 1),
        "x": (1, 2),
        "y": (1, 2),
        "mutex": (0, 0),
        "iteration": (0, 0),
        "z": (1, 2),
        "h": (1, 3),
        "s": (1, 3),
    }


@pytest.mark.parametrize(
    ("inputs", "output"),
    [(["gpu_0/a", "gpu_1/b"], "gpu_0/a"), (["gpu_0/a", "gpu_1/a"], "gpu_0/dpm"), (["gpu_0/a", "gpu_1/dpm"], "gpu_0/a")],
)
def test_a_users_operator_called_as_the_sums_of_an_allreduce_is_checked(inputs, output):
    wrong = op("Sum", inputs, [output], (PROTO_CUDA, 0), name="dpm")
    with pytest.raises(NetError, match="is on GPU 1"):
        check_devices(net(wrong), devices=TWO_GPUS)


def test_a_sum_over_a_copy_made_near_by_is_omitted():
    copy = op("Copy", ["gpu_1/g"], ["gpu_1/near"], (PROTO_CUDA, 0))
    near = op("Sum", ["gpu_0/g", "gpu_1/near"], ["gpu_0/g"], (PROTO_CUDA, 0), name="dpm")
    check_devices(net(copy, near), devices=TWO_GPUS)
    with pytest.raises(NetError, match="input 'gpu_1/near' is on GPU 1"):
        check_devices(net(near), devices=TWO_GPUS)


def no_input(model):
    pass


def leaking(part):
    """Return a builder of losses whose second replica reads, or initializes from, a blob of the first one."""

    def forward(model, loss_scale):
        place = model.net if part == "main" else model.param_init_net
        if str(scoped("x")).split("_")[1].startswith("1"):
            other = BlobReference(str(scoped("x")).replace("_1/", "_0/"))
            place.Copy(other, scoped("x")) if part == "copied" else place.Relu(other, scoped("x"))
        else:
            model.param_init_net.ConstantFill([], scoped("x"), shape=[2, 3], value=1.0)
        loss = model.net.AveragedLoss(brew.fc(model, scoped("x"), "fc", 3, 1), "loss")
        return [model.net.Scale(loss, "loss", scale=loss_scale)]

    return forward


def scoped(name):
    return ScopedBlobReference(name)


def updates(model):
    return build_sgd(model, 0.1)


@pytest.mark.filterwarnings("ignore:GPUs .* are not on this machine", "ignore:.*no NVIDIA GPU")
@pytest.mark.parametrize("part", ["main", "init"])
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_data_parallel_models_are_checked_when_they_are_built(kind, part):
    make = {"cpu": parallel.Parallelize_CPU, "gpu": parallel.Parallelize_GPU}[kind]
    with pytest.raises(NetError, match=f"Relu, made at .*: input '{kind}_0/x' is on {kind.upper()} 0, but the oper"):
        make(ModelHelper("leaks"), no_input, leaking(part), optimizer_builder_fun=updates, devices=[0, 1])
    make(ModelHelper("fine"), no_input, leaking("copied"), optimizer_builder_fun=updates, devices=[0, 1])


def test_other_models_are_checked_on_request_alone():
    """Names that look like those of replicas may be anything there."""
    model, workspace = ModelHelper("plain"), Workspace()
    workspace.feed("cpu_0/x", np.float32([-1, 2]))
    with DeviceScope(make_device_option(PROTO_CPU, 1)):
        model.net.Relu("cpu_0/x", "cpu_1/y")
    workspace.create_net(model.net)
    workspace.run_net(model.net)
    assert workspace.fetch("cpu_1/y").tolist() == [0, 2]
    with pytest.raises(NetError, match="input 'cpu_0/x' is on CPU 0"):
        check_devices(model.net.Proto(), devices=TWO_CPUS)
