"""Ranks that do not agree: the same error on all of them, in any case of disagreement, and no hang."""

import contextlib
import threading
import time

import pytest

from netbuilder.distributed.worlds.session import Collective, Session, _compare
from netbuilder.proto import DistributedError
from thread_ranks import on_ranks, thread_sessions


def run_all(size, function):
    sessions = thread_sessions(size)
    return sessions, on_ranks(size, lambda rank: function(sessions[rank], rank))


def same_error(results):
    assert all(isinstance(each, DistributedError) for each in results), results
    assert len(set(map(str, results))) == 1, results
    return str(results[0])


def one(session, *args, **options):
    return session.submit(Collective(*args, **options), lambda same: same).result()


def test_ranks_that_agree():
    def run(session, rank):
        return [one(session, "Allreduce", f"g{n}", "(3,)") for n in range(5)]

    assert run_all(3, run)[1] == [[True] * 5] * 3


def test_different_layouts_are_no_error():
    def run(session, rank):
        first = one(session, "Allreduce", "g", "(3,)", "blocked" if rank else "")
        return first, one(session, "Allreduce", "g", "(3,)", "blocked")

    assert run_all(3, run)[1] == [(False, True)] * 3


def test_ranks_that_disagree_print_what_they_have_exchanged_last(capsys):
    def run(session, rank):
        for number in range(70):
            one(session, "Allreduce", f"g{number}")
        with pytest.raises(DistributedError):
            one(session, "Barrier" if rank else "Allreduce", "" if rank else "g70")
        return session.recent.seconds

    _, seconds = run_all(2, run)
    said = capsys.readouterr().err
    for rank, last in enumerate(("Allreduce of 'g70'", "Barrier")):
        own = said[said.index(f"the last collectives of rank {rank}:\n") :].splitlines()[1:65]
        assert own[0].startswith("  #8 Allreduce of 'g7': waited ") and ", took " in own[0]
        assert own[-1] == f"  #71 {last}: waits for the other ranks"
    assert all(each.waiting > 0 and each.moving > 0 for each in seconds)


class Behind:
    """Submits collectives behind one that lasts until all ranks have submitted theirs."""

    def __init__(self, ranks):
        self._held = threading.Barrier(2 * ranks)  # threads of programs and of lanes

    def submit(self, session, *calls, then=lambda: []):
        """Return what is submitted; a text sends to another rank."""
        session.submit(Collective("Allreduce", "first"), lambda same: [self._held.wait(10) for _ in range(2)])
        self._held.wait(10)  # all lanes are in it
        items = [
            session.submit_between_two(Collective("SendTensor", call), lambda: "sent")
            if isinstance(call, str)
            else session.submit(call, lambda same: same)
            for call in calls
        ]
        then()
        self._held.wait(10)
        return items


def error_of(item):
    with pytest.raises(DistributedError) as error:
        item.result()
    return str(error.value)


def headers(sessions):
    counts = {session.control.calls.count("allreduce") for session in sessions}
    assert len(counts) == 1
    return counts.pop()


@pytest.mark.parametrize("count, want", [(1, 2), (16, 2), (17, 3), (40, 4)])
def test_one_header_is_of_all_that_every_rank_has_submitted(count, want):
    behind = Behind(3)

    def run(session, rank):
        calls = [Collective("Allreduce", f"g{n}", "", "blocked" if rank and n % 3 else "") for n in range(count)]
        return [item.result() for item in behind.submit(session, *calls)]

    sessions, results = run_all(3, run)
    assert results == [[n % 3 == 0 for n in range(count)]] * 3
    assert headers(sessions) == want


def test_a_header_is_of_nothing_that_a_rank_has_not_submitted():
    """So a rank that goes on to something else is an error, although the others have submitted more."""
    behind = Behind(2)

    def run(session, rank):
        first, *more = (Collective("Allreduce", f"g{n}") for n in range(4))
        items = behind.submit(session, first, *(() if rank else more))
        assert items[0].result()
        if rank:
            items += [session.submit(call, lambda same: same) for call in (*more[:2], Collective("Barrier"))]
        assert [item.result() for item in items[:-1]] == [True] * 3
        return error_of(items[-1])

    sessions, results = run_all(2, run)
    assert results == ["the ranks do not exchange the same: rank 0: Allreduce of 'g3'; rank 1: Barrier"] * 2
    assert 4 <= headers(sessions) <= 5


