"""The finder of NaN and infinities: the first blob and operator of a run, wherever it is."""

import numpy as np
import pytest

from netbuilder import ModelHelper, Workspace, brew
from netbuilder.graph import Net
from netbuilder.model import rnn
from netbuilder.optimizers import build_sgd
from netbuilder.parallel import CreateNet, DataParallel, ParallelDo, Parallelize_CPU, RunInitNet, RunNet
from netbuilder.proto import DistributedError, NetDef, NetError, OperatorError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime.execute.not_finite import NotFiniteError
from switches import single
from thread_ranks import on_ranks, thread_worlds
from toy_models import scaled_loss, softmax_loss


def planted():
    """A net that takes the logarithm of what a Relu has left, and hides the infinity in an Exp."""
    net = Net("planted")
    net.Relu("x", "r")
    net.Log("r", "y")
    net.Exp("y", "z")
    return net


def workspace_with(**blobs):
    workspace = Workspace()
    for name, value in blobs.items():
        workspace.feed(name, np.asarray(value))
    return workspace


def test_a_planted_log_of_zero():
    workspace = workspace_with(x=np.float32([[1, 0], [-1, 3]]))
    name = workspace.create_net(planted())
    workspace.run_net(name)
    assert np.isfinite(workspace.fetch("z")).all()  # nothing of it is left at the end
    with pytest.raises(NotFiniteError) as caught:
        workspace.run_net(name, find_nan=True)
    found = caught.value.found
    assert (found.blob, found.operator, found.op_type, found.net) == ("y", 1, "Log", "planted")
    assert (found.nan, found.infinite, found.size, found.index, found.run) == (0, 2, 4, (0, 1), 2)
    assert "test_not_finite.py" in found.source and "in planted" in found.source
    assert str(caught.value).startswith("net 'planted', operator 1: Log ['r'] -> ['y'], made at ")
    assert "has 2 inf of 4 elements, first at (0, 1); 'r' is in [0, 3]" in str(caught.value)
    assert isinstance(caught.value, OperatorError) and isinstance(caught.value, FloatingPointError)


def test_a_net_that_is_created_with_the_finder():
    workspace = workspace_with(x=np.float32([1, 2]))
    name = workspace.create_net(planted(), find_nan=True)
    workspace.run_net(name, 3)
    workspace.feed("x", np.float32([1, 0]))
    with pytest.raises(NotFiniteError, match="of run 4 that is not finite"):
        workspace.run_net(name, 3)
    workspace.feed("x", np.float32([1, 3]))
    workspace.run_net(name)
    assert np.allclose(workspace.fetch("z"), [1, 3])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_input_is_named_as_the_input(value):
    workspace = workspace_with(x=np.float32([1, value]))
    name = workspace.create_net(planted())
    with pytest.raises(
        NotFiniteError, match="before run 1: its input 'x'.*no operator of this net has computed it"
    ) as at:
        workspace.run_net(name, find_nan=True)
    assert at.value.found.blob == "x" and at.value.found.operator is None
    assert not workspace.has("r") or workspace.get("r").is_empty  # nothing has run


def test_nan_only():
    """A net may use infinities on purpose, such as a mask before a Softmax."""
    workspace = workspace_with(x=np.float32([1, 0]))
    name = workspace.create_net(planted())
    workspace.run_net(name, find_nan="nan")
    workspace.feed("x", np.float32([1, np.inf]))
    workspace.run_net(name, find_nan="nan")
    net = Net("difference")
    net.Log("x", "y")
    net.Sub(["y", "y"], "z")
    workspace.feed("x", np.float32([1, 0]))
    with pytest.raises(NotFiniteError, match=r"Sub .* has 1 NaN of 2 elements, first at \(1,\)"):
        workspace.run_net_once(net, find_nan="nan")


def test_a_large_finite_sum_is_finite():
    workspace = workspace_with(x=np.full(8, 3e38, np.float32))
    net = Net("large")
    net.Relu("x", "y")
    workspace.run_net_once(net, find_nan=True)


def test_another_value():
    workspace = workspace_with(x=np.float32([1]))
    with pytest.raises(NetError, match="find_nan must be True, False or 'nan' .for NaN only., got 'inf'"):
        workspace.create_net(planted(), find_nan="inf")


def convnet(model, x="data"):
    x = brew.conv(model, x, "conv", 3, 4, kernel=3, pad=1)
    x = brew.relu(model, brew.spatial_bn(model, x, "bn", 4, is_test=False), "relu")
    x = model.net.Sum([x, brew.conv(model, x, "branch", 4, 4, kernel=1)], "sum")
    x = brew.relu(model, x, "sum_relu")
    return brew.fc(model, model.net.AveragePool(x, "pool", global_pooling=True), "fc", 4, 3)


