"""Tables, recurrent nets and attention on two GPUs give what they give on two replicas on the CPU."""

import numpy as np
import pytest

from netbuilder import parallel
from netbuilder.graph.net_names import reset_names
from netbuilder.model import ModelHelper
from netbuilder.runtime import Workspace
from netbuilder.tools.proof.models import OPTIMIZERS, TABLES
from netbuilder.tools.proof.sequences import SEQUENCES
from on_gpu import CLOSE
from parallel_models import distance, no_input

MODELS = {**TABLES, **SEQUENCES}
MODELS.pop("embedding outside")  # its lookups are on the replicas' devices; "moved out" puts them on the host


def trained(make, model, optimizer, steps=2):
    """Return what both replicas hold of the parameters, and those outside of them."""
    reset_names()
    helper = ModelHelper("proof")
    record = make(
        helper,
        no_input,
        lambda helper, loss_scale: model.build(helper, loss_scale, None),
        optimizer_builder_fun=optimizer,
        devices=[0, 1],
        **model.options,
    )
    workspace, rng = Workspace(threads=2, seed=1, engines=()), np.random.default_rng(5)
    for step in range(steps):
        for name, whole in model.batch(rng).items():
            parts = np.split(whole, 2, model.axes.get(name, 0))
            for blob, part, option in zip(record.devices.copies(name), parts, record.devices.options):
                workspace.feed(blob, np.ascontiguousarray(part), option)
        if step == 0:
            parallel.RunInitNet(helper, workspace=workspace)
        parallel.RunNet(helper, workspace=workspace)
    held = [[workspace.fetch(record.blobs(name)[k]) for name in record.parameters] for k in (0, 1)]
    return held, [workspace.fetch(name) for name in record.outside]


@pytest.mark.parametrize("optimizer", ["momentum", "row-wise"])
@pytest.mark.parametrize("name", MODELS)
def test_two_gpus_equal_two_replicas_on_the_cpu(two_gpus, name, optimizer):
    (want, _), outside = trained(parallel.Parallelize_CPU, MODELS[name], OPTIMIZERS[optimizer])
    held, found = trained(parallel.Parallelize_GPU, MODELS[name], OPTIMIZERS[optimizer])
    assert bool(found) == (name == "embedding moved out")
    for replica in held:
        assert distance([*replica, *found], [*want, *outside]) < CLOSE
        assert all(np.array_equal(a, b) for a, b in zip(replica, held[0]))
