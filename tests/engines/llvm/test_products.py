"""Products with constant matrices, in panels: numbers, threads, changed weights, where others serve."""

import numpy as np
import pytest

from machine_code import alone, parts_of_calls
from netbuilder.engines.llvm import machine, products
from netbuilder.engines.llvm.emitter import LANES
from netbuilder.engines.llvm.products import Panels, reorder
from netbuilder.graph import Net
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.runtime import Workspace
from netbuilder.runtime.profile.profiling import profile

pytestmark = pytest.mark.skipif(not machine.available(), reason="needs llvmlite")

SIZES = [(4, 1, 1), (5, 7, 19), (6, 400, 16), (13, 33, 64), (23, 5, 40), (64, 385, 100), (100, 1000, 33)]
KERNEL = "llvm product"


@pytest.fixture(autouse=True, params=[False, True], ids=["AVX2", "AVX-512"])
def wide(request, monkeypatch):
    """Whether the code is that for vectors of 512 bits, which the compiler splits where there are none."""
    monkeypatch.setattr(machine, "has_wide_registers", lambda: request.param)
    return request.param


def built(kind, m, k, n, *, seed=0):
    """Return a net, its inputs, and the product in float64."""
    rng = np.random.default_rng(seed)
    a, b, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n), (n,)))
    want = a.astype(np.float64) @ b
    op_type, transposed = kind
    stored = np.ascontiguousarray(b.T) if transposed else b
    feeds = {"a": a, "b": stored}
    net = Net("product")
    if op_type == "FC":
        feeds["bias"], want = bias, want + bias
        (net.FC if transposed else net.FCTransposed)(["a", "b", "bias"], "y")
    elif op_type == "MatMul":
        net.MatMul(["a", "b"], "y", trans_b=int(transposed))
    else:
        feeds["a"] = a[None]
        net.BatchMatMul(["a", "b"], "y", trans_b=int(transposed), broadcast=1)
        want = want[None]
    return net, feeds, want


def run(net, feeds, *, threads=1, constants=("b",)):
    workspace = Workspace(threads=threads)
    for name, value in feeds.items():
        workspace.feed(name, value)
    workspace.create_net(net, constants=list(constants))
    workspace.run_net(net)
    return workspace


def kernels(workspace, net):
    return [call.kernel for call in profile(workspace, net.Name(), runs=1, warmup=1, limits={}).calls]


def close(got, want, k):
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.sqrt(k) * max(1, np.abs(want).max()))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", [(op, turned) for op in ("FC", "MatMul", "BatchMatMul") for turned in (False, True)])
def test_numbers(kind, size):
    net, feeds, want = built(kind, *size)
    workspace = run(net, feeds)
    close(workspace.fetch("y"), want, size[1])
    assert kernels(workspace, net) == [KERNEL]


def test_long_sums_are_as_exact_as_those_of_blocks():
    """All elements are positive; one sum of 8,192 of them would be ten times as far from the exact one."""
    net, feeds, _ = built(("MatMul", False), 8, 8192, 32)
    feeds = {name: np.abs(value) for name, value in feeds.items()}
    want = feeds["a"].astype(np.float64) @ feeds["b"]
    assert np.max(np.abs(run(net, feeds).fetch("y") / want - 1)) < 2e-6


@pytest.mark.parametrize("rows", [40, 250])  # threads have columns, or rows
def test_threads_change_no_bit(rows, monkeypatch):
    net, feeds, _ = built(("FC", True), rows, 600, 400)
    divided = parts_of_calls(monkeypatch, products)
    found = [run(net, feeds, threads=threads).fetch("y") for threads in (1, 2, 3)]
    assert all(np.array_equal(found[0], other) for other in found[1:])
    assert divided == [1, 2, 3]


def test_rows_do_not_depend_on_others_and_nan_stays():
    net, feeds, want = built(("MatMul", False), 9, 20, 40)
    feeds["a"][4, 3] = np.nan
    got = run(net, feeds).fetch("y")
    assert np.isnan(got[4]).all()
    close(np.delete(got, 4, 0), np.delete(want, 4, 0), 20)


def test_weights_that_are_fed_again_are_used():
    net, feeds, _ = built(("FC", True), 8, 20, 40)
    workspace = run(net, feeds)
    _, others, want = built(("FC", True), 8, 20, 40, seed=1)
    for name, value in others.items():
        workspace.feed(name, value)
    workspace.run_net(net)
    close(workspace.fetch("y"), want, 20)


def test_two_products_share_the_panels():
    net, feeds, _ = built(("MatMul", False), 8, 20, 20)
    net.MatMul(["y", "b"], "z")
    workspace = run(net, feeds)
    assert kernels(workspace, net) == [KERNEL] * 2
    close(workspace.fetch("z"), feeds["a"].astype(np.float64) @ feeds["b"] @ feeds["b"], 400)


@pytest.mark.parametrize("memory, serves", [(64 * 4 * 20 * 48, True), (64 * 4 * 20 * 48 - 64, False)])
def test_a_second_copy_has_its_share_of_the_memory(monkeypatch, memory, serves):
    monkeypatch.setattr(products, "machine_memory", lambda: memory)
    net, feeds, want = built(("MatMul", False), 8, 20, 40)  # 40 columns are three panels of sixteen
    workspace = run(net, feeds)
    assert (kernels(workspace, net) == [KERNEL]) == serves
    close(workspace.fetch("y"), want, 20)


