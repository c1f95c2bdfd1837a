"""Warnings of runs that learn nothing: constant images, labels of one value, accuracy at chance or at 1, no number."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from netbuilder.graph import Net
from netbuilder.proto import NetError
from netbuilder.runtime import Workspace

__all__ = ["Watch", "first_not_finite"]

_MANY = 16  # labels that are hardly alike by chance
_STUCK = 3  # epochs
_NEAR = 1.2  # times chance


class Watch:
    """Looks at batches and epochs, and says once what looks wrong.

    Args:
        classes: how many there are.
    """

    def __init__(self, classes: int) -> None:
        self._chance = 1 / max(classes, 1)
        self._said: set[str] = set()
        self._found: list[float] = []

    def batch(self, images: Any, labels: Any) -> None:
        """Look at a batch: the first one of an epoch is enough."""
        images, labels = np.asarray(images), np.asarray(labels)
        if len(images) > 1 and images.size and (images == images.flat[0]).all():
            self._say(f"all {len(images)} images of a batch have the one value {images.flat[0]:g}; is the data read "
                      "as it was written?")  # fmt: skip
        if len(labels) >= _MANY and (labels == labels.flat[0]).all():
            self._say(f"all {len(labels)} labels of a batch are {labels.flat[0]}; is the data shuffled?")

    def epoch(self, training: float, held_out: float) -> None:
        """Look at the accuracies of an epoch, in [0, 1]."""
        self._found.append(training)
        last = self._found[-_STUCK:]
        if len(last) < _STUCK:
            if training == held_out == 1.0 and len(self._found) == 1:
                self._say("accuracy is 1.0 after the first epoch already: do the images show their labels, or are "
                          "all samples alike?")  # fmt: skip
        elif max(last) < _NEAR * self._chance:
            self._say(f"accuracy has been at chance ({self._chance:.1%}) for {_STUCK} epochs; try another learning "
                      "rate, and check that images and labels belong together")  # fmt: skip

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            print(f"warning: {text}", file=sys.stderr, flush=True)


def first_not_finite(net: Net, workspace: Workspace) -> str | None:
    """Return the first blob, in the order of a net, whose value is not finite, with what makes it; None: none is seen.

    Values that the plan keeps to itself are not seen.
    """
    makers: Mapping[str, str] = {blob: op.type for op in reversed(net.Proto().op) for blob in op.output}
    blobs = dict.fromkeys([*net.Proto().external_input, *(blob for op in net.Proto().op for blob in op.output)])
    for blob in blobs:
        try:
            if workspace.has(blob) and (spec := workspace.spec(blob)) is not None and spec.dtype.kind == "f":
                if not np.isfinite(workspace.fetch(blob)).all():
                    return f"{blob} (of {makers[blob]})" if blob in makers else f"{blob} (read by the net)"
        except NetError:
            continue  # a value that nobody kept
    return None
