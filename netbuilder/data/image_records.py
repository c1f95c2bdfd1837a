"""Records of images in databases: TensorProtos with an image and its label, or Caffe's Datum.

The first tensor of a TensorProtos is the image: of type STRING, one element, the bytes of an image file; or of type
BYTE, pixels of shape (height, width, channels), colors in the order blue, green, red. The second is the label.
"""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

import numpy as np

from netbuilder.data.datum import Datum, read_datum
from netbuilder.data.image_codec import as_channels, decode_image, jpeg_size
from netbuilder.data.scratch import Scratch
from netbuilder.data.tensor_records import proto_to_tensor, proto_values, tensor_to_proto
from netbuilder.proto import NetError, ParseError, TensorProto, TensorProtos

__all__ = ["ImageRecord", "describe_record", "encoded_image", "image_record", "read_image_record"]

Array = np.ndarray[Any, np.dtype[Any]]


class ImageRecord(NamedTuple):
    """An image with its label.

    Args:
        where: its name in errors: the database and the key.
        content: the bytes of an image file, or pixels (H, W, C), uint8.
        tensors: the label, and further tensors of the record.
    """

    where: str
    content: bytes | memoryview | Array
    tensors: tuple[Array, ...]

    @property
    def image(self) -> bytes | Array:
        """The bytes of an image file, or pixels (H, W, C), uint8."""
        return bytes(self.content) if isinstance(self.content, memoryview) else self.content

    def pixels(
        self,
        color: bool = True,
        library: str | None = None,
        scratch: Scratch | None = None,
        *,
        max_pixels: int | None = None,
        upright: bool = True,
    ) -> Array:
        """Return the pixels (H, W, C), uint8, C being 3 or 1; arguments are those of ``decode_image``.

        Raises:
            ParseError: the image is damaged.
            DeviceError: no library that decodes it is installed.
        """
        if isinstance(self.content, np.ndarray):
            return as_channels(self.content, color)
        return decode_image(
            self.content, color=color, where=self.where, library=library, scratch=scratch, max_pixels=max_pixels,
            upright=upright,
        )  # fmt: skip

    def size(self, library: str | None = None, *, upright: bool = True) -> tuple[int, int] | None:
        """Return height and width in pixels; None if only decoding tells; arguments are those of ``decode_image``."""
        if isinstance(self.content, np.ndarray):
            return self.content.shape[0], self.content.shape[1]
        return jpeg_size(self.content, library, upright=upright)

    @property
    def label(self) -> int:
        """The label as one whole number.

        Raises:
            ParseError: it is not one whole number.
        """
        try:
            quick = self.tensors[0].item()
        except (IndexError, ValueError):
            quick = None
        if type(quick) is int:
            return quick
        if not self.tensors or self.tensors[0].size != 1 or self.tensors[0].dtype.kind not in "iuf":
            shown = f"{self.tensors[0].dtype} of shape {self.tensors[0].shape}" if self.tensors else "none"
            raise ParseError(f"{self.where}: the label must be one whole number, got {shown}")
        value = self.tensors[0].reshape(-1)[0]
        if not np.isfinite(value) or value != int(value):
            raise ParseError(f"{self.where}: the label must be a whole number, got {value}")
        return int(value)


def image_record(image: bytes | Array, label: int | float | Array) -> bytes:
    """Return a record for ImageInput.

    Args:
        image: the bytes of an image file, or pixels (H, W) or (H, W, C), uint8.
        label: a whole number, a float, or an array of them.

    Raises:
        NetError: the pixels are of another type or shape.
    """
    if isinstance(image, bytes):
        first = TensorProto(dims=[1], data_type=TensorProto.STRING, string_data=[image])
    else:
        if image.dtype != np.uint8 or image.ndim not in (2, 3):
            raise NetError(f"pixels must be uint8 of shape (H, W) or (H, W, C), got {image.dtype} of {image.shape}")
        first = TensorProto(dims=image.shape, data_type=TensorProto.BYTE, byte_data=image.tobytes())
    values = np.atleast_1d(np.asarray(label))
    values = values.astype(np.float32 if values.dtype.kind == "f" else np.int32)
    return TensorProtos(protos=[first, tensor_to_proto(values)]).SerializeToString()


def read_image_record(value: bytes, where: str, *, datum: bool = False) -> ImageRecord:
    """Return the image and the tensors of a record.

    Args:
        value: the record's bytes.
        where: name of the record in errors.
        datum: whether it must be a Datum; else it must be a TensorProtos.

    Raises:
        ParseError: the record is of another type, which the message names, or holds no image.
    """
    return _of_datum(value, where) if datum else _of_protos(value, where)


def _protos(value: bytes) -> TensorProtos | None:
    """Parse bytes as TensorProtos; None if they do not look like it."""
    protos = TensorProtos()
    try:
        protos.ParseFromString(value)
    except Exception:  # the protobuf library's DecodeError is no public name in all of its versions
        return None
    plausible = len(protos.protos) > 0 and protos.ByteSize() == len(value) and value[:1] == b"\n"
    return protos if plausible and all(p.dims or p.ByteSize() > 2 for p in protos.protos) else None


def _datum(value: bytes) -> Datum | None:
    try:
        found = read_datum(value)
    except ParseError:
        return None
    return found if found.data or found.floats else None


def describe_record(value: bytes) -> str:
    """Describe the format of a record.

    >>> describe_record(image_record(np.zeros((2, 3, 3), np.uint8), 7))
    'TensorProtos: BYTE 2 x 3 x 3, INT32 1'
    """
    protos = _protos(value)
    if protos is not None:
        return "TensorProtos: " + ", ".join(map(_describe, protos.protos))
    found = _datum(value)
    if found is not None:
        kind = "an encoded image" if found.encoded else "floats" if found.floats else "bytes"
        return f"Datum: {kind}, {found.channels} x {found.height} x {found.width}"
    return f"{len(value)} bytes of an unknown kind that begin with {value[:8].hex(' ') or 'nothing'}"


