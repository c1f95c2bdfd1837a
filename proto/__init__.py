"""The schema of netbuilder: messages, and helpers that make and read operators, arguments and files.

Its messages are imported on first use: what starts with a process does not need protobuf.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if __name__ != "netbuilder.proto":
    raise ImportError("import this package as netbuilder.proto: a second copy would declare every message twice")

from netbuilder._lazy import names_on_first_use as _names_on_first_use
from netbuilder.proto.errors import (
    ArgumentError,
    BlobError,
    DeviceError,
    DistributedError,
    GradientError,
    NetError,
    OperatorError,
    ParseError,
    ShapeError,
    StoreTimeoutError,
    UsageError,
)

_MESSAGES = [
    "PROTO_CPU",
    "PROTO_CUDA",
    "AOTConfig",
    "Argument",
    "BackendOptions",
    "BlobProto",
    "BlobSerializationOptions",
    "BlobsMap",
    "DBReaderProto",
    "DeviceOption",
    "DeviceTypeProto",
    "ExecutionStep",
    "MapFieldEntry",
    "MetaNetDef",
    "ModelInfo",
    "NetDef",
    "NetsMap",
    "OperatorDef",
    "PartitionInfo",
    "PlanDef",
    "PlansMap",
    "PredictorConsts",
    "QTensorProto",
    "SerializationOptions",
    "StringMap",
    "TensorBoundShape",
    "TensorBoundShapes",
    "TensorProto",
    "TensorProtos",
    "TensorShape",
    "TensorShapes",
]

__all__ = [
    "PROTO_CPU",
    "PROTO_CUDA",
    "AOTConfig",
    "Argument",
    "ArgumentError",
    "BackendOptions",
    "BlobError",
    "BlobProto",
    "BlobSerializationOptions",
    "BlobsMap",
    "DBReaderProto",
    "DeviceError",
    "DeviceOption",
    "DeviceTypeProto",
    "DistributedError",
    "ExecutionStep",
    "GradientError",
    "MapFieldEntry",
    "MetaNetDef",
    "ModelInfo",
    "NetDef",
    "NetError",
    "NetsMap",
    "OperatorDef",
    "OperatorError",
    "ParseError",
    "PartitionInfo",
    "PlanDef",
    "PlansMap",
    "PredictorConsts",
    "QTensorProto",
    "SerializationOptions",
    "ShapeError",
    "StoreTimeoutError",
    "StringMap",
    "TensorBoundShape",
    "TensorBoundShapes",
    "TensorProto",
    "TensorProtos",
    "TensorShape",
    "TensorShapes",
    "UsageError",
]

if TYPE_CHECKING:
    from netbuilder.proto.netbuilder_pb2 import PROTO_CPU as PROTO_CPU
    from netbuilder.proto.netbuilder_pb2 import PROTO_CUDA as PROTO_CUDA
    from netbuilder.proto.netbuilder_pb2 import AOTConfig as AOTConfig
    from netbuilder.proto.netbuilder_pb2 import Argument as Argument
    from netbuilder.proto.netbuilder_pb2 import BackendOptions as BackendOptions
    from netbuilder.proto.netbuilder_pb2 import BlobProto as BlobProto
    from netbuilder.proto.netbuilder_pb2 import BlobSerializationOptions as BlobSerializationOptions
    from netbuilder.proto.netbuilder_pb2 import BlobsMap as BlobsMap
    from netbuilder.proto.netbuilder_pb2 import DBReaderProto as DBReaderProto
    from netbuilder.proto.netbuilder_pb2 import DeviceOption as DeviceOption
    from netbuilder.proto.netbuilder_pb2 import DeviceTypeProto as DeviceTypeProto
    from netbuilder.proto.netbuilder_pb2 import ExecutionStep as ExecutionStep
    from netbuilder.proto.netbuilder_pb2 import MapFieldEntry as MapFieldEntry
    from netbuilder.proto.netbuilder_pb2 import MetaNetDef as MetaNetDef
    from netbuilder.proto.netbuilder_pb2 import ModelInfo as ModelInfo
    from netbuilder.proto.netbuilder_pb2 import NetDef as NetDef
    from netbuilder.proto.netbuilder_pb2 import NetsMap as NetsMap
    from netbuilder.proto.netbuilder_pb2 import OperatorDef as OperatorDef
    from netbuilder.proto.netbuilder_pb2 import PartitionInfo as PartitionInfo
    from netbuilder.proto.netbuilder_pb2 import PlanDef as PlanDef
    from netbuilder.proto.netbuilder_pb2 import PlansMap as PlansMap
    from netbuilder.proto.netbuilder_pb2 import PredictorConsts as PredictorConsts
    from netbuilder.proto.netbuilder_pb2 import QTensorProto as QTensorProto
    from netbuilder.proto.netbuilder_pb2 import SerializationOptions as SerializationOptions
    from netbuilder.proto.netbuilder_pb2 import StringMap as StringMap
    from netbuilder.proto.netbuilder_pb2 import TensorBoundShape as TensorBoundShape
    from netbuilder.proto.netbuilder_pb2 import TensorBoundShapes as TensorBoundShapes
    from netbuilder.proto.netbuilder_pb2 import TensorProto as TensorProto
    from netbuilder.proto.netbuilder_pb2 import TensorProtos as TensorProtos
    from netbuilder.proto.netbuilder_pb2 import TensorShape as TensorShape
    from netbuilder.proto.netbuilder_pb2 import TensorShapes as TensorShapes

__getattr__, __dir__ = _names_on_first_use(__name__, {"netbuilder.proto.netbuilder_pb2": _MESSAGES})
