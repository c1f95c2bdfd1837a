"""Blobs joined."""

from netbuilder.caffe2.absent import names_of
from netbuilder.model.helpers.outputs import concat, depth_concat

__all__ = ["concat", "depth_concat"]

__getattr__ = names_of(__name__)
