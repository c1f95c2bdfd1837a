"""ModelHelper, and predictors taken out of nets."""

from netbuilder.caffe2.absent import names_of
from netbuilder.graph.lenient import LenientNet
from netbuilder.model.helpers.inputs import db_input
from netbuilder.model.model_helper import ModelHelper as _ModelHelper
from netbuilder.passes.extract_predictor import ExtractPredictorNet

__all__ = ["ExtractPredictorNet", "ModelHelper", "db_input"]


class ModelHelper(_ModelHelper):
    """A model whose nets check operators when they are created, as in Caffe2 (see ``LenientNet``)."""

    net_class = LenientNet


__getattr__ = names_of(__name__)
