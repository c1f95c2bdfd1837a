"""The benchmark of strategies: accuracies and bytes of two processes, and texts that cannot be read."""

import pytest

from netbuilder.proto import ArgumentError
from netbuilder.tools import benchmark
from netbuilder.tools.bench import works
from netbuilder.tools.bench.strategies import Trainings, strategy_lines

PARAMETERS = 64 * 16 + 16 + 16 * 10 + 10


@pytest.mark.slow
def test_strategies_train_the_digits_with_fewer_bytes():
    pytest.importorskip("mpi4py")
    lines = list(strategy_lines(Trainings(["plain", "topk:0.1"], epochs=8, hidden=16)))
    plain, sparse = (line.record for line in lines)
    assert plain["bytes"] == 4 * PARAMETERS and sparse["bytes"] == 8 * (103 + 2 + 16 + 1)
    assert min(plain["accuracy"], sparse["accuracy"]) > 0.9
    assert lines[1].text == (
        f"digits, 2 processes, 8 epochs, topk:0.1: accuracy {sparse['accuracy']:.4f}, 976 bytes of each process in a "
        "step, 0.202 of plain"
    )


def test_texts_and_data_are_read_before_anything_starts(monkeypatch, capsys):
    with pytest.raises(ArgumentError, match="there is no strategy 'best'"):
        next(strategy_lines(Trainings(["plain", "best"])))
    with pytest.raises(FileNotFoundError, match="'nowhere' does not exist"):
        next(strategy_lines(Trainings(["plain"], data="nowhere")))
    monkeypatch.setattr(benchmark, "busy_share", lambda: 0.0)
    assert benchmark.main(["strategies", "--strategies", "topk:2"]) == 2
    assert "fraction must lie in (0, 1], got 2" in capsys.readouterr().err


def test_commas_are_also_between_the_fields_of_a_strategy(monkeypatch):
    given = []
    monkeypatch.setattr(benchmark, "busy_share", lambda: 0.0)
    monkeypatch.setattr(works, "strategy_lines", lambda trainings: given.extend(trainings.strategies) or iter([]))
    texts = ["plain", "diloco:8,bits=8,overlap=2", "topk:0.01,residual=false", "half"]
    assert benchmark.main(["strategies", "--strategies", ",".join(texts)]) == 0
    assert given == texts
