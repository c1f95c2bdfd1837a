"""The clocks of processes whose calls are in one trace."""

import random

import pytest

from netbuilder.tools.training import trace

AHEAD = 7_000_000_000  # ns: the clock of rank 1


def meetings(seed):
    """Return the meetings of two ranks, and the shortest time that each needs to leave after the other has come.

    Either may come as late as it likes; nobody leaves before both have come.
    """
    draw, own, first, shortest = random.Random(seed), [], [], [10**12, 10**12]
    for begin in range(10**9, 10**10, 10**9):
        came = [begin + draw.randrange(10**8) for _ in range(2)]
        left = [max(came) + draw.randrange(10**4, 10 ** draw.randrange(5, 9)) for _ in range(2)]
        shortest = [min(shortest[rank], left[rank] - came[1 - rank]) for rank in range(2)]
        first.append((came[0], left[0]))
        own.append((came[1] + AHEAD, left[1] + AHEAD))
    return own, first, shortest


@pytest.mark.parametrize("seed", range(20))
def test_clocks_are_compared_as_well_as_meetings_tell(seed):
    own, first, shortest = meetings(seed)
    wrong_by = trace.clock_difference(own, first) - AHEAD
    assert wrong_by == (shortest[1] - shortest[0]) // 2
    assert trace.clock_difference(first, own) == pytest.approx(-AHEAD - wrong_by, abs=1)


@pytest.mark.parametrize(("name", "apart"), [("this system", 0), ("another", None), ("", None)])
def test_one_system_has_one_clock(name, apart, monkeypatch):
    """Rank 1 reads the clock of rank 0 if the system says so, and compares them by meetings if not."""

    class Group:
        def wait(self):
            pass

        def broadcast(self, value):
            return ("this system" if name else "", meetings(0)[1])

    own = iter(time for meeting in meetings(0)[0] for time in meeting)
    monkeypatch.setattr(trace, "clock", lambda: next(own))
    monkeypatch.setattr(trace, "_clock_name", lambda: name)
    if apart is None:
        apart = trace.clock_difference(*meetings(0)[:2])
    assert trace.common_moment(Group()) == meetings(0)[1][-1][1] + apart


def test_the_clock_has_the_name_of_the_running_system():
    assert trace._clock_name() == trace._clock_name() != ""
