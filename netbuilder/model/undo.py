"""What was appended to a model, taken back if the block that appended it raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from netbuilder.model.model_helper import ModelHelper

__all__ = ["taken_back_on_error"]


@contextmanager
def taken_back_on_error(model: ModelHelper) -> Iterator[None]:
    """Take operators, external inputs and parameters that the block appends out of ``model`` again if it raises.

    The cost does not depend on the size of the model. What the block changes otherwise stays changed.
    """
    nets = [(net.Proto(), net.op_len, len(net.Proto().external_input)) for net in (model.net, model.param_init_net)]
    params = (model.params, model._computed_params, model.weights, model.biases, model._updated)
    lists = [(of_kind, len(of_kind)) for of_kind in params]
    infos = len(model._infos)
    try:
        yield
    except BaseException:
        for net, operators, inputs in nets:
            del net.op[operators:]
            del net.external_input[inputs:]
        for of_kind, count in lists:
            del of_kind[count:]
        for name in list(model._infos)[infos:]:
            del model._infos[name]
        raise
