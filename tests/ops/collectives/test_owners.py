"""ReduceToOwners and GatherFromOwners: sums in float64 at the owner, copies to the bit, one call for each type."""

import numpy as np
import pytest
from hypothesis import strategies as st

from collective_runs import OBJECT, alone, numbers, run_on_ranks
from netbuilder.ops.collectives.owners import GatherFromOwners, ReduceToOwners
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.proto import ArgumentError, NetError
from suite import OperatorSuite, f32, floats, refusal
from thread_ranks import ThreadCommunicator

SHAPES = {"a": (3, 4), "b": (), "c": (0, 5), "d": (300, 70), "e": (7,), "f": (2, 3)}
DTYPES = {"a": np.float32, "b": np.int64, "c": np.float32, "d": np.float32, "e": np.float16, "f": np.float32}
OWNERS = [2, 0, 1, 0, 2, 2]


def values_of(rank):
    return {name: numbers(rank + n, dtype, SHAPES[name]) for n, (name, dtype) in enumerate(DTYPES.items())}


class TestReduceToOwners(OperatorSuite):
    operator = ReduceToOwners
    no_gradient = "it follows the backward pass"
    refusals = (
        refusal(ReduceToOwners(owners=(0,)), [f32(2), f32(2)], "input 0 must be a common world"),
        refusal(ReduceToOwners(owners=(0,)), [OBJECT, TensorSpec((2,), np.dtype(np.bool_))], "adds numbers, got inp"),
        refusal(ReduceToOwners(), [OBJECT, f32(2)], r"rank of each of the 1 blobs, from 0 on, got \[\]", ArgumentError),
        refusal(ReduceToOwners(owners=(0, -1)), [OBJECT, f32(2), f32(2)], r"got \[0, -1\]", ArgumentError, n_out=2),
    )

    def draw(self, data):
        xs = [data.draw(floats((0, 3), (1, 3))) for _ in range(data.draw(st.integers(1, 3)))]
        return ReduceToOwners(owners=(0,) * len(xs)).with_arity(1 + len(xs), len(xs)), [alone(), *xs]

    def reference(self, op, world, *xs):
        return xs


class TestGatherFromOwners(TestReduceToOwners):
    operator = GatherFromOwners
    refusals = (
        refusal(GatherFromOwners(owners=(0,)), [OBJECT, TensorSpec((2,), STRING)], "tensor of numbers or bools"),
        refusal(GatherFromOwners(), [OBJECT, f32(2)], "owners must be the rank of each", ArgumentError),
    )

    def draw(self, data):
        op, given = super().draw(data)
        return GatherFromOwners(owners=op.owners).with_arity(len(given), len(given) - 1), given


def test_the_owner_has_the_sum_and_others_keep_their_values():
    given = [values_of(rank) for rank in range(3)]
    for rank, outputs in enumerate(run_on_ranks("ReduceToOwners", given, list(SHAPES), owners=OWNERS)):
        for y, name, owner in zip(outputs, SHAPES, OWNERS):
            assert y.dtype == DTYPES[name] and y.shape == SHAPES[name], name
            total = sum(each[name].astype(np.float64) for each in given)
            want = total if rank == owner else given[rank][name]
            np.testing.assert_allclose(y, want, rtol=1e-3 if y.dtype == np.float16 else 1e-6, err_msg=name)


def test_sums_are_those_of_the_order_of_ranks_to_the_bit():
    given = [{name: numbers(rank + n, np.float32, (999,)) for n, name in enumerate("ab")} for rank in range(3)]
    whole = run_on_ranks("AllreduceBucket", given, ["a", "b"], deterministic=True)
    parts = run_on_ranks("ReduceToOwners", given, ["a", "b"], owners=[1, 2])
    assert parts[1][0].tobytes() == whole[0][0].tobytes() and parts[2][1].tobytes() == whole[0][1].tobytes()


def test_all_have_the_values_of_the_owners_to_the_bit():
    given = [values_of(rank) | {"flags": numbers(rank, np.bool_, (5,))} for rank in range(3)]
    for outputs in run_on_ranks("GatherFromOwners", given, list(given[0]), owners=[*OWNERS, 1]):
        for y, name, owner in zip(outputs, given[0], [*OWNERS, 1]):
            np.testing.assert_array_equal(y, given[owner][name], name)


@pytest.mark.parametrize("op_type", ["ReduceToOwners", "GatherFromOwners"])
def test_one_call_for_all_blobs_of_a_type(op_type, monkeypatch):
    calls = []
    for name in ("_alltoall", "_allgather"):
        plain = getattr(ThreadCommunicator, name)
        monkeypatch.setattr(ThreadCommunicator, name, lambda *a, _p=plain, _n=name: (calls.append(_n), _p(*a))[1])
    given = [{name: numbers(rank, np.float32, (40, n + 1)) for n, name in enumerate("abc")} for rank in range(2)]
    run_on_ranks(op_type, given, list("abc"), owners=[1, 0, 1])
    assert len(calls) == 4, "by two ranks in two runs"


@pytest.mark.parametrize("size", [2, 3])
def test_pieces_of_all_sizes_give_the_same(size, monkeypatch):
    given = [{name: numbers(rank + n, np.float32, (n + 3, 5)) for n, name in enumerate("abcd")} for rank in range(size)]
    for op_type in ("ReduceToOwners", "GatherFromOwners"):
        whole = run_on_ranks(op_type, given, list("abcd"), owners=[1, 0, 1, 1])
        for nbytes in (1, 4, 28, 100):
            monkeypatch.setattr("netbuilder.ops.collectives.owners.PIECE_BYTES", nbytes)
            for got, want in zip(run_on_ranks(op_type, given, list("abcd"), owners=[1, 0, 1, 1]), whole):
                for y, x in zip(got, want):
                    np.testing.assert_array_equal(y, x, f"{op_type}, {nbytes}")
        monkeypatch.undo()


@pytest.mark.parametrize("op_type", ["ReduceToOwners", "GatherFromOwners"])
def test_an_owner_that_is_no_rank(op_type):
    for error in run_on_ranks(op_type, [{"a": numbers(0)}, {"a": numbers(1)}], ["a"], owners=[2]):
        assert isinstance(error, NetError | ArgumentError) and "must lie in [0, 2), the ranks" in str(error)
