"""Recurrent cells and layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from netbuilder.caffe2.absent import names_of
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
from netbuilder.model.rnn.params import joined_parameters, parameter_names
from netbuilder.model.rnn.unrolled import UnrolledCell

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


def GetLSTMParamNames() -> dict[str, list[str]]:
    """Return what the weights and biases of an LSTM's gates are called, in the order in which they are joined."""
    return parameter_names()


def InitFromLSTMParams(
    lstm_pblobs: Mapping[str, Mapping[str, Any]], param_values: Mapping[str, Mapping[str, Any]]
) -> None:
    """Feed the parameters of an LSTM from those of its gates.

    Args:
        lstm_pblobs: what ``LSTM(..., return_params=True)`` returned last.
        param_values: under "input" and "recurrent", for each name of ``GetLSTMParamNames``, the values.

    Raises:
        NetError: a value is missing.
    """
    for blob, value in joined_parameters(lstm_pblobs, param_values):
        workspace.FeedBlob(blob, value)
