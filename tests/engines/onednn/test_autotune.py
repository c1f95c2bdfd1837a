"""The choice among several kernels: measured in rounds, stored in a file, not measured where there is no choice."""

import contextlib
import json
from types import SimpleNamespace

import numpy as np
import pytest

from netbuilder.engines import choices as stored
from netbuilder.engines import onednn
from netbuilder.engines.arrays import aligned_empty
from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.operator import TensorSpec

if not onednn.available():
    pytest.skip("needs oneDNN", allow_module_level=True)

from netbuilder.engines.onednn import autotune as choices

SPEC = TensorSpec((3, 5), np.dtype(np.float32))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NETBUILDER_CACHE", str(tmp_path / "deep" / "cache"))
    monkeypatch.setenv("NETBUILDER_MEASURE", "1")
    choices.take_open()
    monkeypatch.setattr(choices, "rates", [])
    monkeypatch.setattr(choices, "time", SimpleNamespace(perf_counter=lambda: _clock[0]))
    return tmp_path / "deep" / "cache"


_clock = [0.0]  # seconds: kernels move it on by what they are said to take, however busy the machine


def kernel(seconds, calls=None):
    def bind(inputs, outputs, scratch):
        assert inputs[0].shape == outputs[0].shape == SPEC.shape
        assert scratch.nbytes == 100

        def call():
            _clock[0] += seconds() if callable(seconds) else seconds
            if calls is not None:
                calls.append(seconds)

        return call

    return Prepared([SPEC, None], [SPEC], bind, scratch=100)


@contextlib.contextmanager
def lend(nbytes):
    yield aligned_empty(nbytes)


def plan(threads=1, without=()):
    """Return what is asked of the context of a plan."""
    return SimpleNamespace(threads=threads, enabled=lambda name: name not in without)


def fastest(key, ways, threads):
    """Ask, measure all rounds, and ask again."""
    first, ctx = next(iter(ways)), plan(threads)
    found = choices.fastest(key, ways, ctx, flops=1000)
    waiting = choices.take_open()
    assert found == first or not waiting
    for choice in waiting:
        while not choice.known:
            choice.advance(lend, 0)
        choice.keep()
        assert choice.differs == (choices.fastest(key, ways, ctx, flops=1000) != first)
    found = choices.fastest(key, ways, ctx, flops=1000)
    assert choices.take_open() == []
    return found


def names_in(file):
    """Return the choices in a file without their times."""
    return {key: value for key, value in json.loads(file.read_text())["choices"].items() if isinstance(value, str)}


def test_the_faster_one_is_taken_whichever_comes_first():
    slow, fast = (lambda: [kernel(0.01)]), (lambda: [kernel(0.001)])
    assert fastest("a", {"first": slow, "second": fast}, 1) == "second"
    assert fastest("b", {"first": fast, "second": slow}, 1) == "first"
    assert fastest("c", {"first": fast, "second": lambda: [kernel(0.0011)]}, 1) == "first"
    assert fastest("d", {"first": lambda: [kernel(0.0011)], "second": fast}, 1) == "second"
    assert fastest("e", {"first": lambda: [kernel(0.00101)], "second": fast}, 1) == "first"  # not clearly


def test_those_that_are_far_slower_are_measured_less_often():
    calls = []
    ways = {
        name: (lambda time=time: [kernel(time, calls)]) for name, time in [("a", 0.01), ("b", 0.002), ("c", 0.0021)]
    }
    assert fastest("a", ways, 1) == "b"
    assert calls.count(0.01) == 1 + choices.ROUNDS_OF_ALL
    assert calls.count(0.002) == calls.count(0.0021) == 1 + choices.ROUNDS


def test_what_a_round_takes_is_known_before():
    ways = {"one": lambda: [kernel(0.01)], "two": lambda: [kernel(0.01)]}
    choices.fastest("a", ways, plan(), flops=10_000_000)
    choices.fastest("b", ways, plan(), flops=30_000_000)
    first, second = choices.take_open()
    assert first.expected == pytest.approx(2 * 10_000_000 * choices.FIRST_RATE)
    first.advance(lend, 0)
    assert first.started and not second.started
    assert first.expected == pytest.approx(0.02) and second.expected == pytest.approx(0.06)


