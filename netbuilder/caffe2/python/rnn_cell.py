"""Recurrent cells and layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.python import workspace
from netbuilder.model.rnn.attention import AttentionType
from netbuilder.model.rnn.attention_cell import AttentionCell, LSTMWithAttentionCell, MILSTMWithAttentionCell
from netbuilder.model.rnn.basic import BasicRNNCell
from netbuilder.model.rnn.cell import RNNCell
from netbuilder.model.rnn.layers import (
    LSTM,
    MILSTM,
    BasicRNN,
    LayerNormLSTM,
    LayerNormMILSTM,
    LSTMWithAttention,
    cudnn_LSTM,
    layered_LSTM,
)
from netbuilder.model.rnn.lstm import LayerNormLSTMCell, LSTMCell, LSTMInitializer
from netbuilder.model.rnn.milstm import LayerNormMILSTMCell, MILSTMCell
from netbuilder.model.rnn.multi import DropoutCell, MultiRNNCell, MultiRNNCellInitializer
from netbuilder.model.rnn.unrolled import UnrolledCell
from netbuilder.proto import NetError

__all__ = [
    "LSTM",
    "MILSTM",
    "AttentionCell",
    "AttentionType",
    "BasicRNN",
    "BasicRNNCell",
    "DropoutCell",
    "GetLSTMParamNames",
    "InitFromLSTMParams",
    "LSTMCell",
    "LSTMInitializer",
    "LSTMWithAttention",
    "LSTMWithAttentionCell",
    "LayerNormLSTM",
    "LayerNormLSTMCell",
    "LayerNormMILSTM",
    "LayerNormMILSTMCell",
    "MILSTMCell",
    "MILSTMWithAttentionCell",
    "MultiRNNCell",
    "MultiRNNCellInitializer",
    "RNNCell",
    "UnrolledCell",
    "cudnn_LSTM",
    "layered_LSTM",
]

__getattr__ = names_of(__name__)


_GATES = ("input_gate", "forget_gate", "output_gate", "cell")  # in the order of LSTMUnit


def GetLSTMParamNames() -> dict[str, list[str]]:
    """Return the names of the weights and biases of an LSTM's gates, in the order of their concatenation.

    >>> GetLSTMParamNames()["biases"]
    ['input_gate_b', 'forget_gate_b', 'output_gate_b', 'cell_b']
    """
    return {"weights": [f"{gate}_w" for gate in _GATES], "biases": [f"{gate}_b" for gate in _GATES]}


def InitFromLSTMParams(
    lstm_pblobs: Mapping[str, Mapping[str, Any]], param_values: Mapping[str, Mapping[str, Any]]
) -> None:
    """Feed the parameters of an LSTM from the parameters of its gates.

    Args:
        lstm_pblobs: the last result of ``LSTM(..., return_params=True)``.
        param_values: under "input" and "recurrent", the values of each name of ``GetLSTMParamNames``.

    Raises:
        NetError: a value is missing.
    """
    joined = {}
    for part, blobs in lstm_pblobs.items():
        values = param_values.get(part, {})
        for kind, names in GetLSTMParamNames().items():
            if missing := [name for name in names if name not in values]:
                raise NetError(f"InitFromLSTMParams: param_values[{part!r}] must have values for {missing}")
            joined[blobs[kind]] = np.concatenate([values[name] for name in names])
    for blob, value in joined.items():
        workspace.FeedBlob(blob, value)
