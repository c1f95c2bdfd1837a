"""The benchmarks' machinery, with workers that only count."""

import sys
from pathlib import Path

import pytest

from netbuilder.tools import benchmark
from netbuilder.tools.bench import build, machine, ours
from netbuilder.tools.bench.pairs import Comparison, Worker, compare

BENCH = Path(benchmark.__file__).parent / "bench"


def script(tmp_path, body):
    path = tmp_path / "peer.py"
    path.write_text(f"import sys; sys.path.insert(0, {str(BENCH)!r})\nimport time\nfrom worker import serve\n{body}\n")
    return [sys.executable, str(path)]


def test_two_workers_take_turns(tmp_path):
    quick = script(tmp_path, "serve(lambda: print('noise'), warmup=1, info={'name': 'quick'})")
    worker = Worker("a", quick, {})
    other = Worker("b", script(tmp_path, "serve(lambda: time.sleep(0.002), warmup=1)"), {})
    try:
        assert worker.info == {"name": "quick"}
        result = compare(worker, other, pairs=3, steps=2)
    finally:
        worker.close()
        other.close()
    assert len(result.ours) == len(result.peer) == 3
    assert min(result.peer) >= 0.002
    assert result.ratio > 1


def test_a_worker_that_fails_says_why(tmp_path):
    with pytest.raises(RuntimeError, match="worker 'broken' ended with code 1.*no such thing"):
        Worker("broken", script(tmp_path, "raise SystemExit('no such thing')"), {})


def test_the_ratio_is_of_medians_and_the_spread_of_pairs():
    result = Comparison([1.0, 2.0, 4.0], [4.0, 4.0, 4.0])
    assert result.ratio == 2.0
    assert result.spread == (1.0, 4.0)


def test_our_side_trains():
    step = ours.training_step("mlp", 1, 8)
    for _ in range(3):
        step()


def test_build_counts_both_nets(capsys):
    assert benchmark.main(["build", "--devices", "1", "2"]) == 0
    text = capsys.readouterr().out
    assert "over 1 devices" in text
    assert "us an operator" in text
    one, two = build.build_time(1), build.build_time(2)
    assert two.operators > 1.8 * one.operators


def test_the_machine_is_described():
    assert "cores" in machine.describe_machine()
    assert -0.01 <= machine.busy_share(0.05) <= 1.01
