"""ImageInput: batches of images from a database, decoded, scaled, cropped, mirrored and normalized."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from netbuilder.data.db_reader import DBReader
from netbuilder.data.forking import after_fork
from netbuilder.data.image_batch import warn_if_suspicious
from netbuilder.data.image_loader import MOST_THREADS
from netbuilder.data.image_records import ImageRecord, read_image_record
from netbuilder.data.image_transform import ImageTransform
from netbuilder.data.scratch import Scratch
from netbuilder.ops.core.contexts import RunContext
from netbuilder.ops.core.given_numbers import check_extents
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import kernel, register
from netbuilder.ops.images.normalize_images import NormalizeImages
from netbuilder.proto import ArgumentError, NetError, ParseError, ShapeError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["ImageInput"]

Array = np.ndarray[Any, np.dtype[Any]]

_log = logging.getLogger("netbuilder.input")

_SINGLE, _SPARSE, _DENSE, _WEIGHTED_SPARSE, _SINGLE_WEIGHTED, _EMBEDDING = range(6)
_OUTPUT_TYPES = {"float": "float32", "float16": "float16", "uint8": "uint8"}


@register
@dataclass(frozen=True)
class ImageInput(Operator):
    """Read ``batch_size`` records of images and labels; the outputs are images, labels, and further tensors of records.

    A record is a TensorProtos of an image (STRING: an image file; BYTE: pixels) and its label or, with
    ``use_caffe_datum``, a Datum. Without an input, the operator opens the database ``db`` itself. Channels are blue,
    green, red; ``mean`` and ``std`` apply to all channels, ``mean_per_channel`` and ``std_per_channel`` to each.
    ``random_scale`` is the range from which the scale is drawn; ``scale_jitter_type`` 1 crops 8 to 100 % of the area.
    ``order`` is that of the images: by default NHWC or, with ``use_gpu_transform``, NCHW; ``use_gpu_transform`` also
    moves normalization to the GPU if the operator runs on one. ``output_type`` is float, float16 or uint8 (before
    normalization).

    ``label_type``: 0 one number; 1 the numbers of the present classes (of ``num_labels``); 2 a vector of
    ``num_labels``; 3 as 1, with weights as the third tensor of the record; 4 one number, and a weight as third output;
    5 a vector of floats. Further tensors have the sizes ``output_sizes``.

    An image that cannot be decoded is an error, unless at most ``max_decode_error_ratio`` of a batch are: then the next
    record replaces it, with a warning in the log. Random numbers depend on the seed, the operator, the iteration, the
    position in the global batch and the shard, not on ``decode_threads``.
    """

    signature = """
        reader?: object
        -> data (N, H, W, C) or (N, C, H, W): float32|uint8|float16
        -> label (N) or (N, L): int32|float32
        -> additional* (N, ...): any
    """
    dynamic = True
    stateful = True
    effects = "touches files"
    waits = True
    draws = True
    batch_size: int = 0
    scale: int = -1
    minsize: int = -1
    warp: bool = False
    crop: int = -1
    mirror: bool = False
    is_test: bool = False
    mean: float = 0.0
    std: float = 1.0
    mean_per_channel: tuple[float, ...] = ()
    std_per_channel: tuple[float, ...] = ()
    color: bool = True
    color_jitter: bool = False
    img_saturation: float = 0.4
    img_brightness: float = 0.4
    img_contrast: float = 0.4
    color_lighting: bool = False
    color_lighting_std: float = 0.1
    scale_jitter_type: int = 0
    random_scale: tuple[int, ...] = ()
    bounding_ymin: int = -1
    bounding_xmin: int = -1
    bounding_height: int = -1
    bounding_width: int = -1
    decode_threads: int = 4
    use_gpu_transform: bool = False
    use_caffe_datum: bool = False
    output_type: str = "float"
    order: str = ""
    label_type: int = 0
    num_labels: int = 0
    output_sizes: tuple[int, ...] = ()
    max_decode_error_ratio: float = 0.0
    interpolation: str = "area"
    db: str = ""
    db_type: str = "lmdb"

    def check(self) -> None:
        if problem := self._problem():
            raise ArgumentError(f"ImageInput: {problem}")
        self.transform  # noqa: B018  (raises if arguments are invalid)

    def _problem(self) -> str | None:
        if self.batch_size < 1:
            return f"batch_size must be at least 1, got {self.batch_size}"
        if self.crop < 1:
            return f"crop, the sides of the images in pixels, must be given, got {self.crop}"
        if not 1 <= self.decode_threads <= MOST_THREADS:
            return f"decode_threads must lie in [1, {MOST_THREADS}], got {self.decode_threads}"
        if self.output_type not in _OUTPUT_TYPES:
            return f"output_type must be one of {list(_OUTPUT_TYPES)}, got {self.output_type!r}"
        if self.order not in ("", "NCHW", "NHWC"):
            return f"order must be 'NCHW' or 'NHWC', got {self.order!r}"
        if not 0 <= self.label_type <= _EMBEDDING:
            return f"label_type must lie in [0, {_EMBEDDING}], got {self.label_type}"
        if self.label_type not in (_SINGLE, _SINGLE_WEIGHTED) and self.num_labels < 1:
            return f"label_type {self.label_type} needs num_labels of at least 1, got {self.num_labels}"
        if not 0 <= self.max_decode_error_ratio <= 1:
            return f"max_decode_error_ratio must lie in [0, 1], got {self.max_decode_error_ratio}"
        if self.scale_jitter_type not in (0, 1):
            return f"scale_jitter_type must be 0 or 1, got {self.scale_jitter_type}"
        if len(self.random_scale) not in (0, 2):
            return f"random_scale must be two lengths, got {list(self.random_scale)}"
        if self.output_type == "uint8" and (self.color_jitter or self.color_lighting):
            return "output_type 'uint8' excludes color_jitter and color_lighting, which need floats"
        return None

    @functools.cached_property
    def transform(self) -> ImageTransform:
        """The transform of each image."""
        boxed = min(self.bounding_ymin, self.bounding_xmin, self.bounding_height, self.bounding_width) >= 0
        jitter = (self.img_saturation, self.img_brightness, self.img_contrast)
        jittered = self.scale_jitter_type == 1
        scale = max(self.scale, 0)
        return ImageTransform(
            box=(self.bounding_ymin, self.bounding_xmin, self.bounding_height, self.bounding_width) if boxed else None,
            scale=scale,
            minsize=0 if scale else max(self.minsize, 0),
            warp=self.warp,
            random_scale=(self.random_scale[0], self.random_scale[1])
            if self.random_scale and min(self.random_scale) > 0
            else None,
            area_crop=0.08 if jittered else 0.0,
            crop=self.crop,
            color_jitter=jitter if self.color_jitter else None,
            color_lighting=self.color_lighting_std if self.color_lighting else 0.0,
            mirror=self.mirror,
            mean=self.mean_per_channel or (self.mean,),
            std=self.std_per_channel or (self.std,),
            color=self.color,
            is_test=self.is_test,
            interpolation=self.interpolation,
        )

    @property
    def normalization(self) -> NormalizeImages:
        """The operator that normalizes images on a GPU."""
        transform, order = self.transform, "NCHW" if self.channels_first else "NHWC"
        return NormalizeImages(mean=tuple(transform.mean), std=tuple(transform.std), order=order)

    @property
    def changes_colors(self) -> bool:
        """Whether images are floats before they are normalized."""
        return (self.color_jitter or self.color_lighting) and not self.is_test

    @property
    def channels_first(self) -> bool:
        """Whether the output images are (N, C, H, W)."""
        return self.order == "NCHW" or not self.order and self.use_gpu_transform

    @functools.cached_property
    def own_reader(self) -> DBReader:
        """The reader of the database ``db``, used if there is no input."""
        if not self.db:
            raise ArgumentError("ImageInput: without a reader as input, db, the path of the database, must be given")
        return DBReader(self.db, self.db_type)


@functools.lru_cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """The threads that decode, one pool per number of threads; Python ends them at exit."""
    return ThreadPoolExecutor(threads, thread_name_prefix="netbuilder-decode")


after_fork(_pool.cache_clear)

_own = threading.local()


def _scratch() -> Scratch:
    """Return the memory that this thread decodes into."""
    found: Scratch | None = getattr(_own, "scratch", None)
    if found is None:
        found = _own.scratch = Scratch()
    return found


@kernel(ImageInput)
def image_input(op: ImageInput, ctx: RunContext, reader: Any = None) -> tuple[Any, ...]:
    check_extents("ImageInput: images", (op.batch_size, op.crop, op.crop, op.transform.channels), np.float32)
    numbers = 1 if op.label_type in (_SINGLE, _SINGLE_WEIGHTED) else op.num_labels
    check_extents("ImageInput: labels", (op.batch_size, numbers), np.float32)
    if reader is None:
        reader = op.own_reader
    if not isinstance(reader, DBReader):
        raise NetError(f"ImageInput: its input must be the reader that CreateDB makes, got {reader!r}")
    first = reader.position == 0
    batch = _Batch(op, ctx.position((op.batch_size,), per_sample=True), reader)
    on_device = ctx.is_gpu and op.use_gpu_transform and op.output_type != "uint8"
    images, records = batch.read(normalized=not on_device)
    if on_device:
        images = ctx.normalized_images(op.normalization, ctx.xp.asarray(images), _OUTPUT_TYPES[op.output_type])
    labels = _labels(op, records)
    if first:
        host = np.asarray(ctx.host(images), np.float32)
        planes = host if op.channels_first else host.transpose(0, 3, 1, 2)
        warn_if_suspicious(planes, labels[0][:0] if op.is_test else labels[0])  # labels of a test are in order
    return (ctx.xp.asarray(images), *(ctx.xp.asarray(array) for array in labels))


class _Batch:
    """Reads one batch.


    Args:
        op: the operator.
        position: key of its random stream in this iteration, and the first sample's position there.
        reader: of the database.
    """

    def __init__(self, op: ImageInput, position: tuple[int, int], reader: DBReader) -> None:
        self._op, self._reader, self._position = op, reader, position

    def read(self, *, normalized: bool) -> tuple[Array, list[ImageRecord]]:
        """Return images and records; not normalized, images are (N, H, W, C), uint8, or float32 if colors change."""
        op = self._op
        channels, plain = op.transform.channels, not normalized or op.output_type == "uint8"
        if plain:
            dtype = np.float32 if op.changes_colors else np.uint8
            images: Array = np.empty((op.batch_size, op.crop, op.crop, channels), dtype)
        else:
            images = np.empty((op.batch_size, channels, op.crop, op.crop), np.float32)
        records = self._decoded(images, plain)
        if normalized and plain == op.channels_first:
            images = np.ascontiguousarray(images.transpose((0, 3, 1, 2) if plain else (0, 2, 3, 1)))
        return images.astype(_OUTPUT_TYPES[op.output_type], copy=False) if normalized else images, records

    def _decoded(self, images: Array, plain: bool) -> list[ImageRecord]:
        """Fill a batch; damaged images, as many as are allowed, are replaced by the records that follow."""
        op, pool = self._op, _pool(self._op.decode_threads)
        values = [self._reader.read() for _ in range(op.batch_size)]
        found: list[Any] = list(pool.map(lambda k: self._fill(images, k, values[k], plain), range(op.batch_size)))
        count = 0
        while damaged := [k for k, record in enumerate(found) if isinstance(record, ParseError)]:
            count += len(damaged)
            if count > op.max_decode_error_ratio * op.batch_size:
                raise ParseError(
                    f"ImageInput: {count} of {op.batch_size} images are damaged, max_decode_error_ratio allows "
                    f"{op.max_decode_error_ratio:g} of them: {found[damaged[0]]}"
                )
            _log.warning("ImageInput: %d damaged images replaced by the next ones: %s", len(damaged), found[damaged[0]])
            for k in damaged:
                found[k] = self._fill(images, k, self._reader.read(), plain)
        return found

    def _fill(self, images: Array, index: int, value: tuple[bytes, bytes], plain: bool) -> ImageRecord | ParseError:
        """Write an image into the batch; return its record, or the error if it cannot be decoded."""
        op = self._op
        where = f"{self._reader.path}, record {value[0].decode(errors='replace')}"
        record, scratch = read_image_record(value[1], where, datum=op.use_caffe_datum), _scratch()
        try:
            pixels = record.pixels(op.color, scratch=scratch)
        except ParseError as error:
            return error
        rng = np.random.default_rng([self._position[0], self._position[1] + index, self._reader.shard_id])
        ready = op.transform.pixels(pixels, rng, where, scratch)
        if plain:
            images[index] = ready
        else:
            op.transform.normalize(ready, images[index], scratch)
        return record


def _labels(op: ImageInput, records: Sequence[ImageRecord]) -> list[Array]:
    """Return the labels, and the further outputs."""
    labels = np.stack(_same_kind([_label(op, record) for record in records], records))
    found, skip = [labels], 2 if op.label_type == _WEIGHTED_SPARSE else 1
    for number in range(op.n_out - 2):
        size = op.output_sizes[number] if number < len(op.output_sizes) else 1
        parts = [_vector(record, number + skip, size) for record in records]
        found.append(np.stack(_same_kind(parts, records)))
    return found


def _same_kind(parts: list[Array], records: Sequence[ImageRecord]) -> list[Array]:
    for part, record in zip(parts, records):
        if part.dtype != parts[0].dtype:
            raise ShapeError(
                f"ImageInput: {record.where} holds {part.dtype} where {records[0].where} holds {parts[0].dtype}"
            )
    return parts


def _vector(record: ImageRecord, number: int, size: int | None) -> Array:
    """Return a tensor of a record, flat, float32 or int32."""
    if number >= len(record.tensors):
        raise ParseError(
            f"ImageInput: {record.where} holds an image and {len(record.tensors)} tensors, expected {number + 1}"
        )
    values = record.tensors[number].reshape(-1)
    if size is not None and values.size != size or values.dtype.kind not in "biuf":
        raise ParseError(
            f"ImageInput: {record.where}: tensor {number + 1} holds {values.size} elements of {values.dtype}, expected "
            f"{'any number' if size is None else size} of numbers"
        )
    return values.astype(np.float32 if values.dtype.kind == "f" else np.int32)


def _label(op: ImageInput, record: ImageRecord) -> Array:
    if op.label_type in (_SINGLE, _SINGLE_WEIGHTED):
        return _vector(record, 0, 1)[0]
    if op.label_type == _DENSE:
        return _vector(record, 0, op.num_labels)
    if op.label_type == _EMBEDDING:
        return _vector(record, 0, op.num_labels).astype(np.float32)
    numbers = _vector(record, 0, None).astype(np.int64)
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < op.num_labels:
        raise ParseError(f"ImageInput: {record.where}: labels must lie in [0, {op.num_labels}), got {numbers.tolist()}")
    weighted = op.label_type == _WEIGHTED_SPARSE
    row = np.zeros(op.num_labels, np.float32 if weighted else np.int32)
    row[numbers] = _vector(record, 1, numbers.size) if weighted else 1
    return row
