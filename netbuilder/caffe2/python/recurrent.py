"""Operators that run a step net over a sequence."""

from __future__ import annotations

from typing import Any

from netbuilder.caffe2 import step_blobs
from netbuilder.caffe2.missing import names_of
from netbuilder.graph import Net
from netbuilder.model.rnn.recurrent import recurrent_net, set_rnn_executor_config
from netbuilder.runtime.execute import default

__all__ = ["recurrent_net", "retrieve_step_blobs", "set_rnn_executor_config"]

__getattr__ = names_of(__name__)


def retrieve_step_blobs(net: Net, prefix: str = "rnn") -> list[Any]:
    """Copy what the recurrent nets of a net have kept of each step into blobs of the current workspace.

    These are the states before and after each step, the number of the step, what the backward step net reads again, and
    the present rows of the sequences. Blob ``b`` of step ``t`` goes to ``<prefix>_<b><t>``. For each recurrent net, one
    more blob, whose name begins with ``prefix``, gets the list of names.

    Args:
        net: a net with RecurrentNetwork operators, which has run; it is unchanged.
        prefix: beginning of the names.

    Returns:
        The names of the blobs, as bytes, as blobs hold strings.

    Raises:
        NetError: ``net`` has not run in the current workspace.
    """
    return step_blobs.retrieve_step_blobs(default.workspace(), net, prefix)
