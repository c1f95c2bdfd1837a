"""Sums without headers: ranks that keep to their order make them, and any other order is found before it does harm."""

import contextlib

import numpy as np
import pytest

from netbuilder.distributed.worlds.promises import Sums
from netbuilder.distributed.worlds.session import Collective
from netbuilder.proto import DistributedError, NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from switches import single
from thread_ranks import on_ranks, thread_worlds


class Gradient:
    """A sum of one array over the ranks, as an operator of a plan makes it; ``layout`` says how a rank stores it."""

    stops = False

    def __init__(self, world, name="g", size=4, layout=""):
        self.world, self.layout, self.array = world, layout, np.zeros(size, np.float32)
        self.promised = Sums(world.communicator, ((self.array.dtype.str, size),))
        self.call = world.call("AllreduceBucket", name, f"({size},)", layout, votes=self)
        self._own = 0.0

    @property
    def doubtful(self):
        return np.isnan(self.array[0])

    def restore(self, keep):
        self.array[0 if not keep else len(self.array) :] = 0
        self.array[0] = self._own

    def add(self, *values):
        """Return the sum; ranks with another layout than "" store the elements the other way round."""
        self.array[:] = values[:: -1 if self.layout else 1]
        self.world.run(self.call, self._exchange)
        return self.array[:: -1 if self.layout else 1].tolist()

    def _exchange(self, communicator, same_layouts):
        self._own = self.array[0]
        plain = self.array if same_layouts else self.array[:: -1 if self.layout else 1].copy()
        communicator.allreduce(plain)
        if not same_layouts:
            self.array[:: -1 if self.layout else 1] = plain


def barrier(world):
    world.run(world.call("Barrier", ""), lambda communicator, _: None)


def run(size, function):
    worlds = thread_worlds(size)
    return worlds, on_ranks(size, lambda rank: function(worlds[rank], rank))


def headers(worlds):
    counts = {world.session.control.calls.count("allreduce") for world in worlds}
    assert len(counts) == 1
    return counts.pop()


def steps(world, gradients, count):
    """Make so many steps: a barrier, and the sums one after the other, as of ranks that wait for the exchange."""
    found = []
    for step in range(count):
        barrier(world)
        found.append([each.add(*[world.rank + step + n] * 4)[3] for n, each in enumerate(gradients)])
    return found


def want_of(size, sums, count):
    return [[sum(rank + step + n for rank in range(size)) for n in range(sums)] for step in range(count)]


@pytest.mark.parametrize("size", [2, 3])
def test_after_two_like_steps_only_the_barriers_have_headers(size):
    def rank_of(world, rank):
        return steps(world, [Gradient(world, f"g{n}") for n in range(5)], 6)

    worlds, results = run(size, rank_of)
    assert results == [want_of(size, 5, 6)] * size
    assert headers(worlds) == 6 + 2 * 5
    assert all(world.session.recent.seconds.waiting >= 0 for world in worlds)


def learned(world, sums=3):
    gradients = [Gradient(world, f"g{n}") for n in range(sums)]
    steps(world, gradients, 3)
    barrier(world)
    return gradients


