"""ParallelDo: the same parameters as without it, outputs, uneven and short batches, shared parameters, errors."""

import threading

import numpy as np
import pytest

from kernel_checks import needs_bfloat16
from netbuilder import parallel
from netbuilder.exchange import load_predictor, save_predictor
from netbuilder.graph import BlobReference, DeviceScope, NameScope, infer_shapes, reset_names
from netbuilder.graph.checks import check_net
from netbuilder.model import Initializer, ModelHelper, brew, rnn
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.ops.core.replication import Distributed, Merged, Replication
from netbuilder.parallel import ParallelDo
from netbuilder.passes.extract_predictor import extract_predictor
from netbuilder.passes.replicated_net import replicated_net
from netbuilder.proto import (
    PROTO_CPU,
    PROTO_CUDA,
    BlobError,
    DeviceError,
    GradientError,
    NetDef,
    NetError,
    ShapeError,
    UsageError,
)
from netbuilder.proto.arguments import arguments, make_device_option, make_op
from netbuilder.runtime import Workspace
from on_gpu import CLOSE
from parallel_models import OPTIMIZERS, Task, distance, in_float64, no_input, train
from toy_models import scaled_loss

COUNTS = [1, 2, 3, 4, 8]
FEW = [1, 2, 4]  # where a quick test has 3 and 8 in another way
FLOAT32, FLOAT64 = 1e-5, 1e-10
BATCHES = (24, 24, 24)
UNEVEN = (8, 7, 5, 2, 1, 8)


@pytest.fixture(autouse=True)
def _fresh_names():
    reset_names()


def mlp(model, x, label):
    """Two layers: x (N, 6), label (N,) of 4 classes; returns probabilities and loss."""
    h = brew.relu(model, brew.fc(model, x, "fc1", 6, 8), "fc1")
    return model.net.SoftmaxWithLoss([brew.fc(model, h, "fc2", 8, 4), label], ["softmax", "loss"])


def convnet(model, x, label):
    """A residual block of (N, 3, 8, 8) images made of the rows of x (N, 192)."""
    x, _ = model.net.Reshape(x, ["images", "shape"], shape=[-1, 3, 8, 8])
    x = brew.relu(model, brew.conv(model, x, "conv1", 3, 4, kernel=3, pad=1), "conv1")
    y = brew.conv(model, x, "conv2", 4, 4, kernel=3, pad=1)
    x = brew.average_pool(model, brew.sum(model, [x, y], "block"), "pooled", kernel=8)
    return model.net.SoftmaxWithLoss([brew.fc(model, x, "fc", 4, 4), label], ["softmax", "loss"])


def dropout(model, x, label):
    x = brew.fc(model, x, "fc1", 6, 32)
    x, _ = model.net.Dropout(x, ["dropped", "mask"], ratio=0.5, is_test=0)
    return model.net.SoftmaxWithLoss([brew.fc(model, x, "fc2", 32, 4), label], ["softmax", "loss"])


def table(model, x, label):
    """Rows of a table: a sparse gradient."""
    rows = model.create_param("table", [4, 6], Initializer("UniformFill", min=-0.5, max=0.5))
    x = model.net.Add([model.net.Gather([rows, label], "rows"), x], "added")
    return model.net.SoftmaxWithLoss([brew.fc(model, x, "fc", 6, 4), label], ["softmax", "loss"])


def tied(model, x, label):
    """A table that is also multiplied: one parameter with a sparse and a dense gradient."""
    rows = model.create_param("table", [4, 6], Initializer("UniformFill", min=-0.5, max=0.5))
    x = model.net.Add([model.net.Gather([rows, label], "rows"), x], "added")
    return model.net.SoftmaxWithLoss([model.net.MatMul([x, rows], "scores", trans_b=1), label], ["softmax", "loss"])


def lstm(model, x, label):
    """An LSTM over 2 steps of 3 features."""
    x, _ = model.net.Reshape(x, ["by_sample", "shape"], shape=[-1, 2, 3])
    x = model.net.Transpose(x, "sequence", axes=[1, 0, 2])
    _, last, *_ = rnn.LSTM(model, x, None, None, 3, 4, "lstm", outputs_with_grads=(1,))
    last, _ = model.net.Reshape(last, ["last", "last_shape"], shape=[-1, 4])
    return model.net.SoftmaxWithLoss([brew.fc(model, last, "fc", 4, 4), label], ["softmax", "loss"])


def branches(model, x, label):
    """An If, whose condition is the same on all devices."""
    yes, no = ModelHelper("yes"), ModelHelper("no")
    h = brew.fc(model, x, "fc1", 6, 8)
    yes.net.Relu(h, "h2")
    no.net.Tanh(h, "h2")
    model.net.GivenTensorBoolFill([], "condition", shape=[1], values=[True])
    brew.cond(model, "condition", [h, "h2"], yes, no)
    return model.net.SoftmaxWithLoss([brew.fc(model, "h2", "fc2", 8, 4), label], ["softmax", "loss"])


def in_scopes(model, x, label):
    """The same names in two name scopes, one in the other."""
    with NameScope("a"):
        x = brew.fc(model, x, "fc", 6, 6)
        with NameScope("a"):
            x = brew.relu(model, brew.fc(model, x, "fc", 6, 6), "fc")
    return model.net.SoftmaxWithLoss([brew.fc(model, x, "fc", 6, 4), label], ["softmax", "loss"])


NETS = {
    "mlp": (mlp, 6),
    "convnet": (convnet, 192),
    "dropout": (dropout, 6),
    "table": (table, 6),
    "both on one table": (tied, 6),
    "LSTM": (lstm, 6),
    "If": (branches, 6),
    "name scopes": (in_scopes, 6),
}


def batches(sizes, width=6, dtype=np.float32):
    rng = np.random.default_rng(7)
    for size in sizes:
        yield rng.normal(size=(size, width)).astype(dtype), rng.integers(0, 4, size).astype(np.int32)


def built(forward, count=0, optimizer=OPTIMIZERS["sgd"], **options):
    """Return a model over ``count`` devices; 0: without ParallelDo."""
    model = ModelHelper("net")
    if count:
        with ParallelDo(model, range(count), **options) as block:
            _, loss = forward(model, block.read_input("data"), block.read_input("label"))
            block.write_output("softmax")
            loss = block.write_output(loss, merge="mean")
    else:
        _, loss = forward(model, BlobReference("data"), BlobReference("label"))
    model.AddGradientOperators([loss])
    optimizer(model)
    return model


