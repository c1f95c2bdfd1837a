"""Allreduce, Reduce, Broadcast, Allgather, ReduceScatter: on one rank, and on several that are threads."""

import threading

import numpy as np
import pytest
from hypothesis import strategies as st

from collective_runs import OBJECT, alone, numbers, run_on_ranks
from netbuilder.ops.collectives.over_processes import Allgather, Allreduce, Broadcast, Reduce, ReduceScatter
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.proto import ArgumentError, DistributedError, NetDef, OperatorError, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, i32, refusal
from thread_ranks import on_ranks, thread_worlds

STRINGS = TensorSpec((2,), STRING)
BOOLS = TensorSpec((2,), np.dtype(np.bool_))
TYPES = [np.float32, np.float64, np.float16, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16]


class _OverProcesses(OperatorSuite):
    no_gradient = "it follows the backward pass"

    def draw(self, data):
        first = data.draw(floats((1, 3), (0, 3)))
        xs = [first, *(data.draw(floats(*first.shape)) for _ in range(data.draw(st.integers(0, 2))))]
        return self.operator().with_arity(1 + len(xs), len(xs)), [alone(), *xs]


class TestAllreduce(_OverProcesses):
    operator = Allreduce
    refusals = (
        refusal(Allreduce(), [f32(2), f32(2)], "input 0 must be a common world"),
        refusal(
            Allreduce(), [OBJECT, f32(2), f32(3)], r"input 2 of shape \(3,\), type float32 must have shape", n_out=2
        ),
        refusal(Allreduce(), [OBJECT, f32(2), i32(2)], "type int32 must have shape and type of input 1", n_out=2),
        refusal(Allreduce(), [OBJECT, BOOLS], "adds numbers, got input 1 of type bool"),
        refusal(Allreduce(), [OBJECT, STRINGS], "adds numbers, got input 1 of type string"),
        refusal(Allreduce(), [OBJECT, f32(2), f32(2)], "got 3 inputs and 1 outputs", ArgumentError, n_out=1),
    )

    def reference(self, op, world, *xs):
        return [np.sum(xs, axis=0)] * len(xs)


class TestBroadcast(_OverProcesses):
    operator = Broadcast
    refusals = (
        refusal(Broadcast(), [f32(2), f32(2)], "input 0 must be a common world"),
        refusal(Broadcast(), [OBJECT, f32(2), f32(3)], r"input 2 of shape \(3,\)", n_out=2),
    )

    def reference(self, op, world, *xs):
        return [xs[0]] * len(xs)


class TestReduce(OperatorSuite):
    operator = Reduce
    no_gradient = "it follows the backward pass"
    refusals = (
        refusal(Reduce(), [OBJECT, BOOLS], "adds numbers, got input 1 of type bool"),
        refusal(Reduce(), [f32(2), f32(2)], "input 0 must be a common world"),
    )

    def draw(self, data):
        return Reduce(), [alone(), data.draw(floats((0, 3), (1, 3)))]

    def reference(self, op, world, x):
        return [x]


class TestAllgather(OperatorSuite):
    operator = Allgather
    no_gradient = "it follows the backward pass"
    refusals = (
        refusal(Allgather(), [OBJECT, f32(2, 3), f32(2, 4)], r"input 2 of shape \(2, 4\), type float32 must have"),
        refusal(Allgather(), [OBJECT, STRINGS], "must be a tensor of numbers or bools, got strings"),
        refusal(Allgather(), [f32(2), f32(2)], "input 0 must be a common world"),
    )

    def draw(self, data):
        shape = data.draw(st.sampled_from([(), (2,), (3, 1, 2)]))
        xs = [data.draw(floats(*(((0, 3), *shape[1:]) if shape else ()))) for _ in range(data.draw(st.integers(1, 3)))]
        return Allgather().with_arity(1 + len(xs), 1), [alone(), *xs]

    def reference(self, op, world, *xs):
        return [np.concatenate([np.atleast_1d(x) for x in xs])]


