"""Two runs at the same time with their stores in one folder: kept apart, or refused."""

import threading

import pytest

import same_folder_program
from mpi_runs import needs_mpi, run_over_mpi


@pytest.mark.one_in(2)
@needs_mpi
@pytest.mark.parametrize("run_ids", [("first", "second"), ("same", "same")], ids=str)
def test_two_runs_in_one_folder(run_ids, tmp_path):
    ended = {}

    def run(number):
        program = [same_folder_program.__file__, str(tmp_path), run_ids[number - 1], str(number)]
        ended[number] = run_over_mpi(2, *program, timeout=60)[:2]

    threads = [threading.Thread(target=run, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    finished = [status == 0 and text.count("has finished") == 2 for status, text in ended.values()]
    if len(set(run_ids)) == 2:
        assert all(finished), ended
        return
    assert not all(finished), ended
    for done, (status, text) in zip(finished, ended.values(), strict=True):
        refused = "is used by another process in the store in the folder" in text and "each run its own run_id" in text
        assert done or status != 0 and refused, text
