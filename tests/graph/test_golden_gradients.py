"""Gradient operators against those that Caffe2 made: of single operators, and of whole nets."""

import pytest

import golden_data
from netbuilder.graph import GradientSlice, Net
from netbuilder.graph.gradient_shares import SUM_TAG
from netbuilder.proto import GradientError, NetDef, OperatorDef
from structure import differences, operator_text

_ROW_MUL = "the gradient of w has the shape of w"
_POW = "one operator, whose gradient of the exponent has the exponent's shape"
_SQR = "Caffe2 scales the gradient of Y in place, where others may still read it; here X's is scaled"
DIFFERENT = {
    "Sqr-0": _SQR,
    "Sqr-1": _SQR,
    "Sqr-3": _SQR,
    "Pow-5": _POW,
    "Pow-6": _POW,
    "RowMul-0": _ROW_MUL,
    "RowMul-1": _ROW_MUL,
    "RowMul-2": _ROW_MUL,
    "UnpackRNNSequence-0": "Caffe2's gradient has the steps of the longest sequence; here it has those of X",
    "UnpackRNNSequence-2": "as UnpackRNNSequence-0",
    "Pow-4": "in place, Caffe2 writes an intermediate result over the gradient of Y before it is read",
}

NETS_APART = {
    "convnet_share_activations": "memory was shared after the gradients were made; net_before is compared",
    "convnet_share_grad": "memory was shared after the gradients were made; net_before is compared",
    "dp_convnet_2_combine_bn": "sums over devices were put between the gradient operators",
    "dp_convnet_2_memory": "dp_convnet_2 after memory was shared",
    "dp_convnet_2_shared_model": "parameters were renamed after the gradients were made",
    "gpu_structure_convnet_2_combine_bn": "sums over devices were put between the gradient operators",
    "gpu_structure_convnet_2_memory": "gpu_structure_convnet_2 after memory was shared",
    "lr_policies": "has no gradients",
    "memonger_inference": "has no gradients",
    "resnet50_1_memory": "resnet50_1 after memory was shared",
    "resnet50_1_recycle_activations": "memory was shared after the gradients were made; net_before is compared",
    "resnet50_1_recycle_grad": "memory was shared after the gradients were made; net_before is compared",
    "resnet50_4_memory": "resnet50_4 after memory was shared",
}


def _cases():
    return [case for name in golden_data.operators() for case in golden_data.cases(name) if case.meta["has_gradient"]]


def _key(case) -> str:
    return f"{case.op}-{case.index}"


def _text(op) -> str:
    """An operator on one line; an argument that Caffe2 copied although there is one of the same name is ignored."""
    once = OperatorDef()
    once.CopyFrom(op)
    del once.arg[:]
    once.arg.extend({arg.name: arg for arg in reversed(op.arg)}.values())
    return operator_text(once)


def _made(case):
    net = Net("golden")
    net.Proto().op.append(case.operator)
    found = net.AddGradientOperators(case.meta["grad_of_outputs"])
    return [_text(op) for op in net.Proto().op[1:]], {str(blob): _place(g) for blob, g in found.items()}


def _place(gradient):
    if isinstance(gradient, GradientSlice):
        return {"kind": "sparse", "indices": str(gradient.indices), "values": str(gradient.values)}
    return {"kind": "dense", "blob": str(gradient)}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", sorted({case.op for case in _cases()}))
def test_operators(name):
    cases = [case for case in golden_data.cases(name) if case.meta["has_gradient"]]
    for case in cases:
        if _key(case) in golden_data.OVERWRITTEN:
            with pytest.raises(GradientError, match="which its gradient reads"):
                _made(case)
            continue
        operators, found = _made(case)
        want = [_text(op) for op in case.gradient_ops]
        assert (operators != want) == (_key(case) in DIFFERENT), f"{case}: {operators} for {want}"
        for blob, place in case.meta["input_grads"].items():
            assert found[blob] == place, f"{case}: gradient of {blob}"
        unexpected = [b for b in case.operator.input if b in found and b not in case.meta["input_grads"]]
        assert all(blob in case.operator.output for blob in unexpected), f"{case}: gradients of {unexpected}"


def _split(proto):
    """Return the forward operators of a golden net, its losses, and its gradient operators."""
    ops = list(proto.op)
    made = [i for i, op in enumerate(ops) if op.is_gradient_op or SUM_TAG in op.device_option.extra_info]
    start, end = made[0], made[-1] + 1
    assert made == list(range(start, end)), "gradient operators stand together"
    losses = {}
    while ops[start - 1].type == "ConstantFill" and ops[start - 1].output[0].endswith("_grad"):
        start -= 1
        losses[ops[start].input[0]] = ops[start].output[0]
    if all(blob.endswith("_autogen_grad") for blob in losses.values()):
        return ops[:start], list(losses), ops[start:end]
    return ops[: made[0]], losses, ops[made[0] : end]  # the seeds were made by the builder, before


def _nets():
    for name in golden_data.nets():
        if name not in NETS_APART:
            yield name, "net"
        elif "net_before" in golden_data.net(name).protos:
            yield name, "net_before"


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "which"), [row for row in _nets() if row[0] not in ("lr_policies", "memonger_inference")]
)
def test_nets(name, which):
    forward, losses, want = _split(golden_data.net(name).protos[which])
    net = Net(NetDef(name=name, op=forward))
    net.AddGradientOperators(losses)
    assert differences(NetDef(op=net.Proto().op[len(forward) :]), NetDef(op=want)) == []
    assert len(want) > 3


def test_nets_apart_exist():
    assert NETS_APART.keys() <= set(golden_data.nets())