class TestReduceScatter(OperatorSuite):
    operator = ReduceScatter
    no_gradient = "it follows the backward pass"
    refusals = (
        refusal(ReduceScatter(), [OBJECT, f32(2)], "blobs, and counts last; got 2 inputs", ArgumentError),
        refusal(ReduceScatter(), [OBJECT, f32(2), f32(2)], "must be counts, one int32 per rank", n_out=2),
        refusal(ReduceScatter(), [OBJECT, f32(2), f32(3), i32(2)], r"input 2 of shape \(3,\)", n_out=3),
    )

    def draw(self, data):
        x, y = data.draw(floats(2, 3)), data.draw(floats(2, 3))
        return ReduceScatter().with_arity(4, 3), [alone(), x, y, np.int32([6])]

    def reference(self, op, world, x, y, counts):
        return [x + y, x + y, counts]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("deterministic", [False, True])
def test_allreduce_sums_local_blobs_and_ranks(size, dtype, deterministic):
    blobs = [{"a": numbers(rank, dtype), "b": numbers(rank + 5, dtype)} for rank in range(size)]
    expected = sum(x.astype(np.float64) for each in blobs for x in each.values())
    for outputs in run_on_ranks("Allreduce", blobs, ["a", "b"], deterministic=deterministic):
        for y in outputs:
            assert y.dtype == dtype
            np.testing.assert_array_equal(y, expected)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [*TYPES, np.bool_])
@pytest.mark.parametrize("root", [0, 2])
def test_broadcast_of_every_type(dtype, root):
    blobs = [{"a": numbers(rank, dtype), "b": numbers(9, dtype)} for rank in range(3)]
    for outputs in run_on_ranks("Broadcast", blobs, ["a", "b"], root=root):
        for y in outputs:
            assert y.dtype == dtype
            np.testing.assert_array_equal(y, numbers(root, dtype))


def any_bits(rank, dtype):
    """Values of any size, NaN and infinities among them, others on each rank."""
    given = np.random.default_rng(rank).integers(0, 256, 16 * np.dtype(dtype).itemsize, np.uint8)
    return given.view(dtype) if dtype != np.bool_ else given > 127


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [*TYPES, np.bool_])
def test_copies_are_exact(dtype):
    """To the bit: what float32 cannot hold, such as large integers, too."""
    blobs = [{"a": any_bits(rank, dtype), "b": any_bits(9, dtype)} for rank in range(3)]
    for outputs in run_on_ranks("Broadcast", blobs, ["a", "b"], root=1):
        assert [y.tobytes() for y in outputs] == [any_bits(1, dtype).tobytes()] * 2
    for (y,) in run_on_ranks("Allgather", blobs, ["y"]):
        assert y.tobytes() == b"".join(x.tobytes() for each in blobs for x in each.values())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint16, np.float64])
@pytest.mark.parametrize("op_type", ["Allreduce", "AllreduceBucket", "Reduce"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_sums_of_large_numbers_are_exact(dtype, op_type, deterministic):
    large = {np.int64: 2**60, np.int32: 2**28, np.uint16: 2**14, np.float64: 2**50}[dtype]
    blobs = [{"a": np.array([large + rank, rank], dtype)} for rank in range(3)]
    (y,), *_ = run_on_ranks(op_type, blobs, ["a"], deterministic=deterministic)
    assert y.dtype == dtype and y.tolist() == [3 * large + 3, 3]


def test_broadcast_of_strings():
    words = [[b"a", b"", b"bcd"], [b"long enough", b"\0\0", "Ü".encode()], [b"x"] * 3]
    blobs = [{"a": np.array(each, object)} for each in words]
    for (y,) in run_on_ranks("Broadcast", blobs, ["a"], root=1):
        assert y.tolist() == words[1]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64])
def test_reduce(dtype):
    blobs = [{"a": numbers(rank, dtype)} for rank in range(3)]
    found = [y for (y,) in run_on_ranks("Reduce", blobs, ["y"], root=1)]
    np.testing.assert_array_equal(found[1], sum(each["a"] for each in blobs))
    for rank in (0, 2):
        np.testing.assert_array_equal(found[rank], blobs[rank]["a"])