def trained(**options):
    """Return a workspace with a created training step of a small convnet."""
    model = ModelHelper("convnet")
    model.AddGradientOperators([softmax_loss(model, convnet(model))])
    build_sgd(model, 0.1, momentum=0.9)
    rng = np.random.default_rng(0)
    workspace = workspace_with(data=rng.standard_normal((4, 3, 6, 6), dtype=np.float32), label=np.int32([0, 1, 2, 1]))
    workspace.run_net_once(model.param_init_net)
    return workspace, workspace.create_net(model.net, **options), model


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", [{}, {"observable": "outputs"}, {"memory_budget": 0.9}, {"dtype": "bfloat16"}])
def test_inside_fused_kernels_and_hidden_blobs(options):
    """Values between operators that run as one kernel otherwise, and that cannot be fetched."""
    workspace, name, _ = trained(**options)
    workspace.run_net(name, 2)
    workspace.run_net(name, find_nan=True)
    scale = workspace.fetch("bn_s")
    scale[2] = 3e38
    workspace.feed("bn_s", scale)
    bias = workspace.fetch("bn_b")
    bias[2] = 3e38
    workspace.feed("bn_b", bias)
    with pytest.raises(NotFiniteError) as caught:
        workspace.run_net(name, find_nan=True)
    assert (caught.value.found.blob, caught.value.found.op_type) == ("bn", "SpatialBN")
    assert "SpatialBN ['conv', 'bn_s', 'bn_b'" in str(caught.value)


def test_in_the_backward_pass():
    workspace = workspace_with(x=np.float32([0.0, 4.0]))
    model = ModelHelper("roots")
    loss = model.net.AveragedLoss(model.net.Sqrt("x", "root"), "loss")
    gradients = model.AddGradientOperators([loss])
    assert gradients
    with pytest.raises(NotFiniteError) as caught:
        workspace.run_net_once(model.net, find_nan=True)
    assert caught.value.found.blob == "x_grad" and caught.value.found.infinite == 1


def test_training_with_the_finder_gives_the_same_parameters():
    """As without fusions: it runs the same kernels."""
    results = []
    for options, find in (({"without": ["fusion", *single("unread_outputs")]}, False), ({}, True)):
        workspace, name, model = trained(**options)
        workspace.run_net(name, 3, find_nan=find)
        results.append({str(param): workspace.fetch(str(param)) for param in model.GetParams()})
    assert len(results[0]) > 6
    for name, value in results[0].items():
        assert (value == results[1][name]).all(), name


def lstm():
    model = ModelHelper("lstm")
    output, *_ = rnn.LSTM(model, "x", "lengths", ("h0", "c0"), 3, 4, "lstm")
    rng = np.random.default_rng(0)
    workspace = workspace_with(
        x=rng.standard_normal((5, 2, 3), dtype=np.float32), lengths=np.int32([5, 5]),
        h0=np.zeros((1, 2, 4), np.float32), c0=np.zeros((1, 2, 4), np.float32),
    )  # fmt: skip
    workspace.run_net_once(model.param_init_net)
    return model, workspace, output


def recurrent():
    """An operator that takes the logarithm of x[t], after a Relu, in each step of a step net."""
    step = NetDef(name="step", op=[
        make_op("Relu", ["x_t"], ["r"]), make_op("Log", ["r"], ["l"]), make_op("Exp", ["l"], ["e"]),
        make_op("Sum", ["h_prev", "e"], ["h"]),
    ], external_input=["x_t", "h_prev", "timestep"], external_output=["h"])  # fmt: skip
    step.op[1].debug_info = "cell.py:8 in apply"
    return make_op(
        "RecurrentNetwork", ["x", "h0"], ["h_all", "h_last", "workspaces"], step_net=step, recurrent_states=["h_state"],
        initial_recurrent_state_ids=[1], link_internal=["x_t", "h_prev", "h"],
        link_external=["x", "h_state", "h_state"], link_offset=[0, 0, 1], alias_src=["h_state", "h_state"],
        alias_dst=["h_all", "h_last"], alias_offset=[1, -1], timestep="timestep",
    )  # fmt: skip


def test_in_a_step_net():
    x = np.ones((5, 2, 3), np.float32)
    workspace = workspace_with(x=x, h0=np.zeros((1, 2, 3), np.float32))
    name = workspace.create_net(NetDef(name="outer", op=[recurrent()], external_input=["x", "h0"]))
    workspace.run_net(name, 2, find_nan=True)
    x[3, 1, 2] = -1
    workspace.feed("x", x)
    workspace.run_net(name)
    assert np.isfinite(workspace.fetch("h_all")).all()
    with pytest.raises(NotFiniteError) as caught:
        workspace.run_net(name, find_nan=True)
    found = caught.value.found
    assert (found.net, found.blob, found.operator, found.step) == ("step", "l", 1, 3)
    assert found.source == "cell.py:8 in apply" and ", in step 3: the first value of run 4" in str(caught.value)


