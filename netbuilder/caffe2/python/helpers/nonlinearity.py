"""Activation functions."""

from netbuilder.caffe2.absent import names_of
from netbuilder.model.helpers.nonlinearity import prelu, relu, tanh

__all__ = ["prelu", "relu", "tanh"]

__getattr__ = names_of(__name__)
