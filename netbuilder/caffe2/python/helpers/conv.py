"""Convolutions."""

from netbuilder.caffe2.absent import names_of
from netbuilder.model.helpers.conv import conv, conv_nd, conv_transpose, group_conv, group_conv_deprecated

__all__ = ["conv", "conv_nd", "conv_transpose", "group_conv", "group_conv_deprecated"]

__getattr__ = names_of(__name__)
