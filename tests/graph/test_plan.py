"""Execution steps and plans."""

import pytest

from netbuilder.graph import (
    BlobReference,
    ExecutionStep,
    NameScope,
    Net,
    Plan,
    add_nets_in_order,
    execution_step,
    scoped_execution_step,
    to_execution_step,
)
from netbuilder.proto import NetError


@pytest.fixture
def nets():
    nets = [Net("a"), Net("b"), Net("c")]
    for net in nets:
        net.Relu("x", net.Name() + "_y")
    return nets


def test_a_step_of_nets(nets):
    step = execution_step("train", nets[:2], num_iter=3)
    proto = step.Proto()
    assert (proto.name, proto.network, proto.num_iter) == ("train", ["a", "b"], 3)
    assert step.HasNets() and not step.HasSubsteps() and step.Nets() == nets[:2] and step.Name() == "train"
    assert execution_step("once", nets[0]).Proto().num_iter == 1


def test_a_step_of_steps_nets_and_lists(nets):
    inner = execution_step("inner", nets[0])
    step = execution_step("outer", [inner, nets[1], [nets[1], nets[2]]], num_iter=2)
    assert [(s.name, list(s.network)) for s in step.Proto().substep] == [
        ("inner", ["a"]),
        ("step", ["b"]),
        ("step_1", ["b", "c"]),
    ]
    assert step.HasSubsteps() and step.Substeps()[0] is inner and step.Nets() == nets
    single = execution_step("around", to_execution_step(nets[0]))
    assert len(single.Proto().substep) == 1


def test_settings(nets):
    proto = execution_step(
        "s",
        nets[:2],
        report_net=nets[2],
        report_interval=5,
        concurrent_substeps=True,
        should_stop_blob=BlobReference("stop"),
        only_once=True,
        num_concurrent_instances=2,
        create_workspace=True,
        run_every_ms=7,
    ).Proto()
    assert not proto.HasField("num_iter")
    assert (proto.report_net, proto.report_interval, proto.should_stop_blob) == ("c", 5, "stop")
    assert (proto.num_concurrent_instances, proto.run_every_ms) == (2, 7)
    assert proto.concurrent_substeps and proto.only_once and proto.create_workspace


def test_names(nets):
    with NameScope("scope"):
        assert scoped_execution_step("s", nets[0]).Name() == "scope/s"
    assert [to_execution_step(net).Name() for net in nets] == ["step", "step_1", "step_2"]
    assert to_execution_step(nets, "all").Name() == "all"
    step = ExecutionStep("s")
    assert to_execution_step(step) is step


def test_plans_hold_steps_and_their_nets_once(nets):
    report = Net("report")
    plan = Plan("plan")
    plan.AddStep(execution_step("one", nets[:2], report_net=report, report_interval=1))
    plan.AddStep(execution_step("two", [nets[1], nets[2]]))
    plan.AddNets([nets[0]])
    proto = plan.Proto()
    assert proto.name == plan.Name() == "plan"
    assert [net.name for net in proto.network] == ["a", "b", "report", "c"]
    assert proto.network[0] == nets[0].Proto()
    assert [step.name for step in proto.execution_step] == ["one", "two"]
    assert plan.Nets() == [nets[0], nets[1], report, nets[2]] and len(plan.Steps()) == 2


def test_a_plan_of_one_step(nets):
    plan = Plan(to_execution_step(nets[0], "only"))
    assert plan.Name() == "only" and plan.Nets() == [nets[0]]


def test_nets_in_order_of_execution(nets):
    found = [nets[2]]
    add_nets_in_order(execution_step("s", [to_execution_step(nets[1]), nets[0], nets[1]]), found)
    assert found == [nets[2], nets[1], nets[0]]


