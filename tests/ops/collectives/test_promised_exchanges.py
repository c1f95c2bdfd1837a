"""Exchanges without headers give the same bits as those with them, and end with the same errors."""

import numpy as np
import pytest

from mpi_runs import needs_mpi, run_over_mpi
from netbuilder.distributed.worlds.promises import History
from netbuilder.ops.core.operator import decode
from netbuilder.ops.core.registry import find
from netbuilder.proto import DistributedError
from netbuilder.runtime import Workspace
from promised_exchanges import CASES, SHAPES, barrier, check_case, net_of, steps
from promised_exchanges import __file__ as PROGRAM
from thread_ranks import on_ranks, thread_worlds

RANKS = 3


def on_worlds(function):
    worlds = thread_worlds(RANKS)
    results = on_ranks(RANKS, lambda rank: function(worlds[rank]))
    for each in results:
        if isinstance(each, AssertionError):
            raise each
    return results


@pytest.mark.parametrize("not_a_number", [None, 4])
@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_exchanges_that_are_agreed_on(case, not_a_number, monkeypatch):
    """A NaN may cost a header, and changes nothing else: not even the sign of a zero."""
    with monkeypatch.context() as patched:
        patched.setattr(History, "promised_after", lambda self, number: 0)
        want = on_worlds(lambda world: steps(world, case, not_a_number)[0])
    on_worlds(lambda world: check_case(world, case, not_a_number, want[world.rank]))


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_rank_that_does_something_else_is_named_by_all(case, fails):
    net, values, residuals = net_of(case)

    def rank_of(world):
        steps(world, case)
        barrier(world)
        if world.rank == 2 and fails:
            world.session.report_failure(ValueError("no"))
        elif world.rank == 2:
            barrier(world)
        else:
            workspace = Workspace(threads=1)
            workspace.feed("cw", world)
            for name in (*values, *residuals):
                workspace.feed(name, np.ones(SHAPES[int(name[1])], np.float32))
            workspace.run_net_once(net)

    errors = [each for each in on_worlds(rank_of) if each is not None]
    assert len(errors) == RANKS - fails and all(isinstance(each, DistributedError) for each in errors), errors
    named = "rank 2 of 3 has failed (ValueError: no)" if fails else "rank 2: Barrier"
    assert all(named in str(each) and CASES[case][0] in str(each) for each in errors), errors


@pytest.mark.parametrize("case", [name for name, (_, options, *_) in CASES.items() if not options.get("deterministic")])
def test_what_another_rank_has_refused_is_given_again(case):
    """As after a refusal in another layout: the values are those of ranks of which none has refused.

    Deterministic sums add what one rank has kept in another order; ``test_promises.py`` has these.
    """
    net, values, residuals = net_of(case)
    operator = decode(find(net.op[0].type), net.op[0])
    devices = len(values) // len(SHAPES)

    def exchange(world, refused):
        rng = np.random.default_rng(world.rank)
        sizes = [int(np.prod(shape)) for shape in SHAPES for _ in range(devices)]
        arrays = [rng.normal(size=size).astype(np.float32) for size in [*sizes, *(sizes if residuals else ())]]
        work = operator.over_ranks(world, arrays, [*values, *residuals])
        votes = operator.votes(work)
        if refused and world.rank == 1:
            votes.promised.refuse()
        elif refused:
            with votes.promised.unasked():
                work(world.communicator)
            assert votes.doubtful
            if not votes.stops:
                votes.restore(world.rank == 0)
        work(world.communicator)
        return [each.tobytes() for each in arrays]

    want, got = (on_worlds(lambda world, refused=refused: exchange(world, refused)) for refused in (False, True))
    assert got == want


@needs_mpi
@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", ["float16", "largest", "from rank 1"])
def test_over_mpi(case):
    status, text, _ = run_over_mpi(2, PROGRAM, case)
    assert text.count("has checked all") == 2, text
    assert text.count("the ranks do not exchange the same: ") == 2 and "rank 1: Barrier of 'another one'" in text, text
    assert "Traceback" not in text, text
