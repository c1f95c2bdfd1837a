"""Softmax, losses and accuracy of rows on a GPU: one or two launches each, against the array kernels in float64."""

from itertools import product

import numpy as np
import pytest

from checks import interpret
from netbuilder.proto import NetDef, OperatorError, ShapeError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from on_gpu import ON_GPU, graphs, launched, run_net
from switches import single

pytestmark = pytest.mark.gpu

SHAPES = {"few": (7, 10), "one": (3, 1), "many": (5, 700), "rows": (300, 3), "images": (2, 3, 4, 5)}
TOLERANCES = {"float16": 2e-3, "float32": 2e-5, "float64": 1e-12}


def case(shape, classes, rows, dtype, *, prob=False, weighted=False):
    """X, labels, weights and a gradient of the loss."""
    rng = np.random.default_rng(3)
    feeds = {"x": (4 * rng.standard_normal(shape)).astype(dtype), "d": np.asarray(0.5, dtype)}
    feeds["l"] = rng.random(shape).astype(np.float32) if prob else rng.integers(0, classes, rows).astype(np.int32)
    if weighted:
        feeds["w"] = rng.random(rows).astype(np.float32)
    return feeds


def compare(ops, feeds, dtype, count):
    """Run operators on a GPU, and compare their outputs with those of float64."""
    wanted = interpret(ops, {n: x.astype(np.float64) if x.dtype.kind == "f" else x for n, x in feeds.items()})
    names = [name for op in ops for name in op.output]
    with launched() as launches:
        found = run_net(ops, feeds, names, without=single("elementwise_chains"))
    assert len(launches) == count, launches
    for name in names:
        assert found[name].dtype == dtype and found[name].shape == wanted[name].shape
        scale = max(1.0, np.abs(wanted[name]).max())
        np.testing.assert_allclose(
            found[name], wanted[name], TOLERANCES[dtype], TOLERANCES[dtype] * scale, err_msg=name
        )


def loss_ops(kind, weighted, **arguments):
    given = ["x", "l", "w"] if weighted else ["x", "l"]
    return [
        make_op(kind, given, ["p", "loss"], **arguments),
        make_op(f"{kind}Gradient", [*given, "p", "d"], ["dx"], **arguments),
    ]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", SHAPES)
def test_softmax_with_loss(shape, dtype):
    shape = SHAPES[shape]
    rows, classes = shape[0], int(np.prod(shape[1:]))
    for prob, weighted, average in product((False, True), (False, True), (False, True)):
        ops = loss_ops(
            "SoftmaxWithLoss", weighted, label_prob=int(prob), scale=0.25, average_by_batch_size=int(average)
        )
        feeds = case(shape, classes, rows, dtype, prob=prob, weighted=weighted)
        compare(ops, feeds, dtype, 2 + (weighted and not average))


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("weighted", [False, True])
def test_spatial_softmax_with_loss(weighted, dtype):
    """Of positions with the label -1 only the probabilities are computed."""
    for shape in ((2, 3, 4, 5), (1, 20, 30, 11), (3, 1, 1, 1)):
        places = (shape[0], *shape[2:])
        feeds = case(shape, shape[1], places, dtype, weighted=weighted)
        feeds["l"][..., ::3] = -1
        compare(loss_ops("SpatialSoftmaxWithLoss", weighted, scale=2.0), feeds, dtype, 3)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", SHAPES)
def test_other_operators(shape, dtype):
    """Losses of probabilities, some of which are 0, and accuracies with equal scores."""
    shape = SHAPES[shape]
    rows, classes = shape[0], int(np.prod(shape[1:]))
    feeds = case(shape, classes, rows, dtype)
    feeds["q"] = np.abs(np.round(feeds["x"])) / 16
    feeds["scores"] = feeds["q"].reshape(rows, classes)
    feeds["t"], feeds["dy"] = feeds["x"] / 3, np.linspace(-1, 1, rows).astype(dtype)
    feeds["dq"] = feeds["x"][::-1].copy()
    feeds["wide"] = np.where(np.arange(rows) % 4 == 3, classes + 5, feeds["l"])
    clamped = {"float64": feeds["q"], "float32": feeds["q"], "float16": np.maximum(feeds["q"], 1 / 16)}[dtype]
    feeds["r"] = clamped.astype(dtype)
    ops = [
        make_op("Softmax", ["x"], ["y"]),
        make_op("SoftmaxGradient", ["y", "dq"], ["dy_dx"]),
        make_op("Softmax", ["x"], ["all"], axis=0),
        make_op("Accuracy", ["scores", "wide"], ["top1"]),
        make_op("Accuracy", ["scores", "wide"], ["top3"], top_k=3),
        make_op("LabelCrossEntropy", ["r", "l"], ["cross"]),
        make_op("CrossEntropy", ["r", "t"], ["soft"]),
        make_op("AveragedLoss", ["cross"], ["mean"]),
    ]
    compare(ops, feeds, dtype, len(ops))
    feeds["r"] = np.maximum(feeds["r"], np.asarray(1 / 16, dtype))  # slopes are finite
    ops = [make_op("LabelCrossEntropyGradient", ["r", "l", "dy"], ["dr"])]
    ops.append(make_op("CrossEntropyGradient", ["r", "t", "dy"], ["ds"]))
    compare(ops, feeds, dtype, len(ops))


