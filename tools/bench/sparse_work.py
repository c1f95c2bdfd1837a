"""The arrays of the benchmark of sparse sums.

The peer's environment, which has no netbuilder, imports it too, so it must not import netbuilder.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["arrays"]


def arrays(work: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Return table, indices (int64), lengths (int64) and gradient of the sums, the same for both sides.

    Args:
        work: "rows" and "width" of the table, numbers of "indices" and "segments".
    """
    rng = np.random.default_rng(0)
    cuts = np.sort(rng.integers(0, work["indices"] + 1, work["segments"] - 1))
    return {
        "table": rng.standard_normal((work["rows"], work["width"]), np.float32),
        "indices": rng.integers(0, work["rows"], work["indices"]),
        "lengths": np.diff(cuts, prepend=0, append=work["indices"]),
        "slope": rng.standard_normal((work["segments"], work["width"]), np.float32),
    }
