"""Nets on GPUs: where values are stored, how they are copied, errors."""

import threading

import numpy as np
import pytest

from netbuilder.data import BlobsQueue
from netbuilder.engines import gpu as engine
from netbuilder.engines.arrays import array_module, gpu_count
from netbuilder.engines.layouts import HOST
from netbuilder.ops.control.python_op import register
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, DeviceError, NetDef, ShapeError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace

X = np.float32([[1, -2, 3], [-4, 5, -6]])
EXECUTORS = ["simple", "dag"]


def gpu(number):
    return make_device_option(PROTO_CUDA, number)


def cpu(number=0):
    return make_device_option(PROTO_CPU, number)


def on(number, *args, **kwargs):
    return make_op(*args, device_option=gpu(number), **kwargs)


def net(*ops, type="simple", name="net", **fields):
    made = NetDef(name=name, type=type, num_workers=8, **fields)
    made.op.extend(ops)
    return made


def place(workspace, name):
    return workspace.get(name).location


def run(made, workspace=None, times=1, **blobs):
    workspace = workspace or Workspace(threads=4)
    for name, value in blobs.items():
        workspace.feed(name, value)
    workspace.create_net(made, overwrite=True)
    workspace.run_net(made.name, times)
    return workspace


# Feeding, fetching and copying.


def test_a_copy_of_an_array_that_is_not_contiguous(two_gpus):
    with engine.gpu(0) as here:
        value = here.xp.asarray(X).T
    with engine.gpu(1) as there:
        buffer = there.xp.zeros((3, 2), np.float32)
    wait = engine.begin_copy(buffer, value)
    wait()
    np.testing.assert_array_equal(engine.to_host(buffer), X.T)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int8, np.int64, np.uint16, np.bool_])
@pytest.mark.parametrize("shape", [(), (1,), (1, 3), (2, 3), (0, 3)])
def test_what_is_fed_to_a_gpu_comes_back(one_gpu, dtype, shape):
    value = (np.arange(np.prod(shape, dtype=int)) % 5).reshape(shape).astype(dtype)
    workspace = Workspace()
    workspace.feed("x", value, gpu(0))
    got = workspace.fetch("x")
    assert place(workspace, "x") == (PROTO_CUDA, 0)
    assert got.dtype == value.dtype and got.shape == shape
    np.testing.assert_array_equal(got, value)


def test_a_blob_stays_where_it_is_until_a_feed_says_otherwise(two_gpus):
    workspace = Workspace()
    for option, where in (
        (None, HOST),
        (gpu(1), (PROTO_CUDA, 1)),
        (None, (PROTO_CUDA, 1)),
        (gpu(0), (PROTO_CUDA, 0)),
        (cpu(3), HOST),
    ):
        workspace.feed("x", X + len(where), option)
        assert place(workspace, "x") == where
        np.testing.assert_array_equal(workspace.fetch("x"), X + len(where))
    workspace.feed("x", X, gpu(1))
    workspace.feed("x", np.float64([7]))  # another type and shape: a new value, on the host
    assert place(workspace, "x") == HOST


def test_views_and_foreign_byte_orders_are_fed_as_their_values(one_gpu):
    workspace = Workspace()
    for value in (X.T, X[:, ::-1], X.astype(">f4"), np.broadcast_to(np.float32(3), (2, 2))):
        workspace.feed("x", value, gpu(0))
        np.testing.assert_array_equal(workspace.fetch("x"), value)


def test_strings_and_objects_stay_on_the_host(one_gpu):
    workspace = Workspace()
    workspace.feed("s", np.array([b"a", b"bc"], object), gpu(0))
    queue = BlobsQueue(1, 1, "o")
    workspace.feed("o", queue, gpu(0))
    assert workspace.fetch("s").tolist() == [b"a", b"bc"] and workspace.fetch("o") is queue
    assert place(workspace, "s") == place(workspace, "o") == HOST


def test_an_array_of_a_gpu_can_be_fed_and_belongs_to_its_owner_still(one_gpu):
    given = array_module(PROTO_CUDA).asarray(X)
    workspace = Workspace()
    workspace.feed("x", given)
    workspace.feed("y", given, cpu())
    given[...] = 0
    np.testing.assert_array_equal(workspace.fetch("x"), X)
    np.testing.assert_array_equal(workspace.fetch("y"), X)
    assert place(workspace, "x") == (PROTO_CUDA, 0) and place(workspace, "y") == HOST


def test_a_copy_that_was_fetched_is_the_callers(one_gpu):
    workspace = Workspace()
    workspace.feed("x", X, gpu(0))
    workspace.fetch("x")[...] = 0
    np.testing.assert_array_equal(workspace.fetch("x"), X)


