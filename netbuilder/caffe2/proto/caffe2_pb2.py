"""The messages and device types of nets, the same classes as in netbuilder.proto."""

from netbuilder.caffe2.missing import names_of
from netbuilder.proto.netbuilder_pb2 import (
    DESCRIPTOR,
    PROTO_COMPILE_TIME_MAX_DEVICE_TYPES,
    PROTO_CPU,
    PROTO_CUDA,
    PROTO_FPGA,
    PROTO_HIP,
    PROTO_IDEEP,
    PROTO_MKLDNN,
    PROTO_MLC,
    PROTO_OPENCL,
    PROTO_OPENGL,
    PROTO_ORT,
    PROTO_XLA,
    AOTConfig,
    Argument,
    BackendOptions,
    BlobProto,
    BlobSerializationOptions,
    DBReaderProto,
    DeviceOption,
    DeviceTypeProto,
    ExecutionStep,
    MapFieldEntry,
    NetDef,
    OperatorDef,
    PartitionInfo,
    PlanDef,
    QTensorProto,
    SerializationOptions,
    TensorBoundShape,
    TensorBoundShapes,
    TensorProto,
    TensorProtos,
    TensorShape,
    TensorShapes,
)

__all__ = [
    "COMPILE_TIME_MAX_DEVICE_TYPES",
    "CPU",
    "CUDA",
    "DESCRIPTOR",
    "HIP",
    "IDEEP",
    "MKLDNN",
    "OPENCL",
    "OPENGL",
    "PROTO_COMPILE_TIME_MAX_DEVICE_TYPES",
    "PROTO_CPU",
    "PROTO_CUDA",
    "PROTO_FPGA",
    "PROTO_HIP",
    "PROTO_IDEEP",
    "PROTO_MKLDNN",
    "PROTO_MLC",
    "PROTO_OPENCL",
    "PROTO_OPENGL",
    "PROTO_ORT",
    "PROTO_XLA",
    "AOTConfig",
    "Argument",
    "BackendOptions",
    "BlobProto",
    "BlobSerializationOptions",
    "DBReaderProto",
    "DeviceOption",
    "DeviceTypeProto",
    "ExecutionStep",
    "MapFieldEntry",
    "NetDef",
    "OperatorDef",
    "PartitionInfo",
    "PlanDef",
    "QTensorProto",
    "SerializationOptions",
    "TensorBoundShape",
    "TensorBoundShapes",
    "TensorProto",
    "TensorProtos",
    "TensorShape",
    "TensorShapes",
]

CPU = PROTO_CPU
CUDA = PROTO_CUDA
MKLDNN = PROTO_MKLDNN
OPENGL = PROTO_OPENGL
OPENCL = PROTO_OPENCL
IDEEP = PROTO_IDEEP
HIP = PROTO_HIP
COMPILE_TIME_MAX_DEVICE_TYPES = PROTO_COMPILE_TIME_MAX_DEVICE_TYPES

__getattr__ = names_of(__name__)