def test_in_a_step_net_whose_shapes_depend_on_data():
    op = recurrent()
    step = next(argument.n for argument in op.arg if argument.name == "step_net")
    step.op.append(make_op("Unique", ["timestep"], ["distinct"]))
    x = np.ones((5, 2, 3), np.float32)
    x[2, 0, 0] = 0
    workspace = workspace_with(x=x, h0=np.zeros((1, 2, 3), np.float32))
    with pytest.raises(NotFiniteError) as caught:
        workspace.run_net_once(NetDef(name="outer", op=[op], external_input=["x", "h0"]), find_nan=True)
    assert (caught.value.found.blob, caught.value.found.step) == ("l", 2)


def test_a_recurrent_layer_with_a_wrong_weight():
    model, workspace, _ = lstm()
    name = workspace.create_net(model.net)
    workspace.run_net(name, 2, find_nan=True)
    weight = next(str(param) for param in model.GetParams() if "gates_t_w" in str(param))
    value = workspace.fetch(weight)
    value[0, 0] = np.nan
    workspace.feed(weight, value)
    with pytest.raises(NotFiniteError, match=f"its input '{weight}'"):
        workspace.run_net(name, find_nan=True)


@pytest.mark.parametrize("condition", [True, False])
def test_in_a_branch(condition):
    branches = {
        name: NetDef(name=name, op=[make_op(kind, ["x"], ["y"])])
        for name, kind in (("then_net", "Log"), ("else_net", "Relu"))
    }
    net = NetDef(
        name="outer", op=[make_op("If", ["condition", "x"], [], **branches)], external_input=["condition", "x"]
    )
    workspace = workspace_with(condition=np.bool_(condition), x=np.float32([0, 1]))
    if not condition:
        workspace.run_net_once(net, find_nan=True)
        return
    with pytest.raises(NotFiniteError) as caught:
        workspace.run_net_once(net, find_nan=True)
    assert (caught.value.found.net, caught.value.found.op_type) == ("then_net", "Log")


@pytest.mark.parametrize("net_type, steps", [("dag", 1), ("simple", 1), ("dag", 2)])
def test_on_every_replica(net_type, steps):
    def forward(model, loss_scale):
        x = model.net.Log(brew.relu(model, "data", "relu"), "log")
        x = brew.fc(model, model.net.Exp(x, "exp"), "fc", 3, 2)
        return scaled_loss(model, x, loss_scale)

    model = ModelHelper("replicas")
    Parallelize_CPU(
        model, lambda model: None, forward, optimizer_builder_fun=lambda model: build_sgd(model, 0.1),
        devices=[0, 1, 2], net_type=net_type, accumulate_steps=steps,
    )  # fmt: skip
    workspace = Workspace(threads=3)
    for device in range(3):
        workspace.feed(f"cpu_{device}/data", np.ones((2, 3), np.float32))
        workspace.feed(f"cpu_{device}/label", np.int32([0, 1]))
    RunInitNet(model, workspace=workspace)
    CreateNet(model, True, workspace=workspace)
    RunNet(model, 2, find_nan=True, workspace=workspace)
    data = np.ones((2, 3), np.float32)
    data[1] = 0
    workspace.feed("cpu_1/data", data)
    before = workspace.fetch("cpu_0/fc_w")
    with pytest.raises(NotFiniteError) as caught:
        RunNet(model, find_nan=True, workspace=workspace)
    assert (caught.value.found.blob, caught.value.found.infinite) == ("cpu_1/log", 3)
    assert "on CPU 1" in str(caught.value)
    assert (workspace.fetch("cpu_0/fc_w") == before).all()  # the parameters are still those of before the step


def test_in_the_gradient_of_a_parallel_block():
    model = ModelHelper("block")
    with ParallelDo(model, devices=[0, 1]) as block:
        x = brew.relu(model, brew.fc(model, block.read_input("x"), "fc", 3, 4), "relu")
        loss = block.write_output(model.net.AveragedLoss(model.net.Sqrt(x, "root"), "loss"), merge="mean")
    model.AddGradientOperators([loss])
    workspace = workspace_with(x=np.ones((4, 3), np.float32))
    workspace.run_net_once(model.param_init_net)
    workspace.feed("fc_b", np.full(4, 99, np.float32))
    name = workspace.create_net(model.net)
    workspace.run_net(name, find_nan=True)
    workspace.feed("fc_b", np.full(4, -99, np.float32))  # the root of 0
    with pytest.raises(NotFiniteError) as caught:
        workspace.run_net(name, find_nan=True)
    found = caught.value.found
    assert found.net == "block/parallel_do_grad" and found.blob.startswith("cpu_0/") and found.infinite == 8
    assert "test_not_finite.py" in found.source


