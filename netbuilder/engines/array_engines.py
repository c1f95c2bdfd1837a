"""Array engines, which hold plain row-major values: what all have, and NumPy's, for the host."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from netbuilder.engines.arrays import as_flat
from netbuilder.engines.engine import Engine, Location
from netbuilder.engines.large_pages import lasting_zeros
from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.extensions import CAPTURABLE
from netbuilder.ops.core.operator import STRING, TensorSpec

__all__ = ["ArrayEngine", "NumPyEngine"]


class ArrayEngine(Engine):
    """Arrays of a module with NumPy's interface."""

    def prepare_reorder(self, ctx: Any, source: TensorSpec, target: TensorSpec, location: Location) -> Prepared:
        return Prepared([source], [target], _bind_copy, name="copy", extensions=CAPTURABLE)


class NumPyEngine(ArrayEngine):
    """Arrays in the host's memory, aligned to 64 bytes."""

    name: ClassVar[str] = "NUMPY"

    def new_buffer(self, spec: TensorSpec, location: Location) -> Any:
        if spec.dtype == STRING:
            return np.empty(spec.shape, object)
        return as_flat(lasting_zeros(spec.nbytes), spec.dtype).reshape(spec.shape)


def _bind_copy(inputs: Any, outputs: Any, scratch: Any) -> Any:
    source, target = inputs[0], outputs[0]

    def call() -> None:
        target[...] = source

    return call
