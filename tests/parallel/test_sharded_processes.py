"""Real processes hold a table that one of them cannot; what they write is what one process without a limit has."""

import numpy as np
import pytest

import sharded_training
from mpi_runs import needs_mpi, run_over_mpi
from netbuilder.exchange import load_predictor, read_checkpoint
from netbuilder.exchange.predictor_exporter import load_predictor_from_db

MEBIBYTES = 160
"""More than a shard of two with its state, 92, and what libraries take; less than the whole table and state, 183."""


@pytest.mark.slow
@needs_mpi
def test_two_processes_hold_a_table_that_one_cannot(tmp_path):
    program = sharded_training.__file__
    status, output, _ = run_over_mpi(1, program, str(tmp_path), str(MEBIBYTES), timeout=60)
    assert status != 0 and "MemoryError" in output, output
    assert not list(tmp_path.iterdir())
    status, output, _ = run_over_mpi(2, program, str(tmp_path), str(MEBIBYTES), timeout=60)
    assert status == 0, output
    assert output.count(f"of 2: ({-(-sharded_training.ROWS // 2)}, {sharded_training.COLUMNS})") == 2
    workspace = sharded_training.train(sharded_training.build(None, devices=2), 2)
    found = read_checkpoint(tmp_path / "table.minidb").blobs
    for name in ("table", "table_squared_sum"):
        np.testing.assert_array_equal(found[name], workspace.fetch(name))
    for predictor in (
        load_predictor_from_db(tmp_path / "predictor.minidb", "minidb"),
        load_predictor(tmp_path / "predictor"),
    ):
        np.testing.assert_array_equal(predictor.workspace.fetch("table"), found["table"])
