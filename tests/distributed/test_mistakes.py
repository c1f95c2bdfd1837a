"""Mistakes of users who train over processes: each job ends in seconds, with a message on every rank."""

import pytest

import mistakes_program
from mpi_runs import needs_mpi, run_over_mpi

SIZES = (
    r"rank 0: Barrier (a batch of 4 samples for all processes, over 'net_barrier_cw'); "
    r"rank 1: Barrier (a batch of 6 samples for all processes, over 'net_barrier_cw')"
)

QUICK = ("store", "net", "shares", "parameter")


@pytest.mark.one_in(8)
@needs_mpi
@pytest.mark.parametrize(
    "mistake, message",  # in short one that a rank finds by itself, one in building and one in training
    [
        pytest.param(mistake, message, marks=() if mistake in QUICK else pytest.mark.slow)
        for mistake, message in (
            ("shard_id", "the ranks (shard ids) of 2 processes must be 0 to 1, each once, got [1, 1]"),
            ("shard_id in a store", "give each process its own shard_id"),
            ("store", "the store in the folder '/dev/null/store': cannot make it"),
            ("strategy", "; did you mean 'topk'?"),
            ("net", "the shards differ in net 1"),
            ("batches", SIZES),
            ("weighted batches", SIZES),
            ("shares", SIZES),
            ("parameter", "blobs differ from those of rank 0: 'cpu_0/fc1_w' on rank 1"),
            ("parameter of one rank", "processes, blobs fed, loaded or initialized since the last run: fc1_w, over"),
            ("iteration", "blobs differ from those of rank 0: 'optimizer_iteration' on rank 1"),
        )
    ],
    ids=lambda text: text[:20],
)
def test_a_mistake_ends_the_job(mistake, message, tmp_path):
    status, text, seconds = run_over_mpi(
        2, mistakes_program.__file__, mistake, str(tmp_path / "store"), launcher=True, timeout=60
    )
    said = {line[:8] for line in text.splitlines() if message in line}
    assert status != 0 and said <= {"[rank 0]", "[rank 1]"}, text
    # What a rank finds by itself ends the job, perhaps before the other one has found it, too.
    assert len(said) == 2 or (said and mistake in ("shard_id in a store", "store", "strategy")), text
    assert "has finished" not in text and seconds < 30, text


@needs_mpi
@pytest.mark.slow
def test_no_mistake(tmp_path):
    status, text, _ = run_over_mpi(2, mistakes_program.__file__, "none", str(tmp_path), launcher=True)
    assert status == 0 and text.count("has finished") == 2, text
