"""Means whose divisors the data determine are those over the whole batch, on any number of shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from netbuilder import Workspace, parallel
from netbuilder.caffe2.python import data_parallel_model
from netbuilder.graph.batch_means import BatchMeans, Kind
from netbuilder.model import ModelHelper, brew
from netbuilder.ops.core.operator import InBatch
from netbuilder.ops.core.registry import find, operator_types
from netbuilder.optimizers import build_sgd
from netbuilder.proto import NetDef, NetError, TensorProto
from netbuilder.proto.arguments import make_op
from parallel_models import distance, no_input

WIDTH, CLASSES, MOST = 5, 4, 3
SHARES = [(2, 1), (3, 1), (1, 2)]  # devices, micro-batches
SIZES = (11, 2, 7)  # of the batches: 2 samples on 3 devices leave one without any


def scores(model, width=CLASSES, source="data"):
    return brew.fc(model, source, "scores", WIDTH, width)


def number(model, width=1):
    """A number for each sample, which depends on parameters."""
    return model.net.FlattenToVec(scores(model, width), "number")


def chances(model):
    return model.net.Softmax(scores(model), "chances")


def masked(model, x, name="rows"):
    """The rows of samples that are kept, of some shares none."""
    mask = model.net.Cast("keep", f"keep_{name}", to=TensorProto.BOOL)
    return model.net.BooleanMask([x, mask], [name, f"{name}_at"])[0]


def mean(model, x):
    return model.net.AveragedLoss(x, "loss")


def packed(model, x, name):
    """The items of sessions, without the padding."""
    return model.net.UnpackSegments(["lengths", x], name, max_length=MOST)


def items(model):
    """A number for each item of a session, without padding."""
    flat = model.net.Reshape("session", ["flat", "flat_shape"], shape=[-1, WIDTH])[0]
    rows = model.net.Reshape(brew.fc(model, flat, "scores", WIDTH, 1), ["of_items", "_shape"], shape=[-1, MOST])[0]
    return packed(model, rows, "items")


def images(model, channels=CLASSES):
    return brew.conv(model, "image", "scores", 2, channels, kernel=1)


# Each builds a forward pass, and returns its loss, before it is multiplied by the loss scale.


def softmax_with_loss(**options):
    def build(model):
        label = "chance" if options.get("label_prob") else "label"
        return model.net.SoftmaxWithLoss([scores(model), label, "weight"], ["softmax", "loss"], **options)[1]

    return build


def softmax_of_masked(model):
    rows, label = masked(model, scores(model)), masked(model, "label", "labels")
    softmax, loss = model.net.SoftmaxWithLoss([rows, label], ["softmax", "loss"])
    model.net.Accuracy([softmax, label], "accuracy")
    return loss


def spatial(*weight):
    return lambda model: model.net.SpatialSoftmaxWithLoss(
        [images(model), "place_label", *weight], ["softmax", "loss"], scale=0.5
    )[1]


def sigmoid_loss(model):
    return model.net.SigmoidCrossEntropyLoss([scores(model), "target"], "loss", scale=2.0)


def objects(model):
    """How many places of the images have an object: at least 1 is divided by, and some shares have none."""
    return model.net.SumElements("objects", "object_count")


def sigmoid_focal(model):
    inputs = [images(model, 3), "anchor_label", objects(model)]
    return model.net.SigmoidFocalLoss(inputs, "loss", num_classes=3, gamma=2.0)


def softmax_focal(model):
    inputs = [images(model, 4), "anchor_label", objects(model)]
    return model.net.SoftmaxFocalLoss(inputs, ["loss", "chances"], num_classes=4, gamma=2.0)[0]


def select_smooth_l1(model):
    """Each sample has one place, in the image that has the sample's number in its share."""
    ones = model.net.ConstantFill("label", "ones", value=1, dtype=TensorProto.INT32)
    row = model.net.Cast(model.net.LengthsToSegmentIds(ones, "image_number"), "image_float", to=TensorProto.FLOAT)
    places = model.net.Concat([model.net.ExpandDims(row, "column", dims=[1]), "place"], ["places", "_split"], axis=1)[0]
    return model.net.SelectSmoothL1Loss([images(model), "box", places, objects(model)], "loss")


def smooth_l1_of_masked(model):
    inputs = [masked(model, scores(model)), masked(model, "chance", "targets")]
    ones = model.net.ConstantFill(inputs[1], "ones", value=1.0)
    return model.net.SmoothL1Loss([*inputs, ones, ones], "loss")