@pytest.mark.parametrize("devices", [None, [0, 1]])
def test_in_the_wrapper(devices):
    def scores(model, x):
        return brew.fc(model, model.net.Log(brew.relu(model, x, "relu"), "log"), "fc", 3, 2)

    def loss(model, scores, label):
        return softmax_loss(model, scores, label)

    net = DataParallel(
        scores, devices, loss=loss, optimizer=lambda m: build_sgd(m, 0.1), cpu_device=True, find_nan=True
    )
    for value in (1, 0):
        net(np.full((4, 3), value, np.float32))
        net.loss(np.zeros(4, np.int32))
        net.backward()
        if value:
            net.step()
            continue
        with pytest.raises(NotFiniteError) as caught:
            net.step()
    assert caught.value.found.op_type == "Log"
    net.eval()
    with pytest.raises(NotFiniteError):
        np.asarray(net(np.zeros((4, 3), np.float32)))
    with pytest.raises(NetError, match="DataParallel: find_nan must be True, False or 'nan'"):
        DataParallel(scores, devices, cpu_device=True, find_nan=1.5)


def test_in_a_loop():
    body = NetDef(name="body", op=[
        make_op("Log", ["x"], ["x"]), make_op("Sub", ["left", "one"], ["left"]),
        make_op("GT", ["left", "zero"], ["more"]),
    ])  # fmt: skip
    blobs = ["more", "x", "left", "one", "zero"]
    net = NetDef(name="outer", op=[make_op("While", blobs, ["x", "left", "more"], loop_net=body)], external_input=blobs)
    values = {"x": [3.0], "left": [2], "one": [1], "zero": [0]}
    workspace = workspace_with(more=np.array([True]), **{name: np.float32(value) for name, value in values.items()})
    workspace.run_net_once(net, find_nan=True)
    workspace.feed("left", np.float32([9]))
    workspace.feed("more", np.array([True]))
    with pytest.raises(NotFiniteError) as caught:
        workspace.run_net_once(net, find_nan=True)
    assert (caught.value.found.net, caught.value.found.op_type) == ("body", "Log")


@pytest.mark.parametrize("find", [True, "nan"])
def test_over_processes(find):
    """Ranks that are threads. A sum that overflows is found by all of them, a value of one rank by this one."""
    worlds = thread_worlds(2, timeout=2)

    def run(rank, values):
        workspace = Workspace(threads=1)
        workspace.feed("cw", worlds[rank])
        workspace.feed("x", np.float32(values[rank]))
        net = Net("sum")
        net.Sqrt("x", "root")
        net.Mul(["root", "root"], "g")
        net.AllreduceBucket(["cw", "g"], ["g"])
        workspace.run_net_once(net, find_nan=find)
        return workspace.fetch("g")

    small = on_ranks(2, lambda rank: run(rank, [[1.0], [4.0]]))
    np.testing.assert_allclose(small, [[5], [5]], rtol=1e-6)
    if find is True:
        for error in on_ranks(2, lambda rank: run(rank, [[1e38], [3e38]])):
            assert isinstance(error, NotFiniteError), error
            assert (error.found.blob, error.found.op_type, error.found.infinite) == ("g", "AllreduceBucket", 1)
    other, error = on_ranks(2, lambda rank: run(rank, [[1.0], [-1.0]]))
    assert isinstance(error, NotFiniteError) and (error.found.blob, error.found.op_type) == ("root", "Sqrt")
    assert isinstance(other, DistributedError), other  # rank 0 waits, until its time is over


def test_on_a_device_of_a_parallel_block():
    model = ModelHelper("block")
    with ParallelDo(model, devices=[0, 1]) as block:
        x = brew.relu(model, block.read_input("x"), "relu")
        block.write_output(model.net.Exp(model.net.Log(x, "log"), "exp"))
    x = np.ones((4, 3), np.float32)
    workspace = workspace_with(x=x)
    name = workspace.create_net(model.net, check=True)
    workspace.run_net(name, find_nan=True)
    x[3, 0] = -1
    workspace.feed("x", x)
    with pytest.raises(NotFiniteError) as caught:
        workspace.run_net(name, find_nan=True)
    assert caught.value.found.op_type == "Log" and "cpu_1/" in caught.value.found.blob
    assert (caught.value.found.index, caught.value.found.infinite) == ((1, 0), 1)
