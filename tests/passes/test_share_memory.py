"""Blobs that share names: the same bits, fewer blobs; operators that free them."""

import numpy as np
import pytest

from netbuilder import ModelHelper, Workspace, brew
from netbuilder.graph.gradient_shares import gradient_blobs
from netbuilder.ops.core.renaming import rename_blobs
from netbuilder.passes.share_memory import free_when_used, live_blobs, share_gradients, share_memory, shared_names
from netbuilder.proto import NetDef, NetError
from netbuilder.proto.arguments import make_device_option, make_op
from toy_models import softmax_loss


def chain(length, **device):
    net = NetDef(name="chain", external_input=["x0"])
    for i in range(length):
        net.op.append(make_op("Relu", [f"x{i}"], [f"x{i + 1}"]))
    return net


def blobs_of(net):
    return {name for op in net.op for name in op.output}


def test_a_chain_needs_two_blobs():
    net, names = share_memory(chain(6), lambda name: name != "x6")
    assert names == {
        "x1": "__m0_shared",
        "x3": "__m0_shared",
        "x5": "__m0_shared",
        "x2": "__m1_shared",
        "x4": "__m1_shared",
    }
    assert blobs_of(net) == {"__m0_shared", "__m1_shared", "x6"}
    assert blobs_of(chain(6)) == {f"x{i}" for i in range(1, 7)}
    with pytest.raises(NetError, match="shares memory already, it has blobs"):
        share_memory(NetDef(name="n", op=[*net.op, *chain(4).op]), lambda name: name.startswith("x"))


def test_what_keeps_its_name():
    net = chain(5)
    net.op[3].device_option.CopyFrom(make_device_option(1, 0))
    live = {blob.key: (blob.start, blob.end) for blob in live_blobs(net.op)}
    assert live == {"x1": (0, 1), "x2": (1, 2), "x5": (4, 4)}, "x3 and x4 are of two devices"
    _, names = share_memory(chain(6), lambda name: True, keep=["x1", "x3"], prefix="scope")
    assert names == dict.fromkeys(["x2", "x4", "x6"], "scope/__m0_shared")


def test_sizes_choose_the_nearest():
    sizes = {"x1": 100, "x2": 7, "x3": 90, "x4": 8, "x5": 7}
    blobs = live_blobs(chain(5).op, sizes)
    assert shared_names(blobs)["x3"] == shared_names(blobs)["x1"]
    assert shared_names(blobs)["x4"] == shared_names(blobs)["x2"]


def classifier():
    model = ModelHelper("shared_memory")
    blob = "data"
    for index in range(5):
        blob = brew.fc(model, blob, f"fc{index}", dim_in=6, dim_out=6)
        blob = brew.relu(model, blob, f"relu{index}")
    gradients = model.AddGradientOperators([softmax_loss(model, blob)])
    return model, [str(gradients[str(param)]) for param in model.params]


def values(model, net, names):
    workspace = Workspace(seed=1)
    rng = np.random.default_rng(0)
    workspace.feed("data", rng.standard_normal((4, 6), np.float32))
    workspace.feed("label", np.int32([0, 1, 2, 3]))
    workspace.run_net_once(model.param_init_net)
    workspace.create_net(net)
    for _ in range(2):
        workspace.run_net(net)
    return [workspace.fetch(name) for name in names]


def test_gradients_to_the_bit():
    model, gradients = classifier()
    net = model.net.Proto()
    shared, names = share_memory(net, lambda name: "_grad" in name or name.startswith("fc"), keep=gradients)
    assert len(blobs_of(shared)) < len(blobs_of(net)) - 8 and not set(names) & set(gradients)
    freed = free_when_used(net, [*gradients, "loss"])
    assert sum(op.type == "Free" for op in freed.op) > 10
    expected = values(model, net, [*gradients, "loss"])
    for other in (shared, freed):
        for a, b in zip(values(model, other, [*gradients, "loss"]), expected):
            assert np.array_equal(a, b)


def test_freed_blobs():
    freed = free_when_used(chain(3), ["x1"])
    assert [(op.type, list(op.output)) for op in freed.op] == [
        ("Relu", ["x1"]), ("Relu", ["x2"]), ("Relu", ["x3"]), ("Free", ["x2"]),
    ]  # fmt: skip
    assert [op.type for op in free_when_used(chain(3), [], lambda name: name == "x1").op][2] == "Free"


def test_gradients_are_recognized_by_their_operators_not_by_their_names():
    model, gradients = classifier()
    plain = model.net.Proto()
    names = {op.output[0]: f"forward{i}_grad_of" for i, op in enumerate(plain.op) if op.type == "Relu"}
    found = gradient_blobs(plain.op)
    assert found and not any(name in found for name in names)
    names.update((name, f"d{i}") for i, name in enumerate(sorted(found)))
    renamed = NetDef()
    renamed.CopyFrom(plain)
    rename_blobs(renamed, names)
    keep = {"loss", *(names[name] for name in gradients)}
    assert gradient_blobs(renamed.op) == {names[name] for name in found}
    _, shared = share_gradients(renamed, [""], gradient_blobs(renamed.op), keep=keep)
    assert len(shared) > 8 and shared.keys() <= {names[name] for name in found} - keep
