"""Roles: which operators exchange values between devices, when an exchange starts, and in which lane."""

import threading
from dataclasses import dataclass

import numpy as np
import pytest

from netbuilder import Workspace
from netbuilder.ops.core.instructions import Role
from netbuilder.ops.core.operator import Operator
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime.plan.program import read_program
from switches import single
from waiting import HANG

EXTENT = 300  # of gradients that take long enough to reduce for a lane of their own


def on(device, *args, **kwargs):
    return make_op(*args, device_option=make_device_option(0, device), **kwargs)


def backward_pass(devices, layers, middle=()):
    """Each device makes a gradient for each layer; then come ``middle``, the reductions, and the updates."""
    net = NetDef(name="net", type="dag", num_workers=2 * devices)
    names = [f"g{layer}" for layer in range(layers)]
    for k in reversed(range(devices)):
        net.external_input.append(f"cpu_{k}/x")
        net.op.extend(on(k, "Scale", [f"cpu_{k}/x"], [f"cpu_{k}/{name}"], scale=0.5) for name in names)
    net.op.extend(middle)
    for name in names:
        copies = [f"cpu_{k}/{name}" for k in range(devices)]
        net.op.append(on(0, "Sum", copies, copies[:1]))
        net.op.extend(on(0, "Copy", copies[:1], [copy]) for copy in copies[1:])
    for k in range(devices):
        net.op.extend(on(k, "Sum", [f"cpu_{k}/x", f"cpu_{k}/{name}"], [f"cpu_{k}/new_{name}"]) for name in names)
    return net


def created(net, threads=2, extent=EXTENT, **options):
    workspace = Workspace(threads=threads)
    for number, name in enumerate(net.external_input):
        workspace.feed(name, np.full((extent, extent), number + 1, np.float32))
    workspace.create_net(net, **options)
    workspace.run_net("net")
    return workspace


def steps(workspace):
    return workspace.net("net").plans[-1].steps


def written(workspace):
    """Return what each step of the plan writes, in order."""
    return [f"{step.node.first.op_def.type} {step.outputs[0].name}" for step in steps(workspace)]


def roles(*ops):
    net = NetDef(name="net", external_input=["cpu_0/x", "cpu_1/x"])
    net.op.extend([on(0, "Relu", ["cpu_0/x"], ["cpu_0/a"]), on(1, "Relu", ["cpu_1/x"], ["cpu_1/a"]), *ops])
    return [instruction.role for instruction in read_program(net)[2:]]


BOTH = ["cpu_0/a", "cpu_1/a"]


@pytest.mark.parametrize(
    ("op", "role"),
    [
        (on(0, "Sum", BOTH, ["cpu_0/a"]), Role.EXCHANGE),
        (on(0, "Sum", ["cpu_0/a", "cpu_0/x"], ["cpu_0/b"]), Role.COMPUTE),
        (on(0, "Copy", ["cpu_0/a"], ["cpu_1/a"]), Role.EXCHANGE),
        (on(1, "Copy", ["cpu_0/a"], ["cpu_1/b"]), Role.EXCHANGE),
        (on(1, "Copy", ["cpu_1/a"], ["cpu_1/b"]), Role.COMPUTE),
        (on(0, "Concat", BOTH, ["cpu_0/b", "split"], axis=0), Role.EXCHANGE),
        (on(0, "Add", BOTH, ["cpu_0/b"]), Role.EXCHANGE),
        (on(0, "Mul", BOTH, ["cpu_0/b"]), Role.COMPUTE),
        (on(0, "NCCLAllreduce", BOTH, BOTH), Role.EXCHANGE),
        (on(0, "NCCLAllreduce", ["cpu_0/a"], ["cpu_0/a"]), Role.EXCHANGE),
    ],
)
def test_an_operator_exchanges_by_its_declaration_and_the_devices_of_its_blobs(op, role):
    assert roles(op) == [role]


