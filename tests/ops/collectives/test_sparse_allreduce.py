"""AllreduceTopK and AllreduceThreshold: against NumPy in float64; what is given, what is kept, dense limits, bytes."""

import numpy as np
import pytest
from hypothesis import strategies as st

from collective_runs import OBJECT, alone, run_on_ranks
from netbuilder.ops.collectives import sparse_allreduce
from netbuilder.ops.collectives.sparse_allreduce import AllreduceThreshold, AllreduceTopK, top_k_count
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import ArgumentError, NetDef, NetError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats
from suite import refusal as refusal_of
from thread_ranks import on_ranks, thread_worlds

SHAPES = [(3, 4), (1,), (), (0, 5), (40, 50)]
F64 = TensorSpec((2,), np.dtype(np.float64))


def refusal(op, inputs, match, error=NetError):
    """Bad input of an operator in place."""
    return refusal_of(op, inputs, match, error, n_out=len(inputs) - 1)


def by_top_k(values, fraction):
    """A mask of the elements with the largest magnitudes; ties do not occur."""
    order = np.argsort(-np.abs(values), axis=None)[: top_k_count(values.size, fraction)]
    mask = np.zeros(values.size, bool)
    mask[order] = True
    return mask.reshape(values.shape)


def by_threshold(values, bound):
    return np.abs(values) >= np.float32(bound)


class _Suite(OperatorSuite):
    no_gradient = "it follows the backward pass"

    def draw(self, data):
        shapes = data.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=3))
        xs = [data.draw(floats(*shape, apart=0.01)) for shape in shapes]
        residual = data.draw(st.booleans())
        rests = [data.draw(floats(*shape, apart=0.01)) / 64 for shape in shapes] if residual else []
        made = self.operator(**{self.amount: data.draw(st.sampled_from(self.amounts))}, residual=residual)
        count = len(xs) + len(rests)
        return made.with_arity(1 + count, count), [alone(), *xs, *rests]

    def reference(self, op, world, *blobs):
        count = len(blobs) // 2 if op.residual else len(blobs)
        wholes = [x + rest for x, rest in zip(blobs, blobs[count:])] if op.residual else blobs
        masks = [type(self).mask(each, getattr(op, self.amount)) for each in wholes]
        given = [np.where(mask, each, 0) for each, mask in zip(wholes, masks)]
        return [*given, *(each - part for each, part in zip(wholes, given))] if op.residual else given


class TestAllreduceTopK(_Suite):
    operator = AllreduceTopK
    amount, amounts, mask = "fraction", [0.1, 0.5, 1.0], staticmethod(by_top_k)
    refusals = (
        refusal(AllreduceTopK(fraction=0.0), [OBJECT, f32(2), f32(2)], "in .0, 1., got 0.0", ArgumentError),
        refusal(AllreduceTopK(fraction=1.5), [OBJECT, f32(2), f32(2)], "in .0, 1., got 1.5", ArgumentError),
        refusal(AllreduceTopK(), [OBJECT, f32(2)], "as many residuals as blobs", ArgumentError),
        refusal(AllreduceTopK(), [OBJECT, f32(2), f32(3)], "residual 2 must have the shape of its blob, .2,., got .3"),
        refusal(AllreduceTopK(residual=False), [OBJECT, F64], "exchanges float32, got input 1 of type float64"),
    )


class TestAllreduceThreshold(_Suite):
    operator = AllreduceThreshold
    amount, amounts, mask = "bound", [0.0, 0.25, 9.0], staticmethod(by_threshold)
    refusals = (
        refusal(AllreduceThreshold(bound=-1.0), [OBJECT, f32(2), f32(2)], "not negative, got -1.0", ArgumentError),
        refusal(AllreduceThreshold(bound=np.inf), [OBJECT, f32(2), f32(2)], "finite", ArgumentError),
        refusal(AllreduceThreshold(), [OBJECT, f32(2), f32(2), f32(2)], "as many residuals as blobs", ArgumentError),
    )


WAYS = [("AllreduceTopK", "fraction", by_top_k), ("AllreduceThreshold", "bound", by_threshold)]


def blobs_of(size, residual=True):
    rng = np.random.default_rng(5)
    made = []
    for _ in range(size):
        blobs = {f"g{n}": rng.normal(size=shape).astype(np.float32) for n, shape in enumerate(SHAPES)}
        if residual:
            blobs |= {f"r{n}": rng.normal(size=shape).astype(np.float32) / 8 for n, shape in enumerate(SHAPES)}
        made.append(blobs)
    return made


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("op_type, amount, mask", WAYS, ids=["top-K", "threshold"])
@pytest.mark.parametrize("value", [0.05, 0.8])
def test_sums_of_what_ranks_give_and_what_they_keep(size, residual, op_type, amount, mask, value):
    blobs = blobs_of(size, residual)
    runs = run_on_ranks(op_type, blobs, list(blobs[0]), residual=residual, **{amount: value})
    for n in range(len(SHAPES)):
        total = np.zeros(SHAPES[n])
        for rank, outputs in enumerate(runs):
            whole = blobs[rank][f"g{n}"] + blobs[rank].get(f"r{n}", np.float32(0))
            given = np.where(mask(whole, value), whole, np.float32(0))
            total = total + given
            if residual:
                rest = outputs[len(SHAPES) + n]
                np.testing.assert_array_equal(given + rest, whole, "nothing is lost, nothing twice")
                assert not (given.astype(bool) & rest.astype(bool)).any()
        for outputs in runs:
            np.testing.assert_allclose(outputs[n], total, rtol=1e-6, atol=1e-7)
            assert outputs[n].tobytes() == runs[0][n].tobytes(), "the same bits on all ranks"


