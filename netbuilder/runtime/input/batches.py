"""Batches of a source: converted, split over blobs, and copied into the blobs' buffers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.data.forking import new_lock
from netbuilder.engines.gpu import copy_into, gpu
from netbuilder.engines.layouts import HOST, Location
from netbuilder.engines.upload import Uploader
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import PROTO_CUDA, DeviceOption, NetError, ShapeError
from netbuilder.proto.errors import counted
from netbuilder.runtime.values.blob import Blob
from netbuilder.runtime.values.buffer_ring import BufferRing
from netbuilder.runtime.values.uses import FEED, using

__all__ = ["Batch", "Splitter", "warn_if_constant"]

_log = logging.getLogger("netbuilder.input")

_FEW = 8  # this many labels may be equal by chance


class Batch:
    """A batch in buffers of its blobs; values that are not tensors are fed when the batch is presented.

    Args:
        source: the batch as the source returned it.
        lock: held while the buffers of a whole batch are acquired or released, so that those of a batch stay together:
            each blob has as many, and a batch has the same one of each.
    """

    def __init__(self, source: Mapping[str, Any], lock: Any) -> None:
        self.source = source
        self._lock = lock
        self._buffers: list[tuple[Blob, BufferRing, int]] = []
        self._others: list[tuple[str, Any]] = []

    def add(self, blob: Blob, ring: BufferRing, index: int) -> None:
        """Add a blob, and the index of the buffer that holds its value."""
        self._buffers.append((blob, ring, index))

    def add_other(self, name: str, value: Any) -> None:
        """Add a value that is to be fed."""
        self._others.append((name, value))

    def present(self, workspace: Any) -> None:
        """Make this batch the value of its blobs.

        Raises:
            NetError: a blob was removed, or another thread uses one at this moment.
        """
        with self._lock:
            for blob, ring, index in self._buffers:
                if workspace.find(blob.name) is not blob:
                    raise NetError(
                        f"Prefetch: blob {blob.name!r} was removed from the workspace; close the Prefetch before that"
                    )
                ring.wait_until_filled(index)
                with using(blob.used_by or (workspace.uses,), FEED, blob):
                    blob.swap(ring, index)
        for name, value in self._others:
            workspace.feed(name, value)

    def release(self) -> None:
        """Release the buffers of a batch that is not used."""
        with self._lock:
            for _, ring, index in self._buffers:
                ring.wait_until_filled(index)
                ring.release(index)


class Splitter:
    """Makes a Batch of each batch of a source; it must be used by one thread only.

    Args:
        names: for each name the blobs that its array is split over.
        blobs: the blobs by name.
        devices: where the parts are stored, None: all on the host.
        dtypes: by name, the types to convert to.
        even: see ``Prefetch``.
        same_length: require that all split arrays have the same number of samples.

    Raises:
        NetError: devices and blobs differ in number, or ``dtypes`` has other names.
        DeviceError: a device does not exist.
    """

    def __init__(
        self,
        names: Mapping[str, tuple[str, ...]],
        blobs: Mapping[str, Blob],
        devices: Sequence[DeviceOption] | None,
        dtypes: Mapping[str, Any],
        even: bool,
        *,
        same_length: bool = True,
    ) -> None:
        self.names = tuple(names)
        self._blobs = {name: [blobs[blob] for blob in parts] for name, parts in names.items()}
        self._even, self._same_length = even, same_length
        try:
            self._dtypes = {name: np.dtype(dtype) for name, dtype in dtypes.items()}
        except TypeError as error:
            raise NetError(f"Prefetch: dtypes must be types of NumPy, got {dict(dtypes)!r}: {error}") from None
        if unknown := sorted(set(self._dtypes) - set(names)):
            raise NetError(
                f"Prefetch: dtypes names {unknown}, and the arrays are {sorted(names)}; leave the others out"
            )
        most = max(len(parts) for parts in names.values())
        if devices is not None and any(len(parts) != len(devices) for parts in names.values()):
            raise NetError(
                f"Prefetch: got {counted(len(devices), 'device')} for the blobs {dict(names)}; give one device for "
                "each blob of a name"
            )
        self._locations = [HOST] * most if devices is None else [_location(device) for device in devices]
        self._uploaders: dict[int, Uploader] = {}
        self._lock = new_lock()

    def split(self, given: Any) -> Batch:
        """Return a batch, its parts in buffers of the blobs.

        Raises:
            NetError: the batch is not a mapping, or a name is missing.
            ShapeError: an array cannot be split, or split arrays have different numbers of samples.
        """
        if not isinstance(given, Mapping):
            raise NetError(f"Prefetch: a batch must be a mapping from names to arrays, got {type(given).__name__}")
        if missing := [name for name in self.names if name not in given]:
            raise NetError(f"Prefetch: the batch lacks {missing}; it has {sorted(map(str, given))}")
        arrays = {name: self._array(name, given[name]) for name in self.names}
        split = {name: arrays[name].shape[:1] for name in self.names if len(self._blobs[name]) > 1}
        if self._same_length and len(set(split.values())) > 1:
            raise ShapeError(
                f"Prefetch: all inputs that are split must have the same number of samples, got shapes {split}"
            )
        batch = Batch(given, self._lock)
        parts = [
            (blob, part, self._dtypes.get(name, part.dtype), location)
            for name, array in arrays.items()
            for blob, part, location in zip(self._blobs[name], self._parts(name, array), self._locations)
        ]
        with self._lock:
            acquired = [self._acquire(batch, *part) for part in parts]
        for (_, part, _, location), (ring, index) in zip(parts, acquired):
            if ring is not None and location == HOST:
                copy_into(ring.buffers[index], part)
            elif ring is not None:
                ring.fill(index, part, self._uploader(location[1]))
        return batch

    def _array(self, name: str, value: Any) -> Any:
        array = value if hasattr(value, "__cuda_array_interface__") else np.asarray(value)
        dtype = self._dtypes.get(name)
        if dtype is not None and array.dtype != dtype and not np.can_cast(array.dtype, dtype, "same_kind"):
            raise NetError(
                f"Prefetch: {name!r} is of dtype {array.dtype}, which cannot be cast to {dtype}; convert it first, "
                "or give another dtype"
            )
        return array

    def _parts(self, name: str, array: Any) -> Sequence[Any]:
        count = len(self._blobs[name])
        if count == 1:
            return [array]
        samples = array.shape[0] if array.ndim else 0
        if samples < count or (self._even and samples % count):
            rule = "split evenly over" if self._even else "split over"
            remedy = f"give a multiple of {count}" if self._even else f"give {count} or more"
            raise ShapeError(
                f"Prefetch: {name!r} of shape {tuple(array.shape)} has {counted(samples, 'sample')} along axis 0, "
                f"which cannot be {rule} {count} replicas; {remedy}" + (", or even=False" if self._even else "")
            )
        base, more = divmod(samples, count)
        ends = [base * (k + 1) + min(k + 1, more) for k in range(count)]
        return [array[start:end] for start, end in zip([0, *ends], ends)]

    def _acquire(
        self, batch: Batch, blob: Blob, part: Any, dtype: np.dtype[Any], location: Location
    ) -> tuple[BufferRing | None, int]:
        """Return the buffer for a part, its ring and its index there; no ring if the part is fed later."""
        if part.dtype.kind not in "biuf" or hasattr(part, "__cuda_array_interface__"):
            batch.add_other(blob.name, part)
            return None, 0
        ring = blob.ring_for(TensorSpec(part.shape, dtype.newbyteorder("=")), location)
        index = ring.acquire(None if location == HOST else self._uploader(location[1]).new)
        batch.add(blob, ring, index)
        return ring, index

    def _uploader(self, number: int) -> Uploader:
        return self._uploaders.get(number) or self._uploaders.setdefault(number, Uploader(number))


def _location(device: DeviceOption) -> Location:
    if device.device_type != PROTO_CUDA:
        return HOST
    gpu(device.device_id)  # raise before anything starts
    return PROTO_CUDA, device.device_id


def warn_if_constant(given: Mapping[str, Any], names: Sequence[str]) -> None:
    """Log a warning if all values of an array are equal, as in a file that is read in a wrong way."""
    for name in names:
        array = np.asarray(given[name]) if not hasattr(given[name], "__cuda_array_interface__") else None
        if array is None or array.dtype.kind not in "biuf" or array.size < _FEW:
            continue
        first = array.flat[0]
        if (array == first).all():
            _log.warning(
                "all %d values of %r in the first batch are %s; is it read as it was written?", array.size, name, first
            )
