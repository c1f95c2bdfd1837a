"""``workspace.C.OpSchema``: what scripts read of an operator."""

import pytest

from netbuilder.caffe2.python import core, workspace

OpSchema = workspace.C.OpSchema


@pytest.mark.parametrize(
    "op_type, numbers",
    [
        ("FC", (3, 3, 1, 1)),
        ("Relu", (1, 1, 1, 1)),
        ("Concat", (1, OpSchema.inf, 2, 2)),
        ("If", (1, OpSchema.inf, 0, OpSchema.inf)),
        ("Adam", (6, 6, 3, 4)),
        ("Print", (1, 1, 0, 0)),
        ("ThrowException", (0, 0, 0, 0)),
    ],
)
def test_numbers_are_those_of_caffe2(op_type, numbers):
    schema = OpSchema.get(op_type)
    assert (schema.min_input, schema.max_input, schema.min_output, schema.max_output) == numbers
    assert schema.num_inputs_allowed(numbers[0]) and not schema.num_inputs_allowed(numbers[0] - 1)
    assert schema.num_outputs_allowed(numbers[2]) and not schema.num_outputs_allowed(numbers[2] - 1)
    assert schema.num_inputs_outputs_allowed(numbers[0], numbers[2])
    assert schema.CalculateOutput(numbers[0]) == (numbers[2] if numbers[2] == numbers[3] else -1)


def test_arguments_and_blobs_have_names():
    schema = OpSchema.get("FC")
    assert {"axis", "axis_w"} <= {argument.name for argument in schema.args}
    assert not any(argument.required for argument in schema.args)
    assert [name for name, _ in schema.input_desc] == ["X", "W", "b"]
    assert schema.doc and schema.file.endswith(".py") and schema.line > 1 and not schema.private


def test_what_has_to_be_in_place():
    assert OpSchema.get("Iter").inplace_enforced(0, 0)
    assert not OpSchema.get("Relu").inplace_enforced(0, 0)


def test_functions_are_named():
    assert OpSchema.get_cpu_impl("Softmax").startswith("netbuilder.ops.")
    assert OpSchema.get_gradient_impl("Softmax").endswith("Softmax.gradient")
    assert OpSchema.get_gradient_impl("Iter") is None


def test_an_unknown_operator_has_none():
    assert OpSchema.get("NoSuchOperator") is None
    assert OpSchema.get_cpu_impl("NoSuchOperator") is None and OpSchema.get_gradient_impl("NoSuchOperator") is None


def test_every_operator_has_a_schema():
    for op_type in core._GetRegisteredOperators():
        schema = OpSchema.get(op_type)
        assert schema.min_input <= schema.max_input and schema.min_output <= schema.max_output
        assert OpSchema.get_cpu_impl(op_type) or OpSchema.get_cuda_impl(op_type), op_type
