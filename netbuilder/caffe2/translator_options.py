"""The model options that Caffe2's trainer of translators and its decoder share."""

from __future__ import annotations

import argparse
from typing import Any

from netbuilder.proto import ArgumentError

__all__ = ["add_model_options", "model_params_of"]


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the model."""
    parser.add_argument("--source-corpus", required=True, help="file of sentences to translate, one per line")
    parser.add_argument("--target-corpus", required=True, help="file of their translations, one per line")
    parser.add_argument("--unk-threshold", type=int, default=50,
                        help="words that occur at most this often are unknown (50)")  # fmt: skip
    parser.add_argument("--use-bidirectional-encoder", action="store_true",
                        help="make the encoder's first layer bidirectional")  # fmt: skip
    parser.add_argument(
        "--use-attention", action="store_true", help="give the decoder attention to the encoder's outputs"
    )
    parser.add_argument("--encoder-cell-num-units", type=int, default=512, help="width of the encoder's layers (512)")
    parser.add_argument("--encoder-num-layers", type=int, default=2, help="number of the encoder's layers (2)")
    parser.add_argument("--decoder-cell-num-units", type=int, default=512, help="width of the decoder's layers (512)")
    parser.add_argument("--decoder-num-layers", type=int, default=2, help="number of the decoder's layers (2)")
    parser.add_argument("--encoder-embedding-size", type=int, default=256,
                        help="width of the embeddings of source words (256)")  # fmt: skip
    parser.add_argument("--decoder-embedding-size", type=int, default=512,
                        help="width of the embeddings of target words (512)")  # fmt: skip
    parser.add_argument("--decoder-softmax-size", type=int, default=None,
                        help="width of a layer before the softmax (default: none)")  # fmt: skip


def model_params_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options as model parameters of ``Seq2SeqModelCaffe2``.

    With ``--use-bidirectional-encoder`` each direction gets half of the units.

    Raises:
        ArgumentError: the number of units is odd.
    """
    units, both = args.encoder_cell_num_units, args.use_bidirectional_encoder
    if both and units % 2:
        raise ArgumentError(f"--encoder-cell-num-units must be even with --use-bidirectional-encoder, got {units}")
    encoder = [{"num_units": units // 2 if both else units} for _ in range(args.encoder_num_layers)]
    return {
        "attention": "regular" if args.use_attention else "none",
        "decoder_layer_configs": [{"num_units": args.decoder_cell_num_units} for _ in range(args.decoder_num_layers)],
        "encoder_type": {"encoder_layer_configs": encoder, "use_bidirectional_encoder": both},
        "encoder_embedding_size": args.encoder_embedding_size,
        "decoder_embedding_size": args.decoder_embedding_size,
        "decoder_softmax_size": args.decoder_softmax_size,
    }
