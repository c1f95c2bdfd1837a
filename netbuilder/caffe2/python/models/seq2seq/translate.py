"""Translate by beam search with trained models.

Run by ``python -m netbuilder.caffe2 -m caffe2.python.models.seq2seq.translate``.
"""

from __future__ import annotations

import argparse
import logging
import sys
from abc import ABCMeta, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.python import core, workspace
from netbuilder.caffe2.python.models.seq2seq.seq2seq_model_helper import Seq2SeqModelHelper
from netbuilder.caffe2.translator_options import add_model_options, model_params_of
from netbuilder.graph.devices import Devices
from netbuilder.graph.scope import SEPARATOR
from netbuilder.model.seq2seq import vocabulary
from netbuilder.model.seq2seq.backtrace import best_sequence
from netbuilder.model.seq2seq.ensemble import Ensemble, Member
from netbuilder.proto import PROTO_CUDA, ArgumentError

__all__ = [
    "Seq2SeqModelCaffe2EnsembleDecoder",
    "Seq2SeqModelCaffe2EnsembleDecoderBase",
    "logger",
    "main",
    "run_seq2seq_beam_decoder",
]

__getattr__ = names_of(__name__)

logger = logging.getLogger(__name__)


class Seq2SeqModelCaffe2EnsembleDecoderBase(metaclass=ABCMeta):
    """Base of decoders for several models: loads the parameters of each."""

    models: Sequence[Mapping[str, Any]]
    decoder_scope_names: Sequence[str]
    model: Seq2SeqModelHelper

    @abstractmethod
    def get_model_file(self, model: Mapping[str, Any]) -> str:
        """Return the file of a model's parameters."""

    @abstractmethod
    def get_db_type(self) -> str:
        """Return the database type of these files."""

    def build_word_rewards(self, vocab_size: int, word_reward: float, unk_reward: float) -> np.ndarray[Any, Any]:
        """Return the reward of each word, added to the score of a sequence, (vocab_size,) float32.

        Args:
            word_reward: for all words except PAD, GO and EOS.
            unk_reward: added to ``word_reward`` for the unknown word.
        """
        rewards = np.full(vocab_size, word_reward, np.float32)
        rewards[[vocabulary.PAD_ID, vocabulary.GO_ID, vocabulary.EOS_ID]] = 0
        rewards[vocabulary.UNK_ID] = word_reward + unk_reward
        return rewards

    def load_models(self) -> None:
        """Read the parameters of all models into the workspace.

        Raises:
            OperatorError: a file does not exist, or lacks a parameter.
        """
        for scope, model in zip(self.decoder_scope_names, self.models):
            self._load(scope + SEPARATOR, self.get_model_file(model))
            logger.info(f"Model {scope} is loaded from a checkpoint {self.get_model_file(model)}")

    def _load(self, prefix: str, path: str) -> None:
        reader = core.BlobReference("reader")
        workspace.RunOperatorOnce(core.CreateOperator("CreateDB", [], [reader], db=path, db_type=self.get_db_type()))
        names = [str(param) for param in self.model.GetParams("") if str(param).startswith(prefix)]
        load = core.CreateOperator(
            "Load", [reader], names, load_all=1, add_prefix=prefix, strip_prefix=Devices(PROTO_CUDA, (0,)).scopes[0]
        )
        workspace.RunOperatorOnce(load)


