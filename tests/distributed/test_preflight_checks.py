"""Preflight: shards that disagree, are missing or come twice get the same error, in seconds."""

import threading
import time

import numpy as np
import pytest

from netbuilder import Net
from netbuilder.distributed import Rendezvous, preflight_checks
from netbuilder.distributed.preflight_checks import fingerprint, preflight
from netbuilder.distributed.stores import FileStore, MemoryStore
from netbuilder.distributed.transport.start import meet
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import DistributedError, NetError, StoreTimeoutError
from thread_ranks import on_ranks
from waiting import join_all


def together(*shards, store=None, timeout=10.0):
    """Run the check of several shards, each (shard_id, num_shards, keyword arguments); return their errors."""
    store = store or MemoryStore()
    errors = [None] * len(shards)

    def check(i, shard_id, num_shards, options):
        try:
            preflight(Rendezvous(num_shards, shard_id, store=store, run_id="r"), timeout=timeout, **options)
        except (DistributedError, NetError) as error:
            errors[i] = error

    threads = [threading.Thread(target=check, args=(i, *shard), name=f"shard {i}") for i, shard in enumerate(shards)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    join_all(*threads)
    assert time.monotonic() - begin < 10
    return errors


def the_error(errors):
    assert all(isinstance(error, DistributedError) for error in errors), errors
    assert len({str(error) for error in errors}) == 1
    return str(errors[0])


def a_net(out="y", rank=0, scale=2.0):
    net = Net("a")
    net.Relu("x", "h")
    net.Scale("h", out, scale=scale)
    proto = net.Proto()
    proto.op[0].arg.add(name="rank", i=rank)
    proto.op[1].debug_info = f"line {rank}"
    return proto


def test_shards_that_agree():
    shapes = {"x": TensorSpec((4, 2), np.dtype("float32"))}
    shards = [(i, 3, {"facts": {"steps": 5}, "nets": [a_net(rank=i)], "shapes": shapes}) for i in range(3)]
    assert together(*shards) == [None] * 3


def test_one_shard_needs_no_store():
    preflight(Rendezvous(1, 0))
    with pytest.raises(NetError, match="the rendezvous has no store; give store="):
        preflight(Rendezvous(2, 0))


def test_a_shard_id_that_is_used_twice():
    text = the_error(together((0, 2, {}), (0, 2, {})))
    assert "preflight: shard id 0 is used 2 times, by " in text and "give each process its own shard_id" in text


def test_numbers_of_shards_that_differ():
    text = the_error(together((0, 2, {}), (1, 3, {})))
    assert "the shards differ in num_shards: " in text and "shard 0: 2" in text and "shard 1: 3" in text
    assert "start all processes with the same number" in text


def test_facts_that_differ():
    text = the_error(together(*[(i, 3, {"facts": {"steps": 100 - (i == 2)}}) for i in range(3)]))
    assert "the shards differ in steps: " in text and "shard 2: 99" in text
    text = the_error(together((0, 2, {"facts": {"only here": 1}}), (1, 2, {})))
    assert "differ in only here: " in text and "null" in text


def test_shapes_that_differ():
    def shard(i):
        return (i, 2, {"shapes": {"x": TensorSpec((4 + i, 2), np.dtype("float32"))}})

    text = the_error(together(shard(0), shard(1)))
    assert "the shards differ in input 'x': " in text and '"(5, 2) float32"' in text


@pytest.mark.parametrize(
    "other, said",
    [
        (a_net(scale=3.0), "the first operator that differs is number 1, here Scale of "),
        (a_net(out="z"), "the first operator that differs is number 1, here Scale of "),
    ],
)
def test_nets_that_differ(other, said):
    text = the_error(together((0, 2, {"nets": [a_net()]}), (1, 2, {"nets": [other]})))
    assert "the shards differ in net 0: " in text and "2 operators" in text and said in text


def test_more_operators_and_no_net():
    longer = a_net()
    longer.op.add(type="Relu", input=["y"], output=["w"])
    text = the_error(together((0, 2, {"nets": [a_net()]}), (1, 2, {"nets": [longer]})))
    assert "the first 2 operators are equal" in text or "differs is number 2, here Relu of ['w']" in text
    text = the_error(together((0, 2, {"nets": [a_net()]}), (1, 2, {})))
    assert "differ in net 0: " in text and "build the same nets on all shards" in text
    outputs = a_net()
    outputs.external_output.append("h")
    text = the_error(together((0, 2, {"nets": [a_net()]}), (1, 2, {"nets": [outputs]})))
    assert "they differ in their external inputs or outputs" in text


def test_what_belongs_to_a_rank_does_not_count():
    assert fingerprint(a_net(rank=0)) == fingerprint(a_net(rank=1)) != fingerprint(a_net(scale=3.0))


def test_a_shard_that_does_not_come():
    errors = together((0, 3, {}), (2, 3, {}), timeout=0.3)
    text = the_error(errors)
    assert "shard 1 of 3 did not come to the store in memory, prefix 'r'" in text and "within 0.3 s; 2 did" in text
    assert any(isinstance(error, StoreTimeoutError) for error in errors)


def test_two_runs_in_one_folder(tmp_path):
    def run(run_id):
        errors = []
        for shard in (0, 1):
            rendezvous = Rendezvous(2, shard, store=FileStore(tmp_path), run_id=run_id)

            def check(rendezvous=rendezvous):
                try:
                    preflight(rendezvous)
                except DistributedError as error:
                    errors.append(str(error))

            thread = threading.Thread(target=check, name=f"shard {shard}")
            thread.start()
            threads.append(thread)
        join_all(*threads)
        return errors

    threads = []
    assert run("one") == run("two") == []
    errors = run("one")
    assert len(errors) == 2 and all("the store holds what an earlier run has left; give each run" in e for e in errors)


def test_facts_that_json_cannot_hold():
    with pytest.raises(NetError, match="facts must be values that JSON can hold"):
        preflight(Rendezvous(2, 0, store=MemoryStore()), {"x": object()})


def test_a_shard_that_waits_says_for_which(monkeypatch, caplog):
    monkeypatch.setattr(preflight_checks, "QUIET", 0.05)
    the_error(together((0, 3, {}), (2, 3, {}), timeout=2.0))
    assert caplog.text.count("preflight: waits for shard 1 of 3; it gives up after 2 s") == 2


class CountedStore(MemoryStore):
    """Counts requests; a wait for a key is one."""

    requests = 0

    def set(self, key, value):
        self.requests += 1
        super().set(key, value)

    def peek(self, key):
        self.requests += 1
        return super().peek(key)

    def add(self, key, amount=1):
        self.requests += 1
        return super().add(key, amount)

    def get(self, key, timeout=10.0):
        self.requests += 1
        return super().get(key, timeout)


def test_each_of_many_processes_makes_a_few_requests():
    """A process that asked for the records of all would make as many as there are processes."""
    store = CountedStore()
    assert together(*[(i, 64, {"nets": [a_net(rank=i)]}) for i in range(64)], store=store) == [None] * 64
    assert store.requests <= 64 * 12
    store = CountedStore()
    text = the_error(together(*[(i, 64, {"facts": {"steps": 5 + (i == 63)}}) for i in range(64)], store=store))
    assert "the shards differ in steps: " in text and store.requests <= 64 * 16


def test_each_of_many_ranks_meets_the_others_by_a_few_requests():
    store = CountedStore()
    assert on_ranks(64, lambda rank: meet(store, 64, rank)) == [None] * 64
    assert store.requests <= 64 * 8
