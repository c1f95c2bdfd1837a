"""The constants of predictors in one file."""

from netbuilder.caffe2.absent import names_of
from netbuilder.proto import PredictorConsts

__all__ = ["PredictorConsts"]

__getattr__ = names_of(__name__)
