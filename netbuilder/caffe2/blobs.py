"""A workspace's blobs as objects of ``workspace.C``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.data import proto_to_tensor, tensor_to_proto
from netbuilder.data.object_records import kind_named, kind_of
from netbuilder.ops.core.operator import STRING
from netbuilder.proto import BlobError, BlobProto, DeviceOption, NetError, TensorProto, files
from netbuilder.runtime import Workspace

__all__ = ["Blob", "Blobs", "TensorCPU", "feed", "from_record", "to_record"]

_TENSOR = "Tensor"


def feed(workspace: Workspace, name: str, value: Any, device: DeviceOption | None = None) -> bool:
    """Set a blob of a workspace, whose name may be empty; a TensorProto is converted to its tensor. Return True."""
    if isinstance(value, TensorProto):
        value = proto_to_tensor(value)
    workspace.feed(name, value, device, unnamed=True)
    return True


def to_record(workspace: Workspace, name: str, called: str) -> bytes:
    """Return a blob as a BlobProto's bytes, under the name ``called``.

    Raises:
        BlobError: there is no such blob, or it holds neither a tensor nor an object that can be stored.
    """
    value = workspace.fetch(name)
    if isinstance(value, bytes):
        value = np.array(value, object)
    kind = kind_of(value)
    if kind is not None:
        record = BlobProto(name=called, type=kind.name)
        kind.write(record, value)
        return files.to_bytes(record)
    if not isinstance(value, np.ndarray):
        raise BlobError(
            f"blob {name!r} holds {value!r}, which cannot be serialized; tensors, counters, cursors and mutexes can"
        )
    tensor = tensor_to_proto(value, called, segment=(0, value.size))
    return files.to_bytes(BlobProto(name=called, type=_TENSOR, tensor=tensor))


def from_record(workspace: Workspace, name: str, content: bytes) -> None:
    """Set a blob to the value in a BlobProto's bytes.

    Raises:
        ParseError: the bytes are not a BlobProto, or its tensor is damaged.
        NetError: it holds neither a tensor nor an object that can be stored.
    """
    blob = files.parse(content, BlobProto, source=f"the bytes for blob {name!r}", allow_unknown=True)
    kind = kind_named(blob.type)
    if kind is not None:
        workspace.feed(name, kind.read(blob), unnamed=True)
        return
    if blob.type != _TENSOR:
        raise NetError(f"blob {name!r}: records of type {blob.type!r} cannot be deserialized; tensors can")
    workspace.feed(name, proto_to_tensor(blob.tensor), unnamed=True)


class TensorCPU:
    """The tensor that a blob holds.

    Args:
        workspace, name: the blob.
    """

    def __init__(self, workspace: Workspace, name: str) -> None:
        self._workspace = workspace
        self._name = name

    @property
    def data(self) -> Any:
        """The elements: the buffer itself, so that writing changes them, if it is row-major; else a copy."""
        value = self._workspace.get(self._name).plain()
        return value if isinstance(value, np.ndarray) else self.fetch()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        spec = self._workspace.spec(self._name)
        return () if spec is None else spec.shape

    def fetch(self) -> Any:
        """Return a copy of the elements."""
        return np.asarray(self._workspace.fetch(self._name))

    def feed(self, value: Any) -> None:
        """Set shape, type and elements."""
        feed(self._workspace, self._name, value)

    def init(self, shape: Sequence[int], dtype: TensorProto.DataType) -> None:
        """Set shape and type (of TensorProto.DataType); elements become zero.

        Raises:
            NetError: the type is STRING, which has no zero.
        """
        if dtype == TensorProto.STRING:
            raise NetError(f"blob {self._name!r}: a tensor of strings cannot be made empty; feed an array of bytes")
        empty = TensorProto(data_type=dtype, dims=[0])
        self.feed(np.zeros(tuple(shape), proto_to_tensor(empty).dtype))

    def reshape(self, shape: Sequence[int]) -> None:
        """Set the shape; if the number of elements stays, they are kept, else they become zero."""
        value = self.fetch()
        same = value.size == int(np.prod(shape, dtype=np.int64))
        self.feed(value.reshape(shape) if same else np.zeros(tuple(shape), value.dtype))


class Blob:
    """A blob of a workspace.

    Args:
        workspace, name: the workspace, and the blob's name.
    """

    def __init__(self, workspace: Workspace, name: str) -> None:
        self._workspace = workspace
        self._name = name

    def __repr__(self) -> str:
        return f"<Blob {self._name!r}>"

    def feed(self, arg: Any, device_option: DeviceOption | None = None) -> bool:
        """Set the value; return True."""
        return feed(self._workspace, self._name, arg, device_option)

    def fetch(self) -> Any:
        """Return the value: an array, bytes, or the object."""
        return self._workspace.fetch(self._name)

    def is_tensor(self) -> bool:
        """Whether the blob holds a tensor."""
        spec = self._workspace.spec(self._name)
        return spec is not None and (spec.dtype != STRING or isinstance(self.fetch(), (bytes, np.ndarray)))

    def tensor(self) -> TensorCPU:
        """Return the blob's tensor.

        Raises:
            BlobError: the blob holds no tensor.
        """
        if not self.is_tensor():
            raise BlobError(f"blob {self._name!r} holds no tensor")
        return self.as_tensor()

    def as_tensor(self) -> TensorCPU:
        """Return the blob as a tensor, which may be fed if the blob does not hold one yet."""
        return TensorCPU(self._workspace, self._name)

    def serialize(self, name: str) -> bytes:
        """Return the bytes of a BlobProto that holds the value under ``name``."""
        return to_record(self._workspace, self._name, name)

    def deserialize(self, content: bytes) -> None:
        """Set the value to that in a BlobProto's bytes."""
        from_record(self._workspace, self._name, content)


class _NoBlob(BlobError, KeyError):
    __str__ = Exception.__str__  # a KeyError's would quote the message


class Blobs(Mapping[str, Blob]):
    """The blobs of a workspace by name; calling it returns their sorted names, like ``Workspace.blobs`` of netbuilder.

    Args:
        workspace: the workspace.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def __getitem__(self, name: str) -> Blob:
        try:
            self._workspace.get(str(name))
        except BlobError as error:
            raise _NoBlob(str(error)) from None
        return Blob(self._workspace, str(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._workspace.blobs())

    def __len__(self) -> int:
        return len(self._workspace.blobs())

    def __call__(self) -> list[str]:
        return self._workspace.blobs()

    def __repr__(self) -> str:
        return f"<Blobs {self()}>"
