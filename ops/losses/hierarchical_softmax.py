"""Hierarchical softmax: HSoftmax with its gradient, HSoftmaxSearch, HuffmanTreeHierarchy, and trees of words."""

from __future__ import annotations

import functools
import heapq
from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeVar

import numpy as np
from google.protobuf.message import DecodeError

from netbuilder.ops.core.contexts import GradientContext, RunContext
from netbuilder.ops.core.given_numbers import check_extents
from netbuilder.ops.core.operator import InBatch, Operator, require
from netbuilder.ops.core.registry import kernel, register
from netbuilder.proto import ArgumentError, OperatorDef, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.proto.hsm_pb2 import HierarchyProto, NodeProto, PathNodeProto, TreeProto
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "HSoftmax",
    "HSoftmaxGradient",
    "HSoftmaxSearch",
    "HuffmanTreeHierarchy",
    "create_hierarchy",
    "create_node_with_nodes",
    "create_node_with_words",
]

_TINY = 1e-20  # probabilities are clamped to this before log

_Message = TypeVar("_Message", HierarchyProto, TreeProto)


def _read(op_type: str, name: str, kind: type[_Message], data: bytes) -> _Message:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise ArgumentError(f"{op_type}: {name} must be a serialized {kind.__name__}: {error}") from None


@functools.lru_cache(maxsize=8)
def _paths(data: bytes) -> tuple[int, dict[int, np.ndarray[Any, Any]]]:
    """Return the number of rows of W that a hierarchy needs, and each word's path: rows (index, length, target).

    Raises:
        ArgumentError: a node's index is negative, or its target is not less than its length.
    """
    rows, found = 0, {}
    for path in _read("HSoftmax", "hierarchy", HierarchyProto, data).paths:
        steps = [(node.index, node.length, node.target) for node in path.path_nodes]
        for index, length, target in steps:
            if index < 0 or not 0 <= target < length:
                raise ArgumentError(
                    f"HSoftmax: hierarchy: word {path.word_id} has a node with index {index}, length {length} and "
                    f"target {target}; the index must not be negative, the target less than the length"
                )
            rows = max(rows, index + length)
        found[path.word_id] = np.array(steps, np.int64).reshape(-1, 3)
    return rows, found


def _matrix(x: Any) -> Any:
    """Return samples as rows; a vector is one sample."""
    return x.reshape(1, -1) if x.ndim == 1 else x.reshape(x.shape[0], int(np.prod(x.shape[1:])))


def _check_weights(op: Operator, x: Any, w: Any, b: Any, rows: int) -> None:
    require(x.dtype.kind == "f" and x.ndim >= 1, op, f"X must hold samples of floating-point numbers, got {x.dtype}")
    width = _matrix(np.empty(x.shape, bool)).shape[1] if x.ndim else 0
    valid = w.ndim == 2 and w.shape[1] == width and w.shape[0] >= rows and b.shape == w.shape[:1]
    text = f"W must have shape (at least {rows}, {width}) and b one number per row of W, got {w.shape} {b.shape}"
    require(valid and w.dtype == b.dtype == x.dtype, op, f"{text}, {w.dtype} {b.dtype} for X {x.dtype}")


@dataclass(frozen=True)
class _Hierarchical(Operator):
    flops_per_element = 0
    hierarchy: bytes = b""

    dynamic = True  # the intermediate output's size depends on the labels

    def check(self) -> None:
        _paths(self.hierarchy)

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        return "host" if type(self).inputs[index] == "labels" else "here"

    def check_shapes(self, x: Any, w: Any, b: Any, labels: Any) -> None:
        """Raise ShapeError unless the inputs fit each other and the hierarchy."""
        _check_weights(self, x, w, b, _paths(self.hierarchy)[0])
        count = _matrix(np.empty(x.shape, bool)).shape[0]
        text = f"labels must be integers, one per sample, {count} in all, got {labels.shape} {labels.dtype}"
        require(labels.size == count and labels.dtype.kind in "iu", self, text)


@dataclass
class _Group:
    """The samples whose paths visit one node.

    Args:
        index: the node's first row in W and b.
        length: the number of its choices.
        samples: which samples these are.
        positions: where the node's scores are in the intermediate output, (samples, length).
        targets: the choice that leads to each sample's label.
    """

    index: int
    length: int
    samples: Any
    positions: Any
    targets: Any


