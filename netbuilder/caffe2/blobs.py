"""A workspace's blobs as objects, as ``workspace.C`` gives them."""

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
    """Set a blob of a workspace; a TensorProto is read as its tensor, and the name may be empty. Returns True."""
    if isinstance(value, TensorProto):
        value = proto_to_tensor(value)
    workspace.feed(name, value, device, unnamed=True)
    return True


def to_record(workspace: Workspace, name: str, called: str) -> bytes:
    """Return a blob as a BlobProto's bytes, under the name ``called``.

    Raises:
        BlobError: there is no such blob, or it holds neither a tensor nor an object that has records.
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
    """Set a blob to what a BlobProto's bytes hold.

    Raises:
        ParseError: they hold no BlobProto, or a broken tensor.
        NetError: it is neither a tensor nor an object that has records.
    """
    blob = files.parse(content, BlobProto, source=f"the bytes for blob {name!r}", allow_unknown=True)
    kind = kind_named(blob.type)
    if kind is not None:
        workspace.feed(name, kind.read(blob), unnamed=True)
        return
    if blob.type != _TENSOR:
        raise NetError(f"blob {name!r}: cannot be made from a record of type {blob.type!r}; those of tensors can")
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
        """The elements: the buffer itself where it is in plain order, so that writing changes them; else a copy."""
        value = self._workspace.get(self._name).plain()
        return value if isinstance(value, np.ndarray) else self.fetch()

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        spec = self._workspace.spec(self._name)
        return () if spec is None else spec.shape

    def fetch(self) -> Any:
        """Return the elements as an array of their own."""
        return np.asarray(self._workspace.fetch(self._name))

    def feed(self, value: Any) -> None:
        """Set shape, type and elements."""
        feed(self._workspace, self._name, value)

    def init(self, shape: Sequence[int], dtype: TensorProto.DataType) -> None:
        """Give the tensor a shape and a type (of TensorProto.DataType); its elements are zero.

        Raises:
            NetError: strings have no value to begin with; feed them.
        """
        if dtype == TensorProto.STRING:
            raise NetError(f"blob {self._name!r}: a tensor of strings cannot be made empty; feed an array of bytes")
        empty = TensorProto(data_type=dtype, dims=[0])
        self.feed(np.zeros(tuple(shape), proto_to_tensor(empty).dtype))

    def reshape(self, shape: Sequence[int]) -> None:
        """Give the tensor another shape; elements are kept if their number is, else they are zero."""
        value = self.fetch()
        same = value.size == int(np.prod(shape, dtype=np.int64))
        self.feed(value.reshape(shape) if same else np.zeros(tuple(shape), value.dtype))


class Blob:
    """A blob of a workspace.

    Args:
        workspace, name: where it is, and what it is called there.
    """

    def __init__(self, workspace: Workspace, name: str) -> None:
        self._workspace = workspace
        self._name = name

    def __repr__(self) -> str:
        return f"<Blob {self._name!r}>"

    def feed(self, arg: Any, device_option: DeviceOption | None = None) -> bool:
        """Set the value; returns True."""
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
            BlobError: it holds none.
        """
        if not self.is_tensor():
            raise BlobError(f"blob {self._name!r} holds no tensor")
        return self.as_tensor()

    def as_tensor(self) -> TensorCPU:
        """Return the blob as a tensor, which may be fed if it is none yet."""
        return TensorCPU(self._workspace, self._name)

    def serialize(self, name: str) -> bytes:
        """Return the bytes of a BlobProto that holds the value under ``name``."""
        return to_record(self._workspace, self._name, name)

    def deserialize(self, content: bytes) -> None:
        """Set the value to what a BlobProto's bytes hold."""
        from_record(self._workspace, self._name, content)


class _NoBlob(BlobError, KeyError):
    __str__ = Exception.__str__  # a KeyError's would quote the message


class Blobs(Mapping[str, Blob]):
    """The blobs of a workspace by name; called, it gives their sorted names, as ``Workspace.blobs`` of netbuilder does.

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
