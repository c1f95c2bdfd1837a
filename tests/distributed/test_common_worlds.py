"""Common worlds of a model: made when the init net runs, and never again."""

import threading
import time

import numpy as np
import pytest

import netbuilder.ops.collectives.worlds as worlds
from netbuilder import parallel
from netbuilder.distributed import Rendezvous, require_equal_blobs
from netbuilder.distributed.worlds.world import CommonWorld
from netbuilder.graph.net_names import reset_names
from netbuilder.model import ModelHelper
from netbuilder.optimizers import reset_optimizer_instance_count
from netbuilder.proto import DistributedError
from netbuilder.runtime import Workspace
from parallel_models import OPTIMIZERS, no_input
from thread_ranks import on_ranks, use_thread_worlds
from toy_models import mlp


@pytest.fixture
def made(monkeypatch):
    """The names of common worlds, each time that one is asked for, of two ranks that are threads."""
    use_thread_worlds(monkeypatch, 2)
    found, create_world, clone = [], worlds.create_world, CommonWorld.clone

    def counted(name, *args):
        found.append(name)
        return create_world(name, *args)

    def counted_clone(world, name):
        found.append(name)
        return clone(world, name)

    monkeypatch.setattr(worlds, "create_world", counted)
    monkeypatch.setattr(CommonWorld, "clone", counted_clone)
    return found


def built(rank, **options):
    reset_names()
    reset_optimizer_instance_count()
    model = ModelHelper("net")
    options |= {"devices": [0], "rendezvous": Rendezvous(2, rank), "optimizer_builder_fun": OPTIMIZERS["momentum"]}
    return model, parallel.Parallelize_CPU(model, no_input, mlp, bucket_bytes=0, **options)


def begun(model, rank):
    """Return a workspace in which the init net has run."""
    workspace = Workspace(threads=1, seed=rank)
    workspace.feed("cpu_0/data", np.ones((2, 6), np.float32))
    workspace.feed("cpu_0/label", np.zeros(2, np.int32))
    parallel.RunInitNet(model, workspace=workspace)
    return workspace


@pytest.mark.slow
def test_they_are_made_once_in_a_hundred_steps(made):
    models = [built(rank) for rank in range(2)]

    def run(rank):
        model, record = models[rank]
        workspace = begun(model, rank)
        parallel.Synchronize(model, workspace=workspace)
        parallel.Synchronize(model, 20, workspace=workspace)  # whose time limit is that of another world
        asked = sorted(made)
        parallel.Synchronize(model, workspace=workspace)
        for _ in range(10):
            for _ in range(10):
                parallel.RunNet(model, workspace=workspace)
            parallel.FinalizeAfterCheckpoint(model, workspace=workspace)
            parallel.Synchronize(model, workspace=workspace)
            parallel.Synchronize(model, 20, workspace=workspace)
            require_equal_blobs(model, workspace=workspace)
        return asked, record.world

    (first, world), (second, _) = on_ranks(2, run)
    names = [*world.common, world.barrier, f"{world.barrier}_20000_ms"]
    assert len(world.common) > 1 and set(made) == set(names)
    assert [made.count(name) for name in names[1:]] == [2] * (len(names) - 1)  # the first one serves a check before
    assert first == second == sorted(made)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seconds, options", [(0.3, {}), (None, {"barrier_net_timeout_sec": 0.3})])
def test_the_barrier_has_a_time_limit_of_its_own(made, seconds, options):
    """That of ``Synchronize`` takes precedence; the other operators have those of the process."""
    models, late = [built(rank, **options) for rank in range(2)], threading.Event()

    def run(rank):
        model, _ = models[rank]
        workspace = begun(model, rank)
        if rank:
            late.wait(20)
            return None
        start = time.monotonic()
        try:
            if seconds is None:
                parallel.RunNet(model, workspace=workspace)
            else:
                parallel.Synchronize(model, seconds, workspace=workspace)
        except DistributedError as error:
            return str(error), time.monotonic() - start
        finally:
            late.set()

    (text, waited), _ = on_ranks(2, run)
    assert "Barrier" in text and "0.3 s" in text and 0.3 <= waited < 10
