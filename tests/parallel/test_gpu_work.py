"""The work of GPUs under data parallelism: copies, launches, allocations, and on which GPU."""

from collections import Counter

import numpy as np
import pytest

import golden_data
from emulated_gpu.machine import HOST
from netbuilder import parallel
from netbuilder.engines.gpu import StreamRole, gpu
from netbuilder.exchange import load_predictor, save_predictor
from netbuilder.model import ModelHelper
from netbuilder.proto import PROTO_CUDA
from netbuilder.proto.arguments import make_device_option
from netbuilder.runtime import Workspace
from on_gpu import gpus
from parallel_models import OPTIMIZERS, Task, no_input
from toy_models import convnet, mlp

pytestmark = pytest.mark.emulated

NOTE = 16
"""Bytes of what the checks of a GPU have noted."""

TASKS = {"mlp": Task(mlp), "convnet": Task(convnet, (8, 3, 8, 8))}


def prepared(name, count, net_type="dag", optimizer="momentum"):
    """Return a model over GPUs, and a workspace in which it has run once."""
    task, model = TASKS[name], ModelHelper("net")
    record = parallel.Parallelize_GPU(
        model,
        no_input,
        task.forward,
        optimizer_builder_fun=OPTIMIZERS[optimizer],
        devices=list(range(count)),
        net_type=net_type,
    )
    workspace = Workspace(threads=4)
    for blobs, whole in next(iter(task.batches())).items():
        for blob, part, option in zip(record.devices.copies(blobs), np.split(whole, count), record.devices.options):
            workspace.feed(blob, part, option)
    parallel.RunInitNet(model, workspace=workspace)
    parallel.RunNet(model, workspace=workspace)
    return model, workspace


def crossings(net):
    """Return how often values go from one GPU to another in a step: each value to each reader's GPU once."""
    written, made, moved = {}, Counter(), set()
    for op in net.op:
        if op.device_option.device_type != PROTO_CUDA:
            continue
        here = op.device_option.device_id
        for blob in op.input:
            there = written.get(blob, int(blob[4]) if blob.startswith("gpu_") else here)
            if there != here:
                moved.add((blob, made[blob], there, here))
        for blob in op.output:
            written[blob] = here
            made[blob] += 1
    return Counter((there, here) for _, _, there, here in moved)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("net_type", ["simple", "dag"])
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("name", TASKS)
def test_a_step_moves_each_value_once(name, count, net_type):
    with gpus(count) as machine:
        model, workspace = prepared(name, count, net_type)
        want = crossings(model.net.Proto())
        for steps in (1, 3):
            machine.transfers.clear()
            parallel.RunNet(model, steps, workspace=workspace)
            found = Counter((t.source, t.target) for t in machine.transfers)
            between = {pair: n for pair, n in found.items() if HOST not in pair}
            assert between == {pair: steps * n for pair, n in want.items()}
            for number in range(count):
                assert found[HOST, number] == 0  # the rate is fixed, so it is in its kernel
                assert found[number, HOST] == 1  # what the checks of labels have noted, at the end of the run
    assert bool(want) == (count > 1)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", [n for n in golden_data.nets() if n.startswith("gpu_structure_convnet")])
def test_stored_nets_touch_arrays_of_their_own_gpu_alone(name):
    golden = golden_data.net(name)
    source = golden if golden.runnable else golden_data.net("gpu_structure_convnet_2")
    with gpus(4, access="no_peer" not in name) as machine:
        workspace = Workspace(threads=4)
        for blob, value in {**source.inputs(1)}.items():
            workspace.feed(blob, value)
        workspace.run_net_once(golden.init)
        workspace.create_net(golden.main)
        workspace.run_net(golden.main.name, 2)
    used = {op.device_option.device_id for op in golden.main.op if op.device_option.device_type == PROTO_CUDA}
    assert {launch.device for launch in machine.launches} == set(machine.allocated) == used


@pytest.mark.parametrize("net_type", ["simple", "dag"])
def test_replicas_share_the_work(net_type):
    with gpus(4) as machine:
        model, workspace = prepared("convnet", 4, net_type)
        machine.launches.clear()
        parallel.RunNet(model, workspace=workspace)
        work = Counter(launch.device for launch in machine.launches)
    assert set(work) == {0, 1, 2, 3}
    assert max(work.values()) < 1.5 * min(work.values())


def test_later_steps_allocate_nothing():
    with gpus(2) as machine:
        model, workspace = prepared("mlp", 2)
        parallel.RunNet(model, 3, workspace=workspace)
        before = machine.counts["allocations"]
        parallel.RunNet(model, 3, workspace=workspace)
        assert machine.counts["allocations"] == before


def test_a_step_is_over_when_it_returns():
    with gpus(4):
        model, workspace = prepared("mlp", 4)
        parallel.RunNet(model, workspace=workspace)
        assert all(gpu(number).stream(role).raw.done for number in range(4) for role in StreamRole)


def test_a_predictor_keeps_its_parameters_on_the_gpu(tmp_path):
    with gpus(2) as machine:
        model, workspace = prepared("mlp", 2)
        option = make_device_option(PROTO_CUDA, 1)
        net, parameters = parallel.ExtractPredictorNet(model, ["data"], ["softmax"], option)
        save_predictor(tmp_path, net, parameters, workspace=workspace)
        predictor = load_predictor(tmp_path)
        batch = np.ones((3, 6), np.float32)
        predictor.run(data=batch)
        machine.transfers.clear()
        predictor.run(data=batch)
        values = [t for t in machine.transfers if t.nbytes != NOTE]
        assert Counter((t.source, t.target) for t in values) == {(HOST, 1): 1, (1, HOST): 1}