def _groups(op: _Hierarchical, labels: np.ndarray[Any, Any]) -> tuple[int, list[_Group]]:
    """Return the size of the intermediate output, and the samples grouped by node.

    For each sample and each node on its path, the output holds the scores of the choices, then their probabilities.
    """
    known = _paths(op.hierarchy)[1]
    nodes: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    position = 0
    for sample, label in enumerate(labels.reshape(-1).tolist()):
        if label not in known:
            raise ShapeError(f"{op.type}: label {label} of sample {sample} is not a word of the hierarchy")
        for index, length, target in known[label].tolist():
            nodes.setdefault((index, length), []).append((sample, position, target))
            position += 2 * length
    check_extents(f"{op.type}: the scores of the nodes on all paths", (position,), np.int64)
    groups = []
    for (index, length), members in nodes.items():
        samples, positions, targets = np.array(members, np.int64).T
        groups.append(_Group(index, length, samples, positions[:, None] + np.arange(length), targets))
    return position, groups


def _softmax(xp: Any, scores: Any) -> Any:
    e = xp.exp(scores - scores.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@register
@dataclass(frozen=True)
class HSoftmax(_Hierarchical):
    """Y = -log of the probability of each sample's label: the product of the probabilities on the path to the word.

    A node's choices have the probabilities softmax(X W' + b), with the node's own rows of W and b. ``hierarchy``, a
    serialized HierarchyProto (see ``create_hierarchy``), states these rows, and the choices that lead to each
    word. The second output stores scores and probabilities for the gradient.

    Source: Morin and Bengio, "Hierarchical Probabilistic Neural Network Language Model", 2005.
    """

    signature = """
        X (N, D): float
        W (R, D): as X
        b (R): as X
        labels (N): int
        -> Y (N): as X
        -> intermediate_output (M): as X
    """
    in_batch = InBatch.ROW_BY_ROW | InBatch.SAME_ROWS

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        inputs = [g.input(i) for i in range(4)] + [g.output("intermediate_output"), g.d_output("Y")]
        d_intermediate = (
            g.d_output(1) if g.has_d_output(1) else g.d_input("X") + "_intermediate"
        )  # Caffe2 requires a name for it
        return [make_op("HSoftmaxGradient", inputs, [*(g.d_input(i) for i in range(3)), d_intermediate])]


@kernel(HSoftmax)
def h_softmax(op: HSoftmax, ctx: RunContext, x: Any, w: Any, b: Any, labels: Any) -> tuple[Any, ...]:
    op.check_shapes(x, w, b, labels)
    xp, rows = ctx.xp, _matrix(x)
    size, groups = _groups(op, ctx.host(labels))
    y, intermediate = xp.zeros(rows.shape[0], x.dtype), xp.zeros(size, x.dtype)
    for group in groups:
        which, part = xp.asarray(group.samples), slice(group.index, group.index + group.length)
        scores = rows[which] @ w[part].T + b[part]
        probs = _softmax(xp, scores)
        positions = xp.asarray(group.positions)
        intermediate[positions], intermediate[positions + group.length] = scores, probs
        chosen = probs[xp.arange(group.samples.size), xp.asarray(group.targets)]
        y[which] -= xp.log(xp.maximum(chosen, _TINY))
    return y, intermediate


@register
@dataclass(frozen=True)
class HSoftmaxGradient(_Hierarchical):
    """dX, dW and db of HSoftmax, and the gradients of the scores and probabilities that it stored."""

    signature = "X, W, b, labels, intermediate_output, dY -> dX, dW, db, dintermediate_output"


@kernel(HSoftmaxGradient)
def h_softmax_gradient(
    op: HSoftmaxGradient, ctx: RunContext, x: Any, w: Any, b: Any, labels: Any, intermediate: Any, dy: Any
) -> tuple[Any, ...]:
    op.check_shapes(x, w, b, labels)
    xp, rows = ctx.xp, _matrix(x)
    size, groups = _groups(op, ctx.host(labels))
    require(
        intermediate.shape == (size,), op, f"intermediate_output must have shape {(size,)}, got {intermediate.shape}"
    )
    require(dy.shape == rows.shape[:1], op, f"dY must have shape {rows.shape[:1]}, got {dy.shape}")
    dx, dw, db, d_intermediate = (xp.zeros_like(array) for array in (rows, w, b, intermediate))
    for group in groups:
        which, part = xp.asarray(group.samples), slice(group.index, group.index + group.length)
        positions, chosen = xp.asarray(group.positions), (xp.arange(group.samples.size), xp.asarray(group.targets))
        probs = intermediate[positions + group.length]
        slope = xp.zeros_like(probs)
        slope[chosen] = -dy[which] / xp.maximum(probs[chosen], _TINY)
        d_scores = (slope - (slope * probs).sum(axis=1, keepdims=True)) * probs
        d_intermediate[positions], d_intermediate[positions + group.length] = d_scores, slope
        dw[part] += d_scores.T @ rows[which]
        db[part] += d_scores.sum(axis=0)
        dx[which] += d_scores @ w[part]  # no sample visits a node twice
    return dx.reshape(x.shape), dw, db, d_intermediate


@register
@dataclass(frozen=True)
class HSoftmaxSearch(Operator):
    """The ``topN`` most probable nodes and words of each sample: names (of a word, its number) and scores.

    A score is -log of a probability. From the root down, the search follows the choices whose score is less than their
    node's plus ``beam``. ``tree`` is a serialized TreeProto whose nodes have names, and offsets as ``create_hierarchy``
    writes them. If fewer than ``topN`` are found, the other names are empty and their scores 0. No gradient.
    """

    signature = """
        X (N, D): float
        W (R, D): as X
        b (R): as X
        -> Y_names (N, topN): string
        -> Y_scores (N, topN): as X
    """
    dynamic = True
    outputs_on_host = True
    inputs_on_host = True
    flops_per_element = 0
    tree: bytes = b""
    beam: float = 0.01
    topN: int = 5

    def check(self) -> None:
        if self.topN < 1:
            raise ArgumentError(f"HSoftmaxSearch: topN must be at least 1, got {self.topN}")
        root = _tree(self.tree)
        for node in _nodes(root):
            if not (node.HasField("offset") and node.HasField("name")) or node.offset < 0:
                raise ArgumentError(
                    "HSoftmaxSearch: tree: every node needs a name, and an offset as create_hierarchy writes it; "
                    f"node {node.name!r} has {'none' if node.HasField('name') else 'no name'}"
                )


@functools.lru_cache(maxsize=8)
def _tree(data: bytes) -> NodeProto:
    return _read("HSoftmaxSearch", "tree", TreeProto, data).root_node


def _nodes(node: NodeProto) -> Iterator[NodeProto]:
    yield node
    for child in node.children:
        yield from _nodes(child)


@kernel(HSoftmaxSearch)
def h_softmax_search(op: HSoftmaxSearch, ctx: RunContext, x: Any, w: Any, b: Any) -> tuple[Any, ...]:
    x, w, b = map(ctx.host, (x, w, b))
    root = _tree(op.tree)
    ends = [node.offset + len(node.children) + len(node.word_ids) for node in _nodes(root)]
    _check_weights(op, x, w, b, max(ends))
    rows = _matrix(x)
    check_extents(f"HSoftmaxSearch: at topN {op.topN} Y_names", (rows.shape[0], op.topN), object)
    found: list[list[tuple[Any, str]]] = [[] for _ in range(rows.shape[0])]
    _search(op, root, rows, w, b, np.arange(rows.shape[0]), np.zeros(rows.shape[0], x.dtype), found)
    names, scores = np.full((rows.shape[0], op.topN), b"", object), np.zeros((rows.shape[0], op.topN), x.dtype)
    for sample, hits in enumerate(found):
        for k, (score, name) in enumerate(sorted(hits, key=lambda hit: hit[0])[: op.topN]):
            names[sample, k], scores[sample, k] = name.encode(), score
    return names, scores


def _search(
    op: HSoftmaxSearch, node: NodeProto, x: Any, w: Any, b: Any, samples: Any, above: Any, found: list[Any]
) -> None:
    """Add to ``found`` what the search reaches below ``node``; ``above`` is its score for each of ``samples``."""
    count = len(node.children) + len(node.word_ids)
    if not count or not samples.size:
        return
    part = slice(node.offset, node.offset + count)
    probs = _softmax(np, x[samples] @ w[part].T + b[part])
    scores = above[:, None] - np.log(np.maximum(probs, x.dtype.type(_TINY)))
    near = scores < above[:, None] + x.dtype.type(op.beam)
    names = [child.name for child in node.children] + [str(word) for word in node.word_ids]
    for k, name in enumerate(names):
        for sample, score in zip(samples[near[:, k]].tolist(), scores[near[:, k], k]):
            found[sample].append((score, name))
        if k < len(node.children):
            _search(op, node.children[k], x, w, b, samples[near[:, k]], scores[near[:, k], k], found)


@register
@dataclass(frozen=True)
class HuffmanTreeHierarchy(Operator):
    """The Huffman tree of the classes 0 ... ``num_classes`` - 1, by their frequencies among the labels: a TreeProto.

    The output holds the serialized tree. The rarer a class, the longer its path. No gradient.

    Source: Huffman, "A Method for the Construction of Minimum-Redundancy Codes", 1952.
    """

    signature = "Labels (N): int -> Hierarchy (1): string"
    outputs_on_host = True
    inputs_on_host = True
    num_classes: int = -1

    def check(self) -> None:
        if self.num_classes < 1:
            raise ArgumentError(f"HuffmanTreeHierarchy: num_classes must be at least 1, got {self.num_classes}")


@dataclass
class _HuffmanNode:
    """A node of the tree: the number of labels below it, and its class or its two children."""

    count: int
    label: int = -1
    children: tuple[_HuffmanNode, ...] = ()

    def __lt__(self, other: _HuffmanNode) -> bool:
        return self.count < other.count


@kernel(HuffmanTreeHierarchy)
def huffman_tree(op: HuffmanTreeHierarchy, ctx: RunContext, labels: Any) -> tuple[Any, ...]:
    if labels.size and not 0 <= int(labels.min()) <= int(labels.max()) < op.num_classes:
        text = f"labels must lie in [0, {op.num_classes}), got values from {labels.min()} to {labels.max()}"
        raise ShapeError(f"{op.type}: {text}")
    heap: list[_HuffmanNode] = []
    for label, count in enumerate(np.bincount(labels, minlength=op.num_classes).tolist()):
        heapq.heappush(heap, _HuffmanNode(count, label))
    while len(heap) > 1:
        children = heapq.heappop(heap), heapq.heappop(heap)
        heapq.heappush(heap, _HuffmanNode(children[0].count + children[1].count, children=children))
    tree = TreeProto()
    tree.root_node.offset = 0
    _build(heap[0], tree.root_node, 2)
    made = np.empty(1, object)
    made[0] = tree.SerializeToString()
    return (made,)


def _build(source: _HuffmanNode, node: NodeProto, offset: int) -> int:
    """Add the children of ``source`` to ``node``; return the first free offset, as Caffe2 counts them."""
    for side, child in enumerate(source.children):
        if child.children:
            offset = _build(child, node.children.add(offset=offset), offset + 2)
        else:
            node.word_ids.append(child.label)
            offset += side
    return offset


def create_node_with_words(words: Iterable[int], name: str = "node") -> NodeProto:
    """Return a node whose leaves are these words, given by their ids."""
    return NodeProto(name=name, word_ids=words)


def create_node_with_nodes(nodes: Iterable[NodeProto], name: str = "node") -> NodeProto:
    """Return a node whose children are copies of these nodes."""
    return NodeProto(name=name, children=nodes)


def create_hierarchy(tree_proto: TreeProto) -> HierarchyProto:
    """Return the path to each word of a tree, for the argument ``hierarchy`` of HSoftmax (serialized).

    Each inner node has one row of weights for each child and word. The offset of its first row is written into the
    tree, for HSoftmaxSearch; ``size`` of the result is the total number of rows.
    """
    hierarchy = HierarchyProto(size=0)
    _add_paths(hierarchy, tree_proto.root_node, [])
    return hierarchy


def _add_paths(hierarchy: HierarchyProto, node: NodeProto, above: list[PathNodeProto]) -> None:
    length = len(node.children) + len(node.word_ids)
    node.offset = hierarchy.size
    hierarchy.size += length

    def path(target: int) -> list[PathNodeProto]:
        return [*above, PathNodeProto(index=node.offset, length=length, target=target)]

    for target, child in enumerate(node.children):
        _add_paths(hierarchy, child, path(target))
    for target, word in enumerate(node.word_ids, len(node.children)):
        hierarchy.paths.add(word_id=word, path_nodes=path(target))
