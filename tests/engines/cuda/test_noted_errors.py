"""Checks of labels and indices on a GPU: nothing waits within a step; the error comes at its end, with the operator."""

import numpy as np
import pytest

from emulated_gpu.machine import HOST
from netbuilder.proto import NetDef, OperatorError, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from on_gpu import ON_GPU, gpus, run_net

X = np.arange(12, dtype=np.float32).reshape(4, 3)
CASES = {
    "Gather": (
        [make_op("Gather", ["x", "i"], ["y"])],
        {"i": np.int64([0, 4, -5])},
        r"indices must lie in \[-4, 4\), got (4|-5)",
    ),
    "BatchGather": (
        [make_op("BatchGather", ["x", "i"], ["y"])], {"i": np.int32([0, -1])}, r"indices must lie in \[0, 3\), got -1"
    ),
    "SparseLengthsSum": (
        [make_op("SparseLengthsSum", ["x", "i", "l"], ["y"])],
        {"i": np.int32([0, 2**31 - 1]), "l": np.int32([2])},
        r"indices must lie in \[0, 4\), got 2147483647",
    ),
    "ScatterAssign": (
        [make_op("ScatterAssign", ["x", "i", "r"], ["x"])],
        {"i": np.int64([7]), "r": np.ones((1, 3), np.float32)},
        r"indices must lie in \[0, 4\), got 7",
    ),
    "SoftmaxWithLoss": (
        [make_op("SoftmaxWithLoss", ["x", "i"], ["p", "y"])],
        {"i": np.int32([0, 1, 3, 2])},
        r"labels must lie in \[0, 3\), the number of classes, got 3",
    ),
    "SparseToDense": (
        [make_op("SparseToDense", ["i", "r"], ["y"], output_first_dim=3)],
        {"i": np.int32([2**31 - 1]), "r": np.ones((1, 3), np.float32)},
        r"indices must lie in \[0, 3\), got 2147483647",
    ),
}  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("op_type", CASES)
def test_a_wrong_index_is_an_error_with_the_operator(op_type):
    ops, feeds, text = CASES[op_type]
    with pytest.raises((OperatorError, ShapeError), match=rf"net 'net', operator 0: {op_type} .* on GPU 0: .*{text}"):
        run_net(ops, {"x": X, **feeds}, ["y"])


@pytest.mark.parametrize("op_type", CASES)
def test_the_host_says_the_same(op_type):
    ops, feeds, text = CASES[op_type]
    with pytest.raises((OperatorError, ShapeError), match=rf"net 'net', operator 0: {op_type} .*{text}"):
        run_net(ops, {"x": X, **feeds}, ["y"], gpu=False)


@pytest.mark.gpu
def test_one_index_gathers_one_row():
    """Its shape has no axis, so Y has none in its place; also where nothing is prepared."""
    ops = [make_op("Gather", ["x", "i"], ["y"])]
    for without in ((), "all"):
        found = run_net(ops, {"x": X, "i": np.int32(2)}, ["y"], without=without)
        np.testing.assert_array_equal(found["y"], X[2])


@pytest.mark.gpu
def test_the_next_run_is_right_again():
    net = NetDef(name="net", op=[make_op("Gather", ["x", "i"], ["y"], device_option=ON_GPU)])
    workspace = Workspace()
    for name, value in {"x": X, "i": np.int64([9])}.items():
        workspace.feed(name, value, ON_GPU)
    workspace.create_net(net)
    with pytest.raises(IndexError, match="got 9"):
        workspace.run_net("net")
    workspace.feed("i", np.int64([3]), ON_GPU)
    workspace.run_net("net")
    np.testing.assert_array_equal(workspace.fetch("y"), X[[3]])


@pytest.mark.emulated
def test_a_step_reads_once():
    """A classifier with a lookup: one read of the note at the end, and no other."""
    ops = [
        make_op("Gather", ["table", "i"], ["x"]),
        make_op("SoftmaxWithLoss", ["x", "label"], ["p", "loss"]),
        make_op("ConstantFill", ["loss"], ["d_loss"], value=1.0),
        make_op("SoftmaxWithLossGradient", ["x", "label", "p", "d_loss"], ["dx"]),
        make_op("SparseToDense", ["i", "dx", "table"], ["d_table"]),
    ]
    feeds = {"table": X, "i": np.int64([1, 3, 1]), "label": np.int32([0, 2, 1])}
    with gpus(1) as machine:
        net = NetDef(name="net", op=ops)
        net.device_option.CopyFrom(ON_GPU)
        workspace = Workspace()
        for name, value in feeds.items():
            workspace.feed(name, value, ON_GPU)
        workspace.create_net(net)
        workspace.run_net("net")
        machine.transfers.clear()
        workspace.run_net("net")
        read = [transfer.nbytes for transfer in machine.transfers if transfer.target == HOST]
    assert read == [16]
