"""Databases of records, queues, tensors in messages, and data sets, bundled or read from files.

Its names are imported on first use: what feeds a net needs no databases and no images.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from netbuilder._lazy import names_on_first_use as _names_on_first_use

_EXPORTS = {
    "netbuilder.data.batch_mixer": ["BatchMixer", "class_probabilities"],
    "netbuilder.data.stored_blobs": [
        "BlobParts",
        "blob_records",
        "read_blobs",
        "record_name",
        "record_number",
        "write_blobs",
    ],
    "netbuilder.data.blobs_queue": ["BlobsQueue", "QueueClosedError", "QueueState"],
    "netbuilder.data.class_names": ["class_names_file", "read_class_names", "write_named_records"],
    "netbuilder.data.db_reader": ["DATABASES", "DBReader", "read_records", "write_records"],
    "netbuilder.data.digit_images": ["digits"],
    "netbuilder.data.dummy": ["dummy_batches"],
    "netbuilder.data.fetch": ["fetch_file"],
    "netbuilder.data.idx": ["read_idx"],
    "netbuilder.data.image_codec": ["decode_image", "encode_jpeg", "image_libraries", "resize_image"],
    "netbuilder.data.image_loader": ["ImageLoader", "decoding_threads"],
    "netbuilder.data.image_records": ["ImageRecord", "describe_record", "image_record", "read_image_record"],
    "netbuilder.data.image_sets": [
        "DummyImages",
        "ImageArrays",
        "ImageDatabase",
        "ImageFiles",
        "ImageSet",
        "ImageSubset",
        "image_folder",
        "image_list",
        "read_npz_images",
    ],
    "netbuilder.data.image_transform": ["ImageTransform"],
    "netbuilder.data.lmdb_folder": ["read_lmdb", "write_lmdb"],
    "netbuilder.data.minidb": ["read_minidb", "write_minidb"],
    "netbuilder.data.npz_file": ["read_npz"],
    "netbuilder.data.partition": ["data_partition"],
    "netbuilder.data.queue_reader": ["QueueReader"],
    "netbuilder.data.rebatching_queue": ["RebatchingQueue"],
    "netbuilder.data.record_list": ["RecordList", "database_type", "open_records"],
    "netbuilder.data.tensor_records": ["proto_to_tensor", "proto_values", "tensor_to_proto"],
}

__all__ = [
    "BatchMixer",
    "BlobParts",
    "BlobsQueue",
    "DATABASES",
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
    "class_names_file",
    "class_probabilities",
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

if TYPE_CHECKING:
    from netbuilder.data.batch_mixer import BatchMixer as BatchMixer
    from netbuilder.data.batch_mixer import class_probabilities as class_probabilities
    from netbuilder.data.blobs_queue import BlobsQueue as BlobsQueue
    from netbuilder.data.blobs_queue import QueueClosedError as QueueClosedError
    from netbuilder.data.blobs_queue import QueueState as QueueState
    from netbuilder.data.class_names import class_names_file as class_names_file
    from netbuilder.data.class_names import read_class_names as read_class_names
    from netbuilder.data.class_names import write_named_records as write_named_records
    from netbuilder.data.db_reader import DATABASES as DATABASES
    from netbuilder.data.db_reader import DBReader as DBReader
    from netbuilder.data.db_reader import read_records as read_records
    from netbuilder.data.db_reader import write_records as write_records
    from netbuilder.data.digit_images import digits as digits
    from netbuilder.data.dummy import dummy_batches as dummy_batches
    from netbuilder.data.fetch import fetch_file as fetch_file
    from netbuilder.data.idx import read_idx as read_idx
    from netbuilder.data.image_codec import decode_image as decode_image
    from netbuilder.data.image_codec import encode_jpeg as encode_jpeg
    from netbuilder.data.image_codec import image_libraries as image_libraries
    from netbuilder.data.image_codec import resize_image as resize_image
    from netbuilder.data.image_loader import ImageLoader as ImageLoader
    from netbuilder.data.image_loader import decoding_threads as decoding_threads
    from netbuilder.data.image_records import ImageRecord as ImageRecord
    from netbuilder.data.image_records import describe_record as describe_record
    from netbuilder.data.image_records import image_record as image_record
    from netbuilder.data.image_records import read_image_record as read_image_record
    from netbuilder.data.image_sets import DummyImages as DummyImages
    from netbuilder.data.image_sets import ImageArrays as ImageArrays
    from netbuilder.data.image_sets import ImageDatabase as ImageDatabase
    from netbuilder.data.image_sets import ImageFiles as ImageFiles
    from netbuilder.data.image_sets import ImageSet as ImageSet
    from netbuilder.data.image_sets import ImageSubset as ImageSubset
    from netbuilder.data.image_sets import image_folder as image_folder
    from netbuilder.data.image_sets import image_list as image_list
    from netbuilder.data.image_sets import read_npz_images as read_npz_images
    from netbuilder.data.image_transform import ImageTransform as ImageTransform
    from netbuilder.data.lmdb_folder import read_lmdb as read_lmdb
    from netbuilder.data.lmdb_folder import write_lmdb as write_lmdb
    from netbuilder.data.minidb import read_minidb as read_minidb
    from netbuilder.data.minidb import write_minidb as write_minidb
    from netbuilder.data.npz_file import read_npz as read_npz
    from netbuilder.data.partition import data_partition as data_partition
    from netbuilder.data.queue_reader import QueueReader as QueueReader
    from netbuilder.data.rebatching_queue import RebatchingQueue as RebatchingQueue
    from netbuilder.data.record_list import RecordList as RecordList
    from netbuilder.data.record_list import database_type as database_type
    from netbuilder.data.record_list import open_records as open_records
    from netbuilder.data.stored_blobs import BlobParts as BlobParts
    from netbuilder.data.stored_blobs import blob_records as blob_records
    from netbuilder.data.stored_blobs import read_blobs as read_blobs
    from netbuilder.data.stored_blobs import record_name as record_name
    from netbuilder.data.stored_blobs import record_number as record_number
    from netbuilder.data.stored_blobs import write_blobs as write_blobs
    from netbuilder.data.tensor_records import proto_to_tensor as proto_to_tensor
    from netbuilder.data.tensor_records import proto_values as proto_values
    from netbuilder.data.tensor_records import tensor_to_proto as tensor_to_proto

__getattr__, __dir__ = _names_on_first_use(__name__, _EXPORTS)
