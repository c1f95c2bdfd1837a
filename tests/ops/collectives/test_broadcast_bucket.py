"""BroadcastBucket: blobs of several types and sizes, copied to the bit, by as many calls as there are large ones."""

import numpy as np
import pytest
from hypothesis import strategies as st

from collective_runs import OBJECT, alone, numbers, run_on_ranks
from netbuilder.ops.collectives.allreduce_bucket import IN_PLACE_BYTES
from netbuilder.ops.collectives.broadcast_bucket import BroadcastBucket
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import ArgumentError
from suite import OperatorSuite, f32, floats, refusal
from thread_ranks import ThreadCommunicator

SHAPES = {"a": (3, 4), "b": (), "c": (0, 5), "d": (300, 600), "e": (7,), "f": (3, 2), "words": (3,)}
DTYPES = {"a": np.float32, "b": np.int64, "c": np.float32, "d": np.float32, "e": np.bool_, "f": np.float16}


class TestBroadcastBucket(OperatorSuite):
    operator = BroadcastBucket
    no_gradient = "it follows the backward pass"
    refusals = (
        refusal(BroadcastBucket(), [f32(2), f32(2)], "input 0 must be a common world"),
        refusal(BroadcastBucket(), [OBJECT, f32(2), f32(2)], "got 3 inputs and 1 outputs", ArgumentError, n_out=1),
        refusal(BroadcastBucket(devices=2), [OBJECT, f32(2)], "a multiple of devices=2, got 1", ArgumentError, n_out=1),
        refusal(
            BroadcastBucket(devices=2),
            [OBJECT, f32(2), TensorSpec((2,), np.dtype(np.int32))],
            "must have shape and type of input 1",
            n_out=2,
        ),
    )

    def draw(self, data):
        xs = [data.draw(floats((0, 3), (1, 3))) for _ in range(data.draw(st.integers(1, 3)))]
        return BroadcastBucket().with_arity(1 + len(xs), len(xs)), [alone(), *xs]

    def reference(self, op, world, *xs):
        return xs


def values_of(rank):
    made = {name: numbers(rank + n, dtype, SHAPES[name]) for n, (name, dtype) in enumerate(DTYPES.items())}
    return made | {"words": np.array([b"of rank", b"", b"%d" % 10**rank], object)}


@pytest.mark.parametrize("root", [0, 2])
def test_blobs_of_every_type_and_size_are_those_of_the_root(root):
    assert values_of(0)["d"].nbytes >= IN_PLACE_BYTES > values_of(0)["a"].nbytes
    want = values_of(root)
    for outputs in run_on_ranks("BroadcastBucket", [values_of(rank) for rank in range(3)], list(want), root=root):
        for y, (name, x) in zip(outputs, want.items()):
            assert y.dtype == x.dtype and y.shape == x.shape, name
            np.testing.assert_array_equal(y, x, name)


def test_copies_on_several_devices_are_those_of_the_first_one():
    blobs = [{name: numbers(10 * rank + n) for n, name in enumerate("abcd")} for rank in range(2)]
    for outputs in run_on_ranks("BroadcastBucket", blobs, list("abcd"), root=1, devices=2):
        for y, want in zip(outputs, (10, 10, 12, 12)):
            np.testing.assert_array_equal(y, numbers(want))


def test_small_blobs_are_one_message(monkeypatch):
    """Running statistics of a network are hundreds of blobs of a few hundred bytes."""
    sent, broadcast = [], ThreadCommunicator._broadcast

    def counted(communicator, array, root):
        if communicator.rank == root:
            sent.append(array.nbytes)
        broadcast(communicator, array, root)

    monkeypatch.setattr(ThreadCommunicator, "_broadcast", counted)
    blobs = [{f"x{n}": numbers(rank + n, np.float32, (64,)) for n in range(106)} for rank in range(2)]
    outputs = run_on_ranks("BroadcastBucket", blobs, list(blobs[0]))
    np.testing.assert_array_equal(outputs[1], list(blobs[0].values()))
    assert sent == [106 * 256] * 2, "in each of two runs"
