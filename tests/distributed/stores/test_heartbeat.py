"""Heartbeats: ranks that send signs, that have stopped, that never came."""

import time

import pytest

from netbuilder.distributed.stores import MemoryStore
from netbuilder.distributed.stores.heartbeat import Heartbeat, Heartbeats
from netbuilder.proto import NetError
from waiting import wait_until


def test_signs_of_three_ranks():
    store = MemoryStore()
    step = ["Conv of 'a'"]
    stopped = Heartbeat(store, 1, lambda: "the last", interval=0.01)
    stopped.close()
    with Heartbeat(store, 0, lambda: step[0], interval=0.01):
        ranks = Heartbeats(store, 3)
        assert [sign.age is None for sign in ranks.look()] == [False, False, True]
        wait_until(lambda: ranks.look()[1].age > 0.5)
        first, second, third = ranks.look()
        assert first.age < second.age and (first.doing, second.doing, third.doing) == ("Conv of 'a'", "the last", "")
        step[0] = "FC of 'b'"
        wait_until(lambda: ranks.look()[0].doing == "FC of 'b'")
        assert 1 in ranks.silent(0.5) and 2 in ranks.silent(1e9) and 0 not in ranks.silent(60)


def test_a_store_that_is_gone_ends_the_signs():
    store = MemoryStore()
    heartbeat = Heartbeat(store, 0, interval=0.01)
    store.close()
    wait_until(lambda: not heartbeat.thread.is_alive())
    begin = time.monotonic()
    heartbeat.close()
    assert time.monotonic() - begin < 5


def test_a_wrong_interval():
    with pytest.raises(NetError, match="interval must be a positive number of seconds, got 0"):
        Heartbeat(MemoryStore(), 0, interval=0)