@pytest.mark.parametrize("kind", ["SoftmaxWithLoss", "SpatialSoftmaxWithLoss"])
def test_gradients_are_those_of_the_losses_computed(kind):
    """Differences of the loss in float64, in a step of each element."""
    shape = (2, 3, 1, 2) if kind.startswith("Spatial") else (2, 3)
    feeds = case(shape, 3, (shape[0], *shape[2:]), "float64", weighted=True)
    forward, backward = loss_ops(kind, True, scale=0.5)
    dx = run_net([forward, backward], feeds, ["dx"])["dx"] / feeds["d"]

    def loss_at(place, step):
        x = feeds["x"].copy()
        x[place] += step
        return run_net([forward], {**feeds, "x": x}, ["loss"])["loss"]

    for place in np.ndindex(shape):
        slope = (loss_at(place, 1e-5) - loss_at(place, -1e-5)) / 2e-5
        np.testing.assert_allclose(dx[place], slope, atol=1e-8)


def test_wrong_labels_are_errors_with_the_operator():
    x, p = np.zeros((2, 3, 1, 1), np.float32), np.full((2, 3), 1 / 3, np.float32)
    for op, label, text in (
        (
            make_op("SpatialSoftmaxWithLoss", ["x", "l"], ["y", "loss"]),
            [[[0]], [[-2]]],
            r"-1 or lie in \[0, 3\).*got -2",
        ),
        (make_op("SoftmaxWithLossGradient", ["p", "l", "p", "d"], ["y"]), [3, 0], r"lie in \[0, 3\).*got 3"),
        (make_op("LabelCrossEntropy", ["p", "l"], ["y"]), [0, -1], r"lie in \[0, 3\).*got -1"),
    ):
        feeds = {"x": x, "p": p, "l": np.int32(label), "d": np.float32(1)}
        with pytest.raises((OperatorError, ShapeError), match=rf"operator 0: {op.type} .*{text}"):
            run_net([op], {name: feeds[name] for name in op.input}, ["y"])


def test_a_classifier_is_one_graph_and_the_same_in_each_run():
    """Sums over more rows than one block has, replayed; every operator can be captured."""
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((5000, 11)).astype(np.float32), "l": rng.integers(0, 11, 5000).astype(np.int32)}
    feeds |= {"d": np.float32(1), "w": rng.random(5000).astype(np.float32)}
    ops = [*loss_ops("SoftmaxWithLoss", True), make_op("Accuracy", ["p", "l"], ["accuracy"])]
    net = NetDef(name="net", op=ops)
    net.device_option.CopyFrom(ON_GPU)
    workspace = Workspace()
    for name, value in feeds.items():
        workspace.feed(name, value, ON_GPU)
    workspace.create_net(net)
    found = []
    for _ in range(5):
        workspace.run_net("net")
        found.append([np.asarray(workspace.fetch(name)) for name in ("loss", "dx", "accuracy")])
    assert set(graphs(workspace)) == {0}
    for each in found[1:]:
        for got, first in zip(each, found[0]):
            np.testing.assert_array_equal(got, first)
    wanted = interpret(ops, {n: x.astype(np.float64) if x.dtype.kind == "f" else x for n, x in feeds.items()})
    np.testing.assert_allclose(found[0][0], wanted["loss"], 1e-6)
    np.testing.assert_allclose(found[0][1], wanted["dx"], 1e-5, 1e-10)
    np.testing.assert_allclose(found[0][2], wanted["accuracy"], 1e-7)
