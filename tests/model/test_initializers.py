"""How first values are made."""

import pytest

from netbuilder.graph import BlobReference, NameScope, Net
from netbuilder.model import (
    ExternalInitializer,
    Initializer,
    ModelHelper,
    PseudoFP16Initializer,
    ReversePseudoFP16Initializer,
    brew,
    update_initializer,
)
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.proto import ArgumentError, TensorProto

DEFAULT = ("ConstantFill", {"value": 1.0})


def test_a_fill_of_the_init_net():
    net = Net("init")
    with NameScope("s"):
        info = Initializer("GaussianFill", std=0.5).create_param("w", net, [2, 3])
    assert (info.name, info.shape, info.size, str(info), repr(info)) == (
        "s/w", [2, 3], 6, "s/w", "ParameterInfo('s/w', shape=[2, 3])",
    )  # fmt: skip
    assert (net.Proto().op[0].type, list(net.Proto().op[0].output)) == ("GaussianFill", ["s/w"])


def test_a_fill_is_set_once():
    made = Initializer()
    with pytest.raises(ArgumentError, match="parameter 'w': its initializer Initializer has no fill operator"):
        made.create_param("w", Net("init"), [1])
    made.update("XavierFill", {})
    with pytest.raises(ArgumentError, match="has the fill 'XavierFill' already; make another one for 'MSRAFill'"):
        made.update("MSRAFill", {})


def test_somebody_elses_parameter():
    net = Net("init")
    with NameScope("s"):
        info = ExternalInitializer().create_param("w", net, [2])
        full = ExternalInitializer().create_param(BlobReference("w"), net, None)
    assert (info.name, info.shape, full.name, full.shape, net.op_len) == ("s/w", [2], "w", None, 0)
    with pytest.raises(TypeError, match="param_name must be a string or a BlobReference, got 3"):
        ExternalInitializer().create_param(3, net, [2])


def test_what_a_layers_arguments_ask_for():
    default = update_initializer(None, None, DEFAULT)
    assert (type(default), default.operator_name, default.operator_kwargs) == (Initializer, *DEFAULT)
    given = update_initializer(None, ("MSRAFill", {"a": 1}), DEFAULT)
    assert (given.operator_name, given.operator_kwargs) == ("MSRAFill", {"a": 1})
    assert type(update_initializer(PseudoFP16Initializer, None, DEFAULT)) is PseudoFP16Initializer
    assert type(update_initializer(ExternalInitializer, None, DEFAULT)) is ExternalInitializer
    whole = Initializer("UniformFill")
    assert update_initializer(whole, None, DEFAULT) is whole
    with pytest.raises(ArgumentError, match="has its own fill, so the fill"):
        update_initializer(whole, ("MSRAFill", {}), DEFAULT)
    with pytest.raises(ArgumentError, match="a fill must be .* got 'MSRAFill'"):
        update_initializer(None, "MSRAFill", DEFAULT)


def test_layers_take_classes_and_finished_ones():
    model = ModelHelper("layers")
    brew.fc(model, "x", "a", 2, 3, WeightInitializer=ExternalInitializer, BiasInitializer=Initializer("UniformFill"))
    brew.spatial_bn(model, "a", "b", 3, ScaleInitializer=ExternalInitializer)
    made = [(op.type, op.output[0]) for op in model.param_init_net.Proto().op]
    assert made == [
        ("UniformFill", "a_b"),
        ("ConstantFill", "b_b"),
        ("ConstantFill", "b_rm"),
        ("ConstantFill", "b_riv"),
    ]
    assert model.params == ["a_w", "a_b", "b_s", "b_b"]


class Recorded:
    """A fake init net that records (type, inputs, output) of the operators."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, op_type):
        def add(inputs, output, **arguments):
            self.calls.append((op_type, inputs, output))
            return BlobReference(output)

        return add


def test_half_precision_with_a_master_copy():
    net = Recorded()
    info = PseudoFP16Initializer("XavierFill").create_param("w", net, [2])
    assert (info.name, info.blob_copy) == ("w", {TensorProto.FLOAT: "w_fp32"})
    assert net.calls == [("XavierFill", [], "w_fp32"), ("FloatToHalf", "w_fp32", "w")]
    info = ReversePseudoFP16Initializer("XavierFill").create_param("v", net, [2])
    assert (info.name, info.blob_copy) == ("v", {TensorProto.FLOAT16: "v_fp16"})
    assert net.calls[2:] == [("XavierFill", [], "v"), ("FloatToHalf", "v", "v_fp16")]


def test_a_parameter_is_a_reference():
    with pytest.raises(TypeError, match="a parameter must be a BlobReference, got 'w'"):
        ParameterInfo(None, "w")
