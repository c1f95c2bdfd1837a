"""The training net of a translator: its loss, and updates with gradient clipping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from netbuilder.graph.blob import BlobReference, GradientSlice
from netbuilder.graph.scope import NameScope
from netbuilder.model.rnn.cell import Blob
from netbuilder.model.seq2seq.decoder import build_embedding_decoder, output_projection
from netbuilder.model.seq2seq.encoder import build_embedding_encoder
from netbuilder.model.seq2seq.model_helper import Seq2SeqModelHelper
from netbuilder.proto import ArgumentError, NetError
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["NormClippedUpdate", "translation_loss"]

TRANSLATOR_PARAMS = (
    "encoder_type",
    "encoder_embedding_size",
    "decoder_layer_configs",
    "decoder_embedding_size",
    "decoder_softmax_size",
    "attention",
)
"""The parameters of the structure of a translator, see ``translation_loss``."""

_INPUTS = ("encoder_inputs", "encoder_lengths", "decoder_inputs", "decoder_lengths", "targets", "target_weights")


def translation_loss(
    model: Seq2SeqModelHelper,
    model_params: Mapping[str, Any],
    source_vocab_size: int,
    target_vocab_size: int,
    encoder_embeddings: Blob,
    decoder_embeddings: Blob,
    *,
    scale: float = 1.0,
    num_gpus: int = 0,
    forward_only: bool = False,
) -> tuple[BlobReference, BlobReference]:
    """Add encoder, decoder and loss in the current name scope; the inputs are those of ``prepare_batch``.

    Args:
        model_params: "encoder_type" (see ``build_embedding_encoder``), "encoder_embedding_size",
            "decoder_layer_configs", "decoder_embedding_size", "decoder_softmax_size" (or None) and "attention".
        source_vocab_size, target_vocab_size: number of words of the languages.
        encoder_embeddings, decoder_embeddings: the embedding tables.
        scale: factor of the second result.
        num_gpus: see ``build_embedding_encoder``.
        forward_only: build no backward pass.

    Returns:
        The sum of the losses of all words, in nats, and this sum times ``scale``, which is to be minimized.

    Raises:
        ArgumentError: a parameter is missing.
    """
    require_params(model_params, *TRANSLATOR_PARAMS)
    given = model.net.AddScopedExternalInputs(*_INPUTS)
    sources, source_lengths, targets, target_lengths, expected, weights = given
    layers = model_params["decoder_layer_configs"]
    encoded = build_embedding_encoder(
        model,
        model_params["encoder_type"],
        len(layers),
        sources,
        source_lengths,
        source_vocab_size,
        encoder_embeddings,
        model_params["encoder_embedding_size"],
        model_params["attention"] != "none",
        num_gpus,
        forward_only,
    )
    outputs, width = build_embedding_decoder(
        model,
        layers,
        targets,
        target_lengths,
        source_lengths,
        encoded.outputs,
        encoded.weighted_outputs,
        encoded.final_hidden_states,
        encoded.final_cell_states,
        encoded.units_per_layer,
        target_vocab_size,
        decoder_embeddings,
        model_params["decoder_embedding_size"],
        model_params["attention"],
        forward_only,
        num_gpus,
    )
    logits = output_projection(model, outputs, width, target_vocab_size, model_params["decoder_softmax_size"])
    return _loss(model, logits, expected, weights, scale)


def require_params(model_params: Mapping[str, Any], *names: str) -> None:
    """Raise ArgumentError unless ``model_params`` has all these names."""
    missing = [name for name in names if name not in model_params]
    if missing:
        raise ArgumentError(
            f"model_params must have {', '.join(missing)}; it has only {', '.join(sorted(model_params))}"
        )


def _loss(
    model: Seq2SeqModelHelper, logits: BlobReference, expected: BlobReference, weights: BlobReference, scale: float
) -> tuple[BlobReference, BlobReference]:
    net = model.net
    words, _ = net.Reshape(expected, [expected, "targets_old_shape"], shape=[-1])
    flat, _ = net.Reshape(weights, [weights, "target_weights_old_shape"], shape=[-1])
    _, mean = net.SoftmaxWithLoss([logits, words, flat], ["OutputProbs_INVALID", "loss_per_word"], only_loss=True)
    count = net.SumElements(flat, "num_words")
    total = net.Mul([mean, count], "total_loss_scalar")
    return total, net.Scale(total, "total_loss_scalar_weighted", scale=scale)


@dataclass(frozen=True)
class NormClippedUpdate:
    """Gradient descent with clipping of the global norm of the gradients.

    Args:
        model: model with a backward pass.
        max_gradient_norm: the maximum norm.
        learning_rate: (1,) float32, on the device of the parameters.
        scope: scope of all blobs, inside the current name scope.
    """

    model: Seq2SeqModelHelper
    max_gradient_norm: float
    learning_rate: BlobReference
    scope: str

    def add(self, params: Sequence[BlobReference]) -> None:
        """Update these parameters, all with dense gradients or all with sparse ones.

        Raises:
            NetError: there are no parameters, or one has no gradient.
        """
        gradients = [self._gradient(param) for param in params]
        if not gradients:
            raise NetError(f"{self.scope}: model {self.model.get_name()!r} has no parameters to update")
        one = self.model.param_init_net.ConstantFill([], "ONE", shape=[1], value=1.0)
        ratio = self._norm_ratio(gradients)
        net = self.model.net
        negative = net.Negative(self.learning_rate, "negative_learning_rate")
        with NameScope(self.scope):
            step = net.Mul([negative, ratio], "update_coeff", broadcast=1)
        for param, gradient in zip(params, gradients):
            if isinstance(gradient, GradientSlice):
                net.ScatterWeightedSum([param, one, gradient.indices, gradient.values, step], param)
            else:
                net.WeightedSum([param, one, gradient, step], param)

    def _gradient(self, param: BlobReference) -> BlobReference | GradientSlice:
        gradient = self.model.param_to_grad.get(param)
        if gradient is None:
            raise NetError(f"{self.scope}: parameter {str(param)!r} has no gradient; call AddGradientOperators first")
        return gradient

    def _norm_ratio(self, gradients: Sequence[BlobReference | GradientSlice]) -> BlobReference:
        """Add the factor min(1, bound / global norm); repeated rows of sparse gradients are separate terms."""
        net, sums = self.model.net, []
        with NameScope(self.scope):
            for i, gradient in enumerate(gradients):
                values = gradient.values if isinstance(gradient, GradientSlice) else gradient
                square = net.Sqr(values, f"grad_{i}_squared")
                sums.append(net.SumElements(square, f"grad_{i}_squared_sum"))
            norm = net.Pow(net.Sum(sums, "grad_squared_full_sum"), "global_norm", exponent=0.5)
            bound = self.model.param_init_net.ConstantFill(
                [], "clip_norm", shape=[], value=float(self.max_gradient_norm)
            )
            largest = net.Max([norm, bound], "max_norm")
            ratio: BlobReference = net.Div([bound, largest], "norm_ratio")
        return ratio