OTHERS = {
    "an operator": (lambda world: barrier(world), r"rank 1: Barrier \(over 'cw'\)"),
    "a blob": (lambda world: Gradient(world, "h").add(0, 0, 0, 0), "rank 1: AllreduceBucket of 'h'"),
    "a shape": (lambda world: Gradient(world, "g1", 5).add(0, 0, 0, 0, 0), r"rank 1: AllreduceBucket of 'g1' \(\(5,\)"),
    "the end": (lambda world: world.session.close(), "rank 1: the end of the program"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_rank_whose_step_differs_is_named_and_nobody_gets_a_sum(other):
    do, message = OTHERS[other]

    def rank_of(world, rank):
        first, second, _ = learned(world)
        assert first.add(1, 2, 3, 4) == [3, 6, 9, 12]
        if rank == 1:
            return do(world)
        second.add(1, 1, 1, 1)
        raise AssertionError("a sum of what one rank has not given")

    worlds, results = run(3, rank_of)
    assert all(isinstance(each, DistributedError) for each in results) and len({*map(str, results)}) == 1, results
    with pytest.raises(DistributedError, match=message) as error:
        raise results[0]
    assert "ranks 0, 2: AllreduceBucket of 'g1' ((4,), over 'cw')" in str(error.value)
    for world in worlds:
        with pytest.raises(DistributedError, match="nothing more after an earlier error"):
            barrier(world)


@pytest.mark.parametrize("sums_before", [0, 1, 2])
def test_a_rank_that_fails_is_named_and_what_it_began_is_finished(sums_before):
    def rank_of(world, rank):
        gradients = learned(world)
        found = [each.add(1, 1, 1, 1) for each in gradients[:sums_before]]
        assert found == [[3] * 4] * sums_before
        if rank == 2:
            world.session.report_failure(ValueError("no"))
            return None
        return gradients[sums_before].add(1, 1, 1, 1)

    _, results = run(3, rank_of)
    want = f"rank 2 of 3 has failed (ValueError: no), while ranks 0, 1 wait in AllreduceBucket of 'g{sums_before}'"
    assert [str(each).startswith(want) for each in results] == [True, True, False]


def test_all_ranks_may_go_over_to_another_step_and_back():
    """The promise that they break together costs a message, and they agree by headers."""

    def rank_of(world, rank):
        gradients, others = learned(world), [Gradient(world, f"h{n}") for n in range(4)]
        found = [each.add(rank, 1, 2, 3) for each in others]
        barrier(world)
        return found + [each.add(1, rank, 2, 3) for each in gradients]

    _, results = run(3, rank_of)
    assert results == [[[3, 3, 6, 9]] * 4 + [[3, 3, 6, 9]] * 3] * 3


def test_steps_that_take_turns_are_never_promised():
    def rank_of(world, rank):
        gradients = [Gradient(world, f"g{n}") for n in range(2)]
        for _ in range(4):
            steps(world, gradients, 1)
            barrier(world)

    worlds, results = run(2, rank_of)
    assert results == [None] * 2
    assert headers(worlds) == 4 * (1 + 2 + 1)


@pytest.mark.parametrize("changed", [[0], [1], [2], [1, 2], [0, 1, 2]], ids=str)
def test_ranks_that_store_a_gradient_in_another_way_get_the_right_sum(changed):
    """Such as after a batch of another size: the others have added the elements in the order that was promised."""

    def rank_of(world, rank):
        first, *_ = learned(world)
        if rank in changed:
            first = Gradient(world, "g0", layout="reversed")
        found = [first.add(rank, 10, 20, 30)]
        barrier(world)
        return [*found, first.add(rank, 1, 2, 3)]

    _, results = run(3, rank_of)
    assert results == [[[3, 30, 60, 90], [3, 3, 6, 9]]] * 3


def test_a_gradient_that_is_not_a_number_is_one_header_more():
    def rank_of(world, rank):
        first, second, _ = learned(world)
        found = first.add(np.nan if rank else 1, 2, 3, 4), second.add(1, 1, 1, 1)
        return str(found)

    worlds, results = run(2, rank_of)
    assert results == ["([nan, 4.0, 6.0, 8.0], [2.0, 2.0, 2.0, 2.0])"] * 2


def test_common_worlds_that_are_made_anew_are_promised_nothing():
    """The sums would go over those that were destroyed."""

    def rank_of(world, rank):
        learned(world)
        steps(world, [], 1)
        call = Collective("CreateCommonWorld", "cw", "2 ranks")
        world.session.submit(call, lambda same: None).result()
        return steps(world, [Gradient(world, f"g{n}") for n in range(3)], 1)

    _, results = run(2, rank_of)
    assert results == [want_of(2, 3, 1)] * 2


def test_a_rank_that_waits_names_the_one_that_does_not_come():
    worlds = thread_worlds(2, timeout=0.4)

    def rank_of(rank):
        first, *_ = learned(worlds[rank])
        if rank == 0:
            with pytest.raises(DistributedError, match="rank 0 of 2 has waited 0.4 s for the other ranks in Allreduce"):
                first.add(1, 1, 1, 1)

    assert on_ranks(2, rank_of) == [None, None]


def test_random_orders_end_with_the_right_sums_or_the_same_error():
    """One rank leaves the order at a random place: by another collective, a failure or another layout."""
    rng = np.random.default_rng(7)
    for _ in range(25):
        size, sums = int(rng.integers(2, 5)), int(rng.integers(1, 5))
        at, kind, culprit = int(rng.integers(sums)), int(rng.integers(3)), int(rng.integers(size))

        def rank_of(world, rank, sums=sums, at=at, kind=kind, culprit=culprit):
            gradients = learned(world, sums)
            found = []
            for number, each in enumerate(gradients):
                if number == at and rank == culprit:
                    if kind == 0:
                        barrier(world)
                    elif kind == 1:
                        world.session.report_failure(ValueError("lost"))
                        raise DistributedError("lost")
                    each = Gradient(world, f"g{number}", layout="reversed")
                found.append(each.add(rank, number, 1, 2))
            return found

        worlds, results = run(size, rank_of)
        if kind == 2:
            want = [[sum(range(size)), size * number, size, 2 * size] for number in range(sums)]
            assert results == [want] * size
        else:
            named = f"rank {culprit}: Barrier" if kind == 0 else f"rank {culprit} of {size} has failed"
            others = [each for rank, each in enumerate(results) if rank != culprit]
            assert len({*map(str, others)}) == 1 and named in str(others[0]), results
        for world in worlds:
            with contextlib.suppress(DistributedError):
                world.session.lane.interrupt(DistributedError("over"))


SHAPES = [(3,), (60, 700), (), (40, 5)]


def sums_of_a_plan(workspace, world, name, without=()):
    """Make a net whose values a bucket adds, next to each other in memory unless an optimization is off."""
    names, net = [f"g{n}" for n in range(len(SHAPES))], NetDef(name=name)
    workspace.feed("cw", world)
    for each, shape in zip(names, SHAPES):
        workspace.feed(f"{each}_x", np.random.default_rng(world.rank).normal(size=shape).astype(np.float32))
        net.op.append(make_op("Scale", [f"{each}_x"], [each], scale=0.3))
    net.op.append(make_op("AllreduceBucket", ["cw", *names], names))
    workspace.create_net(net, without=list(without))

    def run():
        barrier(world)
        workspace.run_net(name)
        return [workspace.fetch(each) for each in names]

    return run


@pytest.mark.parametrize("changed", [[0], [1, 2], [0, 1, 2]], ids=str)
def test_buckets_of_plans_that_store_gradients_in_another_way(changed):
    def rank_of(world, rank):
        first, other = Workspace(threads=1), Workspace(threads=1)
        run = sums_of_a_plan(first, world, "first")
        for _ in range(3):
            run()
        before = world.session.control.calls.count("allreduce")
        run()
        counts = [world.session.control.calls.count("allreduce") - before]
        switched = sums_of_a_plan(other, world, "other", single("buckets_in_place")) if rank in changed else run
        got = switched()
        counts.append(world.session.control.calls.count("allreduce") - before)
        want = [sum(0.3 * np.random.default_rng(each).normal(size=shape) for each in range(3)) for shape in SHAPES]
        assert all(np.allclose(a, b, rtol=1e-5, atol=1e-5) for a, b in zip(got, want))
        return counts

    _, results = run(3, rank_of)
    assert results == [[1, 3]] * 3, "a header for the barrier, and one more where a rank refuses"
