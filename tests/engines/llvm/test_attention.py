"""Attention as machine code against the plain kernel in float64: shapes, masks, threads, what is not finite."""

import numpy as np
import pytest

from checks import interpret
from machine_code import parts_of_calls
from netbuilder.engines.llvm import attention as attention_module
from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.attention import attention, attention_gradient
from netbuilder.ops.core.operator import decode
from netbuilder.ops.core.registry import find
from netbuilder.proto.arguments import make_op
from prepared import Value, bind

pytestmark = pytest.mark.skipif(not machine.available(), reason="needs llvmlite")

MASKS = {
    "": lambda n, h, t, s: None,
    "keys": lambda n, h, t, s: np.arange(s) < np.arange(1, n + 1)[:, None, None, None] * s // n,
    "queries": lambda n, h, t, s: np.random.default_rng(5).random((h, t, 1)) < 0.9,
    "bias": lambda n, h, t, s: np.random.default_rng(6).normal(size=(1, h, t, s)).astype(np.float32),
    "bias of queries": lambda n, h, t, s: np.random.default_rng(7).normal(size=(n, 1, t, 1)).astype(np.float32),
}
SHAPES = {  # N, H, G, T, S, D, E
    "one block": (2, 2, 2, 16, 16, 16, 16),
    "odd": (2, 3, 3, 37, 41, 19, 21),
    "groups": (1, 6, 2, 33, 70, 8, 24),
    "few keys": (2, 2, 1, 50, 5, 33, 3),
    "one head": (1, 1, 1, 140, 9, 16, 16),
    "one feature": (1, 2, 2, 5, 100, 1, 1),
    "one query": (2, 4, 2, 1, 70, 40, 67),
    "three queries": (1, 2, 1, 3, 20, 16, 128),
}


@pytest.fixture(autouse=True, params=[False, True], ids=["AVX2", "AVX-512"])
def _wide(request, monkeypatch):
    """Compile for registers of 256 bits, and for those of 512, which the compiler splits where there are none."""
    monkeypatch.setattr(machine, "has_wide_registers", lambda: request.param)


def made(shape, mask, **args):
    n, h, g, t, s, d, e = SHAPES[shape]
    rng = np.random.default_rng(0)
    extents = {"q": (n, h, t, d), "k": (n, g, s, d), "v": (n, g, s, e), "dy": (n, h, t, e)}
    arrays = {name: rng.normal(size=extent).astype(np.float32) for name, extent in extents.items()}
    inputs = ["q", "k", "v"]
    if (values := MASKS[mask](n, h, t, s)) is not None:
        arrays["mask"] = values
        inputs.append("mask")
    gradient = make_op("AttentionGradient", ["dy", *inputs], [f"d{name}" for name in inputs], **args)
    return make_op("Attention", inputs, ["y"], **args), gradient, arrays


def run(op_def, arrays, threads=1):
    make = attention if op_def.type == "Attention" else attention_gradient
    op = decode(find(op_def.type), op_def)
    found = bind(make, op, [Value.of(arrays[name]) for name in op_def.input], threads=threads)
    assert found is not None
    found.call()
    return {name: value.plain() for name, value in zip(op_def.output, found.outputs)}


def exact(op_def, arrays):
    return interpret([op_def], {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in arrays.items()})


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_against_the_plain_kernel(shape, mask, causal):
    forward, gradient, arrays = made(shape, mask, causal=int(causal))
    for op_def in (forward, gradient):
        got, want = run(op_def, arrays), exact(op_def, arrays)
        for name in op_def.output:
            np.testing.assert_allclose(got[name], want[name], 2e-5, 2e-5, err_msg=name)


@pytest.mark.parametrize("zero", ["unseen", "never", "nan"])
@pytest.mark.parametrize("shape", ["odd", "three queries"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_undefined_weights(shape, zero):
    """A query sees no key, and the scores of another are NaN."""
    forward, gradient, arrays = made(shape, "", zero_weights=zero)
    n, h, _, t, s, _, _ = SHAPES[shape]
    arrays["mask"] = np.arange(t)[:, None] != np.ones(s)
    arrays["q"][0, 0, 2] = np.nan
    for op_def in (forward, gradient):
        op_def.input.append("mask")
        got, want = run(op_def, arrays), exact(op_def, arrays)
        for name in op_def.output:
            np.testing.assert_allclose(got[name], want[name], 2e-5, 2e-5, err_msg=name)
    assert np.isnan(run(forward, arrays)["y"][0, 0, 2]).all() == (zero != "nan")


@pytest.mark.parametrize("shape", ["odd", "groups", "one head"])  # a head has several blocks of queries
def test_threads_compute_the_same(shape, monkeypatch):
    monkeypatch.setattr(attention_module, "_OF_A_THREAD", 1)
    divided = parts_of_calls(monkeypatch, attention_module)
    for op_def, arrays in ((made(shape, "bias")[i], made(shape, "bias")[2]) for i in (0, 1)):
        one, *others = (run(op_def, arrays, threads) for threads in (1, 2, 5))
        for name in op_def.output:
            for other in others:
                np.testing.assert_array_equal(one[name], other[name])
    assert divided[:3] == [1, 2, 5]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_not_finite_stays_in_its_head(bad):
    forward, gradient, arrays = made("odd", "keys")
    arrays["q"][0, 1, 3, 2] = bad
    got, want = run(forward, arrays)["y"], exact(forward, arrays)["y"]
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    assert np.isnan(got[0, 1, 3]).all() and np.isnan(got).sum() == got.shape[3]
    grads, want = run(gradient, arrays), exact(gradient, arrays)
    for name in gradient.output[:3]:
        assert np.isnan(grads[name]).any() and not np.isfinite(want[name][np.isnan(grads[name])]).any()


def test_scale():
    forward, _, arrays = made("odd", "", scale=0.3)
    np.testing.assert_allclose(run(forward, arrays)["y"], exact(forward, arrays)["y"], 2e-5, 2e-5)
