"""What is known about one parameter."""

from netbuilder.caffe2.absent import names_of
from netbuilder.model.parameter_info import ParameterInfo, ParameterTags

__all__ = ["ParameterInfo", "ParameterTags"]

__getattr__ = names_of(__name__)
