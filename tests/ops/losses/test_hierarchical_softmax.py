"""HSoftmax, its gradient, the search, and Huffman's tree."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.graph import Net
from netbuilder.ops.losses.hierarchical_softmax import (
    HSoftmax,
    HSoftmaxGradient,
    HSoftmaxSearch,
    HuffmanTreeHierarchy,
    create_hierarchy,
    create_node_with_nodes,
    create_node_with_words,
)
from netbuilder.proto import ArgumentError, ShapeError
from netbuilder.proto.hsm_pb2 import HierarchyProto, PathNodeProto, PathProto, TreeProto
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, i64, refusal

WIDTH = 3
TREE = TreeProto(
    root_node=create_node_with_nodes(
        [create_node_with_words([0, 1, 2], "low"), create_node_with_words([4], "one")], "root"
    )
)
TREE.root_node.word_ids.append(3)
HIERARCHY = create_hierarchy(TREE)
OP = HSoftmax(hierarchy=HIERARCHY.SerializeToString())
# Of each word: (first row of weights, rows, choice) on its way.
WAYS = {w: [(0, 3, 0), (3, 3, w)] for w in range(3)} | {3: [(0, 3, 2)], 4: [(0, 3, 1), (6, 1, 0)]}


def draw_inputs(data):
    labels = np.array(data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=5)), np.int32)
    x = data.draw(floats(labels.size, WIDTH))
    return [x, data.draw(floats(7, WIDTH)), data.draw(floats(7)), labels]


def steps(x, w, b, labels):
    """(sample, first row, choice, scores, probabilities) in the order of the intermediate output."""
    for sample, label in enumerate(labels.tolist()):
        for index, length, target in WAYS[label]:
            scores = np.array([w[index + k] @ x[sample] + b[index + k] for k in range(length)])
            yield sample, index, target, scores, np.exp(scores) / np.exp(scores).sum()


class TestHSoftmax(OperatorSuite):
    operator = HSoftmax
    wrt = (0, 1, 2)
    atol = 1e-5
    refusals = (
        refusal(
            HSoftmax(hierarchy=b"\xff"), [f32(1)] * 4, "hierarchy must be a serialized HierarchyProto", ArgumentError
        ),
        refusal(
            HSoftmax(
                hierarchy=HierarchyProto(
                    paths=[PathProto(word_id=7, path_nodes=[PathNodeProto(index=0, length=2, target=2)])]
                ).SerializeToString()
            ),
            [f32(1)] * 4,
            "word 7 has a node with index 0, length 2 and target 2",
            ArgumentError,
        ),
    )

    def draw(self, data):
        return OP, draw_inputs(data)

    def reference(self, op, x, w, b, labels):
        y, kept = np.zeros(len(labels)), []
        for sample, _, target, scores, chances in steps(x, w, b, labels):
            y[sample] -= np.log(chances[target])
            kept += [*scores, *chances]
        return [y, np.array(kept)]


class TestHSoftmaxGradient(OperatorSuite):
    operator = HSoftmaxGradient
    no_gradient = "a gradient operator"
    atol = 1e-5
    refusals = (refusal(HSoftmaxGradient(hierarchy=b"\xff"), [f32(1)] * 6, "serialized HierarchyProto", ArgumentError),)

    def draw(self, data):
        inputs = draw_inputs(data)
        _, kept = run_plain(OP, inputs)
        return HSoftmaxGradient(hierarchy=OP.hierarchy), [*inputs, kept, data.draw(floats(len(inputs[3])))]

    def reference(self, op, x, w, b, labels, kept, dy):
        dx, dw, db, d_kept = np.zeros_like(x), np.zeros_like(w), np.zeros_like(b), []
        for sample, index, target, scores, chances in steps(x, w, b, labels):
            one = np.arange(len(scores)) == target
            slope = dy[sample] * (chances - one)
            d_kept += [*slope, *(-dy[sample] * one / chances)]
            for k, value in enumerate(slope):
                dw[index + k] += value * x[sample]
                db[index + k] += value
                dx[sample] += value * w[index + k]
        return [dx, dw, db, np.array(d_kept)]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([(2, 4), (7, 3), (7,), (2,)], r"W must have shape \(at least 7, 4\).* got \(7, 3\)"),
        ([(2, 3), (6, 3), (6,), (2,)], r"W must have shape \(at least 7, 3\).* got \(6, 3\)"),
        ([(2, 3), (7, 3), (6,), (2,)], r"one number per row of W, got \(7, 3\) \(6,\)"),
        ([(2, 3), (7, 3), (7,), (3,)], r"one per sample, 2 in all, got \(3,\) int32"),
    ],
)
def test_shapes_that_do_not_fit(inputs, message):
    *parts, labels = (np.zeros(shape, np.float32) for shape in inputs)
    with pytest.raises(ShapeError, match=message):
        run_plain(OP, [*parts, labels.astype(np.int32)])


def test_a_label_that_is_no_word():
    inputs = [np.zeros(shape, np.float32) for shape in ((2, 3), (7, 3), (7,))]
    with pytest.raises(ShapeError, match="HSoftmax: label 9 of sample 1 is not a word of the hierarchy"):
        run_plain(OP, [*inputs, np.int32([0, 9])])


def test_it_learns():
    """Gradient descent through AddGradientOperators makes the labels likely."""
    rng, net = np.random.default_rng(0), Net("n")
    y, _ = net.HSoftmax(["x", "w", "b", "labels"], ["y", "kept"], hierarchy=OP.hierarchy)
    slopes = net.AddGradientOperators([net.AveragedLoss(y, "loss")])
    for name in "wb":
        net.WeightedSum([name, "one", slopes[name], "step"], name)
    workspace = Workspace()
    for name, shape in (("x", (5, WIDTH)), ("w", (7, WIDTH)), ("b", (7,))):
        workspace.feed(name, rng.standard_normal(shape).astype(np.float32))
    workspace.feed("labels", np.arange(5, dtype=np.int32))
    workspace.feed("one", np.float32([1]))
    workspace.feed("step", np.float32([-1]))
    workspace.create_net(net)
    workspace.run_net(net.Name(), iterations=300)
    assert workspace.fetch("loss") < 0.1


class TestHSoftmaxSearch(OperatorSuite):
    operator = HSoftmaxSearch
    no_gradient = "gives names"
    atol = 1e-5
    refusals = (
        refusal(
            HSoftmaxSearch(tree=b"\xff"), [f32(1)] * 3, "tree must be a serialized TreeProto", ArgumentError, n_out=2
        ),
        refusal(HSoftmaxSearch(), [f32(1)] * 3, "every node needs a name, and an offset", ArgumentError, n_out=2),
        refusal(
            HSoftmaxSearch(tree=TREE.SerializeToString(), topN=0),
            [f32(1)] * 3,
            "topN must be at least 1",
            ArgumentError,
        ),
    )

    def draw(self, data):
        x, w, b, _ = draw_inputs(data)
        op = HSoftmaxSearch(tree=TREE.SerializeToString(), beam=data.draw(st.sampled_from([0.7, 1.5, 100.0])), topN=4)
        return op, [x, w, b]

    def reference(self, op, x, w, b):
        names, scores = np.full((len(x), 4), b"", object), np.zeros((len(x), 4))
        for sample in range(len(x)):
            hits = {}
            for name, index, members in (
                ("root", 0, ["low", "one", "3"]),
                ("low", 3, ["0", "1", "2"]),
                ("one", 6, ["4"]),
            ):
                if name != "root" and name not in hits:
                    continue
                logits = w[index : index + len(members)] @ x[sample] + b[index : index + len(members)]
                loss = np.log(np.exp(logits).sum()) - logits
                above = hits.get(name, 0.0)
                hits |= {member: above + v for member, v in zip(members, loss) if v < op.beam}
            best = sorted(hits, key=hits.get)[:4]
            names[sample, : len(best)] = [name.encode() for name in best]
            scores[sample, : len(best)] = [hits[name] for name in best]
        return [None if np.diff(scores).size and near(scores) else names, scores]


def near(scores):
    """Whether two scores are so near that rounding decides their order (a node with one choice scores as that)."""
    return bool((abs(np.diff(scores)) < 1e-4).any())


class TestHuffmanTreeHierarchy(OperatorSuite):
    """Labels whose counts are 1, 2, 4, 8: each class is as deep as its rank says."""

    operator = HuffmanTreeHierarchy
    no_gradient = "gives a tree"
    refusals = (
        refusal(HuffmanTreeHierarchy(), [i64(3)], "num_classes must be at least 1, got -1", ArgumentError),
        refusal(HuffmanTreeHierarchy(num_classes=3), [f32(3)], "Labels must have elements of type int"),
    )

    def draw(self, data):
        self.order = data.draw(st.permutations(range(4)))
        labels = np.repeat(np.array(self.order), [1, 2, 4, 8])
        return HuffmanTreeHierarchy(num_classes=4), [np.random.default_rng(0).permutation(labels)]

    def reference(self, op, labels):
        a, b, c, d = self.order
        tree = TreeProto()
        tree.root_node.offset = 0
        inner = tree.root_node.children.add(offset=2)
        inner.children.add(offset=4, word_ids=[a, b])
        inner.word_ids.append(c)
        tree.root_node.word_ids.append(d)
        made = np.empty(1, object)
        made[0] = tree.SerializeToString()
        return [made]


def test_frequent_classes_have_short_ways():
    counts = [1, 2, 3, 4, 5, 6]
    (tree,) = run_plain(HuffmanTreeHierarchy(num_classes=6), [np.repeat(np.arange(6), counts)])
    depth = {path.word_id: len(path.path_nodes) for path in create_hierarchy(TreeProto.FromString(tree[0])).paths}
    assert sum(depth[k] * n for k, n in enumerate(counts)) == 51  # the least that any tree reaches
    with pytest.raises(ShapeError, match=r"labels must lie in \[0, 2\), got values from 0 to 2"):
        run_plain(HuffmanTreeHierarchy(num_classes=2), [np.array([0, 2])])
