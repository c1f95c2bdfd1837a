"""Readers of input data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model.helpers.engine import own_arguments
from netbuilder.proto import ArgumentError
from netbuilder.proto.numbers import listed

if TYPE_CHECKING:
    from netbuilder.model.model_helper import ModelHelper

__all__ = ["db_input", "image_input"]


def db_input(model: ModelHelper, blobs_out: Any, batch_size: int, db: str, db_type: str, **kwargs: Any) -> Any:
    """Read batches of tensors from a database of TensorProtos records; return references to them.

    The init net opens the database; at its end the reader starts again.

    Args:
        blobs_out: a name for each tensor of a record.
        batch_size: records per batch; they are stacked along a new first axis.
        db: the database's path, a string.
        db_type: its format, such as "minidb" or "lmdb".
        kwargs: further arguments of TensorProtosDBInput.
    """
    if not isinstance(db, str):
        raise ArgumentError(f"brew.db_input: db must be the path of a database, a string, got {db!r}")
    reader = model.CreateDB("dbreader_" + db, db=db, db_type=db_type)
    return model.net.TensorProtosDBInput(reader, blobs_out, batch_size=batch_size, **own_arguments(kwargs))


def image_input(
    model: ModelHelper,
    blob_in: Any,
    blob_out: Any,
    order: str = "NCHW",
    use_gpu_transform: bool = False,
    **kwargs: Any,
) -> Any:
    """Read batches of images and labels from a database; return references to them.

    Args:
        blob_in: the reader, made by CreateDB.
        blob_out: names of images, labels and further fields of the records.
        order: layout of the images, "NCHW" or "NHWC"; "NCHW" requires a transposition, unless a GPU normalizes them.
        use_gpu_transform: normalize on the GPU, if the operator runs on one.
        kwargs: further arguments of ImageInput.

    Raises:
        ArgumentError: ``order`` is invalid.
    """
    if order not in ("NCHW", "NHWC"):
        raise ArgumentError(f"image_input: order must be 'NCHW' or 'NHWC', got {order!r}")
    names, arguments = listed("brew.image_input: blob_out", "blobs", blob_out), own_arguments(kwargs)
    if not all(isinstance(name, (str, BlobReference)) for name in names) or len(names) < 2:
        raise ArgumentError(f"brew.image_input: blob_out must name images and labels, got {blob_out!r}")
    if use_gpu_transform:
        arguments["use_gpu_transform"] = 1
        if order == "NHWC":
            arguments["order"] = order
    if order == "NHWC" or use_gpu_transform:
        return model.net.ImageInput(blob_in, names, **arguments)
    found = list(model.net.ImageInput(blob_in, [f"{names[0]}_nhwc", *names[1:]], **arguments))
    return (model.net.NHWC2NCHW(found[0], names[0]), *found[1:])