def _describe(proto: TensorProto) -> str:
    name = TensorProto.DataType.Name(proto.data_type)
    if proto.data_type == TensorProto.STRING and len(proto.string_data) == 1:
        return f"{name} with {_kind(proto.string_data[0])}"
    return f"{name} {' x '.join(map(str, proto.dims)) or 'without dims'}"


def _kind(data: bytes) -> str:
    for begin, name in ((b"\xff\xd8\xff", "a JPEG"), (b"\x89PNG", "a PNG"), (b"GIF8", "a GIF"), (b"BM", "a BMP")):
        if data.startswith(begin):
            return name
    return f"{len(data)} bytes"


_NUMBER = rb"[\x80-\xff]*[\x00-\x7f]"  # a varint
_HEAD = re.compile(  # length of the first tensor, its dims, its type, length of its one string
    rb"\n(%b)(?:\x08%b)*\x10%b2(%b)" % (_NUMBER, _NUMBER, bytes([TensorProto.STRING]), _NUMBER), re.DOTALL
)


def _number(text: bytes) -> int:
    number = 0
    for byte in reversed(text):
        number = number << 7 | byte & 127
    return number


def encoded_image(value: bytes) -> tuple[memoryview, int] | None:
    """Return the image file in the usual record, and where its first tensor ends; None if the record has another form.

    This avoids the protobuf library, which would copy each image several times.
    """
    head = _HEAD.match(value)
    if head is None:
        return None
    begin = head.end()
    end = begin + _number(head[2])
    if end != head.end(1) + _number(head[1]) or end > len(value):
        return None
    return memoryview(value)[begin:end], end


def _of_protos(value: bytes, where: str) -> ImageRecord:
    quick = encoded_image(value)
    if quick is not None:
        rest = value[quick[1] :]
        try:
            return ImageRecord(where, quick[0], _few_tensors(rest) if len(rest) <= _SHORT else _tensors(rest))
        except ParseError as error:
            raise ParseError(f"{where}: {error}") from error
        except Exception:  # of the protobuf library; the code below raises an error with the reason
            pass
    protos = _protos(value)
    if protos is None:
        hint = "; set use_caffe_datum=1" if _datum(value) is not None else ""
        raise ParseError(
            f"{where}: the record is {describe_record(value)}; it must be TensorProtos with an image and a label{hint}"
        )
    first = protos.protos[0]
    if first.data_type == TensorProto.STRING and len(first.string_data) == 1:
        image: bytes | Array = first.string_data[0]
    elif first.data_type in (TensorProto.BYTE, TensorProto.UINT8):
        image = _pixels(proto_values(first), tuple(first.dims), where)
    else:
        raise ParseError(
            f"{where}: the record is {describe_record(value)}; its first tensor must be an image: STRING with the "
            "bytes of an image file, or BYTE with pixels (H, W, C); TensorProtosDBInput reads tensors of any kind"
        )
    return ImageRecord(where, image, tuple(_tensor(p, where) for p in protos.protos[1:]))


def _tensors(value: bytes) -> tuple[Array, ...]:
    protos = TensorProtos()
    protos.ParseFromString(value)
    return tuple(proto_values(p) if not p.dims else proto_to_tensor(p) for p in protos.protos)


@functools.lru_cache(4096)
def _few_tensors(value: bytes) -> tuple[Array, ...]:
    """Return short tensors that follow an image, such as labels, from a cache: a set has few different labels."""
    found = _tensors(value)
    for tensor in found:
        tensor.setflags(write=False)  # the cache shares them
    return found


_SHORT = 64  # bytes


def _tensor(proto: TensorProto, where: str) -> Array:
    try:
        return proto_values(proto) if not proto.dims else proto_to_tensor(proto)
    except ParseError as error:
        raise ParseError(f"{where}: {error}") from error


def _pixels(values: Array, shape: tuple[int, ...], where: str) -> Array:
    full = (*shape, 1) if len(shape) == 2 else shape
    if len(full) != 3 or full[2] not in (1, 3) or min(full) < 1 or values.size != full[0] * full[1] * full[2]:
        raise ParseError(
            f"{where}: {values.size} pixels of dims {list(shape)}; dims must be (H, W), (H, W, 1) or (H, W, 3), "
            "with as many pixels"
        )
    return values.reshape(full)


def _of_datum(value: bytes, where: str) -> ImageRecord:
    found = _datum(value) if _protos(value) is None else None
    if found is None:
        hint = "; set use_caffe_datum=0" if _protos(value) is not None else ""
        raise ParseError(f"{where}: the record is {describe_record(value)}; it must be a Datum{hint}")
    if not -(2**31) <= found.label < 2**31:
        raise ParseError(f"{where}: the label must fit into 32 bits, got {found.label}")
    label = np.array([found.label], np.int32)
    if found.encoded:
        return ImageRecord(where, found.data, (label,))
    shape = (found.channels, found.height, found.width)
    if found.floats or found.channels not in (1, 3) or len(found.data) != shape[0] * shape[1] * shape[2]:
        raise ParseError(
            f"{where}: the record is {describe_record(value)} with {len(found.data)} bytes; it must be an encoded "
            "image, or 1 or 3 channels with as many bytes as the extents say"
        )
    planes = np.frombuffer(found.data, np.uint8).reshape(shape)
    return ImageRecord(where, np.ascontiguousarray(planes.transpose(1, 2, 0)), (label,))
