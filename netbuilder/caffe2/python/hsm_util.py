"""Trees of words for the hierarchical softmax."""

from netbuilder.caffe2.absent import names_of
from netbuilder.model.hierarchy import create_hierarchy, create_node_with_nodes, create_node_with_words
from netbuilder.proto import hsm_pb2

__all__ = ["create_hierarchy", "create_node_with_nodes", "create_node_with_words", "hsm_pb2"]

__getattr__ = names_of(__name__)
