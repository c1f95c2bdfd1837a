"""Train a character language model on a text, and generate text with it: ``netbuilder-char-lm``."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence

from netbuilder.proto import NetError, opened_files
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.tools.common_options import count, split_problem, trusted_option
from netbuilder.tools.options import OptionsParser, argument, option
from netbuilder.tools.parser import real_number, whole_number
from netbuilder.tools.reporting import reporting
from netbuilder.tools.sequences.char_model import CharModel, Size, Writer
from netbuilder.tools.sequences.characters import Characters

__all__ = ["main"]


@reporting("netbuilder-char-lm", output_optional=True)
def main(arguments: Sequence[str] | None = None) -> int:
    """Train, export and generate as the command line says; return the exit status."""
    options = OptionsParser(_Options, prog="netbuilder-char-lm").parse(arguments)
    if options.text is not None:
        _train(options.text, options)
    if options.write:
        writer = Writer(options.export, trusted=options.trusted)
        prime = options.prime or writer.alphabet[0]
        print(prime + writer.write(prime, options.write, temperature=options.temperature, seed=options.seed))
    return 0


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Train an LSTM to predict the next character of a text, export it, and generate text with it."""

    text: str | None = argument(
        "a text file in UTF-8; without it, no model is trained, and --write uses the one in --export", nargs="?"
    )
    export: str = option("folder that the predictor is written to and read from", required=True, metavar="FOLDER")
    epochs: int = option("passes over the text", type=count, default=5)
    batch: int = option("parts of the text that are read in parallel", type=count, default=32)
    steps: int = option("characters of each part in a training step", type=count, default=50)
    hidden: int = option("width of the states", type=count, default=128)
    layers: int = option("number of LSTM layers", type=count, default=1)
    rate: float = option("learning rate of Adam", type=real_number(0), default=0.003)
    devices: int = option("replicas on the CPU", type=count, default=1)
    seed: int = option("seed of initial values and of generated text", type=whole_number(), default=1)
    write: int = option("generate N characters at the end", type=whole_number(), default=0)
    prime: str = option("the beginning of the generated text", default="", metavar="TEXT")
    trusted: bool = trusted_option()
    temperature: float = option(
        "below 1, likely characters are drawn more often", type=real_number(0), default=0.7, metavar="T"
    )


def _train(path: str, options: _Options) -> None:
    text = Characters(opened_files.read_text(path))
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
        loss = sum(losses) / len(losses)
        print(
            f"epoch {epoch + 1}: loss {loss:.4g} nats per character, perplexity {math.exp(loss):.4g}, "
            f"{len(losses) * options.batch * options.steps / seconds:.0f} characters/s",
            flush=True,
        )
    model.export(options.export, text)


if __name__ == "__main__":
    sys.exit(main())
