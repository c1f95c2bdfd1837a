"""What a training step asks of a GPU: launches, copies, allocations and waits, with cuDNN's kernels and our own."""

from collections import Counter

import numpy as np
import pytest

from cudnn_double import cudnn_double
from emulated_gpu.machine import HOST
from netbuilder.proto import PROTO_CUDA
from netbuilder.proto.arguments import make_device_option
from netbuilder.runtime import Workspace
from netbuilder.runtime.input.loss_reader import LossReader
from netbuilder.runtime.input.prefetch import Prefetch
from netbuilder.tools.profiling.zoo import ZooOptions, load_zoo
from netbuilder.zoo import resnet
from on_gpu import gpus

BATCH = 2
SIZE = 32
STEPS = 10


def counted_steps(machine, workspace, net):
    """Train with a Prefetch and a LossReader; return what the loop's thread called for in each step, and the plan."""
    gpu = make_device_option(PROTO_CUDA, 0)
    rng = np.random.default_rng(0)
    batch = {
        "data": rng.standard_normal((BATCH, 3, SIZE, SIZE), dtype=np.float32),
        "label": rng.integers(0, 10, BATCH).astype(np.int32),
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


@pytest.mark.slow
@pytest.mark.emulated
def test_a_step_of_resnet50(monkeypatch):
    """At most 450 calls, no allocation, one read; when it is captured, one launch of a graph.

    Its layers have an eighth of the usual channels, so parameters are updated by 1 launch in place of 18.
    """
    monkeypatch.setattr(resnet, "BASE_FILTERS", 8)
    with gpus(1) as machine, cudnn_double():
        workspace = Workspace(threads=1)
        options = ZooOptions(batch=BATCH, image_size=SIZE, classes=10, gpu=True, observable="outputs")
        net = load_zoo(workspace, "resnet50", options).name
        steps, plan = counted_steps(machine, workspace, net)
        uploads = [transfer.nbytes for transfer in machine.transfers if transfer.source == HOST and transfer.pinned]
        captured = plan.captured()
    # The first run with each buffer of a Prefetch binds kernels to it.
    eager = next(step for step in steps if not step["allocations"])
    loss = {"copies": 1, "records": 1, "synchronizations": 1}  # the host waits for that of the step before
    assert eager == {"launches": 281, **loss}
    assert steps[-1] == {"replays": 1, **loss}
    assert Counter(each.why for each in captured) == {"": 226, "it runs on the host": 2}
    assert uploads.count(BATCH * 3 * SIZE * SIZE * 4) == STEPS, "batches go through pinned memory"
