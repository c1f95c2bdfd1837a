"""The convention of passes, and that a pass which returns a wrong net is caught."""

import importlib
import inspect
import pkgutil

import pytest

import netbuilder.caffe2
import netbuilder.passes
from netbuilder.graph import Net
from netbuilder.passes import Devices, PassContext, PassResult, net_pass
from netbuilder.passes.net_pass import NetPass
from netbuilder.proto import PROTO_CUDA, NetDef
from netbuilder.proto.arguments import make_device_option, make_op


def net_of():
    """x -> a -> b -> y, with b written twice."""
    net = NetDef(name="checked", external_input=["x"])
    net.op.extend(
        [
            make_op("Relu", ["x"], ["a"]),
            make_op("Sigmoid", ["a"], ["b"]),
            make_op("Exp", ["b"], ["b"]),
            make_op("Copy", ["b"], ["y"]),
        ]
    )
    return net


def returning(change):
    """A pass that makes a change to a copy of the net."""

    @net_pass
    def changed_pass(net: NetDef, context: PassContext) -> PassResult:
        result = NetDef()
        result.CopyFrom(net)
        change(result)
        return PassResult(result)

    return changed_pass


def test_a_pass_takes_a_net_or_its_message_and_returns_net_and_extras():
    @net_pass
    def count_pass(net: NetDef, context: PassContext, *, op_type: str) -> PassResult:
        """Count operators."""
        return PassResult(net, {"count": sum(op.type == op_type for op in net.op), "keep": context.keep})

    net = Net("counted")
    net.Relu("x", "y")
    for given in (net, net.Proto()):
        result = count_pass(given, PassContext(keep=["y"]), op_type="Relu")
        assert result.net is net.Proto() and result.extras == {"count": 1, "keep": ["y"]}
    assert count_pass(net, op_type="Exp").extras == {"count": 0, "keep": ()}
    assert count_pass.__name__ == "count_pass" and count_pass.__doc__ == "Count operators."


def test_all_passes_follow_the_convention():
    passes = {}
    for package in (netbuilder.passes, netbuilder.caffe2):
        for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            if not module.ispkg and not module.name.endswith("__main__"):
                found = vars(importlib.import_module(module.name))
                passes.update({name: each for name, each in found.items() if isinstance(each, NetPass)})
    assert len(passes) >= 16
    for name, function in passes.items():
        net, context, *options = inspect.signature(function).parameters.values()
        assert name.endswith("_pass") and function.__doc__, name
        assert net.annotation == "NetDef" and context.annotation == "PassContext", name
        assert all(option.kind is option.KEYWORD_ONLY for option in options), name


def test_what_is_right_passes():
    def insert(net):
        net.op.insert(1, make_op("Copy", ["a"], ["c"]))

    def rename(net):
        net.op[0].output[0] = net.op[1].input[0] = "renamed"

    def share(net):
        net.op[0].output[0] = net.op[1].input[0] = "b"  # a and b are not needed at the same time

    for change in (lambda net: None, insert, rename, share, lambda net: net.op.pop()):
        returning(change)(net_of())


def test_an_operator_with_other_arguments_may_read_other_blobs():
    net = NetDef(name="checked", external_input=["x"])
    net.op.extend([make_op("Scale", ["x"], ["a"], scale=2.0), make_op("Scale", ["a"], ["y"], scale=3.0)])
    returning(lambda net: net.op[1].CopyFrom(make_op("Scale", ["x"], ["y"], scale=6.0)))(net)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda net: net.op[0].output.__setitem__(0, "c"), "'a' is read before an operator makes it"),
        (lambda net: net.op.append(make_op("NoType", ["y"], ["z"])), "operator 4 is of the unknown type 'NoType'"),
        (lambda net: net.op.append(make_op("Softmax", ["y"], ["z"], axis="one")), "operator 4: .*axis"),
        (lambda net: net.op.append(make_op("Relu", ["x", "y"], ["z"])), "operator 4: .*Relu"),
        (lambda net: net.op.append(make_op("Split", ["y"], ["z", "z"])), r"operator 4 Split writes \['z'\] twice"),
        (lambda net: net.op.insert(0, net.op.pop(3)), "'b' is read before an operator makes it"),
        (lambda net: net.op.insert(3, net.op.pop(1)), "the operators that write 'b' have changed their order"),
        (lambda net: net.op.insert(2, net.op.pop(3)), "operator 2 Copy reads 'b' as another operator has left it"),
        (lambda net: net.op[3].input.__setitem__(0, "a"), "operator 3 Copy reads 'a' as another operator has left it"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_caught(change, message):
    with pytest.raises(AssertionError, match=f"pass changed_pass, net 'checked': .*{message}"):
        returning(change)(net_of())


def test_faults_that_were_there_are_not_the_passes():
    net = net_of()
    net.op.append(make_op("NoSuchType", ["nothing"], ["z"]))
    returning(lambda net: net.op[4].output.__setitem__(0, "renamed"))(net)


def test_a_pass_leaves_its_net_unchanged():
    @net_pass
    def careless_pass(net: NetDef, context: PassContext) -> PassResult:
        net.op[0].name = "touched"
        return PassResult(net)

    with pytest.raises(AssertionError, match="pass careless_pass, net 'checked': it changed the net that it was given"):
        careless_pass(net_of())


def test_an_operator_on_the_wrong_device_is_caught():
    net = NetDef(name="replicas")
    for number in (0, 1):
        device = make_device_option(PROTO_CUDA, number)
        net.op.append(make_op("Relu", [f"gpu_{number}/x"], [f"gpu_{number}/y"], device_option=device))
    context = PassContext(devices=Devices(PROTO_CUDA, (0, 1)))
    with pytest.raises(AssertionError, match="output 'gpu_1/y' is on GPU 1, but the operator runs on GPU 0"):
        returning(lambda net: setattr(net.op[1].device_option, "device_id", 0))(net, context)


def test_a_reduction_is_told_the_devices():
    from netbuilder.passes.reductions import broadcast_pass
    from netbuilder.proto import NetError

    with pytest.raises(
        NetError, match=r"net 'checked': a reduction needs the devices of the replicas; give PassContext\("
    ):
        broadcast_pass(net_of(), groups=[["x"]])
    context = PassContext(devices=Devices(0, (0, 1)), available=["cpu_0/p"])
    added = broadcast_pass(net_of(), context, groups=[["cpu_0/p", "cpu_1/p"]]).net
    assert [op.type for op in added.op] == ["Relu", "Sigmoid", "Exp", "Copy", "Copy"]
    assert list(added.op[4].output) == ["cpu_1/p"]
