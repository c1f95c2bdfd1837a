"""The examples of sequence models, in small form: they learn, on one replica as on several, and can be exported."""

import numpy as np
import pytest

from netbuilder.graph import reset_names
from netbuilder.optimizers import reset_optimizer_instance_count
from netbuilder.proto import ArgumentError
from netbuilder.tools import char_lm, seq2seq
from netbuilder.tools.sequences.char_model import CharModel, Size, Writer, draw
from netbuilder.tools.sequences.characters import Characters
from netbuilder.tools.sequences.pairs import TASKS, Pairs
from netbuilder.tools.sequences.translator import Shape, Translator

TEXT = "abcde fghij. " * 40


@pytest.fixture(autouse=True)
def _fresh_names():
    reset_names()
    reset_optimizer_instance_count()


def distance(got, want):
    """How far parameters are apart, relative to their norm."""
    found = [np.linalg.norm(got[name] - want[name]) / max(np.linalg.norm(want[name]), 1e-6) for name in want]
    return max(found)


def parameters(model, record, workspace):
    """The first replica's parameters, and those outside the replicas, without the scope of the replica."""
    first, *others = record.devices.scopes
    names = [str(p) for p in model.GetParams("") if not str(p).startswith(tuple(others))]
    return {name.removeprefix(first): workspace.fetch(name) for name in names}


def test_a_language_model_learns_writes_and_is_exported(tmp_path, capsys):
    (tmp_path / "text.txt").write_text(TEXT)
    arguments = [str(tmp_path / "text.txt"), "--export", str(tmp_path / "out"), "--epochs", "4", "--batch", "4"]
    arguments += ["--steps", "13", "--hidden", "24", "--rate", "0.03", "--devices", "2"]
    assert char_lm.main(arguments) == 0
    losses = [float(line.split()[3]) for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    assert losses[0] > 1 and losses[-1] < 0.2
    assert (
        char_lm.main(["--export", str(tmp_path / "out"), "--write", "20", "--prime", "abc", "--temperature", "0"]) == 0
    )
    assert capsys.readouterr().out == "abcde fghij. abcde fghi"[:23] + "\n"
    writer = Writer(tmp_path / "out")
    assert writer.alphabet == "".join(sorted(set(TEXT)))
    assert writer.write("a", 9, seed=1) == writer.write("a", 9, seed=1)


def test_a_language_model_is_the_same_on_any_number_of_devices():
    layers = 2
    text = Characters(TEXT)
    found = {}
    for devices in (1, 2, 3):
        reset_names()
        reset_optimizer_instance_count()
        model = CharModel(Size(len(text.alphabet), 6, layers, 4), 12, devices, rate=0.01)
        losses = [model.step(now, then) for now, then in text.batches(12, 7)]
        found[devices] = losses, parameters(model.model, model.record, model.workspace)
    for devices in (2, 3):
        np.testing.assert_allclose(found[devices][0], found[1][0], rtol=1e-5)
        assert found[1][1].keys() == found[devices][1].keys() and len(found[1][1]) == 3 + 4 * layers
        assert distance(found[devices][1], found[1][1]) < 1e-4


def test_characters():
    text = Characters("abab")
    assert text.alphabet == "ab" and text.decode(text.numbers) == "abab"
    ((now, then),) = text.batches(1, 3)
    assert text.decode(now[:, 0]) == "aba" and text.decode(then[:, 0]) == "bab"
    with pytest.raises(ArgumentError, match="needs a text of at least 9 characters, got 4"):
        next(text.batches(2, 4))
    with pytest.raises(ArgumentError, match="characters \\['c'\\] do not occur in the training text"):
        text.encode("c")
    with pytest.raises(ArgumentError, match="at least two characters"):
        Characters("a")
    rng = np.random.default_rng(0)
    assert draw(np.array([0.2, 0.5, 0.3]), 0, rng) == 1
    draws = [draw(np.array([0.25, 0.75]), 1.0, rng) for _ in range(400)]
    assert 0.6 < np.mean(draws) < 0.9


@pytest.mark.slow
def test_a_translator_learns_to_reverse(capsys):
    arguments = ["reverse", "--length", "2", "--steps", "150", "--units", "24", "--rate", "0.02", "--batch", "32"]
    arguments += ["--devices", "2", "--questions", "20", "--beam", "2", "--at-least", "0.9"]
    assert seq2seq.main(arguments) == 0, capsys.readouterr().out
    assert "20 new questions answered correctly" in capsys.readouterr().out


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "attention, counts",
    [
        ("none", (1, 2)),
        ("regular", (1, 2, 4)),
        ("soft_coverage", (1, 2)),
        pytest.param("regular", (1, 8), marks=pytest.mark.slow),
    ],
)
def test_a_translator_is_the_same_on_any_number_of_devices(attention, counts):
    pairs = Pairs("add", 2)
    found = {}
    for devices in counts:
        reset_names()
        reset_optimizer_instance_count()
        translator = Translator(Shape(pairs.words, 6, 4, attention), devices, rate=0.01)
        losses = [translator.step(batch) for batch in pairs.batches(8, 4, seed=2)]
        found[devices] = losses, parameters(translator.model, translator.record, translator.workspace)
    for devices in found:
        np.testing.assert_allclose(found[devices][0], found[1][0], rtol=1e-5)
        assert found[1][1].keys() == found[devices][1].keys()
        assert distance(found[devices][1], found[1][1]) < 1e-3  # Adam makes much of gradients near 0