# Placement of operators and of their results.


@pytest.mark.parametrize("executor", EXECUTORS)
def test_operators_alternating_between_host_and_gpu(one_gpu, executor):
    made = net(
        on(0, "Relu", ["x"], ["a"]),
        make_op("Scale", ["a"], ["b"], scale=2.0, device_option=cpu()),
        on(0, "Negative", ["b"], ["c"]),
        make_op("Sum", ["a", "c"], ["d"]),
        type=executor,
    )
    workspace = run(made, x=X, times=3)
    np.testing.assert_array_equal(workspace.fetch("d"), -np.maximum(X, 0))
    places = {name: place(workspace, name) for name in "abcd"}
    assert places == {"a": (PROTO_CUDA, 0), "b": HOST, "c": (PROTO_CUDA, 0), "d": HOST}


def test_the_nets_device_is_that_of_operators_without_one(one_gpu):
    made = net(
        make_op("Relu", ["x"], ["y"]),
        make_op("Unique", ["i"], ["u"]),
        make_op("Negative", ["y"], ["z"], device_option=cpu()),
        device_option=gpu(0),
    )
    workspace = run(made, x=X, i=np.int32([3, 3, 1]))
    assert [place(workspace, name) for name in "yuz"] == [(PROTO_CUDA, 0), (PROTO_CUDA, 0), HOST]
    np.testing.assert_array_equal(workspace.fetch("z"), -np.maximum(X, 0))
    assert workspace.fetch("u").tolist() == [1, 3]


def test_operators_that_copy_leave_their_result_where_they_say(two_gpus):
    made = net(
        on(0, "CopyCPUToGPU", ["x"], ["a"]),
        on(1, "Copy", ["a"], ["b"]),
        on(1, "CopyGPUToCPU", ["b"], ["c"]),
        on(1, "EnsureCPUOutput", ["b"], ["d"]),
        on(0, "CopyFromCPUInput", ["d"], ["e"]),
        on(1, "CopyOnDeviceLike", ["b", "a"], ["f"]),
        on(0, "CopyOnDeviceLike", ["a", "c"], ["g"]),
        make_op("CopyGPUToCPU", ["f"], ["h"]),
    )
    workspace = run(made, x=X)
    zero, one = (PROTO_CUDA, 0), (PROTO_CUDA, 1)
    assert [place(workspace, name) for name in "abcdefgh"] == [zero, one, HOST, HOST, zero, zero, HOST, HOST]
    for name in "abcdefgh":
        np.testing.assert_array_equal(workspace.fetch(name), X)


def test_collectives_leave_every_result_with_its_replica(two_gpus):
    names = ["gpu_0/g", "gpu_1/g"]
    for op, want in (
        (on(0, "NCCLAllreduce", names, names), [3 * X, 3 * X]),
        (on(0, "NCCLBroadcast", names, names, root=1), [2 * X, 2 * X]),
        (on(0, "NCCLAllGather", names, ["gpu_0/all", "gpu_1/all"]), [np.stack([X, 2 * X])] * 2),
    ):
        workspace = Workspace()
        for number, name in enumerate(names):
            workspace.feed(name, X * (number + 1), gpu(number))
        run(net(op), workspace)
        for number, name in enumerate(op.output):
            assert place(workspace, name) == (PROTO_CUDA, number)
            np.testing.assert_array_equal(workspace.fetch(name), want[number])
    workspace.run_operator_once(on(0, "NCCLReduce", names, ["gpu_1/sum"], root=1))
    assert place(workspace, "gpu_1/sum") == (PROTO_CUDA, 1)
    np.testing.assert_array_equal(workspace.fetch("gpu_1/sum"), 3 * X)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_parameter_made_on_the_host_moves_to_the_gpu_that_updates_it(one_gpu, executor):
    made = net(
        on(0, "WeightedSum", ["w", "one", "g", "lr"], ["w"]), on(0, "SumElements", ["w"], ["total"]), type=executor
    )
    blobs = {"w": X, "one": np.ones(1, np.float32), "g": np.ones_like(X), "lr": np.float32([-0.5])}
    workspace = run(made, **blobs)
    assert place(workspace, "w") == (PROTO_CUDA, 0)
    workspace.run_net("net", 4)
    np.testing.assert_allclose(workspace.fetch("w"), X - 2.5)
    np.testing.assert_allclose(workspace.fetch("total"), (X - 2.5).sum())
    workspace.feed("w", X)
    workspace.run_net("net")
    np.testing.assert_allclose(workspace.fetch("w"), X - 0.5)


