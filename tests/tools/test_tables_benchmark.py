"""The benchmark of tables: memory and bytes of two processes, and what one process takes."""

import pytest

from mpi_runs import needs_mpi
from netbuilder.tools.bench.tables import Tables, table_lines


@pytest.mark.slow
@needs_mpi
def test_divided_tables_take_half_of_the_memory():
    options = Tables(tables=2, rows=1001, columns=4, batch=64, steps=3)
    (line,) = table_lines(options)
    found = line.record
    whole = 2 * 4 * 1001 * (4 + 1)  # bytes of tables and of a state for each row
    assert found["whole"]["memory"] == found["alone"]["memory"] == whole
    assert found["divided"]["memory"] == 2 * 4 * 501 * (4 + 1)
    assert found["alone"]["bytes"] == 0 < found["divided"]["bytes"]
    assert "2 tables of 1001 x 4, batch 64, 2 processes: a step with divided tables" in line.text
