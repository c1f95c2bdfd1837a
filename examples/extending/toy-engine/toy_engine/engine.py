"""An engine with a kernel for Softsign."""

import numpy as np

from netbuilder.engines.engine import Engine
from netbuilder.ops.core.contexts import Prepared
from toy_engine.fusions import FUSIONS


def softsign(op, ctx, x):
    """Prepare Softsign for an input of the spec ``x``; None if it is not float32."""
    if x.dtype != np.float32:
        return None

    def bind(inputs, outputs, scratch):
        divisor = np.empty(x.shape, x.dtype)

        def call():
            np.abs(inputs[0], divisor)
            np.add(divisor, 1, divisor)
            np.divide(inputs[0], divisor, outputs[0])

        return call

    return Prepared([x.plain], [x.plain], bind, inplace=((0, 0),), name="toy:softsign")


class ToyEngine(Engine):
    """One kernel and one fusion; values are plain arrays."""

    name = "TOY"

    def kernels(self):
        return {"Softsign": softsign}

    def fusions(self):
        return FUSIONS
