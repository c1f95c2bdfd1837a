"""ReservoirSampling, LastNWindowCollector, DataCouple."""

import threading

import numpy as np
import pytest

from checks import CPU, DEVICES, GPU, run_plain
from netbuilder.data.key_map import empty_map
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.ops.features.collectors import DataCouple, LastNWindowCollector, ReservoirSampling
from netbuilder.proto import PROTO_CUDA, ArgumentError, NetDef, NetError, ShapeError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, i64, refusal

OBJECT = TensorSpec((), STRING)
NONE = np.zeros(0, np.float32)


def started(op_type, device=CPU, count=np.int64, ids=False, **arguments):
    """Return a function that runs the operator on data, again and again in one net, and the workspace."""
    workspace = Workspace()
    for name, value in {"rows": NONE, "n": np.array(0, count), "seen": np.int64([0]), "data": NONE}.items():
        workspace.feed(name, value)
    workspace.run_operator_once(make_op("CreateMutex", [], ["mutex"]))
    inputs, outputs = ["rows", "n", "data", "mutex"], ["rows", "n"]
    if ids:
        workspace.feed("map", empty_map(np.int64, np.int32))
        workspace.feed("which", np.zeros(0, np.int64))
        workspace.feed("ids", np.zeros(0, np.int64))
        inputs, outputs = [*inputs, "ids", "map", "which"], [*outputs, "map", "which"]
    elif op_type == "LastNWindowCollector":
        inputs, outputs = [*inputs, "seen"], [*outputs, "seen"]
    op = make_op(op_type, inputs, outputs, **arguments)
    if device == GPU:
        op.device_option.CopyFrom(make_device_option(PROTO_CUDA, 0))
    net = NetDef(name="collect", op=[op], external_input=inputs)
    workspace.create_net(net)

    def run(data, names=()):
        workspace.feed("data", np.asarray(data))
        if ids:
            workspace.feed("ids", np.int64(names))
        workspace.run_net("collect")
        return workspace.fetch("rows")

    return run, workspace


class _Collects(OperatorSuite):
    no_gradient = "it collects from run to run"

    left_out = {
        "test_forward": "it collects from run to run: see below",
        "test_inplace": "always; the outputs are inputs by must_inplace",
    }

    def draw(self, data):
        return self.operator(num_to_collect=2).with_arity(4, 2), [NONE, np.array(0), np.float32([1]), object()]


class TestReservoirSampling(_Collects):
    operator = ReservoirSampling
    refusals = (
        refusal(ReservoirSampling(), [f32(0), i64(), f32(2), OBJECT], "at least 1, got -1", ArgumentError),
        refusal(
            ReservoirSampling(num_to_collect=1),
            [f32(0), i64(), f32(2), OBJECT, i64(2)],
            "got 5 and 2",
            NetError,
            n_out=2,
        ),
    )


class TestLastNWindowCollector(_Collects):
    operator = LastNWindowCollector
    refusals = (
        refusal(LastNWindowCollector(num_to_collect=0), [f32(0), i64(), f32(2)], "at least 1, got 0", ArgumentError),
        refusal(
            LastNWindowCollector(num_to_collect=1), [f32(0), i64(), f32(2)], "got 3 inputs and 3", NetError, n_out=3
        ),
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("size", "steps", "rows", "places"),
    [
        (6, [[1, 2, 3, 4], [5, 6, 7], [8, 9, 10, 11]], [7, 8, 9, 10, 11, 6], [4, 1, 5]),
        (3, [[1, 2, 3], [4, 5, 6]], [4, 5, 6], [0, 0]),
        (3, [[1, 2], [3, 4, 5]], [4, 5, 3], [2, 2]),
        (3, [[1, 2], [3, 4, 5, 6]], [4, 5, 6], [2, 0]),
        (3, [[1], [], [2, 3, 4]], [4, 2, 3], [1, 1, 1]),
    ],
)
def test_the_last_rows_stand_where_caffe2_puts_them(size, steps, rows, places, device):
    run, workspace = started("LastNWindowCollector", device, np.int32, num_to_collect=size)
    found = []
    for step in steps:
        run(np.float32(step))
        found.append(int(workspace.fetch("n")))
    assert workspace.fetch("rows").tolist() == rows
    assert found == places
    assert workspace.fetch("seen").tolist() == [sum(map(len, steps))]
    assert workspace.fetch("n").dtype == np.int32


