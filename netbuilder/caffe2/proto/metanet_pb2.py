"""Messages of predictors in one file."""

from netbuilder.caffe2.absent import names_of
from netbuilder.proto import BlobsMap, MetaNetDef, ModelInfo, NetsMap, PlansMap, StringMap

__all__ = ["BlobsMap", "MetaNetDef", "ModelInfo", "NetsMap", "PlansMap", "StringMap"]

__getattr__ = names_of(__name__)
