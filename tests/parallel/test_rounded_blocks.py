"""Block-wise updates of which processes exchange 8 bits: against NumPy, over threads and processes; checkpoints."""

import numpy as np
import pytest

import process_training
from block_ranks import model_of, state, trained
from mpi_runs import needs_mpi, run_over_mpi
from netbuilder import parallel
from netbuilder.distributed import Rendezvous
from netbuilder.exchange import load_checkpoint, read_checkpoint, save_checkpoint, take_checkpoint
from netbuilder.graph.replicas import Replicas
from netbuilder.model import ModelHelper
from netbuilder.optimizers import build_adam
from netbuilder.proto import NetError
from parallel_models import no_input
from process_training import OVERLAPPED, ROUNDED, build_case, results, train_built
from thread_ranks import on_ranks, use_thread_worlds
from toy_models import normalized


def rounded(whole):
    scale = np.abs(whole).max() / 127
    return np.rint(whole / scale) * scale if scale else np.zeros_like(whole)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("size, devices, master", [(2, 1, 0), (2, 2, 0), (2, 2, 1), (3, 1, 0)])
def test_the_rule_in_float64(monkeypatch, size, devices, master):
    """Each update of a block, from what the replicas had before it."""
    blocks = [[] for _ in range(size)]

    def before(rank, step, model, workspace):
        if step % 3 != 2:
            return
        record = Replicas.load(model.net.Proto())
        workspace.run_net(model.net.Name())
        old = state(record, workspace)
        workspace.run_net(model.block_nets.update.Name())
        blocks[rank].append((old, state(record, workspace)))
        workspace.feed(f"cpu_{master}/block_iterations", np.array([0], np.int64))

    results = trained(monkeypatch, size, 9, devices, before, master_device=master)
    record = results[0][1]
    assert len(blocks[0]) >= 2 and all(len(each) == len(blocks[0]) for each in blocks)
    kept = 0.0
    for updates in zip(*blocks):
        for name in record.parameters:
            held, speed = (updates[0][0][f"cpu_{master}/{name}_{kind}"].astype(np.float64) for kind in "gv")
            total = np.zeros_like(held)
            for old, new in updates:
                mean = np.mean([old[blob].astype(np.float64) for blob in record.blobs(name)], axis=0)
                whole = mean - held + old[f"cpu_0/{name}_residual"]
                given = rounded(whole)
                rest = new[f"cpu_0/{name}_residual"]
                np.testing.assert_allclose(rest, whole - given, atol=1e-6, err_msg=name)
                total, kept = total + given / size, max(kept, np.abs(rest).max())
            speed, old_speed = 0.9 * speed + 0.7 * total, speed
            held = held + speed + 0.9 * (speed - old_speed)
            for _, new in updates:
                np.testing.assert_allclose(new[f"cpu_{master}/{name}_v"], speed, rtol=1e-5, atol=1e-6)
                for blob in (f"cpu_{master}/{name}_g", *record.blobs(name)):
                    np.testing.assert_allclose(new[blob], held, rtol=1e-5, atol=2e-6)
                    assert new[blob].tobytes() == updates[0][1][record.blobs(name)[0]].tobytes()
        for name in record.computed:
            mean = np.mean([old[blob] for old, _ in updates for blob in record.blobs(name)], axis=0)
            for _, new in updates:
                np.testing.assert_allclose(new[record.blobs(name)[0]], mean, rtol=1e-5, atol=1e-7)
    assert kept > 1e-5, "rounding loses something"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("done", [3, 4])
def test_resumed_to_the_bit(monkeypatch, tmp_path, devices, done):
    whole = trained(monkeypatch, 2, 8, devices)
    path = tmp_path / "c"
    part = trained(monkeypatch, 2, done, devices)
    on_ranks(2, lambda rank: save_checkpoint(path, part[rank][0], workspace=part[rank][2]))
    stored = read_checkpoint(path).blobs
    for rank, (_, record, workspace) in enumerate(part):
        name = f"replica_{rank * devices}/fc_w_residual" if rank else "fc_w_residual"
        np.testing.assert_array_equal(stored[name], workspace.fetch(record.blobs("fc_w")[0] + "_residual"))
    assert stored["fc_w_residual"].any()

    def load(rank, step, model, workspace):
        if step == done:
            load_checkpoint(path, model, workspace=workspace)

    resumed = trained(monkeypatch, 2, 8 - done, devices, load, first=done)
    for (_, record, workspace), (_, _, other) in zip(resumed, whole):
        want = state(record, other)
        for name, value in state(record, workspace).items():
            assert value.tobytes() == want[name].tobytes(), name


def test_a_checkpoint_in_memory_and_copies_of_the_first_replica(monkeypatch):
    def disturbed(rank, step, model, workspace):
        if step == 4:
            taken = take_checkpoint(model, workspace=workspace)
            parallel.RunNet(model, 3, workspace=workspace)
            load_checkpoint(taken, model, workspace=workspace)
        if step == 6:
            parallel.FinalizeAfterCheckpoint(model, workspace=workspace)
            record = Replicas.load(model.net.Proto())
            assert not any(workspace.fetch(blob).any() for blob in record.block_residuals)

    for _, record, workspace in trained(monkeypatch, 2, 9, 1, disturbed):
        assert any(workspace.fetch(blob).any() for blob in record.block_residuals)


@pytest.mark.one_in(2)
@needs_mpi
@pytest.mark.parametrize("name, case", [("rounded", ROUNDED), ("overlapped", OVERLAPPED)])
def test_processes_train_what_threads_do(monkeypatch, tmp_path, name, case):
    status, output, _ = run_over_mpi(2, process_training.__file__, str(tmp_path), name, timeout=60)
    assert status == 0, output
    use_thread_worlds(monkeypatch, 2)
    built = [build_case(case, 2, Rendezvous(2, rank)) for rank in range(2)]
    workspaces = on_ranks(2, lambda rank: train_built(case, *built[rank], True), timeout=60)
    for rank, ((_, record), workspace) in enumerate(zip(built, workspaces)):
        got, want = np.load(tmp_path / f"{rank}.npz"), results(record, workspace)
        assert got.keys() == want.keys()
        for name, value in want.items():
            np.testing.assert_array_equal(got[name], value, name)


def test_one_process_rounds_nothing():
    model, plain = model_of(1, 0, 2), model_of(1, 0, 2, block_bits=32)
    assert Replicas.load(model.net.Proto()).block_residuals == ()
    assert model.block_nets.update.Proto() == plain.block_nets.update.Proto()
    assert Replicas.load(model.net.Proto()).block.bits == 8


@pytest.mark.parametrize(
    "bits, error, match",
    [
        (16, NetError, "block_bits must be 32 or 8, got 16"),
        (True, TypeError, "block_bits must be an integer, got True"),
        (8.0, TypeError, "block_bits must be an integer, got 8.0"),
    ],
)
def test_refusals(bits, error, match):
    with pytest.raises(error, match=match):
        model_of(2, 0, block_bits=bits)


def test_a_blob_with_the_name_of_a_residual_is_refused():
    def forward(model, loss_scale):
        losses = normalized(model, 1.0)
        model.net.Copy("fc_w", "fc_w_residual")
        return losses

    with pytest.raises(NetError, match=r"keep their state in \['cpu_0/fc_w_residual'\], but blobs of these names"):
        parallel.Parallelize_CPU_BMUF(
            ModelHelper("net"),
            no_input,
            forward,
            lambda model: build_adam(model, 0.05),
            devices=[0],
            rendezvous=Rendezvous(2, 0),
            block_bits=8,
        )
