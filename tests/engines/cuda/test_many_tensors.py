"""Programs over many tensors as one kernel: running statistics, and updates that read gradients of 16 bits."""

from types import SimpleNamespace

import numpy as np
import pytest

from netbuilder.engines.cuda.gpu_layout import BFLOAT16, image_spec
from netbuilder.engines.cuda.many_tensors import CHUNK
from netbuilder.engines.cuda.updates import join_updates
from netbuilder.engines.cudnn.kernels_norm import running_statistics
from netbuilder.engines.joined_updates import JoinedOperator, JoinedUpdates
from netbuilder.ops.core.operator import TensorSpec, decode
from netbuilder.ops.core.registry import find
from netbuilder.proto.arguments import make_op
from on_gpu import bound, launched

pytestmark = pytest.mark.gpu

RNG = np.random.default_rng(5)
SINGLE = np.dtype(np.float32)
RATE = -0.05


def test_running_statistics_of_several_normalizations():
    """They differ in channels, images and arguments; a batch of one element per channel has no unbiased variance."""
    cases = [(3, 8, 0.9, 1e-5), (CHUNK + 1, 50, 0.9, 1e-5), (64, 50, 0.9, 1e-5), (5, 1, 0.25, 1e-3), (1, 7, 1.0, 1e-5)]
    works, inputs, outputs, want = [], [], [], []
    for channels, count, momentum, epsilon in cases:
        op = decode(
            find("SpatialBN"),
            make_op("SpatialBN", [*"xsbmv"], [*"ymvcd"], momentum=momentum, epsilon=epsilon),
        )
        works.append(running_statistics(op, count, TensorSpec((channels,), SINGLE)))
        old_mean, mean = RNG.standard_normal((2, channels)).astype(np.float32)
        old_variance, variance = RNG.random((2, channels)).astype(np.float32)
        variance[:1] = 0
        inverse = (1 / np.sqrt(variance.astype(np.float64) + epsilon)).astype(np.float32)
        inputs += [old_mean, old_variance, mean, inverse]
        outputs += [np.zeros(channels, np.float32)] * 2
        unbiased = count / max(count - 1, 1) * variance.astype(np.float64)
        want += [momentum * old_mean + (1 - momentum) * mean, momentum * old_variance + (1 - momentum) * unbiased]
    with launched() as launches:
        found = bound(works[0].make([work.member for work in works]), inputs, outputs)
    assert launches == ["running_statistics"]
    for got, wanted in zip(found, want):
        np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=1e-6)
        assert np.isfinite(got).all()


def test_an_update_reads_gradients_of_16_bits_in_their_order():
    """A filter and its momentum take the order of the gradient; that of the other parameter is in plain order."""
    filters, bias = TensorSpec((16, 3, 5, 5), SINGLE), TensorSpec((CHUNK + 3,), SINGLE)
    op = decode(
        find("MomentumSGDUpdate"), make_op("MomentumSGDUpdate", ["g", "m", "lr", "p"], ["g", "m", "p"], momentum=0.9)
    )
    chains = [[JoinedOperator(op, (0, 1, 6, 2), (7, 8, 9))], [JoinedOperator(op, (3, 4, 6, 5), (10, 11, 12))]]
    narrow, order = image_spec(filters, "NCHW", BFLOAT16), image_spec(filters, "NCHW", "float32")
    specs = [narrow, filters, order, bias, bias, bias, TensorSpec((1,), SINGLE)]
    made = join_updates(SimpleNamespace(op_def=None), JoinedUpdates(chains, specs, [8, 9, 11, 12]))
    assert made.inputs == [narrow, order, order, bias, bias, bias, specs[-1]]
    assert made.outputs == [order, order, bias, bias]
    assert (0, 1) not in made.inplace and {(1, 0), (2, 1), (4, 2), (5, 3)} <= {*made.inplace}

    bits = (RNG.standard_normal(filters.size).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    gradient = (bits.astype(np.uint32) << 16).view(np.float32)
    values = [gradient, *(RNG.standard_normal(n).astype(np.float32) for n in [filters.size] * 2 + [bias.size] * 3)]
    inputs = [bits.view(np.uint8), *(v.view(np.uint8) for v in values[1:3]), *values[3:], np.float32([RATE])]
    outputs = [
        np.zeros(spec.nbytes, np.uint8) if spec.layout else np.zeros(spec.shape, SINGLE) for spec in made.outputs
    ]
    found = bound(made, inputs, outputs)
    for k, (got_m, got_p) in enumerate((found[:2], found[2:])):
        g, m, p = (value.astype(np.float64) for value in values[3 * k : 3 * k + 3])
        new = 0.9 * m + RATE * g
        np.testing.assert_allclose(got_m.view(SINGLE), new, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(got_p.view(SINGLE), p - new, rtol=1e-5, atol=1e-6)
