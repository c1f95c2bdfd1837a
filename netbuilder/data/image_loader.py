"""Batches of images, decoded and transformed by a bounded number of threads; the same for any number of them."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from netbuilder.data.forking import new_lock
from netbuilder.data.image_batch import ImageBatch, warn_if_suspicious
from netbuilder.data.image_codec import mirror_image
from netbuilder.data.image_records import ImageRecord
from netbuilder.data.image_sets import ImageSet
from netbuilder.data.image_transform import Geometry, ImageTransform
from netbuilder.data.scratch import Scratch
from netbuilder.proto import NetError, ParseError, ShapeError
from netbuilder.proto.cores import core_count

__all__ = ["MOST_THREADS", "ImageLoader", "decoding_threads"]

Array = np.ndarray[Any, np.dtype[Any]]

_log = logging.getLogger("netbuilder.input")

MOST_THREADS = 64
"""Upper bound of the number of decoding threads."""

_LOGGED = 10  # number of damaged images that are logged one by one
_WORD = (1 << 64) - 1
_RECORDS_AT_ONCE = 32  # images whose records a thread reads before it decodes any


def decoding_threads(requested: int | None = None) -> int:
    """Return the number of decoding threads: ``requested``, or a default.

    It is NETBUILDER_DECODING_THREADS, which netbuilder-launch sets, or one for each core this process may use, 16 at
    most.

    Raises:
        NetError: the number is out of range.
    """
    text = os.environ.get("NETBUILDER_DECODING_THREADS", "")
    if requested is None and text:
        if not text.isdecimal():
            raise NetError(f"NETBUILDER_DECODING_THREADS must be a whole number, got {text!r}")
        requested = int(text)
    if requested is None:
        return min(core_count(), 16)
    if not 1 <= requested <= MOST_THREADS:
        raise NetError(f"images: the number of decoding threads must be in [1, {MOST_THREADS}], got {requested}")
    return requested


class ImageLoader:
    """Batches of a set of images; random choices for an image follow from seed, rank, epoch and its number.

    Args:
        images: the set.
        transform: applied to each image.
        seed, rank: of random choices; ranks are the processes that train together.
        threads: number of decoding threads; None: one for each core.
        skip_damaged: skip images that cannot be decoded, and list them in ``damaged``; otherwise they are errors.
        ahead: batches that are prepared at the same time.
        max_pixels: largest image that is decoded, height times width; see ``decode_image``.
        pixels: images are not normalized: batches have pixels (N, H, W, C), uint8, for a net that begins with
            NormalizeImages.

    Raises:
        NetError: a number is out of range, or ``pixels`` is given with a transform that makes floats of pixels.
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
        pixels: bool = False,
    ) -> None:
        if min(seed, rank) < 0 or ahead < 1:
            raise NetError(
                f"images: seed and rank must be 0 or greater, and ahead 1 or greater; got {seed}, {rank} and {ahead}"
            )
        if pixels and transform.changes_colors:
            raise NetError(
                "images: color_jitter and color_lighting make floats of pixels, which cannot be had as bytes: leave "
                "them out, or pixels=True"
            )
        self.images = images
        self.transform = transform
        self.pixels = pixels
        self.threads = decoding_threads(threads)
        self.damaged: dict[int, str] = {}
        self._seed, self._rank, self._skip, self._ahead = seed, rank, skip_damaged, ahead
        self._max_pixels = max_pixels
        self._lock = new_lock()
        self._states: list[_ThreadState] = []  # those that no thread is using
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
        part: Callable[[int, int], Array] | None = None,
    ) -> Iterator[tuple[Array, Array]]:
        """Yield batches: images (N, C, H, W), float32, or pixels, and labels (N,), int32.

        Args:
            order: numbers of images.
            size: images per batch; the last one has what is left.
            epoch: number of the epoch, for random choices.
            replace: replace a damaged image by the next undamaged one of ``order``, so that batches stay full;
                otherwise they become smaller.
            reuse: overwrite the buffer of a batch when the next one is requested.
            skip: number of batches to skip at the beginning; the others stay the same.
            part: ``part(number, count)`` returns which images of batch ``number``, of ``count``, are requested, such as
                those of one of several processes; only they are decoded. Batches without any are left out. None: all.

        Raises:
            ParseError: an image is damaged; the message names it.
            ShapeError: an image is smaller than the crop, or, without one, images of a batch differ in size.
        """
        if size < 1:
            raise NetError(f"images: the batch size must be at least 1, got {size}")
        process = os.getpid()
        with ThreadPoolExecutor(self.threads, thread_name_prefix="netbuilder-decode") as pool:
            waiting: deque[ImageBatch] = deque()
            try:
                starts = range(skip * size, len(order), size)
                chosen = ((start, _places(start // size, min(size, len(order) - start), part)) for start in starts)
                for start, places in chosen:
                    if len(places):
                        memory = self._memory() if reuse else None
                        batch = ImageBatch(len(places), self.transform.channels, memory, pixels=self.pixels)
                        self._submit(batch, pool, order, start + places, epoch, replace)
                        waiting.append(batch)
                    while len(waiting) >= self._ahead or waiting and start + size >= len(order):
                        done = waiting.popleft()
                        if os.getpid() != process:
                            raise NetError(
                                "images: the decoding threads belong to the process that this one was forked from; "
                                "call batches() again in this process"
                            )
                        yield self._checked(done.whole())
                        if reuse:
                            self._free += done.memory()
            finally:
                pool.shutdown(cancel_futures=True)

    def _submit(
        self, batch: ImageBatch, pool: ThreadPoolExecutor, order: Any, at: Array, epoch: int, replace: bool
    ) -> None:
        """Let the threads fill a batch with the images that ``order`` has at these indices."""
        each = max(1, min(_RECORDS_AT_ONCE, batch.size // (2 * self.threads)))

        def decode(first: int, numbers: list[int]) -> None:
            # Records first, then pixels: decoding evicts the interpreter from the core's cache each time.
            state = self._acquire_state()
            for place, one in enumerate([self._read(number, epoch, state) for number in numbers], first):
                damage = self._decode(batch, place, one, epoch, state)
                if damage is not None:
                    others = (int(order[(at[place] + k) % len(order)]) for k in range(1, len(order)))
                    self._replace(batch, place, damage, others if replace else None, epoch, state)
            self._states.append(state)

        firsts = range(0, batch.size, each)
        batch.expect(len(firsts))
        for first in firsts:
            numbers = [int(order[index]) for index in at[first : first + each]]
            batch.begin(pool.submit(decode, first, numbers))

    def _read(self, number: int, epoch: int, state: _ThreadState) -> _Pending:
        """Read the record of an image, and draw its geometry already if its size is known before decoding."""
        try:
            record = self.images[number]
            label, size = record.label, record.size(self.transform.library, upright=self.transform.upright)
        except ParseError as error:
            return _Pending(number, error, 0, None)
        geometry = None
        if size is not None and not self.transform.changes_colors:
            try:
                geometry = self.transform.geometry(*size, state.generator(epoch, number), record.where)
            except ShapeError:
                pass  # raised when it is decoded, unless it is damaged as well
        return _Pending(number, record, label, geometry)

    def _decode(
        self, batch: ImageBatch, place: int, one: _Pending, epoch: int, state: _ThreadState
    ) -> ParseError | None:
        """Decode an image into the batch; return the error of a damaged one that is skipped."""
        record, geometry, transform = one.record, one.geometry, self.transform
        try:
            if isinstance(record, ParseError):
                raise record
            pixels = record.pixels(
                transform.color, transform.library, state.scratch, max_pixels=self._max_pixels,
                upright=transform.upright,
            )  # fmt: skip
        except ParseError as error:
            if not self._skip:
                raise
            self._count(one.number, error)
            return error
        if geometry is None or geometry.of != pixels.shape[:2]:
            state.generator(epoch, one.number)
            height, width = pixels.shape[:2]
            geometry = transform.geometry(height, width, state.rng, record.where)
        ready, mirrored = transform.apply_geometry(pixels, geometry, state.rng, state.scratch)
        out = batch.image(place, ready.shape[:2], record.where)
        if self.pixels:
            np.copyto(out, mirror_image(ready, scratch=state.scratch) if mirrored else ready)
        else:
            transform.normalize(ready, out, state.scratch, mirrored=mirrored)
        batch.filled(place, one.label)
        return None

    def _replace(
        self,
        batch: ImageBatch,
        place: int,
        damage: ParseError,
        others: Iterable[int] | None,
        epoch: int,
        state: _ThreadState,
    ) -> None:
        """Replace a damaged image by the first of ``others`` that is not damaged; None: leave its place empty."""
        for number in others or ():
            found = self._decode(batch, place, self._read(number, epoch, state), epoch, state)
            if found is None:
                return
            damage = found
        if others is not None or len(self.damaged) >= len(self.images):
            raise damage  # no image is left to take its place

    def _memory(self) -> Array | None:
        try:
            return self._free.pop()
        except IndexError:
            return None

    def _acquire_state(self) -> _ThreadState:
        """Return a state for a decoding thread, which appends it to ``_states`` when it is done."""
        try:
            return self._states.pop()
        except IndexError:
            return _ThreadState(self._seed, self._rank)

    def _count(self, number: int, error: ParseError) -> None:
        with self._lock:
            if number in self.damaged:
                return
            self.damaged[number] = str(error)
            if len(self.damaged) <= _LOGGED:
                _log.warning("damaged image skipped (%d so far): %s", len(self.damaged), error)

    def _checked(self, batch: tuple[Array, Array]) -> tuple[Array, Array]:
        if not self._looked:
            self._looked = True
            images, labels = batch
            images = images.transpose(0, 3, 1, 2) if self.pixels else images
            warn_if_suspicious(images, labels[:0] if self.transform.is_test else labels)  # a test set may be sorted
        return batch


def _places(number: int, count: int, part: Callable[[int, int], Array] | None) -> Array:
    """Return which of the ``count`` images of a batch are requested."""
    return np.arange(count) if part is None else np.asarray(part(number, count))


class _ThreadState:
    """State of a decoding thread: buffers, and a random generator with a separate stream for each image.

    Args:
        seed, rank: key of all streams.
    """

    def __init__(self, seed: int, rank: int) -> None:
        self.scratch = Scratch()
        self._bits = np.random.Philox(0)
        self.rng = np.random.Generator(self._bits)
        self._key, self._none = (seed & _WORD, rank & _WORD), np.zeros(4, np.uint64)

    def generator(self, epoch: int, number: int) -> np.random.Generator:
        """Return the generator of an image; the object is reused for the next image."""
        state: Any = {
            "bit_generator": "Philox", "state": {"counter": (0, number, epoch & _WORD, 0), "key": self._key},
            "buffer": self._none, "buffer_pos": 4, "has_uint32": 0, "uinteger": 0,
        }  # fmt: skip
        self._bits.state = state
        return self.rng


class _Pending(NamedTuple):
    """An image to be decoded: its record, or the error of reading it, and its geometry, if that is known."""

    number: int
    record: ImageRecord | ParseError
    label: int
    geometry: Geometry | None
