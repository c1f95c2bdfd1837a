"""Scopes that use the parameters of other scopes."""

from netbuilder.caffe2.absent import names_of
from netbuilder.model.parameter_sharing import ParameterSharing

__all__ = ["ParameterSharing"]

__getattr__ = names_of(__name__)