class Seq2SeqModelCaffe2EnsembleDecoder(Seq2SeqModelCaffe2EnsembleDecoderBase):
    """Translates with an ensemble of one or more models.

    Args:
        translate_params: "ensemble_models", for each a dict with "source_vocab", "target_vocab" (word ids by
            word), "model_params" (see ``Seq2SeqModelCaffe2``) and "model_file"; "decoding_params" with "beam_size",
            "word_reward" and "unk_reward".

    Raises:
        ArgumentError: there are no models, or their vocabularies have different sizes.
    """

    def __init__(self, translate_params: Mapping[str, Any]) -> None:
        self.models = translate_params["ensemble_models"]
        decoding_params = translate_params["decoding_params"]
        self.beam_size = decoding_params["beam_size"]
        self.source_vocab_size = self._size("source_vocab")
        self.target_vocab_size = self._size("target_vocab")
        self.decoder_scope_names = [f"model{i}" for i in range(len(self.models))]
        self.model = Seq2SeqModelHelper(init_params=True)
        members = [Member(s, m["model_params"]) for s, m in zip(self.decoder_scope_names, self.models)]
        ensemble = Ensemble(self.model, members, self.beam_size, self.source_vocab_size, self.target_vocab_size)
        self._blobs = ensemble.build()
        for name, blob in zip(self._blobs._fields, self._blobs):
            setattr(self, name, blob)
        workspace.RunNetOnce(self.model.param_init_net)
        rewards = decoding_params.get("word_reward", 0.0), decoding_params.get("unk_reward", 0.0)
        workspace.FeedBlob("word_rewards", self.build_word_rewards(self.target_vocab_size, *rewards))
        workspace.CreateNet(self.model.net, input_blobs=[str(blob) for blob in self._blobs[:3]])

    def _size(self, which: str) -> int:
        sizes = {len(model[which]) for model in self.models}
        if len(sizes) != 1:
            raise ArgumentError(f"ensemble_models: {which} must have the same size in all models, got {sorted(sizes)}")
        return sizes.pop()

    def get_model_file(self, model: Mapping[str, Any]) -> str:
        return str(model["model_file"])

    def get_db_type(self) -> str:
        return "minidb"

    def scope(self, scope_name: str, blob_name: str) -> str:
        """Return a blob's name in a model's scope."""
        return f"{scope_name}{SEPARATOR}{blob_name}"

    def decode(
        self, numberized_input: Sequence[int], max_output_seq_len: int
    ) -> tuple[list[int], list[list[float]], np.float32]:
        """Translate a sentence.

        Args:
            numberized_input: the ids of its words.
            max_output_seq_len: maximum length of the translation, including EOS.

        Returns:
            The word ids of the translation, including EOS if it was reached; for each of them the attention weights of
            the sentence's words (zeros without attention); and the negated score.

        Raises:
            ArgumentError: the sentence is empty, or ``max_output_seq_len`` is less than 1.
        """
        if not len(numberized_input) or max_output_seq_len < 1:
            raise ArgumentError(
                "decode: the sentence must have a word, and max_output_seq_len must be at least 1, got "
                f"{list(numberized_input)} and max_output_seq_len={max_output_seq_len}"
            )
        blobs = self._blobs
        reversed_input = np.array(numberized_input, np.int32)[::-1, None]
        workspace.FeedBlob(blobs.encoder_inputs, np.ascontiguousarray(reversed_input))
        workspace.FeedBlob(blobs.encoder_lengths, np.array([len(reversed_input)], np.int32))
        workspace.FeedBlob(blobs.max_output_seq_len, np.array([max_output_seq_len], np.int64))
        workspace.RunNet(self.model.net)
        scores = workspace.FetchBlob(blobs.output_score_beam_list)[..., 0]
        tokens = workspace.FetchBlob(blobs.output_token_beam_list)[..., 0]
        previous = workspace.FetchBlob(blobs.output_prev_index_beam_list)[..., 0]
        weights = workspace.FetchBlob(blobs.output_attention_weights_beam_list)
        best = best_sequence(tokens, previous, scores)
        attended = [weights[i, place, ::-1].tolist() for i, place in enumerate(best.places, 1)]
        return best.tokens, attended, np.float32(-best.score)


def run_seq2seq_beam_decoder(
    args: argparse.Namespace, model_params: Mapping[str, Any], decoding_params: Mapping[str, Any]
) -> None:
    """Print translations of the lines of the standard input; an empty line gives an empty translation.

    Args:
        args: ``source_corpus``, ``target_corpus`` and ``unk_threshold`` as in the training, and ``checkpoint``.
        model_params: see ``Seq2SeqModelCaffe2``.
        decoding_params: see ``Seq2SeqModelCaffe2EnsembleDecoder``.
    """
    source_vocab = vocabulary.gen_vocab(args.source_corpus, args.unk_threshold)
    logger.info(f"Source vocab size {len(source_vocab)}")
    target_vocab = vocabulary.gen_vocab(args.target_corpus, args.unk_threshold)
    logger.info(f"Target vocab size {len(target_vocab)}")
    words = {number: word for word, number in target_vocab.items()}
    model = {
        "source_vocab": source_vocab,
        "target_vocab": target_vocab,
        "model_params": model_params,
        "model_file": args.checkpoint,
    }
    decoder = Seq2SeqModelCaffe2EnsembleDecoder(
        translate_params={"ensemble_models": [model], "decoding_params": decoding_params}
    )
    decoder.load_models()
    for line in sys.stdin:
        numbers = vocabulary.get_numberized_sentence(line, source_vocab)
        tokens = decoder.decode(numbers, 2 * len(numbers) + 5)[0] if numbers else [vocabulary.EOS_ID]
        print(" ".join(words[token] for token in tokens), flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Translate the sentences of the standard input, one per line.")
    add_model_options(parser)
    parser.add_argument("--beam-size", type=int, default=6, help="width of the beam (6)")
    parser.add_argument("--word-reward", type=float, default=0.0, help="added to the score for each word (0)")
    parser.add_argument("--unk-reward", type=float, default=0.0,
                        help="also added for each unknown word, usually negative (0)")  # fmt: skip
    parser.add_argument("--checkpoint", required=True, help="checkpoint file of the training")
    return parser


def main() -> None:
    """Translate with the options of the command line."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    args = _parser().parse_args()
    decoding_params = {
        "beam_size": args.beam_size,
        "word_reward": args.word_reward,
        "unk_reward": args.unk_reward,
    }
    run_seq2seq_beam_decoder(args, model_params_of(args), decoding_params)


if __name__ == "__main__":
    main()