def test_as_many_rounds_are_measured_as_there_is_time_for():
    calls = []
    ways = {name: (lambda: [kernel(0.01, calls)]) for name in ("one", "two")}
    choices.fastest("a", ways, plan(), flops=1000)
    (choice,) = choices.take_open()
    choice.advance(lend, 0.05)
    assert len(calls) == 4 and not choice.known
    choice.advance(lend, 1)
    assert len(calls) == 2 * (1 + choices.ROUNDS) and choice.known


def test_the_file_is_written_when_that_is_asked_for(folder):
    choices.fastest("a", {"one": lambda: [kernel(0.01)], "two": lambda: [kernel(0.001)]}, plan(), flops=1000)
    (choice,) = choices.take_open()
    choice.advance(lend, 1)
    assert choice.known and not folder.exists()
    choice.keep()
    assert names_in(choices.cache_file()) == {"a, threads 1": "two"}


def test_each_use_makes_a_choice_worth_more():
    for _ in range(3):
        choices.fastest("a", {"one": list, "two": list}, plan(), flops=5)
        choices.fastest("b", {"one": list, "two": list}, plan(), flops=5, worth=100)
    assert [choice.worth for choice in choices.take_open()] == [15, 300]


def test_what_else_a_step_needs_counts():
    assert fastest("a", {"one": lambda: [kernel(0.004)], "two": lambda: [kernel(0.001), kernel(0.01)]}, 1) == "one"


def test_a_candidate_that_cannot_serve_is_not_taken():
    assert fastest("a", {"one": lambda: [kernel(0.001)], "two": list}, 1) == "one"


def test_measured_once_for_a_key_and_number_of_threads_and_kept_in_a_file(folder):
    calls = []
    ways = {"one": lambda: [kernel(0.002, calls)], "two": lambda: [kernel(0.001, calls)]}
    assert fastest("a", ways, 1) == "two"
    count = len(calls)
    assert fastest("a", ways, 1) == "two"
    assert len(calls) == count
    fastest("a", ways, 2)
    assert len(calls) == 2 * count
    stored.choices_of.cache_clear()  # as in a new process
    assert fastest("a", ways, 1) == "two"
    assert len(calls) == 2 * count
    (file,) = folder.iterdir()
    assert file == choices.cache_file()
    assert names_in(file) == {"a, threads 1": "two", "a, threads 2": "two"}


def test_what_is_measured_for_one_plan_is_known_to_others():
    ways = {"one": lambda: [kernel(0.002)], "two": lambda: [kernel(0.001)]}
    choices.fastest("a", ways, plan(), flops=1)
    (mine,) = choices.take_open()
    assert not mine.known and not mine.differs
    assert fastest("a", ways, 1) == "two"
    assert mine.known and mine.differs and not mine.started


def test_choices_of_other_processes_are_kept(folder):
    ways = {"one": lambda: [kernel(0.0)]}
    fastest("a", ways, 1)
    file = choices.cache_file()
    text = json.loads(file.read_text())
    text["choices"]["theirs"] = "x"
    file.write_text(json.dumps(text))
    fastest("b", ways, 1)
    assert set(json.loads(file.read_text())["choices"]) == {"a, threads 1", "b, threads 1", "theirs"}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("text", ["", "[]", "{", '{"machine": "another", "choices": {"a, threads 1": "two"}}', "\0"])
def test_a_file_that_cannot_be_used_is_rewritten(folder, text):
    file = choices.cache_file()
    folder.mkdir(parents=True)
    file.write_text(text)
    assert fastest("a", {"one": lambda: [kernel(0.0)], "two": lambda: [kernel(0.01)]}, 1) == "one"
    assert names_in(file) == {"a, threads 1": "one"}


