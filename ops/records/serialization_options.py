"""Options of writing single blobs to files: the argument ``options`` of Save and of EstimateAllBlobSizes."""

from __future__ import annotations

import re
from typing import Any

from netbuilder.proto import ArgumentError
from netbuilder.proto.netbuilder_pb2 import BlobSerializationOptions, SerializationOptions

__all__ = ["as_bfloat16", "option_of", "parse_options"]


def parse_options(op_type: str, options: bytes) -> SerializationOptions:
    """Return the options as a message.

    Raises:
        ArgumentError: they are not such a message, or contain an invalid regular expression.
    """
    try:
        parsed = SerializationOptions.FromString(options)
    except Exception as error:  # protobuf's versions raise errors of different classes
        raise ArgumentError(f"{op_type}: options must be a serialized SerializationOptions: {error}") from None
    for option in parsed.options:
        try:
            re.compile(option.blob_name_regex)
        except re.error as error:
            raise ArgumentError(
                f"{op_type}: blob_name_regex {option.blob_name_regex!r} in options is not a regular expression: {error}"
            ) from None
    return parsed


def option_of(options: SerializationOptions, name: str) -> BlobSerializationOptions:
    """Return the first option whose ``blob_name_regex`` matches all of a blob's name, or an empty one."""
    matching = (option for option in options.options if re.fullmatch(option.blob_name_regex, name))
    return next(matching, BlobSerializationOptions())


def as_bfloat16(option: BlobSerializationOptions, dtype: Any) -> bool:
    """Whether elements of this type are stored as bfloat16, in two bytes; only float32 can be."""
    return option.float_format == BlobSerializationOptions.FLOAT_BFLOAT16 and dtype == "float32"
