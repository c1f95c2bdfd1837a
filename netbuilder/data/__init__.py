"""Databases of records, queues, tensors in messages, and data sets, bundled or read from files."""

from netbuilder.data.blob_records import BlobParts, blob_records, read_blobs, record_name, write_blobs
from netbuilder.data.blobs_queue import BlobsQueue, QueueClosedError, QueueState
from netbuilder.data.db_reader import DATABASES, DBReader, read_records
from netbuilder.data.digits import digits
from netbuilder.data.dummy import dummy_batches
from netbuilder.data.idx import read_idx
from netbuilder.data.minidb import read_minidb, write_minidb
from netbuilder.data.tensor_records import proto_to_tensor, proto_values, tensor_to_proto

__all__ = [
    "DATABASES",
    "BlobParts",
    "BlobsQueue",
    "DBReader",
    "QueueClosedError",
    "QueueState",
    "blob_records",
    "digits",
    "dummy_batches",
    "proto_to_tensor",
    "proto_values",
    "read_blobs",
    "read_idx",
    "read_minidb",
    "read_records",
    "record_name",
    "tensor_to_proto",
    "write_blobs",
    "write_minidb",
]
