"""Evaluate a predictor on held-out images: ``python -m netbuilder.tools.evaluate_predictor FOLDER``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from netbuilder.exchange import Predictor, load_predictor
from netbuilder.exchange.onnx import read_onnx
from netbuilder.metrics import Classification
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.tools.common_options import count, cpu_device, cpu_option, trusted_option
from netbuilder.tools.options import OptionsParser, argument, nested, option
from netbuilder.tools.progress import Progress
from netbuilder.tools.reporting import reporting
from netbuilder.tools.stored_nets import is_onnx
from netbuilder.tools.training.decoded import DecodedImages
from netbuilder.tools.training.images import load_images
from netbuilder.tools.training.input_options import InputOptions

__all__ = ["main"]


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Print the accuracy of a predictor on held-out images."""

    folder: str = argument("a folder with init_net.pb and predict_net.pb, or an ONNX file")
    data: str = option("data set, as for netbuilder-train", default="digits", metavar="PATH")
    batch: int = option("images in each run", type=count, default=64)
    cpu: bool = cpu_option()
    trusted: bool = trusted_option()
    input: InputOptions = nested(InputOptions)


@reporting("evaluate_predictor")
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the accuracy of a predictor that ``netbuilder-train --export`` wrote; return the exit status."""
    parser = OptionsParser(_Options, prog="evaluate_predictor")
    options = parser.parse(arguments)
    read = (lambda path, **given: read_onnx(path).predictor(**given)) if is_onnx(options.folder) else load_predictor
    predictor = read(options.folder, device=cpu_device(options.cpu), trusted=options.trusted)
    _, test = load_images(options.data, _with_size(options.input, predictor))
    if isinstance(test, DecodedImages) and predictor.reads_on_gpu(predictor.inputs[0]):
        test = test.as_pixels()
    normalization = test.fed.normalization
    metrics: Classification | None = None
    with Progress("evaluation", len(test)) as progress:
        for images, labels in test.batches(options.batch):
            if normalization is None:
                found = predictor.run({predictor.inputs[0]: images})
            else:
                found = predictor.run_pixels(images, mean=normalization[0], std=normalization[1])
            scores = found[predictor.outputs[0]]
            metrics = metrics or Classification(scores.shape[1])
            metrics.add(scores, labels)
            progress.advance(len(labels))
    count, accuracy = (0, np.nan) if metrics is None else (metrics.count, metrics.accuracy())
    print(f"predictor reloaded from {options.folder}: accuracy on {count} held-out images: {accuracy:.2%}")
    return 0


def _with_size(given: InputOptions, predictor: Predictor) -> InputOptions:
    """Return the options of the input; those that say no size get that with which the predictor prepares images."""
    images, spec = predictor.images, predictor.specs.get(predictor.inputs[0])
    if given.scale or given.crop or images is None or not images.resize or spec is None or spec.ndim != 4:
        return given
    sides = set(spec.shape[1:3] if images.channels_last else spec.shape[2:])
    return replace(given, scale=images.resize, crop=sides.pop()) if len(sides) == 1 else given


if __name__ == "__main__":
    sys.exit(main())
