"""The choice among several kernels: measured, stored in a file, not measured where there is no choice."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.engines import onednn

if not onednn.available():
    pytest.skip("needs oneDNN", allow_module_level=True)

from netbuilder.ops.engines.onednn import autotune as choices

SPEC = TensorSpec((3, 5), np.dtype(np.float32))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NETBUILDER_CACHE", str(tmp_path / "deep" / "cache"))
    monkeypatch.setenv("NETBUILDER_MEASURE", "1")
    monkeypatch.setattr(choices, "time", SimpleNamespace(perf_counter=lambda: _clock[0]))
    return tmp_path / "deep" / "cache"


_clock = [0.0]  # seconds: kernels move it on by what they are said to take, however busy the machine


def kernel(seconds, calls=None):
    def bind(inputs, outputs, scratch):
        assert inputs[0].shape == outputs[0].shape == SPEC.shape
        assert scratch.nbytes == 100

        def call():
            _clock[0] += seconds
            if calls is not None:
                calls.append(seconds)

        return call

    return Prepared([SPEC, None], [SPEC], bind, scratch=100)


def test_the_faster_one_is_taken_whichever_comes_first():
    slow, fast = (lambda: [kernel(0.01)]), (lambda: [kernel(0.001)])
    assert choices.fastest("a", {"first": slow, "second": fast}, 1) == "second"
    assert choices.fastest("b", {"first": fast, "second": slow}, 1) == "first"


def test_what_else_a_step_needs_counts():
    assert (
        choices.fastest("a", {"one": lambda: [kernel(0.004)], "two": lambda: [kernel(0.001), kernel(0.01)]}, 1) == "one"
    )


def test_a_candidate_that_cannot_serve_is_not_taken():
    assert choices.fastest("a", {"one": lambda: [kernel(0.001)], "two": list}, 1) == "one"


def test_measured_once_for_a_key_and_number_of_threads_and_kept_in_a_file(folder):
    calls = []
    ways = {"one": lambda: [kernel(0.002, calls)], "two": lambda: [kernel(0.0, calls)]}
    assert choices.fastest("a", ways, 1) == "two"
    count = len(calls)
    assert choices.fastest("a", ways, 1) == "two"
    assert len(calls) == count
    choices.fastest("a", ways, 2)
    assert len(calls) == 2 * count
    choices._choices.cache_clear()  # as in a new process
    assert choices.fastest("a", ways, 1) == "two"
    assert len(calls) == 2 * count
    (file,) = folder.iterdir()
    assert file == choices.cache_file()
    assert json.loads(file.read_text())["choices"] == {"a, threads 1": "two", "a, threads 2": "two"}


def test_choices_of_other_processes_are_kept(folder):
    ways = {"one": lambda: [kernel(0.0)]}
    choices.fastest("a", ways, 1)
    file = choices.cache_file()
    text = json.loads(file.read_text())
    text["choices"]["theirs"] = "x"
    file.write_text(json.dumps(text))
    choices.fastest("b", ways, 1)
    assert set(json.loads(file.read_text())["choices"]) == {"a, threads 1", "b, threads 1", "theirs"}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"machine": "another", "choices": {"a, threads 1": "two"}}', "\0"])
def test_a_file_that_cannot_be_used_is_rewritten(folder, text):
    file = choices.cache_file()
    folder.mkdir(parents=True)
    file.write_text(text)
    assert choices.fastest("a", {"one": lambda: [kernel(0.0)], "two": lambda: [kernel(0.01)]}, 1) == "one"
    assert json.loads(file.read_text())["choices"] == {"a, threads 1": "one"}


def test_where_no_file_can_be_written_the_process_remembers(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NETBUILDER_CACHE", str(tmp_path / "file"))
    calls = []
    ways = {"one": lambda: [kernel(0.0, calls)], "two": lambda: [kernel(0.01, calls)]}
    assert choices.fastest("a", ways, 1) == choices.fastest("a", ways, 1) == "one"
    assert len(calls) == 2 * (choices._ROUNDS + 1)


def test_a_name_that_is_no_candidate_any_more_is_measured_again():
    choices.fastest("a", {"gone": lambda: [kernel(0.0)]}, 1)
    assert choices.fastest("a", {"one": lambda: [kernel(0.0)]}, 1) == "one"


def test_nothing_is_measured_or_read_where_that_is_turned_off(folder, monkeypatch):
    monkeypatch.setenv("NETBUILDER_MEASURE", "0")
    assert choices.fastest("a", {"one": None, "two": None}, 1) == "one"
    assert not folder.exists()


def test_times_are_stored_with_the_choices(folder):
    calls = []
    first = choices.seconds("a", lambda: kernel(0.001, calls), 1)
    assert 0.001 <= first < 1
    count = len(calls)
    choices._choices.cache_clear()
    assert choices.seconds("a", lambda: kernel(0.001, calls), 1) == first
    assert len(calls) == count
    assert choices.seconds("none", lambda: None, 1) == float("inf")
    choices._choices.cache_clear()
    assert choices.seconds("none", lambda: kernel(0.0), 1) == float("inf")
