"""Normalization of samples and images on oneDNN against the array kernels in float64, and in nets."""

import numpy as np
import pytest

from checks import interpret
from netbuilder.engines import onednn
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.core.operator import decode
from netbuilder.ops.core.registry import CPU, find, prepared_kernels
from netbuilder.proto.arguments import make_op
from prepared import Value, bind

if not onednn.available():
    pytest.skip("needs oneDNN", allow_module_level=True)

from netbuilder.engines.onednn.registration import kernel_table

CASES = {
    "rows": (make_op("LayerNorm", ["x"], ["y", "mean", "std"]), (5, 33), ()),
    "affine": (make_op("LayerNorm", ["x", "g", "b"], ["y", "mean", "std"], elementwise_affine=1), (40, 300), (300,)),
    "axis": (
        make_op("LayerNorm", ["x", "g", "b"], ["y", "mean", "std"], axis=-2, elementwise_affine=1, epsilon=0.1),
        (3, 2, 4, 6),
        (4, 6),
    ),
    "not affine": (make_op("LayerNorm", ["x", "g", "b"], ["y", "mean", "std"]), (5, 7), (7,)),
    "groups": (make_op("GroupNorm", ["x", "g", "b"], ["y", "mean", "rsig"], group=4), (3, 8, 5, 6), (8,)),
    "groups of vectors": (make_op("GroupNorm", ["x", "g", "b"], ["y", "mean", "rsig"], group=2), (3, 8), (8,)),
    "many images": (make_op("GroupNorm", ["x", "g", "b"], ["y", "mean", "rsig"], group=8), (9, 32, 12, 11), (32,)),
    "instances": (make_op("InstanceNorm", ["x", "g", "b"], ["y", "mean", "inv"], epsilon=0.1), (2, 3, 4, 5), (3,)),
    "volumes": (make_op("InstanceNorm", ["x", "g", "b"], ["y", "mean", "inv"]), (2, 3, 4, 5, 2), (3,)),
}


def bound(op_def, values, threads):
    op = decode(find(op_def.type), op_def)
    make = kernel_table().get(op_def.type) or prepared_kernels(op_def.type, CPU)[0].make
    return bind(make, op, [values[n] for n in op_def.input], threads=threads)


def run(op_def, values, threads):
    found = bound(op_def, values, threads)
    assert found is not None, f"{op_def.type} is not served"
    found.call()
    values.update(zip(op_def.output, found.outputs))


def compare(op_def, values, want, rtol=2e-4, atol=2e-5):
    for name in op_def.output:
        np.testing.assert_allclose(values[name].plain(), want[name], rtol, atol, err_msg=name)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_kernels_agree_with_arrays(case, threads):
    op_def, shape, features = CASES[case]
    rng = np.random.default_rng(0)
    arrays = {"x": 1 + 2 * rng.normal(size=shape), "g": rng.normal(size=features), "b": rng.normal(size=features)}
    arrays = {name: arrays[name].astype(np.float32) for name in op_def.input}
    want = interpret([op_def], {name: a.astype(np.float64) for name, a in arrays.items()})
    values = {name: Value.of(a) for name, a in arrays.items()}
    run(op_def, values, threads)
    compare(op_def, values, want)
    dy = rng.normal(size=shape).astype(np.float32)
    (gradient,), _ = operator_gradient(op_def, {0: "dy"})
    want = interpret([gradient], {**want, "dy": dy.astype(np.float64)})
    values["dy"] = Value.of(dy)
    run(gradient, values, threads)
    compare(gradient, values, want, 1e-3, 2e-4)


@pytest.mark.parametrize("outputs", [["y"], ["y", "mean"]])
def test_statistics_that_are_not_asked_for(outputs):
    op_def = make_op("InstanceNorm", ["x", "g", "b"], outputs)
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(2, 3, 4, 4)), "g": rng.normal(size=3), "b": rng.normal(size=3)}
    values = {name: Value.of(a.astype(np.float32)) for name, a in arrays.items()}
    run(op_def, values, 1)
    compare(op_def, values, interpret([op_def], {name: v.plain().astype(np.float64) for name, v in values.items()}))


@pytest.mark.parametrize(
    ("op_def", "shape"),
    [
        (make_op("InstanceNorm", ["x", "g", "b"], ["y"], order="NHWC"), (2, 4, 4, 3)),
        (make_op("GroupNorm", ["x", "g", "b"], ["y"], order="NHWC", group=3), (2, 4, 4, 3)),
    ],
    ids=str,
)
def test_groups_that_are_not_in_one_piece_are_left_to_arrays(op_def, shape):
    values = {"x": Value.of(np.ones(shape, np.float32)), "g": Value.of(np.ones(3, np.float32))}
    values["b"] = values["g"]
    assert bound(op_def, values, 1) is None
