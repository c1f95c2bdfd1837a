"""The keys of a predictor's file."""

from importlib import import_module

from netbuilder.caffe2.missing import names_of
from netbuilder.proto import PredictorConsts

__all__ = ["predictor_constants", "predictor_consts"]

predictor_consts = import_module("netbuilder.caffe2.proto.predictor_consts_pb2")
predictor_constants = PredictorConsts()

__getattr__ = names_of(__name__)
