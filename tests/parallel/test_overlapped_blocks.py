"""Block-wise updates that are applied in the next block: against NumPy, order of events, checkpoints, refusals."""

import threading

import numpy as np
import pytest

from block_ranks import feed, model_of, state, trained
from netbuilder import parallel
from netbuilder.distributed.worlds.world import CommonWorld
from netbuilder.exchange import load_checkpoint, read_checkpoint, save_checkpoint, take_checkpoint
from netbuilder.graph.block_updates import BlockRule
from netbuilder.graph.replicas import Replicas
from netbuilder.model import ModelHelper, brew
from netbuilder.optimizers import build_sgd
from netbuilder.proto import DistributedError, NetError
from parallel_models import no_input
from thread_ranks import on_ranks
from toy_models import normalized, scaled_loss

RATE = 0.02


def regression(model, loss_scale):
    return scaled_loss(model, brew.fc(model, "data", "fc", 3 * 64, 4), loss_scale)


def sgd(model):
    build_sgd(model, RATE)


class Reference:
    """Softmax regression in float64 on processes with several replicas each; weights have a column for the bias."""

    def __init__(self, start, processes, devices, rule):
        self.rule, self.devices = rule, devices
        self.held, self.speed = start, np.zeros_like(start)
        self.local = [start] * (processes * devices)
        self.rest = [np.zeros_like(start)] * processes  # what rounding has lost
        self.count, self.sent, self.change, self.updates = 0, None, None, 0

    def step(self, batches):
        for replica, (data, label) in enumerate(batches):
            x = np.concatenate([data.reshape(len(data), -1).astype(np.float64), np.ones((len(data), 1))], axis=1)
            scores = x @ self.local[replica].T
            p = np.exp(scores - scores.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            p[np.arange(len(label)), label] -= 1
            self.local[replica] = self.local[replica] - RATE * p.T @ x / len(data)
        self.count += 1
        if self.sent is not None and self.count == self.rule.overlap:
            self.arrive()
        elif self.count == self.rule.iterations:
            self.send()

    def send(self):
        self.sent, self.count = list(self.local), 0
        own = [self.local[i : i + self.devices] for i in range(0, len(self.local), self.devices)]
        changes = [np.mean(each, axis=0) - self.held for each in own]
        if self.rule.bits == 8 and len(own) > 1:
            for process, change in enumerate(changes):
                whole = change + self.rest[process]
                changes[process] = np.concatenate([rounded(whole[:, :-1]), rounded(whole[:, -1:])], axis=1)
                self.rest[process] = whole - changes[process]
        self.change = np.mean(changes, axis=0)

    def arrive(self):
        before = self.speed
        self.speed = self.rule.momentum * before + self.rule.learning_rate * self.change
        self.held = self.held + self.speed + self.rule.lookahead * (self.speed - before)
        self.local = [self.held + (now - then) for now, then in zip(self.local, self.sent)]
        self.sent, self.updates = None, self.updates + 1


def require_close(got, want, rule):
    """With 8 bits a few elements may be one level away, where float32 is rounded in the other direction."""
    apart = np.abs(got - want) > 2e-6 + 1e-4 * np.abs(want)
    assert apart.sum() <= (0 if rule.bits == 32 else 4)
    np.testing.assert_allclose(got, want, atol=5e-4)


def rounded(whole):
    scale = np.abs(whole).max() / 127
    return np.rint(whole / scale) * scale if scale else np.zeros_like(whole)


def weights(workspace, scope, kind=""):
    w, b = (workspace.fetch(f"{scope}fc_{name}{kind}") for name in "wb")
    return np.concatenate([w, b[:, None]], axis=1)


class Check:
    """Compares every replica with the reference before each step."""

    def __init__(self, size, devices):
        self.size, self.devices, self.steps = size, devices, {}

    def __call__(self, rank, step, model, workspace):
        record = Replicas.load(model.net.Proto())
        given = [(workspace.fetch(scope + "data"), workspace.fetch(scope + "label")) for scope in record.devices.scopes]
        found = [weights(workspace, scope) for scope in record.devices.scopes]
        master = record.devices.scopes[record.block.master]
        self.steps[rank, step] = given, found, weights(workspace, master, "_g"), weights(workspace, master, "_v")

    def compare(self, rule, steps):
        ranks = range(self.size)
        reference = Reference(self.steps[0, 0][1][0].astype(np.float64), self.size, self.devices, rule)
        for step in range(steps):
            got = [self.steps[rank, step] for rank in ranks]
            for replica, value in enumerate(value for _, found, _, _ in got for value in found):
                require_close(value, reference.local[replica], rule)
            for _, _, held, speed in got:
                require_close(held, reference.held, rule)
                require_close(speed, reference.speed, rule)
            if step + 1 < steps:  # the data of a step are those that the next check finds
                reference.step([pair for rank in ranks for pair in self.steps[rank, step + 1][0]])
        return reference


@pytest.mark.one_in(3)
@pytest.mark.parametrize("nesterov, momentum, rate", [(True, 0.9, 0.7), (False, 0.5, 1.0)])
@pytest.mark.parametrize("iterations, overlap, master", [(4, 1, 0), (4, 3, 1), (3, 2, 0)])
def test_one_process_in_float64(monkeypatch, iterations, overlap, master, nesterov, momentum, rate):
    options = {"block_iterations": iterations, "block_overlap": overlap, "master_device": master, "block_bits": 32}
    options |= {"nesterov": nesterov, "block_momentum": momentum, "block_learning_rate": rate}
    check = Check(1, 2)
    found = trained(monkeypatch, 1, 4 * iterations, 2, check, forward=regression, update=sgd, **options)
    rule = found[0][1].block
    assert rule == BlockRule(momentum, rate, momentum * nesterov, iterations, None, master, 32, overlap)
    assert check.compare(rule, 4 * iterations).updates == 3


@pytest.mark.one_in(3)
@pytest.mark.parametrize("bits", [32, 8])
@pytest.mark.parametrize("devices", [1, 2])
def test_two_processes_in_float64(monkeypatch, devices, bits):
    options = {"block_iterations": 4, "block_overlap": 2, "block_bits": bits}
    check = Check(2, devices)
    found = trained(monkeypatch, 2, 16, devices, check, forward=regression, update=sgd, **options)
    reference = check.compare(found[0][1].block, 16)
    assert reference.updates == 3
    assert np.abs(reference.rest).max() > 1e-6 or bits == 32
    assert np.abs(reference.local[0] - reference.local[1]).max() > 1e-3, "replicas differ"


class Gate:
    """Holds what one rank exchanges of blocks, in its lane, until it is opened; notes the order of events."""

    def __init__(self, monkeypatch, held):
        self.opened, self.events, begin = threading.Event(), [], CommonWorld.begin

        def begin_later(world, call, work):
            if not call.blob.endswith("_change"):
                return begin(world, call, work)

            def exchange(communicator, same):
                self.events.append((world.rank, f"in {threading.current_thread().name}"))
                if world.rank == held:
                    assert self.opened.wait(20)
                result = work(communicator, same)
                self.events.append((world.rank, "exchanged"))
                return result

            return begin(world, call, exchange)

        monkeypatch.setattr(CommonWorld, "begin", begin_later)

    def of(self, rank):
        return [event for each, event in self.events if each == rank]


def test_steps_run_while_the_lane_exchanges(monkeypatch):
    """What rank 1 exchanges is held until both ranks have run a step of the next block, so no step waits for it."""
    gate = Gate(monkeypatch, held=1)

    def before(rank, step, model, workspace):
        gate.events.append((rank, f"step {step}"))
        if step == 5:  # two of the three steps of the overlap have run
            flag = workspace.fetch("cpu_0/block_in_flight")
            gate.events.append((rank, f"in flight {flag.tolist()}"))
            if sum(text == "in flight [1]" for _, text in gate.events) == 2:
                gate.opened.set()

    options = {"block_iterations": 4, "block_overlap": 3, "block_bits": 32}
    (_, record, workspace), _ = trained(monkeypatch, 2, 7, 1, before, **options)
    for rank in range(2):
        events = gate.of(rank)
        exchanged = events.index("exchanged")
        assert events[:4] == ["step 0", "step 1", "step 2", "step 3"]
        assert events.index(f"in lane of rank {rank}") < exchanged
        assert events.index("step 4") < events.index("step 5") < events.index("in flight [1]") < exchanged
    assert gate.events.index((0, "step 5")) < gate.events.index((1, "exchanged"))
    assert not workspace.fetch(record.devices.scopes[0] + "block_in_flight").any()


def test_a_failed_exchange_is_an_error_where_its_update_is_due(monkeypatch):
    begin = CommonWorld.begin

    def broken(world, call, work):
        def fail(communicator, same):
            raise DistributedError("the link is cut")

        return begin(world, call, fail if call.blob.endswith("_change") else work)

    monkeypatch.setattr(CommonWorld, "begin", broken)
    steps = []
    with pytest.raises(DistributedError, match="the link is cut"):
        trained(monkeypatch, 2, 9, 1, lambda rank, step, *_: steps.append(step), block_overlap=2)
    assert max(steps) == 4, "the second step of the second block"


@pytest.mark.one_in(7)
@pytest.mark.parametrize("bits", [32, 8])
@pytest.mark.parametrize("size, devices", [(2, 1), (2, 2), (1, 2)])
@pytest.mark.parametrize("done", [3, 4, 5])
def test_resumed_to_the_bit(monkeypatch, tmp_path, size, devices, done, bits):
    """After the last step of a block, with its exchange in flight, and after its update."""
    options = {"block_overlap": 2, "block_bits": bits}
    whole = trained(monkeypatch, size, 10, devices, **options)
    path = tmp_path / "c"
    part = trained(monkeypatch, size, done, devices, **options)
    on_ranks(size, lambda rank: save_checkpoint(path, part[rank][0], workspace=part[rank][2]))
    stored = read_checkpoint(path).blobs
    assert stored["block_in_flight"].tolist() == [int(done < 5)]
    assert stored["fc_w_change"].any()
    numbers = range(1, size * devices)
    assert not any(np.array_equal(stored[f"replica_{number}/fc_w_sent"], stored["fc_w_sent"]) for number in numbers)

    def load(rank, step, model, workspace):
        if step == done:
            load_checkpoint(path, model, workspace=workspace)

    resumed = trained(monkeypatch, size, 10 - done, devices, load, first=done, **options)
    for (_, record, workspace), (_, _, other) in zip(resumed, whole):
        want = state(record, other)
        for name, value in state(record, workspace).items():
            assert value.tobytes() == want[name].tobytes(), name


@pytest.mark.slow
def test_taking_a_checkpoint_changes_nothing(monkeypatch):
    def takes(rank, step, model, workspace):
        taken = take_checkpoint(model, workspace=workspace)
        if step == 4:
            parallel.RunNet(model, 4, workspace=workspace)  # with another exchange in flight
            load_checkpoint(taken, model, workspace=workspace)

    options = {"block_overlap": 2, "block_bits": 8}
    whole, disturbed = (trained(monkeypatch, 2, 8, 1, before, **options) for before in (None, takes))
    for (_, record, workspace), (_, _, other) in zip(disturbed, whole):
        want = state(record, other)
        for name, value in state(record, workspace).items():
            assert value.tobytes() == want[name].tobytes(), name


@pytest.mark.one_in(4)
@pytest.mark.parametrize("steps", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("size, devices", [(1, 3), (2, 1)])
def test_a_block_that_is_ended_early(monkeypatch, size, devices, steps):
    def before(rank, step, model, workspace):
        if step == steps:
            record = Replicas.load(model.net.Proto())
            parallel.finish_block(model, workspace=workspace)
            values = [workspace.fetch(blob) for blob in record.blobs("fc_w")]
            assert all(np.array_equal(value, workspace.fetch("cpu_0/fc_w_g")) for value in values)
            assert not workspace.fetch("cpu_0/block_in_flight").any()
            assert not workspace.fetch("cpu_0/block_iterations").any()
            held[rank] = values[0]
            kept = state(record, workspace)
            parallel.finish_block(model, workspace=workspace)
            again = state(record, workspace)
            assert all(np.array_equal(again[name], value) for name, value in kept.items())

    held = {}
    options = {"block_overlap": 2, "block_bits": 32}
    for _, _, workspace in trained(monkeypatch, size, steps + 5, devices, before, **options):
        assert workspace.fetch("cpu_0/block_iterations").tolist() == [2]
        assert not workspace.fetch("cpu_0/block_in_flight").any()
    assert all(np.array_equal(value, held[0]) for value in held.values())


def test_running_means_become_those_of_the_end_of_the_block(monkeypatch):
    seen = {}

    def before(rank, step, model, workspace):
        seen[rank, step] = [workspace.fetch(f"cpu_{device}/bn_rm") for device in range(2)]

    options = {"block_overlap": 2, "block_bits": 8}
    trained(monkeypatch, 2, 6, 2, before, **options)
    want = np.mean([seen[rank, 3] for rank in range(2)], axis=(0, 1))
    for rank in range(2):
        assert not np.allclose(seen[rank, 4], [want] * 2, rtol=1e-3)
        np.testing.assert_allclose(seen[rank, 5], [want] * 2, rtol=1e-5)


def test_a_warm_up_has_no_update(monkeypatch):
    flags = []

    def before(rank, step, model, workspace):
        flags.append(int(workspace.fetch("cpu_0/block_in_flight")[0]))

    options = {"block_overlap": 2, "warmup_iterations": 2, "block_bits": 32}
    (_, _, workspace), *_ = trained(monkeypatch, 1, 8, 2, before, **options)
    assert flags == [0, 0, 0, 0, 0, 1, 1, 0]
    assert workspace.fetch("cpu_0/block_iterations").tolist() == [3 - 3]


def test_copies_of_the_first_replica_drop_the_update_in_flight(monkeypatch):
    def before(rank, step, model, workspace):
        if step == 4:
            assert workspace.fetch("cpu_0/block_in_flight").any()
            parallel.FinalizeAfterCheckpoint(model, workspace=workspace)
            first = workspace.fetch("cpu_0/fc_w")
            assert np.array_equal(workspace.fetch("cpu_0/fc_w_g"), first)
            assert not workspace.fetch("cpu_0/block_in_flight").any()
        if step == 5:
            assert workspace.fetch("cpu_0/block_iterations").tolist() == [2], "the block goes on"

    trained(monkeypatch, 2, 9, 1, before, block_overlap=2)


def test_initialized_anew_with_an_exchange_in_flight(monkeypatch):
    def before(rank, step, model, workspace):
        if step == 4:
            feed(workspace, Replicas.load(model.net.Proto()), 0)
            parallel.RunInitNet(model, overwrite=True, workspace=workspace)
            assert not workspace.fetch("cpu_0/block_in_flight").any()

    for _, _, workspace in trained(monkeypatch, 2, 8, 1, before, block_overlap=2):
        assert workspace.fetch("cpu_0/block_in_flight").any()


def test_micro_batches(monkeypatch):
    """The overlap counts updates."""
    flags = []

    def before(rank, step, model, workspace):
        flags.append(int(workspace.fetch("cpu_0/block_in_flight")[0]))

    options = {"block_iterations": 2, "block_overlap": 1, "accumulate_steps": 2, "weighted_shares": True}
    trained(monkeypatch, 1, 8, 2, before, block_bits=32, **options)
    assert flags == [0, 0, 0, 0, 1, 1, 0, 0]


def test_the_nets():
    model, plain = model_of(2, 0, 2, block_overlap=2), model_of(2, 0, 2)
    types = {name: [op.type for op in net.Proto().op] for name, net in vars(model.block_nets).items() if net}
    assert types["exchange"] == ["AllreduceInt8", "AllreduceBucket"]
    assert not {"AllreduceInt8", "AllreduceBucket"}.intersection(types["send"] + types["update"])
    assert plain.block_nets.send is None and plain.block_nets.exchange is None
    alone = model_of(1, 0, 2, block_overlap=2)
    assert alone.block_nets.exchange is None and alone.block_nets.send is not None
    record = Replicas.load(model.net.Proto())
    assert record.block.overlap == 2
    assert set(record.block_sent) <= set(map(str, parallel.GetCheckpointParams(model)))


@pytest.mark.parametrize(
    "options, error, match",
    [
        ({"block_overlap": -1}, NetError, "block_overlap must not be negative, got -1"),
        ({"block_overlap": 3}, NetError, "block_overlap must be less than block_iterations=3, got 3"),
        ({"block_overlap": 1.0}, TypeError, "block_overlap must be an integer, got 1.0"),
        ({"block_overlap": 1, "block_iterations": None}, NetError, "block_overlap=1 needs block_iterations"),
        (
            {"block_overlap": 1, "add_blobs_to_sync": ["fc_w"]},
            NetError,
            "block_overlap=1 cannot be combined with add_blobs_to_sync",
        ),
    ],
)
def test_refusals(options, error, match):
    with pytest.raises(error, match=match):
        model_of(1, 0, 2, **options)


def test_a_blob_with_the_name_of_a_state_is_refused():
    def forward(model, loss_scale):
        losses = normalized(model, 1.0)
        model.net.Copy("fc_w", "fc_w_sent")
        return losses

    with pytest.raises(NetError, match=r"keep their state in \['cpu_0/fc_w_sent'"):
        parallel.Parallelize_CPU_BMUF(
            ModelHelper("net"), no_input, forward, sgd, devices=[0, 1], block_iterations=3, block_overlap=1
        )