@pytest.mark.parametrize("op_type, arguments", [("AllreduceTopK", {"fraction": 1.0}), ("AllreduceThreshold", {})])
def test_all_elements_are_the_dense_sum_to_the_bit(op_type, arguments):
    blobs = blobs_of(3)
    for each in blobs:
        each.update({f"r{n}": np.zeros(shape, np.float32) for n, shape in enumerate(SHAPES)})
    gradients = [f"g{n}" for n in range(len(SHAPES))]
    plain = [{name: each[name] for name in gradients} for each in blobs]
    want = run_on_ranks("AllreduceBucket", plain, gradients, deterministic=True)
    for got, dense in zip(run_on_ranks(op_type, blobs, list(blobs[0]), **arguments), want):
        for value, whole in zip(got, dense):
            np.testing.assert_array_equal(value, whole)
        assert not any(rest.any() for rest in got[len(gradients) :])


def test_over_steps_all_that_was_computed_is_exchanged_or_kept():
    """Numbers are multiples of 1/8, so that sums are exact."""
    rng = np.random.default_rng(2)
    steps = rng.integers(-64, 64, size=(6, 2, 30)).astype(np.float32) / 8
    worlds = thread_worlds(2)

    def work(rank):
        workspace = Workspace(threads=1)
        workspace.feed("cw", worlds[rank])
        workspace.feed("r", np.zeros(30, np.float32))
        net = NetDef(name="n", op=[make_op("AllreduceTopK", ["cw", "g", "r"], ["g", "r"], fraction=0.1)])
        done = np.zeros(30, np.float32)
        for number, gradients in enumerate(steps):
            workspace.feed("g", gradients[rank])
            if not number:
                workspace.create_net(net)
            workspace.run_net("n")
            done += workspace.fetch("g")
        return done, workspace.fetch("r")

    (done, first), (again, second) = on_ranks(2, work)
    np.testing.assert_array_equal(done, again)
    np.testing.assert_array_equal(done + first + second, steps.sum(axis=(0, 1)))


@pytest.mark.parametrize(
    "op_type, arguments", [("AllreduceTopK", {"fraction": 0.3}), ("AllreduceThreshold", {"bound": 9.0})]
)
def test_what_is_not_a_number_is_exchanged(op_type, arguments):
    blobs = [{"g": np.float32([1, 2, 3, 4]), "r": np.zeros(4, np.float32)} for _ in range(2)]
    blobs[1]["g"][2] = np.nan
    for outputs in run_on_ranks(op_type, blobs, ["g", "r"], **arguments):
        assert np.isnan(outputs[0][2]) and not np.isnan(outputs[1]).any()


@pytest.mark.parametrize(
    "op_type, arguments, want",
    [
        ("AllreduceTopK", {"fraction": 0.1}, [2 * 8, 2 * 8]),
        ("AllreduceThreshold", {"bound": 15.0}, [8 + 5 * 8, 8 + 6 * 8]),
    ],
)
def test_bytes_are_eight_for_each_element(op_type, arguments, want):
    worlds = thread_worlds(2)

    def work(rank):
        workspace = Workspace(threads=1)
        workspace.feed("cw", worlds[rank])
        workspace.feed("g", np.arange(20, dtype=np.float32) + rank)
        workspace.run_operator_once(make_op(op_type, ["cw", "g"], ["g"], residual=False, **arguments))
        return worlds[rank].communicator.given_bytes

    assert on_ranks(2, work) == want


def test_ranks_that_differ_in_the_fraction_raise_the_same_error():
    worlds = thread_worlds(2)

    def work(rank):
        workspace = Workspace(threads=1)
        workspace.feed("cw", worlds[rank])
        workspace.feed("g", np.ones(20, np.float32))
        op = make_op("AllreduceTopK", ["cw", "g"], ["g"], residual=False, fraction=0.1 + 0.1 * rank)
        workspace.run_operator_once(op)

    for error in on_ranks(2, work):
        with pytest.raises(RuntimeError, match="rank 0: .*fraction=0.1, .*; rank 1: .*fraction=0.2"):
            raise error


def test_positions_must_fit_into_32_bits(monkeypatch):
    monkeypatch.setattr(sparse_allreduce, "MOST", 20)
    for error in run_on_ranks("AllreduceTopK", [{"g": np.ones(20, np.float32)}] * 2, ["g"], residual=False):
        with pytest.raises(NetError, match="exchanges fewer than 20 elements at a time, got 20"):
            raise error.__cause__ or error
