"""Recurrent nets: cells, layers, attention, and ``recurrent_net``, which runs a step net over a sequence."""

from netbuilder.model.rnn.attention import AttentionType
from netbuilder.model.rnn.attention_cell import AttentionCell, LSTMWithAttentionCell, MILSTMWithAttentionCell
from netbuilder.model.rnn.basic import BasicRNNCell
from netbuilder.model.rnn.cell import RNNCell
from netbuilder.model.rnn.crf import CRFWithLoss, apply_crf, crf_update_predictions
from netbuilder.model.rnn.gru import GRUCell
from netbuilder.model.rnn.layers import (
    GRU,
    LSTM,
    MILSTM,
    BasicRNN,
    LayerNormLSTM,
    LayerNormMILSTM,
    LSTMWithAttention,
    layered_LSTM,
)
from netbuilder.model.rnn.lstm import LayerNormLSTMCell, LSTMCell, LSTMInitializer
from netbuilder.model.rnn.milstm import LayerNormMILSTMCell, MILSTMCell
from netbuilder.model.rnn.multi import DropoutCell, MultiRNNCell
from netbuilder.model.rnn.recurrent import recurrent_net
from netbuilder.model.rnn.unrolled import UnrolledCell

__all__ = [
    "GRU",
    "LSTM",
    "MILSTM",
    "AttentionCell",
    "AttentionType",
    "BasicRNN",
    "BasicRNNCell",
    "CRFWithLoss",
    "DropoutCell",
    "GRUCell",
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
    "RNNCell",
    "UnrolledCell",
    "apply_crf",
    "crf_update_predictions",
    "layered_LSTM",
    "recurrent_net",
]