def test_a_reduction_follows_the_last_write_of_its_gradient():
    workspace = created(backward_pass(2, 3))
    found = written(workspace)
    assert found[3:-6] == [
        "Scale cpu_0/g0", "Sum cpu_0/g0", "Copy cpu_1/g0",
        "Scale cpu_0/g1", "Sum cpu_0/g1", "Copy cpu_1/g1",
        "Scale cpu_0/g2", "Sum cpu_0/g2", "Copy cpu_1/g2",
    ]  # fmt: skip
    assert found[:3] == [f"Scale cpu_1/g{layer}" for layer in range(3)]
    assert {step.lane for step in steps(workspace) if step.node.role is Role.EXCHANGE} == {2}


def test_a_reduction_comes_after_whatever_reads_or_writes_what_it_overwrites():
    middle = [
        on(1, "Relu", ["cpu_1/g0"], ["cpu_1/seen"]),  # reads what the copy overwrites
        on(0, "Scale", ["cpu_0/g1"], ["cpu_0/g1"], scale=3.0),  # writes what the sum reads
        on(1, "Relu", ["cpu_1/x"], ["cpu_1/other"]),
    ]
    found = written(created(backward_pass(2, 2, middle), without=single("elementwise_chains")))
    order = {name: found.index(name) for name in found}
    assert order["Copy cpu_1/g0"] == order["Relu cpu_1/seen"] + 1
    assert order["Sum cpu_0/g0"] < order["Relu cpu_1/seen"]
    assert order["Sum cpu_0/g1"] == max(i for i, name in enumerate(found) if name == "Scale cpu_0/g1") + 1
    assert order["Copy cpu_1/g1"] < order["Relu cpu_1/other"]


def test_a_reduction_comes_after_its_control_inputs():
    net = backward_pass(2, 2)
    for op in net.op:
        if op.type == "Sum" and op.output[0] == "cpu_0/g0":
            op.control_input.append("cpu_0/g1")
    found = written(created(net))
    assert found.index("Sum cpu_0/g0") > found.index("Scale cpu_0/g1")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"threads": 1}, "one lane"),
        ({"extent": 20}, "small reductions: another thread would cost more"),
        ({"num_workers": 2}, "no more workers than devices"),
        ({"type": "simple"}, "one lane"),
    ],
)
def test_a_plan_without_a_lane_for_the_exchange_keeps_the_order_of_the_net(options, why):
    net = backward_pass(2, 3)
    net.num_workers, net.type = options.pop("num_workers", 4), options.pop("type", "dag")
    workspace = created(net, **options)
    assert written(workspace) == [f"{op.type} {op.output[0]}" for op in net.op], why
    assert {step.lane for step in steps(workspace)} <= {0, 1}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("devices", [2, 3, 4, 8])
def test_the_values_are_those_of_one_lane(devices):
    net = backward_pass(devices, 3)
    names = [f"cpu_{k}/new_g{layer}" for k in range(devices) for layer in range(3)]
    one, several = created(net, threads=1), created(net, threads=devices)
    assert several.net("net").options.exchange_lane and not one.net("net").options.exchange_lane
    for workspace in (one, several):
        workspace.run_net("net", 5)
    for name in names:
        np.testing.assert_array_equal(one.fetch(name), several.fetch(name))


def test_the_rest_of_the_backward_pass_runs_while_a_gradient_is_reduced(own_operators):
    """An operator of the backward pass waits until the gradient made before it is reduced on all devices."""
    reduced = threading.Event()

    @dataclass(frozen=True)
    class AwaitsReduction(Operator):
        signature = "X -> Y"

        def infer(self, x):
            return (x,)

    def await_reduction(op, ctx, x):
        assert reduced.wait(HANG), "the reduction waits for the end of the backward pass"
        return (x,)

    @dataclass(frozen=True)
    class SaysReduced(Operator):
        signature = "X -> Y"

        def infer(self, x):
            return (x,)

    def say_reduced(op, ctx, x):
        reduced.set()
        return (x,)

    for cls, kernel in ((AwaitsReduction, await_reduction), (SaysReduced, say_reduced)):
        own_operators.register(cls)
        own_operators.kernel(cls)(kernel)
    net = backward_pass(2, 1, [on(0, "AwaitsReduction", ["cpu_0/x"], ["cpu_0/rest"])])
    net.op.append(on(1, "SaysReduced", ["cpu_1/g0"], ["cpu_1/said"]))
    workspace = created(net)
    reduced.clear()
    workspace.run_net("net")
    assert reduced.is_set()
