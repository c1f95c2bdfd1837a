"""Operators that must not divide a CUDA graph: products in any type without cuDNN, and what reads rows by index."""

import numpy as np
import pytest

from netbuilder.proto import PROTO_CUDA, NetDef
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from on_gpu import gpus

GPU = make_device_option(PROTO_CUDA, 0)
ROWS = {"indices": np.int32([3, 1, 3, 0]), "g": (4, 6), "t": (7, 6), "rate": np.float32([0.1])}
ON_HOST = {"count"}

PRODUCTS = {
    "FC": ([("FC", ["x", "w", "b"], ["y"]), ("FCGradient", ["x", "w", "y"], ["dw", "db", "dx"])],
           {"x": (4, 6), "w": (5, 6), "b": (5,)}),
    "MatMul": ([("MatMul", ["x", "w"], ["y"])], {"x": (4, 6), "w": (6, 5)}),
    "BatchMatMul": ([("BatchMatMul", ["x", "w"], ["y"])], {"x": (3, 4, 6), "w": (3, 6, 5)}),
    "Softmax": ([("Softmax", ["x"], ["y"])], {"x": (4, 6)}),
    "Gather": ([("Gather", ["t", "indices"], ["y"])], ROWS),
}  # fmt: skip
UPDATES = {
    "SparseAdagrad": (["t", "m", "indices", "g", "rate"], ["t", "m"], {"m": (7, 6)}),
    "RowWiseSparseAdagrad": (["t", "m", "indices", "g", "rate"], ["t", "m"], {"m": (7,)}),
    "SparseMomentumSGDUpdate": (["g", "m", "rate", "t", "indices"], ["g", "m", "t"], {"m": (7, 6)}),
    "SparseAdam": (["t", "m", "v", "indices", "g", "rate", "count"], ["t", "m", "v"],
                   {"m": (7, 6), "v": (7, 6), "count": np.int64([3])}),
    "SparseFtrl": (["t", "n", "indices", "g"], ["t", "n"], {"n": (7, 6, 2)}),
    "ScatterWeightedSum": (["t", "one", "indices", "g", "rate"], ["t"], {"one": np.float32([1])}),
    "SparseToDense": (["indices", "g", "t"], ["y"], {}),
}  # fmt: skip


def graphs_of(ops, values, dtype):
    """Run operators between two others; return which graph each is in, and how many launches a replayed run has."""
    rng = np.random.default_rng(0)
    with gpus(1) as machine:
        workspace = Workspace(threads=1)
        for name, value in {"first": (3, 3), **values}.items():
            array = value if isinstance(value, np.ndarray) else rng.random(value).astype(dtype)
            workspace.feed(name, array, None if name in ON_HOST else GPU)
        ops = [("Relu", ["first"], ["second"]), *ops, ("Relu", ["second"], ["third"])]
        net = NetDef(name="net", type="simple", op=[make_op(*op, device_option=GPU) for op in ops])
        workspace.create_net(net, without="fusion")
        for _ in range(5):
            workspace.run_net("net")
        before = machine.counts_of_thread.copy()
        workspace.run_net("net")
        (plan,) = workspace.net("net").plan_ahead()
        counts = machine.counts_of_thread - before
        return [each.graph for each in plan.captured()], (counts["replays"], counts["launches"])


@pytest.mark.emulated
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_without_cudnn_divide_no_graph(name, dtype):
    ops, values = PRODUCTS[name]
    graphs, launched = graphs_of(ops, values, dtype)
    assert graphs == [0] * (len(ops) + 2)
    assert launched == (1, 0)


@pytest.mark.emulated
@pytest.mark.parametrize("name", UPDATES)
def test_sparse_updates_divide_no_graph(name):
    inputs, outputs, values = UPDATES[name]
    graphs, launched = graphs_of([(name, inputs, outputs)], {**ROWS, **values}, "float32")
    assert graphs == [0] * 3
    assert launched == (1, 0)
