"""Traced operators with sums over axes on a GPU: against the plain kernels of the CPU, in all shapes and large ones."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from all_suites import all_suites
from checks import CPU, run_plain
from netbuilder.engines.cuda.kernel import Kernel
from netbuilder.engines.cuda.sums import with_sums
from netbuilder.engines.cuda.table import WITH_SUMS
from netbuilder.ops.core.extensions import Capturable
from netbuilder.ops.core.operator import spec_of
from netbuilder.proto import NetDef, OperatorDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from on_gpu import ON_GPU, bound, gpus, launched, run_net
from suite import QUICK

RNG = np.random.default_rng(8)
CONTEXT = SimpleNamespace(op_def=OperatorDef(), published=lambda number, key: None)
TOLERANCES = {"float16": 4e-3, "float32": 3e-5, "float64": 1e-10}


@pytest.mark.one_in(2)
@pytest.mark.gpu
@pytest.mark.parametrize("op_type", sorted(WITH_SUMS))
def test_what_the_suites_draw(op_type):
    suite, served = all_suites()[op_type], []

    @settings(QUICK, max_examples=4, database=None, derandomize=True)
    @given(data=st.data())
    def run(data):
        op, inputs = suite().draw(data)
        op = op.with_arity(len(inputs), op.n_out)
        made = None if op.dynamic else with_sums(op, CONTEXT, *map(spec_of, inputs))
        if made is None:
            return
        served.append(made.name)
        assert made.get(Capturable)
        wanted = run_plain(op, inputs, CPU)
        for y, exact in zip(bound(made, inputs, [np.empty(s.shape, s.dtype) for s in made.outputs]), wanted):
            tolerance = TOLERANCES[y.dtype.name]
            np.testing.assert_allclose(y, exact, rtol=tolerance, atol=tolerance)

    run()
    assert served


# operator, inputs, outputs, arguments, and how many launches it is: with small tensors, and with large ones
CASES = {
    "Lars": (["p", "g", "one", "one", "one"], ["rate"], {}, 1, 1),
    "Storm": (["p", "m", "s", "g", "one"], ["p", "m", "s"], {}, 1, 2),
    "Wngrad": (["p", "s", "g", "one"], ["p", "s", "one2", "u"], {}, 1, 2),
    "GFtrl": (["p", "z", "g"], ["p", "z"], {}, 1, 1),
    "SumSqrElements": (["p"], ["sum"], {}, 1, 1),
    "SquaredL2Distance": (["p", "g"], ["d"], {}, 1, 1),
    "LayerNorm": (["p", "row", "row"], ["y", "mean", "std"], {"elementwise_affine": 1}, 1, 1),
    "LayerNormGradient": (
        ["g", "m", "mean", "std", "p", "row"],
        ["dx", "drow", "dbias"],
        {"elementwise_affine": 1},
        2,
        2,
    ),
    "Normalize": (["p"], ["y"], {"axis": 0}, 1, 1),
}


def feeds(shape, dtype):
    rows, columns = shape[0], int(np.prod(shape[1:]))
    found = {name: RNG.normal(size=shape) for name in "pmg"}
    found |= {"one": np.array([0.5]), "s": np.array([3.0]), "row": RNG.normal(size=columns)}
    found |= {"mean": RNG.normal(size=(rows, 1)), "std": RNG.random((rows, 1)) + 0.5}
    found["z"] = np.stack([RNG.random(shape), RNG.normal(size=shape)], axis=-1)
    return {name: value.astype(dtype) for name, value in found.items()}


@pytest.mark.one_in(3)
@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((3, 5), "float32"), ((2, 3, 4), "float16"), ((700, 33), "float32"), ((40, 600), "float32"), ((5, 9), "float64")],
)
def test_in_a_net(case, shape, dtype):
    inputs, outputs, arguments, small, large = CASES[case]
    given, op = feeds(shape, dtype), make_op(case, inputs, outputs, **arguments)
    given = {name: given[name] for name in inputs}
    with launched() as launches:
        found = run_net([op], given, outputs, runs=2)
    assert len(launches) == 2 * (large if np.prod(shape) > 1 << 14 else small)
    wanted = run_net([op], {name: x.astype(np.float64) for name, x in given.items()}, outputs, runs=2, gpu=False)
    tolerance = {"float16": 2e-2, "float32": 1e-4, "float64": 1e-10}[dtype]
    for name in outputs:
        np.testing.assert_allclose(found[name], wanted[name], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.emulated
def test_they_do_not_divide_a_graph():
    ops = [
        make_op("LayerNorm", ["p", "row", "row"], ["y", "mean", "std"], elementwise_affine=1),
        make_op("Lars", ["p", "y", "one", "one", "one"], ["rate"]),
        make_op("Storm", ["p", "m", "s", "y", "rate"], ["p", "m", "s"]),
        make_op("SparseStorm", ["p", "m", "s", "few", "indices", "rate"], ["p", "m", "s"]),
        make_op("SparseWngrad", ["p", "s", "indices", "few", "rate"], ["p", "s"]),
        make_op("SumElements", ["p"], ["sum"]),
    ]
    net = NetDef(name="net", op=ops)
    net.device_option.CopyFrom(ON_GPU)
    with gpus(1) as machine:
        workspace = Workspace(threads=1)
        few = {"few": RNG.normal(size=(9, 100)).astype(np.float32), "indices": RNG.integers(0, 200, 9)}
        for name, value in (feeds((200, 100), "float32") | few).items():
            workspace.feed(name, value, ON_GPU)
        workspace.create_net(net)
        workspace.run_net("net", 4)
        before = machine.counts
        workspace.run_net("net")
        found = machine.counts - before
        assert (found["replays"], found["allocations"]) == (1, 0)
        assert found["reads"] == 1  # what is noted of wrong indices, at the end


# operator, inputs, outputs, arguments, shape, launches, and blocks of the first launch
FEW_ROWS = {
    "columns of a matrix": ("Normalize", ["p"], ["y"], {"axis": 0}, (9000, 12), 2, 2 * 71),
    "rows of a matrix": ("Normalize", ["p"], ["y"], {"axis": 1}, (3, 20000), 2, 3 * 20),
    "in the middle": ("Normalize", ["p"], ["y"], {"axis": 1}, (2, 9000, 5), 2, 2 * 71),
    "several sums at once": ("LayerNormGradient", *CASES["LayerNormGradient"][:3], (9000, 12), 2, 2 * 71),
    "sums of sums": ("LayerNorm", *CASES["LayerNorm"][:3], (3, 20000), 3, 3 * 20),
}


@pytest.mark.one_in(2)
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", FEW_ROWS)
def test_few_rows_with_many_columns_are_those_of_many_blocks(case, dtype, monkeypatch):
    """Equal to those of float64, and to the bit in a second run."""
    op_type, inputs, outputs, arguments, shape, launches, first = FEW_ROWS[case]
    given, op = feeds(shape, dtype), make_op(op_type, inputs, outputs, **arguments)
    given = {name: given[name] for name in inputs}
    blocks, call = [], Kernel.__call__
    monkeypatch.setattr(
        Kernel, "__call__", lambda kernel, n, *args, **more: blocks.append(n) or call(kernel, n, *args, **more)
    )
    found, again = (run_net([op], given, outputs) for _ in range(2))
    assert len(blocks) == 2 * launches and first in blocks[:launches]
    wanted = run_net([op], {name: x.astype(np.float64) for name, x in given.items()}, outputs, gpu=False)
    tolerance = {"float32": 1e-4, "float64": 1e-10}[dtype]
    for name in outputs:
        np.testing.assert_allclose(found[name], wanted[name], rtol=tolerance, atol=tolerance, err_msg=name)
        np.testing.assert_array_equal(found[name], again[name])
