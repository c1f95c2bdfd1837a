"""Normalisation, and softmax."""

from netbuilder.caffe2.absent import names_of
from netbuilder.model.helpers.normalization import (
    instance_norm,
    layer_norm,
    lrn,
    moments_with_running_stats,
    spatial_bn,
    spatial_gn,
)
from netbuilder.model.helpers.outputs import softmax

__all__ = [
    "instance_norm",
    "layer_norm",
    "lrn",
    "moments_with_running_stats",
    "softmax",
    "spatial_bn",
    "spatial_gn",
]

__getattr__ = names_of(__name__)
