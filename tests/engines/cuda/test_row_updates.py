"""Sorted row numbers, and updates of rows on a GPU: against NumPy in float64, repeated rows included."""

import numpy as np
import pytest

from checks import interpret
from netbuilder.engines.cuda.noted_errors import note_of
from netbuilder.engines.cuda.row_order import RowOrder
from netbuilder.engines.gpu import gpu
from netbuilder.ops.core.indexing import no_row
from netbuilder.proto import NetDef, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from on_gpu import ON_GPU, launched, run_net

pytestmark = pytest.mark.gpu

RNG = np.random.default_rng(11)
WIDE = ["param", "moment", "moment_1", "moment_2", "moment_delta"]
RULES = {
    "SparseAdagrad": ("param moment indices grad lr", "param moment", {"weight_decay": 0.01}),
    "RowWiseSparseAdagrad": ("param by_row indices grad lr counter", "param by_row",
                             {"weight_decay": 0.01, "counter_halflife": 3}),
    "SparseAdam": ("param moment_1 moment_2 indices grad lr iter", "param moment_1 moment_2 effective", {}),
    "SparseAdam of early steps": ("param moment_1 moment_2 indices grad lr early", "param moment_1 moment_2 effective",
                                  {"enableRAdam": 1}),
    "SparseAdam of later steps": ("param moment_1 moment_2 indices grad lr iter", "param moment_1 moment_2",
                                  {"enableRAdam": 1}),
    "RowWiseSparseAdam": ("param moment_1 by_row indices grad lr iter", "param moment_1 by_row effective", {}),
    "SmartDecaySparseAdam": ("param moment_1 moment_2 seen indices grad lr iter", "param moment_1 moment_2 seen", {}),
    "SparseAdadelta": ("param moment moment_delta indices grad lr", "param moment moment_delta", {}),
    "SparseFtrl": ("param n_z indices grad lr", "param n_z", {}),
    "SparseMomentumSGDUpdate": ("grad moment lr param indices", "grad moment param", {"momentum": 0.9, "nesterov": 1}),
    "SparseNormalize": ("param indices", "param", {"use_max_norm": 0}),
    "SparseLpRegularizer": ("param indices grad", "param", {"p": 1.0, "reg_lambda": 0.1}),
    "RowWiseCounter": ("seen counter indices iter", "seen counter", {"counter_halflife": 5}),
    "SparseWngrad": ("param total indices grad lr", "param total", {}),
    "SparseStorm": ("param moment total grad indices lr", "param moment total", {}),
}  # fmt: skip


def with_some_absent(indices):
    return np.where(RNG.random(indices.shape) < 0.1, no_row(indices.dtype), indices)


def feeds(rows, width, count, dtype, absent=False):
    shape = (rows, *width)
    indices = with_some_absent(RNG.integers(0, rows, count)) if absent else RNG.integers(0, rows, count)
    found = {name: RNG.normal(size=shape) for name in WIDE} | {"grad": RNG.normal(size=(count, *width))}
    for name in ("moment", "moment_1", "moment_2", "moment_delta"):
        found[name] = np.abs(found[name])
    found["by_row"] = RNG.random(rows)
    found["n_z"] = np.stack([RNG.random(shape), RNG.normal(size=shape)], axis=-1)
    found["lr"], found["total"] = np.array([0.1]), np.array([2.0])
    found = {name: value.astype(dtype) for name, value in found.items()}
    found["lr"], found["counter"] = found["lr"].astype(np.float32), RNG.random(rows) * 4
    found["seen"], found["iter"], found["early"] = RNG.integers(0, 30, rows), np.int64([40]), np.int64([2])
    return found | {"indices": indices}


@pytest.mark.parametrize("count", [1, 7, 2048, 5000])
@pytest.mark.parametrize(("rows", "dtype"), [(1, np.int32), (15, np.int64), (16, np.int32), (70000, np.int64)])
def test_row_numbers_are_sorted_stably(count, rows, dtype):
    indices = with_some_absent(RNG.integers(0, rows, count).astype(dtype))
    wanted = np.where(indices < 0, rows, indices)
    with gpu(0) as here:
        order = RowOrder(count, rows, np.dtype(dtype))
        scratch = here.xp.zeros(order.scratch, np.uint8)
        slot = note_of(here).slot(lambda index: IndexError(f"got {index}"))
        sort, keys, positions = order.bind(here.xp.asarray(indices), scratch, slot)
        for _ in range(2):
            sort()
            np.testing.assert_array_equal(positions.get(), np.argsort(wanted, kind="stable"))
            np.testing.assert_array_equal(keys.get(), np.sort(wanted))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", RULES)
@pytest.mark.parametrize(
    ("rows", "width", "count", "dtype"),
    [(9, (5,), 40, "float32"), (6, (2, 3), 4, "float16"), (300, (300,), 50, "float64"), (7, (), 30, "float32"),
     (7, (1,), 30, "float32")],
)  # fmt: skip
def test_updates_of_rows(case, rows, width, count, dtype):
    """Each update on the GPU is that of the array kernel in float64, which the operators' own tests judge."""
    inputs, outputs, arguments = RULES[case]
    op_type, given = case.split()[0], feeds(rows, width, count, dtype, absent=True)
    if op_type == "SparseNormalize" and dtype == "float16":
        op_type = "Float16SparseNormalize"
    names = inputs.split()
    op = make_op(op_type, names, outputs.split(), **arguments)
    exact = {n: x.astype(np.float64) if x.dtype.kind == "f" else x for n, x in given.items() if n in names}
    reference = make_op(op_type.removeprefix("Float16"), names, outputs.split(), **arguments)
    wanted = interpret([reference], exact)
    with launched() as launches:
        found = run_net([op], {n: given[n] for n in names}, outputs.split())
    assert "row_updates" in launches
    tolerance = {"float16": 2e-2, "float32": 2e-5, "float64": 1e-10}[dtype]
    for name in outputs.split():
        np.testing.assert_allclose(found[name], wanted[name], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("case", ["RowWiseCounter", "SmartDecaySparseAdam"])
def test_iterations_that_float64_does_not_hold(case):
    inputs, outputs, arguments = RULES[case]
    given = feeds(6, (3,), 5, "float32") | {"iter": np.int64([2**62 + 1]), "seen": np.full(6, 2**62 - 1)}
    found = run_net([make_op(case, inputs.split(), outputs.split(), **arguments)], given, ["seen"])["seen"]
    last = 2**62 + (1 if case == "RowWiseCounter" else 2)
    np.testing.assert_array_equal(found, np.where(np.isin(np.arange(6), given["indices"]), last, 2**62 - 1))


def test_a_wrong_index_is_an_error_and_changes_nothing():
    given = feeds(4, (3,), 3, "float32") | {"indices": np.int64([0, 4, 2])}
    op = make_op("SparseAdagrad", ["param", "moment", "indices", "grad", "lr"], ["param", "moment"])
    net = NetDef(name="net", op=[op])
    net.device_option.CopyFrom(ON_GPU)
    workspace = Workspace()
    for name in op.input:
        workspace.feed(name, given[name], ON_GPU)
    workspace.create_net(net)
    with pytest.raises(ShapeError, match=r"SparseAdagrad.*\[0, 4\), got 4"):
        workspace.run_net("net")
    np.testing.assert_array_equal(workspace.fetch("param")[[1, 3]], given["param"][[1, 3]])
