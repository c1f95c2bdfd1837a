"""Trees of words for the hierarchical softmax, and the ways to the words that its operator takes."""

from __future__ import annotations

from collections.abc import Iterable

from netbuilder.proto.hsm_pb2 import HierarchyProto, NodeProto, PathNodeProto, TreeProto

__all__ = ["create_hierarchy", "create_node_with_nodes", "create_node_with_words"]


def create_node_with_words(words: Iterable[int], name: str = "node") -> NodeProto:
    """Return a node whose leaves are these words (their numbers)."""
    return NodeProto(name=name, word_ids=words)


def create_node_with_nodes(nodes: Iterable[NodeProto], name: str = "node") -> NodeProto:
    """Return a node above these nodes, which are copied."""
    return NodeProto(name=name, children=nodes)


def create_hierarchy(tree_proto: TreeProto) -> HierarchyProto:
    """Return the way to each word of a tree, for the argument ``hierarchy`` of HSoftmax (serialized).

    Each inner node gets as many rows of weights as it has children and words. Where they begin is written into the
    tree, as HSoftmaxSearch needs it; ``size`` of what is returned is the number of all rows.
    """
    hierarchy = HierarchyProto(size=0)
    _add_paths(hierarchy, tree_proto.root_node, [])
    return hierarchy


def _add_paths(hierarchy: HierarchyProto, node: NodeProto, above: list[PathNodeProto]) -> None:
    length = len(node.children) + len(node.word_ids)
    node.offset = hierarchy.size
    hierarchy.size += length

    def way(target: int) -> list[PathNodeProto]:
        return [*above, PathNodeProto(index=node.offset, length=length, target=target)]

    for target, child in enumerate(node.children):
        _add_paths(hierarchy, child, way(target))
    for target, word in enumerate(node.word_ids, len(node.children)):
        hierarchy.paths.add(word_id=word, path_nodes=way(target))