@pytest.mark.parametrize("dtype", [*TYPES, np.bool_])
def test_allgather_with_other_numbers_of_rows_on_each_rank(dtype):
    blobs = [{"a": numbers(rank, dtype, (rank, 2, 2)), "b": numbers(rank, dtype, (1, 2, 2))} for rank in range(3)]
    expected = np.concatenate([x for each in blobs for x in each.values()])
    for (y,) in run_on_ranks("Allgather", blobs, ["y"]):
        assert y.dtype == dtype
        np.testing.assert_array_equal(y, expected)


def test_allgather_of_scalars_and_of_nothing():
    for (y,) in run_on_ranks("Allgather", [{"a": np.float32(rank)} for rank in range(3)], ["y"]):
        assert y.tolist() == [0, 1, 2]
    for (y,) in run_on_ranks("Allgather", [{"a": np.zeros((0, 4), np.float32)}] * 2, ["y"]):
        assert y.shape == (0, 4)


def test_reduce_scatter():
    counts = np.int32([5, 0, 7])
    blobs = [{"a": numbers(rank), "b": numbers(1), "counts": counts} for rank in range(3)]
    total = sum(x for each in blobs for name, x in each.items() if name != "counts").ravel()
    found = run_on_ranks("ReduceScatter", blobs, ["a", "b", "counts"])
    for rank, (a, b, same) in enumerate(found):
        start, count = counts[:rank].sum(), counts[rank]
        expected = [blobs[rank]["a"].ravel().copy(), blobs[rank]["b"].ravel().copy()]
        for x, y in zip(expected, (a, b)):
            x[:count] = total[start : start + count]
            np.testing.assert_array_equal(y.ravel(), x)
        np.testing.assert_array_equal(same, counts)


def test_other_counts_on_each_rank():
    blobs = [{"a": numbers(0), "counts": np.int32([12 - rank, rank])} for rank in range(2)]
    for error in run_on_ranks("ReduceScatter", blobs, ["a", "counts"]):
        assert isinstance(error, ShapeError | OperatorError)
        assert "counts must be the same on all ranks, got [[12, 0], [11, 1]]" in str(error)


@pytest.mark.parametrize("op_type", ["Broadcast", "BroadcastBucket", "Reduce"])
def test_the_root_is_a_rank(op_type):
    for error in run_on_ranks(op_type, [{"x": numbers(0)}] * 2, ["x"], root=2):
        assert isinstance(error, ArgumentError)
        assert f"{op_type}: root must lie in [0, 2), the ranks of the common world, got 2" in str(error)


