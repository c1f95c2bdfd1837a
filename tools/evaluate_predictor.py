"""Evaluate a predictor on held-out images: ``python -m netbuilder.tools.evaluate_predictor FOLDER``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from netbuilder.exchange import load_predictor
from netbuilder.proto import NetError
from netbuilder.tools.parser import Parser
from netbuilder.tools.training.images import load_images
from netbuilder.tools.training.input_options import add_input_arguments, input_options

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the accuracy of a predictor that was written by ``netbuilder-train --export``."""
    parser = Parser(description=__doc__)
    parser.add_argument("folder", help="with init_net.pb and predict_net.pb")
    parser.add_argument("--data", default="digits", help="as for netbuilder-train")
    parser.add_argument("--batch", type=int, default=64, help="samples at a time (64)")
    add_input_arguments(parser)
    options = parser.parse_args(arguments)
    try:
        predictor = load_predictor(options.folder)
        _, test = load_images(options.data, input_options(options))
        right = count = 0
        for images, labels in test.batches(options.batch):
            scores = predictor.run({predictor.inputs[0]: images})[predictor.outputs[0]]
            right += int((scores.argmax(axis=1) == labels).sum())
            count += len(labels)
    except (NetError, OSError) as error:
        print(f"evaluate_predictor: {error}", file=sys.stderr)
        return 1
    print(f"predictor reloaded from {options.folder}: accuracy on {count} held-out images: {right / max(count, 1):.2%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