@pytest.mark.parametrize("place", [0, 1, 5, 16])
def test_ranks_that_disagree_later_have_finished_what_came_before(place):
    behind = Behind(3)

    def run(session, rank):
        calls = [Collective("Allreduce", f"g{n}") for n in range(20)]
        if rank == 2:
            calls[place] = Collective("Barrier")
        items = behind.submit(session, *calls)
        assert [item.result() for item in items[:place]] == [True] * place
        return {error_of(item) for item in items[place:]}

    want = f"the ranks do not exchange the same: ranks 0, 1: Allreduce of 'g{place}'; rank 2: Barrier"
    assert run_all(3, run)[1] == [{want}] * 3


@pytest.mark.parametrize("place", [0, 1, 5, 16])
def test_a_rank_that_fails_has_finished_what_it_submitted(place):
    behind = Behind(3)

    def run(session, rank):
        calls = [Collective("Allreduce", f"g{n}") for n in range(place if rank == 2 else 20)]
        then = (lambda: session.report_failure(ValueError("no"))) if rank == 2 else (lambda: None)
        items = behind.submit(session, *calls, then=then)
        assert [item.result() for item in items[:place]] == [True] * place
        return {error_of(item) for item in items[place:]}

    want = f"rank 2 of 3 has failed (ValueError: no), while ranks 0, 1 wait in Allreduce of 'g{place}'"
    assert run_all(3, run)[1] == [{want}, {want}, set()]


def test_a_header_is_of_nothing_behind_a_message_between_two_ranks():
    behind = Behind(2)

    def run(session, rank):
        calls = [Collective("Allreduce", f"g{n}") for n in range(4)]
        return [item.result() for item in behind.submit(session, *calls[:2], "x", *calls[2:], "y")]

    sessions, results = run_all(2, run)
    assert results == [[True, True, "sent", True, True, "sent"]] * 2 and headers(sessions) == 3


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (("Barrier",), "rank 1: Barrier"),
        (("Allreduce", "h", "(3,)"), r"rank 1: Allreduce of 'h' \(\(3,\)\)"),
        (("Allreduce", "g", "(4,)"), r"rank 1: Allreduce of 'g' \(\(4,\)\)"),
    ],
)
def test_another_operator_blob_or_shape_is_the_same_error_on_all_ranks(other, text):
    def run(session, rank):
        return one(session, *(other if rank == 1 else ("Allreduce", "g", "(3,)")))

    sessions, results = run_all(3, run)
    message = same_error(results)
    pytest.raises(DistributedError, lambda: (_ for _ in ()).throw(results[0])).match(text)
    assert "ranks 0, 2: Allreduce of 'g' ((3,))" in message
    for session in sessions:
        with pytest.raises(DistributedError, match="nothing more after an earlier error; run the init net"):
            one(session, "Barrier")


def test_what_was_submitted_after_the_disagreement_is_not_run():
    ran = []

    def run(session, rank):
        first = session.submit(Collective("Allreduce", f"g{rank}"), lambda same: None)
        later = []
        with contextlib.suppress(DistributedError):  # the ranks may have found out already
            for n in range(3 if rank else 0):
                later.append(session.submit(Collective("Allreduce", f"h{n}"), ran.append))
        for item in later:
            with pytest.raises(DistributedError, match="nothing more after an earlier error|do not exchange the same"):
                item.result()
        return first.result()

    same_error(run_all(2, run)[1])
    assert not ran


