"""Messages of the hierarchical softmax."""

from netbuilder.caffe2.missing import names_of
from netbuilder.proto.hsm_pb2 import DESCRIPTOR, HierarchyProto, NodeProto, PathNodeProto, PathProto, TreeProto

__all__ = ["DESCRIPTOR", "HierarchyProto", "NodeProto", "PathNodeProto", "PathProto", "TreeProto"]

__getattr__ = names_of(__name__)
