"""TopK as machine code against the plain kernel: ties, NaN, infinities, threads."""

import numpy as np
import pytest

from checks import run_plain
from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.top_k import top_k
from netbuilder.ops.reductions.top_k import TopK
from prepared import Value, bind

pytestmark = pytest.mark.skipif(not machine.available(), reason="needs llvmlite")


def check(x, k, outputs=3, threads=1):
    op = TopK(k=k).with_arity(1, outputs)
    found = bind(top_k, op, [Value.of(x)], threads=threads)
    found.call()
    for got, want in zip(found.outputs, run_plain(op, [x])):
        np.testing.assert_array_equal(got.plain(), want)


@pytest.mark.parametrize("k", [1, 5, 17, 64])
@pytest.mark.parametrize("n", [64, 65, 300])
def test_against_the_plain_kernel(n, k):
    rng = np.random.default_rng(0)
    check(rng.normal(size=(2, 3, n)).astype(np.float32), k)
    check(rng.integers(-3, 3, (5, n)).astype(np.float32) * np.float32(0.5), k)  # ties, and zeros of both signs
    check(np.sort(rng.normal(size=(2, n)).astype(np.float32)), k, outputs=2)


@pytest.mark.parametrize("n", [3, 40])
def test_what_is_not_finite(n):
    values = np.float32([np.nan, -np.inf, np.inf, 1e-42, -1e-42, 0, -0.0, 2])
    x = np.random.default_rng(0).choice(values, (50, n)).astype(np.float32)
    x[0], x[1] = np.nan, -np.inf
    for k in (1, 3):
        check(x, k)


def test_threads(monkeypatch):
    monkeypatch.setattr("netbuilder.engines.llvm.top_k._OF_A_THREAD", 1)
    check(np.random.default_rng(0).normal(size=(7, 100)).astype(np.float32), 4, threads=3)


def test_more_elements_and_other_axes_are_left_to_numpy():
    x = Value.of(np.zeros((100, 100), np.float32))
    for op in (TopK(k=65), TopK(k=2, axis=0)):
        assert bind(top_k, op, [x]) is None
    assert bind(top_k, TopK(k=5), [Value.of(np.zeros((4, 3), np.float32))]) is None
