"""Profiles: sums, names and counts, flops and bytes, reasons, lanes, traces; the net is unchanged."""

import json

import numpy as np
import pytest

import emulated_gpu
from netbuilder import ModelHelper, Workspace, brew
from netbuilder.engines import onednn
from netbuilder.engines.llvm import machine
from netbuilder.engines.onednn.bfloat16 import why_bfloat16_is_slow
from netbuilder.graph import Net
from netbuilder.optimizers import build_sgd, reset_optimizer_instance_count
from netbuilder.proto import NetDef, NetError, OperatorError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime.execute.net import RuntimeNet
from netbuilder.runtime.profile import roofline
from netbuilder.runtime.profile.call import describe_alone, describe_step
from netbuilder.runtime.profile.profiling import profile
from netbuilder.runtime.profile.roofline import Limits, measure_gpu_limits, measure_limits
from netbuilder.runtime.profile.table import profile_table
from netbuilder.runtime.profile.trace import chrome_trace
from toy_models import softmax_loss

LIMITS = {"CPU": Limits(1e12, "a guess", 1e11, 1)}  # a machine that no test runs on: every step is slower
with_onednn = pytest.mark.skipif(not onednn.available(), reason=f"oneDNN: {onednn.why_unavailable()}")


def created(*operators, feeds, net_type="simple", name="net", **options):
    """Return a workspace with a created net of these operators."""
    net = NetDef(name=name, type=net_type, num_workers=4)
    net.op.extend(operators)
    net.external_input.extend(feeds)
    workspace = Workspace(**{"threads": 2, **options})
    for blob, value in feeds.items():
        workspace.feed(blob, value)
    workspace.create_net(net)
    return workspace


def profiled(*operators, feeds, runs=3, **options):
    return profile(created(*operators, feeds=feeds, **options), "net", runs=runs, limits=LIMITS)


