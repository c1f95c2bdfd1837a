"""Nets whose runs are equal to the bit: what is chosen for them, what is refused, and the bits themselves."""

import json

import numpy as np
import pytest

from cudnn_double import cudnn_double
from netbuilder import parallel
from netbuilder.engines import nccl
from netbuilder.engines.choices import CACHE_VARIABLE, SWITCH_VARIABLE, choices_of
from netbuilder.engines.onednn import available
from netbuilder.graph import Net
from netbuilder.model import ModelHelper, brew
from netbuilder.optimizers import build_sgd
from netbuilder.proto import PROTO_CUDA, NetDef, NetError
from netbuilder.proto.arguments import arguments, make_device_option, make_op
from netbuilder.runtime import Workspace
from on_gpu import ON_GPU, gpus
from parallel_models import OPTIMIZERS, no_input
from switches import single
from toy_models import mlp, softmax_loss

RNG = np.random.default_rng(3)
VARYING = single("atomic_sums", "measured_choices")


def created(ops, feeds, device=None, **options):
    net = NetDef(name="net", op=ops)
    if device is not None:
        net.device_option.CopyFrom(device)
    workspace = Workspace()
    for name, value in feeds.items():
        workspace.feed(name, value, device)
    workspace.create_net(net, **options)
    return workspace


def test_nets_and_models_say_it():
    net = Net("net")
    net.set_deterministic(True)
    assert arguments(net.Proto())["deterministic"] == 1
    with pytest.raises(NetError, match="Net.set_deterministic: deterministic must be True or False, got 'yes'"):
        net.set_deterministic("yes")
    update, options = OPTIMIZERS["sgd"], {"devices": [0], "deterministic": True}
    blocks, model = ModelHelper("blocks"), ModelHelper("model")
    parallel.Parallelize_CPU_BMUF(blocks, no_input, mlp, update, **options)
    parallel.Parallelize_CPU(model, no_input, mlp, optimizer_builder_fun=update, **options)
    made = [model.net, blocks.net, blocks.block_nets.update]
    assert all(arguments(each.Proto())["deterministic"] == 1 for each in made)


def test_what_is_off():
    op = make_op("Relu", ["x"], ["y"])
    feeds = {"x": np.ones(2, np.float32)}
    for options, off in (({}, ()), ({"deterministic": True}, VARYING)):
        assert created([op], feeds, **options).net("net").options.off == {*off}
    with pytest.raises(NetError, match="net 'net': deterministic must be True or False, got 2"):
        created([op], feeds, deterministic=2)


def test_a_net_may_say_it_and_its_creation_overrides_it():
    net = Net("net")
    net.Relu("x", "y")
    net.set_deterministic(True)
    workspace = Workspace()
    workspace.feed("x", np.ones(2, np.float32))
    for given, off in ((None, VARYING), (False, ())):
        workspace.create_net(net, overwrite=True, deterministic=given)
        assert workspace.net(net).options.off == {*off}


FIRST, LAST = {"": "blocked", "products": "bfloat16"}, {"": "winograd", "products": "float32"}


def trained_with(names, folder, **options):
    """Return the parameters after two steps with the kernels of these names on file, for each kind of choice."""
    model = ModelHelper("convolutions")
    x = brew.relu(model, brew.conv(model, "data", "c1", 16, 16, kernel=3, pad=1), "r1")
    x = brew.average_pool(model, brew.conv(model, x, "c2", 16, 16, kernel=3, pad=1), "pool", global_pooling=1)
    model.AddGradientOperators([softmax_loss(model, brew.fc(model, x, "fc", 16, 5))])
    build_sgd(model, 0.1)
    workspace = Workspace(threads=1, seed=4)
    images = np.random.default_rng(2).normal(size=(6, 16, 32, 32))
    workspace.feed("data", images.astype(np.float32))
    workspace.feed("label", np.int32([0, 3, 4, 1, 2, 2]))
    workspace.run_net_once(model.param_init_net)
    for path in folder.glob("choices-*.json"):
        record = json.loads(path.read_text())
        chosen = {key: names.get(key.split()[0], names[""]) for key in record["choices"] if "time of" not in key}
        path.write_text(json.dumps({**record, "choices": chosen}))
    choices_of.cache_clear()  # as in another process
    name = workspace.create_net(model.net, **options)
    workspace.run_net(name, 2)
    workspace.net(name).measure_choices()
    return b"".join(workspace.fetch(str(param)).tobytes() for param in model.GetParams())


