"""The arrays of the benchmark of sparse sums. Read in the peer's environment too, so nothing of ours is here."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["arrays"]


def arrays(work: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Return table, indices (int64), lengths (int64) and the slope of the sums, the same on either side.

    Args:
        work: "rows" and "width" of the table, "indices" and "segments": how many.
    """
    rng = np.random.default_rng(0)
    cuts = np.sort(rng.integers(0, work["indices"] + 1, work["segments"] - 1))
    return {
        "table": rng.standard_normal((work["rows"], work["width"]), np.float32),
        "indices": rng.integers(0, work["rows"], work["indices"]),
        "lengths": np.diff(cuts, prepend=0, append=work["indices"]),
        "slope": rng.standard_normal((work["segments"], work["width"]), np.float32),
    }
