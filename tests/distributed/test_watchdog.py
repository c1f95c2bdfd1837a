"""Waits for other ranks that take too long: who is missing, what it does, and the end on all ranks."""

import json
import logging
import math
import re
import threading
import time

import pytest

from netbuilder.distributed.failure import roll_call, watchdog
from netbuilder.distributed.failure.roll_call import RollCall, State, main_stack
from netbuilder.distributed.stores import MemoryStore
from netbuilder.distributed.transport import time_limits
from netbuilder.distributed.transport.time_limits import TimeLimits, set_collective_timeout
from netbuilder.distributed.worlds import session as session_module
from netbuilder.distributed.worlds.session import Collective
from netbuilder.proto import DistributedError, NetError
from thread_ranks import ThreadCommunicator, _Meeting, on_ranks, thread_sessions
from waiting import wait_until

LIMIT = 1.2  # seconds; a lane without work answers within 0.25


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(watchdog, "LAST_WORDS", 0.05)
    monkeypatch.setattr(time_limits, "given_limits", None)


def submit(session, what="Allreduce", body=lambda same: same, timeout=LIMIT, **options):
    return session.submit(Collective(what, "g", timeout=timeout, **options), body)


def test_a_slow_rank_is_named_and_not_ended(caplog):
    sessions = thread_sessions(3, answering=True)

    def run(rank):
        submit(sessions[rank], "Barrier").result()
        if rank == 1:
            time.sleep(0.75 * LIMIT)
        return submit(sessions[rank]).result()

    with caplog.at_level(logging.WARNING, "netbuilder"):
        assert on_ranks(3, run) == [True] * 3
    said = [record.message for record in caplog.records]
    assert {message[:6] for message in said} == {"rank 0", "rank 2"}, said
    for message in said:
        assert "s for the other ranks in Allreduce of 'g'; there: ranks 0, 2; missing: rank 1 has finished Barrier" in (
            message
        )
        assert "and has begun no other collective; its main thread is at " in message
        assert message.endswith("; it gives up after 1.2 s")


def test_a_rank_that_hangs_is_an_error_on_all_ranks(capfd):
    sessions, hangs = thread_sessions(3, answering=True), threading.Event()

    def run(rank):
        submit(sessions[rank], "Barrier").result()
        if rank == 2:
            hangs.wait(30)
            time.sleep(0.6)  # its lane reads that the others have given up
        try:
            submit(sessions[rank], timeout=LIMIT * (1 + 20 * rank)).result()
        except DistributedError as error:
            hangs.set()
            return str(error)

    begin = time.monotonic()
    first, second, third = on_ranks(3, run)
    assert time.monotonic() - begin < 10 * LIMIT, "the others do not wait for their own limits"
    assert first == second and first in third
    assert first.startswith("rank 0 of 3 has waited 1.2 s for the other ranks in Allreduce of 'g'; there: ranks 0, 1; ")
    assert "missing: rank 2 has finished Barrier of 'g' 1 s ago, and has begun no other collective" in first
    printed = capfd.readouterr().err
    for rank in range(3):
        assert f"{first}. The threads of rank {rank}:" in printed
    assert printed.count("Current thread") == 3 and "in test_a_rank_that_hangs" in printed


FAILURE = "rank 0 of 2: NCCL has failed on GPU 0: remote process exited"


def test_an_engine_that_fails_meanwhile_ends_the_wait_on_all_ranks(capfd):
    sessions = thread_sessions(2, answering=True)
    sessions[1].lane.submit(lambda: None).result()  # it answers from now on
    failed = sessions[0].submit(Collective("Allreduce", "g", timeout=60), lambda same: same)
    sessions[0].control.failure = lambda: FAILURE
    with pytest.raises(DistributedError, match=FAILURE):
        failed.result()
    wait_until(lambda: sessions[1].over is not None)
    assert str(sessions[1].over) == FAILURE
    assert f"{FAILURE}. The threads of rank 0:" in capfd.readouterr().err


