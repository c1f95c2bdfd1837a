"""Reductions of rows by segments and their gradients on a GPU, against NumPy in float64."""

import numpy as np
import pytest

from netbuilder.proto import NetDef, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from on_gpu import ON_GPU, graphs, launched, run_net
from switches import single

pytestmark = pytest.mark.gpu

RNG = np.random.default_rng(5)
LENGTHS = {"mixed": [3, 0, 1, 7, 2], "empty": [0, 0], "none": [], "one": [13], "many": [1] * 300}


def reference(how, x, lengths, indices=None, weights=None):
    rows = x.astype(np.float64) if indices is None else x.astype(np.float64)[indices]
    if weights is not None:
        rows = rows * weights.astype(np.float64).reshape(-1, *[1] * (x.ndim - 1))
    ends = np.cumsum(lengths, dtype=int)
    found = []
    for begin, end in zip(ends - np.int64(lengths), ends):
        part = rows[begin:end]
        found.append({"sum": np.sum, "mean": np.mean, "max": np.max}[how](part, axis=0) if end > begin else 0 * x[0])
    return np.array(found).reshape(len(lengths), *x.shape[1:])


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("shape", [(11, 5), (11, 1), (11, 2, 3), (11,), (11, 257)])
def test_gathered_rows(shape, lengths, dtype):
    lengths = np.int32(LENGTHS[lengths])
    x, count = RNG.standard_normal(shape).astype(dtype), int(lengths.sum())
    indices = RNG.integers(0, 11, count).astype(np.int64)
    weights = RNG.random(count).astype("float32" if dtype == "float16" else dtype)
    ops = [make_op(f"SparseLengths{how}", ["x", "i", "l"], [how]) for how in ("Sum", "Mean", "Max")]
    ops.append(make_op("SparseLengthsWeightedSum", ["x", "w", "i", "l"], ["weighted"]))
    with launched() as launches:
        found = run_net(ops, {"x": x, "i": indices, "l": lengths, "w": weights}, ["Sum", "Mean", "Max", "weighted"])
    assert not count or sum(title.startswith("rows") for title in launches) == 4
    tolerance = 1e-12 if dtype == "float64" else 1e-5
    for name, wanted in (
        ("Sum", reference("sum", x, lengths, indices)), ("Mean", reference("mean", x, lengths, indices)),
        ("Max", reference("max", x, lengths, indices)), ("weighted", reference("sum", x, lengths, indices, weights)),
    ):  # fmt: skip
        assert found[name].shape == wanted.shape
        np.testing.assert_allclose(found[name], wanted, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_rows_and_gradients(lengths):
    lengths = np.int32(LENGTHS[lengths])
    count, width = int(lengths.sum()), 6
    feeds = {"x": RNG.standard_normal((count, width)).astype(np.float32), "l": lengths}
    feeds |= {"w": RNG.random(count).astype(np.float32), "i": RNG.integers(0, 9, count)}
    feeds["dy"] = RNG.standard_normal((len(lengths), width)).astype(np.float32)
    pairs = {
        "sum": ("LengthsSum", ["x", "l"]),
        "mean": ("LengthsMean", ["x", "l"]),
        "weighted": ("LengthsWeightedSum", ["x", "w", "l"]),
        "d_sum": ("LengthsIndicesInGradientSumGradient", ["dy", "l", "x"]),
        "d_mean": ("LengthsIndicesInGradientMeanGradient", ["dy", "l", "x"]),
        "d_weighted": ("LengthsWeightedSumGradient", ["w", "dy", "l"]),
        "v_sum": ("SparseLengthsIndicesInGradientSumGradient", ["dy", "l", "i"]),
        "v_mean": ("SparseLengthsIndicesInGradientMeanGradient", ["dy", "l", "i"]),
        "v_weighted": ("SparseLengthsIndicesInGradientWeightedSumGradient", ["w", "dy", "l", "i"]),
    }
    found = run_net([make_op(t, ins, [out]) for out, (t, ins) in pairs.items()], feeds, list(pairs))
    x, dy, w = (feeds[name].astype(np.float64) for name in ("x", "dy", "w"))
    rows = np.repeat(dy, lengths, axis=0)
    shares = np.repeat(dy / np.maximum(lengths, 1)[:, None], lengths, axis=0)
    blank = np.zeros((1, width))
    wanted = {"d_sum": rows, "d_mean": shares, "d_weighted": rows * w[:, None]}
    wanted |= {f"v_{name[2:]}": value for name, value in wanted.items()}
    for how, name, weights in (("sum", "sum", None), ("mean", "mean", None), ("sum", "weighted", w)):
        wanted[name] = reference(how, x if count else blank, lengths, None if count else np.int64([]), weights)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value.reshape(found[name].shape), rtol=1e-5, atol=1e-6, err_msg=name)


