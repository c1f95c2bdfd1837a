"""Repeated positions on a GPU, without atomic sums: the last value is assigned, and nothing is added in any order."""

import numpy as np
import pytest

from netbuilder.engines.gpu import gpu
from netbuilder.ops.core.indexing import with_rows
from netbuilder.proto.arguments import make_op
from on_gpu import gpus, run_net
from switches import single

RNG = np.random.default_rng(5)


@pytest.mark.gpu
@pytest.mark.parametrize("count", [0, 1, 50])
def test_each_row_gets_its_last_value(count):
    table, rows, values = RNG.random((7, 2)), RNG.integers(0, 7, count), RNG.random((count, 2))
    expected = table.copy()
    for row, value in zip(rows, values):
        expected[row] = value
    np.testing.assert_array_equal(with_rows(np, table, rows, values), expected)
    with gpu(0) as here:
        found = with_rows(here.xp, *(here.xp.asarray(a) for a in (table, rows, values))).get()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.gpu
def test_scatter_assign_uses_the_last_row():
    indices, rows = np.int64([2, 0, 2, 2, 0]), RNG.random((5, 3)).astype(np.float32)
    op = make_op("ScatterAssign", ["x", "i", "r"], ["x"])
    found = run_net(
        [op], {"x": np.ones((4, 3), np.float32), "i": indices, "r": rows}, ["x"], without=single("atomic_sums")
    )
    np.testing.assert_array_equal(found["x"], np.float32([rows[4], [1, 1, 1], rows[3], [1, 1, 1]]))


CASES = {
    "MaxPoolWithIndexGradient": {"x": (1, 2, 4, 4), "dy": (1, 2, 2, 2), "i": np.zeros((1, 2, 2, 2), np.int32)},
    "QuantDecodeGradient": {"x": (5,), "i": np.int32([1, 1, 4, 1]), "dy": (4,)},
    "RoIPoolGradient": {
        "x": (1, 1, 4, 4), "rois": np.float32([[0, 0, 0, 3, 3]] * 3),
        "i": np.zeros((3, 1, 1, 1), np.int32), "dy": (3, 1, 1, 1),
    },
    "RoIAlignGradient": {"x": (1, 1, 4, 4), "rois": np.float32([[0, 0, 0, 3, 3]] * 3), "dy": (3, 1, 1, 1)},
}  # fmt: skip
INPUTS = {
    "MaxPoolWithIndexGradient": ["x", "dy", "i"],
    "QuantDecodeGradient": ["x", "i", "dy"],
    "RoIPoolGradient": ["x", "rois", "i", "dy"],
    "RoIAlignGradient": ["x", "rois", "dy"],
}
ARGUMENTS = {
    "MaxPoolWithIndexGradient": {"kernel": 2, "stride": 2},
    **dict.fromkeys(("RoIPoolGradient", "RoIAlignGradient"), {"pooled_h": 1, "pooled_w": 1}),
}


def sums(op_type):
    feeds = {
        name: RNG.random(value).astype(np.float32) if isinstance(value, tuple) else value
        for name, value in CASES[op_type].items()
    }
    return make_op(op_type, INPUTS[op_type], ["dx"], **ARGUMENTS.get(op_type, {})), feeds


@pytest.mark.gpu
@pytest.mark.parametrize("op_type", CASES)
def test_sums_in_order_are_those_of_the_cpu(op_type):
    op, feeds = sums(op_type)
    wanted = run_net([op], feeds, ["dx"], gpu=False)["dx"]
    for without in ([], single("atomic_sums")):
        np.testing.assert_allclose(run_net([op], feeds, ["dx"], without=without)["dx"], wanted, rtol=1e-5)


@pytest.mark.emulated
@pytest.mark.parametrize("op_type", CASES)
def test_sums_are_not_atomic(op_type):
    op, feeds = sums(op_type)
    launched = {}
    for without in ([], single("atomic_sums")):
        with gpus(1) as machine:
            run_net([op], feeds, [], without=without)
            launched[bool(without)] = [launch.name for launch in machine.launches]
    assert "cupy_scatter_add" in launched[False] and "cupy_scatter_add" not in launched[True]