def test_answers_are_those_of_the_training_net():
    """The best answer's score is the log chance that the net in training gives it."""
    pairs = Pairs("reverse", 2)
    translator = Translator(Shape(pairs.words, 8, 4, "regular"), rate=0.03)
    translator.model.net.set_observable("outputs", ["cpu_0/softmax"])
    for batch in pairs.batches(16, 40, seed=1):
        translator.step(batch)
    best = [h for h in translator.answer(pairs, "42", beam_size=8) if h.ended and len(h.tokens) <= 2][0]
    answer = pairs.decode(best.tokens)
    batch = pairs.batch([("42", answer)] * 16)
    translator.step(batch)  # runs forward with the parameters that answered
    chances = translator.workspace.fetch("cpu_0/softmax").reshape(*batch.label.shape, -1)
    picked = np.log([chances[t, 0, batch.label[t, 0]] for t in range(len(best.tokens) + 1)])
    np.testing.assert_allclose(best.score, picked.sum(), rtol=1e-4)


def test_pairs():
    pairs = Pairs("add", 2)
    for question, answer in pairs.draw(np.random.default_rng(0), 20):
        a, b = question.split("+")
        assert int(a) + int(b) == int(answer)
        assert pairs.decode(pairs.encode(question)) == question
    batch = pairs.batch([("1+2", "3"), ("10+5", "15")])
    assert batch.source.shape == (5, 2) and batch.label.shape == (4, 2)
    assert batch.source_lengths.tolist() == [3, 4] and batch.target_lengths.tolist() == [2, 3]
    assert batch.weight.sum() == 5 and set(TASKS) == {"add", "reverse"}
    with pytest.raises(ArgumentError, match="the task must be one of"):
        Pairs("multiply", 2)


def test_wrong_command_lines(tmp_path, capsys):
    assert seq2seq.main(["add", "--batch", "3", "--devices", "2"]) == 1
    assert "cannot be split evenly over 2 devices; give a multiple of 2" in capsys.readouterr().err
    assert char_lm.main([str(tmp_path / "none.txt"), "--export", str(tmp_path)]) == 1
    assert "none.txt" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--length", "--steps", "--beam", "--questions", "--devices"])
def test_numbers_of_things_begin_with_one(option, capsys):
    for wrong in ("0", "-1", "two"):
        with pytest.raises(SystemExit):
            seq2seq.main(["add", f"{option}={wrong}"])
        assert f"argument {option}: must be a positive whole number, got '{wrong}'" in capsys.readouterr().err
    assert seq2seq.main(["add", "--length", "19"]) == 1
    assert "must be in [1, 18], got 19" in capsys.readouterr().err
