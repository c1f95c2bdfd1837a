"""One object of options for all ways to train on several devices: what each takes, and what it does with it."""

import dataclasses
import inspect
import re

import numpy as np
import pytest

from house import ROOT
from netbuilder import Workspace, parallel
from netbuilder.caffe2 import parallelize as caffe2_parallelize
from netbuilder.graph.net_names import reset_names
from netbuilder.model import ModelHelper, brew
from netbuilder.optimizers import reset_optimizer_instance_count
from netbuilder.parallel import DataParallelOptions, GradientScaling
from netbuilder.proto import ArgumentError, NetError
from netbuilder.proto.arguments import arguments
from parallel_models import OPTIMIZERS, no_input
from toy_models import mlp, scaled_loss, softmax_loss

SGD = OPTIMIZERS["sgd"]
DOORS = [parallel.Parallelize, parallel.Parallelize_BMUF, parallel.DataParallel, parallel.ParallelDo]
FIELDS = {field.name: field.default for field in dataclasses.fields(DataParallelOptions)}

OTHERS = {
    "net_type": "simple", "max_concurrent_distributed_ops": 3, "num_threads_per_device": 2,
    "barrier_net_timeout_sec": 17, "dtype": "bfloat16", "accumulate_steps": 2, "outside_from_bytes": 0,
    "memory_budget": 0.9, "bucket_bytes": 0, "deterministic": True, "strategy": "local_sgd:3", "allow_tf32": True,
    "gradient_scaling": GradientScaling(8.0), "peer_access": lambda a, b: False, "blobs_to_keep": ["softmax"],
    "params": ["fc_w"],
}  # fmt: skip
"""Of each option that is not a bool, a value other than its default."""


def fresh_names():
    reset_names()
    reset_optimizer_instance_count()


def given_for(name):
    value = not FIELDS[name] if isinstance(FIELDS[name], bool) else OTHERS[name]
    return {name: value, **({"dynamic_memory_management": True} if name == "blobs_to_keep" else {})}


def normalized(model, loss_scale):
    x = brew.spatial_bn(model, "data", "normal", 3)
    return scaled_loss(model, brew.fc(model, x, "fc", 12, 4), loss_scale)


def nets_of(model):
    return [net.Proto().SerializeToString() for net in (model.net, model.param_init_net)]


def replicate(**given):
    fresh_names()
    model = ModelHelper("net")
    gpus = {"devices": [0, 1], "cpu_device": False}
    parallel.Parallelize(model, no_input, normalized, optimizer_builder_fun=SGD, **{**gpus, **given})
    return nets_of(model)


def in_blocks(**given):
    fresh_names()
    model = ModelHelper("net")
    parallel.Parallelize_BMUF(model, no_input, mlp, SGD, devices=[0, 1], cpu_device=False, **given)
    return nets_of(model)


def wrapper(**given):
    fresh_names()

    def loss(helper, scores, label):
        return softmax_loss(helper, scores, label)

    with parallel.DataParallel(
        lambda helper, image: brew.fc(helper, image, "scores", 6, 3),
        [0, 1], loss=loss, optimizer=SGD, cpu_device=True, workspace=Workspace(), **given,
    ) as net:  # fmt: skip
        net(np.ones((4, 6), np.float32))
        net.loss(np.zeros(4, np.int32))
        return nets_of(net.model)


def block(**given):
    fresh_names()
    model = ModelHelper("net")
    with parallel.ParallelDo(model, [0, 1], device_type=1, **given) as made:
        x = brew.spatial_bn(model, made.read_input("x"), "normal", 3)
        made.write_output(model.net.AveragedLoss(x, "loss"), merge="mean")
    return nets_of(model)


BUILD = dict(zip(DOORS, (replicate, in_blocks, wrapper, block)))


def taken(door):
    return [name for name in inspect.signature(door).parameters if name in FIELDS]


def shown(value):
    """What stands for a door, or a name, in the name of a test."""
    return getattr(value, "__name__", value)


@pytest.mark.one_in(6)
@pytest.mark.filterwarnings("ignore:GPUs .* are not on this machine", "ignore:use_nccl=True. NCCL exchanges")
@pytest.mark.parametrize("door, name", [(door, name) for door in DOORS for name in taken(door)], ids=shown)
def test_an_object_is_as_good_as_keywords(door, name):
    build, given = BUILD[door], given_for(name)
    extra = {}
    if name in ("shared_model", "gradient_scaling", "weighted_shares") and door is parallel.Parallelize:
        extra["cpu_device"] = True
    one, other = build(**given, **extra), build(options=DataParallelOptions(**given), **extra)
    assert one == other


@pytest.mark.filterwarnings("ignore:GPUs .* are not on this machine")
def test_keywords_replace_what_the_object_has():
    options = DataParallelOptions(dtype="bfloat16", num_threads_per_device=2, combine_spatial_bn=True)
    want = replicate(dtype="float32", num_threads_per_device=2)
    assert replicate(options=options, dtype="float32", combine_spatial_bn=False) == want
    assert replicate(options=options) != want
    assert options.dtype == "bfloat16"


@pytest.mark.parametrize("door, name", [(d, name) for d in DOORS for name in FIELDS if name not in taken(d)], ids=shown)
def test_options_that_a_door_does_not_take_are_refused(door, name):
    said = rf"^{door.__name__}: unknown options \[.*'{name}'.*\]; (did you mean|the options are) "
    with pytest.raises(ArgumentError, match=said):
        BUILD[door](**given_for(name))
    with pytest.raises(ArgumentError, match=said):
        BUILD[door](options=DataParallelOptions(**given_for(name)))