def test_other_shapes_between_runs(one_gpu):
    made = net(on(0, "Relu", ["x"], ["y"]), make_op("Negative", ["y"], ["z"]))
    workspace = Workspace()
    for rows in (2, 5, 2, 3, 5):
        x = np.arange(-rows, rows, dtype=np.float32).reshape(rows, 2)
        workspace.feed("x", x)
        if rows == 2 and not workspace.nets():
            workspace.create_net(made)
        workspace.run_net("net")
        np.testing.assert_array_equal(workspace.fetch("z"), -np.maximum(x, 0))


# Dynamic operators, and operators that hold functions or nets.


def test_operators_whose_shapes_depend_on_data(one_gpu):
    made = net(
        on(0, "Unique", ["i"], ["rows", "places"]),
        on(0, "Gather", ["table", "rows"], ["some"]),
        on(0, "Shape", ["some"], ["extents"]),
        make_op("Copy", ["extents"], ["on_host"]),
        on(0, "Range", ["stop"], ["counted"]),
        on(0, "Negative", ["some"], ["out"]),
    )
    table = np.arange(10, dtype=np.float32).reshape(5, 2)
    workspace = Workspace()
    for indices in ([4, 1, 4], [0], [3, 2, 1, 0]):
        run(made, workspace, i=np.int64(indices), table=table, stop=np.array(3, np.int32))
        np.testing.assert_array_equal(workspace.fetch("out"), -table[np.unique(indices)])
        assert workspace.fetch("on_host").tolist() == [len(set(indices)), 2]
        assert workspace.fetch("counted").tolist() == [0, 1, 2]


def test_python_functions_get_and_give_arrays_of_the_host(one_gpu):
    def f(inputs, outputs):
        assert isinstance(inputs[0].data, np.ndarray)
        outputs[0].feed(inputs[0].data * 2)

    made = net(
        on(0, "Relu", ["x"], ["a"]),
        on(0, "Python", ["a"], ["b"], token=register(f)),
        on(0, "Negative", ["b"], ["c"]),
    )
    workspace = run(made, x=X, times=2)
    assert place(workspace, "b") == (PROTO_CUDA, 0)
    np.testing.assert_array_equal(workspace.fetch("c"), -2 * np.maximum(X, 0))


def test_a_branch_on_another_device_than_its_operator(one_gpu):
    then = net(on(0, "Scale", ["x"], ["y"], scale=3.0), name="then")
    made = net(make_op("If", ["c", "x"], ["y"], then_net=then), make_op("Negative", ["y"], ["z"]))
    np.testing.assert_array_equal(run(made, x=X, c=np.array(True)).fetch("z"), -3 * X)
    condition = on(0, "If", ["c", "x"], ["y"], then_net=net(make_op("Scale", ["x"], ["y"], scale=3.0), name="then"))
    np.testing.assert_array_equal(run(net(condition), x=X, c=np.array(True)).fetch("y"), 3 * X)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.float16, np.float32])
def test_rows_of_every_type_are_added(one_gpu, dtype):
    values = np.array([[1, 2], [100, 120], [50, 60], [7, 8]], dtype)
    indices, like = np.int32([2, 0, 2, 2]), np.zeros((3, 1), np.float32)
    want = np.zeros((3, 2), dtype)
    np.add.at(want, indices, values)
    workspace = run(net(on(0, "SparseToDense", ["i", "v", "like"], ["y"])), i=indices, v=values, like=like)
    got = workspace.fetch("y")
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("op_type", ["UniformFill", "GaussianFill", "XavierFill", "MSRAFill", "UniformIntFill"])
def test_random_numbers_are_those_of_the_cpu(one_gpu, op_type):
    found = []
    for option in (cpu(), gpu(0)):
        workspace = Workspace(seed=5)
        workspace.run_operator_once(make_op(op_type, [], ["r"], shape=[50, 3], device_option=option))
        found.append(workspace.fetch("r"))
    np.testing.assert_allclose(*found, rtol=1e-6)


# Several at a time.


def exchange(type, steps):
    """Two GPUs and the host pass values around, many times."""
    ops = []
    for _ in range(3):
        ops += [
            on(0, "Scale", ["a"], ["a"], scale=0.5),
            on(1, "Sum", ["b", "a"], ["b"]),
            make_op("Scale", ["b"], ["h"], scale=0.25, device_option=cpu()),
            on(0, "Sum", ["a", "h"], ["a"]),
            on(1, "Copy", ["a"], ["c"]),
            on(1, "Sum", ["b", "c"], ["b"]),
        ]
    workspace = Workspace(threads=3)
    workspace.feed("a", X, gpu(0))
    workspace.feed("b", 2 * X, gpu(1))
    run(net(*ops, type=type), workspace, steps)
    return [workspace.fetch(name) for name in "abch"]


