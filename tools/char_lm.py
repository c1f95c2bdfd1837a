"""Train a character language model on a text, and generate text with it: ``netbuilder-char-lm``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from netbuilder.proto import NetError, files
from netbuilder.tools.common_options import add_trusted, count, split_problem
from netbuilder.tools.parser import Parser, real_number, whole_number
from netbuilder.tools.reporting import reporting
from netbuilder.tools.sequences.char_model import CharModel, Size, Writer
from netbuilder.tools.sequences.characters import Characters

__all__ = ["main"]


@reporting("netbuilder-char-lm", output_optional=True)
def main(arguments: Sequence[str] | None = None) -> int:
    """Train, export and generate as the command line says; return the exit status."""
    options = _parser().parse_args(arguments)
    if options.text is not None:
        _train(options)
    if options.write:
        writer = Writer(options.export, trusted=options.trusted)
        prime = options.prime or writer.alphabet[0]
        print(prime + writer.write(prime, options.write, temperature=options.temperature, seed=options.seed))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="netbuilder-char-lm",
        description="Train an LSTM to predict the next character of a text, export it, and generate text with it.",
    )
    parser.add_argument(
        "text",
        nargs="?",
        help="a text file in UTF-8; without it, no model is trained, and --write uses the one in --export",
    )
    parser.add_argument(
        "--export", metavar="FOLDER", required=True, help="folder that the predictor is written to and read from"
    )
    parser.add_argument("--epochs", type=count, default=5, metavar="N", help="passes over the text (default: 5)")
    parser.add_argument(
        "--batch",
        type=count,
        default=32,
        metavar="N",
        help="parts of the text that are read in parallel (default: 32)",
    )
    parser.add_argument(
        "--steps", type=count, default=50, metavar="N", help="characters of each part in a training step (default: 50)"
    )
    parser.add_argument("--hidden", type=count, default=128, metavar="N", help="width of the states (default: 128)")
    parser.add_argument("--layers", type=count, default=1, metavar="N", help="number of LSTM layers (default: 1)")
    parser.add_argument("--rate", type=real_number(0), default=0.003, help="learning rate of Adam (default: 0.003)")
    parser.add_argument("--devices", type=count, default=1, metavar="N", help="replicas on the CPU (default: 1)")
    parser.add_argument(
        "--seed",
        type=whole_number(),
        default=1,
        metavar="N",
        help="seed of initial values and of generated text (default: 1)",
    )
    parser.add_argument("--write", type=whole_number(), default=0, metavar="N", help="generate N characters at the end")
    parser.add_argument("--prime", default="", metavar="TEXT", help="the beginning of the generated text")
    add_trusted(parser)
    parser.add_argument(
        "--temperature",
        type=real_number(0),
        default=0.7,
        metavar="T",
        help="below 1, likely characters are drawn more often (default: 0.7)",
    )
    return parser


def _train(options: argparse.Namespace) -> None:
    text = Characters(files.read_text(options.text))
    if problem := split_problem(options.batch, options.devices):
        raise NetError(f"--batch: {problem}")
    size = Size(len(text.alphabet), options.hidden, options.layers)
    model = CharModel(size, options.batch, options.devices, options.rate, options.seed)
    for epoch in range(options.epochs):
        began, losses = time.perf_counter(), []
        if epoch:
            model.reset()
        for current, following in text.batches(options.batch, options.steps):
            losses.append(model.step(current, following))
        seconds = time.perf_counter() - began
        print(
            f"epoch {epoch + 1}: loss {sum(losses) / len(losses):.4g} nats per character, "
            f"{len(losses) * options.batch * options.steps / seconds:.0f} characters/s",
            flush=True,
        )
    model.export(options.export, text)


if __name__ == "__main__":
    sys.exit(main())