def test_an_engine_that_fails_between_collectives_ends_the_job(monkeypatch, capfd):
    """The program may wait for a GPU that waits for another one, so that no error would reach it."""
    ended = []
    monkeypatch.setattr(watchdog, "end_job", ended.append)
    sessions = thread_sessions(2, answering=True)
    assert on_ranks(2, lambda rank: submit(sessions[rank]).result()) == [True, True]
    sessions[0].control.failure = lambda: FAILURE
    wait_until(lambda: ended and sessions[1].over is not None)
    assert ended == [1] and str(sessions[1].over) == FAILURE
    assert f"{FAILURE}. The threads of rank 0:" in capfd.readouterr().err


@pytest.mark.one_in(2)
@pytest.mark.parametrize("moving", [False, True])
def test_a_rank_that_does_not_answer(moving, capfd):
    """As one that is stopped: before the others have come, or while values move."""
    sessions, stopped = thread_sessions(2), threading.Event()

    def body(same):
        while moving:
            sessions[0].check()
            time.sleep(0.01)

    def run(rank):
        if rank == 0:
            return submit(sessions[0], body=body).result()
        if moving:
            submit(sessions[1], body=lambda same: stopped.wait(20)).result()
        return None

    begin = time.monotonic()
    threading.Timer(2 * LIMIT, stopped.set).start()
    error = on_ranks(2, run)[0]
    assert LIMIT <= time.monotonic() - begin < 5 * LIMIT
    waited = "while values move" if moving else "for the other ranks"
    assert str(error) == (
        f"rank 0 of 2 has waited 1.2 s {waited} in Allreduce of 'g'; missing: rank 1 does not answer: it is stopped, "
        "has ended, or is in a call that lets no other thread run"
        + ("; it has begun Allreduce of 'g', as all ranks have" if moving else "")
    )
    capfd.readouterr()


def test_a_rank_that_does_not_answer_ends_a_long_wait(capfd):
    """One that answers may take as long as the wait allows; one that is stopped, no longer than another exchange."""
    set_collective_timeout(LIMIT)
    sessions = thread_sessions(3, answering=True)

    def barrier(rank):
        return submit(sessions[rank], "Barrier", timeout=20 * LIMIT).result()

    def busy_then_stopped(rank):
        barrier(rank)  # nobody needs to answer the first time
        time.sleep(2.5 * LIMIT if rank == 2 else 0)
        barrier(rank)
        begin = time.monotonic()
        if rank == 2:
            sessions[2].lane.when_idle = None
            return None
        with pytest.raises(DistributedError, match="in Barrier of 'g'; there: ranks 0, 1; missing: rank 2 does not an"):
            barrier(rank)
        return time.monotonic() - begin

    first, second, _ = on_ranks(3, busy_then_stopped)
    assert watchdog.Wait("Barrier", 300.0, False, 60.0).longest_call == 60.0
    assert 0.9 * LIMIT < first < 4 * LIMIT and second < 4 * LIMIT
    capfd.readouterr()


def inside_mpi(session, event, monkeypatch):
    """Let the next header of a rank wait for an event, as inside MPI: nobody calls ``check``, and nobody answers."""
    monkeypatch.setattr(session.control, "allreduce", lambda *array, **options: event.wait(20))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("stuck", [(1,), (0, 1)], ids=str)
