"""Layouts in which nets may leave filters, and in which kernels read copies of them."""

import numpy as np

from netbuilder.engines.llvm.deformed_windows import filter_panels
from netbuilder.engines.llvm.products import panels

__all__ = ["SHAPE", "layouts_of_copies", "stored_layouts"]

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
        "panels of groups": filter_panels(2, 16, 16, 9),
        "at 36 points": derived_weights(view, False),
        "at 36 points, rotated": derived_weights(view, True),
    }
