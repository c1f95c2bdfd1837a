"""Train a sequence-to-sequence model to reverse strings or add numbers: ``netbuilder-seq2seq``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np

from netbuilder.proto import NetError
from netbuilder.tools.common_options import count, split_problem
from netbuilder.tools.parser import Parser, real_number, whole_number
from netbuilder.tools.reporting import reporting
from netbuilder.tools.sequences.pairs import TASKS, Pairs
from netbuilder.tools.sequences.translator import Shape, Translator

__all__ = ["main"]


@reporting("netbuilder-seq2seq")
def main(arguments: Sequence[str] | None = None) -> int:
    """Train and answer as the command line says; return the exit status: 1 if fewer than ``--at-least`` are correct."""
    options = _parser().parse_args(arguments)
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


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="netbuilder-seq2seq",
        description="Train an encoder and a decoder with attention on strings of digits, and answer new questions by "
        "beam search.",
    )
    parser.add_argument("task", choices=sorted(TASKS), help="what to learn")
    parser.add_argument("--length", type=count, default=5, metavar="N", help="largest number of digits (default: 5)")
    parser.add_argument("--steps", type=count, default=1500, metavar="N", help="training steps (default: 1500)")
    parser.add_argument(
        "--batch", type=count, default=64, metavar="N", help="pairs in each step, over all devices (default: 64)"
    )
    parser.add_argument("--units", type=count, default=64, metavar="N", help="width of the states (default: 64)")
    parser.add_argument(
        "--attention",
        default="regular",
        choices=["none", "regular", "recurrent", "dot"],
        help="kind of attention (default: regular)",
    )
    parser.add_argument("--rate", type=real_number(0), default=0.005, help="learning rate of Adam (default: 0.005)")
    parser.add_argument("--devices", type=count, default=1, metavar="N", help="replicas on the CPU (default: 1)")
    parser.add_argument("--beam", type=count, default=4, metavar="N", help="width of the beam search (default: 4)")
    parser.add_argument(
        "--questions", type=count, default=100, metavar="N", help="new questions to answer at the end (default: 100)"
    )
    parser.add_argument(
        "--at-least",
        type=real_number(0, 1),
        default=0.0,
        metavar="SHARE",
        help="exit with status 1 if a smaller share of the answers is correct (default: 0)",
    )
    parser.add_argument(
        "--seed",
        type=whole_number(),
        default=1,
        metavar="N",
        help="seed of initial values and of the pairs (default: 1)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