@pytest.mark.parametrize("rows", [1, 3])
def test_few_rows_are_left_to_others_where_registers_are_few(rows, wide):
    net, feeds, want = built(("MatMul", False), rows, 20, 40)
    workspace = run(net, feeds)
    assert (KERNEL in kernels(workspace, net)) == wide
    close(workspace.fetch("y"), want, 20)


def test_a_single_row_has_a_function_of_its_own_unless_there_is_that_for_many(monkeypatch):
    monkeypatch.setattr(machine, "has_wide_registers", lambda: True)
    found = []
    for made_before in (False, True):
        monkeypatch.setattr(products, "_addresses", {})
        if made_before:
            run(*built(("FC", True), 4, 20, 40)[:2])
        net, feeds, _ = built(("FC", True), 1, 500, 41)
        found.append(run(net, feeds).fetch("y"))
        assert list(products._addresses) == [(True, False, not made_before)]
    np.testing.assert_array_equal(*found)


def test_a_matrix_that_is_no_constant_is_left_to_others():
    net, feeds, want = built(("MatMul", False), 8, 20, 40)
    workspace = run(net, feeds, constants=[])
    assert KERNEL not in kernels(workspace, net)
    close(workspace.fetch("y"), want, 20)


def test_only_plain_matrices_become_panels():
    spec = TensorSpec((4, 4), np.dtype(np.float32)).with_layout(Panels(4, 4, False))
    with pytest.raises(ValueError, match="only plain matrices are copied, and into panels only"):
        reorder(alone(), spec, spec)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("rows, columns", [(40, 21), (21, 40), (3, 5), (32, 64), (7, 16)])
def test_what_is_in_panels(rows, columns, transposed):
    matrix = np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32)
    layout = Panels(rows, columns, transposed)
    spec = TensorSpec(matrix.shape, matrix.dtype)
    memory = np.full(layout.nbytes, 7, np.uint8)  # used before
    reorder(alone(), spec, spec.with_layout(layout)).bind([matrix], [memory], None)()
    plain = matrix.T if transposed else matrix
    wide = np.pad(plain, [(0, 0), (0, -plain.shape[1] % LANES)])
    np.testing.assert_array_equal(
        memory.view(np.float32).reshape(-1, len(plain), LANES), wide.reshape(len(plain), -1, LANES).swapaxes(0, 1)
    )


def with_sum(kind, addition, m, k, n, *, source="d", later=False):
    """Return a net with a product and what is added to it, its inputs, and the result in float64."""
    _, feeds, want = built(("FC", kind == "FC"), m, k, n)
    net, added = Net("sum"), np.random.default_rng(9).standard_normal((m, n)).astype(np.float32)
    feeds["d"] = added
    if source != "d":
        net.Negative("d", source)
        added = -added
    product = getattr(net, kind)(["a", "b", "bias"], "y")
    getattr(net, addition)([source, product] if later else [product, source], "z")
    return net, feeds, want + added


@pytest.mark.parametrize("source", ["d", "made"])
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("addition", ["Sum", "Add"])
@pytest.mark.parametrize("kind, size", [("FC", (1, 30, 20)), ("FC", (13, 400, 33)), ("FCTransposed", (7, 20, 64))])
def test_what_is_added_is_part_of_the_product(kind, size, addition, later, source, wide):
    net, feeds, want = with_sum(kind, addition, *size, source=source, later=later)
    net.AddExternalOutput("z")
    workspace = Workspace(threads=1)
    for name, value in feeds.items():
        workspace.feed(name, value)
    workspace.create_net(net, constants=["b"], observable="outputs")
    for _ in range(2):  # what is fed is not overwritten
        workspace.run_net(net)
        close(workspace.fetch("z"), want, size[1])
    fused = size[0] >= products._FEWEST[wide]
    assert (f"{KERNEL} and sum" in kernels(workspace, net)) == fused


@pytest.mark.parametrize("rows", [40, 250])
def test_threads_change_no_bit_of_a_sum(rows):
    net, feeds, _ = with_sum("FC", "Sum", rows, 600, 400)
    found = [run(net, feeds, threads=threads).fetch("z") for threads in (1, 2, 3)]
    assert all(np.array_equal(found[0], other) for other in found[1:])


def test_a_sum_that_broadcasts_is_left_to_others():
    net, feeds, want = with_sum("FC", "Add", 8, 20, 40)
    feeds["d"] = feeds["d"][:1].copy()
    workspace = run(net, feeds)
    close(workspace.fetch("z"), workspace.fetch("y").astype(np.float64) + feeds["d"], 20)
    assert f"{KERNEL} and sum" not in kernels(workspace, net)


def test_a_sum_after_a_product_that_changes_is_in_a_chain():
    net, feeds, want = with_sum("FC", "Sum", 8, 20, 40)
    net.Negative("z", "negative")
    net.AddExternalOutput("negative")
    workspace = Workspace(threads=1)
    for name, value in feeds.items():
        workspace.feed(name, value)
    workspace.create_net(net, observable="outputs")
    workspace.run_net(net)
    close(workspace.fetch("negative"), -want, 20)
    assert "llvm sum_negative" in kernels(workspace, net)
