"""AllreduceInt8: against NumPy in float64; error feedback, what is not finite, bytes, refusals."""

import numpy as np
import pytest
from hypothesis import strategies as st

from collective_runs import OBJECT, alone, run_on_ranks
from netbuilder.ops.collectives.rounded_allreduce import AllreduceInt8
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import ArgumentError, NetDef, NetError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats
from suite import refusal as refusal_of
from thread_ranks import on_ranks, thread_worlds

SHAPES = [(3, 4), (1,), (), (0, 5), (40, 50)]
F64 = TensorSpec((2,), np.dtype(np.float64))


def refusal(inputs, match, error=NetError):
    """Bad input of the operator, which works in place."""
    return refusal_of(AllreduceInt8(), inputs, match, error, n_out=len(inputs) - 1)


def rounded(whole):
    """What is given of a blob: the nearest of 255 levels that its largest magnitude spans."""
    scale = np.float64(np.float32(np.abs(whole).max(initial=0) / np.float32(127)))
    return np.rint(whole / scale) * scale if scale else np.zeros(np.shape(whole))


class TestAllreduceInt8(OperatorSuite):
    operator = AllreduceInt8
    no_gradient = "it follows the backward pass"
    refusals = (
        refusal([OBJECT, f32(2)], "as many residuals as blobs", ArgumentError),
        refusal([OBJECT, f32(2), f32(3)], "residual 2 must have the shape of its blob, .2,., got .3"),
        refusal([OBJECT, F64, F64], "exchanges float32, got input 1 of type float64"),
    )

    def draw(self, data):
        shapes = data.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=3))
        blobs = [data.draw(floats(*shape)) for shape in shapes]
        rests = [np.zeros(shape, np.float32) for shape in shapes]
        return AllreduceInt8().with_arity(1 + 2 * len(shapes), 2 * len(shapes)), [alone(), *blobs, *rests]

    def reference(self, op, world, *blobs):
        wholes = blobs[: len(blobs) // 2]
        given = [rounded(whole) for whole in wholes]
        return [*given, *(whole - part for whole, part in zip(wholes, given))]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_sums_of_what_ranks_give_and_what_they_keep(size):
    rng = np.random.default_rng(5)
    draw = rng.normal
    blobs = [
        {f"{kind}{n}": draw(0, width, shape).astype(np.float32)
         for kind, width in (("g", 1), ("r", 0.1)) for n, shape in enumerate(SHAPES)}
        for _ in range(size)
    ]  # fmt: skip
    runs = run_on_ranks("AllreduceInt8", blobs, list(blobs[0]))
    for n, shape in enumerate(SHAPES):
        total = np.zeros(shape)
        for rank, outputs in enumerate(runs):
            whole = blobs[rank][f"g{n}"] + blobs[rank][f"r{n}"]
            given = rounded(whole)
            total = total + given
            np.testing.assert_allclose(outputs[len(SHAPES) + n], whole - given, atol=1e-6)
        for outputs in runs:
            np.testing.assert_allclose(outputs[n], total, rtol=1e-5, atol=1e-6)
            assert outputs[n].tobytes() == runs[0][n].tobytes(), "the same bits on all ranks"


def test_what_is_not_given_comes_later():
    """The sums of many steps differ from those of what was computed by what is kept, at most half a level of each."""
    steps = np.random.default_rng(2).normal(size=(20, 2, 30)).astype(np.float32)
    worlds = thread_worlds(2)

    def work(rank):
        workspace = Workspace(threads=1)
        workspace.feed("cw", worlds[rank])
        workspace.feed("r", np.zeros(30, np.float32))
        net = NetDef(name="n", op=[make_op("AllreduceInt8", ["cw", "g", "r"], ["g", "r"])])
        done = np.zeros(30)
        for number, given in enumerate(steps):
            workspace.feed("g", given[rank])
            if not number:
                workspace.create_net(net)
            workspace.run_net("n")
            done += workspace.fetch("g")
        return done, workspace.fetch("r"), worlds[rank].communicator.given_bytes

    (done, first, given), (again, second, _) = on_ranks(2, work)
    np.testing.assert_array_equal(done, again)
    want = steps.astype(np.float64).sum(axis=(0, 1))
    np.testing.assert_allclose(done + first + second, want, atol=1e-4)
    assert 1e-3 < np.abs(done - want).max() < 2 * 4 / 127
    assert given == 20 * (30 + 4)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_nan_everywhere(bad):
    blobs = [{"g": np.float32([1, 2, 3]), "r": np.float32([0.5, 0, 0])} for _ in range(2)]
    blobs[1]["g"][2] = bad
    first, second = run_on_ranks("AllreduceInt8", blobs, ["g", "r"])
    assert np.isnan(first[0]).all() and np.isnan(second[0]).all()
    assert np.abs(first[1]).max() < 3 / 127 and not second[1].any()
