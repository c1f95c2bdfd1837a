"""How outputs of oneDNN's kernels are compared with references, and values put in blocks of channels."""

import numpy as np
import pytest

from netbuilder.engines import onednn
from netbuilder.engines.onednn import declarations as c
from netbuilder.engines.onednn.blocked_layout import channel_blocked, image_view
from netbuilder.engines.onednn.library import dnnl
from netbuilder.ops.core.operator import TensorSpec
from prepared import Value

PLAIN, B16, B8 = 0, 16, 8


def has_instructions(name):
    """Whether oneDNN uses an instruction set on this CPU: ``avx512``, ``bfloat16`` (AVX512_BF16) or ``amx``."""
    wanted = {"avx512": 0x27, "bfloat16": 0xE7, "amx": 0xFEF}[name]
    return onednn.available() and dnnl().lib.dnnl_get_effective_cpu_isa() & wanted == wanted


needs_bfloat16 = pytest.mark.skipif(
    not has_instructions("bfloat16"), reason="needs a CPU with AVX512_BF16; others may compute in float32"
)


def value_of(array, block, last=False):
    """An image in blocks of channels, anything else (and all if ``block`` is 0) plain."""
    value = Value.of(array)
    if not block or array.ndim < 3:
        return value
    layout = channel_blocked(image_view(array.shape, last), c.F32, block)
    return value.to(TensorSpec(array.shape, array.dtype, layout))


def close(got, want, what):
    want = np.asarray(want, np.float64)
    assert got.shape == want.shape, what
    scale = max(float(np.abs(want).max(initial=0)), 1.0)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6 * scale, err_msg=what)


def padding_is_zero(value):
    """Whether a value in a layout holds nothing but its elements: the whole buffer sums to what they sum to."""
    if value.spec.layout is None:
        return True
    raw = np.abs(value.buffer.view(np.float32).astype(np.float64)).sum()
    return np.isclose(raw, np.abs(value.plain().astype(np.float64)).sum(), rtol=1e-9)
