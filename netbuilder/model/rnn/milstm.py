"""LSTM cells with multiplicative integration, plain and layer-normalized."""

from __future__ import annotations

from netbuilder.graph.blob import BlobReference
from netbuilder.model import brew
from netbuilder.model.initializers import Initializer
from netbuilder.model.model_helper import ModelHelper
from netbuilder.model.rnn.cell import Blob, ExtraInputs
from netbuilder.model.rnn.lstm import LSTMCell

__all__ = ["LayerNormMILSTMCell", "MILSTMCell"]

_FACTORS = (("alpha", 1.0), ("beta1", 1.0), ("beta2", 1.0), ("b", 0.0))


class MILSTMCell(LSTMCell):
    """An LSTM whose gates are alpha * x * h + beta1 * h + beta2 * x + b, with projected input x and hidden state h.

    Arguments as for ``LSTMCell``.

    Source: Wu et al., "On multiplicative integration with recurrent neural networks", 2016, arXiv:1606.06630.
    """

    output_names = ("hidden_t_intermediate", "cell_t")

    def gates(
        self, model: ModelHelper, input_t: Blob, hidden: BlobReference, extra_inputs: ExtraInputs | None
    ) -> BlobReference:
        width = self.projections * self.hidden_size
        given, given_width = self._with_extra(model, hidden, extra_inputs)
        previous = brew.fc(model, given, self.scope("prev_t"), dim_in=given_width, dim_out=width, axis=2)
        alpha, beta_h, beta_i, bias = (
            model.create_param(self.scope(name), [width], Initializer("ConstantFill", value=value))
            for name, value in _FACTORS
        )
        net = model.net
        factor = net.ElementwiseLinear([input_t, alpha, beta_h], self.scope("alpha_by_input_t_plus_beta_h"), axis=2)
        product = net.Mul([factor, previous], self.scope("alpha_by_input_t_plus_beta_h_by_prev_t"))
        rest = net.ElementwiseLinear([input_t, beta_i, bias], self.scope("beta_i_by_input_t_plus_b"), axis=2)
        gates = brew.sum(model, [product, rest], self.scope("gates_t"))
        self._recompute(factor, product, rest, gates)
        return gates


class LayerNormMILSTMCell(MILSTMCell):
    """An LSTM with multiplicative integration whose gates are layer-normalized.

    Arguments as for ``LSTMCell``.
    """

    normalizes_gates = True