def test_rows_of_any_kind_are_collected():
    run, _ = started("LastNWindowCollector", count=np.int32, num_to_collect=2)
    run(np.float32([[1, 2], [3, 4]]))
    assert run(np.float32([[5, 6]])).tolist() == [[5, 6], [3, 4]]
    run, _ = started("LastNWindowCollector", count=np.int32, num_to_collect=2)
    assert run(np.array([b"a", b"b", b"c"], STRING)).tolist() == [b"b", b"c"]
    run, _ = started("ReservoirSampling", num_to_collect=3)
    matrices = np.arange(40, dtype=np.float32).reshape(10, 2, 2)
    run(matrices[:4])
    kept = run(matrices[4:])
    assert kept.shape == (3, 2, 2) and len({row.tobytes() for row in kept} & {row.tobytes() for row in matrices}) == 3


@pytest.mark.parametrize("device", DEVICES)
def test_a_reservoir_keeps_each_row_with_the_same_chance(device):
    kept = np.zeros(40)
    for seed in range(8 if device == GPU else 60):
        run, workspace = started("ReservoirSampling", device, num_to_collect=10)
        workspace.seed = seed
        for begin in range(0, 40, 8):
            rows = run(np.arange(begin, begin + 8))
            assert rows.size == min(begin + 8, 10) and len(set(rows.tolist())) == rows.size
        kept[rows] += 1
        assert workspace.fetch("n") == 40
    if device == CPU:
        shares = kept.reshape(4, 10).sum(axis=1) / 60 / 10
        assert (np.abs(shares - 0.25) < 0.08).all(), shares


def test_ids_are_kept_once():
    run, workspace = started("ReservoirSampling", ids=True, num_to_collect=3)
    run(np.float32([1, 2, 3]), [10, 20, 10])
    assert (workspace.fetch("rows").tolist(), int(workspace.fetch("n"))) == ([1, 2], 2)
    run(np.float32([4, 5]), [30, 20])
    assert (workspace.fetch("rows").tolist(), int(workspace.fetch("n"))) == ([1, 2, 4], 3)
    assert workspace.fetch("which").tolist() == [10, 20, 30]
    for k in range(20):
        names = np.arange(40 + 5 * k, 45 + 5 * k)
        run(names.astype(np.float32), names)
    assert int(workspace.fetch("n")) == 103
    where, rows = workspace.fetch("which").tolist(), workspace.fetch("rows").tolist()
    assert workspace.fetch("map") == {name: place for place, name in enumerate(where)}
    assert all(row == {10: 1, 20: 2, 30: 4}.get(name, name) for row, name in zip(rows, where))
    assert max(where) >= 40


@pytest.mark.parametrize(
    ("rows", "count", "data", "message"),
    [
        (np.ones((1, 2), np.float32), np.int64([0]), np.ones((1, 3), np.float32), r"of shape \(2,\) and float32, got"),
        (np.ones(1, np.float32), np.int64([0]), np.int32([1]), r"\(\) and int32"),
        (NONE, np.int32([0]), np.float32([1]), "NUM_VISITED must hold one int64, got shape .* of int32"),
        (NONE, np.int64([0]), np.float32(1), "DATA must have rows, got a scalar"),
    ],
)
def test_what_does_not_fit(rows, count, data, message):
    op = ReservoirSampling(num_to_collect=3).with_arity(4, 2)
    with pytest.raises((ShapeError, IndexError), match=message):
        run_plain(op, [rows, count, data, threading.Lock()])


def test_other_objects():
    with pytest.raises(ShapeError, match="input 3 must be what CreateMutex makes"):
        run_plain(ReservoirSampling(num_to_collect=3).with_arity(4, 2), [NONE, np.int64([0]), NONE, 3])
    with pytest.raises(ShapeError, match=r"NEXT must lie in \[0, 3\), got 3"):
        run_plain(LastNWindowCollector(num_to_collect=3).with_arity(3, 2), [NONE, np.int32([3]), NONE])


class TestDataCouple(OperatorSuite):
    operator = DataCouple
    no_gradient = "Caffe2 has none"
    refusals = (refusal(DataCouple(), [f32(2)], "got 1 inputs, 2 outputs", NetError, n_out=2),)

    def draw(self, data):
        return DataCouple().with_arity(2, 2), [np.float32([1]), np.int64([[2]])]

    def reference(self, op, *values):
        return list(values)


def test_what_reads_a_coupled_blob_waits_for_all_its_writers():
    ops = [make_op("ConstantFill", [], [name], shape=[3], value=2.0) for name in ("a", "b")]
    net = NetDef(name="n", type="dag", num_workers=2, op=[*ops, make_op("DataCouple", ["a", "b"], ["a", "b"])])
    net.op.append(make_op("Copy", ["b"], ["c"]))
    workspace = Workspace()
    workspace.run_net_once(net)
    assert workspace.fetch("c").tolist() == [2, 2, 2]
