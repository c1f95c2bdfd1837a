"""oneDNN through its C interface: layouts, reorders, and prepared kernels for the CPU.

Nothing is loaded before it is needed. ``available()`` tells whether the library can be used, ``register_kernels()``
registers its kernels. A thread that runs calls made here first sets its number of threads with ``set_threads``: some
primitives keep the number at their creation, others use the number at execution.
"""

from __future__ import annotations

from typing import Any

from netbuilder.engines.onednn.bfloat16 import warn_without_bfloat16
from netbuilder.engines.onednn.library import available, describe, set_threads, thread_setter, why_unavailable
from netbuilder.engines.onednn.registration import register_kernels

__all__ = [
    "available",
    "describe",
    "register_kernels",
    "release_primitives",
    "reorder",
    "set_threads",
    "thread_setter",
    "warn_without_bfloat16",
    "why_unavailable",
]

_LAZY = {
    "fused_bn_relu": "kernels_norm",
    "fused_bn_relu_gradient": "kernels_norm",
    "fused_conv": "kernels_conv",
    "fused_fc_relu": "kernels_dense",
    "fused_relu_gradient_stats": "kernels_norm",
    "release_primitives": "primitive",
    "reorder": "reorders",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
