"""LSTMUnit and its gradient as one CUDA kernel each."""

import numpy as np
import pytest

from gpu_or_double import one_gpu, run_net
from netbuilder.ops.core.operator import TensorSpec, decode
from netbuilder.ops.core.registry import find
from netbuilder.ops.engines.cuda.lstm import lstm_unit
from netbuilder.proto.arguments import make_op

RNG = np.random.default_rng(3)
SAMPLES, WIDTH = 5, 67


def given(dtype, lengths):
    shape = (1, SAMPLES, WIDTH)
    names = ["h", "c", "gates", *(["lengths"] if lengths else []), "t"]
    arrays = {name: RNG.standard_normal(shape).astype(dtype) for name in ("h", "c", "h2", "c2", "dh2", "dc2")}
    arrays["gates"] = (3 * RNG.standard_normal((1, SAMPLES, 4 * WIDTH))).astype(dtype)
    arrays |= {"lengths": np.int32([4, 1, 3, 2, 0]), "t": np.int32([2])}
    return names, arrays


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "options",
    [{}, {"drop_states": True}, {"forget_bias": 1.5}, {"sequence_lengths": False}],
    ids=lambda options: "-".join(options) or "plain",
)
def test_a_step_equals_the_cpu_and_is_one_kernel(dtype, options):
    names, feeds = given(dtype, options.get("sequence_lengths", True))
    ops = [
        make_op("LSTMUnit", names, ["h2", "c2"], **options),
        make_op("LSTMUnitGradient", [*names, "h2", "c2", "dh2", "dc2"], ["dh", "dc", "dgates"], **options),
    ]
    fetched = ["h2", "c2", "dh", "dc", "dgates"]
    with one_gpu() as machine:
        found = run_net(ops, feeds, fetched, engines=("CUDA",))
        launched = [] if machine is None else [launch.name for launch in machine.launches]
        plain = run_net(ops, feeds, fetched, engines=())
    wanted = run_net(ops, feeds, fetched, gpu=False)
    assert machine is None or [name.rpartition("_")[0] for name in launched if name.startswith("nb_")] == [
        "nb_lstm_unit", "nb_lstm_unit_gradient"
    ]  # fmt: skip
    tolerance = 3e-6 if dtype == "float32" else 1e-13
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], plain[name], err_msg=name)
        np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance, err_msg=name)


def test_float16_has_the_plain_kernel():
    """It rounds after each function."""
    specs = [TensorSpec((1, 2, width), np.dtype("float16")) for width in (3, 3, 12)]
    specs.append(TensorSpec((1,), np.dtype("int32")))
    op = decode(find("LSTMUnit"), make_op("LSTMUnit", list("hcgt"), ["h2", "c2"], sequence_lengths=False))
    assert lstm_unit(op, None, *specs) is None
