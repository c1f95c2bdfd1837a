"""Caffe2's trainer of translators and its decoder: run as commands, on GPUs, and refused."""

import io
import random
import sys

import numpy as np
import pytest

from netbuilder.caffe2.python import workspace
from netbuilder.caffe2.python.models.seq2seq import train, translate
from netbuilder.graph import reset_names
from netbuilder.proto import ArgumentError

LETTERS = dict(zip("abcd", "wxyz"))


@pytest.fixture(autouse=True)
def _fresh():
    reset_names()
    workspace.ResetWorkspace()
    yield
    workspace.ResetWorkspace()


def write_corpora(folder):
    rng = np.random.default_rng(0)
    files = {}
    for part, count in (("train", 32), ("eval", 8)):
        lines = [" ".join(rng.choice([*LETTERS], 1)) for _ in range(count)]
        for side, table in (("source", {}), ("target", LETTERS)):
            files[part, side] = folder / f"{part}.{side}"
            files[part, side].write_text("\n".join(line.translate(str.maketrans(table)) for line in lines) + "\n")
    return files


def options(files, *more):
    corpora = ["--source-corpus", files["train", "source"], "--target-corpus", files["train", "target"]]
    sizes = {"cell-num-units": 16, "embedding-size": 8, "num-layers": 1}
    named = {f"--{kind}-{name}": value for kind in ("encoder", "decoder") for name, value in sizes.items()}
    pairs = [text for pair in named.items() for text in pair]
    return ["program", *map(str, [*corpora, *pairs, "--unk-threshold", 0, "--use-attention", *more])]


def test_the_commands_learn_and_translate(tmp_path, monkeypatch, capsys, caplog):
    files = write_corpora(tmp_path)
    caplog.set_level("INFO")
    evaluation = ["--source-corpus-eval", files["eval", "source"], "--target-corpus-eval", files["eval", "target"]]
    rest = [
        "--batch-size",
        8,
        "--epochs",
        20,
        "--learning-rate",
        2,
        "--max-gradient-norm",
        2,
        "--checkpoint",
        tmp_path / "saved",
    ]
    monkeypatch.setattr(sys, "argv", options(files, *evaluation, *rest))
    random.seed(0)
    train.main()
    losses = [float(text.split()[-1]) for text in caplog.messages if text.startswith("\teval loss")]
    assert len(losses) == 20 and losses[-1] < 0.1 * losses[0]
    assert f'model_checkpoint_path: "{tmp_path}/saved-19"' in (tmp_path / "checkpoint").read_text()

    workspace.ResetWorkspace()
    monkeypatch.setattr(sys, "argv", options(files, "--checkpoint", tmp_path / "saved-19", "--beam-size", 3))
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\n\nd\nc\n"))
    translate.main()
    assert capsys.readouterr().out.splitlines() == ["w <EOS>", "<EOS>", "z <EOS>", "y <EOS>"]


def params(**more):
    return {
        "attention": "regular",
        "encoder_type": {"encoder_layer_configs": [{"num_units": 3}], "use_bidirectional_encoder": False},
        "decoder_layer_configs": [{"num_units": 4}],
        "encoder_embedding_size": 3,
        "decoder_embedding_size": 3,
        "decoder_softmax_size": None,
        "batch_size": 4,
        "max_gradient_norm": 1.0,
        "optimizer_params": {"learning_rate": 0.5},
        **more,
    }


BATCH = [([4, 5, 6], [4, 6]), ([5, 5, 4], [6, 4]), ([4, 5], [5]), ([6, 4], [4])]


def losses(num_gpus):
    workspace.ResetWorkspace()
    reset_names()
    model = train.Seq2SeqModelCaffe2(params(), 7, 7, num_gpus=num_gpus)
    model.initialize_from_scratch()
    for param in model.model.GetParams(""):
        name = str(param).rpartition("gpu_")[2].lstrip("0123456789/")
        rng = np.random.default_rng(sum(map(ord, name)))
        shape = workspace.FetchBlob(str(param)).shape
        workspace.FeedBlob(str(param), rng.uniform(-1, 1, shape).astype(np.float32))
    return [float(model.step(BATCH, only)) for only in (False, False, True)], model


def test_replicas_train_as_one(two_gpus):
    want, model = losses(0)
    assert model.get_current_step() == 2 and float(model.total_loss_scalar()) == want[-1]
    found, _ = losses(2)
    np.testing.assert_allclose(found, want, rtol=1e-4)


def test_the_end_of_a_block_empties_the_workspace():
    with train.Seq2SeqModelCaffe2(params(), 7, 7, num_gpus=0) as model:
        model.initialize_from_scratch()
        assert workspace.HasBlob("global_step")
    assert not workspace.Blobs()


def test_refusals(tmp_path):
    with pytest.raises(ArgumentError, match="model_params must have batch_size"):
        train.Seq2SeqModelCaffe2({k: v for k, v in params().items() if k != "batch_size"}, 7, 7)
    with pytest.raises(ArgumentError, match="must be a multiple of num_gpus=3, got 4"):
        train.Seq2SeqModelCaffe2(params(), 7, 7, num_gpus=3)
    vocab = {str(i): i for i in range(7)}
    one = {"source_vocab": vocab, "target_vocab": vocab, "model_params": params(), "model_file": str(tmp_path / "none")}
    other = {**one, "target_vocab": {"a": 0}}
    decoding = {"beam_size": 2, "word_reward": 0.0, "unk_reward": 0.0}
    with pytest.raises(ArgumentError, match=r"target_vocab must have the same size in all models, got \[1, 7\]"):
        translate.Seq2SeqModelCaffe2EnsembleDecoder({"ensemble_models": [one, other], "decoding_params": decoding})
    decoder = translate.Seq2SeqModelCaffe2EnsembleDecoder({"ensemble_models": [one], "decoding_params": decoding})
    with pytest.raises(ArgumentError, match="the sentence must have a word"):
        decoder.decode([], 3)
    with pytest.raises(Exception, match="none"):
        decoder.load_models()


def test_rewards():
    rewards = translate.Seq2SeqModelCaffe2EnsembleDecoder.build_word_rewards(None, 6, 0.25, -2.0)
    assert rewards.tolist() == [0, 0, 0, -1.75, 0.25, 0.25] and rewards.dtype == np.float32


def test_units_of_both_directions():
    files = dict.fromkeys([("train", "source"), ("train", "target")], "file")
    parser = translate._parser()
    args = parser.parse_args(options(files, "--use-bidirectional-encoder", "--checkpoint", "f")[1:])
    encoder = translate.model_params_of(args)["encoder_type"]
    assert encoder == {"encoder_layer_configs": [{"num_units": 8}], "use_bidirectional_encoder": True}
    args.encoder_cell_num_units = 7
    with pytest.raises(ArgumentError, match="must be even"):
        translate.model_params_of(args)
