"""Block-wise updates over ranks that are threads of the test's process."""

import numpy as np

from netbuilder import parallel
from netbuilder.distributed import Rendezvous
from netbuilder.graph.net_names import reset_names
from netbuilder.graph.replicas import Replicas
from netbuilder.model import ModelHelper
from netbuilder.optimizers import build_adam, reset_optimizer_instance_count
from netbuilder.runtime import Workspace
from parallel_models import no_input
from thread_ranks import on_ranks, use_thread_worlds
from toy_models import normalized

__all__ = ["feed", "model_of", "state", "trained"]

SAMPLES = 4


def adam(model):
    build_adam(model, 0.05)


def model_of(size, rank, devices=1, forward=normalized, update=adam, **options):
    reset_names()
    reset_optimizer_instance_count()
    model = ModelHelper("net")
    given = {"block_iterations": 3, "block_momentum": 0.9, "block_learning_rate": 0.7, "nesterov": True, **options}
    parallel.Parallelize_CPU_BMUF(
        model,
        no_input,
        lambda model, loss_scale: forward(model, 1.0),
        update,
        devices=range(devices),
        rendezvous=None if size == 1 else Rendezvous(size, rank),
        **{"block_bits": 8, **given},
    )
    return model


def feed(workspace, record, step):
    for replica, scope in enumerate(record.devices.scopes):
        rng = np.random.default_rng([step, record.world.first_replica + replica])
        workspace.feed(scope + "data", rng.normal(size=(SAMPLES, 3, 8, 8)).astype(np.float32))
        workspace.feed(scope + "label", rng.integers(0, 4, SAMPLES).astype(np.int32))


def trained(monkeypatch, size, steps, devices=1, before=None, first=0, **options):
    """Train on ranks that are threads; ``before(rank, step, model, workspace)`` is called before each step."""
    use_thread_worlds(monkeypatch, size)
    models = [model_of(size, rank, devices, **options) for rank in range(size)]

    def run(rank):
        model, workspace = models[rank], Workspace(threads=1, seed=rank)
        record = Replicas.load(model.net.Proto())
        feed(workspace, record, first)
        parallel.RunInitNet(model, workspace=workspace)
        for step in range(first, first + steps):
            if before is not None:
                before(rank, step, model, workspace)
            feed(workspace, record, step)
            parallel.RunNet(model, 1, workspace=workspace)
        return model, record, workspace

    found = on_ranks(size, run, timeout=60)
    for each in found:
        if isinstance(each, Exception):
            raise each
    return found


def state(record, workspace):
    """All that a process trains with."""
    blobs = [blob for name in (*record.parameters, *record.computed) for blob in record.blobs(name)]
    kept = (*record.block_state, *record.block_residuals, *record.block_sent)
    return {blob: workspace.fetch(blob) for blob in (*blobs, *kept)}