@pytest.mark.skipif(not available(), reason="needs oneDNN")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernels_that_were_fastest_on_a_machine(dtype, tmp_path, monkeypatch):
    """Which they are changes the bits of a net, unless it must be deterministic."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.delenv(SWITCH_VARIABLE, raising=False)
    trained_with(FIRST, tmp_path, dtype=dtype)  # measures, so that there is a file
    found = [trained_with(names, tmp_path, dtype=dtype) for names in (FIRST, LAST, FIRST)]
    assert found[0] == found[2] != found[1]
    fixed = [trained_with(names, tmp_path, dtype=dtype, deterministic=True) for names in (FIRST, LAST)]
    assert fixed[0] == fixed[1]


@pytest.mark.parametrize("op_type", ["Allreduce", "AllreduceBucket", "Reduce", "ReduceScatter"])
def test_sums_over_processes_must_have_an_order(op_type):
    blobs = ["x", "counts"] if op_type == "ReduceScatter" else ["x"]
    ops = [make_op("CreateCommonWorld", [], ["cw"], size=1, rank=0), make_op(op_type, ["cw", *blobs], blobs)]
    feeds = {"x": np.ones(2, np.float32), "counts": np.int32([2])}
    with pytest.raises(
        NetError, match=rf"operator 1 {op_type} \['cw', 'x'.*\] adds the processes in any order; give it"
    ):
        created(ops, feeds, deterministic=True)
    ops[1] = make_op(op_type, ["cw", *blobs], blobs, deterministic=1)
    created(ops, feeds, deterministic=True)


@pytest.mark.emulated
@pytest.mark.parametrize("deterministic", [False, True])
def test_plans_of_cudnn(deterministic, monkeypatch):
    """Those that are not deterministic are excluded, and none is chosen by its time."""
    measured = []

    def build(builder, recipe, limit, deterministic):
        measured.append(recipe)
        builder.graph.build_plan_at_index(0)
        return True

    monkeypatch.setattr("netbuilder.engines.cudnn.plans.build_fastest", build)
    monkeypatch.delenv(SWITCH_VARIABLE, raising=False)
    shapes = {"x": (2, 8, 5, 5), "w": (8, 8, 3, 3), "dy": (2, 8, 3, 3)}
    feeds = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    ops = [
        make_op("Conv", ["x", "w"], ["y"], kernel=3, exhaustive_search=1),
        make_op("ConvGradient", ["x", "w", "dy"], ["dw", "dx"], kernel=3, no_bias=1),
    ]
    with gpus(1), cudnn_double() as cudnn:
        created(ops, feeds, ON_GPU, deterministic=deterministic).run_net("net")
        assert len(cudnn.graphs) >= 3
        for graph in cudnn.graphs:
            assert ("NONDETERMINISTIC" in {note.name for note in graph.refused}) == deterministic
        assert bool(measured) != deterministic


def summed_over_gpus(deterministic):
    net = NetDef(name="net", op=[make_op("NCCLAllreduce", ["a", "b", "c"], ["a", "b", "c"])])
    net.device_option.CopyFrom(ON_GPU)
    workspace = Workspace()
    for number, name in enumerate("abc"):
        value = np.float32([[1e8, 1, -1e8][number]])
        workspace.feed(name, value, make_device_option(PROTO_CUDA, number))
    workspace.create_net(net, deterministic=deterministic)
    workspace.run_net("net")
    return [workspace.fetch(name).tolist() for name in "abc"]


@pytest.mark.emulated
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.filterwarnings("ignore:.*GPU . computes it, not NCCL")
def test_nccl_which_chooses_the_order_in_which_it_adds_is_not_called(deterministic):
    with gpus(3):
        summed_over_gpus(deterministic)
        assert bool(nccl.nccl_module().groups) != deterministic


@pytest.mark.filterwarnings("ignore:.*GPU . computes it, not NCCL")
def test_one_gpu_adds_in_a_fixed_order(four_gpus):
    assert summed_over_gpus(True) == [[0.0]] * 3  # (1e8 + 1) - 1e8 in float32


@pytest.mark.gpu
def test_two_runs_on_a_gpu_are_equal_to_the_bit():
    """Gradients of a table whose rows are looked up many times, and the updates by them."""
    model = ModelHelper("model")
    rows = model.net.Gather(["table", "indices"], "rows")
    loss = model.net.AveragedLoss(model.net.Sqr(rows, "squares"), "loss")
    gradients = model.net.AddGradientOperators([loss])
    slices = gradients["table"]
    model.net.SparseToDense([slices.indices, slices.values, "table"], "dense")
    model.net.ScatterWeightedSum(["table", "one", slices.indices, slices.values, "rate"], "table")
    model.net.set_deterministic(True)
    model.net.RunAllOnGPU()
    table = RNG.normal(size=(7, 5)).astype(np.float32)
    indices = RNG.integers(0, 7, 3000)
    found = []
    for _ in range(2):
        workspace = Workspace()
        for name, value in (("table", table), ("indices", indices)):
            workspace.feed(name, value, ON_GPU)
        for name, value in (("one", 1.0), ("rate", -100.0)):
            workspace.feed(name, np.float32([value]), ON_GPU)
        workspace.create_net(model.net)
        workspace.run_net(model.net.Name(), 3)
        found.append([workspace.fetch(name) for name in ("table", "dense")])
    for first, second in zip(*found):
        assert first.tobytes() == second.tobytes()
    wanted = table.astype(np.float64)
    for _ in range(3):
        wanted *= 1 - 100.0 * 2 * np.bincount(indices, minlength=7)[:, None] / (3000 * 5)
    np.testing.assert_allclose(found[0][0], wanted, rtol=1e-4, atol=1e-4)
