"""What a training step asks of a GPU: launches, copies, allocations and waits, counted on the double of CuPy."""

from collections import Counter

import numpy as np

from cupy_double import HOST, draw_nothing, gpus
from gpu_engine import FastEngine, installed
from netbuilder.proto import PROTO_CUDA
from netbuilder.proto.arguments import make_device_option
from netbuilder.runtime import Workspace
from netbuilder.runtime.input.loss_reader import LossReader
from netbuilder.runtime.input.prefetch import Prefetch
from netbuilder.tools.profiling.zoo import ZooOptions, load_zoo

BATCH = 4
STEPS = 12


def counted_steps(machine, workspace, net):
    """Train with a Prefetch and a LossReader; return what the loop's thread called for in each step, and the plan."""
    gpu = make_device_option(PROTO_CUDA, 0)
    rng = np.random.default_rng(0)
    batch = {
        "data": rng.standard_normal((BATCH, 3, 224, 224), dtype=np.float32),
        "label": rng.integers(0, 1000, BATCH).astype(np.int32),
    }
    blobs = {"data": ["gpu_0/data"], "label": ["gpu_0/label"]}
    losses, found = LossReader(workspace, ["gpu_0/loss"]), []
    with Prefetch(workspace, iter([batch] * STEPS), blobs=blobs, devices=[gpu], look=False) as input:
        for _ in input:
            before = machine.counts_of_thread.copy()
            workspace.run_net(net, wait=False)
            losses.read()
            found.append(machine.counts_of_thread - before)
    losses.last()
    (plan,) = workspace.net(net).plan_ahead()
    workspace.net(net).finish()
    return found, plan


def test_a_step_of_resnet50(monkeypatch):
    """At most 450 calls, no allocation, one read; when it is captured, a few launches of graphs."""
    draw_nothing(monkeypatch)
    with installed(monkeypatch, FastEngine), gpus(1) as machine:
        workspace = Workspace(threads=1, engines=("FAST",))
        net = load_zoo(workspace, "resnet50", ZooOptions(batch=BATCH, gpu=True, observable="outputs")).name
        steps, plan = counted_steps(machine, workspace, net)
        uploads = {transfer.nbytes: transfer.pinned for transfer in machine.transfers if transfer.source == HOST}
        captured = plan.captured()
    eager, replayed = steps[1], steps[-1]
    assert eager["launches"] == 380 and not eager["replays"]
    assert eager["launches"] + eager["copies"] + eager["records"] + eager["waits"] <= 450
    for step in (eager, replayed):
        assert step["allocations"] == 0
        assert (step["reads"], step["synchronizations"]) == (0, 1), "the loss of the step before"
        assert step["copies"] == 1, "the loss"
    assert replayed["replays"] == 1 and replayed["launches"] == 1
    assert Counter(each.why for each in captured) == {"": 324, "it runs on the host": 1}
    assert uploads[BATCH * 3 * 224 * 224 * 4], "batches go through pinned memory"
