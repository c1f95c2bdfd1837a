"""Messages of predictors in one file."""

from netbuilder.caffe2.missing import names_of
from netbuilder.proto.netbuilder_pb2 import DESCRIPTOR, BlobsMap, MetaNetDef, ModelInfo, NetsMap, PlansMap, StringMap

__all__ = ["DESCRIPTOR", "BlobsMap", "MetaNetDef", "ModelInfo", "NetsMap", "PlansMap", "StringMap"]

__getattr__ = names_of(__name__)
