"""Copies between all layouts of a value: also those of two engines, and of two views of the value."""

import numpy as np
import pytest

from machine_code import alone
from netbuilder.engines import onednn
from netbuilder.engines.layouts import convert
from netbuilder.engines.llvm import machine
from netbuilder.engines.llvm.products import panels
from netbuilder.ops.core.operator import TensorSpec

pytestmark = pytest.mark.skipif(not (machine.available() and onednn.available()), reason="needs llvmlite and oneDNN")

SHAPE = (32, 16, 3, 3)


def stored_layouts():
    """Return, by name, layouts in which a net may have left filters of ``SHAPE``."""
    from netbuilder.engines.onednn import declarations as c
    from netbuilder.engines.onednn.blocked_layout import (
        View,
        channel_blocked,
        filters_blocked,
        grouped,
        image_view,
        rounded,
    )
    from netbuilder.engines.onednn.winograd_weights import by_window_position

    view = image_view(SHAPE)
    exchanged = View((16, 32, 3, 3), (9, 144, 3, 1))  # of a transposed convolution
    return {
        "plain": None,
        "channels in blocks": channel_blocked(view, c.F32, 16),
        **{
            f"filters in {kind} of {block}": filters_blocked(view, block, both=both)
            for block in (8, 16)
            for kind, both in (("squares", True), ("blocks", False))
        },
        "in groups": channel_blocked(grouped(view, 2), c.F32, 16),
        "transposed": filters_blocked(exchanged, 8, both=True),
        "window outermost": by_window_position(view),
        "rounded": rounded(int(np.prod(SHAPE))),
        "rounded, in blocks": channel_blocked(view, c.BF16, 16),
    }


def layouts_of_copies():
    """Return, by name, layouts of copies that kernels read."""
    from netbuilder.engines.onednn.blocked_layout import image_view
    from netbuilder.engines.onednn.winograd_weights import derived_weights

    view = image_view(SHAPE)
    return {
        **stored_layouts(),
        "panels": panels(32, 144, True),
        "at 36 points": derived_weights(view, False),
        "at 36 points, rotated": derived_weights(view, True),
    }


NAMES = list(stored_layouts()) if onednn.available() else []
COPIES = list(layouts_of_copies()) if onednn.available() else []


@pytest.mark.parametrize("target", COPIES)
@pytest.mark.parametrize("source", NAMES)
def test_a_copy_does_not_depend_on_the_layout_of_what_is_copied(source, target):
    plain = TensorSpec(SHAPE, np.dtype(np.float32))
    value = np.random.default_rng(0).integers(-128, 128, SHAPE).astype(np.float32)  # of eight bits
    specs = plain.with_layout(stored_layouts()[source]), plain.with_layout(layouts_of_copies()[target])
    stored = convert(value, plain, specs[0], alone())
    np.testing.assert_array_equal(convert(stored, specs[0], plain, alone()), value)
    got, want = convert(stored, *specs, alone()), convert(value, plain, specs[1], alone())
    np.testing.assert_array_equal(got.reshape(-1).view(np.uint8), want.reshape(-1).view(np.uint8))