def test_other_shapes_on_each_rank_are_an_error_on_all():
    blobs = [{"x": numbers(0, shape=(3, 4 + rank // 2))} for rank in range(3)]
    errors = run_on_ranks("Allreduce", blobs, ["x"])
    for error in errors:
        assert isinstance(error, DistributedError)
        assert "net 'collective', operator 0: Allreduce ['cw', 'x'] -> ['x']" in str(error)
        assert "ranks 0, 1: Allreduce of 'x' ((3, 4) float32" in str(error)
        assert "rank 2: Allreduce of 'x' ((3, 5) float32" in str(error)
    assert len({str(error).partition("DistributedError: ")[2] for error in errors}) == 1


def test_an_error_of_one_rank_reaches_the_others():
    worlds = thread_worlds(2)

    def work(rank):
        workspace = Workspace(threads=1)
        workspace.feed("cw", worlds[rank])
        workspace.feed("x", np.ones(3, np.float32))
        workspace.feed("ok", np.array([rank == 0]))
        net = NetDef(name="n")
        net.op.extend([make_op("Allreduce", ["cw", "x"], ["x"])])
        if rank:
            net.op.append(make_op("Fail", [], []))
        net.op.append(make_op("Allreduce", ["cw", "x"], ["x"]))
        workspace.create_net(net)
        workspace.run_net("n")

    first, second = on_ranks(2, work)
    assert "Fail" in str(second) and not isinstance(second, DistributedError)
    assert isinstance(first, DistributedError) and "rank 1 of 2 has failed" in str(first)
    assert "operator 1: Fail" in str(first), "the other rank's error says where it failed"


def backward_net(name="n"):
    """A chain of products; the collective of the first gradient is written last and needed by nobody."""
    net = NetDef(name=name)
    net.op.append(make_op("MatMul", ["a", "a"], ["g"]))
    net.op.append(make_op("MatMul", ["a", "a"], ["h"]))
    net.op.append(make_op("Sigmoid", ["h"], ["h2"]))
    net.op.append(make_op("Allreduce", ["cw", "g"], ["g"]))
    net.op.append(make_op("Allreduce", ["cw", "h2"], ["h2"]))
    net.op.append(make_op("Scale", ["h2"], ["y"], scale=2.0))
    net.op.append(make_op("Scale", ["g"], ["z"], scale=2.0))
    return net


def test_a_plan_begins_a_collective_when_its_blob_is_ready_and_waits_when_the_sum_is_read():
    workspace = Workspace(threads=1)
    workspace.feed("cw", alone())
    workspace.feed("a", np.eye(4, dtype=np.float32))
    net = workspace.net(workspace.create_net(backward_net()))
    workspace.run_net("n")
    [plan] = net.plan_ahead()
    order = [(step.node.first.op_def.type, step.kind.name) for step in plan.steps]
    assert [what for what, kind in order if kind != "WAIT"] == (
        ["MatMul", "Allreduce", "MatMul", "Sigmoid", "Allreduce", "Scale", "Scale"]
    )
    waits = [index for index, (_, kind) in enumerate(order) if kind == "WAIT"]
    assert [order[index + 1][0] for index in waits] == ["Scale", "Scale"]


def test_the_lane_works_while_the_plan_goes_on():
    """Rank 1 begins its first collective only when rank 0 has computed past its own."""
    worlds, passed = thread_worlds(2), threading.Event()

    def work(rank):
        workspace = Workspace(threads=1)
        workspace.feed("cw", worlds[rank])
        workspace.feed("x", np.ones(4, np.float32))
        workspace.feed("w", np.ones(4, np.float32))
        net = NetDef(name="n")
        net.op.append(make_op("Allreduce", ["cw", "x"], ["x"]))
        net.op.append(make_op("Scale", ["w"], ["v"], scale=3.0))
        net.op.append(make_op("Scale", ["x"], ["y"], scale=2.0))

        def run(plan):
            def then_note(index, call):
                if plan.steps[index].node.first.op_def.output[0] != "v":
                    return call
                return lambda: (call(), passed.set())

            plan.with_calls(then_note).run()

        runtime = workspace.net(workspace.create_net(net))
        if rank:
            assert passed.wait(10)
            workspace.run_net("n")
        else:
            runtime.run_by(run, runtime.run_alone)
        return workspace.fetch("y").tolist()

    assert on_ranks(2, work) == [[4.0] * 4] * 2


def test_collectives_of_a_net_with_several_lanes_keep_the_order_of_the_net():
    size = 2
    worlds = thread_worlds(size)

    def work(rank):
        workspace = Workspace(threads=2)
        workspace.feed("cw", worlds[rank])
        net = NetDef(name="n", type="dag", num_workers=4)
        for device in range(2):
            workspace.feed(f"x{device}", np.full(50, rank + device, np.float32))
            for turn in range(4):
                op = make_op("Scale", [f"x{device}"], [f"x{device}{turn}"], scale=float(turn + 1))
                op.device_option.device_id = device
                net.op.append(op)
        for turn in range(4):
            for device in range(2):
                op = make_op("Allreduce", ["cw", f"x{device}{turn}"], [f"x{device}{turn}"])
                op.device_option.device_id = device
                net.op.append(op)
        workspace.create_net(net)
        for _ in range(5):
            workspace.run_net("n")
        return [workspace.fetch(f"x{device}{turn}")[0] for device in range(2) for turn in range(4)]

    expected = [sum((rank + device) * (turn + 1) for rank in range(size)) for device in range(2) for turn in range(4)]
    assert on_ranks(size, work) == [expected] * size
