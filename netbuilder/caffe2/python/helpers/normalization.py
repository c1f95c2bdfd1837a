"""Normalisation, and softmax."""

from netbuilder.caffe2.absent import names_of
from netbuilder.model.helpers.normalization import lrn, spatial_bn
from netbuilder.model.helpers.outputs import softmax

__all__ = ["lrn", "softmax", "spatial_bn"]

__getattr__ = names_of(__name__)