def floats(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def block(**options):
    """Return a workspace with one training step of Conv, SpatialBN and Relu, and the model."""
    reset_optimizer_instance_count()
    model = ModelHelper(name="block", arg_scope={"order": "NCHW"})
    x = brew.conv(model, "data", "conv", 16, 16, kernel=3, pad=1)
    x = brew.relu(model, brew.spatial_bn(model, x, "bn", 16), "bn")
    x = brew.conv(model, x, "conv2", 16, 24, kernel=3, stride=2)
    scores = brew.fc(model, brew.average_pool(model, x, "mean", global_pooling=True), "scores", 24, 5)
    model.AddGradientOperators([softmax_loss(model, scores)])
    build_sgd(model, 0.1, momentum=0.9)
    workspace = Workspace(threads=1, **options)
    workspace.feed("data", floats(4, 16, 12, 12))
    workspace.feed("label", np.int32([0, 1, 2, 3]))
    workspace.run_net_once(model.param_init_net)
    workspace.create_net(model.net)
    return workspace, model


def on(device, *args, **kwargs):
    return make_op(*args, device_option=make_device_option(0, device), **kwargs)


def replicas(net_type="dag"):
    """Two devices with some work each, a sum of both on the first, and a copy back to the second."""
    feeds = {f"x{k}": floats(64, 64) for k in range(2)}
    operators = [on(k, "MatMul", [f"x{k}", f"x{k}"], [f"g{k}"]) for k in range(2)]
    operators += [on(0, "Sum", ["g0", "g1"], ["g0"]), on(0, "Copy", ["g0"], ["g1"])]
    operators += [on(k, "Sum", [f"x{k}", f"g{k}"], [f"y{k}"]) for k in range(2)]
    return created(*operators, feeds=feeds, net_type=net_type)


def slices(trace):
    """Return the complete events of a trace by track, after a way through JSON."""
    tracks = {}
    for event in json.loads(json.dumps(trace))["traceEvents"]:
        if event["ph"] == "X":
            tracks.setdefault(event["tid"], []).append(event)
    return tracks


def check_sums(found):
    """All seconds of all lanes are accounted for, and each by one call, wait or lane."""
    count = len(found.lanes)
    parts = sum(lane.busy + lane.waiting + lane.idle + lane.interpreter for lane in found.lanes)
    assert parts == pytest.approx(count * found.step_seconds, rel=1e-9)
    assert sum(lane.busy for lane in found.lanes) == pytest.approx(sum(call.seconds for call in found.calls))
    assert sum(kind.seconds for kind in found.kinds()) == pytest.approx(sum(call.seconds for call in found.calls))
    assert sum(found.categories().values()) == pytest.approx(sum(call.seconds for call in found.calls))
    assert sum(lane.waiting for lane in found.lanes) == pytest.approx(sum(wait.seconds for wait in found.waits))
    shares = found.share_of(sum(lane.busy + lane.waiting + lane.idle for lane in found.lanes))
    assert shares + found.interpreter_share == pytest.approx(1)
    assert all(part >= 0 for lane in found.lanes for part in (lane.busy, lane.waiting, lane.idle, lane.interpreter))


def check_tracks(trace):
    """No two slices of a track overlap, and each is within a step."""
    tracks = slices(trace)
    for events in tracks.values():
        for before, after in zip(events, events[1:]):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-6
    steps = tracks.pop(0)
    for event in (event for events in tracks.values() for event in events):
        begins, ends = event["ts"], event["ts"] + event["dur"]
        assert any(s["ts"] <= begins and ends <= s["ts"] + s["dur"] + 1e-6 for s in steps)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("options", [{}, {"without": "fusion"}, {"engines": ()}], ids=["all", "not fused", "numpy"])
def test_every_operator_is_in_one_call_and_seconds_add_up(options):
    workspace, model = block(**options)
    found = profile(workspace, model.net.Name(), runs=4, limits=LIMITS)
    check_sums(found)
    names = [name for call in found.calls if call.category != "copy" for name in call.operators]
    assert sorted(names) == sorted(f"{op.type} {op.output[0]}" for op in model.net.Proto().op)
    assert all(call.count == 1 and len(call.spans) == 4 for call in found.calls)
    assert len(found.runs) == 4 and 2 <= len(found.counted) <= 4
    kinds = {kind.kind: kind.calls for kind in found.kinds()}
    assert kinds["ConvGradient"] == 2
    joined = "engines" not in options and "without" not in options and onednn.available()
    assert kinds.get("SpatialBN+Relu", 0) == kinds.get("ReluGradient+SpatialBNGradient", 0) == joined
    lines = {call.line for call in found.calls}
    assert any("test_profiling.py" in line for line in lines)


@pytest.mark.parametrize("fuse", [True, False])
def test_joined_operators_count_as_much_as_single_ones(fuse):
    workspace, model = block(without=() if fuse else "fusion")
    found = profile(workspace, model.net.Name(), runs=1, limits=LIMITS)
    x = 4 * 16 * 12 * 12
    flops = {call.name: call.flops for call in found.calls}
    name, both = ("SpatialBN+Relu bn", 7 * x) if fuse and onednn.available() else ("SpatialBN bn", 6 * x)
    assert flops[name] == both
    assert flops["Conv conv"] == 2 * 9 * 16 * x + x
    limits = {kind.kind: kind.limit_seconds for kind in found.kinds()}
    assert limits["Conv"] > 0


def test_reading_the_net_does_not_change_its_runs():
    workspace, model = block()
    name = model.net.Name()
    workspace.run_net(name)
    net = workspace.net(name)
    (plan,), calls = net.plans, list(net.plans[0].step_calls)
    profile(workspace, name, runs=3, warmup=1, limits=LIMITS)
    assert net.plans == [plan] and all(a is b for a, b in zip(plan.step_calls, calls, strict=True))
    other, _ = block()
    other.run_net(other.nets()[0], 1 + 1 + 1 + 2 * 3)
    for blob in ("conv_w", "conv_w_grad", "conv2_w", "conv2_w_momentum", "bn_rm", "scores_b", "loss"):
        np.testing.assert_array_equal(workspace.fetch(blob), other.fetch(blob))


def test_bytes_are_those_read_and_written():
    feeds = {"x": floats(5, 8), "table": floats(100, 8), "rows": np.int64([3, 1]), "shape": np.int64([8, 5])}
    found = profiled(
        make_op("Relu", ["x"], ["y"]),
        make_op("Sum", ["y", "y"], ["twice"]),
        make_op("Gather", ["table", "rows"], ["few"]),
        make_op("Reshape", ["y"], ["y", "old"], shape=[8, 5]),
        make_op("ScatterAssign", ["table", "rows", "few"], ["table"]),
        feeds=feeds, engines=(),
    )  # fmt: skip
    nbytes = {call.name: call.nbytes for call in found.calls}
    assert nbytes["Relu y"] == nbytes["Sum twice"] == 2 * 5 * 8 * 4
    assert nbytes["Gather few"] == 2 * 2 * 8 * 4 + 16
    assert nbytes["ScatterAssign table"] == 3 * 2 * 8 * 4 + 16
    assert found.memory.outside == sum(feeds[blob].nbytes for blob in ("x", "table", "rows"))


def test_a_value_that_is_passed_on_moves_no_bytes():
    found = profiled(make_op("Relu", ["x"], ["y"]), make_op("StopGradient", ["y"], ["y"]), feeds={"x": floats(6)})
    assert [call.nbytes for call in found.calls] == [48, 0]


@with_onednn
def test_the_padding_of_layouts_counts():
    """Of seven channels a blocked layout makes eight or sixteen; where it is used, bytes exceed the plain ones."""
    conv = make_op("Conv", ["x", "w"], ["y"], kernel=3)
    found = profiled(conv, feeds={"x": floats(2, 32, 10, 10), "w": floats(7, 32, 3, 3)})
    call = next(call for call in found.calls if call.kind == "Conv")
    plain = 4 * (2 * 32 * 100 + 7 * 32 * 9 + 2 * 7 * 64)
    padded = any("padded" in operand.layout for operand in (*call.inputs, *call.outputs))
    assert call.nbytes > plain if padded else call.nbytes == plain


@with_onednn
def test_copies_that_the_plan_puts_in_have_a_reason():
    workspace, model = block()
    found = profile(workspace, model.net.Name(), runs=1, limits=LIMITS)
    copies = [call for call in found.calls if call.category == "copy"]
    assert copies and all(call.flops == 0 and found.limit_of(call) == 0 for call in copies)
    types = {op.type for op in model.net.Proto().op}
    for call in copies:
        assert call.kind in ("reorder", "restore")
        operator, _, rest = call.reason.partition(" reads ")
        assert set(operator.split(" ")[0].split("+")) <= types
        assert rest.startswith(f"{call.output} (input ") and f"; it is stored as {call.inputs[0].layout}" in rest
        assert f" as {call.outputs[0].layout}" in rest
    assert f"copies inserted by the plan: {len(copies)}" in profile_table(found)


def test_a_result_that_is_copied_into_place_says_so():
    workspace = created(make_op("Relu", ["x"], ["x"]), feeds={"x": floats(4)}, engines=())
    workspace.run_net("net")
    step = workspace.net("net").plans[-1].steps[0]
    times = {"count": 1, "seconds": 1.0, "spans": ()}
    assert describe_step(step, **times).reason == ""
    step.prepared.inplace = ()  # as a kernel has it that may not overwrite its input
    reason = describe_step(step, **times).reason
    assert reason.startswith("x shares the buffer of an input that the kernel may not overwrite")


def test_operators_between_plans():
    feeds = {"x": np.int32([4, 2, 4, 4]), "z": floats(3)}
    found = profiled(
        make_op("Relu", ["z"], ["a"]),
        make_op("Unique", ["x"], ["u", "remap"]),
        make_op("Cast", ["u"], ["f"], to=1),
        make_op("Flatten", ["f"], ["g"]),
        feeds=feeds,
    )
    check_sums(found)
    assert [call.name for call in found.calls] == ["Relu a", "Unique u", "Cast f", "Flatten g"]
    alone = found.calls[1]
    assert alone.lane == 0 and "cannot be part of a plan" in alone.reason
    assert {str(operand) for operand in (*alone.inputs, *alone.outputs)} == {
        "x 4 int32 plain",
        "u 2 int32 plain",
        "remap 4 int32 plain",
    }
    check_tracks(chrome_trace(found))


def backward_pass(net_type, extent=400, layers=3):
    """Two devices that each make a gradient for each layer, then, after all of them, the reductions."""
    names = [f"g{layer}" for layer in range(layers)]
    feeds = {f"cpu_{k}/x": floats(extent, extent) for k in range(2)}
    operators = [on(k, "MatMul", [f"cpu_{k}/x"] * 2, [f"cpu_{k}/{name}"]) for k in range(2) for name in names]
    for name in names:
        operators.append(on(0, "Sum", [f"cpu_0/{name}", f"cpu_1/{name}"], [f"cpu_0/{name}"]))
        operators.append(on(0, "Copy", [f"cpu_0/{name}"], [f"cpu_1/{name}"]))
    return created(*operators, feeds=feeds, net_type=net_type)


def test_the_exchange_overlaps_with_the_rest_of_the_backward_pass():
    workspace = backward_pass("dag")
    for _ in range(20):  # where other work has the cores, the lanes may take turns
        found = profile(workspace, "net", runs=4, limits=LIMITS)
        if found.overlap_seconds:
            break
    check_sums(found)
    assert [lane.role for lane in found.lanes] == ["compute", "compute", "exchange"]
    assert {call.lane for call in found.calls if call.category == "exchange"} == {2}
    assert 0 < found.overlap_seconds <= found.exchange_seconds == found.categories()["exchange"]
    assert found.to_dict()["overlap_seconds"] == found.overlap_seconds
    table = profile_table(found)
    assert f"lane 2, exchange: in calls {1e3 * found.exchange_seconds:.3f} ms" in table
    assert f"exchange {1e3 * found.exchange_seconds:.3f} ms, {1e3 * found.overlap_seconds:.3f} ms of it (" in table
    trace = chrome_trace(found)
    check_tracks(trace)
    names = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert names == {"steps", "CPU 0, lane 0", "CPU 1, lane 1", "CPU 0, lane 2, exchange"}


def test_nothing_overlaps_on_one_lane():
    found = profile(backward_pass("simple"), "net", runs=2, limits=LIMITS)
    assert len(found.lanes) == 1 and found.exchange_seconds > 0 == found.overlap_seconds
    assert " ms, 0.000 ms of it (0.0%) while another lane computes" in profile_table(found)
    assert "exchange" not in profile_table(profiled(make_op("Relu", ["x"], ["y"]), feeds={"x": floats(4)}))


@pytest.mark.parametrize("net_type", ["simple", "dag"])
def test_lanes_waits_and_exchange(net_type):
    found = profile(replicas(net_type), "net", runs=4, limits=LIMITS)
    check_sums(found)
    category = {call.name: call.category for call in found.calls}
    assert category == {
        "MatMul g0": "operator", "MatMul g1": "operator", "Sum g0": "exchange", "Copy g1": "exchange",
        "Sum y0": "operator", "Sum y1": "operator",
    }  # fmt: skip
    assert {call.name: call.device for call in found.calls}["MatMul g1"] == "CPU 1"
    trace = chrome_trace(found)
    check_tracks(trace)
    names = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    waits = {(wait.lane, wait.before, wait.after) for wait in found.waits}
    if net_type == "simple":
        assert len(found.lanes) == 1 and not waits
        assert names == {"steps", "CPU 0, lane 0", "CPU 1, lane 0"}
        return
    assert names == {"steps", "CPU 0, lane 0", "CPU 1, lane 1"}
    assert waits == {(0, "Sum g0", "MatMul g1"), (1, "Sum y1", "Copy g1")}
    assert all(len(wait.spans) == 4 for wait in found.waits)
    events = [event for events in slices(trace).values() for event in events]
    assert {event["cat"] for event in events} == {"step", "operator", "exchange", "wait"}
    assert sum(event["name"] == "wait for MatMul g1" for event in events) == 4
    assert "lane 1, compute: in calls" in profile_table(found)
    assert found.overlap_seconds == 0, "lane 1 waits for it"


def test_slices_say_what_they_are():
    workspace, model = block()
    found = profile(workspace, model.net.Name(), runs=2, limits=LIMITS)
    trace = chrome_trace(found)
    check_tracks(trace)
    events = [event for events in slices(trace).values() for event in events]
    conv = next(event for event in events if event["name"] == "Conv conv2")
    call = next(call for call in found.calls if call.name == "Conv conv2")
    assert conv["args"]["flops"] == call.flops and conv["args"]["bytes"] == call.nbytes
    assert conv["args"]["kernel"] == call.kernel and "test_profiling.py" in conv["args"]["line"]
    assert conv["args"]["writes"][0].startswith("conv2 4x24x5x5 float32 ")
    assert {event["cat"] for event in events} >= {"step", "operator", "gradient"}
    assert sum(event["cat"] == "step" for event in events) == 2


def test_readers_are_input():
    net = NetDef(name="net", external_input=["reader"])
    net.op.extend([make_op("TensorProtosDBInput", ["reader"], ["data"]), make_op("Relu", ["data"], ["y"])])
    workspace, times = Workspace(), {"count": 1, "seconds": 1.0, "spans": ()}
    runtime = RuntimeNet(net, workspace, inner=True)
    found = [describe_alone(runtime, part, **times).category for part in runtime.program]
    assert found == ["input", "operator"]


def test_the_limit_is_the_sum_of_what_each_operator_needs_most():
    limits = Limits(1e9, "a slow machine", 1e8, 1)
    assert limits.seconds(2e9, 1e8) == 2 and limits.seconds(0, 3e8) == 3
    workspace = created(make_op("MatMul", ["x", "x"], ["y"]), make_op("Relu", ["y"], ["z"]), feeds={"x": floats(8, 8)})
    found = profile(workspace, "net", runs=2, limits={"CPU": limits})
    product, relu = max(2 * 8**3 / 1e9, 2 * 256 / 1e8), 2 * 256 / 1e8
    assert found.limit_seconds == pytest.approx(product + relu)
    assert found.fraction == pytest.approx(found.limit_seconds / found.plain_seconds)


def test_the_machine_is_measured_in_the_same_run():
    """Many small operators: the interpreter and the calls take far longer than the memory."""
    operators = [make_op("Relu", [f"x{k}"], [f"x{k + 1}"]) for k in range(100)]
    workspace = created(*operators, feeds={"x0": floats(64)}, threads=1)
    found = profile(workspace, "net", runs=5)
    limits = found.limits["CPU"]
    assert limits.threads == 1 and limits.matrix_rate > 1e8 and limits.copy_bandwidth > 1e8 and limits.matrix_by
    assert 0 < found.fraction < 1.5
    assert f"{limits.matrix_rate / 1e9:.1f} GFLOP/s" in profile_table(found)


@with_onednn
def test_calls_that_read_bfloat16_have_a_limit_of_their_own():
    limits = Limits(1e9, "a slow machine", 1e30, 1, 4e9, "its quick part")
    assert limits.seconds(8e9, 0) == 8 and limits.seconds(8e9, 0, bfloat16=True) == 2
    emulated = Limits(1e9, "a machine", 1e30, 1, 5e8, "code that stands for instructions")
    assert emulated.seconds(8e9, 0, bfloat16=True) == 8
    net = NetDef(name="net")
    net.op.extend([make_op("Conv", ["x", "w"], ["y"], kernel=3), make_op("Exp", ["y"], ["z"])])
    workspace = Workspace(threads=1)
    workspace.feed("x", floats(2, 16, 12, 12))
    workspace.feed("w", floats(16, 16, 3, 3))
    for dtype in ("float32", "bfloat16"):
        workspace.create_net(net, overwrite=True, dtype=dtype)
        found = profile(workspace, "net", runs=1, limits={"CPU": limits})
        conv, exp = (call for call in found.calls if call.category == "operator")
        rounded = conv.bfloat16
        assert exp.bfloat16 == rounded and found.to_dict()["calls"][-1]["bfloat16"] is rounded
        assert found.limit_of(conv) == pytest.approx(conv.flops / (4e9 if rounded else 1e9))
        assert "in 16 bits 4.0 GFLOP/s (its quick part), copy" in profile_table(found)
    assert rounded or why_bfloat16_is_slow()


@pytest.mark.slow
@with_onednn
def test_the_rate_in_bfloat16_is_measured_where_a_net_asks_for_it():
    operators = [make_op("Relu", ["x"], ["y"])]
    found = profile(created(*operators, feeds={"x": floats(64)}, threads=1), "net", runs=1).limits["CPU"]
    assert found.bfloat16_rate == 0 and not found.bfloat16_by
    found = measure_limits(1, bfloat16=True)
    assert found.matrix_rate > 1e8
    if not why_bfloat16_is_slow():  # some processors that have the instructions are slower with them
        assert found.bfloat16_rate > 1e8 and "onednn" in found.bfloat16_by


def test_limits_without_onednn(monkeypatch):
    monkeypatch.setenv("NETBUILDER_ONEDNN", "0")
    found = measure_limits(1, bfloat16=True)
    assert found.matrix_by == "numpy.dot" and found.matrix_rate > 1e8 and found.bfloat16_rate == 0


def test_memory():
    feeds = {"x": floats(1000), "w": floats(1000), "b": floats(500)}
    workspace = created(
        make_op("Mul", ["x", "w"], ["y"]), make_op("Relu", ["y"], ["y"]), make_op("Relu", ["b"], ["c"]),
        feeds=feeds, engines=(),
    )  # fmt: skip
    memory = profile(workspace, "net", runs=1, parameters={"w", "b", "not of this net"}, limits=LIMITS).memory
    assert (memory.outside, memory.parameters) == (10_000, 6_000)
    assert memory.values == 6_000  # y in place, and c
    assert memory.peak_resident > 1e7


def test_tables_and_figures():
    workspace, model = block()
    found = profile(workspace, model.net.Name(), runs=2, limits=LIMITS)
    text = profile_table(found, 3)
    assert f"by call, the 3 that take longest of {len(found.calls)}" in text
    shown = text.split("by call")[1].split("\n\n")[0].splitlines()[2:]
    assert len(shown) == 3 and [float(line.split()[0]) for line in shown] == sorted(
        (float(line.split()[0]) for line in shown), reverse=True
    )
    figures = json.loads(json.dumps(found.to_dict()))
    assert figures["step_seconds"] == found.step_seconds and len(figures["calls"]) == len(found.calls)
    assert sum(row["seconds"] for row in figures["kinds"]) == pytest.approx(sum(call.seconds for call in found.calls))
    assert sum(row["share"] for row in figures["calls"]) + figures["interpreter_share"] == pytest.approx(1)


def test_what_runs_by_numpy_is_listed_with_counts_and_places():
    feeds = {"x": np.int32([4, 2, 4, 4]), "z": floats(3)}
    relu = make_op("Relu", ["z"], ["a"])
    relu.debug_info = "here"
    workspace = created(
        relu,
        make_op("Sigmoid", ["a"], ["b"]),
        make_op("Sigmoid", ["b"], ["c"]),
        make_op("Unique", ["x"], ["u", "remap"]),
        feeds=feeds,
        engines=(),
    )
    found = profile(workspace, "net", runs=2, limits=LIMITS)
    listed = {(each.kind, each.kernel): each for each in found.by_numpy()}
    assert {key: (each.calls, each.places) for key, each in listed.items()} == {
        ("Relu", "plain"): (1, ("a (here)",)),
        ("Sigmoid", "plain"): (2, ("b", "c")),
        ("Unique", "plain, outside plans"): (1, ("u",)),
    }
    assert sum(each.seconds for each in listed.values()) == pytest.approx(sum(call.seconds for call in found.calls))
    table = profile_table(found).split("by NumPy: 4 calls, ")[1].split("\n\n")[0]
    assert "plain, outside plans  u" in table and "Sigmoid  plain                 b, c" in table
    assert [row["kind"] for row in found.to_dict()["by_numpy"]] == [each.kind for each in found.by_numpy()]


@pytest.mark.skipif(not machine.available(), reason="needs llvmlite")
def test_nothing_is_listed_where_nothing_runs_by_numpy():
    workspace = created(make_op("Relu", ["z"], ["a"]), feeds={"z": floats(3)})
    found = profile(workspace, "net", runs=1, limits=LIMITS)
    assert found.by_numpy() == [] and "by NumPy" not in profile_table(found)


def test_an_unknown_net_and_numbers_of_runs():
    workspace = created(make_op("Relu", ["x"], ["y"]), feeds={"x": floats(2)})
    with pytest.raises(NetError, match="no net 'nat' in the workspace.*created: 'net'"):
        profile(workspace, "nat")
    for options in ({"runs": 0}, {"warmup": 0}):
        with pytest.raises(NetError, match="profile of net 'net': runs must be 1 or more.*got runs="):
            profile(workspace, "net", **options)


@pytest.mark.parametrize("net_type", ["simple", "dag"])
def test_an_operator_that_fails_is_named_and_the_net_runs_again(net_type):
    bad = on(1, "LabelCrossEntropy", ["p", "label"], ["loss"])
    workspace = created(
        on(0, "Relu", ["x"], ["y"]), on(1, "Softmax", ["x"], ["p"]), bad,
        feeds={"x": floats(2, 3), "label": np.int32([0, 1])}, net_type=net_type,
    )  # fmt: skip
    workspace.run_net("net")
    workspace.feed("label", np.int32([0, 7]))
    with pytest.raises((OperatorError, ValueError), match=r"LabelCrossEntropy.*on CPU 1"):
        profile(workspace, "net", runs=1, limits=LIMITS)
    workspace.feed("label", np.int32([0, 2]))
    assert len(profile(workspace, "net", runs=1, limits=LIMITS).calls) >= 3


def test_a_net_may_be_given_by_itself():
    net = Net("by itself")
    net.Relu("x", "y")
    workspace = Workspace()
    workspace.feed("x", floats(3))
    workspace.create_net(net)
    assert profile(workspace, net, runs=1, limits=LIMITS).net == net.Name()


def test_gpus_are_waited_for_and_have_limits_of_their_own(two_gpus):
    def at(number, *args):
        return make_op(*args, device_option=make_device_option(1, number))

    workspace = created(
        at(0, "MatMul", ["x", "x"], ["a"]), at(1, "MatMul", ["x", "x"], ["b"]), at(0, "Sum", ["a", "b"], ["c"]),
        make_op("Relu", ["c"], ["y"]),
        feeds={"x": floats(16, 16)}, net_type="dag",
    )  # fmt: skip
    limits = {**LIMITS, "GPU": Limits(1e13, "a guess", 1e12, 0)}
    found = profile(workspace, "net", runs=2, limits=limits)
    check_sums(found)
    check_tracks(chrome_trace(found))
    devices = {call.name: (call.device, call.category) for call in found.calls}
    assert devices["MatMul b"] == ("GPU 1", "operator") and devices["Sum c"] == ("GPU 0", "exchange")
    assert devices["Relu y"] == ("CPU 0", "operator")
    reasons = [call.reason for call in found.calls if call.kind == "transfer"]
    assert "MatMul b needs x on GPU 1; it is stored on the host" in reasons
    assert "Relu y needs c on the host; it is stored on GPU 0" in reasons
    relu = next(call for call in found.calls if call.name == "Relu y")
    assert found.limit_of(relu) == pytest.approx(len(found.lanes) * 2 * relu.nbytes / 2 / 1e11)


@pytest.mark.gpu
def test_a_gpu_is_measured(monkeypatch):
    if emulated_gpu.active():
        monkeypatch.setattr(roofline, "GPU_SIDE", 64)
        monkeypatch.setattr(roofline, "GPU_COPIED", 1 << 20)
    found = measure_gpu_limits(0)
    least_rate, least_bandwidth = (0, 0) if emulated_gpu.active() else (1e11, 1e10)
    assert found.matrix_rate > least_rate and found.copy_bandwidth > least_bandwidth and found.threads == 0


def test_what_runs_by_plain_kernels_is_listed_with_its_places():
    found = profiled(
        make_op("NonZero", ["x"], ["places"]), make_op("NonZero", ["y"], ["others"]), make_op("Relu", ["x"], ["y"]),
        feeds={"x": floats(4), "y": floats(4)},
    )  # fmt: skip
    text = profile_table(found)
    section = text.split("by NumPy: ")[1].split("\n\n")[0]
    assert "NonZero" in section and "places, others" in section and "Relu" not in section


def test_a_node_that_onnx_runs_is_named():
    onnx = pytest.importorskip("onnx")
    node = onnx.helper.make_node("Det", ["x"], ["y"])
    arguments = {"node": node.SerializeToString(), "reads": ["x"], "opsets": [":17"]}
    found = profiled(make_op("ONNXNode", ["x"], ["y"], **arguments), feeds={"x": np.eye(3, dtype=np.float32)})
    assert "ONNXNode Det" in profile_table(found).split("by NumPy: ")[1]