@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (NetError, "num_iter or should_stop_blob", lambda a: execution_step("s", a, num_iter=1, should_stop_blob="b")),
        (NetError, "a net, or a list", lambda a: execution_step("s", [])),
        (NetError, "got 3", lambda a: to_execution_step(3)),
        (NetError, "report_interval", lambda a: execution_step("s", a, report_net=a)),
        (NetError, "into a substep of its own", lambda a: execution_step("s", to_execution_step(a)).AddNet(a)),
        (NetError, "so step .* cannot be added to it", lambda a: execution_step("s", a).AddSubstep(ExecutionStep("t"))),
        (TypeError, "net must be a Net, got 'a'", lambda a: ExecutionStep("s").AddNet("a")),
        (TypeError, "must be a string or an ExecutionStep", lambda a: Plan(3)),
        (TypeError, "must be an ExecutionStep", lambda a: Plan("p").AddStep(a)),
    ],
)
def test_refusals(nets, error, match, call):
    with pytest.raises(error, match=match):
        call(nets[0])


def test_steps_in_use_are_fixed(nets):
    step, outer = execution_step("s", nets[0]), ExecutionStep("outer")
    outer.AddSubstep(step)
    with pytest.raises(NetError, match="'s' cannot be changed, because it is part of a plan or of another step"):
        step.SetIter(3)
    Plan("p").AddStep(outer)
    with pytest.raises(NetError, match="'outer' cannot be changed"):
        outer.AddSubstep(ExecutionStep("t"))


def test_two_nets_of_one_name(nets):
    plan = Plan("p")
    plan.AddNets([nets[0]])
    nets[1].Proto().name = "a"
    with pytest.raises(NetError, match="another net named 'a'"):
        plan.AddNets([nets[1]])


def test_attributes_and_nets_are_found_through_steps():
    first, second = Net("attributes_first"), Net("attributes_second")
    first.add_attribute("loader", 1)
    first.add_attribute("loader", 2)
    second.add_attribute("loader", 3)
    step = execution_step("outer", [execution_step("inner", [first]), execution_step("other", [second])])
    assert step.get_net("attributes_second") is second and step.get_net("nowhere") is None
    assert step.get_all_attributes("loader") == Plan(step).get_all_attributes("loader") == [1, 2, 3]
    assert step.get_all_attributes("nothing") == []


def test_a_plan_from_its_message(nets):
    body = execution_step("body", nets[:2], num_iter=3)
    plan = Plan(execution_step("all", [body, to_execution_step(nets[2], "last")], concurrent_substeps=True))
    proto = plan.Proto()
    again = Plan.create_from_proto(proto)
    assert again.Name() == plan.Name() and [step.Name() for step in again.Steps()] == ["all"]
    assert [len(net.op) for net in again.Proto().network] == [len(net.op) for net in proto.network]
    step, before = again.Proto().execution_step[0], proto.execution_step[0]
    assert step.concurrent_substeps and step.substep[0].num_iter == 3 and step.num_iter == before.num_iter
    new = [net.Name() for net in again.Nets()]
    assert new != [net.name for net in proto.network] and list(step.substep[0].network) == new[:2]
    assert Plan.create_from_proto(again.Proto()).Steps()[0].Substeps()[1].Name() == "last"


def test_a_step_from_a_message_keeps_its_report_net(nets):
    step = execution_step("s", nets[0], report_net=nets[1], report_interval=5)
    made = {}
    again = ExecutionStep.create_from_proto(step.Proto(), made, {net.Name(): net.Proto() for net in nets[:2]})
    assert again.Proto().report_net == made[nets[1].Name()].Name() and again.Proto().report_interval == 5


def test_messages_that_fit_nothing(nets):
    step = to_execution_step(nets[0], "s")
    with pytest.raises(NetError, match="step 's': runs net .*, which is not among \\[\\]"):
        ExecutionStep.create_from_proto(step.Proto(), {}, {})
    proto = Plan(step).Proto()
    proto.network.append(proto.network[0])
    with pytest.raises(NetError, match="has two nets named"):
        Plan.create_from_proto(proto)
