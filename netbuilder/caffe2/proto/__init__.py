"""The messages, under the names of Caffe2's modules."""

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.proto import caffe2_pb2, metanet_pb2, predictor_consts_pb2

__all__ = ["caffe2_pb2", "metanet_pb2", "predictor_consts_pb2"]

__getattr__ = names_of(__name__)