def test_parallelize_takes_all():
    assert set(taken(parallel.Parallelize)) == set(FIELDS)
    assert set(taken(parallel.ParallelDo)) == {"use_nccl", "combine_spatial_bn"}


@pytest.mark.parametrize("door", DOORS, ids=shown)
def test_arguments_at_caffe2s_places_have_the_defaults_of_the_object(door):
    defaults = {name: inspect.signature(door).parameters[name].default for name in taken(door)}
    if door is parallel.Parallelize_BMUF:
        assert defaults.pop("max_concurrent_distributed_ops") == 4
    assert defaults == {name: FIELDS[name] for name in defaults}


def test_every_option_has_another_value():
    others = {name for name, default in FIELDS.items() if not isinstance(default, bool)}
    assert OTHERS.keys() == others, "add a value of the option to OTHERS"


def test_every_option_is_read():
    files = [path for path in (ROOT / "netbuilder").rglob("*.py") if path.name != "options.py"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    assert [name for name in FIELDS if not re.search(rf"\.{name}\b", text)] == []


def test_every_option_is_described():
    text = inspect.getdoc(DataParallelOptions).partition("Args:\n")[2].partition("Raises:")[0]
    described = [line.strip().partition(":")[0] for line in text.splitlines() if line[:4] == "    " != line[4:8]]
    assert described == list(FIELDS), "describe the option under Args of DataParallelOptions, in the fields' order"


@pytest.mark.parametrize("door", DOORS, ids=shown)
@pytest.mark.parametrize("options", [{}, "dtype", 3])
def test_what_is_no_object_of_options(door, options):
    with pytest.raises(TypeError, match=rf"^{door.__name__}: options must be a DataParallelOptions or None, got"):
        BUILD[door](options=options)


@pytest.mark.parametrize(
    "given, error, match",
    [
        ({"accumulate_steps": 0}, NetError, "accumulate_steps must be at least 1, got 0"),
        ({"num_threads_per_device": 1 << 17}, NetError, "num_threads_per_device must be at most 65536"),
        ({"barrier_net_timeout_sec": 0}, NetError, "positive number of seconds, got 0"),
        ({"use_nccl": 1}, TypeError, "use_nccl must be True or False, got 1"),
        ({"deterministic": 1}, TypeError, "deterministic must be True or False, got 1"),
        ({"net_type": None}, NetError, "unknown net_type None; the types are"),
        ({"bucket_bytes": None}, TypeError, "bucket_bytes must be an integer or 'auto', got None"),
        ({"strategy": "topk:2"}, ArgumentError, r"fraction must lie in \(0, 1\], got 2"),
        ({"strategy": 3}, TypeError, "strategy must be a Strategy"),
        ({"dtype": "float8"}, NetError, "^dtype: activations must be stored as one of"),
        ({"memory_budget": "much"}, NetError, "memory_budget must be a number of bytes"),
        ({"blobs_to_keep": ["fc"]}, NetError, "no effect without dynamic_memory_management"),
        ({"reduce_update_broadcast": True, "use_nccl": True}, NetError, "cannot be combined with use_nccl=True"),
    ],
)
def test_an_object_checks_itself(given, error, match):
    with pytest.raises(error, match=match):
        DataParallelOptions(**given)


def test_an_object_serves_any_number_of_calls():
    options = DataParallelOptions(dynamic_memory_management=True, blobs_to_keep=iter(["fc1"]))
    kept = []
    for _ in range(2):
        model = ModelHelper("net")
        parallel.Parallelize_CPU(model, no_input, mlp, optimizer_builder_fun=SGD, devices=[0, 1], options=options)
        kept.append(arguments(model.net.Proto())["observable_blobs"])
    assert kept[0] == kept[1] == [b"cpu_0/fc1", b"cpu_1/fc1"]


def test_without_an_update_options_for_training_have_no_effect():
    given = {"combine_spatial_bn": True, "gradient_scaling": GradientScaling(), "dtype": "float16", "use_nccl": True}
    assert DataParallelOptions(**given).for_evaluation() == DataParallelOptions(dtype="float16", use_nccl=True)


@pytest.mark.parametrize("before", [False, True])
def test_runs_are_as_repeatable_as_the_model_says_unless_told_otherwise(before):
    for given, want in ((None, before), (False, False), (True, True)):
        model = ModelHelper("net")
        model.net.set_deterministic(before)
        parallel.Parallelize_CPU(model, no_input, mlp, optimizer_builder_fun=SGD, devices=[0, 1], deterministic=given)
        assert arguments(model.net.Proto())["deterministic"] == want


def test_the_compatibility_layer_takes_an_object_as_it_is():
    def forward(model, loss_scale):
        means = model.net.ReduceBackMean(brew.fc(model, "data", "fc", 6, 4), "means")
        return [model.Scale(means, scale=loss_scale)]

    made = {}
    for given in ({}, {"options": DataParallelOptions(combine_means=False, vector_losses=True)}):
        fresh_names()
        model = ModelHelper("net")
        caffe2_parallelize.Parallelize_CPU(model, no_input, forward, optimizer_builder_fun=SGD, devices=[0, 1], **given)
        made[bool(given)] = nets_of(model)
    assert made[False] == made[True]
    with pytest.raises(NetError, match="must be one number"):
        model = ModelHelper("net")
        model.param_init_net.ConstantFill([], "cpu_0/data", shape=[4, 6])
        model.param_init_net.ConstantFill([], "cpu_1/data", shape=[4, 6])
        caffe2_parallelize.Parallelize_CPU(
            model, no_input, forward, optimizer_builder_fun=SGD, devices=[0, 1], options=DataParallelOptions()
        )
