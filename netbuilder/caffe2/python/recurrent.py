"""Operators that run a step net over a sequence."""

from __future__ import annotations

from typing import Any

from netbuilder.caffe2.missing import names_of
from netbuilder.graph import Net
from netbuilder.model.rnn.recurrent import recurrent_net, set_rnn_executor_config
from netbuilder.runtime.execute import default
from netbuilder.runtime.execute.step_blobs import retrieve_step_blobs as _retrieve

__all__ = ["recurrent_net", "retrieve_step_blobs", "set_rnn_executor_config"]

__getattr__ = names_of(__name__)


def retrieve_step_blobs(net: Net, prefix: str = "rnn") -> list[Any]:
    """Put what the recurrent nets of a net have kept of their steps into blobs of the current workspace.

    Args: see ``netbuilder.runtime.execute.step_blobs``.

    Returns:
        The names of the blobs, as bytes: ``<prefix>_<blob><step>``.
    """
    return _retrieve(default.workspace(), net, prefix)
