"""Databases of records, queues, tensors in messages, and data sets, bundled or read from files."""

from netbuilder.data.batch_mixer import BatchMixer, class_probabilities
from netbuilder.data.blob_records import BlobParts, blob_records, read_blobs, record_name, record_number, write_blobs
from netbuilder.data.blobs_queue import BlobsQueue, QueueClosedError, QueueState
from netbuilder.data.class_names import class_names_file, read_class_names, write_named_records
from netbuilder.data.db_reader import DATABASES, DBReader, read_records, write_records
from netbuilder.data.digits import digits
from netbuilder.data.dummy import dummy_batches
from netbuilder.data.fetch import fetch_file
from netbuilder.data.idx import read_idx
from netbuilder.data.image_codec import decode_image, encode_jpeg, image_libraries, resize_image
from netbuilder.data.image_loader import ImageLoader, decoding_threads
from netbuilder.data.image_records import ImageRecord, describe_record, image_record, read_image_record
from netbuilder.data.image_sets import (
    DummyImages,
    ImageArrays,
    ImageDatabase,
    ImageFiles,
    ImageSet,
    ImageSubset,
    image_folder,
    image_list,
    read_npz_images,
)
from netbuilder.data.image_transform import ImageTransform
from netbuilder.data.lmdb_folder import read_lmdb, write_lmdb
from netbuilder.data.minidb import read_minidb, write_minidb
from netbuilder.data.npz_file import read_npz
from netbuilder.data.partition import data_partition
from netbuilder.data.queue_reader import QueueReader
from netbuilder.data.rebatching_queue import RebatchingQueue
from netbuilder.data.record_list import RecordList, database_type, open_records
from netbuilder.data.tensor_records import proto_to_tensor, proto_values, tensor_to_proto

__all__ = [
    "BatchMixer",
    "DATABASES",
    "BlobParts",
    "BlobsQueue",
    "DBReader",
    "DummyImages",
    "ImageArrays",
    "ImageDatabase",
    "ImageFiles",
    "ImageLoader",
    "ImageRecord",
    "ImageSet",
    "ImageSubset",
    "ImageTransform",
    "QueueClosedError",
    "QueueReader",
    "QueueState",
    "RebatchingQueue",
    "RecordList",
    "blob_records",
    "class_probabilities",
    "class_names_file",
    "data_partition",
    "database_type",
    "decode_image",
    "decoding_threads",
    "describe_record",
    "digits",
    "dummy_batches",
    "encode_jpeg",
    "fetch_file",
    "image_folder",
    "image_libraries",
    "image_list",
    "image_record",
    "open_records",
    "proto_to_tensor",
    "proto_values",
    "read_blobs",
    "read_class_names",
    "read_idx",
    "read_image_record",
    "read_lmdb",
    "read_minidb",
    "read_npz",
    "read_npz_images",
    "read_records",
    "record_name",
    "record_number",
    "resize_image",
    "tensor_to_proto",
    "write_blobs",
    "write_lmdb",
    "write_minidb",
    "write_named_records",
    "write_records",
]
