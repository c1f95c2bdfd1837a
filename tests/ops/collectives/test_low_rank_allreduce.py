"""AllreduceLowRank: against NumPy in float64; what is kept, matrices of low rank, bytes, what is not finite."""

import numpy as np
import pytest
from hypothesis import strategies as st

from collective_runs import OBJECT, alone
from netbuilder.ops.collectives.low_rank_allreduce import AllreduceLowRank, low_rank_state
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import ArgumentError, NetDef, NetError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats
from suite import refusal as refusal_of
from thread_ranks import on_ranks, thread_worlds

F64 = TensorSpec((2,), np.dtype(np.float64))


def refusal(op, inputs, match, error=NetError):
    return refusal_of(op, inputs, match, error, n_out=len(inputs) - 1)


def reference(givens, residuals, factor):
    """The output, the new residuals and the new factor, given what each process has, in float64."""
    wholes = [(given + rest).reshape(len(given), -1).astype(np.float64) for given, rest in zip(givens, residuals)]
    p, _ = np.linalg.qr(sum(whole @ factor.T for whole in wholes))
    q = sum(p.T @ whole for whole in wholes)
    return p @ q, [whole - p @ q / len(wholes) for whole in wholes], q


class TestAllreduceLowRank(OperatorSuite):
    operator = AllreduceLowRank
    no_gradient = "it follows the backward pass"
    refusals = (
        refusal(AllreduceLowRank(rank=0), [OBJECT, f32(2), f32(0)], "rank must be at least 1, got 0", ArgumentError),
        refusal(AllreduceLowRank(), [OBJECT, f32(2)], "as many states as blobs", ArgumentError),
        refusal(AllreduceLowRank(), [OBJECT, F64, f32(0)], "exchanges float32, got input 1 of type float64"),
        refusal(AllreduceLowRank(rank=2), [OBJECT, f32(9, 4, 2), f32(9, 8)], "must have shape .11, 4, 2., got .9, 8."),
        refusal(AllreduceLowRank(rank=1, residual=False), [OBJECT, f32(9, 8), f32(10, 8)], "must have shape .1, 8."),
        refusal(AllreduceLowRank(), [OBJECT, f32(4, 4), f32(8, 4)], "must have shape .0,., got .8, 4."),
    )

    def draw(self, data):
        shape = data.draw(st.sampled_from([(3, 4), (5, 2, 3)]))
        x, small = data.draw(floats(*shape, apart=0.01)), data.draw(floats(2, 2))
        state = data.draw(floats(*low_rank_state(shape, 1, residual=True), apart=0.01))
        if not state[len(x) :].any():  # as in the first step, where it is random
            state[len(x) :] = 1
        return AllreduceLowRank(rank=1).with_arity(5, 4), [alone(), x, small, state, np.zeros(0, np.float32)]

    def reference(self, op, world, x, small, state, none):
        total, (rest,), q = reference([x], [state[: len(x)]], state[len(x) :].reshape(1, -1))
        kept = np.concatenate([rest, q]).reshape(state.shape)
        return total.reshape(x.shape), small, kept, none


def run(size, steps, shapes, **arguments):
    """Run steps on ranks that are threads; return for each rank and step the outputs and the states, and its world."""
    rank = arguments["rank"]
    worlds, count = thread_worlds(size), len(shapes)
    names = [f"g{n}" for n in range(count)] + [f"s{n}" for n in range(count)]
    net = NetDef(name="n", op=[make_op("AllreduceLowRank", ["cw", *names], names, **arguments)])

    def work(number):
        workspace, found = Workspace(threads=1), []
        workspace.feed("cw", worlds[number])
        for n, shape in enumerate(shapes):
            state = low_rank_state(shape, rank, residual=arguments.get("residual", True))
            workspace.feed(f"s{n}", np.zeros(state, np.float32))
        for step, of_ranks in enumerate(steps):
            for n, value in enumerate(of_ranks[number]):
                workspace.feed(f"g{n}", value)
            if not step:
                workspace.create_net(net)
            workspace.run_net("n")
            found.append([workspace.fetch(name) for name in names])
        return found

    return on_ranks(size, work), worlds


SHAPES = [(6, 8), (5,), (4, 3, 5), (2, 2), ()]


