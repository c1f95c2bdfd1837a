"""The batches of a training run: this process's samples of each, in an order that follows from the seed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from netbuilder.data import BatchMixer
from netbuilder.graph.replicas import Replicas
from netbuilder.parallel.shares import ProcessBatch, local_shares, own_samples
from netbuilder.tools.training.decoded import DecodedImages
from netbuilder.tools.training.images import Images
from netbuilder.tools.training.models import TARGET
from netbuilder.tools.training.settings import Options

__all__ = ["Batches", "images_to_feed"]


def images_to_feed(options: Options, images: Images | DecodedImages, *, trains: bool) -> Images | DecodedImages:
    """Return images as a run feeds them: to GPUs those that are decoded as bytes, unless the host has to add them up.

    Args:
        options: of the run.
        images: the data.
        trains: they are for training, where samples may be mixed; else for evaluation.
    """
    sums = trains and options.mixup > 0
    return images if options.cpu or sums or isinstance(images, Images) else images.as_pixels()


class Batches:
    """Batches for training and evaluation.

    Args:
        options: of the run.
        train, test: the data.
        classes: number of classes.
        record: the replicas of the model, which say what samples are this process's.
        alone: whether there is only one process.
    """

    def __init__(
        self,
        options: Options,
        train: Images | DecodedImages,
        test: Images | DecodedImages,
        classes: int,
        record: Replicas,
        alone: bool,
    ) -> None:
        self._options, self._train, self._test = options, train, test
        self._record, self._alone = record, alone
        self._mixer = BatchMixer(
            classes, mixup=options.mixup, cutmix=options.cutmix, smoothing=options.label_smoothing, seed=options.seed
        )

    @property
    def inputs(self) -> list[str]:
        """The input blobs of a net in training."""
        return [self._train.fed.blob, "label", *([TARGET] if self._options.soft_labels else [])]

    def of_epoch(self, epoch: int, first: int = 0, *, reuse: bool = False) -> Iterator[dict[str, np.ndarray]]:
        """Yield the input blobs of each batch of an epoch, from number ``first`` on: this process's samples.

        Images that are mixed are followed by those with which they are mixed.
        """
        rng = np.random.default_rng([self._options.seed, epoch])

        def part(number: int, count: int) -> np.ndarray:
            own = own_samples(count, self._record)
            own = own if len(own) else np.arange(1)  # stands for the sample that there is not
            others = self._mixer.others(count, epoch=epoch, number=number) if self._mixer.mixes else np.arange(0)
            return np.concatenate([own, others[own]]) if self._mixer.mixes else own

        pairs = self._train.batches(self._options.batch, rng, first, reuse=reuse, part=None if self._alone else part)
        for number, (images, labels) in enumerate(pairs, first):
            count = self.size_of(number)
            targets = {}
            if self._options.soft_labels:
                given = None if self._alone else count
                images, labels, soft = self._mixer(images, labels, epoch=epoch, number=number, count=given)
                targets = {TARGET: soft}
            inputs = {self._train.fed.blob: images, "label": labels, **targets}
            empty = not (self._alone or len(own_samples(count, self._record)))
            yield inputs if self._alone else ProcessBatch(inputs, count, empty=empty)

    def size_of(self, number: int) -> int:
        """Return the number of samples of a batch of all processes, by its number in the epoch."""
        return min(self._options.batch, len(self._train) - number * self._options.batch)

    def held_out(self) -> Iterator[dict[str, np.ndarray]]:
        """Yield this process's part of each batch of held-out samples."""
        return self._parts(self._test, None)

    def for_statistics(self) -> Iterator[dict[str, np.ndarray]]:
        """Yield this process's part of each batch of an epoch whose number is 0, without mixed images."""
        return self._parts(self._train, np.random.default_rng([self._options.seed, 0]))

    def _parts(
        self, images: Images | DecodedImages, rng: np.random.Generator | None
    ) -> Iterator[dict[str, np.ndarray]]:
        def part(number: int, count: int) -> np.ndarray:
            first, sizes = local_shares(count, self._record)
            return np.arange(first, first + sum(sizes))

        pairs = images.batches(self._options.batch, rng, reuse=True, part=None if self._alone else part)
        return ({images.fed.blob: pixels, "label": labels} for pixels, labels in pairs)