def test_wrong_lengths_are_an_error_at_once():
    feeds = {"x": np.ones((4, 2), np.float32), "l": np.int32([3, 2])}
    with pytest.raises(ShapeError, match=r"LengthsSum \['x', 'l'\].*number of rows, 4, got 5"):
        run_net([make_op("LengthsSum", ["x", "l"], ["y"])], feeds, ["y"])


def test_graphs_contain_them_and_get_the_lengths_of_each_run():
    x, indices = RNG.standard_normal((9, 4)).astype(np.float32), RNG.integers(0, 9, 12)
    ops = [
        make_op("SparseLengthsSum", ["x", "i", "l"], ["sums"]),
        make_op("Scale", ["sums"], ["dy"], scale=2.0),
        make_op("SparseLengthsIndicesInGradientMeanGradient", ["dy", "l", "i"], ["rows"]),
    ]
    net = NetDef(name="net", op=ops)
    net.device_option.CopyFrom(ON_GPU)
    workspace = Workspace(threads=1)
    workspace.feed("x", x, ON_GPU)
    workspace.feed("i", indices, ON_GPU)
    workspace.feed("l", np.int32([3, 4, 5]))
    workspace.create_net(net)
    workspace.run_net("net", 3)
    for lengths in ([5, 0, 7], [0, 12, 0]):
        workspace.feed("l", np.int32(lengths))
        workspace.run_net("net")
        assert max(graphs(workspace)) == 0
        wanted = reference("sum", x, lengths, indices)
        np.testing.assert_allclose(workspace.fetch("sums"), wanted, rtol=1e-5, atol=1e-6)
        rows = np.repeat(2 * wanted / np.maximum(lengths, 1)[:, None], lengths, axis=0)
        np.testing.assert_allclose(workspace.fetch("rows"), rows, rtol=1e-5, atol=1e-6)
    workspace.feed("l", np.int32([3, 4, 6]))
    with pytest.raises(ShapeError, match="SparseLengthsSum.*the number of rows, 12, got 13"):
        workspace.run_net("net")


def test_results_are_the_same_in_each_run():
    feeds = {"x": RNG.standard_normal((50, 33)).astype(np.float32), "l": np.int32([1000, 24])}
    feeds["i"] = RNG.integers(0, 50, 1024)
    op = make_op("SparseLengthsSum", ["x", "i", "l"], ["y"])
    first = run_net([op], feeds, ["y"])["y"]
    np.testing.assert_array_equal(run_net([op], feeds, ["y"], runs=3)["y"], first)


def test_rows_are_added_in_order_on_request():
    """Without atomic_sums, repeated rows are sorted: the sums are those of a loop, to the bit, in each run."""
    indices, rows = RNG.integers(0, 7, 400), RNG.standard_normal((400, 5)).astype(np.float32)
    feeds = {"i": indices, "v": rows, "t": np.zeros((7, 5), np.float32)}
    ops = [make_op("SparseToDense", ["i", "v", "t"], ["y"]), make_op("SumRepeatedRows", ["i", "v"], ["rows", "sums"])]
    ops.append(make_op("UnsortedSegmentSum", ["v", "i"], ["z"], num_segments=7))
    wanted = np.zeros((7, 5), np.float32)
    for index, row in zip(indices, rows):
        wanted[index] += row
    found = run_net(ops, feeds, ["y", "z", "sums"], without=single("atomic_sums"))
    atomic = run_net(ops, feeds, ["y"])
    for name, value in found.items():
        np.testing.assert_array_equal(value, wanted, err_msg=name)
    np.testing.assert_allclose(atomic["y"], wanted, rtol=1e-5, atol=1e-5)
