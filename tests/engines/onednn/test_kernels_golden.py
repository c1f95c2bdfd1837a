"""Every kernel against the numbers of Caffe2."""

import numpy as np
import pytest

import golden_data
from golden_cases import of_each_operator
from golden_data import mismatch
from kernel_checks import has_instructions
from netbuilder.engines import onednn
from netbuilder.ops.core.operator import decode
from netbuilder.ops.core.registry import find
from netbuilder.runtime.plan.run_context import KernelContext
from prepared import Value, bind

if not onednn.available():
    pytest.skip("needs oneDNN", allow_module_level=True)

from netbuilder.engines.onednn.registration import kernel_table

TABLE = kernel_table()

# Kernels only for values in a layout: golden cases, whose values are plain, do not use them.
BLOCKED_ALONE = {
    "Alias", "Concat", "Copy", "DepthConcat", "ReduceMean", "Split", "StopGradient",
}  # fmt: skip

# Cases that the array kernels compute, by parts of their labels: broadcasting, other types, weights, ...
BROADCAST = ("NumPy", "both", "legacy", "scalar", "one-element", "broadcast", "int", "double")
LEFT = {
    "Add": BROADCAST,
    "Mul": BROADCAST,
    "Sub": BROADCAST,
    "Sum": ("one input", "int32"),
}

# Gradient operators that this engine leaves to the array kernels here: MaxPool's needs a Relu before the pool.
NO_GRADIENT = {
    "AddGradient", "EluGradient", "LeakyReluGradient", "MaxPoolGradient", "MulGradient", "SubGradient",
}  # fmt: skip

# What the library serves by code for any CPU that it runs on.
EVERYWHERE = {"Conv", "FC", "MatMul", "Relu"}

CASES = [
    case
    for name in golden_data.operators()
    if name in TABLE and name not in BLOCKED_ALONE
    for case in golden_data.cases(name)
]


def left(case):
    """Whether oneDNN does not compute a case, such as LRN's second output."""
    if case.op == "LRN":
        return len(case.operator.output) == 2
    return any(label in case.label for label in LEFT.get(case.op, ()))


def run(op_def, values, threads):
    """Run an operator on the blobs ``values``; False if its kernel does not serve."""
    make = TABLE.get(op_def.type)
    if make is None:
        return False
    op = decode(find(op_def.type), op_def)
    context = KernelContext(op_def, None)
    bound = bind(make, op, [values[name] for name in op_def.input], threads=threads, context=context)
    if bound is None:
        return False
    bound.call()
    values.update(zip(op_def.output, bound.outputs))
    return True


@pytest.mark.one_in(6)
@pytest.mark.parametrize("threads", [1, 2])
@of_each_operator(CASES)
def test_golden(case, threads):
    values = {name: Value.of(array) for name, array in case.inputs.items()}
    if not run(case.operator, values, threads):
        narrow = not has_instructions("avx512") and case.op not in EVERYWHERE
        # Where the library has only its reference (LRN of few channels, much on narrower CPUs) array kernels serve.
        assert left(case) or case.op == "LRN" or narrow, f"not served: {case.label}"
        return
    assert not left(case), f"served: {case.label}"
    for name, want in case.outputs.items():
        if name in case.operator.output:
            assert mismatch(values[name].plain(), want, "close", case.rtol, case.atol) is None, name
    values.update({name: Value.of(array) for name, array in case.output_grads.items()})
    for op_def in case.gradient_ops:
        if not run(op_def, values, threads):
            assert op_def.type in NO_GRADIENT, f"not served: {op_def.type}"
            return
        for name in op_def.output:
            want = case.gradient_blobs[name]
            assert mismatch(values[name].plain(), want, "close", case.grad_rtol, case.grad_atol) is None, name


@pytest.mark.parametrize("case", [c for c in golden_data.cases("MaxPool") if "ties" not in c.label], ids=str)
def test_golden_max_pool_after_a_relu(case):
    values = {name: Value.of(array) for name, array in case.inputs.items()}
    values["X"].notes["not negative"] = True  # as the kernel of a Relu would have it
    assert run(case.operator, values, 1)
    values.update({name: Value.of(array) for name, array in case.output_grads.items()})
    assert run(case.gradient_ops[0], values, 1)
    want = case.gradient_blobs["X_grad"]
    assert mismatch(values["X_grad"].plain(), want, "close", case.grad_rtol, case.grad_atol) is None


def test_most_cases_are_served():
    assert len(CASES) > 90
    assert np.mean([left(case) for case in CASES]) < 0.35