def test_devices_side_by_side_give_what_one_after_the_other_gives(two_gpus):
    want = exchange("simple", 4)
    for _ in range(10):
        for got, expected in zip(exchange("dag", 4), want):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_value_changed_between_its_readers(two_gpus, executor):
    """Each reader on the other GPU gets the value of its time, also where it reads what the host has made of it."""
    made = net(
        on(0, "Scale", ["x"], ["x"], scale=2.0),
        on(1, "Negative", ["x"], ["a"]),
        make_op("Scale", ["x"], ["h"], scale=3.0),
        on(0, "Scale", ["x"], ["x"], scale=2.0),
        on(1, "Negative", ["x"], ["b"]),
        on(1, "Sum", ["h", "a", "x"], ["c"]),
        type=executor,
    )
    workspace = Workspace(threads=3)
    workspace.feed("x", X, gpu(0))
    run(made, workspace)
    for name, factor in {"a": -2, "b": -4, "c": 6 - 2 + 4}.items():
        np.testing.assert_array_equal(workspace.fetch(name), factor * X)


def test_two_workspaces_in_two_threads_share_a_gpu(one_gpu):
    made = net(on(0, "Relu", ["x"], ["y"]), on(0, "Scale", ["y"], ["y"], scale=0.5), make_op("Negative", ["y"], ["z"]))
    failures = []

    def work(number):
        try:
            workspace = Workspace()
            for k in range(20):
                run(made, workspace, x=X + number + k)
                np.testing.assert_array_equal(workspace.fetch("z"), -0.5 * np.maximum(X + number + k, 0))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# Refusals.


def absent():
    return gpu_count() + 3


def message():
    present = list(range(gpu_count()))
    return rf"there is no GPU {absent()}; this machine has GPUs \[{', '.join(map(str, present))}\]"


@pytest.mark.parametrize("op_type, inputs", [("Relu", ["x"]), ("Unique", ["i"])])
def test_a_net_for_a_gpu_that_is_not_there_says_so_when_it_runs(two_gpus, op_type, inputs):
    workspace = Workspace()
    workspace.feed("x", X)
    workspace.feed("i", np.int32([1]))
    workspace.create_net(net(make_op("Copy", ["x"], ["y"]), on(absent(), op_type, inputs, ["z"])))
    where = rf"net 'net', operator 1: {op_type} \['{inputs[0]}'\] -> \['z'\] on GPU {absent()}: "
    with pytest.raises(DeviceError, match=where + message()):
        workspace.run_net("net")


def test_a_feed_to_a_gpu_that_is_not_there_leaves_no_blob(one_gpu):
    workspace = Workspace()
    with pytest.raises(DeviceError, match=message()):
        workspace.feed("x", X, gpu(absent()))
    assert not workspace.has("x")


@pytest.mark.skipif(gpu_count() > 0, reason="needs a machine without GPU")
def test_without_any_gpu_the_error_names_what_to_install():
    workspace = Workspace()
    workspace.feed("x", X)
    workspace.create_net(net(on(0, "Relu", ["x"], ["y"])))
    with pytest.raises(
        DeviceError, match=r"net 'net', operator 0: Relu .* on GPU 0: no NVIDIA GPU .*netbuilder-nn\[gpu"
    ):
        workspace.run_net("net")


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_error_on_a_gpu_names_the_operator_and_the_net_runs_again(two_gpus, executor):
    made = net(
        on(0, "Relu", ["x"], ["a"]),
        on(1, "LabelCrossEntropy", ["p", "label"], ["loss"]),
        on(0, "Negative", ["a"], ["b"]),
        type=executor,
    )
    p = np.float32([[0.5, 0.5], [0.25, 0.75]])
    workspace = Workspace(threads=2)
    where = r"net 'net', operator 1: LabelCrossEntropy \['p', 'label'\] -> \['loss'\] on GPU 1.*: labels must lie in"
    with pytest.raises(ShapeError, match=where):
        run(made, workspace, x=X, p=p, label=np.int32([0, 2]))
    workspace.feed("label", np.int32([0, 1]))
    workspace.run_net("net")
    np.testing.assert_allclose(workspace.fetch("loss"), -np.log([0.5, 0.75]), rtol=1e-6)
    np.testing.assert_array_equal(workspace.fetch("b"), -np.maximum(X, 0))
