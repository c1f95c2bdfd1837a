"""Gathered rows, sums of repeated rows and weighted sums into a table on a GPU, against NumPy in float64."""

import numpy as np
import pytest

from netbuilder.proto import ShapeError
from netbuilder.proto.arguments import make_op
from on_gpu import launched, run_net

pytestmark = pytest.mark.gpu

RNG = np.random.default_rng(2)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int64", "uint8", "bool"])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 3), (0,)])
def test_gather(shape, axis, dtype):
    x = RNG.integers(0, 90, (5, 4, 3)).astype(dtype)
    indices = RNG.integers(0 if axis else -5, x.shape[axis], shape).astype(np.int32)
    feeds, ops = {"x": x, "i": np.asarray(indices)}, [make_op("Gather", ["x", "i"], ["y"], axis=axis)]
    if axis == 1:
        ops.append(make_op("BatchGather", ["x", "i"], ["z"]))
    with launched() as launches:
        found = run_net(ops, feeds, [op.output[0] for op in ops])
    assert launches.count("rows_gathered") == (len(ops) if indices.size else 0)
    for value in found.values():
        np.testing.assert_array_equal(value, np.take(x, indices, axis))


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize(
    ("shape", "row"), [((50,), (3,)), ((4, 9), ()), ((3000,), (2, 2)), ((1,), (70,)), ((6,), (0,))]
)
def test_sums_of_repeated_rows(shape, row, dtype):
    indices, values = RNG.integers(0, 20, shape), RNG.normal(size=(*shape, *row)).astype(dtype)
    op = make_op("SumRepeatedRows", ["i", "v"], ["rows", "sums"], num_rows=20)
    with launched() as launches:
        found = run_net([op], {"i": indices, "v": values}, ["rows", "sums"], runs=2)
    assert "row_sums" in launches
    absent = found["rows"] == np.iinfo(indices.dtype).min
    dense = np.zeros((20, *row))
    np.add.at(dense, indices.reshape(-1), values.reshape(indices.size, *row).astype(np.float64))
    rows = found["rows"][~absent]
    np.testing.assert_array_equal(rows, np.unique(indices))
    tolerance = {"float16": 1e-2, "float32": 1e-5, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(found["sums"][~absent], dense[rows], rtol=tolerance, atol=tolerance)
    assert not found["sums"][absent].any()


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32", "int64", "uint8"])
@pytest.mark.parametrize(
    ("shape", "row"), [((50,), (3,)), ((4, 9), ()), ((3000,), (2, 2)), ((1,), (70,)), ((6,), (0,))]
)
def test_rows_added_into_zeros(shape, row, dtype):
    indices, like = RNG.integers(0, 20, shape).astype(np.int32), np.zeros((20, 1), np.int8)
    values = (RNG.normal(size=(*shape, *row)) * 9).astype(dtype)
    ops = [make_op("SparseToDense", ["i", "v", "like"], ["d"])]
    if len(shape) == 1 and values.dtype.kind == "f":
        ops += [make_op(f"UnsortedSegment{how}", ["v", "i"], [how], num_segments=20) for how in ("Sum", "Mean")]
    names = [op.output[0] for op in ops]
    with launched() as launches:
        found = run_net(ops, {"i": indices, "v": values, "like": like}, names, runs=4, threads=1)
    runs = 4 if len(ops) == 1 else 3  # the last of several operators is that of a graph
    assert launches.count("rows_added") == (runs * len(ops) if values.size else 0)
    wanted = np.zeros((20, *row), np.float64 if values.dtype.kind == "f" else dtype)
    flat = indices.reshape(-1)
    np.add.at(wanted, flat, values.reshape(flat.size, *row).astype(wanted.dtype))
    tolerance = {"float16": 1e-2, "float32": 1e-5}.get(dtype, 1e-12)
    counts = np.maximum(np.bincount(flat, minlength=20), 1).reshape(20, *(1 for _ in row))
    for name in names:
        exact = wanted / counts if name == "Mean" else wanted
        np.testing.assert_allclose(found[name], exact, rtol=tolerance, atol=10 * tolerance, err_msg=name)
        assert found[name].dtype == dtype


@pytest.mark.parametrize("factor", [1.0, 0.5])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("count", [1, 30, 2500])
def test_weighted_sums_into_a_table(count, dtype, factor):
    table, x1, x2 = (RNG.normal(size=(rows, 2, 3)).astype(dtype) for rows in (40, count, count))
    indices = RNG.integers(0, 40, count).astype(np.int32)
    feeds = {"t": table, "w0": np.float32([factor]), "i": indices, "x1": x1, "w1": np.float32([0.25])}
    feeds |= {"x2": x2, "w2": np.array([-0.5], dtype)}
    op = make_op("ScatterWeightedSum", ["t", "w0", "i", "x1", "w1", "x2", "w2"], ["t"])
    found = run_net([op], feeds, ["t"])["t"]
    wanted = table.astype(np.float64) * factor ** np.bincount(indices, minlength=40)[:, None, None]
    np.add.at(wanted, indices, 0.25 * x1.astype(np.float64) - 0.5 * x2.astype(np.float64))
    tolerance = {"float16": 1e-2, "float32": 1e-5, "float64": 1e-12}[dtype] * (10 if count > 1000 else 1)
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("op_type", ["SumRepeatedRows", "ScatterWeightedSum", "SparseToDense", "UnsortedSegmentSum"])
@pytest.mark.parametrize("wrong", [-1, np.iinfo(np.int64).min])
def test_a_wrong_index_is_an_error(op_type, wrong):
    if wrong < -1 and op_type in ("SumRepeatedRows", "ScatterWeightedSum"):
        pytest.skip("it names no row")
    feeds = {"t": np.ones((4, 2), np.float32), "i": np.int64([0, wrong]), "v": np.ones((2, 2), np.float32)}
    feeds["w"] = np.float32([1])
    op = make_op("SumRepeatedRows", ["i", "v"], ["rows", "sums"], num_rows=4)
    if op_type == "ScatterWeightedSum":
        op = make_op("ScatterWeightedSum", ["t", "w", "i", "v", "w"], ["t"])
    elif op_type == "SparseToDense":
        op = make_op(op_type, ["i", "v", "t"], ["rows"])
    elif op_type == "UnsortedSegmentSum":
        op = make_op(op_type, ["v", "i"], ["rows"], num_segments=4)
    feeds = {name: value for name, value in feeds.items() if name in op.input}
    with pytest.raises((IndexError, ShapeError), match=rf"{op_type}.*must lie in \[0, 4\), got {wrong}"):
        run_net([op], feeds, ["t" if op_type == "ScatterWeightedSum" else "rows"])