def fed(workspace, data, label):
    workspace.feed("data", data)
    workspace.feed("label", label)


def trained(model, sizes=BATCHES, width=6, *, dtype=np.float32, prepare=None, threads=2, **options):
    """Train; return the parameters, the last outputs and the workspace."""
    workspace = Workspace(threads=threads, seed=1)
    for number, batch in enumerate(batches(sizes, width, dtype)):
        fed(workspace, *batch)
        if number == 0:
            workspace.run_net_once(model.param_init_net)
            if prepare is not None:
                prepare(workspace)
            workspace.create_net(model.net, **options)
        workspace.run_net(model.net.Name())
    names = [*map(str, model.params), "softmax", "loss"]
    return [workspace.fetch(name) for name in names], workspace


def compare(forward, width=6, sizes=BATCHES, counts=COUNTS, bound=FLOAT32, optimizer=OPTIMIZERS["momentum"], **options):
    want, _ = trained(built(forward, 0, optimizer), sizes, width, **options)
    for count in counts:
        got, _ = trained(built(forward, count, optimizer), sizes, width, **options)
        assert [x.shape for x in got] == [x.shape for x in want]
        assert distance(got, want) < bound, count


# -- equal to one device ----------------------------------------------------------------------


@pytest.mark.one_in(4)
@pytest.mark.parametrize("counts", [FEW, pytest.param([3, 8], marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("name", NETS)
def test_equal_to_one_device(name, counts):
    forward, width = NETS[name]
    sparse = "table" in name
    compare(forward, width, counts=counts, optimizer=OPTIMIZERS["sgd" if sparse else "momentum"])


@pytest.mark.parametrize("name", NETS)
@pytest.mark.one_in(6)
def test_equal_with_uneven_and_short_batches(name):
    """Seven samples on three devices, two on eight: dropout draws what one device does, too."""
    forward, width = NETS[name]
    compare(forward, width, UNEVEN, [3, 8], optimizer=OPTIMIZERS["sgd"])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers(optimizer):
    compare(mlp, counts=[3], optimizer=OPTIMIZERS[optimizer])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("sizes", [BATCHES, UNEVEN])
def test_float64(sizes):
    compare(mlp, sizes=sizes, bound=FLOAT64, dtype=np.float64, prepare=in_float64)
    got, _ = trained(built(mlp, 3), dtype=np.float64, prepare=in_float64)
    assert {x.dtype for x in got} == {np.dtype(np.float64)}


def test_one_device_gives_the_same_bits():
    want, got = (trained(built(mlp, count))[0] for count in (0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(got, want))


def test_two_runs_give_the_same_bits():
    first, second = (trained(built(convnet, 3), width=192, threads=4)[0] for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second))


def test_normalization_is_that_of_parallelize():
    """Each device normalizes its own share; the running averages are those of the first device."""

    def forward(model, x, label):
        x, _ = model.net.Reshape(x, ["images", "shape"], shape=[-1, 3, 8, 8])
        x = brew.spatial_bn(model, brew.conv(model, x, "conv", 3, 4, kernel=3, pad=1), "bn", 4, is_test=False)
        x = brew.average_pool(model, brew.relu(model, x, "bn"), "pooled", kernel=8)
        return model.net.SoftmaxWithLoss([brew.fc(model, x, "fc", 4, 4), label], ["softmax", "loss"])

    model = built(forward, 3)
    _, workspace = trained(model, width=192)
    other = ModelHelper("other")
    record = parallel.Parallelize_CPU(
        other,
        no_input,
        lambda model, scale: [model.Scale(forward(model, "data", "label")[1], scale=scale)],
        optimizer_builder_fun=OPTIMIZERS["sgd"],
        devices=[0, 1, 2],
    )
    reference = Workspace(threads=2, seed=1)
    for number, (data, label) in enumerate(batches(BATCHES, 192)):
        for replica, scope in enumerate(record.devices.scopes):
            reference.feed(scope + "data", np.split(data, 3)[replica])
            reference.feed(scope + "label", np.split(label, 3)[replica])
        if number == 0:
            parallel.RunInitNet(other, workspace=reference)
        parallel.RunNet(other, workspace=reference)
    assert set(record.computed) == {"bn_rm", "bn_riv"}
    for name in (*record.parameters, *record.computed):
        got, want = workspace.fetch(name), reference.fetch(record.blobs(name)[0])
        assert np.abs(got - want).max() < 1e-5 * max(1, np.abs(want).max()), name


# -- normalization over all devices -----------------------------------------------------------


def normalized(model, x, label, order="NCHW"):
    """A residual block with normalization before a Relu and before a sum; x (N, 192)."""
    shape = [-1, 3, 8, 8] if order == "NCHW" else [-1, 8, 8, 3]
    x, _ = model.net.Reshape(x, ["images", "shape"], shape=shape)
    for number, channels in enumerate((3, 16)):
        y = brew.conv(model, x, f"conv{number}", channels, 16, kernel=3, pad=1, no_bias=1, order=order)
        y = brew.spatial_bn(model, y, f"bn{number}", 16, epsilon=1e-3, is_test=False, order=order)
        x = brew.sum(model, [x, y], "block") if number else brew.relu(model, y, "relu")
    x = brew.average_pool(model, x, "pooled", kernel=8, order=order)
    return model.net.SoftmaxWithLoss([brew.fc(model, x, "fc", 16, 4), label], ["softmax", "loss"])


STATISTICS = ["bn0_rm", "bn0_riv", "bn1_rm", "bn1_riv"]


def with_statistics(model, sizes, **options):
    found, workspace = trained(model, sizes, 192, **options)
    return [*found, *map(workspace.fetch, STATISTICS)]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("counts", [[3, 8], pytest.param(FEW, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("sizes", [BATCHES, UNEVEN], ids=["even", "uneven and short"])
def test_normalization_over_all_devices_is_that_of_one(sizes, counts):
    """Eight devices have at most one sample each, and fewer of them work for a short batch."""
    options = {"prepare": in_float64, "dtype": np.float64}
    want, want64 = (with_statistics(built(normalized), sizes, **more) for more in ({}, options))
    for count in counts:
        model = built(normalized, count, combine_spatial_bn=True)
        assert distance(with_statistics(model, sizes), want) < FLOAT32, count
        assert distance(with_statistics(model, sizes, **options), want64) < FLOAT64, count
    assert distance(with_statistics(built(normalized, 3), sizes), want) > 1e-3  # each device alone differs


@pytest.mark.parametrize(
    "options", [{"net_type": "simple"}, {"net_type": "async_scheduling"}, {"observable": ["softmax"]},
                {"memory_budget": 0.85, "observable": ["softmax"]}, {"threads": 4}, {"dtype": "bfloat16"}], ids=str
)  # fmt: skip
@pytest.mark.one_in(6)
def test_normalization_over_all_devices_with_other_options(options):
    bound = 0.03 if options.get("dtype") else FLOAT32
    kind, width = options.pop("net_type", None), options.pop("dtype", None)
    found = []
    for count in (0, 3):
        model = built(normalized, count, **({"combine_spatial_bn": True} if count else {}))
        if kind:
            model.net.set_type(kind)
        if width:
            model.net.set_activation_dtype(width)
        found.append(with_statistics(model, (24, 13), **options))
    assert distance(found[1], found[0]) < bound


def test_normalization_over_all_devices_with_channels_last():
    def forward(model, x, label):
        return normalized(model, x, label, order="NHWC")

    want = with_statistics(built(forward), UNEVEN)
    assert distance(with_statistics(built(forward, 3, combine_spatial_bn=True), UNEVEN), want) < FLOAT32


def test_devices_exchange_only_where_they_normalize_in_training_mode():
    """Not with one device, and not in test mode; a stored net knows that it exchanges."""
    for is_test in (False, True):
        model = ModelHelper("normalized")
        with ParallelDo(model, [0, 1], combine_spatial_bn=True) as block:
            x = model.net.Copy(block.read_input("x"), "images")
            block.write_output(brew.spatial_bn(model, x, "bn", 2, is_test=is_test))
        (op,) = model.net.Proto().op
        assert bool(arguments(op).get("combine_spatial_bn")) is not is_test
        x = np.random.default_rng(0).normal(size=(5, 2, 3, 3)).astype(np.float32)
        workspace = run(model, x=x)
        exchanged = [name for name in workspace.blobs() if name.endswith("_sums")]
        assert len(exchanged) == (0 if is_test else 2)
        mean, variance = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
        if is_test:
            mean, variance = np.zeros(2), np.ones(2)
        want = (x - mean.reshape(2, 1, 1)) / np.sqrt(variance + 1e-5).reshape(2, 1, 1)
        np.testing.assert_allclose(workspace.fetch("bn"), want, atol=1e-5)
        assert not [name for name in run(model, x=x[:1]).blobs() if name.endswith("_sums")]


def test_a_normalization_in_control_flow_over_all_devices_is_refused():
    def build(model, block):
        inner = ModelHelper("inner")
        x = block.read_input("x")
        inner.net.SpatialBN(["h", "s", "b", "m", "v"], ["y", "m", "v", "sm", "si"], is_test=0)
        blobs = [block.read_input(name, split=False) for name in "sbmv"]
        model.net.Copy(model.net.Copy(x, "h"), "y")
        brew.cond(model, block.read_input("c", split=False), ["h", *blobs, "y"], inner)
        block.write_output("y")

    refused(build, r"has SpatialBN .* in its subgraph, .*; use it outside of control flow, or", combine_spatial_bn=True)


def test_the_name_of_the_number_of_elements_must_be_free():
    model = ModelHelper("taken")
    with ParallelDo(model, [0, 1], combine_spatial_bn=True) as block:
        x = model.net.Copy(block.read_input("x"), "bn_sm_count")
        block.write_output(brew.spatial_bn(model, x, "bn", 2, is_test=False))
    with pytest.raises(NetError, match=r"\['cpu_0/taken/parallel_do/bn_sm_count'\] are names of blobs for the number"):
        run(model, x=np.ones((5, 2, 3, 3), np.float32))


@pytest.mark.parametrize("use_nccl", [False, True])
def test_normalization_over_gpus(four_gpus, use_nccl):
    want = with_statistics(built(normalized), (8, 7))
    reset_names()
    with DeviceScope(make_device_option(PROTO_CUDA, 0)):
        model = built(normalized, 3, device_type=PROTO_CUDA, combine_spatial_bn=True, use_nccl=use_nccl)
        assert distance(with_statistics(model, (8, 7)), want) < CLOSE


# -- outputs --------------------------------------------------------------------------------


def block_of(model, build, count=3, **options):
    with ParallelDo(model, range(count), **options) as block:
        build(block)
    return block


def run(model, **blobs):
    workspace = Workspace(threads=2)
    for name, value in blobs.items():
        workspace.feed(name, value)
    workspace.run_net_once(model.param_init_net)
    workspace.run_net_once(model.net)
    return workspace


X = np.arange(14, dtype=np.float32).reshape(7, 2) - 5


def test_outputs_are_concatenated_averaged_and_summed_and_have_gradients():
    """Against NumPy, with seven samples on three devices: the mean is that of the batch, not of the devices' means."""
    model = ModelHelper("merged")

    def build(block):
        x = block.read_input("x")
        model.net.Sqr(x, "rows")
        model.net.AveragedLoss("rows", "average")
        model.net.SumElements("rows", "total")
        block.write_output("rows")
        block.write_output("average", merge="mean")
        block.write_output("total", merge="sum")
        model.net.ExpandDims("average", "one", dims=[0])
        block.write_output("one")

    block = block_of(model, build)
    assert list(map(str, block.outputs)) == ["rows", "average", "total", "one"]
    workspace = run(model, x=X)
    squares = X * X
    np.testing.assert_array_equal(workspace.fetch("rows"), squares)
    np.testing.assert_allclose(workspace.fetch("average"), squares.mean(), rtol=1e-6)
    np.testing.assert_allclose(workspace.fetch("total"), squares.sum(), rtol=1e-6)
    np.testing.assert_allclose(
        workspace.fetch("one"), [squares[:3].mean(), squares[3:5].mean(), squares[5:].mean()], rtol=1e-6
    )
    sizes = workspace.fetch(f"{block.name}/sizes")
    assert sizes.tolist() == [[3, 2, 2], [3, 2, 2], [0, 0, 0], [0, 0, 0], [1, 1, 1]]


@pytest.mark.parametrize(
    "output, weight",
    [("rows", lambda: np.full((7, 1), 1)), ("average", lambda: 1 / 14), ("total", lambda: 1),
     ("one", lambda: np.repeat([1 / 6, 1 / 4, 1 / 4], [3, 2, 2])[:, None])],
)  # fmt: skip
def test_gradient_of_each_kind_of_output(output, weight):
    model = ModelHelper("merged")

    def build(block):
        model.net.Sqr(block.read_input("x"), "rows")
        model.net.AveragedLoss("rows", "average")
        model.net.SumElements("rows", "total")
        model.net.ExpandDims("average", "one", dims=[0])
        block.write_output(output, merge={"average": "mean", "total": "sum"}.get(output, "concat"))

    block_of(model, build)
    model.AddGradientOperators([output])
    np.testing.assert_allclose(run(model, x=X).fetch("x_grad"), 2 * X * weight(), rtol=1e-6)


def test_an_input_can_be_read_whole():
    """All devices read the same matrix, whose gradient is the sum over them."""
    model = ModelHelper("whole")

    def build(block):
        y = model.net.MatMul([block.read_input("x"), block.read_input("m", split=False)], "y")
        block.write_output(y)

    block_of(model, build)
    model.AddGradientOperators(["y"])
    m = np.float32([[1, 2], [3, -1]])
    workspace = run(model, x=X, m=m)
    np.testing.assert_allclose(workspace.fetch("y"), X @ m)
    np.testing.assert_allclose(workspace.fetch("m_grad"), X.T @ np.ones((7, 2), np.float32))


def test_a_row_lookup_in_a_whole_input_gets_a_sparse_gradient():
    model = ModelHelper("rows")

    def build(block):
        block.write_output(
            model.net.Gather([block.read_input("table", split=False), block.read_input("indices")], "rows")
        )

    block_of(model, build)
    gradients = model.AddGradientOperators(["rows"])
    indices = np.int32([1, 0, 1, 3, 1])
    workspace = run(model, table=X, indices=indices)
    slices = gradients["table"]
    np.testing.assert_array_equal(workspace.fetch(slices.indices), indices)
    np.testing.assert_array_equal(workspace.fetch(slices.values), np.ones((5, 2)))


# -- several blocks -------------------------------------------------------------------------


def test_a_parameter_of_two_blocks_and_of_the_rest_gets_the_sum_of_its_gradients():
    """Once in each of two blocks, twice in the second, and once outside."""

    def build(count):
        model = ModelHelper("shared")
        w = model.create_param("w", [2, 2], Initializer("GaussianFill", std=1.0))

        def first(x):
            return model.net.Tanh(model.net.MatMul([x, w], "h1"), "h1t")

        def second(x):
            return model.net.MatMul([model.net.Tanh(model.net.MatMul([x, w], "h2"), "h2t"), w], "h3")

        x = "x"
        for part in (first, second):
            if count:
                with ParallelDo(model, range(count)) as block:
                    x = block.write_output(part(block.read_input(x)))
            else:
                x = part(x)
        model.AddGradientOperators([model.net.SumElements(model.net.MatMul([x, w], "y"), "loss")])
        return run(model, x=X)

    want = build(0)
    for count in COUNTS:
        got = build(count)
        for blob in ("y", "w_grad", "x_grad"):
            assert distance([got.fetch(blob)], [want.fetch(blob)]) < FLOAT32, (count, blob)


def test_two_blocks_have_blobs_of_their_own():
    model = ModelHelper("two")
    names = []
    for output in ("a", "b"):
        with ParallelDo(model, [0, 1]) as block:
            model.net.Scale(block.read_input("x"), "h", scale=2.0 if output == "a" else 3.0)
            block.write_output(model.net.Copy("h", output))
        names.append(block.name)
    model.net.Copy("x", "h")  # not that of a block
    workspace = run(model, x=X)
    np.testing.assert_array_equal(workspace.fetch("a"), 2 * X)
    np.testing.assert_array_equal(workspace.fetch("b"), 3 * X)
    np.testing.assert_array_equal(workspace.fetch("h"), X)
    assert names == ["two/parallel_do", "two/parallel_do_auto_0"]
    np.testing.assert_array_equal(workspace.fetch("cpu_1/two/parallel_do_auto_0/h"), 3 * X[4:])


def test_a_block_in_a_block():
    def nested(model, x, label):
        with ParallelDo(model, [0, 1]) as block:
            h = brew.relu(model, brew.fc(model, block.read_input(x), "fc1", 6, 8), "h")
            h = block.write_output(h)
        return model.net.SoftmaxWithLoss([brew.fc(model, h, "fc2", 8, 4), label], ["softmax", "loss"])

    compare(nested, sizes=UNEVEN, counts=[3], optimizer=OPTIMIZERS["sgd"])


def test_an_output_is_read_by_operators_after_the_block():
    """The loss is averaged after the block, from a loss of each sample."""

    def built_so(count):
        model = ModelHelper("after")

        def losses(x, label):
            softmax = brew.softmax(model, brew.fc(model, x, "fc", 6, 4), "softmax")
            return model.net.LabelCrossEntropy([softmax, label], "losses")

        if count:
            with ParallelDo(model, range(count)) as block:
                each = losses(block.read_input("data"), block.read_input("label"))
                each = block.write_output(each)
                block.write_output("softmax")
        else:
            each = losses("data", "label")
        model.AddGradientOperators([model.net.AveragedLoss(each, "loss")])
        OPTIMIZERS["adam"](model)
        return model

    want, _ = trained(built_so(0), UNEVEN)
    for count in (2, 3):
        assert distance(trained(built_so(count), UNEVEN)[0], want) < FLOAT32, count


@pytest.mark.parametrize("kind", ["If", "While"])
def test_a_block_in_a_branch_and_in_a_loop(kind):
    """Against central differences in float64; the loop goes through the block twice."""
    model, inner = ModelHelper("model"), ModelHelper("inner")
    w = model.create_param("w", [2, 2], Initializer("GaussianFill", std=1.0))
    inner.params.append(w)
    with ParallelDo(inner, [0, 1]) as block:
        x = inner.net.Tanh(inner.net.MatMul([block.read_input("x"), w], "h"), "y")
        block.write_output(x)
    blobs = {"x": X, "c": np.array(True)}
    if kind == "If":
        brew.cond(model, "c", ["x", "w", "y"], inner)
        blobs["y"] = X
    else:
        inner.net.Copy("y", "x")
        inner.net.Add(["i", "one"], "i")
        inner.net.LT(["i", "n"], "c")
        brew.loop(model, "c", ["x", "w", "i", "one", "n", "c"], inner)
        blobs.update(i=np.float32(0), one=np.float32(1), n=np.float32(2))
    model.AddGradientOperators([model.net.SumElements("y" if kind == "If" else "x", "loss")])
    workspace = run(model, **blobs)
    w = workspace.fetch("w").astype(np.float64)

    def loss(w):
        y = np.tanh(X.astype(np.float64) @ w)
        return (y if kind == "If" else np.tanh(y @ w)).sum()

    steps = 1e-5 * np.eye(4).reshape(2, 2, 2, 2)
    want = [[(loss(w + steps[i, j]) - loss(w - steps[i, j])) / 2e-5 for j in range(2)] for i in range(2)]
    np.testing.assert_allclose(workspace.fetch("w_grad"), want, atol=1e-5)
    np.testing.assert_allclose(workspace.fetch("loss"), loss(w), rtol=1e-5)


def test_a_block_in_each_replica_of_parallelize():
    def forward(model, scale):
        with ParallelDo(model, [0, 1]) as block:
            h = brew.relu(model, brew.fc(model, block.read_input("data"), "fc1", 6, 8), "h")
            h = block.write_output(h)
        return scaled_loss(model, brew.fc(model, h, "fc2", 8, 4), scale)

    found = []
    for devices in ([0], [0, 1, 2]):
        _, record, workspace = train(devices, task=Task(forward))
        found.append([workspace.fetch(record.blobs(name)[-1]) for name in record.parameters])
    assert distance(found[1], found[0]) < FLOAT32


# -- the reductions ---------------------------------------------------------------------------


def test_gradients_are_reduced_when_they_are_ready_and_each_once():
    """The sum of the last layer's gradient stands before the backward pass of the first layer, on the last device."""
    model = built(mlp, 2)
    (gradient,) = (op for op in model.net.Proto().op if op.type == "ParallelDoGradient")
    found = arguments(gradient)
    inputs = [
        Distributed(outer, inner.decode(), mode.decode(), (1, 1))
        for outer, inner, mode in zip(gradient.input[1:], found["inner_inputs"], found["modes"])
    ]
    outputs = [
        Merged(outer, inner.decode(), merge.decode())
        for outer, inner, merge in zip(gradient.output, found["inner_outputs"], found["merge"])
    ]
    net = replicated_net(found["net"], Replication(PROTO_CPU, (0, 1), (1, 1), inputs, outputs))
    sums = {op.output[0]: index for index, op in enumerate(net.op) if op.type == "Sum"}
    assert sorted(sums) == sorted(f"{param}_grad" for param in model.params)
    last = max(index for index, op in enumerate(net.op) if op.type == "FCGradient")
    assert sums["fc2_w_grad"] < last < sums["fc1_w_grad"]
    assert list(net.op[sums["fc2_w_grad"]].input) == [
        "cpu_0/net/parallel_do/fc2_w_grad",
        "cpu_1/net/parallel_do/fc2_w_grad",
    ]


def test_callbacks_see_the_gradients_of_the_block_before_they_are_summed():
    """Each device's gradient of w is clipped to [-1, 1]; callbacks are called in order, for each operator."""

    def build(calls, count):
        model = ModelHelper("clipped")
        w = model.create_param("w", [2, 2], Initializer("ConstantFill", value=1.0))
        with ParallelDo(model, range(count)) as block:
            block.write_output(model.net.MatMul([block.read_input("x"), w], "y"))
        model.net.Negative("y", "z")
        model.AddGradientOperators(["z"], callbacks=calls)
        return model

    seen = []

    def clip(net, op):
        if op.output[0].endswith("w_grad") and op.type == "MatMul":
            net.Clip(op.output[0], op.output[0], min=-1.0, max=1.0)

    model = build([lambda net, op: seen.append((net.Name(), op.type)), clip], 3)
    assert [kind for _, kind in seen] == ["MatMul", "MatMul", "ConstantFill", "Negative", "ParallelDoGradient"]
    assert len({net for net, _ in seen}) == 2
    np.testing.assert_array_equal(run(model, x=np.abs(X) + 1).fetch("w_grad"), np.full((2, 2), -3))


def test_inputs_without_gradient_are_skipped():
    """Labels have none; a gradient that stops is not reduced."""
    model = ModelHelper("stopped")
    with ParallelDo(model, [0, 1]) as block:
        x = model.net.StopGradient(block.read_input("x"), "stopped")
        block.write_output(brew.fc(model, x, "fc", 2, 2))
    gradients = model.AddGradientOperators(["fc"])
    assert "x" not in gradients and "fc_w" in gradients
    assert run(model, x=X).fetch("fc_b_grad").tolist() == [7, 7]


def test_nets_for_a_batch_are_made_once(monkeypatch):
    """The devices at work are chosen when the net runs; a batch of a size seen before compiles nothing."""
    from netbuilder.runtime.execute import net as execute

    made = []
    original = execute.replicated_net

    def counted(net, replication):
        made.append(replication.shares)
        return original(net, replication)

    monkeypatch.setattr(execute, "replicated_net", counted)
    trained(built(mlp, 4), (8, 2, 8, 2) * 10)
    assert made == [(2, 2, 2, 2)] * 2 + [(1, 1)] * 2
    made.clear()
    trained(built(mlp, 4), (*range(1, 13), 1))
    assert len(made) == 2 * 13  # only the last 8 divisions are kept


def test_threads_are_made_once():
    model = built(mlp, 4)
    _, workspace = trained(model, threads=4)
    before = threading.active_count()
    workspace.run_net(model.net.Name(), iterations=50)
    assert threading.active_count() == before


# -- shapes, memory, files --------------------------------------------------------------------


def test_shapes_are_inferred():
    model = built(mlp, 3)
    specs = {"data": (7, 6), "label": TensorSpec((7,), np.dtype(np.int32))}
    found = infer_shapes([model.param_init_net, model.net], specs)
    assert found.shapes["softmax"] == (7, 4) and found.shapes["loss"] == ()
    assert found.shapes["net/parallel_do/sizes"] == (3, 3)
    with pytest.raises(ShapeError, match=r"ParallelDo .*net 'net/parallel_do', operator 0: FC .*"):
        infer_shapes([model.param_init_net, model.net], {**specs, "data": (7, 5)})


@pytest.mark.one_in(6)
@pytest.mark.parametrize("count, samples", [(3, 24), (3, 7), (8, 2)])
@pytest.mark.parametrize("name", [*NETS, "normalized"])
def test_inferred_shapes_are_those_of_a_run(name, count, samples):
    """Of all blobs outside the block, gradients too; If and recurrent operators have no shapes in advance."""
    forward, width = NETS.get(name, (normalized, 192))
    model = built(forward, count)
    _, workspace = trained(model, (samples,), width)
    data = {"data": (samples, width), "label": TensorSpec((samples,), np.dtype(np.int32))}
    found = infer_shapes([model.param_init_net, model.net], data)
    gradients = [str(gradient) for gradient in model.param_to_grad.values() if isinstance(gradient, BlobReference)]
    if name not in ("If", "LSTM"):
        assert not found.unknown and gradients
    for blob, shape in found.shapes.items():
        if workspace.has(blob) and workspace.spec(blob) is not None:
            assert workspace.spec(blob).shape == shape, blob


def test_shapes_of_gradients_are_inferred_in_nested_blocks_and_of_all_outputs():
    model = ModelHelper("nested")
    with ParallelDo(model, range(3)) as block:
        x, w = block.read_input("x"), block.read_input("w", split=False)
        with ParallelDo(model, range(2)) as inner:
            h = inner.write_output(model.net.MatMul([inner.read_input(x), inner.read_input(w, split=False)], "h"))
        block.write_output(h)
        block.write_output(model.net.SumElements(h, "total"), merge="sum")
    model.AddGradientOperators(["h", "total"])
    found = infer_shapes([model.net], {"x": (7, 2), "w": (2, 5)})
    assert {name: found.shapes[name] for name in ("h", "total", "x_grad", "w_grad")} == {
        "h": (7, 5), "total": (), "x_grad": (7, 2), "w_grad": (2, 5)
    }  # fmt: skip


@pytest.mark.one_in(4)
@pytest.mark.parametrize("options", [{"observable": "outputs"}, {"observable": "all"}, {"memory_budget": 0.5}])
def test_what_is_observable_changes_no_bit(options):
    model = built(convnet, 2)
    want, _ = trained(model, width=192)
    got, workspace = trained(model, width=192, **options)
    assert all(np.array_equal(a, b) for a, b in zip(got, want))
    hidden = "cpu_1/net/parallel_do/conv1_grad"
    assert (workspace.spec(hidden) is not None) is (options.get("observable") == "all")


@pytest.mark.parametrize("stored", [False, True], ids=["create_net", "set_observable"])
@pytest.mark.parametrize(
    "asked, devices",
    [("cpu_1/net/parallel_do/conv1_grad", [1]), ("net/parallel_do/conv1_grad", [0, 1]),
     ("net/parallel_do/conv2", [0, 1]), ("cpu_0/net/parallel_do/conv2", [0])],
)  # fmt: skip
@pytest.mark.one_in(6)
def test_blobs_of_a_block_can_be_requested(asked, devices, stored):
    """On one device, or on all; the values are those with all blobs observable, and nothing else is kept."""
    model = built(convnet, 2)
    want, everything = trained(model, (6,), 192, observable="all")
    if stored:
        model.net.set_observable("outputs", [asked, "softmax"])
    got, workspace = trained(model, (6,), 192, **({} if stored else {"observable": [asked, "softmax"]}))
    assert all(np.array_equal(a, b) for a, b in zip(got, want))
    name = asked.partition("net/")[2]
    kept = [device for device in range(2) if workspace.spec(f"cpu_{device}/net/{name}") is not None]
    assert kept == devices or (name.endswith("conv2") and not set(devices) - set(kept))
    for device in devices:
        blob = f"cpu_{device}/net/{name}"
        np.testing.assert_array_equal(workspace.fetch(blob), everything.fetch(blob))
    assert workspace.spec("cpu_1/net/parallel_do/block_grad") is None


def test_a_blob_of_a_block_in_a_block_can_be_requested():
    model = ModelHelper("nested")
    with ParallelDo(model, range(2)) as block:
        x = block.read_input("x")
        with ParallelDo(model, range(2)) as inner:
            h = model.net.Scale(inner.read_input(x), "h", scale=2.0)
            h = inner.write_output(model.net.Scale(h, "y", scale=3.0))
        block.write_output(h)
    workspace = Workspace()
    workspace.feed("x", X)
    workspace.create_net(model.net, observable="all")
    workspace.run_net("nested")
    (name,) = (name for name in workspace.blobs() if name.startswith("cpu_1/cpu_0/") and name.endswith("/h"))
    want = workspace.fetch(name)
    workspace = Workspace()
    workspace.feed("x", X)
    workspace.create_net(model.net, observable=[name])
    workspace.run_net("nested")
    np.testing.assert_array_equal(workspace.fetch(name), want)


def test_wrong_blobs_of_a_block_cannot_be_requested():
    """Of a device that there is not, of no operator, and a parameter, which is outside: the error names a near one."""
    model = built(mlp, 2)
    workspace = Workspace()
    fed(workspace, np.zeros((4, 6), np.float32), np.zeros(4, np.int32))
    workspace.run_net_once(model.param_init_net)
    for name in ("cpu_2/net/parallel_do/fc1", "cpu_0/net/parallel_do/fc3", "cpu_0/net/parallel_do/fc1_w"):
        with pytest.raises(BlobError, match=rf"net 'net' has no blob '{name}', .* did you mean .*parallel_do/fc1"):
            workspace.create_net(model.net, observable=[name])


def test_only_what_is_read_takes_memory():
    """A net without gradients keeps nothing of a block but its outputs; with gradients, what these read."""
    model = ModelHelper("deep")
    with ParallelDo(model, [0, 1]) as block:
        x = block.read_input("data")
        for layer in range(6):
            x = brew.relu(model, brew.fc(model, x, f"fc{layer}", 64, 64), f"fc{layer}")
        block.write_output(x)
    workspace = Workspace()
    workspace.feed("data", np.ones((256, 64), np.float32))
    workspace.run_net_once(model.param_init_net)
    workspace.create_net(model.net, observable="outputs")
    workspace.run_net(model.net.Name())
    inside = [name for name in workspace.blobs() if name.startswith("cpu_") and workspace.spec(name) is not None]
    assert inside == []


@pytest.mark.one_in(2)
@pytest.mark.parametrize("text", [False, True])
def test_a_stored_net_runs(text):
    from google.protobuf import text_format

    model = built(mlp, 3)
    want, _ = trained(model, UNEVEN)
    stored = NetDef()
    if text:
        text_format.Parse(text_format.MessageToString(model.net.Proto()), stored)
    else:
        stored.ParseFromString(model.net.Proto().SerializeToString())
    workspace = Workspace(threads=2, seed=1)
    for number, batch in enumerate(batches(UNEVEN)):
        fed(workspace, *batch)
        if number == 0:
            workspace.run_net_once(model.param_init_net)
            workspace.create_net(stored)
        workspace.run_net(stored.name)
    got = [workspace.fetch(name) for name in (*map(str, model.params), "softmax", "loss")]
    assert all(np.array_equal(a, b) for a, b in zip(got, want))


def test_a_model_for_tests_uses_the_trained_parameters():
    model = built(mlp, 3)
    _, workspace = trained(model)
    test = ModelHelper("test", init_params=False)
    with ParallelDo(test, range(2)) as block:
        mlp(test, block.read_input("data"), block.read_input("label"))
        block.write_output("softmax")
    plain = ModelHelper("plain", init_params=False)
    mlp(plain, "data", "label")
    found = []
    for one in (test, plain):
        workspace.run_net_once(one.net)
        found.append(workspace.fetch("softmax"))
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_a_predictor_can_be_extracted(tmp_path):
    model = built(mlp, 3)
    _, workspace = trained(model, UNEVEN)
    test = ModelHelper("test", init_params=False)
    with ParallelDo(test, range(2)) as block:
        x = brew.relu(test, brew.fc(test, block.read_input("data"), "fc1", 6, 8), "fc1")
        block.write_output(brew.softmax(test, brew.fc(test, x, "fc2", 8, 4), "softmax"))
    net, parameters = extract_predictor(test.net, ["data"], ["softmax"])
    assert parameters == ["fc1_w", "fc1_b", "fc2_w", "fc2_b"]
    save_predictor(tmp_path, net, parameters, workspace=workspace)
    data, _ = next(batches([8]))
    workspace.feed("data", data)
    workspace.run_net_once(test.net)
    for rows in (8, 1):
        got = load_predictor(tmp_path).run(data=data[:rows])["softmax"]
        np.testing.assert_allclose(got, workspace.fetch("softmax")[:rows], rtol=1e-5)


@needs_bfloat16
def test_in_bfloat16():
    """As far from float32 as the net without the block is."""
    found = []
    for count, dtype in ((0, "float32"), (0, "bfloat16"), (3, "bfloat16")):
        reset_names()
        model = built(convnet, count)
        model.net.set_activation_dtype(dtype)
        found.append(trained(model, width=192)[0])
    without, within = (distance(each, found[0]) for each in found[1:])
    assert 1e-5 < within < 2 * without


def test_the_check_finds_nothing():
    model = built(mlp, 3)
    assert check_net(model.net, init_net=model.param_init_net, inputs={"data": (7, 6), "label": np.zeros(7, "i")}) == []


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["simple", "dag", "async_scheduling"])
def test_in_each_kind_of_net(kind):
    model = built(mlp, 3)
    want, _ = trained(model, UNEVEN)
    model.net.set_type(kind)
    got, _ = trained(model, UNEVEN)
    assert all(np.array_equal(a, b) for a, b in zip(got, want))


# -- what is refused --------------------------------------------------------------------------


def test_nccl_on_the_cpu_warns_and_changes_nothing():
    with pytest.warns(UserWarning, match="use_nccl=True: NCCL exchanges values between GPUs; gradients of replicas on"):
        model = built(mlp, 2, use_nccl=True)
    want, got = (trained(each)[0] for each in (built(mlp, 2), model))
    assert all(np.array_equal(a, b) for a, b in zip(got, want))


def test_nccl_on_gpus_reduces_by_its_operators():
    """Checked on the net: there is no GPU here."""
    net = NetDef(name="net", op=[make_op("FC", ["x", "w", "b"], ["y"])])
    inputs = [Distributed("data", "x", "split", (2, 1)), *(Distributed(name, name, "whole") for name in "wb")]
    options = {"outputs": [Merged("y", "y", "sum")], "use_nccl": True}
    made = replicated_net(net, Replication(PROTO_CUDA, (2, 0), (2, 1), inputs, **options))
    assert [op.type for op in made.op] == ["Split", "FC", "FC", "NCCLReduce"]
    assert [op.device_option.device_id for op in made.op] == [2, 2, 0, 2]
    assert list(made.op[-1].input) == ["gpu_2/y", "gpu_0/y"] and list(made.op[-1].output) == ["y"]
    assert list(made.op[2].input) == ["gpu_0/x", "w", "b"]


def refused(build, match, error=NetError, **options):
    model = ModelHelper("refused")
    model.net.Copy("x", "h")
    before = model.net.Proto().SerializeToString()
    with pytest.raises(error, match=match):
        block_of(model, lambda block: build(model, block), **options)
    assert model.net.Proto().SerializeToString() == before


@pytest.mark.parametrize(
    "build, match, error",
    [
        (lambda model, block: block.write_output(model.net.Copy(block.read_input("x", split=False), "y")),
         "ParallelDo 'refused/parallel_do' has no input to split over the devices; call read_input", NetError),
        (lambda model, block: model.net.Copy(block.read_input("x"), "y"), "has no output; call write_output", NetError),
        (lambda model, block: block.write_output(model.net.Add([block.read_input("x"), "h"], "y")),
         "operator 0 Add .* reads 'h', which is neither an input of the block nor a parameter of model 'refused'; give "
         "it to the block by read_input", NetError),
        (lambda model, block: block.write_output(model.net.Add([block.read_input("x"), "x"], "y")),
         "reads 'x', which is neither .*; use the reference that read_input returned", NetError),
        (lambda model, block: block.write_output("y"), "no operator of the block writes 'y'", NetError),
        (lambda model, block: block.write_output(model.net.Copy(block.read_input("x"), "y"), merge="max"),
         "output 'y': merge must be one of concat, mean, sum, got 'max'", NetError),
        (lambda model, block: [block.write_output(model.net.Copy(block.read_input("x"), "y")),
                               block.write_output("y")], "'y' is an output already", NetError),
        (lambda model, block: block.read_input(model.net.Copy(block.read_input("x"), "y")),
         "'y' is made in the block, so it is no input", NetError),
        (lambda model, block: [block.read_input("x"), block.read_input("x", split=False)],
         "input 'x' is read both whole and split", NetError),
        (lambda model, block: model.net.Nothing("x", "y"), "'Nothing' is neither an operator nor a method", Exception),
    ],
)  # fmt: skip
def test_wrong_blocks(build, match, error):
    refused(build, match, error)


@pytest.mark.parametrize(
    "devices, options, match",
    [
        ([], {}, "devices must list at least one device"),
        ([0, -1], {}, "devices must be non-negative integers, got -1"),
        (["cpu"], {}, "devices must be non-negative integers, got 'cpu'"),
        ([0, 0], {}, "devices must all be different"),
        ([0], {"device_type": 9}, "device_type must be PROTO_CPU .* got 9"),
    ],
)
def test_wrong_devices(devices, options, match):
    with pytest.raises(NetError, match=match):
        ParallelDo(ModelHelper("refused"), devices, **options)


def test_wrong_calls():
    model = ModelHelper("refused")
    with pytest.raises(TypeError, match="the model must be a ModelHelper, got 'net'"):
        ParallelDo("net", [0])
    with pytest.raises(TypeError, match="use_nccl must be True or False, got 1"):
        ParallelDo(model, [0], use_nccl=1)
    block = ParallelDo(model, [0])
    with pytest.raises(UsageError, match="read_input must be called in its with block"):
        block.read_input("x")
    with block:
        block.write_output(model.net.Copy(block.read_input("x"), "y"))
    with pytest.raises(UsageError, match="write_output must be called in its with block"):
        block.write_output("y")
    with pytest.raises(UsageError, match="its block has been built already"), block:
        pass


@pytest.mark.parametrize(
    "merge, op_type, x, match",
    [
        ("concat", "Copy", X[:0], r"must have at least one sample, got 'x' of shape \(0, 2\)"),
        ("concat", "Copy", np.float32(3), r"must have at least one sample, got 'x' of shape \(\)"),
        ("sum", "Copy", X, r"'refused/parallel_do/y' has shape \(2, 2\) on device 1 and \(3, 2\) on device 0, so it "
         "cannot be merged by 'sum'; outputs with a row for each sample are merged by 'concat'"),
        ("mean", "Copy", X, "cannot be merged by 'mean'"),
        ("concat", "SumElements", X, "is one number on each device, which cannot be concatenated; merge it by 'mean'"),
        ("mean", "Size", X, "is of type int64, and only floating-point outputs are merged by 'mean'"),
    ],
)  # fmt: skip
def test_what_only_a_run_can_tell(merge, op_type, x, match):
    model = ModelHelper("refused")
    with ParallelDo(model, range(3)) as block:
        block.write_output(getattr(model.net, op_type)(block.read_input("x"), "y"), merge=merge)
    with pytest.raises(ShapeError, match=match):
        run(model, x=x)


def test_inputs_of_different_batches():
    model = built(mlp, 2)
    workspace = Workspace()
    fed(workspace, np.zeros((4, 6), np.float32), np.zeros(5, np.int32))
    workspace.run_net_once(model.param_init_net)
    with pytest.raises(ShapeError, match=r"the same number of samples, got 'data' of shape \(4, 6\), 'label'"):
        workspace.run_net_once(model.net)


def test_shapes_that_only_the_devices_know_must_fit_too():
    """Rows chosen by their values: as many on each device as it finds, the same in width."""
    model = ModelHelper("chosen")
    with ParallelDo(model, range(2)) as block:
        x = block.read_input("x")
        model.net.ReduceFrontSum(model.net.Transpose(x, "t"), "s")
        model.net.GT(["s", block.read_input("zero", split=False)], "positive", broadcast=1)
        y, _ = model.net.BooleanMask([x, "positive"], ["y", "indices"])
        block.write_output(y)
    model.AddGradientOperators(["y"])
    workspace = run(model, x=X, zero=np.zeros(1, np.float32))
    chosen = X.sum(axis=1) > 0
    np.testing.assert_array_equal(workspace.fetch("y"), X[chosen])


def test_a_sparse_gradient_of_a_split_input_is_refused():
    model = ModelHelper("split")
    with ParallelDo(model, [0, 1]) as block:
        block.write_output(model.net.Gather([block.read_input("x"), block.read_input("indices")], "y"))
    with pytest.raises(GradientError, match=r"input 'x' is split over the devices and gets a sparse gradient"):
        model.AddGradientOperators(["y"])


def test_an_error_in_the_block_names_the_device_and_the_line():
    model = ModelHelper("failing")
    with ParallelDo(model, range(2)) as block:
        x = block.read_input("x")
        model.net.EnforceFinite(x, [])
        block.write_output(model.net.Copy(x, "y"))
    x = X.copy()
    x[6, 1] = np.inf
    with pytest.raises(NetError, match=r"cpu_1/failing/parallel_do/x.* on CPU 1, made at .*test_parallel_do.py:\d+"):
        run(model, x=x)


def test_device_scopes_around_the_block_do_not_matter():
    model = ModelHelper("scoped")
    with DeviceScope(make_device_option(PROTO_CPU, 5)), ParallelDo(model, [0, 1]) as block:
        block.write_output(model.net.Copy(block.read_input("x"), "y"))
    np.testing.assert_array_equal(run(model, x=X).fetch("y"), X)


# -- GPUs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 4])
def test_on_gpus(four_gpus, count):
    """The same as on the CPU; each GPU has its share."""
    want, _ = trained(built(mlp, count), UNEVEN)
    reset_names()
    with DeviceScope(make_device_option(PROTO_CUDA, 0)):
        model = built(mlp, count, device_type=PROTO_CUDA)
        got, _ = trained(model, UNEVEN)
        assert distance(got, want) < CLOSE


def test_gpus_that_are_not_there():
    with pytest.warns(UserWarning, match=r"GPUs \[0, 1\] are not on this machine"):
        ParallelDo(ModelHelper("net"), [0, 1], device_type=PROTO_CUDA)
    with pytest.raises(DeviceError, match="devices=None means all GPUs"):
        ParallelDo(ModelHelper("net"), device_type=PROTO_CUDA)