def test_what_was_submitted_before_an_error_raises_that_error():
    """So it does not matter for which of several collectives in flight a program waits first."""

    def run(session, rank):
        held = threading.Event()

        def fail(same):
            held.wait()
            raise ValueError("an overflow")

        items = [session.submit(Collective("Allreduce", f"g{n}"), work) for n, work in enumerate([fail, fail, fail])]
        held.set()
        for item in reversed(items):
            with pytest.raises(ValueError, match="an overflow"):
                item.result()
        with pytest.raises(DistributedError, match="nothing more after an earlier error"):
            one(session, "Barrier")
        return "as it should be"

    assert run_all(2, run)[1] == ["as it should be"] * 2


def test_an_error_has_the_position_of_the_collective_that_failed():
    def located(name):
        return lambda error: ValueError(f"{name}: {error}")

    def run(session, rank):
        held = threading.Event()
        calls = [Collective("Allreduce", name, "(4,)" if rank and name == "b" else "", located=located(name))
                 for name in "abc"]  # fmt: skip
        items = [session.submit(call, lambda same: held.wait()) for call in calls]
        held.set()
        for item in reversed(items[1:]):
            with pytest.raises(ValueError, match="b: the ranks do not exchange the same"):
                item.result()
        return items[0].result()

    assert run_all(2, run)[1] == [True] * 2


def test_a_failure_of_one_rank_reaches_the_others():
    def run(session, rank):
        one(session, "Allreduce", "g")
        if rank == 1:
            session.report_failure(ValueError("a batch of 3"))
            session.report_failure(ValueError("another"))
            with pytest.raises(DistributedError, match="a batch of 3"):
                one(session, "Allreduce", "h")
            return None
        return one(session, "Allreduce", "h")

    results = run_all(3, run)[1]
    message = same_error([results[0], results[2]])
    assert message == "rank 1 of 3 has failed (ValueError: a batch of 3), while ranks 0, 2 wait in Allreduce of 'h'"


def test_what_a_rank_began_before_it_failed_is_finished():
    def run(session, rank):
        items = [session.submit(Collective("Allreduce", f"g{n}"), lambda same, n=n: n) for n in range(3)]
        if rank == 1:
            session.report_failure(ValueError("late"))
            return [item.result() for item in items]
        found = [item.result() for item in items]
        with pytest.raises(DistributedError, match="rank 1 of 2 has failed"):
            one(session, "Barrier")
        return found

    assert run_all(2, run)[1] == [[0, 1, 2]] * 2


def test_a_rank_that_ends_its_program_is_named():
    def run(session, rank):
        if rank == 0:
            return one(session, "Allreduce", "g")
        return session.close()

    message = same_error(run_all(2, run)[1])
    assert "rank 0: Allreduce of 'g'; rank 1: the end of the program" in message


def test_all_ranks_end_together():
    assert run_all(3, lambda session, rank: session.close())[1] == [None] * 3


def test_a_failed_rank_ends_with_those_that_end():
    def run(session, rank):
        if rank:
            session.report_failure(ValueError("no"))
        session.close()

    results = run_all(2, run)[1]
    assert results[1] is None and "rank 1 of 2 has failed" in str(results[0])


def test_a_rank_that_does_not_come():
    def run(session, rank):
        if rank == 0:
            return None
        begin = time.monotonic()
        with pytest.raises(DistributedError, match=r"rank 1 of 2 has waited 0.3 s for the other ranks in Barrier") as e:
            one(session, "Barrier", timeout=0.3)
        assert time.monotonic() - begin < 5
        with pytest.raises(DistributedError, match="has waited 0.3 s"):
            one(session, "Barrier")
        return str(e.value)

    run_all(2, run)[1]


def test_one_rank_is_never_over():
    session = thread_sessions(1)[0]
    session.report_failure(ValueError("no"))
    assert isinstance(session, Session) and session.over is None and one(session, "Barrier")


def test_long_texts_are_shortened_around_the_first_difference():
    blobs = ", ".join(f"'g{n}' (3, 4) float32" for n in range(400))
    message = _compare([blobs + ", 'h' (3,)", blobs + ", 'h' (4,)"])
    assert len(message) < 1200 and "'h' (3,)" in message and "'h' (4,)" in message
    assert len(_compare(["a" * 900, "b" * 900])) < 1300
