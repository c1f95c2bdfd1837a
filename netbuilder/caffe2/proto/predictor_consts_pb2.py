"""The constants of predictors in one file."""

from netbuilder.caffe2.missing import names_of
from netbuilder.proto.netbuilder_pb2 import DESCRIPTOR, PredictorConsts

__all__ = ["DESCRIPTOR", "PredictorConsts"]

__getattr__ = names_of(__name__)
