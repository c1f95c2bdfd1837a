"""The names of a predictor's parts in its file."""

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.proto import predictor_consts_pb2
from netbuilder.proto import PredictorConsts

__all__ = ["predictor_constants", "predictor_consts"]

predictor_consts = predictor_consts_pb2
predictor_constants = PredictorConsts()

__getattr__ = names_of(__name__)
