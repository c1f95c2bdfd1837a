"""Readers of input data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from netbuilder.model.helpers.engine import own_arguments

if TYPE_CHECKING:
    from netbuilder.model.model_helper import ModelHelper

__all__ = ["db_input"]


def db_input(model: ModelHelper, blobs_out: Any, batch_size: int, db: str, db_type: str, **kwargs: Any) -> Any:
    """Read batches of tensors from a database of TensorProtos records; return references to them.

    The init net opens the database, once a path; at its end the reader starts again.

    Args:
        blobs_out: a name for each tensor of a record.
        batch_size: records a batch; they are stacked along a new first axis.
        db: the database's path.
        db_type: its format, such as "minidb" or "lmdb".
        kwargs: further arguments of TensorProtosDBInput.
    """
    reader = model.CreateDB("dbreader_" + db, db=db, db_type=db_type)
    return model.net.TensorProtosDBInput(reader, blobs_out, batch_size=batch_size, **own_arguments(kwargs))
