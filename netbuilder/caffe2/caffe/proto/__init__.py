"""The messages of Caffe's files."""

from netbuilder.caffe2.missing import names_of
from netbuilder.proto import caffe_pb2

__all__ = ["caffe_pb2"]

__getattr__ = names_of(__name__)
