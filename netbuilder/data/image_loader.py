"""Batches of images, decoded and transformed by a bounded number of threads; the same for any number of them."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from netbuilder.data.forking import new_lock
from netbuilder.data.image_batch import ImageBatch, look_at_images
from netbuilder.data.image_records import ImageRecord
from netbuilder.data.image_sets import ImageSet
from netbuilder.data.image_transform import Geometry, ImageTransform
from netbuilder.data.scratch import Scratch
from netbuilder.proto import NetError, ParseError, ShapeError

__all__ = ["MOST_THREADS", "ImageLoader", "decoding_threads"]

Array = np.ndarray[Any, np.dtype[Any]]

_log = logging.getLogger("netbuilder.input")

MOST_THREADS = 64
"""Upper bound of threads that decode."""

_TOLD = 10  # damaged images that are logged one by one
_WORD = (1 << 64) - 1
_MOST_AT_ONCE = 32  # images whose records a thread reads before it decodes any


def decoding_threads(requested: int | None = None) -> int:
    """Return how many threads decode: ``requested``, or one for each core that this process may use, 16 at most.

    Raises:
        NetError: the number is out of range.
    """
    if requested is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return min(cores, 16)
    if not 1 <= requested <= MOST_THREADS:
        raise NetError(f"images: decoding takes 1 to {MOST_THREADS} threads, got {requested}")
    return requested


class ImageLoader:
    """Batches of a set of images; random choices for an image follow from seed, rank, epoch and its number.

    Args:
        images: the set.
        transform: applied to each image.
        seed, rank: of random choices; ranks are the processes that train together.
        threads: number of decoding threads; None: one for each core.
        skip_damaged: leave out images that cannot be decoded, and count them in ``damaged``; otherwise they are errors.
        ahead: batches that are prepared at the same time.
        max_pixels: largest image that is decoded, height times width; see ``decode_image``.

    Raises:
        NetError: a number is out of range.
    """

    def __init__(
        self,
        images: ImageSet,
        transform: ImageTransform,
        *,
        seed: int = 0,
        rank: int = 0,
        threads: int | None = None,
        skip_damaged: bool = False,
        ahead: int = 2,
        max_pixels: int | None = None,
    ) -> None:
        if min(seed, rank) < 0 or ahead < 1:
            raise NetError(
                f"images: seed and rank must be 0 or greater, and ahead 1 or greater; got {seed}, {rank} and {ahead}"
            )
        self.images = images
        self.transform = transform
        self.threads = decoding_threads(threads)
        self.damaged: dict[int, str] = {}
        self._seed, self._rank, self._skip, self._ahead = seed, rank, skip_damaged, ahead
        self._max_pixels = max_pixels
        self._lock = new_lock()
        self._owns: list[_Own] = []  # of threads that are not decoding now
        self._free: list[Array] = []  # buffers of batches that were read, with ``reuse``
        self._looked = False

    def order(self, epoch: int, *, shuffle: bool = True, num_shards: int = 1, shard_id: int = 0) -> Array:
        """Return the numbers of the images of a shard in the order of an epoch; shards are disjoint and complete.

        Raises:
            NetError: the shard is out of range.
        """
        if num_shards < 1 or not 0 <= shard_id < num_shards:
            raise NetError(f"images: shard_id must be in [0, num_shards), got {shard_id} of {num_shards} shards")
        everything = np.arange(len(self.images))
        if shuffle:
            everything = np.random.default_rng([self._seed, epoch]).permutation(everything)
        return everything[shard_id::num_shards]

    def batches(
        self,
        order: Sequence[int] | Array,
        size: int,
        *,
        epoch: int = 0,
        replace: bool = False,
        reuse: bool = False,
        skip: int = 0,
    ) -> Iterator[tuple[Array, Array]]:
        """Yield batches: images (N, C, H, W), float32, and labels (N,), int32.

        Args:
            order: numbers of images.
            size: images a batch; the last one has what is left.
            epoch: number of the epoch, for random choices.
            replace: replace a damaged image by the next one of ``order`` that is not, so that batches stay
                full; otherwise they become smaller.
            reuse: overwrite the buffer of a batch when the next one is requested.
            skip: number of batches to leave out at the beginning; the others stay the same.

        Raises:
            ParseError: an image is damaged; the message says which.
            ShapeError: an image is smaller than the crop, or, without one, images of a batch differ in size.
        """
        if size < 1:
            raise NetError(f"images: a batch must have 1 image or more, got {size}")
        each = max(1, min(_MOST_AT_ONCE, size // (2 * self.threads)))
        process = os.getpid()
        with ThreadPoolExecutor(self.threads, thread_name_prefix="netbuilder-decode") as pool:
            waiting: deque[ImageBatch] = deque()
            try:
                for start in range(skip * size, len(order), size):
                    made = ImageBatch(
                        min(size, len(order) - start), self.transform.channels, self._memory() if reuse else None
                    )
                    self._submit(made, pool, order, start, each, epoch, replace)
                    waiting.append(made)
                    while len(waiting) >= self._ahead or waiting and start + size >= len(order):
                        done = waiting.popleft()
                        if os.getpid() != process:
                            raise NetError(
                                "images: the decoding threads belong to the process that this one was forked from; "
                                "call batches() again in this process"
                            )
                        yield self._seen(done.whole())
                        if reuse:
                            self._free += done.memory()
            finally:
                pool.shutdown(cancel_futures=True)

    def _submit(
        self, made: ImageBatch, pool: ThreadPoolExecutor, order: Any, start: int, each: int, epoch: int, replace: bool
    ) -> None:
        """Let the threads fill a batch with the images of ``order`` from index ``start``."""

        def decode(first: int, numbers: list[int]) -> None:
            # Records first, then pixels: decoding evicts the interpreter from the core's cache each time.
            own = self._taken()
            for place, one in enumerate([self._begun(number, epoch, own) for number in numbers], first):
                damage = self._put(made, place, one, epoch, own)
                if damage is not None:
                    others = (int(order[(start + place + k) % len(order)]) for k in range(1, len(order)))
                    self._replace(made, place, damage, others if replace else None, epoch, own)
            self._owns.append(own)

        firsts = range(0, made.size, each)
        made.expect(len(firsts))
        for first in firsts:
            numbers = [int(n) for n in order[start + first : start + min(first + each, made.size)]]
            made.begin(pool.submit(decode, first, numbers))

    def _begun(self, number: int, epoch: int, own: _Own) -> _Begun:
        """Read the record of an image, and draw its geometry if its size is known before decoding."""
        try:
            record = self.images[number]
            label, size = record.label, record.size(self.transform.library)
        except ParseError as error:
            return _Begun(number, error, 0, None)
        geometry = None
        if size is not None and not self.transform.changes_colors:
            try:
                geometry = self.transform.geometry(*size, own.drawn_for(epoch, number), record.where)
            except ShapeError:
                pass  # raised when it is decoded, unless it is damaged as well
        return _Begun(number, record, label, geometry)

    def _put(self, made: ImageBatch, place: int, one: _Begun, epoch: int, own: _Own) -> ParseError | None:
        """Decode an image into the batch; return the error of a damaged one that is left out."""
        record, geometry, transform = one.record, one.geometry, self.transform
        try:
            if isinstance(record, ParseError):
                raise record
            pixels = record.pixels(transform.color, transform.library, own.scratch, max_pixels=self._max_pixels)
        except ParseError as error:
            if not self._skip:
                raise
            self._count(one.number, error)
            return error
        if geometry is None or geometry.of != pixels.shape[:2]:
            own.drawn_for(epoch, one.number)
            height, width = pixels.shape[:2]
            geometry = transform.geometry(height, width, own.rng, record.where)
        ready, mirrored = transform.taken(pixels, geometry, own.rng, own.scratch)
        out = made.image(place, ready.shape[:2], record.where)
        transform.normalize(ready, out, own.scratch, mirrored=mirrored)
        made.filled(place, one.label)
        return None

    def _replace(
        self, made: ImageBatch, place: int, damage: ParseError, others: Iterable[int] | None, epoch: int, own: _Own
    ) -> None:
        """Replace a damaged image by the first of ``others`` that is not damaged; None: leave its place empty."""
        for number in others or ():
            found = self._put(made, place, self._begun(number, epoch, own), epoch, own)
            if found is None:
                return
            damage = found
        if others is not None or len(self.damaged) >= len(self.images):
            raise damage  # nothing is left

    def _memory(self) -> Array | None:
        try:
            return self._free.pop()
        except IndexError:
            return None

    def _taken(self) -> _Own:
        """Return the state of a decoding thread, which the thread gives back when it is done."""
        try:
            return self._owns.pop()
        except IndexError:
            return _Own(self._seed, self._rank)

    def _count(self, number: int, error: ParseError) -> None:
        with self._lock:
            if number in self.damaged:
                return
            self.damaged[number] = str(error)
            if len(self.damaged) <= _TOLD:
                _log.warning("damaged image left out (%d so far): %s", len(self.damaged), error)

    def _seen(self, batch: tuple[Array, Array]) -> tuple[Array, Array]:
        if not self._looked:
            self._looked = True
            images, labels = batch
            look_at_images(
                images, labels[:0] if self.transform.is_test else labels
            )  # labels of a test set are in order
        return batch


class _Own:
    """State of a decoding thread: buffers, and a generator with a stream of random numbers for each image.

    Args:
        seed, rank: of all random choices.
    """

    def __init__(self, seed: int, rank: int) -> None:
        self.scratch = Scratch()
        self._bits = np.random.Philox(0)
        self.rng = np.random.Generator(self._bits)
        self._key, self._none = (seed & _WORD, rank & _WORD), np.zeros(4, np.uint64)

    def drawn_for(self, epoch: int, number: int) -> np.random.Generator:
        """Return the generator of an image; the object is reused for the next image."""
        state: Any = {
            "bit_generator": "Philox", "state": {"counter": (0, number, epoch & _WORD, 0), "key": self._key},
            "buffer": self._none, "buffer_pos": 4, "has_uint32": 0, "uinteger": 0,
        }  # fmt: skip
        self._bits.state = state
        return self.rng


class _Begun(NamedTuple):
    """An image to be decoded: its record, or the error of reading it, and its geometry, if that is known."""

    number: int
    record: ImageRecord | ParseError
    label: int
    geometry: Geometry | None
