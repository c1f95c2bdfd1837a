"""Serializes messages."""

from __future__ import annotations

from typing import Any

from netbuilder.caffe2.missing import names_of
from netbuilder.proto import files

__all__ = ["deserialize_protobuf_struct", "serialize_protobuf_struct"]

__getattr__ = names_of(__name__)


def serialize_protobuf_struct(protobuf_struct: Any) -> bytes:
    """Return a message's bytes."""
    content: bytes = protobuf_struct.SerializeToString()
    return content


def deserialize_protobuf_struct(serialized_protobuf: bytes, struct_type: Any) -> Any:
    """Return the message of a type from its bytes.

    Raises:
        ParseError: the bytes are not such a message.
    """
    return files.parse(serialized_protobuf, struct_type, allow_unknown=True)
