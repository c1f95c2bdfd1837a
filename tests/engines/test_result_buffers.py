"""Results of plain kernels on a GPU are computed in the buffers of the plan."""

import numpy as np
import pytest

from netbuilder.engines.gpu import gpu, to_host
from netbuilder.engines.result_buffers import ResultBuffers, overlap
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from on_gpu import ON_GPU, gpus

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


def runs(kernel, shapes, count=3, dtype=np.float32):
    """Run a kernel several times; return, for each, which results are the buffers, and their values."""
    with gpu(0) as here:
        x = here.xp.asarray(X)
        buffers = [here.xp.zeros(shape, dtype) for shape in shapes]
        results = ResultBuffers(0, buffers)
        found = []
        for _ in range(count):
            made = results.run(lambda: kernel(here.xp, x))
            found.append(([result is buffer for result, buffer in zip(made, buffers)], [to_host(r) for r in made]))
    return found


def test_the_allocation_that_becomes_the_result_is_the_buffer(one_gpu):
    def kernel(xp, x):
        squares = x * x  # as large as the result
        return (xp.sqrt(squares) + 1,)

    first, *later = runs(kernel, [X.shape])
    assert [first[0], *(places for places, _ in later)] == [[False], [True], [True]]
    for _, (value,) in (first, *later):
        np.testing.assert_array_equal(value, np.abs(X) + 1)


def test_several_results(one_gpu):
    def kernel(xp, x):
        return x + 1, x.sum(axis=0), x * 2

    found = runs(kernel, [X.shape, X.shape[1:], X.shape])
    assert [places for places, _ in found] == [[False] * 3, [True] * 3, [True] * 3]
    for want, value in zip((X + 1, X.sum(axis=0), 2 * X), found[-1][1]):
        np.testing.assert_allclose(value, want, rtol=1e-6)


@pytest.mark.parametrize(
    ("kernel", "want"),
    [
        (lambda xp, x: (x,), X),
        (lambda xp, x: (x.reshape(4, 3),), X.reshape(4, 3)),
        (lambda xp, x: ((x + 1).T,), X.T + 1),
        (lambda xp, x: ((x * 2).astype(np.float64).T.astype(np.float32),), 2 * X.T),
    ],
)
def test_views_and_other_orders_are_copied(one_gpu, kernel, want):
    for places, (value,) in runs(kernel, [want.shape]):
        assert places == [False]
        np.testing.assert_array_equal(value, want)


def test_a_result_twice(one_gpu):
    def kernel(xp, x):
        y = x + 1
        return y, y

    found = runs(kernel, [X.shape, X.shape])
    assert [sum(places) for places, _ in found] == [0, 1, 1]
    for value in found[-1][1]:
        np.testing.assert_array_equal(value, X + 1)


def test_allocations_in_another_order(one_gpu):
    """A kernel that allocates something else in one of the calls: what it returns is right, and later calls adapt."""
    extra = iter([0, 0, 1, 0, 0])

    def kernel(xp, x):
        for _ in range(next(extra)):
            x = x + 0
        view = (x * 3).reshape(-1)[::-1]
        return (view.reshape(3, 4)[::-1, ::-1] + 0,)

    for _, (value,) in runs(kernel, [X.shape], 5):
        np.testing.assert_array_equal(value, 3 * X)


def test_arrays_that_have_memory_in_common(one_gpu):
    with gpu(0) as here:
        memory = here.xp.zeros(64, np.uint8)
        assert overlap(memory[:40], memory[32:]) and not overlap(memory[:32], memory[32:])
        host = np.zeros(4)
        assert overlap(host, host) and not overlap(host, memory) and not overlap(memory, host)


def counts(observable, *ops):
    """Return how many launches, copies and allocations a step of plain kernels has, and its result."""
    with gpus(1) as machine:
        workspace = Workspace(engines=())
        for op in ops:
            op.device_option.CopyFrom(ON_GPU)
        workspace.feed("x", X, ON_GPU)
        workspace.create_net(NetDef(name="net", op=ops), observable=observable)
        workspace.run_net("net", 2)
        before = machine.counts
        workspace.run_net("net")
        found = machine.counts - before
        return [found[what] for what in ("launches", "copies", "allocations")], workspace.fetch("y")


@pytest.mark.emulated
@pytest.mark.parametrize("observable", ["outputs", "all"])
def test_plain_kernels_of_a_plan_do_not_copy(observable):
    ops = [make_op("Relu", ["x"], ["a"]), make_op("Negative", ["a"], ["a"]), make_op("Add", ["a", "x"], ["y"])]
    found, y = counts(observable, *ops)
    assert found == [3, 0, 0]
    np.testing.assert_array_equal(y, X - np.maximum(X, 0))


@pytest.mark.emulated
def test_a_plain_kernel_that_overwrites_its_input_copies():
    """The value has to end in its blob's memory, which the kernel reads."""
    found, y = counts("all", make_op("Negative", ["x"], ["x"]), make_op("Negative", ["x"], ["y"]))
    assert found == [2, 1, 1]
    np.testing.assert_array_equal(y, X)  # three runs negate x, and each negates it for y
