"""Evaluate a predictor on held-out images: ``python -m netbuilder.tools.evaluate_predictor FOLDER``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from netbuilder.exchange import load_predictor
from netbuilder.ops.losses.accuracy import classes_before_label
from netbuilder.tools.common_options import add_cpu, add_trusted, count, cpu_device
from netbuilder.tools.parser import Parser
from netbuilder.tools.progress import Progress
from netbuilder.tools.reporting import reporting
from netbuilder.tools.training.images import load_images
from netbuilder.tools.training.input_options import add_input_arguments, input_options

__all__ = ["main"]


@reporting("evaluate_predictor")
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the accuracy of a predictor that ``netbuilder-train --export`` wrote; return the exit status."""
    parser = Parser(prog="evaluate_predictor", description="Print the accuracy of a predictor on held-out images.")
    parser.add_argument("folder", help="a folder with init_net.pb and predict_net.pb")
    parser.add_argument(
        "--data", default="digits", metavar="PATH", help="data set, as for netbuilder-train (default: digits)"
    )
    parser.add_argument("--batch", type=count, default=64, metavar="N", help="images in each run (default: 64)")
    add_cpu(parser)
    add_trusted(parser)
    add_input_arguments(parser)
    options = parser.parse_args(arguments)
    predictor = load_predictor(options.folder, device=cpu_device(options), trusted=options.trusted)
    _, test = load_images(options.data, input_options(options))
    right = seen = 0
    with Progress("evaluation", len(test)) as progress:
        for images, labels in test.batches(options.batch):
            scores = predictor.run({predictor.inputs[0]: images})[predictor.outputs[0]]
            right += int((classes_before_label(np, scores, labels) == 0).sum())
            seen += len(labels)
            progress.advance(len(labels))
    accuracy = right / seen if seen else np.nan
    print(f"predictor reloaded from {options.folder}: accuracy on {seen} held-out images: {accuracy:.2%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