def values(size, steps, shapes=SHAPES):
    rng = np.random.default_rng(3)
    return [
        [[rng.normal(size=shape).astype(np.float32) for shape in shapes] for _ in range(size)] for _ in range(steps)
    ]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("residual", [True, False])
def test_steps_are_those_of_numpy(size, residual):
    steps = values(size, 5)
    found, _ = run(size, steps, SHAPES, rank=2, residual=residual)
    for n, shape in enumerate(SHAPES):
        rests, kept = [np.zeros(shape)] * size, len(SHAPES) + n
        for step, given in enumerate(steps):
            outputs = [of_rank[step][n] for of_rank in found]
            assert all(each.tobytes() == outputs[0].tobytes() for each in outputs), "the same bits on all ranks"
            if n not in (0, 2):
                np.testing.assert_allclose(outputs[0], sum(each[n] for each in given), rtol=1e-6, atol=1e-6)
                continue
            rows = shape[0] * residual
            if step:  # with what is kept, so that errors do not add up; the first factor is random
                factor = found[0][step - 1][kept][rows:].reshape(2, -1)
                rests = [of_rank[step - 1][kept][:rows] if residual else 0.0 for of_rank in found]
                want, want_rests, q = reference([each[n] for each in given], rests, factor)
                np.testing.assert_allclose(outputs[0].reshape(shape[0], -1), want, rtol=1e-4, atol=1e-4)
                for of_rank, rest in zip(found, want_rests):
                    np.testing.assert_allclose(of_rank[step][kept][rows:].reshape(2, -1), q, rtol=1e-4, atol=1e-4)
                    if residual:
                        got = of_rank[step][kept][:rows].reshape(shape[0], -1)
                        np.testing.assert_allclose(got, rest, rtol=1e-4, atol=1e-4)


