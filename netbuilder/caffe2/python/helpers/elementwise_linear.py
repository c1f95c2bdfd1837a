"""A factor and a summand per feature."""

from netbuilder.caffe2.absent import names_of
from netbuilder.model.helpers.elementwise_linear import elementwise_linear

__all__ = ["elementwise_linear"]

__getattr__ = names_of(__name__)
