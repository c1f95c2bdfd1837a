"""LSTMUnit, GRUUnit and their gradients as one CUDA kernel each."""

import numpy as np
import pytest

from checks import interpret
from netbuilder.engines.cuda.recurrent_units import gru_unit, lstm_unit
from netbuilder.ops.core.operator import TensorSpec, decode
from netbuilder.ops.core.registry import find
from netbuilder.proto.arguments import make_op
from on_gpu import launched, run_net

RNG = np.random.default_rng(3)
SAMPLES, WIDTH = 5, 67


UNITS = {"LSTMUnit": (4, ["h", "c"]), "GRUUnit": (3, ["h"])}  # gates, states


def given(dtype, op_type, lengths):
    gates, states = UNITS[op_type]
    shape = (1, SAMPLES, WIDTH)
    names = [*states, "gates", *(["lengths"] if lengths else []), "t"]
    arrays = {name: RNG.standard_normal(shape).astype(dtype) for name in ("h", "c", "h2", "c2", "dh2", "dc2")}
    arrays["gates"] = (3 * RNG.standard_normal((1, SAMPLES, gates * WIDTH))).astype(dtype)
    arrays |= {"lengths": np.int32([4, 1, 3, 2, 0]), "t": np.int32([2])}
    made = [f"{name}2" for name in states]
    d_made = [f"d{name}" for name in made]
    gradient = [f"d{name}" for name in (*states, "gates")]
    return names, made, d_made, gradient, {n: arrays[n] for n in (*names, *d_made)}


@pytest.mark.one_in(2)
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("op_type", "options"),
    [
        ("LSTMUnit", {}), ("LSTMUnit", {"drop_states": True}), ("LSTMUnit", {"forget_bias": 1.5}),
        ("LSTMUnit", {"sequence_lengths": False}), ("GRUUnit", {}), ("GRUUnit", {"drop_states": True}),
        ("GRUUnit", {"sequence_lengths": False}),
    ],
    ids=str,
)  # fmt: skip
def test_a_step_equals_float64_and_is_one_kernel(dtype, op_type, options):
    names, made, d_made, gradient, feeds = given(dtype, op_type, options.get("sequence_lengths", True))
    ops = [
        make_op(op_type, names, made, **options),
        make_op(f"{op_type}Gradient", [*names, *made, *d_made], gradient, **options),
    ]
    with launched() as launches:
        found = run_net(ops, feeds, [*made, *gradient], engines=("CUDA",))
    plain = run_net(ops, feeds, [*made, *gradient], engines=())
    title = {"LSTMUnit": "lstm_unit", "GRUUnit": "gru_unit"}[op_type]
    assert launches == [title, f"{title}_gradient"]
    wanted = interpret(ops, {n: x.astype(np.float64) if x.dtype.kind == "f" else x for n, x in feeds.items()})
    tolerance = 3e-6 if dtype == "float32" else 1e-13
    for name in (*made, *gradient):
        np.testing.assert_array_equal(found[name], plain[name], err_msg=name)
        np.testing.assert_allclose(found[name], wanted[name], rtol=tolerance, atol=tolerance, err_msg=name)


def test_float16_has_the_plain_kernel():
    """It rounds after each function."""
    specs = [TensorSpec((1, 2, width), np.dtype("float16")) for width in (3, 3, 12)]
    specs.append(TensorSpec((1,), np.dtype("int32")))
    op = decode(find("LSTMUnit"), make_op("LSTMUnit", list("hcgt"), ["h2", "c2"], sequence_lengths=False))
    assert lstm_unit(op, None, *specs) is None
    gates = TensorSpec((1, 2, 9), np.dtype("float16"))
    op = decode(find("GRUUnit"), make_op("GRUUnit", list("hgt"), ["h2"], sequence_lengths=False))
    assert gru_unit(op, None, specs[0], gates, specs[-1]) is None