def test_signs_of_life_tell_of_ranks_inside_mpi(stuck, monkeypatch, capfd):
    """Rank 0 waits for rank 1, whose MPI does not return; or no MPI returns any more."""
    monkeypatch.setattr(session_module, "SIGN", 0.1)
    monkeypatch.setattr(roll_call, "FRESH", 0.35)
    sessions, returns, store = thread_sessions(3, answering=True), threading.Event(), MemoryStore()
    for session in sessions:
        session.watch(store)

    def run(rank):
        submit(sessions[rank], "Barrier").result()
        time.sleep(0.3)
        if rank == 2:
            sessions[2]._heartbeat.close()  # as a process that is stopped
            sessions[2].lane.when_idle = None
            return None
        if rank in stuck:
            inside_mpi(sessions[rank], returns, monkeypatch)
        try:
            submit(sessions[rank], timeout=LIMIT * (1 + rank)).result()
        except DistributedError as error:
            return str(error)

    begin = time.monotonic()
    first, second, _ = on_ranks(3, run)
    assert time.monotonic() - begin < 10 * LIMIT
    returns.set()
    there = re.escape("in Allreduce of 'g'; there: ranks 0, 1; missing: rank 2 ")
    silent = r"has sent no heartbeat for \d+ s; in the last one it has finished Barrier of 'g' \d s ago"
    if 0 in stuck:
        assert re.match(
            "rank 0 of 3 has been inside threads for 1.* s in Allreduce of 'g', which does not return; ", first
        )
        assert re.search(f"there: ranks 0, 1; missing: rank 2 {silent}", first), first
    else:
        assert re.match(
            f"rank 0 of 3 has waited 1.2 s for the other ranks {there}does not answer by MPI, and {silent}", first
        ), first
    assert re.match("rank 1 of 3 has been inside threads for ", second), second
    printed = capfd.readouterr().err
    assert f"{first}. The threads of rank 0:" in printed and "in inside_mpi" not in first
    with pytest.raises(DistributedError, match="the ranks exchange nothing more after an earlier error"):
        submit(sessions[0])


def test_a_rank_that_works_for_long_is_not_inside_mpi(monkeypatch):
    """Its lane has nothing to do; nor has one that asks again and again whether others have come."""
    monkeypatch.setattr(watchdog, "LOOK_FROM_OUTSIDE", 0.05)
    sessions = thread_sessions(2)
    for session in sessions:
        session.watch(None)

    def run(rank):
        time.sleep(rank * 3 * LIMIT)
        return submit(sessions[rank], timeout=5 * LIMIT).result()

    assert on_ranks(2, run) == [True] * 2


def test_values_move_no_longer_than_usual(monkeypatch):
    """A rank may come late where a collective allows it, but not stop in the middle."""
    set_collective_timeout(LIMIT)
    session = thread_sessions(1)[0]
    assert session.moving_limit(Collective("Barrier", timeout=300), 300) == LIMIT
    assert session.moving_limit(Collective("Allreduce", nbytes=10**7), 10 * LIMIT) == LIMIT + 2
    assert session.moving_limit(Collective("Allreduce", timeout=0.5), 0.5) == 0.5
    set_collective_timeout(None)
    assert session.moving_limit(Collective("Barrier", timeout=300), 300) == 300
    assert session.moving_limit(Collective("Allreduce"), None) is None


def test_many_bytes_take_longer():
    sessions = thread_sessions(2)
    end = time.monotonic() + 1.5 * LIMIT

    def body(same):
        while time.monotonic() < end:
            sessions[0].check()
            time.sleep(0.01)
        return "done"

    run = lambda rank: submit(sessions[rank], body=body, nbytes=10**7).result()  # noqa: E731
    assert on_ranks(2, run) == ["done"] * 2


def test_the_end_of_the_program_waits_without_limit(caplog, monkeypatch):
    monkeypatch.setattr(watchdog, "PATIENCE", 0.3)
    sessions = thread_sessions(2, answering=True)

    def run(rank):
        submit(sessions[rank], "Barrier").result()
        if rank:
            time.sleep(1)
        sessions[rank].close()

    assert on_ranks(2, run) == [None] * 2
    (said,) = [record.message for record in caplog.records]
    assert "in the end of the program; missing: rank 1 has finished Barrier" in said and "gives up" not in said