def test_where_no_file_can_be_written_the_process_remembers(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NETBUILDER_CACHE", str(tmp_path / "file"))
    calls = []
    ways = {"one": lambda: [kernel(0.001, calls)], "two": lambda: [kernel(0.01, calls)]}
    assert fastest("a", ways, 1) == fastest("a", ways, 1) == "one"
    assert len(calls) == 2 * (choices.ROUNDS_OF_ALL + 1)


def test_a_name_that_is_no_candidate_any_more_is_measured_again():
    fastest("a", {"gone": lambda: [kernel(0.0)]}, 1)
    assert fastest("a", {"one": lambda: [kernel(0.0)]}, 1) == "one"


def test_nothing_is_measured_or_read_where_that_is_turned_off(folder, monkeypatch):
    monkeypatch.setenv("NETBUILDER_MEASURE", "0")
    assert choices.fastest("a", {"one": None, "two": None}, plan(), flops=1) == "one"
    assert choices.take_open() == []
    assert not folder.exists()


def test_a_net_that_measures_nothing_takes_the_first_whatever_is_on_file(folder):
    ways = {"one": lambda: [kernel(0.002)], "two": lambda: [kernel(0.001)]}
    assert fastest("a", ways, 1) == "two"
    ctx = plan(without=("measured_choices",))
    assert choices.fastest("a", ways, ctx, flops=1) == choices.fastest("b", ways, ctx, flops=1) == "one"
    assert choices.take_open() == [] and choices.time_of_fastest("a", ctx) is None


def seconds(key, make):
    """Ask, measure all rounds, and ask again."""
    found = choices.seconds(key, make, 1, flops=1000, differs=lambda: True)
    for choice in choices.take_open():
        assert found is None and choice.differs
        while not choice.known:
            choice.advance(lend, 0)
        choice.keep()
    return choices.seconds(key, make, 1, flops=1000, differs=lambda: True)


def test_times_are_stored_with_the_choices(folder):
    calls = []
    first = seconds("a", lambda: kernel(0.001, calls))
    assert 0.001 <= first < 1
    count = len(calls)
    stored.choices_of.cache_clear()
    assert seconds("a", lambda: kernel(0.001, calls)) == first
    assert len(calls) == count
    assert seconds("none", lambda: None) == float("inf")
    stored.choices_of.cache_clear()
    assert seconds("none", lambda: kernel(0.0)) == float("inf")


def test_the_shortest_time_counts():
    """Times of different moments are compared, and the machine may be busy at one of them."""
    taken = iter([0.1, 0.5, 0.3, 0.4, 0.6, 0.5])  # the first round only fills the caches
    assert seconds("a", lambda: kernel(lambda: next(taken))) == pytest.approx(0.3)


def test_the_time_of_the_fastest_is_stored():
    ways = {"first": lambda: [kernel(0.01)], "second": lambda: [kernel(0.001), kernel(0.002)]}
    assert choices.time_of_fastest("a", plan(1)) is None
    assert fastest("a", ways, 1) == "second"
    assert choices.time_of_fastest("a", plan(1)) == pytest.approx(0.003)
    assert choices.time_of_fastest("a", plan(2)) is None
    stored.choices_of.cache_clear()  # as in another process
    assert choices.time_of_fastest("a", plan(1)) == pytest.approx(0.003)


def test_no_times_are_read_where_measuring_is_switched_off(monkeypatch):
    fastest("a", {"first": lambda: [kernel(0.01)], "second": lambda: [kernel(0.001)]}, 1)
    monkeypatch.setenv("NETBUILDER_MEASURE", "0")
    assert choices.time_of_fastest("a", plan(1)) is None


@pytest.mark.parametrize(
    ("own", "shared", "expected"),
    [("2048K", "307200K", 4 << 20), ("512K", "32768K", 32 << 20), ("512K", None, 32 << 20), ("", "1K", 32 << 20)],
)
def test_what_a_large_shared_cache_holds_stays_there(tmp_path, monkeypatch, own, shared, expected):
    for level, size in ((2, own), (3, shared)):
        if size is not None:
            (tmp_path / str(level)).write_text(f"{size}\n")
    monkeypatch.setattr(choices, "_CACHES", str(tmp_path / "{}"))
    assert choices._displacing_bytes.__wrapped__() == expected
