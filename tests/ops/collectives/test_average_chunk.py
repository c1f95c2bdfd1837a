"""AverageChunk: each chunk is averaged once in a round, the rest stays; ranks that are at different chunks."""

import numpy as np
import pytest
from hypothesis import strategies as st

from collective_runs import OBJECT, alone
from netbuilder.ops.collectives.average_chunk import AverageChunk
from netbuilder.proto import ArgumentError, NetDef, NetError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, i64
from suite import refusal as refusal_of
from thread_ranks import on_ranks, thread_worlds

SHAPES = {"a": (2, 3), "b": (), "none": (0, 2), "c": (9,)}  # 16 elements
CHUNK = 5


def refusal(op, inputs, match, error=NetError):
    """Bad input of an operator in place."""
    return refusal_of(op, inputs, match, error, n_out=len(inputs) - 1)


class TestAverageChunk(OperatorSuite):
    operator = AverageChunk
    no_gradient = "it follows the update"
    refusals = (
        refusal(AverageChunk(), [OBJECT, i64(1), f32(2)], "chunk must be a positive number .* got 0", ArgumentError),
        refusal(AverageChunk(chunk=1), [OBJECT, i64(1)], "at least one blob", ArgumentError),
        refusal(AverageChunk(chunk=1), [OBJECT, f32(1), f32(2)], "input 1 must be the counter, one int64"),
        refusal(AverageChunk(chunk=1), [OBJECT, i64(1), i64(2)], "averages float32, got input 2 of type int64"),
    )

    def draw(self, data):
        xs = [data.draw(floats((0, 3), (1, 3))) for _ in range(data.draw(st.integers(1, 3)))]
        count = 1 + len(xs)
        return AverageChunk(chunk=2).with_arity(1 + count, count), [alone(), np.array([3], np.int64), *xs]

    def reference(self, op, world, counter, *xs):
        return [counter + 1, *xs]  # the mean of one process


def flat(values):
    return np.concatenate([np.ravel(each) for each in values])


@pytest.mark.parametrize("size", [2, 3])
def test_after_a_round_each_element_was_averaged_once(size):
    rng = np.random.default_rng(4)
    given = [{name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()} for _ in range(size)]
    worlds = thread_worlds(size)

    def work(rank):
        workspace = Workspace(threads=1)
        workspace.feed("cw", worlds[rank])
        workspace.feed("n", np.array([0], np.int64))
        for name, value in given[rank].items():
            workspace.feed(name, value)
        blobs = ["n", *SHAPES]
        workspace.create_net(NetDef(name="net", op=[make_op("AverageChunk", ["cw", *blobs], blobs, chunk=CHUNK)]))
        found = []
        for _ in range(5):
            workspace.run_net("net")
            found.append((int(workspace.fetch("n")[0]), flat([workspace.fetch(name) for name in SHAPES])))
        return found

    before = [flat(each.values()) for each in given]
    mean = np.mean(before, axis=0, dtype=np.float64)
    runs = on_ranks(size, work)
    for step in range(4):
        done = min(16, CHUNK * (step + 1))
        for own, run in zip(before, runs):
            counter, now = run[step]
            assert counter == step + 1
            np.testing.assert_allclose(now[:done], mean[:done], rtol=1e-6, atol=1e-7)
            np.testing.assert_array_equal(now[done:], own[done:], "the rest stays")
            assert now[:done].tobytes() == runs[0][step][1][:done].tobytes(), "the same bits on all ranks"
    for run in runs:
        np.testing.assert_allclose(run[4][1], mean, rtol=1e-6, atol=1e-7)  # the second round begins again
    assert {world.communicator.given_bytes for world in worlds} == {4 * (5 + 5 + 5 + 1 + 5) + 5 * 8}


def test_ranks_at_different_chunks_raise_the_same_error():
    worlds = thread_worlds(2)

    def work(rank):
        workspace = Workspace(threads=1)
        workspace.feed("cw", worlds[rank])
        workspace.feed("n", np.array([4 + rank], np.int64))
        workspace.feed("a", np.ones(9, np.float32))
        workspace.run_operator_once(make_op("AverageChunk", ["cw", "n", "a"], ["n", "a"], chunk=3))

    for error in on_ranks(2, work):
        with pytest.raises(RuntimeError, match=r"would average the chunks \[1, 2\], .*; set the counter 'n'"):
            raise error
