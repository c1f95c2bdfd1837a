"""Train a sequence-to-sequence model to reverse strings or add numbers: ``netbuilder-seq2seq``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from netbuilder.proto import NetError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.tools.common_options import count, split_problem
from netbuilder.tools.options import OptionsParser, argument, option
from netbuilder.tools.parser import real_number, whole_number
from netbuilder.tools.reporting import reporting
from netbuilder.tools.sequences.pairs import TASKS, Pairs
from netbuilder.tools.sequences.translator import Shape, Translator

__all__ = ["main"]


@reporting("netbuilder-seq2seq")
def main(arguments: Sequence[str] | None = None) -> int:
    """Train and answer as the command line says; return the exit status: 1 if fewer than ``--at-least`` are correct."""
    options = OptionsParser(_Options, prog="netbuilder-seq2seq").parse(arguments)
    if problem := split_problem(options.batch, options.devices):
        raise NetError(f"--batch: {problem}")
    pairs = Pairs(options.task, options.length)
    shape = Shape(pairs.words, options.units, attention=options.attention)
    translator = Translator(shape, options.devices, options.rate, options.seed)
    losses: list[float] = []
    for number, batch in enumerate(pairs.batches(options.batch, options.steps, options.seed), 1):
        losses.append(translator.step(batch))
        if number % 100 == 0 or number == options.steps:
            print(f"step {number}: loss {np.mean(losses[-100:]):.4g}", flush=True)
    for question, answer in pairs.draw(np.random.default_rng(options.seed + 1), 3):
        best = translator.answer(pairs, question, options.beam)[0]
        print(f"{question} -> {pairs.decode(best.tokens)} ({best.score:.2f}); expected {answer}")
    share = translator.accuracy(pairs, options.questions, options.seed + 2, options.beam)
    print(f"{share:.1%} of {options.questions} new questions answered correctly")
    return 0 if share >= options.at_least else 1


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Train an encoder and a decoder with attention on strings of digits, and answer new questions by beam search."""

    task: str = argument("what to learn", choices=sorted(TASKS))
    length: int = option("largest number of digits", type=count, default=5)
    steps: int = option("training steps", type=count, default=1500)
    batch: int = option("pairs in each step, over all devices", type=count, default=64)
    units: int = option("width of the states", type=count, default=64)
    attention: str = option("kind of attention", default="regular", choices=["none", "regular", "recurrent", "dot"])
    rate: float = option("learning rate of Adam", type=real_number(0), default=0.005)
    devices: int = option("replicas on the CPU", type=count, default=1)
    beam: int = option("width of the beam search", type=count, default=4)
    questions: int = option("new questions to answer at the end", type=count, default=100)
    at_least: float = option(
        "exit with status 1 if a smaller share of the answers is correct (default: 0)",
        type=real_number(0, 1),
        default=0.0,
        metavar="SHARE",
    )
    seed: int = option("seed of initial values and of the pairs", type=whole_number(), default=1)


if __name__ == "__main__":
    sys.exit(main())
