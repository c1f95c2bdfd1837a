"""A net that is ready to run, and values for its inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.runtime import Workspace

__all__ = ["Ready", "value_of"]


@dataclass(frozen=True)
class Ready:
    """A net created in a workspace, with its inputs fed.

    Args:
        name: of the net.
        parameters: the blobs that its init net made.
        gradients: the dense gradients of parameters, if it trains on one device and they are known.
        statistics: running means and variances, likewise.
    """

    workspace: Workspace
    name: str
    parameters: frozenset[str]
    gradients: frozenset[str] = frozenset()
    statistics: frozenset[str] = frozenset()


def value_of(given: Any) -> Any:
    """Return an array unchanged; for a spec return random floats, or zeros for integers, which may be indices."""
    if not isinstance(given, TensorSpec):
        return given
    if given.dtype.kind != "f":
        return np.zeros(given.shape, given.dtype)
    return np.random.default_rng(0).standard_normal(given.shape).astype(given.dtype)