@pytest.mark.one_in(2)
@pytest.mark.parametrize("fails", [False, True])
def test_a_rank_that_does_not_answer_ends_the_wait_at_the_end(fails, capfd):
    set_collective_timeout(LIMIT)
    sessions, begin = thread_sessions(2, answering=True), time.monotonic()

    def run(rank):
        submit(sessions[rank], "Barrier").result()
        if rank:
            sessions[1].lane.when_idle = None  # as a process that is stopped
            return None
        if fails:
            sessions[0].report_failure(ValueError("this one has failed"))
            while sessions[0].lane.interrupted is None and time.monotonic() < begin + 10 * LIMIT:
                time.sleep(0.05)
            return sessions[0].lane.interrupted
        with pytest.raises(DistributedError) as found:
            sessions[0].close()
        return found.value

    what = "the report of a failure" if fails else "the end of the program"
    error = str(on_ranks(2, run)[0])
    assert f"s for the other ranks in {what}; missing: rank 1 does not answer: it is stopped" in error
    assert error.endswith("; it has begun Barrier of 'g', as all ranks have")
    assert time.monotonic() - begin < 5 * LIMIT
    capfd.readouterr()


def test_limits_of_a_process(monkeypatch):
    session = thread_sessions(1)[0]
    call = Collective("Allreduce", "g")
    monkeypatch.delenv(time_limits.VARIABLE, raising=False)
    monkeypatch.delenv(time_limits.FIRST_VARIABLE, raising=False)
    own, patient = Collective("Barrier", timeout=5), Collective("Barrier", timeout=5, patient=True)
    session.submit(Collective("CreateCommonWorld", "world"), lambda same: None).result()
    assert [session.limit_of(each) for each in (call, call, own, patient)] == [600, 600, 5, 600]
    session.submit(call, lambda same: None).result()
    another = Collective("Allreduce", "h")
    assert [session.limit_of(each) for each in (call, another, own, patient)] == [60, 60, 5, 5]
    assert time_limits.time_limits() == TimeLimits(60, 600, 300)
    monkeypatch.setenv(time_limits.VARIABLE, "20")
    assert time_limits.time_limits() == TimeLimits(20, 200, 20) and session.limit_of(call) == 20
    monkeypatch.setenv(time_limits.FIRST_VARIABLE, "30")
    assert time_limits.time_limits() == TimeLimits(20, 30, 20)
    monkeypatch.setenv(time_limits.VARIABLE, "0")
    assert time_limits.time_limits() == TimeLimits(None, 30, None)
    set_collective_timeout(7, first=0)
    assert time_limits.time_limits() == TimeLimits(7, None, 7)
    set_collective_timeout(None)
    assert session.limit_of(call) is None
    for wrong in (-1, math.inf, math.nan, "soon"):
        with pytest.raises(NetError, match="set_collective_timeout: a time limit must be a number of seconds, or 0"):
            set_collective_timeout(wrong)
    monkeypatch.setattr(time_limits, "given_limits", None)
    monkeypatch.setenv(time_limits.VARIABLE, "a minute")
    with pytest.raises(NetError, match="NETBUILDER_COLLECTIVE_TIMEOUT.*got 'a minute'"):
        time_limits.time_limits()


def test_a_process_that_was_stopped_has_not_waited_meanwhile():
    wait = watchdog.Wait("Barrier", 60.0, False)
    begin = time.monotonic()
    assert wait.advance(begin + 0.5) == "" and wait.advance(begin + 1000) == "" and wait.waited < 3


def test_messages_stay_short():
    state = State("AllreduceBucket " + "x" * 5000, 3, "y" * 5000, 1.0, ["z" * 200] * 50)
    data = state.encode()
    assert len(data) <= 3000 and json.loads(data)["stack"], "what fits is sent"
    assert any("test_watchdog.py" in each for each in main_stack())


def test_of_many_missing_ranks_some_are_described():
    meeting = _Meeting(40)
    calls = [RollCall(ThreadCommunicator(meeting, rank), lambda: State("Barrier")) for rank in range(40)]
    calls[0].ask()
    for call in calls[21:]:
        call.look()
    calls[0].look()
    said = calls[0].missing("Barrier")
    assert said.startswith("there: ranks 0, 21, 22, ") and "35 and 4 more; missing: rank 1 does not answer" in said
    assert said.count("does not answer") == 16 and said.endswith("; 4 more ranks are missing")
