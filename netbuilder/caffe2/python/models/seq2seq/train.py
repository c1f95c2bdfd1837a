"""Train a translator on two files of sentences.

Run by ``python -m netbuilder.caffe2 -m caffe2.python.models.seq2seq.train``.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.parallelize import Parallelize_GPU
from netbuilder.caffe2.python import core, workspace
from netbuilder.caffe2.python.models.seq2seq.seq2seq_model_helper import Seq2SeqModelHelper
from netbuilder.caffe2.translator_options import add_model_options, model_params_of
from netbuilder.graph import BlobReference, GradientSlice
from netbuilder.graph.devices import Devices
from netbuilder.model.seq2seq import vocabulary
from netbuilder.model.seq2seq.batches import Batch, gen_batches, prepare_batch
from netbuilder.model.seq2seq.training import NormClippedUpdate, require_params, translation_loss
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, ArgumentError, DeviceOption
from netbuilder.proto.arguments import make_device_option

__all__ = ["Batch", "Seq2SeqModelCaffe2", "gen_batches", "logger", "main", "prepare_batch", "run_seq2seq_model"]

__getattr__ = names_of(__name__)

logger = logging.getLogger(__name__)

_TABLE_BOUND = math.sqrt(3)  # of the initial word vectors, so that their variance is 1
_ON_CPU = ("encoder_inputs", "decoder_inputs")  # as are the embedding tables


class Seq2SeqModelCaffe2:
    """A translator in training; as a context manager it resets the current workspace at the end.

    Args:
        model_params: see ``translation_loss``; with "batch_size" (pairs per batch, over all replicas),
            "optimizer_params" ("learning_rate") and "max_gradient_norm".
        source_vocab_size, target_vocab_size: sizes of the vocabularies.
        num_gpus: replicas, one per GPU; 0: one on the CPU.
        num_cpus: ignored.

    Raises:
        ArgumentError: a parameter is missing, or the batch size is not a multiple of the number of GPUs.
    """

    def __init__(
        self,
        model_params: Mapping[str, Any],
        source_vocab_size: int,
        target_vocab_size: int,
        num_gpus: int = 1,
        num_cpus: int = 1,
    ) -> None:
        require_params(model_params, "encoder_type", "batch_size", "max_gradient_norm", "optimizer_params")
        if num_gpus < 0 or model_params["batch_size"] % max(num_gpus, 1):
            raise ArgumentError(
                f"batch_size must be a multiple of num_gpus={num_gpus}, got {model_params['batch_size']}"
            )
        self.model_params = model_params
        self.encoder_type = "rnn"
        self.encoder_params = model_params["encoder_type"]
        self.source_vocab_size, self.target_vocab_size = source_vocab_size, target_vocab_size
        self.num_gpus, self.num_cpus = num_gpus, num_cpus
        self.batch_size: int = model_params["batch_size"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        workspace.ResetWorkspace()

    # The nets

    def initialize_from_scratch(self) -> None:
        """Build the nets and initialize the parameters in the workspace."""
        logger.info("Initializing Seq2SeqModelCaffe2 from scratch: Start")
        self._build_model(init_params=True)
        self._init_model()
        logger.info("Initializing Seq2SeqModelCaffe2 from scratch: Finish")

    def _build_model(self, init_params: bool) -> None:
        self.model = model = Seq2SeqModelHelper(init_params=init_params)
        self._build_shared(model)
        self._build_embeddings(model)
        forward = Seq2SeqModelHelper(init_params=False)  # uses the parameters of ``model``
        if self.num_gpus:
            replicas = list(range(self.num_gpus))
            parallelize: Any = Parallelize_GPU  # its builders take any ModelHelper, those here one of a subclass
            parallelize(model, lambda _: None, self._loss, self._dense_update, devices=replicas)
            parallelize(forward, lambda _: None, self.forward_model_build_fun, None, devices=replicas)
        else:
            model.AddGradientOperators(self.model_build_fun(model))
            self.norm_clipped_grad_update(model, scope="norm_clipped_grad_update")
            self.forward_model_build_fun(forward)
        self.norm_clipped_sparse_grad_update(model, scope="norm_clipped_sparse_grad_update")
        self.forward_net = forward.net

    def _build_shared(self, model: Seq2SeqModelHelper) -> None:
        rate = float(self.model_params["optimizer_params"]["learning_rate"])
        with core.DeviceScope(_cpu()):
            self.learning_rate = model.AddParam("learning_rate", init_value=rate, trainable=False)
            self.global_step = model.AddParam("global_step", init_value=0, trainable=False)
            self.start_time = model.AddParam("start_time", init_value=time.time(), trainable=False)

    def _build_embeddings(self, model: Seq2SeqModelHelper) -> None:
        sizes = self.model_params["encoder_embedding_size"], self.model_params["decoder_embedding_size"]
        with core.DeviceScope(_cpu()):
            self.encoder_embeddings, self.decoder_embeddings = (
                self._table(model, name, [words, size])
                for name, words, size in zip(
                    ("encoder_embeddings", "decoder_embeddings"),
                    (self.source_vocab_size, self.target_vocab_size),
                    sizes,
                )
            )

    @staticmethod
    def _table(model: Seq2SeqModelHelper, name: str, shape: Sequence[int]) -> BlobReference:
        net = model.param_init_net
        table: BlobReference = net.UniformFill([], name, shape=shape, min=-_TABLE_BOUND, max=_TABLE_BOUND)
        model.AddParameter(table)
        return table

    def model_build_fun(
        self, model: Seq2SeqModelHelper, forward_only: bool = False, loss_scale: float | None = None
    ) -> list[BlobReference]:
        """Add encoder, decoder and loss; return the loss.

        Args:
            forward_only: add no backward pass.
            loss_scale: 1 / number of replicas; the loss is divided by the batch size of all replicas.
        """
        replicas = max(self.num_gpus, 1)
        scale = 1.0 / self.batch_size if loss_scale is None else loss_scale * replicas / self.batch_size
        _, loss = translation_loss(
            model,
            self.model_params,
            self.source_vocab_size,
            self.target_vocab_size,
            self.encoder_embeddings,
            self.decoder_embeddings,
            scale=scale,
            num_gpus=self.num_gpus,
            forward_only=forward_only,
        )
        return [loss]

    def forward_model_build_fun(
        self, model: Seq2SeqModelHelper, loss_scale: float | None = None
    ) -> list[BlobReference]:
        """Add the same without a backward pass."""
        return self.model_build_fun(model, forward_only=True, loss_scale=loss_scale)

    def _loss(self, model: Seq2SeqModelHelper, loss_scale: float) -> list[BlobReference]:
        return self.model_build_fun(model, loss_scale=loss_scale)

    def _dense_update(self, model: Seq2SeqModelHelper) -> None:
        self.norm_clipped_grad_update(model, scope="norm_clipped_grad_update")

    def norm_clipped_grad_update(self, model: Seq2SeqModelHelper, scope: str) -> None:
        """Add the updates of parameters with dense gradients, in the current name scope."""
        rate = model.net.CopyCPUToGPU(self.learning_rate, "LR") if self.num_gpus else self.learning_rate
        self._update(model, rate, scope, sparse=False)

    def norm_clipped_sparse_grad_update(self, model: Seq2SeqModelHelper, scope: str) -> None:
        """Add the updates of the embedding tables."""
        self._update(model, self.learning_rate, scope, sparse=True)

    def _update(self, model: Seq2SeqModelHelper, rate: BlobReference, scope: str, *, sparse: bool) -> None:
        gradients = model.param_to_grad
        params = [p for p in model.GetParams() if isinstance(gradients.get(p), GradientSlice) == sparse]
        logger.info("Sparse trainable variables: " if sparse else "Dense trainable variables: ")
        for param in params:
            logger.info(str(param))
        NormClippedUpdate(model, self.model_params["max_gradient_norm"], rate, scope).add(params)

    # Steps

    def _init_model(self) -> None:
        workspace.RunNetOnce(self.model.param_init_net)
        for net in (self.model.net, self.forward_net):
            workspace.CreateNet(net, input_blobs=[str(blob) for blob in net.external_inputs])

    def _replicas(self) -> list[tuple[str, DeviceOption | None]]:
        """Return the prefix of each replica's blobs, and its device."""
        if not self.num_gpus:
            return [("", None)]
        devices = Devices(PROTO_CUDA, tuple(range(self.num_gpus)))
        return list(zip(devices.scopes, devices.options))

    def step(self, batch: Sequence[tuple[Sequence[int], Sequence[int]]], forward_only: bool) -> np.ndarray[Any, Any]:
        """Train on a batch; return its loss before the update, summed over words, in nats.

        Args:
            batch: pairs of sentences, as word ids; pairs go to the replicas in turn.
            forward_only: compute the loss only.

        Raises:
            ArgumentError: the batch has fewer pairs than there are replicas.
        """
        replicas = self._replicas()
        if len(batch) < len(replicas):
            raise ArgumentError(
                f"step: the batch must have a pair for each of {len(replicas)} replicas, got {len(batch)} pairs"
            )
        for i, (prefix, device) in enumerate(replicas):
            for name, value in prepare_batch(batch[i :: len(replicas)])._asdict().items():
                place = _cpu() if device is not None and name in _ON_CPU else device
                workspace.FeedBlob(prefix + name, value, device_option=place)
        workspace.RunNet(self.forward_net if forward_only else self.model.net)
        if not forward_only:
            self.inc_current_step()
        return self.total_loss_scalar()

    def total_loss_scalar(self) -> np.ndarray[Any, Any]:
        """Return the loss of the last batch, summed over words, in nats."""
        total: np.ndarray[Any, Any] = sum(
            workspace.FetchBlob(f"{prefix}total_loss_scalar") for prefix, _ in self._replicas()
        )
        return total

    def get_current_step(self) -> int:
        """Return the number of training steps so far."""
        return int(workspace.FetchBlob(self.global_step)[0])

    def inc_current_step(self) -> None:
        """Count one training step."""
        workspace.FeedBlob(self.global_step, np.array([self.get_current_step() + 1], np.int64))

    def save(self, checkpoint_path_prefix: str, current_step: int) -> str:
        """Save all parameters to the file ``<checkpoint_path_prefix>-<current_step>`` and return its path.

        The path is also written to the file ``checkpoint`` in the same folder.
        """
        path = f"{checkpoint_path_prefix}-{current_step}"
        params = self.model.GetAllParams("")
        workspace.RunOperatorOnce(core.CreateOperator("Save", params, [], absolute_path=1, db=path, db_type="minidb"))
        with open(os.path.join(os.path.dirname(path), "checkpoint"), "w", encoding="utf-8") as file:
            file.write(f'model_checkpoint_path: "{path}"\nall_model_checkpoint_paths: "{path}"\n')
        logger.info(f"Saved checkpoint file to {path}")
        return path


