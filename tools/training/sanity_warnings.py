"""Warnings about runs that may learn nothing: constant images or labels, accuracy at chance or at 1, NaN."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from netbuilder.graph import Net
from netbuilder.proto import NetError
from netbuilder.runtime import Workspace
from netbuilder.tools.training.callbacks import Callback

if TYPE_CHECKING:
    from netbuilder.tools.training.run import EpochResults, Run

__all__ = ["SanityWarnings", "first_not_finite"]

_MANY = 16  # this many labels are unlikely to be equal by chance
_STUCK = 3  # epochs at chance after which to warn
_NEAR = 1.2  # accuracy below this times chance counts as chance


class SanityWarnings(Callback):
    """Checks the first batch and the accuracies of each epoch, and prints each warning once, on rank 0."""

    name = "sanity_warnings"

    def __init__(self) -> None:
        self._looks = False
        self._given: set[str] = set()
        self._found: list[float] = []

    def before_epoch(self, run: Run) -> None:
        self._looks = run.group.is_first

    def before_batch(self, run: Run, batch: Mapping[str, Any]) -> None:
        if self._looks:
            self._looks = False
            self.batch(batch[run.model.train_images.blob], batch["label"])

    def after_epoch(self, run: Run, results: EpochResults) -> None:
        if run.group.is_first:
            self.epoch(results.training.accuracy, results.held_out.top1, run.classes)

    def batch(self, images: Any, labels: Any) -> None:
        """Check a batch, such as the first one of each epoch."""
        images, labels = np.asarray(images), np.asarray(labels)
        if len(images) > 1 and images.size and (images == images.flat[0]).all():
            self._warn(f"all pixels of the {len(images)} images of a batch are {images.flat[0]:g}; check the format in "
                      "which the images are stored")  # fmt: skip
        if len(labels) >= _MANY and (labels == labels.flat[0]).all():
            self._warn(f"all {len(labels)} labels of a batch are {labels.flat[0]}; is the data shuffled?")

    def epoch(self, training: float, held_out: float, classes: int) -> None:
        """Check the accuracies of an epoch, in [0, 1]."""
        chance = 1 / max(classes, 1)
        self._found.append(training)
        last = self._found[-_STUCK:]
        if len(last) < _STUCK:
            if training == held_out == 1.0 and len(self._found) == 1:
                self._warn("accuracy is already 100% after the first epoch; check that images do not contain their "
                          "labels, and that the samples differ")  # fmt: skip
        elif max(last) < _NEAR * chance:
            self._warn(f"accuracy has been at chance ({chance:.1%}) for {_STUCK} epochs; try another learning "
                      "rate, and check that images and labels belong together")  # fmt: skip

    def _warn(self, text: str) -> None:
        if text not in self._given:
            self._given.add(text)
            print(f"warning: {text}", file=sys.stderr, flush=True)


def first_not_finite(net: Net, workspace: Workspace) -> str | None:
    """Return the first blob, in the order of a net, whose value is not finite, with its operator; None if all are.

    Values that cannot be fetched (see docs/memory.md) are not checked.
    """
    makers: Mapping[str, str] = {blob: op.type for op in reversed(net.Proto().op) for blob in op.output}
    blobs = dict.fromkeys([*net.Proto().external_input, *(blob for op in net.Proto().op for blob in op.output)])
    for blob in blobs:
        try:
            if workspace.has(blob) and (spec := workspace.spec(blob)) is not None and spec.dtype.kind == "f":
                if not np.isfinite(workspace.fetch(blob)).all():
                    return f"{blob} (of {makers[blob]})" if blob in makers else f"{blob} (read by the net)"
        except NetError:
            continue  # not observable
    return None
