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

_TOLD = 10  # damaged images that the log names one by one
_WORD = (1 << 64) - 1
_MOST_AT_ONCE = 32  # images whose records a thread reads before it decodes them


def decoding_threads(wanted: int | None = None) -> int:
    """Return how many threads decode: as many as wanted, or one for each core that this process may use, 16 at most.

    Raises:
        NetError: the number is out of range.
    """
    if wanted is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return min(cores, 16)
    if not 1 <= wanted <= MOST_THREADS:
        raise NetError(f"images: decoding takes 1 to {MOST_THREADS} threads, got {wanted}")
    return wanted


class ImageLoader:
    """Makes batches of a set of images; what is drawn for an image follows from seed, rank, epoch and its number.

    Args:
        images: the set.
        transform: what is done to each.
        seed, rank: of what is drawn; ranks are the processes that train together.
        threads: that decode; None: one for each core.
        skip_damaged: an image that cannot be decoded is left out, and counted in ``damaged``; else it is refused.
        ahead: batches that are in the making at a time.

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
    ) -> None:
        if min(seed, rank) < 0 or ahead < 1:
            raise NetError(f"images: seed and rank from 0 on, ahead from 1 on; got {seed}, {rank} and {ahead}")
        self.images = images
        self.transform = transform
        self.threads = decoding_threads(threads)
        self.damaged: dict[int, str] = {}
        self._seed, self._rank, self._skip, self._ahead = seed, rank, skip_damaged, ahead
        self._lock = new_lock()
        self._owns: list[_Own] = []  # of threads that do not decode now
        self._free: list[Array] = []  # memory of batches that were read, with ``reuse``
        self._looked = False

    def order(self, epoch: int, *, shuffle: bool = True, num_shards: int = 1, shard_id: int = 0) -> Array:
        """Return the numbers of the images of a shard in the order of an epoch; shards are disjoint and complete.

        Raises:
            NetError: the shard is out of range.
        """
        if num_shards < 1 or not 0 <= shard_id < num_shards:
            raise NetError(f"images: shard_id must lie in [0, num_shards), got {shard_id} of {num_shards} shards")
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
            epoch: by which is drawn.
            replace: in the place of a damaged image comes the next one of ``order`` that is not, so that batches stay
                full; else they become smaller.
            reuse: the memory of images is written again as soon as the next batch is asked for.
            skip: batches at the beginning that are left out; the others are as without it.

        Raises:
            ParseError: an image is damaged; the message says which.
            ShapeError: an image is smaller than the crop, or, without one, images of a batch differ in size.
        """
        if size < 1:
            raise NetError(f"images: a batch has 1 image or more, got {size}")
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
                                "images: the threads that decode are in the process that this one was forked from; "
                                "ask the loader for batches anew in this process"
                            )
                        yield self._seen(done.whole())
                        if reuse:
                            self._free += done.memory()
            finally:
                pool.shutdown(cancel_futures=True)

    def _submit(
        self, made: ImageBatch, pool: ThreadPoolExecutor, order: Any, start: int, each: int, epoch: int, replace: bool
    ) -> None:
        """Let the threads fill a batch with the images of ``order`` from ``start`` on."""

        def decode(first: int, numbers: list[int]) -> None:
            # All that is small comes first: decoding drives the interpreter out of the core's cache each time.
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
        """Read the record of an image, and draw what happens to its pixels if their number is known already."""
        try:
            record = self.images[number]
            label, size = record.label, record.size(self.transform.library)
        except ParseError as error:
            return _Begun(number, error, 0, None)
        geometry = None
        if size is not None and not self.transform.changes_colours:
            try:
                geometry = self.transform.geometry(*size, own.drawn_for(epoch, number), record.where)
            except ShapeError:
                pass  # refused when it is decoded, unless it is damaged besides
        return _Begun(number, record, label, geometry)

    def _put(self, made: ImageBatch, place: int, one: _Begun, epoch: int, own: _Own) -> ParseError | None:
        """Decode an image into the batch; return what is damaged, if that is to be left out."""
        record, geometry, transform = one.record, one.geometry, self.transform
        try:
            if isinstance(record, ParseError):
                raise record
            pixels = record.pixels(transform.color, transform.library, own.scratch)
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
        transform.normalise(ready, out, own.scratch, mirrored=mirrored)
        made.filled(place, one.label)
        return None

    def _replace(
        self, made: ImageBatch, place: int, damage: ParseError, others: Iterable[int] | None, epoch: int, own: _Own
    ) -> None:
        """Put the first of other images that is not damaged into the place of one that is; None: leave it empty."""
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
        """Return what a thread that decodes has for itself; whoever has done gives it back."""
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
                _log.warning("left out (%d so far): %s", len(self.damaged), error)

    def _seen(self, batch: tuple[Array, Array]) -> tuple[Array, Array]:
        if not self._looked:
            self._looked = True
            images, labels = batch
            look_at_images(images, labels[:0] if self.transform.is_test else labels)  # those are in order
        return batch


class _Own:
    """What a thread has for itself: memory, and random numbers of which each image has a stretch of its own.

    Args:
        seed, rank: of all that is drawn.
    """

    def __init__(self, seed: int, rank: int) -> None:
        self.scratch = Scratch()
        self._bits = np.random.Philox(0)
        self.rng = np.random.Generator(self._bits)
        self._key, self._none = (seed & _WORD, rank & _WORD), np.zeros(4, np.uint64)

    def drawn_for(self, epoch: int, number: int) -> np.random.Generator:
        """Return what draws for an image; the next image's is the same object, which then draws other numbers."""
        state: Any = {
            "bit_generator": "Philox", "state": {"counter": (0, number, epoch & _WORD, 0), "key": self._key},
            "buffer": self._none, "buffer_pos": 4, "has_uint32": 0, "uinteger": 0,
        }  # fmt: skip
        self._bits.state = state
        return self.rng


class _Begun(NamedTuple):
    """An image that is to be decoded: its record, or why there is none, and what happens to it, if that is known."""

    number: int
    record: ImageRecord | ParseError
    label: int
    geometry: Geometry | None