def _cpu() -> DeviceOption:
    return make_device_option(PROTO_CPU, 0)


def run_seq2seq_model(args: argparse.Namespace, model_params: Mapping[str, Any] | None = None) -> None:
    """Train a translator on files, and evaluate and save it after each epoch.

    Args:
        args: the options of ``main``.
        model_params: see ``Seq2SeqModelCaffe2``; None: from the options.
    """
    params = _model_params(args) if model_params is None else model_params
    source_vocab = vocabulary.gen_vocab(args.source_corpus, args.unk_threshold)
    target_vocab = vocabulary.gen_vocab(args.target_corpus, args.unk_threshold)
    logger.info(f"Source vocab size {len(source_vocab)}")
    logger.info(f"Target vocab size {len(target_vocab)}")
    rest = (source_vocab, target_vocab, params["batch_size"], args.max_length)
    batches = gen_batches(args.source_corpus, args.target_corpus, *rest)
    logger.info(f"Number of training batches {len(batches)}")
    batches_eval = gen_batches(args.source_corpus_eval, args.target_corpus_eval, *rest)
    logger.info(f"Number of eval batches {len(batches_eval)}")
    with Seq2SeqModelCaffe2(params, len(source_vocab), len(target_vocab), num_gpus=args.num_gpus, num_cpus=20) as model:
        model.initialize_from_scratch()
        for epoch in range(args.epochs):
            logger.info(f"Epoch {epoch}")
            logger.info(f"\ttraining loss {sum(float(model.step(batch, False)) for batch in batches)}")
            logger.info(f"\teval loss {sum(float(model.step(batch, True)) for batch in batches_eval)}")
            if args.checkpoint is not None:
                model.save(args.checkpoint, epoch)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Train a translator on two files of sentences.")
    add_model_options(parser)
    parser.add_argument("--source-corpus-eval", required=True, help="file of sentences for the evaluation")
    parser.add_argument("--target-corpus-eval", required=True, help="file of their translations")
    parser.add_argument("--max-length", type=int, default=None, help="skip longer sentences (default: none)")
    parser.add_argument("--batch-size", type=int, default=32, help="pairs per step (32)")
    parser.add_argument("--epochs", type=int, default=10, help="passes over the training data (10)")
    parser.add_argument("--learning-rate", type=float, default=0.5, help="learning rate of gradient descent (0.5)")
    parser.add_argument("--max-gradient-norm", type=float, default=1.0,
                        help="gradients are clipped to this norm (1)")  # fmt: skip
    parser.add_argument("--num-gpus", type=int, default=0, help="replicas, one per GPU; 0: one on the CPU (0)")
    parser.add_argument("--checkpoint", default=None, help="prefix of the checkpoint files (default: no files)")
    return parser


def _model_params(args: argparse.Namespace) -> dict[str, Any]:
    return {
        **model_params_of(args),
        "batch_size": args.batch_size,
        "optimizer_params": {"learning_rate": args.learning_rate},
        "max_gradient_norm": args.max_gradient_norm,
    }


def main() -> None:
    """Train with the options of the command line."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    args = _parser().parse_args()
    run_seq2seq_model(args, model_params=_model_params(args))


if __name__ == "__main__":
    main()
