"""Trees of words and the ways to them."""

from netbuilder.caffe2.proto import hsm_pb2 as caffe2_messages
from netbuilder.caffe2.python import hsm_util
from netbuilder.ops.losses.hierarchical_softmax import create_hierarchy, create_node_with_nodes, create_node_with_words
from netbuilder.proto.hsm_pb2 import TreeProto


def test_ways_rows_and_offsets():
    low, high = create_node_with_words([7, 8], "low"), create_node_with_words(range(3))
    root = create_node_with_nodes([low, high], "root")
    root.word_ids.append(9)
    tree = TreeProto(root_node=root)
    hierarchy = create_hierarchy(tree)
    ways = {p.word_id: [(n.index, n.length, n.target) for n in p.path_nodes] for p in hierarchy.paths}
    assert ways[7] == [(0, 3, 0), (3, 2, 0)] and ways[2] == [(0, 3, 1), (5, 3, 2)] and ways[9] == [(0, 3, 2)]
    assert hierarchy.size == 8
    assert [tree.root_node.offset, *(n.offset for n in tree.root_node.children)] == [0, 3, 5]
    assert [n.name for n in tree.root_node.children] == ["low", "node"]
    assert not low.HasField("offset"), "nodes are copied"


def test_the_compatibility_layer_has_the_same():
    assert hsm_util.create_hierarchy is create_hierarchy
    assert caffe2_messages.TreeProto is hsm_util.hsm_pb2.TreeProto is TreeProto
    # Caffe2's field numbers: root_node 1; word_ids 2, offset 3, name 4.
    node = create_node_with_words([300], "n")
    node.offset = 5
    assert TreeProto(root_node=node).SerializeToString() == b"\x0a\x08\x10\xac\x02\x18\x05\x22\x01n"