def of_rows(loss):
    """The mean over the kept rows of a loss that there is for each sample."""
    return lambda model: mean(model, masked(model, loss(model)))


def over(reduction, **options):
    """Another mean over the kept rows."""

    def build(model):
        rows = masked(model, model.net.SquaredL2Distance([scores(model), "chance"], "squares"))
        return getattr(model.net, reduction)(rows, "loss", **options)

    return build


def sparse_rows(model):
    """Rows of a table, as many for a sample as it has items."""
    ids = packed(model, "ids", "all_ids")
    rows = model.net.Gather([scores(model, source="table_in"), ids], "gathered")
    return mean(model, rows)


def several(model):
    """Means with three divisors, one of which is the number of samples."""
    x = scores(model)
    weighted = model.net.SoftmaxWithLoss([x, "label", "weight"], ["softmax", "weighted"])[1]
    again = model.net.SoftmaxWithLoss([model.net.Tanh(x, "tanh"), "label", "weight"], ["softmax2", "again"])[1]
    plain = model.net.AveragedLoss(model.net.SquaredL2Distance([x, "chance"], "squares"), "plain")
    rows = model.net.AveragedLoss(masked(model, model.net.Sqr(x, "sqr")), "of_rows")
    return model.net.Sum([weighted, again, plain, rows], "loss")


def per_row(op_type, *others, outputs=1, **options):
    """The first output of an operator that reads a number, or a row, of each sample."""

    def build(model):
        made = getattr(model.net, op_type)(
            [other(model) if callable(other) else other for other in others],
            [f"out{i}" for i in range(outputs)] if outputs > 1 else "per_row",
            **options,
        )
        return made[0] if outputs > 1 else made

    return build


CASES: dict[str, Callable[[Any], Any]] = {
    "SoftmaxWithLoss": softmax_with_loss(),
    "SoftmaxWithLoss label_prob": softmax_with_loss(label_prob=1, scale=2.0),
    "SoftmaxWithLoss average_by_batch_size": softmax_with_loss(average_by_batch_size=1),
    "SoftmaxWithLoss of masked rows": softmax_of_masked,
    "SpatialSoftmaxWithLoss": spatial(),
    "SpatialSoftmaxWithLoss weights": spatial("place_weight"),
    "SigmoidCrossEntropyLoss": sigmoid_loss,
    "SigmoidFocalLoss": sigmoid_focal,
    "SoftmaxFocalLoss": softmax_focal,
    "SelectSmoothL1Loss": select_smooth_l1,
    "SmoothL1Loss": smooth_l1_of_masked,
    "AveragedLoss": of_rows(lambda model: model.net.Sqr(number(model), "squares")),
    "ReduceMean": over("ReduceMean"),
    "ReduceMean axes": over("ReduceMean", axes=[0], keepdims=0),
    "ReduceFrontMean": over("ReduceFrontMean"),
    "SumElements": over("SumElements", average=1),
    "LpNorm": over("LpNorm", average=1),
    "LabelCrossEntropy": of_rows(per_row("LabelCrossEntropy", chances, "label")),
    "CrossEntropy": of_rows(per_row("CrossEntropy", chances, "chance")),
    "SigmoidCrossEntropyWithLogits": of_rows(per_row("SigmoidCrossEntropyWithLogits", scores, "chance")),
    "WeightedSigmoidCrossEntropyWithLogits": of_rows(
        per_row("WeightedSigmoidCrossEntropyWithLogits", scores, "chance", "row_weight")
    ),
    "SquaredL2Distance": of_rows(per_row("SquaredL2Distance", scores, "chance")),
    "L1Distance": of_rows(per_row("L1Distance", scores, "chance")),
    "MarginRankingCriterion": of_rows(per_row("MarginRankingCriterion", number, "weight", "sign")),
    "CosineEmbeddingCriterion": of_rows(per_row("CosineEmbeddingCriterion", number, "sign", margin=0.1)),
    "BernoulliJSD": of_rows(
        lambda model: model.net.BernoulliJSD([model.net.Sigmoid(number(model), "chance_of"), "weight01"], "per_row")
    ),
    "PairWiseLoss": lambda model: mean(
        model,
        masked(model, model.net.PairWiseLoss([items(model), packed(model, "marks", "all_marks"), "lengths"], "pairs")),
    ),
    "LambdaRankNdcg": lambda model: mean(
        model,
        masked(
            model,
            model.net.LambdaRankNdcg([items(model), packed(model, "marks", "all_marks"), "lengths"], ["ndcg", "_dy"])[
                0
            ],
        ),
    ),
    "UnpackSegments": lambda model: mean(model, model.net.Sqr(items(model), "squares")),
    "several": several,
}
WITHOUT_COMBINATION = {"SoftmaxWithLoss average_by_batch_size"}


