"""Residual nets."""

from netbuilder.caffe2.absent import names_of
from netbuilder.zoo.residual import ResNetBuilder
from netbuilder.zoo.resnet import create_resnet50, create_resnet_32x32
from netbuilder.zoo.resnext import RESNEXT_BLOCK_CONFIG, RESNEXT_STRIDES, create_resnext

__all__ = [
    "RESNEXT_BLOCK_CONFIG",
    "RESNEXT_STRIDES",
    "ResNetBuilder",
    "create_resnet50",
    "create_resnet_32x32",
    "create_resnext",
]

__getattr__ = names_of(__name__)
