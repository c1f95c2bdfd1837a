"""ModelHelper, and predictors taken out of nets."""

from netbuilder.caffe2.absent import names_of
from netbuilder.model.helpers.inputs import db_input
from netbuilder.model.model_helper import ModelHelper
from netbuilder.passes.extract_predictor import ExtractPredictorNet

__all__ = ["ExtractPredictorNet", "ModelHelper", "db_input"]

__getattr__ = names_of(__name__)