def batches(seed=3, sizes=SIZES):
    """Yield batches; weights and labels are uneven, and of a batch's first samples hardly one counts."""
    rng = np.random.default_rng(seed)
    f32, i32 = np.float32, np.int32
    for step, n in enumerate(sizes):
        counts = rng.uniform(size=n) < 0.5
        counts[: (n + 1) // 2 + step % 2] = False
        counts[-1] = step != 2  # nothing counts in the last batch
        counts &= step != 2
        far = np.abs(rng.normal(size=(n, 2, 2)))
        chance = rng.uniform(0.1, 1, (n, CLASSES))
        place_label = np.where(counts[:, None, None], rng.integers(-1, CLASSES, (n, 2, 2)), -1)
        anchors = np.where(counts[:, None, None, None], rng.integers(-1, 3, (n, 1, 2, 2)), -1)
        lengths = rng.integers(1, MOST + 1, n)
        yield {
            "data": rng.normal(size=(n, WIDTH)).astype(f32),
            "label": rng.integers(0, CLASSES, n).astype(i32),
            "chance": (chance / chance.sum(axis=1, keepdims=True)).astype(f32),
            "weight": (counts * rng.uniform(0.2, 3, n)).astype(f32),
            "weight01": rng.uniform(0.1, 0.9, n).astype(f32),
            "row_weight": rng.uniform(0.1, 2, (n, CLASSES)).astype(f32),
            "sign": rng.choice([-1, 1], n).astype(i32),
            "keep": counts.astype(i32),
            "image": rng.normal(size=(n, 2, 2, 2)).astype(f32),
            "place_label": place_label.astype(i32),
            "place_weight": far.astype(f32),
            "target": np.where(counts[:, None], rng.integers(-1, 2, (n, CLASSES)), -1).astype(i32),
            "anchor_label": anchors.astype(i32),
            "objects": (anchors > 0).astype(f32),
            "place": np.stack([0 * lengths, rng.integers(0, 2, n), rng.integers(0, 2, n)], axis=1).astype(f32),
            "box": rng.normal(size=(n, 4)).astype(f32),
            "lengths": lengths.astype(i32),
            "session": rng.normal(size=(n, MOST, WIDTH)).astype(f32),
            "marks": rng.integers(0, 3, (n, MOST)).astype(f32),
            "steps": rng.normal(size=(n, 4, WIDTH)).astype(f32),
            "text": rng.integers(1, CLASSES, (n, MOST)).astype(i32),
        }


def forward_of(build):
    def forward(model, loss_scale):
        return [model.net.Scale(build(model), "scaled", scale=loss_scale)]

    return forward


def inputs_of(model, record):
    made = {name for net in (model.param_init_net, model.net) for op in net.Proto().op for name in op.output}
    read = (record.devices.short_name(name) for op in model.net.Proto().op for name in op.input if name not in made)
    return dict.fromkeys(name for name in read if name not in ("share_weight", *record.step_divisors))


def build_case(build, devices, steps=1, **options):
    model = ModelHelper("net")
    options = {"cpu_device": True, "weighted_shares": True, "accumulate_steps": steps, **options}
    record = parallel.Parallelize(
        model, no_input, forward_of(build), optimizer_builder_fun=lambda m: build_sgd(m, 0.2, momentum=0.9),
        devices=list(devices), **options,
    )  # fmt: skip
    return model, record


def train_case(build, devices, steps=1, *, metrics=("loss",), sizes=SIZES, built=None, ahead=False, **options):
    """Return the parameters after some steps, and the mean of each metric over the samples of each step."""
    model, record = built or build_case(build, devices, steps, **options)
    workspace = Workspace(threads=1, seed=5)
    reader = parallel.loss_reader(model, metrics, workspace=workspace)
    wanted = inputs_of(model, record)
    own = [{name: batch[name] for name in wanted} for batch in batches(sizes=sizes)]
    for _ in parallel.feed_shares(model, own[0], workspace=workspace):
        pass
    parallel.RunInitNet(model, workspace=workspace)
    sums, counts = [], []

    def run(samples):
        parallel.RunNet(model, workspace=workspace)
        reader.read()
        found = reader.last()
        sums.append([found[name] * samples if samples else 0.0 for name in metrics])
        counts.append(samples)

    if ahead:
        with parallel.prefetch(model, own, blobs=list(wanted), workspace=workspace) as source:
            for given in source:
                run(len(next(iter(given.values()))))
    else:
        for batch in own:
            for given in parallel.feed_shares(model, batch, workspace=workspace):
                run(len(next(iter(given.values()))))
    of_steps = np.array(sums).reshape(len(sizes), steps, -1).sum(axis=1)
    params = [workspace.fetch(record.blobs(name)[0]) for name in record.parameters]
    return params, of_steps / np.array(counts).reshape(len(sizes), steps).sum(axis=1)[:, None]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.one_in(8)
def test_shares_give_what_one_device_gives(case):
    metrics = ("loss", "accuracy") if case == "SoftmaxWithLoss of masked rows" else ("loss",)
    want, losses = train_case(CASES[case], [0], metrics=metrics)
    assert np.isfinite(losses).all() and np.ptp(losses[:, 0]) > 0
    for devices, steps in SHARES:
        got, found = train_case(CASES[case], range(devices), steps, metrics=metrics)
        assert distance(got, want) < 1e-5, (devices, steps)
        np.testing.assert_allclose(found, losses, rtol=2e-5, atol=1e-6, err_msg=f"{devices} devices, {steps} parts")


def test_one_device_divides_by_the_weights_of_the_batch():
    """The judge of the others: a loss in float64 by NumPy, from the parameters before the first step."""
    model, record = build_case(CASES["SoftmaxWithLoss"], [0, 1, 2])
    batch = {name: array for name, array in next(batches()).items() if name in inputs_of(model, record)}
    workspace = Workspace(threads=1, seed=5)
    for _ in parallel.feed_shares(model, batch, workspace=workspace):
        pass
    parallel.RunInitNet(model, workspace=workspace)
    w, b = (workspace.fetch(f"cpu_0/scores_{name}").astype(np.float64) for name in "wb")
    parallel.RunNet(model, workspace=workspace)
    x = batch["data"] @ w.T + b
    losses = np.log(np.exp(x).sum(axis=1)) - x[np.arange(len(x)), batch["label"]]
    want = (losses * batch["weight"]).sum() / batch["weight"].sum()
    weights = [workspace.fetch(blob)[0] for blob in record.devices.copies("share_weight")]
    found = [float(workspace.fetch(blob)) for blob in record.devices.copies("loss")]
    assert np.average(found, weights=weights) == pytest.approx(want, rel=1e-5)
    assert 0.0 in found, "a share whose samples all have the weight 0"


def types(build, devices, steps=1, **options):
    return {op.type for op in build_case(build, devices, steps, **options)[0].net.Proto().op}


def plain(model):
    return mean(model, model.net.SquaredL2Distance([scores(model), "chance"], "squares"))


@pytest.mark.parametrize("devices, steps", [(2, 1), (2, 2)])
def test_nets_of_plain_means_are_not_changed(devices, steps):
    for build in (plain, CASES["SoftmaxWithLoss average_by_batch_size"]):
        found, left = (build_case(build, range(devices), steps, combine_means=flag) for flag in (True, False))
        assert [op.type for op in found[0].net.Proto().op] == [op.type for op in left[0].net.Proto().op]
        assert found[1] == left[1] and not found[1].combines_means
    assert "WholeBatchMean" not in types(CASES["several"], [0]), "one share divides by its own weights"
    assert "WholeBatchMean" not in types(CASES["several"], [0, 1], combine_means=False)


def test_without_combination_each_share_divides_by_its_own_weights():
    want, _ = train_case(CASES["SoftmaxWithLoss"], [0])
    got, _ = train_case(CASES["SoftmaxWithLoss"], [0, 1], combine_means=False)
    assert distance(got, want) > 1e-2


def test_means_with_one_divisor_have_one_exchange():
    ops = [op.type for op in build_case(CASES["several"], [0, 1])[0].net.Proto().op]
    assert ops.count("MeanDivisor") == 2 * 2 and ops.count("WholeBatchMean") == 2 * 3 * 2  # forward and backward
    assert ops.index("Sum") < ops.index("FC"), "the sums do not wait for the forward pass"


def normalized(model):
    x = brew.spatial_bn(model, images(model), "bn", CLASSES, is_test=False)
    return model.net.SpatialSoftmaxWithLoss([x, "place_label", "place_weight"], ["softmax", "loss"])[1]


@pytest.mark.one_in(8)
@pytest.mark.parametrize(
    "options",
    [
        {"shared_model": True},
        {"reduce_update_broadcast": True, "net_type": "simple"},
        {"optimize_gradient_memory": True, "deterministic": True},
        {"dynamic_memory_management": True},
        {"gradient_scaling": parallel.GradientScaling(initial=8.0)},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options(options):
    want, losses = train_case(CASES["several"], [0])
    for devices, steps in ((3, 1), (2, 2)):
        got, found = train_case(CASES["several"], range(devices), steps, **options)
        assert distance(got, want) < 1e-5
        np.testing.assert_allclose(found, losses, rtol=2e-5)


def test_together_with_batch_normalization_over_all_devices():
    want, losses = train_case(normalized, [0])
    got, found = train_case(normalized, [0, 1, 2], combine_spatial_bn=True)
    assert distance(got, want) < 1e-4
    np.testing.assert_allclose(found, losses, rtol=1e-4)


@pytest.mark.parametrize("use_nccl", [False, True], ids=["copies", "nccl"])
def test_gpus(use_nccl, two_gpus):
    want, losses = train_case(CASES["several"], [0])
    for steps in (1, 2):
        got, found = train_case(CASES["several"], [0, 1], steps, cpu_device=False, use_nccl=use_nccl)
        assert distance(got, want) < 1e-4
        np.testing.assert_allclose(found, losses, rtol=1e-4)


def test_prefetched_micro_batches():
    want, losses = train_case(CASES["several"], [0])
    for devices, steps in ((2, 1), (2, 2)):
        got, found = train_case(CASES["several"], range(devices), steps, ahead=True)
        assert distance(got, want) < 1e-5
        np.testing.assert_allclose(found, losses, rtol=2e-5)


def test_the_divisors_of_a_step_must_be_fed():
    model, record = build_case(CASES["SoftmaxWithLoss"], [0, 1], 2)
    batch = {name: array for name, array in next(batches()).items() if name in inputs_of(model, record)}
    workspace = Workspace(threads=1)
    parallel.RunInitNet(model, workspace=workspace)
    for name, array in batch.items():
        for blob in record.devices.copies(name):
            workspace.feed(blob, array)
    with pytest.raises(NetError, match="whose divisor must be fed before the first of them; feed the batch by feed_sh"):
        parallel.RunNet(model, workspace=workspace)
    for _ in parallel.feed_shares(model, batch, workspace=workspace):
        parallel.RunNet(model, workspace=workspace)
    with pytest.raises(NetError, match="must be fed"):
        parallel.RunNet(model, workspace=workspace)  # those of the last step are not those of the next one


# What shares cannot combine.


def divided_by_hand(model):
    losses = model.net.LabelCrossEntropy([chances(model), "label"], "each")
    total = model.net.SumElements(model.net.Mul([losses, "weight"], "weighted"), "total")
    return model.net.Div([total, model.net.SumElements("weight", "weights")], "loss")


def root(model):
    return model.net.Sqrt(plain(model), "root")


def product(model):
    return model.net.Mul([plain(model), model.net.AveragedLoss("squares", "again")], "product")


def centered(model):
    x = number(model)
    return mean(model, model.net.Sqr(model.net.Sub([x, model.net.AveragedLoss(x, "center")], "offset"), "squares"))


def total_of(model):
    return model.net.SumElements(model.net.Sqr(number(model), "squares"), "loss")


def counted_sum(model):
    return model.net.SigmoidCrossEntropyLoss([scores(model), "target"], "loss", normalize=0)


def largest(model):
    return model.net.ReduceMax(model.net.Sqr(number(model), "squares"), "loss", keepdims=0)


def of_padded(model):
    padded = model.net.PackSegments(["lengths", packed(model, "session", "all_items")], "padded")
    flat = model.net.Reshape(padded, ["flat", "flat_shape"], shape=[-1, WIDTH])[0]
    return mean(model, scores(model, 1, flat))


def of_columns(model):
    return mean(model, model.net.ReduceFrontMean([scores(model), "column_lengths"], "columns"))


BY_HAND = {
    "Div 'cpu_0/loss'": divided_by_hand,
    "Sqrt 'cpu_0/root'": root,
    "Mul 'cpu_0/product'": product,
    "Sub 'cpu_0/offset'": centered,
    "SumElements 'cpu_0/loss', at .*, is a sum over samples; use a mean": total_of,
    "SigmoidCrossEntropyLoss 'cpu_0/loss', at .*, is a sum": counted_sum,
    "ReduceMax 'cpu_0/loss', at .*, is over all samples": largest,
    "AveragedLoss 'cpu_0/loss', at .*, is a mean over rows, padding included": of_padded,
    "ReduceFrontMean 'cpu_0/columns', at .*, has a divisor of its own": of_columns,
}


@pytest.mark.parametrize("text", BY_HAND)
def test_a_script_that_divides_itself_is_warned(text):
    build = BY_HAND[text]
    for devices, steps in ((2, 1), (1, 2)):
        with pytest.warns(UserWarning, match=f"depend on the number of devices, .*: {text}") as given:
            build_case(build, range(devices), steps)
        assert len(given) == 1 and given[0].filename == __file__
    build_case(build, [0])
    build_case(build, [0, 1], combine_means=False)


def summed_again(model):
    """A mean, and the same times the sum of the weights that it is divided by, as translators have it."""
    loss = softmax_with_loss()(model)
    return loss, model.net.Mul([loss, model.net.SumElements("weight", "weights")], "total")


def test_a_mean_that_a_script_multiplies_by_its_weights_again_stays_that_of_the_share():
    with pytest.warns(UserWarning, match="Mul 'cpu_0/total', at .*, is a sum over samples; scale it"):
        ops = build_case(lambda model: summed_again(model)[1], [0, 1])[0].net.Proto().op
    assert "WholeBatchMean" not in {op.type for op in ops}


def test_such_a_sum_scaled_by_the_number_of_samples_is_not_warned_of():
    def train(devices):
        def build(model):
            return model.net.Scale(summed_again(model)[1], "of_number", scale=0.1 * devices)

        model, record = build_case(build, range(devices), weighted_shares=False)
        workspace = Workspace(seed=5)
        for step, batch in enumerate(batches(sizes=(6, 12, 6))):
            for name in inputs_of(model, record):
                for blob, part in zip(record.devices.copies(name), np.split(batch[name], devices)):
                    workspace.feed(blob, part)
            if not step:
                parallel.RunInitNet(model, workspace=workspace)
            parallel.RunNet(model, workspace=workspace)
        return [workspace.fetch(record.blobs(name)[0]) for name in record.parameters]

    for devices in (2, 3):
        assert distance(train(devices), train(1)) < 1e-5


def test_a_mean_that_is_a_loss_and_multiplied_by_its_weights_is_warned_of():
    with pytest.warns(UserWarning, match="Mul 'cpu_0/total', at .*, multiplies the mean of a share by its own divisor"):
        build_case(lambda model: summed_again(model)[0], [0, 1])


def test_a_metric_that_is_not_linear_does_not_change_the_loss():
    def build(model):
        loss = softmax_with_loss()(model)
        model.net.Exp(loss, "perplexity")
        return loss

    want, _ = train_case(build, [0])
    got, _ = train_case(build, [0, 1])
    assert distance(got, want) < 1e-5


def test_on_the_compatibility_layer_each_replica_divides_by_its_own_weights():
    for build in (CASES["SoftmaxWithLoss"], divided_by_hand):
        model = data_parallel_helper(build)
        assert "WholeBatchMean" not in {op.type for op in model.net.Proto().op}
    model = data_parallel_helper(CASES["SoftmaxWithLoss"], combine_means=True)
    assert "WholeBatchMean" in {op.type for op in model.net.Proto().op}


def data_parallel_helper(build, **options):
    """A model that a script of Caffe2 makes."""
    model = ModelHelper("net")
    data_parallel_model.Parallelize_CPU(
        model, no_input, forward_of(build), optimizer_builder_fun=lambda m: build_sgd(m, 0.2), devices=[0, 1], **options
    )
    return model


def test_linear_arithmetic_of_means_is_not_warned_of():
    def build(model):
        weighted = model.net.SoftmaxWithLoss([scores(model), "label", "weight"], ["softmax", "weighted"])[1]
        half = model.net.ConstantFill([], "half", shape=[], value=0.5)
        rest = model.net.AveragedLoss(model.net.Sqr("softmax", "squares"), "rest")
        both = model.net.Add([model.net.Mul([weighted, half], "a"), model.net.Div([rest, half], "b")], "both")
        of_weights = model.net.SumElements(model.net.Sqr("scores_w", "squares_w"), "decay")  # no samples
        mean_by_number = model.net.Scale(model.net.SumElements("softmax", "summed"), "of_number", scale=0.01)
        return model.net.Sum([both, model.net.Sqrt(of_weights, "norm"), mean_by_number], "loss")

    want, _ = train_case(build, [0])
    got, _ = train_case(build, [0, 1, 2])
    assert distance(got, want) < 1e-2  # but for the sum over a number of samples that is not that of the share


def test_rows_chosen_by_scores_are_combined_over_devices_and_warned_of_for_micro_batches():
    def build(model):
        x = number(model)
        chosen = model.net.GT([x, model.net.ConstantFill(x, "zeros", value=0.0)], "chosen")
        return mean(model, model.net.Sqr(model.net.BooleanMask([x, chosen], ["rows", "at"])[0], "squares"))

    want, losses = train_case(build, [0])
    got, found = train_case(build, range(3))
    assert distance(got, want) < 1e-5
    np.testing.assert_allclose(found, losses, rtol=2e-5)
    with pytest.warns(UserWarning, match="the divisors of these means are not known before a step: they depend on"):
        built = build_case(build, [0, 1], 2)
    train_case(build, [0, 1], 2, built=built)  # each micro-batch divides by its own


def test_a_mean_in_a_subgraph_is_warned_of():
    branch = NetDef(op=[make_op("SoftmaxWithLoss", ["scores", "label", "weight"], ["softmax", "loss"])])
    op = make_op("If", ["which", "scores", "label", "weight"], ["loss"], then_net=branch)
    found = BatchMeans([op], ["which"])
    assert found.kind("loss") == Kind.MIXED
    assert found.why("loss").startswith("If 'loss' has SoftmaxWithLoss 'softmax', 'loss' in its subgraph, where")


# The other ways to several shares.


def weighted_scores(helper, data):
    return brew.fc(helper, data, "scores", WIDTH, CLASSES)


def weighted_loss(helper, x, label, weight):
    return helper.net.SoftmaxWithLoss([x, label, weight], ["softmax", "loss"])[1]


def test_the_wrapper_in_training_and_in_test_mode():
    def results(count):
        wrapper = parallel.DataParallel(
            weighted_scores, list(range(count)), loss=weighted_loss, optimizer=lambda helper: build_sgd(helper, 0.2),
            cpu_device=True, gather=True, workspace=Workspace(threads=1, seed=5), name="net",
        )  # fmt: skip
        losses = []
        for step, batch in enumerate(batches(sizes=(11, 7, 9, 6))):
            wrapper.train(step % 2 == 0)
            wrapper(batch["data"])
            losses.append(wrapper.loss(batch["label"], batch["weight"]))
            if step % 2 == 0:
                wrapper.backward()
                wrapper.step()
        return list(wrapper.parameters().values()), list(map(float, losses))

    want, losses = results(1)
    for count in (2, 3):
        got, found = results(count)
        assert distance(got, want) < 1e-6
        np.testing.assert_allclose(found, losses, rtol=1e-5)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("build", [CASES["SoftmaxWithLoss"], CASES["several"]], ids=["weights", "several"])
def test_a_block_on_several_devices(build):
    def results(count):
        model = ModelHelper("net")
        names = ["data", "label", "weight", "chance", "keep"]
        with parallel.ParallelDo(model, devices=range(count)) as block:
            for name in names:  # under the names that the builders use
                model.net.Copy(block.read_input(f"whole_{name}"), name)
            loss = block.write_output(build(model), merge="mean")
        model.AddGradientOperators([loss])
        build_sgd(model, 0.2)
        workspace, losses = Workspace(threads=1, seed=5), []
        workspace.run_net_once(model.param_init_net)
        for step, batch in enumerate(batches()):
            for name in names:
                workspace.feed(f"whole_{name}", batch[name])
            if step == 0:
                workspace.create_net(model.net)
            workspace.run_net(model.net.Name())
            losses.append(float(workspace.fetch(str(loss))))
        return [workspace.fetch(str(param)) for param in model.params], losses

    want, losses = results(1)
    for count in (2, 3):
        got, found = results(count)
        assert distance(got, want) < 1e-5
        np.testing.assert_allclose(found, losses, rtol=1e-5)


def test_evaluation_of_uneven_shares():
    """The net has only the forward pass, and the last batch has other sizes on the devices."""

    def results(count):
        model = ModelHelper("net", init_params=False)
        record = parallel.Parallelize_CPU(
            model, no_input, forward_of(CASES["SoftmaxWithLoss of masked rows"]), devices=range(count),
            weighted_shares=True,
        )  # fmt: skip
        workspace = Workspace(threads=1)
        rng = np.random.default_rng(0)
        w, b = rng.normal(size=(CLASSES, WIDTH)).astype(np.float32), np.zeros(CLASSES, np.float32)
        for blob_w, blob_b in zip(record.devices.copies("scores_w"), record.devices.copies("scores_b")):
            workspace.feed(blob_w, w)
            workspace.feed(blob_b, b)
        reader, found = parallel.loss_reader(model, ["loss", "accuracy"], workspace=workspace), []
        for step, batch in enumerate(batches(sizes=(9, 5))):
            given = {name: batch[name] for name in ("data", "label", "keep")}
            for _ in parallel.feed_shares(model, given, workspace=workspace):
                if step == 0:
                    parallel.CreateNet(model, workspace=workspace)
                parallel.RunNet(model, workspace=workspace)
                reader.read()
                found.append(list(reader.last().values()))
        return found

    want = results(1)
    for count in (2, 3):
        np.testing.assert_allclose(results(count), want, rtol=1e-5)


def test_replicas_that_train_on_their_own_divide_by_the_weights_of_all_their_micro_batches():
    def results(steps):
        model = ModelHelper("net")
        record = parallel.Parallelize_CPU_BMUF(
            model, no_input, forward_of(CASES["several"]), lambda m: build_sgd(m, 0.2), devices=[0, 1],
            block_iterations=2, accumulate_steps=steps, weighted_shares=True,
        )  # fmt: skip
        workspace = Workspace(threads=1, seed=5)
        wanted, first = inputs_of(model, record), True
        for batch in batches(sizes=(12, 8, 12, 4)):
            for _ in parallel.feed_shares(model, {name: batch[name] for name in wanted}, workspace=workspace):
                if first:
                    parallel.RunInitNet(model, workspace=workspace)
                first = False
                parallel.RunNet(model, workspace=workspace)
        return [workspace.fetch(blob) for name in record.parameters for blob in record.blobs(name)]

    want = results(1)
    assert distance(results(2), want) < 1e-5


LINEAR_ARGUMENTS = {
    "Cast": {"to": TensorProto.FLOAT}, "ExpandDims": {"dims": [0]}, "FloatToHalf": {}, "Reshape": {"shape": [3, 4]},
    "Scale": {"scale": 3.0}, "Squeeze": {"dims": [0]},
}  # fmt: skip
OTHER_DEVICES = {"CopyCPUToGPU", "CopyGPUToCPU", "EnsureCPUOutput"}


@pytest.mark.parametrize(
    "kind", [name for name in operator_types() if InBatch.LINEAR in find(name).in_batch and name not in OTHER_DEVICES]
)
def test_operators_that_say_so_are_linear(kind):
    """The sum of two inputs gives the sum of their outputs, negative elements included."""
    rng, cls, workspace = np.random.default_rng(1), find(kind), Workspace(threads=1)
    count = 2 if cls.n_in == 2 or cls.inputs[0].endswith("+") else 1
    shape = (1, 4, 3) if kind == "Squeeze" else (4, 3)
    dtype = np.float16 if kind == "HalfToFloat" else np.float32

    def run(inputs):
        names = [f"x{i}" for i in range(count)]
        for name, value in zip(names, inputs):
            workspace.feed(name, value)
        outputs = [f"y{i}" for i in range(cls.n_out)]
        workspace.run_operator_once(make_op(kind, names, outputs, **LINEAR_ARGUMENTS.get(kind, {})))
        return workspace.fetch("y0").astype(np.float64) if outputs else np.zeros(1)

    one, other = (list(rng.integers(-8, 8, (count, *shape)).astype(dtype)) for _ in range(2))
    both = run([a + b for a, b in zip(one, other)])
    np.testing.assert_allclose(both, run(one) + run(other), rtol=1e-5, atol=1e-5)


def test_every_operator_with_a_divisor_of_its_own_has_a_case():
    declared = {op_type for op_type in operator_types() if "batch_mean" in vars(find(op_type))}
    no_gradient = {"SumSqrElements"}
    tested = {op.type for build in CASES.values() for op in build_case(build, [0])[0].net.Proto().op}
    assert sorted(declared - tested - no_gradient) == []
