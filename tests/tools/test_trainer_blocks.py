"""netbuilder-train --block-steps: devices train on their own between block-wise updates."""

import numpy as np
import pytest

from netbuilder.graph.replicas import Replicas
from netbuilder.proto import NetError
from netbuilder.tools.imagenet_trainer import main
from netbuilder.tools.training.options import parse
from netbuilder.tools.training.settings import BlockOptions
from small_training import BASE, run_of, train_until

BLOCKS = ["--devices=0,1", "--block-steps=3"]
WAYS = {
    "blocks": [],
    "warm-up": ["--block-warmup-steps=5"],
    "nesterov": ["--block-nesterov", "--block-momentum=0.6", "--block-learning-rate=0.9", "--block-reset-momentum"],
    "overlap": ["--block-overlap=2", "--block-nesterov", "--block-momentum=0.6"],
    "adam": ["--optimizer=adam", "--learning-rate=0.01"],
    "micro-batches": ["--accumulate-steps=2", "--block-warmup-steps=1"],
}


def weights(run):
    values = run.checkpoint().blobs
    return [values[name] for name in ("fc1_w", "replica_1/fc1_w", "fc1_w_g")]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("way", WAYS)
def test_devices_agree_after_an_epoch_and_learn(way):
    run = run_of(*BLOCKS, *WAYS[way])
    epochs = [run.train_epoch(number) for number in range(1, 5)]
    first, *others = weights(run)
    assert all(np.array_equal(first, other) for other in others)
    assert epochs[-1].loss < 0.7 * epochs[0].loss
    assert run.checkpoint().blobs["block_iterations"].tolist() == [0]  # also with steps that were timed


def test_micro_batches_give_what_whole_batches_give():
    """Also with steps that were timed call by call."""
    found = []
    for steps in (1, 3):
        run = run_of(*BLOCKS, f"--accumulate-steps={steps}")
        run.train_epoch(1)
        train_until(run, 2, 2)
        assert run.checkpoint().blobs["block_iterations"].tolist() == [2]
        found.append(weights(run))
    for one, many in zip(*found):
        np.testing.assert_allclose(many, one, rtol=1e-4, atol=1e-6)


def test_nan_are_found():
    run = run_of(*BLOCKS, "--find-nan", "--learning-rate=1e30")
    with pytest.raises(FloatingPointError, match="epoch 1, step .*: the first value of run"):
        run.train_epoch(1)


def test_devices_differ_within_a_block():
    run = run_of(*BLOCKS)
    train_until(run, 1, 2)
    first, second, common = weights(run)
    assert not np.array_equal(first, second) and not np.array_equal(first, common)
    assert run.checkpoint().blobs["block_iterations"].tolist() == [2]


@pytest.mark.parametrize("stop", [1, 2, 3])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.one_in(8)
def test_resumed_to_the_bit_in_the_middle_of_an_epoch(way, stop):
    arguments = [*BLOCKS, *WAYS[way]]
    whole = run_of(*arguments)
    for number in (1, 2):
        whole.train_epoch(number)
    first = run_of(*arguments)
    first.train_epoch(1)
    train_until(first, 2, stop)
    again = run_of(*arguments)
    assert again.resume(first.checkpoint(), "checkpoint") == []
    again.train_epoch(2)
    want, got = whole.checkpoint().blobs, again.checkpoint().blobs
    assert want.keys() == got.keys()
    assert [name for name in want if not np.array_equal(want[name], got[name])] == []


def test_a_checkpoint_of_another_rule():
    run = run_of(*BLOCKS)
    run.train_epoch(1)
    checkpoint = run.checkpoint()
    with pytest.raises(NetError, match="number of devices was 2, now 3"):
        run_of("--devices=0,1,2", "--block-steps=3").resume(checkpoint, "checkpoint")
    with pytest.raises(NetError, match="--block-steps was 3, now None"):
        run_of("--devices=0,1").resume(checkpoint, "checkpoint")
    with pytest.raises(NetError, match="--block-overlap was None, now 1"):
        run_of(*BLOCKS, "--block-overlap=1").resume(checkpoint, "checkpoint")
    changed = run_of(*BLOCKS, "--block-momentum=0.1").resume(checkpoint, "checkpoint")
    assert changed == ["--block-momentum was None, now 0.1"]


def test_the_options():
    assert parse([*BASE, "--devices=0,1"]).block is None
    assert parse([*BASE, *BLOCKS]).block == BlockOptions(3)
    options = parse([*BASE, *BLOCKS, *WAYS["nesterov"], "--block-warmup-steps=4"])
    assert options.block == BlockOptions(3, 0.9, 0.6, True, 4, True)
    assert parse([*BASE, *BLOCKS, "--block-bits=8"]).block == BlockOptions(3, bits=8)
    assert Replicas.load(run_of(*BLOCKS, "--block-bits=8").model.train.net.Proto()).block.bits == 8
    assert parse([*BASE, *BLOCKS, "--block-overlap=2"]).block == BlockOptions(3, overlap=2)
    assert Replicas.load(run_of(*BLOCKS, "--block-overlap=2").model.train.net.Proto()).block.overlap == 2
    run = run_of(*BLOCKS, *WAYS["nesterov"])
    rule = Replicas.load(run.model.train.net.Proto()).block
    assert (rule.iterations, rule.momentum, rule.lookahead, rule.learning_rate) == (3, 0.6, 0.6, 0.9)


PROBLEMS = {
    "--block-steps=0": "--block-steps must be positive, got 0",
    "--block-learning-rate=0": "--block-learning-rate must be positive, got 0",
    "--block-momentum=1": r"--block-momentum must be in [0, 1), got 1",
    "--block-warmup-steps=-1": "--block-warmup-steps must not be negative, got -1",
    "--block-overlap=-1": "--block-overlap must not be negative, got -1",
    "--block-overlap=3": "--block-overlap must be less than --block-steps 3, got 3",
    "--block-bits=16": "--block-bits: invalid choice: 16 (choose from 32, 8)",
    "--combine-bn": "--combine-bn cannot be combined with --block-steps",
    "--ema=0.9": "--ema cannot be combined with --block-steps",
    "--block-reset-momentum --momentum=0": "--block-reset-momentum needs --optimizer sgd with a --momentum",
}


@pytest.mark.parametrize("given", PROBLEMS)
def test_problems(given, capsys):
    with pytest.raises(SystemExit):
        parse([*BASE, "--devices=0,1", "--block-steps=3", *given.split()])
    assert PROBLEMS[given] in capsys.readouterr().err


@pytest.mark.parametrize(
    "given", ["--block-momentum=0", "--block-nesterov", "--block-overlap=1", "--block-warmup-steps=2"]
)
def test_options_without_blocks(given, capsys):
    with pytest.raises(SystemExit):
        parse([*BASE, given])
    assert f"{given.partition('=')[0]} needs --block-steps" in capsys.readouterr().err


def test_the_command(tmp_path, capsys):
    folder = tmp_path / "out"
    arguments = ["--cpu", "--model=mlp", "--epochs=1", *BLOCKS, "--export", str(folder)]
    assert main(arguments) == 0
    assert "parameters averaged after each 3 steps" in capsys.readouterr().out
    assert (folder / "predict_net.pb").exists()