def test_over_steps_all_that_was_computed_is_exchanged_or_kept():
    steps = values(2, 6, [(6, 8)])
    found, _ = run(2, steps, [(6, 8)], rank=1)
    done = sum(outputs[0] for outputs in found[0])
    rests = sum(of_rank[-1][1][:6] for of_rank in found)
    np.testing.assert_allclose(done + rests, sum(part[0] for step in steps for part in step), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("warm_start", [True, False])
def test_a_sum_of_low_rank_is_exact_and_a_warm_start_finds_the_largest_part(warm_start):
    rng = np.random.default_rng(4)
    low = (rng.normal(size=(9, 2)) @ rng.normal(size=(2, 7))).astype(np.float32)
    found, _ = run(2, [[[low], [2 * low]]] * 2, [(9, 7)], rank=2, residual=False, warm_start=warm_start)
    for outputs in found[0]:
        np.testing.assert_allclose(outputs[0], 3 * low, rtol=1e-4, atol=1e-4)
    full = rng.normal(size=(9, 7)).astype(np.float32)
    found, _ = run(2, [[[full], [full]]] * 30, [(9, 7)], rank=1, residual=False, warm_start=warm_start)
    u, s, v = np.linalg.svd(2 * full.astype(np.float64))
    apart = np.linalg.norm(found[0][-1][0] - s[0] * np.outer(u[:, 0], v[0]))
    assert (apart < 1e-2) == warm_start
    again = np.array_equal(found[0][-1][0], found[0][-2][0])
    assert again <= warm_start, "other random numbers in each step"


def test_bytes_are_those_of_the_factors():
    _, worlds = run(2, values(2, 1), SHAPES, rank=2)
    want = 4 * (2 * (6 + 8) + 5 + 2 * (4 + 15) + 4 + 1)
    assert [world.communicator.given_bytes for world in worlds] == [want] * 2
    assert worlds[0].communicator.calls == ["allreduce"] * 2


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_reaches_all_ranks_and_is_not_kept(bad):
    steps = values(2, 3, [(6, 8)])
    steps[1][1][0][2, 3] = bad
    found, _ = run(2, steps, [(6, 8)], rank=1)
    for before, broken, after in found:
        assert np.isfinite(before[0]).all() and np.isfinite(after[0]).all()
        assert np.isnan(broken[0]).all() and not broken[1].any()


def test_ranks_that_differ_in_the_rank_raise_the_same_error():
    worlds = thread_worlds(2)

    def work(number):
        workspace = Workspace(threads=1)
        workspace.feed("cw", worlds[number])
        workspace.feed("g", np.ones((8, 8), np.float32))
        workspace.feed("s", np.zeros((8 + 1 + number, 8), np.float32))
        workspace.run_operator_once(make_op("AllreduceLowRank", ["cw", "g", "s"], ["g", "s"], rank=1 + number))

    for error in on_ranks(2, work):
        with pytest.raises(RuntimeError, match="rank 0: .*rank=1, .*; rank 1: .*rank=2"):
            raise error


VALUES = np.random.default_rng(5).normal(size=(5, 2, 9, 7)).astype(np.float32)  # steps, ranks, rows, columns


def worked(world, steps, before=lambda step, work, communicator: None, **arguments):
    """Exchange a matrix and a vector in each step as an operator does it; return what they and the state are then."""
    op, found = AllreduceLowRank(rank=2, **arguments).with_arity(5, 4), []
    residual = arguments.get("residual", True)
    state = np.zeros(low_rank_state((9, 7), 2, residual=residual), np.float32).reshape(-1)
    blob, small = np.zeros(63, np.float32), np.zeros(7, np.float32)
    work = op.over_ranks(world, [blob, small, state, np.zeros(0, np.float32)], ["g", "h"])
    assert op.votes(work) is work
    for step in range(steps):
        value = VALUES[step, world.rank]
        blob[:], small[:] = value.reshape(-1), value[0]
        before(step, work, world.communicator)
        work(world.communicator)
        assert not work.doubtful
        found.append([blob.copy(), small.copy(), state.copy()])
    return found


@pytest.mark.parametrize("arguments", [{}, {"residual": False}, {"warm_start": False}], ids=str)
@pytest.mark.parametrize("at", [0, 2])
def test_a_sum_that_another_rank_refuses_is_formed_once_more(arguments, at):
    """What was given to the refused one, the state included, is given again."""

    def refused(step, work, communicator):
        if step != at:
            return
        if communicator.rank == 1:
            work.promised.refuse()
            return
        work(communicator)
        assert work.doubtful
        work.restore(False)

    found, want = [], []
    for results, given in ((found, {"before": refused}), (want, {})):
        worlds = thread_worlds(2)
        results += on_ranks(2, lambda rank, worlds=worlds, given=given: worked(worlds[rank], 4, **arguments, **given))
    for got, wanted in zip(found, want):
        for step, (now, as_planned) in enumerate(zip(got, wanted)):
            for value, other in zip(now, as_planned):
                np.testing.assert_allclose(value, other, rtol=1e-4, atol=1e-4, err_msg=str(step))


@pytest.mark.parametrize("not_a_number", [False, True])
def test_after_like_steps_there_is_no_header(not_a_number):
    """A barrier has one; a matrix that is not finite is NaN on all ranks, for one header more; the next one is not."""
    worlds = thread_worlds(2)
    names = ["g", "s"]
    net = NetDef(name="n", op=[make_op("AllreduceLowRank", ["cw", *names], names, rank=2)])

    def work(rank):
        world, workspace, counts, finite = worlds[rank], Workspace(threads=1), [], []
        workspace.feed("cw", world)
        workspace.feed("s", np.zeros(low_rank_state((9, 7), 2, residual=True), np.float32))
        for step, of_ranks in enumerate(VALUES):
            value = of_ranks[rank].copy()
            value[0, 0] = np.nan if not_a_number and rank and step == 3 else value[0, 0]
            workspace.feed("g", value)
            if not step:
                workspace.create_net(net)
            before = world.session.control.calls.count("allreduce")
            world.run(world.call("Barrier", ""), lambda communicator, _: None)
            workspace.run_net("n")
            counts.append(world.session.control.calls.count("allreduce") - before)
            finite.append(bool(np.isfinite(workspace.fetch("g")).all()))
        return counts, finite

    want = [2, 2, 1, 2 if not_a_number else 1, 1], [True, True, True, not not_a_number, True]
    for counts, finite in on_ranks(2, work):
        assert counts[2:] == want[0][2:] and finite == want[1]
